//! Tenants in kcp, their clusters, and the management plane that knows how to reach these.

use mw_testbed::Kcp;
use mw_testbed::kcp::binding;
use serde_json::{Value, json};

use crate::ground::{Ground, NAMESPACES, SITES, namespace_of};
use crate::look::Home;
use crate::rights::documents;
use crate::wait::until;

/// Workspace with the exports.
pub(crate) const PROVIDER: &str = "system";
/// All tenants of all scenarios.
pub(crate) const NAMES: [&str; 4] = ["tenant-a", "tenant-b", "tenant-c", "tenant-d"];
pub(crate) const EXPORT: &str = "edge-portal-networking";
/// Annotation of a Cluster that names its workspaces.
pub(crate) const OWNER: &str = "networking.edge-portal.eu/workspace";

const FLEET: &str = "edge-portal-fleet";
const ACCOUNT: (&str, &str) = ("default", "kcp-cilium-mesh-provider");
const PLACEHOLDER: &str = "REPLACE-WITH-THE-IDENTITY-HASH-OF-edge-portal-fleet";
const EXPORT_FILE: &str = include_str!("../../../../config/kcp-cilium-mesh-apiexport.yaml");
const CLAIM_FILE: &str = include_str!("../../../../config/kcp-cilium-mesh-fleet-claim.yaml");
const RBAC_FILE: &str = include_str!("../../../../config/kcp-cilium-mesh-rbac.yaml");

/// Groups of clusters on a management plane, with their versions.
pub(crate) const OWN: (&str, &str) = ("platform.edge-portal.eu", "v1alpha1");
pub(crate) const CLUSTER_API: (&str, &str) = ("cluster.x-k8s.io", "v1beta1");

/// Starts kcp with both exports from their files.
pub(crate) async fn start(tenants: &[&str]) -> Kcp {
    let kcp = Kcp::start(&[&[PROVIDER], tenants].concat()).await.unwrap();
    let identity = kcp
        .export(PROVIDER, include_str!("fleet.yaml"))
        .await
        .unwrap();
    let system = kcp.workspace(PROVIDER).unwrap();
    system.apply_yaml(RBAC_FILE).await.unwrap();
    // As shipped, then with the claim on tenants' clusters.
    kcp.export(PROVIDER, EXPORT_FILE).await.unwrap();
    let claim = documents(&CLAIM_FILE.replace(PLACEHOLDER, &identity)).remove(0);
    system
        .merge_patch(
            &format!("/apis/apis.kcp.io/v1alpha2/apiexports/{EXPORT}"),
            &claim,
        )
        .await
        .unwrap();
    kcp
}

pub(crate) async fn token(kcp: &Kcp) -> String {
    kcp.workspace(PROVIDER)
        .unwrap()
        .request_token(ACCOUNT.0, ACCOUNT.1, 3600)
        .await
        .unwrap()
}

async fn identity(kcp: &Kcp) -> String {
    let export = kcp
        .workspace(PROVIDER)
        .unwrap()
        .get(&format!("/apis/apis.kcp.io/v1alpha2/apiexports/{FLEET}"))
        .await;
    export.unwrap().unwrap()["status"]["identityHash"]
        .as_str()
        .unwrap()
        .to_owned()
}

impl Ground {
    pub(crate) fn kcp(&self) -> &Kcp {
        self.kcp.as_ref().unwrap()
    }

    pub(crate) fn tenant(&self, name: &str) -> Home<'_> {
        Home {
            ground: self,
            cluster: self.kcp().workspace(name).unwrap(),
            namespace: NAMESPACES[0],
        }
    }

    /// Binds a tenant, which accepts or rejects the claim on its clusters.
    pub(crate) async fn bind_tenant(&self, name: &str, claim: &str) {
        let kcp = self.kcp();
        let cluster = kcp.workspace(name).unwrap();
        cluster.apply(&namespace_of(NAMESPACES[0])).await.unwrap();
        kcp.bind(name, &binding(FLEET, PROVIDER, FLEET, &[]))
            .await
            .unwrap();
        let ours = mw_api::cilium::kcp::binding_yaml(
            &format!("root:{PROVIDER}"),
            Some(&identity(kcp).await),
        )
        .unwrap();
        let mut ours = documents(&ours).remove(0);
        let claims = ours["spec"]["permissionClaims"].as_array_mut().unwrap();
        let about_clusters = claims
            .iter_mut()
            .find(|one| one["resource"] == "kubernetesclusters")
            .unwrap();
        about_clusters["state"] = claim.into();
        kcp.bind(name, &ours).await.unwrap();
    }

    /// Creates the KubernetesClusters that a tenant may name.
    pub(crate) async fn give_clusters(&self, tenant: &str, names: &[&str], annotations: &Value) {
        for name in names {
            let metadata =
                json!({ "name": name, "namespace": NAMESPACES[0], "annotations": annotations });
            let cluster = json!({ "apiVersion": "platform.edge-portal.eu/v1alpha1", "kind": "KubernetesCluster", "metadata": metadata,
                "spec": { "provider": "KIND" }, "status": { "phase": "Ready" } });
            let workspace = self.kcp().workspace(tenant).unwrap();
            // A new CRD takes a while to be served.
            until("a KubernetesCluster", || async {
                workspace
                    .apply(&cluster)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
        }
    }

    /// Creates a cluster on the management plane that all tenants may use, merged with `change`.
    pub(crate) async fn manage(&self, group: (&str, &str), name: &str, change: Value) {
        let owners = NAMES.map(|name| format!("root:{name}")).join(",");
        let metadata =
            json!({ "name": name, "namespace": "default", "annotations": { OWNER: owners } });
        let mut status = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        if group == OWN {
            status["kubeconfigSecretRef"] = json!({ "name": format!("{name}-kubeconfig") });
        }
        let kind = json!({ "apiVersion": format!("{}/{}", group.0, group.1), "kind": "Cluster" });
        let mut cluster = json!({ "metadata": metadata, "spec": {}, "status": status });
        for layer in [kind, change] {
            lay_over(&mut cluster, layer);
        }
        until("a Cluster", || async {
            self.hub()
                .apply(&cluster)
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    pub(crate) async fn serve_clusters(&self, group: (&str, &str)) {
        let (group, version) = group;
        let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
        let names = json!({ "kind": "Cluster", "listKind": "ClusterList", "plural": "clusters", "singular": "cluster" });
        let versions =
            json!([{ "name": version, "served": true, "storage": true, "schema": schema }]);
        let spec =
            json!({ "group": group, "names": names, "scope": "Namespaced", "versions": versions });
        let metadata = json!({ "name": format!("clusters.{group}") });
        let crd = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec });
        self.hub().apply(&crd).await.unwrap();
    }

    /// Creates all sites as clusters of the management plane.
    pub(crate) async fn manage_all(&self) {
        self.serve_clusters(OWN).await;
        for site in SITES {
            self.manage(OWN, site, json!({})).await;
        }
    }
}

fn lay_over(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (key, value) in above {
                lay_over(below.entry(key).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above,
    }
}
