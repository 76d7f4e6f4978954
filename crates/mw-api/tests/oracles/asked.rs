//! Model of ConnectivityIntents, written from the specification independently of the
//! planner: decides which flows pass while some intents are in force.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::policycheck::{Flow, Pod};

/// An intent as written by a user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) deny: bool,
    pub(crate) clusterwide: bool,
    pub(crate) isolate: Option<bool>,
    pub(crate) source: Peer,
    pub(crate) destination: Peer,
    pub(crate) ports: Vec<Ports>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    pub(crate) namespace: Option<String>,
    pub(crate) pods: Pods,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Pods {
    #[default]
    All,
    Named(String),
    Labelled(BTreeMap<String, String>),
}

#[derive(Debug, Clone)]
pub(crate) struct Ports {
    pub(crate) protocol: Option<&'static str>,
    pub(crate) first: u16,
    pub(crate) last: Option<u16>,
}

/// Reason why a flow passes or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Because {
    /// A Deny matches it.
    Denied,
    /// An isolating Allow matches it.
    Admitted,
    /// An Allow isolates its destination, and a non-isolating Allow matches it.
    AdmittedToo,
    /// An Allow isolates its destination, and no Allow matches it.
    Cut,
    /// Intents select its destination, but none isolates it or matches the flow.
    Spared,
    /// No intent selects its destination.
    Untouched,
}

impl Because {
    pub(crate) const ALL: [Because; 6] = [
        Because::Denied,
        Because::Admitted,
        Because::AdmittedToo,
        Because::Cut,
        Because::Spared,
        Because::Untouched,
    ];

    pub(crate) fn passes(self) -> bool {
        !matches!(self, Because::Denied | Because::Cut)
    }
}

/// Decides whether a flow passes. `mesh` contains the Cilium names of the mesh's
/// clusters.
pub(crate) fn decide(intents: &[Asked], mesh: &BTreeSet<String>, flow: &Flow) -> Because {
    let selecting: Vec<&Asked> = intents
        .iter()
        .filter(|of| of.destination.is(&flow.to))
        .collect();
    let naming: Vec<&Asked> = selecting
        .iter()
        .copied()
        .filter(|of| of.names_source_and_port(mesh, flow))
        .collect();
    let isolated = selecting.iter().any(|of| of.isolates());
    match () {
        () if naming.iter().any(|of| of.deny) => Because::Denied,
        () if naming.iter().any(|of| of.isolates()) => Because::Admitted,
        () if isolated && !naming.is_empty() => Because::AdmittedToo,
        () if isolated => Because::Cut,
        () if !selecting.is_empty() => Because::Spared,
        () => Because::Untouched,
    }
}

impl Asked {
    fn isolates(&self) -> bool {
        !self.deny && self.isolate != Some(false)
    }

    /// Matches only pods of the mesh's clusters as sources.
    fn names_source_and_port(&self, mesh: &BTreeSet<String>, flow: &Flow) -> bool {
        let from_mesh = mesh.contains(&flow.from.cluster);
        from_mesh
            && self.source.is(&flow.from)
            && (self.ports.is_empty() || self.ports.iter().any(|ports| ports.are(flow)))
    }

    pub(crate) fn spec(&self) -> Value {
        let mut spec = json!({
            "meshRef": { "name": "mesh" },
            "action": if self.deny { "Deny" } else { "Allow" },
            "policyMode": if self.clusterwide { "Clusterwide" } else { "Namespaced" },
            "source": self.source.spec(),
            "destination": self.destination.spec(),
            "ports": self.ports.iter().map(Ports::spec).collect::<Vec<_>>(),
        });
        if let Some(isolate) = self.isolate {
            spec["isolate"] = isolate.into();
        }
        spec
    }
}

impl Peer {
    fn is(&self, pod: &Pod) -> bool {
        let here = self
            .namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == pod.namespace);
        here && self
            .labels()
            .iter()
            .all(|(key, value)| pod.labels.get(key) == Some(value))
    }

    /// Returns the labels that select the pods.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        match &self.pods {
            Pods::All => BTreeMap::new(),
            Pods::Named(name) => BTreeMap::from([("app".to_owned(), name.clone())]),
            Pods::Labelled(labels) => labels.clone(),
        }
    }

    fn spec(&self) -> Value {
        let mut spec = json!({});
        if let Some(namespace) = &self.namespace {
            spec["namespace"] = namespace.as_str().into();
        }
        match &self.pods {
            Pods::All => {}
            Pods::Named(name) => spec["name"] = name.as_str().into(),
            Pods::Labelled(labels) => spec["selector"] = json!(labels),
        }
        spec
    }
}

impl Ports {
    /// Matches protocols with ports only; ICMP has none.
    fn are(&self, flow: &Flow) -> bool {
        let spoken = match self.protocol {
            None | Some("ANY") => ["TCP", "UDP", "SCTP"].contains(&flow.protocol),
            Some(protocol) => protocol == flow.protocol,
        };
        spoken && (self.first..=self.last.unwrap_or(self.first)).contains(&flow.port)
    }

    fn spec(&self) -> Value {
        let mut spec = json!({ "port": self.first });
        if let Some(protocol) = self.protocol {
            spec["protocol"] = protocol.into();
        }
        if let Some(last) = self.last {
            spec["endPort"] = last.into();
        }
        spec
    }
}
