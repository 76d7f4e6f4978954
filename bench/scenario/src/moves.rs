//! Latency from a change of a load balancer's address until the Secrets of all other
//! clusters contain it. Provider and floor take turns on the same Secrets: the provider
//! changes them to the first address, the floor back to the second.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use floor::{Address, Caller, Dial, Prepared};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cilium::{Mesh, REMOTE};
use crate::fleet::NAMES;
use crate::options::Options;
use crate::programs::{Floor, Operator};
use crate::progress;
use crate::stats::Round;
use crate::watch::{Event, Watches};

const SERVICES: &str = "/api/v1/namespaces/kube-system/services";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const SECRET: &str = "cilium-kvstoremesh";
/// Secret with the client files of a reader, for remotes with the same CA.
const CLIENT: &str = "clustermesh-apiserver-remote-cert";
const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// Longer than the provider's batching interval, with time for the readers to follow.
const BETWEEN: Duration = Duration::from_millis(200);
const WARM_UP: usize = 5;

/// Measures all rounds. The floor dials if and only if the provider does.
pub(crate) async fn measure(
    mesh: &Mesh,
    provider: &Operator,
    dials: bool,
    options: &Options,
) -> Vec<Round> {
    let mut bench = Bench::new(mesh, dials).await;
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        let moves = if round == 0 { WARM_UP } else { options.moves };
        let mut taken = Round::default();
        for _ in 0..moves {
            taken.operator.add(bench.turn(mesh.addresses[0]).await);
            provider.freeze();
            taken.floor.add(bench.floor_turn(mesh.addresses[1]).await);
            provider.thaw();
            sleep(BETWEEN).await;
        }
        if round > 0 {
            progress(&format!("round {round}: {taken}"));
            rounds.push(taken);
        }
    }
    rounds
}

struct Bench<'a> {
    mesh: &'a Mesh,
    dials: bool,
    floor: Floor,
    watches: Watches,
}

impl<'a> Bench<'a> {
    /// Sets both addresses in turn and ends with the second, so that the first is a change.
    async fn new(mesh: &'a Mesh, dials: bool) -> Self {
        let (floor, watches) = (
            Floor::start(&mesh.fleet, REMOTE, SERVICES).await,
            Watches::open(&mesh.fleet, SECRETS).await,
        );
        let mut bench = Self {
            mesh,
            dials,
            floor,
            watches,
        };
        for address in mesh.addresses {
            bench.turn(address).await;
        }
        bench
    }

    async fn floor_turn(&mut self, address: Ipv4Addr) -> f64 {
        let mut requests = Vec::new();
        for at in (0..NAMES.len()).filter(|at| *at != REMOTE) {
            requests.push(self.patch(at, address).await);
        }
        self.floor.arm(requests);
        let time = self.turn(address).await;
        self.floor.done(NAMES.len() - 1);
        time
    }

    /// Returns the milliseconds from the answer to the change of the Service to the
    /// last event of a Secret with the address.
    async fn turn(&mut self, address: Ipv4Addr) -> f64 {
        self.watches.skip();
        let change = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": address }] } } });
        self.mesh
            .fleet
            .request(
                REMOTE,
                "PATCH",
                &format!("{SERVICES}/clustermesh-apiserver/status"),
                &change,
            )
            .await;
        let answered = Instant::now();
        let mut events: Vec<Event> = Vec::new();
        while events.len() < NAMES.len() - 1 {
            let event = self.watches.next().await;
            if leads_to(&event, address) && events.iter().all(|seen| seen.cluster != event.cluster)
            {
                events.push(event);
            }
        }
        let last = events.iter().map(|event| event.at).max().unwrap();
        sleep(BETWEEN).await;
        last.saturating_duration_since(answered).as_secs_f64() * 1e3
    }

    /// Returns the patch that the provider sends: all its keys, including the changed
    /// one.
    async fn patch(&self, at: usize, address: Ipv4Addr) -> Prepared {
        let path = format!("{SECRETS}/{SECRET}");
        let mut secret = self
            .mesh
            .fleet
            .request(at, "GET", &path, &Value::Null)
            .await;
        let key = text(&secret["data"][NAMES[REMOTE]]);
        let [first, second] = self.mesh.addresses.map(|address| address.to_string());
        let other = if key.contains(&first) { first } else { second };
        let key = key.replace(&other, &address.to_string());
        secret["data"][NAMES[REMOTE]] = json!(Base64::encode_string(key.as_bytes()));
        let metadata =
            json!({ "name": SECRET, "namespace": "kube-system", "uid": secret["metadata"]["uid"] });
        let body = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": secret["data"] }).to_string();
        let path = format!("{path}?fieldManager=meshwright&fieldValidation=Strict");
        let dial = if self.dials {
            Some(self.dial(at, &key).await)
        } else {
            None
        };
        Prepared {
            server: at,
            method: "PATCH".to_owned(),
            path,
            content: APPLY_PATCH.to_owned(),
            body,
            dial,
        }
    }

    /// Returns the provider's requests to the remote's etcd, with the client files of
    /// the reader.
    async fn dial(&self, at: usize, key: &str) -> Dial {
        let endpoint = key
            .lines()
            .find_map(|line| line.trim().strip_prefix("- "))
            .unwrap();
        let files = self
            .mesh
            .fleet
            .request(at, "GET", &format!("{SECRETS}/{CLIENT}"), &Value::Null)
            .await;
        let file = |name: &str| text(&files["data"][name]);
        let caller = Caller::Certificate {
            certificate: file("tls.crt"),
            key: file("tls.key"),
        };
        let address = Address {
            url: endpoint.to_owned(),
            ca: file("ca.crt"),
            caller,
        };
        let messages = vec![
            range(&format!("cilium/cluster-config/{}", NAMES[REMOTE])),
            range("cilium/.heartbeat"),
        ];
        Dial {
            address,
            path: "/etcdserverpb.KV/Range".to_owned(),
            messages,
        }
    }
}

/// Returns a RangeRequest for one key in a gRPC frame. Both lengths must be below 128,
/// so that each is a single ASCII character of the string.
fn range(key: &str) -> String {
    let letter = |length: usize| char::from(u8::try_from(length).unwrap());
    format!(
        "\0\0\0\0{}\n{}{key}",
        letter(key.len() + 2),
        letter(key.len())
    )
}

fn leads_to(event: &Event, address: Ipv4Addr) -> bool {
    let seen: Value = serde_json::from_slice(&event.line).unwrap();
    let secret = &seen["object"];
    secret["metadata"]["name"] == SECRET
        && text(&secret["data"][NAMES[REMOTE]]).contains(&format!("https://{address}:"))
}

fn text(encoded: &Value) -> String {
    let bytes = Base64::decode_vec(encoded.as_str().unwrap_or_default()).unwrap();
    String::from_utf8(bytes).unwrap()
}
