//! Step 1: updates the state from watch events and responses to writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use mw_api::kilo::clustermesh::{ClusterMesh, FINALIZER};
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::{Listing, Planner};
use mw_core::names::{ClusterId, MeshId, NodeName, PeerName};
use mw_core::seen::Seen;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::engine::count;
use crate::failure::Failure;
use crate::fleet::follow::{EventSink, Observed, Version, follow};
use crate::fleet::list::Scope;
use crate::fleet::{Feed, HUB, Source};
use crate::kilo::engine::{Engine, Event, Input};
use crate::kilo::feeds::Followed;
use crate::kilo::identity::sample;
use crate::kilo::member::{Member, Swap};
use crate::kilo::record::Record;
use crate::own_writes::Stamped;

/// Shortest time between two lists because a watch showed another cluster.
const BETWEEN_DOUBTS: Duration = Duration::from_secs(60);

impl Stamped for PeerFacts {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> Version {
        Version::of(Some(&self.resource_version))
    }
}

impl Engine {
    pub(super) fn follow_meshes(&mut self) {
        let api = Api::all_with(
            self.environment.hub.clone(),
            &ApiResource::erase::<ClusterMesh>(&()),
        );
        self.spawn_mesh_watch(api, true);
    }

    fn spawn_mesh_watch(
        &mut self,
        api: Api<DynamicObject>,
        wide: bool,
    ) -> tokio::task::AbortHandle {
        let watch_config = self.hub_watch_config(Scope::default());
        let sink = EventSink {
            events: self.inbox.sender.clone(),
            wrap: move |seen| Event::Input(Input::Meshes { wide, seen }),
        };
        self.tasks
            .spawn(follow(api, watch_config, |object| object, sink))
    }

    pub(super) fn observe(&mut self, input: Input) {
        match input {
            Input::Meshes { wide, seen } => self.observe_meshes(wide, seen),
            Input::Secret { cluster, seen } => self.observe_secret(&cluster, seen),
            Input::Nodes {
                cluster,
                epoch,
                seen,
            } => self.observe_nodes(&cluster, epoch, seen),
            Input::Peers {
                cluster,
                epoch,
                seen,
            } => self.observe_peers(&cluster, epoch, seen),
        }
    }

    fn observe_meshes(&mut self, wide: bool, seen: Observed<DynamicObject>) {
        if !wide && self.state.hub.narrow.is_none() {
            // Sent before all namespaces could be listed again: incomplete.
            return;
        }
        match seen {
            Observed::Broken(failure) => return self.meshes_broken(wide, failure),
            // Events may have been missed meanwhile.
            Observed::Established => self.hub_relist.ring(),
            Observed::Listed { items, .. } => {
                (self.state.hub.listed, self.state.hub.all_listed) = (true, wide);
                self.state.absences.note_list();
                self.replace_records(items);
            }
            // The list that follows a lost connection has newer states.
            Observed::Set { .. } | Observed::Gone { .. } if wide && !self.state.hub.all_listed => {}
            Observed::Set { item, version } => self.take_record(&item, version),
            Observed::Gone { item, .. } => self.drop_record(&item),
        }
        if wide {
            if std::mem::replace(&mut self.state.hub.wide, Feed::Established) != Feed::Established {
                // Failed writes may succeed now.
                self.records.values_mut().for_each(Record::forgive);
                self.touch_status();
            }
            if let Some(narrow) = self.state.hub.narrow.take() {
                info!("ClusterMeshes in all namespaces can be listed again");
                narrow.abort();
                self.changes.records = true;
            }
        }
    }

    fn meshes_broken(&mut self, wide: bool, failure: Failure) {
        self.count_failure(HUB, &failure);
        if !wide {
            warn!(error = %failure, namespace = self.settings.namespace, "ClusterMesh watch failed");
            return;
        }
        self.state.hub.all_listed = false;
        self.searches.forget_all();
        self.state.absences.doubt();
        if self.state.hub.wide.fail(&failure) {
            warn!(error = %failure, "ClusterMesh watch for all namespaces failed");
        }
        if matches!(failure, Failure::Forbidden(_)) && self.state.hub.narrow.is_none() {
            let resource = ApiResource::erase::<ClusterMesh>(&());
            let api = Api::namespaced_with(
                self.environment.hub.clone(),
                &self.settings.namespace,
                &resource,
            );
            self.state.hub.narrow = Some(self.spawn_mesh_watch(api, false));
        }
    }

    fn replace_records(&mut self, items: Vec<DynamicObject>) {
        let mut before = std::mem::take(&mut self.records);
        for item in items {
            let newer = Record::read(&item);
            let same = before
                .remove(newer.id())
                .filter(|record| record.uid() == newer.uid());
            self.put_record(same, newer);
        }
        for (id, record) in before {
            if record.has_finalizer() {
                self.records.insert(id.clone(), record);
                self.mesh_is_missing(id);
            }
        }
        self.changes.records = true;
    }

    pub(super) fn take_record(&mut self, item: &DynamicObject, version: Version) {
        let newer = Record::read(item);
        let before = self.records.remove(newer.id());
        if let Some(known) = &before
            && known.version >= version
        {
            _ = before.map(|known| self.records.insert(known.id().clone(), known));
            return;
        }
        let same = before.filter(|record| record.uid() == newer.uid());
        self.put_record(same, newer);
    }

    fn put_record(&mut self, before: Option<Record>, newer: Record) {
        let id = newer.id().clone();
        self.state.absences.returned(&id, newer.uid());
        self.touch_status();
        let record = match before {
            Some(mut record) => {
                let triggered = record.trigger() != newer.trigger();
                for cluster in record.redirected_by(&newer) {
                    self.state
                        .guard
                        .history
                        .note_redirection(&id, cluster, Instant::now());
                }
                self.changes.records |= record.renew(newer);
                if triggered {
                    info!(mesh = %id, "full resync requested");
                    self.relist_clusters_of(&record);
                }
                record
            }
            None => {
                self.changes.records = true;
                newer.recalled()
            }
        };
        self.records.insert(id, record);
    }

    fn relist_clusters_of(&self, record: &Record) {
        let ids: BTreeSet<ClusterId> = record.reaches().keys().map(Source::id).collect();
        self.members
            .iter()
            .filter(|(id, _)| ids.contains(id))
            .for_each(|(_, member)| member.link.relist());
    }

    pub(super) fn drop_record(&mut self, item: &DynamicObject) {
        let meta = &item.metadata;
        let id = MeshId::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        if self
            .records
            .get(&id)
            .is_none_or(|record| Some(record.uid()) != meta.uid.as_deref())
        {
            return;
        }
        // An object with a finalizer can't be deleted, so the event is wrong.
        if meta
            .finalizers
            .iter()
            .flatten()
            .any(|name| name == FINALIZER)
        {
            return self.mesh_is_missing(id);
        }
        self.records.remove(&id);
        self.changes.records = true;
    }

    /// Takes in that a ClusterMesh was not found.
    pub(super) fn miss_record(&mut self, id: &MeshId) {
        if self.records.get(id).is_some_and(Record::has_finalizer) {
            self.mesh_is_missing(id.clone());
        } else {
            self.records.remove(id);
            self.changes.records = true;
        }
    }

    pub(super) fn stands_for_itself(&self, cluster: &ClusterId) -> bool {
        self.state
            .identities
            .representatives
            .get(cluster)
            .is_none_or(|of| of == cluster)
    }

    /// Updates the state of a watch, for any kind. Returns observations of the
    /// objects themselves.
    fn observe_feed<T>(
        &mut self,
        cluster: &ClusterId,
        epoch: u64,
        what: Followed,
        seen: Observed<T>,
    ) -> Option<Observed<T>> {
        let member = self
            .members
            .get_mut(cluster)
            .filter(|member| member.link.epoch == epoch)?;
        let feed = member.link.feeds.of(what);
        match seen {
            Observed::Broken(failure) => {
                let lost = feed.fail(&failure);
                self.feed_broken(cluster, what, &failure, lost);
                return None;
            }
            Observed::Established => {
                if std::mem::replace(feed, Feed::Established) != Feed::Doubtful {
                    member.link.relist();
                }
            }
            Observed::Listed { .. } => {
                let was_down = std::mem::replace(feed, Feed::Established) != Feed::Established;
                self.restored(cluster, what, was_down);
            }
            Observed::Set { .. } | Observed::Gone { .. } => {}
        }
        self.contact(cluster);
        Some(seen)
    }

    fn observe_nodes(&mut self, cluster: &ClusterId, epoch: u64, seen: Observed<Node>) {
        let now = self.now;
        let stands =
            self.stands_for_itself(cluster) && !self.state.identities.strays.contains_key(cluster);
        let Some(seen) = self.observe_feed(cluster, epoch, Followed::Nodes, seen) else {
            return;
        };
        if self.is_of_another_cluster(cluster, &seen) {
            return self.doubt(cluster);
        }
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        match seen {
            Observed::Broken(_) | Observed::Established => {}
            Observed::Listed { items, .. } => {
                let uids = sample(items.iter().map(|node| node.uid.as_str()));
                if member
                    .state
                    .uids
                    .as_ref()
                    .is_none_or(|before| before.is_disjoint(&uids))
                {
                    self.state.identities.found += 1;
                    member.state.identified = self.state.identities.found;
                }
                member.state.uids = Some(uids);
                member.state.lineage.listed(items.iter());
                self.changes.links = true;
                let nodes = items
                    .into_iter()
                    .map(|node| member.seen_bare(node, now))
                    .map(|node| (node.name.clone(), Arc::new(node)));
                let nodes: BTreeMap<NodeName, Arc<Node>> = nodes.collect();
                member.state.bare.retain(|name, _| nodes.contains_key(name));
                let metrics = &self.environment.metrics;
                metrics
                    .nodes
                    .get_or_create(&metrics.cluster(cluster))
                    .set(count(nodes.len()));
                match &mut member.swap {
                    Some(swap) => swap.nodes = Some(nodes),
                    None if stands => self
                        .state
                        .listings
                        .push((cluster.clone(), Listing::Nodes(Seen::Known(nodes)))),
                    None => {}
                }
                self.complete_swap(cluster);
            }
            Observed::Set { item, .. } => {
                member.state.lineage.seen(&item);
                let node = member.seen_bare(item, now);
                match &mut member.swap {
                    Some(swap) => {
                        _ = swap
                            .nodes
                            .as_mut()
                            .map(|nodes| nodes.insert(node.name.clone(), Arc::new(node)))
                    }
                    None => {
                        self.node_seen(cluster, stands, |planner| planner.set_node(cluster, node))
                    }
                }
            }
            Observed::Gone { item, .. } => {
                member.state.bare.remove(&item.name);
                member.state.lineage.gone(&item, Instant::now());
                match &mut member.swap {
                    Some(swap) => _ = swap.nodes.as_mut().map(|nodes| nodes.remove(&item.name)),
                    None => self.node_seen(cluster, stands, |planner| {
                        planner.remove_node(cluster, &item.name);
                        true
                    }),
                }
            }
        }
    }

    /// Reports whether a watch event is about a Node of another cluster: one that is
    /// deleted but never existed here, or that another link of the same owner showed
    /// first. Such events are ignored, and the Nodes are listed again.
    fn is_of_another_cluster(&self, cluster: &ClusterId, seen: &Observed<Node>) -> bool {
        let Some(member) = self
            .members
            .get(cluster)
            .filter(|member| member.swap.is_none())
        else {
            return false;
        };
        let (Observed::Set { item, .. } | Observed::Gone { item, .. }) = seen else {
            return false;
        };
        if member.state.lineage.knows(item) || member.state.lineage.is_replaced() {
            return false;
        }
        let is_apart = |other: &Member| {
            let samples = member.state.uids.as_ref().zip(other.state.uids.as_ref());
            other.link.source.namespace() == member.link.source.namespace()
                && samples.is_some_and(|(own, others)| own.is_disjoint(others))
        };
        matches!(seen, Observed::Gone { .. })
            || self
                .members
                .values()
                .any(|other| is_apart(other) && other.state.lineage.knows(item))
    }

    /// Lists a cluster again whose watch can't be right, but not each time.
    fn doubt(&mut self, cluster: &ClusterId) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        if member
            .state
            .doubted_at
            .is_none_or(|at| at.elapsed() >= BETWEEN_DOUBTS)
        {
            member.state.doubted_at = Some(Instant::now());
            member.link.relist();
            warn!(cluster = %self.environment.names.of(cluster), "its watch shows Nodes of another cluster: they are ignored, and it is listed again");
        }
    }

    fn node_seen(
        &mut self,
        cluster: &ClusterId,
        stands: bool,
        take: impl FnOnce(&mut Planner) -> bool,
    ) {
        if !stands {
            return;
        }
        self.flush_listings();
        if self.state.planner.as_mut().is_some_and(take) {
            self.changes.clusters.insert(cluster.clone());
            self.state.change.since.get_or_insert_with(Instant::now);
            self.note_news();
            debug!(cluster = %self.environment.names.of(cluster), change = self.state.change.number, "Node changed");
        }
    }

    /// Records a change that we did not make ourselves.
    pub(super) fn note_news(&mut self) {
        if !std::mem::replace(&mut self.changes.inputs, true) {
            // All events until the next turn are one change.
            self.state.change.number += 1;
        }
        self.touch_status();
    }

    fn observe_peers(&mut self, cluster: &ClusterId, epoch: u64, seen: Observed<PeerFacts>) {
        let stands = self.stands_for_itself(cluster);
        let Some(seen) = self.observe_feed(cluster, epoch, Followed::Peers, seen) else {
            return;
        };
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        match seen {
            Observed::Broken(_) | Observed::Established => {}
            Observed::Listed { items, version } => {
                let facts = items
                    .into_iter()
                    .map(|facts| member.with_endpoint_time(facts));
                let mut peers: BTreeMap<PeerName, PeerFacts> = facts
                    .map(|facts| (PeerName::from(facts.name.as_str()), facts))
                    .collect();
                member.state.recent.amend(&mut peers, version);
                member.keep_listed(&peers);
                match &mut member.swap {
                    Some(swap) => swap.peers = Some(peers),
                    None if stands => self
                        .state
                        .listings
                        .push((cluster.clone(), Listing::Peers(Seen::Known(peers)))),
                    None => {}
                }
                self.complete_swap(cluster);
            }
            seen @ (Observed::Set { .. } | Observed::Gone { .. }) => {
                // A watch event often arrives before the response to our own write, which shows that we caused it.
                if let Some(seen) = member.keep_early(seen) {
                    self.observe_peer(cluster, stands, seen);
                }
            }
        }
    }

    pub(super) fn observe_peer(
        &mut self,
        cluster: &ClusterId,
        stands: bool,
        seen: Observed<PeerFacts>,
    ) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        match seen {
            Observed::Set { item, version } => {
                let facts = member.with_endpoint_time(item);
                if let Some(swap) = &mut member.swap {
                    _ = swap
                        .peers
                        .as_mut()
                        .map(|peers| peers.insert(PeerName::from(facts.name.as_str()), facts));
                    return;
                }
                let name = PeerName::from(facts.name.as_str());
                if member.state.recent.is_news(&name, &facts, version) && stands {
                    self.peer_seen(|planner| planner.set_peer(cluster, facts));
                }
            }
            Observed::Gone { item, version } => {
                if let Some(swap) = &mut member.swap {
                    _ = swap
                        .peers
                        .as_mut()
                        .map(|peers| peers.remove(&PeerName::from(item.name.as_str())));
                    return;
                }
                let name = PeerName::from(item.name.as_str());
                if member.state.recent.is_gone(&name, &item, version) && stands {
                    self.peer_seen(|planner| planner.remove_peer(cluster, &name));
                }
            }
            Observed::Broken(_) | Observed::Established | Observed::Listed { .. } => {}
        }
    }

    /// Takes over both kinds together once both are listed through the new connection.
    fn complete_swap(&mut self, cluster: &ClusterId) {
        let stands = self.stands_for_itself(cluster);
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        let Some(Swap { nodes, peers }) = member.swap.take_if(|swap| swap.is_complete()) else {
            return;
        };
        if stands {
            let nodes = nodes
                .filter(|_| !self.state.identities.strays.contains_key(cluster))
                .map(|nodes| Listing::Nodes(Seen::Known(nodes)));
            let peers = peers.map(|peers| Listing::Peers(Seen::Known(peers)));
            self.state.listings.extend(
                nodes
                    .into_iter()
                    .chain(peers)
                    .map(|listing| (cluster.clone(), listing)),
            );
        }
    }

    fn peer_seen(&mut self, take: impl FnOnce(&mut Planner)) {
        self.flush_listings();
        if let Some(planner) = &mut self.state.planner {
            take(planner);
            self.note_news();
        }
    }

    fn feed_broken(&mut self, cluster: &ClusterId, what: Followed, failure: &Failure, lost: bool) {
        self.count_failure(cluster.as_str(), failure);
        if lost {
            self.changes.links = true;
            if let Some(member) = self
                .members
                .get_mut(cluster)
                .filter(|_| what == Followed::Nodes)
            {
                member.mark_unknown();
            }
            // The lists of the new connection are incomplete: relist.
            let swap = self
                .members
                .get_mut(cluster)
                .and_then(|member| member.swap.take());
            if let Some(member) = self.members.get(cluster).filter(|_| swap.is_some()) {
                member.link.relist();
            }
            let reason = what.why_not(failure);
            warn!(cluster = %self.environment.names.of(cluster), kind = %what, error = reason, "watch failed");
            if self.stands_for_itself(cluster) {
                let listing = match what {
                    Followed::Nodes => Listing::Nodes(Seen::Unknown(reason)),
                    Followed::Peers => Listing::Peers(Seen::Unknown(reason)),
                };
                self.state.listings.push((cluster.clone(), listing));
            }
            self.touch_status();
        }
        if failure.is_an_answer() {
            self.contact(cluster);
        }
    }

    fn restored(&mut self, cluster: &ClusterId, what: Followed, was_down: bool) {
        if was_down {
            info!(cluster = %self.environment.names.of(cluster), kind = %what, "watch established");
            // Failed writes may succeed now.
            if let Some(member) = self.members.get_mut(cluster) {
                member.writer.forgive();
            }
        }
        self.touch_status();
    }

    pub(super) fn contact(&mut self, cluster: &ClusterId) {
        let time = self.environment.clock.time();
        if let Some(member) = self.members.get_mut(cluster) {
            let metrics = &self.environment.metrics;
            metrics
                .last_contact
                .get_or_create(&metrics.cluster(cluster))
                .set(time.0.as_second());
            member.last_contact = Some(time);
        }
    }
}
