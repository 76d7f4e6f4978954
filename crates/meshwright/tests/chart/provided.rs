//! The provider as installed, on Cilium's control plane.

use serde_json::json;

use crate::access::HUB;
use crate::ground::{BINDINGS, Ground, SITES};
use crate::install::{administrator, under};
use crate::look::Home;
use crate::trials::scenarios;
use crate::{pod, tenants};

scenarios![
    the_provider_of_kcp_joins_clusters_as_installed,
    the_provider_joins_clusters_with_the_rights_of_its_installation,
];

const TENANT: &str = "tenant-a";

async fn the_provider_of_kcp_joins_clusters_as_installed() {
    let mut ground = Ground::beside(tenants::start(&[TENANT]).await).await;
    ground.manage_all().await;
    ground.bind_tenant(TENANT, "Accepted").await;
    ground.give_clusters(TENANT, &SITES, &json!({})).await;
    let shell = administrator(ground.hub());
    shell.keep("kcp.kubeconfig", &ground.kcp_kubeconfig().await);
    shell.keep("management.kubeconfig", &ground.hub_kubeconfig().await);
    // The hub may have been used by the other scenario.
    shell
        .run("kubectl delete --ignore-not-found -f config/install/provider.yaml")
        .await;
    // The testbed already has the namespace.
    shell
        .run(
            under("Install the provider of kcp")
                .strip_prefix("kubectl create namespace meshwright\n")
                .unwrap(),
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let provider = pod::start(ground.hub(), HUB.namespace, HUB.name, folder.path()).await;
    joins(&ground, ground.tenant(TENANT)).await;
    shell.run(under("Uninstall the provider of kcp")).await;
    ground.finish(provider).await;
}

async fn the_provider_joins_clusters_with_the_rights_of_its_installation() {
    let (ground, _) = Ground::alike().await;
    let folder = tempfile::tempdir().unwrap();
    let provider = pod::start(ground.hub(), HUB.namespace, HUB.name, folder.path()).await;
    joins(&ground, ground.home()).await;
    ground.finish(provider).await;
}

async fn joins(ground: &Ground, home: Home<'_>) {
    home.bind("mesh", &SITES, &json!({})).await;
    home.connected("mesh").await;
    ground.mesh(&SITES).await;
    home.remove(BINDINGS, "mesh").await;
    for site in SITES {
        ground.reads(site, &[]).await;
    }
}
