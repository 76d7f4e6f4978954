//! API reference pages generated from the CRDs: docs/api-kilo.md and
//! docs/api-cilium.md.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

pub(crate) const KILO_FILE: &str = "docs/api-kilo.md";
pub(crate) const CILIUM_FILE: &str = "docs/api-cilium.md";

const HEADER: &str = "<!-- Generated from crates/mw-api by `make generate`. Do not edit. -->\n\n";

/// Renders the page of some CRDs.
pub(crate) fn page(title: &str, crds: &[CustomResourceDefinition]) -> String {
    let kinds: Vec<String> = crds.iter().map(kind).collect();
    format!("{HEADER}# {title}\n\n{}", kinds.join("\n"))
}

fn kind(crd: &CustomResourceDefinition) -> String {
    let names = &crd.spec.names;
    let mut text = format!("## {}\n\n", names.kind);
    for version in &crd.spec.versions {
        let Some(schema) = version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref())
        else {
            continue;
        };
        if let Some(description) = &schema.description {
            text.push_str(&format!("{description}\n\n"));
        }
        text.push_str(&format!(
            "`{}/{}`, plural `{}`",
            crd.spec.group, version.name, names.plural
        ));
        for short in names.short_names.iter().flatten() {
            text.push_str(&format!(", short `{short}`"));
        }
        text.push_str(&format!(", {}.\n\n", crd.spec.scope.to_lowercase()));
        for part in ["spec", "status"] {
            let Some(schema) = schema
                .properties
                .as_ref()
                .and_then(|fields| fields.get(part))
            else {
                continue;
            };
            let mut rows = Vec::new();
            fields(part, schema, &mut rows);
            text.push_str(&format!(
                "| {part} | type | |\n|---|---|---|\n{}\n",
                rows.concat()
            ));
            let rules = rules(part, schema);
            if !rules.is_empty() {
                text.push_str(&format!(
                    "Validation rules of the {part}:\n\n{}\n",
                    rules.concat()
                ));
            }
        }
    }
    text
}

/// Renders a row for each field, parents first.
fn fields(path: &str, schema: &JSONSchemaProps, rows: &mut Vec<String>) {
    for (name, field) in schema.properties.iter().flatten() {
        let needed = schema
            .required
            .iter()
            .flatten()
            .any(|required| required == name);
        let path = format!("{path}.{name}");
        rows.push(row(&path, field, needed));
        below(&path, field, rows);
    }
}

fn below(path: &str, schema: &JSONSchemaProps, rows: &mut Vec<String>) {
    fields(path, schema, rows);
    if let Some(items) = items(schema) {
        below(&format!("{path}[]"), items, rows);
    }
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items),
        _ => None,
    }
}

fn row(path: &str, field: &JSONSchemaProps, needed: bool) -> String {
    let (_, short) = path.split_once('.').unwrap_or(("", path));
    let mut notes = Vec::new();
    if needed {
        notes.push("Required.".to_owned());
    }
    notes.extend(
        field
            .description
            .as_ref()
            .map(|text| sentence(&text.replace("\n\n", " "))),
    );
    notes.extend(
        field
            .default
            .as_ref()
            .map(|value| format!("Default `{}`.", value.0)),
    );
    notes.extend(choices(field));
    notes.extend(bounds(field));
    format!(
        "| `{short}` | {} | {} |\n",
        type_of(field),
        notes.join(" ").replace('|', "\\|")
    )
}

fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', ':', '?']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

fn type_of(field: &JSONSchemaProps) -> String {
    if let Some(items) = items(field) {
        return format!("list of {}", type_of(items));
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &field.additional_properties {
        return format!("map of {}", type_of(values));
    }
    let name = field.type_.as_deref().unwrap_or("any");
    match field.format.as_deref() {
        Some("date-time") => "time".to_owned(),
        _ => name.to_owned(),
    }
}

fn choices(field: &JSONSchemaProps) -> Option<String> {
    let list: Vec<String> = field
        .enum_
        .iter()
        .flatten()
        .map(|value| format!("`{}`", value.0.as_str().unwrap_or_default()))
        .collect();
    (!list.is_empty()).then(|| format!("One of {}.", list.join(", ")))
}

/// Renders the limits of value, length and number of entries.
fn bounds(field: &JSONSchemaProps) -> Option<String> {
    let number = |value: Option<f64>| value.map(|value| format!("{value:.0}"));
    let count = |value: Option<i64>| value.map(|value| value.to_string());
    let ranges = [
        (number(field.minimum), number(field.maximum), ""),
        (
            count(field.min_length),
            count(field.max_length),
            " characters",
        ),
        (count(field.min_items), count(field.max_items), " entries"),
    ];
    let range = |(least, most, of): (Option<String>, Option<String>, &str)| match (least, most) {
        (None, None) => None,
        (Some(least), None) => Some(format!("At least {least}{of}.")),
        (None, Some(most)) => Some(format!("At most {most}{of}.")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}{of}.")),
    };
    let all: Vec<String> = ranges.into_iter().filter_map(range).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Renders the CEL validation rules.
fn rules(path: &str, schema: &JSONSchemaProps) -> Vec<String> {
    let own = schema.x_kubernetes_validations.iter().flatten();
    let mut list: Vec<String> = own
        .map(|rule| {
            format!(
                "- `{path}`: {}\n",
                rule.message.as_deref().unwrap_or(rule.rule.as_str())
            )
        })
        .collect();
    for (name, field) in schema.properties.iter().flatten() {
        list.extend(rules(&format!("{path}.{name}"), field));
    }
    list.extend(
        items(schema)
            .map(|items| rules(&format!("{path}[]"), items))
            .into_iter()
            .flatten(),
    );
    list
}
