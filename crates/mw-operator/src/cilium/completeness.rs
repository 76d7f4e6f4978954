//! What is known completely, by tenant: nobody waits for the clusters or lists
//! of another.

use std::collections::BTreeSet;

use mw_core::cilium::facts::CaId;
use mw_core::names::{ClusterId, Workspace};
use mw_core::seen::Seen;

use crate::cilium::engine::Engine;
use crate::cilium::identity::differ;
use crate::cilium::observe::Member;
use crate::cilium::realm::Realm;
use crate::cilium::record::{Kind, Record};
use crate::cilium::vault::Lead;
use crate::fleet::Feed;

/// A ref that was not looked up yet.
#[derive(Debug)]
pub(super) struct Unresolved {
    workspace: Workspace,
    namespace: String,
    /// The private CA of the server that it leads to, where that is known.
    private_ca: Option<CaId>,
}

impl Engine {
    pub(super) fn unresolved(&self, record: &Record, name: &str) -> Unresolved {
        let private_ca = match self.lead(record.id(), name) {
            Lead::Found { source, .. } => self.members.get(&source.id()).and_then(|member| member.in_use.private_ca.clone()),
            _ => None,
        };
        let id = record.id();
        Unresolved { workspace: id.workspace.clone(), namespace: id.namespace.clone(), private_ca }
    }

    /// The workspaces whose objects are all known.
    pub(super) fn listed_workspaces(&self) -> BTreeSet<Workspace> {
        let workspaces: BTreeSet<&Workspace> = self.records.values().map(|record| &record.id().workspace).collect();
        workspaces.into_iter().filter(|workspace| self.is_listed(workspace)).cloned().collect()
    }

    /// The clusters that nothing unknown may lead to.
    pub(super) fn settled_clusters(&self, unresolved: &[Unresolved]) -> BTreeSet<ClusterId> {
        if self.first_look_ends.is_some() {
            return BTreeSet::new();
        }
        let may_lead = |one: &Unresolved, member: &Member| {
            self.may_be_named(member, &one.workspace, &one.namespace) && !differ(one.private_ca.as_ref(), member.in_use.private_ca.as_ref())
        };
        let is_settled = |cluster: &ClusterId, member: &Member| {
            self.is_wanted(cluster) && self.knows_all_owners(member) && !unresolved.iter().any(|one| may_lead(one, member))
        };
        let settled = self.representatives.iter().filter(|(cluster, link)| {
            let member = self.members.get(*link);
            member.is_some_and(|member| is_settled(cluster, member))
        });
        settled.map(|(cluster, _)| cluster.clone()).collect()
    }

    /// Ends the first look of a process that just started once every link that
    /// there was then has been read. A link that fails, or takes too long, is not
    /// waited for, nor is one that comes later.
    pub(super) fn end_first_look(&mut self, unresolved: &[Unresolved]) {
        let all_listed = match self.kcp {
            None => self.lists_all_kinds(&Realm::Hub),
            Some(_) => self.lists_all_endpoints(),
        };
        if all_listed && unresolved.is_empty() && !self.members.values().any(Member::is_unread) {
            self.first_look_ends = None;
        }
    }

    /// Whether a ref leads to a cluster. One that none leads to any more was
    /// cleaned up, or its Cluster is not Ready for now.
    fn is_wanted(&self, cluster: &ClusterId) -> bool {
        let mut links = self.leads.iter().filter(|(_, of)| *of == cluster).filter_map(|(link, _)| self.members.get(link));
        links.any(|member| member.unwanted_since.is_none())
    }

    /// Whether an object there may name the cluster of a member.
    fn may_be_named(&self, member: &Member, workspace: &Workspace, namespace: &str) -> bool {
        match self.kcp {
            None => member.owners.contains(namespace),
            Some(_) => member.owners.is_empty() || member.owners.contains(workspace.as_str()),
        }
    }

    /// Whether all objects of those who may name a cluster are known.
    fn knows_all_owners(&self, member: &Member) -> bool {
        match self.kcp {
            None => self.lists_all_kinds(&Realm::Hub),
            Some(_) if member.owners.is_empty() => self.lists_all_endpoints(),
            Some(_) => member.owners.iter().all(|owner| self.knows_owner(&Workspace::from(owner.as_str()))),
        }
    }

    /// Whether all objects of a workspace are known; one that is bound nowhere
    /// has none. Whose objects are behind an endpoint that vanished is not known.
    fn knows_owner(&self, workspace: &Workspace) -> bool {
        match self.tenant(workspace) {
            Some(_) => self.is_listed(workspace),
            None => {
                let tenants_known = self.endpoints.values().all(|endpoint| matches!(endpoint.tenants.known(), Seen::Known(_)));
                let strays = self.records.values().any(|record| self.is_stray(record));
                matches!(self.slices.known(), Seen::Known(_)) && tenants_known && !strays
            }
        }
    }

    /// Whether all objects of a workspace are known.
    pub(super) fn is_listed(&self, workspace: &Workspace) -> bool {
        if self.kcp.is_none() {
            return self.lists_all_kinds(&Realm::Hub);
        }
        let endpoint = self.endpoints.iter().find(|(_, endpoint)| {
            let tenants = endpoint.tenants.last_known();
            matches!(tenants, Seen::Known(tenants) if tenants.contains_key(workspace))
        });
        endpoint.is_some_and(|(url, _)| self.lists_all_kinds(&Realm::Endpoint(url.clone()))) && !self.has_strays(workspace)
    }

    fn lists_all_endpoints(&self) -> bool {
        let all = self.endpoints.keys().all(|url| self.lists_all_kinds(&Realm::Endpoint(url.clone())));
        matches!(self.slices.known(), Seen::Known(_)) && all && !self.records.values().any(|record| self.is_stray(record))
    }

    fn lists_all_kinds(&self, realm: &Realm) -> bool {
        Kind::ALL.iter().all(|kind| self.listed.contains(&(realm.clone(), *kind)))
    }

    fn has_strays(&self, workspace: &Workspace) -> bool {
        self.records.values().any(|record| record.id().workspace == *workspace && self.is_stray(record))
    }

    /// Whether an object's endpoint vanished, so that nothing more is heard of it.
    fn is_stray(&self, record: &Record) -> bool {
        !matches!(&record.realm, Realm::Endpoint(url) if self.endpoints.contains_key(url))
    }

    /// Whether something that an object's status depends on was not looked at
    /// yet: the other objects of its workspace, or a ref of its own.
    pub(super) fn is_awaiting(&self, record: &Record) -> bool {
        let known = self.resolved(record.kind, record.id());
        let looked_up = |name: &String| known.is_some_and(|common| common.refs.contains_key(name));
        !self.is_listed(&record.id().workspace) || !self.refs(record).iter().all(looked_up)
    }

    /// The process acts once all objects were listed. An endpoint of kcp that
    /// fails holds up its own tenants alone.
    pub(super) fn tell_readiness(&self) {
        let readiness = &self.environment.readiness;
        if readiness.is_acting() {
            return;
        }
        let is_starting = |realm: &Realm| {
            let mut feeds = self.feeds.iter().filter(|((of, _), _)| of == realm);
            feeds.any(|(_, feed)| *feed == Feed::Starting)
        };
        let awaited = match &self.kcp {
            None if !self.lists_all_kinds(&Realm::Hub) => {
                Some("the first list of ClusterMeshBindings, GlobalServices and ConnectivityIntents".to_owned())
            }
            Some(_) if !matches!(self.slices.last_known(), Seen::Known(_)) => Some("the first list of APIExportEndpointSlices".to_owned()),
            _ => {
                let silent = self.endpoints.keys().find(|url| is_starting(&Realm::Endpoint((*url).clone())));
                silent.map(|url| format!("the first list of objects at {url}"))
            }
        };
        match awaited {
            Some(what) => readiness.waits_for(what),
            None => readiness.acts(),
        }
    }
}
