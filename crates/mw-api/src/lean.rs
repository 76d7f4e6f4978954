//! Metadata without what nobody here reads. Half of a typical object is
//! managedFields; a list of a thousand is read without a single one of them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct LeanMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// For `deserialize_with`.
pub(crate) fn meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let LeanMeta { name, uid, resource_version, deletion_timestamp, labels, annotations } = null_is_default::<D, LeanMeta>(deserializer)?;
    Ok(ObjectMeta { name, uid, resource_version, deletion_timestamp, labels, annotations, ..ObjectMeta::default() })
}

/// For `deserialize_with`: somebody's null must not hide a whole list from us.
pub(crate) fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
