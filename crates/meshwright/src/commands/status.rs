//! `meshwright status`

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use mw_core::kilo::view::MeshView;
use mw_core::names::MeshId;
use mw_operator::clock::Clock;
use mw_operator::kilo::{Glance, Interest, Watching, glance};

use crate::answer::Answer;
use crate::commands::live::{Circumstances, HubArgs, block_on, planned};
use crate::output::status::{Overview, Verdict};
use crate::output::{self, Format};

/// Show the state of meshes at a glance, as the operator last wrote it.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Name of a ClusterMesh; without it all of the namespace.
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// Look into the clusters as well, with the kubeconfigs of their Secrets. Nothing is written.
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
The status needs rights on the hub alone: ClusterMeshes and the operator's Lease. With --live also
those for the kubeconfig Secrets, and the clusters must be reachable from here.

Exit codes: 0 every mesh is ready; 1 one is not, or --live finds it otherwise; 2 could not be read.";

/// As the operator's default.
const NODE_GRACE: Duration = Duration::from_secs(90);

pub(crate) fn run(args: &Args) -> Result<Answer> {
    block_on(async {
        let (hub, namespace) = args.hub.hub().await?;
        let interest = args.hub.interest(args.name.as_deref(), &namespace);
        match args.watch {
            true => watch(args, &hub, &interest).await,
            false => once(args, hub, &interest).await,
        }
    })
}

async fn once(args: &Args, hub: kube::Client, interest: &Interest) -> Result<Answer> {
    let clock = Clock::system();
    let glance = glance(&hub, interest, &clock).await?;
    say_if_none(&glance, interest);
    let views = match args.live && !glance.meshes.is_empty() {
        true => {
            let under = Circumstances { hub_uid: None, node_grace: NODE_GRACE, now: clock.now() };
            let (plan, _) = planned(args.hub.look(hub, interest, under).await?, false);
            plan.meshes.iter().map(|(id, mesh)| (id.clone(), MeshView::of(id, mesh))).collect()
        }
        false => BTreeMap::new(),
    };
    output::write_status(&Overview { glance: &glance, views: &views }, args.output)?;
    Ok(answer(&glance, &views))
}

/// An interrupt ends the process as any other; whoever closes the pipe ends it
/// as well.
async fn watch(args: &Args, hub: &kube::Client, interest: &Interest) -> Result<Answer> {
    let mut watching = Watching::start(hub, interest, Clock::system(), fastrand::Rng::new()).await;
    let mut first = true;
    loop {
        let glance = watching.next().await;
        if let (true, Some(trouble), true) = (first, &glance.trouble, glance.meshes.is_empty()) {
            bail!("the ClusterMeshes can't be followed: {trouble}");
        }
        separate(args.output, std::mem::take(&mut first))?;
        say_if_none(&glance, interest);
        let views = BTreeMap::new();
        if !output::write_status(&Overview { glance: &glance, views: &views }, args.output)? {
            return Ok(answer(&glance, &views));
        }
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

fn say_if_none(glance: &Glance, interest: &Interest) {
    if glance.meshes.is_empty() {
        let place = interest.namespace().map_or_else(|| "on this hub".to_owned(), |namespace| format!("in namespace {namespace}"));
        // A closed stderr is no reason not to answer.
        _ = writeln!(anstream::stderr(), "note: there is no ClusterMesh {}", mw_core::text::printable(&place, 100));
    }
}

fn answer(glance: &Glance, views: &BTreeMap<MeshId, MeshView>) -> Answer {
    let otherwise = |id: &MeshId| views.get(id).and_then(|view| view.ready.as_ref()).is_some_and(|ready| !ready.status);
    match glance.meshes.iter().all(|mesh| Verdict::of(mesh).ready && !otherwise(&mesh.id)) {
        true => Answer::Yes,
        false => Answer::No,
    }
}
