//! Nodes join, die and return in random order. Healthy nodes keep their Peers and lose at most one
//! ping in a row, which may be in flight while sessions are re-established. Pings are sent every
//! 200 ms; nodes have a keepalive of 5 s.
//!
//! `PACKETS_SEED=n` plays the sequence of one seed, `PACKETS_FIRST=m PACKETS_SEQUENCES=n` those of
//! n seeds starting at m (`make soak`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use mw_testbed::kilo::Granularity::{self, Full, Location};
use mw_testbed::net::{Flow, LATEST_ANSWER};

use crate::ground::{Ground, Layout, SITES, SPEED};
use crate::trials::trial;

const STEP: Duration = Duration::from_millis(200);
const KEEPALIVE: u16 = 5;
/// Pings until WireGuard retries a failed handshake: 5 s, and up to 333 ms.
const RETRY: usize = 27;
/// Pings sent later than this indicate a slow machine, not a fault of the mesh.
const TOO_LATE: Duration = Duration::from_millis(25);
/// Number of attempts on a machine that is too busy.
const ATTEMPTS: usize = 3;
/// Number of sequences that `make test` plays.
const SEQUENCES: u64 = 6;
/// Number of sequences played on one testbed.
const TOGETHER: usize = 3;
/// A cluster marks a silent node NotReady after 40 s of agent time.
const NOT_READY: Duration = Duration::from_secs(40 / SPEED as u64);
/// Numbers of nodes that join. Some sort before existing ones.
const NEWCOMERS: [u8; 6] = [10, 5, 11, 12, 6, 13];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    site: &'static str,
    at: u8,
}

impl Seat {
    fn node(self) -> String {
        format!("n{}", self.at)
    }

    /// Location of the node in the layout of the sequences.
    fn place(self) -> (&'static str, u8) {
        (self.site, self.at % LOCATIONS)
    }
}

const LOCATIONS: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happening {
    Joins,
    /// Its Node is deleted.
    Leaves,
    Unplugged,
    /// Its agent dies, its tunnels stay up.
    AgentKilled,
    Returns,
}

/// Something that happens to a node, and the pause after it.
#[derive(Debug, Clone, Copy)]
struct Event {
    who: Seat,
    what: Happening,
    pause: Duration,
}

/// A node dies and returns, another joins and leaves, the two interleaved.
fn draw(seed: u64) -> (Granularity, Vec<Event>) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let granularity = if seed % 2 == 1 { Full } else { Location };
    let mortal = Seat {
        site: SITES[dice.usize(0..SITES.len())],
        at: dice.u8(1..=nodes(granularity)),
    };
    let newcomer = Seat {
        site: SITES[dice.usize(0..SITES.len())],
        at: NEWCOMERS[(seed / 2) as usize % NEWCOMERS.len()],
    };
    let death = if dice.bool() {
        Happening::Unplugged
    } else {
        Happening::AgentKilled
    };
    let mut stories = [
        vec![(mortal, death), (mortal, Happening::Returns)],
        vec![(newcomer, Happening::Joins), (newcomer, Happening::Leaves)],
    ];
    let mut events = Vec::new();
    while let Some(at) = [dice.usize(0..2), 0, 1]
        .into_iter()
        .find(|at| !stories[*at].is_empty())
    {
        let (who, what) = stories[at].remove(0);
        // Some return before anybody detects it, some after all did.
        let pauses: &[u64] = if what == death { &[2, 8, 14] } else { &[2, 5] };
        let pause = Duration::from_secs(pauses[dice.usize(0..pauses.len())]);
        events.push(Event { who, what, pause });
    }
    (granularity, events)
}

/// Two segments in each cluster: every change makes all of them do handshakes with all others, and
/// one machine computes for all.
fn nodes(granularity: Granularity) -> u8 {
    match granularity {
        Full => 2,
        Location => 2 * LOCATIONS,
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let (first, count) = match number("PACKETS_SEED") {
        Some(seed) => (seed, 1),
        None => (
            number("PACKETS_FIRST").unwrap_or(1),
            number("PACKETS_SEQUENCES").unwrap_or(SEQUENCES),
        ),
    };
    let of = |granularity: Granularity| {
        (first..first + count)
            .filter(|seed| draw(*seed).0 == granularity)
            .collect::<Vec<_>>()
    };
    let groups: Vec<(Granularity, Vec<u64>)> = [Full, Location]
        .into_iter()
        .flat_map(|granularity| {
            of(granularity)
                .chunks(TOGETHER)
                .map(|seeds| (granularity, seeds.to_vec()))
                .collect::<Vec<_>>()
        })
        .collect();
    let name = |granularity: Granularity, seeds: &[u64]| {
        let seeds = seeds
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join("_");
        format!("sequences_{seeds}_cost_healthy_nodes_one_ping_in_{granularity:?}").to_lowercase()
    };
    groups
        .into_iter()
        .map(|(granularity, seeds)| {
            trial(name(granularity, &seeds), move || {
                sequences(granularity, seeds)
            })
        })
        .collect()
}

async fn sequences(granularity: Granularity, seeds: Vec<u64>) {
    let locations = if granularity == Location {
        LOCATIONS
    } else {
        1
    };
    let layout = Layout {
        nodes: nodes(granularity),
        granularity: [granularity; 3],
        keepalive: KEEPALIVE,
        locations,
        ..Layout::default()
    };
    let (mut ground, _operator) = Ground::running(layout).await;
    for seed in seeds {
        let (_, events) = draw(seed);
        eprintln!(
            "sequence {seed}, again with PACKETS_SEED={seed} cargo test -p meshwright --test packets -- sequences"
        );
        judge(&mut ground, granularity, seed, &events).await;
    }
    ground.fleet.finish().await;
}

/// A machine that sends pings late is also late with everything else, so the result says nothing
/// about the mesh: the sequence is played again.
async fn judge(ground: &mut Ground, granularity: Granularity, seed: u64, events: &[Event]) {
    for _ in 0..ATTEMPTS {
        let played = play(ground, granularity, events).await;
        ground.arrive(&ground.paths()).await;
        match played {
            Ok(wrong) => {
                return assert!(
                    wrong.is_empty(),
                    "sequence {seed} of {events:#?}\n{}",
                    wrong.join("\n")
                );
            }
            Err(late) => eprintln!("sequence {seed} says nothing: pings left {late:?} late"),
        }
    }
    panic!("sequence {seed}: the machine is too busy to judge, {ATTEMPTS} times in a row");
}

/// Pings between two nodes that exist from start to end.
struct Watched {
    ends: [Seat; 2],
    flow: Flow,
}

/// Effect of an event on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Not affected.
    Healthy,
    /// Another node becomes leader of the location of one of its ends.
    LedByAnother,
    /// The agent of its leader is dead, but its tunnels stay up until another node leads.
    LedBySilent,
    /// Its leader is dead, and nothing passes until another node leads.
    LedByDead,
    /// One of its ends dies, returns or is dead.
    Concerned,
}

impl Part {
    /// Maximum number of pings that may be lost in a row.
    fn most(self) -> usize {
        match self {
            Part::Healthy => 1,
            // One Peer is deleted and another created: both sides re-establish sessions twice at
            // about the same time, and a handshake may fail.
            Part::LedByAnother => RETRY + 1,
            // Kilo's next leader takes over up to one check-in before a second node's last-seen
            // shows that the first is silent.
            Part::LedBySilent => pings(30) + 1,
            // Silence of 60 s, plus a check and a check-in of 30 s each.
            Part::LedByDead => pings(120) + 1,
            Part::Concerned => usize::MAX,
        }
    }
}

/// Number of pings sent in this many agent seconds.
fn pings(seconds: u64) -> usize {
    (Duration::from_secs(seconds).as_millis() / u128::from(SPEED) / STEP.as_millis()) as usize
}

/// Present nodes, and which of them are dead.
struct Scene {
    granularity: Granularity,
    there: BTreeSet<Seat>,
    dead: BTreeMap<Seat, Happening>,
}

impl Scene {
    /// Effect of an event on a flow, after the event was applied.
    fn part(&self, ends: [Seat; 2], event: &Event) -> Part {
        let of_end = |end: Seat| {
            if end == event.who || self.dead.contains_key(&end) {
                return Part::Concerned;
            }
            let first = |among: &dyn Fn(&Seat) -> bool| {
                let of_place = self
                    .there
                    .iter()
                    .chain([&event.who])
                    .filter(|seat| seat.place() == end.place());
                of_place
                    .filter(|seat| among(seat))
                    .min_by_key(|seat| seat.node())
                    .copied()
            };
            let dead = first(&|_| true).and_then(|leader| self.dead.get(&leader));
            match (self.granularity, dead) {
                (Full, _) => Part::Healthy,
                (_, Some(Happening::AgentKilled)) => Part::LedBySilent,
                (_, Some(_)) => Part::LedByDead,
                _ if first(&|seat| !self.dead.contains_key(seat)) == Some(event.who) => {
                    Part::LedByAnother
                }
                _ => Part::Healthy,
            }
        };
        ends.map(of_end).into_iter().max().unwrap_or(Part::Healthy)
    }

    fn take(&mut self, event: &Event) {
        match event.what {
            Happening::Joins => _ = self.there.insert(event.who),
            Happening::Leaves => _ = self.there.remove(&event.who),
            Happening::Unplugged | Happening::AgentKilled => {
                _ = self.dead.insert(event.who, event.what)
            }
            Happening::Returns => _ = self.dead.remove(&event.who),
        }
    }
}

/// Plays events and returns the flows that lost more than allowed, or the delay of pings if that
/// was too long to judge.
async fn play(
    ground: &mut Ground,
    granularity: Granularity,
    events: &[Event],
) -> Result<Vec<String>, Duration> {
    let before = untouched(ground, granularity, events).await;
    let watched = watched(ground);
    let there = watched.iter().flat_map(|watched| watched.ends).collect();
    let mut scene = Scene {
        granularity,
        there,
        dead: BTreeMap::new(),
    };
    let mut windows = Vec::new();
    for event in events {
        let start = Instant::now();
        happen(ground, &scene, event).await;
        scene.take(event);
        let parts: Vec<Part> = watched
            .iter()
            .map(|watched| scene.part(watched.ends, event))
            .collect();
        pause(ground, event).await;
        windows.push((event, parts, start, Instant::now()));
    }
    tokio::time::sleep(LATEST_ANSWER).await;
    let (mut wrong, mut late) = (Vec::new(), Duration::ZERO);
    let after = untouched(ground, granularity, events).await;
    wrong.extend(
        before
            .difference(&after)
            .map(|peer| format!("the Peer of a healthy node was deleted: {peer:?}")),
    );
    for (event, parts, start, end) in windows {
        let mut worst: BTreeMap<Part, (usize, usize)> = BTreeMap::new();
        for (watched, part) in watched.iter().zip(parts) {
            let report = watched.flow.between(start, end);
            late = late.max(report.late);
            let (in_a_row, lost) = worst.entry(part).or_default();
            (*in_a_row, *lost) = ((*in_a_row).max(report.in_a_row), (*lost).max(report.lost));
            if report.in_a_row > part.most() {
                wrong.push(format!(
                    "{} lost {report:?} when {event:?}: {part:?}",
                    watched.flow.name
                ));
            }
        }
        eprintln!("{event:?}: most pings lost in a row and in all {worst:?}");
    }
    if wrong.is_empty() || late <= TOO_LATE {
        Ok(wrong)
    } else {
        Err(late)
    }
}

/// Peers that no event affects, by cluster, name and UID.
async fn untouched(
    ground: &Ground,
    granularity: Granularity,
    events: &[Event],
) -> BTreeSet<(&'static str, String, String)> {
    let concerned = |seat: Seat| {
        let same = |event: &Event| {
            event.who == seat || granularity == Location && event.who.place() == seat.place()
        };
        events.iter().any(same)
    };
    let healthy = |name: &str| {
        let (_, node) = name.split_once("--").unwrap();
        !concerned(seat(&node.replace("--", "/")))
    };
    ground
        .peers()
        .await
        .into_keys()
        .filter(|(_, name, _)| healthy(name))
        .collect()
}

async fn happen(ground: &mut Ground, scene: &Scene, event: &Event) {
    let (site, node) = (event.who.site, event.who.node());
    match (event.what, scene.dead.get(&event.who)) {
        (Happening::Joins, _) => ground.join(site, event.who.at).await,
        (Happening::Leaves, _) => ground.leave(site, &node).await,
        (Happening::Unplugged, _) => ground.break_down(site, &node).await,
        (Happening::AgentKilled, _) => ground.kill_agent(site, &node),
        (Happening::Returns, Some(Happening::Unplugged)) => {
            ground.repair(site, &node).await;
            ground.fleet.set_ready(site, &node, true).await;
        }
        (Happening::Returns, _) => ground.start_agent(site, &node),
    }
}

async fn pause(ground: &mut Ground, event: &Event) {
    match event.what == Happening::Unplugged && event.pause > NOT_READY {
        true => {
            tokio::time::sleep(NOT_READY).await;
            ground
                .fleet
                .set_ready(event.who.site, &event.who.node(), false)
                .await;
            tokio::time::sleep(event.pause - NOT_READY).await;
        }
        false => tokio::time::sleep(event.pause).await,
    }
}

/// Flows from every pod to every pod of another cluster.
fn watched(ground: &Ground) -> Vec<Watched> {
    let of_pods = |path: &crate::ground::Path| {
        let (from, to) = path.name.strip_prefix("pod ")?.split_once(" to pod ")?;
        Some(Watched {
            ends: [seat(from), seat(to)],
            flow: path.flow_every(STEP),
        })
    };
    ground.paths().iter().filter_map(of_pods).collect()
}

/// Parses a node in the notation of paths: `east/n2`.
fn seat(text: &str) -> Seat {
    let (site, node) = text.split_once('/').unwrap();
    Seat {
        site: SITES.into_iter().find(|known| *known == site).unwrap(),
        at: node.strip_prefix('n').unwrap().parse().unwrap(),
    }
}
