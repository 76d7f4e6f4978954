//! Published status of the three kinds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::{ApiResource, DynamicObject};
use mw_api::cilium::binding::ClusterMeshBindingStatus;
use mw_api::cilium::intent::ConnectivityIntentStatus;
use mw_api::cilium::kcp::ANNOTATION_CLUSTER;
use mw_api::cilium::service::GlobalServiceStatus;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cilium::record::{Kind, Object};
use crate::published_status::Published;

#[derive(Debug, Clone, PartialEq)]
pub struct PublishedObject {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    pub generation: i64,
    pub deleting: bool,
    /// True in a kcp workspace, which does not show the provider's Lease.
    pub in_kcp: bool,
    /// Clusters that a binding names.
    pub clusters: Vec<String>,
    /// Binding that any other kind depends on.
    pub mesh: Option<String>,
    /// Why the spec can't be parsed.
    pub misread: Option<String>,
    pub status: ObjectStatus,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ObjectStatus {
    Binding(ClusterMeshBindingStatus),
    Service(GlobalServiceStatus),
    Intent(ConnectivityIntentStatus),
}

impl ObjectStatus {
    /// Parses a status; one that can't be parsed counts as empty.
    fn read(kind: Kind, status: Value) -> ObjectStatus {
        fn of<T: DeserializeOwned + Default>(status: Value) -> T {
            serde_json::from_value(status).unwrap_or_default()
        }
        match kind {
            Kind::Binding => ObjectStatus::Binding(of(status)),
            Kind::Service => ObjectStatus::Service(of(status)),
            Kind::Intent => ObjectStatus::Intent(of(status)),
        }
    }

    pub fn phase(&self) -> Option<&str> {
        match self {
            ObjectStatus::Binding(of) => of.phase.as_deref(),
            ObjectStatus::Service(of) => of.phase.as_deref(),
            ObjectStatus::Intent(of) => of.phase.as_deref(),
        }
    }

    pub fn observed_generation(&self) -> Option<i64> {
        match self {
            ObjectStatus::Binding(of) => of.observed_generation,
            ObjectStatus::Service(of) => of.observed_generation,
            ObjectStatus::Intent(of) => of.observed_generation,
        }
    }

    /// Approximate time of the last status write.
    pub fn last_sync(&self) -> Option<&Time> {
        match self {
            ObjectStatus::Binding(of) => of.last_sync_time.as_ref(),
            ObjectStatus::Service(of) => of.last_sync_time.as_ref(),
            ObjectStatus::Intent(of) => of.last_sync_time.as_ref(),
        }
    }

    pub fn conditions(&self) -> &[Condition] {
        let conditions = match self {
            ObjectStatus::Binding(of) => &of.conditions,
            ObjectStatus::Service(of) => &of.conditions,
            ObjectStatus::Intent(of) => &of.conditions,
        };
        conditions.as_deref().unwrap_or_default()
    }
}

impl Published for PublishedObject {
    type Kind = Kind;
    type Id = (Kind, String, String);
    const LEASE: &'static str = mw_api::cilium::rbac::LEASE;
    const PLURAL: &'static str = "ClusterMeshBindings, GlobalServices and ConnectivityIntents";

    fn kinds() -> &'static [Kind] {
        &Kind::ALL
    }

    fn resource(kind: Kind) -> ApiResource {
        kind.resource()
    }

    fn read(kind: Kind, object: DynamicObject) -> Self {
        let value = serde_json::to_value(&object).unwrap_or_default();
        let status = ObjectStatus::read(kind, value.get("status").cloned().unwrap_or_default());
        let (said, misread) = Object::read(kind, "", value).map_or(
            (None, Some("invalid metadata".to_owned())),
            |(said, why)| (Some(said), why),
        );
        let meta = object.metadata;
        PublishedObject {
            kind,
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            in_kcp: meta
                .annotations
                .is_some_and(|all| all.contains_key(ANNOTATION_CLUSTER)),
            clusters: match &said {
                Some(Object::Binding(of)) => of.spec.refs.clone(),
                _ => Vec::new(),
            },
            mesh: said.as_ref().and_then(Object::mesh).map(str::to_owned),
            misread,
            status,
        }
    }

    fn id(&self) -> (Kind, String, String) {
        (self.kind, self.namespace.clone(), self.name.clone())
    }
}
