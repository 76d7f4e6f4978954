//! Create, update, patch and delete, with checks and changes in the order of a real
//! server.

mod apply;
mod create;
mod definition;
mod delete;
mod patch;
mod update;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::answer::Answer;
use crate::builtin;
use crate::cluster::{State, key};
use crate::json::{meta as meta_of, meta_mut};
use crate::kind::Kind;
use crate::managers::{Managers, Writer};
use crate::meta;
use crate::object::Object;
use crate::path::Target;
use crate::refusal::{FieldError, Refusal};
use crate::request::Request;

pub(crate) use create::create;
pub(crate) use definition::create as create_definition;
pub(crate) use delete::{delete, delete_collection};
pub(crate) use patch::patch;
pub(crate) use update::update;

/// Size limit of etcd, with room for the envelope.
const LARGEST_OBJECT: usize = 3 << 19;

/// Returns the writer of this request.
fn writer<'a>(state: &State, request: &Request, target: &'a Target) -> Writer<'a> {
    Writer {
        name: request.manager(),
        subresource: target.subresource.as_deref(),
        now: state.wall.stamp(),
    }
}

/// Updates the managedFields of an object that is about to be written. `old` is `None`
/// for a new object.
fn note_managers(
    state: &State,
    kind: &Kind,
    request: &Request,
    target: &Target,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Refusal> {
    let given = meta_mut(new)
        .remove("managedFields")
        .filter(|_| target.subresource.is_none());
    if !state.keeps_managers {
        return Ok(());
    }
    let writer = writer(state, request, target);
    let before = old.and_then(|old| meta_of(old, "managedFields"));
    let mut managers = match &given {
        // An empty list or a list with one empty entry resets them.
        Some(Value::Array(entries))
            if entries
                .iter()
                .all(|entry| entry.as_object().is_some_and(Map::is_empty))
                && entries.len() < 2 =>
        {
            Managers::default()
        }
        Some(entries) => Managers::read(kind, entries)
            .ok_or_else(|| Refusal::unsupported("these managedFields"))?,
        None => before
            .and_then(|entries| Managers::read(kind, entries))
            .unwrap_or_default(),
    };
    // Objects without entries get none until the first apply.
    if old.is_none() || !managers.is_empty() {
        match old {
            Some(old) => managers.update(kind, old, new, &writer),
            None => managers.update(kind, &kind.empty(), new, &writer),
        }
    }
    managers.keep_in(new);
    Ok(())
}

/// Rejects writes by clients to kinds whose rules are not simulated.
fn check_hand(kind: &Kind, request: &Request, what: &str) -> Result<(), Refusal> {
    if kind.is_as_written() && !request.is_by_hand() {
        return Err(Refusal::unsupported(format!(
            "{what} of {} except through Cluster::call",
            kind.qualified()
        )));
    }
    Ok(())
}

/// Returns the object of a path.
fn existing(state: &State, kind: &Kind, target: &Target) -> Option<(String, Arc<Object>)> {
    let key = key(target)?;
    let object = Arc::clone(state.of_kind(kind)?.objects.get(key.as_str())?);
    Some((key, object))
}

fn name_of(target: &Target) -> &str {
    target.name.as_deref().unwrap_or_default()
}

/// Validates an object except for its metadata.
fn add_content_errors(
    kind: &Kind,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) {
    match kind.builtin {
        Some(builtin) => errors.extend(builtin::errors(builtin, object, old)),
        None => kind.schema.add_errors(object, errors),
    }
}

/// Rejects an object that is too large for etcd, by the size of its JSON, before it is
/// stored.
fn check_size(object: &Value) -> Result<(), Refusal> {
    if crate::object::written(object).len() > LARGEST_OBJECT {
        return Err(Refusal::new(500, "", "etcdserver: request is too large"));
    }
    Ok(())
}

fn written(code: u16, object: &Object) -> Answer {
    Answer::new(code, object.bytes())
}

/// Validates the metadata of a new object (`old` is `None`) or a changed one.
fn metadata_errors(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match old {
        None => meta::errors(kind, object),
        Some(_) => meta::content_errors(object),
    }
}
