//! The API server's audit log: every request, who made it, what came of it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// One request as the API server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    pub user: String,
    /// The `User-Agent`, to tell two programs with one user apart.
    pub agent: String,
    pub verb: String,
    pub group: String,
    /// With its subresource, as in a role: `clustermeshes/status`. Empty for
    /// paths that are no resources, such as `/readyz`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
    /// Refused by the authorizer, unlike other reasons for a 403.
    pub denied: bool,
}

/// Everything, without bodies. A request is written when its answer starts
/// (watches) and when it ends.
pub(crate) fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata" }],
    })
}

/// Reads the log so far, in the order in which requests first appear.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditRecord>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        // The server creates it with its first request.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file("reading", path)(error)),
    };
    Ok(parse(&text))
}

/// A half-written last line does not parse and is left for the next reading.
fn parse(text: &[u8]) -> Vec<AuditRecord> {
    let mut order = BTreeMap::new();
    let mut records: Vec<AuditRecord> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
        let Some(id) = event.get("auditID").and_then(Value::as_str) else { continue };
        let record = record(&event);
        match order.get(id).and_then(|at: &usize| records.get_mut(*at)) {
            Some(earlier) => *earlier = record,
            None => {
                order.insert(id.to_owned(), records.len());
                records.push(record);
            }
        }
    }
    records
}

fn record(event: &Value) -> AuditRecord {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (resource, subresource) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    AuditRecord {
        user: text("/user/username"),
        agent: text("/userAgent"),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
        denied: event.pointer("/annotations/authorization.k8s.io~1decision").and_then(Value::as_str) == Some("forbid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_written_twice_counts_once_and_a_half_line_not_at_all() {
        let line = |id: &str, code: u16| json!({ "auditID": id, "verb": "watch", "responseStatus": { "code": code } }).to_string();
        let text = format!("{}\n{}\n{}\n{{\"auditID\":\"c\",", line("a", 200), line("b", 403), line("a", 410));
        let codes: Vec<u16> = parse(text.as_bytes()).iter().map(|record| record.code).collect();
        assert_eq!(codes, [410, 403]);
    }
}
