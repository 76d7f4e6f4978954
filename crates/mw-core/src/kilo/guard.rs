//! The deletion guard: too many unexplained deletes, and changes of a source
//! that looks like a different cluster, are held until the user confirms
//! exactly these changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::key::PublicKey;
use crate::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName, short_hash};

/// The reason for deleting a Peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeleteCause {
    /// The Node's delete event was observed.
    NodeDeleted,
    /// The source cluster is no longer in the mesh.
    SourceLeft,
    /// The target cluster is no longer in the mesh.
    TargetLeft,
    /// The ClusterMesh has a deletion timestamp.
    MeshDeleted,
    /// Another node of the location is leader now and has the Peer.
    NewLeader,
    /// A separate anchor Peer written by the Go operator.
    LegacyAnchor,
    /// A Peer for one of the target's own nodes.
    OwnNode,
    /// Its ClusterMesh does not exist.
    Orphan,
    /// The node no longer qualifies, or it vanished without a delete event.
    NotWanted,
    /// Not allowed on this target.
    Withheld,
}

impl DeleteCause {
    /// All causes, in the order of their declaration.
    pub const ALL: [DeleteCause; 10] = [
        DeleteCause::NodeDeleted,
        DeleteCause::SourceLeft,
        DeleteCause::TargetLeft,
        DeleteCause::MeshDeleted,
        DeleteCause::NewLeader,
        DeleteCause::LegacyAnchor,
        DeleteCause::OwnNode,
        DeleteCause::Orphan,
        DeleteCause::NotWanted,
        DeleteCause::Withheld,
    ];

    /// Reports whether the guard lets a delete with this cause pass. All others
    /// count towards the limit of the mesh.
    pub fn is_good_reason(self) -> bool {
        !matches!(self, DeleteCause::NotWanted | DeleteCause::Withheld)
    }

    /// The cause in a few words, for users.
    pub fn words(self) -> &'static str {
        match self {
            DeleteCause::NodeDeleted => "its node was deleted",
            DeleteCause::SourceLeft => "its cluster was removed from the mesh",
            DeleteCause::TargetLeft => "this cluster was removed from the mesh",
            DeleteCause::MeshDeleted => "the mesh is being deleted",
            DeleteCause::NewLeader => "its location has a new leader",
            DeleteCause::LegacyAnchor => "a separate anchor Peer of the Go operator",
            DeleteCause::OwnNode => "it belongs to a node of this cluster",
            DeleteCause::Orphan => "its ClusterMesh does not exist",
            DeleteCause::NotWanted => "its node no longer qualifies for a Peer",
            DeleteCause::Withheld => "it is not allowed in this cluster",
        }
    }
}

/// A held change, as covered by the confirmation hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldLine {
    /// The cluster that has the Peer.
    pub target: ClusterId,
    /// The Peer.
    pub name: PeerName,
    /// The new key if the Peer stays and only its key changes.
    pub key: Option<PublicKey>,
}

impl fmt::Display for HeldLine {
    /// Writes the Peer and its new key, without the target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            None => write!(f, "{}", self.name),
            Some(key) => write!(f, "{}={}", self.name, key.to_base64()),
        }
    }
}

impl HeldLine {
    /// Parses the output of `Display`.
    pub fn read(target: ClusterId, text: &str) -> Option<HeldLine> {
        match text.split_once('=') {
            None => Some(HeldLine {
                target,
                name: PeerName::from(text),
                key: None,
            }),
            Some((name, key)) => Some(HeldLine {
                target,
                name: PeerName::from(name),
                key: Some(PublicKey::try_from(key).ok()?),
            }),
        }
    }
}

/// Held changes that the user confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Released {
    /// By mesh.
    pub(super) of_meshes: BTreeMap<usize, BTreeSet<HeldLine>>,
    pub(super) orphans: BTreeSet<HeldLine>,
}

/// Earlier events that the guard takes into account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Peers deleted without a known reason within the window, by target, mesh
    /// and source.
    pub removed: BTreeMap<(ClusterId, MeshId, ClusterName), BTreeSet<PeerName>>,
    /// Clusters whose Nodes share no UID with the Nodes that the same entry had
    /// before.
    pub replaced: BTreeSet<ClusterId>,
    /// Nodes that were deleted within the window and exist again.
    pub recreated: BTreeMap<ClusterId, BTreeSet<NodeName>>,
    /// Entries whose credentials were changed by a spec edit within the window.
    pub redirected: BTreeSet<(MeshId, ClusterName)>,
    /// Sources that changed too often, by target, mesh and source.
    pub resting: BTreeMap<(ClusterId, MeshId, ClusterName), Resting>,
}

/// Changes of a source that wait until its budget on a target is refilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resting {
    /// Changes to existing Peers.
    pub changes: bool,
    /// First Peers of new nodes, and deletes for removed nodes.
    pub arrivals: bool,
}

/// Below this number of Peers, changed keys don't mean that the source was
/// replaced.
const FEWEST_FOR_KEYS: usize = 3;

/// Reports whether unexplained deletes are held: always if the source lists no
/// node at all, otherwise if they exceed the percentage.
pub(super) fn holds(
    doubtful: usize,
    of_source: usize,
    max_percent: u8,
    source_is_empty: bool,
) -> bool {
    doubtful > 0 && (source_is_empty || exceeds(doubtful, of_source, max_percent))
}

/// Reports whether this many changed keys mean that the source is a different
/// cluster.
pub(super) fn is_replaced(rekeyed: usize, of_source: usize, max_percent: u8) -> bool {
    of_source >= FEWEST_FOR_KEYS && exceeds(rekeyed, of_source, max_percent)
}

/// Reports whether orphans are the majority of this hub's Peers on a target.
pub(super) fn holds_orphans(orphans: usize, of_hub: usize) -> bool {
    exceeds(orphans, of_hub, 50)
}

fn exceeds(some: usize, all: usize, percent: u8) -> bool {
    some * 100 > usize::from(percent) * all
}

/// The hash with which the user confirms held changes: over the sorted lines
/// `target/name` or `target/name=key`, each with its newline.
pub(super) fn held_hash(held: impl Iterator<Item = String>) -> Option<String> {
    let mut lines: Vec<String> = held.map(|line| line + "\n").collect();
    lines.sort();
    (!lines.is_empty()).then(|| short_hash(&lines.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_share_is_allowed() {
        assert!(!holds(2, 4, 50, false));
        assert!(holds(3, 4, 50, false));
        assert!(holds(1, 1, 0, false));
        assert!(!holds(4, 4, 100, false));
        assert!(holds(4, 4, 100, true));
        assert!(!holds(0, 0, 0, true));
    }

    #[test]
    fn the_hash_does_not_depend_on_order() {
        let lines = ["b/x", "a/y=k"].map(str::to_owned);
        let one = held_hash(lines.clone().into_iter());
        assert_eq!(one, held_hash(lines.into_iter().rev()));
        assert_eq!(one.as_deref(), Some(short_hash("a/y=k\nb/x\n").as_str()));
        assert_eq!(held_hash(std::iter::empty()), None);
    }

    #[test]
    fn a_held_line_is_read_as_it_was_written() {
        let line = |key| HeldLine {
            target: ClusterId::from("t"),
            name: PeerName::from("m--a--n"),
            key,
        };
        for line in [
            line(None),
            line(PublicKey::try_from("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").ok()),
        ] {
            assert_eq!(
                HeldLine::read(line.target.clone(), &line.to_string()),
                Some(line)
            );
        }
        assert_eq!(
            HeldLine::read(ClusterId::from("t"), "m--a--n=nonsense"),
            None
        );
    }

    #[test]
    fn few_peers_may_all_change_their_keys() {
        assert!(!is_replaced(2, 2, 50));
        assert!(is_replaced(2, 3, 50));
        assert!(!is_replaced(2, 4, 50));
    }
}
