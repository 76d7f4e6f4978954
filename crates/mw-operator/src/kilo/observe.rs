//! Step 1: what the watches and writes say becomes what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node as KubeNode, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use mw_api::clustermesh::ClusterMesh;
use mw_api::convert::{node_facts, peer_facts};
use mw_api::peer::Peer;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::Listing;
use mw_core::names::{ClusterId, MeshId, NodeName, PeerName};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::failure::Failure;
use crate::fleet::follow::{Manner, Observed, Outlet, Scope, Version, follow};
use crate::fleet::{Credentials, Feed, Link, Live, Source, why};
use crate::kilo::apply::Writer;
use crate::kilo::engine::{Engine, Event, ShownClient, Trial};
use crate::kilo::identity::sample;
use crate::kilo::recent::Recent;
use crate::kilo::record::Record;
use crate::kubeconfig::{Access, Server, inspect};
use crate::metrics::FailureLabels;

/// More Nodes than Kubernetes itself supports twice over.
const MOST_NODES: usize = 10_000;
/// Keys that are tried where the entry names none.
const KEYS: [&str; 3] = ["value", "kubeconfig", "admin.conf"];

/// A cluster that some mesh names, or named until a moment ago.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) link: Link,
    pub(super) writer: Writer,
    pub(super) recent: Recent,
    /// Since when Nodes have been without the agent's annotations.
    pub(super) bare: BTreeMap<NodeName, Timestamp>,
    /// When we last wrote the endpoint of a Peer.
    pub(super) endpoints: BTreeMap<PeerName, Timestamp>,
    /// UIDs of some of its Nodes.
    pub(super) uids: Option<BTreeSet<String>>,
    pub(super) last_contact: Option<Time>,
    /// Since when no mesh has named it.
    pub(super) unwanted_since: Option<Instant>,
}

impl Member {
    pub(super) fn new(source: Source) -> Member {
        Member {
            link: Link::new(source),
            writer: Writer::default(),
            recent: Recent::default(),
            bare: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            uids: None,
            last_contact: None,
            unwanted_since: None,
        }
    }

    fn seen_bare(&mut self, node: Node, now: Timestamp) -> Node {
        if !node.is_bare() {
            self.bare.remove(&node.name);
            return node;
        }
        let since = *self.bare.entry(node.name.clone()).or_insert(now);
        Node { bare_since: Some(since), ..node }
    }

    pub(super) fn with_endpoint_time(&self, facts: PeerFacts) -> PeerFacts {
        let endpoint_written = self.endpoints.get(&PeerName::from(facts.name.as_str())).copied();
        PeerFacts { endpoint_written, ..facts }
    }
}

fn read_node(node: KubeNode) -> Node {
    Node::read(node_facts(&node))
}

fn read_peer(peer: Peer) -> PeerFacts {
    peer_facts(&peer)
}

impl Engine {
    pub(super) fn follow_meshes(&mut self) {
        let api = Api::all_with(self.environment.hub.clone(), &ApiResource::erase::<ClusterMesh>(&()));
        self.spawn_mesh_watch(api, true);
    }

    fn spawn_mesh_watch(&mut self, api: Api<DynamicObject>, wide: bool) -> tokio::task::AbortHandle {
        let manner = Manner { scope: Scope::default(), backoff: self.backoff(), relist: self.hub_relist.subscribe() };
        let outlet = Outlet { events: self.sender.clone(), wrap: move |seen| Event::Meshes { wide, seen } };
        self.tasks.spawn(follow(api, manner, |object| object, outlet))
    }

    pub(super) fn observe(&mut self, event: Event) {
        match event {
            Event::Meshes { wide, seen } => self.observe_meshes(wide, seen),
            Event::Secret { cluster, seen } => self.observe_secret(&cluster, seen),
            Event::Connected { cluster, epoch, client } => {
                if self.member_at(&cluster, epoch).is_some() {
                    self.connect_through(&cluster, client);
                }
            }
            Event::NotConnected { cluster, epoch, why } => self.observe_trial(&cluster, epoch, &why),
            Event::Nodes { cluster, epoch, seen } => self.observe_nodes(&cluster, epoch, seen),
            Event::Peers { cluster, epoch, seen } => self.observe_peers(&cluster, epoch, seen),
            Event::Written { cluster, epoch, outcome } => self.observe_write(&cluster, epoch, outcome),
            Event::Patched { mesh, result } => self.observe_patch(&mesh, result),
        }
    }

    fn member_at(&mut self, cluster: &ClusterId, epoch: u64) -> Option<&mut Member> {
        self.members.get_mut(cluster).filter(|member| member.link.epoch == epoch)
    }

    fn observe_meshes(&mut self, wide: bool, seen: Observed<DynamicObject>) {
        match seen {
            Observed::Broken(failure) => return self.meshes_broken(wide, failure),
            Observed::Standing => {}
            Observed::Listed { items, .. } => {
                self.listed = true;
                self.replace_records(items);
            }
            Observed::Set { item, version } => self.take_record(&item, version),
            Observed::Gone { item, .. } => self.drop_record(&item),
        }
        if wide {
            self.wide = Feed::Standing;
            if let Some(narrow) = self.narrow.take() {
                info!("ClusterMeshes of all namespaces can be listed again");
                narrow.abort();
                self.records_changed = true;
            }
        }
    }

    fn meshes_broken(&mut self, wide: bool, failure: Failure) {
        self.count_failure("hub", &failure);
        if !wide {
            warn!(error = %failure, namespace = self.settings.namespace, "ClusterMeshes can't be followed");
            return;
        }
        if self.wide.fail(&failure) {
            warn!(error = %failure, "ClusterMeshes of all namespaces can't be followed");
        }
        if matches!(failure, Failure::Forbidden(_)) && self.narrow.is_none() {
            let resource = ApiResource::erase::<ClusterMesh>(&());
            let api = Api::namespaced_with(self.environment.hub.clone(), &self.settings.namespace, &resource);
            self.narrow = Some(self.spawn_mesh_watch(api, false));
        }
    }

    fn replace_records(&mut self, items: Vec<DynamicObject>) {
        let mut before = std::mem::take(&mut self.records);
        for item in items {
            let newer = Record::read(&item);
            let same = before.remove(newer.id()).filter(|record| record.uid() == newer.uid());
            self.put_record(same, newer);
        }
        self.records_changed = true;
    }

    fn take_record(&mut self, item: &DynamicObject, version: Version) {
        let newer = Record::read(item);
        let before = self.records.remove(newer.id());
        if let Some(known) = &before
            && known.version >= version
        {
            _ = before.map(|known| self.records.insert(known.id().clone(), known));
            return;
        }
        let same = before.filter(|record| record.uid() == newer.uid());
        self.put_record(same, newer);
    }

    fn put_record(&mut self, before: Option<Record>, newer: Record) {
        let id = newer.id().clone();
        self.touch_status();
        let record = match before {
            Some(mut record) => {
                let triggered = record.trigger() != newer.trigger();
                self.records_changed |= record.renew(newer);
                if triggered {
                    info!(mesh = %id, "a full resync was asked for");
                    self.relist_clusters_of(&record);
                }
                record
            }
            None => {
                self.records_changed = true;
                newer.recalled()
            }
        };
        self.records.insert(id, record);
    }

    fn relist_clusters_of(&self, record: &Record) {
        let ids: BTreeSet<ClusterId> = record.sources().map(|(_, source)| source.id()).collect();
        self.members.iter().filter(|(id, _)| ids.contains(id)).for_each(|(_, member)| member.link.relist());
    }

    fn drop_record(&mut self, item: &DynamicObject) {
        let meta = &item.metadata;
        let id = MeshId::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        if self.records.get(&id).is_some_and(|record| Some(record.uid()) == meta.uid.as_deref()) {
            self.records.remove(&id);
            self.records_changed = true;
        }
    }

    fn observe_patch(&mut self, mesh: &MeshId, result: Result<Box<DynamicObject>, Failure>) {
        let now = Instant::now();
        let Some(record) = self.records.get_mut(mesh) else { return };
        record.busy = false;
        match result {
            Ok(object) => {
                (record.failures, record.not_before) = (0, None);
                let gone = object.metadata.deletion_timestamp.is_some() && object.metadata.finalizers.iter().flatten().next().is_none();
                match gone {
                    true => self.drop_record(&object),
                    false => self.take_record(&object, Version::of(object.metadata.resource_version.as_deref())),
                }
            }
            Err(Failure::NotFound(_)) => {
                self.records.remove(mesh);
                self.records_changed = true;
            }
            Err(failure) => {
                record.failures = record.failures.saturating_add(1);
                record.not_before = Some(now + std::time::Duration::from_millis(100 << record.failures.min(8)));
                warn!(%mesh, error = %failure, "writing the ClusterMesh failed");
                self.count_failure("hub", &failure);
            }
        }
        self.touch_status();
    }

    pub(super) fn count_failure(&self, cluster: &str, failure: &Failure) {
        let labels = FailureLabels { cluster: cluster.to_owned(), category: failure.category() };
        self.environment.metrics.failures.get_or_create(&labels).inc();
    }

    /// Starts to follow a cluster that a mesh names.
    pub(super) fn engage(&mut self, source: Source) {
        let id = source.id();
        info!(cluster = %id, "cluster joins");
        self.links_changed = true;
        let mut member = Member::new(source.clone());
        match source {
            Source::Hub => {
                member.link.credentials = Credentials::Fine;
                self.members.insert(id.clone(), member);
                self.connect_through(&id, ShownClient(self.environment.hub.clone()));
            }
            Source::Secret { namespace, name, .. } => {
                let api: Api<Secret> = Api::namespaced(self.environment.hub.clone(), &namespace);
                let scope = Scope { field_selector: Some(format!("metadata.name={name}")), most: None };
                let manner = Manner { scope, backoff: self.backoff(), relist: self.hub_relist.subscribe() };
                let cluster = id.clone();
                let wrap = move |seen| Event::Secret { cluster: cluster.clone(), seen };
                let outlet = Outlet { events: self.sender.clone(), wrap };
                member.link.secret = Some(self.tasks.spawn(follow(api, manner, |secret| secret, outlet)));
                self.members.insert(id, member);
            }
        }
    }

    fn observe_secret(&mut self, cluster: &ClusterId, seen: Observed<Secret>) {
        match seen {
            Observed::Listed { items, .. } => self.take_secret(cluster, items.first()),
            Observed::Set { item, .. } => self.take_secret(cluster, Some(&item)),
            Observed::Gone { .. } => self.take_secret(cluster, None),
            Observed::Standing => {}
            Observed::Broken(failure) => {
                self.count_failure("hub", &failure);
                let Some(member) = self.members.get_mut(cluster) else { return };
                if let Credentials::Unread(before) = &mut member.link.credentials
                    && *before != Some(failure.clone())
                {
                    warn!(%cluster, error = %failure, "the Secret with its kubeconfig can't be read");
                    *before = Some(failure);
                    self.touch_status();
                }
            }
        }
    }

    fn take_secret(&mut self, cluster: &ClusterId, secret: Option<&Secret>) {
        let Some(member) = self.members.get_mut(cluster) else { return };
        let Source::Secret { namespace, name, key } = &member.link.source else { return };
        let place = format!("{namespace}/{name}");
        let found = secret.map(|secret| kubeconfig_in(secret, key.as_deref()));
        let bytes = match found {
            None => Err(Credentials::Missing(format!("its Secret {place} does not exist"))),
            Some(None) => {
                let keys = key.clone().unwrap_or_else(|| KEYS.join(", "));
                Err(Credentials::Missing(format!("its Secret {place} has none of the keys {keys}")))
            }
            Some(Some(found)) => Ok(found),
        };
        let verdict = bytes.and_then(|(key, bytes)| {
            let fingerprint: [u8; 32] = Sha256::digest(&bytes).into();
            inspect(&bytes, self.settings.allowed)
                .map(|access| (access, fingerprint))
                .map_err(|refusal| Credentials::Refused(format!("the kubeconfig in its Secret {place}, key {key}, {refusal}")))
        });
        match verdict {
            Ok((_, fingerprint)) if member.link.fingerprint == Some(fingerprint) => {}
            Ok((access, fingerprint)) => self.try_credentials(cluster, access, fingerprint),
            Err(trouble) => self.lose_credentials(cluster, trouble),
        }
    }

    fn lose_credentials(&mut self, cluster: &ClusterId, trouble: Credentials) {
        let Some(member) = self.members.get_mut(cluster) else { return };
        if member.link.credentials == trouble {
            return;
        }
        member.link.disconnect();
        (member.link.nodes, member.link.peers, member.link.server) = (Feed::Starting, Feed::Starting, None);
        member.link.credentials = trouble;
        let why = member.link.trouble().unwrap_or_default();
        warn!(%cluster, error = why, "cluster can't be reached");
        self.become_unknown(cluster, &why);
    }

    fn become_unknown(&mut self, cluster: &ClusterId, why: &str) {
        if self.stands_for_itself(cluster) {
            self.listings.push((cluster.clone(), Listing::Nodes(Seen::Unknown(why.to_owned()))));
            self.listings.push((cluster.clone(), Listing::Peers(Seen::Unknown(why.to_owned()))));
        }
        self.touch_status();
    }

    /// The first ones are used at once: the watches will tell. Others must
    /// work before they replace those in use.
    fn try_credentials(&mut self, cluster: &ClusterId, access: Access, fingerprint: [u8; 32]) {
        let mut backoff = self.backoff();
        let Some(member) = self.members.get_mut(cluster) else { return };
        let link = &mut member.link;
        if let Some(trial) = link.trial.take() {
            trial.abort();
        }
        if link.live.is_none() {
            link.credentials = Credentials::Fine;
        }
        let probes = link.live.is_some();
        let server: Option<Server> = access.server();
        (link.fingerprint, link.server) = (Some(fingerprint), server);
        let (epoch, access, cluster) = (link.epoch, Arc::new(access), cluster.clone());
        let connect = Arc::clone(&self.environment.connect);
        let events = self.sender.clone();
        let trial = async move {
            loop {
                let failed = match connect.connect(&cluster, Arc::clone(&access)).await {
                    Err(refusal) => Trial::Refused(refusal),
                    Ok(client) => match probe(&client, probes).await {
                        Ok(()) => {
                            _ = events.send(Event::Connected { cluster, epoch, client: ShownClient(client) }).await;
                            return;
                        }
                        Err(failure) => Trial::Failed(failure),
                    },
                };
                let last = matches!(failed, Trial::Refused(_));
                _ = events.send(Event::NotConnected { cluster: cluster.clone(), epoch, why: failed }).await;
                if last {
                    return;
                }
                sleep(backoff.next(None)).await;
            }
        };
        link.trial = Some(self.tasks.spawn(trial));
    }

    fn observe_trial(&mut self, cluster: &ClusterId, epoch: u64, why: &Trial) {
        let Some(member) = self.member_at(cluster, epoch) else { return };
        let in_use = member.link.live.is_some();
        let trouble = match why {
            Trial::Refused(refusal) => format!("its new kubeconfig {refusal}"),
            Trial::Failed(failure) => format!("its new credentials do not work: {failure}"),
        };
        if in_use {
            let stale = Credentials::Stale(format!("{trouble}; the former ones stay in use"));
            if member.link.credentials != stale {
                warn!(%cluster, error = trouble, "new credentials do not work, the former ones stay in use");
                member.link.credentials = stale;
                self.touch_status();
            }
            return;
        }
        self.lose_credentials(cluster, Credentials::Refused(trouble));
    }

    /// Follows a cluster through a new connection and drops the old one.
    fn connect_through(&mut self, cluster: &ClusterId, client: ShownClient) {
        let (backoffs, events) = ([self.backoff(), self.backoff()], self.sender.clone());
        let Some(member) = self.members.get_mut(cluster) else { return };
        let link = &mut member.link;
        let swapped = link.live.is_some();
        link.epoch += 1;
        member.recent = Recent::default();
        link.trial = None;
        link.credentials = Credentials::Fine;
        if !swapped {
            (link.nodes, link.peers) = (Feed::Starting, Feed::Starting);
        }
        let client = client.0;
        let (relist, asked) = watch::channel(0);
        let mut tasks = JoinSet::new();
        let [for_nodes, for_peers] = backoffs;
        let (id, epoch) = (cluster.clone(), link.epoch);
        let wrap = move |seen| Event::Nodes { cluster: id.clone(), epoch, seen };
        let manner = Manner { scope: Scope { most: Some(MOST_NODES), field_selector: None }, backoff: for_nodes, relist: asked.clone() };
        tasks.spawn(follow(Api::<KubeNode>::all(client.clone()), manner, read_node, Outlet { events: events.clone(), wrap }));
        let id = cluster.clone();
        let wrap = move |seen| Event::Peers { cluster: id.clone(), epoch, seen };
        let manner = Manner { scope: Scope::default(), backoff: for_peers, relist: asked };
        tasks.spawn(follow(Api::<Peer>::all(client.clone()), manner, read_peer, Outlet { events, wrap }));
        link.live = Some(Live { client, relist, tasks });
        if swapped {
            info!(%cluster, "credentials were swapped");
        }
        self.links_changed = true;
        self.touch_status();
    }

    pub(super) fn stands_for_itself(&self, cluster: &ClusterId) -> bool {
        self.representatives.get(cluster).is_none_or(|of| of == cluster)
    }

    fn observe_nodes(&mut self, cluster: &ClusterId, epoch: u64, seen: Observed<Node>) {
        let now = self.now;
        let stands = self.stands_for_itself(cluster);
        let Some(member) = self.members.get_mut(cluster).filter(|member| member.link.epoch == epoch) else { return };
        match seen {
            Observed::Broken(failure) => {
                let lost = member.link.nodes.fail(&failure);
                self.feed_broken(cluster, "Nodes", &failure, lost);
                return;
            }
            Observed::Standing => {
                if std::mem::replace(&mut member.link.nodes, Feed::Standing) != Feed::Doubtful {
                    member.link.relist();
                }
            }
            Observed::Listed { items, .. } => {
                let restored = std::mem::replace(&mut member.link.nodes, Feed::Standing) != Feed::Standing;
                member.uids = Some(sample(items.iter().map(|node| node.uid.as_str())));
                self.links_changed = true;
                let nodes = items.into_iter().map(|node| member.seen_bare(node, now)).map(|node| (node.name.clone(), Arc::new(node)));
                let nodes: BTreeMap<NodeName, Arc<Node>> = nodes.collect();
                member.bare.retain(|name, _| nodes.contains_key(name));
                self.environment.metrics.nodes.get_or_create(&labels(cluster)).set(count(nodes.len()));
                if stands {
                    self.listings.push((cluster.clone(), Listing::Nodes(Seen::Known(nodes))));
                }
                self.restored(cluster, "Nodes", restored);
            }
            Observed::Set { item, .. } => {
                let node = member.seen_bare(item, now);
                self.node_seen(cluster, stands, |planner| planner.set_node(cluster, node));
            }
            Observed::Gone { item, .. } => {
                member.bare.remove(&item.name);
                self.node_seen(cluster, stands, |planner| {
                    planner.remove_node(cluster, &item.name);
                    true
                });
            }
        }
        self.contact(cluster);
    }

    fn node_seen(&mut self, cluster: &ClusterId, stands: bool, take: impl FnOnce(&mut mw_core::kilo::planner::Planner) -> bool) {
        if !stands {
            return;
        }
        self.flush_listings();
        if self.planner.as_mut().is_some_and(take) {
            debug!(%cluster, change = self.changes, "a Node changed");
            self.changing_since.get_or_insert_with(Instant::now);
            self.note_news();
        }
    }

    /// Something changed that is not our own doing.
    pub(super) fn note_news(&mut self) {
        self.planned = true;
        self.news = true;
        self.touch_status();
    }

    fn observe_peers(&mut self, cluster: &ClusterId, epoch: u64, seen: Observed<PeerFacts>) {
        let stands = self.stands_for_itself(cluster);
        let Some(member) = self.members.get_mut(cluster).filter(|member| member.link.epoch == epoch) else { return };
        match seen {
            Observed::Broken(failure) => {
                let lost = member.link.peers.fail(&failure);
                self.feed_broken(cluster, "Peers", &failure, lost);
                return;
            }
            Observed::Standing => {
                if std::mem::replace(&mut member.link.peers, Feed::Standing) != Feed::Doubtful {
                    member.link.relist();
                }
            }
            Observed::Listed { items, version } => {
                let restored = std::mem::replace(&mut member.link.peers, Feed::Standing) != Feed::Standing;
                let facts = items.into_iter().map(|facts| member.with_endpoint_time(facts));
                let mut peers: BTreeMap<PeerName, PeerFacts> = facts.map(|facts| (PeerName::from(facts.name.as_str()), facts)).collect();
                member.recent.amend(&mut peers, version);
                if stands {
                    self.listings.push((cluster.clone(), Listing::Peers(Seen::Known(peers))));
                }
                self.restored(cluster, "Peers", restored);
            }
            Observed::Set { item, version } => {
                let facts = member.with_endpoint_time(item);
                if member.recent.is_news(&facts, version) && stands {
                    self.peer_seen(|planner| planner.set_peer(cluster, facts));
                }
            }
            Observed::Gone { item, version } => {
                if member.recent.is_gone(&item, version) && stands {
                    self.peer_seen(|planner| planner.remove_peer(cluster, &PeerName::from(item.name.as_str())));
                }
            }
        }
        self.contact(cluster);
    }

    fn peer_seen(&mut self, take: impl FnOnce(&mut mw_core::kilo::planner::Planner)) {
        self.flush_listings();
        if let Some(planner) = &mut self.planner {
            take(planner);
            self.note_news();
        }
    }

    fn feed_broken(&mut self, cluster: &ClusterId, what: &str, failure: &Failure, lost: bool) {
        self.count_failure(cluster.as_str(), failure);
        if lost {
            self.links_changed = true;
            let reason = why(what, failure);
            warn!(%cluster, error = reason, "{what} can't be followed");
            if self.stands_for_itself(cluster) {
                let unknown = Seen::Unknown(reason);
                let listing = match what {
                    "Nodes" => Listing::Nodes(into_unknown(&unknown)),
                    _ => Listing::Peers(into_unknown(&unknown)),
                };
                self.listings.push((cluster.clone(), listing));
            }
            self.touch_status();
        }
        if failure.is_an_answer() {
            self.contact(cluster);
        }
    }

    fn restored(&mut self, cluster: &ClusterId, what: &str, was_down: bool) {
        if was_down {
            info!(%cluster, "{what} were listed");
            // What failed before may well work now.
            if let Some(member) = self.members.get_mut(cluster) {
                member.writer.forgive();
            }
        }
        self.touch_status();
    }

    pub(super) fn contact(&mut self, cluster: &ClusterId) {
        let time = self.environment.clock.time();
        if let Some(member) = self.members.get_mut(cluster) {
            self.environment.metrics.last_contact.get_or_create(&labels(cluster)).set(time.0.as_second());
            member.last_contact = Some(time);
        }
    }
}

/// Whether new credentials work at all.
async fn probe(client: &kube::Client, wanted: bool) -> Result<(), Failure> {
    if !wanted {
        return Ok(());
    }
    let one = ListParams { limit: Some(1), ..ListParams::default() };
    Api::<KubeNode>::all(client.clone()).list(&one).await.map_err(|error| Failure::of(&error))?;
    Api::<Peer>::all(client.clone()).list(&one).await.map(drop).map_err(|error| Failure::of(&error))
}

fn kubeconfig_in(secret: &Secret, key: Option<&str>) -> Option<(String, Vec<u8>)> {
    let data = secret.data.as_ref()?;
    let keys: &[&str] = match &key {
        Some(key) => std::slice::from_ref(key),
        None => &KEYS,
    };
    keys.iter().find_map(|key| Some(((*key).to_owned(), data.get(*key)?.0.clone())))
}

fn into_unknown<T>(unknown: &Seen<()>) -> Seen<T> {
    Seen::Unknown(unknown.why_unknown().unwrap_or_default().to_owned())
}

pub(super) fn labels(cluster: &ClusterId) -> crate::metrics::ClusterLabels {
    crate::metrics::ClusterLabels { cluster: cluster.to_string() }
}

pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
