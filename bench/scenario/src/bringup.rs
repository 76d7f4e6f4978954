//! Bring-up: time to create all Peers of all clusters, compared with a floor that posts
//! the same Peers with the same concurrency.

use std::time::Instant;

use floor::Prepared;
use serde_json::{Value, json};

use crate::fleet::{Fleet, JSON, NAMES};
use crate::kilo::{NODES, PEERS, is_meshed};
use crate::options::Options;
use crate::programs::{Floor, Operator};
use crate::progress;
use crate::stats::{median, range};
use crate::table::Table;
use crate::watch::Watches;

/// Concurrent requests per cluster, as in the operator.
const EACH: usize = 16;

/// Times at which the first and the last Peer were seen.
struct Seen {
    first: Instant,
    last: Instant,
}

impl Seen {
    fn seconds(&self) -> f64 {
        (self.last - self.first).as_secs_f64()
    }
}

/// Seconds from the first to the last Peer, and CPU seconds, by round.
#[derive(Default)]
struct Rounds {
    seconds: Vec<f64>,
    cpu: Vec<f64>,
}

/// Measures the bring-up of the Peers that a converged operator left, which must be
/// stopped. Returns a running operator.
pub(crate) async fn measure(fleet: &Fleet, options: &Options, table: &mut Table) -> Operator {
    let posts = same_posts(fleet).await;
    let (mut operators, mut floors, mut watching) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    let mut from_start = Vec::new();
    let mut running: Option<Operator> = None;
    for round in 1..=options.rounds {
        if let Some(operator) = running.take() {
            operator.stop().await;
        }
        clear(fleet).await;
        post_all(
            fleet,
            Floor::start_watching(fleet, NODES, PEERS).await,
            &posts,
            &mut watching,
        )
        .await;
        clear(fleet).await;
        post_all(
            fleet,
            Floor::start(fleet, 0, NODES).await,
            &posts,
            &mut floors,
        )
        .await;
        clear(fleet).await;
        let mut watches = Watches::open(fleet, PEERS).await;
        let operator = Operator::start(fleet, &options.command);
        let seen = all_created(&mut watches, posts.len()).await;
        operators.cpu.push(operator.cpu_seconds());
        operators.seconds.push(seen.seconds());
        from_start.push((seen.last - operator.started).as_secs_f64());
        let last = |rounds: &Rounds| rounds.seconds[round - 1];
        progress(&format!(
            "round {round}: {:.2} s, floor {:.2} and {:.2} s",
            last(&operators),
            last(&floors),
            last(&watching)
        ));
        running = Some(operator);
    }
    report(
        posts.len(),
        &operators,
        &from_start,
        &floors,
        &watching,
        table,
    );
    running.unwrap()
}

async fn post_all(fleet: &Fleet, mut floor: Floor, posts: &[Prepared], rounds: &mut Rounds) {
    let mut watches = Watches::open(fleet, PEERS).await;
    floor.post(posts.to_vec(), EACH);
    rounds
        .seconds
        .push(all_created(&mut watches, posts.len()).await.seconds());
    floor.done(posts.len());
    rounds.cpu.push(floor.cpu_seconds());
}

fn report(
    peers: usize,
    operators: &Rounds,
    from_start: &[f64],
    floors: &Rounds,
    watching: &Rounds,
    table: &mut Table,
) {
    let rates = |floor: &Rounds| {
        floor
            .seconds
            .iter()
            .zip(&operators.seconds)
            .map(|(floor, operator)| floor / operator)
            .collect::<Vec<_>>()
    };
    let (to_floor, to_watching) = (rates(floors), rates(watching));
    let got = median(&to_floor);
    table.judge(
        &format!("bring-up of {peers} Peers: rate to floor"),
        "≥ 0.8",
        &format!("{got:.2}"),
        &range(&to_floor),
        got >= 0.8,
    );
    table.note(
        "  to a floor that watches Peers too",
        &format!("{:.2}", median(&to_watching)),
        &range(&to_watching),
    );
    for (name, seconds) in [
        ("operator, first to last Peer", operators.seconds.as_slice()),
        ("operator, start to last Peer", from_start),
        ("operator, CPU time", &operators.cpu),
        ("floor, first to last Peer", &floors.seconds),
        ("floor, CPU time", &floors.cpu),
        ("floor that watches, first to last Peer", &watching.seconds),
        ("floor that watches, CPU time", &watching.cpu),
    ] {
        table.note(
            &format!("  {name}"),
            &format!("{:.2} s", median(seconds)),
            &range(seconds),
        );
    }
}

/// Deletes all Peers. No operator runs meanwhile that could react.
async fn clear(fleet: &Fleet) {
    for at in 0..NAMES.len() {
        fleet.request(at, "DELETE", PEERS, &json!({})).await;
        assert!(fleet.cluster(at).list(PEERS).await.unwrap().is_empty());
    }
}

/// Returns the requests that create the current Peers of the mesh again.
async fn same_posts(fleet: &Fleet) -> Vec<Prepared> {
    let mut posts = Vec::new();
    for at in 0..NAMES.len() {
        let peers = fleet.cluster(at).list(PEERS).await.unwrap();
        for mut peer in peers.into_iter().filter(is_meshed) {
            peer["metadata"] =
                json!({ "name": peer["metadata"]["name"], "labels": peer["metadata"]["labels"] });
            posts.push(post(at, &peer));
        }
    }
    posts
}

fn post(at: usize, peer: &Value) -> Prepared {
    Prepared {
        server: at,
        method: "POST".to_owned(),
        path: PEERS.to_owned(),
        content: JSON.to_owned(),
        body: peer.to_string(),
        dial: None,
    }
}

async fn all_created(watches: &mut Watches, total: usize) -> Seen {
    let mut seen: Option<Seen> = None;
    let mut count = 0;
    while count < total {
        let event = watches.next().await;
        if event.is("ADDED") {
            count += 1;
            let seen = seen.get_or_insert(Seen {
                first: event.at,
                last: event.at,
            });
            (seen.first, seen.last) = (seen.first.min(event.at), seen.last.max(event.at));
        }
    }
    seen.unwrap()
}
