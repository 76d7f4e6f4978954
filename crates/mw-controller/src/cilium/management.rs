//! Resolves a tenant's ref: from its KubernetesCluster to the Cluster of that
//! name on the management plane, and from there to a Secret.

use std::collections::BTreeSet;

use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use mw_api::cilium::fleet::{Cluster, KubernetesCluster};
use mw_core::cilium::object::{ObjectId, Refusal};
use mw_core::names::Workspace;
use mw_core::seen::Seen;
use mw_core::text::printable;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::cilium::engine::{Engine, Event, Input, Kcp};
use crate::cilium::kubeconfig_secrets::Lead;
use crate::cilium::object_source::{Endpoint, Spot, Tenant};
use crate::failure::Failure;
use crate::fleet::HUB;
use crate::fleet::follow::{EventSink, Observed, Version, follow};
use crate::fleet::list::Scope;
use crate::watch_cache::{Item, Noted};

const CLUSTER_API: &str = "cluster.x-k8s.io";

/// A resource of the management plane: `<plural>[.<version>].<group>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterResource {
    pub plural: String,
    /// None for the preferred version.
    pub version: Option<String>,
    pub group: String,
}

impl std::str::FromStr for ClusterResource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected PLURAL[.VERSION].GROUP, e.g. clusters.platform.edge-portal.eu or clusters.v1beta1.cluster.x-k8s.io".to_owned()
        };
        let (plural, rest) = text.split_once('.').ok_or_else(wrong)?;
        let is_version = |word: &str| {
            word.strip_prefix('v')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let (version, group) = match rest.split_once('.') {
            Some((word, group)) if is_version(word) => (Some(word.to_owned()), group),
            _ => (None, rest),
        };
        if plural.is_empty() || group.is_empty() {
            return Err(wrong());
        }
        Ok(ClusterResource {
            plural: plural.to_owned(),
            version,
            group: group.to_owned(),
        })
    }
}

impl std::fmt::Display for ClusterResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.plural, self.group)
    }
}

/// A tenant's ref to a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

fn read_cluster(object: DynamicObject) -> (String, Item<Cluster>) {
    let meta = object.metadata.clone();
    let cluster = serde_json::to_value(object)
        .ok()
        .and_then(|value| serde_json::from_value(value).ok())
        .unwrap_or_default();
    let item = Item {
        uid: meta.uid.unwrap_or_default(),
        version: Version::of(meta.resource_version.as_deref()),
        of: cluster,
    };
    (meta.name.unwrap_or_default(), item)
}

impl Engine {
    pub(super) fn follow_management(&mut self) {
        let Some(kcp) = self.state.sources.kcp.clone() else {
            return;
        };
        let (hub, events) = (self.environment.hub.clone(), self.inbox.sender.clone());
        let watch_config = self.hub_watch_config(Scope::default());
        self.tasks.spawn(async move {
            let resource = served(&hub, &kcp, &events).await;
            let api: Api<DynamicObject> = Api::namespaced_with(hub, &kcp.namespace, &resource);
            follow(
                api,
                watch_config,
                read_cluster,
                EventSink {
                    events,
                    wrap: |seen| Event::Input(Input::Clusters(seen)),
                },
            )
            .await;
        });
    }

    pub(super) fn observe_clusters(&mut self, seen: Observed<(String, Item<Cluster>)>) {
        match self.state.sources.clusters.observe(seen) {
            Noted::Nothing => self.changes.inputs |= self.awaits_a_list(),
            Noted::Relist => self.hub_relist.ring(),
            Noted::Changed => self.changes.records = true,
            Noted::Failed { failure, lost } => {
                self.changes.records |= lost;
                self.count_failure(HUB, &failure);
            }
        }
    }

    /// Returns a bound workspace with its endpoint.
    pub(super) fn tenant(&self, workspace: &Workspace) -> Option<(&Endpoint, &Tenant)> {
        self.tenant_at(workspace)
            .map(|(_, endpoint, tenant)| (endpoint, tenant))
    }

    /// Like `tenant`, with the endpoint's URL. An endpoint that shows the workspace
    /// now takes precedence over one that stopped answering.
    pub(super) fn tenant_at(&self, workspace: &Workspace) -> Option<(&String, &Endpoint, &Tenant)> {
        let among = |now: bool| {
            self.state
                .sources
                .endpoints
                .iter()
                .find_map(|(url, endpoint)| {
                    let seen = if now {
                        endpoint.tenants.known()
                    } else {
                        endpoint.tenants.last_known()
                    };
                    Some((url, endpoint, &seen.known().copied()?.get(workspace)?.of))
                })
        };
        among(true).or_else(|| among(false))
    }

    /// Reports whether the lists that resolve a workspace's refs are still pending.
    fn is_starting_with(&self, workspace: &Workspace) -> bool {
        match self.tenant(workspace) {
            Some((endpoint, _)) => endpoint.clusters.is_starting(),
            None => self
                .state
                .sources
                .endpoints
                .values()
                .any(|endpoint| endpoint.tenants.is_starting()),
        }
    }

    /// Returns a tenant's KubernetesCluster, if known. The APIBinding is checked
    /// first because kcp keeps showing clusters of tenants that have left.
    pub(super) fn kubernetes_cluster(&self, asked: Asked<'_>) -> Seen<Option<&KubernetesCluster>> {
        let Some((endpoint, tenant)) = self.tenant(asked.workspace) else {
            return Seen::Unknown("no APIBinding found in its workspace".to_owned());
        };
        if !tenant.shows_clusters {
            return Seen::Unknown(
                "the claim on kubernetesclusters is not accepted in the workspace's APIBinding"
                    .to_owned(),
            );
        }
        let spot = Spot {
            workspace: asked.workspace.clone(),
            namespace: asked.namespace.to_owned(),
            name: asked.name.to_owned(),
        };
        match endpoint.clusters.last_known() {
            Seen::Known(clusters) if endpoint.is_in_doubt() && !clusters.contains_key(&spot) => {
                Seen::Unknown(
                    "it disappeared, and the workspace's APIBinding is being read again".to_owned(),
                )
            }
            Seen::Known(clusters) => Seen::Known(clusters.get(&spot).map(|item| &item.of)),
            Seen::Unknown(why) => Seen::Unknown(why),
        }
    }

    pub(super) fn lead_through_management(&self, asked: Asked<'_>) -> Lead<'_> {
        let Some(kcp) = &self.state.sources.kcp else {
            return Lead::Unread;
        };
        let name = printable(asked.name, 253);
        if self.is_starting_with(asked.workspace) {
            return Lead::Unread;
        }
        let tenants = match self.kubernetes_cluster(asked) {
            Seen::Unknown(why) => {
                return Lead::Pending(format!("cannot read KubernetesCluster {name}: {why}"));
            }
            Seen::Known(None) => {
                return Lead::NoCluster(format!(
                    "KubernetesCluster {name} not found in namespace {}",
                    asked.namespace
                ));
            }
            Seen::Known(Some(cluster)) => cluster,
        };
        let cluster = match self.state.sources.clusters.last_known() {
            Seen::Unknown(_) if self.state.sources.clusters.is_starting() => return Lead::Unread,
            Seen::Unknown(why) => {
                return Lead::Pending(format!(
                    "cannot read {} on the management plane: {why}",
                    kcp.cluster_resource
                ));
            }
            Seen::Known(clusters) => clusters.get(asked.name).map(|item| &item.of),
        };
        let not_found = format!("Cluster {name} not found on the management plane");
        let Some(cluster) = cluster else {
            return Lead::NoCluster(not_found);
        };
        let owners = self.named_owners(cluster);
        if owners.is_empty() && !kcp.trust_cluster_names {
            return Lead::OwnerMissing(owner_missing(kcp, asked));
        }
        // Other tenants must not learn that it exists.
        if !owners.is_empty() && !owners.contains(asked.workspace.as_str()) {
            return Lead::Revoked(not_found);
        }
        let cluster_api = kcp.cluster_resource.group == CLUSTER_API;
        let ready = if cluster_api {
            cluster.condition("Ready") == Some(true) || cluster.condition("Available") == Some(true)
        } else {
            cluster
                .condition("Ready")
                .unwrap_or_else(|| tenants.is_ready())
        };
        if !ready {
            return Lead::Pending(format!("Cluster {name} is not Ready"));
        }
        if let Some(capability) = cluster
            .cilium()
            .filter(|capability| capability.is_missing())
        {
            let status = printable(capability.state().unwrap_or_default(), 100);
            let checked = capability
                .last_transition_time
                .as_deref()
                .map(|time| printable(time, 100));
            return Lead::Refused(Refusal::Capability { status, checked });
        }
        match self.managed_secret(asked.name) {
            Some((secret, key)) => self.secret(&kcp.namespace, &secret, key.as_deref()),
            None => Lead::Refused(Refusal::Kubeconfig(format!(
                "Cluster {name} has no status.kubeconfigSecretRef"
            ))),
        }
    }

    /// Returns the Secret of a Cluster, and the key in it if one is named.
    pub(super) fn managed_secret(&self, name: &str) -> Option<(String, Option<String>)> {
        let Seen::Known(clusters) = self.state.sources.clusters.last_known() else {
            return None;
        };
        let named = clusters.get(name)?.of.status.kubeconfig_secret_ref.as_ref();
        let cluster_api = self
            .state
            .sources
            .kcp
            .as_ref()
            .is_some_and(|kcp| kcp.cluster_resource.group == CLUSTER_API);
        match named {
            Some(secret) => Some((secret.name.clone(), secret.key.clone())),
            None => cluster_api.then(|| (format!("{name}-kubeconfig"), Some("value".to_owned()))),
        }
    }

    /// Owners of a ref's cluster: a namespace of the hub, or the workspaces that
    /// the Cluster names.
    pub(super) fn owners(&self, id: &ObjectId, name: &str) -> BTreeSet<String> {
        if self.state.sources.kcp.is_none() {
            return [id.namespace.clone()].into();
        }
        match self.state.sources.clusters.last_known() {
            Seen::Known(clusters) => clusters
                .get(name)
                .map(|item| self.named_owners(&item.of))
                .unwrap_or_default(),
            Seen::Unknown(_) => BTreeSet::new(),
        }
    }

    /// Workspaces that a Cluster names; a tenant's path is replaced by its ID.
    fn named_owners(&self, cluster: &Cluster) -> BTreeSet<String> {
        let Some(kcp) = &self.state.sources.kcp else {
            return BTreeSet::new();
        };
        let meta = &cluster.metadata;
        let named = [&meta.labels, &meta.annotations]
            .into_iter()
            .flatten()
            .filter_map(|all| all.get(&kcp.owner_key));
        let owners = named
            .flat_map(|owners| owners.split(','))
            .map(str::trim)
            .filter(|owner| !owner.is_empty());
        owners
            .map(|owner| {
                self.workspace_at(owner)
                    .map_or(owner, Workspace::as_str)
                    .to_owned()
            })
            .collect()
    }

    fn workspace_at(&self, path: &str) -> Option<&Workspace> {
        let tenants = self
            .state
            .sources
            .endpoints
            .values()
            .filter_map(|endpoint| match endpoint.tenants.last_known() {
                Seen::Known(tenants) => Some(tenants),
                Seen::Unknown(_) => None,
            });
        tenants
            .flatten()
            .find(|(_, tenant)| tenant.of.path.as_deref() == Some(path))
            .map(|(workspace, _)| workspace)
    }
}

fn owner_missing(kcp: &Kcp, asked: Asked<'_>) -> String {
    let Asked {
        workspace, name, ..
    } = asked;
    let Kcp {
        namespace,
        cluster_resource,
        owner_key,
        ..
    } = kcp;
    let name = printable(name, 253);
    format!(
        "Cluster {name} does not name its owner; if it is this workspace, ask an administrator of the management plane to run: \
         kubectl annotate -n {namespace} {cluster_resource} {name} {owner_key}={workspace}"
    )
}

/// Waits until the management plane serves the resource, reporting failures meanwhile.
async fn served(hub: &Client, kcp: &Kcp, events: &mpsc::Sender<Event>) -> ApiResource {
    let ClusterResource {
        plural,
        version,
        group,
    } = &kcp.cluster_resource;
    loop {
        let version = match version {
            Some(version) => Ok(version.clone()),
            None => preferred(hub, group).await,
        };
        let failure = match version {
            Ok(version) => {
                let (api_version, kind) = (format!("{group}/{version}"), "Cluster".to_owned());
                return ApiResource {
                    group: group.clone(),
                    version,
                    api_version,
                    kind,
                    plural: plural.clone(),
                };
            }
            Err(failure) => failure,
        };
        _ = events
            .send(Event::Input(Input::Clusters(Observed::Broken(failure))))
            .await;
        sleep(kcp.rediscovery).await;
    }
}

async fn preferred(hub: &Client, group: &str) -> Result<String, Failure> {
    let groups = hub
        .list_api_groups()
        .await
        .map_err(|error| Failure::of(&error))?;
    let found = groups.groups.into_iter().find(|found| found.name == group);
    let version = found.and_then(|found| {
        found
            .preferred_version
            .or_else(|| found.versions.into_iter().next())
    });
    version
        .map(|version| version.version)
        .ok_or_else(|| Failure::NotFound(format!("the API group {group} is not served")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_named_with_or_without_its_version() {
        let read = |text: &str| text.parse::<ClusterResource>();
        let own = read("clusters.platform.edge-portal.eu").unwrap();
        assert_eq!(
            (own.plural.as_str(), own.version, own.group.as_str()),
            ("clusters", None, "platform.edge-portal.eu")
        );
        let theirs = read("clusters.v1beta1.cluster.x-k8s.io").unwrap();
        assert_eq!(
            (theirs.version.as_deref(), theirs.group.as_str()),
            (Some("v1beta1"), "cluster.x-k8s.io")
        );
        assert!(read("clusters").is_err() && read(".x").is_err() && read("clusters.").is_err());
    }
}
