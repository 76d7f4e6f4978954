//! Errors, one variant per failed operation.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something that a test needs; tests skip on it.
    #[error("{what}; {hint}")]
    Missing { what: String, hint: String },
    #[error("building {binary} failed: {reason}")]
    Build { binary: String, reason: String },
    #[error("{action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("starting {program}: {reason}")]
    Start { program: String, reason: String },
    #[error("stopping {program}: {reason}")]
    Stop { program: String, reason: String },
    #[error("{0} is stopped")]
    Stopped(String),
    #[error("making certificates: {0}")]
    Certificate(String),
    #[error("signing a service-account token: {0}")]
    Sign(String),
    #[error("signal to process {pid}: {source}")]
    Signal { pid: i32, source: nix::Error },
    #[error("{method} {path}: {reason}")]
    Request {
        method: String,
        path: String,
        reason: String,
    },
    #[error("{method} {path} answered {code}: {message}")]
    Refused {
        method: String,
        path: String,
        code: u16,
        message: String,
    },
    #[error("object: {0}")]
    Object(String),
    #[error("{operation}: {reason}")]
    Proxy {
        operation: &'static str,
        reason: String,
    },
    #[error("timeout after {seconds}s; last result: {last}")]
    TimedOut { seconds: f64, last: String },
    #[error("no cluster named {0}")]
    NoCluster(String),
    #[error("{operation}: {reason}")]
    Network { operation: String, reason: String },
    #[error("panic: {0}")]
    Panicked(String),
}

impl Error {
    /// Returns the error of a failed file operation; `action` is a verb such as
    /// "reading".
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    /// Returns the error of a failed operation on a test network.
    pub(crate) fn network(operation: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Network {
            operation: operation.into(),
            reason: reason.to_string(),
        }
    }

    /// Returns the status code with which the server refused the request, if it answered.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}
