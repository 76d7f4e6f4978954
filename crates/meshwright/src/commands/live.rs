//! What the commands that ask API servers share: where the hub is, and a look
//! from there that can't write.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_core::kilo::plan::Plan;
use mw_core::names::MeshId;
use mw_core::problem::{Problem, Reason};
use mw_core::time::Timestamp;
use mw_operator::cilium::{Examiner, dial};
use mw_operator::clock::Clock;
use mw_operator::doctor::commands::Kubectl;
use mw_operator::fleet::Network;
use mw_operator::glance::Interest;
use mw_operator::install::read_hub_uid;
use mw_operator::kilo::{Look, Looker};
use mw_operator::metrics::Metrics;
use mw_operator::permit::Permit;
use mw_operator::transport::Patience;

use crate::commands::process::{MemberArgs, some_duration};
use crate::input::fleet::{Dump, Fleet};

/// Where the hub is, and how the clusters of its meshes are reached.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Live")]
pub(crate) struct HubArgs {
    /// Namespace of the ClusterMesh; without it that of the kubeconfig's context.
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
    namespace: Option<String>,

    /// All ClusterMeshes of the hub.
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(crate) all_namespaces: bool,

    /// Kubeconfig of the hub; without it what KUBECONFIG names, or kubectl's own.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig that leads to the hub.
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,

    /// How long a cluster may take to answer a request.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_duration)]
    request_timeout: Duration,

    #[command(flatten)]
    members: MemberArgs,
}

/// As the operator's default.
pub(crate) const NODE_GRACE: Duration = Duration::from_secs(90);

/// How a look is turned into a world.
#[derive(Debug)]
pub(crate) struct Circumstances {
    /// Instead of asking for it.
    pub(crate) hub_uid: Option<String>,
    pub(crate) node_grace: Duration,
    pub(crate) now: Timestamp,
}

impl HubArgs {
    pub(crate) fn patience(&self) -> Patience {
        Patience::of(self.request_timeout)
    }

    pub(crate) fn interest(&self, name: Option<&str>, default_namespace: &str) -> Interest {
        let namespace = self.namespace.as_deref().unwrap_or(default_namespace);
        match name {
            _ if self.all_namespaces => Interest::All,
            Some(name) => Interest::Mesh(MeshId::new(namespace, name)),
            None => Interest::Namespace(namespace.to_owned()),
        }
    }

    /// A client that can't write, and the namespace meant where none is named.
    pub(crate) async fn hub(&self) -> Result<(kube::Client, String)> {
        let client = mw_operator::run::reader(self.kubeconfig.as_ref(), self.context.as_deref(), self.patience()).await?;
        let namespace = client.default_namespace().to_owned();
        Ok((client, namespace))
    }

    pub(crate) async fn look(&self, hub: kube::Client, interest: &Interest, under: Circumstances) -> Result<Look> {
        let Circumstances { hub_uid, node_grace, now } = under;
        let hub_uid = match hub_uid {
            Some(uid) => uid,
            None => read_hub_uid(&hub).await.context("the hub's Namespace kube-system can't be read")?,
        };
        Ok(self.looker(hub, hub_uid, node_grace, now).look(interest).await?)
    }

    pub(crate) fn looker(&self, hub: kube::Client, hub_uid: String, node_grace: Duration, now: Timestamp) -> Looker {
        let (patience, allowed) = (self.patience(), self.members.allowed());
        let network = Network { allowed: allowed.clone(), patience, permit: Permit::none(), metrics: Metrics::default() };
        Looker { hub, hub_uid, connect: Arc::new(network), allowed, deadline: patience.answer, node_grace, now }
    }

    /// The same for the Cilium back end.
    pub(crate) fn examiner(&self, hub: kube::Client, hub_uid: String, cilium_namespace: String, clock: &Clock) -> Examiner {
        let (patience, allowed) = (self.patience(), self.members.allowed());
        let network = Network { allowed: allowed.clone(), patience, permit: Permit::none(), metrics: Metrics::default() };
        let dialler = Arc::new(dial::Network { clock: clock.clone(), patience: dial::PATIENCE, addresses: allowed.addresses.clone() });
        let (connect, deadline, now) = (Arc::new(network), patience.answer, clock.now());
        Examiner { hub, hub_uid, connect, dialler, allowed, deadline, cilium_namespace, now }
    }

    /// How kubectl gets where we got.
    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl { kubeconfig: self.kubeconfig.as_ref().map(|path| path.display().to_string()), context: self.context.clone() }
    }
}

/// Runs to the end; a name server that hangs does not keep the process alive.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime could be started")?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// The plan of the meshes asked about, and what is there now. What belongs to
/// no mesh is told only when all were asked about.
pub(crate) fn planned(look: Look, all: bool) -> (Plan, Fleet) {
    let Look { world, asked, mut objects, misread, limited_to: _ } = look;
    let mut fleet = Fleet::new();
    for (id, seen) in &world.clusters {
        let peers = seen.peers.known().cloned().unwrap_or_default();
        fleet.insert(id.to_string(), Dump::of(peers, objects.remove(id).unwrap_or_default()));
    }
    let mut plan = mw_core::kilo::plan(world);
    plan.meshes.retain(|id, _| asked.contains(id));
    if !all {
        plan.orphans.clear();
        plan.problems.clear();
    }
    let unreadable = |why: &String| vec![Problem::new(Reason::InvalidSpec, "spec", format!("can't be read: {why}"), "")];
    let wrong: BTreeMap<&MeshId, Vec<Problem>> = misread.iter().map(|(id, why)| (id, unreadable(why))).collect();
    (super::plan::correct(plan, wrong.iter().map(|(id, problems)| (*id, problems.as_slice()))), fleet)
}
