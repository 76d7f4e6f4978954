//! Validation of custom resources, with the messages of a real server.

use serde_json::{Map, Value, json};

use super::{Choice, Format, ListType, Schema, Type, number_of, under};
use crate::json::type_name;
use crate::refusal::FieldError;
use crate::wall::is_rfc3339;

/// Errors after which a real server does not evaluate CEL rules.
const BLOCKING: [&str; 5] = [
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
    "FieldValueNotSupported",
];

impl Schema {
    /// Adds all errors of an object to the existing ones.
    pub(crate) fn add_errors(&self, object: &Value, errors: &mut Vec<FieldError>) {
        self.validate(object, "", errors);
        self.validate_lists(object, "", errors);
        if !self.has_rules() {
            return;
        }
        if errors.iter().any(|error| BLOCKING.contains(&error.reason)) {
            let why = "some validation rules were not checked because the object was invalid; \
                       correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", &Value::Null, why));
        } else {
            self.validate_rules(object, "", errors);
        }
    }

    fn validate(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        if value.is_null() && self.nullable {
            return;
        }
        // Continues after a wrong type, like a real server.
        if !self.fits(value) {
            errors.push(mistyped(path, value, self.kind));
        }
        if !self.allowed.is_empty() && !self.allowed.contains(value) {
            errors.push(FieldError::unsupported(path, value, &self.allowed));
        }
        match value {
            Value::Object(fields) => self.validate_fields(fields, path, errors),
            Value::Array(items) => self.validate_items(items, path, errors),
            Value::String(text) => self.validate_text(value, text, path, errors),
            Value::Number(_) => self.validate_number(value, path, errors),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn fits(&self, value: &Value) -> bool {
        match self.kind {
            Type::Object => value.is_object(),
            Type::Array => value.is_array(),
            // Real servers accept a list where a time is expected.
            Type::Text => {
                value.is_string() || (self.format == Format::DateTime && value.is_array())
            }
            Type::Integer => value
                .as_f64()
                .is_some_and(|number| number.fract() == 0.0 && number.abs() <= i64::MAX as f64),
            Type::Number => value.is_number(),
            Type::Truth => value.is_boolean(),
            Type::IntOrText => value.is_i64() || value.is_u64() || value.is_string(),
            Type::Any => true,
        }
    }

    fn validate_fields(
        &self,
        fields: &Map<String, Value>,
        path: &str,
        errors: &mut Vec<FieldError>,
    ) {
        for name in self
            .required
            .iter()
            .filter(|name| !fields.contains_key(*name))
        {
            errors.push(FieldError::required(&under(path, name), ""));
        }
        if let Some(most) = self.max_properties.filter(|most| fields.len() > *most) {
            errors.push(too_many(path, fields.len(), most));
        }
        if let Some(least) = self.min_properties.filter(|least| fields.len() < *least) {
            let why = format!("{path} in body should have at least {least} properties");
            errors.push(FieldError::invalid(path, &json!(fields.len()), &why));
        }
        self.choices
            .iter()
            .for_each(|choice| choice.validate(fields, path, errors));
        for (name, field) in fields {
            if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                schema.validate(field, &under(path, name), errors);
            }
        }
    }

    fn validate_items(&self, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
        if let Some(least) = self.min_items.filter(|least| items.len() < *least) {
            let why = format!("{path} in body should have at least {least} items");
            errors.push(FieldError::invalid(path, &json!(items.len()), &why));
        }
        if let Some(most) = self.max_items.filter(|most| items.len() > *most) {
            errors.push(too_many(path, items.len(), most));
        }
        if let Some(schema) = &self.items {
            for (index, item) in items.iter().enumerate() {
                schema.validate(item, &format!("{path}[{index}]"), errors);
            }
        }
    }

    /// Reports only the first error of length and pattern.
    fn validate_text(&self, value: &Value, text: &str, path: &str, errors: &mut Vec<FieldError>) {
        let mut invalid = |why: String| {
            errors.push(FieldError::invalid(
                path,
                value,
                &format!("{path} in body {why}"),
            ))
        };
        let length = text.chars().count();
        if let Some(most) = self.max_length.filter(|most| length > *most) {
            errors.push(FieldError::too_long(path, most));
        } else if let Some(least) = self.min_length.filter(|least| length < *least) {
            invalid(format!("should be at least {least} chars long"));
        } else if let Some(pattern) = self
            .pattern
            .as_ref()
            .filter(|pattern| !pattern.regex.is_match(text))
        {
            invalid(format!("should match '{}'", pattern.text));
        }
        let wanted = match self.format {
            Format::DateTime if !is_rfc3339(text) => "date-time",
            Format::Cidr if !is_cidr(text) => "cidr",
            _ => return,
        };
        let message =
            format!("Invalid value: {value}: {path} in body must be of type {wanted}: {value}");
        errors.push(FieldError {
            field: path.to_owned(),
            reason: "FieldValueTypeInvalid",
            message,
        });
    }

    fn validate_number(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let Value::Number(number) = value else { return };
        let number = number_of(number);
        let mut invalid = |why: String| {
            errors.push(FieldError::invalid(
                path,
                value,
                &format!("{path} in body {why}"),
            ))
        };
        if let Some(least) = self.minimum.value {
            if self.minimum.exclusive && number <= least {
                invalid(format!("should be greater than {least}"));
            } else if number < least {
                invalid(format!("should be greater than or equal to {least}"));
            }
        }
        if let Some(most) = self.maximum.value {
            if self.maximum.exclusive && number >= most {
                invalid(format!("should be less than {most}"));
            } else if number > most {
                invalid(format!("should be less than or equal to {most}"));
            }
        }
    }

    /// Rejects duplicate entries in sets and maps.
    fn validate_lists(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                        schema.validate_lists(field, &under(path, name), errors);
                    }
                }
            }
            Value::Array(items) => {
                let mut seen: Vec<Value> = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let place = format!("{path}[{index}]");
                    if matches!(self.list_type, ListType::Map(_))
                        && !item.is_object()
                        && !item.is_null()
                    {
                        errors.push(FieldError::invalid(
                            &place,
                            item,
                            "must be an object for an array of list-type map",
                        ));
                        continue;
                    }
                    if let Some(identity) = self.list_type.identity(item) {
                        if seen.contains(&identity) {
                            errors.push(FieldError::duplicate(&place, &identity));
                        }
                        seen.push(identity);
                    }
                    if let Some(schema) = &self.items {
                        schema.validate_lists(item, &place, errors);
                    }
                }
            }
            _ => {}
        }
    }

    fn validate_rules(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        for rule in self
            .rules
            .iter()
            .filter(|rule| value.is_object() && !rule.holds(value))
        {
            let message = format!("Invalid value: \"object\": {}", rule.message);
            let path = if path.is_empty() { "<nil>" } else { path };
            errors.push(FieldError {
                field: path.to_owned(),
                reason: "FieldValueInvalid",
                message,
            });
        }
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                        schema.validate_rules(field, &under(path, name), errors);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter().enumerate().for_each(|(index, item)| {
                        schema.validate_rules(item, &format!("{path}[{index}]"), errors)
                    });
                }
            }
            _ => {}
        }
    }
}

impl Choice {
    /// If no alternative matches, also reports the first missing field.
    fn validate(&self, fields: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
        let is_missing = |name: &&String| !fields.contains_key(*name);
        let fitting = self
            .alternatives
            .iter()
            .filter(|names| !names.iter().any(|name| is_missing(&name)))
            .count();
        let why = match (self.only_one, fitting) {
            (_, 1) | (false, 2..) => return,
            (false, _) => format!("{path:?} must validate at least one schema (anyOf)"),
            (true, 0) => {
                format!("{path:?} must validate one and only one schema (oneOf). Found none valid")
            }
            (true, many) => format!(
                "{path:?} must validate one and only one schema (oneOf). Found {many} valid alternatives"
            ),
        };
        errors.push(FieldError::invalid("<nil>", &json!(""), &why));
        if fitting == 0 {
            let first = self.alternatives.iter().flatten().find(is_missing);
            errors.extend(first.map(|name| FieldError::required(&under(path, name), "")));
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let most = match address.parse() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|bits| bits <= most)
}

impl ListType {
    /// Returns the key that distinguishes an entry from the others.
    fn identity(&self, item: &Value) -> Option<Value> {
        match self {
            ListType::Atomic => None,
            ListType::Set => Some(item.clone()),
            ListType::Map(keys) => {
                let named = |key: &String| item.get(key).map(|value| (key.clone(), value.clone()));
                Some(Value::Object(keys.iter().filter_map(named).collect()))
            }
        }
    }
}

fn too_many(path: &str, count: usize, most: usize) -> FieldError {
    let plural = if most == 1 { "item" } else { "items" };
    let message = format!("Too many: {count}: must have at most {most} {plural}");
    FieldError {
        field: path.to_owned(),
        reason: "FieldValueTooMany",
        message,
    }
}

fn mistyped(path: &str, value: &Value, wanted: Type) -> FieldError {
    let wanted = wanted.shown();
    let found = type_name(value);
    let message =
        format!("Invalid value: {found:?}: {path} in body must be of type {wanted}: {found:?}");
    FieldError {
        field: path.to_owned(),
        reason: "FieldValueTypeInvalid",
        message,
    }
}
