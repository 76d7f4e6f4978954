//! Which links lead to the same cluster: those whose Node lists share a UID,
//! or, until both were listed, those with the same server and CA.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::names::{ClusterId, ClusterName, MeshId};

use crate::fleet::{HUB, Source};
use crate::kilo::record::Record;
use crate::kubeconfig::Server;

/// What is known of one link.
#[derive(Debug, Clone, Default)]
pub(super) struct Trait {
    pub(super) server: Option<Server>,
    /// UIDs of some of its Nodes, once they were listed.
    pub(super) nodes: Option<BTreeSet<String>>,
    pub(super) usable: bool,
    /// The order in which clusters were found behind their links: a link that
    /// was led elsewhere since comes after those that were there before.
    pub(super) since: u64,
}

/// As many as make it certain; the smallest ones, so that two lists of the
/// same cluster give the same.
const SAMPLE: usize = 16;

pub(super) fn sample<'a>(uids: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let all: BTreeSet<&str> = uids.filter(|uid| !uid.is_empty()).collect();
    all.into_iter().take(SAMPLE).map(str::to_owned).collect()
}

/// For each link the one that stands for its cluster: the first that can be
/// used, else the first.
pub(super) fn representatives(links: &BTreeMap<ClusterId, Trait>) -> BTreeMap<ClusterId, ClusterId> {
    let mut groups: Vec<Vec<&ClusterId>> = Vec::new();
    for (id, of) in links {
        let same = |other: &&ClusterId| links.get(*other).is_some_and(|other| is_same(of, other));
        match groups.iter_mut().find(|group| group.iter().any(&same)) {
            Some(group) => group.push(id),
            None => groups.push(vec![id]),
        }
    }
    let mut result = BTreeMap::new();
    for mut group in groups {
        group.sort_by_key(|id| (id.as_str() != HUB, links.get(*id).map(|of| of.since), *id));
        let usable = group.iter().find(|id| links.get(**id).is_some_and(|of| of.usable));
        let Some(first) = usable.or(group.first()).map(|id| (*id).clone()) else { continue };
        result.extend(group.into_iter().map(|id| (id.clone(), first.clone())));
    }
    result
}

/// Which cluster the entries of meshes stand for.
pub(super) type Identities = BTreeMap<(MeshId, ClusterName), ClusterId>;
/// What entries stand for that can't be told apart, and why.
pub(super) type Strays = Vec<(ClusterId, String)>;

/// Which cluster every entry of every mesh stands for. Those of meshes that are
/// not acted on are known by name alone, unless their link is known.
///
/// Two entries of one mesh can't be one cluster: the second stands for nothing
/// that is known, with the reason.
pub(super) fn identities<'a>(
    records: impl Iterator<Item = &'a Record>,
    acts_on: impl Fn(&MeshId) -> bool,
    representatives: &BTreeMap<ClusterId, ClusterId>,
) -> (Identities, Strays) {
    let records: Vec<&Record> = records.collect();
    let represented = |id: ClusterId| representatives.get(&id).cloned().unwrap_or(id);
    let mut by_name: BTreeMap<ClusterName, BTreeSet<ClusterId>> = BTreeMap::new();
    for (name, source) in records.iter().filter(|record| acts_on(record.id())).flat_map(|record| record.entries()) {
        by_name.entry(name).or_default().insert(represented(source.id()));
    }
    let (mut identities, mut strays) = (Identities::new(), Strays::new());
    for record in &records {
        let acts = acts_on(record.id());
        let entries = record.entries();
        let keepers = keepers(&entries, &represented);
        for (name, source) in entries {
            let stands_for = represented(source.id());
            if let Some(keeper) = keepers.get(&stands_for).filter(|keeper| acts && **keeper != name) {
                let why = format!("its kubeconfig leads to the same cluster as that of {keeper}: check its Secret");
                let apart = if source.id() == stands_for { format!("{stands_for}#{name}") } else { source.id().to_string() };
                identities.insert((record.id().clone(), name), ClusterId::from(apart.as_str()));
                strays.push((ClusterId::from(apart.as_str()), why));
                continue;
            }
            let namesake = by_name.get(&name).filter(|ids| ids.len() == 1).and_then(|ids| ids.first());
            let linked = acts || source == Source::Hub || representatives.contains_key(&source.id());
            let cluster = match namesake {
                Some(namesake) if !linked => namesake.clone(),
                _ => stands_for,
            };
            identities.insert((record.id().clone(), name), cluster);
        }
    }
    (identities, strays)
}

/// Which entry of a mesh stands for a cluster that several lead to: the one
/// through whose link it is followed, else the first.
fn keepers(entries: &BTreeMap<ClusterName, Source>, represented: &impl Fn(ClusterId) -> ClusterId) -> BTreeMap<ClusterId, ClusterName> {
    let own = entries.iter().filter(|(_, source)| represented(source.id()) == source.id());
    let mut keepers = BTreeMap::new();
    for (name, source) in own.chain(entries) {
        keepers.entry(represented(source.id())).or_insert_with(|| name.clone());
    }
    keepers
}

fn is_same(one: &Trait, other: &Trait) -> bool {
    match (&one.nodes, &other.nodes) {
        (Some(one), Some(other)) if !one.is_empty() && !other.is_empty() => !one.is_disjoint(other),
        _ => one.server.is_some() && one.server == other.server,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(uids: &[&str]) -> Trait {
        Trait { nodes: Some(sample(uids.iter().copied())), usable: true, ..Trait::default() }
    }

    #[test]
    fn links_that_share_a_node_are_one_cluster() {
        let ids = ["a", "b", "c"].map(ClusterId::from);
        let links = ids.iter().cloned().zip([listed(&["1", "2"]), listed(&["3"]), listed(&["2", "4"])]).collect();
        let found = representatives(&links);
        assert_eq!(found.values().map(ClusterId::as_str).collect::<Vec<_>>(), ["a", "b", "a"]);
    }

    #[test]
    fn the_link_that_works_stands_for_the_cluster() {
        let ids = ["a", "b"].map(ClusterId::from);
        let broken = Trait { usable: false, ..listed(&["1"]) };
        let links = ids.iter().cloned().zip([broken, listed(&["1"])]).collect();
        assert!(representatives(&links).values().all(|id| id.as_str() == "b"));
    }
}
