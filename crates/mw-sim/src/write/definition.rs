//! Creation and deletion of CustomResourceDefinitions, together with the kinds that they
//! define.

use std::sync::Arc;

use serde_json::{Value, json};

use super::delete::mark;
use super::{existing, name_of, written};
use crate::answer::Answer;
use crate::cluster::State;
use crate::crd::{self, Definition};
use crate::decode;
use crate::json::{at, child_mut, map_mut, meta_mut, meta_text};
use crate::kind::Kind;
use crate::object::Object;
use crate::path::Target;
use crate::refusal::Refusal;
use crate::request::Request;

pub(crate) fn create(state: &mut State, definition: &Definition) -> Result<Answer, Refusal> {
    let kind = definition_kind(state)?;
    let name = meta_text(&definition.object, "name").to_owned();
    if state
        .of_kind(&kind)
        .is_some_and(|all| all.objects.contains_key(name.as_str()))
    {
        return Err(Refusal::already_exists(&kind, &name, false));
    }
    let (uid, now) = (state.draws.uid(), state.wall.stamp());
    let mut object = Value::clone(&definition.object);
    let metadata = meta_mut(&mut object);
    for own in [
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
    ] {
        metadata.remove(own);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), now.clone().into());
    metadata.insert("generation".to_owned(), 1.into());
    child_mut(map_mut(&mut object), "status")
        .insert("conditions".to_owned(), crd::conditions(&now));
    let kept = state
        .commit(&kind, &name, Some(object))
        .ok_or_else(Refusal::no_such_resource)?;
    state.serve(Arc::clone(&definition.kind));
    Ok(written(201, &kept))
}

fn definition_kind(state: &State) -> Result<Arc<Kind>, Refusal> {
    let all = state.collection("apiextensions.k8s.io", "customresourcedefinitions");
    all.map(|all| Arc::clone(&all.kind))
        .ok_or_else(Refusal::no_such_resource)
}

/// Handles a forced server-side apply of a whole definition. Changes to an existing
/// definition and all other patches are unsupported.
pub(super) fn apply(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    target: &Target,
    is_apply: bool,
) -> Result<Answer, Refusal> {
    if !is_apply || request.query.force != Some(true) || target.subresource.is_some() {
        return Err(Refusal::unsupported(
            "this patch of a CustomResourceDefinition",
        ));
    }
    // Clients send JSON, which is valid YAML.
    let applied: Value = decode::patch(&request.body)?;
    if meta_text(&applied, "name") != name_of(target) {
        return Err(Refusal::bad_request(
            "the name of the object does not match the name on the URL",
        ));
    }
    let definition = Definition::parse(&applied)
        .map_err(|unsupported| Refusal::unsupported(unsupported.what()))?;
    let Some((_, old)) = existing(state, kind, target) else {
        return create(state, &definition);
    };
    if is_within(&applied, &old.value, "") {
        return Ok(written(200, &old));
    }
    Err(Refusal::unsupported(
        "changes of an existing CustomResourceDefinition",
    ))
}

/// Reports whether applying changes nothing: each field exists with the same value.
fn is_within(applied: &Value, kept: &Value, path: &str) -> bool {
    match (applied, kept) {
        (Value::Object(applied), Value::Object(kept)) => {
            applied.iter().all(|(name, value)| match kept.get(name) {
                // The status can't be applied here, so it is ignored.
                _ if path.is_empty() && name == "status" => true,
                _ if value.is_null() => true,
                Some(found) if path == "metadata" || path.is_empty() || path == "spec" => {
                    is_within(value, found, name)
                }
                Some(found) => value == found,
                None => false,
            })
        }
        _ => applied == kept,
    }
}

/// Deletes a definition and all objects of that kind.
pub(super) fn delete(
    state: &mut State,
    kind: &Arc<Kind>,
    key: &str,
    old: &Object,
) -> Result<Answer, Refusal> {
    let (group, plural) = (
        at(&old.value, &["spec", "group"]).as_str(),
        at(&old.value, &["spec", "names", "plural"]).as_str(),
    );
    let (group, plural) = (
        group.unwrap_or_default().to_owned(),
        plural.unwrap_or_default().to_owned(),
    );
    let mut marked = Value::clone(&old.value);
    mark(&mut marked, &state.wall.stamp());
    meta_mut(&mut marked).insert(
        "finalizers".to_owned(),
        json!(["customresourcecleanup.apiextensions.k8s.io"]),
    );
    let Some(collection) = state.collection(&group, &plural) else {
        return Err(Refusal::no_such_resource());
    };
    if collection
        .objects
        .values()
        .any(|object| !at(&object.value, &["metadata", "finalizers"]).is_null())
    {
        return Err(Refusal::unsupported(
            "deleting a CustomResourceDefinition whose objects have finalizers",
        ));
    }
    let (defined, keys) = (
        Arc::clone(&collection.kind),
        collection.objects.keys().cloned().collect::<Vec<_>>(),
    );
    for key in keys {
        state.commit(&defined, &key, None);
    }
    state.unserve(&group, &plural);
    state.commit(kind, key, None);
    Ok(Answer::json(200, &marked))
}
