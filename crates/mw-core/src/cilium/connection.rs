//! The keys of each target's connection Secrets: the union of what all bindings
//! want there. Server-side apply removes our keys that are left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::context::Context;
use crate::cilium::facts::{ClusterSeen, ConnectionSecret, SecretSeen};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::identity::Identities;
use crate::cilium::link::{LinkPlan, Links};
use crate::cilium::material::Key;
use crate::cilium::membership::{Mesh, named_or_touched};
use crate::cilium::peer_file::{has_address, mentions, remote_of};
use crate::cilium::plan::{Link, SecretApply};
use crate::cilium::secret::SecretBytes;
use crate::cilium::sharing::{LostWays, claimants};
use crate::cilium::world::World;
use crate::names::{CiliumName, ClusterId};
use crate::precondition::Precondition;
use crate::problem::Reason;

/// The applies of all targets that need one.
pub(super) fn applies(
    world: &World,
    meshes: &[Mesh<'_>],
    identities: &Identities,
    links: &Links,
    untouchable: &BTreeSet<&ClusterId>,
) -> BTreeMap<ClusterId, BTreeMap<ConnectionSecret, SecretApply>> {
    let around = Around {
        world,
        meshes,
        identities,
        links,
        untouchable,
    };
    world
        .clusters
        .iter()
        .filter_map(|(target, seen)| Some((target.clone(), around.applies(target, seen)?)))
        .collect()
}

/// The keys of a cluster's Secrets that another owner of the same cluster
/// wants, or may want.
pub(super) fn wanted_by_others(context: &Context<'_>, target: &ClusterId) -> BTreeSet<Key> {
    let Context {
        world,
        meshes,
        identities,
        links,
        untouchable,
    } = context;
    let around = Around {
        world,
        meshes,
        identities,
        links,
        untouchable,
    };
    let secrets = world
        .clusters
        .get(target)
        .and_then(|seen| seen.secrets.known());
    let others = around.others(target);
    let held = secrets.into_iter().flatten().flat_map(|(name, secret)| {
        secret
            .keys
            .keys()
            .map(move |key| ((*name, key.clone()), secret))
    });
    let wanted = held.filter(|(key, secret)| {
        others
            .iter()
            .any(|other| other.shows(key.0, secret) && other.wishes.holds(key))
    });
    wanted.map(|(key, _)| key).collect()
}

/// The keys that one owner wants, or may want, in a cluster.
struct Wishes<'a> {
    wanted: BTreeMap<Key, SecretBytes>,
    /// True if not all objects that may want something here are known.
    unknown: bool,
    /// Neighbours whose keys are kept unchanged.
    kept: BTreeSet<&'a str>,
    /// True if a neighbour's name is not known: any key may belong to it,
    /// unless the key is known to belong to another.
    nameless: bool,
}

/// Inputs for working out the wanted keys of owners.
struct Around<'a, 'm> {
    world: &'a World,
    meshes: &'m [Mesh<'m>],
    identities: &'a Identities,
    links: &'m Links,
    untouchable: &'m BTreeSet<&'m ClusterId>,
}

impl<'a> Around<'a, '_> {
    /// The applies of one cluster; `None` if it needs none.
    fn applies(
        &self,
        target: &ClusterId,
        seen: &ClusterSeen,
    ) -> Option<BTreeMap<ConnectionSecret, SecretApply>> {
        let secrets = seen.secrets.known().filter(|_| seen.silent.is_none())?;
        let (world, identities) = (self.world, self.identities);
        let stays = RetainedKeys {
            claimed: claimants(world, target).any(|(_, other)| other.secrets.known().is_none()),
            lost: LostWays::to(world, identities, target),
            neighbours: neighbour_names(world, identities, target),
            left: left_names(world, identities, target, secrets),
            own: self.wishes(target),
            others: self.others(target),
        };
        let applies: BTreeMap<ConnectionSecret, SecretApply> = ConnectionSecret::ALL
            .into_iter()
            .filter_map(|name| Some((name, apply(name, secrets.get(&name), &stays)?)))
            .collect();
        (!applies.is_empty()).then_some(applies)
    }

    /// The finding for a link whose key another owner of the reader set first.
    fn taken(&self, link: &Link, plan: &LinkPlan) -> Option<Finding> {
        let secrets = self.world.clusters.get(&link.reader)?.secrets.known()?;
        let others = self.others(&link.reader);
        let is_taken = |key: &&Key| {
            let found = secrets
                .get(&key.0)
                .and_then(|secret| Some((secret, secret.keys.get(&key.1)?)));
            found.is_some_and(|(secret, held)| {
                others
                    .iter()
                    .any(|other| other.has_taken(key, secret, &held.value))
            })
        };
        let (secret, key) = plan
            .keys
            .as_ref()
            .filter(|_| !plan.in_place)?
            .keys()
            .find(is_taken)?;
        let text = format!(
            "key {key} of Secret {} is set by another owner of the cluster",
            secret.as_str()
        );
        let hint = "use a different Cilium name for the remote, or let the other owner connect these clusters";
        Some(Finding::permanent(Step::Keys, Reason::KeyOwnedByOther, text).hint(hint))
    }

    fn wishes(&self, target: &ClusterId) -> Wishes<'a> {
        Wishes {
            wanted: wanted(self.links, target),
            unknown: !self.world.settled.contains(target) || self.untouchable.contains(target),
            kept: kept_names(self.meshes, self.identities, self.links, target),
            nameless: has_nameless_neighbour(self.meshes, self.identities, target),
        }
    }

    fn others(&self, target: &ClusterId) -> Vec<Other<'a>> {
        claimants(self.world, target)
            .map(|(id, seen)| Other {
                seen,
                wishes: self.wishes(id),
            })
            .collect()
    }
}

impl Wishes<'_> {
    fn holds(&self, key: &Key) -> bool {
        self.unknown || self.kept.contains(remote_of(&key.1)) || self.wanted.contains_key(key)
    }
}

/// Another owner's credentials for a cluster that may be the same.
struct Other<'a> {
    seen: &'a ClusterSeen,
    wishes: Wishes<'a>,
}

impl Other<'_> {
    /// Reports whether it is the same cluster: only clients that can read an
    /// object there know its UID.
    fn shows(&self, name: ConnectionSecret, secret: &SecretSeen) -> bool {
        self.seen
            .secrets
            .known()
            .and_then(|all| all.get(&name))
            .is_some_and(|other| other.uid == secret.uid)
    }

    /// Reports whether it wants exactly the present value.
    fn has_taken(&self, key: &Key, secret: &SecretSeen, held: &SecretBytes) -> bool {
        self.shows(key.0, secret) && self.wishes.wanted.get(key) == Some(held)
    }
}

/// Keys of ours that are kept although no planned link wants them.
struct RetainedKeys<'a> {
    own: Wishes<'a>,
    others: Vec<Other<'a>>,
    /// True if another owner may write here too: a key of no neighbour may be
    /// theirs.
    claimed: bool,
    /// Keys that owners may want who lost access to this cluster, or whose
    /// objects are not known. Keys of neighbours are not kept for them.
    lost: LostWays<'a>,
    /// The known names of present and former neighbours.
    neighbours: BTreeSet<&'a str>,
    /// Neighbours to which the keys of that name lead. Two clusters can have
    /// the same name, so the name alone does not identify the owner of a key.
    left: BTreeSet<&'a str>,
}

impl RetainedKeys<'_> {
    fn holds(&self, key: &Key, secret: &SecretSeen) -> bool {
        let remote = remote_of(&key.1);
        let others: Vec<&Wishes<'_>> = self
            .others
            .iter()
            .filter(|other| other.shows(key.0, secret))
            .map(|other| &other.wishes)
            .collect();
        let nameless = self.own.nameless || others.iter().any(|other| other.nameless);
        let may_be_theirs =
            !self.neighbours.contains(remote) && (self.claimed || self.lost.may_want(remote));
        let strange = nameless && !self.left.contains(remote) || may_be_theirs;
        strange || self.own.holds(key) || others.iter().any(|other| other.holds(key))
    }

    /// Reports whether another owner wants exactly the present value: the first
    /// value stays, so that two owners don't keep overwriting each other.
    fn is_taken(&self, key: &Key, secret: &SecretSeen, held: &SecretBytes) -> bool {
        self.others
            .iter()
            .any(|other| other.has_taken(key, secret, held))
    }
}

/// Adds a finding to every link whose key another owner of the reader set
/// first.
pub(super) fn tell_taken(
    world: &World,
    meshes: &[Mesh<'_>],
    identities: &Identities,
    links: &mut Links,
    untouchable: &BTreeSet<&ClusterId>,
) {
    let around = Around {
        world,
        meshes,
        identities,
        links,
        untouchable,
    };
    let taken: Vec<(Link, Finding)> = links
        .plans
        .iter()
        .filter_map(|(link, plan)| Some((link.clone(), around.taken(link, plan)?)))
        .collect();
    for (link, finding) in taken {
        links
            .plans
            .entry(link)
            .and_modify(|plan| plan.findings.push(finding));
    }
}

fn has_nameless_neighbour(
    meshes: &[Mesh<'_>],
    identities: &Identities,
    target: &ClusterId,
) -> bool {
    let nameless = |mesh: &Mesh<'_>| {
        !mesh.is_known()
            || mesh
                .involved()
                .iter()
                .any(|one| identities.name(one).is_none())
    };
    meshes
        .iter()
        .any(|mesh| mesh.involved().contains(target) && nameless(mesh))
}

fn left_names<'a>(
    world: &World,
    identities: &'a Identities,
    target: &ClusterId,
    secrets: &BTreeMap<ConnectionSecret, SecretSeen>,
) -> BTreeSet<&'a str> {
    let known = neighbours(world, target)
        .filter_map(|id| Some((identities.name(id)?.as_str(), world.clusters.get(id)?)));
    known
        .filter(|(name, seen)| leads_to(secrets, name, seen))
        .map(|(name, _)| name)
        .collect()
}

/// Reports whether our keys of this name lead to a cluster.
fn leads_to(
    secrets: &BTreeMap<ConnectionSecret, SecretSeen>,
    name: &str,
    seen: &ClusterSeen,
) -> bool {
    let keys: Vec<&SecretBytes> = secrets
        .values()
        .filter_map(|secret| secret.keys.get(name))
        .filter(|held| held.is_ours())
        .map(|held| &held.value)
        .collect();
    let by_address = keys
        .iter()
        .any(|key| addresses(seen).any(|address| mentions(key, address)));
    // A key without an address leads to the cluster that has the name now.
    by_address || seen.config.known().is_some() && !keys.iter().any(|key| has_address(key))
}

/// The known Cilium names of all present and former neighbours of a cluster.
pub(super) fn neighbour_names<'a>(
    world: &World,
    identities: &'a Identities,
    target: &ClusterId,
) -> BTreeSet<&'a str> {
    neighbours(world, target)
        .filter_map(|id| identities.name(id))
        .map(CiliumName::as_str)
        .collect()
}

/// All present and former neighbours of a cluster.
fn neighbours<'a>(world: &'a World, target: &ClusterId) -> impl Iterator<Item = &'a ClusterId> {
    world
        .bindings
        .values()
        .map(named_or_touched)
        .filter(|clusters| clusters.contains(target))
        .flatten()
}

/// All addresses at which a cluster's clustermesh-apiserver may be reachable.
fn addresses(seen: &ClusterSeen) -> impl Iterator<Item = &String> {
    let balanced = seen
        .service
        .known()
        .into_iter()
        .flatten()
        .flat_map(|service| &service.ingress_ips);
    let nodes = seen.nodes.known().into_iter().flat_map(BTreeMap::values);
    balanced.chain(nodes.flat_map(|node| node.internal.iter().chain(&node.external)))
}

/// The remotes of links that are not written now, and those of meshes that lost
/// access to some clusters.
fn kept_names<'a>(
    meshes: &[Mesh<'_>],
    identities: &'a Identities,
    links: &Links,
    target: &ClusterId,
) -> BTreeSet<&'a str> {
    let kept = links
        .plans
        .iter()
        .filter(|(link, plan)| link.reader == *target && plan.keys.is_none());
    let lost = meshes
        .iter()
        .filter(|mesh| !mesh.binding.common.lost.is_empty() && mesh.involved().contains(target));
    let kept = kept
        .map(|(link, _)| &link.remote)
        .chain(lost.flat_map(Mesh::involved));
    kept.filter_map(|remote| identities.name(remote))
        .map(CiliumName::as_str)
        .collect()
}

fn wanted(links: &Links, target: &ClusterId) -> BTreeMap<Key, SecretBytes> {
    let plans = links
        .plans
        .iter()
        .filter(|(link, _)| link.reader == *target);
    plans
        .filter_map(|(_, plan)| plan.keys.clone())
        .flatten()
        .collect()
}

fn apply(
    name: ConnectionSecret,
    seen: Option<&SecretSeen>,
    stays: &RetainedKeys<'_>,
) -> Option<SecretApply> {
    let missing = SecretSeen::default();
    let secret = seen.unwrap_or(&missing);
    let on = |secret: &SecretSeen| Precondition {
        uid: secret.uid.as_str().into(),
        resource_version: secret.resource_version.as_str().into(),
    };
    let mut apply = SecretApply {
        on: seen.map(on),
        ..SecretApply::default()
    };
    for (key, bytes) in stays
        .own
        .wanted
        .iter()
        .filter(|((secret, _), _)| *secret == name)
    {
        let entry = key.1.clone();
        match secret.keys.get(&entry) {
            None => {
                _ = (
                    apply.added.insert(entry.clone()),
                    apply.data.insert(entry, bytes.clone()),
                )
            }
            Some(held) if !held.is_ours() => {}
            Some(held)
                if held.value == *bytes
                    || !held.is_ours_alone()
                    || stays.is_taken(key, secret, &held.value) =>
            {
                apply.data.insert(entry, held.value.clone());
            }
            Some(_) => {
                _ = (
                    apply.changed.insert(entry.clone()),
                    apply.data.insert(entry, bytes.clone()),
                )
            }
        }
    }
    for (key, held) in secret.keys.iter().filter(|(_, held)| held.is_ours()) {
        if apply.data.contains_key(key) {
            continue;
        }
        if stays.holds(&(name, key.clone()), secret) {
            apply.data.insert(key.clone(), held.value.clone());
        } else {
            apply.removed.insert(key.clone());
        }
    }
    let changes = !apply.added.is_empty() || !apply.changed.is_empty() || !apply.removed.is_empty();
    changes.then_some(apply)
}
