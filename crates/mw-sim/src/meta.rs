//! Rules for names, labels and other metadata.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::json::{at, meta, meta_text, texts};
use crate::kind::{Builtin, Kind};
use crate::refusal::FieldError;
use crate::schema::Schema;
use crate::schema::build::{any, atomic, int, kept, keyed, map, object, set, text, time, truth};

const LONGEST_SUBDOMAIN: usize = 253;
const LONGEST_LABEL: usize = 63;
/// Limit for all annotations of an object together.
const MOST_ANNOTATIONS: usize = 256 << 10;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
                         and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with \
                     an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                         character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
                           and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
                           validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Returns the schema of `metadata`, which is the same for all kinds.
pub(crate) fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        object([
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("selfLink", text()),
            ("uid", text()),
            ("resourceVersion", text()),
            ("generation", int()),
            ("creationTimestamp", time()),
            ("deletionTimestamp", time()),
            ("deletionGracePeriodSeconds", kept(int())),
            ("labels", map(text())),
            ("annotations", map(text())),
            ("finalizers", set(text())),
            // An empty list is meaningful: it resets the managed fields.
            ("managedFields", kept(any())),
            (
                "ownerReferences",
                keyed(
                    ["uid"],
                    atomic(object([
                        ("apiVersion", kept(text())),
                        ("kind", kept(text())),
                        ("name", kept(text())),
                        ("uid", kept(text())),
                        ("controller", kept(truth())),
                        ("blockOwnerDeletion", kept(truth())),
                    ])),
                ),
            ),
        ])
    })
}

/// Validates the metadata of a new object.
pub(crate) fn errors(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (prefix, name) = (meta_text(object, "generateName"), meta_text(object, "name"));
    if !prefix.is_empty() {
        errors.extend(
            name_errors(kind, prefix, true)
                .map(|why| FieldError::invalid("metadata.generateName", &json!(prefix), &why)),
        );
    }
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        errors.extend(
            name_errors(kind, name, false)
                .map(|why| FieldError::invalid("metadata.name", &json!(name), &why)),
        );
    }
    errors.extend(content_errors(object));
    errors
}

/// Validates the metadata that is also checked on updates.
pub(crate) fn content_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = label_errors(object);
    if let Some(generation) = meta(object, "generation")
        .filter(|generation| generation.as_i64().is_some_and(|number| number < 0))
    {
        errors.push(FieldError::invalid(
            "metadata.generation",
            generation,
            "must be greater than or equal to 0",
        ));
    }
    errors.extend(annotation_errors(object));
    for finalizer in texts(meta(object, "finalizers")) {
        errors.extend(
            qualified_errors(finalizer)
                .map(|why| FieldError::invalid("metadata.finalizers", &json!(finalizer), &why)),
        );
    }
    for owner in meta(object, "ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if at(owner, &[field]).as_str().unwrap_or_default().is_empty() {
                let place = format!("metadata.ownerReferences.{field}");
                errors.push(FieldError::invalid(&place, &json!(""), "must not be empty"));
            }
        }
    }
    errors
}

fn label_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in meta(object, "labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        errors.extend(
            qualified_errors(key)
                .map(|why| FieldError::invalid("metadata.labels", &json!(key), &why)),
        );
        let text = value.as_str().unwrap_or_default();
        if text.len() > LONGEST_LABEL {
            errors.push(FieldError::invalid(
                "metadata.labels",
                value,
                &at_most(LONGEST_LABEL),
            ));
        }
        if !text.is_empty() && !is_name_part(text) {
            errors.push(FieldError::invalid("metadata.labels", value, LABEL_VALUE));
        }
    }
    errors
}

fn annotation_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in meta(object, "annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let lower = key.to_lowercase();
        errors.extend(
            qualified_errors(&lower)
                .map(|why| FieldError::invalid("metadata.annotations", &json!(key), &why)),
        );
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > MOST_ANNOTATIONS {
        errors.push(FieldError::too_long(
            "metadata.annotations",
            MOST_ANNOTATIONS,
        ));
    }
    errors
}

/// Validates the name of an object. A prefix may end with a dash.
fn name_errors(kind: &Kind, name: &str, is_prefix: bool) -> impl Iterator<Item = String> {
    let name = if is_prefix {
        name.strip_suffix('-')
            .map_or_else(|| name.to_owned(), |name| format!("{name}a"))
    } else {
        name.to_owned()
    };
    let is_label = kind.builtin == Some(Builtin::Namespace);
    let is_subdomain = name.split('.').all(is_dns_label);
    let (most, fits, why) = match is_label {
        true if is_subdomain => (LONGEST_LABEL, is_dns_label(&name), "must not contain dots"),
        true => (LONGEST_LABEL, false, LABEL),
        false => (LONGEST_SUBDOMAIN, is_subdomain, SUBDOMAIN),
    };
    let long = (name.len() > most).then(|| at_most(most));
    long.into_iter().chain((!fits).then(|| why.to_owned()))
}

fn at_most(length: usize) -> String {
    format!("must be no more than {length} characters")
}

fn is_dns_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_name_part(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Validates `PREFIX/NAME` or `NAME`, the form of label keys.
pub(crate) fn qualified_errors(text: &str) -> impl Iterator<Item = String> {
    let mut errors = Vec::new();
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        let example = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
        errors.push(format!(
            "a qualified name must consist of {}{example}",
            QUALIFIED.trim_start_matches("name part must consist of ")
        ));
        return errors.into_iter();
    }
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) if prefix.len() > LONGEST_SUBDOMAIN => {
            errors.push(format!("prefix part {}", at_most(LONGEST_SUBDOMAIN)))
        }
        Some(prefix) if !prefix.split('.').all(is_dns_label) => {
            errors.push(format!("prefix part {SUBDOMAIN}"))
        }
        _ => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LONGEST_LABEL {
        errors.push(format!("name part {}", at_most(LONGEST_LABEL)));
    }
    if !is_name_part(name) {
        errors.push(QUALIFIED.to_owned());
    }
    errors.into_iter()
}

pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= LONGEST_LABEL && is_name_part(text))
}
