//! Limit on the memory that the watched objects of one member take: what a member
//! returns may be large, and all meshes share the process.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use mw_api::cilium::target::Secret;
use mw_core::cidr::Cidr;
use mw_core::cilium::facts::{
    Agents, ApiServer, Config, Held, MeshPort, MeshService, NamespaceSeen, NodeAddresses,
    PolicyFeatures, PolicyKey, PolicySeen, RemoteUsers, ServiceName, ServiceSeen, SliceSeen,
};
use mw_core::cilium::version::Version;
use mw_core::endpoint::{Endpoint, Host};
use mw_core::key::PublicKey;
use mw_core::kilo::node::{Node, Publicness, Unusable};
use mw_core::kilo::peer::{EndpointFacts, Labels, PeerFacts, PeerSpecFacts};
use mw_core::names::NodeName;
use mw_core::time::Timestamp;
use serde_json::Value;

use crate::failure::Failure;
use crate::fleet::follow;
use crate::watch_cache::Item;

/// Memory limit of a process that is not given one; the chart's default.
pub const MEMORY_LIMIT: usize = 256 << 20;
/// Share of the memory limit that the objects of one member may take. While a list
/// is read, the objects of the previous one are still there.
const SHARE_OF_LIMIT: usize = 4;
/// Bookkeeping of the allocator for each allocation.
const ALLOCATION: usize = 16;
/// B-tree nodes have room for this many entries, and may be half empty.
const TREE_NODE: usize = 11;

/// Memory for the objects of one member, shared by its watches.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    most: usize,
    /// Objects in the caches.
    kept: Arc<AtomicUsize>,
    /// Objects of lists that are being read.
    reading: Arc<AtomicUsize>,
}

impl MemoryBudget {
    pub fn new(memory_limit: usize) -> MemoryBudget {
        MemoryBudget {
            most: memory_limit / SHARE_OF_LIMIT,
            kept: Arc::default(),
            reading: Arc::default(),
        }
    }

    /// Returns the estimated size of the objects in the caches.
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    fn too_large(&self) -> Failure {
        Failure::TooLarge(format!(
            "its objects take more than {} KiB of memory, the limit for one cluster; raise --memory-limit and the memory of the pod",
            self.most >> 10
        ))
    }
}

/// The part of the budget that one watch uses.
#[derive(Debug)]
pub(super) struct MemoryShare<T> {
    /// None for watches on the hub, which are not limited.
    budget: Option<MemoryBudget>,
    weigh: fn(&T) -> usize,
    kept: usize,
    reading: usize,
}

impl<T> MemoryShare<T> {
    pub(super) fn unlimited() -> MemoryShare<T> {
        MemoryShare {
            budget: None,
            weigh: |_| 0,
            kept: 0,
            reading: 0,
        }
    }

    pub(super) fn of(budget: MemoryBudget) -> MemoryShare<T>
    where
        T: Footprint,
    {
        MemoryShare {
            budget: Some(budget),
            weigh: |item| size_of::<T>() + item.heap(),
            kept: 0,
            reading: 0,
        }
    }

    /// Counts an object of a list, and returns its size.
    pub(super) fn read(&mut self, item: &T) -> Result<usize, Failure> {
        let Some(budget) = &self.budget else {
            return Ok(0);
        };
        let size = (self.weigh)(item);
        self.reading += size;
        match budget.reading.fetch_add(size, Ordering::Relaxed) + size > budget.most {
            true => Err(budget.too_large()),
            false => Ok(size),
        }
    }

    /// Forgets the objects of an incomplete list.
    pub(super) fn give_up(&mut self) -> usize {
        if let Some(budget) = &self.budget {
            budget.reading.fetch_sub(self.reading, Ordering::Relaxed);
        }
        std::mem::take(&mut self.reading)
    }

    /// The objects of the list replace those in the cache.
    pub(super) fn keep_list(&mut self) -> Result<(), Failure> {
        let size = self.give_up();
        self.resize(size)
    }

    /// Counts a changed object that took `before`, and returns its size.
    pub(super) fn keep(&mut self, item: &T, before: usize) -> Result<usize, Failure> {
        if self.budget.is_none() {
            return Ok(0);
        }
        let size = (self.weigh)(item);
        self.resize((self.kept + size).saturating_sub(before))?;
        Ok(size)
    }

    pub(super) fn forget(&mut self, size: usize) {
        // What shrinks fits.
        _ = self.resize(self.kept.saturating_sub(size));
    }

    fn resize(&mut self, size: usize) -> Result<(), Failure> {
        let Some(budget) = &self.budget else {
            return Ok(());
        };
        let others = budget
            .kept
            .load(Ordering::Relaxed)
            .saturating_sub(self.kept);
        if size > self.kept && others + size > budget.most {
            return Err(budget.too_large());
        }
        budget.kept.store(others + size, Ordering::Relaxed);
        self.kept = size;
        Ok(())
    }
}

impl<T> Drop for MemoryShare<T> {
    fn drop(&mut self) {
        self.give_up();
        self.forget(self.kept);
    }
}

/// A value whose memory can be estimated.
pub trait Footprint {
    /// Returns the bytes that it owns outside of itself.
    fn heap(&self) -> usize;
}

fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + ALLOCATION }
}

fn tree(entries: usize, entry: usize) -> usize {
    if entries == 0 {
        0
    } else {
        (2 * entries).max(TREE_NODE) * entry + ALLOCATION
    }
}

impl Footprint for String {
    fn heap(&self) -> usize {
        allocated(self.capacity())
    }
}

impl Footprint for NodeName {
    fn heap(&self) -> usize {
        allocated(self.as_str().len() + ALLOCATION)
    }
}

impl Footprint for Endpoint {
    fn heap(&self) -> usize {
        match self.host() {
            Host::Ip(_) => 0,
            Host::Dns(name) => allocated(name.len()),
        }
    }
}

impl Footprint for ByteString {
    fn heap(&self) -> usize {
        allocated(self.0.capacity())
    }
}

impl<T: Footprint> Footprint for Option<T> {
    fn heap(&self) -> usize {
        self.as_ref().map_or(0, Footprint::heap)
    }
}

impl<T: Footprint, E: Footprint> Footprint for Result<T, E> {
    fn heap(&self) -> usize {
        self.as_ref().map_or_else(Footprint::heap, Footprint::heap)
    }
}

impl<T: Footprint> Footprint for Vec<T> {
    fn heap(&self) -> usize {
        allocated(self.capacity() * size_of::<T>())
            + self.iter().map(Footprint::heap).sum::<usize>()
    }
}

impl<T: Footprint> Footprint for BTreeSet<T> {
    fn heap(&self) -> usize {
        tree(self.len(), size_of::<T>()) + self.iter().map(Footprint::heap).sum::<usize>()
    }
}

impl<K: Footprint, V: Footprint> Footprint for BTreeMap<K, V> {
    fn heap(&self) -> usize {
        tree(self.len(), size_of::<(K, V)>())
            + self
                .iter()
                .map(|(key, value)| key.heap() + value.heap())
                .sum::<usize>()
    }
}

impl<A: Footprint, B: Footprint> Footprint for (A, B) {
    fn heap(&self) -> usize {
        self.0.heap() + self.1.heap()
    }
}

impl Footprint for Value {
    fn heap(&self) -> usize {
        match self {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.heap(),
            Value::Array(items) => items.heap(),
            Value::Object(fields) => {
                tree(fields.len(), size_of::<(String, Value)>())
                    + fields
                        .iter()
                        .map(|(key, value)| key.heap() + value.heap())
                        .sum::<usize>()
            }
        }
    }
}

impl Footprint for ObjectMeta {
    fn heap(&self) -> usize {
        let texts = [
            &self.name,
            &self.namespace,
            &self.uid,
            &self.resource_version,
        ];
        let managers = self
            .managed_fields
            .iter()
            .flatten()
            .map(ManagedFieldsEntry::heap)
            .sum::<usize>();
        texts.map(Footprint::heap).iter().sum::<usize>()
            + self.labels.heap()
            + self.annotations.heap()
            + managers
    }
}

impl Footprint for ManagedFieldsEntry {
    fn heap(&self) -> usize {
        size_of::<ManagedFieldsEntry>()
            + self.manager.heap()
            + self.fields_v1.as_ref().map_or(0, |fields| fields.0.heap())
    }
}

/// Implements [`Footprint`] for values without memory of their own.
macro_rules! inline {
    ($($type:ty),*) => { $(impl Footprint for $type {
        fn heap(&self) -> usize {
            0
        }
    })* };
}

/// Implements [`Footprint`] for structs. All fields are named, so that a new one
/// can't be forgotten.
macro_rules! footprint {
    ($($type:ident $(<$of:ident>)? { $($field:ident),* })*) => { $(impl$(<$of: crate::fleet::Footprint>)? crate::fleet::Footprint for $type$(<$of>)? {
        fn heap(&self) -> usize {
            let $type { $($field),* } = self;
            [$(crate::fleet::Footprint::heap($field)),*].iter().sum()
        }
    })* };
}

pub(crate) use footprint;

inline!(
    bool,
    u16,
    u32,
    i64,
    IpAddr,
    SocketAddr,
    Cidr,
    PublicKey,
    Timestamp,
    Version,
    PolicyFeatures,
    Publicness,
    follow::Version
);

impl Footprint for Unusable {
    fn heap(&self) -> usize {
        self.0.heap()
    }
}

footprint! {
    Node {
        name, uid, labels, ready, bare_since, first_pod_cidr, pod_cidrs, wireguard_ip, key, last_seen, endpoint, internal_ips,
        external_ips, kilo_internal, route_source, location_granularity, location, leads, kilo_endpoint, published_endpoint,
        keepalive_set, discovered
    }
    PeerFacts { name, uid, resource_version, deleting, labels, spec, endpoint_written }
    Labels { mesh, source, namespace, hub }
    PeerSpecFacts { public_key, endpoint, keepalive, allowed_ips }
    EndpointFacts { dns, ip, port }
    Item<T> { uid, version, of }
    Held<T> { value, managers }
    Agents { ready, desired, version, client_files, host_aliases, oldest_start }
    ApiServer { available, kvstoremesh, version, client_files, host_aliases, cluster_users, mounts_users }
    Config { resource_version, cluster_name, cluster_id, max_clusters, small_ids, set_by_us, namespaces_global }
    RemoteUsers { uid, resource_version, text, of_helm }
    MeshService { resource_version, kind, ports, ingress_ips, ingress_hostnames, elb_id }
    MeshPort { name, port, node_port }
    NamespaceSeen { global, deleting }
    NodeAddresses { ready, internal, external }
    ServiceName { namespace, name }
    ServiceSeen { uid, resource_version, external_name, deleting, labels, annotations }
    SliceSeen { service, managed_by, ready }
    PolicyKey { namespace, name }
    PolicySeen { uid, resource_version, deleting, labels, spec }
    Secret { metadata, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;
    use serde_json::json;

    fn size(value: &impl Footprint) -> usize {
        value.heap()
    }

    #[test]
    fn all_watches_of_a_cluster_share_its_budget() {
        let budget = MemoryBudget::new(4_000);
        let (mut one, mut other) = (
            MemoryShare::<String>::of(budget.clone()),
            MemoryShare::<String>::of(budget.clone()),
        );
        let fat = "x".repeat(500);
        assert!(one.keep(&fat, 0).is_ok());
        assert!(
            matches!(other.keep(&fat, 0), Err(Failure::TooLarge(why)) if why.contains("--memory-limit"))
        );
        assert!(budget.kept() > 500 && budget.kept() < 1_000, "{budget:?}");
        // While a list is read, what it replaces is not counted.
        assert!(one.read(&fat).is_ok());
        assert!(other.read(&fat).is_err());
        assert!(one.keep_list().is_ok());
        drop(one);
        other.give_up();
        assert!(other.keep(&fat, 0).is_ok());
        drop(other);
        assert_eq!(budget.kept(), 0);
    }

    #[test]
    fn what_a_member_can_fill_is_counted() {
        let many: Vec<String> = (0..1_000).map(|_| "10.0.0.0/24".to_owned()).collect();
        let spec = PeerSpecFacts {
            allowed_ips: many,
            ..PeerSpecFacts::default()
        };
        assert!(
            size(&PeerFacts {
                spec,
                ..PeerFacts::default()
            }) >= 1_000 * (11 + size_of::<String>())
        );
        let nested = (0..100).fold(json!(null), |inner, _| json!({ "a": inner }));
        assert!(
            size(&nested) >= 100 * size_of::<(String, Value)>() * TREE_NODE,
            "{}",
            size(&nested)
        );
        let labels: BTreeMap<String, String> = (0..100)
            .map(|nth| (format!("label-{nth}"), "value".to_owned()))
            .collect();
        assert!(size(&labels) >= 100 * (2 * size_of::<String>() + 12));
    }

    proptest! {
        #[test]
        fn nothing_weighs_less_than_its_text(texts in proptest::collection::vec(".*", 0..20)) {
            let bytes: usize = texts.iter().map(String::len).sum();
            prop_assert!(size(&texts) >= bytes + texts.len() * size_of::<String>());
        }
    }
}
