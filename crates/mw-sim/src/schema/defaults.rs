//! Defaults of custom resources.

use serde_json::Value;

use super::{Schema, Type};

impl Schema {
    /// Fills in defaults. A null that is not allowed is replaced by the default, or
    /// removed.
    pub(crate) fn fill(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, field| !field.is_null() || self.allows_null(name));
                for (name, schema) in &self.properties {
                    if let Some(default) = schema
                        .default
                        .as_ref()
                        .filter(|_| !fields.contains_key(name))
                    {
                        fields.insert(name.clone(), default.clone());
                    }
                    if let Some(field) = fields.get_mut(name) {
                        schema.fill(field);
                    }
                }
                if let Some(schema) = &self.additional {
                    fields.values_mut().for_each(|field| schema.fill(field));
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.fill(item));
                }
            }
            _ => {}
        }
    }

    fn allows_null(&self, name: &str) -> bool {
        let schema = self.properties.get(name).or(self.additional.as_deref());
        schema.is_none_or(|schema| schema.nullable || schema.kind == Type::Any)
    }
}
