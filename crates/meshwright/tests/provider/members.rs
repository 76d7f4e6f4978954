//! Leader election, and membership in one or several meshes.

use serde_json::json;

use crate::ground::{BINDINGS, Ground, SITES};
use crate::trials::scenarios;
use crate::wait::until;

scenarios![a_cluster_leaves_and_of_two_bindings_one_goes];

async fn a_cluster_leaves_and_of_two_bindings_one_goes() {
    let (mut ground, _) = Ground::alike().await;
    leads_and_lets_go(&mut ground).await;
    let provider = ground.provider(&[]).await;
    ground.home().bind("mesh", &SITES, &json!({})).await;
    ground.home().connected("mesh").await;
    ground.mesh(&SITES).await;

    ground
        .home()
        .patch(
            BINDINGS,
            "mesh",
            &json!({ "spec": { "clusterRefs": [{ "name": "east" }, { "name": "north" }] } }),
        )
        .await;
    ground.reads("west", &[]).await;
    ground.mesh(&["east", "north"]).await;
    ground.home().connected("mesh").await;
    ground.assert_foreign().await;

    // All three again, and two of them in a second binding.
    ground
        .home()
        .patch(
            BINDINGS,
            "mesh",
            &json!({ "spec": { "clusterRefs": SITES.map(|site| json!({ "name": site })) } }),
        )
        .await;
    ground.home().connected("mesh").await;
    ground
        .home()
        .bind("pair", &["north", "west"], &json!({}))
        .await;
    ground.home().connected("pair").await;
    ground.home().remove(BINDINGS, "mesh").await;
    ground.reads("east", &[]).await;
    ground.mesh(&["north", "west"]).await;
    ground.is_followed("west", "cart", &["north"]).await;
    ground.home().connected("pair").await;
    ground.assert_foreign().await;
    ground.home().remove(BINDINGS, "pair").await;
    ground.finish(provider).await;
}

/// With several replicas, the Lease holder works until it ends.
async fn leads_and_lets_go(ground: &mut Ground) {
    let mut provider = ground.provider(&["--leader-elect"]).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/meshwright/leases/meshwright-provider";
    until("somebody leads", || async {
        let found = ground
            .hub()
            .get(lease)
            .await
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let holder = found["spec"]["holderIdentity"].as_str().unwrap_or_default();
        if holder.starts_with("test") {
            Ok(())
        } else {
            Err(found.to_string())
        }
    })
    .await;
    provider.terminate().await;
}
