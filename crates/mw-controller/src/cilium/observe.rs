//! Step 1: applies the events of watches and writes to the known state.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use mw_core::cilium::object::ObjectId;
use mw_core::names::{ClusterId, Workspace};
use tracing::{debug, info, warn};

use crate::cilium::cluster_cache::Take;
use crate::cilium::engine::{Engine, Input};
use crate::cilium::kubeconfig_secrets::{CachedSecret, Search};
use crate::cilium::object_source::{ObjectSource, workspace_of};
use crate::cilium::record::{Kind, Record, RecordId};
use crate::fleet::follow::{Observed, Version};
use crate::fleet::{Feed, HUB};
use crate::watch_cache::{Item, Noted};

impl Engine {
    pub(super) fn observe(&mut self, input: Input) {
        match input {
            Input::Objects {
                object_source,
                kind,
                seen,
            } => self.observe_objects(&object_source, kind, *seen),
            Input::Slices(seen) => self.observe_slices(seen),
            Input::Endpoint { url, news } => self.observe_endpoint(&url, news),
            Input::Clusters(seen) => self.observe_clusters(seen),
            Input::Secrets { search, seen } => self.observe_secrets(&search, seen),
            Input::Cached {
                cluster,
                epoch,
                what,
                take,
            } => self.observe_sight(&cluster, epoch, what, take),
            Input::Dialled {
                link,
                fingerprint,
                result,
            } => self.observe_dial(&link, fingerprint, result),
            Input::Read {
                reader,
                epoch,
                result,
            } => self.observe_reading(&reader, epoch, result),
        }
    }

    fn observe_objects(
        &mut self,
        object_source: &ObjectSource,
        kind: Kind,
        seen: Observed<DynamicObject>,
    ) {
        let at = (object_source.clone(), kind);
        // A late event of an endpoint that was removed.
        let Some(feed) = self.state.lists.feeds.get_mut(&at) else {
            return;
        };
        match seen {
            Observed::Broken(failure) => {
                self.state.lists.listed.remove(&at);
                self.changes.inputs = true;
                if feed.fail(&failure) {
                    warn!(place = %object_source, error = %failure, "{} watch failed", kind.as_str());
                    self.touch_status();
                }
                return self.count_failure(HUB, &failure);
            }
            // The watch is back: list what it missed.
            Observed::Established => self.hub_relist.ring(),
            Observed::Listed { items, .. } => {
                self.replace_records(object_source, kind, &items);
                self.note_list(&at);
            }
            Observed::Set { item, version } => {
                self.take_record(object_source, kind, &item, version)
            }
            Observed::Gone { item, .. } => self.drop_record(object_source, kind, &item),
        }
        if let Some(feed) = self.state.lists.feeds.get_mut(&at)
            && std::mem::replace(feed, Feed::Established) != Feed::Established
        {
            // The server answers again: retry failed writes at once.
            self.records.values_mut().for_each(Record::forgive);
            self.touch_status();
        }
    }

    /// Returns the workspace of an object.
    fn workspace(&self, object_source: &ObjectSource, object: &DynamicObject) -> Workspace {
        match object_source {
            ObjectSource::Hub => Workspace::from(self.environment.hub_uid.as_str()),
            ObjectSource::Endpoint(_) => workspace_of(&object.metadata),
        }
    }

    fn read_record(
        &self,
        object_source: &ObjectSource,
        kind: Kind,
        object: &DynamicObject,
    ) -> Option<Record> {
        Record::read(
            object_source.clone(),
            kind,
            self.workspace(object_source, object).as_str(),
            object,
        )
    }

    /// Replaces the records of a kind by a list. An object with our finalizer can't
    /// disappear before we remove the finalizer, and lists may be wrong: it is kept
    /// until its absence is confirmed.
    fn replace_records(
        &mut self,
        object_source: &ObjectSource,
        kind: Kind,
        items: &[DynamicObject],
    ) {
        let of_it = |record: &Record| {
            record.state.object_source == *object_source && record.state.kind == kind
        };
        let (mut before, others): (BTreeMap<_, _>, _) = std::mem::take(&mut self.records)
            .into_iter()
            .partition(|(_, record)| of_it(record));
        self.records = others;
        for item in items {
            let Some(newer) = self.read_record(object_source, kind, item) else {
                continue;
            };
            let id = (kind, newer.id().clone());
            if self.is_kept_elsewhere(&id, object_source) {
                continue;
            }
            let known = before.remove(&id).or_else(|| self.records.remove(&id));
            self.put_record(known.filter(|record| record.uid() == newer.uid()), newer);
        }
        self.changes.records = true;
        let kept: BTreeMap<_, _> = before
            .into_iter()
            .filter_map(|(id, record)| Some((id, self.kept(record)?)))
            .collect();
        self.records.extend(kept);
    }

    /// Returns an object that is missing from a list if it may still exist.
    fn kept(&mut self, mut record: Record) -> Option<Record> {
        if !record.must_be_somewhere() || self.is_gone_from(&record) {
            return None;
        }
        self.mark_unknown(&mut record);
        Some(record)
    }

    /// Reports whether another endpoint shows the object. A workspace may be
    /// visible through two endpoints while it moves.
    fn is_kept_elsewhere(&self, id: &RecordId, object_source: &ObjectSource) -> bool {
        let known = self
            .records
            .get(id)
            .filter(|record| record.state.object_source != *object_source);
        known.is_some_and(|record| {
            !self.is_stray(record)
                && self
                    .state
                    .lists
                    .listed
                    .contains(&(record.state.object_source.clone(), id.0))
        })
    }

    pub(super) fn take_record(
        &mut self,
        object_source: &ObjectSource,
        kind: Kind,
        item: &DynamicObject,
        version: Version,
    ) {
        let Some(newer) = self.read_record(object_source, kind, item) else {
            return;
        };
        let id = (kind, newer.id().clone());
        let is_old = |known: &Record| {
            known.state.object_source == *object_source
                && known.state.astray.is_none()
                && known.version >= version
        };
        if self.is_kept_elsewhere(&id, object_source) || self.records.get(&id).is_some_and(is_old) {
            return;
        }
        let same = self
            .records
            .remove(&id)
            .filter(|record| record.uid() == newer.uid());
        self.put_record(same, newer);
    }

    fn put_record(&mut self, before: Option<Record>, newer: Record) {
        let id = (newer.state.kind, newer.id().clone());
        let record = match before {
            Some(mut record) => {
                record.renew(newer);
                record
            }
            None => newer,
        };
        self.records.insert(id, record);
        self.changes.records = true;
        self.touch_status();
    }

    pub(super) fn drop_record(
        &mut self,
        object_source: &ObjectSource,
        kind: Kind,
        item: &DynamicObject,
    ) {
        let meta = &item.metadata;
        let workspace = self.workspace(object_source, item);
        let namespace = meta.namespace.as_deref().unwrap_or("default");
        let id = (
            kind,
            ObjectId::new(
                workspace.as_str(),
                namespace,
                meta.name.as_deref().unwrap_or_default(),
            ),
        );
        let is_it = |record: &Record| {
            Some(record.uid()) == meta.uid.as_deref()
                && record.state.object_source == *object_source
        };
        if !self.records.get(&id).is_some_and(is_it) {
            return;
        }
        let Some(mut record) = self.records.remove(&id) else {
            return;
        };
        self.changes.records = true;
        if record.must_be_somewhere() && meta.deletion_timestamp.is_none() {
            self.mark_unknown(&mut record);
            self.records.insert(id, record);
        }
    }

    /// Returns the source in which an object was observed and is written.
    pub(super) fn source_of(&self, id: &RecordId) -> Option<ObjectSource> {
        Some(self.records.get(id)?.state.object_source.clone())
    }

    /// Takes in that an object was not found. Returns false in kcp, where its workspace may
    /// have moved: the next lists will tell.
    pub(super) fn miss_record(&mut self, id: &RecordId) -> bool {
        if self.source_of(id) != Some(ObjectSource::Hub) {
            return false;
        }
        let kept = self.records.remove(id).and_then(|record| self.kept(record));
        self.records.extend(kept.map(|record| (id.clone(), record)));
        self.changes.records = true;
        true
    }

    fn observe_secrets(&mut self, search: &Search, seen: Observed<(String, Item<CachedSecret>)>) {
        let Some(secrets_of) = self.state.kubeconfig_secrets.get_mut(search) else {
            return;
        };
        match secrets_of.secrets.observe(seen) {
            Noted::Nothing => self.changes.inputs |= self.awaits_a_list(),
            Noted::Relist => self.hub_relist.ring(),
            Noted::Changed => self.changes.records = true,
            Noted::Failed { failure, lost } => {
                if lost {
                    warn!(namespace = search.namespace, error = %failure, "Secret watch failed");
                    self.changes.records = true;
                }
                self.count_failure(HUB, &failure);
            }
        }
    }

    fn observe_sight(&mut self, cluster: &ClusterId, epoch: u64, what: &'static str, take: Take) {
        let time = self.environment.clock.time();
        let Some(member) = self.member_at(cluster, epoch) else {
            return;
        };
        let cluster_cache = member.swap.as_deref_mut().unwrap_or(&mut member.link.feeds);
        let was_silent = cluster_cache.silence().is_some();
        let noted = take(cluster_cache);
        let answers = !matches!(&noted, Noted::Failed { failure, .. } if !failure.is_an_answer());
        if answers {
            member.last_contact = Some(time);
        }
        match noted {
            Noted::Nothing => {}
            Noted::Changed => _ = self.changes.clusters.insert(cluster.clone()),
            Noted::Relist => member.link.relist(),
            Noted::Failed { failure, lost } => {
                if lost {
                    self.changes.clusters.insert(cluster.clone());
                    warn!(cluster = %self.environment.names.of(cluster), error = %failure, "{what} watch failed");
                }
                self.count_failure(cluster.as_str(), &failure);
            }
        }
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        let cluster_cache = member.swap.as_deref().unwrap_or(&member.link.feeds);
        if was_silent && cluster_cache.silence().is_none() {
            info!(cluster = %self.environment.names.of(cluster), "cluster readable again");
            // Retry failed writes at once.
            member.writer.forgive();
        }
        debug!(cluster = %self.environment.names.of(cluster), what, "watch event");
        self.complete_swap(cluster);
        self.clear_doubt(cluster);
    }

    /// Settles writes that got no answer once everything has been listed again.
    fn clear_doubt(&mut self, cluster: &ClusterId) {
        let Some(member) = self
            .members
            .get_mut(cluster)
            .filter(|member| member.swap.is_none())
        else {
            return;
        };
        let Some(before) = &member.state.lists_in_doubt else {
            return;
        };
        let now = member.link.feeds.lists(member.state.wants);
        if now
            .iter()
            .zip(before)
            .all(|(now, before)| now > before || [*now, *before].contains(&u64::MAX))
        {
            member.state.lists_in_doubt = None;
            member.writer.was_listed();
        }
    }

    /// Switches to the new connection once everything is listed through it.
    fn complete_swap(&mut self, cluster: &ClusterId) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        if let Some(cluster_cache) = member
            .swap
            .take_if(|cluster_cache| !crate::fleet::Feeds::is_starting(cluster_cache.as_ref()))
        {
            member.link.feeds = *cluster_cache;
            member.state.in_use = std::mem::take(&mut member.state.swapping);
            self.changes.clusters.insert(cluster.clone());
        }
    }
}
