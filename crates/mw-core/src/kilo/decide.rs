//! The decision on one Peer of one source on one target: write it as wanted,
//! with fewer prefixes, or not at all; and whether an existing Peer stays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::endpoint::Endpoint;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::guard::DeleteCause;
use crate::kilo::mesh::ActiveMesh;
use crate::kilo::node::Nodes;
use crate::kilo::ownership::{Absent, Owner, may_be_taken_back};
use crate::kilo::peer::{BasePeer, WantedPeer};
use crate::kilo::planner::LinkFacts;
use crate::kilo::roaming::is_unconfigured;
use crate::kilo::source::SourcePlan;
use crate::kilo::target::{Entry, Own, RetainedPeers};
use crate::names::{ClusterId, MeshId, NodeName, PeerName};
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
    own: &'a Own,
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
        let kept: Vec<IpAddr> = match retained.is_empty() {
            true => Vec::new(),
            false => retained.source_endpoints((mesh_at, source)).collect(),
        };
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
            let forbidden = if !self.own.routes(*cidr) {
                Some((
                    Reason::PrefixOfAnotherFamily,
                    format!(
                        "{cidr} of {} is not of the IP family that this cluster's nodes route",
                        base.name
                    ),
                ))
            } else if let Some(own) = self.hits.iter().find(|own| own.overlaps(*cidr)) {
                Some((
                    Reason::PrefixOverlapsTarget,
                    format!(
                        "{cidr} of {} overlaps {own} of this cluster's nodes",
                        base.name
                    ),
                ))
            } else if let Some(holder) = self.retained.prefix_holder(*cidr, &base.name) {
                Some((
                    Reason::PrefixTaken,
                    format!("{cidr} of {} is already routed to Peer {holder}", base.name),
                ))
            } else if let Some(ip) = self.retained.foreign_endpoint_in(*cidr) {
                Some((
                    Reason::PrefixContainsEndpoint,
                    format!(
                        "{cidr} of {} contains {ip}, the endpoint of another Peer here",
                        base.name
                    ),
                ))
            } else {
                self.inner_endpoint_in(*cidr).map(|ip| {
                    (
                        Reason::PrefixContainsEndpoint,
                        format!(
                            "{cidr} of {} contains {ip}, an endpoint of its own cluster",
                            base.name
                        ),
                    )
                })
            };
            match forbidden {
                Some((reason, about)) => decision.note(reason, about),
                None => allowed.push(*cidr),
            }
        }
        allowed
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

/// The decision on an existing Peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerVerdict {
    /// The Peer that this source of this mesh wants here.
    Wanted { mesh: usize, source: usize },
    /// Ours, to be deleted.
    Surplus {
        mesh: Option<usize>,
        source: Option<usize>,
        cause: DeleteCause,
    },
    /// Kept unchanged.
    Stays {
        foreign: bool,
        source: Option<(usize, usize)>,
    },
}

const RETAIN_FOREIGN: PeerVerdict = PeerVerdict::Stays {
    foreign: true,
    source: None,
};
const RETAIN_OURS: PeerVerdict = PeerVerdict::Stays {
    foreign: false,
    source: None,
};

/// Inputs to all decisions on one target.
pub(super) struct TargetContext<'a> {
    pub(super) target: &'a ClusterId,
    pub(super) link: &'a LinkFacts,
    pub(super) meshes: &'a [MeshState],
    pub(super) sources: &'a dyn Sources,
    pub(super) absent: &'a Absent,
    pub(super) sweep_ghosts: bool,
}

/// A mesh and how it is handled.
#[derive(Debug)]
pub(super) struct MeshState {
    pub(super) id: MeshId,
    pub(super) mode: MeshMode,
}

#[derive(Debug)]
pub(super) enum MeshMode {
    Active(Box<ActiveMesh>),
    Deleting,
    /// Invalid or rejected: its Peers are left unchanged.
    HeldBack,
}

impl MeshState {
    pub(super) fn active(&self) -> Option<&ActiveMesh> {
        match &self.mode {
            MeshMode::Active(mesh) => Some(mesh),
            _ => None,
        }
    }
}

/// The nodes of a source, and those whose deletion was observed.
pub(super) trait Sources {
    fn nodes(&self, cluster: &ClusterId) -> Option<&Nodes>;
    fn left(&self, cluster: &ClusterId) -> &Departures;
}

/// Nodes known to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departures {
    /// Those whose delete event was observed.
    Seen(BTreeSet<NodeName>),
    /// Every node that is not listed, unless none is.
    AnyMissing,
}

impl Default for Departures {
    fn default() -> Self {
        Departures::Seen(BTreeSet::new())
    }
}

impl TargetContext<'_> {
    pub(super) fn verdict(&self, name: &PeerName, entry: &Entry) -> PeerVerdict {
        match entry.owner.as_ref() {
            Owner::Mesh(id) => self.verdict_of_ours(id, name, entry),
            Owner::Orphan if self.absent.includes(entry.labels()) => orphan(entry),
            Owner::Ghost if self.sweep_ghosts && self.absent.includes(entry.labels()) => {
                orphan(entry)
            }
            Owner::Foreign => self.stripped(name, entry).unwrap_or(RETAIN_FOREIGN),
            Owner::Orphan
            | Owner::Ghost
            | Owner::Ambiguous(_)
            | Owner::HubConflict(_)
            | Owner::OtherHub => RETAIN_FOREIGN,
        }
    }

    /// Reports whether a mesh may act through the credentials for this cluster.
    fn admits(&self, mesh: &MeshId) -> bool {
        self.link
            .namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == mesh.namespace)
    }

    /// Handles a Peer with our name and the right key that lacks some of our
    /// labels.
    fn stripped(&self, name: &PeerName, entry: &Entry) -> Option<PeerVerdict> {
        self.meshes.iter().enumerate().find_map(|(at, mesh)| {
            let mesh = mesh.active()?;
            let target = mesh.position(self.target)?;
            let source = mesh.wanted_by(name, None)?;
            let base = mesh.members.get(source)?.plan.as_ref()?.base.get(name)?;
            let ours =
                Some(base.key) == entry.key() && may_be_taken_back(entry.labels(), &base.labels);
            let takes = ours
                && !entry.deleting
                && source != target
                && mesh.older_mesh_with(source, target).is_none();
            takes.then_some(PeerVerdict::Wanted { mesh: at, source })
        })
    }

    fn verdict_of_ours(&self, id: &MeshId, name: &PeerName, entry: &Entry) -> PeerVerdict {
        let Some((at, state)) = mesh_at(self.meshes, id) else {
            return RETAIN_OURS;
        };
        let surplus = |source: Option<usize>, cause: DeleteCause| PeerVerdict::Surplus {
            mesh: Some(at),
            source,
            cause,
        };
        let mesh = match &state.mode {
            _ if entry.deleting || !self.admits(id) => return RETAIN_OURS,
            MeshMode::Deleting => return surplus(None, DeleteCause::MeshDeleted),
            MeshMode::HeldBack => return RETAIN_OURS,
            MeshMode::Active(mesh) => mesh,
        };
        let Some(target) = mesh.position(self.target) else {
            // The mesh may keep this Peer here through another link.
            let stays = mesh
                .members
                .iter()
                .any(|member| self.link.kin.contains(&member.id));
            return if stays {
                RETAIN_OURS
            } else {
                surplus(None, DeleteCause::TargetLeft)
            };
        };
        let labelled = entry.labels().source.as_deref();
        // Two clusters can produce the same name: a Peer of an unreadable
        // cluster must not be taken over by the other.
        if labelled.is_some_and(|label| mesh.is_unknown(label)) {
            return RETAIN_OURS;
        }
        if let Some(source) = mesh
            .wanted_by(name, labelled)
            .filter(|source| *source != target)
        {
            return match mesh.older_mesh_with(source, target) {
                Some(_) => RETAIN_OURS,
                None => PeerVerdict::Wanted { mesh: at, source },
            };
        }
        if mesh.unknown_source_of(name) {
            return RETAIN_OURS;
        }
        // A label can be edited, so the name decides which node keeps its Peer.
        let keeps = |at: &usize| {
            mesh.members
                .get(*at)
                .and_then(|member| member.plan.as_ref())
                .is_some_and(|plan| plan.kept.contains_key(name))
        };
        if let Some(source) = mesh
            .named_like(name)
            .into_iter()
            .find(keeps)
            .filter(|source| *source != target)
        {
            return PeerVerdict::Stays {
                foreign: false,
                source: Some((at, source)),
            };
        }
        match labelled.and_then(|label| mesh.position_of(label)) {
            None => surplus(None, DeleteCause::SourceLeft),
            Some(source) if source == target => surplus(None, DeleteCause::OwnNode),
            Some(source) if mesh.older_mesh_with(source, target).is_some() => RETAIN_OURS,
            Some(source) => match self.cause(mesh, source, name) {
                Some(cause) => surplus(Some(source), cause),
                None => PeerVerdict::Stays {
                    foreign: false,
                    source: Some((at, source)),
                },
            },
        }
    }

    /// The reason why a source no longer wants its Peer; `None` if the Peer is
    /// kept unchanged.
    fn cause(&self, mesh: &ActiveMesh, source: usize, name: &PeerName) -> Option<DeleteCause> {
        let member = mesh.members.get(source)?;
        let plan = member.plan.as_ref()?;
        if plan.kept.contains_key(name) {
            return None;
        }
        let peer_of = |node: &str| PeerName::of(&mesh.id.name, &member.name, node) == *name;
        let nodes = self.sources.nodes(&member.id)?;
        let present = nodes.keys().any(|node| peer_of(node.as_str()));
        let left = match self.sources.left(&member.id) {
            Departures::AnyMissing => !nodes.is_empty(),
            Departures::Seen(names) => names.iter().any(|node| peer_of(node.as_str())),
        };
        let is_legacy_anchor = !present && peer_of("anchor");
        // The anchor is in its grace period: nothing replaces the legacy Peer
        // yet.
        if is_legacy_anchor && plan.anchor.is_some() && plan.anchor_peer.is_none() {
            return None;
        }
        Some(match present {
            false
                if is_legacy_anchor
                    && (plan.anchor_peer.is_some()
                        || (plan.extras.is_empty() && !nodes.is_empty())) =>
            {
                DeleteCause::LegacyAnchor
            }
            false if left => DeleteCause::NodeDeleted,
            true if plan.led_by_another.contains(name) => DeleteCause::NewLeader,
            _ => DeleteCause::NotWanted,
        })
    }
}

fn orphan(entry: &Entry) -> PeerVerdict {
    match entry.deleting {
        true => RETAIN_OURS,
        false => PeerVerdict::Surplus {
            mesh: None,
            source: None,
            cause: DeleteCause::Orphan,
        },
    }
}

/// Looks up a mesh in the list, which is sorted by id; the position identifies
/// the mesh.
pub(super) fn mesh_at<'a>(meshes: &'a [MeshState], id: &MeshId) -> Option<(usize, &'a MeshState)> {
    let at = meshes.binary_search_by(|mesh| mesh.id.cmp(id)).ok()?;
    Some((at, meshes.get(at)?))
}
