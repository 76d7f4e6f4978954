//! Kubernetes events, emitted once per change, not once per pass.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use mw_core::names::short_hash;
use mw_core::text::printable;

pub const MOST_AT_ONCE: usize = 200;
const LONGEST: usize = 1000;

/// Key of an event that was emitted: reason, subject and message.
pub type Said = (String, String, String);

/// An event about an object, without object and time.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub reason: &'static str,
    pub action: &'static str,
    pub warning: bool,
    pub message: String,
}

impl NewEvent {
    pub fn event(self, regarding: ObjectReference, controller: &str, time: MicroTime) -> Event {
        let NewEvent {
            reason,
            action,
            warning,
            message,
        } = self;
        let (name, uid) = (
            regarding.name.clone().unwrap_or_default(),
            regarding.uid.clone().unwrap_or_default(),
        );
        let hash = short_hash(&format!("{uid}\n{reason}\n{message}\n{}", time.0));
        let start: String = name.chars().take(200).collect();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{start}.{hash}")),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(time),
            reason: Some(reason.to_owned()),
            action: Some(action.to_owned()),
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            note: Some(printable(&message, LONGEST)),
            regarding: Some(regarding),
            reporting_controller: Some(controller.to_owned()),
            reporting_instance: Some("meshwright".to_owned()),
            ..Event::default()
        }
    }
}
