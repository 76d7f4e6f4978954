//! API servers, accounts of the measured programs, and requests of the benchmark
//! itself.

use std::path::PathBuf;
use std::time::Duration;

use floor::{Address, Caller, Server};
use mw_testbed::{Cluster, Testbed, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const NAMES: [&str; 5] = ["hub", "east", "north", "south", "west"];
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);
pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";

/// A service account with its shipped roles.
pub(crate) struct Account {
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    pub(crate) roles: &'static str,
}

pub(crate) struct Fleet {
    pub(crate) bed: Testbed,
    folder: TempDir,
    /// Namespace of the measured program on the hub.
    pub(crate) namespace: &'static str,
    /// Accounts of the measured program, which the floor uses too.
    pub(crate) addresses: Vec<Address>,
    /// Clients for requests of the benchmark itself.
    pub(crate) admins: Vec<Server>,
}

impl Fleet {
    pub(crate) async fn start(namespace: &'static str) -> Self {
        let bed = Testbed::start(&NAMES)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let mut fleet = Self {
            bed,
            folder: tempfile::tempdir().unwrap(),
            namespace,
            addresses: Vec::new(),
            admins: Vec::new(),
        };
        for at in 0..NAMES.len() {
            let address = fleet.address(at, fleet.cluster(at).admin_token());
            fleet.admins.push(Server::new(address, "bench").unwrap());
        }
        fleet
    }

    pub(crate) fn address(&self, at: usize, token: &str) -> Address {
        let cluster = self.cluster(at);
        Address {
            url: cluster.url().to_owned(),
            ca: cluster.ca_pem().to_owned(),
            caller: Caller::Token(token.to_owned()),
        }
    }

    /// Returns the token of the measured program's account.
    pub(crate) fn token(&self, at: usize) -> &str {
        match &self.addresses[at].caller {
            Caller::Token(token) => token,
            Caller::Certificate { .. } => panic!("requests to API servers use tokens"),
        }
    }

    pub(crate) fn cluster(&self, at: usize) -> &Cluster {
        self.bed.cluster(NAMES[at]).unwrap()
    }

    /// Returns the path of the hub's kubeconfig, for the operator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub(crate) fn write_kubeconfig(&self, token: &str) {
        let hub = self.cluster(0);
        std::fs::write(self.kubeconfig(), hub.kubeconfig(hub.url(), token)).unwrap();
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("operator.log")
    }

    /// Creates the Secret on the hub with the kubeconfig of a member.
    pub(crate) async fn give_access(&self, at: usize, secret: &str) {
        let kubeconfig = self
            .cluster(at)
            .kubeconfig(&self.addresses[at].url, self.token(at));
        let metadata = json!({ "name": secret, "namespace": self.namespace });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "kubeconfig": kubeconfig } });
        self.cluster(0).create(&secret).await.unwrap();
    }

    pub(crate) async fn request(&self, at: usize, method: &str, path: &str, body: &Value) -> Value {
        let content = if method == "PATCH" { MERGE_PATCH } else { JSON };
        let request = self.admins[at]
            .prepare(method, path, content, body.to_string())
            .unwrap();
        let (code, answer) = self.admins[at].send(request).await.unwrap();
        assert!(
            code < 300,
            "{method} {path} answered {code}: {}",
            String::from_utf8_lossy(&answer)
        );
        serde_json::from_slice(&answer).unwrap()
    }

    /// Returns the path that watches a collection from its current resourceVersion.
    pub(crate) async fn watch_path(&self, at: usize, collection: &str) -> String {
        let list = self
            .request(at, "GET", &format!("{collection}?limit=1"), &Value::Null)
            .await;
        format!(
            "{collection}?watch=true&resourceVersion={}",
            list["metadata"]["resourceVersion"].as_str().unwrap()
        )
    }
}

/// Gives the operator its roles on a cluster, and all permissions if it is `foreign`.
/// Waits until the roles are effective, and returns a token.
pub(crate) async fn account(cluster: &Cluster, account: &Account, foreign: bool) -> String {
    let Account {
        namespace,
        name,
        roles,
    } = account;
    cluster
        .apply(
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        )
        .await
        .unwrap();
    cluster.apply_yaml(roles).await.unwrap();
    if foreign {
        let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" });
        let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "bench" }, "roleRef": role, "subjects": [subject] });
        cluster.apply(&binding).await.unwrap();
    }
    for role in serde_saphyr::from_multiple::<Value>(roles).unwrap() {
        for rule in role["rules"].as_array().into_iter().flatten() {
            may(
                cluster,
                &format!("system:serviceaccount:{namespace}:{name}"),
                rule,
                &role["metadata"]["namespace"],
            )
            .await;
        }
    }
    cluster.request_token(namespace, name, 7200).await.unwrap()
}

/// Waits until the authorizer has observed a rule.
async fn may(cluster: &Cluster, user: &str, rule: &Value, namespace: &Value) {
    let resource = rule["resources"][0].as_str().unwrap_or_default();
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let access = json!({ "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
        "name": rule["resourceNames"][0], "namespace": namespace });
    let spec = json!({ "user": user, "resourceAttributes": access });
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
    eventually(DEADLINE, || async {
        let answer = cluster
            .create(&review)
            .await
            .map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == true {
            Ok(())
        } else {
            Err(format!("not yet: {access}"))
        }
    })
    .await
    .unwrap();
}
