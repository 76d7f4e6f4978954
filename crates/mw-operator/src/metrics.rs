//! What is counted, for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    cluster: String,
    verb: &'static str,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WriteLabels {
    pub cluster: String,
    pub kind: &'static str,
    pub verb: &'static str,
    pub result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClusterLabels {
    pub cluster: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MeshLabels {
    pub namespace: String,
    pub mesh: String,
}

/// An object of the Cilium back end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ObjectLabels {
    pub kind: &'static str,
    pub workspace: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DialLabels {
    pub result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct CertificateLabels {
    pub cluster: String,
    pub certificate: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    pub cluster: String,
    pub category: &'static str,
}

/// All metrics; clones count into the same.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<RequestLabels, Counter>,
    pub writes: Family<WriteLabels, Counter>,
    pub plans: Counter,
    pub plan_seconds: Histogram,
    pub convergence_seconds: Histogram,
    pub failures: Family<FailureLabels, Counter>,
    pub reachable: Family<ClusterLabels, Gauge>,
    pub last_contact: Family<ClusterLabels, Gauge>,
    pub nodes: Family<ClusterLabels, Gauge>,
    pub peers: Family<MeshLabels, Gauge>,
    pub skipped: Family<MeshLabels, Gauge>,
    pub ready: Family<MeshLabels, Gauge>,
    pub pending: Gauge,
    pub object_ready: Family<ObjectLabels, Gauge>,
    pub dials: Family<DialLabels, Counter>,
    pub certificates: Family<CertificateLabels, Gauge>,
    pub endpoints: Gauge,
    pub tenants: Gauge,
    pub events_dropped: Counter,
    pub leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("meshwright");
        let metrics = Metrics {
            registry: Arc::default(),
            requests: Family::default(),
            writes: Family::default(),
            plans: Counter::default(),
            plan_seconds: Histogram::new(exponential_buckets(0.000_1, 4.0, 9)),
            convergence_seconds: Histogram::new(exponential_buckets(0.002, 2.0, 15)),
            failures: Family::default(),
            reachable: Family::default(),
            last_contact: Family::default(),
            nodes: Family::default(),
            peers: Family::default(),
            skipped: Family::default(),
            ready: Family::default(),
            pending: Gauge::default(),
            object_ready: Family::default(),
            dials: Family::default(),
            certificates: Family::default(),
            endpoints: Gauge::default(),
            tenants: Gauge::default(),
            events_dropped: Counter::default(),
            leader: Gauge::default(),
        };
        metrics.register(&mut registry);
        Metrics { registry: Arc::new(registry), ..metrics }
    }
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("api_requests", "Requests to API servers by what came of them", self.requests.clone());
        registry.register("writes", "Writes by what came of them", self.writes.clone());
        registry.register("plans", "Times that a change was planned", self.plans.clone());
        registry.register_with_unit("plan", "How long planning took", Unit::Seconds, self.plan_seconds.clone());
        let help = "From a Node's change to its Peers in all clusters that can be reached";
        registry.register_with_unit("convergence", help, Unit::Seconds, self.convergence_seconds.clone());
        registry.register("failures", "Requests and watches that failed, by category", self.failures.clone());
        registry.register("cluster_reachable", "Whether a cluster can be read and written", self.reachable.clone());
        registry.register("cluster_last_contact_seconds", "Unix time of a cluster's last answer", self.last_contact.clone());
        registry.register("cluster_nodes", "Nodes of a cluster", self.nodes.clone());
        registry.register("mesh_peers", "Peers of a mesh in all clusters", self.peers.clone());
        registry.register("mesh_skipped_nodes", "Nodes that take no part in a mesh", self.skipped.clone());
        registry.register("mesh_ready", "Whether a mesh is Ready", self.ready.clone());
        registry.register("writes_pending", "Peers that are planned but not yet written", self.pending.clone());
        registry.register("object_ready", "Whether an object of the Cilium back end is Ready", self.object_ready.clone());
        registry.register("dials", "Connections to remote clusters by what came of them", self.dials.clone());
        let help = "Unix time at which a certificate of a cluster's clustermesh-apiserver ends";
        registry.register("certificate_expiry_seconds", help, self.certificates.clone());
        registry.register("kcp_endpoints", "Endpoints of the export that are followed", self.endpoints.clone());
        registry.register("kcp_tenants", "Workspaces that are bound to the export", self.tenants.clone());
        registry.register("events_dropped", "Kubernetes events that could not be written", self.events_dropped.clone());
        registry.register("leader", "Whether this process leads", self.leader.clone());
    }

    pub fn of_cluster(&self, cluster: &str) -> RequestMetrics {
        RequestMetrics { requests: self.requests.clone(), cluster: cluster.to_owned() }
    }

    pub fn converged_after(&self, time: Duration) {
        self.convergence_seconds.observe(time.as_secs_f64());
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        _ = encode(&mut text, &self.registry);
        text
    }
}

/// The requests of one cluster.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    requests: Family<RequestLabels, Counter>,
    cluster: String,
}

impl RequestMetrics {
    pub fn count(&self, verb: &'static str, code: &str) {
        let labels = RequestLabels { cluster: self.cluster.clone(), verb, code: code.to_owned() };
        self.requests.get_or_create(&labels).inc();
    }
}
