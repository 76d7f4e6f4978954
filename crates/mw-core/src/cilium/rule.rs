//! The rule that a ConnectivityIntent asks for, parsed from its spec alone.

use std::collections::BTreeMap;

use crate::cilium::object::{IntentSpec, PeerSpec, PortSpec};
use crate::problem::{Problem, Reason};
use crate::text::quoted;

const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
const PROTOCOLS: [&str; 4] = ["TCP", "UDP", "SCTP", "ANY"];
const SHORTEST_INTERVAL: i64 = 10;
/// Labels that Cilium sets itself.
const RESERVED_KEYS: [&str; 2] = ["io.cilium.", "io.kubernetes.pod.namespace"];

/// A valid intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) deny: bool,
    pub(super) clusterwide: bool,
    pub(super) isolate: bool,
    pub(super) source: Pods,
    pub(super) destination: Pods,
    pub(super) ports: Vec<Ports>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pods {
    pub(super) namespace: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) protocol: String,
    pub(super) first: u16,
    pub(super) last: Option<u16>,
}

impl Rule {
    /// Reports whether the policy must not block traffic that it does not name.
    pub(super) fn spares_others(&self) -> bool {
        self.deny || !self.isolate
    }

    pub(super) fn has_ranges(&self) -> bool {
        self.ports.iter().any(|ports| ports.last.is_some())
    }
}

/// Parses a spec; returns all its problems if it is invalid.
pub(super) fn read(spec: &IntentSpec, allow_system_namespaces: bool) -> Result<Rule, Vec<Problem>> {
    let mut check = Check { wrong: Vec::new() };
    let deny = match spec.action.as_deref() {
        Some("Allow") => false,
        Some("Deny") => true,
        None => check.refuse("action", "is required", "use Allow or Deny"),
        Some(other) => check.refuse(
            "action",
            format!("{} is not a valid value", quoted(other)),
            "use Allow or Deny",
        ),
    };
    let clusterwide = match spec.mode.as_deref() {
        None | Some("Namespaced") => false,
        Some("Clusterwide") => true,
        Some(other) => check.refuse(
            "policyMode",
            format!("{} is not a valid value", quoted(other)),
            "use Namespaced or Clusterwide",
        ),
    };
    let rule = Rule {
        deny,
        clusterwide,
        isolate: spec.isolate.unwrap_or(true),
        source: check.pods("source", &spec.source, clusterwide),
        destination: check.pods("destination", &spec.destination, clusterwide),
        ports: spec
            .ports
            .iter()
            .enumerate()
            .filter_map(|(at, port)| check.ports(at, port))
            .collect(),
    };
    if spec
        .probe_interval
        .is_some_and(|seconds| seconds < SHORTEST_INTERVAL)
    {
        check.refuse("probe.intervalSeconds", "is less than 10", "use 10 or more");
    }
    if !allow_system_namespaces {
        check.system(&rule);
    }
    if check.wrong.is_empty() {
        Ok(rule)
    } else {
        Err(check.wrong)
    }
}

struct Check {
    wrong: Vec<Problem>,
}

impl Check {
    /// Returns false, so that it can be used as a value.
    fn refuse(
        &mut self,
        path: impl AsRef<str>,
        what: impl AsRef<str>,
        hint: impl AsRef<str>,
    ) -> bool {
        self.wrong
            .push(Problem::new(Reason::InvalidSpec, path, what, hint));
        false
    }

    fn pods(&mut self, path: &str, peer: &PeerSpec, clusterwide: bool) -> Pods {
        let namespace = peer.namespace.clone().filter(|text| !text.is_empty());
        match &namespace {
            None if !clusterwide => {
                _ = self.refuse(
                    format!("{path}.namespace"),
                    "is required",
                    "set it to the namespace of the pods",
                )
            }
            Some(name) if !is_namespace(name) => {
                self.refuse(
                    format!("{path}.namespace"),
                    format!("{} is not a namespace name", quoted(name)),
                    "use the name of a namespace",
                );
            }
            _ => {}
        }
        let labels = match (&peer.name, &peer.selector) {
            (Some(_), Some(_)) => {
                self.refuse(path, "has both name and selector", "use one of the two");
                BTreeMap::new()
            }
            (Some(name), None) => BTreeMap::from([("app".to_owned(), name.clone())]),
            (None, selector) => selector.clone().unwrap_or_default(),
        };
        for (key, value) in &labels {
            if key.contains(':')
                || RESERVED_KEYS
                    .iter()
                    .any(|reserved| key.starts_with(reserved))
                || !is_label_key(key)
            {
                self.refuse(
                    format!("{path}.selector"),
                    format!("label {} is not allowed", quoted(key)),
                    "use the pods' own labels",
                );
            }
            if !is_label_part(value, true) {
                self.refuse(
                    path,
                    format!("{} is not a label value", quoted(value)),
                    "use a label value of the pods",
                );
            }
        }
        Pods { namespace, labels }
    }

    fn ports(&mut self, at: usize, port: &PortSpec) -> Option<Ports> {
        let path = format!("ports[{at}]");
        let number = |number: i64| u16::try_from(number).ok().filter(|number| *number > 0);
        let protocol = port.protocol.clone().unwrap_or_else(|| "ANY".to_owned());
        if !PROTOCOLS.contains(&protocol.as_str()) {
            self.refuse(
                format!("{path}.protocol"),
                format!("{} is not a valid value", quoted(&protocol)),
                "use TCP, UDP, SCTP or ANY",
            );
        }
        let Some(first) = port.port.and_then(number) else {
            self.refuse(
                format!("{path}.port"),
                "is required and must be 1 to 65535",
                "set a port",
            );
            return None;
        };
        let last = match port.end_port {
            None => None,
            Some(last) => match number(last).filter(|last| *last >= first) {
                Some(last) => Some(last),
                None => {
                    self.refuse(
                        format!("{path}.endPort"),
                        "is less than port or more than 65535",
                        "set it to the last port of the range",
                    );
                    None
                }
            },
        };
        Some(Ports {
            protocol,
            first,
            last,
        })
    }

    fn system(&mut self, rule: &Rule) {
        let hint = "to allow it, run the provider with --allow-system-namespaces";
        let Pods { namespace, labels } = &rule.destination;
        if let Some(name) = namespace
            .as_deref()
            .filter(|name| SYSTEM_NAMESPACES.contains(name))
        {
            self.refuse(
                "destination.namespace",
                format!("{name} is a system namespace"),
                hint,
            );
        }
        if rule.clusterwide && namespace.is_none() && labels.is_empty() && !rule.spares_others() {
            self.refuse(
                "destination",
                "selects every pod of the cluster and would cut all other traffic to them",
                hint,
            );
        }
    }
}

fn is_namespace(text: &str) -> bool {
    crate::names::ClusterName::try_from(text).is_ok()
}

fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_label_part(key, false),
        Some((prefix, name)) => {
            let label = |part: &str| crate::names::ClusterName::try_from(part).is_ok();
            prefix.len() <= 253 && prefix.split('.').all(label) && is_label_part(name, false)
        }
    }
}

/// Reports whether text is a label's name, or its value, which may be empty.
fn is_label_part(text: &str, may_be_empty: bool) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    let inside = |c: char| ends(c) || "-_.".contains(c);
    if text.is_empty() {
        return may_be_empty;
    }
    text.len() <= 63 && text.chars().all(inside) && text.starts_with(ends) && text.ends_with(ends)
}
