//! Step 1: applies the events of watches and writes to the known state.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use mw_core::cilium::facts::{CaId, Identity};
use mw_core::cilium::object::ObjectId;
use mw_core::names::{ClusterId, Workspace};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::cilium::cluster_cache::{ClusterCache, Take, Wants};
use crate::cilium::diff::Operation;
use crate::cilium::engine::{Engine, Event};
use crate::cilium::kubeconfig_secrets::{CachedSecret, Search};
use crate::cilium::object_source::{ObjectSource, workspace_of};
use crate::cilium::record::{Kind, Record, RecordId};
use crate::failure::Failure;
use crate::fleet::follow::{Observed, Version};
use crate::fleet::{ClusterLink, Feed, HUB, Source};
use crate::metrics::FailureLabels;
use crate::watch_cache::{Item, Noted};
use crate::writer::Writer;

/// A cluster that some object names, or named until recently.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) link: ClusterLink<ClusterCache>,
    /// State observed through a new connection after a change of credentials;
    /// replaces `link.feeds` once it is complete.
    pub(super) swap: Option<Box<ClusterCache>>,
    /// Optional kinds watched through the connection in use.
    pub(super) wants: Wants,
    /// Owners: a namespace of the hub, or the workspaces that its Clusters name;
    /// empty if anybody may use it.
    pub(super) owners: BTreeSet<String>,
    /// Private CA of the newest credentials.
    pub(super) newest_ca: Option<CaId>,
    /// Credentials of the connection in use; `swapping` has those of its
    /// replacement.
    pub(super) in_use: Made,
    pub(super) swapping: Made,
    /// UID that the cluster reported last.
    pub(super) uid: Option<String>,
    pub(super) remembered: Option<Identity>,
    /// Credentials through which `uid` and `remembered` were read.
    pub(super) learnt_by: Option<[u8; 32]>,
    pub(super) writer: Writer<Operation>,
    /// Operations last handed to the writer.
    pub(super) offered: Vec<Operation>,
    /// List counts at the time of a write that got no answer.
    pub(super) lists_in_doubt: Option<Vec<u64>>,
    pub(super) seen_changed: bool,
    pub(super) last_contact: Option<Time>,
    pub(super) unwanted_since: Option<Instant>,
}

/// Credentials that a connection was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Made {
    pub(super) fingerprint: Option<[u8; 32]>,
    pub(super) private_ca: Option<CaId>,
}

impl Member {
    pub(super) fn new(source: Source) -> Member {
        Member {
            link: ClusterLink::new(source),
            swap: None,
            wants: Wants::default(),
            owners: BTreeSet::new(),
            newest_ca: None,
            in_use: Made::default(),
            swapping: Made::default(),
            uid: None,
            remembered: None,
            learnt_by: None,
            writer: Writer::default(),
            offered: Vec::new(),
            lists_in_doubt: None,
            seen_changed: true,
            last_contact: None,
            unwanted_since: None,
        }
    }
}

impl Engine {
    pub(super) fn observe(&mut self, event: Event) {
        match event {
            Event::Objects {
                object_source,
                kind,
                seen,
            } => self.observe_objects(&object_source, kind, *seen),
            Event::Slices(seen) => self.observe_slices(seen),
            Event::Endpoint { url, news } => self.observe_endpoint(&url, news),
            Event::Clusters(seen) => self.observe_clusters(seen),
            Event::Secrets { search, seen } => self.observe_secrets(&search, seen),
            Event::Attempted {
                cluster,
                epoch,
                fingerprint,
                attempt,
            } => self.observe_attempt(&cluster, epoch, fingerprint, attempt),
            Event::Cached {
                cluster,
                epoch,
                what,
                take,
            } => self.observe_sight(&cluster, epoch, what, take),
            Event::Written {
                cluster,
                epoch,
                outcome,
            } => self.observe_write(&cluster, epoch, outcome),
            Event::Searched { kind, name, found } => self.observe_search(kind, name, &found),
            Event::Patched { id, result } => self.observe_patch(&id, result),
            Event::Dialled {
                link,
                fingerprint,
                result,
            } => self.observe_dial(&link, fingerprint, result),
            Event::Read {
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
        let Some(feed) = self.feeds.get_mut(&at) else {
            return;
        };
        match seen {
            Observed::Broken(failure) => {
                self.listed.remove(&at);
                self.world_changed = true;
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
        if let Some(feed) = self.feeds.get_mut(&at)
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
        let of_it = |record: &Record| record.object_source == *object_source && record.kind == kind;
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
        self.records_changed = true;
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
            .filter(|record| record.object_source != *object_source);
        known.is_some_and(|record| {
            !self.is_stray(record) && self.listed.contains(&(record.object_source.clone(), id.0))
        })
    }

    fn take_record(
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
            known.object_source == *object_source
                && known.astray.is_none()
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
        let id = (newer.kind, newer.id().clone());
        let record = match before {
            Some(mut record) => {
                record.renew(newer);
                record
            }
            None => newer,
        };
        self.records.insert(id, record);
        self.records_changed = true;
        self.touch_status();
    }

    fn drop_record(&mut self, object_source: &ObjectSource, kind: Kind, item: &DynamicObject) {
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
            Some(record.uid()) == meta.uid.as_deref() && record.object_source == *object_source
        };
        if !self.records.get(&id).is_some_and(is_it) {
            return;
        }
        let Some(mut record) = self.records.remove(&id) else {
            return;
        };
        self.records_changed = true;
        if record.must_be_somewhere() && meta.deletion_timestamp.is_none() {
            self.mark_unknown(&mut record);
            self.records.insert(id, record);
        }
    }

    pub(super) fn observe_patch(
        &mut self,
        id: &RecordId,
        result: Result<Box<DynamicObject>, Failure>,
    ) {
        let now = Instant::now();
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        record.busy = false;
        let object_source = record.object_source.clone();
        match result {
            Ok(object) => {
                record.forgive();
                let gone = object.metadata.deletion_timestamp.is_some()
                    && object.metadata.finalizers.iter().flatten().next().is_none();
                match gone {
                    true => self.drop_record(&object_source, id.0, &object),
                    false => self.take_record(
                        &object_source,
                        id.0,
                        &object,
                        Version::of(object.metadata.resource_version.as_deref()),
                    ),
                }
            }
            // In kcp its workspace may have moved: the next lists will tell.
            Err(Failure::NotFound(_)) if object_source == ObjectSource::Hub => {
                let kept = self.records.remove(id).and_then(|record| self.kept(record));
                self.records.extend(kept.map(|record| (id.clone(), record)));
                self.records_changed = true;
            }
            Err(failure) => {
                record.failures = record.failures.saturating_add(1);
                record.not_before =
                    Some(now + std::time::Duration::from_millis(100 << record.failures.min(8)));
                warn!(kind = id.0.as_str(), object = %id.1, error = %failure, "failed to write the object");
                self.count_failure(HUB, &failure);
            }
        }
        self.touch_status();
    }

    pub(super) fn count_failure(&self, cluster: &str, failure: &Failure) {
        let metrics = &self.environment.metrics;
        let labels = FailureLabels {
            cluster: metrics.cluster(&ClusterId::from(cluster)),
            category: failure.category(),
        };
        metrics.failures.get_or_create(&labels).inc();
    }

    fn observe_secrets(&mut self, search: &Search, seen: Observed<(String, Item<CachedSecret>)>) {
        let Some(secrets_of) = self.kubeconfig_secrets.get_mut(search) else {
            return;
        };
        match secrets_of.secrets.observe(seen) {
            Noted::Nothing => self.world_changed |= self.awaits_a_list(),
            Noted::Relist => self.hub_relist.ring(),
            Noted::Changed => self.records_changed = true,
            Noted::Failed { failure, lost } => {
                if lost {
                    warn!(namespace = search.namespace, error = %failure, "Secret watch failed");
                    self.records_changed = true;
                }
                self.count_failure(HUB, &failure);
            }
        }
    }

    pub(super) fn member_at(&mut self, cluster: &ClusterId, epoch: u64) -> Option<&mut Member> {
        self.members
            .get_mut(cluster)
            .filter(|member| member.link.epoch == epoch)
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
            Noted::Changed => member.seen_changed = true,
            Noted::Relist => member.link.relist(),
            Noted::Failed { failure, lost } => {
                member.seen_changed |= lost;
                if lost {
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
        let Some(before) = &member.lists_in_doubt else {
            return;
        };
        let now = member.link.feeds.lists(member.wants);
        if now
            .iter()
            .zip(before)
            .all(|(now, before)| now > before || [*now, *before].contains(&u64::MAX))
        {
            member.lists_in_doubt = None;
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
            member.in_use = std::mem::take(&mut member.swapping);
            member.seen_changed = true;
        }
    }
}
