//! History of a mesh, read from its existing Peers: which node was anchor,
//! which node has a contested key or name, and which nodes have a Peer. This
//! makes decisions survive a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::key::PublicKey;
use crate::kilo::entry::Entry;
use crate::kilo::mesh::ActiveMesh;
use crate::kilo::mesh_state::{MeshState, mesh_at};
use crate::kilo::ownership::Owner;
use crate::kilo::sources::Sources;
use crate::kilo::target::Target;
use crate::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName};

/// Index of Peers that carry cluster-wide networks.
#[derive(Debug, Default)]
pub(super) struct CarrierIndex {
    /// Peers that carry a network which is declared as a whole.
    wide: BTreeMap<PeerName, BTreeSet<ClusterId>>,
    /// Peers named like the Go operator's separate anchor Peers.
    anchors: BTreeMap<PeerName, BTreeSet<ClusterId>>,
}

impl CarrierIndex {
    pub(super) fn put(&mut self, cluster: &ClusterId, name: &PeerName, wide: bool) {
        if wide {
            self.wide
                .entry(name.clone())
                .or_default()
                .insert(cluster.clone());
        }
        if name.as_str().ends_with("--anchor") {
            self.anchors
                .entry(name.clone())
                .or_default()
                .insert(cluster.clone());
        }
    }

    /// Returns true if the Peer carried such a network.
    pub(super) fn take(&mut self, cluster: &ClusterId, name: &PeerName) -> bool {
        self.anchors
            .get_mut(name)
            .map(|clusters| clusters.remove(cluster));
        self.wide
            .get_mut(name)
            .is_some_and(|clusters| clusters.remove(cluster))
    }
}

/// Adds a Peer to its group on a target, or removes it. Returns true if it
/// carries a network which is declared as a whole.
pub(super) fn group(target: &mut Target, meshes: &[MeshState], name: &PeerName, put: bool) -> bool {
    let Some(entry) = target.entries.get(name) else {
        return false;
    };
    let mesh = if let Owner::Mesh(id) = entry.owner.as_ref() {
        mesh_at(meshes, id)
    } else {
        None
    };
    let Some((at, state)) = mesh else {
        if put {
            target.strangers.insert(name.clone());
        } else {
            target.strangers.remove(name);
        }
        return false;
    };
    let key = (
        at,
        Box::from(entry.labels().source.as_deref().unwrap_or_default()),
    );
    let wide = state
        .active()
        .is_some_and(|mesh| entry.carries_one_of(&mesh.wide));
    if put {
        target.groups.entry(key).or_default().insert(name.clone());
    } else if let Some(names) = target.groups.get_mut(&key) {
        names.remove(name);
    }
    wide
}

/// History of a mesh, read from its existing Peers.
pub(super) struct PeerHistory<'a> {
    mesh: MeshId,
    /// Only members count: Peers are deleted from removed clusters, and with
    /// them their history.
    members: Arc<BTreeMap<ClusterId, usize>>,
    targets: &'a BTreeMap<ClusterId, Target>,
    carrier_index: &'a CarrierIndex,
    sources: Sources<'a>,
    /// The anchor of the previous plan.
    last_anchor: Option<NodeName>,
    /// The source in question, and the prefix of its Peers' names.
    source: Option<(ClusterName, Option<String>)>,
}

impl<'a> PeerHistory<'a> {
    pub(super) fn of(
        mesh: &ActiveMesh,
        targets: &'a BTreeMap<ClusterId, Target>,
        carrier_index: &'a CarrierIndex,
        sources: Sources<'a>,
    ) -> PeerHistory<'a> {
        PeerHistory {
            mesh: mesh.id.clone(),
            members: Arc::clone(&mesh.by_id),
            targets,
            carrier_index,
            sources,
            last_anchor: None,
            source: None,
        }
    }

    /// Narrows the history to one source, with its previous anchor.
    pub(super) fn about(
        self,
        source: (ClusterName, Option<String>),
        last_anchor: Option<NodeName>,
    ) -> PeerHistory<'a> {
        PeerHistory {
            source: Some(source),
            last_anchor,
            ..self
        }
    }

    fn is_mine(&self, entry: &Entry) -> bool {
        !entry.deleting && matches!(entry.owner.as_ref(), Owner::Mesh(id) if *id == self.mesh)
    }

    fn owned<'b>(&'b self, name: &'b PeerName) -> impl Iterator<Item = &'b Entry> {
        let members = self
            .targets
            .iter()
            .filter(|(id, _)| self.members.contains_key(*id));
        members
            .filter_map(|(_, target)| target.entries.get(name))
            .filter(|entry| self.is_mine(entry))
    }

    fn on<'b>(
        &'b self,
        clusters: &'b BTreeSet<ClusterId>,
        name: &'b PeerName,
    ) -> impl Iterator<Item = &'b Entry> {
        let members = clusters.iter().filter(|id| self.members.contains_key(*id));
        let entries = members.filter_map(|id| self.targets.get(id)?.entries.get(name));
        entries.filter(|entry| self.is_mine(entry))
    }
}

impl PeerHistory<'_> {
    /// The source named by the label of an existing Peer of this mesh with that
    /// name.
    pub(super) fn source_of(&self, name: &PeerName) -> Option<String> {
        self.owned(name)
            .find_map(|entry| entry.labels().source.clone())
    }

    /// Reports whether a readable target has a Peer of this mesh with that name
    /// and key. A Peer on a cluster whose own node has the key does not count,
    /// as it can't stay.
    pub(super) fn holds(&self, name: &PeerName, key: PublicKey) -> bool {
        let own = |id: &ClusterId| {
            self.sources
                .nodes(id)
                .is_some_and(|nodes| nodes.values().any(|node| node.key == Ok(Some(key))))
        };
        let held = |target: &Target| {
            target
                .entries
                .get(name)
                .is_some_and(|entry| self.is_mine(entry) && entry.key() == Some(key))
        };
        self.targets
            .iter()
            .any(|(id, target)| self.members.contains_key(id) && held(target) && !own(id))
    }

    /// The number of readable targets on which each Peer of the source carries
    /// one of `extras`.
    pub(super) fn carriers(&self, extras: &[Cidr]) -> BTreeMap<PeerName, usize> {
        let start = self
            .source
            .as_ref()
            .and_then(|(_, start)| start.as_deref())
            .unwrap_or_default();
        let mut found = BTreeMap::new();
        for (name, clusters) in self
            .carrier_index
            .wide
            .range(PeerName::from(start)..)
            .take_while(|(name, _)| name.as_str().starts_with(start))
        {
            let count = self
                .on(clusters, name)
                .filter(|entry| entry.prefixes().iter().any(|cidr| extras.contains(cidr)))
                .count();
            if count > 0 {
                found.insert(name.clone(), count);
            }
        }
        found
    }

    /// Keys of the source's legacy anchor Peers, with the number of targets.
    pub(super) fn legacy_anchor_keys(&self) -> BTreeMap<PublicKey, usize> {
        let mut found = BTreeMap::new();
        let name = self
            .source
            .as_ref()
            .map(|(cluster, _)| PeerName::of(&self.mesh.name, cluster, "anchor"));
        if let Some((name, clusters)) = name
            .as_ref()
            .and_then(|name| self.carrier_index.anchors.get_key_value(name))
        {
            for key in self.on(clusters, name).filter_map(Entry::key) {
                *found.entry(key).or_default() += 1;
            }
        }
        found
    }

    /// The anchor of the previous plan.
    pub(super) fn last_anchor(&self) -> Option<&NodeName> {
        self.last_anchor.as_ref()
    }

    /// Reports whether a readable target has that Peer.
    pub(super) fn exists(&self, name: &PeerName) -> bool {
        self.owned(name).next().is_some()
    }

    /// Prefixes that the Peer carries on readable targets.
    pub(super) fn prefixes(&self, name: &PeerName) -> BTreeSet<Cidr> {
        self.owned(name).flat_map(Entry::prefixes).collect()
    }
}
