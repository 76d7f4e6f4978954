//! `meshwright provider`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mw_controller::cilium::dial::{Network, PATIENCE};
use mw_controller::cilium::{ClusterResource, Kcp, Portal, Provider, Settings};
use mw_controller::clock::Clock;
use mw_controller::run::hub_config;
use mw_controller::transport::Timeouts;
use mw_core::cilium::world::VerifyDial;

use crate::commands::live::block_on;
use crate::commands::process::{ProcessArgs, some_duration};
use crate::exit_code::Answer;

/// Run the Cilium back end: reconcile ClusterMeshBindings, GlobalServices and ConnectivityIntents.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Reconcile the objects of one cluster, the hub, instead of kcp workspaces.
    #[arg(long)]
    hub: bool,

    /// Use this kubeconfig for kcp; its current context is the provider's workspace.
    #[arg(long, value_name = "FILE", env = "KCP_KUBECONFIG")]
    kcp_kubeconfig: Option<PathBuf>,

    /// Use this kubeconfig for the management plane or the hub [default: in-cluster, or
    /// $KUBECONFIG].
    #[arg(long, value_name = "FILE", env = "MGMT_KUBECONFIG")]
    mgmt_kubeconfig: Option<PathBuf>,

    /// Read Clusters and their Secrets in this namespace of the management plane; the Lease is
    /// there too.
    #[arg(long, value_name = "NAMESPACE", env = "MGMT_NAMESPACE", default_value = "default")]
    mgmt_namespace: String,

    /// Identify this process by this stable name.
    #[arg(long, value_name = "NAME", env = "NODE_ID")]
    node_id: Option<String>,

    /// Serve the tenants that bind to this APIExport.
    #[arg(long, value_name = "NAME", default_value = mw_api::cilium::kcp::EXPORT)]
    api_export_name: String,

    /// Connect to kcp at this scheme, host and port instead of the URL it publishes.
    #[arg(long, value_name = "URL", env = "KCP_EXTERNAL_URL")]
    kcp_external_url: Option<String>,

    /// Rediscover the endpoints of the APIExport at this interval.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = some_duration)]
    reconcile_interval: Duration,

    /// Read Clusters of this resource on the management plane: PLURAL[.VERSION].GROUP.
    #[arg(long, value_name = "RESOURCE", default_value = "clusters.platform.edge-portal.eu")]
    mgmt_cluster_resource: ClusterResource,

    /// Read the workspaces that may use a Cluster from this label or annotation.
    #[arg(long, value_name = "KEY", default_value = "networking.edge-portal.eu/workspace")]
    mgmt_owner_key: String,

    /// Let any tenant use a Cluster that names no workspace.
    #[arg(long)]
    trust_cluster_names: bool,

    /// Verify links at this interval even if nothing changed.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = some_duration)]
    mesh_check_interval: Duration,

    /// Look for Cilium in this namespace of every cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    cilium_namespace: String,

    /// Choose which dial failures keep a remote from being written.
    #[arg(long, value_enum, default_value_t)]
    verify_dial: Verify,

    /// Create a missing CA from that of another member.
    #[arg(long, value_enum, default_value_t)]
    sync_ca: Switch,

    /// Wait this long for an unreachable cluster when an object is deleted.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = some_duration)]
    cleanup_timeout: Duration,

    /// Allow intents whose destination is a system namespace, or everything.
    #[arg(long)]
    allow_system_namespaces: bool,

    /// Let a GlobalService set annotations with these prefixes, besides Cilium's.
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    allow_annotation_prefix: Vec<String>,

    #[command(flatten)]
    process: ProcessArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// All except DNS and TCP failures: clusters may reach each other where this process can't.
    #[default]
    Warn,
    /// All of them.
    Require,
    /// None; nothing is dialled.
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

/// Timeout for checking that the APIExport exists.
const FIRST_LOOK: Duration = Duration::from_secs(4);

pub(crate) fn run(args: Args) -> Result<Answer> {
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (kcp, management) = (given(&args.kcp_kubeconfig), given(&args.mgmt_kubeconfig));
    let node_id = args.node_id.clone().filter(|name| !name.is_empty());
    if args.hub && kcp.is_some() {
        bail!("--hub and --kcp-kubeconfig (KCP_KUBECONFIG) are mutually exclusive: the objects are either on one cluster or in kcp");
    }
    let needed = [
        (args.hub || kcp.is_some(), "--kcp-kubeconfig (KCP_KUBECONFIG), or --hub"),
        (args.hub || management.is_some(), "--mgmt-kubeconfig (MGMT_KUBECONFIG)"),
        (node_id.is_some(), "--node-id (NODE_ID)"),
    ];
    let missing: Vec<&str> = needed.into_iter().filter(|(there, _)| !there).map(|(_, name)| name).collect();
    let (Some(node_id), true) = (node_id, missing.is_empty()) else { bail!("missing settings: {}", missing.join("; ")) };
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
    let dialler = Arc::new(Network { clock: Clock::system(), timeouts: PATIENCE, addresses });
    args.process.run(Provider { settings, kcp, dialler }, management, args.mgmt_namespace, &node_id)
}

fn kcp_source(args: &Args, kubeconfig: PathBuf) -> Result<Kcp> {
    let config = block_on(async { hub_config(Some(&kubeconfig), None).await.context("cannot use the kubeconfig of kcp") })?;
    let external = args.kcp_external_url.as_deref().filter(|url| !url.is_empty());
    let external = external.map(|url| url.parse::<http::Uri>().ok().filter(|url| url.scheme().is_some() && url.authority().is_some()));
    let Some(external) = external.map_or(Some(None), |url| url.map(Some)) else {
        bail!("--kcp-external-url (KCP_EXTERNAL_URL) is not a URL; expected one such as https://kcp.example:6443");
    };
    let portal = Portal::new(config, external).context("cannot use the kubeconfig of kcp")?;
    block_on(async { Ok(portal.check(&args.api_export_name, Timeouts::of(FIRST_LOOK)).await?) })?;
    Ok(Kcp {
        portal,
        export: args.api_export_name.clone(),
        rediscovery: args.reconcile_interval,
        namespace: args.mgmt_namespace.clone(),
        cluster_resource: args.mgmt_cluster_resource.clone(),
        owner_key: args.mgmt_owner_key.clone(),
        trust_cluster_names: args.trust_cluster_names,
    })
}
