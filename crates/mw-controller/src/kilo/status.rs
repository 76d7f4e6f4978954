//! Step 8: reports results in the status of each ClusterMesh. Written only when it
//! differs, by one writer.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mw_api::kilo::clustermesh::{
    ClusterMeshStatus, ClusterStatus, HeldDeletes, MOST_HELD, MOST_SKIPPED, SkippedNode, Totals,
};
use mw_core::condition::kilo::{kind, reason};
use mw_core::kilo::plan::{ClusterPlan, MeshPlan};
use mw_core::names::{ClusterId, ClusterName, MeshId};
use mw_core::problem::Reason;
use mw_core::text::printable;
use tracing::{debug, info};

use crate::conditions::{Wanted, difference, is_too_large, merged};
use crate::engine::{WHILE_WRITING, count};
use crate::fleet::Credentials;
use crate::kilo::engine::Engine;
use crate::kilo::record::Record;
use crate::metrics::MeshLabels;

const LONGEST_MESSAGE: usize = 500;

/// Facts about one entry that are not in the plan.
#[derive(Debug, Clone, Default)]
pub struct EntryFacts {
    pub name: String,
    /// Reason why the cluster can't be used.
    pub trouble: Option<String>,
    /// Failing credentials or writes.
    pub remark: Option<String>,
    pub last_contact: Option<Time>,
    /// Number of Peers of the mesh in this cluster, if known.
    pub peers: Option<usize>,
}

/// Input for a status.
#[derive(Debug)]
pub struct StatusFacts<'a> {
    pub plan: &'a MeshPlan,
    pub generation: i64,
    pub before: &'a ClusterMeshStatus,
    pub entries: Vec<EntryFacts>,
    /// Overrides the Ready condition of the plan.
    pub not_ready: Option<(&'static str, String)>,
    /// Our namespace, if only its meshes may be listed.
    pub limited_to: Option<&'a str>,
    pub stale_credentials: Option<String>,
    pub now: Time,
}

/// Progress of the clusters of a mesh.
enum Progress {
    /// One of them is not observed yet.
    Starting,
    Writing,
    Settled,
}

impl Engine {
    pub(super) fn report(&mut self) {
        self.measure_convergence();
        let now = self.turned_at;
        self.reports.due = None;
        if let Some(touched) = self.reports.touched.take() {
            let acting: Vec<MeshId> = self
                .records
                .keys()
                .filter(|id| self.acts_on(id))
                .cloned()
                .collect();
            acting
                .into_iter()
                .for_each(|id| _ = self.state.unreported.entry(id).or_insert(touched));
        }
        self.state
            .unreported
            .retain(|id, _| self.records.contains_key(id));
        if self.state.unreported.is_empty() {
            return;
        }
        if let Some(earliest) = self.reports.earliest().filter(|earliest| now < *earliest) {
            self.reports.due = Some(earliest);
            return;
        }
        let unreported = std::mem::take(&mut self.state.unreported);
        let mut dues = Vec::new();
        for (id, touched) in unreported {
            match self.records.get(&id).map(|record| self.progress(record)) {
                Some(Progress::Starting) => _ = self.state.unreported.insert(id, touched),
                Some(Progress::Writing) if now < touched + WHILE_WRITING => {
                    dues.push(touched + WHILE_WRITING);
                    self.state.unreported.insert(id, touched);
                }
                _ => {
                    self.reports.reported_at = Some(now);
                    self.report_mesh(&id);
                }
            }
        }
        self.measure_members();
        // Retries statuses that could not be written yet.
        dues.extend(self.reports.retry_at(now));
        self.reports.due = dues.into_iter().min();
    }

    /// Returns the progress of the clusters of one mesh.
    fn progress(&self, record: &Record) -> Progress {
        let own = || record.entries().into_values().map(|source| source.id());
        if own()
            .filter_map(|id| self.members.get(&id))
            .any(|member| member.link.is_starting())
        {
            return Progress::Starting;
        }
        let targets: BTreeSet<ClusterId> = own()
            .map(|id| {
                self.state
                    .identities
                    .representatives
                    .get(&id)
                    .cloned()
                    .unwrap_or(id)
            })
            .collect();
        let planner = self.state.planner.as_ref();
        let concerns = |id: &ClusterId| {
            targets.contains(id)
                || planner
                    .is_some_and(|planner| planner.changes(id).contains_key(&Some(record.id())))
        };
        let mut busy = self
            .members
            .iter()
            .filter(|(_, member)| !member.writer.is_idle());
        if busy.any(|(id, _)| concerns(id)) {
            Progress::Writing
        } else {
            Progress::Settled
        }
    }

    fn report_mesh(&mut self, id: &MeshId) {
        let Some(plan) = self
            .state
            .planner
            .as_ref()
            .and_then(|planner| planner.mesh_plan(id))
        else {
            return;
        };
        self.announce_mesh(id, &plan);
        let Some(record) = self.records.get(id) else {
            return;
        };
        let status = status_of(&self.status_facts(record, &plan));
        self.measure(id, &status);
        if status == record.state.status || self.state.absences.is_missing(id) {
            return;
        }
        if !record.may_be_written(self.turned_at) {
            self.touch_status();
            return;
        }
        let ready = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == kind::READY);
        let was = record
            .state
            .status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == kind::READY);
        if ready.map(|ready| (&ready.status, &ready.reason))
            != was.map(|was| (&was.status, &was.reason))
        {
            let (reason, message) = ready
                .map(|ready| (ready.reason.as_str(), ready.message.as_str()))
                .unwrap_or_default();
            info!(mesh = %id, reason, detail = message, change = self.state.change.number, "mesh status changed");
        }
        debug!(mesh = %id, "writing status");
        let before = serde_json::to_value(&record.state.status).unwrap_or_default();
        let patch = difference(&before, serde_json::to_value(&status).unwrap_or_default());
        self.patch(id, Some("status"), patch);
    }

    fn status_facts<'a>(&'a self, record: &'a Record, plan: &'a MeshPlan) -> StatusFacts<'a> {
        let mut not_ready = None;
        let mut stale_credentials = None;
        let mut entries = Vec::new();
        for entry in &record.state.mesh.spec.clusters {
            let id = record.source_of(entry).map(|source| source.id());
            let stands_for = id
                .as_ref()
                .map(|id| self.state.identities.representatives.get(id).unwrap_or(id));
            let member = id.as_ref().and_then(|id| self.members.get(id));
            let writer = stands_for
                .and_then(|id| self.members.get(id))
                .map(|member| &member.writer);
            let failed = writer
                .and_then(|writer| writer.troubles.iter().find(|(_, trouble)| trouble.lasts()));
            let failed = failed.map(|(name, trouble)| {
                format!(
                    "{} of Peer {name} failed: {}",
                    trouble.verb, trouble.failure
                )
            });
            let stale = member.and_then(|member| match &member.link.credentials {
                Credentials::Stale(why) => Some(why.clone()),
                _ => None,
            });
            let name = ClusterName::try_from(entry.name.as_str()).ok();
            let unknown = || plan.clusters.get(name.as_ref()?)?.unknown.clone();
            let trouble = match member {
                Some(member) => member.link.trouble().or_else(unknown),
                None => Some("no kubeconfig Secret is set".to_owned()),
            };
            if let Some(why) = &failed {
                not_ready.get_or_insert_with(|| {
                    (reason::APPLY_FAILED, format!("{}: {why}", entry.name))
                });
            }
            if let Some(why) = &stale {
                stale_credentials.get_or_insert_with(|| format!("{}: {why}", entry.name));
            }
            entries.push(EntryFacts {
                name: entry.name.clone(),
                trouble,
                remark: stale.or(failed),
                last_contact: member.and_then(|member| member.last_contact.clone()),
                peers: stands_for
                    .and_then(|id| self.state.planner.as_ref()?.peers_of(record.id(), id)),
            });
        }
        if let Some(why) = &record.misread {
            not_ready = Some((
                Reason::InvalidSpec.as_str(),
                format!("cannot parse the spec: {why}"),
            ));
        }
        if record.deleted_at().is_some() {
            let waits = self
                .cleanup_waits(record)
                .unwrap_or_else(|| "all Peers are deleted".to_owned());
            not_ready = Some((reason::DELETING, waits));
        }
        StatusFacts {
            plan,
            generation: record.generation(),
            before: &record.state.status,
            entries,
            not_ready,
            limited_to: self
                .is_limited()
                .then_some(self.settings.namespace.as_str()),
            stale_credentials,
            now: self.environment.clock.time(),
        }
    }

    fn measure(&self, id: &MeshId, status: &ClusterMeshStatus) {
        let metrics = &self.environment.metrics;
        let labels = MeshLabels {
            namespace: id.namespace.clone(),
            mesh: id.name.clone(),
        };
        let totals = status.totals.unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == kind::READY && condition.status == "True");
        metrics.peers.get_or_create(&labels).set(totals.peers);
        metrics.skipped.get_or_create(&labels).set(totals.skipped);
        metrics.ready.get_or_create(&labels).set(i64::from(ready));
    }
}

/// Computes the status from a plan and the observed results.
pub fn status_of(facts: &StatusFacts<'_>) -> ClusterMeshStatus {
    let clusters: Vec<ClusterStatus> = facts
        .entries
        .iter()
        .map(|entry| cluster_status(facts, entry))
        .collect();
    let totals = Totals {
        clusters: count(clusters.len()),
        peers: clusters
            .iter()
            .map(|cluster| cluster.registered_peers)
            .sum(),
        skipped: clusters.iter().map(|cluster| cluster.skipped_nodes).sum(),
    };
    let mut status = ClusterMeshStatus {
        observed_generation: Some(facts.generation),
        conditions: Some(conditions(facts)),
        totals: Some(totals),
        clusters: Some(clusters),
        held_deletes: held(facts.plan),
    };
    if is_too_large(&status) {
        status
            .clusters
            .iter_mut()
            .flatten()
            .for_each(|cluster| cluster.skipped = None);
    }
    if is_too_large(&status) {
        status
            .clusters
            .iter_mut()
            .flatten()
            .for_each(|cluster| cluster.message = None);
    }
    status
}

fn cluster_status(facts: &StatusFacts<'_>, entry: &EntryFacts) -> ClusterStatus {
    let before = facts
        .before
        .clusters
        .iter()
        .flatten()
        .find(|cluster| cluster.name == entry.name);
    let plan = ClusterName::try_from(entry.name.as_str())
        .ok()
        .and_then(|name| facts.plan.clusters.get(&name));
    let known = plan.filter(|plan| plan.unknown.is_none());
    let reachable = entry.trouble.is_none();
    let flipped = before.and_then(|before| before.reachable) != Some(reachable);
    let last_contact = match (flipped, reachable) {
        (true, false) => entry
            .last_contact
            .clone()
            .or_else(|| before.and_then(|before| before.last_contact.clone())),
        _ => before.and_then(|before| before.last_contact.clone()),
    };
    let message = entry
        .trouble
        .as_ref()
        .or(entry.remark.as_ref())
        .map(|text| printable(text, LONGEST_MESSAGE));
    // Keeps the last known values of an unreadable cluster.
    let seen = known.map(|plan| of_plan(plan, entry));
    ClusterStatus {
        name: entry.name.clone(),
        registered_peers: entry
            .peers
            .map(count)
            .or(before.map(|before| before.registered_peers))
            .unwrap_or_default(),
        reachable: Some(reachable),
        last_contact,
        message,
        ..seen.or_else(|| before.cloned()).unwrap_or_default()
    }
}

fn of_plan(plan: &ClusterPlan, entry: &EntryFacts) -> ClusterStatus {
    let skipped: Vec<SkippedNode> = plan
        .skipped
        .iter()
        .take(MOST_SKIPPED)
        .map(|(node, skip)| SkippedNode {
            node: printable(node.as_str(), 253),
            reason: skip.reason.to_string(),
            message: Some(printable(&skip.message, LONGEST_MESSAGE)),
        })
        .collect();
    ClusterStatus {
        name: entry.name.clone(),
        skipped_nodes: count(plan.skipped.len()),
        nodes: Some(count(plan.nodes)),
        carried_nodes: Some(count(plan.carried.len())),
        anchor_node: plan.anchor.as_ref().map(ToString::to_string),
        skipped: Some(skipped).filter(|skipped| !skipped.is_empty()),
        ..ClusterStatus::default()
    }
}

fn held(plan: &MeshPlan) -> Option<Vec<HeldDeletes>> {
    let mut left = MOST_HELD;
    let mut held: Vec<HeldDeletes> = Vec::new();
    for (target, changes) in &plan.targets {
        let lines = changes.held_lines(target);
        if lines.is_empty() {
            continue;
        }
        let name = plan
            .clusters
            .iter()
            .find(|(_, cluster)| cluster.id.as_ref() == Some(target))
            .map(|(name, _)| name.to_string());
        let peers: Vec<String> = lines.iter().take(left).map(ToString::to_string).collect();
        left -= peers.len();
        held.push(HeldDeletes {
            cluster: name.unwrap_or_else(|| target.to_string()),
            count: count(lines.len()),
            peers,
        });
    }
    Some(held).filter(|held| !held.is_empty())
}

fn conditions(facts: &StatusFacts<'_>) -> Vec<Condition> {
    let mut wanted: BTreeMap<&str, (bool, &str, String)> = BTreeMap::new();
    for condition in &facts.plan.conditions {
        wanted.insert(
            condition.kind,
            (
                condition.status,
                condition.reason,
                condition.message.clone(),
            ),
        );
    }
    if let Some((reason, message)) = &facts.not_ready {
        wanted.insert(kind::READY, (false, reason, message.clone()));
    } else if wanted.get(kind::READY).is_some_and(|ready| ready.0)
        && let Some(entry) = facts.entries.iter().find(|entry| entry.trouble.is_some())
    {
        let why = entry.trouble.clone().unwrap_or_default();
        wanted.insert(
            kind::READY,
            (
                false,
                Reason::ClusterUnreachable.as_str(),
                format!("{}: {why}", entry.name),
            ),
        );
    }
    if let Some(namespace) = facts.limited_to {
        let message = format!(
            "cannot list ClusterMeshes in other namespaces: overlaps and orphans are detected only in {namespace}"
        );
        wanted.insert(kind::SCOPE_LIMITED, (true, reason::LIST_FORBIDDEN, message));
    }
    if let Some(why) = &facts.stale_credentials {
        wanted.insert(
            kind::CREDENTIALS_CURRENT,
            (false, reason::NEW_CREDENTIALS_FAIL, why.clone()),
        );
    }
    let before: Vec<Condition> = facts.before.conditions.iter().flatten().cloned().collect();
    let wanted = wanted.into_iter().map(|(kind, (status, reason, message))| {
        let status = if status { "True" } else { "False" };
        Wanted {
            kind,
            status,
            reason,
            message,
        }
    });
    merged(&before, kind::ALL, wanted, facts.generation, &facts.now)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff;
    use mw_core::kilo::spec::MOST_CLUSTERS;

    use super::*;

    #[test]
    fn a_status_stays_small_whatever_the_clusters_say() {
        let names = (0..u32::try_from(MOST_CLUSTERS).unwrap())
            .map(|nth| format!("{}{nth:04}", "c".repeat(59)));
        let entry = |name| EntryFacts {
            name,
            trouble: Some("x".repeat(5_000)),
            ..EntryFacts::default()
        };
        let facts = StatusFacts {
            plan: &MeshPlan::default(),
            generation: 1,
            before: &ClusterMeshStatus::default(),
            entries: names.map(entry).collect(),
            not_ready: None,
            limited_to: None,
            stale_credentials: None,
            now: Time(jiff::Timestamp::UNIX_EPOCH),
        };
        let status = status_of(&facts);
        assert!(!is_too_large(&status));
        let clusters = status.clusters.unwrap();
        assert_eq!(
            (clusters.len(), clusters[0].reachable),
            (facts.entries.len(), Some(false))
        );
        let few = StatusFacts {
            entries: facts.entries[..2].to_vec(),
            ..facts
        };
        assert_eq!(
            status_of(&few).clusters.unwrap()[0]
                .message
                .as_ref()
                .unwrap()
                .len(),
            LONGEST_MESSAGE + "…".len()
        );
    }
}
