//! `meshwright doctor` on clusters of a binding, one of which ails: it names
//! the first thing that is broken, and what it tells to type repairs it.

use std::time::{Duration, SystemTime};

use mw_testbed::cilium::Ca;
use serde_json::{Value, json};

use crate::access::TARGET;
use crate::ground::{BINDINGS, CONNECTIONS, Ground, NAMESPACES, SYSTEM};
use crate::person::Person;
use crate::trials::scenarios;

scenarios![doctor_names_what_ails_a_cluster_and_what_repairs_it];

const DOCTOR: &str = "doctor mesh -n net";
const API_SERVER: &str = "/apis/apps/v1/namespaces/kube-system/deployments/clustermesh-apiserver";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/meshwright-target";

async fn doctor_names_what_ails_a_cluster_and_what_repairs_it() {
    let (mut ground, ca) = Ground::alike().await;
    let person = Person::new(ground.folder(), mw_testbed::binaries::kubectl().unwrap(), ground.clusters());
    let mut provider = ground.provider(&[]).await;
    ground.home().bind("mesh", &["east", "west"], &json!({})).await;
    ground.home().connected("mesh").await;
    person.healthy("at the start", DOCTOR).await;

    what_a_command_repairs(&ground, &person).await;
    what_a_person_has_to_mend(&mut ground, &person, &ca).await;

    // Nobody is at work: what has to be written stays so.
    provider.terminate().await;
    patch(&ground, "west", &format!("{SYSTEM}/secrets/{}", CONNECTIONS[1]), &json!({ "data": { "east": null } })).await;
    told(&person, "drift", "west", "Secret cilium-kvstoremesh").await;
    let provider = ground.provider(&[]).await;
    person.healthy("the provider is back", DOCTOR).await;
    ground.home().remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

async fn told(person: &Person, layer: &str, subject: &str, words: &str) -> Value {
    let broken = person.first_broken(DOCTOR, words, layer, subject).await;
    let observed = broken["observed"].as_str().unwrap();
    assert!(observed.contains(words), "{observed} says nothing of {words}");
    broken
}

async fn repaired(person: &Person, layer: &str, subject: &str, words: &str) {
    let broken = told(person, layer, subject, words).await;
    person.repairs(words, &broken);
    person.healthy(words, DOCTOR).await;
}

async fn what_a_command_repairs(ground: &Ground, person: &Person) {
    let secret = |name: &str| format!("/api/v1/namespaces/{}/secrets/{name}-kubeconfig", NAMESPACES[0]);
    ground.hub().delete(&secret("east")).await.unwrap();
    repaired(person, "credentials", "east", "there is no Secret east or east-kubeconfig").await;

    let nowhere = ground.cluster("west").kubeconfig("https://127.0.0.1:1", "x");
    patch_hub(ground, &secret("west"), &json!({ "stringData": { "kubeconfig": nowhere } })).await;
    repaired(person, "reachability", "west", "can't be reached").await;

    let west = ground.cluster("west");
    let brief = west.kubeconfig(west.url(), &west.request_token(TARGET.namespace, TARGET.name, 3600).await.unwrap());
    patch_hub(ground, &secret("west"), &json!({ "stringData": { "kubeconfig": brief } })).await;
    repaired(person, "certificates", "west", "its credentials end within a day").await;

    let role = ground.cluster("west").get(ROLE).await.unwrap().unwrap();
    let mut rules = role["rules"].as_array().unwrap().clone();
    rules.retain(|rule| rule["resources"] != json!(["services"]));
    patch(ground, "west", ROLE, &json!({ "rules": rules })).await;
    repaired(person, "rights", "west", "services").await;
}

async fn what_a_person_has_to_mend(ground: &mut Ground, person: &Person, ca: &Ca) {
    let available = |count: u8| json!({ "status": { "readyReplicas": count, "availableReplicas": count } });
    patch(ground, "east", &format!("{API_SERVER}/status"), &available(0)).await;
    let broken = told(person, "health", "east", "clustermesh-apiserver").await;
    person.repairs("no pod is available", &broken);
    // The controller that would see to it is not there.
    patch(ground, "east", &format!("{API_SERVER}/status"), &available(1)).await;
    person.healthy("a pod is available", DOCTOR).await;

    let id = |id: &str| json!({ "data": { "cluster-id": id } });
    let config = format!("{SYSTEM}/configmaps/cilium-config");
    patch(ground, "west", &config, &id("1")).await;
    told(person, "overlap", "east", "cluster-id 1 is also that of west").await;
    patch(ground, "west", &config, &id("3")).await;
    person.healthy("the ids differ", DOCTOR).await;

    ground.note_secrets().await;
    ground.cilium_mut("west").renew(Some(SystemTime::now() - Duration::from_secs(60))).await.unwrap();
    told(person, "certificates", "west", "has expired").await;
    ground.note_secrets().await;
    ground.cilium_mut("west").renew(Some(SystemTime::now() + Duration::from_secs(3 * 86_400))).await.unwrap();
    told(person, "certificates", "west", "its certificate ends in").await;
    ground.note_secrets().await;
    ground.cilium_mut("west").replace_ca(ca).await.unwrap();
    person.healthy("the certificates are new", DOCTOR).await;
}

async fn patch(ground: &Ground, site: &str, path: &str, patch: &Value) {
    ground.cluster(site).merge_patch(path, patch).await.unwrap();
}

async fn patch_hub(ground: &Ground, path: &str, patch: &Value) {
    ground.hub().merge_patch(path, patch).await.unwrap();
}
