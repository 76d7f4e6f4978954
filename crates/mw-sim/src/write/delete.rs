//! Deletion: immediate, or by deletionTimestamp until the last finalizer is removed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::update::is_held;
use super::{definition, existing, name_of};
use crate::answer::{self, Answer};
use crate::cluster::State;
use crate::decode::DeleteOptions;
use crate::json::{child_mut, map_mut, meta, meta_mut, meta_text, texts};
use crate::kind::{Builtin, Kind};
use crate::object::Object;
use crate::path::Target;
use crate::read;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::selector::Selector;

pub(crate) fn delete(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    target: &Target,
) -> Result<Answer, Refusal> {
    let options = options(request)?;
    let (key, old) =
        existing(state, kind, target).ok_or_else(|| Refusal::not_found(kind, name_of(target)))?;
    check_preconditions(kind, name_of(target), &options, &old)?;
    if kind.builtin == Some(Builtin::Definition) {
        return definition::delete(state, kind, &key, &old);
    }
    Ok(match remove(state, kind, &key, &old) {
        Some(marked) => Answer::new(200, marked.bytes()),
        None if kind.returns_deleted() => Answer::new(200, old.bytes()),
        None => Answer::json(200, &answer::deleted(kind, &old.value)),
    })
}

fn options(request: &Request) -> Result<DeleteOptions, Refusal> {
    let options = DeleteOptions::of(request)?;
    if options.dry_run {
        return Err(Refusal::unsupported("dry runs"));
    }
    match options.propagation.as_deref() {
        None | Some("Background") => Ok(options),
        // Needs a garbage collector.
        Some(other) => Err(Refusal::unsupported(format!("propagationPolicy={other}"))),
    }
}

fn check_preconditions(
    kind: &Kind,
    name: &str,
    options: &DeleteOptions,
    old: &Object,
) -> Result<(), Refusal> {
    let uid = meta_text(&old.value, "uid");
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). \
             The object might have been deleted and then recreated"
        );
        return Err(Refusal::precondition_failed(kind, name, &why));
    }
    let version = old.version.to_string();
    if let Some(wanted) = options
        .version
        .as_deref()
        .filter(|wanted| *wanted != version)
    {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). \
             The object might have been modified"
        );
        return Err(Refusal::precondition_failed(kind, name, &why));
    }
    Ok(())
}

/// Deletes an object. If something holds it, sets its deletionTimestamp instead and
/// returns it.
fn remove(
    state: &mut State,
    kind: &Arc<Kind>,
    key: &str,
    old: &Arc<Object>,
) -> Option<Arc<Object>> {
    let held = texts(meta(&old.value, "finalizers")).next().is_some() || is_held(kind);
    if !held {
        state.commit(kind, key, None);
        return None;
    }
    if meta(&old.value, "deletionTimestamp").is_some() {
        return Some(Arc::clone(old));
    }
    let now = state.wall.stamp();
    let mut marked = Value::clone(&old.value);
    mark(&mut marked, &now);
    if is_held(kind) {
        child_mut(map_mut(&mut marked), "status").insert("phase".to_owned(), "Terminating".into());
        // A Namespace is deleted without a grace period.
        meta_mut(&mut marked).remove("deletionGracePeriodSeconds");
    }
    state.commit(kind, key, Some(marked))
}

pub(super) fn mark(object: &mut Value, now: &str) {
    let metadata = meta_mut(object);
    metadata.insert("deletionTimestamp".to_owned(), now.into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
    if let Some(generation) = metadata
        .get("generation")
        .and_then(Value::as_i64)
        .filter(|generation| *generation > 0)
    {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

/// Deletes the selected objects of a collection and returns them as they were before.
pub(crate) fn delete_collection(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    target: &Target,
) -> Result<Answer, Refusal> {
    if matches!(kind.builtin, Some(Builtin::Namespace)) {
        return Err(Refusal::method_not_allowed());
    }
    if kind.builtin == Some(Builtin::Definition)
        || request.query.limit > 0
        || request.query.continue_token.is_some()
    {
        return Err(Refusal::unsupported("this delete of a collection"));
    }
    let options = options(request)?;
    if options.uid.is_some() || options.version.is_some() {
        return Err(Refusal::unsupported(
            "preconditions on the delete of a collection",
        ));
    }
    let selector = Selector::of(kind, target.namespace.as_deref(), &request.query)?;
    let all = state
        .of_kind(kind)
        .map(|all| &all.objects)
        .ok_or_else(Refusal::no_such_resource)?;
    let chosen: Vec<(Arc<str>, Arc<Object>)> = all
        .iter()
        .filter(|(_, object)| selector.matches(&object.value))
        .map(|(key, object)| (Arc::clone(key), Arc::clone(object)))
        .collect();
    let version = state.version;
    for (key, object) in &chosen {
        remove(state, kind, key, object);
    }
    let objects: Vec<&Object> = chosen.iter().map(|(_, object)| &**object).collect();
    Ok(Answer::new(
        200,
        read::body(
            kind,
            &json!({ "resourceVersion": version.to_string() }),
            &objects,
        ),
    ))
}
