//! The checks of the Cilium back end on a hub: from what was seen of each
//! cluster, and from what the planner makes of all of them.

use mw_api::cilium::rbac::{CILIUM_NAMESPACE, TARGET};
use mw_core::cilium::facts::{Certificate, ClusterSeen};
use mw_core::cilium::plan::{BindingPlan, TargetPlan};
use mw_core::problem::{Problem, Reason};
use mw_core::seen::Seen;
use mw_core::text::{listed, shell_quoted};
use mw_core::time::Timestamp;
use serde_json::json;

use crate::cilium::{Examination, Examined};
use crate::doctor::access::Access;
use crate::doctor::commands::{Kept, Kubectl, grant, renew_kubeconfig};
use crate::doctor::{Check, Layer, SOON_DAYS, of_layer};

/// The key of a Secret that is tried first.
const FIRST_KEY: &str = "kubeconfig";
/// What `meshwright rbac` calls the rights of a target.
const ROLE: &str = "cilium-target";
const LAYERS_OF_PROBLEMS: [Layer; 5] = [Layer::Health, Layer::Annotations, Layer::Overlap, Layer::Certificates, Layer::Drift];

/// What the checks are made from.
#[derive(Debug)]
pub struct Case<'a> {
    pub seen: &'a Examination,
    pub kubectl: &'a Kubectl,
    pub cilium_namespace: &'a str,
    pub now: Timestamp,
}

impl Case<'_> {
    pub fn checks(&self) -> Vec<Check> {
        let of_clusters = self.seen.clusters.iter().flat_map(|cluster| self.cluster(cluster));
        of_clusters
            .chain(self.seen.plan.bindings.iter().flat_map(|(id, plan)| self.spec(&format!("{}/{}", id.namespace, id.name), plan)))
            .collect()
    }

    fn cluster(&self, seen: &Examined) -> Vec<Check> {
        let access = Access {
            name: &seen.name,
            credentials: &seen.credentials,
            source: format!("Secret {}/{}", seen.namespace, seen.secret),
            answers: seen.answers.as_ref(),
            rights: seen.rights.as_ref(),
            renew: Some(self.renew(seen)),
            grant: grant(&self.kubectl.member(&seen.name), ROLE),
            now: self.now,
        };
        let of_layers = LAYERS_OF_PROBLEMS.into_iter().flat_map(|layer| self.layer(layer, seen));
        access.checks().into_iter().chain(of_layers).collect()
    }

    fn renew(&self, seen: &Examined) -> String {
        let kept = Kept {
            namespace: &seen.namespace,
            secret: &seen.secret,
            key: FIRST_KEY,
            account_namespace: CILIUM_NAMESPACE,
            account: TARGET,
            role: ROLE,
        };
        renew_kubeconfig(&self.kubectl.hub(), &self.kubectl.member(&seen.name), kept)
    }

    fn of_cluster(&self, seen: &Examined) -> Option<&ClusterSeen> {
        self.seen.world.clusters.get(seen.cluster.as_ref()?)
    }

    /// The planner's findings of one layer on one cluster, and what it can't find.
    fn layer(&self, layer: Layer, seen: &Examined) -> Vec<Check> {
        let name = seen.name.as_str();
        let Some(cluster) = self.of_cluster(seen).filter(|cluster| cluster.silent.is_none()) else {
            return vec![Check::not_checked(layer, name, "it can't be read")];
        };
        let bindings = self.seen.plan.bindings.iter().filter(|(id, _)| id.namespace == seen.namespace);
        let about = format!("cluster {name}");
        let problems = bindings.flat_map(|(_, plan)| &plan.outcome.problems).filter(|problem| problem.subject == about);
        let mut findings: Vec<Check> =
            problems.filter(|problem| layer_of(problem.reason) == Some(layer)).map(|problem| self.problem(layer, seen, problem)).collect();
        let fine = match layer {
            Layer::Health => agents(cluster),
            Layer::Certificates => {
                findings.extend(self.ending(name, cluster));
                "none of its certificates ends soon".to_owned()
            }
            Layer::Drift => {
                findings.extend(self.pending(seen));
                "its Secrets are as planned".to_owned()
            }
            Layer::Overlap => "no other cluster has its name or id".to_owned(),
            _ => "its Services say what they must".to_owned(),
        };
        of_layer(layer, name, findings, fine)
    }

    fn problem(&self, layer: Layer, seen: &Examined, problem: &Problem) -> Check {
        let about = format!("cluster {}: ", seen.name);
        let told = problem.message.strip_prefix(&about).unwrap_or(&problem.message);
        let check = Check::failed(layer, &seen.name, format!("{}: {told}", problem.reason));
        let kubectl = format!("{} -n {}", self.kubectl.member(&seen.name), shell_quoted(self.cilium_namespace));
        match problem.reason {
            Reason::CiliumNotReady => check.repaired_by(format!("{kubectl} rollout restart daemonset -l k8s-app=cilium")),
            Reason::APIServerNotReady => check.repaired_by(format!("{kubectl} rollout restart deployment clustermesh-apiserver")),
            Reason::ServiceTypeMismatch => {
                let patch = shell_quoted(&json!({ "spec": { "type": "LoadBalancer" } }).to_string());
                check.repaired_by(format!("{kubectl} patch service clustermesh-apiserver -p {patch}"))
            }
            _ => match problem.hint.split_once(' ') {
                Some(("kubectl", rest)) => check.repaired_by(format!("{} {rest}", self.kubectl.member(&seen.name))),
                Some(("helm", rest)) => check.repaired_by(format!("{} {rest}", self.kubectl.helm(&seen.name))),
                _ => check.hinted_by(problem),
            },
        }
    }

    /// What has ended the planner says.
    fn ending(&self, name: &str, cluster: &ClusterSeen) -> Vec<Check> {
        let Seen::Known(certificates) = &cluster.certificates else { return Vec::new() };
        let all = [("server", &certificates.server), ("remote", &certificates.remote), ("local", &certificates.local)];
        let ending = |(kind, of): (&str, &Seen<Option<Certificate>>)| {
            let days = (of.known()?.as_ref()?.not_after.0 - self.now.0).div_euclid(86_400);
            let observed = format!("Secret clustermesh-apiserver-{kind}-cert: its certificate ends in {days} days");
            let hint = "issue it anew as it was issued: by Helm, cert-manager or the CronJob clustermesh-apiserver-generate-certs";
            (0..SOON_DAYS).contains(&days).then(|| Check::failed(Layer::Certificates, name, observed).hinted(hint))
        };
        all.into_iter().filter_map(ending).collect()
    }

    fn pending(&self, seen: &Examined) -> Option<Check> {
        let changes = self.seen.plan.targets.get(seen.cluster.as_ref()?).filter(|target| !target.is_empty())?;
        let hint = "the provider has yet to do this: see that it runs, and its log";
        Some(Check::failed(Layer::Drift, &seen.name, shown(changes)).hinted(hint))
    }

    fn spec(&self, subject: &str, plan: &BindingPlan) -> Vec<Check> {
        let of = |problem: &&Problem| layer_of(problem.reason) == Some(Layer::Spec);
        let told = |problem: &Problem| Check::failed(Layer::Spec, subject, &problem.message).hinted_by(problem);
        of_layer(Layer::Spec, subject, plan.outcome.problems.iter().filter(of).map(told).collect(), "is as it must be")
    }
}

fn agents(cluster: &ClusterSeen) -> String {
    match &cluster.agents {
        Seen::Known(Some(agents)) => format!("{} of {} agents are ready", agents.ready, agents.desired),
        _ => "runs".to_owned(),
    }
}

fn shown(changes: &TargetPlan) -> String {
    let mut parts = Vec::new();
    parts.extend(changes.identity.iter().map(|_| "cilium-config".to_owned()));
    parts.extend(changes.ca.iter().map(|_| "cilium-ca".to_owned()));
    parts.extend(changes.users.iter().map(|_| "ConfigMap clustermesh-remote-users".to_owned()));
    parts.extend(changes.secrets.keys().map(|secret| format!("Secret {}", secret.as_str())));
    parts.extend(changes.elb.iter().map(|_| "Service clustermesh-apiserver".to_owned()));
    format!("to be written: {}", listed(&parts, 5))
}

/// Where a problem of the planner belongs; nowhere, where another layer tells it.
fn layer_of(reason: Reason) -> Option<Layer> {
    Some(match reason {
        Reason::KubeconfigInvalid | Reason::AccessDenied | Reason::ClusterUnreachable => return None,
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
        // Also failed dials, which follow from what is told before.
        _ => Layer::Drift,
    })
}
