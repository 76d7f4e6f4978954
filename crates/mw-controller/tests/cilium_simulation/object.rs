//! Objects that tenants declare, and helpers that read JSON.

use serde_json::{Value, json};

/// Plural and kind.
pub(crate) type Kind = (&'static str, &'static str);
pub(crate) const BINDING: Kind = ("clustermeshbindings", "ClusterMeshBinding");
pub(crate) const SERVICE: Kind = ("globalservices", "GlobalService");
pub(crate) const INTENT: Kind = ("connectivityintents", "ConnectivityIntent");
pub(crate) const KINDS: [Kind; 3] = [BINDING, SERVICE, INTENT];

pub(crate) const API: &str = "/apis/networking.edge-portal.eu/v1alpha1";
pub(crate) const FINALIZERS: &str = "networking.edge-portal.eu/";
pub(crate) const TOUCHED: &str = "networking.edge-portal.eu/touched-clusters";
/// Field manager of the provider.
pub(crate) const MANAGER: &str = "meshwright";

/// An object on the hub as its tenant declares it.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) namespace: String,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) spec: Value,
}

impl Object {
    pub(crate) fn collection(&self) -> String {
        format!("{API}/namespaces/{}/{}", self.namespace, self.kind.0)
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    pub(crate) fn value(&self, spec: &Value) -> Value {
        let metadata = json!({ "name": self.name, "namespace": self.namespace });
        json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": self.kind.1, "metadata": metadata, "spec": spec })
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The refs of a binding's spec.
pub(crate) fn refs(spec: &Value) -> Vec<&str> {
    array(&spec["clusterRefs"])
        .iter()
        .map(|one| text(&one["name"]))
        .collect()
}

pub(crate) fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Fields that the provider applied below a path such as `["f:data"]`.
pub(crate) fn applied<'a>(object: &'a Value, place: &[&str]) -> Vec<&'a str> {
    owned(object, place, |entry| {
        entry["manager"] == MANAGER && entry["operation"] == "Apply"
    })
}

/// Fields that other managers own there.
pub(crate) fn held_by_others<'a>(object: &'a Value, place: &[&str]) -> Vec<&'a str> {
    owned(object, place, |entry| {
        entry["manager"] != MANAGER || entry["operation"] != "Apply"
    })
}

fn owned<'a>(object: &'a Value, place: &[&str], is: impl Fn(&Value) -> bool) -> Vec<&'a str> {
    let entries = array(&object["metadata"]["managedFields"])
        .iter()
        .filter(|entry| is(entry));
    let fields = entries.filter_map(|entry| {
        place
            .iter()
            .try_fold(&entry["fieldsV1"], |at, step| at.get(step))?
            .as_object()
    });
    fields
        .flat_map(|fields| fields.keys())
        .filter_map(|key| key.strip_prefix("f:"))
        .collect()
}

pub(crate) const DATA: [&str; 1] = ["f:data"];
pub(crate) const ANNOTATIONS: [&str; 2] = ["f:metadata", "f:annotations"];
