//! The decision on one Peer of one source on one target: as wanted, with a
//! prefix less, or not at all; and whether a Peer that is there is to stay.

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
use crate::kilo::source::SourcePlan;
use crate::kilo::target::{Entry, Own, Staying};
use crate::names::{ClusterId, MeshId, NodeName, PeerName};
use crate::problem::Reason;
use crate::time::Timestamp;

/// A discovered endpoint is written at most this often.
const ENDPOINT_REST_SECONDS: u64 = 30;

/// Something a person must know about one Peer on one target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note {
    pub(super) reason: Reason,
    pub(super) about: String,
}

#[derive(Debug, Default)]
pub(super) struct Decision {
    /// `None`: not on this target.
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
    staying: &'a Staying,
    keepalive: u16,
    now: Timestamp,
    /// Endpoints inside the source's networks as they are on this target,
    /// where that is not simply the configured ones.
    inner: Option<BTreeSet<IpAddr>>,
    /// The Peer that keeps the cluster-wide networks here because the
    /// anchor's can't be written.
    stand_in: Option<PeerName>,
    anchor_withheld: bool,
}

impl<'a> Pair<'a> {
    pub(super) fn new(
        mesh: (usize, &'a ActiveMesh),
        source: usize,
        target: usize,
        (staying, entries): (&'a Staying, &BTreeMap<PeerName, Entry>),
        now: Timestamp,
    ) -> Option<Pair<'a>> {
        let (mesh_at, mesh) = mesh;
        let (from, to) = (mesh.members.get(source)?, mesh.members.get(target)?);
        let plan = from.plan.as_ref()?;
        let mut inner = None;
        let kept: Vec<IpAddr> = match staying.is_empty() {
            true => Vec::new(),
            false => staying.source_endpoints((mesh_at, source)).collect(),
        };
        if !plan.inner_endpoints.is_empty() || !kept.is_empty() {
            let stays = |keys: &BTreeSet<_>| keys.iter().any(|key| !to.own.discovered.contains_key(key));
            let configured = plan.inner_endpoints.iter().filter(|(_, keys)| stays(keys)).map(|(ip, _)| *ip);
            let here: BTreeSet<IpAddr> = configured.chain(kept).collect();
            if !here.iter().eq(plan.inner_endpoints.keys()) {
                inner = Some(here);
            }
        }
        let mut pair = Pair {
            declared: &mesh.declared,
            source: plan,
            own: &to.own,
            hits: to.own.hits.get(&from.name).map(Vec::as_slice).unwrap_or_default(),
            staying,
            keepalive: mesh.keepalive(source, target),
            now,
            inner,
            stand_in: None,
            anchor_withheld: false,
        };
        pair.anchor_withheld = plan.anchor_peer.as_ref().is_some_and(|anchor| pair.decide(anchor, None).wanted.is_none());
        pair.stand_in = pair.find_stand_in(entries);
        Some(pair)
    }

    /// A member must not lose its services on a target because its anchor's
    /// key is claimed there: the Peer that carries them now goes on.
    fn find_stand_in(&self, entries: &BTreeMap<PeerName, Entry>) -> Option<PeerName> {
        if !self.anchor_withheld {
            return None;
        }
        let extras: BTreeSet<Cidr> = self.source.extras.iter().copied().collect();
        let carries = |base: &&Arc<BasePeer>| entries.get(&base.name).is_some_and(|entry| !entry.deleting && entry.carries_one_of(&extras));
        let stays = |base: &&Arc<BasePeer>| self.decide(base, None).wanted.is_some();
        self.source.base.values().filter(carries).find(stays).map(|base| base.name.clone())
    }

    /// Which Peer carries the cluster-wide networks depends on what the others
    /// carry while the anchor's can't be written.
    pub(super) fn is_entangled(&self) -> bool {
        self.anchor_withheld
    }

    pub(super) fn decide(&self, base: &Arc<BasePeer>, entry: Option<&Entry>) -> Decision {
        let mut decision = Decision::default();
        let discovered = self.own.discovered.get(&base.key);
        if base.endpoint.is_none() && self.keepalive == 0 {
            return decision;
        }
        if self.own.keys.contains(&base.key) {
            decision.note(Reason::KeyOfTarget, format!("{}: its key is that of a node of this cluster", base.name));
            return decision;
        }
        if let Some(holder) = self.staying.key_holder(base.key, &base.name) {
            decision.note(Reason::KeyTaken, format!("{}: its key is on Peer {holder}", base.name));
            return decision;
        }
        // Reported with the source: it is so on every target.
        if discovered.is_none() && self.source.endpoint_inside.contains_key(&base.name) {
            return decision;
        }
        let plain = self.hits.is_empty() && self.staying.is_empty() && self.inner.is_none() && self.stand_in.is_none();
        let routed = || base.allowed_ips.iter().all(|cidr| self.own.routes(*cidr));
        if plain && discovered.is_none() && !base.allowed_ips.is_empty() && routed() {
            decision.wanted = Some(WantedPeer::plain(base, self.keepalive));
            return decision;
        }
        let allowed = self.allowed(base, &mut decision);
        if allowed.is_empty() {
            decision.note(Reason::NothingToRoute, format!("{}: no prefix is left", base.name));
            return decision;
        }
        let endpoint = match discovered {
            Some(found) => Some(self.rested(found, entry, &mut decision)),
            None => base.endpoint.clone(),
        };
        decision.wanted = Some(WantedPeer::overlaid(base, self.keepalive, endpoint, allowed));
        decision
    }

    fn allowed(&self, base: &BasePeer, decision: &mut Decision) -> Vec<Cidr> {
        let candidates = match (&self.inner, &base.all_ips) {
            (Some(_), Some(all)) => all,
            _ => &base.allowed_ips,
        };
        let stands_in = self.stand_in.as_ref() == Some(&base.name);
        let extras = self.source.extras.iter().filter(|extra| stands_in && !candidates.contains(extra));
        let mut allowed = Vec::with_capacity(candidates.len());
        for cidr in candidates.iter().chain(extras) {
            let forbidden = if !self.own.routes(*cidr) {
                Some((Reason::PrefixOfAnotherFamily, format!("{cidr} of {} is of another family than this cluster's nodes", base.name)))
            } else if let Some(own) = self.hits.iter().find(|own| own.overlaps(*cidr)) {
                Some((Reason::PrefixOverlapsTarget, format!("{cidr} of {} overlaps {own} of this cluster's nodes", base.name)))
            } else if let Some(holder) = self.staying.prefix_holder(*cidr, &base.name) {
                Some((Reason::PrefixTaken, format!("{cidr} of {} is on Peer {holder}", base.name)))
            } else if let Some(ip) = self.staying.foreign_endpoint_in(*cidr) {
                Some((Reason::PrefixContainsEndpoint, format!("{cidr} of {} contains {ip}, the endpoint of another Peer here", base.name)))
            } else {
                self.inner_endpoint_in(*cidr).map(|ip| {
                    (Reason::PrefixContainsEndpoint, format!("{cidr} of {} contains {ip}, an endpoint of its own cluster", base.name))
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
        self.inner.as_ref()?.range(cidr.first()..=cidr.last()).next().copied()
    }

    /// Handshakes may come from a new port every minute; each change makes Kilo
    /// replace all its peers, so one endpoint rests for a while.
    fn rested(&self, found: &Endpoint, entry: Option<&Entry>, decision: &mut Decision) -> Endpoint {
        let written = entry.and_then(|entry| Some((entry.endpoint()?, entry.endpoint_written?)));
        // One inside a declared network was configured or seen there by mistake,
        // and would be routed into the tunnel that it is the end of.
        let inside = |present: &Endpoint| present.ip().is_some_and(|ip| self.declared.owner(ip).is_some());
        match written.filter(|(present, _)| !inside(present)) {
            Some((present, at)) if present != *found && self.now < at.plus(ENDPOINT_REST_SECONDS) => {
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

/// What is to become of a Peer that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is the Peer that this source of this mesh wants here.
    Wanted { mesh: usize, source: usize },
    /// It is ours and is to go.
    Surplus { mesh: Option<usize>, source: Option<usize>, cause: DeleteCause },
    /// It stays as it is.
    Stays { foreign: bool, source: Option<(usize, usize)> },
}

const STAYS_FOREIGN: Standing = Standing::Stays { foreign: true, source: None };
const STAYS_OURS: Standing = Standing::Stays { foreign: false, source: None };

/// All that deciding on one target needs to see.
pub(super) struct Scene<'a> {
    pub(super) target: &'a ClusterId,
    pub(super) link: &'a LinkFacts,
    pub(super) meshes: &'a [MeshState],
    pub(super) sources: &'a dyn Sources,
    pub(super) absent: &'a Absent,
    pub(super) sweep_ghosts: bool,
}

/// A mesh and what may be done about it.
#[derive(Debug)]
pub(super) struct MeshState {
    pub(super) id: MeshId,
    pub(super) stance: Stance,
}

#[derive(Debug)]
pub(super) enum Stance {
    Active(Box<ActiveMesh>),
    Deleting,
    /// Invalid, or refused: its Peers are left alone.
    HeldBack,
}

impl MeshState {
    pub(super) fn active(&self) -> Option<&ActiveMesh> {
        match &self.stance {
            Stance::Active(mesh) => Some(mesh),
            _ => None,
        }
    }
}

/// The nodes of a source, and those whose deletion was seen.
pub(super) trait Sources {
    fn nodes(&self, cluster: &ClusterId) -> Option<&Nodes>;
    fn left(&self, cluster: &ClusterId) -> &Departures;
}

/// Which nodes are known to have been deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departures {
    /// Those whose deletion was seen as an event.
    Seen(BTreeSet<NodeName>),
    /// Every node that is not listed, unless no node is.
    AnyMissing,
}

impl Default for Departures {
    fn default() -> Self {
        Departures::Seen(BTreeSet::new())
    }
}

impl Scene<'_> {
    pub(super) fn standing(&self, name: &PeerName, entry: &Entry) -> Standing {
        match entry.owner.as_ref() {
            Owner::Mesh(id) => self.standing_of_ours(id, name, entry),
            Owner::Orphan if self.absent.includes(entry.labels()) => orphan(entry),
            Owner::Ghost if self.sweep_ghosts && self.absent.includes(entry.labels()) => orphan(entry),
            Owner::Foreign => self.stripped(name, entry).unwrap_or(STAYS_FOREIGN),
            Owner::Orphan | Owner::Ghost | Owner::Ambiguous(_) | Owner::HubConflict(_) | Owner::OtherHub => STAYS_FOREIGN,
        }
    }

    /// Returns whether a mesh acts through the credentials that lead here.
    fn admits(&self, mesh: &MeshId) -> bool {
        self.link.namespace.as_ref().is_none_or(|namespace| *namespace == mesh.namespace)
    }

    /// A Peer with our name and the right key, less some of our labels.
    fn stripped(&self, name: &PeerName, entry: &Entry) -> Option<Standing> {
        self.meshes.iter().enumerate().find_map(|(at, mesh)| {
            let mesh = mesh.active()?;
            let target = mesh.position(self.target)?;
            let source = mesh.wanted_by(name, None)?;
            let base = mesh.members.get(source)?.plan.as_ref()?.base.get(name)?;
            let ours = Some(base.key) == entry.key() && may_be_taken_back(entry.labels(), &base.labels);
            let takes = ours && !entry.deleting && source != target && mesh.older_mesh_with(source, target).is_none();
            takes.then_some(Standing::Wanted { mesh: at, source })
        })
    }

    fn standing_of_ours(&self, id: &MeshId, name: &PeerName, entry: &Entry) -> Standing {
        let Some((at, state)) = mesh_at(self.meshes, id) else { return STAYS_OURS };
        let surplus = |source: Option<usize>, cause: DeleteCause| Standing::Surplus { mesh: Some(at), source, cause };
        let mesh = match &state.stance {
            _ if entry.deleting || !self.admits(id) => return STAYS_OURS,
            Stance::Deleting => return surplus(None, DeleteCause::MeshDeleted),
            Stance::HeldBack => return STAYS_OURS,
            Stance::Active(mesh) => mesh,
        };
        let Some(target) = mesh.position(self.target) else {
            // The mesh may hold this Peer here through another link.
            let stays = mesh.members.iter().any(|member| self.link.kin.contains(&member.id));
            return if stays { STAYS_OURS } else { surplus(None, DeleteCause::TargetLeft) };
        };
        let labelled = entry.labels().source.as_deref();
        // Two clusters can make the same name: a Peer of an unreadable one is not the other's to take.
        if labelled.is_some_and(|label| mesh.is_unknown(label)) {
            return STAYS_OURS;
        }
        if let Some(source) = mesh.wanted_by(name, labelled).filter(|source| *source != target) {
            return match mesh.older_mesh_with(source, target) {
                Some(_) => STAYS_OURS,
                None => Standing::Wanted { mesh: at, source },
            };
        }
        if mesh.unknown_source_of(name) {
            return STAYS_OURS;
        }
        // A label can be edited; the name says whose node is to keep its Peer.
        let keeps =
            |at: &usize| mesh.members.get(*at).and_then(|member| member.plan.as_ref()).is_some_and(|plan| plan.kept.contains_key(name));
        if let Some(source) = mesh.named_like(name).into_iter().find(keeps).filter(|source| *source != target) {
            return Standing::Stays { foreign: false, source: Some((at, source)) };
        }
        match labelled.and_then(|label| mesh.position_of(label)) {
            None => surplus(None, DeleteCause::SourceLeft),
            Some(source) if source == target => surplus(None, DeleteCause::OwnNode),
            Some(source) if mesh.older_mesh_with(source, target).is_some() => STAYS_OURS,
            Some(source) => match self.cause(mesh, source, name) {
                Some(cause) => surplus(Some(source), cause),
                None => Standing::Stays { foreign: false, source: Some((at, source)) },
            },
        }
    }

    /// Why a source does not want a Peer of its own any more; `None` if it is
    /// to be kept as it is.
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
        // Its node is in grace: nothing is written in its place yet.
        if is_legacy_anchor && plan.anchor.is_some() && plan.anchor_peer.is_none() {
            return None;
        }
        Some(match present {
            false if is_legacy_anchor && (plan.anchor_peer.is_some() || (plan.extras.is_empty() && !nodes.is_empty())) => {
                DeleteCause::LegacyAnchor
            }
            false if left => DeleteCause::NodeDeleted,
            true if plan.led_by_another.contains(name) => DeleteCause::NewLeader,
            _ => DeleteCause::NotWanted,
        })
    }
}

fn orphan(entry: &Entry) -> Standing {
    match entry.deleting {
        true => STAYS_OURS,
        false => Standing::Surplus { mesh: None, source: None, cause: DeleteCause::Orphan },
    }
}

/// Meshes are sorted by their id; the position stands for one.
pub(super) fn mesh_at<'a>(meshes: &'a [MeshState], id: &MeshId) -> Option<(usize, &'a MeshState)> {
    let at = meshes.binary_search_by(|mesh| mesh.id.cmp(id)).ok()?;
    Some((at, meshes.get(at)?))
}
