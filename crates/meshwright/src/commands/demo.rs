//! `meshwright demo`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use mw_controller::clock::Clock;
use mw_controller::kilo::PublishedMesh;
use mw_controller::published_status::{Interest, PublishedStatus, Watching, published_status};
use mw_core::text::printable;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::commands::live::block_on;
use crate::demo::fleet::Fleet;
use crate::demo::story::{Ending, Line, Pace, Story};
use crate::demo::view::{Screen, heading, lines};
use crate::exit_code::Answer;
use crate::output::kilo::status::{self, Overview};
use crate::output::{self, Format, State};

/// Run the real operator on simulated clusters, all in this process.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Wait until the mesh is ready, print its status and exit.
    #[arg(long)]
    once: bool,

    /// Simulate this many clusters, 2 to 199.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=199))]
    clusters: u8,

    /// Simulate this many nodes per cluster, 1 to 200.
    #[arg(long, value_name = "M", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=200))]
    nodes: u8,

    /// Print the result of --once in this format.
    #[arg(short, long, value_enum, default_value_t, requires = "once")]
    output: Format,
}

const NOTES: &str = "\
The demo contacts nothing and stores nothing: the API servers are simulated in memory, with the
shipped RBAC roles. On a terminal it plays a sequence of steps and runs until Ctrl-C; in a pipe it
prints them and exits.

Exit codes: 0 success; 1 a step timed out; 2 error.";

/// Fleets with more Peers than this print a memory warning.
const MANY_PEERS: usize = 1_000_000;
/// Measured for the simulated servers and the operator together.
const BYTES_PER_PEER: usize = 8_000;
const HOW_IT_ENDS: &str = "press Ctrl-C to quit";
/// Interval at which ages are redrawn.
const TICK: Duration = Duration::from_secs(1);
/// Changes within this time are drawn together.
const AT_ONCE: Duration = Duration::from_millis(40);

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let ended = block_on(async { Ok(show(args).await) })?;
    match ended {
        Ok(()) | Err(Ending::Unread) => Ok(Answer::Yes),
        Err(Ending::Failed(wrong)) => Err(wrong),
        Err(Ending::Stuck(why)) => {
            // A closed stderr must not change the exit code.
            _ = writeln!(anstream::stderr(), "error: {}", printable(&why, 2000));
            Ok(Answer::No)
        }
    }
}

async fn show(args: &Args) -> Result<(), Ending> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let mut fleet = Fleet::new(args.clusters, args.nodes, Clock::system())?;
    if fleet.peers() > MANY_PEERS {
        let memory = fleet.peers() * BYTES_PER_PEER / 1_000_000_000;
        // A closed stderr must not stop the demo.
        _ = writeln!(
            anstream::stderr(),
            "note: {} Peers need about {memory} GB of memory and take a long time",
            fleet.peers()
        );
    }
    match std::io::stdout().is_terminal() && !is_dumb {
        _ if args.once => once(args.output, &mut fleet).await,
        true => live(&mut fleet).await,
        false => tell(&mut fleet).await,
    }
}

/// Runs until the mesh is ready, without the other steps.
async fn once(format: Format, fleet: &mut Fleet) -> Result<(), Ending> {
    let said = |_: &Line| Ok(true);
    let took = Story {
        fleet,
        pace: Pace::brisk(),
        tell: &said,
    }
    .converges()
    .await?;
    let published_status = snapshot(fleet).await?;
    if format == Format::Table {
        let sum = lines(&[Line::of(
            fleet.one_mesh(),
            format!("{took}, {} requests", fleet.counts().requests),
        )]);
        output::write_styled(&format!("{}\n{sum}\n", heading(fleet)))?;
    }
    let views = BTreeMap::new();
    let kilo = Some(Overview {
        published_status: &published_status,
        views: &views,
    });
    output::write_status(
        &State {
            kilo,
            ..State::default()
        },
        format,
    )?;
    Ok(())
}

/// Prints one line per step, then the final status.
async fn tell(fleet: &mut Fleet) -> Result<(), Ending> {
    output::write_styled(&format!("{}\n", heading(fleet)))?;
    let said = |line: &Line| match line.effect {
        Some(_) => output::write_styled(&lines(std::slice::from_ref(line))),
        None => Ok(true),
    };
    let mut story = Story {
        fleet,
        pace: Pace::brisk(),
        tell: &said,
    };
    story.play().await?;
    story.rests(Duration::from_secs(2)).await?;
    let published_status = snapshot(fleet).await?;
    let end = status::text(&Overview {
        published_status: &published_status,
        views: &BTreeMap::new(),
    });
    output::write_styled(&format!("\n{end}"))?;
    Ok(())
}

async fn snapshot(fleet: &Fleet) -> Result<PublishedStatus<PublishedMesh>, Ending> {
    let (viewer, interest) = fleet.viewer();
    Ok(published_status(&viewer, &interest, &fleet.clock)
        .await
        .map_err(anyhow::Error::from)?)
}

/// Redraws the steps and the mesh status in place, until interrupted.
async fn live(fleet: &mut Fleet) -> Result<(), Ending> {
    let title = heading(fleet);
    let (viewer, interest) = fleet.viewer();
    let mut watching = Watching::start(
        &viewer,
        &interest,
        fleet.clock.clone(),
        fastrand::Rng::new(),
    )
    .await;
    let mut screen = Screen::open()?;
    let (told, changed, clock) = (
        RefCell::new(Vec::<Line>::new()),
        Notify::new(),
        fleet.clock.clone(),
    );
    let said = |line: &Line| {
        let mut told = told.borrow_mut();
        // The result of a step replaces the line that announced it.
        if told.last().is_some_and(|last| last.cause == line.cause) {
            told.pop();
        }
        told.push(line.clone());
        changed.notify_one();
        Ok(true)
    };
    let mut story = pin!(async {
        let mut story = Story {
            fleet,
            pace: Pace::human(),
            tell: &said,
        };
        story.play().await?;
        story.rests(Duration::MAX).await
    });
    // Lease renewals and passing time trigger no watch event.
    let mut again = pin!(later(&viewer, &interest, &clock));
    let mut seen: Option<PublishedStatus<PublishedMesh>> = None;
    loop {
        tokio::select! {
            biased;
            ended = &mut story => return ended,
            news = watching.next() => seen = Some(news),
            () = changed.notified() => {}
            now = &mut again => {
                seen = now.or(seen);
                again.set(later(&viewer, &interest, &clock));
            }
        }
        let state = seen.as_ref().map(|published_status| {
            status::text(&Overview {
                published_status,
                views: &BTreeMap::new(),
            })
        });
        let text = format!(
            "{title}\n{}\n{}\n{HOW_IT_ENDS}",
            lines(&told.borrow()),
            state.unwrap_or_default()
        );
        screen.draw(&text)?;
        tokio::select! {
            biased;
            ended = &mut story => return ended,
            () = sleep(AT_ONCE) => {}
        }
    }
}

async fn later(
    viewer: &kube::Client,
    interest: &Interest,
    clock: &Clock,
) -> Option<PublishedStatus<PublishedMesh>> {
    sleep(TICK).await;
    published_status(viewer, interest, clock).await.ok()
}
