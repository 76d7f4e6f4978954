//! Pool of testbeds. API servers are expensive to start, so scenarios reuse them: a scenario takes
//! a wiped testbed from the pool and returns it. After a failure the testbed is dropped, since its
//! state is unknown.

use std::sync::{Mutex, PoisonError};

use mw_testbed::{Cluster, PEER_CRD, Testbed, eventually};
use serde_json::{Value, json};

use crate::wait::DEADLINE;
use mw_sim::kilo::NAMESPACE;

/// Namespaces that scenarios use for meshes.
pub(crate) const NAMESPACES: [&str; 3] = [NAMESPACE, "team-a", "team-b"];
pub(crate) const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
const MESHES: &str = "/apis/kilo.squat.ai/v1alpha1/clustermeshes";
const MESH_CRD: &str = include_str!("../../../../config/crd/kilo.squat.ai_clustermeshes.yaml");

static POOL: Mutex<Vec<Testbed>> = Mutex::new(Vec::new());

/// Takes a wiped testbed with at least these clusters.
pub(crate) async fn take(names: &[&str]) -> Testbed {
    let mut bed = match from_pool(names) {
        Some(bed) => bed,
        None => Testbed::start(names).await.unwrap(),
    };
    let missing: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| bed.cluster(name).is_err())
        .collect();
    bed.add(&missing).await.unwrap();
    for cluster in bed.clusters() {
        wipe(cluster).await;
    }
    bed
}

pub(crate) fn give_back(bed: Testbed) {
    POOL.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(bed);
}

/// Stops all servers.
pub(crate) fn drain() {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Picks the testbed with most of the wanted clusters, then the smallest.
fn from_pool(names: &[&str]) -> Option<Testbed> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let rank = |bed: &Testbed| {
        (
            names
                .iter()
                .filter(|name| bed.cluster(name).is_err())
                .count(),
            bed.clusters().count(),
        )
    };
    let best = (0..pool.len()).min_by_key(|at| rank(&pool[*at]))?;
    Some(pool.swap_remove(best))
}

async fn wipe(cluster: &Cluster) {
    cluster.install_crd(PEER_CRD).await.unwrap();
    cluster.install_crd(MESH_CRD).await.unwrap();
    // Right after a CRD is created or changed, its storage may not be ready.
    for mesh in eventually(DEADLINE, || cluster.list(MESHES)).await.unwrap() {
        remove_by_force(cluster, &mesh).await;
    }
    for namespace in NAMESPACES {
        cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })).await.unwrap();
        for collection in [
            "/api/v1/namespaces/NS/secrets",
            "/apis/coordination.k8s.io/v1/namespaces/NS/leases",
            "/apis/events.k8s.io/v1/namespaces/NS/events",
        ] {
            delete_all(cluster, &collection.replace("NS", namespace)).await;
        }
    }
    delete_all(cluster, PEERS).await;
    delete_all(cluster, "/api/v1/nodes").await;
}

pub(crate) async fn delete_all(cluster: &Cluster, collection: &str) {
    eventually(DEADLINE, || async {
        let answer = cluster
            .request("DELETE", collection, None)
            .await
            .map_err(|error| error.to_string())?;
        if answer.is_success() {
            Ok(())
        } else {
            Err(format!("{collection}: {answer:?}"))
        }
    })
    .await
    .unwrap();
}

/// Deletes a mesh by removing its finalizers.
pub(crate) async fn remove_by_force(cluster: &Cluster, mesh: &Value) {
    let text = |name: &str| mesh["metadata"][name].as_str().unwrap();
    let path = format!(
        "/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes/{}",
        text("namespace"),
        text("name")
    );
    let finalizers = json!({ "metadata": { "finalizers": null } });
    let answer = cluster
        .request("PATCH", &path, Some(&finalizers))
        .await
        .unwrap();
    assert!(answer.is_success() || answer.code == 404, "{answer:?}");
    cluster.delete(&path).await.unwrap();
    eventually(DEADLINE, || async {
        let left = cluster
            .get(&path)
            .await
            .map_err(|error| error.to_string())?;
        left.map_or(Ok(()), |mesh| Err(format!("still there: {mesh}")))
    })
    .await
    .unwrap();
}
