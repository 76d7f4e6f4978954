//! The address of kcp: authenticates requests and routes them to workspaces.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    USER_AGENT,
};
use hyper::{Method, Request};
use serde_json::{Value, json};

use super::admission;
use super::answer::{self, Backend, Refusal};
use super::controller::{self, CRDS};
use super::model::{Binding, CLUSTER, ExportKey, string};
use super::stream;
use super::target::{Target, decode};
use super::virtual_workspace::VirtualWorkspace;
use super::world::{Kind, User, Workspace, World};
use crate::http::JSON;
use crate::proxy::Verb;
use crate::serve::{Handler, Served};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Time for which the user of a service account token is cached.
const REMEMBERED: Duration = Duration::from_secs(5);

/// A request without method and path.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) user: User,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Sent {
    /// Returns the headers that an API server needs. Objects must be JSON, so that the
    /// cluster can be added to them; OpenAPI keeps the requested format.
    pub(super) fn passed_on(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for name in [ACCEPT, CONTENT_TYPE, USER_AGENT] {
            if let Some(value) = self.headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        if headers
            .get(ACCEPT)
            .is_none_or(|accept| accept.to_str().unwrap_or_default().contains(PROTOBUF))
        {
            headers.insert(ACCEPT, HeaderValue::from_static(JSON));
        }
        headers
    }

    /// Returns these headers with impersonation of the caller in these groups.
    pub(super) fn as_caller(&self, groups: &[String]) -> HeaderMap {
        let mut headers = self.passed_on();
        if let Ok(name) = HeaderValue::try_from(self.user.name.as_str()) {
            headers.insert(HeaderName::from_static("impersonate-user"), name);
        }
        for group in groups
            .iter()
            .filter_map(|group| HeaderValue::try_from(group.as_str()).ok())
        {
            headers.append(HeaderName::from_static("impersonate-group"), group);
        }
        headers
    }

    /// Returns the headers for an already authorized caller: tenants grant a provider
    /// no permissions in their RBAC.
    pub(super) fn as_admitted(&self) -> HeaderMap {
        self.as_caller(&["system:masters".to_owned()])
    }

    /// Decodes the body, which may be YAML for apply.
    pub(super) fn object(&self) -> Result<Value, Refusal> {
        if let Ok(object) = serde_json::from_slice(&self.body) {
            return Ok(object);
        }
        let text = std::str::from_utf8(&self.body).unwrap_or_default();
        serde_saphyr::from_str(text)
            .map_err(|error| answer::failure(400, "BadRequest", &error.to_string()))
    }

    pub(super) fn content(&self) -> &str {
        self.headers
            .get(CONTENT_TYPE)
            .and_then(|content| content.to_str().ok())
            .unwrap_or_default()
    }

    fn wants_protobuf_only(&self) -> bool {
        let accept = self
            .headers
            .get(ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .unwrap_or_default();
        accept.contains(PROTOBUF) && !accept.contains("json") && !accept.contains("*/*")
    }
}

/// The front of one shard.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) world: Arc<World>,
    pub(super) shard: usize,
    remembered: Mutex<BTreeMap<String, (Instant, User)>>,
}

impl Handler for Front {
    async fn handle(&self, request: Request<Incoming>) -> Option<Served> {
        if self.world.hangs(self.shard) {
            pending::<()>().await;
        }
        Some(
            self.answer(request)
                .await
                .unwrap_or_else(|refusal| *refusal),
        )
    }
}

impl Front {
    pub(super) fn new(world: Arc<World>, shard: usize) -> Self {
        Self {
            world,
            shard,
            remembered: Mutex::default(),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Served, Refusal> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map_err(|error| answer::failure(400, "BadRequest", &error.to_string()))?
            .to_bytes();
        let user = self.authenticate(&parts.headers).await?;
        let sent = Sent {
            user,
            headers: parts.headers,
            body,
        };
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        let target = |path: &str| {
            Target::of(&parts.method, path, query)
                .ok_or_else(|| answer::failure(400, "BadRequest", "the path cannot be read"))
        };
        if let Some(rest) = path.strip_prefix("/services/apiexport/") {
            let (key, cluster, path) = virtual_path(rest);
            // The provider must be given by ID; a path is not resolved.
            let export = self
                .world
                .export(&key)
                .filter(|_| self.world.workspace(&key.provider).is_some());
            let export = export.ok_or_else(|| {
                answer::text(
                    500,
                    &format!(
                        "unable to get API export {}: API export not found",
                        key.name
                    ),
                )
            })?;
            let cluster = cluster
                .filter(|cluster| !cluster.contains(':'))
                .ok_or_else(answer::unresolved)?;
            let target = target(&path)?;
            if sent.wants_protobuf_only() {
                let message = "only the following media types are accepted: application/json, application/yaml";
                return Err(answer::failure(406, "NotAcceptable", message));
            }
            return VirtualWorkspace {
                front: self,
                export,
                sent: &sent,
                target: &target,
            }
            .answer(&cluster)
            .await;
        }
        if let Some(rest) = path.strip_prefix("/clusters/") {
            let (cluster, path) = split(rest);
            let workspace = self.world.resolve(&decode(cluster));
            return self.workspace(workspace, &sent, &target(&path)?).await;
        }
        // The token of a service account determines the workspace.
        let home = sent
            .user
            .home
            .as_ref()
            .and_then(|home| self.world.workspace(home));
        self.workspace(home, &sent, &target(path)?).await
    }

    /// Returns the user of a token, or the anonymous user without one.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<User, Refusal> {
        let value = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let token = value.strip_prefix("Bearer ").unwrap_or(value).trim();
        if token.is_empty() {
            return Ok(User {
                name: "system:anonymous".into(),
                groups: vec!["system:unauthenticated".into()],
                home: None,
            });
        }
        if let Some(user) = self.world.user(token).or_else(|| self.remembered(token)) {
            return Ok(user);
        }
        let workspaces = self.world.workspaces();
        let mut reviews: FuturesUnordered<_> = workspaces
            .iter()
            .map(|workspace| review(workspace, token))
            .collect();
        while let Some(found) = reviews.next().await {
            if let Some(user) = found {
                let mut remembered = self
                    .remembered
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                remembered.insert(token.to_owned(), (Instant::now(), user.clone()));
                return Ok(user);
            }
        }
        Err(answer::failure(401, "Unauthorized", "Unauthorized"))
    }

    fn remembered(&self, token: &str) -> Option<User> {
        let remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        remembered
            .get(token)
            .filter(|(since, _)| since.elapsed() < REMEMBERED)
            .map(|(_, user)| user.clone())
    }

    /// Reports whether the RBAC of a workspace allows an access. Service accounts of
    /// other workspaces have no permissions, regardless of their name.
    pub(super) async fn may(
        &self,
        user: &User,
        workspace: &Workspace,
        attributes: Value,
    ) -> Result<bool, Refusal> {
        if user.home.as_ref().is_some_and(|home| *home != workspace.id) {
            return Ok(false);
        }
        if user.home.is_none() {
            let access = json!({ "nonResourceAttributes": { "path": "/", "verb": "access" } });
            if !allowed(user, workspace, access).await? {
                return Ok(false);
            }
        }
        if attributes.is_null() {
            Ok(true)
        } else {
            allowed(user, workspace, attributes).await
        }
    }

    /// Serves the API of a workspace.
    async fn workspace(
        &self,
        workspace: Option<Arc<Workspace>>,
        sent: &Sent,
        target: &Target,
    ) -> Result<Served, Refusal> {
        let refused = || answer::forbidden(&sent.user, target);
        let workspace = workspace.ok_or_else(refused)?;
        self.check_moving(&workspace.id, target)?;
        if !self.may(&sent.user, &workspace, Value::Null).await? {
            return Err(refused());
        }
        let headers = match &sent.user.home {
            Some(_) => {
                let mut headers = sent.passed_on();
                headers.extend(
                    sent.headers
                        .get(AUTHORIZATION)
                        .cloned()
                        .map(|token| (AUTHORIZATION, token)),
                );
                headers
            }
            None => sent.as_caller(&sent.user.groups),
        };
        self.check_reserved(&workspace, sent, target, &headers)
            .await?;
        if target.what.group == "apis.kcp.io"
            && matches!(target.verb, Verb::Create | Verb::Update | Verb::Patch)
        {
            self.admit(&workspace, sent, target, &headers).await?;
        }
        let path = target.query.on(&target.path);
        let response = workspace
            .http
            .pass(&target.method, &path, headers, sent.body.clone())
            .await;
        let response = response.map_err(|error| answer::unreachable(&error))?;
        if target.verb == Verb::Watch && response.status().is_success() {
            return Ok(stream::relay(response.into_body(), workspace.id.clone()));
        }
        Ok(Backend::read(response).await?.serve(&workspace.id))
    }

    /// Rejects requests to a workspace that is moving to another shard. Clients that
    /// resume must list again: revisions differ between shards.
    pub(super) fn check_moving(&self, workspace: &str, target: &Target) -> Result<(), Refusal> {
        if !self.world.is_moving(workspace) {
            return Ok(());
        }
        let resumes = !matches!(target.query.get("resourceVersion"), "" | "0");
        if resumes && matches!(target.verb, Verb::List | Verb::Watch) {
            let message = "logical cluster is being migrated to another shard; relist required";
            return Err(answer::failure(410, "Expired", message));
        }
        let mut later = answer::text(503, "logical cluster is being migrated\n");
        later
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
        Err(later)
    }

    /// Returns the object that would result from a write, if the workspace accepts it.
    async fn tried(
        &self,
        workspace: &Workspace,
        sent: &Sent,
        target: &Target,
        headers: &HeaderMap,
    ) -> Result<Option<Value>, Refusal> {
        let path = target.query.with("dryRun", "All").on(&target.path);
        let tried = workspace
            .http
            .pass(&target.method, &path, headers.clone(), sent.body.clone())
            .await;
        let tried = Backend::read(tried.map_err(|error| answer::unreachable(&error))?).await?;
        Ok(tried.is_success().then(|| tried.body()))
    }

    /// Rejects writes that are reserved for the shard's administrator, who does not
    /// exist here.
    pub(super) async fn check_reserved(
        &self,
        workspace: &Workspace,
        sent: &Sent,
        target: &Target,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        if !matches!(target.verb, Verb::Create | Verb::Update | Verb::Patch) {
            return Ok(());
        }
        let before = match target.name.is_empty() {
            true => Value::Null,
            false => {
                let path = target
                    .path
                    .strip_suffix(&format!("/{}", target.subresource))
                    .unwrap_or(&target.path);
                let response = workspace
                    .http
                    .pass(&Method::GET, path, headers.clone(), Bytes::new())
                    .await;
                let found =
                    Backend::read(response.map_err(|error| answer::unreachable(&error))?).await?;
                if found.is_success() {
                    found.body()
                } else {
                    Value::Null
                }
            }
        };
        // Avoids the dry run for most writes.
        let mentions = String::from_utf8_lossy(&sent.body).contains("kcp.io");
        if !mentions && !admission::has_reserved(&before) {
            return Ok(());
        }
        let after = self.tried(workspace, sent, target, headers).await?;
        let why = after.and_then(|after| admission::reserved(&before, &after));
        why.map_or(Ok(()), |why| Err(answer::forbidden_because(target, &why)))
    }

    /// Runs kcp's admission checks that need the resulting object.
    async fn admit(
        &self,
        workspace: &Workspace,
        sent: &Sent,
        target: &Target,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let Some(object) = self.tried(workspace, sent, target, headers).await? else {
            return Ok(());
        };
        let name = string(&object, "/metadata/name");
        let refuse = |why: &str| Err(answer::forbidden_because(target, why));
        match target.what.resource.as_str() {
            "apiresourceschemas" => {
                let wrong = admission::schema(&object);
                if !wrong.is_empty() {
                    return refuse(&format!("[{}]", wrong.join(", ")));
                }
                let present = self.world.object(&workspace.id, Kind::Schema, name);
                if present.is_some_and(|present| present.get("spec") != object.get("spec")) {
                    return refuse("spec: Invalid value: is immutable");
                }
                if let Some(wrong) = self.not_structural(workspace, &object).await? {
                    return refuse(&wrong);
                }
            }
            "apiexports" => {
                if let Some(wrong) = admission::export(&object) {
                    return refuse(&wrong);
                }
            }
            "apibindings" => return self.admit_binding(workspace, sent, target, &object).await,
            _ => {}
        }
        Ok(())
    }

    /// Returns the API server's error for the CRD of a schema: kcp validates schemas by
    /// the same rules.
    async fn not_structural(
        &self,
        workspace: &Workspace,
        schema: &Value,
    ) -> Result<Option<String>, Refusal> {
        let crd = controller::crd(schema, "");
        let tried = workspace
            .http
            .send(
                Method::POST,
                &format!("{CRDS}?dryRun=All"),
                JSON,
                Some(&crd),
            )
            .await;
        let tried = tried.map_err(|error| answer::unreachable(&error))?;
        // Not 409: a workspace with a binding already has the CRD.
        Ok((tried.code == 422).then(|| string(&tried.body, "/message").to_owned()))
    }

    async fn admit_binding(
        &self,
        workspace: &Workspace,
        sent: &Sent,
        target: &Target,
        object: &Value,
    ) -> Result<(), Refusal> {
        let wrong = admission::binding(object);
        if !wrong.is_empty() {
            return Err(answer::forbidden_because(
                target,
                &format!("[{}]", wrong.join(", ")),
            ));
        }
        let binding = Binding::read(&workspace.id, object);
        if let Some(present) = self
            .world
            .object(&workspace.id, Kind::Binding, &binding.name)
        {
            let changed = admission::immutable(&present, object);
            // A rule of the schema, reported by the API server.
            return changed.map_or(Ok(()), |why| Err(answer::failure(422, "Invalid", why)));
        }
        let provider = self
            .world
            .export_of(&binding)
            .and_then(|key| self.world.workspace(&key.provider));
        let attributes = json!({ "verb": "bind", "group": "apis.kcp.io", "resource": "apiexports", "name": binding.export_name });
        let bind = json!({ "resourceAttributes": attributes });
        let may = match &provider {
            // kcp does not check access to the provider's workspace here.
            Some(provider) => allowed(&sent.user, provider, bind).await?,
            None => false,
        };
        if may {
            return Ok(());
        }
        let export = format!("{}:{}", binding.export_path, binding.export_name);
        Err(answer::forbidden_because(
            target,
            &format!("unable to create APIBinding: no permission to bind to export {export}"),
        ))
    }
}

/// Removes the ID of the cluster from an object that a client sends back.
pub(super) fn strip_cluster(object: &mut Value) {
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(CLUSTER);
    }
}

/// Checks an access against the RBAC of a workspace.
async fn allowed(user: &User, workspace: &Workspace, attributes: Value) -> Result<bool, Refusal> {
    let mut spec = json!({ "user": user.name, "groups": user.groups });
    if let (Some(spec), Value::Object(attributes)) = (spec.as_object_mut(), attributes) {
        spec.extend(attributes);
    }
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answered = workspace
        .http
        .expect(Method::POST, path, JSON, Some(&review))
        .await
        .map_err(|error| answer::unreachable(&error))?;
    Ok(answered.pointer("/status/allowed") == Some(&Value::Bool(true)))
}

/// Returns the service account of the token, if it belongs to this workspace.
async fn review(workspace: &Workspace, token: &str) -> Option<User> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token } });
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answered = workspace
        .http
        .expect(Method::POST, path, JSON, Some(&review))
        .await
        .ok()?;
    let name = string(&answered, "/status/user/username");
    let known = answered.pointer("/status/authenticated") == Some(&Value::Bool(true))
        && name.starts_with("system:serviceaccount:");
    let groups = super::model::strings(&answered, "/status/user/groups");
    known.then(|| User {
        name: name.to_owned(),
        groups,
        home: Some(workspace.id.clone()),
    })
}

/// Parses `PROVIDER/EXPORT/clusters/CLUSTER/rest`, with the cluster decoded.
fn virtual_path(rest: &str) -> (ExportKey, Option<String>, String) {
    let mut parts = rest.splitn(3, '/');
    let (provider, name) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let key = ExportKey {
        provider: decode(provider),
        name: decode(name),
    };
    let inside = parts.next().unwrap_or_default();
    let (cluster, path) = split(inside.strip_prefix("clusters/").unwrap_or_default());
    (
        key,
        Some(decode(cluster)).filter(|cluster| !cluster.is_empty()),
        path,
    )
}

/// Returns the first segment, and the rest as a path.
fn split(path: &str) -> (&str, String) {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    (first, format!("/{rest}"))
}
