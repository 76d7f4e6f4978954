//! `meshwright crd`

use anyhow::{Context, Result};

use crate::answer::Answer;
use crate::output::write_stdout;

/// Print the CustomResourceDefinition of ClusterMesh as YAML.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright crd | kubectl apply --server-side -f -")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Answer> {
    let documents: Result<Vec<String>, _> = mw_api::crd::crds().iter().map(mw_api::crd::to_yaml).collect();
    write_stdout(documents.context("the CRD has no YAML form")?.join("---\n").as_bytes())?;
    Ok(Answer::Yes)
}
