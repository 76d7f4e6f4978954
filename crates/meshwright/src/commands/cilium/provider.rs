//! `meshwright provider`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use mw_controller::cilium::dial::{Network, PATIENCE};
use mw_controller::cilium::{Kcp, Provider, Settings};
use mw_controller::clock::Clock;
use mw_controller::transport::Timeouts;
use mw_core::cilium::world::VerifyDial;

use crate::commands::kcp::{KcpArgs, given};
use crate::commands::live::block_on;
use crate::commands::process::{ProcessArgs, some_duration};
use crate::exit_code::Answer;

/// Run the Cilium back end: reconcile ClusterMeshBindings, GlobalServices and ConnectivityIntents.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Reconcile the objects of one cluster, the hub, instead of kcp workspaces.
    #[arg(long)]
    hub: bool,

    /// Use this kubeconfig for the management plane or the hub [default: in-cluster, or
    /// $KUBECONFIG].
    #[arg(long, value_name = "FILE", env = "MGMT_KUBECONFIG")]
    mgmt_kubeconfig: Option<PathBuf>,

    /// Identify this process by this stable name.
    #[arg(long, value_name = "NAME", env = "NODE_ID")]
    node_id: Option<String>,

    /// Rediscover the endpoints of the APIExport at this interval.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = some_duration)]
    reconcile_interval: Duration,

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
    kcp: KcpArgs,

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
    let (kcp, management) = (
        args.kcp.kcp_kubeconfig(),
        given(args.mgmt_kubeconfig.as_ref()).cloned(),
    );
    let node_id = args.node_id.clone().filter(|name| !name.is_empty());
    if args.hub && kcp.is_some() {
        bail!(
            "--hub and --kcp-kubeconfig (KCP_KUBECONFIG) are mutually exclusive: the objects are either on one cluster or in kcp"
        );
    }
    let needed = [
        (
            args.hub || kcp.is_some(),
            "--kcp-kubeconfig (KCP_KUBECONFIG), or --hub",
        ),
        (
            args.hub || management.is_some(),
            "--mgmt-kubeconfig (MGMT_KUBECONFIG)",
        ),
        (node_id.is_some(), "--node-id (NODE_ID)"),
    ];
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|(there, _)| !there)
        .map(|(_, name)| name)
        .collect();
    let (Some(node_id), true) = (node_id, missing.is_empty()) else {
        bail!("missing settings: {}", missing.join("; "))
    };
    let kcp = kcp
        .map(|kubeconfig| kcp_source(&args, kubeconfig))
        .transpose()?;
    let settings = Settings {
        namespace: Some(args.kcp.mgmt_namespace.clone()),
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
    let dialler = Arc::new(Network {
        clock: Clock::system(),
        timeouts: PATIENCE,
        addresses,
    });
    args.process.run(
        Provider {
            settings,
            kcp,
            dialler,
        },
        management,
        args.kcp.mgmt_namespace,
        &node_id,
    )
}

fn kcp_source(args: &Args, kubeconfig: &PathBuf) -> Result<Kcp> {
    let portal = block_on(args.kcp.portal(kubeconfig))?;
    block_on(async {
        Ok(portal
            .check(&args.kcp.api_export_name, Timeouts::of(FIRST_LOOK))
            .await?)
    })?;
    Ok(args.kcp.source(portal, args.reconcile_interval))
}
