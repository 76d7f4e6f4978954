//! Renders a ConnectivityIntent as a Cilium policy.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::cilium::facts::PolicyKey;
use crate::cilium::object::ObjectId;
use crate::cilium::plan::WantedPolicy;
use crate::cilium::rule::{Pods, Ports, Rule};
use crate::names::{CiliumName, label_value, short_hash};

/// Label with our name on every policy that we write.
const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label that ties a policy to an intent: a hash of workspace, namespace and
/// name.
const LABEL_OWNER: &str = "networking.edge-portal.eu/owner";
/// Label with the name of the intent, for people.
const LABEL_INTENT: &str = "networking.edge-portal.eu/intent";
/// Label with the namespace of the intent, for people.
const LABEL_INTENT_NAMESPACE: &str = "networking.edge-portal.eu/intent-namespace";
const MANAGED_BY: &str = "meshwright";

const NAMESPACE: &str = "k8s:io.kubernetes.pod.namespace";
const CLUSTER: &str = "k8s:io.cilium.k8s.policy.cluster";
/// Cilium's limit for one list of ports.
const MOST_PORTS: usize = 40;
const LONGEST_NAME: usize = 253;

/// The label value that ties a policy to an intent. Equal names in two
/// workspaces give different owners.
pub(super) fn owner(intent: &ObjectId) -> String {
    short_hash(&intent.to_string())
}

fn name(intent: &ObjectId) -> String {
    let owner = owner(intent);
    let head = intent
        .name
        .get(..LONGEST_NAME - owner.len() - 1)
        .unwrap_or(&intent.name);
    format!("{}-{owner}", head.trim_end_matches(['-', '.']))
}

fn labels(intent: &ObjectId) -> BTreeMap<String, String> {
    let labels = [
        (LABEL_MANAGED_BY, MANAGED_BY.to_owned()),
        (LABEL_OWNER, owner(intent)),
        (LABEL_INTENT, label_value(&intent.name)),
        (LABEL_INTENT_NAMESPACE, label_value(&intent.namespace)),
    ];
    labels
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Reports whether a policy with these labels belongs to this intent.
pub(super) fn is_of(intent: &ObjectId, found: &BTreeMap<String, String>) -> bool {
    let has = |key: &str, value: &str| found.get(key).is_some_and(|is| is == value);
    has(LABEL_MANAGED_BY, MANAGED_BY) && has(LABEL_OWNER, &owner(intent))
}

/// The namespace and name of an intent's policy.
pub(super) fn key(intent: &ObjectId, rule: &Rule) -> PolicyKey {
    let namespace = if rule.clusterwide {
        None
    } else {
        rule.destination.namespace.clone()
    };
    PolicyKey {
        namespace,
        name: name(intent),
    }
}

/// The policy that allows or denies traffic from the clusters with these Cilium
/// names.
pub(super) fn render(
    intent: &ObjectId,
    rule: &Rule,
    clusters: &BTreeSet<&CiliumName>,
) -> WantedPolicy {
    let from: Vec<Value> = clusters
        .iter()
        .map(|cluster| json!({ "matchLabels": source(&rule.source, cluster) }))
        .collect();
    let mut peers = Map::from_iter([("fromEndpoints".to_owned(), Value::from(from))]);
    if !rule.ports.is_empty() {
        let lists: Vec<Value> = rule
            .ports
            .chunks(MOST_PORTS)
            .map(|some| json!({ "ports": some.iter().map(port).collect::<Vec<_>>() }))
            .collect();
        peers.insert("toPorts".to_owned(), lists.into());
    }
    let list = if rule.deny { "ingressDeny" } else { "ingress" };
    let mut spec = Map::from_iter([
        ("endpointSelector".to_owned(), subject(rule)),
        (list.to_owned(), json!([peers])),
    ]);
    if rule.spares_others() {
        spec.insert("enableDefaultDeny".to_owned(), json!({ "ingress": false }));
    }
    WantedPolicy {
        key: key(intent, rule),
        labels: labels(intent),
        spec: spec.into(),
    }
}

/// The clusters that one of our policies names.
pub(super) fn named_in(spec: &Value) -> BTreeSet<CiliumName> {
    let rules = ["ingress", "ingressDeny"]
        .into_iter()
        .filter_map(|list| spec.get(list)?.as_array())
        .flatten();
    let sources = rules
        .filter_map(|rule| rule.get("fromEndpoints")?.as_array())
        .flatten();
    let names = sources.filter_map(|source| source.get("matchLabels")?.get(CLUSTER)?.as_str());
    names
        .filter_map(|name| CiliumName::try_from(name).ok())
        .collect()
}

fn subject(rule: &Rule) -> Value {
    let mut labels = prefixed(&rule.destination);
    if let Some(namespace) = rule
        .destination
        .namespace
        .as_ref()
        .filter(|_| rule.clusterwide)
    {
        labels.insert(NAMESPACE.to_owned(), namespace.clone());
    }
    if labels.is_empty() {
        json!({})
    } else {
        json!({ "matchLabels": labels })
    }
}

/// Always includes the cluster: without it a selector matches only the local
/// cluster.
fn source(pods: &Pods, cluster: &CiliumName) -> BTreeMap<String, String> {
    let mut labels = prefixed(pods);
    labels.extend(
        pods.namespace
            .iter()
            .map(|namespace| (NAMESPACE.to_owned(), namespace.clone())),
    );
    labels.insert(CLUSTER.to_owned(), cluster.to_string());
    labels
}

fn prefixed(pods: &Pods) -> BTreeMap<String, String> {
    pods.labels
        .iter()
        .map(|(key, value)| (format!("k8s:{key}"), value.clone()))
        .collect()
}

fn port(ports: &Ports) -> Value {
    let Ports {
        protocol,
        first,
        last,
    } = ports;
    match last {
        Some(last) => json!({ "port": first.to_string(), "endPort": last, "protocol": protocol }),
        None => json!({ "port": first.to_string(), "protocol": protocol }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_in_two_workspaces_never_collide() {
        let one = ObjectId::new("w1", "net", "allow");
        let other = ObjectId::new("w2", "net", "allow");
        assert_ne!(name(&one), name(&other));
        assert!(is_of(&one, &labels(&one)) && !is_of(&one, &labels(&other)));
    }

    #[test]
    fn a_long_name_stays_one_that_kubernetes_takes() {
        let long = ObjectId::new("w", "net", &"a".repeat(253));
        assert_eq!(
            (name(&long).len(), name(&long).ends_with(&owner(&long))),
            (253, true)
        );
    }
}
