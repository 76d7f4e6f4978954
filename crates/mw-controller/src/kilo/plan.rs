//! Step 3: passes the observed state to the planner and plans.

use std::collections::BTreeSet;

use mw_core::kilo::planner::{Listing, Planner};
use mw_core::names::ClusterId;
use mw_core::problem::Problem;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::kilo::engine::Engine;

impl Engine {
    /// Passes all new lists to the planner.
    pub(super) fn flush_listings(&mut self) {
        if self.listings.is_empty() {
            return;
        }
        if let Some(planner) = &mut self.planner {
            let listings = std::mem::take(&mut self.listings);
            let nodes = listings
                .iter()
                .filter(|(_, listing)| matches!(listing, Listing::Nodes(_)));
            self.nodes_changed
                .extend(nodes.map(|(cluster, _)| cluster.clone()));
            planner.set_listings(listings);
            self.listed_anew = true;
            self.note_news();
        }
    }

    /// Plans; returns the clusters for which something may have changed.
    pub(super) fn plan(&mut self) -> BTreeSet<ClusterId> {
        let started = Instant::now();
        self.flush_listings();
        if let Some(planner) = &mut self.planner {
            planner.settle_sources();
        }
        if self.listed_anew {
            self.name_unserved();
        }
        self.look_for_missing_meshes();
        self.hand_over_history();
        self.hand_over_discovered();
        let Some(planner) = &mut self.planner else {
            return BTreeSet::new();
        };
        let stale = planner.refresh();
        if planner.remember_decisions() {
            self.touched_at.get_or_insert(started);
        }
        if std::mem::take(&mut self.planned) {
            self.environment.metrics.plans.inc();
            self.environment
                .metrics
                .plan_seconds
                .observe(started.elapsed().as_secs_f64());
            debug!(change = self.changes, targets = stale.len(), "planned");
        }
        self.accept_replaced();
        self.tell_of_orphans();
        stale
    }

    /// Logs held orphans: without a ClusterMesh there is no status to report them in.
    fn tell_of_orphans(&mut self) {
        let problem = self.planner.as_ref().and_then(Planner::orphans_problem);
        if problem != self.orphans_told {
            if let Some(Problem { message, hint, .. }) = &problem {
                warn!(hint, "{message}");
            }
            self.orphans_told = problem;
        }
    }
}
