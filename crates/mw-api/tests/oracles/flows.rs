//! Flows around an intent: some that it matches, and some that differ from those in one
//! property.

use fastrand::Rng;

use crate::asked::{Asked, Peer, Ports};
use crate::drawn::{NAMESPACES, PROTOCOLS, one_of, value};
use crate::mesh::{CLUSTERS, Mesh, namespaces};
use crate::policycheck::{Flow, Pod};

/// Name of a cluster that is connected, but not part of the mesh.
const OUTSIDE: &str = "elsewhere";

/// Generates flows to pods of one cluster.
pub(crate) fn samples(rng: &mut Rng, mesh: &Mesh, local: &str, intents: &[Asked]) -> Vec<Flow> {
    let mut flows: Vec<Flow> = intents
        .iter()
        .flat_map(|intent| around(rng, mesh, local, intent))
        .collect();
    flows.retain(|flow| namespaces(local).contains(&flow.to.namespace.as_str()));
    flows.sort();
    flows.dedup();
    flows
}

fn around(rng: &mut Rng, mesh: &Mesh, local: &str, intent: &Asked) -> Vec<Flow> {
    let here = &mesh.names[local];
    let from = &mesh.names[one_of(rng, &CLUSTERS)];
    let named = named(rng, intent, from, here);
    let with = |change: &dyn Fn(&mut Flow)| {
        let mut flow = named.clone();
        change(&mut flow);
        flow
    };
    let mut flows: Vec<Flow> = mesh
        .names
        .values()
        .map(|name| with(&|flow| flow.from.cluster = name.clone()))
        .collect();
    flows.push(with(&|flow| flow.from.cluster = OUTSIDE.to_owned()));
    flows.push(with(&|flow| flow.from = Pod::default()));
    for protocol in PROTOCOLS {
        flows.push(with(&|flow| flow.protocol = protocol));
    }
    flows.push(with(&|flow| (flow.protocol, flow.port) = ("ICMP", 8)));
    for port in wrong_ports(rng, &named, &intent.ports) {
        flows.push(with(&|flow| flow.port = port));
    }
    // The last of many ports may end up in another list than the first.
    if let Some(ports) = intent.ports.last() {
        flows.push(with(&|flow| {
            (flow.protocol, flow.port) = (spoken(ports), ports.first)
        }));
    }
    for from in others(rng, &named.from, &intent.source) {
        flows.push(with(&|flow| flow.from = from.clone()));
    }
    for to in others(rng, &named.to, &intent.destination) {
        flows.push(with(&|flow| flow.to = to.clone()));
    }
    let dns = Pod {
        cluster: here.clone(),
        namespace: "kube-system".to_owned(),
        labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
    };
    flows.push(Flow {
        from: named.to.clone(),
        to: dns,
        protocol: "UDP",
        port: 53,
    });
    flows
}

/// Returns a flow that the intent matches.
fn named(rng: &mut Rng, intent: &Asked, from: &str, to: &str) -> Flow {
    let (protocol, port) = match intent.ports.get(rng.usize(..intent.ports.len().max(1))) {
        None => (one_of(rng, &PROTOCOLS), rng.u16(1..)),
        Some(ports) => (
            spoken(ports),
            rng.u16(ports.first..=ports.last.unwrap_or(ports.first)),
        ),
    };
    Flow {
        from: pod(rng, &intent.source, from),
        to: pod(rng, &intent.destination, to),
        protocol,
        port,
    }
}

/// Returns a protocol that matches these ports.
fn spoken(ports: &Ports) -> &'static str {
    ports
        .protocol
        .filter(|protocol| *protocol != "ANY")
        .unwrap_or("SCTP")
}

/// Returns a pod that a peer selects, usually with an additional label.
fn pod(rng: &mut Rng, of: &Peer, cluster: &str) -> Pod {
    let namespace = of
        .namespace
        .clone()
        .unwrap_or_else(|| one_of(rng, &NAMESPACES).to_owned());
    let mut labels = of.labels();
    if rng.u8(..4) > 0 {
        labels
            .entry("release".to_owned())
            .or_insert_with(|| value(rng));
    }
    Pod {
        cluster: cluster.to_owned(),
        namespace,
        labels,
    }
}

/// Returns pods that differ from this one in one property.
fn others(rng: &mut Rng, pod: &Pod, of: &Peer) -> Vec<Pod> {
    let mut others: Vec<Pod> = NAMESPACES
        .iter()
        .filter(|name| **name != pod.namespace)
        .map(|name| Pod {
            namespace: (*name).to_owned(),
            ..pod.clone()
        })
        .collect();
    for key in of.labels().into_keys() {
        let mut without = pod.clone();
        without.labels.remove(&key);
        others.push(without);
        let mut changed = pod.clone();
        changed.labels.insert(key, value(rng));
        others.push(changed);
    }
    let bare = Pod {
        labels: [].into(),
        ..pod.clone()
    };
    others.push(bare);
    others
}

/// Returns ports next to the matched ones, and an arbitrary one.
fn wrong_ports(rng: &mut Rng, named: &Flow, ports: &[Ports]) -> Vec<u16> {
    let edges = ports.iter().flat_map(|ports| {
        [
            ports.first.saturating_sub(1),
            ports.last.unwrap_or(ports.first).saturating_add(1),
        ]
    });
    let mut wrong: Vec<u16> = edges.filter(|port| *port > 0).collect();
    rng.shuffle(&mut wrong);
    wrong.truncate(4);
    wrong.extend([named.port.saturating_add(1), rng.u16(1..)]);
    wrong
}
