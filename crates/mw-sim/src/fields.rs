//! Sets of fields, the basis of managedFields: the fields of a value, the difference
//! between two values, merging of values, and removal of such sets from them. The
//! schema determines how maps and lists are split into fields.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::json::map_mut;
use crate::schema::{ListType, Schema, Type};

/// Steps from the root, each as in `fieldsV1`: `f:NAME` in a map, `k:{KEYS}` or
/// `v:VALUE` in a list.
type Path = Vec<String>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fields(BTreeSet<Path>);

impl Fields {
    /// Returns all fields of an object.
    pub(crate) fn of(schema: &Schema, object: &Value) -> Fields {
        let mut fields = Fields::default();
        fields.collect(schema, &mut Vec::new(), object);
        fields
    }

    /// Parses `fieldsV1`.
    pub(crate) fn read(written: &Value) -> Fields {
        let mut fields = Fields::default();
        fields.read_below(&mut Vec::new(), written);
        fields
    }

    /// Returns the set as `fieldsV1`. A dot marks a field that has others below it.
    pub(crate) fn written(&self) -> Value {
        let mut root = json!({});
        for path in &self.0 {
            let mut at = &mut root;
            for step in path {
                at = map_mut(at).entry(step.clone()).or_insert_with(|| json!({}));
            }
            map_mut(at).insert(".".to_owned(), json!({}));
        }
        drop_lone_dots(&mut root);
        root
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn or(&self, other: &Fields) -> Fields {
        Fields(self.0.union(&other.0).cloned().collect())
    }

    pub(crate) fn and(&self, other: &Fields) -> Fields {
        Fields(self.0.intersection(&other.0).cloned().collect())
    }

    pub(crate) fn without(&self, other: &Fields) -> Fields {
        Fields(self.0.difference(&other.0).cloned().collect())
    }

    /// Returns the set without a root field and everything below it.
    pub(crate) fn without_all_of(&self, name: &str) -> Fields {
        let step = format!("f:{name}");
        Fields(
            self.0
                .iter()
                .filter(|path| path.first() != Some(&step))
                .cloned()
                .collect(),
        )
    }

    /// Returns the set with those parents of its fields that the schema declares as
    /// properties. Entries of maps and lists are not added: they are in the set
    /// themselves.
    pub(crate) fn with_named(&self, schema: &Schema) -> Fields {
        let mut all = self.0.clone();
        for path in &self.0 {
            let mut at = schema;
            for (end, step) in (1..path.len()).zip(path) {
                if at
                    .properties
                    .contains_key(step.strip_prefix("f:").unwrap_or_default())
                {
                    all.extend(path.get(..end).map(<[String]>::to_vec));
                }
                at = below(at, step);
            }
        }
        Fields(all)
    }

    /// Returns the fields without others below them, in readable form. Within a map or
    /// list, leaves come first.
    pub(crate) fn leaves(&self) -> Vec<String> {
        let mut leaves: Vec<&Path> = self.0.iter().filter(|path| !self.has_below(path)).collect();
        leaves.sort_by_key(|path| {
            path.iter()
                .enumerate()
                .map(|(at, step)| (at + 1 < path.len(), step.clone()))
                .collect::<Vec<_>>()
        });
        leaves
            .iter()
            .map(|path| path.iter().map(|step| shown(step)).collect())
            .collect()
    }

    /// Reports whether the set contains a field below a path.
    fn has_below(&self, path: &Path) -> bool {
        let after = (std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded);
        self.0
            .range::<Path, _>(after)
            .next()
            .is_some_and(|next| next.starts_with(path))
    }

    fn read_below(&mut self, path: &mut Path, written: &Value) {
        for (step, lower) in written.as_object().into_iter().flatten() {
            if step == "." {
                self.0.insert(path.clone());
                continue;
            }
            path.push(step.clone());
            if lower.as_object().is_none_or(Map::is_empty) {
                self.0.insert(path.clone());
            }
            self.read_below(path, lower);
            path.pop();
        }
    }

    fn collect(&mut self, schema: &Schema, path: &mut Path, value: &Value) {
        match form(schema, Some(value), None) {
            Form::Leaf => _ = self.0.insert(path.clone()),
            Form::Map => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    path.push(format!("f:{name}"));
                    self.collect(child(schema, name), path, field);
                    let is_bare = field.is_null() || field.as_object().is_some_and(Map::is_empty);
                    if is_bare || !schema.properties.contains_key(name) {
                        self.0.insert(path.clone());
                    }
                    path.pop();
                }
            }
            Form::List => {
                for (step, items) in entries(schema, Some(value)) {
                    path.push(step);
                    if let [item] = items.as_slice() {
                        self.collect(item_schema(schema), path, item);
                    }
                    self.0.insert(path.clone());
                    path.pop();
                }
            }
        }
    }
}

fn drop_lone_dots(written: &mut Value) {
    let fields = map_mut(written);
    if fields.len() == 1 {
        fields.remove(".");
    }
    fields
        .iter_mut()
        .filter(|(step, _)| *step != ".")
        .for_each(|(_, lower)| drop_lone_dots(lower));
}

/// Formats a step as `.spec`, `[port=80,protocol="TCP"]` or `[="x"]`.
pub(crate) fn shown(step: &str) -> String {
    match step.split_at_checked(2) {
        Some(("k:", keys)) => {
            let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            format!("[{}]", keys.join(","))
        }
        Some(("v:", value)) => format!("[={value}]"),
        Some((_, name)) => format!(".{name}"),
        None => String::new(),
    }
}

/// Form of a value, which determines its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A single field, regardless of its content.
    Leaf,
    Map,
    List,
}

fn form(schema: &Schema, one: Option<&Value>, other: Option<&Value>) -> Form {
    match schema.kind {
        Type::Object if !schema.is_atomic => Form::Map,
        Type::Array if schema.list_type != ListType::Atomic => Form::List,
        Type::Any
            if !schema.is_atomic && [one, other].into_iter().flatten().any(Value::is_object) =>
        {
            Form::Map
        }
        _ => Form::Leaf,
    }
}

fn child<'a>(schema: &'a Schema, name: &str) -> &'a Schema {
    schema
        .properties
        .get(name)
        .or(schema.additional.as_deref())
        .unwrap_or_else(|| unknown())
}

fn item_schema(schema: &Schema) -> &Schema {
    schema.items.as_deref().unwrap_or_else(|| unknown())
}

fn below<'a>(schema: &'a Schema, step: &str) -> &'a Schema {
    step.strip_prefix("f:")
        .map_or_else(|| item_schema(schema), |name| child(schema, name))
}

/// Returns the schema of undeclared content, whose form is derived from the value.
fn unknown() -> &'static Schema {
    static UNKNOWN: OnceLock<Schema> = OnceLock::new();
    UNKNOWN.get_or_init(crate::schema::build::any)
}

/// Returns the items of a list by key, in order. More than one item per key if the list
/// violates its type.
fn entries<'a>(schema: &Schema, list: Option<&'a Value>) -> Vec<(String, Vec<&'a Value>)> {
    let mut found: Vec<(String, Vec<&Value>)> = Vec::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        let step = step_to(schema, item);
        match found.iter_mut().find(|(known, _)| *known == step) {
            Some((_, items)) => items.push(item),
            None => found.push((step, vec![item])),
        }
    }
    found
}

/// Returns the step to an item of a list, which distinguishes it from the others.
pub(crate) fn step_to(schema: &Schema, item: &Value) -> String {
    let ListType::Map(keys) = &schema.list_type else {
        return format!("v:{item}");
    };
    let of_item = |key: &String| {
        item.get(key)
            .or_else(|| child(item_schema(schema), key).default.as_ref())
    };
    let keys: Map<String, Value> = keys
        .iter()
        .filter_map(|key| Some((key.clone(), of_item(key)?.clone())))
        .collect();
    format!("k:{}", Value::Object(keys))
}

/// Fields that were added, changed or removed between two objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    pub removed: Fields,
    pub modified: Fields,
    pub added: Fields,
}

impl Change {
    pub(crate) fn between(schema: &Schema, old: &Value, new: &Value) -> Change {
        let mut change = Change::default();
        change.compare(schema, &mut Vec::new(), Some(old), Some(new));
        change
    }

    fn compare(
        &mut self,
        schema: &Schema,
        path: &mut Path,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        if old == new {
            return;
        }
        match form(schema, old, new) {
            Form::Map if !(is_empty(old) && is_empty(new)) => {
                let fields = |value: Option<&Value>| {
                    value
                        .and_then(Value::as_object)
                        .cloned()
                        .unwrap_or_default()
                };
                let (old_fields, new_fields) = (fields(old), fields(new));
                let names: BTreeSet<&String> = old_fields.keys().chain(new_fields.keys()).collect();
                for name in names {
                    path.push(format!("f:{name}"));
                    self.compare(
                        child(schema, name),
                        path,
                        old_fields.get(name),
                        new_fields.get(name),
                    );
                    path.pop();
                }
                // A map was replaced by another type, or the other way round.
                if let (Some(one), Some(two)) = (old, new)
                    && one.is_object() != two.is_object()
                {
                    self.modified.0.insert(path.clone());
                }
            }
            Form::List if !(is_empty(old) && is_empty(new)) => {
                self.compare_entries(schema, path, old, new)
            }
            _ if old.is_some() && new.is_some() => _ = self.modified.0.insert(path.clone()),
            _ => {}
        }
        if old.is_none() {
            self.added.0.insert(path.clone());
        } else if new.is_none() {
            self.removed.0.insert(path.clone());
        }
    }

    fn compare_entries(
        &mut self,
        schema: &Schema,
        path: &mut Path,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let (old, new) = (entries(schema, old), entries(schema, new));
        let of = |all: &[(String, Vec<&Value>)], step: &str| -> Vec<Value> {
            all.iter()
                .find(|(known, _)| known == step)
                .map(|(_, items)| items.iter().map(|item| (*item).clone()).collect())
                .unwrap_or_default()
        };
        let steps: BTreeSet<&String> = old.iter().chain(&new).map(|(step, _)| step).collect();
        for step in steps {
            let (old, new) = (of(&old, step), of(&new, step));
            path.push(step.clone());
            // Items with the same key count as one field.
            match (old.as_slice(), new.as_slice()) {
                ([] | [_], [] | [_]) => {
                    self.compare(item_schema(schema), path, old.first(), new.first())
                }
                ([_, _, ..], [_, _, ..]) if old != new => _ = self.modified.0.insert(path.clone()),
                ([_, _, ..], [_, _, ..]) => {}
                ([_, _, ..], _) => {
                    self.compare(item_schema(schema), path, None, new.first());
                    self.removed.0.insert(path.clone());
                }
                (_, _) => {
                    self.compare(item_schema(schema), path, old.first(), None);
                    self.added.0.insert(path.clone());
                }
            }
            path.pop();
        }
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        _ => true,
    }
}

/// Merges an apply configuration into the live object.
pub(crate) fn merged(
    schema: &Schema,
    live: Option<&Value>,
    applied: Option<&Value>,
) -> Option<Value> {
    match form(schema, live, applied) {
        Form::Map if !(is_empty(live) && is_empty(applied)) => {
            let field = |value: Option<&Value>, name: &str| {
                value.and_then(|value| value.get(name)).cloned()
            };
            let names: BTreeSet<&String> = [live, applied]
                .into_iter()
                .flatten()
                .filter_map(Value::as_object)
                .flat_map(Map::keys)
                .collect();
            let merge = |name: &String| {
                let (live, applied) = (field(live, name), field(applied, name));
                Some((
                    name.clone(),
                    merged(child(schema, name), live.as_ref(), applied.as_ref())?,
                ))
            };
            Some(Value::Object(names.into_iter().filter_map(merge).collect()))
        }
        Form::List if !(is_empty(live) && is_empty(applied)) => {
            Some(merged_entries(schema, live, applied))
        }
        _ => applied.or(live).cloned(),
    }
}

/// Merges two lists. Entries that both have are in the order of the apply
/// configuration; all others keep their place between them.
fn merged_entries(schema: &Schema, live: Option<&Value>, applied: Option<&Value>) -> Value {
    let flat = |list: Option<&Value>| -> Vec<(String, Value)> {
        let items = list.and_then(Value::as_array).into_iter().flatten();
        items
            .map(|item| (step_to(schema, item), item.clone()))
            .collect()
    };
    let (live, applied) = (flat(live), flat(applied));
    let find = |all: &[(String, Value)], step: &str| {
        all.iter()
            .find(|(known, _)| known == step)
            .map(|(_, item)| item.clone())
    };
    let merge = |step: &str| {
        merged(
            item_schema(schema),
            find(&live, step).as_ref(),
            find(&applied, step).as_ref(),
        )
    };
    let mut shared = applied
        .iter()
        .map(|(step, _)| step)
        .filter(|step| find(&live, step).is_some())
        .peekable();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let mut result = Vec::new();
    let (mut live_rest, mut applied_rest) = (live.iter().peekable(), applied.iter().peekable());
    loop {
        if let (Some((here, _)), Some((wanted, _))) = (live_rest.peek(), applied_rest.peek()) {
            if here == wanted {
                done.insert(here);
                result.extend(merge(here));
                _ = (live_rest.next(), applied_rest.next(), shared.next());
                continue;
            }
            if find(&applied, here).is_some() && shared.peek().is_some_and(|next| *next != here) {
                live_rest.next();
                continue;
            }
        }
        if let Some((here, item)) = live_rest.peek() {
            if find(&applied, here).is_none() {
                result.push(item.clone());
                live_rest.next();
                continue;
            }
            if done.contains(here.as_str()) {
                live_rest.next();
            }
        }
        match applied_rest.next() {
            Some((wanted, _)) => {
                done.insert(wanted);
                result.extend(merge(wanted));
                shared.next_if(|next| *next == wanted);
            }
            None if live_rest.peek().is_none() => return Value::Array(result),
            None => {}
        }
    }
}

/// Returns an object without these fields. A map or list that becomes empty is replaced
/// by null.
pub(crate) fn cut(schema: &Schema, object: &Value, fields: &Fields) -> Value {
    cut_below(schema, &mut Vec::new(), object, fields)
}

fn cut_below(schema: &Schema, path: &mut Path, value: &Value, fields: &Fields) -> Value {
    let mut keep = |step: String, schema: &Schema, value: &Value| {
        path.push(step);
        let kept = match fields.0.contains(path) {
            true => None,
            false if fields.has_below(path) => Some(cut_below(schema, path, value, fields)),
            false => Some(value.clone()),
        };
        path.pop();
        kept
    };
    match form(schema, Some(value), None) {
        Form::Leaf if value.is_object() || value.is_array() => Value::Null,
        Form::Leaf => value.clone(),
        Form::Map => {
            let of = |(name, field): (&String, &Value)| {
                Some((
                    name.clone(),
                    keep(format!("f:{name}"), child(schema, name), field)?,
                ))
            };
            let kept: Map<String, Value> = value
                .as_object()
                .into_iter()
                .flatten()
                .filter_map(of)
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                kept.into()
            }
        }
        Form::List => {
            let of = |item: &Value| keep(step_to(schema, item), item_schema(schema), item);
            let kept: Vec<Value> = value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(of)
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                kept.into()
            }
        }
    }
}
