//! Flags with which the provider, and commands that read as it does, find tenants' objects and
//! clusters in kcp.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mw_controller::cilium::{ClusterResource, Kcp, Portal};
use mw_controller::run::hub_config;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "kcp")]
pub(crate) struct KcpArgs {
    /// Use this kubeconfig for kcp; its current context is the provider's workspace.
    #[arg(long, value_name = "FILE", env = "KCP_KUBECONFIG")]
    kcp_kubeconfig: Option<PathBuf>,

    /// Read Clusters and their Secrets in this namespace of the management plane; the Lease is
    /// there too.
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "MGMT_NAMESPACE",
        default_value = "default"
    )]
    pub(crate) mgmt_namespace: String,

    /// Use this APIExport, which tenants bind to.
    #[arg(long, value_name = "NAME", default_value = mw_api::cilium::kcp::EXPORT)]
    pub(crate) api_export_name: String,

    /// Connect to kcp at this scheme, host and port instead of the URL it publishes.
    #[arg(long, value_name = "URL", env = "KCP_EXTERNAL_URL")]
    kcp_external_url: Option<String>,

    /// Read Clusters of this resource on the management plane: PLURAL[.VERSION].GROUP.
    #[arg(
        long,
        value_name = "RESOURCE",
        default_value = "clusters.platform.edge-portal.eu"
    )]
    mgmt_cluster_resource: ClusterResource,

    /// Read the workspaces that may use a Cluster from this label or annotation.
    #[arg(
        long,
        value_name = "KEY",
        default_value = "networking.edge-portal.eu/workspace"
    )]
    mgmt_owner_key: String,

    /// Let any tenant use a Cluster that names no workspace.
    #[arg(long)]
    trust_cluster_names: bool,
}

/// An empty value is unset.
pub(crate) fn given(path: Option<&PathBuf>) -> Option<&PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

impl KcpArgs {
    pub(crate) fn kcp_kubeconfig(&self) -> Option<&PathBuf> {
        given(self.kcp_kubeconfig.as_ref())
    }

    pub(crate) async fn portal(&self, kubeconfig: &PathBuf) -> Result<Portal> {
        let config = hub_config(Some(kubeconfig), None)
            .await
            .context("cannot use the kubeconfig of kcp")?;
        let external = self
            .kcp_external_url
            .as_deref()
            .filter(|url| !url.is_empty());
        let external = external.map(|url| {
            url.parse::<http::Uri>()
                .ok()
                .filter(|url| url.scheme().is_some() && url.authority().is_some())
        });
        let Some(external) = external.map_or(Some(None), |url| url.map(Some)) else {
            bail!(
                "--kcp-external-url (KCP_EXTERNAL_URL) is not a URL; expected one such as https://kcp.example:6443"
            );
        };
        Portal::new(config, external).context("cannot use the kubeconfig of kcp")
    }

    pub(crate) fn source(&self, portal: Portal, rediscovery: Duration) -> Kcp {
        Kcp {
            portal,
            export: self.api_export_name.clone(),
            rediscovery,
            namespace: self.mgmt_namespace.clone(),
            cluster_resource: self.mgmt_cluster_resource.clone(),
            owner_key: self.mgmt_owner_key.clone(),
            trust_cluster_names: self.trust_cluster_names,
        }
    }
}
