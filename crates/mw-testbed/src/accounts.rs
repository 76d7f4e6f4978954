//! Service accounts with exactly the permissions that a test grants, and kubeconfigs.

use std::time::Duration;

use base64ct::{Base64, Encoding};
use hyper::Method;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::http::JSON;
use crate::objects::text;
use crate::tokens::SECRET_TYPE;
use crate::wait::eventually;

const TOKEN_DEADLINE: Duration = Duration::from_secs(15);
const RULES_DEADLINE: Duration = Duration::from_secs(15);

impl Cluster {
    /// Returns a kubeconfig of the user `admin`.
    pub fn admin_kubeconfig(&self) -> String {
        self.kubeconfig(self.url(), self.admin_token())
    }

    /// Returns a kubeconfig for any address, e.g. of a proxy, and bearer token.
    pub fn kubeconfig(&self, server: &str, token: &str) -> String {
        let ca = Base64::encode_string(self.ca_pem().as_bytes());
        let name = self.name();
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {name}\n\
             clusters:\n- name: {name}\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
             users:\n- name: {name}\n  user:\n    token: {token}\n\
             contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n"
        )
    }

    /// Creates namespace, service account, ClusterRole, binding and token Secret, and
    /// returns the kubeconfig. The rules replace those of an earlier call.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        rules: &[PolicyRule],
    ) -> Result<String> {
        let token = self.service_account(namespace, name, rules).await?;
        Ok(self.kubeconfig(self.url(), &token))
    }

    /// Like `service_account_kubeconfig`, but returns the token.
    pub async fn service_account(
        &self,
        namespace: &str,
        name: &str,
        rules: &[PolicyRule],
    ) -> Result<String> {
        let role = format!("{namespace}-{name}");
        let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
        let objects = [
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace } }),
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": role }, "rules": rules }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": role },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role }, "subjects": [subject],
            }),
            token_secret(namespace, name),
        ];
        for object in &objects {
            self.apply(object).await?;
        }
        self.wait_for_rules(namespace, name, rules).await?;
        self.wait_for_token(namespace, name).await
    }

    /// Waits until the authorizer has observed all rules. It learns of roles and
    /// bindings a moment after they are written; a client that is faster would be
    /// denied.
    pub async fn wait_for_rules(
        &self,
        namespace: &str,
        name: &str,
        rules: &[PolicyRule],
    ) -> Result<()> {
        for attributes in rules.iter().flat_map(accesses) {
            let mut spec = json!({ "user": format!("system:serviceaccount:{namespace}:{name}") });
            if let (Some(spec), Value::Object(attributes)) = (spec.as_object_mut(), &attributes) {
                spec.extend(attributes.clone());
            }
            let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
            eventually(RULES_DEADLINE, || async {
                let answer = self.create(&review).await?;
                let allowed = answer.pointer("/status/allowed") == Some(&Value::Bool(true));
                if allowed {
                    Ok(())
                } else {
                    Err(Error::Object(format!(
                        "{namespace}/{name} is not allowed yet: {attributes}"
                    )))
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Replaces the token Secret `NAME-token`. The API server caches the old token for
    /// up to 10 s, then rejects it.
    pub async fn rotate_token(&self, namespace: &str, name: &str) -> Result<String> {
        self.delete(&secret_path(namespace, name)).await?;
        self.create(&token_secret(namespace, name)).await?;
        self.wait_for_token(namespace, name).await
    }

    /// Requests a token through TokenRequest, without a Secret.
    pub async fn request_token(&self, namespace: &str, name: &str, seconds: u32) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": seconds } });
        let answer = self
            .http
            .expect(Method::POST, &path, JSON, Some(&request))
            .await?;
        text(&answer, "/status/token").map(str::to_owned)
    }

    async fn wait_for_token(&self, namespace: &str, name: &str) -> Result<String> {
        let path = secret_path(namespace, name);
        eventually(TOKEN_DEADLINE, || async {
            let secret = self.get(&path).await?.unwrap_or_default();
            let data = secret
                .pointer("/data/token")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let token = Base64::decode_vec(data)
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            token
                .filter(|token| !token.is_empty())
                .ok_or_else(|| Error::Object(format!("{path} contains no token yet")))
        })
        .await
    }
}

/// Returns each access that a rule grants, as attributes of a SubjectAccessReview.
fn accesses(rule: &PolicyRule) -> Vec<Value> {
    let or_any = |list: &Option<Vec<String>>| {
        list.clone()
            .filter(|list| !list.is_empty())
            .unwrap_or_else(|| vec![String::new()])
    };
    let mut accesses = Vec::new();
    for verb in &rule.verbs {
        for path in rule.non_resource_urls.iter().flatten() {
            accesses.push(json!({ "nonResourceAttributes": { "verb": verb, "path": path } }));
        }
        for resource in rule.resources.iter().flatten() {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            for group in or_any(&rule.api_groups) {
                for name in or_any(&rule.resource_names) {
                    accesses.push(json!({ "resourceAttributes": {
                        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
                    }}));
                }
            }
        }
    }
    accesses
}

fn secret_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}-token")
}

fn token_secret(namespace: &str, name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE, "metadata": {
        "name": format!("{name}-token"), "namespace": namespace, "annotations": { "kubernetes.io/service-account.name": name },
    }})
}
