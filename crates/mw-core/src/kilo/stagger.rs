//! Prefixes that move between Peers in one pass, e.g. when Kilo renumbers its
//! nodes. No two Peers may have the same prefix at a time, so a Peer gets a
//! prefix only after the other Peer has lost it.

use std::collections::{BTreeMap, BTreeSet};

use crate::cidr::Cidr;
use crate::kilo::outcome::{Act, PeerOutcome};
use crate::kilo::plan::Update;
use crate::kilo::target::Target;
use crate::names::PeerName;

impl Target {
    /// Splits updates that both remove and add prefixes if they conflict.
    pub(super) fn stagger(&mut self) {
        let mut lost: BTreeMap<Cidr, PeerName> = BTreeMap::new();
        for ((name, _), outcome) in &self.outcomes {
            let (Some(update), Some(entry)) = (taking(&outcome.act), self.entries.get(name)) else {
                continue;
            };
            let kept = update.after.allowed_ips();
            lost.extend(
                entry
                    .prefixes()
                    .into_iter()
                    .filter(|cidr| !kept.contains(cidr))
                    .map(|cidr| (cidr, name.clone())),
            );
        }
        for ((name, _), outcome) in &mut self.outcomes {
            let PeerOutcome {
                act: Act::Update(update),
                ..
            } = outcome
            else {
                continue;
            };
            let early = |cidr: &&Cidr| lost.get(*cidr).is_some_and(|holder| holder != name);
            let early: BTreeSet<Cidr> = update
                .after
                .allowed_ips()
                .iter()
                .filter(early)
                .copied()
                .collect();
            let splits = update.takes_away
                && !early.is_empty()
                && early.len() < update.after.allowed_ips().len();
            update.first = splits.then(|| update.after.without(&early));
        }
    }
}

fn taking(act: &Act) -> Option<&Update> {
    match act {
        Act::Update(update) if update.takes_away => Some(update),
        _ => None,
    }
}
