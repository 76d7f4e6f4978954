//! What of it is told in metrics.

use std::collections::BTreeMap;

use mw_core::cilium::world::{DialFailure, DialOutcome};
use mw_core::names::ClusterId;
use mw_core::seen::Seen;

use crate::cilium::engine::Engine;
use crate::cilium::record::{Kind, RecordId};
use crate::cilium::validate::labels;
use crate::metrics::{CertificateLabels, ObjectLabels};

/// What was measured last: what is no more is told no more.
#[derive(Debug, Default)]
pub(super) struct Measured {
    objects: BTreeMap<ObjectLabels, bool>,
    certificates: BTreeMap<CertificateLabels, i64>,
}

impl Engine {
    pub(super) fn measure(&mut self) {
        let metrics = &self.environment.metrics;
        for (id, member) in &self.members {
            metrics.reachable.get_or_create(&labels(id)).set(i64::from(member.link.trouble().is_none()));
            if let Some(time) = &member.last_contact {
                metrics.last_contact.get_or_create(&labels(id)).set(time.0.as_second());
            }
        }
        let tenants = self.endpoints.values().filter_map(|endpoint| endpoint.tenants.known().known().map(|tenants| tenants.len()));
        metrics.tenants.set(i64::try_from(tenants.sum::<usize>()).unwrap_or(i64::MAX));
        metrics.endpoints.set(i64::try_from(self.endpoints.len()).unwrap_or(i64::MAX));
        let now = Measured { objects: self.ready_objects(), certificates: self.certificates() };
        let before = std::mem::replace(&mut self.measured, now);
        before.objects.keys().filter(|labels| !self.measured.objects.contains_key(labels)).for_each(|labels| {
            metrics.object_ready.remove(labels);
        });
        before.certificates.keys().filter(|labels| !self.measured.certificates.contains_key(labels)).for_each(|labels| {
            metrics.certificates.remove(labels);
        });
        for (labels, ready) in &self.measured.objects {
            metrics.object_ready.get_or_create(labels).set(i64::from(*ready));
        }
        for (labels, end) in &self.measured.certificates {
            metrics.certificates.get_or_create(labels).set(*end);
        }
    }

    fn ready_objects(&self) -> BTreeMap<ObjectLabels, bool> {
        let labels = |(kind, id): &RecordId| ObjectLabels {
            kind: kind.as_str(),
            workspace: id.workspace.to_string(),
            namespace: id.namespace.clone(),
            name: id.name.clone(),
        };
        self.records.keys().map(|id| (labels(id), self.is_ready(id))).collect()
    }

    fn is_ready(&self, (kind, id): &RecordId) -> bool {
        let conditions = match kind {
            Kind::Binding => self.plan.bindings.get(id).map(|plan| &plan.outcome.conditions),
            Kind::Service => self.plan.services.get(id).map(|plan| &plan.outcome.conditions),
            Kind::Intent => self.plan.intents.get(id).map(|plan| &plan.outcome.conditions),
        };
        conditions.into_iter().flatten().any(|condition| condition.kind == "Ready" && condition.status.as_str() == "True")
    }

    fn certificates(&self) -> BTreeMap<CertificateLabels, i64> {
        let of = |cluster: &ClusterId, certificate: &'static str| CertificateLabels { cluster: cluster.to_string(), certificate };
        let seen = self.world.clusters.iter().flat_map(|(cluster, seen)| {
            let all = seen.certificates.known().into_iter();
            let named = all.flat_map(|all| [("server", &all.server), ("remote", &all.remote), ("local", &all.local)]);
            named.filter_map(move |(name, found)| match found {
                Seen::Known(Some(certificate)) => Some((of(cluster, name), certificate.not_after.0)),
                _ => None,
            })
        });
        seen.collect()
    }
}

pub(super) fn result_of(outcome: &DialOutcome) -> &'static str {
    match outcome {
        DialOutcome::Read { .. } => "read",
        DialOutcome::Failed { kind, .. } => match kind {
            DialFailure::Unreachable => "unreachable",
            DialFailure::Dns => "dns",
            DialFailure::Address => "address",
            DialFailure::Tcp => "tcp",
            DialFailure::Tls => "tls",
            DialFailure::Certificate => "certificate",
            DialFailure::Permission => "permission",
            DialFailure::Name => "name",
        },
    }
}
