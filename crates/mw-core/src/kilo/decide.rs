//! The decision on one Peer of one source on one target: write it as wanted,
//! with fewer prefixes, or not at all; and whether an existing Peer stays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::endpoint::Endpoint;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::entry::Entry;
use crate::kilo::mesh::ActiveMesh;
use crate::kilo::own_nodes::OwnNodes;
use crate::kilo::peer::{BasePeer, WantedPeer};
use crate::kilo::retained::RetainedPeers;
use crate::kilo::roaming::is_unconfigured;
use crate::kilo::source::SourcePlan;
use crate::names::PeerName;
use crate::problem::Reason;
use crate::time::Timestamp;

/// Minimum interval between two writes of a discovered endpoint.
const ENDPOINT_REST_SECONDS: u64 = 30;

/// A remark about one Peer on one target, for the user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note {
    pub(super) reason: Reason,
    pub(super) about: String,
}

#[derive(Debug, Default)]
pub(super) struct Decision {
    /// `None` if no Peer is wanted on this target.
    pub(super) wanted: Option<WantedPeer>,
    pub(super) notes: Vec<Note>,
    pub(super) recheck_at: Option<Timestamp>,
}

/// A source and a target of one mesh.
pub(super) struct Pair<'a> {
    declared: &'a DeclaredIndex,
    source: &'a SourcePlan,
    own: &'a OwnNodes,
    hits: &'a [Cidr],
    retained: &'a RetainedPeers,
    keepalive: u16,
    now: Timestamp,
    /// Endpoints inside the source's networks on this target, if they differ
    /// from the configured ones.
    inner: Option<BTreeSet<IpAddr>>,
    /// The Peer that keeps carrying the cluster-wide networks here because the
    /// anchor's Peer can't be written.
    stand_in: Option<PeerName>,
    anchor_withheld: bool,
}

impl<'a> Pair<'a> {
    pub(super) fn new(
        mesh: (usize, &'a ActiveMesh),
        source: usize,
        target: usize,
        (retained, entries): (&'a RetainedPeers, &BTreeMap<PeerName, Entry>),
        now: Timestamp,
    ) -> Option<Pair<'a>> {
        let (mesh_at, mesh) = mesh;
        let (from, to) = (mesh.members.get(source)?, mesh.members.get(target)?);
        let plan = from.plan.as_ref()?;
        let mut inner = None;
        let kept: Vec<IpAddr> = retained.source_endpoints((mesh_at, source)).collect();
        if !plan.inner_endpoints.is_empty() || !kept.is_empty() {
            let stays =
                |keys: &BTreeSet<_>| keys.iter().any(|key| !to.own.discovered.contains_key(key));
            let configured = plan
                .inner_endpoints
                .iter()
                .filter(|(_, keys)| stays(keys))
                .map(|(ip, _)| *ip);
            let here: BTreeSet<IpAddr> = configured.chain(kept).collect();
            if !here.iter().eq(plan.inner_endpoints.keys()) {
                inner = Some(here);
            }
        }
        let mut pair = Pair {
            declared: &mesh.declared,
            source: plan,
            own: &to.own,
            hits: to
                .own
                .hits
                .get(&from.name)
                .map(Vec::as_slice)
                .unwrap_or_default(),
            retained,
            keepalive: mesh.keepalive(source, target),
            now,
            inner,
            stand_in: None,
            anchor_withheld: false,
        };
        pair.anchor_withheld = plan
            .anchor_peer
            .as_ref()
            .is_some_and(|anchor| pair.decide(anchor, None).wanted.is_none());
        pair.stand_in = pair.find_stand_in(entries);
        Some(pair)
    }

    /// If the anchor's key is already used on a target, the Peer that carries
    /// the cluster-wide networks there now keeps them, so that they stay
    /// reachable.
    fn find_stand_in(&self, entries: &BTreeMap<PeerName, Entry>) -> Option<PeerName> {
        if !self.anchor_withheld {
            return None;
        }
        let extras: BTreeSet<Cidr> = self.source.extras.iter().copied().collect();
        let carries = |base: &&Arc<BasePeer>| {
            entries
                .get(&base.name)
                .is_some_and(|entry| !entry.deleting && entry.carries_one_of(&extras))
        };
        let stays =
            |base: &&Arc<BasePeer>| self.decide(base, entries.get(&base.name)).wanted.is_some();
        self.source
            .base
            .values()
            .filter(carries)
            .find(stays)
            .map(|base| base.name.clone())
    }

    /// While the anchor's Peer can't be written, the choice of the carrier
    /// depends on the other Peers.
    pub(super) fn is_entangled(&self) -> bool {
        self.anchor_withheld
    }

    pub(super) fn decide(&self, base: &Arc<BasePeer>, entry: Option<&Entry>) -> Decision {
        let mut decision = Decision::default();
        let discovered = self.own.discovered.get(&base.key);
        if base.endpoint.is_none() && self.keepalive == 0 {
            let stays = entry.filter(|entry| {
                is_unconfigured(entry, base.key, |key| self.own.explains(key, entry))
            });
            let fate = stays.map_or(
                "no Peer is written here",
                |_| "the existing Peer here is kept, but only the node can open the tunnel",
            );
            decision.note(
                Reason::NodeNoEndpoint,
                format!("{}: no endpoint and no keepalive; {fate}", base.node),
            );
            if stays.is_none() {
                return decision;
            }
        }
        if self.own.keys.contains(&base.key) {
            decision.note(
                Reason::KeyOfTarget,
                format!(
                    "{}: a node of this cluster has the same public key",
                    base.name
                ),
            );
            return decision;
        }
        if let Some(holder) = self.retained.key_holder(base.key, &base.name) {
            decision.note(
                Reason::KeyTaken,
                format!("{}: Peer {holder} has the same public key", base.name),
            );
            return decision;
        }
        // Reported once with the source, as it applies to every target.
        if discovered.is_none() && self.source.endpoint_inside.contains_key(&base.name) {
            return decision;
        }
        let plain = self.hits.is_empty()
            && self.retained.is_empty()
            && self.inner.is_none()
            && self.stand_in.is_none();
        let routed = || base.allowed_ips.iter().all(|cidr| self.own.routes(*cidr));
        if plain && discovered.is_none() && !base.allowed_ips.is_empty() && routed() {
            decision.wanted = Some(WantedPeer::plain(base, self.keepalive));
            return decision;
        }
        let allowed = self.allowed(base, &mut decision);
        if allowed.is_empty() {
            decision.note(
                Reason::NothingToRoute,
                format!("{}: no prefix left to route", base.name),
            );
            return decision;
        }
        let endpoint = match discovered {
            Some(found) => Some(self.rested(found, entry, &mut decision)),
            None => base.endpoint.clone(),
        };
        decision.wanted = Some(WantedPeer::overlaid(
            base,
            self.keepalive,
            endpoint,
            allowed,
        ));
        decision
    }

    fn allowed(&self, base: &BasePeer, decision: &mut Decision) -> Vec<Cidr> {
        let candidates = match (&self.inner, &base.all_ips) {
            (Some(_), Some(all)) => all,
            _ => &base.allowed_ips,
        };
        let stands_in = self.stand_in.as_ref() == Some(&base.name);
        let extras = self
            .source
            .extras
            .iter()
            .filter(|extra| stands_in && !candidates.contains(extra));
        let mut allowed = Vec::with_capacity(candidates.len());
        for cidr in candidates.iter().chain(extras) {
            match self.forbidden(base, *cidr) {
                Some((reason, about)) => decision.note(reason, about),
                None => allowed.push(*cidr),
            }
        }
        allowed
    }

    /// The reason why this target must not route a prefix to a Peer.
    fn forbidden(&self, base: &BasePeer, cidr: Cidr) -> Option<(Reason, String)> {
        let name = &base.name;
        Some(if !self.own.routes(cidr) {
            (
                Reason::PrefixOfAnotherFamily,
                format!("{cidr} of {name} is not of the IP family that this cluster's nodes route"),
            )
        } else if let Some(own) = self.hits.iter().find(|own| own.overlaps(cidr)) {
            (
                Reason::PrefixOverlapsTarget,
                format!("{cidr} of {name} overlaps {own} of this cluster's nodes"),
            )
        } else if let Some(holder) = self.retained.prefix_holder(cidr, name) {
            (
                Reason::PrefixTaken,
                format!("{cidr} of {name} is already routed to Peer {holder}"),
            )
        } else if let Some(ip) = self.retained.foreign_endpoint_in(cidr) {
            (
                Reason::PrefixContainsEndpoint,
                format!("{cidr} of {name} contains {ip}, the endpoint of another Peer here"),
            )
        } else {
            let ip = self.inner_endpoint_in(cidr)?;
            (
                Reason::PrefixContainsEndpoint,
                format!("{cidr} of {name} contains {ip}, an endpoint of its own cluster"),
            )
        })
    }

    fn inner_endpoint_in(&self, cidr: Cidr) -> Option<IpAddr> {
        self.inner
            .as_ref()?
            .range(cidr.first()..=cidr.last())
            .next()
            .copied()
    }

    /// Handshakes may come from a new port every minute, and each change makes
    /// Kilo replace all its peers, so an endpoint is kept for a minimum time.
    fn rested(&self, found: &Endpoint, entry: Option<&Entry>, decision: &mut Decision) -> Endpoint {
        let written = entry.and_then(|entry| Some((entry.endpoint()?, entry.endpoint_written?)));
        // An endpoint inside a declared network was configured or discovered by
        // mistake: it would be routed into its own tunnel.
        let inside = |present: &Endpoint| {
            present
                .ip()
                .is_some_and(|ip| self.declared.owner(ip).is_some())
        };
        match written.filter(|(present, _)| !inside(present)) {
            Some((present, at))
                if present != *found && self.now < at.plus(ENDPOINT_REST_SECONDS) =>
            {
                decision.recheck_at = Some(at.plus(ENDPOINT_REST_SECONDS));
                present
            }
            _ => found.clone(),
        }
    }
}

impl Decision {
    fn note(&mut self, reason: Reason, about: String) {
        self.notes.push(Note { reason, about });
    }
}
