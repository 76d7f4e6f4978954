//! What can go wrong with a request to a cluster, in a closed set: what to say,
//! how to count it, and when to try again.

use std::time::Duration;

use kube::core::Status;
use mw_core::text::printable;

use crate::address::ResolveError;
use crate::transport::TransportError;

/// Longer texts of a member are cut.
const LONGEST: usize = 200;
/// A name of 253 characters, and why it is refused.
const LONGEST_REFUSAL: usize = 600;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("its credentials are refused (401): renew the token in its kubeconfig Secret")]
    Unauthorized,
    #[error("not allowed (403): {0}")]
    Forbidden(String),
    #[error("not found (404): {0}")]
    NotFound(String),
    #[error("changed since it was looked at ({0})")]
    Conflict(u16),
    #[error("somebody else owns it (409): {0}")]
    Owned(String),
    #[error("the version asked for is too old (410)")]
    Gone,
    #[error("answers {code} {reason}: {message}")]
    Api { code: u16, reason: String, message: String, retry_after: Option<Duration> },
    #[error("does not answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("can't be reached: {0}")]
    Unreachable(String),
    #[error("{0}")]
    ForbiddenAddress(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("what it answers can't be read: {0}")]
    Unreadable(String),
    #[error("its API server answers wrongly: {0}")]
    Wrong(String),
    #[error("this process no longer holds the Lease, so nothing was sent")]
    NotLeader,
}

impl Failure {
    pub fn of(error: &kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) => Failure::of_status(status),
            kube::Error::Service(inner) => Failure::of_transport(inner.as_ref()),
            kube::Error::HyperError(inner) => Failure::of_transport(inner),
            kube::Error::ReadEvents(inner) => Failure::of_transport(inner),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => Failure::Unreadable("it is not the JSON that was expected".to_owned()),
            other => Failure::Unreachable(printable(&other.to_string(), LONGEST)),
        }
    }

    pub fn of_status(status: &Status) -> Failure {
        let message = printable(&status.message, LONGEST);
        match status.code {
            401 => Failure::Unauthorized,
            403 => Failure::Forbidden(message),
            404 => Failure::NotFound(message),
            409 => owners(status).map_or(Failure::Conflict(409), Failure::Owned),
            410 => Failure::Gone,
            422 if names_the_uid(status) => Failure::Conflict(422),
            code => Failure::Api { code, reason: printable(&status.reason, LONGEST), message, retry_after: retry_after(status) },
        }
    }

    fn of_transport(error: &(dyn std::error::Error + 'static)) -> Failure {
        let mut innermost = error;
        let mut next = Some(error);
        while let Some(error) = next {
            match error.downcast_ref::<TransportError>() {
                Some(TransportError::Timeout(after)) => return Failure::Timeout(*after),
                Some(TransportError::NotLeader) => return Failure::NotLeader,
                Some(wrong @ TransportError::TooLarge(_)) => return Failure::TooLarge(wrong.to_string()),
                Some(TransportError::Transport(_)) | None => {}
            }
            if let Some(forbidden @ ResolveError::Forbidden { .. }) = error.downcast_ref::<ResolveError>() {
                return Failure::ForbiddenAddress(printable(&forbidden.to_string(), LONGEST_REFUSAL));
            }
            innermost = error;
            next = error.source();
        }
        Failure::Unreachable(printable(&innermost.to_string(), LONGEST))
    }

    /// An answer that broke off while it was read.
    pub(crate) fn of_read(error: &std::io::Error) -> Failure {
        match error.get_ref() {
            Some(inner) => Failure::of_transport(inner),
            None => Failure::Unreachable(printable(&error.to_string(), LONGEST)),
        }
    }

    /// What was seen before is no place to go on from: everything has to be
    /// listed again.
    pub(crate) fn demands_a_list(&self) -> bool {
        matches!(self, Failure::Gone | Failure::TooLarge(_) | Failure::Wrong(_))
    }

    /// For metrics and logs.
    pub fn category(&self) -> &'static str {
        match self {
            Failure::Unauthorized => "unauthorized",
            Failure::Forbidden(_) => "forbidden",
            Failure::NotFound(_) => "not_found",
            Failure::Conflict(_) => "conflict",
            Failure::Owned(_) => "owned",
            Failure::Gone => "gone",
            Failure::Api { .. } => "api",
            Failure::Timeout(_) => "timeout",
            Failure::Unreachable(_) => "unreachable",
            Failure::ForbiddenAddress(_) => "forbidden_address",
            Failure::TooLarge(_) => "too_large",
            Failure::Unreadable(_) => "unreadable",
            Failure::Wrong(_) => "wrong_answer",
            Failure::NotLeader => "not_leader",
        }
    }

    /// How long the server asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Api { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the server answered at all.
    pub fn is_an_answer(&self) -> bool {
        !matches!(self, Failure::Timeout(_) | Failure::Unreachable(_) | Failure::ForbiddenAddress(_) | Failure::NotLeader)
    }
}

/// A precondition on the uid that does not hold is answered with 422.
fn names_the_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| cause.field.as_str()).any(|field| field == "metadata.uid")
}

/// An apply that would take fields from their managers is answered with all of
/// them.
fn owners(status: &Status) -> Option<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let owned = causes.filter(|cause| cause.reason == "FieldManagerConflict");
    let told: Vec<String> = owned.map(|cause| format!("{} ({})", cause.field, cause.message)).collect();
    (!told.is_empty()).then(|| printable(&told.join(", "), LONGEST))
}

fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}
