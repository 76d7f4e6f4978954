//! Latency from a change of a node's endpoint until the Peers in all other clusters
//! have changed. Operator and floor take turns; the one that is not measured is frozen.
//!
//! The operator limits a source to a burst of ten changes, and then one every 30 s.
//! Therefore the clusters take turns as the source, and every round starts a new
//! operator.

use std::time::{Duration, Instant};

use floor::Prepared;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fleet::{Fleet, MERGE_PATCH, NAMES};
use crate::kilo::{self, NODES, PEERS, key, node_name};
use crate::options::Options;
use crate::programs::{Floor, Operator};
use crate::progress;
use crate::stats::Round;
use crate::table::Table;
use crate::watch::{Event, Watches};

/// Changes per source and round. Of the other three of the burst, one is for the
/// warm-up and two are for [`crate::requests`].
const OF_A_SOURCE: usize = 7;
pub(crate) const MOST_CHANGES: usize = OF_A_SOURCE * NAMES.len();
/// Longer than the operator's batching interval.
const BETWEEN: Duration = Duration::from_millis(150);

/// Takes the running operator for the first round, and returns that of the last.
pub(crate) async fn measure(
    fleet: &Fleet,
    mut operator: Operator,
    options: &Options,
    table: &mut Table,
) -> Operator {
    let mut bench = Bench::new(fleet, options).await;
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        if round > 1 {
            operator.stop().await;
            operator = Operator::start(fleet, &options.command);
            kilo::converged(fleet, options.nodes).await;
        }
        bench.round(&operator, NAMES.len()).await;
        let taken = bench.round(&operator, options.changes).await;
        progress(&format!("round {round}: {taken}"));
        rounds.push(taken);
    }
    let what = format!(
        "node change to all Peers, {} × {} nodes",
        NAMES.len(),
        options.nodes
    );
    table.compare(
        &what,
        "operator",
        [(50, Some(1.3)), (99, Some(2.0))],
        &rounds,
    );
    operator
}

struct Bench<'a> {
    fleet: &'a Fleet,
    nodes: usize,
    /// One floor per source.
    floors: Vec<Floor>,
    watches: Watches,
    /// Last observed state of the floor's own Peers, one per target.
    peers: Vec<Value>,
    changes: usize,
}

impl<'a> Bench<'a> {
    async fn new(fleet: &'a Fleet, options: &Options) -> Self {
        let mut peers = Vec::new();
        for at in 0..NAMES.len() {
            let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": PEER }, "spec": spec("198.19.255.255") });
            peers.push(fleet.request(at, "POST", PEERS, &peer).await);
        }
        let mut floors = Vec::new();
        for source in 0..NAMES.len() {
            floors.push(Floor::start(fleet, source, NODES).await);
        }
        let watches = Watches::open(fleet, PEERS).await;
        Self {
            fleet,
            nodes: options.nodes,
            floors,
            watches,
            peers,
            changes: 0,
        }
    }

    async fn round(&mut self, operator: &Operator, changes: usize) -> Round {
        let mut taken = Round::default();
        for change in 0..changes {
            let source = change % NAMES.len();
            taken.operator.add(self.operator_turn(source).await);
            operator.freeze();
            taken.floor.add(self.floor_turn(source).await);
            operator.thaw();
            sleep(BETWEEN).await;
        }
        taken
    }

    async fn operator_turn(&mut self, source: usize) -> f64 {
        let (node, address) = self.next_change();
        self.turn(source, &node, "kilo.squat.ai/force-endpoint", &address)
            .await
            .0
    }

    async fn floor_turn(&mut self, source: usize) -> f64 {
        let (node, address) = self.next_change();
        let requests = (0..NAMES.len())
            .filter(|at| *at != source)
            .map(|at| self.patch(at, &address))
            .collect();
        self.floors[source].arm(requests);
        // The operator ignores this annotation.
        let (time, events) = self
            .turn(source, &node, "bench.squat.ai/force-endpoint", &address)
            .await;
        for event in events {
            let seen: Value = serde_json::from_slice(&event.line).unwrap();
            self.peers[event.cluster] = seen["object"].clone();
        }
        self.floors[source].done(NAMES.len() - 1);
        time
    }

    /// Returns the milliseconds from the answer to the change of the Node to the last
    /// target's Peer event, and those events.
    async fn turn(
        &mut self,
        source: usize,
        node: &str,
        annotation: &str,
        address: &str,
    ) -> (f64, Vec<Event>) {
        self.watches.skip();
        let change =
            json!({ "metadata": { "annotations": { annotation: format!("{address}:51820") } } });
        self.fleet
            .request(source, "PATCH", &format!("{NODES}/{node}"), &change)
            .await;
        let answered = Instant::now();
        let mut events: Vec<Event> = Vec::new();
        while events.len() < NAMES.len() - 1 {
            let event = self.watches.next().await;
            if event.contains(address) && events.iter().all(|seen| seen.cluster != event.cluster) {
                events.push(event);
            }
        }
        let last = events.iter().map(|event| event.at).max().unwrap();
        sleep(BETWEEN).await;
        (
            last.saturating_duration_since(answered).as_secs_f64() * 1e3,
            events,
        )
    }

    /// Returns a node that is not the anchor, and an address that was not used before.
    fn next_change(&mut self) -> (String, String) {
        self.changes += 1;
        let node = node_name(1 + self.changes % (self.nodes - 1));
        (
            node,
            format!(
                "198.19.{}.{}",
                100 + self.changes / 100,
                100 + self.changes % 100
            ),
        )
    }

    /// Returns a patch of the floor's Peer like the operator's patch of its own, with
    /// the same preconditions.
    fn patch(&self, at: usize, address: &str) -> Prepared {
        let metadata = &self.peers[at]["metadata"];
        let labels = json!({
            "floor-clustermesh.io/mesh": "bench", "floor-clustermesh.io/source-cluster": "east",
            "floor-clustermesh.io/mesh-namespace": "kilo-system", "floor-clustermesh.io/hub": "00000000-0000-0000-0000-000000000000",
        });
        let metadata = json!({ "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "labels": labels });
        let body = json!({ "metadata": metadata, "spec": spec(address) }).to_string();
        Prepared {
            server: at,
            method: "PATCH".to_owned(),
            path: format!("{PEERS}/{PEER}"),
            content: MERGE_PATCH.to_owned(),
            body,
            dial: None,
        }
    }
}

const PEER: &str = "floor--east--node-000";

/// Returns the spec of a Peer that conflicts with no other.
fn spec(address: &str) -> Value {
    json!({
        "allowedIPs": ["172.30.100.0/24", "172.31.100.1/32"], "publicKey": key("floor"), "persistentKeepalive": null,
        "endpoint": { "dnsOrIP": { "dns": null, "ip": address }, "port": 51820 },
    })
}
