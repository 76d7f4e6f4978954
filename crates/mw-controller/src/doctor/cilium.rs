//! Checks of the Cilium back end on a hub, made from the state of each cluster and
//! from the planner's findings.

use mw_api::cilium::rbac::{CILIUM_NAMESPACE, TARGET};
use mw_core::cilium::expiry::{self, Ending, Renewal};
use mw_core::cilium::facts::ClusterSeen;
use mw_core::cilium::plan::{Behind, BindingPlan, TargetPlan};
use mw_core::condition::cilium::kind;
use mw_core::problem::{Problem, Reason};
use mw_core::seen::Seen;
use mw_core::text::{listed, shell_quoted};
use mw_core::time::Timestamp;
use serde_json::json;

use crate::cilium::{Examination, Examined};
use crate::doctor::access::Access;
use crate::doctor::commands::{Kept, Kubectl, grant, renew_kubeconfig, upgrade_cilium};
use crate::doctor::{Check, Layer, of_layer};

/// Preferred key of a kubeconfig in a Secret.
const FIRST_KEY: &str = "kubeconfig";
/// Name of a target's role in `meshwright rbac`.
const ROLE: &str = "cilium-target";
const LAYERS_OF_PROBLEMS: [Layer; 5] = [
    Layer::Health,
    Layer::Annotations,
    Layer::Overlap,
    Layer::Certificates,
    Layer::Drift,
];

/// Inputs of the checks.
#[derive(Debug)]
pub struct Case<'a> {
    pub seen: &'a Examination,
    pub kubectl: &'a Kubectl,
    /// The cluster with the kubeconfig Secrets.
    pub hub: &'a Kubectl,
    pub cilium_namespace: &'a str,
    pub now: Timestamp,
}

impl Case<'_> {
    pub fn checks(&self) -> Vec<Check> {
        let of_clusters = self
            .seen
            .clusters
            .iter()
            .flat_map(|cluster| self.cluster(cluster));
        of_clusters
            .chain(
                self.seen.plan.bindings.iter().flat_map(|(id, plan)| {
                    self.spec(&format!("{}/{}", id.namespace, id.name), plan)
                }),
            )
            .collect()
    }

    fn cluster(&self, seen: &Examined) -> Vec<Check> {
        let access = Access {
            name: &seen.name,
            credentials: &seen.credentials,
            source: seen.secret.as_ref().map_or_else(
                || "its Secret".to_owned(),
                |(namespace, name)| format!("Secret {namespace}/{name}"),
            ),
            answers: seen.answers.as_ref(),
            rights: seen.rights.as_ref(),
            renew: seen
                .secret
                .as_ref()
                .map(|secret| self.renew(&seen.name, secret)),
            grant: grant(&self.kubectl.member(&seen.name), ROLE),
            now: self.now,
        };
        let of_layers = LAYERS_OF_PROBLEMS
            .into_iter()
            .flat_map(|layer| self.layer(layer, seen));
        access.checks().into_iter().chain(of_layers).collect()
    }

    fn renew(&self, name: &str, (namespace, secret): &(String, String)) -> String {
        let kept = Kept {
            namespace,
            secret,
            key: FIRST_KEY,
            account_namespace: CILIUM_NAMESPACE,
            account: TARGET,
            role: ROLE,
        };
        renew_kubeconfig(&self.hub.hub(), &self.kubectl.member(name), kept)
    }

    fn of_cluster(&self, seen: &Examined) -> Option<&ClusterSeen> {
        self.seen.world.clusters.get(seen.cluster.as_ref()?)
    }

    /// Findings of one layer on one cluster: the planner's, and those it can't make.
    fn layer(&self, layer: Layer, seen: &Examined) -> Vec<Check> {
        let name = seen.name.as_str();
        let Some(cluster) = self
            .of_cluster(seen)
            .filter(|cluster| cluster.silent.is_none())
        else {
            return vec![Check::not_checked(layer, name, "the cluster can't be read")];
        };
        let bindings = self
            .seen
            .plan
            .bindings
            .iter()
            .filter(|(id, _)| id.namespace == seen.namespace);
        let about = format!("cluster {name}");
        let problems = bindings
            .flat_map(|(_, plan)| &plan.outcome.problems)
            .filter(|problem| problem.subject == about);
        let mut findings: Vec<Check> = problems
            .filter(|problem| layer_of(problem.reason) == Some(layer))
            .map(|problem| self.problem(layer, seen, problem))
            .collect();
        let fine = match layer {
            Layer::Health => agents(cluster),
            Layer::Certificates => {
                findings.extend(self.ending(name, cluster));
                "no certificate expires soon".to_owned()
            }
            Layer::Drift => {
                findings.extend(self.pending(seen));
                "Secrets are up to date".to_owned()
            }
            Layer::Overlap => "cluster name and ID are unique".to_owned(),
            _ => "Service annotations are up to date".to_owned(),
        };
        let mut checks = of_layer(layer, name, findings, fine);
        if layer == Layer::Certificates {
            checks.extend(self.admin_certificate(name, cluster));
        }
        checks
    }

    /// The admin certificate of Cilium 1.15, whose Secret the role does not include.
    fn admin_certificate(&self, name: &str, cluster: &ClusterSeen) -> Option<Check> {
        let command = self.typed(name, &expiry::show_admin_certificate(self.cilium_namespace))?;
        let why = "the admin certificate of Cilium 1.15 is not read, because its Secret also has a key that is root in etcd";
        let hint = format!("check its name and expiry: {command}");
        cluster
            .uses_admin_certificate()
            .then(|| Check::manual(Layer::Certificates, name, why, &hint))
    }

    fn problem(&self, layer: Layer, seen: &Examined, problem: &Problem) -> Check {
        let about = format!("cluster {}: ", seen.name);
        let told = problem
            .message
            .strip_prefix(&about)
            .unwrap_or(&problem.message);
        let check = Check::failed(layer, &seen.name, format!("{}: {told}", problem.reason));
        let kubectl = format!(
            "{} -n {}",
            self.kubectl.member(&seen.name),
            shell_quoted(self.cilium_namespace)
        );
        match problem.reason {
            Reason::CiliumNotReady => check.repaired_by(format!(
                "{kubectl} rollout restart daemonset -l k8s-app=cilium"
            )),
            Reason::APIServerNotReady => check.repaired_by(format!(
                "{kubectl} rollout restart deployment clustermesh-apiserver"
            )),
            Reason::ServiceTypeMismatch => {
                let patch =
                    shell_quoted(&json!({ "spec": { "type": "LoadBalancer" } }).to_string());
                check.repaired_by(format!(
                    "{kubectl} patch service clustermesh-apiserver -p {patch}"
                ))
            }
            _ => match self.typed(&seen.name, &problem.hint) {
                Some(command) => check.repaired_by(command),
                None => check.hinted_by(problem),
            },
        }
    }

    /// Turns a kubectl or Helm line into a command for one cluster.
    fn typed(&self, name: &str, line: &str) -> Option<String> {
        match line.split_once(' ')? {
            ("kubectl", rest) => Some(format!("{} {rest}", self.kubectl.member(name))),
            ("helm", rest) => Some(format!("{} {rest}", self.kubectl.helm(name))),
            _ => None,
        }
    }

    /// Certificates that expire soon; the planner reports expired ones.
    fn ending(&self, name: &str, cluster: &ClusterSeen) -> Vec<Check> {
        let ending = expiry::ending(cluster, self.now, self.cilium_namespace)
            .into_iter()
            .filter(|of| of.at > self.now);
        let told = ending.map(|Ending { files, at, renewal }| {
            let days = (at.0 - self.now.0).div_euclid(86_400);
            let observed = format!("{} expires in {days} days ({at})", files.join(", "));
            let check = Check::failed(Layer::Certificates, name, observed);
            let (command, otherwise) = match &renewal {
                Renewal::Line { typed, otherwise } => {
                    (self.typed(name, typed), otherwise.as_deref())
                }
                Renewal::Told(_) => (None, None),
            };
            match (command, otherwise) {
                (Some(command), Some(otherwise)) => check.repaired_by(command).hinted(otherwise),
                (Some(command), None) => check.repaired_by(command),
                (None, _) => check.hinted(&format!("reissue it: {renewal}")),
            }
        });
        told.collect()
    }

    fn pending(&self, seen: &Examined) -> Option<Check> {
        let changes = self
            .seen
            .plan
            .targets
            .get(seen.cluster.as_ref()?)
            .filter(|target| !target.is_empty())?;
        let hint =
            "the provider has not written this yet: check that it is running, and check its log";
        Some(Check::failed(Layer::Drift, &seen.name, shown(changes)).hinted(hint))
    }

    fn spec(&self, subject: &str, plan: &BindingPlan) -> Vec<Check> {
        let skew = plan
            .outcome
            .conditions
            .iter()
            .find(|of| of.kind == kind::VERSION_SKEW)
            .zip(plan.behind.first());
        let skew = skew.map(|(of, Behind { cluster, runs })| {
            let command = upgrade_cilium(&self.kubectl.helm(cluster), self.cilium_namespace, runs.next_minor());
            let hint = "upgrade Cilium one minor release at a time; read the upgrade notes of that release first";
            Check::failed(Layer::Spec, subject, format!("{}: {}", of.kind, of.message)).repaired_by(command).hinted(hint)
        });
        let of = |problem: &&Problem| layer_of(problem.reason) == Some(Layer::Spec);
        let told = |problem: &Problem| {
            Check::failed(Layer::Spec, subject, &problem.message).hinted_by(problem)
        };
        let found = plan
            .outcome
            .problems
            .iter()
            .filter(of)
            .map(told)
            .chain(skew)
            .collect();
        of_layer(Layer::Spec, subject, found, "valid")
    }
}

fn agents(cluster: &ClusterSeen) -> String {
    match &cluster.agents {
        Seen::Known(Some(agents)) => {
            format!("{} of {} agents are ready", agents.ready, agents.desired)
        }
        _ => "running".to_owned(),
    }
}

fn shown(changes: &TargetPlan) -> String {
    let mut parts = Vec::new();
    parts.extend(changes.identity.iter().map(|_| "cilium-config".to_owned()));
    parts.extend(changes.ca.iter().map(|_| "cilium-ca".to_owned()));
    parts.extend(
        changes
            .users
            .iter()
            .map(|_| "ConfigMap clustermesh-remote-users".to_owned()),
    );
    parts.extend(
        changes
            .secrets
            .keys()
            .map(|secret| format!("Secret {}", secret.as_str())),
    );
    parts.extend(
        changes
            .elb
            .iter()
            .map(|_| "Service clustermesh-apiserver".to_owned()),
    );
    format!("pending writes: {}", listed(&parts, 5))
}

/// Layer of a planner's problem; None if another layer already reports it.
fn layer_of(reason: Reason) -> Option<Layer> {
    Some(match reason {
        Reason::KubeconfigInvalid | Reason::AccessDenied | Reason::ClusterUnreachable => {
            return None;
        }
        Reason::InvalidSpec => Layer::Spec,
        Reason::CiliumNotFound
        | Reason::CiliumNotReady
        | Reason::CiliumConfigMissing
        | Reason::CiliumTooOld
        | Reason::APIServerNotFound
        | Reason::APIServerNotReady
        | Reason::AddressPending
        | Reason::ClusterNotReady
        | Reason::ServiceTypeMismatch => Layer::Health,
        Reason::ELBIDRefused | Reason::AnnotationOwnedByOther => Layer::Annotations,
        Reason::ClusterIDInvalid
        | Reason::ClusterNameRefused
        | Reason::DuplicateClusterID
        | Reason::DuplicateClusterName
        | Reason::MaxConnectedClustersDiffer
        | Reason::NoClusterIDLeft
        | Reason::SameClusterTwice => Layer::Overlap,
        Reason::CertificateExpired
        | Reason::CertificateMissing
        | Reason::CertificateUnreadable
        | Reason::ClientFilesMissing
        | Reason::ServerNameMismatch => Layer::Certificates,
        // Includes failed dials, which are consequences of earlier findings.
        _ => Layer::Drift,
    })
}
