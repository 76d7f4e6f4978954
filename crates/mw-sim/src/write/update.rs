//! Updates of existing objects, for PUT and PATCH.

use std::sync::Arc;

use serde_json::Value;

use super::create::{admit, place};
use super::{
    add_content_errors, check_hand, check_size, existing, metadata_errors, name_of, note_managers,
    written,
};
use crate::answer::Answer;
use crate::builtin;
use crate::cluster::State;
use crate::decode;
use crate::json::{map_mut, meta, meta_mut, meta_text, texts};
use crate::kind::{Builtin, Kind};
use crate::managers::differ_in_times_only;
use crate::object::Object;
use crate::path::Target;
use crate::refusal::{FieldError, Refusal};
use crate::request::Request;

pub(crate) fn update(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    target: &Target,
) -> Result<Answer, Refusal> {
    if target.name.is_none() {
        return Err(nameless(kind));
    }
    if kind.builtin == Some(Builtin::Definition) {
        return Err(Refusal::unsupported("updates of CustomResourceDefinitions"));
    }
    let mut object = decode::object(kind, request)?;
    check_name(kind, target, &object)?;
    place(kind, target, &mut object)?;
    builtin::fill(kind, &mut object)?;
    let Some((key, old)) = existing(state, kind, target) else {
        if kind.creates_on_update() && target.subresource.is_none() {
            check_hand(kind, request, "the creation")?;
            note_managers(state, kind, request, target, None, &mut object)?;
            return admit(state, kind, target, object);
        }
        return Err(Refusal::not_found(kind, name_of(target)));
    };
    let (given, uid) = (meta_text(&object, "uid"), meta_text(&old.value, "uid"));
    if !given.is_empty() && given != uid {
        let why =
            format!("Precondition failed: UID in precondition: {given}, UID in object meta: {uid}");
        return Err(Refusal::conflict(kind, name_of(target), &why));
    }
    note_managers(state, kind, request, target, Some(&old.value), &mut object)?;
    check_parts(kind, request, &old.value, &object)?;
    replace(state, kind, target, &key, &old, object)
}

/// Limits clients to changes of metadata for kinds whose rules are not simulated.
pub(super) fn check_parts(
    kind: &Kind,
    request: &Request,
    old: &Value,
    new: &Value,
) -> Result<(), Refusal> {
    let is_same = |part: &str| old.get(part) == new.get(part);
    let parts = [old, new]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(serde_json::Map::keys);
    if kind.is_as_written()
        && !parts
            .filter(|part| *part != "metadata")
            .all(|part| is_same(part))
    {
        return check_hand(kind, request, "changes outside of the metadata");
    }
    Ok(())
}

/// Returns the error for a path without a name.
pub(super) fn nameless(kind: &Kind) -> Refusal {
    if kind.is_custom() {
        Refusal::bad_request("name must be provided")
    } else {
        Refusal::method_not_allowed()
    }
}

/// Checks that the name in the object matches the path.
pub(super) fn check_name(kind: &Kind, target: &Target, object: &Value) -> Result<(), Refusal> {
    let (found, wanted) = (meta_text(object, "name"), name_of(target));
    if found.is_empty() {
        return Err(Refusal::bad_request(format!(
            "{} without a name: name must be provided",
            kind.kind
        )));
    }
    if found != wanted {
        let why = format!(
            "the name of the object ({found}) does not match the name on the URL ({wanted})"
        );
        return Err(Refusal::bad_request(why));
    }
    Ok(())
}

/// Replaces an object, if the rules allow it.
pub(super) fn replace(
    state: &mut State,
    kind: &Arc<Kind>,
    target: &Target,
    key: &str,
    old: &Arc<Object>,
    mut new: Value,
) -> Result<Answer, Refusal> {
    let name = name_of(target);
    check_version(kind, name, old, &new)?;
    keep_metadata(&mut new, &old.value);
    let managers = meta_mut(&mut new).remove("managedFields");
    keep_parts(kind, target.subresource.is_some(), &mut new, &old.value);
    match managers {
        Some(managers) => meta_mut(&mut new).insert("managedFields".to_owned(), managers),
        None => meta_mut(&mut new).remove("managedFields"),
    };
    count_generation(kind, &mut new, &old.value);
    let mut errors = update_errors(&new, &old.value);
    errors.extend(metadata_errors(kind, &new, Some(&old.value)));
    add_content_errors(kind, &new, Some(&old.value), &mut errors);
    if target.subresource.is_some() && kind.is_custom() {
        errors.iter_mut().for_each(tell_from_the_status);
    }
    if !errors.is_empty() {
        return Err(Refusal::invalid(kind, name, &errors));
    }
    meta_mut(&mut new).insert("resourceVersion".to_owned(), old.version.to_string().into());
    if new == *old.value || (state.keeps_managers && differ_in_times_only(&new, &old.value)) {
        return Ok(written(200, old));
    }
    if meta(&new, "deletionTimestamp").is_some()
        && texts(meta(&new, "finalizers")).next().is_none()
        && !is_held(kind)
    {
        state.commit(kind, key, None);
        return Ok(Answer::json(200, &new));
    }
    check_size(&new)?;
    let kept = state
        .commit(kind, key, Some(new))
        .ok_or_else(Refusal::no_such_resource)?;
    Ok(written(200, &kept))
}

/// Makes the path in a message relative to the status, for writes to the subresource.
fn tell_from_the_status(error: &mut FieldError) {
    if let Some(within) = error.field.strip_prefix("status.") {
        error.message = error.message.replace(
            &format!("{} in body", error.field),
            &format!("{within} in body"),
        );
    }
}

/// Reports whether deleted objects remain. A Namespace is removed by a controller,
/// which is not simulated.
pub(super) fn is_held(kind: &Kind) -> bool {
    kind.builtin == Some(Builtin::Namespace)
}

fn check_version(kind: &Kind, name: &str, old: &Object, new: &Value) -> Result<(), Refusal> {
    match meta_text(new, "resourceVersion") {
        "" | "0" if kind.allows_unconditional_update() => Ok(()),
        "" | "0" => Err(Refusal::version_needed(kind, name)),
        version if version == old.version.to_string() => Ok(()),
        _ => Err(Refusal::modified(kind, name)),
    }
}

/// Restores metadata that clients can't change.
fn keep_metadata(new: &mut Value, old: &Value) {
    let new_meta = meta_mut(new);
    new_meta.remove("selfLink");
    let kept = |field: &str| meta(old, field).cloned();
    for always in ["creationTimestamp", "generation"] {
        match kept(always) {
            Some(value) => new_meta.insert(always.to_owned(), value),
            None => new_meta.remove(always),
        };
    }
    if let Some(since) = kept("deletionTimestamp") {
        new_meta.insert("deletionTimestamp".to_owned(), since);
    }
    for unless_given in ["uid", "deletionGracePeriodSeconds"] {
        if let Some(value) = kept(unless_given).filter(|_| !new_meta.contains_key(unless_given)) {
            new_meta.insert(unless_given.to_owned(), value);
        }
    }
}

/// Restores the status on updates of the object. On updates of the status, restores
/// everything else (custom kinds) or the spec (built-in kinds).
fn keep_parts(kind: &Kind, is_status: bool, new: &mut Value, old: &Value) {
    match (is_status, kind.is_custom()) {
        (true, true) => {
            let status = map_mut(new).remove("status");
            let given = meta_text(new, "uid").to_owned();
            *new = old.clone();
            // A different uid is rejected later, together with the other rules.
            meta_mut(new).insert("uid".to_owned(), given.into());
            if let Some(status) = status {
                map_mut(new).insert("status".to_owned(), status);
            } else {
                map_mut(new).remove("status");
            }
        }
        (true, false) => keep(new, old, "spec"),
        (false, _) => {
            if kind.status_subresource {
                keep(new, old, "status");
            }
            builtin::prepare(kind, new, Some(old));
        }
    }
}

fn keep(new: &mut Value, old: &Value, part: &str) {
    match old.get(part) {
        Some(kept) => map_mut(new).insert(part.to_owned(), kept.clone()),
        None => map_mut(new).remove(part),
    };
}

/// Increments the generation on changes outside of metadata and status.
fn count_generation(kind: &Kind, new: &mut Value, old: &Value) {
    if !kind.has_generation() {
        return;
    }
    let counts = |name: &str| name != "metadata" && !(kind.status_subresource && name == "status");
    let parts = |object: &Value| {
        object
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| counts(name))
            .count()
    };
    let same = |(name, value): (&String, &Value)| !counts(name) || new.get(name) == Some(value);
    let unchanged = parts(new) == parts(old) && old.as_object().into_iter().flatten().all(same);
    if !unchanged {
        let generation = meta(old, "generation")
            .and_then(Value::as_i64)
            .unwrap_or_default()
            + 1;
        meta_mut(new).insert("generation".to_owned(), generation.into());
    }
}

/// Rejects changes of immutable metadata, and new finalizers during deletion.
fn update_errors(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if meta(old, "deletionTimestamp").is_some() {
        let before: Vec<&str> = texts(meta(old, "finalizers")).collect();
        let added: Vec<&str> = texts(meta(new, "finalizers"))
            .filter(|finalizer| !before.contains(finalizer))
            .collect();
        if !added.is_empty() {
            let list = added
                .iter()
                .map(|finalizer| format!("{finalizer:?}"))
                .collect::<Vec<_>>()
                .join(", ");
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &why));
        }
    }
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if let Some(found) = meta(new, field).filter(|found| Some(*found) != meta(old, field)) {
            errors.push(FieldError::invalid(
                &format!("metadata.{field}"),
                found,
                "field is immutable",
            ));
        }
    }
    errors
}
