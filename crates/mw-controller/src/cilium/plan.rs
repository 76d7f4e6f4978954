//! Step 3: plans again if an input of the planner changed.

use tokio::time::Instant;
use tracing::debug;

use crate::cilium::engine::Engine;

impl Engine {
    pub(super) fn plan(&mut self) {
        if !std::mem::take(&mut self.world_changed) {
            return;
        }
        let started = Instant::now();
        self.plan = self.plan_cautiously();
        self.environment.metrics.plans.inc();
        self.environment
            .metrics
            .plan_seconds
            .observe(started.elapsed().as_secs_f64());
        debug!(
            targets = self.plan.targets.len(),
            dials = self.plan.dials.len(),
            "planned"
        );
        self.touch_status();
    }
}
