//! `meshwright operator`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use mw_operator::kilo::Settings;

use crate::answer::Answer;
use crate::commands::process::{ProcessArgs, duration};

/// Run the Kilo back end: keep the Peers of every ClusterMesh true, in all its clusters.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kubeconfig of the hub; without it the pod's own cluster, or what KUBECONFIG names.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespaces whose ClusterMeshes are acted on, separated by commas; without it POD_NAMESPACE, where the Lease is.
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    namespace: Vec<String>,

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
    let own = std::env::var("POD_NAMESPACE").ok().filter(|own| !own.is_empty()).or_else(|| args.namespace.first().cloned());
    let own = own.unwrap_or_else(|| "default".to_owned());
    let namespaces = if args.namespace.is_empty() { vec![own.clone()] } else { args.namespace };
    let settings = Settings {
        namespace: own.clone(),
        namespaces: namespaces.into_iter().collect(),
        all_namespaces: args.all_namespaces,
        node_grace: args.node_grace,
        resync: args.process.resync_period,
        sweep_legacy: args.sweep_legacy == Sweep::Auto,
        allowed: args.process.allowed(),
    };
    let pod = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "meshwright".to_owned());
    args.process.run(settings, args.kubeconfig, own, &pod)
}
