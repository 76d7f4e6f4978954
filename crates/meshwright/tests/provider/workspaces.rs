//! Objects in tenants' workspaces, through a virtual workspace of kcp.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::ground::{BINDINGS, Ground, INTENTS, SITES};
use crate::look::message;
use crate::neighbours::{clear, intent, is_left_alone, keep_apart, only_theirs_is_left, settle_in};
use crate::person::Person;
use crate::process::Operator;
use crate::tenants::{self, CLUSTER_API, EXPORT, OWN, OWNER};
use crate::trials::scenarios;
use crate::wait::{condition, until};

scenarios![
    tenants_come_and_go_and_never_meet,
    the_weather_of_kcp_is_weathered,
    a_cluster_without_an_owner_needs_trust
];

const BALANCER: &str = "7cd8e0a6-5b53-4a39-a0fe-9cd2a3d0b5a1";

async fn tenants_come_and_go_and_never_meet() {
    let kcp = tenants::start(&["tenant-a", "tenant-b", "tenant-c"]).await;
    let mut ground = Ground::beside(kcp).await;
    ground.manage_all().await;
    // No tenant is bound: there is no endpoint and nothing to read.
    assert!(ground.kcp().endpoints(tenants::PROVIDER, EXPORT).is_empty());
    let provider = ground.provider(&[]).await;
    for (tenant, claim, clusters) in [
        ("tenant-a", "Accepted", ["east", "north"]),
        ("tenant-b", "Accepted", ["east", "west"]),
        ("tenant-c", "Rejected", ["east", "north"]),
    ] {
        ground.bind_tenant(tenant, claim).await;
        ground.give_clusters(tenant, &clusters, &json!({})).await;
    }
    let [a, b, c] = ["tenant-a", "tenant-b", "tenant-c"].map(|name| ground.tenant(name));
    settle_in(&ground, [a, b]).await;
    claims_and_owners_decide(&ground).await;
    losing_the_way_to_a_cluster_touches_nothing(&ground).await;
    load_balancers_are_named(&ground).await;
    a_whole_cluster_is_not_one_tenants(&ground).await;
    a_tenant_learns_nothing_of_the_network(&ground, &provider).await;
    let ids = ["tenant-a", "tenant-b", "tenant-c"]
        .map(|name| [ground.kcp().id(name), format!("root:{name}")]);
    let [of_a, of_b, of_c] = ids.each_ref().map(|ids| ids.each_ref().map(String::as_str));
    keep_apart([
        (a, &["west", of_b[0], of_b[1], of_c[0], of_c[1]]),
        (b, &["north", of_a[0], of_a[1], of_c[0], of_c[1]]),
    ])
    .await;

    // One of them unbinds while everything is connected.
    ground.kcp().unbind("tenant-a", EXPORT).await.unwrap();
    is_left_alone(&ground, b).await;
    only_theirs_is_left(&ground).await;
    c.remove(BINDINGS, "mesh").await;
    clear(b).await;
    ground.finish(provider).await;
}

/// The third tenant can't see its clusters, and then not those of others.
async fn claims_and_owners_decide(ground: &Ground) {
    let tenant = ground.tenant("tenant-c");
    tenant.bind("mesh", &["east", "north"], &json!({})).await;
    tenant
        .says("mesh", "the claim on kubernetesclusters is not accepted")
        .await;
    let (a, b) = (ground.kcp().id("tenant-a"), "root:tenant-b");
    ground
        .manage(
            OWN,
            "east",
            json!({ "metadata": { "annotations": { OWNER: format!("{a}, {b}") } } }),
        )
        .await;
    ground.bind_tenant("tenant-c", "Accepted").await;
    let pending = tenant
        .says("mesh", "Cluster east not found on the management plane")
        .await;
    assert_eq!(pending["status"]["phase"], "Pending");
    // No workspace is named: written keys stay, and the message has the command.
    ground
        .manage(
            OWN,
            "north",
            json!({ "metadata": { "annotations": { OWNER: "" } } }),
        )
        .await;
    let missing = ground
        .tenant("tenant-a")
        .says("mesh", "does not name its owner")
        .await;
    assert!(
        missing
            .to_string()
            .contains(&format!("{OWNER}={}", ground.kcp().id("tenant-a"))),
        "{missing:#}"
    );
    ground.reads("east", &["north", "west"]).await;
    ground.manage(OWN, "north", json!({})).await;
    // Same message as for a cluster that does not exist.
    tenant
        .patch(
            BINDINGS,
            "mesh",
            &json!({ "spec": { "clusterRefs": [{ "name": "nowhere" }, { "name": "north" }] } }),
        )
        .await;
    tenant
        .says("mesh", "KubernetesCluster nowhere not found")
        .await;
    ground.tenant("tenant-a").connected("mesh").await;
    ground.tenant("tenant-b").connected("mesh").await;
    // The second tenant is no longer an owner: its keys are deleted, the first is not affected.
    ground
        .manage(
            OWN,
            "east",
            json!({ "metadata": { "annotations": { OWNER: a } } }),
        )
        .await;
    ground
        .tenant("tenant-b")
        .says("mesh", "Cluster east not found on the management plane")
        .await;
    ground.reads("west", &[]).await;
    ground.reads("east", &["north"]).await;
    ground.tenant("tenant-a").connected("mesh").await;
    ground
        .manage(
            OWN,
            "east",
            json!({ "metadata": { "annotations": { OWNER: format!("{a}, {b}") } } }),
        )
        .await;
    ground.tenant("tenant-b").connected("mesh").await;
}

/// Whatever hides a cluster from its tenant, its keys, annotations and policies stay.
async fn losing_the_way_to_a_cluster_touches_nothing(ground: &Ground) {
    let tenant = ground.tenant("tenant-a");
    let before = ground.written(&SITES).await;
    let not_ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let failing = json!({ "status": { "capabilities": [{ "name": "cilium-cni", "details": { "status": "error" } }] } });
    for (change, text) in [
        (not_ready, "Cluster north is not Ready"),
        (failing, "capability cilium-cni is error"),
    ] {
        ground.manage(OWN, "north", change).await;
        tenant.says("mesh", text).await;
        assert_eq!(ground.written(&SITES).await, before, "{text}");
        ground
            .manage(OWN, "north", json!({ "status": { "capabilities": [] } }))
            .await;
        tenant.connected("mesh").await;
    }
    ground
        .replace_kubeconfig(tenant, "default", "Secret north-kubeconfig not found")
        .await;
    ground.bind_tenant("tenant-a", "Rejected").await;
    tenant
        .says("mesh", "the claim on kubernetesclusters is not accepted")
        .await;
    assert_eq!(
        ground.written(&SITES).await,
        before,
        "the claim is withdrawn"
    );
    ground.bind_tenant("tenant-a", "Accepted").await;
    tenant.connected("mesh").await;
    assert_eq!(ground.written(&SITES).await, before);
}

/// A closed port, a port with another service, and an unknown name look the same to a tenant; the
/// log distinguishes them.
async fn a_tenant_learns_nothing_of_the_network(ground: &Ground, provider: &Operator) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let places = [
        ("scan-closed", format!("https://{closed}")),
        (
            "scan-silent",
            format!("https://{}", silent.local_addr().unwrap()),
        ),
        ("scan-unnamed", "https://nobody.invalid".to_owned()),
    ];
    for (name, url) in &places {
        let kubeconfig = ground.cluster("east").kubeconfig(url, "a-token");
        let metadata = json!({ "name": format!("{name}-kubeconfig"), "namespace": "default" });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "kubeconfig": kubeconfig } });
        ground.hub().apply(&secret).await.unwrap();
        ground.manage(OWN, name, json!({})).await;
    }
    let names = places.each_ref().map(|(name, _)| *name);
    ground.give_clusters("tenant-b", &names, &json!({})).await;
    let tenant = ground.tenant("tenant-b");
    tenant.bind("scan", &names, &json!({})).await;
    let texts = |binding: &Value| -> BTreeSet<String> {
        let rows = binding["status"]["meshStatus"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |row: &Value| {
            row["message"]
                .to_string()
                .replace(row["clusterName"].as_str().unwrap(), "NAME")
        };
        rows.iter().map(text).collect()
    };
    let told = |binding: &Value| {
        texts(binding)
            .iter()
            .all(|text| text.contains("can't be reached"))
    };
    let binding = tenant
        .status(BINDINGS, "scan", move |binding| {
            binding["status"]["meshStatus"].is_array() && told(binding)
        })
        .await;
    assert_eq!(texts(&binding).len(), 1, "{:#}", binding["status"]);
    assert!(
        provider.log().contains("Connection refused"),
        "the log says nothing"
    );
    // Cleanup does not wait for a cluster without a Secret.
    for name in names {
        let path = format!("/api/v1/namespaces/default/secrets/{name}-kubeconfig");
        let answer = ground.hub().request("DELETE", &path, None).await.unwrap();
        assert!(answer.is_success(), "{answer:?}");
    }
    tenant.remove(BINDINGS, "scan").await;
}

async fn load_balancers_are_named(ground: &Ground) {
    ground
        .give_clusters(
            "tenant-a",
            &["north"],
            &json!({ "networking.edge-portal.eu/elb-id": BALANCER }),
        )
        .await;
    until("the load balancer of north", || async {
        let service = ground
            .cluster("north")
            .get("/api/v1/namespaces/kube-system/services/clustermesh-apiserver")
            .await
            .unwrap()
            .unwrap();
        let annotations = &service["metadata"]["annotations"];
        if annotations["kubernetes.io/elb.id"] == BALANCER {
            Ok(())
        } else {
            Err(annotations.to_string())
        }
    })
    .await;
}

async fn a_whole_cluster_is_not_one_tenants(ground: &Ground) {
    let tenant = ground.tenant("tenant-b");
    tenant
        .declare(INTENTS, "wide", &intent("Clusterwide"))
        .await;
    let refused = tenant.phase(INTENTS, "wide", "Error").await;
    assert_eq!(
        condition(&refused, "Ready")["reason"],
        "ClusterShared",
        "{:#}",
        refused["status"]
    );
    tenant.remove(INTENTS, "wide").await;
}

pub(crate) fn refs(names: &[&str]) -> Value {
    json!({ "spec": { "clusterRefs": names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() } })
}

async fn the_weather_of_kcp_is_weathered() {
    let kcp = tenants::start(&["tenant-a"]).await;
    let mut ground = Ground::beside(kcp).await;
    ground.manage_all().await;
    ground
        .manage(
            OWN,
            "north",
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        )
        .await;
    ground.bind_tenant("tenant-a", "Accepted").await;
    ground.give_clusters("tenant-a", &SITES, &json!({})).await;
    let mut provider = ground.provider(&["--leader-elect"]).await;
    let home = ground.tenant("tenant-a");
    home.bind("mesh", &["east", "north"], &json!({})).await;
    let pending = home.says("mesh", "Cluster north is not Ready").await;
    assert_eq!(pending["status"]["phase"], "Pending");
    let missing = json!([{ "name": "cilium-cni", "details": { "status": "not-installed" }, "lastTransitionTime": "2026-01-02T03:04:05Z" }]);
    ground
        .manage(
            OWN,
            "north",
            json!({ "status": { "capabilities": missing } }),
        )
        .await;
    let text =
        "Cilium not found: capability cilium-cni is not-installed (checked 2026-01-02T03:04:05Z)";
    let refused = home.says("mesh", text).await;
    assert_eq!(refused["status"]["phase"], "Error", "{}", message(&refused));
    ground
        .manage(OWN, "north", json!({ "status": { "capabilities": [] } }))
        .await;
    home.connected("mesh").await;
    provider = commands_read_as_the_provider(&mut ground, provider).await;
    let home = ground.tenant("tenant-a");

    // Whatever happens to the watches, later changes are seen.
    ground
        .kcp()
        .switch_schema(tenants::PROVIDER, EXPORT, "clustermeshbindings")
        .await
        .unwrap();
    home.patch(BINDINGS, "mesh", &refs(&SITES)).await;
    home.connected("mesh").await;
    ground.mesh(&SITES).await;
    ground.kcp().restart().await.unwrap();
    home.patch(BINDINGS, "mesh", &refs(&["east", "north"]))
        .await;
    ground.reads("west", &[]).await;
    home.connected("mesh").await;

    // A second endpoint with its own resource versions.
    ground
        .kcp
        .as_mut()
        .unwrap()
        .add_shard(&["tenant-d"])
        .await
        .unwrap();
    ground.bind_tenant("tenant-d", "Accepted").await;
    ground.give_clusters("tenant-d", &SITES, &json!({})).await;
    assert_eq!(ground.kcp().endpoints(tenants::PROVIDER, EXPORT).len(), 2);
    let (home, other) = (ground.tenant("tenant-a"), ground.tenant("tenant-d"));
    other.bind("mesh", &["north", "west"], &json!({})).await;
    other.connected("mesh").await;
    home.connected("mesh").await;
    ground.reads("north", &["east", "west"]).await;
    ground.assert_foreign().await;
    what_vanished_is_not_gone(&ground).await;

    // Everything that must be gone by then is deleted while no provider runs.
    provider.terminate().await;
    ground.kcp().restart().await.unwrap();
    let provider = ground
        .provider(&["--mgmt-cluster-resource", "clusters.cluster.x-k8s.io"])
        .await;
    clusters_are_those_of_cluster_api(&ground).await;
    ground.finish(provider).await;
}

/// With the provider's kubeconfigs, `plan`, `status --live` and `doctor` work as on a hub.
async fn commands_read_as_the_provider(ground: &mut Ground, mut provider: Operator) -> Operator {
    let person = Person::new(
        ground.folder(),
        mw_testbed::binaries::kubectl().unwrap(),
        ground.clusters(),
    );
    let [kcp, management] =
        ["kcp-0", "hub-0"].map(|name| ground.folder().join(name).display().to_string());
    let with = |more: &str| {
        format!("mesh -n net {more} --kcp-kubeconfig {kcp} --mgmt-kubeconfig {management}")
    };
    let [plan, status, doctor] = [("plan", ""), ("status", "--live"), ("doctor", "")]
        .map(|(name, more)| format!("{name} {}", with(more)));
    for command in [
        &plan,
        &format!("{plan} --workspace root:tenant-a"),
        &status,
        &doctor,
    ] {
        let outcome = person.types(command);
        assert_eq!(
            outcome.code, 0,
            "{command}: {}{}",
            outcome.stdout, outcome.stderr
        );
    }
    let unbound = person.types(&format!("{plan} --workspace root:nowhere"));
    assert!(
        unbound.code == 2 && unbound.stderr.contains("only: root:tenant-a"),
        "{}",
        unbound.stderr
    );
    let lacking = person.types("status --workspace root:tenant-a");
    assert!(
        lacking.code == 2 && lacking.stderr.contains("--kcp-kubeconfig (KCP_KUBECONFIG)"),
        "{}",
        lacking.stderr
    );

    provider.terminate().await;
    ground
        .tenant("tenant-a")
        .patch(BINDINGS, "mesh", &refs(&SITES))
        .await;
    let pending = person.types(&format!("{plan} -o json"));
    assert_eq!(pending.code, 1, "{}", pending.stderr);
    let targets = pending.json()["targets"].clone();
    let writes = |target: &Value| {
        ["create", "update"]
            .iter()
            .flat_map(|kind| target[*kind].as_array().unwrap())
            .count()
    };
    let written: Vec<usize> = targets.as_object().unwrap().values().map(writes).collect();
    assert!(
        written.len() == 3 && written.iter().all(|count| *count > 0),
        "{targets:#}"
    );
    let status = person.types(&status);
    assert!(
        status.code == 1 && status.stdout.contains("seen from here"),
        "{}{}",
        status.stdout,
        status.stderr
    );
    let doctor = person.types(&doctor);
    assert!(
        doctor.code == 1 && doctor.stdout.contains("pending writes: Secret cilium-"),
        "{}{}",
        doctor.stdout,
        doctor.stderr
    );

    ground
        .tenant("tenant-a")
        .patch(BINDINGS, "mesh", &refs(&["east", "north"]))
        .await;
    let provider = ground.provider(&["--leader-elect"]).await;
    ground.tenant("tenant-a").connected("mesh").await;
    provider
}

/// While the second endpoint is not listed, the objects behind it are unknown: what they created
/// stays, and changes of the others are applied.
async fn what_vanished_is_not_gone(ground: &Ground) {
    let (home, other) = (ground.tenant("tenant-a"), ground.tenant("tenant-d"));
    ground.kcp().hide_endpoint(1, true);
    until("its endpoint vanishes", || async {
        let endpoints = ground.kcp().endpoints(tenants::PROVIDER, EXPORT);
        if endpoints.len() == 1 {
            Ok(())
        } else {
            Err(format!("{endpoints:?}"))
        }
    })
    .await;
    other
        .patch(BINDINGS, "mesh", &refs(&["east", "west"]))
        .await;
    home.patch(BINDINGS, "mesh", &refs(&SITES)).await;
    home.connected("mesh").await;
    home.patch(BINDINGS, "mesh", &refs(&["east", "north"]))
        .await;
    home.connected("mesh").await;
    ground.reads("north", &["east", "west"]).await;
    ground.kcp().hide_endpoint(1, false);
    other.connected("mesh").await;
    ground.reads("west", &["east"]).await;
    other
        .patch(BINDINGS, "mesh", &refs(&["north", "west"]))
        .await;
    other.connected("mesh").await;
    ground.reads("west", &["north"]).await;
}

/// --trust-cluster-names lets any tenant use a Cluster that names no workspace, and only that.
async fn a_cluster_without_an_owner_needs_trust() {
    let kcp = tenants::start(&["tenant-a"]).await;
    let mut ground = Ground::beside(kcp).await;
    ground.manage_all().await;
    let owned_by = |owner: &str| json!({ "metadata": { "annotations": { OWNER: owner } } });
    ground.manage(OWN, "north", owned_by("")).await;
    ground.bind_tenant("tenant-a", "Accepted").await;
    ground
        .give_clusters("tenant-a", &["east", "north"], &json!({}))
        .await;
    let mut provider = ground.provider(&[]).await;
    ground
        .tenant("tenant-a")
        .bind("mesh", &["east", "north"], &json!({}))
        .await;
    ground
        .tenant("tenant-a")
        .says("mesh", "does not name its owner")
        .await;
    ground.reads("east", &[]).await;
    provider.terminate().await;
    let provider = ground.provider(&["--trust-cluster-names"]).await;
    let home = ground.tenant("tenant-a");
    home.connected("mesh").await;
    ground.mesh(&["east", "north"]).await;
    ground.manage(OWN, "north", owned_by("somebody-else")).await;
    home.says("mesh", "Cluster north not found on the management plane")
        .await;
    ground.manage(OWN, "north", owned_by("")).await;
    home.connected("mesh").await;
    home.remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

async fn clusters_are_those_of_cluster_api(ground: &Ground) {
    let (home, other) = (ground.tenant("tenant-a"), ground.tenant("tenant-d"));
    home.says("mesh", "the API group cluster.x-k8s.io is not served")
        .await;
    ground.serve_clusters(CLUSTER_API).await;
    for site in SITES {
        ground
            .manage(
                CLUSTER_API,
                site,
                json!({ "status": { "conditions": [{ "type": "Available", "status": "True" }] } }),
            )
            .await;
    }
    home.connected("mesh").await;
    other.connected("mesh").await;
    ground.reads("north", &["east", "west"]).await;
    other.remove(BINDINGS, "mesh").await;
    ground.reads("west", &[]).await;
    home.remove(BINDINGS, "mesh").await;
}
