//! What the operator last wrote into the status of its meshes, and whether
//! there is an operator that would write something new. Costs a few requests
//! to the hub, or a watch, and needs no other cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use mw_api::clustermesh::{ClusterMesh, ClusterMeshStatus};
use mw_core::names::MeshId;
use mw_core::time::Timestamp;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::fleet::follow::{Manner, Observed, Outlet, Scope, follow, list};
use crate::kilo::LEASE_NAME;
use crate::kilo::look::{Interest, LookError};
use crate::kilo::record::Record;
use crate::lease::LEASE_DURATION;

/// A ClusterMesh as people ask about it.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshGlance {
    pub id: MeshId,
    pub generation: i64,
    pub deleting: bool,
    /// The clusters of the spec, in its order.
    pub clusters: Vec<String>,
    /// Why the spec can't be read.
    pub misread: Option<String>,
    pub status: ClusterMeshStatus,
}

/// An operator's Lease.
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
pub struct Glance {
    /// By id.
    pub meshes: Vec<MeshGlance>,
    pub leases: Result<Vec<LeaseGlance>, Failure>,
    /// Why this may not be all that is new.
    pub trouble: Option<Failure>,
    pub now: Timestamp,
}

/// What is there now.
pub async fn glance(hub: &Client, interest: &Interest, clock: &Clock) -> Result<Glance, LookError> {
    let found = list(&meshes_api(hub, interest), &mesh_scope(interest), &mesh).await;
    let (mut meshes, _) = found.map_err(|failure| cannot_list(interest, failure))?;
    meshes.sort_by(|one, other| one.id.cmp(&other.id));
    if let (Interest::Mesh(id), true) = (interest, meshes.is_empty()) {
        return Err(LookError::NoMesh(id.clone()));
    }
    let (_, leases) = find_leases(hub, interest).await;
    Ok(Glance { meshes, leases, trouble: None, now: clock.now() })
}

fn cannot_list(interest: &Interest, failure: Failure) -> LookError {
    match (failure, interest.namespace()) {
        (Failure::NotFound(_), _) => LookError::NoResource,
        (failure, Some(namespace)) => LookError::List { namespace: namespace.to_owned(), failure },
        (failure @ Failure::Forbidden(_), None) => LookError::NotAll(failure),
        (failure, None) => LookError::ListAll(failure),
    }
}

fn meshes_api(hub: &Client, interest: &Interest) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<ClusterMesh>(&());
    match interest.namespace() {
        Some(namespace) => Api::namespaced_with(hub.clone(), namespace, &resource),
        None => Api::all_with(hub.clone(), &resource),
    }
}

fn mesh_scope(interest: &Interest) -> Scope {
    match interest {
        Interest::Mesh(id) => Scope::named(&id.name),
        Interest::Namespace(_) | Interest::All => Scope::default(),
    }
}

fn lease_scope() -> Scope {
    Scope::named(LEASE_NAME)
}

/// An operator that acts on all namespaces has its Lease in any; where they
/// can't all be searched, the one asked about must do.
async fn find_leases(hub: &Client, interest: &Interest) -> (Api<Lease>, Result<Vec<LeaseGlance>, Failure>) {
    let all = Api::<Lease>::all(hub.clone());
    let (api, found) = match (list(&all, &lease_scope(), &lease).await, interest.namespace()) {
        (Err(Failure::Forbidden(_)), Some(namespace)) => {
            let own = Api::<Lease>::namespaced(hub.clone(), namespace);
            let found = list(&own, &lease_scope(), &lease).await;
            (own, found)
        }
        (found, _) => (all, found),
    };
    (api, found.map(|(leases, _)| leases))
}

fn mesh(object: DynamicObject) -> MeshGlance {
    let record = Record::read(&object);
    MeshGlance {
        id: record.id().clone(),
        generation: record.generation(),
        deleting: record.deleted_at().is_some(),
        clusters: record.mesh.spec.clusters.iter().map(|entry| entry.name.clone()).collect(),
        misread: record.misread,
        status: record.status,
    }
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
enum News {
    Mesh(Observed<MeshGlance>),
    Lease(Observed<LeaseGlance>),
}

/// Follows what `glance` shows.
#[derive(Debug)]
pub struct Watching {
    clock: Clock,
    news: mpsc::Receiver<News>,
    meshes: Option<BTreeMap<MeshId, MeshGlance>>,
    leases: Option<Result<BTreeMap<String, LeaseGlance>, Failure>>,
    trouble: Option<Failure>,
    /// Who led when that was last told.
    told: Option<BTreeSet<(String, String)>>,
    _tasks: JoinSet<()>,
}

impl Watching {
    pub async fn start(hub: &Client, interest: &Interest, clock: Clock, mut random: fastrand::Rng) -> Watching {
        let (leases, _) = find_leases(hub, interest).await;
        let (sender, news) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        let mut manner = |scope| Manner {
            scope,
            backoff: Backoff::of_watch(random.fork()),
            // Nobody rings: nothing is ever listed again on demand.
            relist: Arc::new(Notify::new()),
        };
        let (for_meshes, for_leases) = (manner(mesh_scope(interest)), manner(lease_scope()));
        let outlet = Outlet { events: sender.clone(), wrap: News::Mesh };
        tasks.spawn(follow(meshes_api(hub, interest), for_meshes, mesh, outlet));
        let outlet = Outlet { events: sender, wrap: News::Lease };
        tasks.spawn(follow(leases, for_leases, lease, outlet));
        Watching { clock, news, meshes: None, leases: None, trouble: None, told: None, _tasks: tasks }
    }

    /// The next state that differs in something that people would see.
    pub async fn next(&mut self) -> Glance {
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

    /// Once both were seen, or can't be.
    fn current(&self) -> Option<Glance> {
        let leases = self.leases.as_ref()?;
        let meshes = match (&self.meshes, &self.trouble) {
            (Some(meshes), _) => meshes.values().cloned().collect(),
            (None, Some(_)) => Vec::new(),
            (None, None) => return None,
        };
        let leases = leases.as_ref().map(|leases| leases.values().cloned().collect()).map_err(Clone::clone);
        Some(Glance { meshes, leases, trouble: self.trouble.clone(), now: self.clock.now() })
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
    fn take(&mut self, news: News) -> bool {
        let first = self.current().is_none();
        let differs = match news {
            News::Mesh(seen) => self.take_mesh(seen),
            News::Lease(seen) => {
                self.take_lease(seen);
                false
            }
        };
        differs || (first && self.current().is_some())
    }

    fn take_mesh(&mut self, seen: Observed<MeshGlance>) -> bool {
        if let Observed::Broken(failure) = seen {
            return self.trouble.replace(failure.clone()) != Some(failure);
        }
        let healed = self.trouble.take().is_some();
        let meshes = self.meshes.get_or_insert_default();
        let changed = match seen {
            Observed::Broken(_) | Observed::Standing => false,
            Observed::Listed { items, .. } => {
                let listed = items.into_iter().map(|mesh| (mesh.id.clone(), mesh)).collect();
                let before = std::mem::replace(meshes, listed);
                before != *meshes
            }
            Observed::Set { item, .. } => meshes.insert(item.id.clone(), item.clone()) != Some(item),
            Observed::Gone { item, .. } => meshes.remove(&item.id).is_some(),
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
