//! Step 2: resolves every ref to a cluster, connects the clusters that are named,
//! and fills the planner's input.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::facts::{ClusterSeen, Silence};
use mw_core::cilium::object::{Common, Refusal, Resolution};
use mw_core::cilium::world::Origin;
use mw_core::names::ClusterId;

use crate::cilium::cluster_cache::silent;
use crate::cilium::engine::Engine;
use crate::cilium::kubeconfig_secrets::{Lead, Search};
use crate::cilium::management::Asked;
use crate::cilium::member::Member;
use crate::cilium::record::{Kind, Led, Object, Record, RecordId};
use crate::fleet::{Credentials, Feeds};

/// A list that is needed to resolve refs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Listed {
    Secrets(Search),
    /// Clusters on the management plane.
    Clusters,
    /// KubernetesClusters of the workspace.
    Shown,
    /// APIBindings of the workspace.
    Bindings,
}

/// Number of times each list was made.
pub(super) type Lists = BTreeMap<Listed, u64>;

impl Engine {
    pub(super) fn validate(&mut self) {
        self.changes.inputs |= self
            .state
            .lists
            .first_look_ends
            .take_if(|end| *end <= self.turned_at)
            .is_some();
        self.rediscover();
        self.seek_strays();
        self.look_for_missing_objects();
        self.look_for_what_leads();
        if std::mem::take(&mut self.changes.records) {
            self.follow_secrets();
            self.engage_wanted();
            self.changes.inputs = true;
        }
        self.follow_what_is_wanted();
        // Objects that touched a cluster keep naming it until what we wrote there is deleted.
        self.changes.inputs |= !self.release_unwanted().is_empty();
        self.look();
    }

    /// Refs that a spec names, itself or through its binding.
    fn names(&self, record: &Record) -> BTreeSet<String> {
        let binding = record.state.object.mesh().and_then(|mesh| {
            self.records
                .get(&(Kind::Binding, record.id().neighbour(mesh)))
        });
        record
            .state
            .object
            .names(binding.and_then(|binding| match &binding.state.object {
                Object::Binding(of) => Some(of),
                Object::Service(_) | Object::Intent(_) => None,
            }))
    }

    /// Refs that the spec names, and those it touched before.
    pub(super) fn refs(&self, record: &Record) -> BTreeSet<String> {
        self.names(record)
            .into_iter()
            .chain(record.state.object.common().touched.iter().cloned())
            .collect()
    }

    /// Reports whether it touched a ref that its spec no longer names.
    pub(super) fn has_left(&self, record: &Record, name: &String) -> bool {
        record.state.object.common().touched.contains(name) && !self.names(record).contains(name)
    }

    /// Connects every cluster that a ref points to, with its newest credentials.
    fn engage_wanted(&mut self) {
        let mut wanted = BTreeMap::new();
        let mut owners: BTreeMap<ClusterId, BTreeSet<String>> = BTreeMap::new();
        let mut names = Vec::new();
        for record in self.records.values() {
            for name in self.refs(record) {
                if let Lead::Found { source, cached } = self.lead(record.id(), &name) {
                    let access = cached.access(&source, &self.settings.allowed);
                    owners
                        .entry(source.id())
                        .or_default()
                        .extend(self.owners(record.id(), &name));
                    names.push((source.id(), name));
                    wanted.insert(source, access);
                }
            }
        }
        self.environment.metrics.name_clusters(names.into_iter());
        for (source, access) in wanted {
            let id = source.id();
            if !self.members.contains_key(&id) {
                self.add_member(source);
                self.changes.clusters.insert(id.clone());
            }
            if let Some(member) = self.members.get_mut(&id) {
                member.state.owners = owners.get(&id).cloned().unwrap_or_default();
            }
            match access {
                Ok((access, fingerprint)) => {
                    if self.try_credentials(&id, access, fingerprint) {
                        self.changes.clusters.insert(id);
                    }
                }
                Err(Refusal::Kubeconfig(why) | Refusal::Forbidden(why)) => {
                    self.lose_credentials(&id, Credentials::Refused(why))
                }
                Err(Refusal::Capability { .. } | Refusal::Shared) => {}
            }
        }
        self.mark_wanted(|id| owners.contains_key(id));
    }

    /// Updates the planner's input with what was observed.
    fn look(&mut self) {
        let mut replaced = BTreeSet::new();
        let mut changed = std::mem::take(&mut self.changes.clusters);
        changed.retain(|id| self.members.contains_key(id));
        for id in &changed {
            let Some(member) = self.members.get_mut(id) else {
                continue;
            };
            if let Some(uid) = member.link.feeds.uid() {
                if member.state.uid.as_ref() != Some(&uid) {
                    replaced.extend(
                        self.state
                            .identities
                            .leads
                            .get(id)
                            .cloned()
                            .or_else(|| Some(id.clone())),
                    );
                    member.forget();
                    member.state.uid = Some(uid);
                }
                member.state.remembered = member
                    .link
                    .feeds
                    .identity()
                    .or(member.state.remembered.take());
                member.state.learnt_by = member.state.in_use.fingerprint;
            }
        }
        if !changed.is_empty() {
            self.changes.inputs = true;
            self.touch_status();
        }
        if !self.changes.inputs {
            return;
        }
        self.forget_evidence(&replaced);
        let before = std::mem::take(&mut self.state.identities.representatives);
        self.settle_links();
        self.show_clusters(&changed, &before);
        self.show_objects();
    }

    fn show_clusters(
        &mut self,
        changed: &BTreeSet<ClusterId>,
        before: &BTreeMap<ClusterId, ClusterId>,
    ) {
        let representatives = &self.state.identities.representatives;
        self.state
            .world
            .clusters
            .retain(|cluster, _| representatives.contains_key(cluster));
        for (cluster, id) in representatives {
            let Some(member) = self.members.get(id) else {
                continue;
            };
            if changed.contains(id) || before.get(cluster) != Some(id) {
                self.state.world.clusters.insert(
                    cluster.clone(),
                    member.seen(&self.settings.cilium_namespace),
                );
            }
        }
    }

    /// What an object wrote stays while it is missing, and nothing is written for it:
    /// another process may have finished its deletion. Its refs are lost, and it has no
    /// mesh.
    fn show_objects(&mut self) {
        let (mut unresolved, mut remembered) = (Vec::new(), Vec::new());
        let (mut bindings, mut services, mut intents) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for record in self.records.values() {
            let refs: BTreeMap<String, Option<Resolution>> = self
                .refs(record)
                .into_iter()
                .map(|name| (name.clone(), self.resolution(record, &name)))
                .collect();
            let unknown = refs.iter().filter(|(_, resolution)| resolution.is_none());
            unresolved.extend(unknown.map(|(name, _)| self.unresolved(record, name)));
            let led = self.led(record, &refs);
            let lost = self.lost(record, &refs, &led);
            let lost_uids = self.lost_uids(record, &refs, &led);
            if led != record.state.led {
                remembered.push(((record.state.kind, record.id().clone()), led));
            }
            let refs = refs
                .into_iter()
                .filter_map(|(name, resolution)| Some((name, resolution?)))
                .collect();
            let mut object = record.state.object.clone();
            let common: &mut Common = object.common_mut();
            (common.refs, common.lost, common.lost_uids) = (refs, lost, lost_uids);
            let id = common.id.clone();
            match object {
                Object::Binding(mut of) => {
                    of.spec.elb_ids = self.elb_ids(record);
                    bindings.insert(id, of);
                }
                Object::Service(mut of) => {
                    if record.is_missing_from_hub() {
                        of.spec.mesh.clear();
                    }
                    services.insert(id, of);
                }
                Object::Intent(mut of) => {
                    if record.is_missing_from_hub() {
                        of.spec.mesh.clear();
                    }
                    intents.insert(id, of);
                }
            }
        }
        for (id, led) in remembered {
            self.records
                .entry(id)
                .and_modify(|record| record.lead_to(led));
        }
        (
            self.state.world.bindings,
            self.state.world.services,
            self.state.world.intents,
        ) = (bindings, services, intents);
        self.state.world.listed = self.listed_workspaces();
        self.end_first_look(&unresolved);
        self.state.world.settled = self.settled_clusters(&unresolved);
        self.state.world.unbound = self.unbound_clusters();
    }

    /// Clusters that the refs of an object resolve to, or last resolved to.
    fn led(
        &self,
        record: &Record,
        refs: &BTreeMap<String, Option<Resolution>>,
    ) -> BTreeMap<String, Led> {
        let leads = |(name, resolution): (&String, &Option<Resolution>)| {
            let led = match resolution {
                Some(Resolution::Revoked(_)) => None,
                Some(Resolution::Cluster(cluster)) => {
                    self.state.world.origins.get(cluster).map(|origin| {
                        let Origin {
                            owner,
                            uid,
                            private_ca: _,
                        } = origin.clone();
                        Led {
                            cluster: cluster.clone(),
                            owner,
                            uid,
                        }
                    })
                }
                _ => record.state.led.get(name).cloned(),
            };
            Some((name.clone(), led?))
        };
        refs.iter().filter_map(leads).collect()
    }

    /// Last known clusters of the refs in a spec that can't be resolved now.
    fn lost(
        &self,
        record: &Record,
        refs: &BTreeMap<String, Option<Resolution>>,
        led: &BTreeMap<String, Led>,
    ) -> BTreeMap<String, ClusterId> {
        if record.is_deleted() {
            return BTreeMap::new();
        }
        let origins = &self.state.world.origins;
        let is_it = |led: &Led, origin: &Origin| origin.owner == led.owner && origin.uid == led.uid;
        let now = |led: &Led| {
            let same = origins
                .get(&led.cluster)
                .is_some_and(|origin| is_it(led, origin))
                .then_some(&led.cluster);
            same.or_else(|| {
                origins
                    .iter()
                    .find(|(_, origin)| is_it(led, origin))
                    .map(|(cluster, _)| cluster)
            })
            .cloned()
        };
        let named = self
            .names(record)
            .into_iter()
            .filter(|name| is_unresolved(refs, name));
        named
            .filter_map(|name| {
                led.get(&name)
                    .and_then(now)
                    .map(|cluster| (name.clone(), cluster))
            })
            .collect()
    }

    /// UIDs of the last known clusters of refs in a spec that can't be resolved now,
    /// even if no link reaches the cluster any more.
    fn lost_uids(
        &self,
        record: &Record,
        refs: &BTreeMap<String, Option<Resolution>>,
        led: &BTreeMap<String, Led>,
    ) -> BTreeMap<String, String> {
        let named = self
            .names(record)
            .into_iter()
            .filter(|name| is_unresolved(refs, name));
        named
            .filter_map(|name| led.get(&name).map(|led| (name.clone(), led.uid.clone())))
            .collect()
    }

    /// Relists for objects that were just deleted: credentials that look missing
    /// may be back by now, because watches do not order events across kinds.
    fn look_for_what_leads(&mut self) {
        let deleted = |record: &Record| record.is_deleted() && record.state.lists_then.is_none();
        let fresh: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, record)| deleted(record))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &fresh {
            let Some(lists) = self
                .records
                .get(id)
                .map(|record| self.lists_of_what_leads(record))
            else {
                continue;
            };
            if let Some(record) = self.records.get_mut(id) {
                record.state.lists_then = Some(lists);
            }
        }
        if !fresh.is_empty() {
            self.hub_relist.ring();
        }
    }

    /// Reports whether a list matters even if it contains nothing new.
    pub(super) fn awaits_a_list(&self) -> bool {
        self.records
            .values()
            .any(|record| record.state.lists_then.is_some())
    }

    /// Counts of the lists that resolve the refs of an object.
    fn lists_of_what_leads(&self, record: &Record) -> Lists {
        let secrets = self.searches(record).into_iter().map(|search| {
            let lists = self
                .state
                .kubeconfig_secrets
                .get(&search)
                .map_or(0, |secrets_of| secrets_of.secrets.lists());
            (Listed::Secrets(search), lists)
        });
        let management = self
            .state
            .sources
            .kcp
            .as_ref()
            .map(|_| (Listed::Clusters, self.state.sources.clusters.lists()));
        let tenant = self
            .tenant(&record.id().workspace)
            .map(|(endpoint, _)| endpoint);
        let shown = tenant.map(|endpoint| (Listed::Shown, endpoint.clusters.lists()));
        let bindings = tenant.map(|endpoint| (Listed::Bindings, endpoint.tenants.lists()));
        secrets
            .chain(management)
            .chain(shown)
            .chain(bindings)
            .collect()
    }

    fn was_looked_for(&self, record: &Record) -> bool {
        let now = self.lists_of_what_leads(record);
        record.state.lists_then.as_ref().is_some_and(|then| {
            now.iter()
                .all(|(what, lists)| *lists > then.get(what).copied().unwrap_or(0))
        })
    }

    /// Load balancer IDs from a tenant's KubernetesClusters.
    fn elb_ids(&self, record: &Record) -> BTreeMap<String, String> {
        let id = record.id();
        let of = |name: String| {
            let asked = Asked {
                workspace: &id.workspace,
                namespace: &id.namespace,
                name: &name,
            };
            let elb = self
                .kubernetes_cluster(asked)
                .known()
                .copied()
                .flatten()?
                .elb_id()?
                .to_owned();
            Some((name, elb))
        };
        self.names(record).into_iter().filter_map(of).collect()
    }

    /// Resolves a ref; None while the answer is still being read.
    fn resolution(&self, record: &Record, name: &str) -> Option<Resolution> {
        if record.is_missing_from_hub() {
            return Some(Resolution::Unreachable("the object disappeared".to_owned()));
        }
        let source = match self.lead(record.id(), name) {
            Lead::Unread => return None,
            // Cleanup does not wait for a cluster that is gone, once a fresh list confirms it.
            Lead::Missing(why) | Lead::NoCluster(why)
                if record.is_deleted() && !self.was_looked_for(record) =>
            {
                return Some(Resolution::Unreachable(why));
            }
            Lead::Missing(why) | Lead::NoCluster(why)
                if record.is_deleted() || !self.names(record).contains(name) =>
            {
                return Some(Resolution::Gone(why));
            }
            Lead::Missing(why) => return Some(Resolution::Refused(Refusal::Kubeconfig(why))),
            Lead::NoCluster(why) => return Some(Resolution::Pending(why)),
            Lead::Pending(why) => return Some(Resolution::Pending(why)),
            Lead::OwnerMissing(why) => return Some(Resolution::OwnerMissing(why)),
            Lead::Revoked(why) => return Some(Resolution::Revoked(why)),
            Lead::Refused(refusal) => return Some(Resolution::Refused(refusal)),
            Lead::Found { source, .. } => source,
        };
        let member = self.members.get(&source.id())?;
        let feeds = &member.link.feeds;
        Some(
            match (
                &member.link.credentials,
                self.state.identities.leads.get(&member.link.id),
            ) {
                (Credentials::Refused(why) | Credentials::Missing(why), _) => {
                    Resolution::Refused(Refusal::Kubeconfig(why.clone()))
                }
                (_, Some(cluster)) => Resolution::Cluster(cluster.clone()),
                (_, None) => match feeds.silence() {
                    Some(Silence::Forbidden(why)) => Resolution::Refused(Refusal::Forbidden(why)),
                    Some(Silence::Unreachable(why)) => Resolution::Unreachable(why),
                    None if feeds.is_starting() => return None,
                    None => Resolution::Unreachable("Namespace kube-system not found".to_owned()),
                },
            },
        )
    }
}

fn is_unresolved(refs: &BTreeMap<String, Option<Resolution>>, name: &str) -> bool {
    !matches!(refs.get(name), Some(Some(Resolution::Cluster(_))))
}

impl Member {
    /// Returns the planner's view of the cluster: unknown until the connection in
    /// use has identified it.
    fn seen(&self, namespace: &str) -> ClusterSeen {
        let remembered = self.state.remembered.clone();
        let feeds = &self.link.feeds;
        match self.link.credentials.trouble(&self.link.source) {
            Some(why) => silent(Silence::Unreachable(why), remembered),
            None if feeds.silence().is_none() && feeds.uid().is_none() => silent(
                Silence::Unreachable("not observed yet".to_owned()),
                remembered,
            ),
            None => feeds.seen(namespace, remembered),
        }
    }
}
