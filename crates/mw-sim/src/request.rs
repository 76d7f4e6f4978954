//! A request as faults and traces see it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use crate::path::Target;
use crate::query::Query;

/// The name of a manager of fields.
pub(crate) const LONGEST_MANAGER: usize = 128;

/// What is done, in the words of roles.
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

/// One request to one cluster.
#[derive(Debug, Clone)]
pub struct Request {
    /// Counted per cluster from 1 in the order of arrival; 0 for what the
    /// tester's own hand does.
    pub number: u64,
    pub cluster: Arc<str>,
    /// Who asks; nothing when the token is not known here.
    pub user: Option<Arc<str>>,
    pub method: Method,
    pub verb: Verb,
    /// Nothing for paths like `/version`.
    pub target: Option<Target>,
    pub query: Query,
    pub path_and_query: String,
    pub content_type: String,
    pub accept: String,
    pub user_agent: String,
    pub body: Bytes,
}

impl Request {
    /// Whether it is the tester who asks, and nobody else.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.number == 0
    }

    /// Who manages the fields that this writes.
    pub(crate) fn manager(&self) -> String {
        let agent = self.user_agent.split('/').next().unwrap_or_default();
        let shown = || agent.chars().filter(|letter| !letter.is_control()).take(LONGEST_MANAGER).collect();
        self.query.field_manager.clone().unwrap_or_else(shown)
    }

    /// What rights are asked for: a list of what has one name is of that name.
    pub(crate) fn aims_at(&self, target: &Target) -> Target {
        let named = self.query.field_selector.as_deref().and_then(|selector| selector.strip_prefix("metadata.name="));
        let named = named.filter(|name| matches!(self.verb, Verb::List | Verb::Watch) && !name.contains(','));
        Target { name: target.name.clone().or_else(|| named.map(str::to_owned)), ..target.clone() }
    }

    /// The path without the query.
    pub fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }
}

/// A line of a trace; the body is not in it.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.cluster, self.number, self.method, self.path_and_query)
    }
}
