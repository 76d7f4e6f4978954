//! Two independent owners use the same object names and share a cluster.

use serde_json::{Value, json};

use crate::ground::{BINDINGS, GROUP, Ground, INTENTS, NAMESPACES, POLICIES, SERVICES, SITES};
use crate::look::Home;
use crate::trials::scenarios;
use crate::wait::until;

scenarios![equal_names_in_two_namespaces_of_a_hub_do_not_meet];

/// Each has its own Secret for east: the younger object is rejected there until the older one is
/// gone.
async fn equal_names_in_two_namespaces_of_a_hub_do_not_meet() {
    let (mut ground, _) = Ground::alike().await;
    let provider = ground.provider(&[]).await;
    let [ours, theirs] = NAMESPACES.map(|namespace| Home {
        namespace,
        ..ground.home()
    });
    for site in SITES {
        ground.open_shop(site, "cart", Value::Null).await;
    }
    declare_all(ours, &["east", "north"]).await;
    is_complete(ours, &["east", "north"]).await;
    ground
        .replace_kubeconfig(ours, ours.namespace, "no Secret north or north-kubeconfig")
        .await;
    declare_all(theirs, &["east", "west"]).await;
    let refused = theirs
        .says(
            "mesh",
            "cluster east: credentials: the cluster is already used by another owner",
        )
        .await;
    assert_eq!(
        refused["status"]["phase"], "Error",
        "{:#}",
        refused["status"]
    );
    theirs.phase(SERVICES, "cart", "Pending").await;
    ground.reads("east", &["north"]).await;
    ground.reads("west", &[]).await;
    keep_apart([(ours, &["west", "yonder"]), (theirs, &["north"])]).await;
    // Delete everything of one owner, in the wrong order.
    ours.remove(BINDINGS, "mesh").await;
    ours.remove(INTENTS, "cart").await;
    ours.remove(SERVICES, "cart").await;
    is_complete(theirs, &["east", "west"]).await;
    is_left_alone(&ground, theirs).await;
    only_theirs_is_left(&ground).await;
    clear(theirs).await;
    ground.finish(provider).await;
}

pub(crate) async fn declare_all(home: Home<'_>, refs: &[&str]) {
    home.bind("mesh", refs, &json!({})).await;
    let selector = json!({ "namespace": "shop", "name": "cart" });
    home.declare(
        SERVICES,
        "cart",
        &json!({ "meshRef": { "name": "mesh" }, "selector": selector }),
    )
    .await;
    home.declare(INTENTS, "cart", &intent("Namespaced")).await;
}

pub(crate) async fn is_complete(home: Home<'_>, refs: &[&str]) {
    home.connected("mesh").await;
    assert_eq!(
        home.phase(SERVICES, "cart", "Exported").await["status"]["exportedClusters"],
        json!(refs)
    );
    assert_eq!(
        home.phase(INTENTS, "cart", "Applied").await["status"]["appliedClusters"],
        json!(refs)
    );
}

/// The first owner connects east and north, the second east and west; each exports the same Service
/// and allows the same.
pub(crate) async fn settle_in(ground: &Ground, homes: [Home<'_>; 2]) {
    for site in SITES {
        ground.open_shop(site, "cart", Value::Null).await;
    }
    for (home, refs) in homes.iter().zip([["east", "north"], ["east", "west"]]) {
        declare_all(*home, &refs).await;
    }
    for (home, refs) in homes.iter().zip([["east", "north"], ["east", "west"]]) {
        is_complete(*home, &refs).await;
    }
    ground.reads("east", &["north", "west"]).await;
    ground.reads("north", &["east"]).await;
    ground.reads("west", &["east"]).await;
    ground.exported("east", "cart", "west").await;
    let policies = ground.cluster("east").list(POLICIES).await.unwrap();
    let owner =
        |policy: &Value| policy["metadata"]["labels"]["networking.edge-portal.eu/owner"].clone();
    assert_eq!(policies.len(), 2, "{policies:#?}");
    assert_ne!(owner(&policies[0]), owner(&policies[1]));
    ground.assert_foreign().await;
}

pub(crate) fn intent(mode: &str) -> Value {
    json!({
        "meshRef": { "name": "mesh" }, "action": "Allow", "policyMode": mode,
        "source": { "namespace": "web", "name": "front" }, "destination": { "namespace": "shop", "name": "cart" },
    })
}

/// Checks that words that occur only in one owner's objects are not visible to the other.
pub(crate) async fn keep_apart<const N: usize>(homes: [(Home<'_>, &[&str]); N]) {
    for (home, strange) in homes {
        let mut seen = Vec::new();
        let namespace = home.namespace;
        for kind in [BINDINGS, SERVICES, INTENTS] {
            seen.extend(
                home.cluster
                    .list(&format!("/apis/{GROUP}/namespaces/{namespace}/{}", kind.0))
                    .await
                    .unwrap(),
            );
        }
        assert!(seen.len() >= 3, "{seen:#?}");
        seen.extend(
            home.cluster
                .list(&format!(
                    "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
                ))
                .await
                .unwrap(),
        );
        let text = json!(seen).to_string();
        for word in strange {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

/// One owner left; the other is not affected.
pub(crate) async fn is_left_alone(ground: &Ground, home: Home<'_>) {
    ground.reads("north", &[]).await;
    ground.reads("east", &["west"]).await;
    ground.reads("west", &["east"]).await;
    ground.is_followed("west", "later", &["east"]).await;
    home.connected("mesh").await;
    home.phase(SERVICES, "cart", "Exported").await;
    home.phase(INTENTS, "cart", "Applied").await;
    ground.assert_foreign().await;
}

pub(crate) async fn only_theirs_is_left(ground: &Ground) {
    for (site, ours) in [("east", true), ("north", false), ("west", true)] {
        until(format!("what is left in {site}"), || async {
            let policies = ground.cluster(site).list(POLICIES).await.unwrap().len();
            let service = ground
                .cluster(site)
                .get("/api/v1/namespaces/shop/services/cart")
                .await
                .unwrap()
                .unwrap();
            let exported = service["metadata"]["annotations"]["service.cilium.io/global"] == "true";
            if (policies, exported) == (usize::from(ours), ours) {
                Ok(())
            } else {
                Err(format!("{policies} policies, {service:#}"))
            }
        })
        .await;
    }
}

pub(crate) async fn clear(home: Home<'_>) {
    home.remove(SERVICES, "cart").await;
    home.remove(INTENTS, "cart").await;
    home.remove(BINDINGS, "mesh").await;
}
