//! Changes since the last turn.

use std::collections::BTreeSet;

use mw_core::names::ClusterId;

/// Set while events are observed; each step takes what concerns it.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Objects, or what their references resolve to.
    pub(crate) records: bool,
    /// Links, or the clusters that they lead to. For Cilium this is part of `clusters`.
    pub(crate) links: bool,
    /// An input of the planner.
    pub(crate) inputs: bool,
    /// Clusters with changed Nodes (Kilo), or with any change (Cilium).
    pub(crate) clusters: BTreeSet<ClusterId>,
    /// A cluster was listed. For Cilium this is part of `clusters`.
    pub(crate) listed: bool,
}

impl Changes {
    /// Takes what concerns the plan; the rest stays for the next validation.
    pub(super) fn take_for_plan(&mut self) -> Changes {
        let rest = Changes {
            records: self.records,
            links: self.links,
            ..Changes::default()
        };
        std::mem::replace(self, rest)
    }
}
