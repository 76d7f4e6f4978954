//! Accounts of the operator and their tokens.

use mw_testbed::Cluster;
use serde_json::{Value, json};

use crate::rights::{Account, documents, may};
use mw_sim::kilo::NAMESPACE;

pub(crate) const HUB_ACCOUNT: &str = "meshwright-operator";
pub(crate) const REMOTE_ACCOUNT: &str = "clustermesh-reader";
pub(crate) const REMOTE_NAMESPACE: &str = "kube-system";
pub(crate) const HUB: Account = Account {
    place: "Hub",
    namespace: NAMESPACE,
    name: HUB_ACCOUNT,
    roles: include_str!("../../../../config/rbac/hub.yaml"),
};
pub(crate) const REMOTE: Account = Account {
    place: "Remote",
    namespace: REMOTE_NAMESPACE,
    name: REMOTE_ACCOUNT,
    roles: include_str!("../../../../config/rbac/remote.yaml"),
};
pub(crate) const ACCOUNTS: [Account; 2] = [HUB, REMOTE];

/// Creates the operator's account on the hub and returns its token.
pub(crate) async fn hub_account(hub: &Cluster, account: &str) -> String {
    for object in documents(HUB.roles) {
        hub.apply(&for_account(object, account)).await.unwrap();
    }
    HUB.wait_for_rights(hub, account).await;
    hub.request_token(NAMESPACE, account, 3600).await.unwrap()
}

/// Copies the operator's Role to another namespace.
pub(crate) async fn widen(hub: &Cluster, namespace: &str) {
    for mut object in documents(HUB.roles) {
        if matches!(object["kind"].as_str(), Some("Role" | "RoleBinding")) {
            object["metadata"]["namespace"] = json!(namespace);
            hub.apply(&object).await.unwrap();
        }
    }
    may(
        hub,
        NAMESPACE,
        HUB_ACCOUNT,
        json!({ "verb": "list", "resource": "secrets", "namespace": namespace }),
        true,
    )
    .await;
}

/// Creates the operator's account on a member and returns its token.
pub(crate) async fn remote_account(remote: &Cluster) -> String {
    REMOTE.make(remote).await;
    REMOTE.kept_token(remote).await
}

/// Creates an account with the same rights for another tenant's operator on a member and returns
/// its token.
pub(crate) async fn remote_account_as(remote: &Cluster, account: &str) -> String {
    for object in documents(REMOTE.roles)
        .into_iter()
        .filter(|object| object["kind"] != "Secret")
    {
        remote.apply(&for_account(object, account)).await.unwrap();
    }
    REMOTE.wait_for_rights(remote, account).await;
    remote
        .request_token(REMOTE_NAMESPACE, account, 3600)
        .await
        .unwrap()
}

/// Renames the account in an object.
fn for_account(mut object: Value, account: &str) -> Value {
    if object["kind"] == "ServiceAccount" {
        object["metadata"]["name"] = json!(account);
    }
    if object["subjects"].is_array() {
        if object["subjects"][0]["name"] != account {
            let name = format!("{}-{account}", object["metadata"]["name"].as_str().unwrap());
            object["metadata"]["name"] = json!(name);
        }
        object["subjects"][0]["name"] = json!(account);
    }
    object
}
