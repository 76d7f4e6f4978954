//! `meshwright status`

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use mw_controller::cilium::{Endpoints, PublishedObject, WorkspaceExaminer, is_workspace};
use mw_controller::clock::Clock;
use mw_controller::install::read_hub_uid;
use mw_controller::kilo::PublishedMesh;
use mw_controller::published_status::{
    Interest, Published, PublishedStatus, Watching, is_served, published_status,
};
use mw_core::kilo::view::MeshView;
use mw_core::names::MeshId;
use mw_core::text::printable;

use crate::commands::live::{
    Circumstances, HubArgs, NODE_GRACE, PROVIDER_FLAGS, block_on, planned,
};
use crate::exit_code::Answer;
use crate::output::cilium::Views;
use crate::output::cilium::status::verdict;
use crate::output::kilo::status::Overview;
use crate::output::presence::Verdict;
use crate::output::{self, Format, State};

/// Show the status of meshes, as last written by the operator or the provider.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Show only this ClusterMesh, ClusterMeshBinding, GlobalService or ConnectivityIntent
    /// [default: all in the namespace].
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// Also read the member clusters, with the kubeconfigs of their Secrets; writes nothing.
    #[arg(long, conflicts_with = "watch")]
    live: bool,

    /// Print again on every change, until interrupted.
    #[arg(short, long)]
    watch: bool,

    /// Print the result in this format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

const NOTES: &str = "\
Shows the kinds that are installed on the hub: ClusterMeshes, and those of the Cilium back end,
also in a tenant's kcp workspace. This needs read access on the hub only: to these kinds, and to
the Lease of the operator or provider. With --live, also to the kubeconfig Secrets, and the
clusters must be reachable from here.

In the provider's kcp workspace, every endpoint URL of the APIExport is queried for its tenants.
An endpoint that does not answer is Degraded: its tenants get no updates. --watch skips this
query.

With the provider's --kcp-kubeconfig and --mgmt-kubeconfig, the objects of a tenant's workspace are
read as the provider reads them, and --live works there too.

A status of the Cilium back end counts as ready only while a provider maintains it: one that
renews its Lease, or one that wrote the status within the last 15 minutes.

Exit codes: 0 everything is ready; 1 something is not ready, or --live finds a problem; 2 error.";

/// Default of the provider's --cilium-namespace.
const CILIUM_NAMESPACE: &str = "kube-system";

pub(crate) fn run(args: &Args) -> Result<Answer> {
    block_on(async {
        let (hub, namespace) = args.hub.hub().await?;
        let interest = args.hub.interest(args.name.as_deref(), &namespace);
        let served = Served {
            // kcp refuses discovery of a group that it does not serve.
            kilo: !args.hub.reads_as_provider()
                && is_served::<PublishedMesh>(&hub)
                    .await
                    .context("cannot read the API resources of the hub")?,
            cilium: is_served::<PublishedObject>(&hub)
                .await
                .context("cannot read the API resources of the hub")?,
        };
        let endpoints = if args.watch {
            None
        } else {
            endpoints(args, &hub).await?
        };
        if !served.kilo && !served.cilium && endpoints.is_none() {
            bail!(
                "no meshwright CRD is installed on this cluster (404): is it the hub? install the CRDs with `meshwright crd`"
            );
        }
        match args.watch {
            true => watch(args, &hub, &interest, served).await,
            false => once(args, hub, &interest, served, endpoints).await,
        }
    })
}

/// Back ends whose CRDs are installed on the hub.
#[derive(Debug, Clone, Copy)]
struct Served {
    kilo: bool,
    cilium: bool,
}

#[derive(Debug, Default)]
struct PublishedStatuses {
    kilo: Option<PublishedStatus<PublishedMesh>>,
    cilium: Option<PublishedStatus<PublishedObject>>,
    /// Endpoints of the APIExport, if the hub is its workspace.
    endpoints: Option<Endpoints>,
}

/// Queries the endpoints of the APIExport, if the hub is a kcp workspace that lists them.
async fn endpoints(args: &Args, hub: &kube::Client) -> Result<Option<Endpoints>> {
    if args.hub.reads_as_provider() || !is_workspace(hub).await.unwrap_or(false) {
        return Ok(None);
    }
    let (portal, timeouts) = (args.hub.portal().await?, args.hub.timeouts());
    let examiner = WorkspaceExaminer {
        portal,
        export: args.hub.kcp.api_export_name.clone(),
        timeouts,
    };
    examiner
        .endpoints(hub)
        .await
        .context("cannot list the APIExportEndpointSlices of this workspace")
}

async fn once(
    args: &Args,
    hub: kube::Client,
    interest: &Interest,
    served: Served,
    endpoints: Option<Endpoints>,
) -> Result<Answer> {
    let clock = Clock::system();
    let mut statuses = PublishedStatuses {
        endpoints,
        ..PublishedStatuses::default()
    };
    if served.kilo {
        statuses.kilo = Some(published_status(&hub, interest, &clock).await?);
    }
    if served.cilium {
        statuses.cilium = Some(published_status(&hub, interest, &clock).await?);
    }
    if let (Interest::Mesh(MeshId { namespace, name }), true) = (interest, statuses.are_empty()) {
        bail!("no {} {name} in namespace {namespace}", served.kinds());
    }
    statuses.say_if_none(interest);
    let has_meshes = statuses
        .kilo
        .as_ref()
        .is_some_and(|published_status| !published_status.objects.is_empty());
    let has_bindings = statuses
        .cilium
        .as_ref()
        .is_some_and(|published_status| !published_status.objects.is_empty());
    let seen = match args.live && has_bindings {
        true => live_views(args, &hub, interest, &clock).await?,
        false => Views::new(),
    };
    let views = match args.live && has_meshes {
        true => {
            let under = Circumstances {
                hub_uid: None,
                node_grace: NODE_GRACE,
                now: clock.now(),
            };
            let (plan, _) = planned(args.hub.snapshot(hub, interest, under).await?, false);
            plan.meshes
                .iter()
                .map(|(id, mesh)| (id.clone(), MeshView::of(id, mesh)))
                .collect()
        }
        false => BTreeMap::new(),
    };
    output::write_status(&statuses.state(&views, &seen), args.output)?;
    Ok(statuses.answer(&views, &seen))
}

/// Reads the clusters of the bindings and plans them.
async fn live_views(
    args: &Args,
    hub: &kube::Client,
    interest: &Interest,
    clock: &Clock,
) -> Result<Views> {
    if let Some(seen) = args
        .hub
        .survey_as_provider(interest, CILIUM_NAMESPACE)
        .await?
    {
        return Ok(output::cilium::views(&seen.plan));
    }
    if is_workspace(hub).await.unwrap_or(false) {
        bail!(
            "--live needs credentials of the clusters, which a kcp workspace does not hold; only the provider has them: pass \
             {PROVIDER_FLAGS}"
        );
    }
    let hub_uid = read_hub_uid(hub)
        .await
        .context("cannot read Namespace kube-system of the hub")?;
    let examiner = args
        .hub
        .examiner(hub.clone(), hub_uid, CILIUM_NAMESPACE.to_owned(), clock);
    let seen = examiner
        .survey(interest)
        .await
        .context("cannot read the objects of the Cilium back end")?;
    Ok(output::cilium::views(&seen.plan))
}

/// Prints on every change, until an interrupt or a closed pipe ends the process.
async fn watch(
    args: &Args,
    hub: &kube::Client,
    interest: &Interest,
    served: Served,
) -> Result<Answer> {
    let mut kilo = follow::<PublishedMesh>(hub, interest, served.kilo).await;
    let mut cilium = follow::<PublishedObject>(hub, interest, served.cilium).await;
    let (mut statuses, views, seen, mut first) = (
        PublishedStatuses::default(),
        BTreeMap::new(),
        Views::new(),
        true,
    );
    loop {
        tokio::select! {
            biased;
            Some(news) = next(&mut kilo) => statuses.kilo = Some(news),
            Some(news) = next(&mut cilium) => statuses.cilium = Some(news),
            else => bail!("nothing to watch"),
        }
        if statuses.kilo.is_some() != served.kilo || statuses.cilium.is_some() != served.cilium {
            continue;
        }
        if first {
            check_first(statuses.kilo.as_ref())?;
            check_first(statuses.cilium.as_ref())?;
        }
        separate(args.output, std::mem::take(&mut first))?;
        statuses.say_if_none(interest);
        if !output::write_status(&statuses.state(&views, &seen), args.output)? {
            return Ok(statuses.answer(&views, &seen));
        }
    }
}

async fn follow<T: Published>(
    hub: &kube::Client,
    interest: &Interest,
    served: bool,
) -> Option<Watching<T>> {
    match served {
        true => Some(Watching::start(hub, interest, Clock::system(), fastrand::Rng::new()).await),
        false => None,
    }
}

async fn next<T: Published>(watching: &mut Option<Watching<T>>) -> Option<PublishedStatus<T>> {
    match watching {
        Some(watching) => Some(watching.next().await),
        None => None,
    }
}

/// Fails if the first list or watch fails, instead of waiting for a retry.
fn check_first<T: Published>(published_status: Option<&PublishedStatus<T>>) -> Result<()> {
    match published_status.and_then(|published_status| {
        Some((
            published_status.objects.is_empty(),
            published_status.trouble.as_ref()?,
        ))
    }) {
        Some((true, trouble)) => bail!("cannot watch {}: {trouble}", T::PLURAL),
        _ => Ok(()),
    }
}

/// Clears a terminal; elsewhere separates one state from the next.
fn separate(format: Format, first: bool) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    match (format, terminal, first) {
        (Format::Table, true, _) => output::write_stdout(b"\x1b[H\x1b[2J\x1b[3J"),
        (Format::Table, false, false) => output::write_stdout(b"\n"),
        (Format::Yaml, _, false) => output::write_stdout(b"---\n"),
        _ => Ok(()),
    }
}

impl Served {
    /// Singular names of the installed kinds, for messages.
    fn kinds(self) -> &'static str {
        match (self.kilo, self.cilium) {
            (true, false) => "ClusterMesh",
            (false, _) => "ClusterMeshBinding, GlobalService or ConnectivityIntent",
            (true, true) => "ClusterMesh, ClusterMeshBinding, GlobalService or ConnectivityIntent",
        }
    }
}

impl PublishedStatuses {
    fn served(&self) -> Served {
        Served {
            kilo: self.kilo.is_some(),
            cilium: self.cilium.is_some(),
        }
    }

    fn are_empty(&self) -> bool {
        self.kilo
            .iter()
            .all(|published_status| published_status.objects.is_empty())
            && self
                .cilium
                .iter()
                .all(|published_status| published_status.objects.is_empty())
    }

    fn state<'a>(&'a self, views: &'a BTreeMap<MeshId, MeshView>, seen: &'a Views) -> State<'a> {
        let cilium = self
            .cilium
            .as_ref()
            .map(|published_status| output::cilium::Overview {
                published_status,
                views: seen,
            });
        State {
            kilo: self.kilo.as_ref().map(|published_status| Overview {
                published_status,
                views,
            }),
            cilium,
            endpoints: self.endpoints.as_ref(),
        }
    }

    fn say_if_none(&self, interest: &Interest) {
        let Served { kilo, cilium } = self.served();
        if self.are_empty() && (kilo || cilium) {
            let place = interest.namespace().map_or_else(
                || "on this hub".to_owned(),
                |namespace| format!("in namespace {namespace}"),
            );
            // A closed stderr must not change the result.
            _ = writeln!(
                anstream::stderr(),
                "note: no {} {}",
                self.served().kinds(),
                printable(&place, 100)
            );
        }
    }

    fn answer(&self, views: &BTreeMap<MeshId, MeshView>, seen: &Views) -> Answer {
        let otherwise = |id: &MeshId| {
            views
                .get(id)
                .and_then(|view| view.ready.as_ref())
                .is_some_and(|ready| !ready.status)
        };
        let mut kilo = self
            .kilo
            .iter()
            .flat_map(|published_status| &published_status.objects);
        let mut cilium = self.cilium.iter().flat_map(|published_status| {
            published_status
                .objects
                .iter()
                .map(move |object| (published_status, object))
        });
        let all = kilo.all(|mesh| Verdict::of(mesh).ready && !otherwise(&mesh.id))
            && cilium.all(|(published_status, object)| verdict(published_status, object).ready)
            && seen.values().all(|view| view.ready)
            && self
                .endpoints
                .iter()
                .flatten()
                .all(|(_, tenants)| tenants.is_ok());
        if all { Answer::Yes } else { Answer::No }
    }
}
