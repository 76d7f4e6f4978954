//! Nodes without an endpoint. In meshes without a keepalive, newer Go operators
//! created Peers for them; existing Peers are kept, and no new ones are
//! created.

use std::collections::BTreeMap;

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::discovered::Vanished;
use crate::kilo::entry::Entry;
use crate::kilo::mesh::{ActiveMesh, Member};
use crate::kilo::mesh_state::MeshState;
use crate::kilo::own_nodes::OwnNodes;
use crate::kilo::ownership::{Owner, may_be_taken_back};
use crate::kilo::planner::Planner;
use crate::kilo::sources::Sources;
use crate::kilo::target::Target;
use crate::names::{ClusterId, PeerName};
use crate::time::Timestamp;

/// Existing Peers, and the discovered endpoints that may have been written to
/// them.
pub(super) struct Roaming<'a> {
    pub(super) targets: &'a BTreeMap<ClusterId, Target>,
    pub(super) sources: Sources<'a>,
    pub(super) vanished: &'a BTreeMap<ClusterId, Vanished>,
    pub(super) now: Timestamp,
}

impl Roaming<'_> {
    /// Reports whether another member has the node's Peer without a configured
    /// endpoint.
    pub(super) fn exists(
        &self,
        mesh: &ActiveMesh,
        source: &Member,
        name: &PeerName,
        key: PublicKey,
    ) -> bool {
        let others = mesh.members.iter().filter(|member| member.id != source.id);
        others
            .filter_map(|member| {
                Some((&member.id, self.targets.get(&member.id)?.entries.get(name)?))
            })
            .any(|(id, entry)| {
                let mine = match entry.owner.as_ref() {
                    Owner::Mesh(owner) => *owner == mesh.id,
                    Owner::Foreign => {
                        entry.key() == Some(key)
                            && may_be_taken_back(entry.labels(), &source.labels)
                    }
                    _ => false,
                };
                mine && !entry.deleting
                    && is_unconfigured(entry, key, |key| {
                        self.is_discovered(&mesh.declared, id, key, entry)
                    })
            })
    }

    /// Agrees with [`OwnNodes::explains`], but needs no plan of the target.
    fn is_discovered(
        &self,
        declared: &DeclaredIndex,
        target: &ClusterId,
        key: PublicKey,
        entry: &Entry,
    ) -> bool {
        let mut nodes = self
            .sources
            .nodes(target)
            .into_iter()
            .flat_map(BTreeMap::values);
        let listed = nodes.any(|node| {
            let seen = node
                .discovered
                .as_ref()
                .ok()
                .and_then(|seen| seen.get(&key));
            seen.is_some_and(|at| declared.owner(at.ip()).is_none())
        });
        let last_discovery = self
            .vanished
            .get(target)
            .and_then(|vanished| vanished.get(&key));
        listed
            || last_discovery.is_some_and(|last_discovery| {
                last_discovery.counts(declared, self.now)
                    || entry.endpoint().as_ref() == Some(&last_discovery.endpoint)
            })
    }
}

/// Reports whether the endpoint of a node's Peer was not configured: it has
/// none, or one that was discovered with the node's key or the Peer's.
pub(super) fn is_unconfigured(
    entry: &Entry,
    key: PublicKey,
    discovered: impl Fn(PublicKey) -> bool,
) -> bool {
    !entry.has_endpoint() || discovered(key) || entry.key().is_some_and(discovered)
}

impl OwnNodes {
    /// Reports whether the endpoint of a Peer here was discovered.
    pub(super) fn explains(&self, key: PublicKey, entry: &Entry) -> bool {
        self.discovered.contains_key(&key)
            || self
                .faded
                .get(&key)
                .is_some_and(|endpoint| entry.endpoint().as_ref() == Some(endpoint))
    }
}

impl Planner {
    /// Endpoints on a cluster's Peers whose nodes have none of their own, by
    /// source and key; `None` while its Peers are not known.
    pub fn unsourced(
        &self,
        cluster: &ClusterId,
    ) -> Option<BTreeMap<(ClusterId, PublicKey), Endpoint>> {
        let entries = &self.targets.get(cluster)?.entries;
        let mut found = BTreeMap::new();
        for mesh in self.meshes.iter().filter_map(MeshState::active) {
            let Some(target) = mesh.position(cluster) else {
                continue;
            };
            let members = mesh.members.iter().enumerate();
            for (_, source) in members.filter(|(at, _)| *at != target) {
                let roaming = source
                    .survey
                    .candidates
                    .iter()
                    .filter(|candidate| candidate.roaming_key().is_some());
                for entry in roaming.filter_map(|candidate| entries.get(&candidate.peer_name)) {
                    let mine = matches!(entry.owner.as_ref(), Owner::Mesh(id) if *id == mesh.id);
                    let filled = entry.key().zip(entry.endpoint()).filter(|_| mine);
                    found
                        .extend(filled.map(|(key, endpoint)| ((source.id.clone(), key), endpoint)));
                }
            }
        }
        Some(found)
    }
}
