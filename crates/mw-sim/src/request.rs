//! A request as seen by faults and traces.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use crate::path::Target;
use crate::query::Query;

/// Maximum length of the name of a field manager.
pub(crate) const LONGEST_MANAGER: usize = 128;

/// Verb of a request, as in roles.
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
}

impl Verb {
    pub(crate) fn of(method: &Method, target: Option<&Target>, watch: bool) -> Verb {
        let one = target.is_none_or(|target| target.name.is_some());
        match method.as_str() {
            "POST" => Verb::Create,
            "PUT" => Verb::Update,
            "PATCH" => Verb::Patch,
            "DELETE" if one => Verb::Delete,
            "DELETE" => Verb::DeleteCollection,
            _ if watch => Verb::Watch,
            _ if one => Verb::Get,
            _ => Verb::List,
        }
    }

    pub fn writes(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }

    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request to a cluster.
#[derive(Debug, Clone)]
pub struct Request {
    /// Number of the request in this cluster, counted from 1 in the order of arrival; 0
    /// for direct calls by the test.
    pub number: u64,
    pub cluster: Arc<str>,
    /// User of the token; `None` if the token is unknown.
    pub user: Option<Arc<str>>,
    pub method: Method,
    pub verb: Verb,
    /// Resource of the path; `None` for paths like `/version`.
    pub target: Option<Target>,
    pub query: Query,
    pub path_and_query: String,
    pub content_type: String,
    pub accept: String,
    pub user_agent: String,
    pub body: Bytes,
}

impl Request {
    /// Reports whether this is a direct call by the test.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.number == 0
    }

    /// Returns the field manager of this write; by default the product in the user agent.
    pub(crate) fn manager(&self) -> String {
        let agent = self.user_agent.split('/').next().unwrap_or_default();
        let shown = || {
            agent
                .chars()
                .filter(|letter| !letter.is_control())
                .take(LONGEST_MANAGER)
                .collect()
        };
        self.query.field_manager.clone().unwrap_or_else(shown)
    }

    /// Returns the target for authorization: a list or watch of a single name is
    /// authorized by that name.
    pub(crate) fn aims_at(&self, target: &Target) -> Target {
        let named = self
            .query
            .field_selector
            .as_deref()
            .and_then(|selector| selector.strip_prefix("metadata.name="));
        let named = named
            .filter(|name| matches!(self.verb, Verb::List | Verb::Watch) && !name.contains(','));
        Target {
            name: target.name.clone().or_else(|| named.map(str::to_owned)),
            ..target.clone()
        }
    }

    /// Returns the path without the query.
    pub fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }
}

/// Formats the request as a line of a trace, without its body.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {}",
            self.cluster, self.number, self.method, self.path_and_query
        )
    }
}
