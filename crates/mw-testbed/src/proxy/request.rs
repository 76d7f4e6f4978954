//! Verb, resource and name of a request, parsed from its method and path like in the
//! API server.

use std::collections::BTreeSet;

use hyper::{Method, Uri};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// HEAD, OPTIONS and others.
    Other,
}

impl Verb {
    pub const WRITES: [Verb; 5] = [
        Verb::Create,
        Verb::Update,
        Verb::Patch,
        Verb::Delete,
        Verb::DeleteCollection,
    ];
}

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestInfo {
    pub verb: Verb,
    /// Plural without group, with its subresource: `clustermeshes/status`. Other paths
    /// are kept unchanged: `/readyz`.
    pub resource: String,
    /// Empty if there is none.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
}

impl RequestInfo {
    pub(crate) fn of(method: &Method, uri: &Uri) -> Self {
        let segments: Vec<&str> = uri
            .path()
            .split('/')
            .filter(|segment| !segment.is_empty())
            .collect();
        let watch = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1"));
        let (namespace, rest) = match segments.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => split_namespace(rest),
            _ => ("", [].as_slice()),
        };
        let (resource, name) = match rest {
            [] => (uri.path().to_owned(), ""),
            [resource] => ((*resource).to_owned(), ""),
            [resource, name] => ((*resource).to_owned(), *name),
            [resource, name, subresource @ ..] => {
                (format!("{resource}/{}", subresource.join("/")), *name)
            }
        };
        let verb = verb(method, !name.is_empty() || rest.is_empty(), watch);
        Self {
            verb,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// Splits off the namespace: `namespaces/x` alone is a Namespace; with more segments,
/// it is a scope.
fn split_namespace<'a, 'b>(rest: &'b [&'a str]) -> (&'a str, &'b [&'a str]) {
    match rest {
        ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (namespace, inside),
        _ => ("", rest),
    }
}

fn verb(method: &Method, single: bool, watch: bool) -> Verb {
    match method.as_str() {
        "GET" if watch => Verb::Watch,
        "GET" if single => Verb::Get,
        "GET" => Verb::List,
        "POST" => Verb::Create,
        "PUT" => Verb::Update,
        "PATCH" => Verb::Patch,
        "DELETE" if single => Verb::Delete,
        "DELETE" => Verb::DeleteCollection,
        _ => Verb::Other,
    }
}

/// Selects requests. Empty fields match everything.
#[derive(Debug, Clone, Default)]
pub struct Match {
    verbs: BTreeSet<Verb>,
    resources: BTreeSet<String>,
    names: BTreeSet<String>,
    except: BTreeSet<String>,
}

impl Match {
    pub fn all() -> Self {
        Self::default()
    }

    pub fn writes() -> Self {
        Self {
            verbs: Verb::WRITES.into(),
            ..Self::default()
        }
    }

    pub fn verb(verb: Verb) -> Self {
        Self {
            verbs: [verb].into(),
            ..Self::default()
        }
    }

    /// Adds a resource: plural, with its subresource if applicable.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resources.insert(resource.to_owned());
        self
    }

    /// Adds the name of an object. Creates have none, because they are sent to the
    /// collection.
    pub fn name(mut self, name: &str) -> Self {
        self.names.insert(name.to_owned());
        self
    }

    /// Excludes a resource, e.g. `leases`.
    pub fn except(mut self, resource: &str) -> Self {
        self.except.insert(resource.to_owned());
        self
    }

    pub fn matches(&self, request: &RequestInfo) -> bool {
        (self.verbs.is_empty() || self.verbs.contains(&request.verb))
            && (self.resources.is_empty() || self.resources.contains(&request.resource))
            && (self.names.is_empty() || self.names.contains(&request.name))
            && !self.except.contains(&request.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, uri: &str) -> (Verb, String, String, String) {
        let info = RequestInfo::of(&method.parse().unwrap(), &uri.parse().unwrap());
        (info.verb, info.resource, info.namespace, info.name)
    }

    #[test]
    fn paths_are_read_as_the_api_server_reads_them() {
        let is = |verb, resource: &str, namespace: &str, name: &str| {
            (verb, resource.into(), namespace.into(), name.into())
        };
        assert_eq!(
            info("GET", "/api/v1/nodes"),
            is(Verb::List, "nodes", "", "")
        );
        assert_eq!(
            info("GET", "/api/v1/nodes?watch=true"),
            is(Verb::Watch, "nodes", "", "")
        );
        assert_eq!(
            info("GET", "/api/v1/namespaces/a"),
            is(Verb::Get, "namespaces", "", "a")
        );
        assert_eq!(
            info("PUT", "/api/v1/namespaces/a/finalize"),
            is(Verb::Update, "namespaces/finalize", "", "a")
        );
        assert_eq!(
            info("PATCH", "/apis/g/v1/namespaces/a/meshes/b/status"),
            is(Verb::Patch, "meshes/status", "a", "b")
        );
        assert_eq!(
            info("DELETE", "/apis/kilo.squat.ai/v1alpha1/peers"),
            is(Verb::DeleteCollection, "peers", "", "")
        );
        assert_eq!(
            info("DELETE", "/apis/kilo.squat.ai/v1alpha1/peers/p"),
            is(Verb::Delete, "peers", "", "p")
        );
        assert_eq!(info("GET", "/readyz"), is(Verb::Get, "/readyz", "", ""));
        assert_eq!(
            info("GET", "/apis/g/v1"),
            is(Verb::Get, "/apis/g/v1", "", "")
        );
    }

    #[test]
    fn a_match_excludes_what_it_is_told_to() {
        let lease = RequestInfo::of(
            &Method::PUT,
            &"/apis/coordination.k8s.io/v1/namespaces/a/leases/l"
                .parse()
                .unwrap(),
        );
        assert!(Match::writes().matches(&lease));
        assert!(!Match::writes().except("leases").matches(&lease));
        assert!(!Match::verb(Verb::Update).resource("peers").matches(&lease));
        assert!(Match::all().name("l").matches(&lease));
    }
}
