//! Which links lead to the same cluster: those whose Node lists share a UID,
//! or, until both were listed, those with the same server and CA.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::names::ClusterId;

use crate::fleet::HUB;
use crate::kubeconfig::Server;

/// What is known of one link.
#[derive(Debug, Clone, Default)]
pub(super) struct Trait {
    pub(super) server: Option<Server>,
    /// UIDs of some of its Nodes, once they were listed.
    pub(super) nodes: Option<BTreeSet<String>>,
    pub(super) usable: bool,
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
        group.sort_by_key(|id| (id.as_str() != HUB, *id));
        let usable = group.iter().find(|id| links.get(**id).is_some_and(|of| of.usable));
        let Some(first) = usable.or(group.first()).map(|id| (*id).clone()) else { continue };
        result.extend(group.into_iter().map(|id| (id.clone(), first.clone())));
    }
    result
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
