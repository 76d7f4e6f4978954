//! What a command has to say for itself when it ends.

use std::process::ExitCode;

/// The three exit codes, worst last, so that the worse of two is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// All is well.
    Yes,
    /// Changes are pending, or something is wrong with the clusters.
    No,
    /// The question could not be answered.
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
