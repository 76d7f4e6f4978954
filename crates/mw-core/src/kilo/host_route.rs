//! Host routes for WireGuard addresses that are not written for now. Kilo
//! renumbers its nodes when one is added or removed, and each node publishes
//! its new address up to 30s apart: meanwhile two nodes have the same address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::names::NodeName;

/// A node with a WireGuard address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) node: &'a NodeName,
    pub(super) address: IpAddr,
}

/// Node to its withheld address and the node that keeps the address.
pub(super) type Withheld = BTreeMap<NodeName, (IpAddr, NodeName)>;

/// Addresses claimed by more than one node.
pub(super) fn shared(claims: &[Claim<'_>]) -> BTreeSet<IpAddr> {
    let mut seen = BTreeSet::new();
    claims
        .iter()
        .map(|claim| claim.address)
        .filter(|address| !seen.insert(*address))
        .collect()
}

/// Decides which node keeps a shared address: the one whose Peer carries it,
/// otherwise the first by name. `kept` holds the addresses of Peers that are
/// kept unchanged.
pub(super) fn withheld(
    claims: &[Claim<'_>],
    kept: &BTreeMap<IpAddr, NodeName>,
    carries: impl Fn(&Claim<'_>) -> bool,
) -> Withheld {
    let shared = shared(claims);
    let mut by_address: BTreeMap<IpAddr, Vec<Claim<'_>>> = BTreeMap::new();
    for claim in claims
        .iter()
        .filter(|claim| shared.contains(&claim.address) || kept.contains_key(&claim.address))
    {
        by_address.entry(claim.address).or_default().push(*claim);
    }
    let mut withheld = Withheld::new();
    for (address, rivals) in by_address {
        let first = || {
            rivals
                .iter()
                .min_by_key(|claim| (!carries(claim), claim.node))
                .map(|claim| claim.node)
        };
        let Some(holder) = kept.get(&address).or_else(first) else {
            continue;
        };
        for loser in rivals.iter().filter(|claim| claim.node != holder) {
            withheld.insert(loser.node.clone(), (address, holder.clone()));
        }
    }
    withheld
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losers(claims: &[(&str, u8)], kept: &[(&str, u8)], carrying: &[&str]) -> Vec<String> {
        let address = |last: u8| IpAddr::from([10, 4, 0, last]);
        let names: Vec<NodeName> = claims
            .iter()
            .map(|(name, _)| NodeName::from(*name))
            .collect();
        let claims: Vec<Claim<'_>> = names
            .iter()
            .zip(claims)
            .map(|(node, (_, last))| Claim {
                node,
                address: address(*last),
            })
            .collect();
        let kept = kept
            .iter()
            .map(|(name, last)| (address(*last), NodeName::from(*name)))
            .collect();
        withheld(&claims, &kept, |claim| {
            carrying.contains(&claim.node.as_str())
        })
        .into_keys()
        .map(|node| node.to_string())
        .collect()
    }

    #[test]
    fn the_node_whose_peer_carries_the_address_keeps_it() {
        assert_eq!(losers(&[("a", 1), ("b", 2)], &[], &[]), [""; 0]);
        assert_eq!(
            losers(&[("a", 2), ("b", 2), ("c", 3)], &[], &["b", "c"]),
            ["a"]
        );
        assert_eq!(
            losers(&[("b", 2), ("a", 2), ("c", 2)], &[], &[]),
            ["b", "c"]
        );
    }

    #[test]
    fn an_address_on_a_peer_that_stays_as_it_is_is_withheld_from_all() {
        assert_eq!(losers(&[("b", 1), ("c", 2)], &[("a", 1)], &["b"]), ["b"]);
    }
}
