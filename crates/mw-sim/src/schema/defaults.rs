//! Fills in what a definition gives a default.

use serde_json::Value;

use super::Schema;

impl Schema {
    /// A null where none is allowed gives way to the default too.
    pub(crate) fn fill(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, schema) in &self.properties {
                    match (&schema.default, fields.get(name)) {
                        (Some(default), None) => {
                            fields.insert(name.clone(), default.clone());
                        }
                        (Some(default), Some(Value::Null)) if !schema.nullable => {
                            fields.insert(name.clone(), default.clone());
                        }
                        _ => {}
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
}
