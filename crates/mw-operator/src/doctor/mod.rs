//! Checks of everything that stands between a mesh and its clusters, layer by
//! layer. The reads are in `kilo/examine.rs` and `cilium/examine.rs`, the checks decide, and
//! this module says in which order, what depends on what, and what to type.

mod access;
pub mod cilium;
pub mod commands;
pub mod kilo;
pub mod rights;

use std::collections::BTreeSet;
use std::fmt;

use mw_core::problem::Problem;
use mw_core::text::printable;

use crate::failure::Failure;

/// In the order in which they are checked: what comes first breaks the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    Credentials,
    Reachability,
    Rights,
    Crds,
    Spec,
    Health,
    Annotations,
    Overlap,
    Keepalive,
    Certificates,
    Drift,
}

impl Layer {
    pub const ALL: [Layer; 11] = [
        Layer::Credentials,
        Layer::Reachability,
        Layer::Rights,
        Layer::Crds,
        Layer::Spec,
        Layer::Health,
        Layer::Annotations,
        Layer::Overlap,
        Layer::Keepalive,
        Layer::Certificates,
        Layer::Drift,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Layer::Credentials => "credentials",
            Layer::Reachability => "reachability",
            Layer::Rights => "rights",
            Layer::Crds => "crds",
            Layer::Spec => "spec",
            Layer::Health => "health",
            Layer::Annotations => "annotations",
            Layer::Overlap => "overlap",
            Layer::Keepalive => "keepalive",
            Layer::Certificates => "certificates",
            Layer::Drift => "drift",
        }
    }

    /// What must be fine of the same subject before this one can be looked at.
    fn needs(self) -> &'static [Layer] {
        use Layer::{Crds, Credentials, Overlap, Reachability, Rights, Spec};
        match self {
            Credentials | Spec => &[],
            Reachability | Layer::Certificates => &[Credentials],
            Rights | Crds => &[Credentials, Reachability],
            Layer::Health | Layer::Annotations | Layer::Keepalive => &[Credentials, Reachability, Rights, Crds],
            Overlap => &[Spec],
            Layer::Drift => &[Credentials, Reachability, Rights, Crds, Spec, Overlap],
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Fine,
    Failed,
    NotChecked,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub layer: Layer,
    /// A cluster, or a mesh.
    pub subject: String,
    pub state: State,
    /// What was seen; or why nothing was.
    pub observed: String,
    /// The command that repairs it, ready for a shell.
    pub repair: Option<String>,
    /// What to do where no command can know it.
    pub hint: Option<String>,
}

const LONGEST: usize = 600;
/// What ends sooner is to be renewed now.
const SOON_DAYS: i64 = 14;

impl Check {
    fn new(layer: Layer, subject: &str, state: State, observed: &str) -> Check {
        let (subject, observed) = (printable(subject, 100), printable(observed, LONGEST));
        Check { layer, subject, state, observed, repair: None, hint: None }
    }

    pub fn fine(layer: Layer, subject: &str, observed: impl AsRef<str>) -> Check {
        Check::new(layer, subject, State::Fine, observed.as_ref())
    }

    pub fn failed(layer: Layer, subject: &str, observed: impl AsRef<str>) -> Check {
        Check::new(layer, subject, State::Failed, observed.as_ref())
    }

    pub fn not_checked(layer: Layer, subject: &str, why: impl AsRef<str>) -> Check {
        Check::new(layer, subject, State::NotChecked, why.as_ref())
    }

    /// The cluster answers, but not what was asked for.
    fn unanswered(layer: Layer, subject: &str, failure: &Failure) -> Check {
        Check::failed(layer, subject, failure.to_string()).hinted("look into the log of its API server")
    }

    #[must_use]
    pub fn repaired_by(mut self, command: String) -> Check {
        self.repair = Some(command);
        self
    }

    #[must_use]
    pub fn hinted(mut self, hint: &str) -> Check {
        self.hint = Some(printable(hint, LONGEST));
        self
    }

    /// What the planner says to do, or where more is said of it.
    #[must_use]
    pub fn hinted_by(self, problem: &Problem) -> Check {
        match problem.hint.as_str() {
            "" => self.hinted(&format!("meshwright explain {}", problem.reason)),
            hint => self.hinted(hint),
        }
    }
}

/// The findings of one layer on one subject, or that there is none.
pub(crate) fn of_layer(layer: Layer, subject: &str, findings: Vec<Check>, fine: impl AsRef<str>) -> Vec<Check> {
    if findings.is_empty() { vec![Check::fine(layer, subject, fine)] } else { findings }
}

/// In order; and what depends on something broken is not checked, whatever it
/// seemed to be.
pub fn ordered(checks: Vec<Check>) -> Vec<Check> {
    let mut broken: BTreeSet<(String, Layer)> = BTreeSet::new();
    let mut ordered = Vec::new();
    for layer in Layer::ALL {
        for check in checks.iter().filter(|check| check.layer == layer) {
            let cause = layer.needs().iter().find(|needed| broken.contains(&(check.subject.clone(), **needed)));
            let check = match cause {
                Some(cause) => Check::not_checked(layer, &check.subject, format!("{cause} must be repaired first")),
                None => check.clone(),
            };
            if check.state != State::Fine {
                broken.insert((check.subject.clone(), layer));
            }
            if !ordered.contains(&check) {
                ordered.push(check);
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_something_broken_is_not_checked() {
        let checks = vec![
            Check::fine(Layer::Drift, "east", "nothing to do"),
            Check::fine(Layer::Rights, "east", "all"),
            Check::failed(Layer::Rights, "west", "may not list nodes"),
            Check::failed(Layer::Drift, "west", "2 to create"),
            Check::fine(Layer::Credentials, "west", "there"),
        ];
        let shown: Vec<(Layer, String, State)> =
            ordered(checks).into_iter().map(|check| (check.layer, check.subject, check.state)).collect();
        let expected = [
            (Layer::Credentials, "west", State::Fine),
            (Layer::Rights, "east", State::Fine),
            (Layer::Rights, "west", State::Failed),
            (Layer::Drift, "east", State::Fine),
            (Layer::Drift, "west", State::NotChecked),
        ];
        assert_eq!(shown, expected.map(|(layer, subject, state)| (layer, subject.to_owned(), state)));
    }

    #[test]
    fn a_layer_needs_only_layers_before_it() {
        for layer in Layer::ALL {
            assert!(layer.needs().iter().all(|needed| *needed < layer), "{layer}");
        }
    }
}
