//! Prometheus metrics.

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

/// URL of an endpoint of the kcp APIExport.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct EndpointLabels {
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    pub cluster: String,
    pub category: &'static str,
}

/// All metrics; clones share their values.
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
    pub cluster_memory: Family<ClusterLabels, Gauge>,
    pub peers: Family<MeshLabels, Gauge>,
    pub skipped: Family<MeshLabels, Gauge>,
    pub ready: Family<MeshLabels, Gauge>,
    pub pending: Gauge,
    pub object_ready: Family<ObjectLabels, Gauge>,
    pub dials: Family<DialLabels, Counter>,
    pub certificates: Family<CertificateLabels, Gauge>,
    pub version_skew: Family<ObjectLabels, Gauge>,
    pub endpoints: Gauge,
    pub endpoint_up: Family<EndpointLabels, Gauge>,
    pub objects_astray: Gauge,
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
            cluster_memory: Family::default(),
            peers: Family::default(),
            skipped: Family::default(),
            ready: Family::default(),
            pending: Gauge::default(),
            object_ready: Family::default(),
            dials: Family::default(),
            certificates: Family::default(),
            version_skew: Family::default(),
            endpoints: Gauge::default(),
            endpoint_up: Family::default(),
            objects_astray: Gauge::default(),
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
        registry.register("api_requests", "Requests to API servers, by cluster, verb and response code", self.requests.clone());
        registry.register("writes", "Writes to clusters, by cluster, kind, verb and result", self.writes.clone());
        registry.register("plans", "Number of planning runs", self.plans.clone());
        registry.register_with_unit("plan", "Duration of planning runs", Unit::Seconds, self.plan_seconds.clone());
        let help = "Time from a Node change until the Peers are written in all reachable clusters";
        registry.register_with_unit("convergence", help, Unit::Seconds, self.convergence_seconds.clone());
        registry.register("failures", "Failed requests and watches, by cluster and category", self.failures.clone());
        registry.register("cluster_reachable", "1 if the cluster is reachable", self.reachable.clone());
        registry.register("cluster_last_contact_seconds", "Unix time of the last answer from the cluster", self.last_contact.clone());
        registry.register("cluster_nodes", "Number of Nodes in the cluster", self.nodes.clone());
        let help = "Estimated memory of the watched objects of the cluster; with more than an eighth of --memory-limit, it is unreachable";
        registry.register("cluster_memory_bytes", help, self.cluster_memory.clone());
        registry.register("mesh_peers", "Number of Peers of the mesh in all clusters", self.peers.clone());
        registry.register("mesh_skipped_nodes", "Number of skipped Nodes of the mesh", self.skipped.clone());
        registry.register("mesh_ready", "1 if the ClusterMesh is Ready", self.ready.clone());
        registry.register("writes_pending", "Peers planned but not written yet", self.pending.clone());
        registry.register("object_ready", "1 if the object of the Cilium back end is Ready", self.object_ready.clone());
        registry.register("dials", "Dials to the etcd of remote clusters, by result", self.dials.clone());
        let help = "Unix time at which a certificate of the clustermesh-apiserver, or its CA, expires";
        registry.register("certificate_expiry_timestamp_seconds", help, self.certificates.clone());
        let help = "Minor versions between the oldest and the newest Cilium in the clusters of the binding";
        registry.register("version_skew_minors", help, self.version_skew.clone());
        registry.register("kcp_endpoints", "Number of watched endpoints of the APIExport", self.endpoints.clone());
        registry.register("kcp_endpoint_up", "1 if the endpoint of the APIExport answers", self.endpoint_up.clone());
        let help = "Objects that disappeared from their endpoint without deletion, e.g. while a workspace moves";
        registry.register("kcp_objects_astray", help, self.objects_astray.clone());
        registry.register("kcp_tenants", "Workspaces bound to the APIExport", self.tenants.clone());
        registry.register("events_dropped", "Kubernetes events that were not written", self.events_dropped.clone());
        registry.register("leader", "1 if this process is the leader", self.leader.clone());
    }

    pub fn of_cluster(&self, cluster: &str) -> RequestMetrics {
        RequestMetrics { requests: self.requests.clone(), cluster: cluster.to_owned() }
    }

    pub fn converged_after(&self, time: Duration) {
        self.convergence_seconds.observe(time.as_secs_f64());
    }

    /// Returns the metrics in OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        _ = encode(&mut text, &self.registry);
        text
    }
}

/// Request counters of one cluster.
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
