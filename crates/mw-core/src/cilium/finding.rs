//! Problems of a cluster or a link, before they are worded for one binding:
//! each binding uses its own refs for the clusters, or must not name them.

use crate::condition::cilium::reason;
use crate::names::ClusterId;
use crate::problem::{Problem, Reason};

/// The setup steps of a cluster, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Reach the cluster with its credentials.
    Credentials,
    /// Find Cilium with a ready agent.
    Cilium,
    /// Have a unique cluster-name and cluster-id.
    Identity,
    /// Have a CA and certificates.
    Authority,
    /// Run clustermesh-apiserver at a known address.
    ApiServer,
    /// Write the keys of the remotes.
    Keys,
    /// Observe that the links work.
    Verify,
}

impl Step {
    /// The name in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Credentials => "credentials",
            Step::Cilium => "cilium",
            Step::Identity => "identity",
            Step::Authority => "ca",
            Step::ApiServer => "clustermesh-apiserver",
            Step::Keys => "keys",
            Step::Verify => "verify",
        }
    }

    /// The reason of condition Ready.
    pub fn reason(self) -> &'static str {
        match self {
            Step::Credentials => reason::CREDENTIALS,
            Step::Cilium => reason::CILIUM,
            Step::Identity => reason::IDENTITY,
            Step::Authority => reason::AUTHORITY,
            Step::ApiServer => reason::CLUSTERMESH_APISERVER,
            Step::Keys => reason::KEYS,
            Step::Verify => reason::VERIFY,
        }
    }
}

/// Effect of a finding on the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The user must act.
    Permanent,
    /// The cluster is not Ready.
    NotReady,
    /// Expected to pass.
    Waiting,
    /// No effect; for information.
    Remark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) step: Step,
    pub(super) fault: Fault,
    pub(super) reason: Reason,
    pub(super) text: String,
    /// Another cluster, whose name is appended to the text.
    pub(super) other: Option<ClusterId>,
    pub(super) hint: String,
}

impl Finding {
    fn new(step: Step, fault: Fault, reason: Reason, text: impl Into<String>) -> Finding {
        Finding {
            step,
            fault,
            reason,
            text: text.into(),
            other: None,
            hint: String::new(),
        }
    }

    pub(super) fn permanent(step: Step, reason: Reason, text: impl Into<String>) -> Finding {
        Finding::new(step, Fault::Permanent, reason, text)
    }

    pub(super) fn waiting(step: Step, reason: Reason, text: impl Into<String>) -> Finding {
        Finding::new(step, Fault::Waiting, reason, text)
    }

    pub(super) fn not_ready(step: Step, reason: Reason, text: impl Into<String>) -> Finding {
        Finding::new(step, Fault::NotReady, reason, text)
    }

    pub(super) fn remark(step: Step, reason: Reason, text: impl Into<String>) -> Finding {
        Finding::new(step, Fault::Remark, reason, text)
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Finding {
        Finding {
            hint: hint.into(),
            ..self
        }
    }

    pub(super) fn about(self, other: &ClusterId) -> Finding {
        Finding {
            other: Some(other.clone()),
            ..self
        }
    }

    /// `<step>: <text>`, with the name of the other cluster in this binding.
    pub(super) fn message(&self, name: impl Fn(&ClusterId) -> String) -> String {
        let other = self
            .other
            .as_ref()
            .map(|other| format!(" {}", name(other)))
            .unwrap_or_default();
        format!("{}: {}{other}", self.step.as_str(), self.text)
    }

    pub(super) fn problem(&self, subject: &str, message: &str) -> Problem {
        Problem::new(self.reason, subject, message, &self.hint)
    }
}
