//! Prefixes that move between Peers in one pass, as when Kilo renumbers its
//! nodes: no two Peers may have one at a time, so whoever gets a prefix that
//! another has yet to lose gets it after that.

use std::collections::{BTreeMap, BTreeSet};

use crate::cidr::Cidr;
use crate::kilo::evaluate::{Act, Outcome, Target};
use crate::kilo::plan::Update;
use crate::names::PeerName;

impl Target {
    /// Splits updates that take away and give at the same time where they clash.
    pub(super) fn stagger(&mut self) {
        let mut lost: BTreeMap<Cidr, PeerName> = BTreeMap::new();
        for ((name, _), outcome) in &self.outcomes {
            let (Some(update), Some(entry)) = (taking(&outcome.act), self.entries.get(name)) else { continue };
            let kept = update.after.allowed_ips();
            lost.extend(entry.prefixes().into_iter().filter(|cidr| !kept.contains(cidr)).map(|cidr| (cidr, name.clone())));
        }
        for ((name, _), outcome) in &mut self.outcomes {
            let Outcome { act: Act::Update(update), .. } = outcome else { continue };
            let early = |cidr: &&Cidr| lost.get(*cidr).is_some_and(|holder| holder != name);
            let early: BTreeSet<Cidr> = update.after.allowed_ips().iter().filter(early).copied().collect();
            let splits = update.takes_away && !early.is_empty() && early.len() < update.after.allowed_ips().len();
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
