//! `meshwright doctor` on clusters of a binding with an injected fault: it reports that fault
//! first, and the printed command fixes it.

use std::time::{Duration, SystemTime};

use mw_testbed::cilium::Ca;
use serde_json::{Value, json};

use crate::access::TARGET;
use crate::ground::{BINDINGS, CONNECTIONS, Ground, NAMESPACES, SYSTEM};
use crate::person::Person;
use crate::process::Operator;
use crate::shards::metric_is;
use crate::trials::scenarios;

scenarios![doctor_names_what_ails_a_cluster_and_what_repairs_it];

const DOCTOR: &str = "doctor mesh -n net";
const API_SERVER: &str = "/apis/apps/v1/namespaces/kube-system/deployments/clustermesh-apiserver";
const AGENTS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium";
const CERTGEN: &str = "clustermesh-apiserver-generate-certs";
const MESH: [(&str, &str); 3] = [
    ("kind", "ClusterMeshBinding"),
    ("namespace", "net"),
    ("name", "mesh"),
];
/// Replaces Helm and Cilium's chart: records the values and performs the upgrade.
const HELM: &str = r#"#!/bin/sh
set -e
test "$1" = --kube-context
context=$2
shift 2
case "$*" in
"-n kube-system get values cilium -o yaml") echo 'cluster: {name: west}' ;;
"-n kube-system upgrade cilium cilium/cilium --version ~1.16.0 -f -")
    test "$(cat)" = 'cluster: {name: west}'
    kubectl --context "$context" -n kube-system set image daemonset/cilium cilium-agent=cilium/cilium:v1.16.9 ;;
*) echo "not a line that Helm was expected to get: $*" >&2; exit 1 ;;
esac
"#;
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/meshwright-target";

async fn doctor_names_what_ails_a_cluster_and_what_repairs_it() {
    let (mut ground, ca) = Ground::alike().await;
    ground.expect_denials();
    let person = Person::new(
        ground.folder(),
        mw_testbed::binaries::kubectl().unwrap(),
        ground.clusters(),
    );
    let mut provider = ground.provider(&["--leader-elect"]).await;
    ground
        .home()
        .bind("mesh", &["east", "west"], &json!({}))
        .await;
    ground.home().connected("mesh").await;
    person.healthy("at the start", DOCTOR).await;
    let (plan, status) = (
        person.types("plan mesh -n net"),
        person.types("status mesh -n net --live"),
    );
    assert_eq!(
        plan.code, 0,
        "there is nothing to do: {}{}",
        plan.stdout, plan.stderr
    );
    assert_eq!(status.code, 0, "{}{}", status.stdout, status.stderr);

    what_only_a_person_checks(&person).await;
    what_a_command_repairs(&ground, &person).await;
    what_a_person_has_to_mend(&mut ground, &person, &ca).await;
    certificates_that_end_soon(&mut ground, &person).await;
    versions_too_far_apart(&ground, &person, &provider).await;

    // The provider is stopped, so pending changes stay pending.
    provider.terminate().await;
    patch(
        &ground,
        "west",
        &format!("{SYSTEM}/secrets/{}", CONNECTIONS[1]),
        &json!({ "data": { "east": null } }),
    )
    .await;
    told(&person, "drift", "west", "Secret cilium-kvstoremesh").await;
    let plan = person.types("plan mesh -n net -o json");
    assert_eq!(plan.code, 1, "{}", plan.stderr);
    let (targets, written) = (plan.json()["targets"].clone(), |target: &Value| {
        target["update"][0]["name"].clone()
    });
    let updated: Vec<Value> = targets
        .as_object()
        .unwrap()
        .values()
        .map(written)
        .filter(Value::is_string)
        .collect();
    assert_eq!(updated, [json!(CONNECTIONS[1])], "{targets:#}");
    let provider = ground.provider(&[]).await;
    person.healthy("the provider is back", DOCTOR).await;
    ground.home().remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

async fn told(person: &Person, layer: &str, subject: &str, words: &str) -> Value {
    let broken = person.first_broken(DOCTOR, words, layer, subject).await;
    let observed = broken["observed"].as_str().unwrap();
    assert!(
        observed.contains(words),
        "{observed} says nothing of {words}"
    );
    broken
}

async fn repaired(person: &Person, layer: &str, subject: &str, words: &str) {
    let broken = told(person, layer, subject, words).await;
    person.repairs(words, &broken);
    person.healthy(words, DOCTOR).await;
}

/// The role does not include the admin certificate of Cilium 1.15; the printed command shows it.
async fn what_only_a_person_checks(person: &Person) {
    let report = person.healthy("with Cilium 1.15", DOCTOR).await;
    let left: Vec<&Value> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["state"] == "notChecked")
        .collect();
    assert_eq!(left.len(), 2, "{left:#?}");
    let text = person.types(DOCTOR).stdout;
    for (check, site) in left.into_iter().zip(["east", "west"]) {
        assert_eq!(
            (&check["layer"], &check["subject"]),
            (&json!("certificates"), &json!(site))
        );
        let hint = check["hint"].as_str().unwrap();
        assert!(text.contains(hint), "{hint} is not in the text: {text}");
        let command = hint.strip_prefix("check its name and expiry: ").unwrap();
        let shown = person.runs("the certificate is shown", command);
        assert!(
            shown.contains(&format!("admin-{site}")) && shown.contains("notAfter="),
            "{shown}"
        );
    }
}

async fn what_a_command_repairs(ground: &Ground, person: &Person) {
    let secret = |name: &str| {
        format!(
            "/api/v1/namespaces/{}/secrets/{name}-kubeconfig",
            NAMESPACES[0]
        )
    };
    ground.hub().delete(&secret("east")).await.unwrap();
    repaired(
        person,
        "credentials",
        "east",
        "no Secret east or east-kubeconfig",
    )
    .await;

    let nowhere = ground
        .cluster("west")
        .kubeconfig("https://127.0.0.1:1", "x");
    patch_hub(
        ground,
        &secret("west"),
        &json!({ "stringData": { "kubeconfig": nowhere } }),
    )
    .await;
    repaired(person, "reachability", "west", "can't be reached").await;

    let west = ground.cluster("west");
    let brief = west.kubeconfig(
        west.url(),
        &west
            .request_token(TARGET.namespace, TARGET.name, 3600)
            .await
            .unwrap(),
    );
    patch_hub(
        ground,
        &secret("west"),
        &json!({ "stringData": { "kubeconfig": brief } }),
    )
    .await;
    repaired(
        person,
        "certificates",
        "west",
        "credentials expire within a day",
    )
    .await;

    let role = ground.cluster("west").get(ROLE).await.unwrap().unwrap();
    let mut rules = role["rules"].as_array().unwrap().clone();
    rules.retain(|rule| rule["resources"] != json!(["services"]));
    patch(ground, "west", ROLE, &json!({ "rules": rules })).await;
    repaired(person, "rights", "west", "services").await;
}

async fn what_a_person_has_to_mend(ground: &mut Ground, person: &Person, ca: &Ca) {
    let available =
        |count: u8| json!({ "status": { "readyReplicas": count, "availableReplicas": count } });
    patch(
        ground,
        "east",
        &format!("{API_SERVER}/status"),
        &available(0),
    )
    .await;
    let broken = told(person, "health", "east", "clustermesh-apiserver").await;
    person.repairs("no pod is available", &broken);
    // The controller that would set this does not run here.
    patch(
        ground,
        "east",
        &format!("{API_SERVER}/status"),
        &available(1),
    )
    .await;
    person.healthy("a pod is available", DOCTOR).await;

    let id = |id: &str| json!({ "data": { "cluster-id": id } });
    let config = format!("{SYSTEM}/configmaps/cilium-config");
    patch(ground, "west", &config, &id("1")).await;
    told(
        person,
        "overlap",
        "east",
        "cluster-id 1 is also used by west",
    )
    .await;
    patch(ground, "west", &config, &id("3")).await;
    person.healthy("the ids differ", DOCTOR).await;

    ground.note_secrets().await;
    ground
        .cilium_mut("west")
        .renew(Some(SystemTime::now() - Duration::from_secs(60)))
        .await
        .unwrap();
    told(person, "certificates", "west", "has expired").await;
    ground.note_secrets().await;
    ground.cilium_mut("west").replace_ca(ca).await.unwrap();
    person.healthy("the certificates are new", DOCTOR).await;
}

/// A certificate that expires within 30 days is reported with the command that starts certgen.
async fn certificates_that_end_soon(ground: &mut Ground, person: &Person) {
    let (jobs, cron_jobs) = (
        "/apis/batch/v1/namespaces/kube-system/jobs",
        "/apis/batch/v1/namespaces/kube-system/cronjobs",
    );
    let west = ground.cluster("west");
    west.apply(&certgen()).await.unwrap();
    let since = west.list(jobs).await.unwrap().len();
    let in_days = |days: u64| Some(SystemTime::now() + Duration::from_secs(days * 86_400 + 43_200));
    ground.cilium_mut("west").renew(in_days(31)).await.unwrap();
    person.healthy("31 days are enough", DOCTOR).await;
    for days in [29, 3] {
        ground.note_secrets().await;
        ground
            .cilium_mut("west")
            .renew(in_days(days))
            .await
            .unwrap();
        let broken = told(
            person,
            "certificates",
            "west",
            &format!("expires in {days} days"),
        )
        .await;
        assert!(
            broken["hint"]
                .as_str()
                .unwrap()
                .starts_with("without that CronJob: helm upgrade"),
            "{broken:#}"
        );
        let before = ground.cluster("west").list(jobs).await.unwrap().len();
        person.repairs("certgen is started", &broken);
        assert_eq!(
            ground.cluster("west").list(jobs).await.unwrap().len(),
            before + 1,
            "the command starts a Job"
        );
        // Done by the Job's pod in a real cluster.
        ground.note_secrets().await;
        ground.cilium_mut("west").renew(None).await.unwrap();
        person.healthy("certgen was run", DOCTOR).await;
    }
    let west = ground.cluster("west");
    assert_eq!(west.list(jobs).await.unwrap().len(), since + 2);
    for made in west.list(jobs).await.unwrap() {
        let name = made["metadata"]["name"].as_str().unwrap();
        west.delete(&format!("{jobs}/{name}")).await.unwrap();
    }
    west.delete(&format!("{cron_jobs}/{CERTGEN}"))
        .await
        .unwrap();
}

/// The CronJob that Helm creates with method cronJob.
fn certgen() -> Value {
    let container = json!({ "name": "certgen", "image": "cilium/certgen:v0.2.1" });
    let pod = json!({ "spec": { "restartPolicy": "Never", "containers": [container] } });
    let spec = json!({ "schedule": "0 0 1 */4 *", "jobTemplate": { "spec": { "template": pod } } });
    let metadata = json!({ "name": CERTGEN, "namespace": "kube-system" });
    json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec })
}

/// Clusters two minor releases apart are reported with the upgrade of the older one.
async fn versions_too_far_apart(ground: &Ground, person: &Person, provider: &Operator) {
    let skew = |minors: f64| metric_is(provider, "meshwright_version_skew_minors", &MESH, minors);
    person.has_program("helm", HELM);
    let [before, one_behind, two_ahead] = ["1.15", "1.16", "1.17"];
    run(ground, "east", one_behind).await;
    person
        .healthy("one minor release apart is fine", DOCTOR)
        .await;
    skew(1.0).await;
    run(ground, "east", two_ahead).await;
    let broken = told(person, "spec", "net/mesh", "VersionSkew").await;
    let observed = broken["observed"].as_str().unwrap();
    assert!(
        observed.ends_with("upgrade west") && observed.contains("west runs Cilium 1.15"),
        "{observed}"
    );
    skew(2.0).await;
    person.repairs("Cilium of west is upgraded", &broken);
    person.healthy("Cilium of west is newer", DOCTOR).await;
    for site in ["east", "west"] {
        run(ground, site, before).await;
    }
    skew(0.0).await;
    person.healthy("as at the start", DOCTOR).await;
}

/// Sets another release in the agents' DaemonSet.
async fn run(ground: &Ground, site: &str, release: &str) {
    let agents = ground.cluster(site).get(AGENTS).await.unwrap().unwrap();
    let mut containers = agents["spec"]["template"]["spec"]["containers"].clone();
    containers[0]["image"] = json!(format!("cilium/cilium:v{release}.1"));
    patch(
        ground,
        site,
        AGENTS,
        &json!({ "spec": { "template": { "spec": { "containers": containers } } } }),
    )
    .await;
}

async fn patch(ground: &Ground, site: &str, path: &str, patch: &Value) {
    ground.cluster(site).merge_patch(path, patch).await.unwrap();
}

async fn patch_hub(ground: &Ground, path: &str, patch: &Value) {
    ground.hub().merge_patch(path, patch).await.unwrap();
}
