//! CustomResourceDefinitions: parsing, and the fields that a server adds.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::json::{at, child_mut, map_mut, meta_text, texts};
use crate::kind::Kind;
use crate::schema::Schema;

/// A feature of a real server that the simulator lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the simulator does not support {what}")]
pub struct Unsupported {
    what: String,
}

impl Unsupported {
    pub(crate) fn new(what: impl Into<String>) -> Unsupported {
        Unsupported { what: what.into() }
    }

    pub(crate) fn what(&self) -> &str {
        &self.what
    }
}

/// A parsed definition, which can be installed in any number of clusters.
#[derive(Debug, Clone)]
pub struct Definition {
    pub(crate) kind: Arc<Kind>,
    pub(crate) object: Arc<Value>,
}

impl Definition {
    pub fn parse(crd: &Value) -> Result<Definition, Unsupported> {
        let spec = at(crd, &["spec"]);
        check_keys(
            spec,
            &[
                "group",
                "names",
                "scope",
                "versions",
                "preserveUnknownFields",
            ],
            "spec",
        )?;
        if *at(spec, &["preserveUnknownFields"]) == true {
            return Err(Unsupported::new("preserveUnknownFields"));
        }
        let [version] = at(spec, &["versions"])
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
        else {
            return Err(Unsupported::new(
                "a CustomResourceDefinition without exactly one version",
            ));
        };
        if *at(version, &["served"]) != true || *at(version, &["storage"]) != true {
            return Err(Unsupported::new(
                "a version that is not served or not stored",
            ));
        }
        let known = [
            "name",
            "served",
            "storage",
            "schema",
            "subresources",
            "additionalPrinterColumns",
        ];
        check_keys(version, &known, "spec.versions[0]")?;
        check_keys(
            at(version, &["subresources"]),
            &["status"],
            "spec.versions[0].subresources",
        )?;
        let kind = Arc::new(kind(spec, version)?);
        if meta_text(crd, "name") != kind.qualified() {
            return Err(Unsupported::new(
                "a definition whose name is not PLURAL.GROUP",
            ));
        }
        Ok(Definition {
            object: Arc::new(completed(crd, &kind)),
            kind,
        })
    }
}

fn check_keys(value: &Value, known: &[&str], path: &str) -> Result<(), Unsupported> {
    let mut keys = value
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys);
    match keys.find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Unsupported::new(format!(
            "{path}.{key} of a CustomResourceDefinition"
        ))),
        None => Ok(()),
    }
}

fn kind(spec: &Value, version: &Value) -> Result<Kind, Unsupported> {
    let names = at(spec, &["names"]);
    let text = |value: &Value, what: &str| match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(Unsupported::new(format!(
            "a CustomResourceDefinition without {what}"
        ))),
    };
    let kind = text(at(names, &["kind"]), "spec.names.kind")?;
    let namespaced = match at(spec, &["scope"]).as_str() {
        Some("Namespaced") => true,
        Some("Cluster") => false,
        _ => {
            return Err(Unsupported::new(
                "a CustomResourceDefinition without spec.scope",
            ));
        }
    };
    let schema = at(version, &["schema"])
        .get("openAPIV3Schema")
        .ok_or_else(|| Unsupported::new("a version without schema"))?;
    let mut schema = Schema::parse(schema, "")?;
    // The server handles these itself, regardless of the schema.
    for own in ["apiVersion", "kind", "metadata"] {
        schema
            .properties
            .insert(own.to_owned(), crate::schema::build::any());
    }
    Ok(Kind {
        group: text(at(spec, &["group"]), "spec.group")?,
        version: text(at(version, &["name"]), "a version's name")?,
        plural: text(at(names, &["plural"]), "spec.names.plural")?,
        singular: at(names, &["singular"])
            .as_str()
            .map_or_else(|| kind.to_lowercase(), str::to_owned),
        list_kind: at(names, &["listKind"])
            .as_str()
            .map_or_else(|| format!("{kind}List"), str::to_owned),
        short_names: texts(names.get("shortNames")).map(str::to_owned).collect(),
        categories: texts(names.get("categories")).map(str::to_owned).collect(),
        kind,
        namespaced,
        status_subresource: at(version, &["subresources"]).get("status").is_some(),
        fields: schema.with_metadata(),
        schema,
        builtin: None,
    })
}

/// Returns the definition with default names and the status of a served one, without
/// its conditions.
fn completed(crd: &Value, kind: &Kind) -> Value {
    let mut crd = crd.clone();
    let root = map_mut(&mut crd);
    root.insert("apiVersion".to_owned(), "apiextensions.k8s.io/v1".into());
    root.insert("kind".to_owned(), "CustomResourceDefinition".into());
    let spec = child_mut(root, "spec");
    spec.remove("preserveUnknownFields");
    spec.entry("conversion")
        .or_insert_with(|| json!({ "strategy": "None" }));
    let names = child_mut(spec, "names");
    names.insert("singular".to_owned(), kind.singular.clone().into());
    names.insert("listKind".to_owned(), kind.list_kind.clone().into());
    let accepted = names.clone();
    root.insert(
        "status".to_owned(),
        json!({ "acceptedNames": accepted, "storedVersions": [kind.version], "conditions": [] }),
    );
    crd
}

/// Returns the conditions of a served definition.
pub(crate) fn conditions(since: &str) -> Value {
    json!([
        { "type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found", "lastTransitionTime": since },
        { "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
          "message": "the initial names have been accepted", "lastTransitionTime": since },
    ])
}
