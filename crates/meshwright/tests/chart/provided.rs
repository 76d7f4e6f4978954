//! The provider as the plain manifests install it, on Cilium's control plane.

use serde_json::json;

use crate::access::HUB;
use crate::ground::{BINDINGS, Ground, SITES};
use crate::pod;
use crate::trials::scenarios;

scenarios![the_provider_joins_clusters_with_the_rights_of_its_installation];

async fn the_provider_joins_clusters_with_the_rights_of_its_installation() {
    let (ground, _) = Ground::alike().await;
    let folder = tempfile::tempdir().unwrap();
    let provider = pod::start(ground.hub(), HUB.namespace, HUB.name, folder.path()).await;
    ground.home().bind("mesh", &SITES, &json!({})).await;
    ground.home().connected("mesh").await;
    ground.mesh(&SITES).await;
    ground.home().remove(BINDINGS, "mesh").await;
    for site in SITES {
        ground.reads(site, &[]).await;
    }
    ground.finish(provider).await;
}
