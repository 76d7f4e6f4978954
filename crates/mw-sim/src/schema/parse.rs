//! Parser for the schemas of CustomResourceDefinitions.

use serde_json::{Value, json};

use super::rule::Rule;
use super::{Bound, Choice, Format, ListType, Pattern, Schema, Type, under};
use crate::crd::Unsupported;
use crate::json::texts;

impl Schema {
    pub(crate) fn parse(schema: &Value, path: &str) -> Result<Schema, Unsupported> {
        let unsupported =
            |what: String| Unsupported::new(format!("{what} in the schema at {path:?}"));
        let keywords = schema
            .as_object()
            .ok_or_else(|| unsupported("a non-object".to_owned()))?;
        let mut parsed = Schema::default();
        for (keyword, value) in keywords {
            let understood = parsed.shape(keyword, value, path)?
                || parsed.bounds(keyword, value)
                || parsed.texts(keyword, value);
            if !understood {
                return Err(unsupported(format!("{keyword}: {value}")));
            }
        }
        parsed.check(keywords.contains_key("x-kubernetes-list-map-keys"), path)?;
        Ok(parsed)
    }

    /// Parses keywords about the structure.
    fn shape(&mut self, keyword: &str, value: &Value, path: &str) -> Result<bool, Unsupported> {
        match (keyword, value) {
            ("description" | "title" | "example" | "externalDocs", _) => {}
            ("x-kubernetes-map-type", Value::String(name)) if name == "granular" => {}
            ("x-kubernetes-map-type", Value::String(name)) if name == "atomic" => {
                self.is_atomic = true
            }
            ("type", Value::String(name)) => match type_of(name) {
                Some(kind) => self.kind = kind,
                None => return Ok(false),
            },
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    self.properties
                        .insert(name.clone(), Schema::parse(property, &under(path, name))?);
                }
            }
            ("additionalProperties", Value::Bool(true)) => {
                self.additional = Some(Box::new(super::build::any()))
            }
            ("additionalProperties", Value::Object(_)) => {
                self.additional = Some(Box::new(Schema::parse(value, &under(path, "*"))?))
            }
            ("items", Value::Object(_)) => {
                self.items = Some(Box::new(Schema::parse(value, &format!("{path}[*]"))?))
            }
            ("required", Value::Array(_)) => {
                self.required = texts(Some(value)).map(str::to_owned).collect()
            }
            ("default", _) => self.default = Some(value.clone()),
            ("nullable", Value::Bool(nullable)) => self.nullable = *nullable,
            ("x-kubernetes-preserve-unknown-fields", Value::Bool(preserve)) => {
                self.preserve_unknown = *preserve
            }
            ("x-kubernetes-int-or-string", Value::Bool(true)) => self.kind = Type::IntOrText,
            // Redundant beside x-kubernetes-int-or-string.
            ("anyOf", _) if *value == json!([{ "type": "integer" }, { "type": "string" }]) => {}
            ("anyOf" | "oneOf", Value::Array(alternatives)) => {
                let Some(alternatives) = alternatives.iter().map(alternative).collect() else {
                    return Ok(false);
                };
                self.choices.push(Choice {
                    only_one: keyword == "oneOf",
                    alternatives,
                });
            }
            ("x-kubernetes-validations", Value::Array(rules)) => {
                self.rules = rules
                    .iter()
                    .map(|rule| Rule::parse(rule, path))
                    .collect::<Result<_, _>>()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn bounds(&mut self, keyword: &str, value: &Value) -> bool {
        let count = || value.as_u64().and_then(|count| usize::try_from(count).ok());
        match keyword {
            "minimum" => self.minimum.value = value.as_f64(),
            "maximum" => self.maximum.value = value.as_f64(),
            "exclusiveMinimum" => self.minimum.exclusive = value == &Value::Bool(true),
            "exclusiveMaximum" => self.maximum.exclusive = value == &Value::Bool(true),
            "minLength" => self.min_length = count(),
            "maxLength" => self.max_length = count(),
            "minItems" => self.min_items = count(),
            "maxItems" => self.max_items = count(),
            "minProperties" => self.min_properties = count(),
            "maxProperties" => self.max_properties = count(),
            _ => return false,
        }
        true
    }

    fn texts(&mut self, keyword: &str, value: &Value) -> bool {
        match (keyword, value) {
            ("pattern", Value::String(text)) => match regex_lite::Regex::new(text) {
                Ok(regex) => {
                    self.pattern = Some(Pattern {
                        text: text.clone(),
                        regex,
                    })
                }
                Err(_) => return false,
            },
            ("enum", Value::Array(allowed)) => self.allowed.clone_from(allowed),
            ("format", Value::String(name)) => match format_of(name) {
                Some(format) => self.format = format,
                None => return false,
            },
            ("x-kubernetes-list-type", Value::String(name)) => {
                match (name.as_str(), &self.list_type) {
                    ("atomic", _) => {}
                    ("set", _) => self.list_type = ListType::Set,
                    // The keys are set by another keyword, before or after this one.
                    ("map", ListType::Map(_)) => {}
                    ("map", _) => self.list_type = ListType::Map(Vec::new()),
                    _ => return false,
                }
            }
            ("x-kubernetes-list-map-keys", Value::Array(_)) => {
                self.list_type = ListType::Map(texts(Some(value)).map(str::to_owned).collect());
            }
            _ => return false,
        }
        true
    }

    /// Rejects schemas that a real server would reject or read differently.
    fn check(&self, has_map_keys: bool, path: &str) -> Result<(), Unsupported> {
        let wrong = |what: &str| {
            Err(Unsupported::new(format!(
                "{what} in the schema at {path:?}"
            )))
        };
        if self.list_type == ListType::Map(Vec::new())
            || has_map_keys != matches!(self.list_type, ListType::Map(_))
        {
            return wrong("a list of type map without keys, or keys without that type");
        }
        if self.kind == Type::Any && !self.preserve_unknown {
            return wrong("a missing type");
        }
        if !self.choices.is_empty() && self.kind != Type::Object {
            return wrong("a choice of fields in a non-object");
        }
        if self.additional.is_some() && !self.properties.is_empty() {
            return wrong("properties beside additionalProperties");
        }
        if (self.minimum, self.maximum) != (Bound::default(), Bound::default())
            && !matches!(self.kind, Type::Integer | Type::Number)
        {
            return wrong("bounds of a non-number");
        }
        Ok(())
    }
}

/// Returns the required fields, if the schema contains nothing else than these and
/// properties without rules.
fn alternative(schema: &Value) -> Option<Vec<String>> {
    let says_nothing = |properties: &Value| {
        properties
            .as_object()
            .is_some_and(|all| all.values().all(|one| *one == json!({})))
    };
    let understood = |(keyword, value): (&String, &Value)| {
        keyword == "required" || (keyword == "properties" && says_nothing(value))
    };
    let required = schema.get("required")?;
    schema
        .as_object()?
        .iter()
        .all(understood)
        .then(|| texts(Some(required)).map(str::to_owned).collect())
}

fn type_of(name: &str) -> Option<Type> {
    Some(match name {
        "object" => Type::Object,
        "array" => Type::Array,
        "string" => Type::Text,
        "integer" => Type::Integer,
        "number" => Type::Number,
        "boolean" => Type::Truth,
        _ => return None,
    })
}

fn format_of(name: &str) -> Option<Format> {
    Some(match name {
        "int32" => Format::Int32,
        "int64" => Format::Int64,
        "date-time" => Format::DateTime,
        "cidr" => Format::Cidr,
        // Unknown to real servers, too.
        "idn-hostname" => Format::None,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in [
            json!({ "type": "object", "not": {} }),
            json!({ "type": "string", "format": "ipv4" }),
            json!({ "type": "string", "pattern": "(?<!a)b" }),
            json!({ "type": "object", "anyOf": [{ "required": ["a"], "properties": { "a": { "minLength": 1 } } }] }),
            json!({ "type": "object", "oneOf": [{ "required": ["a"], "not": {} }] }),
            json!({ "type": "object", "allOf": [] }),
            json!({ "type": "object", "x-kubernetes-validations": [{ "rule": "self.a == 1" }] }),
            json!({ "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "map" }),
            json!({ "description": "no type" }),
        ] {
            assert!(Schema::parse(&wrong, "").is_err(), "{wrong}");
        }
    }
}
