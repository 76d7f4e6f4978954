//! `meshwright doctor`

use anyhow::{Context, Result, bail};
use kube::Client;
use mw_controller::cilium::{WorkspaceExaminer, is_workspace};
use mw_controller::clock::Clock;
use mw_controller::doctor::commands::Kubectl;
use mw_controller::doctor::{Check, Layer, cilium, kcp, kilo, ordered};
use mw_controller::failure::Failure;
use mw_controller::install::read_hub_uid;
use mw_controller::kilo::{Examination, OperatorAccount, PublishedMesh, SnapshotError};
use mw_controller::published_status::{Interest, published_status, served};
use mw_core::kilo::plan::Plan;
use mw_core::names::MeshId;

use crate::commands::crd::identity_hash;
use crate::commands::live::{HubArgs, NODE_GRACE, block_on, planned};
use crate::exit_code::Answer;
use crate::output::{self, Format};

/// Check every layer of a mesh, from credentials to drift, and print the command that fixes each
/// failure.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Check only this ClusterMesh or ClusterMeshBinding [default: all in the namespace].
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// Check the rights of this service account on the hub; the operator runs as it.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = ACCOUNT, value_parser = account)]
    operator_account: OperatorAccount,

    /// Look for Cilium in this namespace of every cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    cilium_namespace: String,

    /// Use this identity hash of the APIExport edge-portal-fleet if it is not in the provider's
    /// workspace (kcp only).
    #[arg(long, value_name = "HASH", value_parser = identity_hash)]
    fleet_identity: Option<String>,

    /// Print the result in this format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

const NOTES: &str = "\
This changes nothing. The printed commands use each member's name in the mesh as a context of your
kubeconfig; if your contexts have other names, adjust the commands before you run them.

In the provider's kcp workspace, doctor checks the export, its endpoints and the tenants' claims;
in a tenant's workspace, the binding, its claims, the clusters that the tenant can read, and its
objects. With the provider's --kcp-kubeconfig and --mgmt-kubeconfig, it checks the clusters of a
tenant's workspace as on a hub.

Exit codes: 0 all checks passed; 1 a check failed or could not run; 2 error.
A check that only you can make, e.g. of the admin certificate of Cilium 1.15, does not count.";

/// The account that config/rbac/hub.yaml creates.
const ACCOUNT: &str = "kilo-system/meshwright-operator";

fn account(text: &str) -> Result<OperatorAccount, String> {
    let (namespace, name) = text
        .split_once('/')
        .ok_or("expected NAMESPACE/NAME, e.g. kilo-system/meshwright-operator")?;
    Ok(OperatorAccount {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let checks = ordered(block_on(examine(args))?);
    output::write_checks(&checks, args.output)?;
    Ok(if checks.iter().all(Check::is_fine) {
        Answer::Yes
    } else {
        Answer::No
    })
}

async fn examine(args: &Args) -> Result<Vec<Check>> {
    let clock = Clock::system();
    let (hub, namespace) = args.hub.hub().await?;
    let interest = args.hub.interest(args.name.as_deref(), &namespace);
    if let Some(seen) = args
        .hub
        .survey_as_provider(&interest, &args.cilium_namespace)
        .await?
    {
        return as_provider(args, &seen, &interest, &clock);
    }
    if is_workspace(&hub).await.unwrap_or(false) {
        return in_workspace(args, &hub, &interest, &clock).await;
    }
    let bindings = with_cilium(args, &hub, &interest, &clock).await;
    match with_kilo(args, &hub, &interest, &clock, bindings.is_empty()).await {
        Err(SnapshotError::NoMesh(_)) if !bindings.is_empty() => Ok(bindings),
        Err(wrong) => bail!(wrong),
        Ok(checks) => Ok(checks.into_iter().chain(bindings).collect()),
    }
}

/// Checks of the clusters of a kcp workspace, with the provider's credentials.
fn as_provider(
    args: &Args,
    seen: &mw_controller::cilium::Examination,
    interest: &Interest,
    clock: &Clock,
) -> Result<Vec<Check>> {
    fail_if_none(interest, seen.world.bindings.is_empty())?;
    // Contexts of members are those of the default kubeconfig.
    let (kubectl, hub) = (Kubectl::default(), args.hub.management_kubectl());
    let cilium_namespace = args.cilium_namespace.as_str();
    Ok(cilium::Case {
        seen,
        kubectl: &kubectl,
        hub: &hub,
        cilium_namespace,
        now: clock.now(),
    }
    .checks())
}

fn fail_if_none(interest: &Interest, is_none: bool) -> Result<()> {
    match interest {
        Interest::Mesh(MeshId { namespace, name }) if is_none => {
            bail!(
                "no ClusterMeshBinding, GlobalService or ConnectivityIntent {name} in namespace {namespace} of this workspace"
            )
        }
        _ => Ok(()),
    }
}

/// Checks of a kcp workspace, which has no nodes and no credentials of clusters.
async fn in_workspace(
    args: &Args,
    client: &Client,
    interest: &Interest,
    clock: &Clock,
) -> Result<Vec<Check>> {
    let (portal, timeouts) = (args.hub.portal().await?, args.hub.timeouts());
    let examiner = WorkspaceExaminer {
        portal,
        export: args.hub.kcp.api_export_name.clone(),
        timeouts,
    };
    let seen = examiner
        .examine(client, interest, clock)
        .await
        .context("cannot read the workspace")?;
    fail_if_none(interest, seen.has_none())?;
    let kubectl = args.hub.kubectl();
    let fleet_identity = args.fleet_identity.as_deref();
    Ok(kcp::Case {
        seen: &seen,
        export: &args.hub.kcp.api_export_name,
        fleet_identity,
        kubectl: &kubectl,
    }
    .checks())
}

/// Checks of the Kilo back end. Empty if it is not in use and not `expected`.
async fn with_kilo(
    args: &Args,
    hub: &Client,
    interest: &Interest,
    clock: &Clock,
    expected: bool,
) -> Result<Vec<Check>, SnapshotError> {
    let uid = read_hub_uid(hub).await;
    let snapshot_reader = args.hub.snapshot_reader(
        hub.clone(),
        uid.as_ref().cloned().unwrap_or_default(),
        NODE_GRACE,
        clock.now(),
    );
    let Examination { clusters, snapshot } = snapshot_reader
        .examine(interest, &args.operator_account)
        .await;
    let leases = published_status::<PublishedMesh>(hub, interest, clock)
        .await
        .ok()
        .and_then(|published_status| published_status.leases.ok());
    let served = leases
        .as_deref()
        .and_then(|leases| served(leases, clock.now()));
    let led = leases.map(|leases| leases.iter().any(|lease| lease.is_alive(clock.now())));
    let answers = clusters
        .iter()
        .any(|cluster| matches!(cluster.answers, Some(Ok(_))));
    let has_meshes = !matches!(snapshot, Err(SnapshotError::NoResource));
    let finalized = snapshot
        .as_ref()
        .map(|snapshot| snapshot.finalized.clone())
        .unwrap_or_default();
    let mut checks = Vec::new();
    let (plan, world) = match (snapshot, uid) {
        (Err(SnapshotError::NoResource), _) if !expected => return Ok(checks),
        (Ok(snapshot), _) if snapshot.asked.is_empty() && !expected => return Ok(checks),
        (Ok(snapshot), Ok(_)) => {
            let world = snapshot.world.clone();
            (planned(snapshot, false).0, Some(world))
        }
        (Ok(_), Err(failure)) => {
            checks.push(without_uid(&failure));
            (Plan::default(), None)
        }
        (Err(SnapshotError::NoResource), _) if args.name.is_none() => (Plan::default(), None),
        (Err(wrong), _) if answers => return Err(wrong),
        // Clusters that do not answer are reported by the checks.
        (Err(_), _) => (Plan::default(), None),
    };
    let kubectl = args.hub.kubectl();
    let case = kilo::Case {
        clusters: &clusters,
        has_meshes,
        plan: &plan,
        world: world.as_ref(),
        led,
        served: served.as_ref(),
        finalized: &finalized,
        kubectl: &kubectl,
        now: clock.now(),
    };
    checks.extend(case.checks());
    Ok(checks)
}

/// Checks of the Cilium back end. Empty if no matching binding exists on the hub.
async fn with_cilium(args: &Args, hub: &Client, interest: &Interest, clock: &Clock) -> Vec<Check> {
    let name = match interest {
        Interest::Mesh(id) => Some(id.name.as_str()),
        Interest::Namespace(_) | Interest::All => None,
    };
    let Ok(hub_uid) = read_hub_uid(hub).await else {
        return Vec::new();
    };
    let examiner = args
        .hub
        .examiner(hub.clone(), hub_uid, args.cilium_namespace.clone(), clock);
    // Objects that cannot be listed do not exist for this user.
    let Ok(seen) = examiner.examine(interest.namespace(), name).await else {
        return Vec::new();
    };
    let kubectl = args.hub.kubectl();
    cilium::Case {
        seen: &seen,
        kubectl: &kubectl,
        hub: &kubectl,
        cilium_namespace: &args.cilium_namespace,
        now: clock.now(),
    }
    .checks()
}

/// Reports that drift can't be checked: Peers of this hub are identified by its UID.
fn without_uid(failure: &Failure) -> Check {
    Check::not_checked(
        Layer::Drift,
        "the hub",
        format!("cannot read Namespace kube-system: {failure}"),
    )
}
