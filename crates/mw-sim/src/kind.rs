//! The kinds a server knows: how they are named, where they lie, and which of
//! the rules for objects they follow.

use serde_json::{Value, json};

use crate::json::api_version;
use crate::refusal::qualified;
use crate::schema::Schema;

/// The built-in kinds, each with rules of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builtin {
    Node,
    Namespace,
    Secret,
    ConfigMap,
    Service,
    EndpointSlice,
    Pod,
    DaemonSet,
    Deployment,
    Event,
    Lease,
    Definition,
    AccessReview,
}

#[derive(Debug)]
pub(crate) struct Kind {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub status_subresource: bool,
    pub schema: Schema,
    /// As those see it who manage fields: with the metadata.
    pub fields: Schema,
    /// Nothing: a custom resource.
    pub builtin: Option<Builtin>,
}

impl Kind {
    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// `peers.kilo.squat.ai`, or `nodes`.
    pub(crate) fn qualified(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.builtin.is_none()
    }

    /// A PUT of an object that names no version.
    pub(crate) fn allows_unconditional_update(&self) -> bool {
        !matches!(self.builtin, None | Some(Builtin::Lease | Builtin::Definition))
    }

    /// Kinds whose defaults and rules are not known here. They are kept as the
    /// tester's hand writes them; clients may read them and change their metadata.
    pub(crate) fn is_as_written(&self) -> bool {
        use Builtin::{DaemonSet, Deployment, EndpointSlice, Pod, Service};
        matches!(self.builtin, Some(Service | EndpointSlice | Pod | DaemonSet | Deployment))
    }

    /// Whether changes of what is neither metadata nor status are counted.
    pub(crate) fn has_generation(&self) -> bool {
        use Builtin::{DaemonSet, Deployment, EndpointSlice, Pod};
        matches!(self.builtin, None | Some(EndpointSlice | Pod | DaemonSet | Deployment))
    }

    /// An object of which nothing is said yet.
    pub(crate) fn empty(&self) -> Value {
        if self.is_custom() { json!({}) } else { self.schema.empty() }
    }

    /// A PUT of an object that is not there.
    pub(crate) fn creates_on_update(&self) -> bool {
        matches!(self.builtin, Some(Builtin::Event | Builtin::Lease))
    }

    /// Whether a delete is answered with the object and not with a Status.
    pub(crate) fn returns_deleted(&self) -> bool {
        matches!(self.builtin, Some(Builtin::Namespace | Builtin::Service | Builtin::Pod))
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        name == "status" && self.status_subresource
    }
}
