//! Stand-in for kcp's controllers, one instance per workspace: gives exports an
//! identity and an endpoint slice, binds and unbinds, and applies claims.
//!
//! kcp keeps bound resources separate from the workspace's own CRDs; here they are CRDs
//! of the workspace's API server, with the label `internal.apis.kcp.io/binding`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::claims;
use super::model::{
    Answered, BINDING_LABEL, Binding, Bound, EXPORT_LABEL, Export, FINALIZER, GroupResource, PATH,
};
use super::model::{array, revision, string, strings};
use super::status::{condition, set_status};
use super::world::{Kind, Workspace, World};
use crate::error::{Error, Result};
use crate::http::{APPLY_PATCH, JSON, MERGE_PATCH};

/// Interval while waiting for something that no mirror reports.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval otherwise.
const REST: Duration = Duration::from_secs(3600);
pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// True if there is nothing left to wait for.
type Done = bool;

pub(super) struct Controller {
    world: Arc<World>,
    workspace: Arc<Workspace>,
    /// Time at which each delayed step was first requested.
    due: BTreeMap<String, Instant>,
    /// Last observed schema of each exported resource.
    schemas: BTreeMap<(String, GroupResource), String>,
    claims: claims::Stampers,
}

impl Controller {
    pub(super) fn new(world: Arc<World>, workspace: Arc<Workspace>) -> Self {
        let claims = claims::Stampers::new(world.clone(), workspace.clone());
        Self {
            world,
            workspace,
            due: BTreeMap::new(),
            schemas: BTreeMap::new(),
            claims,
        }
    }

    pub(super) async fn run(mut self) {
        let mut changes = self.world.changes();
        loop {
            changes.mark_unchanged();
            // An error is a conflict or an unreachable server; both are temporary.
            let done = self.reconcile().await.unwrap_or(false);
            let _ = tokio::time::timeout(if done { REST } else { PAUSE }, changes.changed()).await;
        }
    }

    async fn reconcile(&mut self) -> Result<Done> {
        // Objects that are not listed yet are not deleted: a workspace that moved here
        // keeps all of them.
        if !self.world.is_mirrored(&self.workspace.id) {
            return Ok(false);
        }
        let mut done = true;
        for object in self.world.objects(&self.workspace.id, Kind::Export) {
            self.reconcile_export(&object).await?;
        }
        self.drop_slices().await?;
        for binding in self.world.bindings(&self.workspace.id) {
            done &= if binding.terminating {
                self.unbind(&binding).await?
            } else {
                self.reconcile_binding(&binding).await?
            };
        }
        self.claims.follow();
        Ok(self.drop_crds().await? && done)
    }

    async fn reconcile_export(&mut self, object: &Value) -> Result<()> {
        let export = Export::read(&self.workspace.id, object);
        let path = format!("{}/{}", Kind::Export.collection(), export.key.name);
        if object.pointer("/spec/identity").is_none()
            || annotation(object, PATH) != self.workspace.path
        {
            let identity =
                json!({ "secretRef": { "name": export.key.name, "namespace": "kcp-system" } });
            let metadata = json!({ "annotations": { PATH: self.workspace.path } });
            self.patch(
                &path,
                &json!({ "metadata": metadata, "spec": { "identity": identity } }),
            )
            .await?;
        }
        let identity_hash = hex::encode(Sha256::digest(format!(
            "{}|{}|{}",
            self.world.seed, export.key.provider, export.key.name
        )));
        let status = json!({ "identityHash": identity_hash, "conditions": [condition("IdentityValid", true, "", "")] });
        set_status(&self.workspace, &path, object, status).await?;
        for (what, schema) in &export.resources {
            let earlier = self
                .schemas
                .insert((export.key.name.clone(), what.clone()), schema.clone());
            if earlier.is_some_and(|earlier| earlier != *schema) {
                self.world.switch(&export.key, what);
            }
        }
        self.reconcile_slice(&export).await
    }

    /// Writes one endpoint per shard on which the export is bound.
    async fn reconcile_slice(&self, export: &Export) -> Result<()> {
        let name = &export.key.name;
        let path = format!("{}/{name}", Kind::Slice.collection());
        let Some(slice) = self.world.object(&self.workspace.id, Kind::Slice, name) else {
            let owner = json!({ "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "name": name, "uid": export.uid });
            let slice = json!({
                "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIExportEndpointSlice",
                "metadata": { "name": name, "ownerReferences": [owner] },
                "spec": { "export": { "name": name, "path": self.workspace.path } },
            });
            return self
                .workspace
                .http
                .expect(Method::POST, Kind::Slice.collection(), JSON, Some(&slice))
                .await
                .map(drop);
        };
        let shards = self.world.shards().into_iter().enumerate();
        let bound = shards.filter(|(shard, _)| {
            !self.world.is_hidden(*shard) && !self.world.bindings_to(&export.key, *shard).is_empty()
        });
        let endpoints: Vec<Value> =
            bound.map(|(_, url)| json!({ "url": format!("{url}/services/apiexport/{}/{name}", self.workspace.id) })).collect();
        let conditions = json!([
            condition("APIExportValid", true, "", ""),
            condition("PartitionValid", true, "", "")
        ]);
        let endpoints = if endpoints.is_empty() {
            Value::Null
        } else {
            endpoints.into()
        };
        set_status(
            &self.workspace,
            &path,
            &slice,
            json!({ "conditions": conditions, "endpoints": endpoints }),
        )
        .await
    }

    /// Deletes slices whose export is gone: nothing here garbage collects by owner
    /// references.
    async fn drop_slices(&self) -> Result<()> {
        for slice in self.world.objects(&self.workspace.id, Kind::Slice) {
            let name = string(&slice, "/metadata/name");
            if self
                .world
                .object(&self.workspace.id, Kind::Export, name)
                .is_none()
            {
                self.delete(&format!("{}/{name}", Kind::Slice.collection()))
                    .await?;
            }
        }
        Ok(())
    }

    async fn reconcile_binding(&mut self, binding: &Binding) -> Result<Done> {
        let path = format!("{}/{}", Kind::Binding.collection(), binding.name);
        let Some(key) = self.world.export_of(binding) else {
            return Ok(true);
        };
        let labels = binding.object.pointer("/metadata/labels");
        let labelled = labels.and_then(|labels| labels.get(EXPORT_LABEL)).is_some();
        let finalizers = strings(&binding.object, "/metadata/finalizers");
        if !labelled || !finalizers.iter().any(|one| one == FINALIZER) {
            let all: Vec<&str> = finalizers
                .iter()
                .map(String::as_str)
                .filter(|one| *one != FINALIZER)
                .chain([FINALIZER])
                .collect();
            let metadata = json!({
                "finalizers": all, "labels": { EXPORT_LABEL: key.hash() }, "annotations": { PATH: self.workspace.path },
                "resourceVersion": string(&binding.object, "/metadata/resourceVersion"),
            });
            return self
                .patch(&path, &json!({ "metadata": metadata }))
                .await
                .map(|()| true);
        }
        let Some(export) = self
            .world
            .export(&key)
            .filter(|export| !export.identity_hash.is_empty())
        else {
            let conditions = json!([
                condition(
                    "APIExportValid",
                    false,
                    "APIExportNotFound",
                    "the export does not exist"
                ),
                not_ready("APIExportNotFound")
            ]);
            return set_status(
                &self.workspace,
                &path,
                &binding.object,
                json!({ "conditions": conditions }),
            )
            .await
            .map(|()| true);
        };
        if binding.phase.is_empty() {
            let status = json!({ "phase": "Binding", "apiExportClusterName": key.provider, "conditions": [not_ready("Binding")] });
            return set_status(&self.workspace, &path, &binding.object, status)
                .await
                .map(|()| true);
        }
        self.bind(binding, &export, &path).await
    }

    async fn bind(&mut self, binding: &Binding, export: &Export, path: &str) -> Result<Done> {
        if let Some(taken) = self.taken(binding, export) {
            let conditions = json!([
                condition("APIExportValid", true, "", ""),
                condition(
                    "InitialBindingCompleted",
                    false,
                    "NamingConflicts",
                    &format!("{taken} is bound already")
                ),
                not_ready("NamingConflicts"),
            ]);
            return set_status(
                &self.workspace,
                path,
                &binding.object,
                json!({ "conditions": conditions }),
            )
            .await
            .map(|()| true);
        }
        let delays = self.world.delays();
        let delay = if binding.phase == "Bound" {
            delays.schema
        } else {
            delays.binding
        };
        let schemas: Vec<&String> = export.resources.iter().map(|(_, schema)| schema).collect();
        let mut resources = array(&binding.object, "/status/boundResources").to_vec();
        let bound: Vec<&String> = binding.bound.iter().map(|bound| &bound.schema).collect();
        if bound != schemas {
            if !self.is_due(&format!("{} {schemas:?}", binding.uid), delay) {
                return Ok(false);
            }
            resources = Vec::new();
            for (what, schema) in &export.resources {
                match self.serve(binding, export, what, schema).await? {
                    Some(bound) => resources.push(bound),
                    None => return Ok(false),
                }
            }
        }
        let answered = accepted(binding, export);
        let claims_due = self.is_due(&format!("{} {answered:?}", binding.uid), delays.claims);
        let applied = if claims_due {
            &answered
        } else {
            &binding.applied
        };
        let conditions: Vec<Value> = [
            "APIExportValid",
            "BindingUpToDate",
            "InitialBindingCompleted",
            "PermissionClaimsApplied",
            "PermissionClaimsValid",
            "Ready",
        ]
        .map(|kind| condition(kind, true, "", ""))
        .into();
        let export_claims = self
            .world
            .object(&export.key.provider, Kind::Export, &export.key.name)
            .unwrap_or_default();
        let status = json!({
            "phase": "Bound", "apiExportClusterName": export.key.provider, "boundResources": resources, "conditions": conditions,
            "appliedPermissionClaims": applied.iter().map(Answered::object).collect::<Vec<_>>(),
            "exportPermissionClaims": array(&export_claims, "/spec/permissionClaims"),
        });
        set_status(&self.workspace, path, &binding.object, status).await?;
        Ok(claims_due)
    }

    /// Returns a resource of the export that an older binding of the workspace already
    /// provides.
    fn taken(&self, binding: &Binding, export: &Export) -> Option<GroupResource> {
        let others = self.world.bindings(&self.workspace.id).into_iter();
        let older = others
            .filter(|other| (&other.created, &other.name) < (&binding.created, &binding.name));
        let bound: Vec<Bound> = older.flat_map(|other| other.bound).collect();
        export
            .resources
            .iter()
            .map(|(what, _)| what)
            .find(|what| bound.iter().any(|bound| bound.what == **what))
            .cloned()
    }

    /// Reports whether the delay of a step has passed since it was first requested.
    fn is_due(&mut self, step: &str, delay: Duration) -> bool {
        self.due
            .entry(step.to_owned())
            .or_insert_with(Instant::now)
            .elapsed()
            >= delay
    }

    /// Serves a resource in the workspace. Returns its entry in `boundResources` once
    /// it is served.
    async fn serve(
        &self,
        binding: &Binding,
        export: &Export,
        what: &GroupResource,
        schema: &str,
    ) -> Result<Option<Value>> {
        let Some(schema) = self
            .world
            .object(&export.key.provider, Kind::Schema, schema)
        else {
            return Ok(None);
        };
        let crd = crd(&schema, &binding.uid);
        let path = format!("{CRDS}/{what}");
        if let Some(present) = self.get(&path).await?
            && present.pointer("/metadata/deletionTimestamp").is_some()
        {
            return Ok(None);
        }
        let apply = format!("{path}?fieldManager=kcp&force=true");
        let applied = self
            .workspace
            .http
            .expect(Method::PATCH, &apply, APPLY_PATCH, Some(&crd))
            .await?;
        let established = array(&applied, "/status/conditions")
            .iter()
            .any(|one| one["type"] == "Established" && one["status"] == "True");
        let versions = array(&schema, "/spec/versions");
        let Some(storage) = versions
            .iter()
            .find(|version| version["storage"] == true)
            .map(|version| string(version, "/name"))
        else {
            return Err(Error::Object(format!("{what} has no storage version")));
        };
        // Established means only that the names are accepted; the handler follows.
        let list = format!("/apis/{}/{storage}/{}?limit=1", what.group, what.resource);
        let answer = self
            .workspace
            .http
            .send(Method::GET, &list, JSON, None)
            .await?;
        if !established || !answer.is_success() {
            return Ok(None);
        }
        if !binding.binds(what) {
            self.world
                .set_served_since(&self.workspace, what, revision(&answer.body));
        }
        Ok(Some(json!({
            "group": what.group, "resource": what.resource, "storageVersions": [storage],
            "schema": { "name": string(&schema, "/metadata/name"), "UID": string(&schema, "/metadata/uid"),
                "identityHash": export.identity_hash },
        })))
    }

    /// Deletes all bound objects, waits for their finalizers, and releases the binding.
    async fn unbind(&self, binding: &Binding) -> Result<Done> {
        let path = format!("{}/{}", Kind::Binding.collection(), binding.name);
        let mut remaining = 0;
        for bound in &binding.bound {
            let root = format!("/apis/{}/{}", bound.what.group, bound.version);
            let list = self
                .get(&format!("{root}/{}", bound.what.resource))
                .await?
                .unwrap_or_default();
            for object in array(&list, "/items") {
                remaining += 1;
                if object.pointer("/metadata/deletionTimestamp").is_none() {
                    self.delete(&object_path(&root, &bound.what.resource, object))
                        .await?;
                }
            }
        }
        if remaining > 0 {
            let message = format!("{remaining} objects remain");
            let mut conditions = array(&binding.object, "/status/conditions").to_vec();
            conditions.retain(|one| one["type"] != "BindingResourceDeleteSuccess");
            conditions.push(condition(
                "BindingResourceDeleteSuccess",
                false,
                "SomeFinalizersRemain",
                &message,
            ));
            set_status(
                &self.workspace,
                &path,
                &binding.object,
                json!({ "conditions": conditions }),
            )
            .await?;
            return Ok(false);
        }
        let finalizers: Vec<String> = strings(&binding.object, "/metadata/finalizers")
            .into_iter()
            .filter(|one| one != FINALIZER)
            .collect();
        let seen = string(&binding.object, "/metadata/resourceVersion");
        self.patch(
            &path,
            &json!({ "metadata": { "finalizers": finalizers, "resourceVersion": seen } }),
        )
        .await?;
        Ok(true)
    }

    /// Deletes CRDs that belong to no binding.
    async fn drop_crds(&self) -> Result<Done> {
        let bindings = self.world.bindings(&self.workspace.id);
        let list = self
            .get(&format!(
                "{CRDS}?labelSelector={BINDING_LABEL}&resourceVersion=0"
            ))
            .await?
            .unwrap_or_default();
        let mut done = true;
        for crd in array(&list, "/items") {
            let owner = crd
                .pointer("/metadata/labels")
                .and_then(|labels| labels.get(BINDING_LABEL))
                .and_then(Value::as_str);
            if !bindings
                .iter()
                .any(|binding| Some(binding.uid.as_str()) == owner)
            {
                self.delete(&format!("{CRDS}/{}", string(crd, "/metadata/name")))
                    .await?;
                done = false;
            }
        }
        Ok(done)
    }

    async fn get(&self, path: &str) -> Result<Option<Value>> {
        match self
            .workspace
            .http
            .expect(Method::GET, path, JSON, None)
            .await
        {
            Err(error) if error.code() == Some(404) => Ok(None),
            other => other.map(Some),
        }
    }

    async fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        self.workspace
            .http
            .expect(Method::PATCH, path, MERGE_PATCH, Some(patch))
            .await
            .map(drop)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        match self
            .workspace
            .http
            .expect(Method::DELETE, path, JSON, None)
            .await
        {
            Err(error) if error.code() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns the claims of the export that the tenant accepted, with the verbs that both
/// allow.
pub(super) fn accepted(binding: &Binding, export: &Export) -> Vec<Answered> {
    let accepted = binding.answered.iter().filter(|answered| answered.accepted);
    let both = accepted.filter_map(|answered| {
        let asked = export
            .claims
            .iter()
            .find(|claim| claim.is(&answered.claim))?;
        let mut applied = answered.clone();
        applied.claim.verbs = asked.verbs_with(&answered.claim);
        Some(applied)
    });
    both.collect()
}

/// Returns the CRD of a schema, for the binding with this UID.
pub(super) fn crd(schema: &Value, binding: &str) -> Value {
    let versions = array(schema, "/spec/versions")
        .iter()
        .cloned()
        .map(|mut version| {
            if let Some(fields) = version.as_object_mut() {
                let bare = fields.remove("schema").unwrap_or_default();
                fields.insert("schema".into(), json!({ "openAPIV3Schema": bare }));
            }
            version
        });
    let spec = json!({
        "group": string(schema, "/spec/group"), "scope": string(schema, "/spec/scope"),
        "names": schema.pointer("/spec/names"), "versions": versions.collect::<Vec<_>>(),
    });
    let name = format!(
        "{}.{}",
        string(schema, "/spec/names/plural"),
        string(schema, "/spec/group")
    );
    let metadata = json!({ "name": name, "labels": { BINDING_LABEL: binding } });
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec })
}

/// Returns the path of an object from a list of all namespaces.
pub(super) fn object_path(root: &str, resource: &str, object: &Value) -> String {
    let name = string(object, "/metadata/name");
    match string(object, "/metadata/namespace") {
        "" => format!("{root}/{resource}/{name}"),
        namespace => format!("{root}/namespaces/{namespace}/{resource}/{name}"),
    }
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object
        .pointer("/metadata/annotations")
        .and_then(|all| all.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn not_ready(reason: &str) -> Value {
    condition("Ready", false, reason, "the binding is not usable yet")
}
