//! Step 2: validates ClusterMeshes for the planner: which meshes exist, which
//! clusters they name, and which of those are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::kilo::planner::{Listing, Options, Planner, World};
use mw_core::kilo::spec::{Mesh, validate};
use mw_core::names::{ClusterId, MeshId};
use mw_core::seen::Seen;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::fleet::{Source, secret_of};
use crate::kilo::engine::Engine;
use crate::kilo::identity::{Identified, LinkIdentity, Users, identities, links, representatives};
use crate::kilo::observe::Member;
use crate::kilo::record::Record;

/// Time for which a removed cluster stays connected, to delete its Peers.
const LINGER: Duration = Duration::from_secs(600);

impl Engine {
    /// Reports whether ClusterMeshes were listed. Without them, overlaps and orphans
    /// are unknown, so nothing is done.
    pub(super) fn is_complete(&self) -> bool {
        self.listed
    }

    /// Reports whether only ClusterMeshes of our own namespace may be listed.
    pub(super) fn is_limited(&self) -> bool {
        self.narrow.is_some()
    }

    pub(super) fn acts_on(&self, mesh: &MeshId) -> bool {
        self.settings.all_namespaces || self.settings.namespaces.contains(&mesh.namespace)
    }

    /// Logs each mesh once that an operator acted on before but that is outside our
    /// namespaces, so that none is ignored silently.
    pub(super) fn name_unserved(&mut self) {
        let planner = self.planner.as_ref();
        let peers = |id: &MeshId| {
            self.members
                .keys()
                .filter_map(|cluster| planner?.peers_of(id, cluster))
                .sum::<usize>()
        };
        let left = self
            .records
            .iter()
            .filter(|(id, record)| !self.acts_on(id) && (record.has_finalizer() || peers(id) > 0));
        let unserved: BTreeSet<MeshId> = left.map(|(id, _)| id.clone()).collect();
        for mesh in unserved.difference(&self.unserved) {
            warn!(%mesh, peers = peers(mesh), "ClusterMesh ignored: it has our finalizer or Peers, but its namespace is not in --namespace");
        }
        self.unserved = unserved;
    }

    pub(super) fn validate(&mut self) {
        if std::mem::take(&mut self.records_changed) {
            self.name_clusters();
            self.name_unserved();
            self.engage_wanted();
            self.hand_over_meshes();
            // Clusters of the previous specs were needed until now.
            self.engage_wanted();
            // A mesh that is being deleted no longer shares links.
            self.links_changed = true;
        }
        self.release_unwanted();
        if std::mem::take(&mut self.links_changed) {
            self.settle_identities();
        }
    }

    fn name_clusters(&self) {
        let acting = self
            .records
            .values()
            .filter(|record| self.acts_on(record.id()));
        let entries = acting.flat_map(Record::entries);
        self.environment
            .metrics
            .name_clusters(entries.map(|(name, source)| (source.id(), name.to_string())));
    }

    fn engage_wanted(&mut self) {
        let acting = self
            .records
            .values()
            .filter(|record| self.acts_on(record.id()));
        let mut wanted: BTreeSet<Source> = acting
            .flat_map(Record::reaches)
            .map(|(source, _)| source)
            .collect();
        // Orphans are deleted on the hub even if no mesh names it.
        wanted.insert(Source::Hub);
        let ids: BTreeSet<ClusterId> = wanted.iter().map(Source::id).collect();
        for source in wanted {
            if !self.members.contains_key(&source.id()) {
                self.engage(source);
            }
        }
        for (id, member) in &mut self.members {
            let wanted = ids.contains(id);
            self.links_changed |= wanted != member.unwanted_since.is_none();
            match wanted {
                true => member.unwanted_since = None,
                false => _ = member.unwanted_since.get_or_insert_with(Instant::now),
            }
        }
    }

    /// Releases removed clusters, once our Peers are deleted there.
    fn release_unwanted(&mut self) {
        let Some(planner) = &self.planner else { return };
        let released = |(id, member): (&ClusterId, &Member)| {
            let since = member.unwanted_since?;
            let done =
                (planner.is_swept(id) && self.stands_for_itself(id)) || since.elapsed() >= LINGER;
            (done && member.writer.is_idle() && !self.listings.iter().any(|(of, _)| of == id))
                .then(|| id.clone())
        };
        let gone: BTreeSet<ClusterId> = self.members.iter().filter_map(released).collect();
        if gone.is_empty() {
            return;
        }
        for id in &gone {
            info!(cluster = %self.environment.names.of(id), secret = secret_of(id), "cluster removed");
            self.members.remove(id);
            self.environment.metrics.forget_cluster(id);
        }
        if let Some(planner) = &mut self.planner {
            planner.forget_clusters(&gone);
        }
        self.links_changed = true;
        self.note_news();
    }

    /// Returns when a removed cluster is released at the latest.
    pub(super) fn linger_due(&self) -> Option<Instant> {
        self.members
            .values()
            .filter_map(|member| member.unwanted_since)
            .map(|since| since + LINGER)
            .min()
    }

    fn identified(&self) -> Identified {
        self.members
            .iter()
            .map(|(id, member)| (id.clone(), member.identity()))
            .collect()
    }

    fn settle_identities(&mut self) {
        let identified = self.identified();
        let acting = self
            .records
            .values()
            .filter(|record| self.acts_on(record.id()));
        let (found, links) = (
            representatives(&identified, &Users::of(acting)),
            links(&identified),
        );
        if (&found, &links) == (&self.representatives, &self.links) {
            return;
        }
        self.links = links;
        let stands = |map: &BTreeMap<ClusterId, ClusterId>, id: &ClusterId| {
            map.get(id).is_none_or(|of| of == id)
        };
        let lost: BTreeSet<ClusterId> = found
            .keys()
            .filter(|id| stands(&self.representatives, id) && !stands(&found, id))
            .cloned()
            .collect();
        for (id, of) in found
            .iter()
            .filter(|(id, of)| lost.contains(*id) && of != id)
        {
            info!(cluster = %self.environment.names.of(id), secret = secret_of(id), same = secret_of(of), "two kubeconfigs lead to the same cluster");
        }
        let gained = found
            .keys()
            .filter(|id| !stands(&self.representatives, id) && stands(&found, id));
        gained
            .filter_map(|id| self.members.get(id))
            .for_each(|member| member.link.relist());
        self.listings.retain(|(id, _)| !lost.contains(id));
        self.representatives = found;
        if let Some(planner) = &mut self.planner {
            planner.forget_clusters(&lost);
        }
        self.hand_over_meshes();
    }

    fn hand_over_meshes(&mut self) {
        for record in self.records.values_mut() {
            record.keeps_running =
                record.mesh.running.is_some() && validate(&record.mesh.spec).is_err();
        }
        self.hand_over();
        // Specs that are refused because of another mesh must keep the clusters of
        // their previous specs.
        let mut refused = false;
        for (id, record) in &mut self.records {
            let asked = validate(&record.mesh.spec).ok().map(|(spec, _)| spec);
            let runs = self
                .planner
                .as_ref()
                .and_then(|planner| planner.running(id));
            let keeps = record.mesh.running.is_some()
                && runs == record.mesh.running.as_ref()
                && asked.as_ref() != runs;
            refused |= keeps && !record.keeps_running;
            record.keeps_running |= keeps;
        }
        if refused {
            self.hand_over();
        }
        self.remember_running();
        self.note_news();
    }

    fn hand_over(&mut self) {
        for (id, record) in &mut self.records {
            let known = self
                .planner
                .as_ref()
                .and_then(|planner| planner.input(id))
                .filter(|_| record.handed_over);
            if let Some(Mesh { held, anchors, .. }) = known {
                (record.mesh.held, record.mesh.anchors) = (held.clone(), anchors.clone());
                record.holds_everything &= !held.is_empty();
            }
            record.handed_over = true;
        }
        let inputs: BTreeMap<MeshId, Mesh> = self
            .records
            .iter()
            .map(|(id, record)| (id.clone(), record.input()))
            .collect();
        let (identities, strays) = identities(
            self.records.values(),
            &self.identified(),
            &self.representatives,
        );
        match &mut self.planner {
            Some(planner) => {
                planner.set_meshes(inputs, identities, self.links.clone());
                // Decides which specs run.
                planner.settle_sources();
            }
            None => {
                let options = Options {
                    hub: Some(self.environment.hub_uid.clone()),
                    node_grace_seconds: self.settings.node_grace.as_secs(),
                    sweep_legacy: self.settings.sweep_legacy,
                    lease_namespace: Some(self.settings.namespace.clone()),
                };
                let world = World {
                    options,
                    now: self.now,
                    meshes: inputs,
                    identities,
                    links: self.links.clone(),
                    ..World::default()
                };
                self.planner = Some(Planner::new(world));
            }
        }
        let straight = self.strays.keys().filter(|id| !strays.contains_key(*id));
        straight
            .filter_map(|id| self.members.get(id))
            .for_each(|member| member.link.relist());
        self.listings.retain(|(id, listing)| {
            !(strays.contains_key(id) && matches!(listing, Listing::Nodes(_)))
        });
        self.listings.extend(
            strays
                .iter()
                .map(|(id, why)| (id.clone(), Listing::Nodes(Seen::Unknown(why.clone())))),
        );
        self.strays = strays;
    }

    /// Remembers the spec in force of each mesh, which stays in force if a new spec is
    /// refused.
    fn remember_running(&mut self) {
        let Some(planner) = &self.planner else { return };
        for (id, record) in &mut self.records {
            record.mesh.running = planner.running(id).cloned();
            record.mesh.recalled = false;
        }
    }

    /// Reports whether a removed cluster is certainly none of those added since.
    pub(super) fn has_surely_left(&self, member: &Member) -> bool {
        let of_owner =
            |other: &&Member| other.link.source.namespace() == member.link.source.namespace();
        let unidentified = |other: &Member| other.unwanted_since.is_none() && other.is_awaited();
        member.unwanted_since.is_none() || !self.members.values().filter(of_owner).any(unidentified)
    }
}

impl Member {
    /// Reports whether its cluster may still be identified.
    fn is_awaited(&self) -> bool {
        self.uids.is_none() && self.engaged_at.elapsed() < LINGER
    }

    /// Reports whether its own credentials work.
    pub(super) fn is_usable(&self) -> bool {
        self.link.live.is_some() && self.link.trouble().is_none()
    }

    fn identity(&self) -> LinkIdentity {
        LinkIdentity {
            namespace: self.link.source.namespace().map(str::to_owned),
            server: self.link.server.clone(),
            ca: self.ca.clone(),
            nodes: self.uids.clone(),
            usable: self.is_usable() && self.unwanted_since.is_none(),
            awaited: self.is_awaited(),
            replaced: self.lineage.is_replaced(),
            since: self.identified,
        }
    }
}
