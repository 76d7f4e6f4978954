//! State shared by front and controllers: workspaces, their content, and the settings
//! of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::model::{Binding, Export, ExportKey, GroupResource};
use crate::http::Http;

/// Capacity of the channel for switched schemas. On overflow, all watches end.
const SWITCHES_IN_FLIGHT: usize = 16;
/// Positions kept per resource; see `Progress`.
const POSITIONS_KEPT: usize = 4096;

/// A workspace and its API server.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) id: String,
    pub(super) path: String,
    pub(super) shard: usize,
    /// Client of the user `testbed`, who may impersonate others.
    pub(super) http: Http,
}

/// User of a token.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    /// Workspace of a service account.
    pub(super) home: Option<String>,
}

/// Delays of asynchronous steps in kcp.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Delays {
    pub(super) binding: Duration,
    pub(super) claims: Duration,
    pub(super) schema: Duration,
}

/// Kinds of apis.kcp.io that are mirrored from every workspace.
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

/// Positions in all workspaces for each revision that was sent. A merged watch is not
/// ordered across workspaces, so a client that resumes at a revision may lack an
/// earlier one of another workspace.
type Progress = BTreeMap<u64, BTreeMap<String, u64>>;

#[derive(Debug)]
pub(super) struct World {
    workspaces: RwLock<BTreeMap<String, Arc<Workspace>>>,
    /// Address of each shard's front.
    shards: RwLock<Vec<String>>,
    mirrored: Mutex<BTreeMap<(String, Kind), BTreeMap<String, Value>>>,
    changes: watch::Sender<u64>,
    users: Mutex<BTreeMap<String, User>>,
    delays: Mutex<Delays>,
    /// Shards whose endpoints are removed from slices.
    hidden: Mutex<BTreeSet<usize>>,
    /// Shards that never answer.
    hanging: Mutex<BTreeSet<usize>>,
    /// IDs of workspaces that are moving to another shard.
    moving: Mutex<BTreeSet<String>>,
    /// Resources whose writes exceed the quota, per workspace.
    used_up: Mutex<BTreeMap<String, BTreeSet<String>>>,
    switches: broadcast::Sender<(ExportKey, GroupResource)>,
    /// Revision of each shard's last restart.
    restarted: Mutex<BTreeMap<usize, u64>>,
    /// Revision at which a shard first served a resource for any binding.
    first_served: Mutex<BTreeMap<(usize, GroupResource), u64>>,
    /// Revision at which a workspace first served a resource for a binding.
    served_since: Mutex<BTreeMap<(String, GroupResource), u64>>,
    progress: Mutex<BTreeMap<String, Progress>>,
    /// Random, because identity hashes differ between installations.
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
            hanging: Mutex::default(),
            moving: Mutex::default(),
            used_up: Mutex::default(),
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
        self.shards
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn add_workspace(&self, workspace: Arc<Workspace>) {
        self.workspaces
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(workspace.id.clone(), workspace);
        self.notify();
    }

    /// Returns all workspaces, sorted by ID.
    pub(super) fn workspaces(&self) -> Vec<Arc<Workspace>> {
        self.workspaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    pub(super) fn workspace(&self, id: &str) -> Option<Arc<Workspace>> {
        self.workspaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
    }

    /// Returns the workspace with this ID or path.
    pub(super) fn resolve(&self, id_or_path: &str) -> Option<Arc<Workspace>> {
        self.workspace(id_or_path).or_else(|| {
            self.workspaces()
                .into_iter()
                .find(|workspace| workspace.path == id_or_path)
        })
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn mirror(
        &self,
        workspace: &str,
        kind: Kind,
        change: impl FnOnce(&mut BTreeMap<String, Value>),
    ) {
        change(
            lock(&self.mirrored)
                .entry((workspace.to_owned(), kind))
                .or_default(),
        );
        self.notify();
    }

    /// Reports whether all mirrored kinds of a workspace were listed.
    pub(super) fn is_mirrored(&self, workspace: &str) -> bool {
        let mirrored = lock(&self.mirrored);
        Kind::ALL
            .iter()
            .all(|kind| mirrored.contains_key(&(workspace.to_owned(), *kind)))
    }

    pub(super) fn objects(&self, workspace: &str, kind: Kind) -> Vec<Value> {
        lock(&self.mirrored)
            .get(&(workspace.to_owned(), kind))
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    pub(super) fn object(&self, workspace: &str, kind: Kind, name: &str) -> Option<Value> {
        lock(&self.mirrored)
            .get(&(workspace.to_owned(), kind))
            .and_then(|objects| objects.get(name))
            .cloned()
    }

    pub(super) fn export(&self, key: &ExportKey) -> Option<Export> {
        self.object(&key.provider, Kind::Export, &key.name)
            .map(|object| Export::read(&key.provider, &object))
    }

    /// Returns the export that a binding refers to, whether it exists or not.
    pub(super) fn export_of(&self, binding: &Binding) -> Option<ExportKey> {
        let provider = if binding.export_path.is_empty() {
            self.workspace(&binding.workspace)
        } else {
            self.resolve(&binding.export_path)
        };
        Some(ExportKey {
            provider: provider?.id.clone(),
            name: binding.export_name.clone(),
        })
    }

    /// Returns the export with this identity.
    pub(super) fn export_with_identity(&self, identity_hash: &str) -> Option<Export> {
        let exports = self.workspaces().into_iter().flat_map(|workspace| {
            let id = workspace.id.clone();
            self.objects(&id, Kind::Export)
                .into_iter()
                .map(move |object| Export::read(&id, &object))
        });
        exports
            .into_iter()
            .find(|export| export.identity_hash == identity_hash)
    }

    pub(super) fn bindings(&self, workspace: &str) -> Vec<Binding> {
        self.objects(workspace, Kind::Binding)
            .iter()
            .map(|object| Binding::read(workspace, object))
            .collect()
    }

    /// Returns the bindings to an export on a shard, sorted by workspace ID.
    pub(super) fn bindings_to(&self, export: &ExportKey, shard: usize) -> Vec<Binding> {
        let here = self
            .workspaces()
            .into_iter()
            .filter(|workspace| workspace.shard == shard);
        let all = here.flat_map(|workspace| self.bindings(&workspace.id));
        all.filter(|binding| self.export_of(binding).as_ref() == Some(export))
            .collect()
    }

    pub(super) fn binding_to(&self, export: &ExportKey, workspace: &str) -> Option<Binding> {
        let mut bindings: Vec<Binding> = self.bindings(workspace);
        bindings.retain(|binding| self.export_of(binding).as_ref() == Some(export));
        // A second binding binds nothing.
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
        _ = if hidden {
            all.insert(shard)
        } else {
            all.remove(&shard)
        };
        drop(all);
        self.notify();
    }

    pub(super) fn hangs(&self, shard: usize) -> bool {
        lock(&self.hanging).contains(&shard)
    }

    pub(super) fn hang(&self, shard: usize, hangs: bool) {
        let mut all = lock(&self.hanging);
        _ = if hangs {
            all.insert(shard)
        } else {
            all.remove(&shard)
        };
    }

    pub(super) fn is_moving(&self, workspace: &str) -> bool {
        lock(&self.moving).contains(workspace)
    }

    pub(super) fn set_moving(&self, workspace: &str, moving: bool) {
        let mut all = lock(&self.moving);
        _ = if moving {
            all.insert(workspace.to_owned())
        } else {
            all.remove(workspace)
        };
    }

    /// Removes a workspace and everything mirrored from it.
    pub(super) fn remove_workspace(&self, workspace: &str) {
        self.workspaces
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(workspace);
        lock(&self.mirrored).retain(|(of, _), _| of != workspace);
        lock(&self.served_since).retain(|(of, _), _| of != workspace);
        self.notify();
    }

    pub(super) fn is_used_up(&self, workspace: &str, what: &str) -> bool {
        lock(&self.used_up)
            .get(workspace)
            .is_some_and(|all| all.contains(what))
    }

    pub(super) fn use_up(&self, workspace: &str, what: &[&str]) {
        lock(&self.used_up).insert(
            workspace.to_owned(),
            what.iter().map(|one| (*one).to_owned()).collect(),
        );
    }

    pub(super) fn switches(&self) -> broadcast::Receiver<(ExportKey, GroupResource)> {
        self.switches.subscribe()
    }

    /// Notifies all open watches of a resource that its schema was switched.
    pub(super) fn switch(&self, export: &ExportKey, what: &GroupResource) {
        // An error means that there are no open watches.
        let _ = self.switches.send((export.clone(), what.clone()));
    }

    /// Returns the earliest revision at which a watch of a resource may start.
    pub(super) fn floor(&self, shard: usize, what: &GroupResource) -> u64 {
        let restarted = lock(&self.restarted).get(&shard).copied().unwrap_or(0);
        let first_served = lock(&self.first_served)
            .get(&(shard, what.clone()))
            .copied()
            .unwrap_or(0);
        restarted.max(first_served)
    }

    pub(super) fn restarted(&self, shard: usize, revision: u64) {
        lock(&self.restarted).insert(shard, revision);
        lock(&self.progress).clear();
    }

    pub(super) fn set_served_since(
        &self,
        workspace: &Workspace,
        what: &GroupResource,
        revision: u64,
    ) {
        lock(&self.served_since).insert((workspace.id.clone(), what.clone()), revision);
        lock(&self.first_served)
            .entry((workspace.shard, what.clone()))
            .or_insert(revision);
    }

    pub(super) fn served_since(&self, workspace: &str, what: &GroupResource) -> u64 {
        lock(&self.served_since)
            .get(&(workspace.to_owned(), what.clone()))
            .copied()
            .unwrap_or(0)
    }

    /// Records the positions in all workspaces at `revision`. If two watches differ,
    /// the lower position counts.
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

    /// Returns the position in a workspace for a client that resumes at `revision`.
    pub(super) fn position(&self, stream: &str, revision: u64, workspace: &str) -> u64 {
        let progress = lock(&self.progress);
        let told = progress
            .get(stream)
            .and_then(|positions| positions.get(&revision))
            .and_then(|position| position.get(workspace));
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
        // Event 20 of `a` was sent before event 18 of `b`.
        world.note_progress("widgets", 20, &told(20, 10));
        assert_eq!(
            (
                world.position("widgets", 20, "a"),
                world.position("widgets", 20, "b")
            ),
            (20, 10)
        );
        // Another watch had already sent event 18 of `b`; the lower position counts.
        world.note_progress("widgets", 20, &told(20, 18));
        assert_eq!(world.position("widgets", 20, "b"), 10);
        // Positions are limited to the revision: it may also come from a list.
        world.note_progress("widgets", 30, &told(30, 40));
        assert_eq!(world.position("widgets", 30, "b"), 30);
        // A revision without an event is that of a list.
        assert_eq!(
            (
                world.position("widgets", 25, "b"),
                world.position("gadgets", 20, "b")
            ),
            (25, 20)
        );
        world.restarted(0, 50);
        assert_eq!(world.position("widgets", 20, "b"), 20);
    }
}
