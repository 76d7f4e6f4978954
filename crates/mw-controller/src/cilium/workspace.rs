//! Reads a kcp workspace once, as its provider or a tenant sees it. Read-only, and
//! contacts no cluster.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use kube::{Api, Client};
use mw_api::cilium::fleet::KubernetesCluster;
use mw_api::cilium::kcp::{ApiBinding, ApiExport, EndpointSlice, FLEET_EXPORT};
use mw_core::names::{ClusterId, Workspace as Id};
use mw_core::text::{listed, printable};

use crate::cilium::object_source::{Portal, read_tenant};
use crate::cilium::published_status::PublishedObject;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::fleet::list::{Scope, list};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::published_status::{Interest, PublishedStatus, published_status};
use crate::transport::{Rules, Timeouts};

const KCP: &str = "apis.kcp.io/v1alpha2";

/// Reads a kcp workspace without writing.
#[derive(Debug, Clone)]
pub struct WorkspaceExaminer {
    /// Should not be able to write.
    pub portal: Portal,
    pub export: String,
    pub timeouts: Timeouts,
}

/// Tenants behind each endpoint of an export, or the failure, by URL.
pub type Endpoints = BTreeMap<String, Result<Vec<ApiBinding>, Failure>>;

/// Everything read from a workspace.
#[derive(Debug)]
pub struct Workspace {
    /// APIExports of the workspace; may include both the provider's and the fleet's.
    pub exports: BTreeMap<String, ApiExport>,
    /// APIBindings of the workspace.
    pub bindings: Vec<ApiBinding>,
    /// Empty if the export is in another workspace.
    pub endpoints: Endpoints,
    /// Requested objects; None if the kinds are not served.
    pub objects: Option<PublishedStatus<PublishedObject>>,
    /// KubernetesClusters by namespace and name.
    pub clusters: Result<BTreeMap<(String, String), KubernetesCluster>, Failure>,
}

/// Reports whether this is a kcp workspace, i.e. serves kcp's own API.
pub async fn is_workspace(client: &Client) -> Result<bool, Failure> {
    match client
        .list_api_group_resources(KCP)
        .await
        .map_err(|error| Failure::of(&error))
    {
        Ok(found) => Ok(found.resources.iter().any(|of| of.name == "apibindings")),
        Err(Failure::NotFound(_)) => Ok(false),
        Err(failure) => Err(failure),
    }
}

impl Workspace {
    /// Reports whether no object was found.
    pub fn has_none(&self) -> bool {
        self.objects
            .as_ref()
            .is_none_or(|published_status| published_status.objects.is_empty())
    }

    /// The fleet's APIExport, if it is in this workspace.
    pub fn fleet(&self) -> Option<&ApiExport> {
        self.exports.get(FLEET_EXPORT)
    }

    /// The APIBinding to an export of this name.
    pub fn binding_to(&self, export: &str) -> Option<&ApiBinding> {
        self.bindings
            .iter()
            .find(|binding| binding.spec.reference.export.name == export)
    }

    /// Identity hash of the export that provides this workspace's clusters.
    pub fn fleet_identity(&self) -> Option<&str> {
        self.bindings.iter().find_map(ApiBinding::fleet_identity)
    }
}

/// Reasons why a tenant's workspace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    #[error("cannot list the APIExportEndpointSlices of the provider's workspace: {0}")]
    Slices(Failure),
    #[error("no workspace is bound to the APIExport{}", unread(.silent))]
    None { silent: Vec<String> },
    #[error("workspace {wanted} is not bound to the APIExport, only: {others}{}", unread(.silent))]
    Unknown {
        wanted: String,
        others: String,
        silent: Vec<String>,
    },
    #[error("several workspaces are bound: select one with --workspace: {0}")]
    Several(String),
    #[error("cannot create a client for the workspace: {0}")]
    Client(String),
}

fn unread(silent: &[String]) -> String {
    if silent.is_empty() {
        String::new()
    } else {
        format!("; endpoints that do not answer: {}", listed(silent, 5))
    }
}

impl WorkspaceExaminer {
    /// Finds a tenant's workspace by path or ID, or the only one, and returns its ID
    /// with a client that reads it through the virtual workspace. `client` points to
    /// the provider's workspace.
    pub async fn tenant(
        &self,
        client: &Client,
        wanted: Option<&str>,
    ) -> Result<(Id, Client), TenantError> {
        let slices = self.slices(client).await.map_err(TenantError::Slices)?;
        let (mut tenants, mut silent) = (BTreeMap::new(), Vec::new());
        for (url, bindings) in self.asked(&slices).await {
            match bindings {
                Ok(bindings) => tenants.extend(
                    bindings
                        .into_iter()
                        .map(read_tenant)
                        .map(|(id, tenant)| (id, (tenant.of.path, url.clone()))),
                ),
                Err(failure) => silent.push(format!("{url}: {failure}")),
            }
        }
        let named: Vec<String> = tenants
            .iter()
            .map(|(id, (path, _))| printable(path.as_deref().unwrap_or(id.as_str()), 300))
            .collect();
        let is_it = |id: &Id, path: &Option<String>| {
            wanted.is_none_or(|wanted| id.as_str() == wanted || path.as_deref() == Some(wanted))
        };
        let mut found = tenants.iter().filter(|(id, (path, _))| is_it(id, path));
        let (Some((id, (_, url))), None) = (found.next(), found.next()) else {
            return Err(match wanted {
                _ if tenants.is_empty() => TenantError::None { silent },
                Some(wanted) => TenantError::Unknown {
                    wanted: printable(wanted, 300),
                    others: listed(&named, 20),
                    silent,
                },
                None => TenantError::Several(listed(&named, 20)),
            });
        };
        let client = self
            .portal
            .workspace(url, id.as_str(), self.rules())
            .map_err(TenantError::Client)?;
        Ok((id.clone(), client))
    }

    pub async fn examine(
        &self,
        client: &Client,
        interest: &Interest,
        clock: &Clock,
    ) -> Result<Workspace, Failure> {
        let exports = list(
            &Api::<ApiExport>::all(client.clone()),
            &Scope::default(),
            &|export| export,
        )
        .await?
        .items;
        let exports: BTreeMap<String, ApiExport> = exports
            .into_iter()
            .map(|export| (export.metadata.name.clone().unwrap_or_default(), export))
            .collect();
        let bindings = list(
            &Api::<ApiBinding>::all(client.clone()),
            &Scope::default(),
            &|binding| binding,
        )
        .await?
        .items;
        let endpoints = if exports.contains_key(&self.export) {
            self.asked(&self.slices(client).await?).await
        } else {
            Endpoints::new()
        };
        let clusters = list(
            &Api::<KubernetesCluster>::all(client.clone()),
            &Scope::default(),
            &|cluster| cluster,
        )
        .await;
        let key = |cluster: &KubernetesCluster| {
            let meta = &cluster.metadata;
            (
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
            )
        };
        let clusters = clusters.map(|found| {
            found
                .items
                .into_iter()
                .map(|cluster| (key(&cluster), cluster))
                .collect()
        });
        let objects = published_status::<PublishedObject>(client, interest, clock)
            .await
            .ok();
        Ok(Workspace {
            exports,
            bindings,
            endpoints,
            objects,
            clusters,
        })
    }

    /// Queries the export's endpoints; None in a tenant's workspace, which shows
    /// none.
    pub async fn endpoints(&self, client: &Client) -> Result<Option<Endpoints>, Failure> {
        match self.slices(client).await {
            Ok(slices) if slices.is_empty() => Ok(None),
            Ok(slices) => Ok(Some(self.asked(&slices).await)),
            Err(Failure::Forbidden(_) | Failure::NotFound(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Endpoint slices of the export.
    async fn slices(&self, client: &Client) -> Result<Vec<EndpointSlice>, Failure> {
        let mut slices = list(
            &Api::<EndpointSlice>::all(client.clone()),
            &Scope::default(),
            &|slice| slice,
        )
        .await?
        .items;
        slices.retain(|slice| slice.spec.export.name == self.export);
        Ok(slices)
    }

    /// Lists the tenants of every endpoint concurrently.
    async fn asked(&self, slices: &[EndpointSlice]) -> Endpoints {
        let urls: BTreeSet<String> = slices.iter().flat_map(EndpointSlice::urls).collect();
        let asked = urls.into_iter().map(|url| async move {
            let tenants = self.tenants(&url).await;
            (url, tenants)
        });
        join_all(asked).await.into_iter().collect()
    }

    async fn tenants(&self, url: &str) -> Result<Vec<ApiBinding>, Failure> {
        let client = self
            .portal
            .workspace(url, "*", self.rules())
            .map_err(Failure::Unreachable)?;
        Ok(list(
            &Api::<ApiBinding>::all(client),
            &Scope::default(),
            &|binding| binding,
        )
        .await?
        .items)
    }

    fn rules(&self) -> Rules {
        Rules {
            timeouts: self.timeouts,
            permit: Permit::none(),
            metrics: Metrics::default().of_cluster(&ClusterId::from("kcp")),
        }
    }
}
