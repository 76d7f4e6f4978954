//! What was last written into the status of objects, and whether there is
//! anybody who would write something new. Costs a few requests to the hub, or
//! watches, and needs no other cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use mw_core::names::MeshId;
use mw_core::time::Timestamp;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::fleet::follow::{Manner, Observed, Outlet, RESYNC, follow};
use crate::fleet::list::{Scope, list};
use crate::lease::LEASE_DURATION;

/// Which objects are asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interest {
    Mesh(MeshId),
    Namespace(String),
    All,
}

impl Interest {
    pub fn includes(&self, mesh: &MeshId) -> bool {
        match self {
            Interest::Mesh(wanted) => wanted == mesh,
            Interest::Namespace(namespace) => mesh.namespace == *namespace,
            Interest::All => true,
        }
    }

    pub fn namespace(&self) -> Option<&str> {
        match self {
            Interest::Mesh(MeshId { namespace, .. }) | Interest::Namespace(namespace) => Some(namespace),
            Interest::All => None,
        }
    }
}

/// An object of a back end, as people ask about it.
pub trait Glanced: Debug + Clone + PartialEq + Send + Sync + 'static {
    type Kind: Debug + Copy + Ord + Send + Sync + 'static;
    type Id: Debug + Ord + Clone + Send + Sync;
    /// The name of the Lease of whoever writes their status.
    const LEASE: &'static str;
    /// What they are called.
    const PLURAL: &'static str;

    fn kinds() -> &'static [Self::Kind];
    fn resource(kind: Self::Kind) -> ApiResource;
    fn read(kind: Self::Kind, object: DynamicObject) -> Self;
    fn id(&self) -> Self::Id;
}

/// The Lease of an operator or a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseGlance {
    pub namespace: String,
    /// Empty once it was given up.
    pub holder: String,
    pub renewed: Option<Timestamp>,
    pub lasts: Duration,
}

impl LeaseGlance {
    /// Held, and renewed in time as far as two clocks agree.
    pub fn is_alive(&self, now: Timestamp) -> bool {
        !self.holder.is_empty() && self.expires().is_some_and(|at| now <= at)
    }

    fn expires(&self) -> Option<Timestamp> {
        Some(self.renewed?.plus(self.lasts.as_secs()))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Glance<T> {
    /// By id.
    pub objects: Vec<T>,
    pub leases: Result<Vec<LeaseGlance>, Failure>,
    /// Why this may not be all that is new.
    pub trouble: Option<Failure>,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlanceError {
    #[error("the {kinds} of all namespaces can't be listed: {failure}")]
    ListAll { kinds: &'static str, failure: Failure },
    #[error("the {kinds} of all namespaces can't be listed: {failure}; name one with -n")]
    NotAll { kinds: &'static str, failure: Failure },
    #[error("the {kinds} of namespace {namespace} can't be listed: {failure}")]
    List { kinds: &'static str, namespace: String, failure: Failure },
}

/// Whether the hub has these kinds at all. Who may not list them is told so
/// whether they are there or not, so that listing them does not say.
pub async fn is_served<T: Glanced>(hub: &Client) -> Result<bool, Failure> {
    for kind in T::kinds() {
        let resource = T::resource(*kind);
        match hub.list_api_group_resources(&resource.api_version).await.map_err(|error| Failure::of(&error)) {
            Ok(found) if found.resources.iter().any(|of| of.kind == resource.kind) => {}
            Ok(_) | Err(Failure::NotFound(_)) => return Ok(false),
            // Then only asking for the objects can tell.
            Err(Failure::Forbidden(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(true)
}

/// What is there now.
pub async fn glance<T: Glanced>(hub: &Client, interest: &Interest, clock: &Clock) -> Result<Glance<T>, GlanceError> {
    let mut objects = Vec::new();
    for kind in T::kinds() {
        let found = list(&objects_api::<T>(hub, interest, *kind), &object_scope(interest), &|object| T::read(*kind, object)).await;
        objects.extend(found.map_err(|failure| cannot_list::<T>(interest, failure))?.items);
    }
    objects.sort_by_key(T::id);
    let (_, leases) = find_leases::<T>(hub, interest).await;
    Ok(Glance { objects, leases, trouble: None, now: clock.now() })
}

fn cannot_list<T: Glanced>(interest: &Interest, failure: Failure) -> GlanceError {
    let kinds = T::PLURAL;
    match (failure, interest.namespace()) {
        (failure, Some(namespace)) => GlanceError::List { kinds, namespace: namespace.to_owned(), failure },
        (failure @ Failure::Forbidden(_), None) => GlanceError::NotAll { kinds, failure },
        (failure, None) => GlanceError::ListAll { kinds, failure },
    }
}

fn objects_api<T: Glanced>(hub: &Client, interest: &Interest, kind: T::Kind) -> Api<DynamicObject> {
    let resource = T::resource(kind);
    match interest.namespace() {
        Some(namespace) => Api::namespaced_with(hub.clone(), namespace, &resource),
        None => Api::all_with(hub.clone(), &resource),
    }
}

fn object_scope(interest: &Interest) -> Scope {
    match interest {
        Interest::Mesh(id) => Scope::named(&id.name),
        Interest::Namespace(_) | Interest::All => Scope::default(),
    }
}

/// Who acts on all namespaces has its Lease in any; where they can't all be
/// searched, the one asked about must do.
async fn find_leases<T: Glanced>(hub: &Client, interest: &Interest) -> (Api<Lease>, Result<Vec<LeaseGlance>, Failure>) {
    let all = Api::<Lease>::all(hub.clone());
    let scope = Scope::named(T::LEASE);
    let (api, found) = match (list(&all, &scope, &lease).await, interest.namespace()) {
        (Err(Failure::Forbidden(_)), Some(namespace)) => {
            let own = Api::<Lease>::namespaced(hub.clone(), namespace);
            let found = list(&own, &scope, &lease).await;
            (own, found)
        }
        (found, _) => (all, found),
    };
    (api, found.map(|leases| leases.items))
}

fn lease(lease: Lease) -> LeaseGlance {
    let spec = lease.spec.unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    LeaseGlance {
        namespace: lease.metadata.namespace.unwrap_or_default(),
        holder: spec.holder_identity.unwrap_or_default(),
        renewed: spec.renew_time.map(|time| Timestamp(time.0.as_second())),
        lasts: seconds.map_or(LEASE_DURATION, Duration::from_secs),
    }
}

#[derive(Debug)]
enum News<T: Glanced> {
    Object(T::Kind, Observed<T>),
    Lease(Observed<LeaseGlance>),
}

/// Follows what `glance` shows.
#[derive(Debug)]
pub struct Watching<T: Glanced> {
    clock: Clock,
    news: mpsc::Receiver<News<T>>,
    /// The kinds that were listed.
    objects: BTreeMap<T::Kind, BTreeMap<T::Id, T>>,
    leases: Option<Result<BTreeMap<String, LeaseGlance>, Failure>>,
    troubles: BTreeMap<T::Kind, Failure>,
    /// Who led when that was last told.
    told: Option<BTreeSet<(String, String)>>,
    _tasks: JoinSet<()>,
}

impl<T: Glanced> Watching<T> {
    pub async fn start(hub: &Client, interest: &Interest, clock: Clock, mut random: fastrand::Rng) -> Watching<T> {
        let (leases, _) = find_leases::<T>(hub, interest).await;
        let (sender, news) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        let mut manner = |scope| Manner {
            scope,
            backoff: Backoff::of_watch(random.fork()),
            // Nobody rings: nothing is ever listed again on demand.
            relist: Arc::new(Notify::new()),
            resync: RESYNC,
        };
        for kind in T::kinds().iter().copied() {
            let outlet = Outlet { events: sender.clone(), wrap: move |seen| News::Object(kind, seen) };
            let read = move |object| T::read(kind, object);
            tasks.spawn(follow(objects_api::<T>(hub, interest, kind), manner(object_scope(interest)), read, outlet));
        }
        let outlet = Outlet { events: sender, wrap: News::Lease };
        tasks.spawn(follow(leases, manner(Scope::named(T::LEASE)), lease, outlet));
        let (objects, troubles) = (BTreeMap::new(), BTreeMap::new());
        Watching { clock, news, objects, leases: None, troubles, told: None, _tasks: tasks }
    }

    /// The next state that differs in something that people would see. What
    /// was not waited for to its end is not lost.
    pub async fn next(&mut self) -> Glance<T> {
        loop {
            let expiry = self.until_expiry();
            let news = tokio::select! {
                biased;
                news = self.news.recv() => news,
                () = sleep(expiry) => None,
            };
            let mut differs = news.is_some_and(|news| self.take(news));
            while let Ok(news) = self.news.try_recv() {
                differs |= self.take(news);
            }
            let leads = self.leads();
            differs |= self.told.as_ref().is_some_and(|told| *told != leads);
            if let (true, Some(glance)) = (differs, self.current()) {
                self.told = Some(leads);
                return glance;
            }
        }
    }

    /// Once all were seen, or can't be.
    fn current(&self) -> Option<Glance<T>> {
        let leases = self.leases.as_ref()?;
        if T::kinds().iter().any(|kind| !self.objects.contains_key(kind) && !self.troubles.contains_key(kind)) {
            return None;
        }
        let mut objects: Vec<T> = self.objects.values().flat_map(BTreeMap::values).cloned().collect();
        objects.sort_by_key(T::id);
        let leases = leases.as_ref().map(|leases| leases.values().cloned().collect()).map_err(Clone::clone);
        Some(Glance { objects, leases, trouble: self.troubles.values().next().cloned(), now: self.clock.now() })
    }

    fn leads(&self) -> BTreeSet<(String, String)> {
        let now = self.clock.now();
        let leases = self.leases.iter().flatten().flat_map(BTreeMap::values);
        leases.filter(|lease| lease.is_alive(now)).map(|lease| (lease.namespace.clone(), lease.holder.clone())).collect()
    }

    /// Until a Lease runs out that is alive now.
    fn until_expiry(&self) -> Duration {
        let now = self.clock.now();
        let alive = self.leases.iter().flatten().flat_map(BTreeMap::values).filter(|lease| lease.is_alive(now));
        let left = alive.filter_map(|lease| u64::try_from(lease.expires()?.0 - now.0).ok()).min();
        Duration::from_secs(left.map_or(3600, |left| left + 1))
    }

    /// Whether people would see a difference.
    fn take(&mut self, news: News<T>) -> bool {
        let first = self.current().is_none();
        let differs = match news {
            News::Object(kind, seen) => self.take_object(kind, seen),
            News::Lease(seen) => {
                self.take_lease(seen);
                false
            }
        };
        differs || (first && self.current().is_some())
    }

    fn take_object(&mut self, kind: T::Kind, seen: Observed<T>) -> bool {
        if let Observed::Broken(failure) = seen {
            return self.troubles.insert(kind, failure.clone()) != Some(failure);
        }
        let healed = self.troubles.remove(&kind).is_some();
        let objects = self.objects.entry(kind).or_default();
        let changed = match seen {
            Observed::Broken(_) | Observed::Standing => false,
            Observed::Listed { items, .. } => {
                let listed = items.into_iter().map(|object| (object.id(), object)).collect();
                let before = std::mem::replace(objects, listed);
                before != *objects
            }
            Observed::Set { item, .. } => objects.insert(item.id(), item.clone()) != Some(item),
            Observed::Gone { item, .. } => objects.remove(&item.id()).is_some(),
        };
        healed || changed
    }

    fn take_lease(&mut self, seen: Observed<LeaseGlance>) {
        match (seen, &mut self.leases) {
            (Observed::Broken(failure), Some(Err(_)) | None) => self.leases = Some(Err(failure)),
            (Observed::Listed { items, .. }, _) => {
                self.leases = Some(Ok(items.into_iter().map(|lease| (lease.namespace.clone(), lease)).collect()));
            }
            (Observed::Set { item, .. }, Some(Ok(leases))) => _ = leases.insert(item.namespace.clone(), item),
            (Observed::Gone { item, .. }, Some(Ok(leases))) => _ = leases.remove(&item.namespace),
            // What was seen runs out by itself.
            _ => {}
        }
    }
}
