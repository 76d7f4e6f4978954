//! `meshwright doctor`

use anyhow::{Result, bail};
use kube::Client;
use mw_core::kilo::plan::Plan;
use mw_operator::clock::Clock;
use mw_operator::doctor::{Check, Layer, State, cilium, kilo, ordered};
use mw_operator::failure::Failure;
use mw_operator::glance::{Interest, glance};
use mw_operator::install::read_hub_uid;
use mw_operator::kilo::{Examination, LookError, MeshGlance, OperatorAccount};

use crate::answer::Answer;
use crate::commands::live::{HubArgs, NODE_GRACE, block_on, planned};
use crate::output::{self, Format};

/// Check every layer of ClusterMeshes and ClusterMeshBindings, from credentials to drift, and say what repairs what is broken.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Name of a ClusterMesh or a ClusterMeshBinding; without it all of the namespace.
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// Service account of the operator on the hub, whose rights are checked there.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = ACCOUNT, value_parser = account)]
    operator_account: OperatorAccount,

    /// Namespace that Cilium runs in, in all clusters.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    cilium_namespace: String,

    /// How to print it.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

const NOTES: &str = "\
Nothing is changed. The commands that are printed name each member by its name in the mesh as a
context of your kubeconfig; where yours are called otherwise, change that before you run them.

Exit codes: 0 all is fine; 1 a check failed, or could not be made; 2 could not be done.";

/// As config/rbac/hub.yaml makes it.
const ACCOUNT: &str = "kilo-system/meshwright-operator";

fn account(text: &str) -> Result<OperatorAccount, String> {
    let (namespace, name) = text.split_once('/').ok_or("write it like kilo-system/meshwright-operator")?;
    Ok(OperatorAccount { namespace: namespace.to_owned(), name: name.to_owned() })
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let checks = ordered(block_on(examine(args))?);
    output::write_checks(&checks, args.output)?;
    Ok(if checks.iter().all(|check| check.state == State::Fine) { Answer::Yes } else { Answer::No })
}

async fn examine(args: &Args) -> Result<Vec<Check>> {
    let clock = Clock::system();
    let (hub, namespace) = args.hub.hub().await?;
    let interest = args.hub.interest(args.name.as_deref(), &namespace);
    let bindings = with_cilium(args, &hub, &interest, &clock).await;
    match with_kilo(args, &hub, &interest, &clock, bindings.is_empty()).await {
        Err(LookError::NoMesh(_)) if !bindings.is_empty() => Ok(bindings),
        Err(wrong) => bail!(wrong),
        Ok(checks) => Ok(checks.into_iter().chain(bindings).collect()),
    }
}

/// Who has another back end need not have this one.
async fn with_kilo(args: &Args, hub: &Client, interest: &Interest, clock: &Clock, expected: bool) -> Result<Vec<Check>, LookError> {
    let uid = read_hub_uid(hub).await;
    let looker = args.hub.looker(hub.clone(), uid.as_ref().cloned().unwrap_or_default(), NODE_GRACE, clock.now());
    let Examination { clusters, look } = looker.examine(interest, &args.operator_account).await;
    let leases = glance::<MeshGlance>(hub, interest, clock).await.ok().and_then(|glance| glance.leases.ok());
    let led = leases.map(|leases| leases.iter().any(|lease| lease.is_alive(clock.now())));
    let answers = clusters.iter().any(|cluster| matches!(cluster.answers, Some(Ok(_))));
    let has_meshes = !matches!(look, Err(LookError::NoResource));
    let mut checks = Vec::new();
    let (plan, world) = match (look, uid) {
        (Err(LookError::NoResource), _) if !expected => return Ok(checks),
        (Ok(look), _) if look.asked.is_empty() && !expected => return Ok(checks),
        (Ok(look), Ok(_)) => {
            let world = look.world.clone();
            (planned(look, false).0, Some(world))
        }
        (Ok(_), Err(failure)) => {
            checks.push(without_uid(&failure));
            (Plan::default(), None)
        }
        (Err(LookError::NoResource), _) if args.name.is_none() => (Plan::default(), None),
        (Err(wrong), _) if answers => return Err(wrong),
        // What does not answer is told by the checks.
        (Err(_), _) => (Plan::default(), None),
    };
    let kubectl = args.hub.kubectl();
    let case = kilo::Case { clusters: &clusters, has_meshes, plan: &plan, world: world.as_ref(), led, kubectl: &kubectl, now: clock.now() };
    checks.extend(case.checks());
    Ok(checks)
}

/// Nothing where the hub has no binding that was asked about.
async fn with_cilium(args: &Args, hub: &Client, interest: &Interest, clock: &Clock) -> Vec<Check> {
    let name = match interest {
        Interest::Mesh(id) => Some(id.name.as_str()),
        Interest::Namespace(_) | Interest::All => None,
    };
    let Ok(hub_uid) = read_hub_uid(hub).await else { return Vec::new() };
    let examiner = args.hub.examiner(hub.clone(), hub_uid, args.cilium_namespace.clone(), clock);
    // What can't be listed is not there for who asks.
    let Ok(seen) = examiner.examine(interest.namespace(), name).await else { return Vec::new() };
    let kubectl = args.hub.kubectl();
    cilium::Case { seen: &seen, kubectl: &kubectl, cilium_namespace: &args.cilium_namespace, now: clock.now() }.checks()
}

/// By it the Peers of this hub are known.
fn without_uid(failure: &Failure) -> Check {
    Check::not_checked(Layer::Drift, "the hub", format!("its Namespace kube-system can't be read: {failure}"))
}
