//! Tracks which workspaces and clusters are completely known. Each tenant is
//! judged alone: none waits for the clusters or lists of another.

use std::collections::BTreeSet;

use mw_core::cilium::facts::CaId;
use mw_core::names::{ClusterId, Workspace};
use mw_core::seen::Seen;

use crate::cilium::engine::Engine;
use crate::cilium::identity::differ;
use crate::cilium::kubeconfig_secrets::Lead;
use crate::cilium::member::Member;
use crate::cilium::object_source::ObjectSource;
use crate::cilium::record::{Kind, Record};
use crate::fleet::Feed;

/// A ref that has not been resolved yet.
#[derive(Debug)]
pub(super) struct Unresolved {
    workspace: Workspace,
    namespace: String,
    /// Private CA of the API server it points to, if known.
    private_ca: Option<CaId>,
}

impl Engine {
    pub(super) fn unresolved(&self, record: &Record, name: &str) -> Unresolved {
        let private_ca = match self.lead(record.id(), name) {
            Lead::Found { source, .. } => self
                .members
                .get(&source.id())
                .and_then(|member| member.state.in_use.private_ca.clone()),
            _ => None,
        };
        let id = record.id();
        Unresolved {
            workspace: id.workspace.clone(),
            namespace: id.namespace.clone(),
            private_ca,
        }
    }

    /// Workspaces whose objects are all known.
    pub(super) fn listed_workspaces(&self) -> BTreeSet<Workspace> {
        let workspaces: BTreeSet<&Workspace> = self
            .records
            .values()
            .map(|record| &record.id().workspace)
            .collect();
        workspaces
            .into_iter()
            .filter(|workspace| self.is_listed(workspace))
            .cloned()
            .collect()
    }

    /// Clusters that no unresolved ref and no unknown object can point to.
    pub(super) fn settled_clusters(&self, unresolved: &[Unresolved]) -> BTreeSet<ClusterId> {
        if self.state.lists.first_look_ends.is_some() {
            return BTreeSet::new();
        }
        let may_lead = |one: &Unresolved, member: &Member| {
            self.may_be_named(member, &one.workspace, &one.namespace)
                && !differ(
                    one.private_ca.as_ref(),
                    member.state.in_use.private_ca.as_ref(),
                )
        };
        let is_settled = |cluster: &ClusterId, member: &Member| {
            self.is_wanted(cluster)
                && self.knows_all_owners(member)
                && !unresolved.iter().any(|one| may_lead(one, member))
        };
        let settled = self
            .state
            .identities
            .representatives
            .iter()
            .filter(|(cluster, link)| {
                let member = self.members.get(*link);
                member.is_some_and(|member| is_settled(cluster, member))
            });
        settled.map(|(cluster, _)| cluster.clone()).collect()
    }

    /// Clusters that name a workspace which is not bound. It may be moving to
    /// another shard, and this process may have started meanwhile.
    pub(super) fn unbound_clusters(&self) -> BTreeSet<ClusterId> {
        let is_unbound = |owner: &String| {
            self.state.sources.kcp.is_some()
                && self.tenant(&Workspace::from(owner.as_str())).is_none()
        };
        let links = self
            .state
            .identities
            .representatives
            .iter()
            .filter(|(_, link)| {
                let member = self.members.get(*link);
                member.is_some_and(|member| member.state.owners.iter().any(is_unbound))
            });
        links.map(|(cluster, _)| cluster.clone()).collect()
    }

    /// Ends the startup wait once every link that existed at startup has been
    /// read. It waits neither for links that fail or time out nor for later ones.
    pub(super) fn end_first_look(&mut self, unresolved: &[Unresolved]) {
        let all_listed = match self.state.sources.kcp {
            None => self.lists_all_kinds(&ObjectSource::Hub),
            Some(_) => self.lists_all_endpoints(),
        };
        if all_listed && unresolved.is_empty() && !self.members.values().any(Member::is_unread) {
            self.state.lists.first_look_ends = None;
        }
    }

    /// Reports whether a ref points to the cluster. If none does, the cluster was
    /// cleaned up or its Cluster is currently not Ready.
    fn is_wanted(&self, cluster: &ClusterId) -> bool {
        let mut links = self
            .state
            .identities
            .leads
            .iter()
            .filter(|(_, of)| *of == cluster)
            .filter_map(|(link, _)| self.members.get(link));
        links.any(|member| member.unwanted_since.is_none())
    }

    /// Reports whether an object in this workspace and namespace may name the member's cluster.
    fn may_be_named(&self, member: &Member, workspace: &Workspace, namespace: &str) -> bool {
        match self.state.sources.kcp {
            None => member.state.owners.contains(namespace),
            Some(_) => {
                member.state.owners.is_empty() || member.state.owners.contains(workspace.as_str())
            }
        }
    }

    /// Reports whether all objects that may name the member's cluster are known.
    fn knows_all_owners(&self, member: &Member) -> bool {
        match self.state.sources.kcp {
            None => self.lists_all_kinds(&ObjectSource::Hub),
            Some(_) if member.state.owners.is_empty() => self.lists_all_endpoints(),
            Some(_) => member
                .state
                .owners
                .iter()
                .all(|owner| self.knows_owner(&Workspace::from(owner.as_str()))),
        }
    }

    /// Reports whether all objects of a workspace are known. An unbound workspace
    /// has none, unless an endpoint was removed: its tenants are unknown.
    fn knows_owner(&self, workspace: &Workspace) -> bool {
        match self.tenant(workspace) {
            Some(_) => self.is_listed(workspace),
            None => {
                let tenants_known = self
                    .state
                    .sources
                    .endpoints
                    .values()
                    .all(|endpoint| matches!(endpoint.tenants.known(), Seen::Known(_)));
                let strays = self.records.values().any(|record| self.is_stray(record));
                matches!(self.state.sources.slices.known(), Seen::Known(_))
                    && tenants_known
                    && !strays
            }
        }
    }

    /// Reports whether all objects of a workspace are known.
    pub(super) fn is_listed(&self, workspace: &Workspace) -> bool {
        if self.state.sources.kcp.is_none() {
            return self.lists_all_kinds(&ObjectSource::Hub);
        }
        self.tenant_at(workspace)
            .is_some_and(|(url, ..)| self.lists_all_kinds(&ObjectSource::Endpoint(url.clone())))
            && !self.has_strays(workspace)
    }

    fn lists_all_endpoints(&self) -> bool {
        let all = self
            .state
            .sources
            .endpoints
            .keys()
            .all(|url| self.lists_all_kinds(&ObjectSource::Endpoint(url.clone())));
        matches!(self.state.sources.slices.known(), Seen::Known(_))
            && all
            && !self.records.values().any(|record| self.is_stray(record))
    }

    fn lists_all_kinds(&self, object_source: &ObjectSource) -> bool {
        Kind::ALL.iter().all(|kind| {
            self.state
                .lists
                .listed
                .contains(&(object_source.clone(), *kind))
        })
    }

    fn has_strays(&self, workspace: &Workspace) -> bool {
        self.records
            .values()
            .any(|record| record.id().workspace == *workspace && self.is_stray(record))
    }

    /// Reports whether an object is no longer observed: its endpoint was removed
    /// or no longer shows it.
    pub(super) fn is_stray(&self, record: &Record) -> bool {
        record.state.astray.is_some()
            || !matches!(&record.state.object_source, ObjectSource::Endpoint(url) if self.state.sources.endpoints.contains_key(url))
    }

    /// Reports whether an input of the object's status is not observed yet: the
    /// other objects of its workspace, or one of its refs.
    pub(super) fn is_awaiting(&self, record: &Record) -> bool {
        let known = self.resolved(record.state.kind, record.id());
        let looked_up = |name: &String| known.is_some_and(|common| common.refs.contains_key(name));
        !self.is_listed(&record.id().workspace) || !self.refs(record).iter().all(looked_up)
    }

    /// Updates readiness: the process acts once all objects are listed. A failing
    /// kcp endpoint delays only its own tenants.
    pub(super) fn tell_readiness(&self) {
        let readiness = &self.environment.readiness;
        let silent: Vec<String> = self
            .silent_endpoints()
            .into_iter()
            .map(|(url, why)| format!("{url}: {why}"))
            .collect();
        readiness.degrades((!silent.is_empty()).then(|| silent.join("; ")));
        if readiness.is_acting() {
            return;
        }
        let is_starting = |object_source: &ObjectSource| {
            let mut feeds = self
                .state
                .lists
                .feeds
                .iter()
                .filter(|((of, _), _)| of == object_source);
            feeds.any(|(_, feed)| *feed == Feed::Starting)
        };
        let awaited = match &self.state.sources.kcp {
            None if !self.lists_all_kinds(&ObjectSource::Hub) => Some(
                "the first list of ClusterMeshBindings, GlobalServices and ConnectivityIntents"
                    .to_owned(),
            ),
            Some(_) if !matches!(self.state.sources.slices.last_known(), Seen::Known(_)) => {
                Some("the first list of APIExportEndpointSlices".to_owned())
            }
            _ => {
                let silent = self
                    .state
                    .sources
                    .endpoints
                    .keys()
                    .find(|url| is_starting(&ObjectSource::Endpoint((*url).clone())));
                silent.map(|url| format!("the first list of objects at {url}"))
            }
        };
        match awaited {
            Some(what) => readiness.waits_for(what),
            None => readiness.acts(),
        }
    }
}
