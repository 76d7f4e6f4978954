//! The decision on an existing Peer: whether it is wanted, deleted or kept.

use crate::key::PublicKey;
use crate::kilo::entry::Entry;
use crate::kilo::guard::DeleteCause;
use crate::kilo::mesh::ActiveMesh;
use crate::kilo::mesh_state::{MeshMode, MeshState, mesh_at};
use crate::kilo::ownership::{Absent, Owner, may_be_taken_back};
use crate::kilo::retained::RetainedPeer;
use crate::kilo::sources::{Departures, Sources};
use crate::kilo::world::LinkFacts;
use crate::names::{ClusterId, MeshId, PeerName};

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

impl PeerVerdict {
    /// The Peer with what it blocks, if it is kept unchanged.
    pub(super) fn retained(&self, entry: &Entry) -> Option<RetainedPeer> {
        match self {
            PeerVerdict::Stays { foreign, source } => {
                Some(RetainedPeer::of(entry, *foreign, *source))
            }
            PeerVerdict::Wanted { .. } | PeerVerdict::Surplus { .. } => None,
        }
    }
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
    pub(super) sources: Sources<'a>,
    pub(super) absent: &'a Absent,
    pub(super) sweep_ghosts: bool,
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
            Some(source) => match self.cause(mesh, source, (name, entry)) {
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
    fn cause(
        &self,
        mesh: &ActiveMesh,
        source: usize,
        (name, entry): (&PeerName, &Entry),
    ) -> Option<DeleteCause> {
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
            Departures::Seen(left) => left
                .iter()
                .any(|(node, key)| peer_of(node.as_str()) && may_have(entry, *key)),
        };
        let is_legacy_anchor = !present && peer_of("anchor");
        // The anchor is in its grace period: nothing replaces the legacy Peer
        // yet.
        if is_legacy_anchor && plan.anchor.is_some() && plan.anchor_peer.is_none() {
            return None;
        }
        let is_replaced =
            plan.anchor_peer.is_some() || (plan.extras.is_empty() && !nodes.is_empty());
        Some(if is_legacy_anchor && is_replaced {
            DeleteCause::LegacyAnchor
        } else if !present && left {
            DeleteCause::NodeDeleted
        } else if present && plan.led_by_another.contains(name) {
            DeleteCause::NewLeader
        } else {
            DeleteCause::NotWanted
        })
    }
}

/// Reports whether a Peer may be that of a node with this key, as far as known.
fn may_have(entry: &Entry, key: Option<PublicKey>) -> bool {
    key.is_none() || entry.key().is_none() || entry.key() == key
}

fn orphan(entry: &Entry) -> PeerVerdict {
    if entry.deleting {
        return RETAIN_OURS;
    }
    PeerVerdict::Surplus {
        mesh: None,
        source: None,
        cause: DeleteCause::Orphan,
    }
}
