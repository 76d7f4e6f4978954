//! Step 2: validates ClusterMeshes for the planner: which meshes exist, which
//! clusters they name, and which of those are the same.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::kilo::planner::{Listing, Options, Planner, World};
use mw_core::kilo::spec::{Mesh, validate};
use mw_core::names::{ClusterId, MeshId};
use mw_core::seen::Seen;
use tracing::{info, warn};

use crate::fleet::{Source, secret_of};
use crate::kilo::engine::Engine;
use crate::kilo::identity::{Identified, LinkIdentity, Users, identities, links, representatives};
use crate::kilo::member::{LINGER, Member};
use crate::kilo::record::Record;

impl Engine {
    /// Reports whether only ClusterMeshes of our own namespace may be listed.
    pub(super) fn is_limited(&self) -> bool {
        self.state.hub.narrow.is_some()
    }

    pub(super) fn acts_on(&self, mesh: &MeshId) -> bool {
        self.settings.all_namespaces || self.settings.namespaces.contains(&mesh.namespace)
    }

    /// Logs each mesh once that an operator acted on before but that is outside our
    /// namespaces, so that none is ignored silently.
    pub(super) fn name_unserved(&mut self) {
        let planner = self.state.planner.as_ref();
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
        for mesh in unserved.difference(&self.state.told.unserved) {
            warn!(%mesh, peers = peers(mesh), "ClusterMesh ignored: it has our finalizer or Peers, but its namespace is not in --namespace");
        }
        self.state.told.unserved = unserved;
    }

    pub(super) fn validate(&mut self) {
        if std::mem::take(&mut self.changes.records) {
            self.name_clusters();
            self.name_unserved();
            self.engage_wanted();
            self.hand_over_meshes();
            // Clusters of the previous specs were needed until now.
            self.engage_wanted();
            // A mesh that is being deleted no longer shares links.
            self.changes.links = true;
        }
        self.release();
        if std::mem::take(&mut self.changes.links) {
            self.settle_identities();
        }
        self.flush_listings();
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
        self.changes.links |= self.mark_wanted(|id| ids.contains(id));
    }

    /// Releases removed clusters.
    fn release(&mut self) {
        let gone = self.release_unwanted();
        if gone.is_empty() {
            return;
        }
        if let Some(planner) = &mut self.state.planner {
            planner.forget_clusters(&gone);
        }
        self.changes.links = true;
        self.note_news();
    }

    /// Reports whether a removed cluster may be released: our Peers are deleted there, or
    /// it has lingered.
    pub(super) fn may_release(&self, cluster: &ClusterId, lingered: bool) -> bool {
        let Some(planner) = &self.state.planner else {
            return false;
        };
        let done = (planner.is_swept(cluster) && self.stands_for_itself(cluster)) || lingered;
        done && !self.state.listings.iter().any(|(of, _)| of == cluster)
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
        if (&found, &links)
            == (
                &self.state.identities.representatives,
                &self.state.identities.links,
            )
        {
            return;
        }
        self.state.identities.links = links;
        let stands = |map: &BTreeMap<ClusterId, ClusterId>, id: &ClusterId| {
            map.get(id).is_none_or(|of| of == id)
        };
        let lost: BTreeSet<ClusterId> = found
            .keys()
            .filter(|id| stands(&self.state.identities.representatives, id) && !stands(&found, id))
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
            .filter(|id| !stands(&self.state.identities.representatives, id) && stands(&found, id));
        gained
            .filter_map(|id| self.members.get(id))
            .for_each(|member| member.link.relist());
        self.state.listings.retain(|(id, _)| !lost.contains(id));
        self.state.identities.representatives = found;
        if let Some(planner) = &mut self.state.planner {
            planner.forget_clusters(&lost);
        }
        self.hand_over_meshes();
    }

    fn hand_over_meshes(&mut self) {
        for record in self.records.values_mut() {
            record.state.keeps_running =
                record.state.mesh.running.is_some() && validate(&record.state.mesh.spec).is_err();
        }
        self.hand_over();
        // Specs that are refused because of another mesh must keep the clusters of
        // their previous specs.
        let mut refused = false;
        for (id, record) in &mut self.records {
            let asked = validate(&record.state.mesh.spec).ok().map(|(spec, _)| spec);
            let runs = self
                .state
                .planner
                .as_ref()
                .and_then(|planner| planner.running(id));
            let keeps = record.state.mesh.running.is_some()
                && runs == record.state.mesh.running.as_ref()
                && asked.as_ref() != runs;
            refused |= keeps && !record.state.keeps_running;
            record.state.keeps_running |= keeps;
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
                .state
                .planner
                .as_ref()
                .and_then(|planner| planner.input(id))
                .filter(|_| record.state.handed_over);
            if let Some(Mesh { held, anchors, .. }) = known {
                (record.state.mesh.held, record.state.mesh.anchors) =
                    (held.clone(), anchors.clone());
                record.state.holds_everything &= !held.is_empty();
            }
            record.state.handed_over = true;
        }
        let inputs: BTreeMap<MeshId, Mesh> = self
            .records
            .iter()
            .map(|(id, record)| (id.clone(), record.input()))
            .collect();
        let (identities, strays) = identities(
            self.records.values(),
            &self.identified(),
            &self.state.identities.representatives,
        );
        match &mut self.state.planner {
            Some(planner) => {
                planner.set_meshes(inputs, identities, self.state.identities.links.clone());
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
                    links: self.state.identities.links.clone(),
                    ..World::default()
                };
                self.state.planner = Some(Planner::new(world));
            }
        }
        let straight = self
            .state
            .identities
            .strays
            .keys()
            .filter(|id| !strays.contains_key(*id));
        straight
            .filter_map(|id| self.members.get(id))
            .for_each(|member| member.link.relist());
        self.state.listings.retain(|(id, listing)| {
            !(strays.contains_key(id) && matches!(listing, Listing::Nodes(_)))
        });
        self.state.listings.extend(
            strays
                .iter()
                .map(|(id, why)| (id.clone(), Listing::Nodes(Seen::Unknown(why.clone())))),
        );
        self.state.identities.strays = strays;
    }

    /// Remembers the spec in force of each mesh, which stays in force if a new spec is
    /// refused.
    fn remember_running(&mut self) {
        let Some(planner) = &self.state.planner else {
            return;
        };
        for (id, record) in &mut self.records {
            record.state.mesh.running = planner.running(id).cloned();
            record.state.mesh.recalled = false;
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
        self.state.uids.is_none() && self.state.engaged_at.elapsed() < LINGER
    }

    /// Reports whether its own credentials work.
    pub(super) fn is_usable(&self) -> bool {
        self.link.live.is_some() && self.link.trouble().is_none()
    }

    fn identity(&self) -> LinkIdentity {
        LinkIdentity {
            namespace: self.link.source.namespace().map(str::to_owned),
            server: self.link.server.clone(),
            ca: self.state.ca.clone(),
            nodes: self.state.uids.clone(),
            usable: self.is_usable() && self.unwanted_since.is_none(),
            awaited: self.is_awaited(),
            replaced: self.state.lineage.is_replaced(),
            since: self.state.identified,
        }
    }
}
