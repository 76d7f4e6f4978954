//! `meshwright operator`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use mw_controller::kilo::Settings;

use crate::commands::process::{ProcessArgs, duration};
use crate::exit_code::Answer;

/// Run the Kilo back end: keep every cluster's Peers in line with its ClusterMesh.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this kubeconfig for the hub [default: in-cluster, or $KUBECONFIG].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Act on ClusterMeshes in these namespaces, comma-separated [default: $POD_NAMESPACE, where
    /// the Lease is].
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    namespace: Vec<String>,

    /// Act on ClusterMeshes in all namespaces.
    #[arg(long)]
    all_namespaces: bool,

    /// Keep the Peer of a node that lost its annotations for this long, e.g. 90s, 5m or 0.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration)]
    node_grace: Duration,

    /// Delete Peers that the Go operator left behind for meshes that no longer exist.
    #[arg(long, value_enum, default_value_t)]
    sweep_legacy: Sweep,

    #[command(flatten)]
    process: ProcessArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Sweep {
    /// Delete them, unless the cluster also holds Peers of another hub.
    #[default]
    Auto,
    Never,
}

const NO_NAMESPACE: &str = "cannot elect a leader: the namespace of the Lease is unknown; set POD_NAMESPACE or --namespace, or start a single process with --leader-elect=false";

pub(crate) fn run(args: Args) -> Result<Answer> {
    let own = std::env::var("POD_NAMESPACE")
        .ok()
        .filter(|own| !own.is_empty())
        .or_else(|| args.namespace.first().cloned());
    let own = match own {
        Some(own) => own,
        None if args.process.leader_elect => bail!(NO_NAMESPACE),
        None => "default".to_owned(),
    };
    let namespaces = if args.namespace.is_empty() {
        vec![own.clone()]
    } else {
        args.namespace
    };
    let settings = Settings {
        namespace: own.clone(),
        namespaces: namespaces.into_iter().collect(),
        all_namespaces: args.all_namespaces,
        node_grace: args.node_grace,
        resync: args.process.resync_period,
        sweep_legacy: args.sweep_legacy == Sweep::Auto,
        allowed: args.process.allowed(),
    };
    let pod = std::env::var("POD_NAME")
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_else(|_| "meshwright".to_owned());
    args.process.run(settings, args.kubeconfig, own, &pod)
}
