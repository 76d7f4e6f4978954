//! Step 3: plans again if an input of the planner changed.

use std::sync::Arc;

use mw_core::cilium::plan::Plan;
use tokio::time::Instant;
use tracing::debug;

use crate::cilium::engine::Engine;
use crate::engine::Changes;

impl Engine {
    pub(super) fn plan(&mut self, changes: &Changes) -> Arc<Plan> {
        if changes.inputs {
            let started = Instant::now();
            self.state.plan = Arc::new(self.plan_cautiously());
            self.count_plan(started);
            debug!(
                targets = self.state.plan.targets.len(),
                dials = self.state.plan.dials.len(),
                "planned"
            );
            self.touch_status();
        }
        Arc::clone(&self.state.plan)
    }
}
