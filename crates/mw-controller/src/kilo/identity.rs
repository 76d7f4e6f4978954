//! Detects links that lead to the same cluster. Among links of one namespace, Node
//! UIDs are trusted; across namespaces a proof is required.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::facts::CaId;
use mw_core::kilo::planner::{LinkFacts, Links};
use mw_core::names::{ClusterId, ClusterName, MeshId};

use crate::fleet::Source;
use crate::kilo::record::Record;
use crate::kubeconfig::Server;

/// Identity of one link.
#[derive(Debug, Clone, Default)]
pub(super) struct LinkIdentity {
    /// Namespace of its Secret; None for the hub.
    pub(super) namespace: Option<String>,
    pub(super) server: Option<Server>,
    /// Private CA that its server was verified against.
    pub(super) ca: Option<CaId>,
    /// UIDs of some of its Nodes; None until they are listed.
    pub(super) nodes: Option<BTreeSet<String>>,
    pub(super) usable: bool,
    /// The cluster it leads to is not known yet.
    pub(super) awaited: bool,
    /// Its Nodes are not those that it led to before, and nobody has accepted that yet.
    pub(super) replaced: bool,
    /// Order in which clusters were found behind links: a link that was redirected
    /// comes after those that led there before.
    pub(super) since: u64,
}

/// Number of UIDs to compare. The smallest ones are used, so that two lists of the
/// same cluster give the same sample.
const SAMPLE: usize = 16;

pub(super) fn sample<'a>(uids: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let all: BTreeSet<&str> = uids.filter(|uid| !uid.is_empty()).collect();
    all.into_iter().take(SAMPLE).map(str::to_owned).collect()
}

pub(super) type Identified = BTreeMap<ClusterId, LinkIdentity>;

/// Returns for each link the link of its namespace that represents its cluster:
/// the first usable one, else the first. Links of one mesh represent themselves, and
/// so do those of a mesh that is being deleted: the mesh is cleaned up through each of
/// them, whatever they claim to be. A link whose Nodes were replaced represents itself
/// until that is accepted.
pub(super) fn representatives(links: &Identified, users: &Users) -> BTreeMap<ClusterId, ClusterId> {
    let mut result = BTreeMap::new();
    let same = |one: &LinkIdentity, other: &LinkIdentity| {
        is_same(one, other) && !one.replaced && !other.replaced
    };
    for mut group in groups(links, same, |one, other| users.keep_apart(one, other)) {
        group.sort_by_key(|id| (links.get(*id).map(|of| of.since), *id));
        let usable = group
            .iter()
            .find(|id| links.get(**id).is_some_and(|of| of.usable));
        let Some(first) = usable.or(group.first()).map(|id| (*id).clone()) else {
            continue;
        };
        result.extend(group.into_iter().map(|id| (id.clone(), first.clone())));
    }
    result
}

/// Meshes that have an entry for a link.
#[derive(Debug, Default)]
pub(super) struct Users {
    meshes: BTreeMap<ClusterId, BTreeSet<MeshId>>,
    /// Links of meshes that are being deleted.
    leaving: BTreeSet<ClusterId>,
}

impl Users {
    pub(super) fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Users {
        let mut users = Users::default();
        for record in records {
            for id in record.entries().values().map(Source::id) {
                if record.deleted_at().is_some() {
                    users.leaving.insert(id.clone());
                }
                users
                    .meshes
                    .entry(id)
                    .or_default()
                    .insert(record.id().clone());
            }
        }
        users
    }

    fn keep_apart(&self, one: &ClusterId, other: &ClusterId) -> bool {
        let meshes = self.meshes.get(one).zip(self.meshes.get(other));
        [one, other].iter().any(|id| self.leaving.contains(*id))
            || meshes.is_some_and(|(one, other)| !one.is_disjoint(other))
    }
}

/// Returns the link facts for the planner.
pub(super) fn links(links: &Identified) -> Links {
    let similar = similar(links);
    let awaited: BTreeSet<&ClusterId> = links
        .iter()
        .filter(|(_, of)| of.awaited)
        .map(|(id, _)| id)
        .collect();
    let mut facts: Links = links
        .iter()
        .map(|(id, of)| {
            let near = similar.get(id).into_iter().flatten().copied();
            // An entry for the hub may have changed from local to a Secret, or back.
            let awaited = awaited.iter().copied().filter(|_| of.namespace.is_none());
            let kin = near.chain(awaited).filter(|other| {
                *other != id
                    && links
                        .get(*other)
                        .is_some_and(|other| may_be_same(of, other))
            });
            (
                id.clone(),
                LinkFacts {
                    namespace: of.namespace.clone(),
                    proven: None,
                    kin: kin.cloned().collect(),
                },
            )
        })
        .collect();
    for group in groups(links, is_proven_same, |_, _| false)
        .into_iter()
        .filter(|group| group.len() > 1)
    {
        let first = group.first().map(|id| (*id).clone());
        for id in group {
            if let Some(link) = facts.get_mut(id) {
                link.proven.clone_from(&first);
            }
        }
    }
    facts
}

fn groups(
    links: &Identified,
    same: impl Fn(&LinkIdentity, &LinkIdentity) -> bool,
    apart: impl Fn(&ClusterId, &ClusterId) -> bool,
) -> Vec<Vec<&ClusterId>> {
    let similar = similar(links);
    let mut groups: Vec<Vec<&ClusterId>> = Vec::new();
    let mut placed: BTreeMap<&ClusterId, usize> = BTreeMap::new();
    for (id, of) in links {
        let same = |other: &&&ClusterId| links.get(**other).is_some_and(|other| same(of, other));
        let near = similar.get(id).into_iter().flatten().filter(same);
        let joins = |at: &&usize| {
            groups
                .get(**at)
                .is_some_and(|group| !group.iter().any(|other| apart(id, other)))
        };
        let at = near
            .filter_map(|other| placed.get(other))
            .filter(joins)
            .min()
            .copied()
            .unwrap_or(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(id),
            None => groups.push(vec![id]),
        }
        placed.insert(id, at);
    }
    groups
}

/// Returns for each link those that share a Node UID or the server with it.
fn similar(links: &Identified) -> BTreeMap<&ClusterId, BTreeSet<&ClusterId>> {
    let mut by_node: BTreeMap<&str, Vec<&ClusterId>> = BTreeMap::new();
    let mut by_server: BTreeMap<&Server, Vec<&ClusterId>> = BTreeMap::new();
    for (id, of) in links {
        of.nodes
            .iter()
            .flatten()
            .for_each(|uid| by_node.entry(uid).or_default().push(id));
        of.server
            .iter()
            .for_each(|server| by_server.entry(server).or_default().push(id));
    }
    let mut similar: BTreeMap<&ClusterId, BTreeSet<&ClusterId>> = BTreeMap::new();
    for together in by_node
        .values()
        .chain(by_server.values())
        .filter(|together| together.len() > 1)
    {
        together
            .iter()
            .for_each(|id| similar.entry(id).or_default().extend(together));
    }
    similar
}

fn share_a_node(one: &LinkIdentity, other: &LinkIdentity) -> Option<bool> {
    match (&one.nodes, &other.nodes) {
        (Some(one), Some(other)) if !one.is_empty() && !other.is_empty() => {
            Some(!one.is_disjoint(other))
        }
        _ => None,
    }
}

/// Links of one namespace belong to one owner, so Node UIDs and servers are trusted.
fn is_same(one: &LinkIdentity, other: &LinkIdentity) -> bool {
    let one_owner = one.namespace.is_some() && one.namespace == other.namespace;
    one_owner
        && share_a_node(one, other)
            .unwrap_or_else(|| one.server.is_some() && one.server == other.server)
}

/// Only the holder of a private CA's key can run a server that is verified against
/// it; Node UIDs alone can be copied.
fn is_proven_same(one: &LinkIdentity, other: &LinkIdentity) -> bool {
    let verified = one.usable && other.usable && one.ca.is_some() && one.ca == other.ca;
    verified && share_a_node(one, other) == Some(true)
}

fn may_be_same(one: &LinkIdentity, other: &LinkIdentity) -> bool {
    share_a_node(one, other).unwrap_or(one.awaited || other.awaited)
}

/// Cluster of each mesh entry.
pub(super) type Identities = BTreeMap<(MeshId, ClusterName), ClusterId>;
/// Clusters that are the same as another one of the same mesh, with a message.
pub(super) type Strays = BTreeMap<ClusterId, String>;

/// Resolves the cluster of every entry of every mesh.
///
/// Two entries of one mesh can't be the same cluster: the second is a stray, whose
/// Nodes count as unknown.
pub(super) fn identities<'a>(
    records: impl Iterator<Item = &'a Record>,
    links: &Identified,
    representatives: &BTreeMap<ClusterId, ClusterId>,
) -> (Identities, Strays) {
    let represented = |id: ClusterId| representatives.get(&id).cloned().unwrap_or(id);
    let similar = similar(links);
    let (mut identities, mut strays) = (Identities::new(), Strays::new());
    for record in records {
        let mut entries: Vec<(ClusterName, ClusterId)> = record
            .entries()
            .into_iter()
            .map(|(name, source)| (name, source.id()))
            .collect();
        entries.sort_by_key(|(name, id)| (links.get(id).map(|of| of.since), name.clone()));
        let mut kept: BTreeMap<&ClusterId, &ClusterName> = BTreeMap::new();
        for (name, id) in &entries {
            let same = |other: &&ClusterId| {
                *other == id
                    || links
                        .get(*other)
                        .zip(links.get(id))
                        .is_some_and(|(other, own)| is_same(other, own))
            };
            let near = std::iter::once(id).chain(similar.get(id).into_iter().flatten().copied());
            let keeper = near
                .filter(same)
                .find_map(|other| kept.get_key_value(other))
                .map(|(id, name)| (*id, *name));
            let cluster = match keeper {
                // Both entries name the same Secret.
                Some((other, _)) if other == id => ClusterId::from(format!("{id}#{name}").as_str()),
                Some(_) => id.clone(),
                None => represented(id.clone()),
            };
            if let Some((_, keeper)) = keeper {
                strays.insert(cluster.clone(), format!("the kubeconfig leads to the same cluster as that of {keeper}; check the Secret"));
            } else {
                kept.insert(id, name);
            }
            identities.insert((record.id().clone(), name.clone()), cluster);
        }
    }
    (identities, strays)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(namespace: &str, uids: &[&str]) -> LinkIdentity {
        let namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        LinkIdentity {
            namespace,
            nodes: Some(sample(uids.iter().copied())),
            usable: true,
            ..LinkIdentity::default()
        }
    }

    fn identified<const N: usize>(links: [LinkIdentity; N]) -> Identified {
        links
            .into_iter()
            .zip('a'..)
            .map(|(of, id)| (ClusterId::from(id.to_string().as_str()), of))
            .collect()
    }

    fn represented(links: &Identified) -> Vec<String> {
        representatives(links, &Users::default())
            .into_values()
            .map(|id| id.to_string())
            .collect()
    }

    #[test]
    fn links_of_a_namespace_that_share_a_node_are_one_cluster() {
        let links = identified([
            listed("x", &["1", "2"]),
            listed("x", &["3"]),
            listed("x", &["2", "4"]),
        ]);
        assert_eq!(represented(&links), ["a", "b", "a"]);
    }

    #[test]
    fn the_link_that_works_stands_for_the_cluster() {
        let broken = LinkIdentity {
            usable: false,
            ..listed("x", &["1"])
        };
        assert_eq!(
            represented(&identified([broken, listed("x", &["1"])])),
            ["b", "b"]
        );
    }

    #[test]
    fn a_link_with_other_nodes_than_before_stands_for_itself() {
        let replaced = LinkIdentity {
            replaced: true,
            ..listed("x", &["1"])
        };
        assert_eq!(
            represented(&identified([listed("x", &["1"]), replaced])),
            ["a", "b"]
        );
    }

    #[test]
    fn links_of_one_mesh_stand_for_themselves() {
        let links = identified([
            listed("x", &["1"]),
            listed("x", &["1"]),
            listed("x", &["1"]),
        ]);
        let mesh = BTreeSet::from([MeshId::new("x", "mesh")]);
        let meshes = ["a", "b"]
            .map(|id| (ClusterId::from(id), mesh.clone()))
            .into();
        let users = Users {
            meshes,
            ..Users::default()
        };
        let found: Vec<String> = representatives(&links, &users)
            .into_values()
            .map(|id| id.to_string())
            .collect();
        assert_eq!(found, ["a", "b", "a"]);
    }

    #[test]
    fn copied_node_uids_merge_nothing_across_namespaces_nor_with_the_hub() {
        let links = identified([
            listed("victim", &["1"]),
            listed("attacker", &["1"]),
            listed("", &["1"]),
        ]);
        assert_eq!(represented(&links), ["a", "b", "c"]);
        assert!(
            super::links(&links)
                .values()
                .all(|link| link.proven.is_none() && link.kin.len() == 2)
        );
    }

    #[test]
    fn a_private_ca_and_the_nodes_together_prove_a_cluster() {
        let ca = |name: &str, of: LinkIdentity| LinkIdentity {
            ca: Some(CaId(name.to_owned())),
            ..of
        };
        let proven = |links: [LinkIdentity; 2]| {
            super::links(&identified(links))
                .values()
                .all(|link| link.proven.is_some())
        };
        assert!(proven([
            ca("k", listed("x", &["1"])),
            ca("k", listed("y", &["1"]))
        ]));
        assert!(!proven([
            ca("k", listed("x", &["1"])),
            ca("l", listed("y", &["1"]))
        ]));
        assert!(!proven([
            ca("k", listed("x", &["1"])),
            ca("k", listed("y", &["2"]))
        ]));
        let broken = LinkIdentity {
            usable: false,
            ..listed("y", &["1"])
        };
        assert!(!proven([ca("k", listed("x", &["1"])), ca("k", broken)]));
    }
}
