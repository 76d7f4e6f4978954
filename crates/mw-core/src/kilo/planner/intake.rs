//! Observations, one by one, and the replanning they trigger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Cluster, Listing, Planner};
use crate::key::PublicKey;
use crate::kilo::decide::{Departures, MeshState, mesh_at};
use crate::kilo::evaluate::Target;
use crate::kilo::history::group;
use crate::kilo::liveness;
use crate::kilo::mesh::Member;
use crate::kilo::node::{Node, Nodes};
use crate::kilo::ownership::Owner;
use crate::kilo::peer::PeerFacts;
use crate::kilo::source::SourcePlan;
use crate::kilo::target::Entry;
use crate::names::{ClusterId, MeshId, NodeName, PeerName};
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
            self.replan_cluster(cluster);
        }
        !quiet
    }

    /// A Node was deleted.
    pub fn remove_node(&mut self, cluster: &ClusterId, name: &NodeName) {
        let Some(known) = self.clusters.get_mut(cluster) else {
            return;
        };
        if let Departures::Seen(left) = &mut known.departures {
            left.insert(name.clone());
        }
        if let Some(nodes) = known.nodes.known_mut() {
            nodes.remove(name);
        }
        self.replan_cluster(cluster);
    }

    /// All Nodes of a cluster were listed, or can't be read any more.
    pub fn set_nodes(&mut self, cluster: &ClusterId, nodes: Seen<Nodes>) {
        self.take_nodes(cluster, nodes);
        self.replan_cluster(cluster);
    }

    fn take_nodes(&mut self, cluster: &ClusterId, nodes: Seen<Nodes>) {
        self.cluster_mut(cluster).nodes = nodes;
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

    /// Lists of several clusters, or the reason why they can't be read; replans
    /// once.
    pub fn set_listings(&mut self, listings: Vec<(ClusterId, Listing)>) {
        let mut nodes = BTreeSet::new();
        let mut peers = false;
        for (cluster, listing) in listings {
            match listing {
                Listing::Nodes(seen) => {
                    self.take_nodes(&cluster, seen);
                    nodes.insert(cluster);
                }
                Listing::Peers(seen) => {
                    self.take_peers(&cluster, seen);
                    peers = true;
                }
            }
        }
        match peers {
            true => self.replan_inputs(),
            false => nodes
                .iter()
                .for_each(|cluster| self.replan_cluster(cluster)),
        }
    }

    /// A Peer was added or changed.
    pub fn set_peer(&mut self, cluster: &ClusterId, facts: PeerFacts) {
        let name = PeerName::from(facts.name.as_str());
        let entry = Entry::new(facts, &self.register);
        self.replace_peer(cluster, &name, Some(entry));
    }

    pub fn remove_peer(&mut self, cluster: &ClusterId, name: &PeerName) {
        self.replace_peer(cluster, name, None);
    }

    fn replace_peer(&mut self, cluster: &ClusterId, name: &PeerName, entry: Option<Entry>) {
        let Some(target) = self.targets.get_mut(cluster) else {
            return;
        };
        group(target, &self.meshes, name, false);
        let was_wide = self.landmarks.take(cluster, name);
        let old = match entry {
            Some(entry) => target.entries.insert(name.clone(), entry),
            None => target.entries.remove(name),
        };
        let is_wide = group(target, &self.meshes, name, true);
        if target.entries.contains_key(name) {
            self.landmarks.put(cluster, name, is_wide);
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
        let same_past = old.as_ref().map(speaks_of) == new.map(speaks_of)
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
            self.replan_inputs();
            return;
        }
        for owner in owners.iter().filter(|_| !same_past) {
            if let Owner::Mesh(id) = owner.as_ref() {
                self.remember(id, name, (&labels, &keys), wide);
            }
        }
        (0..self.meshes.len()).for_each(|mesh| self.survey_unsettled(mesh, Some(name)));
    }

    /// Replans the sources whose history a changed Peer affects, by its old and
    /// new labels and keys.
    fn remember(
        &mut self,
        id: &MeshId,
        name: &PeerName,
        (labels, keys): (&BTreeSet<String>, &BTreeSet<PublicKey>),
        wide: bool,
    ) {
        let Some((mesh, state)) = mesh_at(&self.meshes, id) else {
            return;
        };
        let Some(active) = state.active() else { return };
        if active.may_be_settled_by(keys) && self.settle(mesh) {
            self.plan_members(mesh, None);
            return;
        }
        let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else {
            return;
        };
        let speaks = |position: &usize| {
            active.members.get(*position).is_some_and(|member| {
                let nodes = self
                    .clusters
                    .get(&member.id)
                    .and_then(|cluster| cluster.nodes.known());
                let bare = nodes.is_some_and(|nodes| nodes.values().any(|node| node.is_away()));
                let decides = |plan: &SourcePlan| plan.reads_routes || plan.kept.contains_key(name);
                let routes = member.plan.as_ref().is_some_and(decides);
                wide || bare
                    || routes
                    || PeerName::of(&active.id.name, &member.name, "anchor") == *name
            })
        };
        let by_label = labels.iter().filter_map(|label| active.position_of(label));
        let positions: BTreeSet<usize> = by_label
            .chain(active.named_like(name))
            .filter(speaks)
            .collect();
        for position in positions {
            self.plan_members(mesh, Some(position));
        }
    }

    /// All Peers of a cluster were listed, or can't be read any more.
    pub fn set_peers(&mut self, cluster: &ClusterId, peers: Seen<BTreeMap<PeerName, PeerFacts>>) {
        self.take_peers(cluster, peers);
        self.replan_inputs();
    }

    fn take_peers(&mut self, cluster: &ClusterId, peers: Seen<BTreeMap<PeerName, PeerFacts>>) {
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

    /// Advances the time and replans what waited for it.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        for mesh in 0..self.meshes.len() {
            let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else {
                continue;
            };
            let due = |member: &Member| member.recheck_at().is_some_and(|at| at <= now);
            let positions: Vec<usize> = active
                .members
                .iter()
                .enumerate()
                .filter(|(_, member)| due(member))
                .map(|(at, _)| at)
                .collect();
            for position in &positions {
                self.plan_members(mesh, Some(*position));
            }
            if !positions.is_empty() {
                self.survey_unsettled(mesh, None);
            }
        }
        for target in self.targets.values_mut() {
            let due = target
                .outcomes
                .iter()
                .filter(|(_, outcome)| outcome.recheck_at.is_some_and(|at| at <= now));
            let names: Vec<PeerName> = due.map(|((name, _), _)| name.clone()).collect();
            target.dirt.names.extend(names);
        }
    }
}
