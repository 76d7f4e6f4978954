//! The checks of the Kilo back end: from what was seen of each cluster, and
//! from what the planner makes of all of them.

use mw_api::rbac::{READER, READER_NAMESPACE};
use mw_core::cidr::Cidr;
use mw_core::kilo::node::Node;
use mw_core::kilo::plan::{Changes, ClusterPlan, MeshPlan, Plan};
use mw_core::kilo::planner::World;
use mw_core::kilo::spec::{ClusterSpec, MeshSpec, Networks, validate};
use mw_core::kilo::{Nodes, Skip, SkipReason};
use mw_core::names::{ClusterId, ClusterName, MeshId, NodeName};
use mw_core::problem::{Problem, Reason};
use mw_core::text::shell_quoted;
use mw_core::time::Timestamp;
use serde_json::json;

use crate::doctor::access::Access;
use crate::doctor::commands::{Kept, Kubectl, grant, renew_kubeconfig};
use crate::doctor::{Check, Layer, of_layer};
use crate::fleet::Source;
use crate::kilo::Examined;

/// More findings of one kind in one cluster are counted.
const MOST: usize = 10;
/// The key of a Secret that is tried first where none is named.
const FIRST_KEY: &str = "value";
/// Kilo's agents say something twice a minute.
const SILENT_MINUTES: i64 = 10;
const RESTART: &str = "delete pod -A -l app.kubernetes.io/name=kilo";

/// What the checks are made from.
#[derive(Debug)]
pub struct Case<'a> {
    pub clusters: &'a [Examined],
    /// Whether the hub knows ClusterMeshes.
    pub has_meshes: bool,
    pub plan: &'a Plan,
    pub world: Option<&'a World>,
    /// Whether somebody holds the operator's Lease, where that can be told.
    pub led: Option<bool>,
    pub kubectl: &'a Kubectl,
    pub now: Timestamp,
}

impl Case<'_> {
    pub fn checks(&self) -> Vec<Check> {
        let of_clusters = self.clusters.iter().flat_map(|cluster| self.cluster(cluster));
        of_clusters.chain(self.plan.meshes.iter().flat_map(|(id, mesh)| self.mesh(id, mesh))).collect()
    }

    fn cluster(&self, seen: &Examined) -> Vec<Check> {
        let (source, role) = match &seen.source {
            Source::Hub => ("the kubeconfig in use here".to_owned(), "hub"),
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
        let Source::Secret { namespace, name, key } = &seen.source else { return None };
        let key = key.as_deref().unwrap_or(FIRST_KEY);
        let kept = Kept { namespace, secret: name, key, account_namespace: READER_NAMESPACE, account: READER, role: "remote" };
        Some(renew_kubeconfig(&self.kubectl.hub(), &self.kubectl.member(&seen.name), kept))
    }

    fn at(&self, seen: &Examined) -> String {
        if seen.source == Source::Hub { self.kubectl.hub() } else { self.kubectl.member(&seen.name) }
    }

    fn crds(&self, seen: &Examined) -> Check {
        let (layer, name) = (Layer::Crds, seen.name.as_str());
        if seen.source == Source::Hub && !self.has_meshes {
            let repair = format!("meshwright crd | {} apply --server-side -f -", self.kubectl.hub());
            return Check::failed(layer, name, "knows no ClusterMesh").repaired_by(repair);
        }
        match &seen.peers {
            Some(Ok(true)) => Check::fine(layer, name, "knows what it must"),
            Some(Ok(false)) => self.without_peers(seen),
            Some(Err(failure)) => Check::unanswered(layer, name, failure),
            None => Check::not_checked(layer, name, "it does not answer"),
        }
    }

    /// The CRD is Kilo's; a member that has it can lend it.
    fn without_peers(&self, seen: &Examined) -> Check {
        let check = Check::failed(Layer::Crds, &seen.name, "knows no Peer (peers.kilo.squat.ai): is Kilo installed there?");
        match self.clusters.iter().find(|other| matches!(other.peers, Some(Ok(true)))) {
            Some(other) => {
                let lend = format!("{} get crd peers.kilo.squat.ai -o json | {} create -f -", self.at(other), self.at(seen));
                check.repaired_by(lend)
            }
            None => check.hinted("install Kilo with its CRDs: https://kilo.squat.ai/docs/introduction"),
        }
    }
}

/// One mesh and what belongs to it.
struct Part<'a> {
    case: &'a Case<'a>,
    id: &'a MeshId,
    plan: &'a MeshPlan,
    spec: Option<MeshSpec>,
}

impl Case<'_> {
    fn mesh(&self, id: &MeshId, plan: &MeshPlan) -> Vec<Check> {
        let declared = self.world.and_then(|world| world.meshes.get(id));
        let spec = declared.and_then(|mesh| validate(&mesh.spec).ok()).map(|(spec, _)| spec);
        let part = Part { case: self, id, plan, spec };
        let subject = id.to_string();
        let mut checks = of_layer(Layer::Spec, &subject, part.found(Layer::Spec, None), "is as it must be");
        checks.extend(of_layer(Layer::Overlap, &subject, part.found(Layer::Overlap, None), "no network is declared twice"));
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
            let layers = [Layer::Health, Layer::Annotations, Layer::Keepalive, Layer::Drift];
            return layers.map(|layer| Check::not_checked(layer, subject, why)).into();
        }
        let mut checks = Vec::new();
        for layer in [Layer::Health, Layer::Annotations] {
            let skipped = cluster.skipped.iter().filter(|(_, skip)| layer_of_skip(skip.reason) == layer);
            let mut findings: Vec<Check> = skipped.map(|(node, skip)| self.skipped(name, cluster, node, skip)).collect();
            findings.extend(self.found(layer, Some(name)));
            findings.extend(self.silence(name).filter(|_| layer == Layer::Health));
            checks.extend(of_layer(layer, subject, few(findings), format!("{} nodes", cluster.nodes)));
        }
        let keepalive = self.found(Layer::Keepalive, Some(name));
        checks.extend(of_layer(Layer::Keepalive, subject, keepalive, "set where it is declared"));
        checks.extend(self.drift(subject, cluster));
        checks
    }

    /// The planner's problems of a layer, of one cluster or of none in particular.
    fn found(&self, layer: Layer, cluster: Option<&ClusterName>) -> Vec<Check> {
        let of = |problem: &&Problem| layer_of(problem.reason) == Some(layer) && self.cluster_of(problem) == cluster;
        few(self.plan.problems.iter().filter(of).map(|problem| self.problem(layer, cluster, problem)).collect())
    }

    /// Subjects are `cluster` or `cluster/part of it`.
    fn cluster_of(&self, problem: &Problem) -> Option<&ClusterName> {
        let name = problem.subject.split('/').next().unwrap_or_default();
        self.plan.clusters.keys().find(|cluster| cluster.as_str() == name)
    }

    fn problem(&self, layer: Layer, cluster: Option<&ClusterName>, problem: &Problem) -> Check {
        let subject = cluster.map_or_else(|| self.id.to_string(), ToString::to_string);
        let observed = match cluster.is_some_and(|cluster| cluster.as_str() == problem.subject) || problem.subject == self.id.to_string() {
            true => format!("{}: {}", problem.reason, problem.message),
            false => format!("{}: {}: {}", problem.reason, problem.subject, problem.message),
        };
        let check = Check::failed(layer, &subject, observed);
        if problem.reason == Reason::CIDROverlap
            && let Some(command) = self.renumbered()
        {
            return check.repaired_by(command);
        }
        if let (Reason::NodeInGrace, Some((_, node)), Some(name)) = (problem.reason, problem.subject.split_once('/'), cluster) {
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

    /// Of the agent on one node.
    fn restart(&self, name: &ClusterName, node: &NodeName) -> String {
        let on = shell_quoted(&format!("spec.nodeName={node}"));
        format!("{} {RESTART} --field-selector {on}", self.kubectl(Some(name)))
    }

    fn is_local(&self, name: &ClusterName) -> bool {
        self.entry(name).is_some_and(|entry| entry.local)
    }

    fn entry(&self, name: &ClusterName) -> Option<&ClusterSpec> {
        self.spec.as_ref()?.clusters.get(name)
    }

    fn node(&self, cluster: &ClusterPlan, node: &NodeName) -> Option<&Node> {
        let nodes = self.case.world?.clusters.get(cluster.id.as_ref()?)?.nodes.known()?;
        nodes.get(node).map(AsRef::as_ref)
    }

    fn skipped(&self, name: &ClusterName, cluster: &ClusterPlan, node: &NodeName, skip: &Skip) -> Check {
        let check = Check::failed(layer_of_skip(skip.reason), name.as_str(), format!("{}: node {node}: {}", skip.reason, skip.message));
        let (kubectl, quoted) = (self.kubectl(Some(name)), shell_quoted(node.as_str()));
        match skip.reason {
            SkipReason::NodeAgentSilent | SkipReason::NodeNoPublicKey | SkipReason::NodeNoWireguardIP => {
                check.repaired_by(self.restart(name, node))
            }
            SkipReason::NodeNoEndpoint | SkipReason::NodeEndpointInvalid => match self.endpoint(name, cluster, node) {
                // Of the two annotations the one that Kilo itself does not look at.
                Some(endpoint) => {
                    let annotation = shell_quoted(&format!("kilo.squat.ai/clustermesh-endpoint={endpoint}"));
                    check.repaired_by(format!("{kubectl} annotate node {quoted} --overwrite {annotation}"))
                }
                None => {
                    check.hinted("annotate the node with kilo.squat.ai/clustermesh-endpoint=ADDRESS:PORT, where other clusters reach it")
                }
            },
            SkipReason::NodePodCIDROutOfRange => match self.declare_pods(name, cluster, node) {
                Some(command) => check.repaired_by(command),
                None => check.hinted("declare the node's pod network for its cluster"),
            },
            _ => check,
        }
    }

    /// The planner compares agents with each other; here the clock says whether
    /// all of them are gone.
    fn silence(&self, name: &ClusterName) -> Option<Check> {
        let newest = self.nodes(name)?.values().filter_map(|node| node.last_seen).max()?;
        let minutes = (self.case.now.0 - newest).div_euclid(60);
        let observed = format!("no agent of Kilo's has checked in for {minutes} minutes");
        let restart = format!("{} {RESTART}", self.kubectl(Some(name)));
        (minutes >= SILENT_MINUTES).then(|| Check::failed(Layer::Health, name.as_str(), observed).repaired_by(restart))
    }

    /// Where a node is most likely reached.
    fn endpoint(&self, name: &ClusterName, cluster: &ClusterPlan, node: &NodeName) -> Option<String> {
        let node = self.node(cluster, node)?;
        let address = node.external_ips.first().or(node.internal_ips.first())?;
        let port = self.entry(name)?.wireguard_port;
        Some(std::net::SocketAddr::new(*address, port).to_string())
    }

    fn declare_pods(&self, name: &ClusterName, cluster: &ClusterPlan, node: &NodeName) -> Option<String> {
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
        let (namespace, name) = (shell_quoted(&self.id.namespace), shell_quoted(&self.id.name));
        let patch = shell_quoted(&patch.to_string());
        format!("{} -n {namespace} patch clustermesh {name} --type json -p {patch}", self.case.kubectl.hub())
    }

    /// Where a cluster declares a pod network in which none of its nodes is,
    /// the one in which they are.
    fn renumbered(&self) -> Option<String> {
        let spec = self.spec.as_ref()?;
        for (name, entry) in &spec.clusters {
            let Networks::Typed { pods, .. } = &entry.networks else { continue };
            let Some(nodes) = self.nodes(name) else { continue };
            let used: Vec<Cidr> = nodes.values().flat_map(|node| node.pod_cidrs.iter().copied()).collect();
            let others: Vec<Cidr> =
                spec.clusters.iter().filter(|(other, _)| *other != name).flat_map(|(_, of)| of.networks.all()).collect();
            let wrong = pods.iter().position(|declared| {
                others.iter().any(|other| other.overlaps(*declared)) && !used.iter().any(|net| declared.contains(*net))
            });
            let right = covering(&used).filter(|net| !others.iter().any(|other| other.overlaps(*net)));
            if let (Some(at), Some(net)) = (wrong, right) {
                let path = format!("/spec/clusters/{}/podCIDRs/{at}", entry.index);
                return Some(self.patch(&json!([{ "op": "replace", "path": path, "value": net.to_string() }])));
            }
        }
        None
    }

    /// An overlap leaves the plan without clusters, so they go by their entries.
    fn nodes(&self, name: &ClusterName) -> Option<&Nodes> {
        let world = self.case.world?;
        let entry = (self.id.clone(), name.clone());
        let id = world.identities.get(&entry).cloned().unwrap_or_else(|| ClusterId::from(name.as_str()));
        world.clusters.get(&id)?.nodes.known()
    }

    fn drift(&self, subject: &str, cluster: &ClusterPlan) -> Vec<Check> {
        let layer = Layer::Drift;
        let refused = |problem: &&Problem| matches!(problem.reason, Reason::InvalidSpec | Reason::CIDROverlap);
        if let Some(problem) = self.plan.problems.iter().find(refused) {
            let cause = layer_of(problem.reason).unwrap_or(layer);
            return vec![Check::not_checked(layer, subject, format!("{cause} of {} must be repaired first", self.id))];
        }
        let changes = cluster.id.as_ref().and_then(|id| self.plan.targets.get(id));
        let none = Changes::default();
        let changes = changes.unwrap_or(&none);
        let keep = format!("{} Peers are as planned", changes.keep);
        let pending = || {
            let (create, update, delete) = (changes.create.len(), changes.update.len(), changes.delete.len());
            let check = Check::failed(layer, subject, format!("{create} Peers to create, {update} to update, {delete} to delete"));
            match self.case.led {
                Some(false) => check.hinted("nobody holds the operator's Lease: see why the operator does not run"),
                _ => check.hinted("the operator has yet to do this: see its log, and meshwright plan"),
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
    let more =
        findings.first().filter(|_| rest > 0).map(|first| Check::failed(first.layer, &first.subject, format!("{rest} more like these")));
    findings.into_iter().chain(more).collect()
}

/// The narrowest network with all of these inside.
fn covering(networks: &[Cidr]) -> Option<Cidr> {
    let first = networks.first()?;
    let widths = (0..=128_u8).rev().filter_map(|bits| Cidr::try_from(format!("{}/{bits}", first.first()).as_str()).ok());
    widths.into_iter().find(|net| networks.iter().all(|inner| net.contains(*inner)))
}

/// What the agent writes is the agent's to repair.
fn layer_of_skip(reason: SkipReason) -> Layer {
    match reason {
        SkipReason::NodeAgentSilent | SkipReason::NodeNoPublicKey | SkipReason::NodeNoWireguardIP => Layer::Health,
        _ => Layer::Annotations,
    }
}

/// Where a problem of the planner belongs; nowhere, where another layer tells it.
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
        let nets = |texts: &[&str]| texts.iter().map(|text| Cidr::try_from(*text).unwrap()).collect::<Vec<_>>();
        let around = |texts: &[&str]| covering(&nets(texts)).map(|net| net.to_string());
        assert_eq!(around(&["10.2.1.0/24"]).as_deref(), Some("10.2.1.0/24"));
        assert_eq!(around(&["10.2.1.0/24", "10.2.2.0/24"]).as_deref(), Some("10.2.0.0/22"));
        assert_eq!(around(&["10.2.1.0/24", "fd00::/64"]), None);
        assert_eq!(around(&[]), None);
    }
}
