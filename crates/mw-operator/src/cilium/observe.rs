//! Step 1: what the watches and writes say becomes what is known.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use mw_core::cilium::facts::{CaId, Identity};
use mw_core::cilium::object::ObjectId;
use mw_core::names::{ClusterId, Workspace};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::cilium::diff::Operation;
use crate::cilium::engine::{Engine, Event};
use crate::cilium::realm::{Realm, workspace_of};
use crate::cilium::record::{Kind, Record, RecordId};
use crate::cilium::sights::{Sights, Take, Wants};
use crate::cilium::vault::{Search, SecretSight};
use crate::failure::Failure;
use crate::fleet::follow::{Observed, Version};
use crate::fleet::{Feed, Link, Source};
use crate::metrics::FailureLabels;
use crate::mirror::{Item, Noted};
use crate::writer::Writer;

/// A cluster that some object names, or named until a moment ago.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) link: Link<Sights>,
    /// After a swap of credentials: what was seen through the new connection
    /// until it is enough to take the place of what was seen before.
    pub(super) swap: Option<Box<Sights>>,
    /// What is followed through the connection in use.
    pub(super) wants: Wants,
    /// Who may use it: a namespace of the hub, or the workspaces that its
    /// Clusters name; none where everybody may.
    pub(super) owners: BTreeSet<String>,
    /// The private CA of the newest credentials.
    pub(super) newest_ca: Option<CaId>,
    /// What the connection in use was made with, and the one that is to take
    /// its place.
    pub(super) in_use: Made,
    pub(super) swapping: Made,
    /// The UID that the cluster reported last.
    pub(super) uid: Option<String>,
    pub(super) remembered: Option<Identity>,
    /// The credentials through which that was learnt.
    pub(super) learnt_by: Option<[u8; 32]>,
    pub(super) writer: Writer<Operation>,
    /// What the writer was told last.
    pub(super) offered: Vec<Operation>,
    /// How often all was listed when a write was not answered.
    pub(super) lists_in_doubt: Option<Vec<u64>>,
    pub(super) seen_changed: bool,
    pub(super) last_contact: Option<Time>,
    pub(super) unwanted_since: Option<Instant>,
}

/// The credentials that a connection was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Made {
    pub(super) fingerprint: Option<[u8; 32]>,
    pub(super) private_ca: Option<CaId>,
}

impl Member {
    pub(super) fn new(source: Source) -> Member {
        Member {
            link: Link::new(source),
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
            Event::Objects { realm, kind, seen } => self.observe_objects(&realm, kind, *seen),
            Event::Slices(seen) => self.observe_slices(seen),
            Event::Endpoint { url, news } => self.observe_endpoint(&url, news),
            Event::Clusters(seen) => self.observe_clusters(seen),
            Event::Secrets { search, seen } => self.observe_secrets(&search, seen),
            Event::Attempted { cluster, epoch, fingerprint, attempt } => self.observe_attempt(&cluster, epoch, fingerprint, attempt),
            Event::Sight { cluster, epoch, what, take } => self.observe_sight(&cluster, epoch, what, take),
            Event::Written { cluster, epoch, outcome } => self.observe_write(&cluster, epoch, outcome),
            Event::Patched { id, result } => self.observe_patch(&id, result),
            Event::Dialled { link, fingerprint, result } => self.observe_dial(&link, fingerprint, result),
            Event::Read { reader, epoch, result } => self.observe_reading(&reader, epoch, result),
        }
    }

    fn observe_objects(&mut self, realm: &Realm, kind: Kind, seen: Observed<DynamicObject>) {
        let at = (realm.clone(), kind);
        // Said before its endpoint vanished.
        let Some(feed) = self.feeds.get_mut(&at) else { return };
        match seen {
            Observed::Broken(failure) => {
                self.listed.remove(&at);
                self.world_changed = true;
                if feed.fail(&failure) {
                    warn!(error = %failure, "{}s can't be followed", kind.as_str());
                }
                return self.count_failure("hub", &failure);
            }
            // What happened meanwhile is yet to come.
            Observed::Standing => self.hub_relist.ring(),
            Observed::Listed { items, .. } => {
                let agreed = self.replace_records(realm, kind, &items);
                if self.once_listed.insert(at.clone()) || !agreed {
                    self.listed.remove(&at);
                    self.hub_relist.ring();
                } else {
                    self.listed.insert(at.clone());
                }
            }
            Observed::Set { item, version } => self.take_record(realm, kind, &item, version),
            Observed::Gone { item, .. } => self.drop_record(realm, kind, &item),
        }
        if let Some(feed) = self.feeds.get_mut(&at)
            && std::mem::replace(feed, Feed::Standing) != Feed::Standing
        {
            // What could not be written may well be written now.
            self.records.values_mut().for_each(Record::forgive);
            self.touch_status();
        }
    }

    /// Whose an object is.
    fn workspace(&self, realm: &Realm, object: &DynamicObject) -> Workspace {
        match realm {
            Realm::Hub => Workspace::from(self.environment.hub_uid.as_str()),
            Realm::Endpoint(_) => workspace_of(&object.metadata),
        }
    }

    fn read_record(&self, realm: &Realm, kind: Kind, object: &DynamicObject) -> Option<Record> {
        Record::read(realm.clone(), kind, self.workspace(realm, object).as_str(), object)
    }

    /// Takes a list for what there is. An object with our finalizer can't vanish
    /// unless we let it go, and one list may be wrong: the object stays until a
    /// second list does without it. Returns whether nothing is in doubt.
    fn replace_records(&mut self, realm: &Realm, kind: Kind, items: &[DynamicObject]) -> bool {
        let of_it = |record: &Record| record.realm == *realm && record.kind == kind;
        let (mut before, others): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.records).into_iter().partition(|(_, record)| of_it(record));
        self.records = others;
        for item in items {
            let Some(newer) = self.read_record(realm, kind, item) else { continue };
            let same = before.remove(&(kind, newer.id().clone())).filter(|record| record.uid() == newer.uid());
            self.put_record(same, newer);
        }
        self.records_changed = true;
        let doubtful: BTreeMap<_, _> = before.into_iter().filter(|(id, record)| record.is_held() && !self.absent.remove(id)).collect();
        let agreed = doubtful.is_empty();
        self.absent.extend(doubtful.keys().cloned());
        self.records.extend(doubtful);
        agreed
    }

    fn take_record(&mut self, realm: &Realm, kind: Kind, item: &DynamicObject, version: Version) {
        let Some(newer) = self.read_record(realm, kind, item) else { return };
        let id = (kind, newer.id().clone());
        if self.records.get(&id).is_some_and(|known| known.realm == *realm && known.version >= version) {
            return;
        }
        let same = self.records.remove(&id).filter(|record| record.uid() == newer.uid());
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
        self.absent.remove(&id);
        self.records.insert(id, record);
        self.records_changed = true;
        self.touch_status();
    }

    fn drop_record(&mut self, realm: &Realm, kind: Kind, item: &DynamicObject) {
        let meta = &item.metadata;
        let workspace = self.workspace(realm, item);
        let namespace = meta.namespace.as_deref().unwrap_or("default");
        let id = (kind, ObjectId::new(workspace.as_str(), namespace, meta.name.as_deref().unwrap_or_default()));
        if self.records.get(&id).is_some_and(|record| Some(record.uid()) == meta.uid.as_deref()) {
            self.absent.remove(&id);
            self.records.remove(&id);
            self.records_changed = true;
        }
    }

    pub(super) fn observe_patch(&mut self, id: &RecordId, result: Result<Box<DynamicObject>, Failure>) {
        let now = Instant::now();
        let Some(record) = self.records.get_mut(id) else { return };
        record.busy = false;
        let realm = record.realm.clone();
        match result {
            Ok(object) => {
                record.forgive();
                let gone = object.metadata.deletion_timestamp.is_some() && object.metadata.finalizers.iter().flatten().next().is_none();
                match gone {
                    true => self.drop_record(&realm, id.0, &object),
                    false => self.take_record(&realm, id.0, &object, Version::of(object.metadata.resource_version.as_deref())),
                }
            }
            Err(Failure::NotFound(_)) => {
                self.records.remove(id);
                self.records_changed = true;
            }
            Err(failure) => {
                record.failures = record.failures.saturating_add(1);
                record.not_before = Some(now + std::time::Duration::from_millis(100 << record.failures.min(8)));
                warn!(kind = id.0.as_str(), object = %id.1, error = %failure, "writing the object failed");
                self.count_failure("hub", &failure);
            }
        }
        self.touch_status();
    }

    pub(super) fn count_failure(&self, cluster: &str, failure: &Failure) {
        let labels = FailureLabels { cluster: cluster.to_owned(), category: failure.category() };
        self.environment.metrics.failures.get_or_create(&labels).inc();
    }

    fn observe_secrets(&mut self, search: &Search, seen: Observed<(String, Item<SecretSight>)>) {
        let Some(vault) = self.vaults.get_mut(search) else { return };
        match vault.secrets.observe(seen) {
            Noted::Nothing => self.world_changed |= self.awaits_a_list(),
            Noted::Relist => self.hub_relist.ring(),
            Noted::Changed => self.records_changed = true,
            Noted::Failed { failure, lost } => {
                if lost {
                    warn!(namespace = search.namespace, error = %failure, "Secrets can't be followed");
                    self.records_changed = true;
                }
                self.count_failure("hub", &failure);
            }
        }
    }

    pub(super) fn member_at(&mut self, cluster: &ClusterId, epoch: u64) -> Option<&mut Member> {
        self.members.get_mut(cluster).filter(|member| member.link.epoch == epoch)
    }

    fn observe_sight(&mut self, cluster: &ClusterId, epoch: u64, what: &'static str, take: Take) {
        let time = self.environment.clock.time();
        let Some(member) = self.member_at(cluster, epoch) else { return };
        let sights = member.swap.as_deref_mut().unwrap_or(&mut member.link.feeds);
        let was_silent = sights.silence().is_some();
        let noted = take(sights);
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
                    warn!(%cluster, error = %failure, "its {what} can't be followed");
                }
                self.count_failure(cluster.as_str(), &failure);
            }
        }
        let Some(member) = self.members.get_mut(cluster) else { return };
        let sights = member.swap.as_deref().unwrap_or(&member.link.feeds);
        if was_silent && sights.silence().is_none() {
            info!(%cluster, "cluster can be read");
            // What failed before may well work now.
            member.writer.forgive();
        }
        debug!(%cluster, what, "seen");
        self.complete_swap(cluster);
        self.clear_doubt(cluster);
    }

    /// What came of a write that was never answered shows once all was listed.
    fn clear_doubt(&mut self, cluster: &ClusterId) {
        let Some(member) = self.members.get_mut(cluster).filter(|member| member.swap.is_none()) else { return };
        let Some(before) = &member.lists_in_doubt else { return };
        let now = member.link.feeds.lists(member.wants);
        if now.iter().zip(before).all(|(now, before)| now > before || [*now, *before].contains(&u64::MAX)) {
            member.lists_in_doubt = None;
            member.writer.was_listed();
        }
    }

    /// Everything was listed through the new connection: it counts from now on.
    fn complete_swap(&mut self, cluster: &ClusterId) {
        let Some(member) = self.members.get_mut(cluster) else { return };
        if let Some(sights) = member.swap.take_if(|sights| !crate::fleet::Feeds::is_starting(sights.as_ref())) {
            member.link.feeds = *sights;
            member.in_use = std::mem::take(&mut member.swapping);
            member.seen_changed = true;
        }
    }
}
