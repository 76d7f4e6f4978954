//! The keys of the connection Secrets of each target, as the union of what all
//! bindings want there: our next apply lets go what it leaves out.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::facts::{ClusterSeen, ConnectionSecret, SecretSeen};
use crate::cilium::identity::Identities;
use crate::cilium::link::Links;
use crate::cilium::material::Key;
use crate::cilium::membership::{Mesh, named_or_touched, untouchable};
use crate::cilium::peer_file::{has_address, mentions, remote_of};
use crate::cilium::plan::SecretApply;
use crate::cilium::secret::SecretBytes;
use crate::cilium::sharing::is_claimed;
use crate::cilium::world::World;
use crate::names::{CiliumName, ClusterId};
use crate::precondition::Precondition;

/// The applies of every target that needs one.
pub(super) fn applies(
    world: &World,
    meshes: &[Mesh<'_>],
    identities: &Identities,
    links: &Links,
) -> BTreeMap<ClusterId, BTreeMap<ConnectionSecret, SecretApply>> {
    let untouchable = untouchable(world);
    let of_target = |(target, seen): (&ClusterId, &ClusterSeen)| {
        let secrets = seen.secrets.known().filter(|_| seen.silent.is_none())?;
        let stays = Stays {
            everything: !world.settled.contains(target) || untouchable.contains(target),
            nameless: has_nameless_neighbour(meshes, identities, target),
            claimed: is_claimed(world, target),
            kept: kept_names(meshes, identities, links, target),
            neighbours: neighbours(world, target).filter_map(|id| identities.name(id)).map(CiliumName::as_str).collect(),
            left: left_names(world, identities, target, secrets),
        };
        let wanted = wanted(links, target);
        let applies = ConnectionSecret::ALL.into_iter().filter_map(|name| Some((name, apply(name, secrets.get(&name), &wanted, &stays)?)));
        let applies: BTreeMap<ConnectionSecret, SecretApply> = applies.collect();
        (!applies.is_empty()).then(|| (target.clone(), applies))
    };
    world.clusters.iter().filter_map(of_target).collect()
}

/// What of ours is not let go although no link was planned that wants it.
struct Stays<'a> {
    everything: bool,
    /// A neighbour's name is not known: a key may be its, unless it is known to
    /// be another's.
    nameless: bool,
    /// Another owner may write here too: a key of no neighbour may be theirs.
    claimed: bool,
    /// Neighbours whose keys stay as they are.
    kept: BTreeSet<&'a str>,
    /// The names of present and former neighbours, as far as they are known.
    neighbours: BTreeSet<&'a str>,
    /// Those of them to which the keys of that name lead. Two clusters can have
    /// the same name, so the name alone does not tell whose a key is.
    left: BTreeSet<&'a str>,
}

impl Stays<'_> {
    fn holds(&self, key: &str) -> bool {
        let remote = remote_of(key);
        let strange = self.nameless && !self.left.contains(remote) || self.claimed && !self.neighbours.contains(remote);
        self.everything || self.kept.contains(remote) || strange
    }
}

fn has_nameless_neighbour(meshes: &[Mesh<'_>], identities: &Identities, target: &ClusterId) -> bool {
    let nameless = |mesh: &Mesh<'_>| !mesh.is_known() || mesh.involved().iter().any(|one| identities.name(one).is_none());
    meshes.iter().any(|mesh| mesh.involved().contains(target) && nameless(mesh))
}

fn left_names<'a>(
    world: &World,
    identities: &'a Identities,
    target: &ClusterId,
    secrets: &BTreeMap<ConnectionSecret, SecretSeen>,
) -> BTreeSet<&'a str> {
    let leads_to = |name: &str, seen: &ClusterSeen| {
        let keys = secrets.values().filter_map(|secret| secret.keys.get(name)).filter(|held| held.is_ours());
        let keys: Vec<&SecretBytes> = keys.map(|held| &held.value).collect();
        let by_address = keys.iter().any(|key| addresses(seen).any(|address| mentions(key, address)));
        // A key without an address leads to whoever has the name at present.
        by_address || seen.config.known().is_some() && !keys.iter().any(|key| has_address(key))
    };
    let known = neighbours(world, target).filter_map(|id| Some((identities.name(id)?.as_str(), world.clusters.get(id)?)));
    known.filter(|(name, seen)| leads_to(name, seen)).map(|(name, _)| name).collect()
}

/// All that are or were neighbours of a cluster.
fn neighbours<'a>(world: &'a World, target: &ClusterId) -> impl Iterator<Item = &'a ClusterId> {
    world.bindings.values().map(named_or_touched).filter(|clusters| clusters.contains(target)).flatten()
}

/// Every address under which a cluster's clustermesh-apiserver may be reached.
fn addresses(seen: &ClusterSeen) -> impl Iterator<Item = &String> {
    let balanced = seen.service.known().into_iter().flatten().flat_map(|service| &service.ingress_ips);
    let nodes = seen.nodes.known().into_iter().flat_map(BTreeMap::values);
    balanced.chain(nodes.flat_map(|node| node.internal.iter().chain(&node.external)))
}

/// The remotes of links that are not written now, and those that a mesh which
/// lost its way to some clusters has.
fn kept_names<'a>(meshes: &[Mesh<'_>], identities: &'a Identities, links: &Links, target: &ClusterId) -> BTreeSet<&'a str> {
    let kept = links.plans.iter().filter(|(link, plan)| link.reader == *target && plan.keys.is_none());
    let lost = meshes.iter().filter(|mesh| !mesh.binding.common.lost.is_empty() && mesh.involved().contains(target));
    let kept = kept.map(|(link, _)| &link.remote).chain(lost.flat_map(Mesh::involved));
    kept.filter_map(|remote| identities.name(remote)).map(CiliumName::as_str).collect()
}

fn wanted(links: &Links, target: &ClusterId) -> BTreeMap<Key, SecretBytes> {
    let plans = links.plans.iter().filter(|(link, _)| link.reader == *target);
    plans.filter_map(|(_, plan)| plan.keys.clone()).flatten().collect()
}

fn apply(name: ConnectionSecret, seen: Option<&SecretSeen>, wanted: &BTreeMap<Key, SecretBytes>, stays: &Stays<'_>) -> Option<SecretApply> {
    let nothing = BTreeMap::new();
    let held = seen.map_or(&nothing, |secret| &secret.keys);
    let on =
        |secret: &SecretSeen| Precondition { uid: secret.uid.as_str().into(), resource_version: secret.resource_version.as_str().into() };
    let mut apply = SecretApply { on: seen.map(on), ..SecretApply::default() };
    for ((_, key), bytes) in wanted.iter().filter(|((secret, _), _)| *secret == name) {
        match held.get(key) {
            None => _ = (apply.added.insert(key.clone()), apply.data.insert(key.clone(), bytes.clone())),
            Some(held) if !held.is_ours() => {}
            Some(held) if held.value == *bytes || !held.is_ours_alone() => _ = apply.data.insert(key.clone(), held.value.clone()),
            Some(_) => _ = (apply.changed.insert(key.clone()), apply.data.insert(key.clone(), bytes.clone())),
        }
    }
    for (key, held) in held.iter().filter(|(_, held)| held.is_ours()) {
        if apply.data.contains_key(key) {
            continue;
        }
        if stays.holds(key) {
            apply.data.insert(key.clone(), held.value.clone());
        } else {
            apply.removed.insert(key.clone());
        }
    }
    let changes = !apply.added.is_empty() || !apply.changed.is_empty() || !apply.removed.is_empty();
    changes.then_some(apply)
}
