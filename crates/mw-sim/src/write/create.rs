//! Creation of objects.

use std::sync::Arc;

use serde_json::Value;

use super::{
    add_content_errors, check_hand, check_size, definition, metadata_errors, note_managers, written,
};
use crate::answer::Answer;
use crate::builtin;
use crate::cluster::State;
use crate::crd::Definition;
use crate::decode;
use crate::json::{map_mut, meta, meta_mut, meta_text};
use crate::kind::{Builtin, Kind};
use crate::path::Target;
use crate::refusal::Refusal;
use crate::request::Request;

pub(crate) fn create(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    target: &Target,
) -> Result<Answer, Refusal> {
    // For custom resources, the name in the path is ignored.
    if target.name.is_some() && !kind.is_custom() {
        return Err(Refusal::method_not_allowed());
    }
    let mut object = decode::object(kind, request)?;
    if kind.builtin == Some(Builtin::Definition) {
        let definition = Definition::parse(&object)
            .map_err(|unsupported| Refusal::unsupported(unsupported.what()))?;
        return definition::create(state, &definition);
    }
    check_hand(kind, request, "the creation")?;
    for own in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        meta_mut(&mut object).remove(own);
    }
    builtin::fill(kind, &mut object)?;
    note_managers(state, kind, request, target, None, &mut object)?;
    admit(state, kind, target, object)
}

/// Creates a decoded object in the namespace of the path.
pub(super) fn admit(
    state: &mut State,
    kind: &Arc<Kind>,
    target: &Target,
    mut object: Value,
) -> Result<Answer, Refusal> {
    place(kind, target, &mut object)?;
    check_namespace(state, target, &object)?;
    // The storage of a real server rejects a resourceVersion, after validation. Read
    // here, because `complete` removes it.
    let names_version = !matches!(meta_text(&object, "resourceVersion"), "" | "0");
    complete(state, kind, &mut object);
    let mut errors = metadata_errors(kind, &object, None);
    add_content_errors(kind, &object, None, &mut errors);
    let name = meta_text(&object, "name").to_owned();
    if !errors.is_empty() {
        return Err(Refusal::invalid(kind, &name, &errors));
    }
    if names_version {
        return Err(Refusal::new(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let key = target
        .namespace
        .as_ref()
        .map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"));
    if let Some(found) = state
        .of_kind(kind)
        .and_then(|all| all.objects.get(key.as_str()))
    {
        return Err(Refusal::already_exists(
            kind,
            &name,
            meta(&found.value, "deletionTimestamp").is_some(),
        ));
    }
    check_size(&object)?;
    let kept = state
        .commit(kind, &key, Some(object))
        .ok_or_else(Refusal::no_such_resource)?;
    Ok(written(201, &kept))
}

/// Sets the namespace of the path, and rejects objects with a different one.
pub(super) fn place(kind: &Kind, target: &Target, object: &mut Value) -> Result<(), Refusal> {
    let Some(wanted) = target.namespace.as_deref().filter(|_| kind.namespaced) else {
        meta_mut(object).remove("namespace");
        return Ok(());
    };
    let given = meta_text(object, "namespace");
    if !given.is_empty() && given != wanted {
        let why =
            "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(why));
    }
    meta_mut(object).insert("namespace".to_owned(), wanted.into());
    Ok(())
}

fn check_namespace(state: &State, target: &Target, object: &Value) -> Result<(), Refusal> {
    let Some(name) = &target.namespace else {
        return Ok(());
    };
    let namespaces = state
        .collection("", "namespaces")
        .ok_or_else(Refusal::no_such_resource)?;
    match namespaces.objects.get(name.as_str()) {
        None => Err(Refusal::not_found(&namespaces.kind, name)),
        Some(namespace) if builtin::is_terminating(&namespace.value) => {
            let why = format!(
                "unable to create new content in namespace {name} because it is being terminated"
            );
            let causes = serde_json::json!([
                { "reason": "NamespaceTerminating", "message": format!("namespace {name} is being terminated"), "field": "metadata.namespace" },
            ]);
            Err(Refusal::forbidden(
                &target.plural,
                &target.group,
                meta_text(object, "name"),
                &why,
            )
            .with_causes(causes))
        }
        Some(_) => Ok(()),
    }
}

/// Sets the fields of a new object that only the server sets.
fn complete(state: &mut State, kind: &Kind, object: &mut Value) {
    let prefix = meta_text(object, "generateName").to_owned();
    let (uid, now) = (state.draws.uid(), state.wall.stamp());
    let metadata = meta_mut(object);
    if !metadata.contains_key("name") && !prefix.is_empty() {
        // A real server truncates the prefix so that the name fits.
        let prefix: String = prefix.chars().take(58).collect();
        metadata.insert(
            "name".to_owned(),
            format!("{prefix}{}", state.draws.suffix()).into(),
        );
    }
    for own in [
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.remove(own);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), now.into());
    if kind.has_generation() {
        metadata.insert("generation".to_owned(), 1.into());
    }
    if kind.is_custom() && kind.status_subresource {
        map_mut(object).remove("status");
    }
    builtin::prepare(kind, object, None);
}
