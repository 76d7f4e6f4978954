//! Observations, one by one. They are recorded with what has to be planned again
//! for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::PublicKey;
use crate::kilo::discovered::Vanished;
use crate::kilo::entry::Entry;
use crate::kilo::guard::History;
use crate::kilo::liveness;
use crate::kilo::node::{Node, Nodes};
use crate::kilo::ownership::{Orphans, Owner};
use crate::kilo::peer::PeerFacts;
use crate::kilo::peer_history::group;
use crate::kilo::planner::Planner;
use crate::kilo::sources::{Cluster, Departures};
use crate::kilo::spec::Mesh;
use crate::kilo::target::Target;
use crate::kilo::world::{Links, Listing};
use crate::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName};
use crate::seen::Seen;
use crate::time::Timestamp;

const NOT_LISTED: &str = "not observed yet";

impl Planner {
    /// A Node was added or changed. Returns false if that affects nothing.
    pub fn set_node(&mut self, cluster: &ClusterId, node: Node) -> bool {
        let Some(nodes) = self
            .clusters
            .get_mut(cluster)
            .and_then(|cluster| cluster.nodes.known_mut())
        else {
            return false;
        };
        let name = node.name.clone();
        let before = nodes.get(&name).cloned();
        if before.as_deref() == Some(&node) {
            return false;
        }
        let is_heartbeat = |old: &Node| {
            old.last_seen.is_some() && node.last_seen.is_some() && old.but_last_seen(&node)
        };
        let alive = before
            .filter(|old| is_heartbeat(old))
            .map(|_| liveness::alive(nodes));
        nodes.insert(name.clone(), Arc::new(node));
        // A heartbeat that changes no node's liveness affects nothing.
        let quiet = alive.is_some_and(|alive| liveness::alive(nodes) == alive);
        if let Some(Departures::Seen(left)) = self
            .clusters
            .get_mut(cluster)
            .map(|cluster| &mut cluster.departures)
        {
            left.remove(&name);
        }
        if !quiet {
            self.pending.nodes.insert(cluster.clone());
        }
        !quiet
    }

    /// A Node was deleted.
    pub fn remove_node(&mut self, cluster: &ClusterId, name: &NodeName) {
        let Some(known) = self.clusters.get_mut(cluster) else {
            return;
        };
        let nodes = known.nodes.known_mut();
        let gone = nodes.and_then(|nodes| nodes.remove(name));
        if let Departures::Seen(left) = &mut known.departures {
            let key = gone.and_then(|node| node.key.as_ref().ok().copied().flatten());
            let last = left.entry(name.clone()).or_default();
            *last = key.or(*last);
        }
        self.pending.nodes.insert(cluster.clone());
    }

    /// All Nodes of a cluster were listed, or can't be read any more.
    pub fn set_nodes(&mut self, cluster: &ClusterId, nodes: Seen<Nodes>) {
        self.cluster_mut(cluster).nodes = nodes;
        self.pending.nodes.insert(cluster.clone());
        if let Some(target) = self.targets.get_mut(cluster) {
            target.dirt.all = true;
        }
    }

    fn cluster_mut(&mut self, cluster: &ClusterId) -> &mut Cluster {
        let unseen = || Cluster {
            nodes: Seen::Unknown(NOT_LISTED.to_owned()),
            departures: Departures::default(),
            peers_unknown: Some(NOT_LISTED.to_owned()),
        };
        self.clusters.entry(cluster.clone()).or_insert_with(unseen)
    }

    /// Lists of several clusters, or the reason why they can't be read.
    pub fn set_listings(&mut self, listings: Vec<(ClusterId, Listing)>) {
        for (cluster, listing) in listings {
            match listing {
                Listing::Nodes(seen) => self.set_nodes(&cluster, seen),
                Listing::Peers(seen) => self.set_peers(&cluster, seen),
            }
        }
    }

    /// A Peer was added or changed.
    pub fn set_peer(&mut self, cluster: &ClusterId, facts: PeerFacts) {
        let name = PeerName::from(facts.name.as_str());
        let entry = Entry::new(facts, &self.register);
        self.replace_peer(cluster, &name, Some(entry));
    }

    /// A Peer was deleted.
    pub fn remove_peer(&mut self, cluster: &ClusterId, name: &PeerName) {
        self.replace_peer(cluster, name, None);
    }

    fn replace_peer(&mut self, cluster: &ClusterId, name: &PeerName, entry: Option<Entry>) {
        let Some(target) = self.targets.get_mut(cluster) else {
            return;
        };
        group(target, &self.meshes, name, false);
        let was_wide = self.carrier_index.take(cluster, name);
        let old = match entry {
            Some(entry) => target.entries.insert(name.clone(), entry),
            None => target.entries.remove(name),
        };
        let is_wide = group(target, &self.meshes, name, true);
        if target.entries.contains_key(name) {
            self.carrier_index.put(cluster, name, is_wide);
        }
        target.dirt.names.insert(name.clone());
        let new = target.entries.get(name);
        let owners: Vec<Arc<Owner>> = old
            .iter()
            .chain(new)
            .map(|entry| Arc::clone(&entry.owner))
            .collect();
        let sweeping = |owner: &Arc<Owner>| {
            matches!(
                owner.as_ref(),
                Owner::OtherHub | Owner::Ghost | Owner::Orphan
            )
        };
        target.dirt.all |= owners.iter().any(sweeping);
        let speaks_of = |entry: &Entry| {
            (
                entry.labels().source.clone(),
                entry.key(),
                entry.prefixes(),
                entry.deleting,
            )
        };
        let unchanged = old.as_ref().map(speaks_of) == new.map(speaks_of)
            && owners.windows(2).all(|pair| pair.first() == pair.last());
        let wide = was_wide || is_wide;
        let labels: BTreeSet<String> = old
            .iter()
            .chain(new)
            .filter_map(|entry| entry.labels().source.clone())
            .collect();
        let keys: BTreeSet<PublicKey> = old.iter().chain(new).filter_map(Entry::key).collect();
        if self.register.hub().is_none() {
            // Any Peer can change the ownership of others.
            self.pending.everything = true;
            return;
        }
        for owner in owners.iter().filter(|_| !unchanged) {
            if let Owner::Mesh(id) = owner.as_ref() {
                self.pending.note_history(id, name, &labels, &keys, wide);
            }
        }
        self.pending.peers.insert(name.clone());
    }

    /// All Peers of a cluster were listed, or can't be read any more.
    pub fn set_peers(&mut self, cluster: &ClusterId, peers: Seen<BTreeMap<PeerName, PeerFacts>>) {
        self.pending.everything = true;
        self.cluster_mut(cluster).peers_unknown = peers.why_unknown().map(str::to_owned);
        match peers {
            Seen::Known(held) => {
                let entries = held
                    .into_iter()
                    .map(|(name, facts)| (name, Entry::new(facts, &self.register)))
                    .collect();
                self.targets.insert(cluster.clone(), Target::new(entries));
            }
            Seen::Unknown(_) => _ = self.targets.remove(cluster),
        }
    }

    /// Advances the time.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        self.pending.time = true;
    }

    /// Replaces the meshes.
    pub fn set_meshes(
        &mut self,
        meshes: BTreeMap<MeshId, Mesh>,
        identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
        links: Links,
    ) {
        (self.inputs, self.identities, self.links) = (meshes, identities, links);
        self.pending.everything = true;
    }

    /// Replaces the state of meshes that do not exist.
    pub fn set_orphans(&mut self, orphans: Orphans) {
        if self.orphans != orphans {
            self.orphans = orphans;
            self.targets
                .values_mut()
                .for_each(|target| target.dirt.all = true);
        }
    }

    /// Replaces the history used by the guard.
    pub fn set_history(&mut self, history: History) {
        if self.history != history {
            self.history = history;
            self.targets
                .values_mut()
                .for_each(|target| target.dirt.all = true);
        }
    }

    /// Replaces the discovered endpoints that a cluster's nodes no longer list.
    pub fn set_vanished(&mut self, cluster: &ClusterId, vanished: Vanished) {
        if self.vanished.get(cluster).cloned().unwrap_or_default() != vanished {
            self.vanished.insert(cluster.clone(), vanished);
            self.pending.nodes.insert(cluster.clone());
        }
    }

    /// Removes clusters that are no longer used.
    pub fn forget_clusters(&mut self, gone: &BTreeSet<ClusterId>) {
        self.clusters.retain(|id, _| !gone.contains(id));
        self.targets.retain(|id, _| !gone.contains(id));
        self.vanished.retain(|id, _| !gone.contains(id));
        self.pending.everything = true;
    }
}
