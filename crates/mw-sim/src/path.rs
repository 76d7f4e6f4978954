//! Resource paths.

use std::fmt;

/// A collection, an object or a subresource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// Path after `proxy`, on the server that the request is forwarded to.
    pub beyond: Option<String>,
}

impl Target {
    /// Parses a path; `None` for paths without a resource, e.g. `/version`.
    pub(crate) fn of(path: &str) -> Option<Target> {
        let mut parts = path.trim_matches('/').split('/').map(decoded);
        let (group, version) = match parts.next()?.as_str() {
            "api" => (String::new(), parts.next()?),
            "apis" => (parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<String> = parts.collect();
        let mut target = Target {
            group,
            version,
            ..Target::default()
        };
        let rest = match rest.as_slice() {
            // A subresource of a Namespace, not a collection in it.
            [plural, _, part]
                if plural == "namespaces" && (part == "status" || part == "finalize") =>
            {
                rest.as_slice()
            }
            [plural, namespace, rest @ ..] if plural == "namespaces" && !rest.is_empty() => {
                target.namespace = Some(namespace.clone());
                rest
            }
            rest => rest,
        };
        let (plural, rest) = rest.split_first()?;
        target.plural.clone_from(plural);
        match rest {
            [] => {}
            [name] => target.name = Some(name.clone()),
            [name, proxy, beyond @ ..] if proxy == "proxy" => {
                target.name = Some(name.clone());
                target.subresource = Some(proxy.clone());
                target.beyond = Some(format!("/{}", beyond.join("/")));
            }
            [name, subresource @ ..] => {
                target.name = Some(name.clone());
                target.subresource = Some(subresource.join("/"));
            }
        }
        Some(target)
    }

    /// Returns the namespace for authorization. A Namespace is in itself.
    pub(crate) fn lies_in(&self) -> Option<&str> {
        let is_namespace = self.plural == "namespaces" && self.group.is_empty();
        self.namespace
            .as_deref()
            .or_else(|| self.name.as_deref().filter(|_| is_namespace))
    }

    /// Returns the resource as in roles, e.g. `clustermeshes/status`.
    pub fn resource(&self) -> String {
        match &self.subresource {
            Some(part) => format!("{}/{part}", self.plural),
            None => self.plural.clone(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::refusal::qualified(&self.resource(), &self.group))?;
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}")?;
        }
        if let Some(name) = &self.name {
            write!(f, "/{name}")?;
        }
        Ok(())
    }
}

/// Decodes percent-encoding. Invalid UTF-8 becomes U+FFFD.
pub(crate) fn decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after
            .get(..2)
            .and_then(|pair| std::str::from_utf8(pair).ok())
            .and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> String {
        Target::of(path).map_or_else(|| "-".to_owned(), |target| target.to_string())
    }

    #[test]
    fn paths_lead_where_they_do_on_a_real_server() {
        assert_eq!(of("/version"), "-");
        assert_eq!(of("/api/v1"), "-");
        assert_eq!(of("/api/v1/nodes"), "nodes");
        assert_eq!(of("/api/v1/nodes/a/status"), "nodes/status/a");
        assert_eq!(of("/api/v1/namespaces/a"), "namespaces/a");
        assert_eq!(of("/api/v1/namespaces/a/status"), "namespaces/status/a");
        assert_eq!(of("/api/v1/namespaces/a/secrets"), "secrets a");
        assert_eq!(
            of("/apis/kilo.squat.ai/v1alpha1/namespaces/a/clustermeshes/m/status"),
            "clustermeshes/status.kilo.squat.ai a/m"
        );
        assert_eq!(
            of("/apis/kilo.squat.ai/v1alpha1/peers/a%2Db"),
            "peers.kilo.squat.ai/a-b"
        );
        let beyond = |path: &str| Target::of(path).and_then(|target| target.beyond);
        assert_eq!(
            of("/api/v1/namespaces/a/pods/p:9964/proxy/metrics/x"),
            "pods/proxy a/p:9964"
        );
        assert_eq!(
            beyond("/api/v1/namespaces/a/pods/p:9964/proxy/metrics/x").as_deref(),
            Some("/metrics/x")
        );
        assert_eq!(beyond("/api/v1/namespaces/a/pods/p").as_deref(), None);
    }
}
