//! Conditions of a status, its size, and the patch from one status to the next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mw_core::condition::is_reason;
use mw_core::text::printable;
use serde::Serialize;
use serde_json::{Value, json};

const LONGEST_MESSAGE: usize = 1000;
/// Size limit of a status. Kubernetes refuses objects of 1.5 MiB; etcd works best with far smaller ones.
const LARGEST: usize = 250 << 10;

/// Reports whether a status is too large to be written.
pub fn is_too_large(status: &impl Serialize) -> bool {
    serde_json::to_vec(status).map_or(0, |bytes| bytes.len()) > LARGEST
}

/// A condition without its times.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    pub kind: &'a str,
    pub status: &'a str,
    pub reason: &'a str,
    pub message: String,
}

/// Merges our wanted conditions into the existing ones and keeps those of
/// others. lastTransitionTime changes only when the status does.
pub fn merged<'a>(
    before: &[Condition],
    ours: &[&str],
    wanted: impl IntoIterator<Item = Wanted<'a>>,
    generation: i64,
    now: &Time,
) -> Vec<Condition> {
    let others = before
        .iter()
        .filter(|condition| !ours.contains(&condition.type_.as_str()))
        .cloned();
    let wanted = wanted.into_iter().map(
        |Wanted {
             kind,
             status,
             reason,
             message,
         }| {
            debug_assert!(
                ours.contains(&kind) && is_reason(reason),
                "{kind}/{reason} is in no list of mw_core::condition"
            );
            let same = before
                .iter()
                .find(|condition| condition.type_ == kind && condition.status == status);
            Condition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message: printable(&message, LONGEST_MESSAGE),
                observed_generation: Some(generation),
                last_transition_time: same.map_or_else(
                    || now.clone(),
                    |condition| condition.last_transition_time.clone(),
                ),
            }
        },
    );
    let mut all: Vec<Condition> = others.chain(wanted).collect();
    all.sort_by(|one, other| one.type_.cmp(&other.type_));
    all
}

/// Returns the merge patch from one status to the other.
pub fn difference(before: &Value, mut after: Value) -> Value {
    if let (Some(before), Some(after)) = (before.as_object(), after.as_object_mut()) {
        for key in before.keys() {
            after.entry(key).or_insert(Value::Null);
        }
    }
    json!({ "status": after })
}
