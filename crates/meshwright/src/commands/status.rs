//! `meshwright status`

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use mw_core::kilo::view::MeshView;
use mw_core::names::MeshId;
use mw_core::text::printable;
use mw_operator::cilium::ObjectGlance;
use mw_operator::clock::Clock;
use mw_operator::glance::{Glance, Glanced, Interest, Watching, glance, is_served};
use mw_operator::kilo::MeshGlance;

use crate::answer::Answer;
use crate::commands::live::{Circumstances, HubArgs, NODE_GRACE, block_on, planned};
use crate::output::cilium::status::verdict;
use crate::output::presence::Verdict;
use crate::output::status::Overview;
use crate::output::{self, Format, State};

/// Show the state of meshes at a glance, as the operator or the provider last wrote it.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Name of a ClusterMesh, ClusterMeshBinding, GlobalService or ConnectivityIntent; without it
    /// all of the namespace.
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// Look into the clusters of a ClusterMesh as well, with the kubeconfigs of their Secrets.
    /// Nothing is written.
    #[arg(long, conflicts_with = "watch")]
    live: bool,

    /// Show it again at every change, until it is interrupted.
    #[arg(short, long)]
    watch: bool,

    /// How to print it.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

const NOTES: &str = "\
The kinds that the hub has are shown: ClusterMeshes, and those of the Cilium back end, also in a
tenant's workspace of kcp. That needs rights on the hub alone: these kinds, and the Lease of whoever
writes their status. With --live also those for the kubeconfig Secrets, and the clusters must be
reachable from here.

A status of the Cilium back end counts as ready only while somebody keeps it: a provider that renews
its Lease, or else one that wrote it within the last 15 minutes.

Exit codes: 0 all is ready; 1 something is not, or --live finds it otherwise; 2 could not be read.";

pub(crate) fn run(args: &Args) -> Result<Answer> {
    block_on(async {
        let (hub, namespace) = args.hub.hub().await?;
        let interest = args.hub.interest(args.name.as_deref(), &namespace);
        let served = Served {
            kilo: is_served::<MeshGlance>(&hub).await.context("the hub's resources can't be read")?,
            cilium: is_served::<ObjectGlance>(&hub).await.context("the hub's resources can't be read")?,
        };
        if !served.kilo && !served.cilium {
            bail!("the hub has no resource of meshwright's (404): is this the hub, and was meshwright installed there?");
        }
        match args.watch {
            true => watch(args, &hub, &interest, served).await,
            false => once(args, hub, &interest, served).await,
        }
    })
}

/// The back ends whose kinds the hub has.
#[derive(Debug, Clone, Copy)]
struct Served {
    kilo: bool,
    cilium: bool,
}

#[derive(Debug, Default)]
struct Glances {
    kilo: Option<Glance<MeshGlance>>,
    cilium: Option<Glance<ObjectGlance>>,
}

async fn once(args: &Args, hub: kube::Client, interest: &Interest, served: Served) -> Result<Answer> {
    let clock = Clock::system();
    let mut glances = Glances::default();
    if served.kilo {
        glances.kilo = Some(glance(&hub, interest, &clock).await?);
    }
    if served.cilium {
        glances.cilium = Some(glance(&hub, interest, &clock).await?);
    }
    if let (Interest::Mesh(MeshId { namespace, name }), true) = (interest, glances.are_empty()) {
        bail!("there is no {} {name} in namespace {namespace}", served.kinds());
    }
    glances.say_if_none(interest);
    let has_meshes = glances.kilo.as_ref().is_some_and(|glance| !glance.objects.is_empty());
    let views = match args.live && has_meshes {
        true => {
            let under = Circumstances { hub_uid: None, node_grace: NODE_GRACE, now: clock.now() };
            let (plan, _) = planned(args.hub.look(hub, interest, under).await?, false);
            plan.meshes.iter().map(|(id, mesh)| (id.clone(), MeshView::of(id, mesh))).collect()
        }
        false => BTreeMap::new(),
    };
    output::write_status(&glances.state(&views), args.output)?;
    Ok(glances.answer(&views))
}

/// An interrupt ends the process as any other; whoever closes the pipe ends it
/// as well.
async fn watch(args: &Args, hub: &kube::Client, interest: &Interest, served: Served) -> Result<Answer> {
    let mut kilo = follow::<MeshGlance>(hub, interest, served.kilo).await;
    let mut cilium = follow::<ObjectGlance>(hub, interest, served.cilium).await;
    let (mut glances, views, mut first) = (Glances::default(), BTreeMap::new(), true);
    loop {
        tokio::select! {
            biased;
            Some(news) = next(&mut kilo) => glances.kilo = Some(news),
            Some(news) = next(&mut cilium) => glances.cilium = Some(news),
            else => bail!("nothing can be followed"),
        }
        if glances.kilo.is_some() != served.kilo || glances.cilium.is_some() != served.cilium {
            continue;
        }
        if first {
            check_first(glances.kilo.as_ref())?;
            check_first(glances.cilium.as_ref())?;
        }
        separate(args.output, std::mem::take(&mut first))?;
        glances.say_if_none(interest);
        if !output::write_status(&glances.state(&views), args.output)? {
            return Ok(glances.answer(&views));
        }
    }
}

async fn follow<T: Glanced>(hub: &kube::Client, interest: &Interest, served: bool) -> Option<Watching<T>> {
    match served {
        true => Some(Watching::start(hub, interest, Clock::system(), fastrand::Rng::new()).await),
        false => None,
    }
}

async fn next<T: Glanced>(watching: &mut Option<Watching<T>>) -> Option<Glance<T>> {
    match watching {
        Some(watching) => Some(watching.next().await),
        None => None,
    }
}

/// What can't be followed from the beginning is not waited for.
fn check_first<T: Glanced>(glance: Option<&Glance<T>>) -> Result<()> {
    match glance.and_then(|glance| Some((glance.objects.is_empty(), glance.trouble.as_ref()?))) {
        Some((true, trouble)) => bail!("the {} can't be followed: {trouble}", T::PLURAL),
        _ => Ok(()),
    }
}

/// A terminal is drawn anew; elsewhere one state follows the other.
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
    /// One object of what is there.
    fn kinds(self) -> &'static str {
        match (self.kilo, self.cilium) {
            (true, false) => "ClusterMesh",
            (false, _) => "ClusterMeshBinding, GlobalService or ConnectivityIntent",
            (true, true) => "ClusterMesh, ClusterMeshBinding, GlobalService or ConnectivityIntent",
        }
    }
}

impl Glances {
    fn served(&self) -> Served {
        Served { kilo: self.kilo.is_some(), cilium: self.cilium.is_some() }
    }

    fn are_empty(&self) -> bool {
        self.kilo.iter().all(|glance| glance.objects.is_empty()) && self.cilium.iter().all(|glance| glance.objects.is_empty())
    }

    fn state<'a>(&'a self, views: &'a BTreeMap<MeshId, MeshView>) -> State<'a> {
        State { kilo: self.kilo.as_ref().map(|glance| Overview { glance, views }), cilium: self.cilium.as_ref() }
    }

    fn say_if_none(&self, interest: &Interest) {
        if self.are_empty() {
            let place = interest.namespace().map_or_else(|| "on this hub".to_owned(), |namespace| format!("in namespace {namespace}"));
            // A closed stderr is no reason not to answer.
            _ = writeln!(anstream::stderr(), "note: there is no {} {}", self.served().kinds(), printable(&place, 100));
        }
    }

    fn answer(&self, views: &BTreeMap<MeshId, MeshView>) -> Answer {
        let otherwise = |id: &MeshId| views.get(id).and_then(|view| view.ready.as_ref()).is_some_and(|ready| !ready.status);
        let mut kilo = self.kilo.iter().flat_map(|glance| &glance.objects);
        let mut cilium = self.cilium.iter().flat_map(|glance| glance.objects.iter().map(move |object| (glance, object)));
        let all = kilo.all(|mesh| Verdict::of(mesh).ready && !otherwise(&mesh.id))
            && cilium.all(|(glance, object)| verdict(glance, object).ready);
        if all { Answer::Yes } else { Answer::No }
    }
}
