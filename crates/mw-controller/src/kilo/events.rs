//! Kubernetes events about a mesh.

use std::collections::BTreeSet;

use mw_api::kilo::clustermesh::ClusterMeshStatus;
use mw_core::condition::event;
use mw_core::kilo::plan::MeshPlan;
use mw_core::names::MeshId;

use crate::engine::Notices;
use crate::kilo::engine::Engine;
use crate::kube_event::{NewEvent, Said};

/// Maximum number of skip events per cluster and pass; the rest is summarized.
const MOST_SKIPS: usize = 20;

impl Engine {
    /// Emits events for new problems, and forgets those that are resolved.
    pub(super) fn announce_mesh(&mut self, id: &MeshId, plan: &MeshPlan) {
        let Some(record) = self.records.get(id) else {
            return;
        };
        let mut notices = Notices::since(&record.said);
        notices.problems(&plan.problems);
        skips(plan, &mut notices);
        let Notices { said, new, .. } = notices;
        self.announce(id, said, new);
    }
}

fn skips(plan: &MeshPlan, notices: &mut Notices<'_>) {
    for (cluster, of) in &plan.clusters {
        let before = notices.new.len();
        for (node, skip) in &of.skipped {
            let subject = format!("{cluster}/{node}");
            let reason = skip.reason.as_str();
            let key = skip_key(cluster.as_str(), node.as_str(), reason);
            notices.note(key, || NewEvent {
                reason,
                action: "SkipNodePeering",
                warning: true,
                message: format!("{subject}: {}", skip.message),
            });
        }
        let more = notices.new.len().saturating_sub(before + MOST_SKIPS);
        if more > 0 {
            notices.new.truncate(before + MOST_SKIPS);
            let message = format!(
                "{cluster}: {more} more nodes are skipped; run meshwright plan to list them all"
            );
            notices.new.push(NewEvent {
                reason: event::NODES_SKIPPED,
                action: "SkipNodePeering",
                warning: true,
                message,
            });
        }
    }
}

fn skip_key(cluster: &str, node: &str, reason: &str) -> Said {
    (
        reason.to_owned(),
        format!("{cluster}/{node}"),
        String::new(),
    )
}

/// Returns the events that an earlier process certainly emitted.
pub(super) fn said_before(status: &ClusterMeshStatus) -> BTreeSet<Said> {
    let clusters = status.clusters.iter().flatten();
    let skipped = clusters.flat_map(|cluster| {
        cluster
            .skipped
            .iter()
            .flatten()
            .map(move |skip| (cluster, skip))
    });
    skipped
        .map(|(cluster, skip)| skip_key(&cluster.name, &skip.node, &skip.reason))
        .collect()
}
