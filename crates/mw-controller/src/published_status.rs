//! The status that was last written to objects, and whether a process is running
//! that would update it. Needs a few requests to the hub, or watches, and no
//! other cluster.

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
use crate::fleet::follow::{EventSink, Observed, RESYNC, WatchConfig, follow};
use crate::fleet::list::{Scope, list};
use crate::lease::LEASE_DURATION;
use crate::run::SCOPE;

/// Selects the objects to show.
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
            Interest::Mesh(MeshId { namespace, .. }) | Interest::Namespace(namespace) => {
                Some(namespace)
            }
            Interest::All => None,
        }
    }
}

/// An object of a back end, as shown to users.
pub trait Published: Debug + Clone + PartialEq + Send + Sync + 'static {
    type Kind: Debug + Copy + Ord + Send + Sync + 'static;
    type Id: Debug + Ord + Clone + Send + Sync;
    /// Name of the Lease of the process that writes their status.
    const LEASE: &'static str;
    /// Plural name for messages.
    const PLURAL: &'static str;

    fn kinds() -> &'static [Self::Kind];
    fn resource(kind: Self::Kind) -> ApiResource;
    fn read(kind: Self::Kind, object: DynamicObject) -> Self;
    fn id(&self) -> Self::Id;
}

/// The Lease of an operator or a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedLease {
    pub namespace: String,
    /// Empty if the Lease was released.
    pub holder: String,
    pub renewed: Option<Timestamp>,
    pub lasts: Duration,
    /// Namespaces that its holder acts on, if recorded.
    pub scope: Option<BTreeSet<String>>,
}

/// Returns the namespaces that live processes act on; `None` if there is no live
/// process, or one does not record its namespaces.
pub fn served(leases: &[PublishedLease], now: Timestamp) -> Option<BTreeSet<String>> {
    let scopes: Option<Vec<&BTreeSet<String>>> = leases
        .iter()
        .filter(|lease| lease.is_alive(now))
        .map(|lease| lease.scope.as_ref())
        .collect();
    scopes
        .filter(|scopes| !scopes.is_empty())
        .map(|scopes| scopes.into_iter().flatten().cloned().collect())
}

impl PublishedLease {
    /// Reports whether the Lease is held and not expired, assuming synchronized clocks.
    pub fn is_alive(&self, now: Timestamp) -> bool {
        !self.holder.is_empty() && self.expires().is_some_and(|at| now <= at)
    }

    fn expires(&self) -> Option<Timestamp> {
        Some(self.renewed?.plus(self.lasts.as_secs()))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct PublishedStatus<T> {
    /// Sorted by id.
    pub objects: Vec<T>,
    pub leases: Result<Vec<PublishedLease>, Failure>,
    /// Failure of a watch; the objects may be out of date.
    pub trouble: Option<Failure>,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishedStatusError {
    #[error("cannot list {kinds} in all namespaces: {failure}")]
    ListAll {
        kinds: &'static str,
        failure: Failure,
    },
    #[error("cannot list {kinds} in all namespaces: {failure}; select one namespace with -n")]
    NotAll {
        kinds: &'static str,
        failure: Failure,
    },
    #[error("cannot list {kinds} in namespace {namespace}: {failure}")]
    List {
        kinds: &'static str,
        namespace: String,
        failure: Failure,
    },
}

/// Reports whether the hub serves these kinds. Uses discovery, since listing
/// returns 403 to an unauthorized user whether the kind exists or not.
pub async fn is_served<T: Published>(hub: &Client) -> Result<bool, Failure> {
    for kind in T::kinds() {
        let resource = T::resource(*kind);
        match hub
            .list_api_group_resources(&resource.api_version)
            .await
            .map_err(|error| Failure::of(&error))
        {
            Ok(found) if found.resources.iter().any(|of| of.kind == resource.kind) => {}
            Ok(_) | Err(Failure::NotFound(_)) => return Ok(false),
            // Without discovery, only listing the objects can tell.
            Err(Failure::Forbidden(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(true)
}

/// Reads the current objects and Leases.
pub async fn published_status<T: Published>(
    hub: &Client,
    interest: &Interest,
    clock: &Clock,
) -> Result<PublishedStatus<T>, PublishedStatusError> {
    let mut objects = Vec::new();
    for kind in T::kinds() {
        let found = list(
            &objects_api::<T>(hub, interest, *kind),
            &object_scope(interest),
            &|object| T::read(*kind, object),
        )
        .await;
        objects.extend(
            found
                .map_err(|failure| cannot_list::<T>(interest, failure))?
                .items,
        );
    }
    objects.sort_by_key(T::id);
    let (_, leases) = find_leases::<T>(hub, interest).await;
    Ok(PublishedStatus {
        objects,
        leases,
        trouble: None,
        now: clock.now(),
    })
}

fn cannot_list<T: Published>(interest: &Interest, failure: Failure) -> PublishedStatusError {
    let kinds = T::PLURAL;
    match (failure, interest.namespace()) {
        (failure, Some(namespace)) => PublishedStatusError::List {
            kinds,
            namespace: namespace.to_owned(),
            failure,
        },
        (failure @ Failure::Forbidden(_), None) => PublishedStatusError::NotAll { kinds, failure },
        (failure, None) => PublishedStatusError::ListAll { kinds, failure },
    }
}

fn objects_api<T: Published>(
    hub: &Client,
    interest: &Interest,
    kind: T::Kind,
) -> Api<DynamicObject> {
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

/// Finds the Leases. A process that acts on all namespaces may have its Lease in
/// any of them; if not all can be listed, only the selected one is searched.
async fn find_leases<T: Published>(
    hub: &Client,
    interest: &Interest,
) -> (Api<Lease>, Result<Vec<PublishedLease>, Failure>) {
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

fn lease(lease: Lease) -> PublishedLease {
    let spec = lease.spec.unwrap_or_default();
    let scope = lease
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(SCOPE));
    let scope = scope.map(|scope| scope.split(',').map(str::to_owned).collect());
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    PublishedLease {
        namespace: lease.metadata.namespace.unwrap_or_default(),
        holder: spec.holder_identity.unwrap_or_default(),
        renewed: spec.renew_time.map(|time| Timestamp(time.0.as_second())),
        lasts: seconds.map_or(LEASE_DURATION, Duration::from_secs),
        scope,
    }
}

#[derive(Debug)]
enum News<T: Published> {
    Object(T::Kind, Observed<T>),
    Lease(Observed<PublishedLease>),
}

/// Watches what `published_status` reads.
#[derive(Debug)]
pub struct Watching<T: Published> {
    clock: Clock,
    news: mpsc::Receiver<News<T>>,
    /// Objects of the kinds listed so far.
    objects: BTreeMap<T::Kind, BTreeMap<T::Id, T>>,
    leases: Option<Result<BTreeMap<String, PublishedLease>, Failure>>,
    troubles: BTreeMap<T::Kind, Failure>,
    /// Namespaces and holders of the live Leases when they were last returned.
    told: Option<BTreeSet<(String, String)>>,
    _tasks: JoinSet<()>,
}

impl<T: Published> Watching<T> {
    pub async fn start(
        hub: &Client,
        interest: &Interest,
        clock: Clock,
        mut random: fastrand::Rng,
    ) -> Watching<T> {
        let (leases, _) = find_leases::<T>(hub, interest).await;
        let (sender, news) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        let mut watch_config = |scope| WatchConfig {
            scope,
            backoff: Backoff::of_watch(random.fork()),
            // Never notified: nothing is relisted on demand.
            relist: Arc::new(Notify::new()),
            resync: RESYNC,
        };
        for kind in T::kinds().iter().copied() {
            let sink = EventSink {
                events: sender.clone(),
                wrap: move |seen| News::Object(kind, seen),
            };
            let read = move |object| T::read(kind, object);
            tasks.spawn(follow(
                objects_api::<T>(hub, interest, kind),
                watch_config(object_scope(interest)),
                read,
                sink,
            ));
        }
        let sink = EventSink {
            events: sender,
            wrap: News::Lease,
        };
        tasks.spawn(follow(
            leases,
            watch_config(Scope::named(T::LEASE)),
            lease,
            sink,
        ));
        let (objects, troubles) = (BTreeMap::new(), BTreeMap::new());
        Watching {
            clock,
            news,
            objects,
            leases: None,
            troubles,
            told: None,
            _tasks: tasks,
        }
    }

    /// Waits for the next state that looks different to users. Cancel safe.
    pub async fn next(&mut self) -> PublishedStatus<T> {
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
            if let (true, Some(published_status)) = (differs, self.current()) {
                self.told = Some(leads);
                return published_status;
            }
        }
    }

    /// Returns the state once each kind was listed or has failed.
    fn current(&self) -> Option<PublishedStatus<T>> {
        let leases = self.leases.as_ref()?;
        if T::kinds()
            .iter()
            .any(|kind| !self.objects.contains_key(kind) && !self.troubles.contains_key(kind))
        {
            return None;
        }
        let mut objects: Vec<T> = self
            .objects
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect();
        objects.sort_by_key(T::id);
        let leases = leases
            .as_ref()
            .map(|leases| leases.values().cloned().collect())
            .map_err(Clone::clone);
        Some(PublishedStatus {
            objects,
            leases,
            trouble: self.troubles.values().next().cloned(),
            now: self.clock.now(),
        })
    }

    fn leads(&self) -> BTreeSet<(String, String)> {
        let now = self.clock.now();
        let leases = self.leases.iter().flatten().flat_map(BTreeMap::values);
        leases
            .filter(|lease| lease.is_alive(now))
            .map(|lease| (lease.namespace.clone(), lease.holder.clone()))
            .collect()
    }

    /// Returns the time until the first live Lease expires.
    fn until_expiry(&self) -> Duration {
        let now = self.clock.now();
        let alive = self
            .leases
            .iter()
            .flatten()
            .flat_map(BTreeMap::values)
            .filter(|lease| lease.is_alive(now));
        let left = alive
            .filter_map(|lease| u64::try_from(lease.expires()?.0 - now.0).ok())
            .min();
        Duration::from_secs(left.map_or(3600, |left| left + 1))
    }

    /// Takes in an observation; returns true if it looks different to users.
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
            Observed::Broken(_) | Observed::Established => false,
            Observed::Listed { items, .. } => {
                let listed = items
                    .into_iter()
                    .map(|object| (object.id(), object))
                    .collect();
                let before = std::mem::replace(objects, listed);
                before != *objects
            }
            Observed::Set { item, .. } => objects.insert(item.id(), item.clone()) != Some(item),
            Observed::Gone { item, .. } => objects.remove(&item.id()).is_some(),
        };
        healed || changed
    }

    fn take_lease(&mut self, seen: Observed<PublishedLease>) {
        match (seen, &mut self.leases) {
            (Observed::Broken(failure), Some(Err(_)) | None) => self.leases = Some(Err(failure)),
            (Observed::Listed { items, .. }, _) => {
                self.leases = Some(Ok(items
                    .into_iter()
                    .map(|lease| (lease.namespace.clone(), lease))
                    .collect()));
            }
            (Observed::Set { item, .. }, Some(Ok(leases))) => {
                _ = leases.insert(item.namespace.clone(), item)
            }
            (Observed::Gone { item, .. }, Some(Ok(leases))) => _ = leases.remove(&item.namespace),
            // Leases seen before expire by themselves.
            _ => {}
        }
    }
}
