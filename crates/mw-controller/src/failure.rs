//! Failures of a request to a cluster, as a closed set with message, metric
//! category and retry delay.

use std::time::Duration;

use kube::core::Status;
use mw_core::text::printable;

use crate::address::ResolveError;
use crate::transport::TransportError;

/// Part of an API server's message when a ResourceQuota is exceeded.
const EXCEEDED: &str = "exceeded quota: ";
/// Longer texts from a member are truncated.
const LONGEST: usize = 200;
/// Room for a name of 253 characters and the reason why it is refused.
const LONGEST_REFUSAL: usize = 600;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("credentials rejected (401); renew the token in the kubeconfig Secret")]
    Unauthorized,
    #[error("not allowed (403): {0}")]
    Forbidden(String),
    #[error("quota exceeded (403): {0}; raise the quota or delete objects")]
    Quota(String),
    #[error("not found (404): {0}")]
    NotFound(String),
    #[error("object has changed since it was read ({0})")]
    Conflict(u16),
    #[error("managed by another field manager (409): {0}")]
    Owned(String),
    #[error("resourceVersion is too old (410)")]
    Gone,
    #[error("API server returned {code} {reason}: {message}")]
    Api {
        code: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
    },
    #[error("no answer within {}s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("can't be reached: {0}")]
    Unreachable(String),
    #[error("{0}")]
    ForbiddenAddress(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("cannot parse the response: {0}")]
    Unreadable(String),
    #[error("inconsistent response from the API server: {0}")]
    Wrong(String),
    #[error("this process no longer holds the Lease; the request was not sent")]
    NotLeader,
}

impl Failure {
    pub fn of(error: &kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) => Failure::of_status(status),
            kube::Error::Service(inner) => Failure::of_transport(inner.as_ref()),
            kube::Error::HyperError(inner) => Failure::of_transport(inner),
            kube::Error::ReadEvents(inner) => Failure::of_transport(inner),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
                Failure::Unreadable("unexpected JSON".to_owned())
            }
            other => Failure::Unreachable(printable(&other.to_string(), LONGEST)),
        }
    }

    pub fn of_status(status: &Status) -> Failure {
        let message = printable(&status.message, LONGEST);
        match status.code {
            401 => Failure::Unauthorized,
            403 if status.message.contains(EXCEEDED) => Failure::Quota(message),
            403 => Failure::Forbidden(message),
            404 => Failure::NotFound(message),
            409 => owners(status).map_or(Failure::Conflict(409), Failure::Owned),
            410 => Failure::Gone,
            422 if names_the_uid(status) => Failure::Conflict(422),
            code => Failure::Api {
                code,
                reason: printable(&status.reason, LONGEST),
                message,
                retry_after: retry_after(status),
            },
        }
    }

    fn of_transport(error: &(dyn std::error::Error + 'static)) -> Failure {
        let mut innermost = error;
        let mut next = Some(error);
        while let Some(error) = next {
            match error.downcast_ref::<TransportError>() {
                Some(TransportError::Timeout(after)) => return Failure::Timeout(*after),
                Some(TransportError::NotLeader) => return Failure::NotLeader,
                Some(wrong @ TransportError::TooLarge(_)) => {
                    return Failure::TooLarge(wrong.to_string());
                }
                Some(TransportError::Transport(_)) | None => {}
            }
            if let Some(forbidden @ ResolveError::Forbidden { .. }) =
                error.downcast_ref::<ResolveError>()
            {
                return Failure::ForbiddenAddress(printable(
                    &forbidden.to_string(),
                    LONGEST_REFUSAL,
                ));
            }
            innermost = error;
            next = error.source();
        }
        Failure::Unreachable(printable(&innermost.to_string(), LONGEST))
    }

    /// Converts an error that occurred while reading a response.
    pub(crate) fn of_read(error: &std::io::Error) -> Failure {
        match error.get_ref() {
            Some(inner) => Failure::of_transport(inner),
            None => Failure::Unreachable(printable(&error.to_string(), LONGEST)),
        }
    }

    /// Reports whether a watch can't resume after this failure and has to relist.
    pub(crate) fn demands_a_list(&self) -> bool {
        matches!(
            self,
            Failure::Gone | Failure::TooLarge(_) | Failure::Wrong(_)
        )
    }

    /// Returns the label for metrics and logs.
    pub fn category(&self) -> &'static str {
        match self {
            Failure::Unauthorized => "unauthorized",
            Failure::Forbidden(_) => "forbidden",
            Failure::Quota(_) => "quota",
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

    /// Returns the delay that the server asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Api { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Reports whether the server answered at all.
    pub fn is_an_answer(&self) -> bool {
        !matches!(
            self,
            Failure::Timeout(_)
                | Failure::Unreachable(_)
                | Failure::ForbiddenAddress(_)
                | Failure::NotLeader
        )
    }
}

/// Reports whether a 422 is about a failed UID precondition.
fn names_the_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .map(|cause| cause.field.as_str())
        .any(|field| field == "metadata.uid")
}

/// Returns the fields that a server-side apply conflicts on, with their managers.
fn owners(status: &Status) -> Option<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let owned = causes.filter(|cause| cause.reason == "FieldManagerConflict");
    let told: Vec<String> = owned
        .map(|cause| format!("{} ({})", cause.field, cause.message))
        .collect();
    (!told.is_empty()).then(|| printable(&told.join(", "), LONGEST))
}

fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}
