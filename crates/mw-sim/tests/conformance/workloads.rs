//! Services, EndpointSlices, Pods, DaemonSets and Deployments. On the simulator they
//! are written through `Cluster::call`, with all fields that a server would fill in.

use http::Method;
use serde_json::{Value, json};

use crate::subject::{JSON, MERGE, Subject};

crate::behaviours![
    a_service_is_kept_as_it_is_written,
    annotations_are_applied_to_a_service,
    annotations_of_a_service_are_shared_and_let_go,
    applying_to_a_service_that_is_gone,
    the_status_of_a_service_is_apart,
    a_daemon_set_is_listed_by_its_label,
    a_deployment_has_a_status_of_its_own,
    endpoint_slices_are_found_by_their_service,
    a_pod_without_address_has_no_proxy,
    the_proxy_needs_its_own_right,
];

impl Subject {
    fn of(&self, group: &str, plural: &str) -> String {
        format!("/{group}/namespaces/{}/{plural}", self.namespace)
    }

    async fn service(&self, name: &str) -> Value {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "annotations": { "user.test/x": "1" }, "labels": { "a": "b" } },
            "spec": { "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "selector": { "app": name },
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }] },
        });
        let made = self
            .by_hand(
                Method::POST,
                &format!("{}?fieldManager=helm", self.of("api/v1", "services")),
                JSON,
                service,
            )
            .await;
        assert_eq!(made.code, 201, "{}", made.body);
        made.body
    }
}

fn annotated(name: &str, annotations: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "annotations": annotations } })
}

async fn a_service_is_kept_as_it_is_written(on: Subject) -> Value {
    on.service("a").await;
    let path = format!("{}/a", on.of("api/v1", "services"));
    let read = on.get(&path).await;
    let patched = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "metadata": { "labels": { "c": "d" } } }),
        )
        .await;
    json!([
        read.told(),
        patched.told(),
        on.delete(&path).await.parts(&["/kind", "/metadata/name"])
    ])
}

async fn annotations_are_applied_to_a_service(on: Subject) -> Value {
    let made = on.service("a").await;
    let path = format!("{}/a", on.of("api/v1", "services"));
    let mut wanted = annotated("a", json!({ "service.cilium.io/global": "true" }));
    wanted["metadata"]["uid"] = made["metadata"]["uid"].clone();
    let first = on
        .apply("meshwright&fieldValidation=Strict", &path, wanted.clone())
        .await;
    let again = on
        .apply("meshwright&fieldValidation=Strict", &path, wanted)
        .await;
    assert_eq!(first.version(), again.version());
    let less = on
        .apply("meshwright", &path, annotated("a", json!({})))
        .await;
    json!([
        first.told(),
        less.told(),
        on.apply(
            "meshwright",
            &path,
            annotated("a", json!({ "user.test/x": "2" }))
        )
        .await
        .told()
    ])
}

async fn annotations_of_a_service_are_shared_and_let_go(on: Subject) -> Value {
    on.service("a").await;
    let path = format!("{}/a", on.of("api/v1", "services"));
    let shared = on
        .apply(
            "one",
            &path,
            annotated("a", json!({ "user.test/x": "1", "y": "2" })),
        )
        .await;
    let patched = on
        .merge(
            &format!("{path}?fieldManager=user"),
            json!({ "metadata": { "annotations": { "y": "3" } } }),
        )
        .await;
    let refused = on
        .apply(
            "one",
            &path,
            annotated("a", json!({ "user.test/x": "1", "y": "2" })),
        )
        .await;
    json!([
        shared.told(),
        patched.told(),
        refused.told(),
        on.apply("one", &path, annotated("a", json!({})))
            .await
            .told()
    ])
}

async fn applying_to_a_service_that_is_gone(on: Subject) -> Value {
    let mut wanted = annotated("a", json!({ "x": "y" }));
    wanted["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    on.apply("one", &format!("{}/a", on.of("api/v1", "services")), wanted)
        .await
        .told()
}

async fn the_status_of_a_service_is_apart(on: Subject) -> Value {
    on.service("a").await;
    let path = format!("{}/a/status?fieldManager=two", on.of("api/v1", "services"));
    let patch = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
    ] } });
    on.by_hand(Method::PATCH, &path, MERGE, patch).await.told()
}

fn template(name: &str) -> Value {
    json!({
        "metadata": { "labels": { "k8s-app": name } },
        "spec": { "containers": [{ "name": "c", "image": "r/c:v1.19.1", "imagePullPolicy": "IfNotPresent", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File" }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "securityContext": {},
            "schedulerName": "default-scheduler" },
    })
}

/// Removes the managers, which differ: the simulator treats a template as one field.
fn without_managers(mut object: Value) -> Value {
    object["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    // Real servers write these even if they are empty.
    if let Some(metadata) = object["spec"]["template"]["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
    }
    crate::subject::clean(&object)
}

async fn a_daemon_set_is_listed_by_its_label(on: Subject) -> Value {
    let sets = on.of("apis/apps/v1", "daemonsets");
    let object = json!({
        "metadata": { "name": "cilium", "labels": { "k8s-app": "cilium" }, "annotations": { "deprecated.daemonset.template.generation": "1" } },
        "spec": { "selector": { "matchLabels": { "k8s-app": "cilium" } }, "template": template("cilium"), "revisionHistoryLimit": 10,
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1, "maxSurge": 0 } } },
    });
    let made = on.by_hand(Method::POST, &sets, JSON, object).await;
    let status = json!({ "status": { "numberReady": 1, "desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberMisscheduled": 0 } });
    let changed = on
        .by_hand(
            Method::PATCH,
            &format!("{sets}/cilium/status"),
            MERGE,
            status,
        )
        .await;
    let chosen = on
        .get(&format!("{sets}?labelSelector=k8s-app%3Dcilium"))
        .await;
    let others = on
        .get(&format!("{sets}?labelSelector=k8s-app%3Dother"))
        .await;
    json!([
        made.code,
        without_managers(changed.body),
        chosen.names(),
        others.names(),
        chosen.body["kind"]
    ])
}

async fn a_deployment_has_a_status_of_its_own(on: Subject) -> Value {
    let path = on.of("apis/apps/v1", "deployments");
    let object = json!({
        "metadata": { "name": "a" },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "k8s-app": "a" } }, "template": template("a"), "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "25%", "maxSurge": "25%" } } },
        "status": { "availableReplicas": 5 },
    });
    let made = on.by_hand(Method::POST, &path, JSON, object).await;
    let status = json!({ "status": { "replicas": 1, "readyReplicas": 1, "availableReplicas": 1 } });
    let changed = on
        .by_hand(Method::PATCH, &format!("{path}/a/status"), MERGE, status)
        .await;
    let scaled = on
        .by_hand(
            Method::PATCH,
            &format!("{path}/a"),
            MERGE,
            json!({ "spec": { "replicas": 2 } }),
        )
        .await;
    json!([
        without_managers(made.body),
        without_managers(changed.body),
        without_managers(scaled.body)
    ])
}

async fn endpoint_slices_are_found_by_their_service(on: Subject) -> Value {
    let slices = on.of("apis/discovery.k8s.io/v1", "endpointslices");
    let object = json!({
        "metadata": { "name": "a-1", "labels": { "kubernetes.io/service-name": "a" } }, "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": true }, "targetRef": { "kind": "Pod", "name": "p", "uid": "u" } }],
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    });
    let made = on.by_hand(Method::POST, &slices, JSON, object).await;
    let emptied = on
        .by_hand(
            Method::PATCH,
            &format!("{slices}/a-1"),
            MERGE,
            json!({ "endpoints": [] }),
        )
        .await;
    json!([
        made.told(),
        emptied.told(),
        on.get(&format!(
            "{slices}?labelSelector=kubernetes.io/service-name%3Da"
        ))
        .await
        .names()
    ])
}

async fn a_pod_without_address_has_no_proxy(on: Subject) -> Value {
    let pods = on.of("api/v1", "pods");
    let missing = on.get(&format!("{pods}/p:9964/proxy/metrics")).await;
    let spec = json!({ "containers": [{ "name": "c", "image": "i" }], "automountServiceAccountToken": false, "serviceAccountName": "default" });
    if let crate::subject::Side::Real(_) = &on.side {
        let account = json!({ "metadata": { "name": "default" } });
        on.post(&on.of("api/v1", "serviceaccounts"), account).await;
    }
    let made = on
        .by_hand(
            Method::POST,
            &pods,
            JSON,
            json!({ "metadata": { "name": "p" }, "spec": spec }),
        )
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    json!([
        missing.told(),
        on.get(&format!("{pods}/p:9964/proxy/metrics")).await.told()
    ])
}

async fn the_proxy_needs_its_own_right(on: Subject) -> Value {
    let reader = on
        .somebody(json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }]))
        .await;
    let path = format!("{}/p:9964/proxy/metrics", on.of("api/v1", "pods"));
    on.send_raw(&reader, Method::GET, &path, JSON, Vec::new())
        .await
        .told()
}
