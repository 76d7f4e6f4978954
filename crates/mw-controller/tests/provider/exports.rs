//! GlobalServices and ConnectivityIntents from creation to deletion.

use mw_sim::Reachability;
use serde_json::{Value, json};

use crate::bed::{BINDINGS, Bed, HUB, INTENTS, SERVICES, condition};
use crate::stories::joined;

const POLICIES: &str = "/apis/cilium.io/v2/namespaces/shop/ciliumnetworkpolicies";

fn policy_crds() -> Vec<Value> {
    let open = |properties: Value| json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties });
    let list = |items: Value| json!({ "type": "array", "items": items });
    let ports = list(open(
        json!({ "ports": list(open(json!({ "endPort": { "type": "integer" } }))) }),
    ));
    let spec = open(
        json!({ "enableDefaultDeny": open(json!({})), "ingress": list(open(json!({ "toPorts": ports }))) }),
    );
    let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } });
    let of = |kind: &str, plural: &str, scope: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": format!("{plural}.cilium.io") },
            "spec": {
                "group": "cilium.io", "scope": scope,
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": "v2", "served": true, "storage": true, "schema": schema }],
            },
        })
    };
    vec![
        of("CiliumNetworkPolicy", "ciliumnetworkpolicies", "Namespaced"),
        of(
            "CiliumClusterwideNetworkPolicy",
            "ciliumclusterwidenetworkpolicies",
            "Cluster",
        ),
    ]
}

/// Three connected clusters with a shop in each.
async fn shops() -> Bed {
    let bed = joined().await;
    furnish(&bed);
    bed
}

/// A shop in every cluster, and Cilium's policies.
pub(crate) fn furnish(bed: &Bed) {
    ["a", "b", "c"]
        .iter()
        .for_each(|site| furnish_site(bed, site));
}

pub(crate) fn furnish_site(bed: &Bed, site: &str) {
    policy_crds()
        .iter()
        .for_each(|crd| bed.on(site).install_crd(crd).unwrap());
    bed.create(
        site,
        "/api/v1/namespaces",
        &json!({ "metadata": { "name": "shop" } }),
    );
    open_shop(bed, site);
}

fn open_shop(bed: &Bed, site: &str) {
    let labels = json!({ "app": "cart" });
    let service = json!({
        "metadata": { "name": "cart", "namespace": "shop", "labels": labels, "annotations": { "own": "yes" } },
        "spec": { "type": "ClusterIP", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] },
    });
    bed.create(site, "/api/v1/namespaces/shop/services", &service);
    let slice = json!({
        "metadata": { "name": "cart-1", "namespace": "shop", "labels": { "kubernetes.io/service-name": "cart" } },
        "addressType": "IPv4", "ports": [],
        "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": true } }, { "addresses": ["10.0.0.2"], "conditions": { "ready": false } }],
    });
    bed.create(
        site,
        "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
        &slice,
    );
}

pub(crate) fn annotations(bed: &Bed, site: &str) -> Value {
    bed.on(site)
        .get("/api/v1/namespaces/shop/services/cart")
        .map(|service| service["metadata"]["annotations"].clone())
        .unwrap_or_default()
}

pub(crate) fn export(bed: &Bed) {
    bed.declare(SERVICES, "cart", &json!({ "meshRef": { "name": "mesh" }, "selector": { "namespace": "shop", "name": "cart" } }));
}

pub(crate) fn allow(bed: &Bed) {
    let spec = json!({
        "meshRef": { "name": "mesh" }, "action": "Allow",
        "source": { "namespace": "web", "name": "front" }, "destination": { "namespace": "shop", "name": "cart" },
        "ports": [{ "protocol": "TCP", "port": 80 }],
    });
    bed.declare(INTENTS, "cart", &spec);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_exported_and_taken_back() {
    let bed = shops().await;
    export(&bed);
    let exported = bed.phase(SERVICES, "cart", "Exported").await;
    assert_eq!(
        exported["status"]["exportedClusters"],
        json!(["a", "b", "c"])
    );
    assert_eq!(
        exported["status"]["endpointSummary"][1],
        json!({ "clusterName": "b", "endpoints": 1, "ready": true })
    );
    for site in ["a", "b", "c"] {
        let found = annotations(&bed, site);
        assert_eq!(
            (
                &found["service.cilium.io/global"],
                &found["io.cilium/global-service"]
            ),
            (&json!("true"), &json!("true"))
        );
    }
    bed.remove(SERVICES, "cart").await;
    for site in ["a", "b", "c"] {
        assert_eq!(annotations(&bed, site), json!({ "own": "yes" }));
    }
}

/// The causes in the troubleshooting table of services.
#[tokio::test(start_paused = true)]
async fn every_trouble_of_a_service_has_its_words_and_heals() {
    let bed = shops().await;
    bed.declare(SERVICES, "lost", &json!({ "meshRef": { "name": "nowhere" }, "selector": { "namespace": "shop", "name": "cart" } }));
    let lost = bed.phase(SERVICES, "lost", "Error").await;
    assert!(
        condition(&lost, "Ready")["message"]
            .as_str()
            .unwrap()
            .contains("ClusterMeshBinding not found"),
        "{lost}"
    );
    bed.remove(SERVICES, "lost").await;

    let path = "/api/v1/namespaces/shop/services/cart";
    let before = ["a", "b", "c"].map(|site| bed.take(site, path));
    export(&bed);
    let missing = bed.phase(SERVICES, "cart", "Error").await;
    assert!(
        condition(&missing, "Ready")["message"]
            .as_str()
            .unwrap()
            .contains("Service not found"),
        "{missing}"
    );
    bed.put_back("a", path, &before[0]);
    bed.phase(SERVICES, "cart", "Degraded").await;
    bed.put_back("b", path, &before[1]);
    bed.put_back("c", path, &before[2]);
    bed.phase(SERVICES, "cart", "Exported").await;

    // A value of another manager stays and is reported.
    bed.remove(SERVICES, "cart").await;
    bed.patch(
        "b",
        path,
        &json!({ "metadata": { "annotations": { "service.cilium.io/global": "false" } } }),
    );
    export(&bed);
    let degraded = bed.phase(SERVICES, "cart", "Degraded").await;
    assert!(
        degraded["status"]
            .to_string()
            .contains("AnnotationOwnedByOther"),
        "{degraded}"
    );
    assert_eq!(annotations(&bed, "b")["service.cilium.io/global"], "false");
    bed.patch(
        "b",
        path,
        &json!({ "metadata": { "annotations": { "service.cilium.io/global": null } } }),
    );
    bed.phase(SERVICES, "cart", "Exported").await;
}

#[tokio::test(start_paused = true)]
async fn what_relies_on_a_binding_waits_for_it_and_stays_when_it_goes() {
    let mut bed = Bed::new(&crate::stories::three());
    furnish(&bed);
    bed.on("b").set_link(Reachability::Refusing);
    bed.on("c").set_link(Reachability::Refusing);
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    export(&bed);
    allow(&bed);
    bed.start();
    bed.phase(SERVICES, "cart", "Pending").await;
    bed.phase(INTENTS, "cart", "Pending").await;
    bed.on("b").set_link(Reachability::Up);
    bed.on("c").set_link(Reachability::Up);
    bed.phase(SERVICES, "cart", "Exported").await;
    bed.phase(INTENTS, "cart", "Applied").await;
    bed.remove(BINDINGS, "mesh").await;
    bed.phase(SERVICES, "cart", "Error").await;
    assert_eq!(annotations(&bed, "a")["service.cilium.io/global"], "true");
    assert_eq!(
        bed.on("a").list(POLICIES).len(),
        1,
        "a policy that vanishes fails open"
    );
    bed.remove(SERVICES, "cart").await;
    bed.remove(INTENTS, "cart").await;
    assert_eq!(annotations(&bed, "c"), json!({ "own": "yes" }));
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|site| bed.on(site).list(POLICIES).is_empty())
    );
}

#[tokio::test(start_paused = true)]
async fn an_intent_is_applied_repaired_and_taken_back() {
    let bed = shops().await;
    allow(&bed);
    let applied = bed.phase(INTENTS, "cart", "Applied").await;
    assert_eq!(applied["status"]["appliedClusters"], json!(["a", "b", "c"]));
    let policy = bed.on("b").list(POLICIES)[0].clone();
    let sources = policy["spec"]["ingress"][0]["fromEndpoints"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(sources.len(), 3, "{policy:#}");
    assert!(
        sources[2]["matchLabels"]
            .to_string()
            .contains(r#""k8s:io.cilium.k8s.policy.cluster":"c""#),
        "{policy:#}"
    );
    let path = format!(
        "{POLICIES}/{}",
        policy["metadata"]["name"].as_str().unwrap()
    );
    bed.patch("b", &path, &json!({ "spec": { "ingress": null } }));
    bed.until("the drift is repaired", || {
        let spec = bed.on("b").get(&path).unwrap()["spec"].clone();
        if spec == policy["spec"] {
            Ok(())
        } else {
            Err(spec.to_string())
        }
    })
    .await;
    bed.delete("b", &path);
    bed.until("it is back", || {
        bed.on("b")
            .get(&path)
            .map(drop)
            .ok_or_else(|| "not yet".to_owned())
    })
    .await;
    bed.remove(INTENTS, "cart").await;
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|site| bed.on(site).list(POLICIES).is_empty())
    );
}

/// The causes in the troubleshooting table of intents.
#[tokio::test(start_paused = true)]
async fn every_trouble_of_an_intent_has_its_words_and_heals() {
    let bed = joined().await;
    bed.declare(INTENTS, "bare", &json!({ "meshRef": { "name": "mesh" }, "action": "Allow", "source": {}, "destination": {} }));
    let bare = bed.phase(INTENTS, "bare", "Error").await;
    let told = condition(&bare, "Ready")["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        told.starts_with("validation failed: source.namespace is required; "),
        "{told}"
    );
    bed.remove(INTENTS, "bare").await;

    for site in ["a", "b", "c"] {
        bed.create(
            site,
            "/api/v1/namespaces",
            &json!({ "metadata": { "name": "shop" } }),
        );
    }
    policy_crds()
        .iter()
        .for_each(|crd| bed.on("a").install_crd(crd).unwrap());
    allow(&bed);
    let degraded = bed.phase(INTENTS, "cart", "Degraded").await;
    let told = condition(&degraded, "Ready")["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        told.contains("CiliumNetworkPolicy CRD not found on "),
        "{told}"
    );
    for site in ["b", "c"] {
        policy_crds()
            .iter()
            .for_each(|crd| bed.on(site).install_crd(crd).unwrap());
    }
    bed.phase(INTENTS, "cart", "Applied").await;
    bed.delete(HUB, &bed.path(INTENTS, "cart"));
    bed.gone(INTENTS, "cart").await;
}
