//! Pruning of unknown fields.

use serde_json::Value;

use super::{Schema, under};

impl Schema {
    /// Removes undeclared fields and adds their paths to `removed`.
    pub(crate) fn prune(&self, value: &mut Value, path: &str, removed: &mut Vec<String>) {
        match value {
            Value::Object(fields) if self.additional.is_some() => {
                if let Some(schema) = &self.additional {
                    fields
                        .iter_mut()
                        .for_each(|(name, field)| schema.prune(field, &under(path, name), removed));
                }
            }
            Value::Object(fields) => {
                if !self.preserve_unknown {
                    fields.retain(|name, _| {
                        let known = self.properties.contains_key(name);
                        if !known {
                            removed.push(under(path, name));
                        }
                        known
                    });
                }
                for (name, field) in fields.iter_mut() {
                    if let Some(schema) = self.properties.get(name) {
                        schema.prune(field, &under(path, name), removed);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().enumerate().for_each(|(index, item)| {
                        schema.prune(item, &format!("{path}[{index}]"), removed)
                    });
                }
            }
            _ => {}
        }
    }
}
