//! `meshwright operator`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use mw_operator::kilo::Settings;

use crate::answer::Answer;
use crate::commands::process::{ProcessArgs, duration};

/// Run the Kilo back end: keep the Peers of every ClusterMesh true, in all its clusters.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kubeconfig of the hub; without it the pod's own cluster, or what KUBECONFIG names.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespace whose ClusterMeshes are acted on, and where the Lease is.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "default")]
    namespace: String,

    /// Act on the ClusterMeshes of all namespaces.
    #[arg(long)]
    all_namespaces: bool,

    /// How long a node that lost its annotations keeps its Peer: 90s, 5m, or 0.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration)]
    node_grace: Duration,

    /// Whether to remove what the Go operator left of meshes that do not exist.
    #[arg(long, value_enum, default_value_t)]
    sweep_legacy: Sweep,

    #[command(flatten)]
    process: ProcessArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Sweep {
    /// Unless Peers of another hub are in the same cluster.
    #[default]
    Auto,
    Never,
}

pub(crate) fn run(args: Args) -> Result<Answer> {
    let settings = Settings {
        namespace: args.namespace.clone(),
        all_namespaces: args.all_namespaces,
        node_grace: args.node_grace,
        resync: args.process.resync_period,
        sweep_legacy: args.sweep_legacy == Sweep::Auto,
        allowed: args.process.allowed(),
    };
    let pod = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "meshwright".to_owned());
    args.process.run(settings, args.kubeconfig, args.namespace, &pod)
}
