//! Audit log of an API server: every request with its user and result.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// A request as recorded by the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// User name; the impersonated user, if any.
    pub user: String,
    /// `User-Agent`, which distinguishes programs with the same user.
    pub agent: String,
    pub verb: String,
    pub group: String,
    /// Resource and subresource as in a role, e.g. `clustermeshes/status`. Empty for
    /// paths that are not resources, such as `/readyz`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
    /// True if the authorizer denied the request, as opposed to other reasons for a
    /// 403.
    pub denied: bool,
}

/// Returns a policy that records all requests without bodies. A request is written when
/// its answer starts (watches) and when it ends.
pub(crate) fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata" }],
    })
}

/// Reads the whole log, in the order in which requests first appear.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditRecord>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        // The server creates the file with its first request.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file("reading", path)(error)),
    };
    Ok(parse(&text))
}

/// Reads records after the offset `start`, which must be a line start. Also returns the
/// end of the last complete line.
pub(crate) fn read_from(path: &Path, start: u64) -> Result<(Vec<AuditRecord>, u64)> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((Vec::new(), start));
        }
        Err(error) => return Err(Error::file("reading", path)(error)),
    };
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.read_to_end(&mut text))
        .map_err(Error::file("reading", path))?;
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    text.truncate(whole);
    Ok((parse(&text), start + whole as u64))
}

/// Parses the log, one record per request with its last state. An incomplete last line
/// is skipped and read the next time.
fn parse(text: &[u8]) -> Vec<AuditRecord> {
    let mut order = BTreeMap::new();
    let mut records: Vec<AuditRecord> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        let Some(id) = event.get("auditID").and_then(Value::as_str) else {
            continue;
        };
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
    let text = |pointer: &str| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let impersonated = text("/impersonatedUser/username");
    let (resource, subresource) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    AuditRecord {
        user: if impersonated.is_empty() {
            text("/user/username")
        } else {
            impersonated
        },
        agent: text("/userAgent"),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource: if subresource.is_empty() {
            resource
        } else {
            format!("{resource}/{subresource}")
        },
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or(0),
        denied: event
            .pointer("/annotations/authorization.k8s.io~1decision")
            .and_then(Value::as_str)
            == Some("forbid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_written_twice_counts_once_and_a_half_line_not_at_all() {
        let line = |id: &str, code: u16| {
            json!({ "auditID": id, "verb": "watch", "responseStatus": { "code": code } })
                .to_string()
        };
        let text = format!(
            "{}\n{}\n{}\n{{\"auditID\":\"c\",",
            line("a", 200),
            line("b", 403),
            line("a", 410)
        );
        let codes: Vec<u16> = parse(text.as_bytes())
            .iter()
            .map(|record| record.code)
            .collect();
        assert_eq!(codes, [410, 403]);
    }

    #[test]
    fn a_second_reading_goes_on_where_the_first_ended_and_never_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        assert_eq!(read_from(&path, 0).unwrap(), (vec![], 0));
        let line = |id: &str| format!("{}\n", json!({ "auditID": id, "verb": id }));
        std::fs::write(&path, format!("{}{{\"audit", line("a"))).unwrap();
        let (first, end) = read_from(&path, 0).unwrap();
        std::fs::write(&path, line("a") + &line("b")).unwrap();
        let (second, _) = read_from(&path, end).unwrap();
        assert_eq!(
            [first, second].map(|records| records
                .into_iter()
                .map(|record| record.verb)
                .collect::<String>()),
            ["a", "b"]
        );
    }
}
