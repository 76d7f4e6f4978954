//! A separate toy export for each test, and clients for all sides.

use std::sync::OnceLock;

use http_body_util::BodyExt;
use hyper::Request;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use kube::client::Body;
use mw_testbed::kcp::binding;
use mw_testbed::{Cluster, Kcp, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::common::{SOON, client};

pub(crate) const ALL_VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const BINDINGS: &str = "/apis/apis.kcp.io/v1alpha2/apibindings";

/// Never dropped: the supervisors end the servers with the process.
static SHARED: OnceCell<Option<Kcp>> = OnceCell::const_new();

/// Returns a kcp with workspaces of a provider and three tenants.
pub(crate) async fn shared() -> Option<&'static Kcp> {
    SHARED
        .get_or_init(|| Kcp::start_or_skip(&["system", "tenant-a", "tenant-b", "tenant-c"]))
        .await
        .as_ref()
}

/// An export `NAME.example.dev` of widgets, with a provider's service account.
pub(crate) struct Toy<'a> {
    pub(crate) kcp: &'a Kcp,
    pub(crate) group: String,
    pub(crate) token: String,
    pub(crate) identity_hash: String,
    endpoint: OnceLock<String>,
}

impl Toy<'static> {
    pub(crate) async fn new(name: &str, claims: &[Value]) -> Option<Self> {
        Some(Self::of(shared().await?, name, claims).await)
    }
}

impl<'a> Toy<'a> {
    pub(crate) async fn of(kcp: &'a Kcp, name: &str, claims: &[Value]) -> Self {
        let group = format!("{name}.example.dev");
        let system = kcp.workspace("system").unwrap();
        let identity_hash = kcp
            .export("system", &manifest(&group, claims))
            .await
            .unwrap();
        let rules = [content(&group, &ALL_VERBS), slices()];
        let token = system
            .service_account("default", &format!("{name}-provider"), &rules)
            .await
            .unwrap();
        Self {
            kcp,
            group,
            token,
            identity_hash,
            endpoint: OnceLock::new(),
        }
    }

    pub(crate) fn tenant(&self, name: &str) -> &'a Cluster {
        self.kcp.workspace(name).unwrap()
    }

    pub(crate) async fn bind(&self, tenant: &str, claims: &[Value]) {
        self.kcp
            .bind(tenant, &binding(&self.group, "system", &self.group, claims))
            .await
            .unwrap();
    }

    /// Binds tenants and creates a widget of the same name in each. All are bound
    /// first: an API server delays the first object of a new CRD by 2 s.
    pub(crate) async fn bind_with_same(&self, tenants: &[&str]) {
        for tenant in tenants {
            self.bind(tenant, &[]).await;
        }
        for tenant in tenants {
            self.make(tenant, "same").await;
        }
    }

    pub(crate) async fn unbind(&self, tenant: &str) {
        self.kcp.unbind(tenant, &self.group).await.unwrap();
    }

    /// Returns the address of the virtual workspace, whether the slice contains it or
    /// not.
    pub(crate) fn endpoint(&self) -> &str {
        self.endpoint.get_or_init(|| {
            format!(
                "{}/services/apiexport/{}/{}",
                self.kcp.url(),
                self.kcp.id("system"),
                self.group
            )
        })
    }

    pub(crate) fn widgets(&self) -> String {
        format!("/apis/{}/v1alpha1/widgets", self.group)
    }

    pub(crate) fn widget_path(&self, name: &str) -> String {
        format!(
            "/apis/{}/v1alpha1/namespaces/default/widgets/{name}",
            self.group
        )
    }

    pub(crate) fn widget(&self, name: &str, size: u32) -> Value {
        let metadata = json!({ "name": name, "namespace": "default" });
        json!({ "apiVersion": format!("{}/v1alpha1", self.group), "kind": "Widget", "metadata": metadata, "spec": { "size": size } })
    }

    /// Creates a widget as the tenant.
    pub(crate) async fn make(&self, tenant: &str, name: &str) {
        self.tenant(tenant)
            .create(&self.widget(name, 1))
            .await
            .unwrap();
    }

    /// Returns the provider's client for all tenants.
    pub(crate) async fn across(&self) -> Seat {
        Seat::new(
            self.kcp,
            &format!("{}/clusters/*", self.endpoint()),
            &self.token,
        )
        .await
    }

    /// Returns the provider's client for one tenant.
    pub(crate) async fn within(&self, tenant: &str) -> Seat {
        Seat::new(
            self.kcp,
            &format!("{}/clusters/{}", self.endpoint(), self.kcp.id(tenant)),
            &self.token,
        )
        .await
    }
}

pub(crate) fn content(export: &str, verbs: &[&str]) -> PolicyRule {
    let mut rule = crate::common::rule("apis.kcp.io", "apiexports/content", verbs);
    rule.resource_names = Some(vec![export.to_owned()]);
    rule
}

pub(crate) fn slices() -> PolicyRule {
    crate::common::rule(
        "apis.kcp.io",
        "apiexportendpointslices",
        &["get", "list", "watch"],
    )
}

fn manifest(group: &str, claims: &[Value]) -> String {
    let properties = json!({
        "spec": { "type": "object", "properties": { "size": { "type": "integer", "minimum": 0 }, "colour": { "type": "string" } } },
        "status": { "type": "object", "properties": { "phase": { "type": "string" }, "note": { "type": "string" } } },
    });
    let version = json!({
        "name": "v1alpha1", "served": true, "storage": true, "subresources": { "status": {} },
        "schema": { "type": "object", "properties": properties },
    });
    let names = json!({ "kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget" });
    let schema = json!({
        "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": { "name": format!("v1.widgets.{group}") },
        "spec": { "group": group, "names": names, "scope": "Namespaced", "versions": [version] },
    });
    let resources =
        json!([{ "group": group, "name": "widgets", "schema": format!("v1.widgets.{group}") }]);
    let export = json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": { "name": group },
        "spec": { "resources": resources, "permissionClaims": claims },
    });
    format!("{schema}\n---\n{export}\n")
}

/// A kube client for an address of kcp.
pub(crate) struct Seat {
    client: Client,
}

impl Seat {
    pub(crate) async fn new(kcp: &Kcp, url: &str, token: &str) -> Self {
        let kubeconfig = kcp.kubeconfig("system", token);
        let server = format!("{}/clusters/root:system", kcp.url());
        Self {
            client: client(&kubeconfig.replace(&server, url)).await,
        }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: &Value,
    ) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content);
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        self.exchange(request.body(Body::from(body)).unwrap()).await
    }

    pub(crate) async fn get_as(&self, accept: &str, path: &str) -> (u16, Value) {
        self.exchange(
            Request::get(path)
                .header("accept", accept)
                .body(Body::empty())
                .unwrap(),
        )
        .await
    }

    async fn exchange(&self, request: Request<Body>) -> (u16, Value) {
        let answer = self.client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (
            code,
            serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| json!({ "text": String::from_utf8_lossy(&bytes) })),
        )
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, "application/json", &Value::Null)
            .await
    }

    pub(crate) async fn patch(&self, path: &str, patch: Value) -> (u16, Value) {
        self.send("PATCH", path, MERGE, &patch).await
    }

    pub(crate) async fn code(&self, method: &str, path: &str) -> u16 {
        self.send(method, path, "application/json", &Value::Null)
            .await
            .0
    }

    /// Returns `cluster/name` of all items.
    pub(crate) async fn names(&self, path: &str) -> Vec<String> {
        let (code, list) = self.get(path).await;
        assert_eq!(code, 200, "{list}");
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(label)
            .collect()
    }

    pub(crate) async fn watch(&self, path: &str) -> Watch {
        let request = Request::get(format!(
            "{path}{}watch=true",
            if path.contains('?') { "&" } else { "?" }
        ));
        let answer = self
            .client
            .send(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let code = answer.status().as_u16();
        assert_eq!(code, 200, "{path}");
        Watch {
            body: answer.into_body(),
            pending: Vec::new(),
        }
    }
}

pub(crate) struct Watch {
    body: Body,
    pending: Vec<u8>,
}

impl Watch {
    /// Returns the next event; `None` at the end of the watch.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(SOON, self.read())
            .await
            .unwrap_or_else(|_| panic!("neither an event nor the end of the watch"))
    }

    async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.ok()?;
            self.pending.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// Returns the next event as `TYPE cluster/name`.
    pub(crate) async fn told(&mut self) -> String {
        let event = self
            .next()
            .await
            .unwrap_or_else(|| panic!("the watch ended"));
        format!(
            "{} {}",
            event["type"].as_str().unwrap(),
            label(&event["object"])
        )
    }

    /// Skips events until the expected one, and returns it.
    pub(crate) async fn until(&mut self, wanted: &str) -> Value {
        loop {
            let event = self
                .next()
                .await
                .unwrap_or_else(|| panic!("the watch ended before {wanted}"));
            if format!(
                "{} {}",
                event["type"].as_str().unwrap(),
                label(&event["object"])
            ) == wanted
            {
                return event;
            }
        }
    }

    pub(crate) async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(crate::common::QUIET, self.read())
            .await
            .is_err()
    }
}

/// Returns `cluster/name`; either may be empty.
fn label(object: &Value) -> String {
    let cluster = object["metadata"]["annotations"]["kcp.io/cluster"]
        .as_str()
        .unwrap_or_default();
    format!(
        "{cluster}/{}",
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

/// Waits until a condition holds, and reports the last value otherwise.
pub(crate) async fn until<T: std::fmt::Debug>(
    look: impl AsyncFn() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    eventually(SOON, || async {
        let seen = look().await;
        if holds(&seen) {
            Ok(seen)
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await
    .unwrap()
}
