//! The guard: too many deletes without a good reason, and a source that looks
//! like another cluster, are held until a person confirms exactly these changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::key::PublicKey;
use crate::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName, short_hash};

/// Why a Peer is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeleteCause {
    /// The Node's deletion was seen.
    NodeDeleted,
    /// The source cluster is no longer in the mesh.
    SourceLeft,
    /// The target cluster is no longer in the mesh.
    TargetLeft,
    MeshDeleted,
    /// Another node of the location leads now and has the Peer.
    NewLeader,
    /// A separate anchor Peer of the Go operator.
    LegacyAnchor,
    /// A Peer of the target's own nodes.
    OwnNode,
    /// Its mesh does not exist.
    Orphan,
    /// The node is there, but is no Peer any more; or it vanished unseen.
    NotWanted,
    /// A rule forbids it on this target.
    Withheld,
}

impl DeleteCause {
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

    pub fn is_good_reason(self) -> bool {
        !matches!(self, DeleteCause::NotWanted | DeleteCause::Withheld)
    }

    pub fn words(self) -> &'static str {
        match self {
            DeleteCause::NodeDeleted => "its node is gone",
            DeleteCause::SourceLeft => "its cluster left the mesh",
            DeleteCause::TargetLeft => "this cluster left the mesh",
            DeleteCause::MeshDeleted => "the mesh is being deleted",
            DeleteCause::NewLeader => "its location has a new leader",
            DeleteCause::LegacyAnchor => "a separate anchor Peer of the Go operator",
            DeleteCause::OwnNode => "a cluster never peers with its own nodes",
            DeleteCause::Orphan => "its mesh does not exist",
            DeleteCause::NotWanted => "its node is no Peer any more",
            DeleteCause::Withheld => "a rule forbids it here",
        }
    }
}

/// A change that waits for a person, as the hash covers it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldLine {
    pub target: ClusterId,
    pub name: PeerName,
    /// The new key, where the Peer stays and gets another one.
    pub key: Option<PublicKey>,
}

impl fmt::Display for HeldLine {
    /// The Peer and its new key, without the target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            None => write!(f, "{}", self.name),
            Some(key) => write!(f, "{}={}", self.name, key.to_base64()),
        }
    }
}

impl HeldLine {
    /// Reads what `Display` wrote.
    pub fn read(target: ClusterId, text: &str) -> Option<HeldLine> {
        match text.split_once('=') {
            None => Some(HeldLine { target, name: PeerName::from(text), key: None }),
            Some((name, key)) => Some(HeldLine { target, name: PeerName::from(name), key: Some(PublicKey::try_from(key).ok()?) }),
        }
    }
}

/// Earlier events that the guard counts, as far as they are still of importance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Peers that were deleted without a good reason within the window, by
    /// target, mesh and source.
    pub removed: BTreeMap<(ClusterId, MeshId, ClusterName), BTreeSet<PeerName>>,
    /// Clusters whose Nodes share no UID with those that the same entry led to before.
    pub replaced: BTreeSet<ClusterId>,
    /// Nodes whose deletion was seen within the window and that exist again.
    pub recreated: BTreeMap<ClusterId, BTreeSet<NodeName>>,
    /// Entries that an edit of the spec led to other credentials within the window.
    pub redirected: BTreeSet<(MeshId, ClusterName)>,
    /// Sources that changed too often on a target, by target, mesh and source.
    pub resting: BTreeMap<(ClusterId, MeshId, ClusterName), Resting>,
}

/// Which changes of a source wait until its budget on a target is refilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resting {
    /// Changes of Peers that exist.
    pub changes: bool,
    /// First Peers of new nodes, and deletes of gone ones.
    pub arrivals: bool,
}

/// A source with fewer Peers on a target is not judged by the keys that change.
const FEWEST_FOR_KEYS: usize = 3;

/// Returns whether deletes without a good reason are held: always when the
/// source shows no node at all, else when they exceed the share.
pub(super) fn holds(doubtful: usize, of_source: usize, max_percent: u8, source_is_empty: bool) -> bool {
    doubtful > 0 && (source_is_empty || exceeds(doubtful, of_source, max_percent))
}

/// Returns whether so many changed keys mean that the source is another cluster.
pub(super) fn is_replaced(rekeyed: usize, of_source: usize, max_percent: u8) -> bool {
    of_source >= FEWEST_FOR_KEYS && exceeds(rekeyed, of_source, max_percent)
}

/// Returns whether orphans are most of this hub's Peers on a target.
pub(super) fn holds_orphans(orphans: usize, of_hub: usize) -> bool {
    exceeds(orphans, of_hub, 50)
}

fn exceeds(some: usize, all: usize, percent: u8) -> bool {
    some * 100 > usize::from(percent) * all
}

/// The hash a person confirms held changes with: over the sorted lines
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
        let line = |key| HeldLine { target: ClusterId::from("t"), name: PeerName::from("m--a--n"), key };
        for line in [line(None), line(PublicKey::try_from("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").ok())] {
            assert_eq!(HeldLine::read(line.target.clone(), &line.to_string()), Some(line));
        }
        assert_eq!(HeldLine::read(ClusterId::from("t"), "m--a--n=nonsense"), None);
    }

    #[test]
    fn few_peers_may_all_change_their_keys() {
        assert!(!is_replaced(2, 2, 50));
        assert!(is_replaced(2, 3, 50));
        assert!(!is_replaced(2, 4, 50));
    }
}
