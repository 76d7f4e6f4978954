//! Gauges of objects, certificates, endpoints and clusters.

use std::collections::BTreeMap;
use std::hash::Hash;

use mw_core::cilium::facts::ClusterSeen;
use mw_core::cilium::object::ObjectId;
use mw_core::cilium::plan::Plan;
use mw_core::cilium::world::{DialFailure, DialOutcome};
use mw_core::condition::READY;
use mw_core::names::ClusterId;
use mw_core::time::Timestamp;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::cilium::engine::Engine;
use crate::cilium::object_source::ObjectSource;
use crate::cilium::record::{Kind, RecordId};
use crate::engine::count;
use crate::metrics::{CertificateLabels, EndpointLabels, ObjectLabels};

/// Values published last, kept to remove series that have ended since.
#[derive(Debug, Default)]
pub(super) struct ObjectMetrics {
    objects: BTreeMap<ObjectLabels, i64>,
    certificates: BTreeMap<CertificateLabels, i64>,
    endpoints: BTreeMap<EndpointLabels, i64>,
    skews: BTreeMap<ObjectLabels, i64>,
}

impl Engine {
    pub(super) fn measure(&mut self, plan: &Plan) {
        self.measure_members();
        let metrics = &self.environment.metrics;
        for (id, member) in &self.members {
            if let Some(time) = &member.last_contact {
                metrics
                    .last_contact
                    .get_or_create(&metrics.cluster(id))
                    .set(time.0.as_second());
            }
        }
        let tenants = self
            .state
            .sources
            .endpoints
            .values()
            .filter_map(|endpoint| {
                endpoint
                    .tenants
                    .known()
                    .known()
                    .map(|tenants| tenants.len())
            });
        metrics.tenants.set(count(tenants.sum()));
        let in_kcp = self
            .records
            .values()
            .filter(|record| record.state.object_source != ObjectSource::Hub);
        let astray = in_kcp
            .filter(|record| record.state.astray.is_some())
            .count();
        metrics.objects_astray.set(count(astray));
        metrics
            .endpoints
            .set(count(self.state.sources.endpoints.len()));
        let now = ObjectMetrics {
            objects: self.ready_objects(plan),
            certificates: self.certificates(),
            endpoints: self.answering_endpoints(),
            skews: skews(plan),
        };
        let before = std::mem::replace(&mut self.state.object_metrics, now);
        publish(
            &metrics.object_ready,
            &before.objects,
            &self.state.object_metrics.objects,
        );
        publish(
            &metrics.certificates,
            &before.certificates,
            &self.state.object_metrics.certificates,
        );
        publish(
            &metrics.endpoint_up,
            &before.endpoints,
            &self.state.object_metrics.endpoints,
        );
        publish(
            &metrics.version_skew,
            &before.skews,
            &self.state.object_metrics.skews,
        );
    }

    fn answering_endpoints(&self) -> BTreeMap<EndpointLabels, i64> {
        let silent = self.silent_endpoints();
        let up = |url: &String| {
            (
                EndpointLabels { url: url.clone() },
                i64::from(!silent.contains_key(url.as_str())),
            )
        };
        self.state.sources.endpoints.keys().map(up).collect()
    }

    fn ready_objects(&self, plan: &Plan) -> BTreeMap<ObjectLabels, i64> {
        self.records
            .keys()
            .map(|id| (object(id.0, &id.1), i64::from(is_ready(plan, id))))
            .collect()
    }

    fn certificates(&self) -> BTreeMap<CertificateLabels, i64> {
        let of = |cluster: &ClusterId, certificate: &'static str| CertificateLabels {
            cluster: self.environment.metrics.cluster(cluster),
            certificate,
        };
        let issued = self
            .state
            .world
            .clusters
            .iter()
            .flat_map(|(cluster, seen)| {
                let all = seen.certificates.known().into_iter();
                all.flat_map(move |all| {
                    let issued = [
                        ("server", &all.server),
                        ("remote", &all.remote),
                        ("local", &all.local),
                    ];
                    let issued =
                        issued.map(|(name, found)| (name, found.known().and_then(Option::as_ref)));
                    let root = all
                        .root
                        .known()
                        .and_then(Option::as_ref)
                        .map(|root| root.not_after);
                    let authority = issued
                        .iter()
                        .filter_map(|(_, found)| Some(found.as_ref()?.ca_not_after))
                        .chain(root)
                        .min();
                    let ends = issued
                        .into_iter()
                        .filter_map(|(name, found)| Some((name, found?.not_after)));
                    ends.chain(authority.map(|end| ("ca", end)))
                        .map(|(name, end)| (of(cluster, name), end.0))
                        .collect::<Vec<_>>()
                })
            });
        let copied = self
            .state
            .world
            .clusters
            .iter()
            .filter_map(|(cluster, seen)| Some((of(cluster, "copied"), first_copied_end(seen)?.0)));
        issued.chain(copied).collect()
    }
}

/// Returns the first expiry of the client files in a cluster's connection Secrets.
fn first_copied_end(seen: &ClusterSeen) -> Option<Timestamp> {
    let secrets = seen.secrets.known()?;
    secrets
        .values()
        .flat_map(|secret| secret.ends.values().copied())
        .min()
}

fn skews(plan: &Plan) -> BTreeMap<ObjectLabels, i64> {
    let skews = plan
        .bindings
        .iter()
        .filter_map(|(id, plan)| Some((object(Kind::Binding, id), i64::from(plan.skew?))));
    skews.collect()
}

fn is_ready(plan: &Plan, (kind, id): &RecordId) -> bool {
    let conditions = match kind {
        Kind::Binding => plan.bindings.get(id).map(|plan| &plan.outcome.conditions),
        Kind::Service => plan.services.get(id).map(|plan| &plan.outcome.conditions),
        Kind::Intent => plan.intents.get(id).map(|plan| &plan.outcome.conditions),
    };
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.kind == READY && condition.status.as_str() == "True")
}

/// Sets the gauges of a family and removes those without a value.
fn publish<L: Clone + Hash + Eq + Ord>(
    family: &Family<L, Gauge>,
    before: &BTreeMap<L, i64>,
    now: &BTreeMap<L, i64>,
) {
    for labels in before.keys().filter(|labels| !now.contains_key(labels)) {
        family.remove(labels);
    }
    for (labels, value) in now {
        family.get_or_create(labels).set(*value);
    }
}

fn object(kind: Kind, id: &ObjectId) -> ObjectLabels {
    ObjectLabels {
        kind: kind.as_str(),
        workspace: id.workspace.to_string(),
        namespace: id.namespace.clone(),
        name: id.name.clone(),
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
