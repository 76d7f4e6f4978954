//! Step 3: passes the observed state to the planner and plans.

use std::collections::BTreeSet;

use mw_core::kilo::planner::{Listing, Planner};
use mw_core::names::ClusterId;
use mw_core::problem::Problem;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::engine::Changes;
use crate::kilo::engine::Engine;

/// Result of planning. The changes themselves stay in the planner.
pub(super) struct Plan {
    /// Clusters for which something may have changed.
    pub(super) stale: BTreeSet<ClusterId>,
    /// Something changed that we did not write ourselves.
    pub(super) news: bool,
}

impl Engine {
    /// Passes all new lists to the planner.
    pub(super) fn flush_listings(&mut self) {
        if self.state.listings.is_empty() {
            return;
        }
        if let Some(planner) = &mut self.state.planner {
            let listings = std::mem::take(&mut self.state.listings);
            let nodes = listings
                .iter()
                .filter(|(_, listing)| matches!(listing, Listing::Nodes(_)));
            self.changes
                .clusters
                .extend(nodes.map(|(cluster, _)| cluster.clone()));
            planner.set_listings(listings);
            self.changes.listed = true;
            self.note_news();
        }
    }

    /// Plans, and plans again if a source has to wait because it changes too often.
    pub(super) fn plan(&mut self, changes: &Changes) -> Plan {
        let mut stale = self.plan_once(changes);
        if self.pay(&stale) {
            stale.extend(self.plan_once(&Changes::default()));
        }
        Plan {
            stale,
            news: changes.inputs,
        }
    }

    fn plan_once(&mut self, changes: &Changes) -> BTreeSet<ClusterId> {
        let started = Instant::now();
        if let Some(planner) = &mut self.state.planner {
            planner.settle_sources();
        }
        if changes.listed {
            self.name_unserved();
        }
        self.look_for_missing_meshes();
        self.hand_over_history();
        self.hand_over_discovered(changes);
        let Some(planner) = &mut self.state.planner else {
            return BTreeSet::new();
        };
        let stale = planner.refresh();
        if planner.remember_decisions() {
            self.reports.touched.get_or_insert(started);
        }
        if changes.inputs {
            self.count_plan(started);
            debug!(
                change = self.state.change.number,
                targets = stale.len(),
                "planned"
            );
        }
        self.accept_replaced();
        self.tell_of_orphans();
        stale
    }

    /// Logs held orphans: without a ClusterMesh there is no status to report them in.
    fn tell_of_orphans(&mut self) {
        let problem = self
            .state
            .planner
            .as_ref()
            .and_then(Planner::orphans_problem);
        if problem != self.state.told.orphans {
            if let Some(Problem { message, hint, .. }) = &problem {
                warn!(hint, "{message}");
            }
            self.state.told.orphans = problem;
        }
    }
}
