//! The annotations that a GlobalService asks for, parsed from its spec alone.

use std::collections::BTreeMap;

use crate::cilium::object::ServiceSpec;
use crate::problem::{Problem, Reason};
use crate::text::quoted;

const GLOBAL: Pair = Pair {
    new: "service.cilium.io/global",
    old: "io.cilium/global-service",
};
const SHARED: Pair = Pair {
    new: "service.cilium.io/shared",
    old: "io.cilium/shared-service",
};
const AFFINITY: Pair = Pair {
    new: "service.cilium.io/affinity",
    old: "io.cilium/service-affinity",
};
const PREFIXES: [&str; 2] = ["service.cilium.io/", "io.cilium/"];

/// One annotation in Cilium's two spellings, which are kept equal.
struct Pair {
    new: &'static str,
    old: &'static str,
}

/// Selects Services of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chosen {
    Named(String),
    Labelled(BTreeMap<String, String>),
}

/// A valid GlobalService.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) namespace: String,
    pub(super) chosen: Chosen,
    pub(super) annotations: BTreeMap<String, String>,
}

/// Parses a spec; returns all its problems if it is invalid.
pub(super) fn read(spec: &ServiceSpec, more_prefixes: &[String]) -> Result<Export, Vec<Problem>> {
    let mut check = Check { wrong: Vec::new() };
    let namespace = spec.namespace.clone().filter(|text| !text.is_empty());
    if namespace.is_none() {
        check.refuse(
            "selector.namespace",
            "is required",
            "set it to the namespace of the Services",
        );
    }
    let chosen = check.chosen(spec);
    let annotations = check.annotations(spec, more_prefixes);
    match (namespace, chosen, check.wrong.is_empty()) {
        (Some(namespace), Some(chosen), true) => Ok(Export {
            namespace,
            chosen,
            annotations,
        }),
        _ => Err(check.wrong),
    }
}

struct Check {
    wrong: Vec<Problem>,
}

impl Check {
    fn refuse(&mut self, path: &str, what: impl AsRef<str>, hint: &str) {
        self.wrong
            .push(Problem::new(Reason::InvalidSpec, path, what, hint));
    }

    fn chosen(&mut self, spec: &ServiceSpec) -> Option<Chosen> {
        let name = spec.name.as_ref().filter(|name| !name.is_empty());
        match (name, &spec.labels) {
            (Some(name), None) => Some(Chosen::Named(name.clone())),
            (None, Some(labels)) if !labels.is_empty() => Some(Chosen::Labelled(labels.clone())),
            (None, Some(_)) => {
                self.refuse(
                    "selector.labelSelector",
                    "is empty",
                    "set at least one label",
                );
                None
            }
            _ => {
                self.refuse(
                    "selector",
                    "needs exactly one of name and labelSelector",
                    "use one of the two",
                );
                None
            }
        }
    }

    fn annotations(
        &mut self,
        spec: &ServiceSpec,
        more_prefixes: &[String],
    ) -> BTreeMap<String, String> {
        let given = &spec.annotations;
        for key in given.keys() {
            let allowed = PREFIXES
                .iter()
                .copied()
                .chain(more_prefixes.iter().map(String::as_str))
                .any(|prefix| key.starts_with(prefix));
            if !allowed {
                self.refuse(
                    "globalAnnotations",
                    format!("{} has none of Cilium's prefixes", quoted(key)),
                    "use service.cilium.io/ or io.cilium/",
                );
            }
        }
        let mut all = given.clone();
        let shared = spec.shared.map(|shared| ("shared", shared.to_string()));
        let affinity = spec.affinity.clone().map(|affinity| ("affinity", affinity));
        if spec
            .affinity
            .as_ref()
            .is_some_and(|affinity| !["local", "remote"].contains(&affinity.as_str()))
        {
            self.refuse(
                "affinity",
                "is neither local nor remote",
                "use local or remote, or omit it",
            );
        }
        for (pair, field, default) in [
            (GLOBAL, None, Some("true")),
            (SHARED, shared, Some("true")),
            (AFFINITY, affinity, None),
        ] {
            if let Some(value) = self
                .pair(&pair, field, given)
                .or(default.map(str::to_owned))
            {
                all.insert(pair.new.to_owned(), value.clone());
                all.insert(pair.old.to_owned(), value);
            }
        }
        if all
            .get(GLOBAL.new)
            .is_some_and(|value| !value.eq_ignore_ascii_case("true"))
        {
            self.refuse(
                "globalAnnotations",
                format!("{} contradicts a GlobalService", GLOBAL.new),
                "delete the GlobalService instead",
            );
        }
        all
    }

    /// The value that the field and both annotations agree on.
    fn pair(
        &mut self,
        pair: &Pair,
        field: Option<(&str, String)>,
        given: &BTreeMap<String, String>,
    ) -> Option<String> {
        let annotations = [given.get(pair.new), given.get(pair.old)];
        let by_annotation = annotations.into_iter().flatten().next();
        if let [Some(one), Some(other)] = annotations
            && one != other
        {
            self.refuse(
                "globalAnnotations",
                format!("{} and {} contradict each other", pair.new, pair.old),
                "set only one of the two",
            );
        }
        if let (Some((name, value)), Some(other)) = (&field, by_annotation)
            && value != other
        {
            self.refuse(
                "globalAnnotations",
                format!("{} contradicts {name}", pair.new),
                "set it only once",
            );
        }
        field
            .map(|(_, value)| value)
            .or_else(|| by_annotation.cloned())
    }
}
