//! Create, update, patch and delete, in the order in which a real server checks
//! and changes things.

mod create;
mod definition;
mod delete;
mod patch;
mod update;

use std::sync::Arc;

use serde_json::Value;

use crate::answer::Answer;
use crate::builtin;
use crate::cluster::{State, key};
use crate::kind::Kind;
use crate::meta;
use crate::object::Object;
use crate::path::Target;
use crate::refusal::{FieldError, Refusal};

pub(crate) use create::create;
pub(crate) use definition::create as create_definition;
pub(crate) use delete::{delete, delete_collection};
pub(crate) use patch::patch;
pub(crate) use update::update;

/// What etcd takes at most, with some room for what is around it.
const LARGEST_OBJECT: usize = 3 << 19;

/// The object that a path means.
fn existing(state: &State, kind: &Kind, target: &Target) -> Option<(String, Arc<Object>)> {
    let key = key(target)?;
    let object = Arc::clone(state.of_kind(kind)?.objects.get(key.as_str())?);
    Some((key, object))
}

fn name_of(target: &Target) -> &str {
    target.name.as_deref().unwrap_or_default()
}

/// Adds all that is wrong with what an object says beside its metadata.
fn add_content_errors(kind: &Kind, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    match kind.builtin {
        Some(builtin) => errors.extend(builtin::errors(builtin, object, old)),
        None => kind.schema.add_errors(object, errors),
    }
}

/// As of a written object. Measured before it is kept: etcd refuses it then.
fn check_size(object: &Value) -> Result<(), Refusal> {
    if crate::object::written(object).len() > LARGEST_OBJECT {
        return Err(Refusal::new(500, "", "etcdserver: request is too large"));
    }
    Ok(())
}

fn written(code: u16, object: &Object) -> Answer {
    Answer::new(code, object.bytes())
}

/// Metadata that only the server writes.
fn metadata_errors(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match old {
        None => meta::errors(kind, object),
        Some(_) => meta::content_errors(object),
    }
}
