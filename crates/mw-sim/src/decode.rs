//! Decoding of request bodies into objects of the kind that the path refers to.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::json::{at, map_mut};
use crate::kind::Kind;
use crate::meta;
use crate::query::Query;
use crate::refusal::{FieldError, Refusal};
use crate::request::Request;

/// Body size limit of a real server.
const LARGEST_BODY: usize = 3 << 20;

pub(crate) fn body(request: &Request) -> Result<Value, Refusal> {
    check_size(&request.body)?;
    serde_json::from_slice(&request.body)
        .map_err(|error| Refusal::bad_request(format!("the body is no JSON: {error}")))
}

fn check_size(bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.len() > LARGEST_BODY {
        return Err(Refusal::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {LARGEST_BODY}"),
        ));
    }
    Ok(())
}

/// Reports whether unknown fields are rejected.
pub(crate) fn is_strict(query: &Query) -> Result<bool, Refusal> {
    match query.field_validation.as_deref() {
        None | Some("Ignore" | "Warn") => Ok(false),
        Some("Strict") => Ok(true),
        Some(other) => Err(Refusal::unsupported(format!("fieldValidation={other}"))),
    }
}

/// Decodes the body of a POST or PUT.
pub(crate) fn object(kind: &Kind, request: &Request) -> Result<Value, Refusal> {
    match request
        .content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
    {
        "" | "application/json" => {}
        other
            if ["yaml", "protobuf", "cbor"]
                .iter()
                .any(|known| other.contains(known)) =>
        {
            return Err(Refusal::unsupported(format!(
                "bodies of the type {other:?}"
            )));
        }
        _ => {
            let why = "the body of the request was in an unknown format - accepted media types include: \
                       application/json, application/yaml, application/vnd.kubernetes.protobuf";
            return Err(Refusal::new(415, "UnsupportedMediaType", why));
        }
    }
    let mut value = body(request)?;
    if value.is_null() && !kind.is_custom() {
        map_mut(&mut value);
    }
    check_kind(kind, &mut value)?;
    let mut unknown = shape(kind, &mut value).map_err(|why| unreadable(kind, &why))?;
    if is_strict(&request.query)? {
        unknown.extend(doubled(&request.body));
        refuse_unknown(unknown).map_err(|why| unreadable(kind, &why))?;
    }
    Ok(value)
}

fn unreadable(kind: &Kind, why: &str) -> Refusal {
    Refusal::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}: {why}",
        kind.kind, kind.version, kind.kind
    ))
}

/// Fails with the message of a real server, which lists all unknown and duplicate
/// fields.
pub(crate) fn refuse_unknown(unknown: Vec<String>) -> Result<(), String> {
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(format!("strict decoding error: {}", unknown.join(", ")))
    }
}

/// Checks that apiVersion and kind match the path. Built-in kinds may omit them.
fn check_kind(kind: &Kind, value: &mut Value) -> Result<(), Refusal> {
    if !value.is_object() {
        return Err(Refusal::bad_request("the body is no object"));
    }
    let root = map_mut(value);
    let given = |field: &str| {
        root.get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (found_version, found_kind, wanted) =
        (given("apiVersion"), given("kind"), kind.api_version());
    if kind.is_custom() && found_kind.is_empty() {
        return Err(Refusal::bad_request("Object 'Kind' is missing in the body"));
    }
    if (!found_version.is_empty() || kind.is_custom()) && found_version != wanted {
        let why = format!(
            "the API version in the data ({found_version}) does not match the expected API version ({wanted})"
        );
        return Err(Refusal::bad_request(why));
    }
    if kind.is_custom() && found_kind != kind.kind {
        return Err(wrong_kind(kind, value));
    }
    if !found_kind.is_empty() && found_kind != kind.kind {
        let why = format!(
            "{found_kind} in version {:?} cannot be handled as a {}: wrong kind",
            kind.version, kind.kind
        );
        return Err(Refusal::bad_request(why));
    }
    root.insert("apiVersion".to_owned(), wanted.into());
    root.insert("kind".to_owned(), kind.kind.clone().into());
    Ok(())
}

/// Returns the error message of a real server, which is about the kind in the body, not
/// in the path.
pub(crate) fn wrong_kind(kind: &Kind, value: &Value) -> Refusal {
    let mut errors = Vec::new();
    for (field, wanted) in [
        ("kind", kind.kind.clone()),
        ("apiVersion", kind.api_version()),
    ] {
        if *at(value, &[field]) != wanted {
            errors.push(FieldError::invalid(
                field,
                at(value, &[field]),
                &format!("must be {wanted}"),
            ));
        }
    }
    let found = at(value, &["kind"]).as_str().unwrap_or_default();
    let group = at(value, &["apiVersion"])
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group);
    Refusal::invalid_named(
        &crate::refusal::qualified(found, group),
        found,
        group,
        crate::json::meta_text(value, "name"),
        &errors,
    )
}

/// Brings an object into the form of its kind: prunes unknown fields, then fills in
/// defaults (custom kinds) or decodes typed fields (built-in kinds). Returns messages
/// about the unknown fields, or an error if the object can't be decoded.
pub(crate) fn shape(kind: &Kind, value: &mut Value) -> Result<Vec<String>, String> {
    let mut removed = Vec::new();
    let root = map_mut(value);
    let metadata = root.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        map_mut(metadata);
    }
    meta::schema().prune(metadata, "metadata", &mut removed);
    meta::schema().read_typed(metadata, "metadata")?;
    kind.schema.prune(value, "", &mut removed);
    if kind.is_custom() {
        kind.schema.fill(value);
    } else {
        kind.schema.read_typed(value, "")?;
    }
    Ok(removed
        .into_iter()
        .map(|path| format!("unknown field {path:?}"))
        .collect())
}

/// Decodes an apply configuration: YAML, which includes JSON.
pub(crate) fn yaml(bytes: &[u8]) -> Result<Value, Refusal> {
    check_size(bytes)?;
    let unreadable =
        |why: &dyn fmt::Display| Refusal::bad_request(format!("error decoding YAML: {why}"));
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(_) => serde_saphyr::from_slice(bytes).map_err(|why| unreadable(&why))?,
    };
    if value.is_object() {
        Ok(value)
    } else {
        Err(unreadable(&"it is no object"))
    }
}

/// Rejects duplicate fields in an apply configuration with fieldValidation=Strict. YAML
/// with duplicates has already failed to decode.
pub(crate) fn refuse_doubled(bytes: &[u8]) -> Result<(), Refusal> {
    match doubled(bytes).as_slice() {
        [] => Ok(()),
        doubled => Err(Refusal::bad_request(format!(
            "error strict decoding YAML: {}",
            doubled.join(", ")
        ))),
    }
}

/// Returns the duplicate fields; the last one of each takes effect.
fn doubled(bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // Can't fail for JSON, which was decoded before. YAML stops here without findings:
    // duplicates in it have already failed to decode.
    _ = Doubles {
        path: String::new(),
        found: &mut found,
    }
    .deserialize(&mut reader);
    found
}

struct Doubles<'a> {
    path: String,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Doubles<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Doubles<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = if self.path.is_empty() {
                name.clone()
            } else {
                format!("{}.{name}", self.path)
            };
            if !names.insert(name) {
                self.found.push(format!("duplicate field {path:?}"));
            }
            map.next_value_seed(Doubles {
                path,
                found: self.found,
            })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        while list
            .next_element_seed(Doubles {
                path: format!("{}[{index}]", self.path),
                found: self.found,
            })?
            .is_some()
        {
            index += 1;
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// Options in the body of a DELETE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DeleteOptions {
    pub uid: Option<String>,
    pub version: Option<String>,
    pub propagation: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    pub(crate) fn of(request: &Request) -> Result<DeleteOptions, Refusal> {
        let mut options = DeleteOptions {
            propagation: request.query.propagation_policy.clone(),
            ..DeleteOptions::default()
        };
        if request.query.orphan_dependents {
            return Err(Refusal::unsupported("orphanDependents"));
        }
        if request.body.is_empty() {
            return Ok(options);
        }
        let value = body(request)?;
        if !matches!(
            at(&value, &["kind"]).as_str(),
            None | Some("" | "DeleteOptions")
        ) {
            return Err(Refusal::bad_request(
                "the body of a DELETE is no DeleteOptions",
            ));
        }
        let text = |value: &Value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        options.uid = text(at(&value, &["preconditions", "uid"]));
        options.version = text(at(&value, &["preconditions", "resourceVersion"]));
        options.propagation = text(at(&value, &["propagationPolicy"])).or(options.propagation);
        options.dry_run = at(&value, &["dryRun"])
            .as_array()
            .is_some_and(|list| !list.is_empty());
        if *at(&value, &["orphanDependents"]) == true {
            return Err(Refusal::unsupported("orphanDependents"));
        }
        Ok(options)
    }
}

/// Decodes the body of a patch that is sent as JSON.
pub(crate) fn patch<'de, P: Deserialize<'de>>(bytes: &'de [u8]) -> Result<P, Refusal> {
    check_size(bytes)?;
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_there_twice_are_found() {
        assert_eq!(
            doubled(br#"{"a":{"b":1,"b":2},"c":[{"d":null,"d":true}],"e":"x"}"#),
            ["duplicate field \"a.b\"", "duplicate field \"c[0].d\""]
        );
    }
}
