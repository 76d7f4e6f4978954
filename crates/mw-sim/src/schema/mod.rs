//! Structural schemas of custom resources, also used for the fields of built-in kinds.
//!
//! An unknown keyword makes the whole schema unsupported, so that no object passes
//! because a rule was ignored.

mod defaults;
mod parse;
mod prune;
mod rule;
mod typed;
mod validate;

use std::collections::BTreeMap;

use regex_lite::Regex;
use serde_json::{Number, Value};

use rule::Rule;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Type {
    Object,
    Array,
    Text,
    Integer,
    Number,
    Truth,
    IntOrText,
    #[default]
    Any,
}

impl Type {
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::Text => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Truth => "boolean",
            Type::IntOrText => "integer,string",
            Type::Any => "any",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Format {
    #[default]
    None,
    Int32,
    Int64,
    DateTime,
    Cidr,
    /// A time with exactly six fractional digits; only in built-in kinds.
    MicroTime,
    /// Base64 encoded bytes; only in built-in kinds.
    Base64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Bound {
    value: Option<f64>,
    exclusive: bool,
}

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    regex: Regex,
}

/// `anyOf` or `oneOf`, limited to lists of required fields.
#[derive(Debug, Clone)]
struct Choice {
    /// True for `oneOf`.
    only_one: bool,
    alternatives: Vec<Vec<String>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Schema {
    pub kind: Type,
    pub properties: BTreeMap<String, Schema>,
    /// Schema of all properties that are not declared.
    pub additional: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    required: Vec<String>,
    pub default: Option<Value>,
    nullable: bool,
    preserve_unknown: bool,
    allowed: Vec<Value>,
    pattern: Option<Pattern>,
    format: Format,
    minimum: Bound,
    maximum: Bound,
    min_length: Option<usize>,
    max_length: Option<usize>,
    min_items: Option<usize>,
    max_items: Option<usize>,
    min_properties: Option<usize>,
    max_properties: Option<usize>,
    pub list_type: ListType,
    /// True if the value is managed as a whole.
    pub is_atomic: bool,
    rules: Vec<Rule>,
    choices: Vec<Choice>,
    /// True if empty values are written; only in built-in kinds.
    keep: bool,
}

impl Schema {
    /// Returns an empty object of a built-in kind, with the parts that are always
    /// written.
    pub(crate) fn empty(&self) -> Value {
        let part = |(name, part): (&String, &Schema)| match part.kind {
            Type::Object if part.keep => Some((name.clone(), part.empty())),
            Type::Array if part.keep => Some((name.clone(), Value::Null)),
            _ => None,
        };
        Value::Object(self.properties.iter().filter_map(part).collect())
    }

    /// Adds the schema of metadata, which is common to all objects.
    pub(crate) fn with_metadata(&self) -> Schema {
        let mut schema = self.clone();
        schema
            .properties
            .insert("metadata".to_owned(), crate::meta::schema().clone());
        schema
    }

    pub(crate) fn allows_unknown(&self) -> bool {
        self.preserve_unknown
    }

    /// Reports whether the schema contains CEL rules.
    fn has_rules(&self) -> bool {
        let below = self
            .properties
            .values()
            .chain(self.additional.as_deref())
            .chain(self.items.as_deref());
        !self.rules.is_empty() || below.into_iter().any(Schema::has_rules)
    }
}

/// Builders for the fields of built-in kinds.
pub(crate) mod build {
    use super::{Format, ListType, Schema, Type};

    fn of(kind: Type) -> Schema {
        Schema {
            kind,
            ..Schema::default()
        }
    }

    pub(crate) fn text() -> Schema {
        of(Type::Text)
    }

    pub(crate) fn truth() -> Schema {
        of(Type::Truth)
    }

    pub(crate) fn int() -> Schema {
        of(Type::Integer)
    }

    pub(crate) fn int32() -> Schema {
        Schema {
            format: Format::Int32,
            ..of(Type::Integer)
        }
    }

    pub(crate) fn micro_time() -> Schema {
        Schema {
            format: Format::MicroTime,
            ..of(Type::Text)
        }
    }

    pub(crate) fn time() -> Schema {
        Schema {
            format: Format::DateTime,
            ..of(Type::Text)
        }
    }

    pub(crate) fn base64() -> Schema {
        Schema {
            format: Format::Base64,
            ..of(Type::Text)
        }
    }

    /// A quantity, e.g. `10Gi` or 2.
    pub(crate) fn quantity() -> Schema {
        of(Type::IntOrText)
    }

    /// Any value.
    pub(crate) fn any() -> Schema {
        Schema {
            preserve_unknown: true,
            ..of(Type::Any)
        }
    }

    /// Content of a built-in kind that is not modelled.
    pub(crate) fn opaque() -> Schema {
        atomic(any())
    }

    pub(crate) fn atomic(schema: Schema) -> Schema {
        Schema {
            is_atomic: true,
            ..schema
        }
    }

    pub(crate) fn list(items: Schema) -> Schema {
        Schema {
            items: Some(Box::new(items)),
            ..of(Type::Array)
        }
    }

    pub(crate) fn set(items: Schema) -> Schema {
        Schema {
            list_type: ListType::Set,
            ..list(items)
        }
    }

    /// A list whose entries are identified by these fields.
    pub(crate) fn keyed<const N: usize>(keys: [&str; N], items: Schema) -> Schema {
        Schema {
            list_type: ListType::Map(keys.map(str::to_owned).to_vec()),
            ..list(items)
        }
    }

    pub(crate) fn map(values: Schema) -> Schema {
        Schema {
            additional: Some(Box::new(values)),
            ..of(Type::Object)
        }
    }

    pub(crate) fn object<const N: usize>(fields: [(&str, Schema); N]) -> Schema {
        let properties = fields
            .into_iter()
            .map(|(name, schema)| (name.to_owned(), schema))
            .collect();
        Schema {
            properties,
            ..of(Type::Object)
        }
    }

    /// A field that is written even if it is empty, zero or false.
    pub(crate) fn kept(schema: Schema) -> Schema {
        Schema {
            keep: true,
            ..schema
        }
    }
}

/// Appends a field name to a path, which is empty at the root: `spec.clusters`.
fn under(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn number_of(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}
