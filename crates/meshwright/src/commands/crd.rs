//! `meshwright crd`

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mw_api::cilium::kcp;
use mw_api::crd::{cilium_crds, crds, to_yaml};

use crate::exit_code::Answer;
use crate::output::write_stdout;

/// Print the CustomResourceDefinitions, or the equivalent kcp objects, as YAML.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the CRDs of this back end.
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        default_value_t,
        conflicts_with = "kcp"
    )]
    backend: BackEnd,

    /// Print the kcp objects that offer the Cilium back end's kinds to tenants.
    #[arg(long, value_enum, value_name = "PART", num_args = 0..=1, default_missing_value = "export")]
    kcp: Option<Part>,

    /// Set the identity hash of the APIExport edge-portal-fleet (64 hex digits); without it
    /// tenants' clusters are not claimed.
    #[arg(long, value_name = "HASH", requires = "kcp", value_parser = identity_hash)]
    fleet_identity: Option<String>,

    /// Bind to the APIExport of the workspace at this path.
    #[arg(long, value_name = "PATH", requires = "kcp", default_value = kcp::PROVIDER_WORKSPACE)]
    provider_workspace: String,
}

const EXAMPLES: &str = "\
Examples:
  meshwright crd | kubectl apply --server-side -f -
  meshwright crd --backend cilium | kubectl apply --server-side -f -

  HASH=$(kubectl get apiexport edge-portal-fleet -o jsonpath='{.status.identityHash}')
  meshwright crd --kcp export --fleet-identity $HASH    # for the provider's workspace
  meshwright crd --kcp rbac                             # as well
  meshwright crd --kcp binding --fleet-identity $HASH   # for each tenant's workspace

Add the claim on tenants' clusters to an existing export:
  kubectl patch apiexport edge-portal-networking --type merge --patch \"$(meshwright crd --kcp fleet-claim \
    --fleet-identity \"$(kubectl get apiexport edge-portal-fleet -o jsonpath='{.status.identityHash}')\")\"";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum BackEnd {
    /// ClusterMesh.
    #[default]
    Kilo,
    /// ClusterMeshBinding, GlobalService and ConnectivityIntent.
    Cilium,
    /// All of the above.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The APIResourceSchemas and the APIExport.
    Export,
    /// The APIBinding for a tenant.
    Binding,
    /// A merge patch that adds the claim on tenants' clusters to the APIExport.
    FleetClaim,
    /// The provider's ServiceAccount and roles, and the role that allows binding.
    Rbac,
}

pub(crate) fn identity_hash(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected 64 hex digits; find the hash with: {FIND_HASH}"
        )),
    }
}

const FIND_HASH: &str =
    "kubectl get apiexport edge-portal-fleet -o jsonpath='{.status.identityHash}'";

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let yaml = match args.kcp {
        Some(part) => of_kcp(args, part)?,
        None => definitions(args.backend).context("cannot serialize the CRDs to YAML")?,
    };
    write_stdout(yaml.as_bytes())?;
    Ok(Answer::Yes)
}

fn definitions(of: BackEnd) -> Result<String, mw_api::crd::YamlError> {
    let chosen = match of {
        BackEnd::Kilo => crds(),
        BackEnd::Cilium => cilium_crds(),
        BackEnd::All => [crds(), cilium_crds()].concat(),
    };
    Ok(chosen
        .iter()
        .map(to_yaml)
        .collect::<Result<Vec<_>, _>>()?
        .join("---\n"))
}

fn of_kcp(args: &Args, part: Part) -> Result<String> {
    let yaml = match (part, &args.fleet_identity) {
        (Part::Rbac, _) => kcp::rbac_yaml(),
        (Part::Export, hash) => kcp::export_yaml(hash.as_deref()),
        (Part::Binding, hash) => kcp::binding_yaml(&args.provider_workspace, hash.as_deref()),
        (Part::FleetClaim, Some(hash)) => kcp::fleet_claim_yaml(hash),
        (Part::FleetClaim, None) => {
            bail!(
                "--fleet-identity is missing; in the workspace of that APIExport, find it with: {FIND_HASH}"
            )
        }
    };
    yaml.context("cannot serialize the kcp objects to YAML")
}
