//! Checks of one cluster on its own: is it reachable, does Cilium run, are its
//! certificates valid, is its clustermesh-apiserver available.

use crate::cilium::facts::{Certificate, ClusterSeen, Silence};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::object::{Refusal, Resolution};
use crate::problem::Reason;
use crate::seen::Seen;
use crate::text::quoted;
use crate::time::Timestamp;

const COPY_CA: &str = "install the certificates with Helm; to have a missing cilium-ca copied from another member, apply \
                       config/rbac/cilium-target-ca.yaml in both clusters";

/// The reason why a ref does not resolve to a cluster.
pub(super) fn unresolved(resolution: Option<&Resolution>) -> Option<Finding> {
    let step = Step::Credentials;
    Some(match resolution {
        Some(Resolution::Cluster(_)) => return None,
        None => Finding::not_ready(step, Reason::ClusterNotReady, "not resolved yet"),
        Some(Resolution::Pending(why) | Resolution::Gone(why)) => {
            Finding::not_ready(step, Reason::ClusterNotReady, why)
        }
        Some(Resolution::Revoked(why)) => Finding::not_ready(step, Reason::ClusterNotReady, why),
        Some(Resolution::OwnerMissing(why)) => Finding::not_ready(step, Reason::OwnerMissing, why),
        Some(Resolution::Unreachable(why)) => Finding::waiting(
            step,
            Reason::ClusterUnreachable,
            format!("unreachable: {why}"),
        ),
        Some(Resolution::Refused(Refusal::Kubeconfig(why))) => Finding::permanent(
            step,
            Reason::KubeconfigInvalid,
            format!("reading kubeconfig secret: {why}"),
        ),
        Some(Resolution::Refused(Refusal::Forbidden(why))) => {
            Finding::permanent(step, Reason::AccessDenied, why)
        }
        Some(Resolution::Refused(Refusal::Shared)) => {
            let hint = "use each cluster in one namespace only; in kcp, list all workspaces that share it on the Cluster";
            Finding::permanent(
                step,
                Reason::ClusterShared,
                "the cluster is already used by another owner",
            )
            .hint(hint)
        }
        Some(Resolution::Refused(Refusal::Capability { status, checked })) => {
            let checked = checked
                .as_deref()
                .map(|time| format!(" (checked {time})"))
                .unwrap_or_default();
            let text = format!("Cilium not found: capability cilium-cni is {status}{checked}");
            Finding::permanent(Step::Cilium, Reason::CiliumNotFound, text)
                .hint("install Cilium in that cluster")
        }
    })
}

/// All findings of a cluster, in the order of the steps.
pub(super) fn survey(seen: &ClusterSeen, now: Timestamp) -> Vec<Finding> {
    if let Some(silence) = &seen.silent {
        return vec![match silence {
            Silence::Unreachable(why) => Finding::waiting(
                Step::Credentials,
                Reason::ClusterUnreachable,
                format!("unreachable: {why}"),
            ),
            Silence::Forbidden(why) => {
                Finding::permanent(Step::Credentials, Reason::AccessDenied, why)
            }
        }];
    }
    [
        agents(seen),
        config(seen),
        certificates(seen, now),
        api_server(seen),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A temporary finding: the state may be known soon.
fn unknown(step: Step, why: &str) -> Finding {
    Finding::waiting(
        step,
        Reason::ClusterUnreachable,
        format!("not known yet: {why}"),
    )
}

fn agents(seen: &ClusterSeen) -> Option<Finding> {
    match (seen.agents.known(), seen.agents.why_unknown()) {
        (_, Some(why)) => Some(unknown(Step::Cilium, why)),
        (Some(Some(agents)), _) if agents.ready > 0 => None,
        (Some(Some(agents)), _) => {
            let text = format!("no agent is ready (0 of {})", agents.desired);
            Some(Finding::waiting(Step::Cilium, Reason::CiliumNotReady, text))
        }
        _ => Some(
            Finding::permanent(Step::Cilium, Reason::CiliumNotFound, "Cilium not found")
                .hint("install Cilium in that cluster"),
        ),
    }
}

fn config(seen: &ClusterSeen) -> Option<Finding> {
    match (&seen.config.known(), seen.config.why_unknown()) {
        (_, Some(why)) => Some(unknown(Step::Identity, why)),
        (Some(Some(_)), _) => None,
        _ => Some(Finding::permanent(
            Step::Identity,
            Reason::CiliumConfigMissing,
            "ConfigMap cilium-config not found",
        )),
    }
}

fn certificates(seen: &ClusterSeen, now: Timestamp) -> Option<Finding> {
    let Some(found) = seen.certificates.known() else {
        return seen
            .certificates
            .why_unknown()
            .map(|why| unknown(Step::Authority, why));
    };
    let all = [
        ("server", &found.server),
        ("remote", &found.remote),
        ("local", &found.local),
    ];
    let root = found.root.why_unknown().filter(|_| !found.root_withheld);
    let unreadable = root.or_else(|| {
        all.iter()
            .find_map(|(_, certificate)| certificate.why_unknown())
    });
    if let Some(why) = unreadable {
        let finding = Finding::permanent(Step::Authority, Reason::CertificateUnreadable, why);
        return Some(finding.hint("reissue it, e.g. with helm upgrade"));
    }
    let expired = all
        .iter()
        .find(|(_, certificate)| is_expired(certificate, now));
    let missing = all
        .iter()
        .take(2)
        .find(|(_, certificate)| matches!(certificate, Seen::Known(None)));
    match (expired, missing) {
        (Some((name, _)), _) => {
            let text =
                format!("the certificate in Secret clustermesh-apiserver-{name}-cert has expired");
            Some(
                Finding::permanent(Step::Authority, Reason::CertificateExpired, text)
                    .hint("renew it, e.g. with helm upgrade"),
            )
        }
        (None, Some((name, _))) => {
            let text = format!("Secret clustermesh-apiserver-{name}-cert is missing");
            let hint = if found.root_withheld { COPY_CA } else { "" };
            Some(Finding::waiting(Step::Authority, Reason::CertificateMissing, text).hint(hint))
        }
        (None, None) => None,
    }
}

fn is_expired(certificate: &Seen<Option<Certificate>>, now: Timestamp) -> bool {
    certificate
        .known()
        .and_then(Option::as_ref)
        .is_some_and(|certificate| certificate.not_after <= now)
}

fn api_server(seen: &ClusterSeen) -> Option<Finding> {
    match (seen.apiserver.known(), seen.apiserver.why_unknown()) {
        (_, Some(why)) => Some(unknown(Step::ApiServer, why)),
        (Some(Some(server)), _) if server.available > 0 => None,
        (Some(Some(_)), _) => Some(Finding::waiting(
            Step::ApiServer,
            Reason::APIServerNotReady,
            "no replica is available",
        )),
        _ => {
            let finding = Finding::permanent(
                Step::ApiServer,
                Reason::APIServerNotFound,
                "clustermesh-apiserver not found",
            );
            Some(finding.hint("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set clustermesh.useAPIServer=true"))
        }
    }
}

/// The finding for a Service with the wrong type.
pub(super) fn wrong_type(wanted: &str, is: &str) -> Finding {
    let text = format!(
        "meshConfig.serviceType is {wanted}, but the Service is of type {}",
        quoted(is)
    );
    let hint = "change meshConfig.serviceType, or change the type of the Service with Helm";
    Finding::permanent(Step::ApiServer, Reason::ServiceTypeMismatch, text).hint(hint)
}
