//! Objects that disappear without being deleted. An object with our finalizer can't
//! disappear before we remove the finalizer, and a server may give wrong answers for
//! minutes: what such an object wrote stays until its absence is confirmed.
//!
//! A process that starts does not know the objects that the server hides from it.
//! Until two lists a resync apart agree, it removes only what an object that it knows
//! has left or is leaving.

use std::collections::BTreeSet;
use std::time::Duration;

use mw_core::cilium::plan::{Plan, SecretApply, TargetPlan};
use mw_core::names::ClusterId;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cilium::engine::Engine;
use crate::cilium::object_source::ObjectSource;
use crate::cilium::record::{Astray, Kind, Record, RecordId};
use crate::fleet::secret_of;

impl Engine {
    /// Interval between two answers that confirm each other: a full resync with the
    /// shortest jitter.
    fn apart(&self) -> Duration {
        self.settings.resync.mul_f64(0.9)
    }

    /// Records a list of a kind. The first one alone never causes a deletion.
    pub(super) fn note_list(&mut self, at: &(ObjectSource, Kind)) {
        let (now, apart) = (self.turned_at, self.apart());
        match self.state.lists.first_listed.get_mut(at) {
            None => {
                self.state.lists.first_listed.insert(at.clone(), Some(now));
                self.state.lists.listed.remove(at);
                self.hub_relist.ring();
            }
            Some(first) => {
                first.take_if(|first| now.duration_since(*first) >= apart);
                self.state.lists.listed.insert(at.clone());
            }
        }
    }

    /// Searches the hub by name for objects that disappeared: once, and again a resync
    /// later.
    pub(super) fn look_for_missing_objects(&mut self) {
        let (now, apart) = (self.turned_at, self.apart());
        let due = |astray: &Astray| astray.searched.is_none_or(|at| now >= at + apart);
        let missing = self.records.values().filter(|record| {
            record.is_missing_from_hub() && record.state.astray.as_ref().is_some_and(due)
        });
        let needed: BTreeSet<(Kind, String)> = missing
            .map(|record| (record.state.kind, record.id().name.clone()))
            .collect();
        self.search(&needed);
    }

    /// Returns when an absence is confirmed by a second search.
    pub(super) fn absences_due(&self) -> Option<Instant> {
        let searched = self
            .records
            .values()
            .filter_map(|record| record.state.astray?.searched);
        searched
            .map(|at| at + self.apart())
            .filter(|at| *at > self.turned_at)
            .min()
    }

    pub(super) fn take_searched(&mut self, kind: Kind, name: &str, namespaces: &BTreeSet<String>) {
        let is_missing = |record: &Record| {
            record.is_missing_from_hub() && record.state.kind == kind && record.id().name == name
        };
        let missing: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, record)| is_missing(record))
            .map(|(id, _)| id.clone())
            .collect();
        for id in missing {
            if namespaces.contains(&id.1.namespace) {
                // The list or event without it was wrong.
                self.hub_relist.ring();
            } else {
                self.miss(&id);
            }
        }
    }

    /// Forgets an object that two searches a resync apart did not find.
    fn miss(&mut self, id: &RecordId) {
        let (now, apart) = (self.turned_at, self.apart());
        let Some(astray) = self
            .records
            .get_mut(id)
            .and_then(|record| record.state.astray.as_mut())
        else {
            return;
        };
        let first = *astray.searched.get_or_insert(now);
        if now.duration_since(first) >= apart {
            info!(kind = id.0.as_str(), object = %id.1, "object no longer exists");
            self.records.remove(id);
            self.changes.records = true;
            self.touch_status();
        }
    }

    /// Plans, and holds what would be removed in a cluster for no known reason while an
    /// object may be hidden.
    pub(super) fn plan_cautiously(&mut self) -> Plan {
        let plan = mw_core::cilium::plan(&self.state.world);
        if self.state.lists.first_listed.values().all(Option::is_none) {
            return plan;
        }
        let held: BTreeSet<ClusterId> = plan
            .targets
            .iter()
            .filter(|(cluster, target)| !self.explains(cluster, target))
            .map(|(cluster, _)| cluster.clone())
            .collect();
        for cluster in held.difference(&self.state.held) {
            warn!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), "keys or annotations belong to no known object: they stay until a later list confirms that");
        }
        self.state.held = held;
        if self.state.held.is_empty() {
            return plan;
        }
        self.state
            .world
            .settled
            .retain(|cluster| !self.state.held.contains(cluster));
        mw_core::cilium::plan(&self.state.world)
    }

    /// Reports whether all removals in a cluster are due to objects that are known.
    fn explains(&self, cluster: &ClusterId, target: &TargetPlan) -> bool {
        let keys = target.secrets.values().any(SecretApply::disconnects)
            || target
                .users
                .as_ref()
                .is_some_and(|users| !users.removed.is_empty());
        let annotations = target
            .services
            .values()
            .any(|apply| !apply.removed.is_empty());
        let leaving = |kinds: &[Kind]| {
            self.records.values().any(|record| {
                kinds.contains(&record.state.kind) && self.is_leaving(record, cluster)
            })
        };
        (!keys || leaving(&[Kind::Binding]))
            && (!annotations || leaving(&[Kind::Binding, Kind::Service]))
    }

    /// Reports whether an object may be the reason for removals in a cluster: it is
    /// being deleted, has changed, or left a cluster that it touched.
    fn is_leaving(&self, record: &Record, cluster: &ClusterId) -> bool {
        let Some(common) = self.resolved(record.state.kind, record.id()) else {
            return false;
        };
        let names = self.refs(record);
        let left: BTreeSet<&String> = names
            .iter()
            .filter(|name| self.has_left(record, name) || common.is_revoked(name))
            .collect();
        // Another owner of a shared cluster sees the same keys.
        let uid = |id: &ClusterId| self.state.world.origins.get(id).map(|origin| &origin.uid);
        let of_it = |name: &String| {
            common
                .cluster(name)
                .is_some_and(|id| id == cluster || uid(id).is_some() && uid(id) == uid(cluster))
        };
        match record.state.kind {
            _ if record.is_deleted() || record.state.changed => names.iter().any(of_it),
            // Its keys lead to and from the cluster that it left.
            Kind::Binding => !left.is_empty() && names.iter().any(of_it),
            Kind::Service | Kind::Intent => left.into_iter().any(of_it),
        }
    }
}
