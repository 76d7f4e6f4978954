//! Checks of the Kilo back end, made from the state of each cluster and from the
//! planner's findings.

use std::collections::{BTreeMap, BTreeSet};

use mw_api::rbac::{READER, READER_NAMESPACE};
use mw_core::cidr::Cidr;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::Labels;
use mw_core::kilo::plan::{Changes, ClusterPlan, MeshPlan, Plan};
use mw_core::kilo::planner::World;
use mw_core::kilo::spec::{ClusterSpec, MeshSpec, Networks, validate};
use mw_core::kilo::{Nodes, Skip, SkipReason};
use mw_core::names::{ClusterId, ClusterName, MeshId, NodeName, label_value};
use mw_core::problem::{Problem, Reason};
use mw_core::text::{listed, shell_quoted};
use mw_core::time::Timestamp;
use serde_json::json;

use crate::doctor::access::Access;
use crate::doctor::commands::{Kept, Kubectl, grant, renew_kubeconfig};
use crate::doctor::{Check, Layer, of_layer};
use crate::fleet::{OPERATOR_KEYS, Source};
use crate::kilo::Examined;
use crate::run::EVERYWHERE;

/// Maximum number of findings of one kind in one cluster; the rest is counted.
const MOST: usize = 10;
/// Kilo's agents check in twice a minute.
const SILENT_MINUTES: i64 = 10;
const RESTART: &str = "delete pod -A -l app.kubernetes.io/name=kilo";

/// Inputs of the checks.
#[derive(Debug)]
pub struct Case<'a> {
    pub clusters: &'a [Examined],
    /// True if the ClusterMesh CRD is installed on the hub.
    pub has_meshes: bool,
    pub plan: &'a Plan,
    pub world: Option<&'a World>,
    /// True if the operator's Lease is held; None if unknown.
    pub led: Option<bool>,
    /// Namespaces that operators watch, if known.
    pub served: Option<&'a BTreeSet<String>>,
    /// ClusterMeshes with our finalizer.
    pub finalized: &'a BTreeSet<MeshId>,
    pub kubectl: &'a Kubectl,
    pub now: Timestamp,
}

impl Case<'_> {
    pub fn checks(&self) -> Vec<Check> {
        let of_clusters = self
            .clusters
            .iter()
            .flat_map(|cluster| self.cluster(cluster));
        let of_meshes = self
            .plan
            .meshes
            .iter()
            .flat_map(|(id, mesh)| self.mesh(id, mesh));
        of_clusters
            .chain(of_meshes)
            .chain(self.unserved())
            .collect()
    }

    /// Meshes that an operator managed before and none manages now.
    fn unserved(&self) -> Vec<Check> {
        let Some((served, world)) = self
            .served
            .zip(self.world)
            .filter(|(served, _)| !served.contains(EVERYWHERE))
        else {
            return Vec::new();
        };
        let mut checks = Vec::new();
        for id in world
            .meshes
            .keys()
            .filter(|id| !served.contains(&id.namespace))
        {
            let peers = peers_of(world, id);
            if peers == 0 && !self.finalized.contains(id) {
                continue;
            }
            let namespaces: Vec<&String> = served.iter().collect();
            let left = if self.finalized.contains(id) {
                "our finalizer"
            } else {
                "no finalizer"
            };
            let observed = format!(
                "not managed, but it has {left} and {peers} Peers: the operator watches only namespaces {}",
                listed(&namespaces, 5)
            );
            let hint = format!(
                "add {} to the operator's --namespace (operator.namespaces in the chart), or delete the mesh and its Peers",
                id.namespace
            );
            checks.push(Check::failed(Layer::Health, &id.to_string(), observed).hinted(&hint));
        }
        checks
    }

    fn cluster(&self, seen: &Examined) -> Vec<Check> {
        let (source, role) = match &seen.source {
            Source::Hub => ("the kubeconfig in use".to_owned(), "hub"),
            source => (format!("Secret {source}"), "remote"),
        };
        let access = Access {
            name: &seen.name,
            credentials: &seen.credentials,
            source,
            answers: seen.answers.as_ref(),
            rights: seen.rights.as_ref(),
            renew: self.renew(seen),
            grant: grant(&self.at(seen), role),
            now: self.now,
        };
        let mut checks = access.checks();
        checks.push(self.crds(seen));
        checks
    }

    fn renew(&self, seen: &Examined) -> Option<String> {
        let Source::Secret {
            namespace,
            name,
            key,
        } = &seen.source
        else {
            return None;
        };
        let key = key.as_deref().unwrap_or(OPERATOR_KEYS[0]);
        let kept = Kept {
            namespace,
            secret: name,
            key,
            account_namespace: READER_NAMESPACE,
            account: READER,
            role: "remote",
        };
        Some(renew_kubeconfig(
            &self.kubectl.hub(),
            &self.kubectl.member(&seen.name),
            kept,
        ))
    }

    fn at(&self, seen: &Examined) -> String {
        if seen.source == Source::Hub {
            self.kubectl.hub()
        } else {
            self.kubectl.member(&seen.name)
        }
    }

    fn crds(&self, seen: &Examined) -> Check {
        let (layer, name) = (Layer::Crds, seen.name.as_str());
        if seen.source == Source::Hub && !self.has_meshes {
            let repair = format!(
                "meshwright crd | {} apply --server-side -f -",
                self.kubectl.hub()
            );
            return Check::failed(layer, name, "the ClusterMesh CRD is not installed")
                .repaired_by(repair);
        }
        match &seen.peers {
            Some(Ok(true)) => Check::fine(layer, name, "all CRDs are installed"),
            Some(Ok(false)) => self.without_peers(seen),
            Some(Err(failure)) => Check::unanswered(layer, name, failure),
            None => Check::not_checked(layer, name, "the API server does not answer"),
        }
    }

    /// Reports a missing Peer CRD. It is Kilo's; it can be copied from another member.
    fn without_peers(&self, seen: &Examined) -> Check {
        let check = Check::failed(
            Layer::Crds,
            &seen.name,
            "the Peer CRD (peers.kilo.squat.ai) is not installed: is Kilo installed?",
        );
        match self
            .clusters
            .iter()
            .find(|other| matches!(other.peers, Some(Ok(true))))
        {
            Some(other) => {
                let lend = format!(
                    "{} get crd peers.kilo.squat.ai -o json | {} create -f -",
                    self.at(other),
                    self.at(seen)
                );
                check.repaired_by(lend)
            }
            None => {
                check.hinted("install Kilo with its CRDs: https://kilo.squat.ai/docs/introduction")
            }
        }
    }
}

/// Number of Peers of a mesh in the observed clusters, including those of the Go operator.
fn peers_of(world: &World, id: &MeshId) -> usize {
    let (mesh, namespace) = (label_value(&id.name), label_value(&id.namespace));
    let named = |labels: &Labels| {
        labels.mesh.as_ref() == Some(&mesh)
            && labels.namespace.as_ref().is_none_or(|of| *of == namespace)
    };
    let peers = world
        .clusters
        .values()
        .filter_map(|seen| seen.peers.known())
        .flat_map(BTreeMap::values);
    peers.filter(|peer| named(&peer.labels)).count()
}

/// One mesh with its plan and spec.
struct Part<'a> {
    case: &'a Case<'a>,
    id: &'a MeshId,
    plan: &'a MeshPlan,
    spec: Option<MeshSpec>,
}

impl Case<'_> {
    fn mesh(&self, id: &MeshId, plan: &MeshPlan) -> Vec<Check> {
        let declared = self.world.and_then(|world| world.meshes.get(id));
        let spec = declared
            .and_then(|mesh| validate(&mesh.spec).ok())
            .map(|(spec, _)| spec);
        let part = Part {
            case: self,
            id,
            plan,
            spec,
        };
        let subject = id.to_string();
        let mut checks = of_layer(
            Layer::Spec,
            &subject,
            part.found(Layer::Spec, None),
            "valid",
        );
        checks.extend(of_layer(
            Layer::Overlap,
            &subject,
            part.found(Layer::Overlap, None),
            "networks do not overlap",
        ));
        for (name, cluster) in &plan.clusters {
            checks.extend(part.of_cluster(name, cluster));
        }
        checks.extend(part.found(Layer::Drift, None));
        checks
    }
}

impl Part<'_> {
    fn of_cluster(&self, name: &ClusterName, cluster: &ClusterPlan) -> Vec<Check> {
        let subject = name.as_str();
        if let Some(why) = &cluster.unknown {
            let layers = [
                Layer::Health,
                Layer::Annotations,
                Layer::Keepalive,
                Layer::Drift,
            ];
            return layers
                .map(|layer| Check::not_checked(layer, subject, why))
                .into();
        }
        let mut checks = Vec::new();
        for layer in [Layer::Health, Layer::Annotations] {
            let skipped = cluster
                .skipped
                .iter()
                .filter(|(_, skip)| layer_of_skip(skip.reason) == layer);
            let mut findings: Vec<Check> = skipped
                .map(|(node, skip)| self.skipped(name, cluster, node, skip))
                .collect();
            findings.extend(self.found(layer, Some(name)));
            findings.extend(self.silence(name).filter(|_| layer == Layer::Health));
            checks.extend(of_layer(
                layer,
                subject,
                few(findings),
                format!("{} nodes", cluster.nodes),
            ));
        }
        let keepalive = self.found(Layer::Keepalive, Some(name));
        checks.extend(of_layer(
            Layer::Keepalive,
            subject,
            keepalive,
            "set as declared",
        ));
        checks.extend(self.drift(subject, cluster));
        checks
    }

    /// The planner's problems of a layer, for one cluster or for the mesh itself.
    fn found(&self, layer: Layer, cluster: Option<&ClusterName>) -> Vec<Check> {
        let of = |problem: &&Problem| {
            layer_of(problem.reason) == Some(layer) && self.cluster_of(problem) == cluster
        };
        few(self
            .plan
            .problems
            .iter()
            .filter(of)
            .map(|problem| self.problem(layer, cluster, problem))
            .collect())
    }

    /// Returns the cluster of a problem. Subjects are `cluster` or `cluster/part`; a
    /// node without an endpoint belongs to its own cluster, whatever the target.
    fn cluster_of(&self, problem: &Problem) -> Option<&ClusterName> {
        let end = if problem.reason == Reason::NodeNoEndpoint {
            " on "
        } else {
            "/"
        };
        let name = problem.subject.split(end).next().unwrap_or_default();
        self.plan
            .clusters
            .keys()
            .find(|cluster| cluster.as_str() == name)
    }

    fn problem(&self, layer: Layer, cluster: Option<&ClusterName>, problem: &Problem) -> Check {
        let subject = cluster.map_or_else(|| self.id.to_string(), ToString::to_string);
        let observed = match cluster.is_some_and(|cluster| cluster.as_str() == problem.subject)
            || problem.subject == self.id.to_string()
        {
            true => format!("{}: {}", problem.reason, problem.message),
            false => format!(
                "{}: {}: {}",
                problem.reason, problem.subject, problem.message
            ),
        };
        let check = Check::failed(layer, &subject, observed);
        if problem.reason == Reason::CIDROverlap
            && let Some(command) = self.renumbered()
        {
            return check.repaired_by(command);
        }
        if let (Reason::NodeInGrace, Some((_, node)), Some(name)) =
            (problem.reason, problem.subject.split_once('/'), cluster)
        {
            return check.repaired_by(self.restart(name, &NodeName::from(node)));
        }
        match problem.hint.strip_prefix("kubectl ") {
            Some(rest) => check.repaired_by(format!("{} {rest}", self.kubectl(cluster))),
            None => check.hinted_by(problem),
        }
    }

    fn kubectl(&self, cluster: Option<&ClusterName>) -> String {
        match cluster {
            Some(name) if !self.is_local(name) => self.case.kubectl.member(name.as_str()),
            _ => self.case.kubectl.hub(),
        }
    }

    /// Returns a command that restarts the agent on one node.
    fn restart(&self, name: &ClusterName, node: &NodeName) -> String {
        let on = shell_quoted(&format!("spec.nodeName={node}"));
        format!(
            "{} {RESTART} --field-selector {on}",
            self.kubectl(Some(name))
        )
    }

    fn is_local(&self, name: &ClusterName) -> bool {
        self.entry(name).is_some_and(|entry| entry.local)
    }

    fn entry(&self, name: &ClusterName) -> Option<&ClusterSpec> {
        self.spec.as_ref()?.clusters.get(name)
    }

    fn node(&self, cluster: &ClusterPlan, node: &NodeName) -> Option<&Node> {
        let nodes = self
            .case
            .world?
            .clusters
            .get(cluster.id.as_ref()?)?
            .nodes
            .known()?;
        nodes.get(node).map(AsRef::as_ref)
    }

    fn skipped(
        &self,
        name: &ClusterName,
        cluster: &ClusterPlan,
        node: &NodeName,
        skip: &Skip,
    ) -> Check {
        let check = Check::failed(
            layer_of_skip(skip.reason),
            name.as_str(),
            format!("{}: node {node}: {}", skip.reason, skip.message),
        );
        let (kubectl, quoted) = (self.kubectl(Some(name)), shell_quoted(node.as_str()));
        match skip.reason {
            SkipReason::NodeAgentSilent | SkipReason::NodeNoPublicKey | SkipReason::NodeNoWireguardIP => {
                check.repaired_by(self.restart(name, node))
            }
            SkipReason::NodeNoEndpoint | SkipReason::NodeEndpointInvalid => match self.endpoint(name, cluster, node) {
                // Unlike force-endpoint, this annotation is ignored by Kilo itself.
                Some(endpoint) => {
                    let annotation = shell_quoted(&format!("kilo.squat.ai/clustermesh-endpoint={endpoint}"));
                    check.repaired_by(format!("{kubectl} annotate node {quoted} --overwrite {annotation}"))
                }
                None => {
                    check.hinted("annotate the node with kilo.squat.ai/clustermesh-endpoint=ADDRESS:PORT, at which other clusters reach it")
                }
            },
            SkipReason::NodePodCIDROutOfRange => match self.declare_pods(name, cluster, node) {
                Some(command) => check.repaired_by(command),
                None => check.hinted("declare the node's pod network in the entry of its cluster"),
            },
            _ => check,
        }
    }

    /// Reports a cluster in which all agents are silent. The planner only compares
    /// agents with each other; this compares them with the clock.
    fn silence(&self, name: &ClusterName) -> Option<Check> {
        let newest = self
            .nodes(name)?
            .values()
            .filter_map(|node| node.last_seen)
            .max()?;
        let minutes = (self.case.now.0 - newest).div_euclid(60);
        let observed = format!("no Kilo agent has checked in for {minutes} minutes");
        let restart = format!("{} {RESTART}", self.kubectl(Some(name)));
        (minutes >= SILENT_MINUTES)
            .then(|| Check::failed(Layer::Health, name.as_str(), observed).repaired_by(restart))
    }

    /// Most likely endpoint of a node.
    fn endpoint(
        &self,
        name: &ClusterName,
        cluster: &ClusterPlan,
        node: &NodeName,
    ) -> Option<String> {
        let node = self.node(cluster, node)?;
        let address = node.external_ips.first().or(node.internal_ips.first())?;
        let port = self.entry(name)?.wireguard_port;
        Some(std::net::SocketAddr::new(*address, port).to_string())
    }

    fn declare_pods(
        &self,
        name: &ClusterName,
        cluster: &ClusterPlan,
        node: &NodeName,
    ) -> Option<String> {
        let pods = self.node(cluster, node)?.pod_cidrs.first()?;
        let entry = self.entry(name)?;
        let field = match &entry.networks {
            Networks::Typed { .. } => "podCIDRs",
            Networks::Flat(_) => "allowedNetworks",
        };
        let path = format!("/spec/clusters/{}/{field}/-", entry.index);
        Some(self.patch(&json!([{ "op": "add", "path": path, "value": pods.to_string() }])))
    }

    fn patch(&self, patch: &serde_json::Value) -> String {
        let (namespace, name) = (
            shell_quoted(&self.id.namespace),
            shell_quoted(&self.id.name),
        );
        let patch = shell_quoted(&patch.to_string());
        format!(
            "{} -n {namespace} patch clustermesh {name} --type json -p {patch}",
            self.case.kubectl.hub()
        )
    }

    /// Returns a command that corrects an overlapping pod network that none of its
    /// cluster's nodes uses to the one they do use.
    fn renumbered(&self) -> Option<String> {
        let spec = self.spec.as_ref()?;
        for (name, entry) in &spec.clusters {
            let Networks::Typed { pods, .. } = &entry.networks else {
                continue;
            };
            let Some(nodes) = self.nodes(name) else {
                continue;
            };
            let used: Vec<Cidr> = nodes
                .values()
                .flat_map(|node| node.pod_cidrs.iter().copied())
                .collect();
            let others: Vec<Cidr> = spec
                .clusters
                .iter()
                .filter(|(other, _)| *other != name)
                .flat_map(|(_, of)| of.networks.all())
                .collect();
            let wrong = pods.iter().position(|declared| {
                others.iter().any(|other| other.overlaps(*declared))
                    && !used.iter().any(|net| declared.contains(*net))
            });
            let right =
                covering(&used).filter(|net| !others.iter().any(|other| other.overlaps(*net)));
            if let (Some(at), Some(net)) = (wrong, right) {
                let path = format!("/spec/clusters/{}/podCIDRs/{at}", entry.index);
                return Some(
                    self.patch(
                        &json!([{ "op": "replace", "path": path, "value": net.to_string() }]),
                    ),
                );
            }
        }
        None
    }

    /// Nodes of a cluster by its entry: with an overlap the plan has no clusters.
    fn nodes(&self, name: &ClusterName) -> Option<&Nodes> {
        let world = self.case.world?;
        let entry = (self.id.clone(), name.clone());
        let id = world
            .identities
            .get(&entry)
            .cloned()
            .unwrap_or_else(|| ClusterId::from(name.as_str()));
        world.clusters.get(&id)?.nodes.known()
    }

    fn drift(&self, subject: &str, cluster: &ClusterPlan) -> Vec<Check> {
        let layer = Layer::Drift;
        let refused = |problem: &&Problem| {
            matches!(problem.reason, Reason::InvalidSpec | Reason::CIDROverlap)
        };
        if let Some(problem) = self.plan.problems.iter().find(refused) {
            let cause = layer_of(problem.reason).unwrap_or(layer);
            return vec![Check::not_checked(
                layer,
                subject,
                format!("fix {cause} of {} first", self.id),
            )];
        }
        let changes = cluster.id.as_ref().and_then(|id| self.plan.targets.get(id));
        let none = Changes::default();
        let changes = changes.unwrap_or(&none);
        let keep = format!("{} Peers are up to date", changes.keep);
        let pending = || {
            let (create, update, delete) = (
                changes.create.len(),
                changes.update.len(),
                changes.delete.len(),
            );
            let check = Check::failed(
                layer,
                subject,
                format!("{create} Peers to create, {update} to update, {delete} to delete"),
            );
            match self.case.led {
                Some(false) => check
                    .hinted("no operator holds the Lease: check why the operator is not running"),
                _ => check.hinted(
                    "the operator has not written this yet: check its log and `meshwright plan`",
                ),
            }
        };
        let name = ClusterName::try_from(subject).ok();
        let mut findings: Vec<Check> = (!changes.is_empty()).then(pending).into_iter().collect();
        findings.extend(name.iter().flat_map(|name| self.found(layer, Some(name))));
        of_layer(layer, subject, findings, keep)
    }
}

fn few(mut findings: Vec<Check>) -> Vec<Check> {
    let rest = findings.len().saturating_sub(MOST);
    findings.truncate(MOST);
    let more = findings.first().filter(|_| rest > 0).map(|first| {
        Check::failed(
            first.layer,
            &first.subject,
            format!("and {rest} more like these"),
        )
    });
    findings.into_iter().chain(more).collect()
}

/// Returns the smallest network that contains all of these.
fn covering(networks: &[Cidr]) -> Option<Cidr> {
    let first = networks.first()?;
    let widths = (0..=128_u8)
        .rev()
        .filter_map(|bits| Cidr::try_from(format!("{}/{bits}", first.first()).as_str()).ok());
    widths
        .into_iter()
        .find(|net| networks.iter().all(|inner| net.contains(*inner)))
}

/// Layer of a skipped node: Health if the agent writes the missing annotation.
fn layer_of_skip(reason: SkipReason) -> Layer {
    match reason {
        SkipReason::NodeAgentSilent
        | SkipReason::NodeNoPublicKey
        | SkipReason::NodeNoWireguardIP => Layer::Health,
        _ => Layer::Annotations,
    }
}

/// Layer of a planner's problem; None if another layer already reports it.
fn layer_of(reason: Reason) -> Option<Layer> {
    Some(match reason {
        Reason::ClusterUnreachable => return None,
        Reason::InvalidSpec | Reason::CIDRHostBits => Layer::Spec,
        Reason::CIDROverlap | Reason::DuplicatePeering => Layer::Overlap,
        Reason::KeepaliveNotSet => Layer::Keepalive,
        Reason::LocationSilent | Reason::NodeInGrace => Layer::Health,
        Reason::AnchorUnavailable
        | Reason::DiscoveredEndpointsInvalid
        | Reason::EndpointInsideMesh
        | Reason::LocationWithoutPeer
        | Reason::NodeNoEndpoint
        | Reason::PodCIDRDuplicate
        | Reason::PrefixContainsEndpoint
        | Reason::WGIPDuplicate => Layer::Annotations,
        _ => Layer::Drift,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_network_around_several() {
        let nets = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| Cidr::try_from(*text).unwrap())
                .collect::<Vec<_>>()
        };
        let around = |texts: &[&str]| covering(&nets(texts)).map(|net| net.to_string());
        assert_eq!(around(&["10.2.1.0/24"]).as_deref(), Some("10.2.1.0/24"));
        assert_eq!(
            around(&["10.2.1.0/24", "10.2.2.0/24"]).as_deref(),
            Some("10.2.0.0/22")
        );
        assert_eq!(around(&["10.2.1.0/24", "fd00::/64"]), None);
        assert_eq!(around(&[]), None);
    }
}
