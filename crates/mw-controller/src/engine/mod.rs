//! The engine of both back ends: one task that owns all state and runs the same steps
//! after each batch of events. Results of watches and writes arrive on one channel, and
//! no step blocks.
//!
//! A back end implements [`Steps`]. Its own part of the state is in a field named `state`,
//! of the engine, of a member and of a record. Nothing here knows Kilo or Cilium.

mod apply;
mod changes;
mod credentials;
mod events;
mod member;
mod record;
mod report;
mod searches;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use kube::core::{ApiResource, DynamicObject};
use mw_core::names::ClusterId;
use mw_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::engine::searches::Searches;
use crate::failure::Failure;
use crate::fleet::Feeds;
use crate::fleet::follow::{RelistSignal, Version};
use crate::run::Environment;
use crate::writer::Operation;

pub(crate) use apply::{Offer, Offers, conditional_delete};
pub(crate) use changes::Changes;
pub(crate) use events::Notices;
pub(crate) use member::Member;
pub(crate) use record::{Record, RecordId};
pub(crate) use report::{Reports, WHILE_WRITING, count};
pub(crate) use turn::Event;

/// Capacity of the channel; a full channel blocks the watches.
const EVENTS: usize = 4096;

/// A back end: what it keeps, and how its steps differ.
pub(crate) trait Steps: Sized + Send + 'static {
    type Settings: Send;
    /// Results of its own watches and checks.
    type Input: Send;
    type RecordId: RecordId;
    /// Its part of a record.
    type Object: Send;
    /// Key of a search for missing objects.
    type SearchKey: Ord + Clone + Send;
    /// Its part of a member.
    type MemberState: Default + Send;
    type Feeds: Feeds + Send;
    /// State observed through a new connection, until it is complete.
    type Swap: Default + Send;
    type Operation: Operation + Send;
    /// Result of a write.
    type Outcome: Send;
    /// Result of planning.
    type Plan;

    /// Time for which a cluster stays connected after the last object stopped naming it.
    const LINGER: Duration;
    /// Time between two searches that must agree; zero if one is enough.
    const SEARCHES_APART: Duration;
    /// Reporting controller of its Events.
    const CONTROLLER: &'static str;
    /// Field manager of its writes to objects; None for the default of the API server.
    const MANAGER: Option<&'static str>;

    /// Starts the watches that exist from the beginning.
    fn follow(engine: &mut Engine<Self>);

    /// Updates what the process reports about its readiness.
    fn tell_readiness(engine: &Engine<Self>);

    /// Takes over the time. Called before events are observed.
    fn tick(engine: &mut Engine<Self>, now: Timestamp);

    /// Step 1: takes in what was observed.
    fn observe(engine: &mut Engine<Self>, input: Self::Input);

    /// Reports whether the objects are listed. Nothing is done before.
    fn is_complete(engine: &Engine<Self>) -> bool;

    /// Step 2: makes the objects and the connected clusters an input of the planner.
    fn validate(engine: &mut Engine<Self>);

    /// Step 3: plans.
    fn plan(engine: &mut Engine<Self>, changes: Changes) -> Self::Plan;

    /// Step 4: turns the plan into single writes, for the writers of these members.
    fn diff(engine: &mut Engine<Self>, plan: &Self::Plan) -> Offers<Self::Operation>;

    /// Step 5: writes to a member.
    fn write(
        engine: &mut Engine<Self>,
        cluster: &ClusterId,
        client: Client,
        operation: Self::Operation,
    ) -> impl Future<Output = Self::Outcome> + Send + 'static;

    /// Takes in the result of a write.
    fn observe_write(
        engine: &mut Engine<Self>,
        cluster: &ClusterId,
        epoch: u64,
        outcome: Self::Outcome,
    );

    /// Forgets the writes of a member without a connection.
    fn drop_writes(member: &mut Self::MemberState);

    /// Step 6: sets and removes finalizers. Comes after the writes, because a finalizer
    /// stays while one of them is in flight.
    fn clean_up(engine: &mut Engine<Self>, plan: &Self::Plan);

    /// Step 7: checks what was written. Kilo has nothing to check.
    fn verify(_engine: &mut Engine<Self>, _plan: &Self::Plan) {}

    /// Step 8: writes the status of objects.
    fn report(engine: &mut Engine<Self>, plan: &Self::Plan);

    /// Returns the times at which it needs a turn, besides those of the engine.
    fn dues(engine: &Engine<Self>) -> Vec<Option<Instant>>;

    /// Takes in a newer state of an object.
    fn take_object(
        engine: &mut Engine<Self>,
        id: &Self::RecordId,
        object: &DynamicObject,
        version: Version,
    );

    /// Takes in the deletion of an object.
    fn drop_object(engine: &mut Engine<Self>, id: &Self::RecordId, object: &DynamicObject);

    /// Takes in that an object was not found. Returns false if that is a failure like
    /// any other.
    fn miss_object(engine: &mut Engine<Self>, id: &Self::RecordId) -> bool;

    /// Logs that an object was not written.
    fn warn_of_patch(id: &Self::RecordId, failure: &Failure);

    /// Returns a client for an object, its status and its Events.
    fn client_of(engine: &mut Engine<Self>, id: &Self::RecordId) -> Result<Client, String>;

    /// Returns the backoff of Events that a quota rejects; None if they are dropped.
    fn event_backoff(engine: &mut Engine<Self>) -> Option<Backoff>;

    /// Returns the resource and the name of a search.
    fn searched(key: &Self::SearchKey) -> (ApiResource, String);

    /// Takes in the namespaces that have an object of a name.
    fn observe_search(
        engine: &mut Engine<Self>,
        key: &Self::SearchKey,
        namespaces: &BTreeSet<String>,
    );

    /// Tests whether a client works, if another one is in use.
    fn probe(client: Client) -> BoxFuture<'static, Result<(), Failure>>;

    /// Takes in that a member has no valid credentials any more.
    fn disconnected(engine: &mut Engine<Self>, cluster: &ClusterId);

    /// Takes in that new credentials do not work and the previous ones stay in use.
    fn credentials_are_stale(engine: &mut Engine<Self>, cluster: &ClusterId);

    /// Starts the watches of a member on a new connection. If that replaces another one,
    /// the member has a swap.
    fn connected(engine: &mut Engine<Self>, cluster: &ClusterId);

    /// Reports whether a member that no object names may be released. `lingered` tells
    /// that it stayed connected for [`Steps::LINGER`].
    fn may_release(engine: &Engine<Self>, cluster: &ClusterId, lingered: bool) -> bool;
}

/// Sender and receiver of the channel.
pub(crate) struct Inbox<B: Steps> {
    pub(crate) sender: mpsc::Sender<Event<B>>,
    receiver: mpsc::Receiver<Event<B>>,
}

/// Schedule of full relists.
pub(crate) struct Resync {
    pub(crate) interval: Duration,
    next: Instant,
}

pub(crate) struct Engine<B: Steps> {
    pub(crate) settings: B::Settings,
    pub(crate) environment: Environment,
    pub(crate) inbox: Inbox<B>,
    pub(crate) tasks: JoinSet<()>,
    pub(crate) resync: Resync,
    /// Relists all watches on the hub, and of objects in kcp.
    pub(crate) hub_relist: RelistSignal,
    pub(crate) records: BTreeMap<B::RecordId, Record<B::Object>>,
    /// Searches for objects that disappeared although they have our finalizer.
    pub(crate) searches: Searches<B::SearchKey>,
    pub(crate) members: BTreeMap<ClusterId, Member<B>>,
    pub(crate) changes: Changes,
    pub(crate) reports: Reports,
    pub(crate) now: Timestamp,
    /// Start of the turn, used by all its steps: what is too early for one step
    /// must not be overdue for the next.
    pub(crate) turned_at: Instant,
    pub(crate) state: B,
}

impl<B: Steps> Engine<B> {
    pub(crate) fn with(
        state: B,
        settings: B::Settings,
        resync: Duration,
        environment: Environment,
    ) -> Engine<B> {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let mut engine = Engine {
            settings,
            now: environment.clock.now(),
            environment,
            inbox: Inbox { sender, receiver },
            tasks: JoinSet::new(),
            resync: Resync {
                interval: resync,
                next: Instant::now(),
            },
            hub_relist: RelistSignal::default(),
            records: BTreeMap::new(),
            searches: Searches::new(B::SEARCHES_APART),
            members: BTreeMap::new(),
            changes: Changes::default(),
            reports: Reports::default(),
            turned_at: Instant::now(),
            state,
        };
        engine.schedule_resync();
        engine
    }
}
