//! Flags and read-only clients shared by the commands that read live clusters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mw_controller::cilium::{
    Examination, Examiner, Portal, Provider, ProviderExaminer, Settings, WorkspaceExaminer, dial,
};
use mw_controller::clock::Clock;
use mw_controller::doctor::commands::Kubectl;
use mw_controller::fleet::Network;
use mw_controller::install::read_hub_uid;
use mw_controller::kilo::{Snapshot, SnapshotReader};
use mw_controller::lease::LeaseAnnotations;
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::published_status::Interest;
use mw_controller::run::{Environment, hub_config, reader};
use mw_controller::serve::Readiness;
use mw_controller::transport::Timeouts;
use mw_core::kilo::plan::Plan;
use mw_core::names::{MeshId, Workspace};
use mw_core::problem::{Problem, Reason};
use mw_core::time::Timestamp;

use crate::commands::kcp::{KcpArgs, given};
use crate::commands::process::{MemberArgs, some_duration};
use crate::input::kilo::dumps::{Dump, Fleet};

/// Access to the hub and to the clusters of its meshes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Live")]
pub(crate) struct HubArgs {
    /// Read this namespace [default: that of the kubeconfig context].
    #[arg(
        short,
        long,
        value_name = "NAMESPACE",
        conflicts_with = "all_namespaces"
    )]
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

    /// Read this tenant's workspace as the provider does, by path or ID [default: the only one
    /// that is bound]; needs --kcp-kubeconfig and --mgmt-kubeconfig.
    #[arg(long, value_name = "WORKSPACE", conflicts_with_all = ["kubeconfig", "context"], help_heading = "kcp")]
    workspace: Option<String>,

    /// Use this kubeconfig for the management plane.
    #[arg(
        long,
        value_name = "FILE",
        env = "MGMT_KUBECONFIG",
        help_heading = "kcp"
    )]
    mgmt_kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) kcp: KcpArgs,
}

/// The kubeconfigs of a provider of kcp.
#[derive(Debug, Clone, Copy)]
struct ProviderAccess<'a> {
    kcp: &'a PathBuf,
    management: &'a PathBuf,
}

/// Flags with which commands read clusters of a kcp workspace.
pub(crate) const PROVIDER_FLAGS: &str =
    "--kcp-kubeconfig (KCP_KUBECONFIG) and --mgmt-kubeconfig (MGMT_KUBECONFIG)";

/// Number of requests that depend on each other, from an endpoint's URL to a cluster.
const LISTS: u32 = 6;

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

    /// Read-only client of the hub, or of a tenant's workspace through its provider, and the
    /// namespace to use if none is given.
    pub(crate) async fn hub(&self) -> Result<(kube::Client, String)> {
        let client = match self.provider_access()? {
            Some(access) => self.tenant(access).await?.1,
            None => {
                reader(
                    self.kubeconfig.as_ref(),
                    self.context.as_deref(),
                    self.timeouts(),
                )
                .await?
            }
        };
        let namespace = client.default_namespace().to_owned();
        Ok((client, namespace))
    }

    /// The kubeconfigs of a provider of kcp, unless --kubeconfig or --context selects a hub.
    fn provider_access(&self) -> Result<Option<ProviderAccess<'_>>> {
        let selects_hub = self.kubeconfig.is_some() || self.context.is_some();
        match (
            self.kcp.kcp_kubeconfig(),
            given(self.mgmt_kubeconfig.as_ref()),
        ) {
            _ if selects_hub => Ok(None),
            (Some(kcp), Some(management)) => Ok(Some(ProviderAccess { kcp, management })),
            (None, _) if self.workspace.is_none() => Ok(None),
            (None, _) => bail!("--workspace needs {PROVIDER_FLAGS}"),
            (Some(_), None) => {
                bail!("--kcp-kubeconfig (KCP_KUBECONFIG) needs --mgmt-kubeconfig (MGMT_KUBECONFIG)")
            }
        }
    }

    /// Reports whether objects are read through the provider's access to kcp.
    pub(crate) fn reads_as_provider(&self) -> bool {
        matches!(self.provider_access(), Ok(Some(_)))
    }

    /// The selected tenant's workspace, with a read-only client.
    async fn tenant(&self, access: ProviderAccess<'_>) -> Result<(Workspace, kube::Client)> {
        let (portal, timeouts) = (self.kcp.portal(access.kcp).await?, self.timeouts());
        let provider = reader(Some(access.kcp), None, timeouts).await?;
        let examiner = WorkspaceExaminer {
            portal,
            export: self.kcp.api_export_name.clone(),
            timeouts,
        };
        Ok(examiner
            .tenant(&provider, self.workspace.as_deref())
            .await?)
    }

    /// Reads and plans as the provider of kcp does; None without its kubeconfigs.
    pub(crate) async fn survey_as_provider(
        &self,
        interest: &Interest,
        cilium_namespace: &str,
    ) -> Result<Option<Examination>> {
        let Some(access) = self.provider_access()? else {
            return Ok(None);
        };
        let (workspace, _) = self.tenant(access).await?;
        let (clock, timeouts, portal) = (
            Clock::system(),
            self.timeouts(),
            self.kcp.portal(access.kcp).await?,
        );
        let hub = reader(Some(access.management), None, timeouts)
            .await
            .context("cannot use the kubeconfig of the management plane")?;
        let another = hub.clone();
        let metrics = Metrics::default();
        let environment = Environment {
            hub,
            another_hub: Arc::new(move || another.clone()),
            hub_uid: String::new(),
            connect: Arc::new(self.network()),
            clock: clock.clone(),
            random: fastrand::Rng::new(),
            names: metrics.names(),
            metrics,
            permit: Permit::none(),
            timeouts,
            // The process answers one question and ends.
            memory_limit: usize::MAX,
            lease_annotations: LeaseAnnotations::default(),
            readiness: Readiness::default(),
        };
        let settings = Settings {
            cilium_namespace: cilium_namespace.to_owned(),
            allowed: self.members.allowed(),
            ..Settings::default()
        };
        let kcp = Some(self.kcp.source(portal, timeouts.answer));
        let provider = Provider {
            settings,
            kcp,
            dialler: Arc::new(self.dialler(&clock)),
        };
        let examiner = ProviderExaminer {
            provider,
            environment,
            deadline: timeouts.answer.saturating_mul(LISTS),
        };
        Ok(Some(examiner.survey(&workspace, interest).await))
    }

    fn network(&self) -> Network {
        Network {
            allowed: self.members.allowed(),
            timeouts: self.timeouts(),
            permit: Permit::none(),
            metrics: Metrics::default(),
        }
    }

    fn dialler(&self, clock: &Clock) -> dial::Network {
        dial::Network {
            clock: clock.clone(),
            timeouts: dial::PATIENCE,
            addresses: self.members.allowed().addresses,
        }
    }

    /// Access to kcp, if the kubeconfig points to one of its workspaces.
    pub(crate) async fn portal(&self) -> Result<Portal> {
        let config = hub_config(self.kubeconfig.as_ref(), self.context.as_deref()).await?;
        Portal::new(config, None).context("cannot use the kubeconfig of kcp")
    }

    pub(crate) async fn snapshot(
        &self,
        hub: kube::Client,
        interest: &Interest,
        under: Circumstances,
    ) -> Result<Snapshot> {
        let Circumstances {
            hub_uid,
            node_grace,
            now,
        } = under;
        let hub_uid = match hub_uid {
            Some(uid) => uid,
            None => read_hub_uid(&hub)
                .await
                .context("cannot read Namespace kube-system of the hub")?,
        };
        Ok(self
            .snapshot_reader(hub, hub_uid, node_grace, now)
            .snapshot(interest)
            .await?)
    }

    pub(crate) fn snapshot_reader(
        &self,
        hub: kube::Client,
        hub_uid: String,
        node_grace: Duration,
        now: Timestamp,
    ) -> SnapshotReader {
        let (deadline, allowed) = (self.timeouts().answer, self.members.allowed());
        SnapshotReader {
            hub,
            hub_uid,
            connect: Arc::new(self.network()),
            allowed,
            deadline,
            node_grace,
            now,
        }
    }

    /// Like [`HubArgs::snapshot_reader`], for the Cilium back end.
    pub(crate) fn examiner(
        &self,
        hub: kube::Client,
        hub_uid: String,
        cilium_namespace: String,
        clock: &Clock,
    ) -> Examiner {
        let (connect, dialler) = (Arc::new(self.network()), Arc::new(self.dialler(clock)));
        let (allowed, deadline, now) =
            (self.members.allowed(), self.timeouts().answer, clock.now());
        Examiner {
            hub,
            hub_uid,
            connect,
            dialler,
            allowed,
            deadline,
            cilium_namespace,
            now,
        }
    }

    /// The kubeconfig flags for printed kubectl commands on the management plane.
    pub(crate) fn management_kubectl(&self) -> Kubectl {
        let kubeconfig = self
            .mgmt_kubeconfig
            .as_ref()
            .map(|path| path.display().to_string());
        Kubectl {
            kubeconfig,
            context: None,
        }
    }

    /// The kubeconfig flags for printed kubectl commands.
    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl {
            kubeconfig: self
                .kubeconfig
                .as_ref()
                .map(|path| path.display().to_string()),
            context: self.context.clone(),
        }
    }
}

/// Runs to completion. A hanging DNS lookup does not keep the process alive.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Plan of the selected meshes, and the current Peers. Orphans are included only if `all` is set.
pub(crate) fn planned(snapshot: Snapshot, all: bool) -> (Plan, Fleet) {
    let Snapshot {
        world,
        asked,
        mut objects,
        misread,
        limited_to: _,
        finalized: _,
    } = snapshot;
    let mut fleet = Fleet::new();
    for (id, seen) in &world.clusters {
        let peers = seen.peers.known().cloned().unwrap_or_default();
        fleet.insert(
            id.to_string(),
            Dump::of(peers, objects.remove(id).unwrap_or_default()),
        );
    }
    let mut plan = mw_core::kilo::plan(world);
    plan.meshes.retain(|id, _| asked.contains(id));
    if !all {
        plan.orphans.clear();
        plan.problems.clear();
    }
    let unreadable = |why: &String| {
        vec![Problem::new(
            Reason::InvalidSpec,
            "spec",
            format!("can't be read: {why}"),
            "",
        )]
    };
    let wrong: BTreeMap<&MeshId, Vec<Problem>> = misread
        .iter()
        .map(|(id, why)| (id, unreadable(why)))
        .collect();
    (
        super::plan::correct(
            plan,
            wrong
                .iter()
                .map(|(id, problems)| (*id, problems.as_slice())),
        ),
        fleet,
    )
}
