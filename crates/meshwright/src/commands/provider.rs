//! `meshwright provider`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mw_core::cilium::world::VerifyDial;
use mw_operator::cilium::dial::{Network, PATIENCE};
use mw_operator::cilium::{ClusterResource, Kcp, Portal, Provider, Settings};
use mw_operator::clock::Clock;
use mw_operator::run::hub_config;

use crate::answer::Answer;
use crate::commands::live::block_on;
use crate::commands::process::{ProcessArgs, some_duration};

/// Run the Cilium back end: keep every ClusterMeshBinding, GlobalService and ConnectivityIntent true.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Work on the objects of one cluster, the hub, instead of kcp's workspaces.
    #[arg(long)]
    hub: bool,

    /// Kubeconfig whose current context is the provider's workspace in kcp.
    #[arg(long, value_name = "FILE", env = "KCP_KUBECONFIG")]
    kcp_kubeconfig: Option<PathBuf>,

    /// Kubeconfig of the management plane, or of the hub; without it the pod's own cluster, or what KUBECONFIG names.
    #[arg(long, value_name = "FILE", env = "MGMT_KUBECONFIG")]
    mgmt_kubeconfig: Option<PathBuf>,

    /// Namespace of the clusters and their Secrets on the management plane, and of the Lease.
    #[arg(long, value_name = "NAMESPACE", env = "MGMT_NAMESPACE", default_value = "default")]
    mgmt_namespace: String,

    /// A name of this process that stays the same.
    #[arg(long, value_name = "NAME", env = "NODE_ID")]
    node_id: Option<String>,

    /// Name of the APIExport that tenants bind to.
    #[arg(long, value_name = "NAME", default_value = mw_api::cilium::kcp::EXPORT)]
    api_export_name: String,

    /// Where kcp is reached, if not where it says: its scheme, host and port.
    #[arg(long, value_name = "URL", env = "KCP_EXTERNAL_URL")]
    kcp_external_url: Option<String>,

    /// How often kcp is asked again where the export is served.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = some_duration)]
    reconcile_interval: Duration,

    /// Resource of the clusters on the management plane: PLURAL[.VERSION].GROUP.
    #[arg(long, value_name = "RESOURCE", default_value = "clusters.platform.edge-portal.eu")]
    mgmt_cluster_resource: ClusterResource,

    /// Label or annotation of a Cluster that names the workspaces it is for.
    #[arg(long, value_name = "KEY", default_value = "networking.edge-portal.eu/workspace")]
    mgmt_owner_key: String,

    /// Let any tenant use a Cluster that names no workspaces.
    #[arg(long)]
    trust_cluster_names: bool,

    /// How often links are verified although nothing changed.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = some_duration)]
    mesh_check_interval: Duration,

    /// Namespace that Cilium runs in, in all clusters.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    cilium_namespace: String,

    /// What a remote that can't be dialled keeps from being written.
    #[arg(long, value_enum, default_value_t)]
    verify_dial: Verify,

    /// Whether a missing CA is created from that of another member.
    #[arg(long, value_enum, default_value_t)]
    sync_ca: Switch,

    /// How long a deleted object waits for a cluster that does not answer.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = some_duration)]
    cleanup_timeout: Duration,

    /// Allow intents whose destination is a namespace of the system, or everything.
    #[arg(long)]
    allow_system_namespaces: bool,

    /// Prefixes of annotations that a GlobalService may set beside Cilium's.
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    allow_annotation_prefix: Vec<String>,

    #[command(flatten)]
    process: ProcessArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// Nothing after a DNS or TCP failure: the clusters may reach each other where this process can't.
    #[default]
    Warn,
    /// Everything.
    Require,
    /// Nothing is dialled.
    Off,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Switch {
    #[default]
    On,
    Off,
}

impl From<Verify> for VerifyDial {
    fn from(verify: Verify) -> Self {
        match verify {
            Verify::Warn => VerifyDial::Warn,
            Verify::Require => VerifyDial::Require,
            Verify::Off => VerifyDial::Off,
        }
    }
}

pub(crate) fn run(args: Args) -> Result<Answer> {
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (kcp, management) = (given(&args.kcp_kubeconfig), given(&args.mgmt_kubeconfig));
    let node_id = args.node_id.clone().filter(|name| !name.is_empty());
    if args.hub && kcp.is_some() {
        bail!("--hub and --kcp-kubeconfig (KCP_KUBECONFIG) exclude each other: the objects are on one cluster, or in kcp");
    }
    let needed = [
        (args.hub || kcp.is_some(), "--kcp-kubeconfig (KCP_KUBECONFIG), or --hub"),
        (args.hub || management.is_some(), "--mgmt-kubeconfig (MGMT_KUBECONFIG)"),
        (node_id.is_some(), "--node-id (NODE_ID)"),
    ];
    let missing: Vec<&str> = needed.into_iter().filter(|(there, _)| !there).map(|(_, name)| name).collect();
    let (Some(node_id), true) = (node_id, missing.is_empty()) else { bail!("missing: {}", missing.join("; ")) };
    let kcp = kcp.map(|kubeconfig| kcp_source(&args, kubeconfig)).transpose()?;
    let settings = Settings {
        cilium_namespace: args.cilium_namespace,
        verify_dial: args.verify_dial.into(),
        sync_ca: args.sync_ca == Switch::On,
        cleanup_timeout: args.cleanup_timeout,
        allow_system_namespaces: args.allow_system_namespaces,
        annotation_prefixes: args.allow_annotation_prefix,
        resync: args.process.resync_period,
        check: args.mesh_check_interval,
        allowed: args.process.allowed(),
    };
    let addresses = args.process.allowed().addresses;
    let dialler = Arc::new(Network { clock: Clock::system(), patience: PATIENCE, addresses });
    args.process.run(Provider { settings, kcp, dialler }, management, args.mgmt_namespace, &node_id)
}

fn kcp_source(args: &Args, kubeconfig: PathBuf) -> Result<Kcp> {
    let config = block_on(async { hub_config(Some(&kubeconfig), None).await.context("the kubeconfig of kcp is of no use") })?;
    let external = args.kcp_external_url.as_deref().filter(|url| !url.is_empty());
    let external = external.map(|url| url.parse::<http::Uri>().ok().filter(|url| url.scheme().is_some() && url.authority().is_some()));
    let Some(external) = external.map_or(Some(None), |url| url.map(Some)) else {
        bail!("--kcp-external-url (KCP_EXTERNAL_URL) is not a URL: write it like https://kcp.example:6443");
    };
    Ok(Kcp {
        portal: Portal::new(config, external).context("the kubeconfig of kcp is of no use")?,
        export: args.api_export_name.clone(),
        rediscovery: args.reconcile_interval,
        namespace: args.mgmt_namespace.clone(),
        cluster_resource: args.mgmt_cluster_resource.clone(),
        owner_key: args.mgmt_owner_key.clone(),
        trust_cluster_names: args.trust_cluster_names,
    })
}
