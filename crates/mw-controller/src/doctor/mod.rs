//! Checks of a mesh and its clusters, layer by layer. The reads are in
//! `kilo/examine.rs` and `cilium/examine.rs`; the submodules turn them into checks;
//! this module defines the layers, their order and their dependencies.

mod access;
pub mod cilium;
pub mod commands;
pub mod kcp;
pub mod kilo;
pub mod rights;

use std::collections::BTreeSet;
use std::fmt;

use mw_core::problem::Problem;
use mw_core::text::printable;

use crate::failure::Failure;

/// Layers in the order in which they are checked; later ones depend on earlier ones.
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

    /// Layers of the same subject that must pass before this one is checked.
    fn needs(self) -> &'static [Layer] {
        use Layer::{Crds, Credentials, Overlap, Reachability, Rights, Spec};
        match self {
            Credentials | Spec => &[],
            Reachability | Layer::Certificates => &[Credentials],
            Rights | Crds => &[Credentials, Reachability],
            Layer::Health | Layer::Annotations | Layer::Keepalive => {
                &[Credentials, Reachability, Rights, Crds]
            }
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

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub layer: Layer,
    /// A cluster, or a mesh.
    pub subject: String,
    pub state: State,
    /// Observed value, or why there is none.
    pub observed: String,
    /// Shell command that fixes it.
    pub repair: Option<String>,
    /// Next step, if no command can fix it.
    pub hint: Option<String>,
    /// True if only a person can check it.
    pub is_manual: bool,
}

const LONGEST: usize = 600;
/// Credentials and certificates that expire sooner should be reissued now.
const SOON_DAYS: i64 = 14;

impl Check {
    fn new(layer: Layer, subject: &str, state: State, observed: &str) -> Check {
        let (subject, observed) = (printable(subject, 100), printable(observed, LONGEST));
        Check {
            layer,
            subject,
            state,
            observed,
            repair: None,
            hint: None,
            is_manual: false,
        }
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

    /// Reports a check that is left to a person, with the next step.
    pub fn manual(layer: Layer, subject: &str, why: &str, hint: &str) -> Check {
        Check {
            is_manual: true,
            ..Check::not_checked(layer, subject, why).hinted(hint)
        }
    }

    /// Reports whether the check passed or is left to a person.
    pub fn is_fine(&self) -> bool {
        self.state == State::Fine || self.is_manual
    }

    /// Reports an unexpected answer of a cluster.
    fn unanswered(layer: Layer, subject: &str, failure: &Failure) -> Check {
        Check::failed(layer, subject, failure.to_string()).hinted("check the log of its API server")
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

    /// Adds the planner's hint, or the command that explains the problem.
    #[must_use]
    pub fn hinted_by(self, problem: &Problem) -> Check {
        match problem.hint.as_str() {
            "" => self.hinted(&format!("run `meshwright explain {}`", problem.reason)),
            hint => self.hinted(hint),
        }
    }
}

/// Returns the findings of one layer on one subject, or a passed check.
pub(crate) fn of_layer(
    layer: Layer,
    subject: &str,
    findings: Vec<Check>,
    fine: impl AsRef<str>,
) -> Vec<Check> {
    if findings.is_empty() {
        vec![Check::fine(layer, subject, fine)]
    } else {
        findings
    }
}

/// Sorts checks by layer. A check that depends on a failed one becomes "not
/// checked", whatever its result.
pub fn ordered(checks: Vec<Check>) -> Vec<Check> {
    let mut broken: BTreeSet<(String, Layer)> = BTreeSet::new();
    let mut ordered = Vec::new();
    for layer in Layer::ALL {
        for check in checks.iter().filter(|check| check.layer == layer) {
            let cause = layer
                .needs()
                .iter()
                .find(|needed| broken.contains(&(check.subject.clone(), **needed)));
            let check = match cause {
                Some(cause) => {
                    Check::not_checked(layer, &check.subject, format!("fix {cause} first"))
                }
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
        let shown: Vec<(Layer, String, State)> = ordered(checks)
            .into_iter()
            .map(|check| (check.layer, check.subject, check.state))
            .collect();
        let expected = [
            (Layer::Credentials, "west", State::Fine),
            (Layer::Rights, "east", State::Fine),
            (Layer::Rights, "west", State::Failed),
            (Layer::Drift, "east", State::Fine),
            (Layer::Drift, "west", State::NotChecked),
        ];
        assert_eq!(
            shown,
            expected.map(|(layer, subject, state)| (layer, subject.to_owned(), state))
        );
    }

    #[test]
    fn a_layer_needs_only_layers_before_it() {
        for layer in Layer::ALL {
            assert!(
                layer.needs().iter().all(|needed| *needed < layer),
                "{layer}"
            );
        }
    }
}
