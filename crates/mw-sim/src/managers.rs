//! `metadata.managedFields`: ownership of fields, and how writes and server-side apply
//! change it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::fields::{self, Change, Fields};
use crate::json::{map_mut, meta_mut};
use crate::kind::Kind;
use crate::refusal::Refusal;

/// Maximum number of separate entries for updates.
const MOST_WRITERS: usize = 10;

/// Name of the manager, subresource and time of a write.
#[derive(Debug, Clone)]
pub(crate) struct Writer<'a> {
    pub name: String,
    pub subresource: Option<&'a str>,
    pub now: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    name: String,
    operation: &'static str,
    /// Empty for apply, which has one entry for all versions.
    version: String,
    subresource: String,
}

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

#[derive(Debug, Clone, Default)]
struct Managed {
    fields: Fields,
    version: String,
    time: Option<String>,
}

/// All managers of an object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Managers(BTreeMap<Manager, Managed>);

impl Managers {
    /// Parses entries; `None` if one of them is invalid.
    pub(crate) fn read(kind: &Kind, entries: &Value) -> Option<Managers> {
        entries
            .as_array()?
            .iter()
            .map(|entry| read_entry(kind, entry))
            .collect::<Option<_>>()
            .map(Managers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the entries in the order of a real server.
    pub(crate) fn keep_in(self, object: &mut Value) {
        if self.0.is_empty() {
            meta_mut(object).remove("managedFields");
            return;
        }
        let mut entries: Vec<(Manager, Managed)> = self.0.into_iter().collect();
        entries.sort_by(|(one, first), (two, second)| {
            let order = |manager: &Manager, managed: &Managed| {
                (
                    manager.operation,
                    managed.time.clone(),
                    manager.name.clone(),
                )
            };
            order(one, first)
                .cmp(&order(two, second))
                .then_with(|| one.cmp(two))
        });
        let entries = entries
            .into_iter()
            .map(|(manager, managed)| written_entry(&manager, managed))
            .collect();
        meta_mut(object).insert("managedFields".to_owned(), entries);
    }

    /// Updates ownership after a write that changed `old` to `new`. For a new object,
    /// `old` is the empty object of its kind.
    pub(crate) fn update(&mut self, kind: &Kind, old: &Value, new: &Value, writer: &Writer<'_>) {
        let change = change(kind, old, new, writer);
        let taken = change.modified.or(&change.added);
        self.let_go(&taken, &change.removed);
        let own = taken.without(common());
        if own.is_empty() {
            return;
        }
        let manager = Manager::of(kind, writer, UPDATE);
        let managed = self.0.entry(manager).or_default();
        *managed = Managed {
            fields: own.or(&managed.fields),
            version: kind.api_version(),
            time: Some(writer.now.clone()),
        };
        self.forget_the_oldest();
    }

    /// Applies a configuration. Returns the new object, `None` if nothing changes, or
    /// the conflicting managers.
    pub(crate) fn apply(
        &mut self,
        kind: &Kind,
        live: &Value,
        applied: &Value,
        writer: &Writer<'_>,
        force: bool,
    ) -> Result<Option<Value>, Refusal> {
        if self.0.is_empty() {
            let before = Writer {
                name: "before-first-apply".to_owned(),
                ..writer.clone()
            };
            self.update(kind, &kind.empty(), live, &before);
        }
        let manager = Manager::of(kind, writer, APPLY);
        let last = self.0.remove(&manager).unwrap_or_default();
        let fields = without_reset(kind, writer, &Fields::of(&kind.fields, applied));
        let mut new = fields::merged(&kind.fields, Some(live), Some(applied)).unwrap_or_default();
        if !last.fields.is_empty() {
            new = self.pruned(kind, &new, &last.fields, &fields);
        }
        let change = change(kind, live, &new, writer);
        let taken = change.modified.or(&change.added);
        let conflicts: Vec<(&Manager, &Managed, Fields)> = self
            .0
            .iter()
            .map(|(other, managed)| (other, managed, managed.fields.and(&taken)))
            .filter(|(_, _, both)| !both.is_empty())
            .collect();
        if !force && !conflicts.is_empty() {
            return Err(conflict(&conflicts));
        }
        self.let_go(&taken, &change.removed);
        let is_changed = new != *live;
        let time = if is_changed {
            Some(writer.now.clone())
        } else {
            last.time
        };
        let own = fields.without(common());
        if !own.is_empty() {
            self.0.insert(
                manager,
                Managed {
                    fields: own,
                    version: kind.api_version(),
                    time,
                },
            );
        }
        Ok(is_changed.then_some(new))
    }

    /// Removes fields that this manager applied last time, does not apply now, and
    /// nobody else manages.
    fn pruned(&self, kind: &Kind, merged: &Value, last: &Fields, now: &Fields) -> Value {
        let schema = &kind.fields;
        let named = |value: &Value| Fields::of(schema, value).with_named(schema);
        let (last, whole) = (last.with_named(schema), named(merged));
        let owned = self
            .0
            .values()
            .fold(now.clone(), |all, managed| all.or(&managed.fields))
            .with_named(schema);
        let left = named(&fields::cut(schema, merged, &last));
        let left = named(&fields::cut(
            schema,
            merged,
            &whole.without(&left.or(&owned)),
        ));
        fields::cut(schema, merged, &whole.without(&left).and(&last))
    }

    /// Removes changed and removed fields from all managers.
    fn let_go(&mut self, taken: &Fields, removed: &Fields) {
        for managed in self.0.values_mut() {
            managed.fields = managed.fields.without(taken).without(removed);
        }
        self.0.retain(|_, managed| !managed.fields.is_empty());
    }

    /// Merges the oldest update entries into one.
    fn forget_the_oldest(&mut self) {
        let mut writers: Vec<Manager> = self
            .0
            .keys()
            .filter(|manager| manager.operation == UPDATE)
            .cloned()
            .collect();
        if writers.len() <= MOST_WRITERS {
            return;
        }
        writers.sort_by_key(|manager| self.0.get(manager).and_then(|managed| managed.time.clone()));
        let oldest = writers
            .drain(..=writers.len() - MOST_WRITERS)
            .collect::<Vec<_>>();
        let mut ancient = Managed::default();
        for manager in oldest {
            if let Some(managed) = self.0.remove(&manager) {
                ancient = Managed {
                    fields: ancient.fields.or(&managed.fields),
                    ..managed
                };
            }
        }
        let version = ancient.version.clone();
        let manager = Manager {
            name: "ancient-changes".to_owned(),
            operation: UPDATE,
            version,
            subresource: String::new(),
        };
        self.0.insert(manager, ancient);
    }
}

impl Manager {
    fn of(kind: &Kind, writer: &Writer<'_>, operation: &'static str) -> Manager {
        Manager {
            name: if writer.name.is_empty() {
                "unknown".to_owned()
            } else {
                writer.name.clone()
            },
            operation,
            version: if operation == APPLY {
                String::new()
            } else {
                kind.api_version()
            },
            subresource: writer.subresource.unwrap_or_default().to_owned(),
        }
    }

    /// Formats the manager as in conflict messages.
    fn shown(&self, managed: &Managed) -> String {
        let mut shown = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            shown += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == UPDATE {
            shown += &format!(" using {}", managed.version);
        }
        shown
    }
}

/// Returns the fields of every object that are not tracked.
fn common() -> &'static Fields {
    static COMMON: OnceLock<Fields> = OnceLock::new();
    COMMON.get_or_init(|| {
        let metadata = json!({
            ".": {}, "f:name": {}, "f:namespace": {}, "f:creationTimestamp": {}, "f:selfLink": {}, "f:uid": {}, "f:clusterName": {},
            "f:generation": {}, "f:managedFields": {}, "f:resourceVersion": {},
        });
        Fields::read(&json!({ "f:apiVersion": {}, "f:kind": {}, "f:metadata": metadata }))
    })
}

/// Removes fields that a write to this path, of the object or a subresource, does not
/// change.
fn without_reset(kind: &Kind, writer: &Writer<'_>, fields: &Fields) -> Fields {
    match writer.subresource {
        Some(_) => fields.without_all_of("spec"),
        None if kind.status_subresource => fields.without_all_of("status"),
        None => fields.clone(),
    }
}

fn change(kind: &Kind, old: &Value, new: &Value, writer: &Writer<'_>) -> Change {
    let Change {
        removed,
        modified,
        added,
    } = Change::between(&kind.fields, old, new);
    let of = |fields| without_reset(kind, writer, fields);
    Change {
        removed: of(&removed),
        modified: of(&modified),
        added: of(&added),
    }
}

fn read_entry(kind: &Kind, entry: &Value) -> Option<(Manager, Managed)> {
    let text = |field: &str| {
        entry
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let operation = [APPLY, UPDATE]
        .into_iter()
        .find(|known| *known == text("operation"))?;
    let version = text("apiVersion");
    if version != kind.api_version() || text("fieldsType") != "FieldsV1" {
        return None;
    }
    let fields = Fields::read(entry.get("fieldsV1").filter(|fields| fields.is_object())?);
    let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
    let manager = Manager {
        name: text("manager"),
        operation,
        version: if operation == APPLY {
            String::new()
        } else {
            version.clone()
        },
        subresource: text("subresource"),
    };
    Some((
        manager,
        Managed {
            fields,
            version,
            time,
        },
    ))
}

fn written_entry(manager: &Manager, managed: Managed) -> Value {
    let mut entry = json!({
        "manager": manager.name, "operation": manager.operation, "apiVersion": managed.version,
        "fieldsType": "FieldsV1", "fieldsV1": managed.fields.written(),
    });
    let fields = map_mut(&mut entry);
    if let Some(time) = managed.time {
        fields.insert("time".to_owned(), time.into());
    }
    if !manager.subresource.is_empty() {
        fields.insert("subresource".to_owned(), manager.subresource.clone().into());
    }
    entry
}

/// Reports whether two objects differ only in the times of their managers.
pub(crate) fn differ_in_times_only(one: &Value, two: &Value) -> bool {
    let timeless = |object: &Value| {
        let mut object = object.clone();
        let entries = meta_mut(&mut object)
            .get_mut("managedFields")
            .and_then(Value::as_array_mut);
        entries
            .into_iter()
            .flatten()
            .for_each(|entry| _ = map_mut(entry).remove("time"));
        object
    };
    timeless(one) == timeless(two)
}

fn conflict(conflicts: &[(&Manager, &Managed, Fields)]) -> Refusal {
    let mut causes = Vec::new();
    let mut groups = Vec::new();
    for (manager, managed, fields) in conflicts {
        let shown = manager.shown(managed);
        let paths = fields.leaves();
        let cause = |path: &String| json!({ "reason": "FieldManagerConflict", "message": format!("conflict with {shown}"), "field": path });
        causes.extend(paths.iter().map(cause));
        groups.push(format!(
            "conflicts with {shown}:\n{}",
            paths
                .iter()
                .map(|path| format!("- {path}"))
                .collect::<Vec<_>>()
                .join("\n")
        ));
    }
    let message = match causes.as_slice() {
        [one] => {
            let text = |field: &str| one.get(field).and_then(Value::as_str).unwrap_or_default();
            format!(
                "Apply failed with 1 conflict: {}: {}",
                text("message"),
                text("field")
            )
        }
        all => format!(
            "Apply failed with {} conflicts: {}",
            all.len(),
            groups.join("\n")
        ),
    };
    Refusal::new(409, "Conflict", message).with_causes(Value::Array(causes))
}
