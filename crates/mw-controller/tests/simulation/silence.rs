//! What a hostile owner may not learn: names and addresses of others. Statuses and
//! events of its meshes must not contain them.

use std::collections::{BTreeMap, BTreeSet};

use mw_sim::Cluster;
use mw_sim::kilo::{NAMESPACE, host};
use serde_json::Value;

use crate::bed::{MESHES, NODES, PEERS};
use crate::lies::{Attack, HOSTILE_SITES, Hostile, Untruth, is_hostile};
use crate::oracle::{annotation, array, endpoint, entries, text};

const SECRETS: &str = "/api/v1/secrets";
const EVENTS: &str = "/apis/events.k8s.io/v1/events";

/// Returns what a text reveals to a hostile owner about others.
pub(crate) fn leaks(
    clusters: &BTreeMap<String, Cluster>,
    hub: &str,
    hostile: &Hostile,
    said: &str,
) -> Vec<String> {
    let mut secrets = secrets(clusters, hub);
    let known = known(clusters, hostile);
    secrets.retain(|secret| contains(said, secret) && !contains(&known, secret));
    secrets.into_iter().collect()
}

/// Texts of all events about the meshes of hostile owners.
pub(crate) fn events(hub: &Cluster) -> Vec<String> {
    let mut events = hub.list(EVENTS);
    events.retain(|event| is_hostile(text(&event["metadata"]["namespace"])));
    events
        .iter()
        .map(|event| event["note"].to_string())
        .collect()
}

/// Namespaces, Secrets, clusters and addresses of all other owners.
fn secrets(clusters: &BTreeMap<String, Cluster>, hub: &str) -> BTreeSet<String> {
    let mut secrets = BTreeSet::from([NAMESPACE.to_owned()]);
    let hub = &clusters[hub];
    for secret in hub.list(SECRETS) {
        let [namespace, name] =
            ["namespace", "name"].map(|field| text(&secret["metadata"][field]).to_owned());
        if !is_hostile(&namespace) {
            secrets.extend([namespace, name]);
        }
    }
    for mesh in hub.list(MESHES) {
        if !is_hostile(text(&mesh["metadata"]["namespace"])) {
            entries(&mesh).into_iter().for_each(|entry| {
                let lists = [&entry["podCIDRs"], &entry["allowedNetworks"]];
                let networks = lists.into_iter().flat_map(array);
                secrets.extend(networks.map(|network| text(network).to_owned()));
            });
        }
    }
    for (name, cluster) in clusters {
        if !HOSTILE_SITES.contains(&name.as_str()) {
            secrets.extend([name.clone(), host(name)]);
            cluster
                .list(NODES)
                .iter()
                .for_each(|node| secrets.extend(addresses(node)));
        }
    }
    secrets.remove("");
    secrets
}

fn addresses(node: &Value) -> Vec<String> {
    let of_node = ["wireguard-ip", "internal-ip", "key"]
        .into_iter()
        .filter_map(|name| annotation(node, name))
        .map(|value| value.split('/').next().unwrap_or_default().to_owned());
    let pods = array(&node["spec"]["podCIDRs"]).iter();
    let endpoint = endpoint(node).map(|endpoint| text(&endpoint["dnsOrIP"]["ip"]).to_owned());
    of_node
        .chain(pods.map(|cidr| text(cidr).to_owned()))
        .chain(endpoint)
        .collect()
}

/// What the hostile owner knows already: its Secret, and what its servers show of
/// others.
fn known(clusters: &BTreeMap<String, Cluster>, hostile: &Hostile) -> String {
    let mut known = match hostile.attack {
        Attack::StolenUrl => host(&hostile.victim),
        Attack::CopiedUids => String::new(),
    };
    for lie in &hostile.lies {
        if let Untruth::Another { of } = &lie.how {
            let kind = if lie.kind == "peers" { PEERS } else { NODES };
            let shown = clusters[of].list(kind);
            known.extend(shown.iter().map(|object| format!("\n{object}")));
        }
    }
    known
}

/// Reports whether a text contains a name or an address, and not only as a part of
/// a longer one.
fn contains(said: &str, secret: &str) -> bool {
    let part = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    said.match_indices(secret).any(|(at, _)| {
        let mut before = said[..at].chars().rev();
        let mut after = said[at + secret.len()..].chars();
        let (before, after) = ([before.next(), before.next()], [after.next(), after.next()]);
        let goes_on = |[first, second]: [Option<char>; 2]| {
            first.as_ref().is_some_and(part)
                || first == Some('.') && second.as_ref().is_some_and(part)
        };
        !goes_on(before) && !goes_on(after)
    })
}
