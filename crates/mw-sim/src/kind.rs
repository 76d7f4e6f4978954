//! Kinds that a server knows: names, scope, and the rules that apply to them.

use serde_json::{Value, json};

use crate::json::api_version;
use crate::refusal::qualified;
use crate::schema::Schema;

/// Built-in kinds, each with specific rules.
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
    /// Schema including metadata, for managedFields.
    pub fields: Schema,
    /// The built-in kind; `None` for a custom resource.
    pub builtin: Option<Builtin>,
}

impl Kind {
    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Returns e.g. `peers.kilo.squat.ai` or `nodes`.
    pub(crate) fn qualified(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.builtin.is_none()
    }

    /// Reports whether a PUT without resourceVersion is allowed.
    pub(crate) fn allows_unconditional_update(&self) -> bool {
        !matches!(
            self.builtin,
            None | Some(Builtin::Lease | Builtin::Definition)
        )
    }

    /// Reports whether defaults and validation of this kind are not simulated. Tests
    /// write such objects through [`crate::Cluster::call`]; clients may read them and
    /// change their metadata.
    pub(crate) fn is_as_written(&self) -> bool {
        use Builtin::{DaemonSet, Deployment, EndpointSlice, Pod, Service};
        matches!(
            self.builtin,
            Some(Service | EndpointSlice | Pod | DaemonSet | Deployment)
        )
    }

    /// Reports whether changes outside of metadata and status increment the generation.
    pub(crate) fn has_generation(&self) -> bool {
        use Builtin::{DaemonSet, Deployment, EndpointSlice, Pod};
        matches!(
            self.builtin,
            None | Some(EndpointSlice | Pod | DaemonSet | Deployment)
        )
    }

    /// Returns an object without content. Built-in kinds have some parts even then.
    pub(crate) fn empty(&self) -> Value {
        if self.is_custom() {
            json!({})
        } else {
            self.schema.empty()
        }
    }

    /// Reports whether a PUT creates a missing object.
    pub(crate) fn creates_on_update(&self) -> bool {
        matches!(self.builtin, Some(Builtin::Event | Builtin::Lease))
    }

    /// Reports whether a delete is answered with the object instead of a Status.
    pub(crate) fn returns_deleted(&self) -> bool {
        matches!(
            self.builtin,
            Some(Builtin::Namespace | Builtin::Service | Builtin::Pod)
        )
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        name == "status" && self.status_subresource
    }
}
