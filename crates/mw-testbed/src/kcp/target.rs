//! Target of a request inside a workspace.

use hyper::{Method, Uri};

use super::model::GroupResource;
use crate::proxy::{RequestInfo, Verb};

#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) method: Method,
    /// Path without the prefix that selects the workspace.
    pub(super) path: String,
    pub(super) query: Query,
    pub(super) verb: Verb,
    /// Both parts are empty for discovery.
    pub(super) what: GroupResource,
    pub(super) version: String,
    /// Namespace, name and subresource; empty if absent.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
}

impl Target {
    pub(super) fn of(method: &Method, path: &str, query: &str) -> Option<Self> {
        let uri: Uri = format!("{path}?{query}").parse().ok()?;
        let info = RequestInfo::of(method, &uri);
        let segments: Vec<&str> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .collect();
        let (group, version) = match segments.as_slice() {
            ["api", version, _, ..] => ("", *version),
            ["apis", group, version, _, ..] => (*group, *version),
            _ => ("", ""),
        };
        let resource = if version.is_empty() {
            ""
        } else {
            info.resource.as_str()
        };
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Some(Self {
            method: method.clone(),
            path: path.to_owned(),
            query: Query::read(query),
            verb: info.verb,
            what: GroupResource::new(group, resource),
            version: version.to_owned(),
            namespace: info.namespace,
            name: info.name,
            subresource: subresource.to_owned(),
        })
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.version.is_empty()
    }

    /// Returns the verb as in RBAC.
    pub(super) fn verb_name(&self) -> &'static str {
        match self.verb {
            Verb::Get | Verb::Other => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }

    /// Describes the request for messages: `list resource "widgets" in API group "g" at
    /// the cluster scope`.
    pub(super) fn asked_for(&self) -> String {
        if self.is_discovery() {
            return format!("{} path {:?}", self.verb_name(), self.path);
        }
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let resource = format!("{}{slash}{}", self.what.resource, self.subresource);
        let place = match self.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!(
            "{} resource {resource:?} in API group {:?} {place}",
            self.verb_name(),
            self.what.group
        )
    }
}

/// Decoded query parameters of a request, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    fn read(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(key, value)| (decode(key), decode(value)))
                .collect(),
        )
    }

    /// Returns a parameter, or an empty string.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map_or("", |(_, value)| value)
    }

    pub(super) fn is(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }

    /// Returns the query with one parameter replaced; an empty value removes it.
    pub(super) fn with(&self, key: &str, value: &str) -> Self {
        let mut pairs: Vec<_> = self
            .0
            .iter()
            .filter(|(name, _)| name != key)
            .cloned()
            .collect();
        if !value.is_empty() {
            pairs.push((key.to_owned(), value.to_owned()));
        }
        Self(pairs)
    }

    pub(super) fn only(&self, keys: &[&str]) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(name, _)| keys.contains(&name.as_str()))
                .cloned()
                .collect(),
        )
    }

    /// Returns the query with additional label requirements.
    pub(super) fn selecting(&self, labels: &str) -> Self {
        match self.get("labelSelector") {
            "" => self.with("labelSelector", labels),
            _ if labels.is_empty() => self.clone(),
            given => self.with("labelSelector", &format!("{given},{labels}")),
        }
    }

    /// Returns the path with these parameters.
    pub(super) fn on(&self, path: &str) -> String {
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| format!("{key}={}", encode(value)))
            .collect();
        if pairs.is_empty() {
            path.to_owned()
        } else {
            format!("{path}?{}", pairs.join("&"))
        }
    }
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

pub(super) fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let escaped = rest
            .strip_prefix('%')
            .and_then(|_| rest.get(1..3))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let width = match escaped {
            Some(byte) => {
                bytes.push(byte);
                3
            }
            None => {
                let mut buffer = [0; 4];
                let text = if first == '+' {
                    " "
                } else {
                    &*first.encode_utf8(&mut buffer)
                };
                bytes.extend_from_slice(text.as_bytes());
                first.len_utf8()
            }
        };
        rest = rest.get(width..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
