//! `meshwright crd`

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mw_api::cilium::kcp;
use mw_api::crd::{cilium_crds, crds, to_yaml};

use crate::answer::Answer;
use crate::output::write_stdout;

/// Print the CustomResourceDefinitions as YAML, or what kcp needs in their place.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Whose CRDs are printed.
    #[arg(long, value_enum, value_name = "NAME", default_value_t, conflicts_with = "kcp")]
    backend: BackEnd,

    /// Print what kcp needs to offer the Cilium back end's kinds to tenants.
    #[arg(long, value_enum, value_name = "PART", num_args = 0..=1, default_missing_value = "export")]
    kcp: Option<Part>,

    /// The identity of the APIExport edge-portal-fleet: 64 hex digits, different in every installation. Without it export and
    /// binding do not claim tenants' clusters.
    #[arg(long, value_name = "HASH", requires = "kcp", value_parser = identity_hash)]
    fleet_identity: Option<String>,

    /// Path of the workspace with the APIExport, for the binding.
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

Add the claim on tenants' clusters to an export that is there:
  kubectl patch apiexport edge-portal-networking --type merge --patch \"$(meshwright crd --kcp fleet-claim \
    --fleet-identity \"$(kubectl get apiexport edge-portal-fleet -o jsonpath='{.status.identityHash}')\")\"";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum BackEnd {
    /// ClusterMesh.
    #[default]
    Kilo,
    /// ClusterMeshBinding, GlobalService and ConnectivityIntent.
    Cilium,
    /// Both.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The APIResourceSchemas and the APIExport.
    Export,
    /// The APIBinding of a tenant.
    Binding,
    /// A merge patch that adds the claim on tenants' clusters to the APIExport.
    FleetClaim,
    /// The provider's account and rights, and the right to bind.
    Rbac,
}

fn identity_hash(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_owned()),
        false => Err(format!("an identity hash has 64 hex digits: {FIND_HASH} prints it")),
    }
}

const FIND_HASH: &str = "kubectl get apiexport edge-portal-fleet -o jsonpath='{.status.identityHash}'";

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let yaml = match args.kcp {
        Some(part) => of_kcp(args, part)?,
        None => definitions(args.backend).context("the CRDs have no YAML form")?,
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
    Ok(chosen.iter().map(to_yaml).collect::<Result<Vec<_>, _>>()?.join("---\n"))
}

fn of_kcp(args: &Args, part: Part) -> Result<String> {
    let yaml = match (part, &args.fleet_identity) {
        (Part::Rbac, _) => kcp::rbac_yaml(),
        (Part::Export, hash) => kcp::export_yaml(hash.as_deref()),
        (Part::Binding, hash) => kcp::binding_yaml(&args.provider_workspace, hash.as_deref()),
        (Part::FleetClaim, Some(hash)) => kcp::fleet_claim_yaml(hash),
        (Part::FleetClaim, None) => {
            bail!("--fleet-identity is missing: in the workspace with that export, {FIND_HASH} prints it")
        }
    };
    yaml.context("what kcp needs has no YAML form")
}
