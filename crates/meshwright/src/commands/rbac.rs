//! `meshwright rbac`

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::exit_code::Answer;
use crate::output::write_stdout;

/// Print the ServiceAccount, roles and Secrets that meshwright needs in a cluster, as YAML.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: meshwright rbac remote | kubectl --context east apply --server-side -f -"
)]
pub(crate) struct Args {
    /// Print the objects for this kind of cluster.
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Place {
    /// The cluster where the operator runs.
    Hub,
    /// Every other cluster of a ClusterMesh.
    Remote,
    /// Optional on the hub, with --metrics-secure: review the tokens of metrics requests.
    SecureMetrics,
    /// The cluster whose objects the provider reconciles with --hub.
    CiliumHub,
    /// The provider's management plane, with kcp.
    CiliumManagement,
    /// Every cluster of a ClusterMeshBinding.
    CiliumTarget,
    /// Optional on targets: copy a missing CA from another cluster.
    CiliumTargetCa,
    /// Optional on targets, from Kubernetes 1.30: limit what that role can create.
    CiliumTargetCaPolicy,
    /// Optional on targets: read KVStoreMesh metrics to verify links.
    CiliumTargetMetrics,
    /// The two connection Secrets of every target, without data.
    CiliumConnectionSecrets,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let yaml = match args.place {
        Place::Hub => mw_api::rbac::hub_yaml(),
        Place::Remote => mw_api::rbac::remote_yaml(),
        Place::SecureMetrics => mw_api::rbac::secure_metrics_yaml(),
        Place::CiliumHub => mw_api::cilium::rbac::hub_yaml(),
        Place::CiliumManagement => mw_api::cilium::rbac::management_yaml(),
        Place::CiliumTarget => mw_api::cilium::rbac::target_yaml(),
        Place::CiliumTargetCa => mw_api::cilium::rbac::target_ca_yaml(),
        Place::CiliumTargetCaPolicy => mw_api::cilium::rbac::ca_policy_yaml(),
        Place::CiliumTargetMetrics => mw_api::cilium::rbac::target_metrics_yaml(),
        Place::CiliumConnectionSecrets => mw_api::cilium::rbac::connection_secrets_yaml(),
    };
    write_stdout(
        yaml.context("cannot serialize the roles to YAML")?
            .as_bytes(),
    )?;
    Ok(Answer::Yes)
}
