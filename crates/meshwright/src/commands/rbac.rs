//! `meshwright rbac`

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::answer::Answer;
use crate::output::write_stdout;

/// Print the service account, the roles and the Secrets that meshwright needs in a cluster as YAML.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright rbac remote | kubectl --context east apply --server-side -f -")]
pub(crate) struct Args {
    /// What the cluster is.
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Place {
    /// Where the operator runs.
    Hub,
    /// Every other cluster of a ClusterMesh.
    Remote,
    /// Where the provider works with --hub.
    CiliumHub,
    /// The management plane of the provider's clusters, with kcp.
    CiliumManagement,
    /// Every cluster of a ClusterMeshBinding.
    CiliumTarget,
    /// Optional there: copy a missing CA from another cluster.
    CiliumTargetCa,
    /// Optional there, from Kubernetes 1.30 on: limit what that role can create.
    CiliumTargetCaPolicy,
    /// Optional there: read the metrics of KVStoreMesh to verify links.
    CiliumTargetMetrics,
    /// The two connection Secrets of every cluster of a ClusterMeshBinding, without data.
    CiliumConnectionSecrets,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let yaml = match args.place {
        Place::Hub => mw_api::rbac::hub_yaml(),
        Place::Remote => mw_api::rbac::remote_yaml(),
        Place::CiliumHub => mw_api::cilium::rbac::hub_yaml(),
        Place::CiliumManagement => mw_api::cilium::rbac::management_yaml(),
        Place::CiliumTarget => mw_api::cilium::rbac::target_yaml(),
        Place::CiliumTargetCa => mw_api::cilium::rbac::target_ca_yaml(),
        Place::CiliumTargetCaPolicy => mw_api::cilium::rbac::ca_policy_yaml(),
        Place::CiliumTargetMetrics => mw_api::cilium::rbac::target_metrics_yaml(),
        Place::CiliumConnectionSecrets => mw_api::cilium::rbac::connection_secrets_yaml(),
    };
    write_stdout(yaml.context("the roles have no YAML form")?.as_bytes())?;
    Ok(Answer::Yes)
}
