//! `meshwright demo`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use mw_core::text::printable;
use mw_operator::clock::Clock;
use mw_operator::glance::{Glance, Interest, Watching, glance};
use mw_operator::kilo::MeshGlance;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::answer::Answer;
use crate::commands::live::block_on;
use crate::demo::fleet::Fleet;
use crate::demo::story::{Ending, Line, Pace, Story};
use crate::demo::view::{Screen, heading, lines};
use crate::output::status::{self, Overview};
use crate::output::{self, Format, State};

/// Show it at work: simulated clusters in this process, and the real operator on them.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Run until the mesh is ready, print it and end.
    #[arg(long)]
    once: bool,

    /// How many clusters there are, from 2 to 199.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=199))]
    clusters: u8,

    /// How many nodes each cluster has, from 1 to 200.
    #[arg(long, value_name = "M", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=200))]
    nodes: u8,

    /// How to print what --once came to.
    #[arg(short, long, value_enum, default_value_t, requires = "once")]
    output: Format,
}

const NOTES: &str = "\
Nothing is contacted and nothing is kept: the API servers are simulated, in memory, with the roles that
are shipped. On a terminal it plays a story and stays until Ctrl-C; into a pipe it tells the story and ends.

Exit codes: 0 fine; 1 a step did not come to its end in time, which is then said; 2 could not be done.";

/// A fleet of more than these is for large machines.
const MANY_PEERS: usize = 1_000_000;
/// On both sides: in the simulated servers and in the operator.
const BYTES_PER_PEER: usize = 8_000;
const HOW_IT_ENDS: &str = "Ctrl-C ends it";
/// How often ages are drawn anew.
const TICK: Duration = Duration::from_secs(1);
/// Changes that come together are drawn together.
const AT_ONCE: Duration = Duration::from_millis(40);

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let ended = block_on(async { Ok(show(args).await) })?;
    match ended {
        Ok(()) | Err(Ending::Unread) => Ok(Answer::Yes),
        Err(Ending::Failed(wrong)) => Err(wrong),
        Err(Ending::Stuck(why)) => {
            // A closed stderr is no reason to answer otherwise.
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
        // A closed stderr is no reason not to start.
        _ = writeln!(anstream::stderr(), "note: {} Peers take about {memory} GB of memory, and long", fleet.peers());
    }
    match std::io::stdout().is_terminal() && !is_dumb {
        _ if args.once => once(args.output, &mut fleet).await,
        true => live(&mut fleet).await,
        false => tell(&mut fleet).await,
    }
}

/// To convergence, and no story.
async fn once(format: Format, fleet: &mut Fleet) -> Result<(), Ending> {
    let said = |_: &Line| Ok(true);
    let took = Story { fleet, pace: Pace::brisk(), tell: &said }.converges().await?;
    let glance = look(fleet).await?;
    if format == Format::Table {
        let sum = lines(&[Line::of(fleet.one_mesh(), format!("{took}, {} requests", fleet.counts().requests))]);
        output::write_styled(&format!("{}\n{sum}\n", heading(fleet)))?;
    }
    let views = BTreeMap::new();
    let kilo = Some(Overview { glance: &glance, views: &views });
    output::write_status(&State { kilo, ..State::default() }, format)?;
    Ok(())
}

/// One line for each step, then how it is in the end.
async fn tell(fleet: &mut Fleet) -> Result<(), Ending> {
    output::write_styled(&format!("{}\n", heading(fleet)))?;
    let said = |line: &Line| match line.effect {
        Some(_) => output::write_styled(&lines(std::slice::from_ref(line))),
        None => Ok(true),
    };
    let mut story = Story { fleet, pace: Pace::brisk(), tell: &said };
    story.play().await?;
    story.rests(Duration::from_secs(2)).await?;
    let glance = look(fleet).await?;
    let end = status::text(&Overview { glance: &glance, views: &BTreeMap::new() });
    output::write_styled(&format!("\n{end}"))?;
    Ok(())
}

async fn look(fleet: &Fleet) -> Result<Glance<MeshGlance>, Ending> {
    let (viewer, interest) = fleet.viewer();
    Ok(glance(&viewer, &interest, &fleet.clock).await.map_err(anyhow::Error::from)?)
}

/// The story above the state of the mesh, drawn in place, until it is
/// interrupted.
async fn live(fleet: &mut Fleet) -> Result<(), Ending> {
    let title = heading(fleet);
    let (viewer, interest) = fleet.viewer();
    let mut watching = Watching::start(&viewer, &interest, fleet.clock.clone(), fastrand::Rng::new()).await;
    let mut screen = Screen::open()?;
    let (told, changed, clock) = (RefCell::new(Vec::<Line>::new()), Notify::new(), fleet.clock.clone());
    let said = |line: &Line| {
        let mut told = told.borrow_mut();
        // What a step came to takes the place of what was said of it.
        if told.last().is_some_and(|last| last.cause == line.cause) {
            told.pop();
        }
        told.push(line.clone());
        changed.notify_one();
        Ok(true)
    };
    let mut story = pin!(async {
        let mut story = Story { fleet, pace: Pace::human(), tell: &said };
        story.play().await?;
        story.rests(Duration::MAX).await
    });
    // Nobody tells of a Lease that is renewed, or of time that goes by.
    let mut again = pin!(later(&viewer, &interest, &clock));
    let mut seen: Option<Glance<MeshGlance>> = None;
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
        let state = seen.as_ref().map(|glance| status::text(&Overview { glance, views: &BTreeMap::new() }));
        let text = format!("{title}\n{}\n{}\n{HOW_IT_ENDS}", lines(&told.borrow()), state.unwrap_or_default());
        screen.draw(&text)?;
        tokio::select! {
            biased;
            ended = &mut story => return ended,
            () = sleep(AT_ONCE) => {}
        }
    }
}

async fn later(viewer: &kube::Client, interest: &Interest, clock: &Clock) -> Option<Glance<MeshGlance>> {
    sleep(TICK).await;
    glance(viewer, interest, clock).await.ok()
}
