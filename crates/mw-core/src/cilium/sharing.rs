//! Clusters that several owners reach, each with credentials of its own. They
//! are never planned as one: what a cluster reports of itself proves nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::facts::{CaId, ClusterSeen};
use crate::cilium::membership::named_or_touched;
use crate::cilium::object::{Common, Refusal, Resolution};
use crate::cilium::world::{Origin, World};
use crate::names::{ClusterId, Owner};

/// Two connections lead to the same cluster if both were verified against the
/// same private CA and report the same UID.
type Proof<'a> = (&'a CaId, &'a str);

fn proof(origin: &Origin) -> Option<Proof<'_>> {
    Some((origin.private_ca.as_ref()?, origin.uid.as_str()))
}

/// The world without the clusters that an older object of another owner uses:
/// nothing is read or written there for the younger ones.
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

/// The clusters that are proven to be in use by an older object of another owner.
fn shared(world: &World) -> BTreeSet<ClusterId> {
    let bindings = world.bindings.values().map(|of| (of.common.age(), named_or_touched(of)));
    let services = world.services.values().map(|of| (of.common.age(), of.common.touched_clusters().collect()));
    let intents = world.intents.values().map(|of| (of.common.age(), of.common.touched_clusters().collect()));
    let mut objects: Vec<(_, BTreeSet<&ClusterId>)> = bindings.chain(services).chain(intents).collect();
    objects.sort_by_key(|(age, _)| *age);
    let mut users: BTreeMap<Proof<'_>, &Owner> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for id in objects.into_iter().flat_map(|(_, clusters)| clusters) {
        let Some(origin) = world.origins.get(id) else { continue };
        let Some(proof) = proof(origin) else { continue };
        if *users.entry(proof).or_insert(&origin.owner) != &origin.owner {
            shared.insert(id.clone());
        }
    }
    shared
}

/// Clusters of other owners that report the UID of this one and that an object
/// uses. A cluster can report any UID, so this alone proves nothing.
pub(super) fn claimants<'a>(world: &'a World, cluster: &ClusterId) -> impl Iterator<Item = (&'a ClusterId, &'a ClusterSeen)> {
    let origin = world.origins.get(cluster);
    let claims = move |other: &Origin| origin.is_some_and(|origin| other.uid == origin.uid && other.owner != origin.owner);
    let claimants = world.origins.iter().filter(move |(id, other)| claims(other) && is_used(world, id));
    claimants.filter_map(|(id, _)| Some((id, world.clusters.get(id)?)))
}

/// Whether an object names a cluster, or noted that it wrote there.
fn is_used(world: &World, cluster: &ClusterId) -> bool {
    let services = world.services.values().map(|of| &of.common);
    let mut others = services.chain(world.intents.values().map(|of| &of.common)).flat_map(Common::touched_clusters);
    world.bindings.values().any(|of| named_or_touched(of).contains(cluster)) || others.any(|id| id == cluster)
}
