//! `meshwright rbac`

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::answer::Answer;
use crate::output::write_stdout;

/// Print the service account and the roles that meshwright needs in a cluster as YAML.
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
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let yaml = match args.place {
        Place::Hub => mw_api::rbac::hub_yaml(),
        Place::Remote => mw_api::rbac::remote_yaml(),
        Place::CiliumHub => mw_api::cilium::rbac::hub_yaml(),
        Place::CiliumManagement => mw_api::cilium::rbac::management_yaml(),
        Place::CiliumTarget => mw_api::cilium::rbac::target_yaml(),
    };
    write_stdout(yaml.context("the roles have no YAML form")?.as_bytes())?;
    Ok(Answer::Yes)
}
