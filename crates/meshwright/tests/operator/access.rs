//! The roles as they are shipped, and tokens of the accounts that have them.

use base64ct::{Base64, Encoding};
use mw_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fleet::DEADLINE;
use mw_sim::kilo::NAMESPACE;

pub(crate) const HUB_ROLES: &str = include_str!("../../../../config/rbac/hub.yaml");
pub(crate) const REMOTE_ROLES: &str = include_str!("../../../../config/rbac/remote.yaml");
pub(crate) const HUB_ACCOUNT: &str = "meshwright-operator";
pub(crate) const REMOTE_ACCOUNT: &str = "clustermesh-reader";
pub(crate) const REMOTE_NAMESPACE: &str = "kube-system";

pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).unwrap()
}

/// Gives the operator its rights on the hub, and returns its token.
pub(crate) async fn hub_account(hub: &Cluster, account: &str) -> String {
    for object in documents(HUB_ROLES) {
        hub.apply(&for_account(object, account)).await.unwrap();
    }
    wait_for_rights(hub, NAMESPACE, account, &documents(HUB_ROLES)).await;
    hub.request_token(NAMESPACE, account, 3600).await.unwrap()
}

/// The Role of the operator's namespace, for another namespace.
pub(crate) async fn widen(hub: &Cluster, namespace: &str) {
    for mut object in documents(HUB_ROLES) {
        if matches!(object["kind"].as_str(), Some("Role" | "RoleBinding")) {
            object["metadata"]["namespace"] = json!(namespace);
            hub.apply(&object).await.unwrap();
        }
    }
    may(hub, NAMESPACE, HUB_ACCOUNT, json!({ "verb": "list", "resource": "secrets", "namespace": namespace }), true).await;
}

/// Gives the operator its rights on a member, and returns its token.
pub(crate) async fn remote_account(remote: &Cluster) -> String {
    remote.apply_yaml(REMOTE_ROLES).await.unwrap();
    wait_for_rights(remote, REMOTE_NAMESPACE, REMOTE_ACCOUNT, &documents(REMOTE_ROLES)).await;
    let path = format!("/api/v1/namespaces/{REMOTE_NAMESPACE}/secrets/{REMOTE_ACCOUNT}-token");
    eventually(DEADLINE, || async {
        let secret = remote.get(&path).await.map_err(|error| error.to_string())?.unwrap_or_default();
        let token = secret["data"]["token"].as_str().and_then(|data| Base64::decode_vec(data).ok()).ok_or("no token yet")?;
        String::from_utf8(token).map_err(|error| error.to_string())
    })
    .await
    .unwrap()
}

/// Waits until the authorizer says yes, or no, to one access.
pub(crate) async fn may(cluster: &Cluster, namespace: &str, account: &str, access: Value, allowed: bool) {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let spec = json!({ "user": user, "resourceAttributes": access });
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
    eventually(DEADLINE, || async {
        let answer = cluster.create(&review).await.map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == allowed { Ok(()) } else { Err(format!("{access} is not yet {allowed}")) }
    })
    .await
    .unwrap();
}

/// A second operator has the same rights under another name.
fn for_account(mut object: Value, account: &str) -> Value {
    if object["kind"] == "ServiceAccount" {
        object["metadata"]["name"] = json!(account);
    }
    if object["subjects"].is_array() {
        if account != HUB_ACCOUNT {
            let name = format!("{}-{account}", object["metadata"]["name"].as_str().unwrap());
            object["metadata"]["name"] = json!(name);
        }
        object["subjects"][0]["name"] = json!(account);
    }
    object
}

/// The first and the last right of each role: the authorizer learns of roles
/// and bindings one object at a time.
async fn wait_for_rights(cluster: &Cluster, namespace: &str, account: &str, objects: &[Value]) {
    for role in objects.iter().filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))) {
        let rules = role["rules"].as_array().unwrap();
        for rule in [rules.first(), rules.last()].into_iter().flatten() {
            let resource = rule["resources"][0].as_str().unwrap();
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let access = json!({
                "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
                "name": rule["resourceNames"][0], "namespace": role["metadata"]["namespace"],
            });
            may(cluster, namespace, account, access, true).await;
        }
    }
}
