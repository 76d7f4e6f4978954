//! An object of one of the three kinds as last observed, and what is remembered
//! about it.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{ApiResource, DynamicObject};
use mw_api::cilium::binding::ClusterMeshBinding;
use mw_api::cilium::convert;
use mw_api::cilium::intent::ConnectivityIntent;
use mw_api::cilium::service::GlobalService;
use mw_api::cilium::{
    ANNOTATION_TOUCHED, BINDING_FINALIZER, FINALIZER_PREFIX, INTENT_FINALIZER, SERVICE_FINALIZER,
};
use mw_core::cilium::object::{Binding, Common, GlobalService as CoreService, Intent, ObjectId};
use mw_core::names::{ClusterId, Owner};
use mw_core::text::printable;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cilium::object_source::ObjectSource;
use crate::cilium::validate::Lists;

/// Ordered by dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Binding,
    Service,
    Intent,
}

pub(super) type RecordId = (Kind, ObjectId);

impl crate::engine::RecordId for RecordId {
    fn resource(&self) -> ApiResource {
        self.0.resource()
    }

    fn namespace(&self) -> &str {
        &self.1.namespace
    }

    fn name(&self) -> &str {
        &self.1.name
    }

    fn full_name(&self) -> String {
        self.1.to_string()
    }
}

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
            Kind::Binding => Object::Binding(convert::binding(
                workspace,
                &read::<ClusterMeshBinding>(value)?,
            )),
            Kind::Service => Object::Service(convert::global_service(
                workspace,
                &read::<GlobalService>(value)?,
            )),
            Kind::Intent => Object::Intent(convert::intent(
                workspace,
                &read::<ConnectivityIntent>(value)?,
            )),
        })
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|wrong| printable(&wrong.to_string(), 300))
}

/// A parsed object, for the planner.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Binding(Binding),
    Service(CoreService),
    Intent(Intent),
}

impl Object {
    /// Parses an object, with the error if its spec can't be parsed: such an object
    /// is not acted on, and what it wrote stays. None if even its metadata can't be
    /// parsed.
    pub fn read(kind: Kind, workspace: &str, value: Value) -> Option<(Object, Option<String>)> {
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        match kind.object(workspace, value) {
            Ok(read) => Some((read, None)),
            Err(wrong) => Some((
                kind.object(workspace, without_spec(kind, metadata)).ok()?,
                Some(wrong),
            )),
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

    /// Binding that it depends on; None for a binding.
    pub fn mesh(&self) -> Option<&str> {
        match self {
            Object::Binding(_) => None,
            Object::Service(of) => Some(&of.spec.mesh),
            Object::Intent(of) => Some(&of.spec.mesh),
        }
    }

    /// Refs that it names itself, or through its binding if known.
    pub fn names(&self, binding: Option<&Binding>) -> BTreeSet<String> {
        let of_mesh = binding.into_iter().flat_map(|binding| &binding.spec.refs);
        match self {
            Object::Binding(of) => of.spec.refs.iter().cloned().collect(),
            Object::Service(of) => of_mesh.chain(&of.spec.targets).cloned().collect(),
            Object::Intent(_) => of_mesh.cloned().collect(),
        }
    }
}

/// A cluster that a ref pointed to. The link that names a cluster may change, so
/// owner and UID identify it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Led {
    pub(super) cluster: ClusterId,
    pub(super) owner: Owner,
    pub(super) uid: String,
}

/// State of an object that disappeared while our finalizer was set: a hub may give
/// wrong answers, and in kcp its workspace may be moving to another shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Astray {
    pub(super) since: Instant,
    /// In kcp: list count of its endpoint's APIBindings once it had been missing for
    /// long. If a later list still has its workspace, the workspace has not moved.
    pub(super) lists: Option<u64>,
    /// On a hub: time of the first search by name that did not find it either.
    pub(super) searched: Option<Instant>,
}

pub(super) type Record = crate::engine::Record<ObjectState>;

#[derive(Debug)]
pub(super) struct ObjectState {
    /// Source in which it was observed and is written.
    pub(super) object_source: ObjectSource,
    pub(super) kind: Kind,
    pub(super) object: Object,
    pub(super) status: Value,
    /// Clusters that its refs last resolved to.
    pub(super) led: BTreeMap<String, Led>,
    /// Set once its deletion is observed: the counts, at that time, of the lists
    /// that resolve its refs.
    pub(super) lists_then: Option<Lists>,
    /// Set if it disappeared while our finalizer was set.
    pub(super) astray: Option<Astray>,
    /// True if its spec, or the cluster of a ref, changed while this process observed it.
    pub(super) changed: bool,
}

impl Record {
    /// Returns None if even the metadata can't be parsed.
    pub(super) fn read(
        object_source: ObjectSource,
        kind: Kind,
        workspace: &str,
        object: &DynamicObject,
    ) -> Option<Record> {
        let value = serde_json::to_value(object).ok()?;
        let status = value.get("status").cloned().unwrap_or(Value::Null);
        let (read, misread) = Object::read(kind, workspace, value)?;
        let state = ObjectState {
            object_source,
            kind,
            object: read,
            status,
            led: BTreeMap::new(),
            lists_then: None,
            astray: None,
            changed: false,
        };
        Some(Record::new(object, misread, state))
    }

    /// Takes over a newer state of the same object and keeps what is remembered.
    pub(super) fn renew(&mut self, newer: Record) {
        let Record {
            meta,
            version,
            misread,
            state,
            ..
        } = newer;
        let known = &mut self.state;
        known.changed |= meta.generation != self.meta.generation;
        known.object_source = state.object_source;
        (known.object, known.status, known.astray) = (state.object, state.status, state.astray);
        (self.meta, self.version, self.misread) = (meta, version, misread);
    }

    /// Remembers the clusters that its refs resolve to.
    pub(super) fn lead_to(&mut self, led: BTreeMap<String, Led>) {
        self.state.changed |= self
            .state
            .led
            .iter()
            .any(|(name, before)| led.get(name).is_some_and(|now| now != before));
        self.state.led = led;
    }

    pub(super) fn id(&self) -> &ObjectId {
        &self.state.object.common().id
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.finalizers()
            .any(|name| name == self.state.kind.finalizer())
    }

    /// Reports whether it has one of our finalizers, including those of the Go provider.
    pub(super) fn is_held(&self) -> bool {
        self.finalizers()
            .any(|name| name.starts_with(FINALIZER_PREFIX))
    }

    /// Reports whether it must still exist: it is not being deleted and has our finalizer.
    pub(super) fn must_be_somewhere(&self) -> bool {
        self.is_held() && !self.is_deleted()
    }

    /// Reports whether it disappeared from the hub, and may or may not exist.
    pub(super) fn is_missing_from_hub(&self) -> bool {
        self.state.astray.is_some() && self.state.object_source == ObjectSource::Hub
    }

    /// Returns a patch that sets the finalizer and the touched refs, unless they are
    /// up to date.
    pub(super) fn marks(&self, touches: &BTreeSet<String>) -> Option<Value> {
        let noted: BTreeSet<String> = self.state.object.common().touched.iter().cloned().collect();
        if self.has_finalizer() && noted == *touches {
            return None;
        }
        let mut finalizers: Vec<&str> = self.finalizers().map(String::as_str).collect();
        if !self.has_finalizer() {
            finalizers.push(self.state.kind.finalizer());
        }
        let touched = touches
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",");
        let touched = if touched.is_empty() {
            Value::Null
        } else {
            touched.into()
        };
        Some(
            json!({ "metadata": { "finalizers": finalizers, "annotations": { ANNOTATION_TOUCHED: touched } } }),
        )
    }

    /// Returns a patch that removes our finalizers.
    pub(super) fn release(&self) -> Value {
        let finalizers: Vec<&String> = self
            .finalizers()
            .filter(|name| !name.starts_with(FINALIZER_PREFIX))
            .collect();
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
