//! Connects three clusters into a mesh, then changes nodes, Peers, Secrets and the mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use mw_sim::kilo::{Mesh, NAMESPACE, Node, Site, key};
use mw_testbed::eventually;
use serde_json::{Value, json};

use crate::place::{CLUSTERS, Place};

const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
const NODES: &str = "/api/v1/nodes";
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) async fn tell(place: &Place) {
    let sites: Vec<Site> = CLUSTERS
        .iter()
        .zip(1..)
        .map(|(name, number)| Site::new(name, number, 3))
        .collect();
    let mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
    let hub = place.clusters[CLUSTERS[0]].clone();
    let operator = place.start_operator();
    furnish(place, &sites).await;
    let meshes = mesh.path().rsplit_once('/').unwrap().0.to_owned();
    eventually(DEADLINE, || {
        send(&hub, Method::POST, &meshes, Some(mesh.object()))
    })
    .await
    .unwrap();
    converged(place, &keys(&sites)).await;
    ready(&hub, &mesh, "True").await;

    // A node changes its key, another joins, a third is deleted.
    let mut wanted = keys(&sites);
    let annotations = json!({ "metadata": { "annotations": { "kilo.squat.ai/key": key("new") } } });
    patch(&place.clusters["c2"], &format!("{NODES}/n1"), &annotations).await;
    wanted
        .get_mut("c2")
        .unwrap()
        .insert("n1".to_owned(), key("new"));
    create(&place.clusters["c3"], NODES, &Node::new(3, 4).object()).await;
    wanted
        .get_mut("c3")
        .unwrap()
        .insert("n4".to_owned(), key("3/4"));
    send(
        &place.clusters["c3"],
        Method::DELETE,
        &format!("{NODES}/n1"),
        None,
    )
    .await
    .unwrap();
    wanted.get_mut("c3").unwrap().remove("n1");
    converged(place, &wanted).await;

    // Edits of managed fields are reverted; fields of others are kept.
    let spec = json!({ "spec": { "publicKey": key("edited"), "presharedKey": key("secret") } });
    patch(&hub, &format!("{PEERS}/mesh--c2--n2"), &spec).await;
    let foreign = peer("laptop", &key("laptop"));
    create(&hub, PEERS, &foreign).await;
    converged(place, &wanted).await;
    let edited = send(&hub, Method::GET, &format!("{PEERS}/mesh--c2--n2"), None)
        .await
        .unwrap();
    assert_eq!(
        edited["spec"]["presharedKey"],
        key("secret"),
        "it is not ours"
    );

    // A cluster without a Secret is unknown, not empty, also after a restart.
    let secret = format!("/api/v1/namespaces/{NAMESPACE}/secrets/c2-kubeconfig");
    send(&hub, Method::DELETE, &secret, None).await.unwrap();
    ready(&hub, &mesh, "False").await;
    drop(operator);
    let operator = place.start_operator();
    ready(&hub, &mesh, "False").await;
    converged(place, &wanted).await;
    create(
        &hub,
        &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
        &kubeconfig_secret(place, "c2"),
    )
    .await;
    ready(&hub, &mesh, "True").await;

    // Deleting the mesh deletes its Peers and nothing else.
    send(&hub, Method::DELETE, &mesh.path(), None)
        .await
        .unwrap();
    eventually(DEADLINE, || async {
        match send(&hub, Method::GET, &mesh.path(), None).await {
            Err(error) if error.contains("404") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    converged(place, &BTreeMap::new()).await;
    let left = send(&hub, Method::GET, &format!("{PEERS}/laptop"), None)
        .await
        .unwrap();
    assert_eq!(left["spec"], foreign["spec"]);
    drop(operator);
}

async fn furnish(place: &Place, sites: &[Site]) {
    let hub = &place.clusters[CLUSTERS[0]];
    create(
        hub,
        "/api/v1/namespaces",
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
    )
    .await;
    for site in sites {
        for node in site.nodes.values() {
            create(&place.clusters[&site.name], NODES, &node.object()).await;
        }
        if site.name != CLUSTERS[0] {
            create(
                hub,
                &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
                &kubeconfig_secret(place, &site.name),
            )
            .await;
        }
    }
}

fn kubeconfig_secret(place: &Place, cluster: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("{cluster}-kubeconfig"), "namespace": NAMESPACE },
        "stringData": { "kubeconfig": place.kubeconfigs[cluster] },
    })
}

fn peer(name: &str, key: &str) -> Value {
    json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": name },
        "spec": { "publicKey": key, "allowedIPs": ["10.250.0.1/32"] },
    })
}

/// Key of every node, by cluster.
type Keys = BTreeMap<String, BTreeMap<String, String>>;

fn keys(sites: &[Site]) -> Keys {
    let of = |site: &Site| {
        site.nodes
            .values()
            .map(|node| {
                (
                    node.name.clone(),
                    node.annotation("key").unwrap().to_owned(),
                )
            })
            .collect()
    };
    sites
        .iter()
        .map(|site| (site.name.clone(), of(site)))
        .collect()
}

/// Waits until every cluster has a Peer with the right key for each node of the others.
async fn converged(place: &Place, keys: &Keys) {
    for (name, client) in &place.clusters {
        let wanted: BTreeSet<(String, String)> = keys
            .iter()
            .filter(|(source, _)| *source != name)
            .flat_map(|(source, nodes)| {
                nodes
                    .iter()
                    .map(move |(node, key)| (format!("mesh--{source}--{node}"), key.clone()))
            })
            .collect();
        eventually(DEADLINE, || async {
            let list = send(client, Method::GET, PEERS, None).await?;
            let found: BTreeSet<(String, String)> = list["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|peer| {
                    (
                        peer["metadata"]["name"].as_str().unwrap().to_owned(),
                        peer["spec"]["publicKey"].as_str().unwrap().to_owned(),
                    )
                })
                .filter(|(name, _)| name.starts_with("mesh--"))
                .collect();
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{name} holds {found:?}, wanted {wanted:?}"))
            }
        })
        .await
        .unwrap();
    }
}

async fn ready(hub: &Client, mesh: &Mesh, status: &str) {
    eventually(DEADLINE, || async {
        let found = send(hub, Method::GET, &mesh.path(), None).await?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = conditions
            .iter()
            .find(|condition| condition["type"] == "Ready")
            .cloned()
            .unwrap_or_default();
        if ready["status"] == status {
            Ok(())
        } else {
            Err(format!("{ready}"))
        }
    })
    .await
    .unwrap();
}

async fn create(client: &Client, collection: &str, object: &Value) {
    send(client, Method::POST, collection, Some(object.clone()))
        .await
        .unwrap();
}

async fn patch(client: &Client, path: &str, patch: &Value) {
    send(client, Method::PATCH, path, Some(patch.clone()))
        .await
        .unwrap();
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, String> {
    let content = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = body
        .map(|body| body.to_string().into_bytes())
        .unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(body)
        .unwrap();
    client
        .request(request)
        .await
        .map_err(|error| format!("{path}: {error:?}"))
}
