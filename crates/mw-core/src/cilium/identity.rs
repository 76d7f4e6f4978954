//! cluster-name and cluster-id: the values of each cluster, conflicts between
//! clusters, and values to set where they are missing. A value in use is never
//! changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::facts::{ClusterSeen, Config, Identity};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::membership::{Component, Mesh, components};
use crate::cilium::plan::IdentityWrite;
use crate::cilium::world::World;
use crate::names::{CiliumName, ClusterId, InvalidName, UNNAMED};
use crate::problem::Reason;
use crate::text::quoted;

const NAME_HINT: &str =
    "set cluster-name in the cluster's cilium-config: at most 32 characters of a-z, 0-9 and '-'";
/// Ids from here on are not supported with ENI and aws-cni.
const FIRST_LARGE_ID: u32 = 128;

#[derive(Debug, Default)]
pub(super) struct Identities {
    pub(super) of: BTreeMap<ClusterId, Identity>,
    pub(super) findings: BTreeMap<ClusterId, Vec<Finding>>,
    /// Conflicts of two clusters, listed at each of them.
    clashes: BTreeMap<ClusterId, Vec<Clash>>,
    pub(super) writes: BTreeMap<ClusterId, IdentityWrite>,
}

/// Two clusters that can't be in one component.
#[derive(Debug)]
struct Clash {
    /// The rank by age of the binding that connected them. Older bindings
    /// ignore the conflict: no tenant can break a mesh by joining it.
    from: usize,
    finding: Finding,
}

impl Identities {
    /// The Cilium name and id of a cluster, if it has both.
    pub(super) fn full(&self, cluster: &ClusterId) -> Option<(&CiliumName, u32)> {
        let identity = self.of.get(cluster)?;
        Some((identity.name.as_ref()?, identity.id?))
    }

    pub(super) fn name(&self, cluster: &ClusterId) -> Option<&CiliumName> {
        self.of.get(cluster)?.name.as_ref()
    }

    /// All findings about a cluster for the binding of this rank.
    pub(super) fn told(&self, cluster: &ClusterId, rank: usize) -> impl Iterator<Item = &Finding> {
        let clashes = self
            .clashes
            .get(cluster)
            .into_iter()
            .flatten()
            .filter(move |clash| clash.from <= rank);
        self.findings
            .get(cluster)
            .into_iter()
            .flatten()
            .chain(clashes.map(|clash| &clash.finding))
    }

    /// Reports whether a cluster that the binding of this rank may connect to
    /// has the same name.
    pub(super) fn shares_name(&self, cluster: &ClusterId, rank: usize) -> bool {
        self.told(cluster, rank)
            .any(|finding| finding.reason == Reason::DuplicateClusterName)
    }

    /// Reports whether the cluster's identity conflicts. A binding of this rank
    /// then adds no new link to it.
    pub(super) fn clashes(&self, cluster: &ClusterId, rank: usize) -> bool {
        self.told(cluster, rank)
            .any(|finding| CLASHES.contains(&finding.reason))
    }
}

const CLASHES: [Reason; 4] = [
    Reason::DuplicateClusterID,
    Reason::DuplicateClusterName,
    Reason::MaxConnectedClustersDiffer,
    Reason::ClusterNameRefused,
];

impl Config {
    /// The valid values, remembered for when they can't be read.
    pub fn identity(&self) -> Identity {
        Identity {
            name: live_name(self).ok().flatten(),
            id: live_id(self).ok().flatten(),
        }
    }
}

/// The identity of a cluster, or the one last read.
fn read(seen: &ClusterSeen) -> Option<Identity> {
    match seen.config.known() {
        Some(Some(config)) => Some(config.identity()),
        _ => seen.remembered.clone(),
    }
}

fn live_name(config: &Config) -> Result<Option<CiliumName>, InvalidName> {
    match config.cluster_name.as_str() {
        "" | UNNAMED => Ok(None),
        name => CiliumName::try_from(name).map(Some),
    }
}

fn live_id(config: &Config) -> Result<Option<u32>, String> {
    match config.cluster_id.as_str() {
        "" | "0" => Ok(None),
        text => match text.parse::<u32>() {
            Ok(id) if id <= config.max_clusters => Ok(Some(id)),
            _ => Err(format!(
                "cluster-id {} is not between 1 and {}",
                quoted(text),
                config.max_clusters
            )),
        },
    }
}

pub(super) fn identify(
    world: &World,
    meshes: &[Mesh<'_>],
    components: &[Component<'_>],
) -> Identities {
    let mut found = Identities::default();
    for (id, seen) in &world.clusters {
        found
            .of
            .extend(read(seen).map(|identity| (id.clone(), identity)));
        let Some(Some(config)) = seen.config.known() else {
            continue;
        };
        if let Err(why) = live_id(config) {
            found.note(
                id,
                Finding::permanent(Step::Identity, Reason::ClusterIDInvalid, why),
            );
        }
        if let Err(why) = live_name(config) {
            found.note(
                id,
                Finding::permanent(Step::Identity, Reason::ClusterNameRefused, why.to_string())
                    .hint(NAME_HINT),
            );
        }
    }
    for component in components {
        found.find_clashes(world, meshes, component);
    }
    let mut taken: BTreeSet<u32> = found
        .of
        .values()
        .filter_map(|identity| identity.id)
        .collect();
    for component in components {
        found.complete(world, meshes, component, &mut taken);
    }
    found
}

impl Identities {
    fn note(&mut self, cluster: &ClusterId, finding: Finding) {
        self.findings
            .entry(cluster.clone())
            .or_default()
            .push(finding);
    }

    fn note_clash(&mut self, from: usize, one: &ClusterId, other: &ClusterId, finding: Finding) {
        self.clashes.entry(one.clone()).or_default().push(Clash {
            from,
            finding: finding.about(other),
        });
    }

    fn note_both(
        &mut self,
        from: usize,
        one: &ClusterId,
        other: &ClusterId,
        finding: impl Fn() -> Finding,
    ) {
        self.note_clash(from, one, other, finding());
        self.note_clash(from, other, one, finding());
    }

    fn find_clashes(&mut self, world: &World, meshes: &[Mesh<'_>], component: &Component<'_>) {
        let clusters: Vec<&ClusterId> = component.clusters.iter().copied().collect();
        for (at, one) in clusters.iter().enumerate() {
            for other in clusters.iter().skip(at + 1) {
                self.find_clash(world, one, other, || joined(meshes, one, other));
            }
        }
    }

    fn find_clash(
        &mut self,
        world: &World,
        one: &ClusterId,
        other: &ClusterId,
        from: impl Fn() -> usize,
    ) {
        let (Some(a), Some(b)) = (self.of.get(one).cloned(), self.of.get(other).cloned()) else {
            return;
        };
        if let Some(id) = a.id.filter(|id| b.id == Some(*id)) {
            let text = format!("cluster-id {id} is also used by");
            self.note_both(from(), one, other, || {
                Finding::permanent(Step::Identity, Reason::DuplicateClusterID, &text)
                    .hint("set a different cluster-id in one of them and restart Cilium there")
            });
        }
        if let Some(name) = a.name.as_ref().filter(|name| b.name.as_ref() == Some(name)) {
            let text = format!("cluster-name {} is also used by", quoted(name.as_str()));
            self.note_both(from(), one, other, || {
                Finding::permanent(Step::Identity, Reason::DuplicateClusterName, &text)
                    .hint("set a different cluster-name in one of them and restart Cilium there")
            });
        }
        let most = |id: &ClusterId| config(world, id).map(|config| config.max_clusters);
        if let (Some(a), Some(b)) = (most(one), most(other))
            && a != b
        {
            let finding = |own: u32, others: u32| {
                let text = format!("max-connected-clusters is {own} here and {others} in");
                Finding::permanent(Step::Identity, Reason::MaxConnectedClustersDiffer, text)
                    .hint("it must be equal in all clusters of a mesh")
            };
            self.note_clash(from(), one, other, finding(a, b));
            self.note_clash(from(), other, one, finding(b, a));
        }
    }

    /// Assigns missing names and ids in a component.
    fn complete(
        &mut self,
        world: &World,
        meshes: &[Mesh<'_>],
        component: &Component<'_>,
        taken: &mut BTreeSet<u32>,
    ) {
        let never_read = component.incomplete
            || component
                .clusters
                .iter()
                .any(|id| !self.of.contains_key(*id));
        for cluster in &component.clusters {
            let Some(config) = config(world, cluster) else {
                continue;
            };
            let (Ok(name), Ok(id)) = (live_name(config), live_id(config)) else {
                continue;
            };
            if name.is_some() && id.is_some() {
                continue;
            }
            let named = match name {
                Some(_) => None,
                None => match self.new_name(meshes, component, cluster) {
                    Ok(named) => Some(named),
                    Err(finding) => {
                        self.note(cluster, finding);
                        continue;
                    }
                },
            };
            if never_read {
                let text = "no identity is set until every cluster of the mesh has been read";
                self.note(
                    cluster,
                    Finding::waiting(Step::Identity, Reason::IdentityIncomplete, text),
                );
                continue;
            }
            let given = self
                .writes
                .iter()
                .filter(|(id, _)| component.clusters.contains(id))
                .filter_map(|(_, write)| write.id);
            let inside: BTreeSet<u32> = component
                .clusters
                .iter()
                .filter_map(|id| self.of.get(*id)?.id)
                .chain(given)
                .collect();
            let numbered = if id.is_none() {
                new_id(config, taken, &inside)
            } else {
                None
            };
            if id.is_none() && numbered.is_none() {
                self.note(
                    cluster,
                    Finding::permanent(
                        Step::Identity,
                        Reason::NoClusterIDLeft,
                        "no cluster-id is left",
                    ),
                );
                continue;
            }
            self.give(cluster, config, named, numbered);
        }
    }

    fn give(
        &mut self,
        cluster: &ClusterId,
        config: &Config,
        name: Option<CiliumName>,
        id: Option<u32>,
    ) {
        let finding = Finding::waiting(
            Step::Identity,
            Reason::IdentityIncomplete,
            "cluster-name and cluster-id are being set",
        );
        self.note(cluster, finding);
        let write = IdentityWrite {
            resource_version: config.resource_version.clone(),
            name,
            id,
        };
        self.writes.insert(cluster.clone(), write);
    }

    /// The ref of the oldest binding that Cilium accepts as a name. An invalid
    /// ref may belong to another tenant and is not shown.
    fn new_name(
        &self,
        meshes: &[Mesh<'_>],
        component: &Component<'_>,
        cluster: &ClusterId,
    ) -> Result<CiliumName, Finding> {
        let mut refs = meshes.iter().filter_map(|mesh| mesh.ref_of(cluster));
        let Some(name) = refs.find_map(|name| CiliumName::try_from(name).ok()) else {
            let text = "cluster-name is not set, and Cilium does not accept the ref as one";
            return Err(
                Finding::permanent(Step::Identity, Reason::ClusterNameRefused, text)
                    .hint(NAME_HINT),
            );
        };
        let given = |id: &&ClusterId| self.writes.get(*id).and_then(|write| write.name.as_ref());
        let holder = component
            .clusters
            .iter()
            .find(|id| self.name(id) == Some(&name) || given(id) == Some(&name));
        match holder {
            Some(holder) => {
                let text = format!("cluster-name {} is already used by", quoted(name.as_str()));
                Err(
                    Finding::permanent(Step::Identity, Reason::DuplicateClusterName, text)
                        .about(holder),
                )
            }
            None => Ok(name),
        }
    }
}

/// The rank of the binding that first connects two clusters, directly or
/// through others.
fn joined(meshes: &[Mesh<'_>], one: &ClusterId, other: &ClusterId) -> usize {
    let together = |oldest: &[Mesh<'_>]| {
        components(oldest)
            .iter()
            .any(|of| of.clusters.contains(one) && of.clusters.contains(other))
    };
    (0..meshes.len())
        .find(|rank| meshes.get(..=*rank).is_some_and(together))
        .unwrap_or_default()
}

fn config<'a>(world: &'a World, cluster: &ClusterId) -> Option<&'a Config> {
    world.clusters.get(cluster)?.config.known()?.as_ref()
}

/// The lowest id that no known cluster has, otherwise the lowest that none of
/// the component has: other tenants can't use up all ids.
fn new_id(config: &Config, taken: &mut BTreeSet<u32>, inside: &BTreeSet<u32>) -> Option<u32> {
    let most = if config.small_ids {
        config.max_clusters.min(FIRST_LARGE_ID - 1)
    } else {
        config.max_clusters
    };
    let id = (1..=most)
        .find(|id| !taken.contains(id))
        .or_else(|| (1..=most).find(|id| !inside.contains(id)))?;
    taken.insert(id);
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_lowest_free_ones_within_the_limits() {
        let config = |max_clusters, small_ids| Config {
            max_clusters,
            small_ids,
            ..Config::default()
        };
        let given = |config: Config, taken: &mut BTreeSet<u32>| {
            let inside = taken.clone();
            new_id(&config, taken, &inside)
        };
        let mut taken: BTreeSet<u32> = BTreeSet::from([1, 3]);
        assert_eq!(
            [
                given(config(255, false), &mut taken),
                given(config(255, false), &mut taken)
            ],
            [Some(2), Some(4)]
        );
        let mut all: BTreeSet<u32> = (1..=127).collect();
        assert_eq!(
            (
                given(config(511, true), &mut all),
                given(config(255, false), &mut all)
            ),
            (None, Some(128))
        );
        let mut all: BTreeSet<u32> = (1..=255).collect();
        assert_eq!(
            (
                given(config(255, false), &mut all),
                given(config(511, false), &mut all)
            ),
            (None, Some(256))
        );
    }

    #[test]
    fn strangers_that_have_every_id_leave_one_for_a_mesh_of_its_own() {
        let config = Config {
            max_clusters: 255,
            ..Config::default()
        };
        let mut all: BTreeSet<u32> = (1..=255).collect();
        assert_eq!(new_id(&config, &mut all, &BTreeSet::from([1, 2])), Some(3));
    }
}
