//! Clusters that several owners use, each with its own credentials. They are
//! never planned as one: a cluster's own reports prove nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::facts::{CaId, ClusterSeen};
use crate::cilium::identity::Identities;
use crate::cilium::membership::named_or_touched;
use crate::cilium::object::{Binding, Common, Refusal, Resolution};
use crate::cilium::world::{Origin, World};
use crate::names::{CiliumName, ClusterId, Owner};

/// Two connections lead to the same cluster if both were verified against the
/// same private CA and report the same UID.
type Proof<'a> = (&'a CaId, &'a str);

fn proof(origin: &Origin) -> Option<Proof<'_>> {
    Some((origin.private_ca.as_ref()?, origin.uid.as_str()))
}

/// The world without the clusters that an older object of another owner uses:
/// nothing is read or written there for younger objects.
pub(super) fn without_shared(world: &World) -> Cow<'_, World> {
    let shared = shared(world);
    if shared.is_empty() {
        return Cow::Borrowed(world);
    }
    let mut left = world.clone();
    left.clusters.retain(|id, _| !shared.contains(id));
    let commons = left.bindings.values_mut().map(|of| &mut of.common);
    let commons = commons.chain(left.services.values_mut().map(|of| &mut of.common));
    let commons = commons.chain(left.intents.values_mut().map(|of| &mut of.common));
    commons.for_each(|common| refuse(common, &shared));
    Cow::Owned(left)
}

fn refuse(common: &mut Common, shared: &BTreeSet<ClusterId>) {
    for resolution in common.refs.values_mut() {
        if matches!(resolution, Resolution::Cluster(id) if shared.contains(id)) {
            *resolution = Resolution::Refused(Refusal::Shared);
        }
    }
}

/// The clusters that are proven to be used by an older object of another owner,
/// whether or not an object of their own owner names them.
fn shared(world: &World) -> BTreeSet<ClusterId> {
    let bindings = world
        .bindings
        .values()
        .map(|of| (&of.common, named_or_touched(of)));
    let services = world
        .services
        .values()
        .map(|of| (&of.common, of.common.touched_clusters().collect()));
    let intents = world
        .intents
        .values()
        .map(|of| (&of.common, of.common.touched_clusters().collect()));
    let mut objects: Vec<(&Common, BTreeSet<&ClusterId>)> =
        bindings.chain(services).chain(intents).collect();
    objects.sort_by_key(|(common, _)| common.age());
    let mut users: BTreeMap<Proof<'_>, &Owner> = BTreeMap::new();
    for id in objects
        .into_iter()
        .flat_map(|(common, clusters)| clusters.into_iter().chain(common.lost.values()))
    {
        if let Some((origin, proof)) = world
            .origins
            .get(id)
            .and_then(|origin| Some((origin, proof(origin)?)))
        {
            users.entry(proof).or_insert(&origin.owner);
        }
    }
    let is_shared = |origin: &Origin| {
        proof(origin)
            .and_then(|proof| users.get(&proof))
            .is_some_and(|user| **user != origin.owner)
    };
    world
        .origins
        .iter()
        .filter(|(_, origin)| is_shared(origin))
        .map(|(id, _)| id.clone())
        .collect()
}

/// Clusters of other owners that report the same UID as this one and are used
/// by an object. A cluster can report any UID, so this alone proves nothing.
pub(super) fn claimants<'a>(
    world: &'a World,
    cluster: &ClusterId,
) -> impl Iterator<Item = (&'a ClusterId, &'a ClusterSeen)> {
    let origin = world.origins.get(cluster);
    let claims = move |other: &Origin| {
        origin.is_some_and(|origin| other.uid == origin.uid && other.owner != origin.owner)
    };
    let claimants = world
        .origins
        .iter()
        .filter(move |(id, other)| claims(other) && is_used(world, id));
    claimants.filter_map(|(id, _)| Some((id, world.clusters.get(id)?)))
}

/// Bindings that lost access to a cluster that may be this one. It is not known
/// what their owners want here, and without a connection it can't be proven
/// that they share the cluster.
#[derive(Debug, Default)]
pub(super) struct LostWays<'a> {
    /// Their remotes.
    names: BTreeSet<&'a str>,
    /// True if the name of a remote is not known.
    nameless: bool,
    /// True if the workspace of an owner is not bound, so that its bindings are
    /// not known.
    unbound: bool,
    /// Refs that were revoked from the known bindings: their keys are removed
    /// even if an unbound owner has a remote of that name.
    revoked: BTreeSet<&'a str>,
}

impl<'a> LostWays<'a> {
    pub(super) fn to(world: &'a World, identities: &'a Identities, target: &ClusterId) -> Self {
        let mut lost = LostWays {
            unbound: world.unbound.contains(target),
            revoked: revoked_refs(world, target),
            ..LostWays::default()
        };
        let Some(origin) = world.origins.get(target) else {
            return lost;
        };
        for Binding { common, spec, .. } in world
            .bindings
            .values()
            .filter(|of| of.common.may_have_led_to(&of.spec.refs, &origin.uid))
        {
            let clusters: Vec<&ClusterId> = spec
                .refs
                .iter()
                .filter_map(|name| common.cluster(name).or(common.lost.get(name)))
                .collect();
            let names: Vec<&str> = clusters
                .iter()
                .filter_map(|id| identities.name(id))
                .map(CiliumName::as_str)
                .collect();
            // One of the refs is the lost one; all others must be known.
            lost.nameless |= names.len() < clusters.len() || clusters.len() + 1 < spec.refs.len();
            lost.names.extend(names);
        }
        lost
    }

    /// Reports whether one of them may want a key of a remote here.
    pub(super) fn may_want(&self, remote: &str) -> bool {
        self.nameless
            || self.names.contains(remote)
            || self.unbound && !self.revoked.contains(remote)
    }
}

/// Revoked refs of the bindings that name a cluster.
fn revoked_refs<'a>(world: &'a World, target: &ClusterId) -> BTreeSet<&'a str> {
    let here = world
        .bindings
        .values()
        .filter(|of| named_or_touched(of).contains(target));
    here.flat_map(|of| {
        of.spec
            .refs
            .iter()
            .filter(|name| of.common.is_revoked(name))
    })
    .map(String::as_str)
    .collect()
}

/// Reports whether an object names a cluster, or recorded a write there.
fn is_used(world: &World, cluster: &ClusterId) -> bool {
    let services = world.services.values().map(|of| &of.common);
    let mut others = services
        .chain(world.intents.values().map(|of| &of.common))
        .flat_map(Common::touched_clusters);
    world
        .bindings
        .values()
        .any(|of| named_or_touched(of).contains(cluster))
        || others.any(|id| id == cluster)
}
