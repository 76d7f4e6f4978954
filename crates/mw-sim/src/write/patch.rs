//! Merge patches and JSON patches. The result is handled like an update.

use std::sync::Arc;

use json_patch::{AddOperation, CopyOperation, PatchOperation, ReplaceOperation, TestOperation};
use serde_json::Value;

use super::create::place;
use super::update::{check_name, check_parts, nameless, replace};
use super::{apply, definition, existing, name_of, note_managers};
use crate::account::Account;
use crate::answer::Answer;
use crate::builtin;
use crate::cluster::State;
use crate::decode;
use crate::json::{at, map_mut};
use crate::kind::{Builtin, Kind};
use crate::path::Target;
use crate::refusal::{FieldError, Refusal};
use crate::request::{LONGEST_MANAGER, Request};

/// Limit of a real server for operations in one JSON patch.
const MOST_STEPS: usize = 10_000;

pub(crate) fn patch(
    state: &mut State,
    kind: &Arc<Kind>,
    account: &Account,
    request: &Request,
    target: &Target,
) -> Result<Answer, Refusal> {
    if target.name.is_none() {
        return Err(nameless(kind));
    }
    let manner = Manner::of(kind, request)?;
    check_options(request, manner)?;
    if kind.builtin == Some(Builtin::Definition) {
        return definition::apply(state, kind, request, target, manner == Manner::Apply);
    }
    if manner == Manner::Apply {
        return apply::apply(state, kind, account, request, target);
    }
    let (key, old) =
        existing(state, kind, target).ok_or_else(|| Refusal::not_found(kind, name_of(target)))?;
    let mut new = Value::clone(&old.value);
    match manner {
        Manner::Merge => json_patch::merge(&mut new, &merge_patch(request)?),
        _ => apply_steps(&mut new, request)?,
    }
    let unknown = reshape(kind, target, &mut new)?;
    if decode::is_strict(&request.query)? {
        decode::refuse_unknown(unknown).map_err(|why| rejected(&why))?;
    }
    place(kind, target, &mut new)?;
    builtin::fill(kind, &mut new)?;
    note_managers(state, kind, request, target, Some(&old.value), &mut new)?;
    check_parts(kind, request, &old.value, &new)?;
    replace(state, kind, target, &key, &old, new)
}

/// Validates the options of a patch.
fn check_options(request: &Request, manner: Manner) -> Result<(), Refusal> {
    let mut errors = Vec::new();
    let manager = request.query.field_manager.as_deref().unwrap_or_default();
    if manner == Manner::Apply && manager.is_empty() {
        errors.push(FieldError::required(
            "fieldManager",
            "is required for apply patch",
        ));
    }
    if manner != Manner::Apply && request.query.force.is_some() {
        errors.push(FieldError::forbidden(
            "force",
            "may not be specified for non-apply patch",
        ));
    }
    if manager.len() > LONGEST_MANAGER {
        errors.push(FieldError::too_long("fieldManager", LONGEST_MANAGER));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Refusal::invalid_options("PatchOptions", &errors))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Merge,
    Steps,
    Apply,
}

impl Manner {
    fn of(kind: &Kind, request: &Request) -> Result<Manner, Refusal> {
        match request
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
        {
            "application/merge-patch+json" => Ok(Manner::Merge),
            "application/json-patch+json" => Ok(Manner::Steps),
            "application/apply-patch+yaml" => Ok(Manner::Apply),
            "application/strategic-merge-patch+json" if !kind.is_custom() => {
                Err(Refusal::unsupported("strategic merge patches"))
            }
            "application/apply-patch+cbor" => {
                Err(Refusal::unsupported("server-side apply of CBOR"))
            }
            _ => Err(unknown_type(kind)),
        }
    }
}

fn unknown_type(kind: &Kind) -> Refusal {
    let mut accepted = vec![
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    if !kind.is_custom() {
        accepted.push("application/strategic-merge-patch+json");
    }
    accepted.push("application/apply-patch+yaml");
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        accepted.join(", ")
    );
    Refusal::new(415, "UnsupportedMediaType", message)
}

fn merge_patch(request: &Request) -> Result<Value, Refusal> {
    let patch: Value = decode::patch(&request.body)?;
    if patch.is_object() {
        Ok(patch)
    } else {
        Err(Refusal::bad_request(
            "error decoding patch: a merge patch is an object",
        ))
    }
}

fn apply_steps(object: &mut Value, request: &Request) -> Result<(), Refusal> {
    let steps: Vec<Value> = decode::patch(&request.body)?;
    if steps.len() > MOST_STEPS {
        let why = format!(
            "The allowed maximum operations in a JSON patch is {MOST_STEPS}, got {}",
            steps.len()
        );
        return Err(Refusal::new(413, "RequestEntityTooLarge", why));
    }
    let is_path = |place: &Value| {
        place
            .as_str()
            .is_none_or(|place| place.is_empty() || place.starts_with('/'))
    };
    if !steps
        .iter()
        .all(|step| is_path(at(step, &["path"])) && is_path(at(step, &["from"])))
    {
        return Err(Refusal::unsupported(
            "JSON patch paths without a leading slash",
        ));
    }
    let failed = || {
        Refusal::new(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )
    };
    for step in steps {
        let step = serde_json::from_value(step).map_err(|_| failed())?;
        apply_step(object, step).map_err(|_| failed())?;
    }
    Ok(())
}

/// Applies an operation of a JSON patch. Real servers are more lenient than RFC 6902:
/// they replace missing fields, and treat missing fields as null.
fn apply_step(object: &mut Value, step: PatchOperation) -> Result<(), json_patch::PatchError> {
    let step = match step {
        PatchOperation::Replace(ReplaceOperation { path, value })
            if is_missing_field(object, &path.to_string()) =>
        {
            PatchOperation::Add(AddOperation { path, value })
        }
        PatchOperation::Test(TestOperation {
            path,
            value: Value::Null,
        }) if is_missing_field(object, &path.to_string()) => return Ok(()),
        PatchOperation::Copy(CopyOperation { from, path })
            if is_missing_field(object, &from.to_string()) =>
        {
            PatchOperation::Add(AddOperation {
                path,
                value: Value::Null,
            })
        }
        other => other,
    };
    json_patch::patch(object, &[step])
}

fn is_missing_field(object: &Value, path: &str) -> bool {
    let parent = path
        .rsplit_once('/')
        .map(|(parent, _)| parent)
        .unwrap_or_default();
    object.pointer(path).is_none() && object.pointer(parent).is_some_and(Value::is_object)
}

/// Decodes the result of a patch, which must still be an object of the same kind and
/// name. Returns messages about its unknown fields.
fn reshape(kind: &Kind, target: &Target, new: &mut Value) -> Result<Vec<String>, Refusal> {
    if !new.is_object() {
        return Err(rejected("it is no object"));
    }
    check_kind(kind, new)?;
    let unknown = decode::shape(kind, new).map_err(|why| rejected(&why))?;
    check_name(kind, target, new)?;
    Ok(unknown)
}

/// Rejects changes of apiVersion and kind. Built-in kinds may lose them: they are
/// filled in again.
fn check_kind(kind: &Kind, new: &mut Value) -> Result<(), Refusal> {
    let wanted = [
        ("apiVersion", kind.api_version()),
        ("kind", kind.kind.clone()),
    ];
    for (field, wanted) in wanted {
        match at(new, &[field]).as_str() {
            Some(found) if found == wanted => {}
            None | Some("") if !kind.is_custom() => {
                map_mut(new).insert(field.to_owned(), wanted.into());
            }
            Some(found) if !found.is_empty() && kind.is_custom() => {
                return Err(decode::wrong_kind(kind, new));
            }
            None | Some("") if field == "apiVersion" => return Err(without_version()),
            _ => return Err(rejected("it is of another kind, or of none")),
        }
    }
    Ok(())
}

/// A patch that removes apiVersion, which a real server answers with an internal error.
fn without_version() -> Refusal {
    let why = "Internal error occurred: the patch removed the API version";
    Refusal::new(500, "InternalError", why)
        .with_causes(serde_json::json!([{ "message": "the API version is missing" }]))
}

/// A patch whose result can't be decoded.
fn rejected(why: &str) -> Refusal {
    Refusal::invalid_named(
        "",
        "",
        "",
        "",
        &[FieldError::invalid("patch", &Value::Null, why)],
    )
}
