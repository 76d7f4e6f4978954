//! Query parameters of a request. Unknown parameters are ignored, as by a real server.

use crate::path::decoded;
use crate::refusal::Refusal;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    pub watch: bool,
    pub resource_version: Option<String>,
    pub resource_version_match: Option<String>,
    pub limit: usize,
    pub continue_token: Option<String>,
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
    pub dry_run: bool,
    pub field_validation: Option<String>,
    pub field_manager: Option<String>,
    pub force: Option<bool>,
    pub propagation_policy: Option<String>,
    pub orphan_dependents: bool,
}

impl Query {
    pub(crate) fn of(text: Option<&str>) -> Result<Query, Refusal> {
        let mut query = Query::default();
        for pair in text
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            query.take(&decoded(name), decoded(&value.replace('+', " ")))?;
        }
        Ok(query)
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), Refusal> {
        let given = |value: String| Some(value).filter(|value| !value.is_empty());
        match name {
            "watch" => self.watch = truth(&value),
            "resourceVersion" => self.resource_version = given(value),
            "resourceVersionMatch" => self.resource_version_match = given(value),
            "limit" => self.limit = number(&value)?,
            "continue" => self.continue_token = given(value),
            "labelSelector" => self.label_selector = given(value),
            "fieldSelector" => self.field_selector = given(value),
            "timeoutSeconds" => {
                self.timeout_seconds = given(value).map(|value| number(&value)).transpose()?
            }
            "allowWatchBookmarks" => self.bookmarks = truth(&value),
            "sendInitialEvents" => {
                self.send_initial_events = given(value).map(|value| truth(&value))
            }
            "dryRun" => self.dry_run = true,
            "fieldValidation" => self.field_validation = given(value),
            "fieldManager" => self.field_manager = given(value),
            "force" => self.force = given(value).map(|value| truth(&value)),
            "propagationPolicy" => self.propagation_policy = given(value),
            "orphanDependents" => self.orphan_dependents = truth(&value),
            _ => {}
        }
        Ok(())
    }

    /// Parses the resourceVersion; `None` if unset.
    pub(crate) fn version(&self) -> Result<Option<u64>, Refusal> {
        let Some(text) = &self.resource_version else {
            return Ok(None);
        };
        let wrong = |_| {
            Refusal::bad_request(format!(
                "Invalid value: {text:?}: resourceVersion is no number"
            ))
        };
        text.parse().map(Some).map_err(wrong)
    }
}

/// Parses a boolean like a real server: everything except `false` and `0` is true.
fn truth(value: &str) -> bool {
    !(value.eq_ignore_ascii_case("false") || value == "0")
}

fn number<N: std::str::FromStr>(value: &str) -> Result<N, Refusal> {
    value.parse().map_err(|_| {
        Refusal::bad_request(format!(
            "strconv.ParseInt: parsing {value:?}: invalid syntax"
        ))
    })
}
