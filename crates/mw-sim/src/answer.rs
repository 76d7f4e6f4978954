//! Answer of a server to a request: a whole body or a watch.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::json::at;
use crate::object::written;
use crate::refusal::Refusal;
use crate::watch::Watch;

#[derive(Debug)]
pub(crate) enum Answer {
    Whole {
        code: u16,
        body: Bytes,
        retry_after: Option<u32>,
    },
    Watch(Box<Watch>),
}

impl Answer {
    pub(crate) fn new(code: u16, body: Bytes) -> Answer {
        Answer::Whole {
            code,
            body,
            retry_after: None,
        }
    }

    pub(crate) fn json(code: u16, value: &Value) -> Answer {
        Answer::new(code, written(value))
    }

    pub(crate) fn refused(refusal: &Refusal) -> Answer {
        Answer::Whole {
            code: refusal.code,
            body: refusal.bytes(),
            retry_after: refusal.retry_after,
        }
    }

    pub(crate) fn code(&self) -> u16 {
        match self {
            Answer::Whole { code, .. } => *code,
            Answer::Watch(_) => 200,
        }
    }
}

/// Returns the Status for a delete that removed the object.
pub(crate) fn deleted(kind: &crate::kind::Kind, object: &Value) -> Value {
    let mut details = json!({ "name": at(object, &["metadata", "name"]), "kind": kind.plural, "uid": at(object, &["metadata", "uid"]) });
    if !kind.group.is_empty() {
        crate::json::map_mut(&mut details).insert("group".to_owned(), kind.group.clone().into());
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}
