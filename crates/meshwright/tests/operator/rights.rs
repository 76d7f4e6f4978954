//! Accounts with exactly the rights that a shipped file grants, and their tokens.

use base64ct::{Base64, Encoding};
use mw_testbed::audit::AuditRecord;
use mw_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::wait::DEADLINE;

/// An account of the process under test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    /// Place of the account, as named in findings.
    pub(crate) place: &'static str,
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    /// File that grants the rights.
    pub(crate) roles: &'static str,
}

impl Account {
    /// Reports whether the account, or one whose name starts with its name (a second process), made
    /// a call.
    pub(crate) fn made(&self, record: &AuditRecord) -> bool {
        record
            .user
            .strip_prefix(&format!("system:serviceaccount:{}:", self.namespace))
            .is_some_and(|name| name.starts_with(self.name))
    }

    /// Creates the account from the file.
    pub(crate) async fn make(&self, cluster: &Cluster) {
        cluster.apply_yaml(self.roles).await.unwrap();
        self.wait_for_rights(cluster, self.name).await;
    }

    /// Token from the Secret that comes with the roles.
    pub(crate) async fn kept_token(&self, cluster: &Cluster) -> String {
        let path = format!(
            "/api/v1/namespaces/{}/secrets/{}-token",
            self.namespace, self.name
        );
        eventually(DEADLINE, || async {
            let secret = cluster
                .get(&path)
                .await
                .map_err(|error| error.to_string())?
                .unwrap_or_default();
            let token = secret["data"]["token"]
                .as_str()
                .and_then(|data| Base64::decode_vec(data).ok())
                .ok_or("no token yet")?;
            String::from_utf8(token).map_err(|error| error.to_string())
        })
        .await
        .unwrap()
    }

    /// Waits for the first and last right of each role: the authorizer learns of roles and bindings
    /// one object at a time.
    pub(crate) async fn wait_for_rights(&self, cluster: &Cluster, account: &str) {
        let objects = documents(self.roles);
        for role in objects
            .iter()
            .filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole")))
        {
            let rules = role["rules"].as_array().unwrap();
            for rule in [rules.first(), rules.last()].into_iter().flatten() {
                let resource = rule["resources"][0].as_str().unwrap();
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let access = json!({
                    "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
                    "name": rule["resourceNames"][0], "namespace": role["metadata"]["namespace"],
                });
                may(cluster, self.namespace, account, access, true).await;
            }
        }
    }
}

pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).unwrap()
}

/// Waits until the authorizer allows, or denies, an access.
pub(crate) async fn may(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
    access: Value,
    allowed: bool,
) {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let spec = json!({ "user": user, "resourceAttributes": access });
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
    eventually(DEADLINE, || async {
        let answer = cluster
            .create(&review)
            .await
            .map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == allowed {
            Ok(())
        } else {
            Err(format!("{access} is not yet {allowed}"))
        }
    })
    .await
    .unwrap();
}
