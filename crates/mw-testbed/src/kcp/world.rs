//! What front and controllers share: the workspaces, what is in them, and what
//! a test has asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::model::{Binding, Export, ExportKey, GroupResource};
use crate::http::Http;

/// More switched schemas at once than this end all watches.
const SWITCHES_IN_FLIGHT: usize = 16;
/// Per resource; see `Progress`.
const POSITIONS_KEPT: usize = 4096;

/// A workspace: an API server that takes part.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) id: String,
    pub(super) path: String,
    pub(super) shard: usize,
    /// Of the user `testbed`, who may also speak for others.
    pub(super) http: Http,
}

/// Whose token it is.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    /// The workspace in which a service account lives.
    pub(super) home: Option<String>,
}

/// How much later than at once kcp does things.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Delays {
    pub(super) binding: Duration,
    pub(super) claims: Duration,
    pub(super) schema: Duration,
}

/// The kinds of apis.kcp.io that are mirrored from every workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Schema,
    Export,
    Slice,
    Binding,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Schema, Kind::Export, Kind::Slice, Kind::Binding];

    pub(super) fn collection(self) -> &'static str {
        match self {
            Kind::Schema => "/apis/apis.kcp.io/v1alpha1/apiresourceschemas",
            Kind::Export => "/apis/apis.kcp.io/v1alpha2/apiexports",
            Kind::Slice => "/apis/apis.kcp.io/v1alpha1/apiexportendpointslices",
            Kind::Binding => "/apis/apis.kcp.io/v1alpha2/apibindings",
        }
    }
}

/// How far each workspace had been told when a revision was handed out. A
/// merged watch is not ordered across workspaces, so who resumes at a revision
/// may lack an earlier one of another workspace.
type Progress = BTreeMap<u64, BTreeMap<String, u64>>;

#[derive(Debug)]
pub(super) struct World {
    workspaces: RwLock<BTreeMap<String, Arc<Workspace>>>,
    /// The address of each shard's front.
    shards: RwLock<Vec<String>>,
    mirrored: Mutex<BTreeMap<(String, Kind), BTreeMap<String, Value>>>,
    changes: watch::Sender<u64>,
    users: Mutex<BTreeMap<String, User>>,
    delays: Mutex<Delays>,
    /// Shards whose endpoints no slice names.
    hidden: Mutex<BTreeSet<usize>>,
    switches: broadcast::Sender<(ExportKey, GroupResource)>,
    /// When each shard was last restarted.
    restarted: Mutex<BTreeMap<usize, u64>>,
    /// When a shard first served a resource for any binding.
    first_served: Mutex<BTreeMap<(usize, GroupResource), u64>>,
    /// When a resource was first served in a workspace for a binding.
    served_since: Mutex<BTreeMap<(String, GroupResource), u64>>,
    progress: Mutex<BTreeMap<String, Progress>>,
    /// Identity hashes differ between installations.
    pub(super) seed: String,
}

impl World {
    pub(super) fn new(seed: String) -> Self {
        Self {
            workspaces: RwLock::default(),
            shards: RwLock::default(),
            mirrored: Mutex::default(),
            changes: watch::channel(0).0,
            users: Mutex::default(),
            delays: Mutex::default(),
            hidden: Mutex::default(),
            switches: broadcast::channel(SWITCHES_IN_FLIGHT).0,
            restarted: Mutex::default(),
            first_served: Mutex::default(),
            served_since: Mutex::default(),
            progress: Mutex::default(),
            seed,
        }
    }

    pub(super) fn add_shard(&self, url: &str) -> usize {
        let mut shards = self.shards.write().unwrap_or_else(PoisonError::into_inner);
        shards.push(url.to_owned());
        shards.len() - 1
    }

    pub(super) fn shards(&self) -> Vec<String> {
        self.shards.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add_workspace(&self, workspace: Arc<Workspace>) {
        self.workspaces.write().unwrap_or_else(PoisonError::into_inner).insert(workspace.id.clone(), workspace);
        self.notify();
    }

    /// Sorted by id.
    pub(super) fn workspaces(&self) -> Vec<Arc<Workspace>> {
        self.workspaces.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn workspace(&self, id: &str) -> Option<Arc<Workspace>> {
        self.workspaces.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// By id or path.
    pub(super) fn resolve(&self, id_or_path: &str) -> Option<Arc<Workspace>> {
        self.workspace(id_or_path).or_else(|| self.workspaces().into_iter().find(|workspace| workspace.path == id_or_path))
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn mirror(&self, workspace: &str, kind: Kind, change: impl FnOnce(&mut BTreeMap<String, Value>)) {
        change(lock(&self.mirrored).entry((workspace.to_owned(), kind)).or_default());
        self.notify();
    }

    pub(super) fn objects(&self, workspace: &str, kind: Kind) -> Vec<Value> {
        lock(&self.mirrored).get(&(workspace.to_owned(), kind)).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    pub(super) fn object(&self, workspace: &str, kind: Kind, name: &str) -> Option<Value> {
        lock(&self.mirrored).get(&(workspace.to_owned(), kind)).and_then(|objects| objects.get(name)).cloned()
    }

    pub(super) fn export(&self, key: &ExportKey) -> Option<Export> {
        self.object(&key.provider, Kind::Export, &key.name).map(|object| Export::read(&key.provider, &object))
    }

    /// The export that a binding refers to, there or not.
    pub(super) fn export_of(&self, binding: &Binding) -> Option<ExportKey> {
        let provider = if binding.export_path.is_empty() { self.workspace(&binding.workspace) } else { self.resolve(&binding.export_path) };
        Some(ExportKey { provider: provider?.id.clone(), name: binding.export_name.clone() })
    }

    /// The export that offers a resource under this identity.
    pub(super) fn export_with_identity(&self, identity_hash: &str) -> Option<Export> {
        let exports = self.workspaces().into_iter().flat_map(|workspace| {
            let id = workspace.id.clone();
            self.objects(&id, Kind::Export).into_iter().map(move |object| Export::read(&id, &object))
        });
        exports.into_iter().find(|export| export.identity_hash == identity_hash)
    }

    pub(super) fn bindings(&self, workspace: &str) -> Vec<Binding> {
        self.objects(workspace, Kind::Binding).iter().map(|object| Binding::read(workspace, object)).collect()
    }

    /// The bindings to an export on a shard, by id of the workspace.
    pub(super) fn bindings_to(&self, export: &ExportKey, shard: usize) -> Vec<Binding> {
        let here = self.workspaces().into_iter().filter(|workspace| workspace.shard == shard);
        let all = here.flat_map(|workspace| self.bindings(&workspace.id));
        all.filter(|binding| self.export_of(binding).as_ref() == Some(export)).collect()
    }

    pub(super) fn binding_to(&self, export: &ExportKey, workspace: &str) -> Option<Binding> {
        let mut bindings: Vec<Binding> = self.bindings(workspace);
        bindings.retain(|binding| self.export_of(binding).as_ref() == Some(export));
        // A second one binds nothing.
        bindings.sort_by_key(|binding| binding.bound.is_empty());
        bindings.into_iter().next()
    }

    pub(super) fn add_user(&self, token: &str, user: User) {
        lock(&self.users).insert(token.to_owned(), user);
    }

    pub(super) fn user(&self, token: &str) -> Option<User> {
        lock(&self.users).get(token).cloned()
    }

    pub(super) fn delays(&self) -> Delays {
        *lock(&self.delays)
    }

    pub(super) fn set_delays(&self, change: impl FnOnce(&mut Delays)) {
        change(&mut lock(&self.delays));
        self.notify();
    }

    pub(super) fn is_hidden(&self, shard: usize) -> bool {
        lock(&self.hidden).contains(&shard)
    }

    pub(super) fn hide(&self, shard: usize, hidden: bool) {
        let mut all = lock(&self.hidden);
        _ = if hidden { all.insert(shard) } else { all.remove(&shard) };
        drop(all);
        self.notify();
    }

    pub(super) fn switches(&self) -> broadcast::Receiver<(ExportKey, GroupResource)> {
        self.switches.subscribe()
    }

    /// Tells all open watches of a resource that its schema was switched.
    pub(super) fn switch(&self, export: &ExportKey, what: &GroupResource) {
        // An error means that none is open.
        let _ = self.switches.send((export.clone(), what.clone()));
    }

    /// No watch of a resource may start before it.
    pub(super) fn floor(&self, shard: usize, what: &GroupResource) -> u64 {
        let restarted = lock(&self.restarted).get(&shard).copied().unwrap_or(0);
        let first_served = lock(&self.first_served).get(&(shard, what.clone())).copied().unwrap_or(0);
        restarted.max(first_served)
    }

    pub(super) fn restarted(&self, shard: usize, revision: u64) {
        lock(&self.restarted).insert(shard, revision);
        lock(&self.progress).clear();
    }

    pub(super) fn set_served_since(&self, workspace: &Workspace, what: &GroupResource, revision: u64) {
        lock(&self.served_since).insert((workspace.id.clone(), what.clone()), revision);
        lock(&self.first_served).entry((workspace.shard, what.clone())).or_insert(revision);
    }

    pub(super) fn served_since(&self, workspace: &str, what: &GroupResource) -> u64 {
        lock(&self.served_since).get(&(workspace.to_owned(), what.clone())).copied().unwrap_or(0)
    }

    /// Notes how far all workspaces had been told when `revision` was. Two
    /// watches may differ; the one that was told less counts.
    pub(super) fn note_progress(&self, stream: &str, revision: u64, told: &BTreeMap<String, u64>) {
        let mut progress = lock(&self.progress);
        let positions = progress.entry(stream.to_owned()).or_default();
        let position = positions.entry(revision).or_insert_with(|| told.clone());
        for (workspace, told) in told {
            let earlier = position.entry(workspace.clone()).or_insert(*told);
            *earlier = (*earlier).min(*told);
        }
        while positions.len() > POSITIONS_KEPT {
            positions.pop_first();
        }
    }

    /// Where to resume in a workspace for one who was told up to `revision`.
    pub(super) fn position(&self, stream: &str, revision: u64, workspace: &str) -> u64 {
        let progress = lock(&self.progress);
        let told = progress.get(stream).and_then(|positions| positions.get(&revision)).and_then(|position| position.get(workspace));
        told.copied().unwrap_or(revision).min(revision)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(a: u64, b: u64) -> BTreeMap<String, u64> {
        [("a".to_owned(), a), ("b".to_owned(), b)].into()
    }

    #[test]
    fn who_resumes_goes_on_in_each_workspace_where_it_was_told_less() {
        let world = World::new(String::new());
        // The event 20 of `a` was handed out before 18 of `b`.
        world.note_progress("widgets", 20, &told(20, 10));
        assert_eq!((world.position("widgets", 20, "a"), world.position("widgets", 20, "b")), (20, 10));
        // Another watch had been told of `b` already, the first still counts.
        world.note_progress("widgets", 20, &told(20, 18));
        assert_eq!(world.position("widgets", 20, "b"), 10);
        // One who was told more of `b` than it resumes at may also have listed.
        world.note_progress("widgets", 30, &told(30, 40));
        assert_eq!(world.position("widgets", 30, "b"), 30);
        // A revision that no event had is that of a list.
        assert_eq!((world.position("widgets", 25, "b"), world.position("gadgets", 20, "b")), (25, 20));
        world.restarted(0, 50);
        assert_eq!(world.position("widgets", 20, "b"), 20);
    }
}
