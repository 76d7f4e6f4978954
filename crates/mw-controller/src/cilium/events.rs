//! Kubernetes Events about objects.

use std::time::Duration;

use mw_core::cilium::plan::Plan;
use mw_core::problem::Problem;

use crate::cilium::engine::Engine;
use crate::cilium::record::{Kind, RecordId};
use crate::engine::Notices;

/// First pause between attempts to write an Event that a quota rejects.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Engine {
    /// Emits Events for new problems and forgets resolved ones.
    pub(super) fn announce_problems(&mut self, id: &RecordId, plan: &Plan) {
        let problems: &[Problem] = match id.0 {
            Kind::Binding => plan
                .bindings
                .get(&id.1)
                .map(|plan| plan.outcome.problems.as_slice()),
            Kind::Service => plan
                .services
                .get(&id.1)
                .map(|plan| plan.outcome.problems.as_slice()),
            Kind::Intent => plan
                .intents
                .get(&id.1)
                .map(|plan| plan.outcome.problems.as_slice()),
        }
        .unwrap_or_default();
        let Some(record) = self.records.get(id) else {
            return;
        };
        let mut notices = Notices::since(&record.said);
        notices.problems(problems);
        let Notices { said, new, .. } = notices;
        self.announce(id, said, new);
    }
}
