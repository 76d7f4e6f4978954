//! Stand-in for kcp: workspaces behind one address, APIExports with their virtual
//! workspaces, and APIBindings.
//!
//! Each workspace is a real kube-apiserver. Those of a shard share one etcd, so that
//! revisions form one sequence, as in kcp. In front of them is a server that routes,
//! authorizes and merges ([`front`], [`virtual_workspace`]); a few controllers run
//! beside them ([`controller`], [`claims`]). docs/kcp-testbed.md lists the differences
//! from kcp.
//!
//! A test acts as a tenant through [`Kcp::workspace`], and as the provider through an
//! ordinary kubeconfig ([`Kcp::kubeconfig`]) and the addresses in the export's slice
//! ([`Kcp::endpoints`]).

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
mod store;
mod stream;
mod target;
mod virtual_workspace;
mod world;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use futures::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

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
/// Timeout of a binding, which includes serving new CRDs.
const BOUND_DEADLINE: Duration = Duration::from_secs(60);

/// A running kcp. Dropping it stops all servers.
#[derive(Debug)]
pub struct Kcp {
    // First field: tasks must end before the servers.
    tasks: JoinSet<()>,
    shards: Vec<Shard>,
    world: Arc<World>,
    authority: Authority,
    admin_token: String,
    /// Mirror and controller tasks of each workspace, by name.
    workers: BTreeMap<String, Vec<AbortHandle>>,
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
        world.add_user(
            &admin_token,
            User {
                name: "kcp-admin".into(),
                groups: vec!["system:masters".into()],
                home: None,
            },
        );
        let (tasks, authority, workers) = (JoinSet::new(), Authority::new("kcp")?, BTreeMap::new());
        let mut kcp = Self {
            tasks,
            shards: Vec::new(),
            world,
            authority,
            admin_token,
            workers,
        };
        kcp.add_shard(names).await?;
        Ok(kcp)
    }

    /// Like `start`, but returns `None` after [`skip_or_fail`](crate::skip_or_fail) if
    /// this machine lacks the servers.
    ///
    /// # Panics
    /// If the servers are installed but do not start.
    pub async fn start_or_skip(names: &[&str]) -> Option<Self> {
        crate::or_skip(Self::start(names).await)
    }

    /// Adds a shard with additional workspaces. It has its own etcd, so its revisions
    /// are unrelated to those of other shards, and its own endpoint URL.
    pub async fn add_shard(&mut self, names: &[&str]) -> Result<()> {
        let bed = Testbed::start(names).await?;
        try_join_all(bed.clusters().map(prepare)).await?;
        let (listener, url) = Port::reserve()?;
        let shard = self.world.add_shard(&url);
        let front = Arc::new(Front::new(self.world.clone(), shard));
        let port = Port::serve(listener, url, self.authority.server_config()?, front)?;
        self.shards.push(Shard { port, bed });
        names.iter().try_for_each(|name| self.settle(name, shard))
    }

    /// Adds a workspace to the shard of its API server.
    fn settle(&mut self, name: &str, shard: usize) -> Result<()> {
        let runtime = runtime()?.handle();
        let path = path_of(name);
        let http = self.workspace(name)?.own.clone();
        let workspace = Arc::new(Workspace {
            id: cluster_id(&path),
            path,
            shard,
            http,
        });
        self.world.add_workspace(workspace.clone());
        let mut workers = Vec::new();
        for kind in Kind::ALL {
            workers.push(self.tasks.spawn_on(
                mirror::run(self.world.clone(), workspace.clone(), kind),
                runtime,
            ));
        }
        workers.push(self.tasks.spawn_on(
            controller::Controller::new(self.world.clone(), workspace).run(),
            runtime,
        ));
        self.workers.insert(name.to_owned(), workers);
        Ok(())
    }

    /// Returns the API server of a workspace, to act as `admin` without going through
    /// kcp.
    pub fn workspace(&self, name: &str) -> Result<&Cluster> {
        self.shards
            .iter()
            .find_map(|shard| shard.bed.cluster(name).ok())
            .ok_or_else(|| Error::NoCluster(name.to_owned()))
    }

    /// Returns the ID of the logical cluster, the value of `kcp.io/cluster`.
    pub fn id(&self, name: &str) -> String {
        cluster_id(&path_of(name))
    }

    /// Returns the address of the first shard, without a path.
    pub fn url(&self) -> &str {
        self.shards.first().map_or("", |shard| shard.port.url())
    }

    /// Returns the CA that signed the certificates of all shards.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Returns the token of `kcp-admin`, who may do everything in every workspace.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// Returns a kubeconfig for a workspace, at `/clusters/root:NAME`.
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

    /// Adds a global user, whose permissions are those that the RBAC of each workspace
    /// grants to the name. Returns the token.
    pub fn user(&self, name: &str) -> Result<String> {
        let token = random_token()?;
        self.world.add_user(
            &token,
            User {
                name: name.into(),
                groups: vec!["system:authenticated".into()],
                home: None,
            },
        );
        Ok(token)
    }

    /// Sends a request to any URL of kcp, with any token; an empty one means none.
    /// PATCH is a merge patch. All status codes are accepted.
    pub async fn request(
        &self,
        token: &str,
        method: &str,
        url: &str,
        body: Option<&Value>,
    ) -> Result<Answer> {
        self.http(token)?.request(method, url, body).await
    }

    /// Returns the status code and text of a URL.
    pub async fn text(&self, token: &str, url: &str) -> Result<(u16, String)> {
        self.http(token)?.text(url).await
    }

    fn http(&self, token: &str) -> Result<Http> {
        Ok(Http::new(
            String::new(),
            self.authority.client_config()?,
            token.to_owned(),
        ))
    }

    /// Applies an object of `apis.kcp.io` through kcp, which runs admission.
    async fn submit(&self, workspace: &str, object: &Value) -> Result<()> {
        let kind = match string(object, "/kind") {
            "APIResourceSchema" => Kind::Schema,
            "APIExport" => Kind::Export,
            "APIBinding" => Kind::Binding,
            other => {
                return Err(Error::Object(format!(
                    "{other} is not a kind of apis.kcp.io"
                )));
            }
        };
        let name = string(object, "/metadata/name");
        let path = format!(
            "{}/clusters/{}{}/{name}",
            self.url(),
            path_of(workspace),
            kind.collection()
        );
        let path = format!("{path}?fieldManager=testbed&force=true&fieldValidation=Strict");
        self.http(&self.admin_token)?
            .expect(Method::PATCH, &path, APPLY_PATCH, Some(object))
            .await
            .map(drop)
    }

    /// Applies schemas and an export in the provider's workspace, waits for its
    /// identity hash, and returns it.
    pub async fn export(&self, provider: &str, yaml: &str) -> Result<String> {
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(yaml).map_err(|error| Error::Object(error.to_string()))?;
        for object in &objects {
            self.submit(provider, object).await?;
        }
        let export = objects.iter().find(|object| object["kind"] == "APIExport");
        let name = string(export.unwrap_or(&Value::Null), "/metadata/name");
        eventually(BOUND_DEADLINE, || async {
            let object = self
                .world
                .object(&self.id(provider), Kind::Export, name)
                .unwrap_or_default();
            let slice = self.world.object(&self.id(provider), Kind::Slice, name);
            match string(&object, "/status/identityHash") {
                hash if !hash.is_empty() && slice.is_some() => Ok(hash.to_owned()),
                _ => Err(format!("export {name} has no identity or no slice yet")),
            }
        })
        .await
    }

    /// Applies an APIBinding in a tenant's workspace and waits until it is bound and
    /// its accepted claims are in effect; see [`binding`].
    pub async fn bind(&self, tenant: &str, binding: &Value) -> Result<()> {
        self.submit(tenant, binding).await?;
        let name = string(binding, "/metadata/name");
        eventually(BOUND_DEADLINE, || async {
            let object = self
                .world
                .object(&self.id(tenant), Kind::Binding, name)
                .unwrap_or_default();
            let seen = Binding::read(&self.id(tenant), &object);
            let export = self
                .world
                .export_of(&seen)
                .and_then(|key| self.world.export(&key));
            let applied =
                export.is_some_and(|export| controller::accepted(&seen, &export) == seen.applied);
            let ready = array(&object, "/status/conditions")
                .iter()
                .any(|one| one["type"] == "Ready" && one["status"] == "True");
            let current = object.pointer("/spec/permissionClaims")
                == binding.pointer("/spec/permissionClaims");
            if ready && current && applied {
                Ok(())
            } else {
                Err(format!("{name} is {:?}", object.get("status")))
            }
        })
        .await
    }

    /// Deletes an APIBinding and waits until it is gone, which needs all finalizers of
    /// the tenant's objects to be removed.
    pub async fn unbind(&self, tenant: &str, name: &str) -> Result<()> {
        self.workspace(tenant)?
            .delete(&format!("{}/{name}", Kind::Binding.collection()))
            .await?;
        eventually(BOUND_DEADLINE, || async {
            match self.world.object(&self.id(tenant), Kind::Binding, name) {
                Some(object) => Err(format!("{name} still exists: {:?}", object.get("status"))),
                None => Ok(()),
            }
        })
        .await
    }

    /// Returns the endpoint URLs that are currently in the slice of an export.
    pub fn endpoints(&self, provider: &str, export: &str) -> Vec<String> {
        let slice = self
            .world
            .object(&self.id(provider), Kind::Slice, export)
            .unwrap_or_default();
        array(&slice, "/status/endpoints")
            .iter()
            .map(|endpoint| string(endpoint, "/url").to_owned())
            .collect()
    }

    /// Gives an exported resource a new schema with the same content, like a new
    /// version of the provider: its watches end with an error.
    pub async fn switch_schema(&self, provider: &str, export: &str, resource: &str) -> Result<()> {
        let cluster = self.workspace(provider)?;
        let path = format!("{}/{export}", Kind::Export.collection());
        let mut object = cluster.get(&path).await?.unwrap_or_default();
        let resources = object
            .pointer_mut("/spec/resources")
            .and_then(Value::as_array_mut);
        let entry = resources
            .into_iter()
            .flatten()
            .find(|one| one["name"] == resource);
        let entry = entry
            .and_then(Value::as_object_mut)
            .ok_or_else(|| Error::Object(format!("{export} does not export {resource}")))?;
        let old = entry
            .get("schema")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let new = format!("switched-{old}");
        let schema = cluster
            .get(&format!("{}/{old}", Kind::Schema.collection()))
            .await?
            .unwrap_or_default();
        let copy = json!({
            "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": { "name": new }, "spec": schema.get("spec"),
        });
        cluster.create(&copy).await?;
        entry.insert("schema".into(), new.into());
        cluster
            .merge_patch(
                &path,
                &json!({ "spec": { "resources": object.pointer("/spec/resources") } }),
            )
            .await
            .map(drop)
    }

    /// Simulates a restart of kcp: all connections break, and no watch can resume at an
    /// earlier revision.
    pub async fn restart(&self) -> Result<()> {
        for (at, shard) in self.shards.iter().enumerate() {
            shard.port.refuse(true).await?;
            if let Some(cluster) = shard.bed.clusters().next() {
                // A write, so that later revisions are distinguishable from earlier
                // ones.
                let started =
                    json!({ "metadata": { "annotations": { "kcp.io/started": random_token()? } } });
                let written = cluster
                    .merge_patch("/api/v1/namespaces/kube-system", &started)
                    .await?;
                self.world.restarted(at, revision(&written));
            }
            shard.port.refuse(false).await?;
        }
        Ok(())
    }

    /// Removes the endpoint of a shard from slices, or adds it again. The shard keeps
    /// serving.
    pub fn hide_endpoint(&self, shard: usize, hidden: bool) {
        self.world.hide(shard, hidden);
    }

    /// Makes the address of a shard accept connections and requests without ever
    /// answering, or answer again. Open connections break.
    pub async fn hang_endpoint(&self, shard: usize, hangs: bool) -> Result<()> {
        let shard_of = self
            .shards
            .get(shard)
            .ok_or_else(|| Error::Object(format!("shard {shard} does not exist")))?;
        self.world.hang(shard, hangs);
        shard_of.port.refuse(true).await?;
        shard_of.port.refuse(false).await
    }

    /// Moves a workspace to another shard, like kcp: requests to it are rejected, its
    /// objects are copied with their UIDs, it disappears from its shard (watches report
    /// deletions that nobody requested), and finally it appears on the other shard with
    /// that shard's revisions. `away` is the time between the last two steps.
    pub async fn move_workspace(&mut self, name: &str, shard: usize, away: Duration) -> Result<()> {
        self.take_away(name, shard).await?;
        tokio::time::sleep(away).await;
        self.arrive(name, shard).await
    }

    /// First part of a move: after it, no shard shows the workspace.
    pub async fn take_away(&mut self, name: &str, shard: usize) -> Result<()> {
        let id = self.id(name);
        let origin = self
            .world
            .workspace(&id)
            .map(|workspace| workspace.shard)
            .ok_or_else(|| Error::NoCluster(name.to_owned()))?;
        let (Some(from), Some(to)) = (self.shards.get(origin), self.shards.get(shard)) else {
            return Err(Error::Object(format!("shard {shard} does not exist")));
        };
        self.world.set_moving(&id, true);
        let prefix = format!("/{name}/");
        let kept = store::read(&from.bed.etcd_socket(), &prefix).await?;
        store::write(&to.bed.etcd_socket(), &kept).await?;
        // Without the definitions, watches would not report the objects.
        let (definitions, others): (Vec<String>, Vec<String>) = store::families(&kept, &prefix)
            .into_iter()
            .partition(|family| family.contains("apiextensions.k8s.io"));
        for family in &others {
            store::delete(&from.bed.etcd_socket(), family).await?;
        }
        // The API server of the workspace notifies all watches, once it has noticed.
        let server = self.workspace(name)?;
        for path in store::custom_resources(&kept, &prefix) {
            let path = format!("{path}?resourceVersion=0");
            eventually(BOUND_DEADLINE, || async {
                let listed = server.get(&path).await.map_err(|error| error.to_string())?;
                match listed.is_none_or(|list| array(&list, "/items").is_empty()) {
                    true => Ok(()),
                    false => Err(format!("{path} of {name} is not empty")),
                }
            })
            .await?;
        }
        eventually(BOUND_DEADLINE, || async {
            match self.world.objects(&id, Kind::Binding).is_empty() {
                true => Ok(()),
                false => Err(format!("{name} is still on its shard")),
            }
        })
        .await?;
        for family in &definitions {
            store::delete(&from.bed.etcd_socket(), family).await?;
        }
        self.workers
            .remove(name)
            .into_iter()
            .flatten()
            .for_each(|worker| worker.abort());
        self.world.remove_workspace(&id);
        if let Some(from) = self.shards.get_mut(origin) {
            from.bed.remove(name)?;
        }
        Ok(())
    }

    /// Second part of a move.
    pub async fn arrive(&mut self, name: &str, shard: usize) -> Result<()> {
        if let Some(to) = self.shards.get_mut(shard) {
            to.bed.add(&[name]).await?;
        }
        self.settle(name, shard)?;
        self.world.set_moving(&self.id(name), false);
        Ok(())
    }

    /// Makes the quota of a workspace reject writes of these resources through virtual
    /// workspaces, e.g. `events` or `widgets/status`.
    pub fn use_up_quota(&self, name: &str, resources: &[&str]) {
        self.world.use_up(&self.id(name), resources);
    }

    /// Sets the delay between `Binding` and `Bound`; kcp took up to 6 s.
    pub fn delay_bindings(&self, delay: Duration) {
        self.world.set_delays(|delays| delays.binding = delay);
    }

    /// Sets the delay between the answer to a claim and its effect; kcp took 0.4 s.
    pub fn delay_claims(&self, delay: Duration) {
        self.world.set_delays(|delays| delays.claims = delay);
    }

    /// Sets the delay between a new schema and its use in bound workspaces; kcp took
    /// more than 12 s.
    pub fn delay_schemas(&self, delay: Duration) {
        self.world.set_delays(|delays| delays.schema = delay);
    }

    /// Returns the process IDs of all running servers.
    pub fn pids(&self) -> Vec<i32> {
        self.shards
            .iter()
            .flat_map(|shard| shard.bed.pids())
            .collect()
    }
}

/// Returns an APIBinding to an export of the workspace `root:PROVIDER`; for the claims
/// see [`accepted`] and [`rejected`].
pub fn binding(name: &str, provider: &str, export: &str, claims: &[Value]) -> Value {
    json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": { "name": name },
        "spec": { "reference": { "export": { "path": path_of(provider), "name": export } }, "permissionClaims": claims },
    })
}

/// Returns an accepted claim on all objects of a built-in resource.
pub fn accepted(group: &str, resource: &str, verbs: &[&str]) -> Value {
    claim(group, resource, verbs, "Accepted")
}

/// Returns a rejected claim on all objects of a built-in resource.
pub fn rejected(group: &str, resource: &str, verbs: &[&str]) -> Value {
    claim(group, resource, verbs, "Rejected")
}

fn claim(group: &str, resource: &str, verbs: &[&str], state: &str) -> Value {
    json!({ "group": group, "resource": resource, "verbs": verbs, "state": state, "selector": { "matchAll": true } })
}

fn path_of(name: &str) -> String {
    format!("root:{name}")
}

/// Creates the initial content of a kcp workspace.
async fn prepare(cluster: &Cluster) -> Result<()> {
    let access = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "system:kcp:workspace:access" },
        "rules": [{ "nonResourceURLs": ["/"], "verbs": ["access"] }],
    });
    cluster.apply(&access).await?;
    cluster.install_crd(APIS).await
}
