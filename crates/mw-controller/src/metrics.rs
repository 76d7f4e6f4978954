//! Prometheus metrics.

use std::sync::Arc;
use std::time::Duration;

use mw_core::names::ClusterId;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::cluster_names::ClusterNames;
use crate::fleet::secret_of;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    #[prometheus(flatten)]
    cluster: ClusterLabels,
    verb: &'static str,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WriteLabels {
    #[prometheus(flatten)]
    pub cluster: ClusterLabels,
    pub kind: &'static str,
    pub verb: &'static str,
    pub result: &'static str,
}

/// A cluster: its name, and its Secret, because clusters of two meshes may have the
/// same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ClusterLabels {
    pub cluster: String,
    pub secret: String,
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
    #[prometheus(flatten)]
    pub cluster: ClusterLabels,
    pub certificate: &'static str,
}

/// URL of an endpoint of the kcp APIExport.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct EndpointLabels {
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    #[prometheus(flatten)]
    pub cluster: ClusterLabels,
    pub category: &'static str,
}

/// Metrics of both back ends; clones share their values. A process serves the shared
/// ones and those of its own back end.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    names: ClusterNames,
    requests: Family<RequestLabels, Counter>,
    throttles: Family<ClusterLabels, Counter>,
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
    /// Returns metrics of which only those of both back ends are served.
    fn default() -> Self {
        Metrics::serving(Metrics::register_shared)
    }
}

impl Metrics {
    /// Returns the metrics of a process of the Kilo back end.
    pub fn kilo() -> Metrics {
        Metrics::serving(|metrics, registry| {
            metrics.register_shared(registry);
            metrics.register_kilo(registry);
        })
    }

    /// Returns the metrics of a process of the Cilium back end.
    pub fn cilium() -> Metrics {
        Metrics::serving(|metrics, registry| {
            metrics.register_shared(registry);
            metrics.register_cilium(registry);
        })
    }

    fn serving(register: impl Fn(&Metrics, &mut Registry)) -> Metrics {
        let mut registry = Registry::with_prefix("meshwright");
        let metrics = Metrics {
            registry: Arc::default(),
            names: ClusterNames::default(),
            requests: Family::default(),
            throttles: Family::default(),
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
        register(&metrics, &mut registry);
        Metrics {
            registry: Arc::new(registry),
            ..metrics
        }
    }

    fn register_shared(&self, registry: &mut Registry) {
        registry.register(
            "api_requests",
            "Requests to API servers, by cluster, verb and response code",
            self.requests.clone(),
        );
        registry.register(
            "watch_throttles",
            "Pauses in reading the watches of a cluster that sends too many events",
            self.throttles.clone(),
        );
        registry.register(
            "writes",
            "Writes to clusters, by cluster, kind, verb and result",
            self.writes.clone(),
        );
        registry.register(
            "writes_pending",
            "Objects planned but not written yet",
            self.pending.clone(),
        );
        registry.register("plans", "Number of planning runs", self.plans.clone());
        registry.register_with_unit(
            "plan",
            "Duration of planning runs",
            Unit::Seconds,
            self.plan_seconds.clone(),
        );
        registry.register(
            "failures",
            "Failed requests and watches, by cluster and category",
            self.failures.clone(),
        );
        registry.register(
            "cluster_reachable",
            "1 if the cluster is reachable",
            self.reachable.clone(),
        );
        let help = "Unix time of the last answer from the cluster";
        registry.register(
            "cluster_last_contact_timestamp_seconds",
            help,
            self.last_contact.clone(),
        );
        let help = "Estimated memory of the watched objects of the cluster; with more than a quarter of --memory-limit, it is unreachable";
        registry.register("cluster_memory_bytes", help, self.cluster_memory.clone());
        registry.register(
            "events_dropped",
            "Kubernetes events that were not written",
            self.events_dropped.clone(),
        );
        registry.register(
            "leader",
            "1 if this process is the leader",
            self.leader.clone(),
        );
    }

    fn register_kilo(&self, registry: &mut Registry) {
        let help = "Time from a Node change until the Peers are written in all reachable clusters";
        registry.register_with_unit(
            "convergence",
            help,
            Unit::Seconds,
            self.convergence_seconds.clone(),
        );
        registry.register(
            "cluster_nodes",
            "Number of Nodes in the cluster",
            self.nodes.clone(),
        );
        registry.register(
            "mesh_peers",
            "Number of Peers of the mesh in all clusters",
            self.peers.clone(),
        );
        registry.register(
            "mesh_skipped_nodes",
            "Number of skipped Nodes of the mesh",
            self.skipped.clone(),
        );
        registry.register(
            "mesh_ready",
            "1 if the ClusterMesh is Ready",
            self.ready.clone(),
        );
    }

    fn register_cilium(&self, registry: &mut Registry) {
        registry.register(
            "object_ready",
            "1 if the object of the Cilium back end is Ready",
            self.object_ready.clone(),
        );
        registry.register(
            "dials",
            "Dials to the etcd of remote clusters, by result",
            self.dials.clone(),
        );
        let help = "Unix time at which a certificate of the clustermesh-apiserver, its CA, or the first client file in a connection Secret (copied) expires";
        registry.register(
            "certificate_expiry_timestamp_seconds",
            help,
            self.certificates.clone(),
        );
        let help = "Minor versions between the oldest and the newest Cilium in the clusters of the binding";
        registry.register("version_skew_minors", help, self.version_skew.clone());
        registry.register(
            "kcp_endpoints",
            "Number of watched endpoints of the APIExport",
            self.endpoints.clone(),
        );
        registry.register(
            "kcp_endpoint_up",
            "1 if the endpoint of the APIExport answers",
            self.endpoint_up.clone(),
        );
        let help = "Objects that disappeared from their endpoint without deletion, e.g. while a workspace moves";
        registry.register("kcp_objects_astray", help, self.objects_astray.clone());
        registry.register(
            "kcp_tenants",
            "Workspaces bound to the APIExport",
            self.tenants.clone(),
        );
    }

    pub fn names(&self) -> ClusterNames {
        self.names.clone()
    }

    /// Returns the labels of a cluster.
    pub fn cluster(&self, id: &ClusterId) -> ClusterLabels {
        labels(id, &self.names.of(id))
    }

    /// Takes over the names of clusters, as [`ClusterNames::set`] does. Gauges of a
    /// renamed cluster move to its new name; counters start again.
    pub fn name_clusters(&self, named: impl Iterator<Item = (ClusterId, String)>) {
        for (id, former) in self.names.set(named) {
            let former = labels(&id, &former);
            for gauges in self.gauges_of_clusters() {
                let value = gauges.get(&former).map(|gauge| gauge.get());
                if let Some(value) = value {
                    gauges.remove(&former);
                    gauges.get_or_create(&self.cluster(&id)).set(value);
                }
            }
        }
    }

    /// Forgets a removed cluster.
    pub fn forget_cluster(&self, id: &ClusterId) {
        for gauges in self.gauges_of_clusters() {
            gauges.remove(&self.cluster(id));
        }
        self.names.forget(id);
    }

    fn gauges_of_clusters(&self) -> [&Family<ClusterLabels, Gauge>; 4] {
        [
            &self.reachable,
            &self.last_contact,
            &self.nodes,
            &self.cluster_memory,
        ]
    }

    pub fn of_cluster(&self, cluster: &ClusterId) -> RequestMetrics {
        RequestMetrics {
            requests: self.requests.clone(),
            throttles: self.throttles.clone(),
            names: self.names(),
            cluster: cluster.clone(),
        }
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

fn labels(id: &ClusterId, name: &str) -> ClusterLabels {
    ClusterLabels {
        cluster: name.to_owned(),
        secret: secret_of(id).unwrap_or_default().to_owned(),
    }
}

/// Counters of the requests and watches of one cluster.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    requests: Family<RequestLabels, Counter>,
    throttles: Family<ClusterLabels, Counter>,
    names: ClusterNames,
    cluster: ClusterId,
}

impl RequestMetrics {
    pub fn count(&self, verb: &'static str, code: &str) {
        let labels = RequestLabels {
            cluster: self.labels(),
            verb,
            code: code.to_owned(),
        };
        self.requests.get_or_create(&labels).inc();
    }

    pub fn count_throttle(&self) {
        self.throttles.get_or_create(&self.labels()).inc();
    }

    fn labels(&self) -> ClusterLabels {
        labels(&self.cluster, &self.names.of(&self.cluster))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the help texts of all metrics that are served, by name.
    fn served(metrics: &Metrics) -> BTreeMap<String, String> {
        let (name, cluster) = (
            || "us".to_owned(),
            metrics.cluster(&ClusterId::from("net/us")),
        );
        for gauge in [
            &metrics.reachable,
            &metrics.last_contact,
            &metrics.nodes,
            &metrics.cluster_memory,
        ] {
            gauge.get_or_create(&cluster).set(1);
        }
        for gauge in [&metrics.peers, &metrics.skipped, &metrics.ready] {
            gauge
                .get_or_create(&MeshLabels {
                    namespace: name(),
                    mesh: name(),
                })
                .set(1);
        }
        let object = ObjectLabels {
            kind: "GlobalService",
            workspace: String::new(),
            namespace: name(),
            name: name(),
        };
        for gauge in [&metrics.object_ready, &metrics.version_skew] {
            gauge.get_or_create(&object).set(1);
        }
        metrics
            .certificates
            .get_or_create(&CertificateLabels {
                cluster: cluster.clone(),
                certificate: "server",
            })
            .set(1);
        metrics
            .endpoint_up
            .get_or_create(&EndpointLabels {
                url: "https://kcp.example".to_owned(),
            })
            .set(1);
        metrics
            .failures
            .get_or_create(&FailureLabels {
                cluster: cluster.clone(),
                category: "timeout",
            })
            .inc();
        metrics
            .writes
            .get_or_create(&WriteLabels {
                cluster,
                kind: "Peer",
                verb: "create",
                result: "done",
            })
            .inc();
        metrics
            .dials
            .get_or_create(&DialLabels { result: "read" })
            .inc();
        let requests = metrics.of_cluster(&ClusterId::from("net/us"));
        requests.count("GET", "200");
        requests.count_throttle();
        let text = metrics.text();
        let helps = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP meshwright_")?.split_once(' '));
        helps
            .map(|(name, help)| (name.to_owned(), help.to_owned()))
            .collect()
    }

    #[test]
    fn a_back_end_serves_only_its_own_metrics_and_the_shared_ones() {
        let [shared, kilo, cilium] = [Metrics::default(), Metrics::kilo(), Metrics::cilium()]
            .map(|metrics| served(&metrics));
        let own = |all: &BTreeMap<String, String>| {
            assert!(shared.keys().all(|name| all.contains_key(name)));
            all.keys()
                .filter(|name| !shared.contains_key(*name))
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            own(&kilo),
            [
                "cluster_nodes",
                "convergence_seconds",
                "mesh_peers",
                "mesh_ready",
                "mesh_skipped_nodes"
            ]
        );
        assert_eq!(
            own(&cilium),
            [
                "certificate_expiry_timestamp_seconds",
                "dials",
                "kcp_endpoint_up",
                "kcp_endpoints",
                "kcp_objects_astray",
                "kcp_tenants",
                "object_ready",
                "version_skew_minors"
            ]
        );
    }

    #[test]
    fn clusters_have_their_names_and_gauges_follow_a_new_name() {
        let metrics = Metrics::kilo();
        let ids =
            ["net/us-kubeconfig", "team/us-kubeconfig", crate::fleet::HUB].map(ClusterId::from);
        let name = |names: [&str; 3]| {
            metrics.name_clusters(ids.clone().into_iter().zip(names.map(str::to_owned)))
        };
        name(["us", "us", "eu"]);
        for (number, id) in (1..).zip(&ids) {
            metrics
                .nodes
                .get_or_create(&metrics.cluster(id))
                .set(number);
        }
        let nodes = || {
            let text = metrics.text();
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix("meshwright_cluster_nodes"));
            lines
                .map(str::to_owned)
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        };
        let us = [
            r#"{cluster="us",secret="net/us-kubeconfig"} 1"#,
            r#"{cluster="us",secret="team/us-kubeconfig"} 2"#,
        ];
        assert_eq!(nodes(), [r#"{cluster="eu",secret=""} 3"#, us[0], us[1]]);
        name(["us", "us", "europe"]);
        assert_eq!(nodes(), [r#"{cluster="europe",secret=""} 3"#, us[0], us[1]]);
        metrics.forget_cluster(&ids[0]);
        assert_eq!(nodes(), [r#"{cluster="europe",secret=""} 3"#, us[1]]);
        let requests = metrics.of_cluster(&ids[2]);
        name(["us", "us", "eu"]);
        requests.count("GET", "200");
        assert!(metrics.text().contains(
            r#"meshwright_api_requests_total{cluster="eu",secret="",verb="GET",code="200"} 1"#
        ));
    }

    #[test]
    fn exactly_the_unix_times_are_called_timestamps() {
        for (name, help) in served(&Metrics::kilo())
            .into_iter()
            .chain(served(&Metrics::cilium()))
        {
            assert_eq!(
                name.ends_with("_timestamp_seconds"),
                help.starts_with("Unix time"),
                "{name}: {help}"
            );
        }
    }
}
