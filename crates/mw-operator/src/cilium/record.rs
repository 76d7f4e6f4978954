//! An object of one of the three kinds as it stands on the hub, and what we
//! remember about it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicObject};
use mw_api::cilium::binding::ClusterMeshBinding;
use mw_api::cilium::convert;
use mw_api::cilium::intent::ConnectivityIntent;
use mw_api::cilium::service::GlobalService;
use mw_api::cilium::{ANNOTATION_TOUCHED, BINDING_FINALIZER, FINALIZER_PREFIX, INTENT_FINALIZER, SERVICE_FINALIZER};
use mw_core::cilium::object::{Binding, Common, GlobalService as CoreService, Intent, ObjectId};
use mw_core::names::{ClusterId, Owner};
use mw_core::text::printable;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cilium::realm::Realm;
use crate::cilium::validate::Lists;
use crate::fleet::follow::Version;
use crate::notice::Said;

/// In the order in which they rely on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Binding,
    Service,
    Intent,
}

pub(super) type RecordId = (Kind, ObjectId);

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Binding, Kind::Service, Kind::Intent];

    pub fn resource(self) -> ApiResource {
        match self {
            Kind::Binding => ApiResource::erase::<ClusterMeshBinding>(&()),
            Kind::Service => ApiResource::erase::<GlobalService>(&()),
            Kind::Intent => ApiResource::erase::<ConnectivityIntent>(&()),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Binding => "ClusterMeshBinding",
            Kind::Service => "GlobalService",
            Kind::Intent => "ConnectivityIntent",
        }
    }

    fn finalizer(self) -> &'static str {
        match self {
            Kind::Binding => BINDING_FINALIZER,
            Kind::Service => SERVICE_FINALIZER,
            Kind::Intent => INTENT_FINALIZER,
        }
    }

    fn object(self, workspace: &str, value: Value) -> Result<Object, String> {
        Ok(match self {
            Kind::Binding => Object::Binding(convert::binding(workspace, &read::<ClusterMeshBinding>(value)?)),
            Kind::Service => Object::Service(convert::global_service(workspace, &read::<GlobalService>(value)?)),
            Kind::Intent => Object::Intent(convert::intent(workspace, &read::<ConnectivityIntent>(value)?)),
        })
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|wrong| printable(&wrong.to_string(), 300))
}

/// What it says, for the planner.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Binding(Binding),
    Service(CoreService),
    Intent(Intent),
}

impl Object {
    /// What it says, and why its spec can't be read where it can't: without
    /// one it can't be acted on, and what it did stays. None for what can't
    /// even be named.
    pub fn read(kind: Kind, workspace: &str, value: Value) -> Option<(Object, Option<String>)> {
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        match kind.object(workspace, value) {
            Ok(read) => Some((read, None)),
            Err(wrong) => Some((kind.object(workspace, without_spec(kind, metadata)).ok()?, Some(wrong))),
        }
    }

    pub fn common(&self) -> &Common {
        match self {
            Object::Binding(of) => &of.common,
            Object::Service(of) => &of.common,
            Object::Intent(of) => &of.common,
        }
    }

    pub fn common_mut(&mut self) -> &mut Common {
        match self {
            Object::Binding(of) => &mut of.common,
            Object::Service(of) => &mut of.common,
            Object::Intent(of) => &mut of.common,
        }
    }

    /// The binding it relies on, where it is not one itself.
    pub fn mesh(&self) -> Option<&str> {
        match self {
            Object::Binding(_) => None,
            Object::Service(of) => Some(&of.spec.mesh),
            Object::Intent(of) => Some(&of.spec.mesh),
        }
    }

    /// The refs that it names itself or through its binding, where that is known.
    pub fn names(&self, binding: Option<&Binding>) -> BTreeSet<String> {
        let of_mesh = binding.into_iter().flat_map(|binding| &binding.spec.refs);
        match self {
            Object::Binding(of) => of.spec.refs.iter().cloned().collect(),
            Object::Service(of) => of_mesh.chain(&of.spec.targets).cloned().collect(),
            Object::Intent(_) => of_mesh.cloned().collect(),
        }
    }
}

/// A cluster to which a ref led. Which link names it may change, so it is known
/// by what it reports to its owner too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Led {
    pub(super) cluster: ClusterId,
    pub(super) owner: Owner,
    pub(super) uid: String,
}

#[derive(Debug)]
pub(super) struct Record {
    /// Where it was seen, and is written.
    pub(super) realm: Realm,
    pub(super) kind: Kind,
    pub(super) meta: ObjectMeta,
    pub(super) version: Version,
    pub(super) object: Object,
    /// Why the spec can't be read.
    pub(super) misread: Option<String>,
    pub(super) status: Value,
    /// What was already told in events.
    pub(super) said: BTreeSet<Said>,
    /// Where its refs led when they could last be resolved.
    pub(super) led: BTreeMap<String, Led>,
    /// Since it was seen to be deleted: how often what leads to clusters had
    /// been listed then.
    pub(super) lists_then: Option<Lists>,
    /// A write to it is under way.
    pub(super) busy: bool,
    /// After a failed write: not before this.
    pub(super) not_before: Option<Instant>,
    pub(super) failures: u32,
}

impl Record {
    /// None for what can't even be named.
    pub(super) fn read(realm: Realm, kind: Kind, workspace: &str, object: &DynamicObject) -> Option<Record> {
        let value = serde_json::to_value(object).ok()?;
        let status = value.get("status").cloned().unwrap_or(Value::Null);
        let (read, misread) = Object::read(kind, workspace, value)?;
        Some(Record {
            realm,
            kind,
            meta: ObjectMeta { managed_fields: None, ..object.metadata.clone() },
            version: Version::of(object.metadata.resource_version.as_deref()),
            object: read,
            misread,
            status,
            said: BTreeSet::new(),
            led: BTreeMap::new(),
            lists_then: None,
            busy: false,
            not_before: None,
            failures: 0,
        })
    }

    /// A newer state of the same object; what we remember stays.
    pub(super) fn renew(&mut self, newer: Record) {
        let Record { realm, meta, version, object, misread, status, .. } = newer;
        (self.realm, self.meta, self.version, self.object, self.misread, self.status) = (realm, meta, version, object, misread, status);
    }

    pub(super) fn id(&self) -> &ObjectId {
        &self.object.common().id
    }

    pub(super) fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn generation(&self) -> i64 {
        self.meta.generation.unwrap_or_default()
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.finalizers().any(|name| name == self.kind.finalizer())
    }

    /// Whether something holds it until we are done: also what the Go provider left.
    pub(super) fn is_held(&self) -> bool {
        self.finalizers().any(|name| name.starts_with(FINALIZER_PREFIX))
    }

    fn finalizers(&self) -> impl Iterator<Item = &String> {
        self.meta.finalizers.iter().flatten()
    }

    /// What was failed before is tried again at once.
    pub(super) fn forgive(&mut self) {
        (self.failures, self.not_before) = (0, None);
    }

    pub(super) fn may_be_written(&self, now: Instant) -> bool {
        !self.busy && self.not_before.is_none_or(|at| now >= at)
    }

    /// A patch that puts the finalizer and the touched refs in place, where
    /// they are not.
    pub(super) fn marks(&self, touches: &BTreeSet<String>) -> Option<Value> {
        let noted: BTreeSet<String> = self.object.common().touched.iter().cloned().collect();
        if self.has_finalizer() && noted == *touches {
            return None;
        }
        let mut finalizers: Vec<&str> = self.finalizers().map(String::as_str).collect();
        if !self.has_finalizer() {
            finalizers.push(self.kind.finalizer());
        }
        let touched = touches.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let touched = if touched.is_empty() { Value::Null } else { touched.into() };
        Some(json!({ "metadata": { "finalizers": finalizers, "annotations": { ANNOTATION_TOUCHED: touched } } }))
    }

    /// A patch that lets it go.
    pub(super) fn release(&self) -> Value {
        let finalizers: Vec<&String> = self.finalizers().filter(|name| !name.starts_with(FINALIZER_PREFIX)).collect();
        json!({ "metadata": { "finalizers": finalizers } })
    }
}

fn without_spec(kind: Kind, metadata: Value) -> Value {
    let spec = match kind {
        Kind::Binding => json!({ "clusterRefs": [] }),
        Kind::Service | Kind::Intent => json!({ "meshRef": { "name": "" } }),
    };
    let resource = kind.resource();
    json!({ "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec })
}
