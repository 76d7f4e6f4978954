//! Decoding of built-in kinds. A real server decodes them into typed fields: a wrong
//! type fails the whole request, and empty fields are omitted on encoding.

use base64ct::{Base64, Encoding};
use serde_json::Value;

use super::{Format, Schema, Type, under};
use crate::json::type_name;
use crate::wall::is_rfc3339;

impl Schema {
    /// Normalizes a value, or returns the decoding error.
    pub(crate) fn read_typed(&self, value: &mut Value, path: &str) -> Result<(), String> {
        if value.is_null() || self.kind == Type::Any {
            return Ok(());
        }
        if self.format == Format::Base64 {
            read_bytes(value);
        }
        let fits = match self.kind {
            Type::Object => value.is_object(),
            Type::Array => value.is_array(),
            Type::Text => value.is_string(),
            Type::Integer => value.is_i64(),
            Type::Number => value.is_number(),
            Type::Truth => value.is_boolean(),
            Type::IntOrText => value.is_number() || value.is_string(),
            Type::Any => true,
        };
        if !fits {
            return Err(format!(
                "json: cannot unmarshal {} into field {path}",
                type_name(value)
            ));
        }
        self.check_format(value, path)?;
        match value {
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                        schema.read_typed(field, &under(path, name))?;
                    }
                }
                self.drop_empty(fields);
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for (index, item) in items.iter_mut().enumerate() {
                        schema.read_typed(item, &format!("{path}[{index}]"))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_format(&self, value: &Value, path: &str) -> Result<(), String> {
        match (self.format, value) {
            (Format::DateTime, Value::String(text)) if !is_rfc3339(text) => {
                Err(format!("parsing time {text:?} in {path}"))
            }
            (Format::MicroTime, Value::String(text)) if !is_rfc3339(text) || !has_micros(text) => {
                Err(format!(
                    "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\" in {path}"
                ))
            }
            (Format::Int32, Value::Number(number))
                if number
                    .as_i64()
                    .is_none_or(|number| i32::try_from(number).is_err()) =>
            {
                Err(format!(
                    "json: cannot unmarshal number {number} into field {path} of type int32"
                ))
            }
            (Format::Base64, Value::String(text)) if Base64::decode_vec(text).is_err() => {
                Err(format!("illegal base64 data in {path}"))
            }
            _ => Ok(()),
        }
    }

    /// Removes empty fields, which are the same as missing ones, unless the kind always
    /// writes them. Entries of a map are kept.
    fn drop_empty(&self, fields: &mut serde_json::Map<String, Value>) {
        if self.additional.is_some() {
            for field in fields.values_mut().filter(|field| field.is_null()) {
                *field = Value::String(String::new());
            }
            return;
        }
        fields.retain(|name, field| {
            let kept = self.properties.get(name).is_some_and(|schema| schema.keep);
            !field.is_null() && (kept || !is_empty(field))
        });
        // A list that is always written is null if it is empty.
        for (name, _) in self
            .properties
            .iter()
            .filter(|(_, schema)| schema.keep && schema.kind == Type::Array)
        {
            let list = fields.entry(name.clone()).or_insert(Value::Null);
            if is_empty(list) {
                *list = Value::Null;
            }
        }
    }
}

fn has_micros(text: &str) -> bool {
    text.split_once('.')
        .is_some_and(|(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count() == 6)
}

/// Converts bytes given as a list of numbers to base64.
fn read_bytes(value: &mut Value) {
    let Value::Array(items) = value else { return };
    let byte = |item: &Value| {
        if item.is_null() {
            Some(0)
        } else {
            item.as_u64().and_then(|number| u8::try_from(number).ok())
        }
    };
    if let Some(bytes) = items.iter().map(byte).collect::<Option<Vec<u8>>>() {
        *value = Base64::encode_string(&bytes).into();
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
