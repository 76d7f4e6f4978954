//! Memory of discovered endpoints: Kilo drops its entries for some seconds
//! around every reload, and an endpoint must not fall back for that time.

use std::collections::BTreeMap;

use mw_core::endpoint::Endpoint;
use mw_core::key::PublicKey;
use mw_core::kilo::{DISCOVERED_SECONDS, Sighting, Vanished};
use mw_core::time::Timestamp;

use crate::kilo::engine::Engine;

/// The endpoints that a cluster's nodes list, and those that they no longer do.
#[derive(Debug, Default)]
pub(super) struct Discovered {
    observed: BTreeMap<PublicKey, Endpoint>,
    vanished: Vanished,
}

impl Discovered {
    /// Takes in the endpoints that the nodes list now.
    fn note(&mut self, observed: BTreeMap<PublicKey, Endpoint>, now: Timestamp) {
        let until = now.plus(DISCOVERED_SECONDS);
        for (key, endpoint) in std::mem::replace(&mut self.observed, observed) {
            self.vanished.insert(key, Sighting { endpoint, until });
        }
        self.vanished.retain(|key, sighting| sighting.until > now && !self.observed.contains_key(key));
    }
}

impl Engine {
    /// Hands the planner the endpoints that vanished from clusters whose Nodes changed.
    pub(super) fn hand_over_discovered(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        for cluster in std::mem::take(&mut self.nodes_changed) {
            let Some(member) = self.members.get_mut(&cluster) else { continue };
            // Nobody sees what an unreadable cluster's nodes list.
            let Some(observed) = planner.observed(&cluster) else { continue };
            member.discovered.note(observed, self.now);
            planner.set_vanished(&cluster, member.discovered.vanished.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_remembered_from_the_moment_its_key_vanishes() {
        let key = PublicKey::try_from("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
        let seen = |port: u16| BTreeMap::from([(key, Endpoint::try_from(format!("198.51.100.7:{port}").as_str()).unwrap())]);
        let mut memory = Discovered::default();
        memory.note(seen(1), Timestamp(0));
        memory.note(seen(2), Timestamp(50));
        assert!(memory.vanished.is_empty());
        memory.note(BTreeMap::new(), Timestamp(100));
        let sighting = Sighting { endpoint: seen(2)[&key].clone(), until: Timestamp(400) };
        assert_eq!(memory.vanished, BTreeMap::from([(key, sighting)]));
        memory.note(BTreeMap::new(), Timestamp(399));
        assert_eq!(memory.vanished.len(), 1, "it is not renewed");
        memory.note(seen(3), Timestamp(399));
        assert!(memory.vanished.is_empty(), "a new observation replaces it");
        memory.note(BTreeMap::new(), Timestamp(400));
        memory.note(BTreeMap::new(), Timestamp(700));
        assert!(memory.vanished.is_empty());
    }
}
