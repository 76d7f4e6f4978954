//! The API server under test, and the observations of behaviours, without values that
//! differ between runs.

use std::sync::OnceLock;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use mw_sim::Account;
use regex_lite::Regex;
use serde_json::{Value, json};
use tokio::time::timeout;

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STEPS: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const JSON: &str = "application/json";
/// Time to wait for an event that must not come.
const QUIET: Duration = Duration::from_millis(700);
/// Timeout for operations that take milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(20);

pub(crate) enum Side {
    Simulated(mw_sim::Cluster),
    Real(&'static mw_testbed::Cluster),
}

/// An API server, with a separate namespace for each behaviour.
pub(crate) struct Subject {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) side: Side,
}

impl Subject {
    pub(crate) async fn new(index: usize, client: Client, side: Side) -> Subject {
        let subject = Subject {
            client,
            namespace: format!("b{index:03}"),
            side,
        };
        let made = subject
            .post(
                "/api/v1/namespaces",
                json!({ "metadata": { "name": subject.namespace } }),
            )
            .await;
        assert_eq!(made.code, 201, "{}", made.body);
        subject
    }

    /// Returns a unique name for a cluster-scoped object.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    pub(crate) fn widgets(&self) -> String {
        format!(
            "/apis/conformance.test/v1/namespaces/{}/widgets",
            self.namespace
        )
    }

    pub(crate) fn secrets(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets", self.namespace)
    }

    pub(crate) fn config_maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    pub(crate) fn leases(&self) -> String {
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.namespace
        )
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<Value>,
    ) -> Seen {
        let body = body
            .map(|body| body.to_string().into_bytes())
            .unwrap_or_default();
        self.send_raw(&self.client, method, path, content, body)
            .await
    }

    pub(crate) async fn send_raw(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        content: &str,
        body: Vec<u8>,
    ) -> Seen {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .header("accept", JSON);
        let answer = client
            .send(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        let code = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get("retry-after")
            .map(|value| value.to_str().unwrap().to_owned());
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        Seen {
            code,
            retry_after,
            body: serde_json::from_slice(&bytes).unwrap_or_else(|_| text()),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Seen {
        self.send(Method::GET, path, JSON, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Seen {
        self.send(Method::POST, path, JSON, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Seen {
        self.send(Method::PUT, path, JSON, Some(body)).await
    }

    pub(crate) async fn merge(&self, path: &str, patch: Value) -> Seen {
        self.send(Method::PATCH, path, MERGE, Some(patch)).await
    }

    pub(crate) async fn steps(&self, path: &str, patch: Value) -> Seen {
        self.send(Method::PATCH, path, STEPS, Some(patch)).await
    }

    /// Applies an object as this field manager.
    pub(crate) async fn apply(&self, manager: &str, path: &str, object: Value) -> Seen {
        self.send(
            Method::PATCH,
            &format!("{path}?fieldManager={manager}"),
            APPLY,
            Some(object),
        )
        .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Seen {
        self.send(Method::DELETE, path, JSON, None).await
    }

    pub(crate) async fn delete_with(&self, path: &str, options: Value) -> Seen {
        let mut options = options;
        options["kind"] = "DeleteOptions".into();
        options["apiVersion"] = "v1".into();
        self.send(Method::DELETE, path, JSON, Some(options)).await
    }

    /// Sends a request for kinds that only `Cluster::call` writes on the simulator.
    pub(crate) async fn by_hand(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Value,
    ) -> Seen {
        match &self.side {
            Side::Simulated(cluster) => {
                let (code, body) = cluster.call(&method, path, content, Some(&body));
                Seen {
                    code: code.as_u16(),
                    retry_after: None,
                    body,
                }
            }
            Side::Real(_) => self.send(method, path, content, Some(body)).await,
        }
    }

    /// Creates an object, which must succeed, and returns it.
    pub(crate) async fn made(&self, path: &str, body: Value) -> Value {
        let made = self.post(path, body).await;
        assert_eq!(made.code, 201, "{}", made.body);
        made.body
    }

    pub(crate) async fn watch(&self, path: &str) -> Watching {
        let request = Request::get(path)
            .header("accept", JSON)
            .body(Body::empty())
            .unwrap();
        let answer = self.client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        Watching {
            code,
            body: answer.into_body(),
            rest: Vec::new(),
            over: false,
        }
    }

    /// Returns a client of an account with these rules and the permissions of every
    /// account.
    pub(crate) async fn somebody(&self, rules: Value) -> Client {
        let (namespace, name) = (self.namespace.as_str(), "somebody");
        match &self.side {
            Side::Simulated(cluster) => {
                let account = json!({ "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace } });
                let roles = [account, json!({ "kind": "ClusterRole", "rules": rules })];
                cluster.set_token("theirs", Some(Account::from_roles(&roles)));
                Client::new(cluster.server_as("theirs"), "default")
            }
            Side::Real(cluster) => {
                let rules: Vec<k8s_openapi::api::rbac::v1::PolicyRule> =
                    serde_json::from_value(rules).unwrap();
                let kubeconfig = cluster
                    .service_account_kubeconfig(namespace, name, &rules)
                    .await
                    .unwrap();
                crate::sides::client(&kubeconfig).await
            }
        }
    }

    /// Returns a client with an unknown token, or without one.
    pub(crate) async fn stranger(&self, token: Option<&str>) -> Client {
        match (&self.side, token) {
            (Side::Simulated(cluster), Some(token)) => {
                Client::new(cluster.server_as(token), "default")
            }
            (Side::Simulated(cluster), None) => Client::new(cluster.server(), "default"),
            (Side::Real(cluster), Some(token)) => {
                crate::sides::client(&cluster.kubeconfig(cluster.url(), token)).await
            }
            (Side::Real(cluster), None) => {
                let kubeconfig = cluster
                    .kubeconfig(cluster.url(), "x")
                    .replace("    token: x\n", "    {}\n");
                crate::sides::client(&kubeconfig).await
            }
        }
    }

    /// Retries until the answer fits: real servers do some things asynchronously.
    pub(crate) async fn until(&self, path: &str, fits: impl Fn(&Seen) -> bool) -> Seen {
        let wait = async {
            loop {
                let seen = self.get(path).await;
                if fits(&seen) {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(SOON, wait)
            .await
            .unwrap_or_else(|_| panic!("{path} does not reach the expected state"))
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) code: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: Value,
}

impl Seen {
    /// Returns everything that does not differ between runs.
    pub(crate) fn told(&self) -> Value {
        let mut body = clean(&self.body);
        let causes = body["details"]["causes"].as_array().into_iter().flatten();
        // The message also lists all causes, in random order.
        if causes.filter(|cause| cause["field"] != "<nil>").count() > 1 {
            body["message"] = "(several causes)".into();
        }
        json!({ "code": self.code, "body": body })
    }

    /// Returns the machine-readable part of a rejection.
    pub(crate) fn brief(&self) -> Value {
        let causes = self.body["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten();
        let mut causes: Vec<Value> = causes
            .map(|cause| json!({ "reason": cause["reason"], "field": cause["field"] }))
            .collect();
        causes.sort_by_key(Value::to_string);
        // Real servers check some things twice, and report them twice.
        causes.dedup();
        json!({ "code": self.code, "kind": self.body["kind"], "reason": self.body["reason"], "causes": causes })
    }

    /// Returns parts of the object, selected by JSON pointers.
    pub(crate) fn parts(&self, pointers: &[&str]) -> Value {
        let part = |pointer: &&str| {
            let (field, value) = (
                pointer.rsplit('/').next().unwrap_or_default(),
                self.body.pointer(pointer),
            );
            clean(&json!({ field: value.unwrap_or(&Value::Null) }))
        };
        json!({ "code": self.code, "parts": pointers.iter().map(part).collect::<Vec<_>>() })
    }

    pub(crate) fn version(&self) -> u64 {
        version(&self.body)
    }

    /// Returns the names of the items of a list.
    pub(crate) fn names(&self) -> Vec<String> {
        let items = self.body["items"].as_array().into_iter().flatten();
        items
            .map(|item| {
                item["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect()
    }
}

pub(crate) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// Replaces values that differ between runs by placeholders.
pub(crate) fn clean(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut cleaned = serde_json::Map::new();
            // The simulator does not track managers of definitions.
            let is_definition = fields
                .get("kind")
                .is_some_and(|kind| kind == "CustomResourceDefinition");
            for (name, field) in fields {
                let symbol = match name.as_str() {
                    "uid" => Some("UID"),
                    "resourceVersion" => Some("VERSION"),
                    "creationTimestamp" | "deletionTimestamp" | "lastTransitionTime" => {
                        Some("TIME")
                    }
                    "continue" => Some("TOKEN"),
                    _ => None,
                };
                let field = match (symbol, field) {
                    (Some(symbol), Value::String(text)) if !text.is_empty() => symbol.into(),
                    (None, Value::Array(entries)) if name == "managedFields" => managers(entries),
                    _ => clean(field),
                };
                cleaned.insert(name.clone(), field);
            }
            if is_definition && let Some(Value::Object(metadata)) = cleaned.get_mut("metadata") {
                metadata.remove("managedFields");
            }
            if let Some(Value::Array(causes)) = cleaned.get_mut("causes") {
                // Their order is random.
                causes.sort_by_key(Value::to_string);
                causes.dedup();
            }
            Value::Object(cleaned)
        }
        Value::Array(items) => items.iter().map(clean).collect(),
        Value::String(text) => scrubbed(text).into(),
        other => other.clone(),
    }
}

/// Replaces times, and sorts the entries, whose order depends on timing.
fn managers(entries: &[Value]) -> Value {
    let mut entries = entries.to_vec();
    for entry in &mut entries {
        if entry["time"].is_string() {
            entry["time"] = "TIME".into();
        }
    }
    entries.sort_by_key(|entry| {
        ["operation", "manager", "subresource"].map(|field| entry[field].to_string())
    });
    Value::Array(entries)
}

fn scrubbed(text: &str) -> String {
    static UID: OnceLock<Regex> = OnceLock::new();
    static VERSION: OnceLock<Regex> = OnceLock::new();
    let uid = UID.get_or_init(|| Regex::new("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").unwrap());
    let version = VERSION.get_or_init(|| {
        Regex::new(r"(?i)((?:resource ?version|current)[^0-9]{0,40})[0-9]+( \([0-9]+\))?").unwrap()
    });
    let text = uid.replace_all(text, "<uid>");
    version.replace_all(&text, "${1}<version>").into_owned()
}

/// An open watch.
pub(crate) struct Watching {
    pub(crate) code: u16,
    body: Body,
    rest: Vec<u8>,
    over: bool,
}

impl Watching {
    /// Returns the next event unchanged; `None` if no event comes or the watch ends.
    pub(crate) async fn raw(&mut self) -> Option<Value> {
        let wait = async {
            loop {
                if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.rest.drain(..=end).collect();
                    return Some(serde_json::from_slice(&line).unwrap());
                }
                match self.body.frame().await {
                    Some(Ok(frame)) => self.rest.extend_from_slice(frame.data_ref().unwrap()),
                    Some(Err(_)) | None => {
                        self.over = true;
                        return None;
                    }
                }
            }
        };
        timeout(QUIET, wait).await.unwrap_or(None)
    }

    pub(crate) async fn next(&mut self) -> Value {
        match self.raw().await {
            Some(event) => json!({ "type": event["type"], "object": clean(&event["object"]) }),
            None if self.over => "over".into(),
            None => "quiet".into(),
        }
    }

    /// Returns type and name of the next event.
    pub(crate) async fn short(&mut self) -> Value {
        match self.raw().await {
            Some(event) => {
                let (kind, name) = (
                    event["type"].as_str().unwrap_or_default(),
                    event["object"]["metadata"]["name"].as_str(),
                );
                format!("{kind} {}", name.unwrap_or_default()).into()
            }
            None if self.over => "over".into(),
            None => "quiet".into(),
        }
    }

    /// Returns all events until none comes or the watch ends, without bookmarks, whose
    /// timing is arbitrary.
    pub(crate) async fn shorts(&mut self) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let event = self.short().await;
            let last = event == "quiet" || event == "over";
            if event == "BOOKMARK " {
                continue;
            }
            all.push(event);
            if last {
                return all;
            }
        }
    }
}
