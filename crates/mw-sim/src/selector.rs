//! Selection of objects by namespace, labels and fields, for lists, watches and deletes
//! of collections.

use serde_json::Value;

use crate::json::{meta, meta_text};
use crate::kind::{Builtin, Kind};
use crate::meta::{is_label_value, qualified_errors};
use crate::query::Query;
use crate::refusal::Refusal;

#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    pub namespace: Option<String>,
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Debug, Clone)]
struct FieldRequirement {
    field: &'static str,
    value: String,
    equal: bool,
}

impl Selector {
    pub(crate) fn of(
        kind: &Kind,
        namespace: Option<&str>,
        query: &Query,
    ) -> Result<Selector, Refusal> {
        let labels = query
            .label_selector
            .as_deref()
            .map(labels)
            .transpose()?
            .unwrap_or_default();
        let fields = query
            .field_selector
            .as_deref()
            .map(|text| fields(kind, text))
            .transpose()?
            .unwrap_or_default();
        Ok(Selector {
            namespace: namespace.map(str::to_owned),
            labels,
            fields,
        })
    }

    /// Reports whether it filters by more than the namespace.
    pub(crate) fn chooses(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub(crate) fn takes_all(&self) -> bool {
        self.namespace.is_none() && !self.chooses()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| meta_text(object, "namespace") == namespace)
            && self
                .labels
                .iter()
                .all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|requirement| {
                (field_of(object, requirement.field) == requirement.value) == requirement.equal
            })
    }
}

impl Requirement {
    fn matches(&self, object: &Value) -> bool {
        let value = meta(object, "labels")
            .and_then(|labels| labels.get(&self.key))
            .and_then(Value::as_str);
        let among =
            |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::In(values) => among(values),
            Test::NotIn(values) => !among(values),
        }
    }
}

/// Parses a label selector: `a=b,c!=d,e in (f,g),h notin (i),j,!k`
fn labels(text: &str) -> Result<Vec<Requirement>, Refusal> {
    let mut requirements = Vec::new();
    for part in split(text) {
        let requirement = requirement(part.trim()).ok_or_else(|| unparsable(text))?;
        let values = match &requirement.test {
            Test::In(values) | Test::NotIn(values) => values.as_slice(),
            _ => &[],
        };
        if qualified_errors(&requirement.key).next().is_some()
            || !values.iter().all(|value| is_label_value(value))
        {
            return Err(unparsable(text));
        }
        requirements.push(requirement);
    }
    Ok(requirements)
}

fn unparsable(text: &str) -> Refusal {
    Refusal::bad_request(format!("unable to parse requirement: {text}"))
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .collect()
}

fn requirement(part: &str) -> Option<Requirement> {
    let of = |key: &str, test| {
        Some(Requirement {
            key: key.trim().to_owned(),
            test,
        })
    };
    if let Some(key) = part
        .strip_prefix('!')
        .filter(|key| !key.contains(['=', ' ']))
    {
        return of(key, Test::Missing);
    }
    if let Some((key, value)) = part.split_once("!=") {
        return of(key, Test::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return of(key, Test::In(vec![value.trim().to_owned()]));
    }
    if let Some(list) = part.strip_suffix(')') {
        let (head, list) = list.split_once('(')?;
        let values = list
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let (key, word) = head.trim().rsplit_once(' ')?;
        return match word {
            "in" => of(key, Test::In(values)),
            "notin" => of(key, Test::NotIn(values)),
            _ => None,
        };
    }
    of(part, Test::Exists)
}

const OF_ALL: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Returns the field selectors that are specific to a kind and supported here.
fn supported(kind: &Kind) -> &'static [&'static str] {
    match kind.builtin {
        Some(Builtin::Node) => &["spec.unschedulable"],
        Some(Builtin::Secret) => &["type"],
        Some(Builtin::Namespace) => &["status.phase"],
        Some(Builtin::Event) => &[
            "reason",
            "type",
            "regarding.name",
            "regarding.namespace",
            "regarding.kind",
            "regarding.uid",
        ],
        _ => &[],
    }
}

fn fields(kind: &Kind, text: &str) -> Result<Vec<FieldRequirement>, Refusal> {
    let mut requirements = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, value, equal) = if let Some((name, value)) = part.split_once("!=") {
            (name, value, false)
        } else if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (name, value, true)
        } else {
            return Err(Refusal::bad_request(format!(
                "invalid selector: {text:?}; can't understand {part:?}"
            )));
        };
        let known = OF_ALL
            .iter()
            .chain(supported(kind))
            .find(|known| **known == name);
        let field = known.copied().ok_or_else(|| unknown_field(kind, name))?;
        requirements.push(FieldRequirement {
            field,
            value: value.to_owned(),
            equal,
        });
    }
    Ok(requirements)
}

fn unknown_field(kind: &Kind, name: &str) -> Refusal {
    if kind.builtin == Some(Builtin::Event) {
        return Refusal::unsupported(format!("the field selector {name:?}"));
    }
    Refusal::bad_request(format!("field label not supported: {name}"))
}

fn field_of(object: &Value, field: &str) -> String {
    let found = field
        .split('.')
        .try_fold(object, |value, name| value.get(name));
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(truth)) => truth.to_string(),
        _ if field == "spec.unschedulable" => "false".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(selector: &str) -> bool {
        let object = json!({ "metadata": { "labels": { "a": "1", "x.io/b": "2" } } });
        labels(selector)
            .unwrap()
            .iter()
            .all(|requirement| requirement.matches(&object))
    }

    #[test]
    fn labels_are_chosen_as_by_kubectl() {
        for right in [
            "a",
            "!c",
            "a=1",
            "a==1,x.io/b=2",
            "a!=2",
            "c!=2",
            "a in (0,1)",
            "x.io/b notin (1, 3)",
            "c notin (1)",
            "a in (1),!c",
        ] {
            assert!(matches(right), "{right}");
        }
        for wrong in ["c", "!a", "a=2", "a!=1", "a in (2,3)", "x.io/b notin (2)"] {
            assert!(!matches(wrong), "{wrong}");
        }
        for nonsense in ["a of (1)", "-a-", "a=b c", "a in (1"] {
            assert!(labels(nonsense).is_err(), "{nonsense}");
        }
    }
}
