//! Flags and read-only clients shared by the commands that read live clusters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_controller::cilium::{Examiner, Portal, dial};
use mw_controller::clock::Clock;
use mw_controller::doctor::commands::Kubectl;
use mw_controller::fleet::Network;
use mw_controller::install::read_hub_uid;
use mw_controller::kilo::{Snapshot, SnapshotReader};
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::published_status::Interest;
use mw_controller::run::hub_config;
use mw_controller::transport::Timeouts;
use mw_core::kilo::plan::Plan;
use mw_core::names::MeshId;
use mw_core::problem::{Problem, Reason};
use mw_core::time::Timestamp;

use crate::commands::process::{MemberArgs, some_duration};
use crate::input::kilo::dumps::{Dump, Fleet};

/// Access to the hub and to the clusters of its meshes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Live")]
pub(crate) struct HubArgs {
    /// Read this namespace [default: that of the kubeconfig context].
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
    namespace: Option<String>,

    /// Read all namespaces of the hub.
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(crate) all_namespaces: bool,

    /// Use this kubeconfig for the hub [default: $KUBECONFIG, or ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Use this context of the kubeconfig [default: its current context].
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,

    /// Time out a request to a cluster after this long, e.g. 5s or 1m.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_duration)]
    request_timeout: Duration,

    #[command(flatten)]
    members: MemberArgs,
}

/// Same as the operator's default.
pub(crate) const NODE_GRACE: Duration = Duration::from_secs(90);

/// Parameters for turning a snapshot into planner input.
#[derive(Debug)]
pub(crate) struct Circumstances {
    /// Overrides the UID read from the hub.
    pub(crate) hub_uid: Option<String>,
    pub(crate) node_grace: Duration,
    pub(crate) now: Timestamp,
}

impl HubArgs {
    pub(crate) fn timeouts(&self) -> Timeouts {
        Timeouts::of(self.request_timeout)
    }

    pub(crate) fn interest(&self, name: Option<&str>, default_namespace: &str) -> Interest {
        let namespace = self.namespace.as_deref().unwrap_or(default_namespace);
        match name {
            _ if self.all_namespaces => Interest::All,
            Some(name) => Interest::Mesh(MeshId::new(namespace, name)),
            None => Interest::Namespace(namespace.to_owned()),
        }
    }

    /// Read-only client of the hub, and the namespace to use if none is given.
    pub(crate) async fn hub(&self) -> Result<(kube::Client, String)> {
        let client = mw_controller::run::reader(self.kubeconfig.as_ref(), self.context.as_deref(), self.timeouts()).await?;
        let namespace = client.default_namespace().to_owned();
        Ok((client, namespace))
    }

    /// Access to kcp, if the kubeconfig points to one of its workspaces.
    pub(crate) async fn portal(&self) -> Result<Portal> {
        let config = hub_config(self.kubeconfig.as_ref(), self.context.as_deref()).await?;
        Portal::new(config, None).context("cannot use the kubeconfig of kcp")
    }

    pub(crate) async fn snapshot(&self, hub: kube::Client, interest: &Interest, under: Circumstances) -> Result<Snapshot> {
        let Circumstances { hub_uid, node_grace, now } = under;
        let hub_uid = match hub_uid {
            Some(uid) => uid,
            None => read_hub_uid(&hub).await.context("cannot read Namespace kube-system of the hub")?,
        };
        Ok(self.snapshot_reader(hub, hub_uid, node_grace, now).snapshot(interest).await?)
    }

    pub(crate) fn snapshot_reader(&self, hub: kube::Client, hub_uid: String, node_grace: Duration, now: Timestamp) -> SnapshotReader {
        let (timeouts, allowed) = (self.timeouts(), self.members.allowed());
        let network = Network { allowed: allowed.clone(), timeouts, permit: Permit::none(), metrics: Metrics::default() };
        SnapshotReader { hub, hub_uid, connect: Arc::new(network), allowed, deadline: timeouts.answer, node_grace, now }
    }

    /// Like [`HubArgs::snapshot_reader`], for the Cilium back end.
    pub(crate) fn examiner(&self, hub: kube::Client, hub_uid: String, cilium_namespace: String, clock: &Clock) -> Examiner {
        let (timeouts, allowed) = (self.timeouts(), self.members.allowed());
        let network = Network { allowed: allowed.clone(), timeouts, permit: Permit::none(), metrics: Metrics::default() };
        let dialler = Arc::new(dial::Network { clock: clock.clone(), timeouts: dial::PATIENCE, addresses: allowed.addresses.clone() });
        let (connect, deadline, now) = (Arc::new(network), timeouts.answer, clock.now());
        Examiner { hub, hub_uid, connect, dialler, allowed, deadline, cilium_namespace, now }
    }

    /// The kubeconfig flags for printed kubectl commands.
    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl { kubeconfig: self.kubeconfig.as_ref().map(|path| path.display().to_string()), context: self.context.clone() }
    }
}

/// Runs to completion. A hanging DNS lookup does not keep the process alive.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Plan of the selected meshes, and the current Peers. Orphans are included only if `all` is set.
pub(crate) fn planned(snapshot: Snapshot, all: bool) -> (Plan, Fleet) {
    let Snapshot { world, asked, mut objects, misread, limited_to: _, finalized: _ } = snapshot;
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
