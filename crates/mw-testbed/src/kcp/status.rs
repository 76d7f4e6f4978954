//! Conditions, and status updates that are only written on changes.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::model::{array, string};
use super::world::Workspace;
use crate::error::Result;
use crate::http::MERGE_PATCH;

/// Returns a condition without lastTransitionTime.
pub(super) fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    let mut condition = json!({ "type": kind, "status": if holds { "True" } else { "False" } });
    if let (false, Some(fields)) = (holds, condition.as_object_mut()) {
        fields.insert("reason".into(), reason.into());
        fields.insert("message".into(), message.into());
        fields.insert("severity".into(), "Info".into());
    }
    condition
}

/// Merges changes into the status. Conditions with an unchanged status keep their
/// lastTransitionTime.
pub(super) async fn set_status(
    workspace: &Workspace,
    path: &str,
    object: &Value,
    mut status: Value,
) -> Result<()> {
    let conditions: Vec<Value> = array(&status, "/conditions")
        .iter()
        .map(|condition| timed(object, condition))
        .collect();
    if let Some(fields) = status.as_object_mut() {
        fields.insert("conditions".into(), conditions.into());
        fields.retain(|field, value| {
            object
                .pointer("/status")
                .and_then(|status| status.get(field))
                .unwrap_or(&Value::Null)
                != value
        });
        if fields.is_empty() {
            return Ok(());
        }
    }
    let seen = string(object, "/metadata/resourceVersion");
    let patch = json!({ "metadata": { "resourceVersion": seen }, "status": status });
    workspace
        .http
        .expect(
            Method::PATCH,
            &format!("{path}/status"),
            MERGE_PATCH,
            Some(&patch),
        )
        .await
        .map(drop)
}

fn timed(object: &Value, condition: &Value) -> Value {
    let earlier = array(object, "/status/conditions")
        .iter()
        .find(|earlier| earlier["type"] == condition["type"]);
    let time = match earlier.filter(|earlier| earlier["status"] == condition["status"]) {
        Some(earlier) => string(earlier, "/lastTransitionTime").to_owned(),
        // Whole seconds, like in the API.
        None => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs();
            Timestamp::from_second(now.try_into().unwrap_or_default())
                .unwrap_or_default()
                .to_string()
        }
    };
    let mut condition = condition.clone();
    if let Some(fields) = condition.as_object_mut() {
        fields.insert("lastTransitionTime".into(), time.into());
    }
    condition
}
