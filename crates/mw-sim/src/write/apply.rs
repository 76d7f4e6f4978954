//! Server-side apply: a manager sends all fields that it wants, and no others.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::create::{admit, place};
use super::update::{check_name, check_parts, replace};
use super::{check_hand, existing, name_of, writer};
use crate::account::Account;
use crate::answer::Answer;
use crate::builtin;
use crate::cluster::State;
use crate::decode;
use crate::json::{meta, meta_mut, meta_text};
use crate::kind::Kind;
use crate::managers::Managers;
use crate::path::Target;
use crate::refusal::Refusal;
use crate::request::{Request, Verb};
use crate::schema::{ListType, Schema, Type};

pub(super) fn apply(
    state: &mut State,
    kind: &Arc<Kind>,
    account: &Account,
    request: &Request,
    target: &Target,
) -> Result<Answer, Refusal> {
    if !state.keeps_managers {
        return Err(Refusal::unsupported(
            "server-side apply without managedFields",
        ));
    }
    let found = existing(state, kind, target);
    // An apply to a subresource can't create an object.
    if found.is_none() && target.subresource.is_some() {
        return Err(Refusal::not_found(kind, name_of(target)));
    }
    let applied = read(kind, request)?;
    let mut live = found
        .as_ref()
        .map_or_else(|| kind.empty(), |(_, old)| Value::clone(&old.value));
    let entries = meta_mut(&mut live).remove("managedFields");
    let mut managers = entries
        .and_then(|entries| Managers::read(kind, &entries))
        .unwrap_or_default();
    let force = request.query.force == Some(true);
    let changed = managers.apply(
        kind,
        &live,
        &applied,
        &writer(state, request, target),
        force,
    )?;
    if decode::is_strict(&request.query)? {
        decode::refuse_doubled(&request.body)?;
    }
    let mut new = changed.unwrap_or(live);
    decode::shape(kind, &mut new).map_err(|why| Refusal::new(500, "", why))?;
    builtin::fill(kind, &mut new)?;
    managers.keep_in(&mut new);
    let uid = meta_text(&new, "uid").to_owned();
    if found.is_none() && !uid.is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(Refusal::conflict(kind, name_of(target), &why));
    }
    place(kind, target, &mut new)?;
    check_name(kind, target, &new)?;
    match found {
        None => {
            account.check(Verb::Create, target)?;
            check_hand(kind, request, "the creation")?;
            // There is no object that the version could refer to.
            meta_mut(&mut new).remove("resourceVersion");
            admit(state, kind, target, new)
        }
        Some((key, old)) => {
            check_parts(kind, request, &old.value, &new)?;
            replace(state, kind, target, &key, &old, new)
        }
    }
}

/// Decodes the apply configuration and checks its kind.
fn read(kind: &Kind, request: &Request) -> Result<Value, Refusal> {
    let applied = decode::yaml(&request.body)?;
    let text = |field: &str| {
        applied
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (version, name) = (text("apiVersion"), text("kind"));
    if version != kind.api_version() || name != kind.kind {
        let version = if version.contains('/') {
            version.to_owned()
        } else {
            format!("/{version}")
        };
        return Err(Refusal::bad_request(format!(
            "invalid object type: {version}, Kind={name}"
        )));
    }
    if meta(&applied, "managedFields").is_some() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    let mut errors = Vec::new();
    check(&kind.fields, &applied, "", &mut errors)?;
    match errors.as_slice() {
        [] => Ok(applied),
        errors => {
            let errors = if let [one] = errors {
                one.clone()
            } else {
                format!("errors:\n  {}", errors.join("\n  "))
            };
            let (namespace, object) = (
                meta_text(&applied, "namespace"),
                meta_text(&applied, "name"),
            );
            let group = if kind.group.is_empty() {
                format!("/{}", kind.version)
            } else {
                kind.api_version()
            };
            let about = format!("{namespace}/{object}; {group}, Kind={}", kind.kind);
            Err(Refusal::new(
                500,
                "",
                format!("failed to create typed patch object ({about}): {errors}"),
            ))
        }
    }
}

/// Adds mismatches with the schema. Rejects content that the simulator does not model.
fn check(
    schema: &Schema,
    value: &Value,
    path: &str,
    errors: &mut Vec<String>,
) -> Result<(), Refusal> {
    if value.is_null() {
        return Err(Refusal::unsupported(format!("applying null at {path:?}")));
    }
    if schema.kind == Type::Any && schema.is_atomic {
        return Err(Refusal::unsupported(format!("applying {path:?}")));
    }
    let fits = match schema.kind {
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::Text => value.is_string(),
        Type::Integer | Type::Number => value.is_number(),
        Type::Truth => value.is_boolean(),
        Type::IntOrText | Type::Any => true,
    };
    if !fits {
        errors.push(format!(
            "{path}: expected {}, got {value}",
            schema.kind.shown()
        ));
        return Ok(());
    }
    match value {
        Value::Object(fields) => check_fields(schema, fields, path, errors),
        Value::Array(items) => check_items(schema, items, path, errors),
        _ => Ok(()),
    }
}

fn check_fields(
    schema: &Schema,
    fields: &Map<String, Value>,
    path: &str,
    errors: &mut Vec<String>,
) -> Result<(), Refusal> {
    for (name, field) in fields {
        let path = format!("{path}.{name}");
        match schema.properties.get(name).or(schema.additional.as_deref()) {
            Some(schema) => check(schema, field, &path, errors)?,
            None if schema.allows_unknown() => {}
            None => errors.push(format!("{path}: field not declared in schema")),
        }
    }
    Ok(())
}

fn check_items(
    schema: &Schema,
    items: &[Value],
    path: &str,
    errors: &mut Vec<String>,
) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let step = crate::fields::step_to(schema, item);
        if schema.list_type != ListType::Atomic && !seen.insert(step.clone()) {
            errors.push(format!(
                "{path}: duplicate entries for key {}",
                crate::fields::shown(&step)
            ));
        }
        if let Some(schema) = &schema.items {
            check(schema, item, &format!("{path}[{index}]"), errors)?;
        }
    }
    Ok(())
}
