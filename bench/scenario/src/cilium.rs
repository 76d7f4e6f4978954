//! Five clusters with Cilium's control plane, one of which is the hub, in one mesh. One
//! cluster has a load balancer with two addresses.

use std::net::Ipv4Addr;

use mw_testbed::cilium::{Ca, Cilium, CiliumSpec, Exposure};
use mw_testbed::eventually;
use serde_json::{Value, json};

use crate::fleet::{Account, DEADLINE, Fleet, NAMES, account};
use crate::progress;

const HUB: Account = Account {
    namespace: "meshwright",
    name: "meshwright-provider",
    roles: include_str!("../../../config/rbac/cilium-hub.yaml"),
};
const TARGET: Account = Account {
    namespace: "kube-system",
    name: "meshwright-target",
    roles: concat!(
        include_str!("../../../config/rbac/cilium-target.yaml"),
        "---\n",
        include_str!("../../../config/rbac/cilium-target-ca.yaml"),
        "---\n",
        include_str!("../../../config/rbac/cilium-target-metrics.yaml"),
        "---\n",
        include_str!("../../../config/cilium-connection-secrets.yaml"),
    ),
};
const BINDING_CRD: &str =
    include_str!("../../../config/crd/networking.edge-portal.eu_clustermeshbindings.yaml");
const BINDING: &str =
    "/apis/networking.edge-portal.eu/v1alpha1/namespaces/meshwright/clustermeshbindings/bench";

/// Cluster whose address changes; all others read it.
pub(crate) const REMOTE: usize = 1;

pub(crate) struct Mesh {
    pub(crate) fleet: Fleet,
    /// Addresses of the load balancer. Both lead to etcd and are covered by its
    /// certificate.
    pub(crate) addresses: [Ipv4Addr; 2],
    _ciliums: Vec<Cilium>,
}

impl Mesh {
    /// Starts the clusters. Returns `None`, after reporting why, if this machine can't
    /// run Cilium's control plane.
    pub(crate) async fn start() -> Option<Self> {
        progress(&format!("{} clusters with Cilium", NAMES.len()));
        let mut fleet = Fleet::start(HUB.namespace).await;
        let ca = Ca::new().unwrap();
        let mut ciliums = Vec::new();
        for (at, (name, id)) in NAMES.iter().zip(1..).enumerate() {
            let addresses = if at == REMOTE { 2 } else { 1 };
            let spec = CiliumSpec {
                exposure: Exposure::LoadBalancer { addresses },
                ..CiliumSpec::new(name, id, &ca)
            };
            ciliums.push(Cilium::install_or_skip(&fleet.bed, name, spec).await?);
            let token = account(fleet.cluster(at), &TARGET, false).await;
            fleet.addresses.push(fleet.address(at, &token));
        }
        fleet.write_kubeconfig(&account(fleet.cluster(0), &HUB, false).await);
        let addresses: Vec<Ipv4Addr> = ciliums[REMOTE]
            .addresses()
            .iter()
            .map(|address| *address.ip())
            .collect();
        let mesh = Self {
            fleet,
            addresses: addresses.try_into().unwrap(),
            _ciliums: ciliums,
        };
        mesh.declare().await;
        Some(mesh)
    }

    async fn declare(&self) {
        let hub = self.fleet.cluster(0);
        hub.install_crd(BINDING_CRD).await.unwrap();
        for (at, name) in NAMES.iter().enumerate() {
            self.fleet.give_access(at, name).await;
        }
        let metadata = json!({ "name": "bench", "namespace": HUB.namespace });
        let spec = json!({ "clusterRefs": NAMES.map(|name| json!({ "name": name })) });
        let kind = "ClusterMeshBinding";
        let binding = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
        hub.create(&binding).await.unwrap();
    }

    /// Waits until every link is verified.
    pub(crate) async fn connected(&self) {
        eventually(DEADLINE, || async {
            let binding = self
                .fleet
                .cluster(0)
                .get(BINDING)
                .await
                .map_err(|error| error.to_string())?
                .unwrap_or(Value::Null);
            if binding["status"]["phase"] == "Connected" {
                Ok(())
            } else {
                Err(format!("not connected: {}", binding["status"]))
            }
        })
        .await
        .unwrap();
    }
}
