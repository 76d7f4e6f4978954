//! Exit codes of the commands.

use std::process::ExitCode;

/// Exit code of a command. Ordered by severity, so that `max` picks the worse of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Success.
    Yes,
    /// Changes are pending, or problems were found.
    No,
    /// The command failed.
    Impossible,
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> ExitCode {
        ExitCode::from(match answer {
            Answer::Yes => 0,
            Answer::No => 1,
            Answer::Impossible => 2,
        })
    }
}
