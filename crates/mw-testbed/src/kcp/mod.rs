//! Stands in for kcp: workspaces behind one address, APIExports with their
//! virtual workspaces, APIBindings.
//!
//! Each workspace is a real kube-apiserver; those of a shard share one etcd,
//! so that revisions form one counter, as in kcp. In front of them is a server
//! that routes, authorises and merges ([`front`], [`virtual_workspace`]), and
//! beside them a few controllers ([`controller`], [`claims`]). What that leaves
//! out is in docs/kcp-testbed.md.
//!
//! A test acts as a tenant by [`Kcp::workspace`], as the provider by an
//! ordinary kubeconfig ([`Kcp::kubeconfig`]) and the addresses that the
//! export's slice names ([`Kcp::endpoints`]).

mod admission;
mod answer;
mod claims;
mod controller;
mod discovery;
mod front;
mod list;
mod mirror;
mod model;
mod source;
mod status;
mod stream;
mod target;
mod virtual_workspace;
mod world;
mod write;

use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use futures::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, random_token};
use crate::error::{Error, Result};
use crate::http::{APPLY_PATCH, Answer, Http, runtime};
use crate::pki::Authority;
use crate::serve::Port;
use crate::testbed::Testbed;
use crate::wait::eventually;

use front::Front;
use model::{Binding, array, cluster_id, revision, string};
use world::{Kind, User, Workspace, World};

const APIS: &str = include_str!("apis.yaml");
/// A binding has to make CRDs be served.
const BOUND_DEADLINE: Duration = Duration::from_secs(60);

/// A running kcp. Dropping it ends all servers.
#[derive(Debug)]
pub struct Kcp {
    // First: nobody is to ask servers that are gone.
    tasks: JoinSet<()>,
    shards: Vec<Shard>,
    world: Arc<World>,
    authority: Authority,
    admin_token: String,
}

#[derive(Debug)]
struct Shard {
    port: Port,
    bed: Testbed,
}

impl Kcp {
    /// Starts the workspaces `root:NAME` on one shard.
    pub async fn start(names: &[&str]) -> Result<Self> {
        let (admin_token, seed) = (random_token()?, random_token()?);
        let world = Arc::new(World::new(seed));
        world.add_user(&admin_token, User { name: "kcp-admin".into(), groups: vec!["system:masters".into()], home: None });
        let mut kcp = Self { tasks: JoinSet::new(), shards: Vec::new(), world, authority: Authority::new("kcp")?, admin_token };
        kcp.add_shard(names).await?;
        Ok(kcp)
    }

    /// As `start`, but `None` after [`skip_or_fail`](crate::skip_or_fail)
    /// when this machine lacks the servers.
    ///
    /// # Panics
    /// When the servers are there and do not start.
    pub async fn start_or_skip(names: &[&str]) -> Option<Self> {
        crate::or_skip(Self::start(names).await)
    }

    /// Adds a shard with further workspaces: it has an etcd of its own, so its
    /// revisions mean nothing elsewhere, and an endpoint URL of its own.
    pub async fn add_shard(&mut self, names: &[&str]) -> Result<()> {
        let bed = Testbed::start(names).await?;
        try_join_all(bed.clusters().map(prepare)).await?;
        let (listener, url) = Port::reserve()?;
        let shard = self.world.add_shard(&url);
        let front = Arc::new(Front::new(self.world.clone(), shard));
        let port = Port::serve(listener, url, self.authority.server_config()?, front)?;
        let runtime = runtime()?.handle();
        for cluster in bed.clusters() {
            let path = path_of(cluster.name());
            let workspace = Arc::new(Workspace { id: cluster_id(&path), path, shard, http: cluster.own.clone() });
            self.world.add_workspace(workspace.clone());
            for kind in Kind::ALL {
                self.tasks.spawn_on(mirror::run(self.world.clone(), workspace.clone(), kind), runtime);
            }
            self.tasks.spawn_on(controller::Controller::new(self.world.clone(), workspace).run(), runtime);
        }
        self.shards.push(Shard { port, bed });
        Ok(())
    }

    /// A workspace's own API server, to act in it as `admin` past all that kcp
    /// adds.
    pub fn workspace(&self, name: &str) -> Result<&Cluster> {
        self.shards.iter().find_map(|shard| shard.bed.cluster(name).ok()).ok_or_else(|| Error::NoCluster(name.to_owned()))
    }

    /// The id of the logical cluster: what `kcp.io/cluster` says.
    pub fn id(&self, name: &str) -> String {
        cluster_id(&path_of(name))
    }

    /// The address of the first shard, without a path.
    pub fn url(&self) -> &str {
        self.shards.first().map_or("", |shard| shard.port.url())
    }

    /// The authority that signed the certificates of all shards.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// The token of `kcp-admin`, who may do everything in every workspace.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// A kubeconfig for a workspace, at `/clusters/root:NAME`.
    pub fn kubeconfig(&self, name: &str, token: &str) -> String {
        let server = format!("{}/clusters/{}", self.url(), path_of(name));
        let ca = Base64::encode_string(self.ca_pem().as_bytes());
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {name}\n\
             clusters:\n- name: {name}\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
             users:\n- name: {name}\n  user:\n    token: {token}\n\
             contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n"
        )
    }

    /// A user who lives in no workspace, and is what RBAC there makes of the
    /// name; returns the token.
    pub fn user(&self, name: &str) -> Result<String> {
        let token = random_token()?;
        self.world.add_user(&token, User { name: name.into(), groups: vec!["system:authenticated".into()], home: None });
        Ok(token)
    }

    /// Sends to any URL of kcp, with any token (an empty one is none); PATCH is
    /// a merge patch. Any code is an answer.
    pub async fn request(&self, token: &str, method: &str, url: &str, body: Option<&Value>) -> Result<Answer> {
        self.http(token)?.request(method, url, body).await
    }

    /// The code and text at a URL, whatever it is.
    pub async fn text(&self, token: &str, url: &str) -> Result<(u16, String)> {
        self.http(token)?.text(url).await
    }

    fn http(&self, token: &str) -> Result<Http> {
        Ok(Http::new(String::new(), self.authority.client_config()?, token.to_owned()))
    }

    /// Applies an object of `apis.kcp.io` at kcp's own address, where it has to
    /// be admitted.
    async fn submit(&self, workspace: &str, object: &Value) -> Result<()> {
        let kind = match string(object, "/kind") {
            "APIResourceSchema" => Kind::Schema,
            "APIExport" => Kind::Export,
            "APIBinding" => Kind::Binding,
            other => return Err(Error::Object(format!("{other} is not of apis.kcp.io"))),
        };
        let name = string(object, "/metadata/name");
        let path = format!("{}/clusters/{}{}/{name}", self.url(), path_of(workspace), kind.collection());
        let path = format!("{path}?fieldManager=testbed&force=true&fieldValidation=Strict");
        self.http(&self.admin_token)?.expect(Method::PATCH, &path, APPLY_PATCH, Some(object)).await.map(drop)
    }

    /// Applies schemas and an export in the provider's workspace, and waits for
    /// its identity hash, which it returns.
    pub async fn export(&self, provider: &str, yaml: &str) -> Result<String> {
        let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| Error::Object(error.to_string()))?;
        for object in &objects {
            self.submit(provider, object).await?;
        }
        let export = objects.iter().find(|object| object["kind"] == "APIExport");
        let name = string(export.unwrap_or(&Value::Null), "/metadata/name");
        eventually(BOUND_DEADLINE, || async {
            let object = self.world.object(&self.id(provider), Kind::Export, name).unwrap_or_default();
            let slice = self.world.object(&self.id(provider), Kind::Slice, name);
            match string(&object, "/status/identityHash") {
                hash if !hash.is_empty() && slice.is_some() => Ok(hash.to_owned()),
                _ => Err(format!("export {name} has no identity or no slice yet")),
            }
        })
        .await
    }

    /// Applies an APIBinding in a tenant's workspace and waits until it is
    /// bound and its accepted claims are in force; see [`binding`].
    pub async fn bind(&self, tenant: &str, binding: &Value) -> Result<()> {
        self.submit(tenant, binding).await?;
        let name = string(binding, "/metadata/name");
        eventually(BOUND_DEADLINE, || async {
            let object = self.world.object(&self.id(tenant), Kind::Binding, name).unwrap_or_default();
            let seen = Binding::read(&self.id(tenant), &object);
            let export = self.world.export_of(&seen).and_then(|key| self.world.export(&key));
            let applied = export.is_some_and(|export| controller::accepted(&seen, &export) == seen.applied);
            let ready = array(&object, "/status/conditions").iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
            let current = object.pointer("/spec/permissionClaims") == binding.pointer("/spec/permissionClaims");
            if ready && current && applied { Ok(()) } else { Err(format!("{name} is {:?}", object.get("status"))) }
        })
        .await
    }

    /// Deletes an APIBinding and waits until it is gone, for which all
    /// finalizers of the tenant's objects have to be.
    pub async fn unbind(&self, tenant: &str, name: &str) -> Result<()> {
        self.workspace(tenant)?.delete(&format!("{}/{name}", Kind::Binding.collection())).await?;
        eventually(BOUND_DEADLINE, || async {
            match self.world.object(&self.id(tenant), Kind::Binding, name) {
                Some(object) => Err(format!("{name} is still there: {:?}", object.get("status"))),
                None => Ok(()),
            }
        })
        .await
    }

    /// The endpoint URLs that the slice of an export names at this moment.
    pub fn endpoints(&self, provider: &str, export: &str) -> Vec<String> {
        let slice = self.world.object(&self.id(provider), Kind::Slice, export).unwrap_or_default();
        array(&slice, "/status/endpoints").iter().map(|endpoint| string(endpoint, "/url").to_owned()).collect()
    }

    /// Gives an exported resource a new schema that says the same, as a new
    /// version of the provider would: its watches end with an error.
    pub async fn switch_schema(&self, provider: &str, export: &str, resource: &str) -> Result<()> {
        let cluster = self.workspace(provider)?;
        let path = format!("{}/{export}", Kind::Export.collection());
        let mut object = cluster.get(&path).await?.unwrap_or_default();
        let resources = object.pointer_mut("/spec/resources").and_then(Value::as_array_mut);
        let entry = resources.into_iter().flatten().find(|one| one["name"] == resource);
        let entry = entry.and_then(Value::as_object_mut).ok_or_else(|| Error::Object(format!("{export} exports no {resource}")))?;
        let old = entry.get("schema").and_then(Value::as_str).unwrap_or_default().to_owned();
        let new = format!("switched-{old}");
        let schema = cluster.get(&format!("{}/{old}", Kind::Schema.collection())).await?.unwrap_or_default();
        let copy = json!({
            "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": { "name": new }, "spec": schema.get("spec"),
        });
        cluster.create(&copy).await?;
        entry.insert("schema".into(), new.into());
        cluster.merge_patch(&path, &json!({ "spec": { "resources": object.pointer("/spec/resources") } })).await.map(drop)
    }

    /// As if kcp had been restarted: all connections break, and no watch can
    /// be resumed at an earlier revision.
    pub async fn restart(&self) -> Result<()> {
        for (at, shard) in self.shards.iter().enumerate() {
            shard.port.refuse(true).await?;
            if let Some(cluster) = shard.bed.clusters().next() {
                // A write, so that all that follows is later than all before.
                let started = json!({ "metadata": { "annotations": { "kcp.io/started": random_token()? } } });
                let written = cluster.merge_patch("/api/v1/namespaces/kube-system", &started).await?;
                self.world.restarted(at, revision(&written));
            }
            shard.port.refuse(false).await?;
        }
        Ok(())
    }

    /// Whether slices leave out the endpoint of a shard, which goes on serving.
    pub fn hide_endpoint(&self, shard: usize, hidden: bool) {
        self.world.hide(shard, hidden);
    }

    /// Between `Binding` and `Bound`; kcp took up to 6 s.
    pub fn delay_bindings(&self, delay: Duration) {
        self.world.set_delays(|delays| delays.binding = delay);
    }

    /// Between the answer to a claim and its effect; kcp took 0.4 s.
    pub fn delay_claims(&self, delay: Duration) {
        self.world.set_delays(|delays| delays.claims = delay);
    }

    /// Between a new schema and its use in bound workspaces; kcp took more than
    /// 12 s.
    pub fn delay_schemas(&self, delay: Duration) {
        self.world.set_delays(|delays| delays.schema = delay);
    }

    /// The process numbers of all servers that run.
    pub fn pids(&self) -> Vec<i32> {
        self.shards.iter().flat_map(|shard| shard.bed.pids()).collect()
    }
}

/// An APIBinding to an export of the workspace `root:PROVIDER`; for the claims
/// see [`accepted`] and [`rejected`].
pub fn binding(name: &str, provider: &str, export: &str, claims: &[Value]) -> Value {
    json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": { "name": name },
        "spec": { "reference": { "export": { "path": path_of(provider), "name": export } }, "permissionClaims": claims },
    })
}

/// A claim on all objects of a built-in resource, accepted.
pub fn accepted(group: &str, resource: &str, verbs: &[&str]) -> Value {
    claim(group, resource, verbs, "Accepted")
}

/// The same, rejected.
pub fn rejected(group: &str, resource: &str, verbs: &[&str]) -> Value {
    claim(group, resource, verbs, "Rejected")
}

fn claim(group: &str, resource: &str, verbs: &[&str], state: &str) -> Value {
    json!({ "group": group, "resource": resource, "verbs": verbs, "state": state, "selector": { "matchAll": true } })
}

fn path_of(name: &str) -> String {
    format!("root:{name}")
}

/// What every workspace of kcp has from the start.
async fn prepare(cluster: &Cluster) -> Result<()> {
    let access = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "system:kcp:workspace:access" },
        "rules": [{ "nonResourceURLs": ["/"], "verbs": ["access"] }],
    });
    cluster.apply(&access).await?;
    cluster.install_crd(APIS).await
}
