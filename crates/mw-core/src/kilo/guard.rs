//! The delete guard: too many deletes at once without a good reason are held
//! until a person confirms exactly these.

use std::fmt::Display;

use crate::names::short_hash;

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

/// Whether deletes without a good reason are held: always when the source
/// shows no node at all, else when they exceed the share.
pub(super) fn holds(doubtful: usize, of_source: usize, max_percent: u8, source_is_empty: bool) -> bool {
    doubtful > 0 && (source_is_empty || doubtful * 100 > usize::from(max_percent) * of_source)
}

/// The hash a person confirms held deletes with: over the sorted lines
/// `target/name`, each with its newline.
pub(super) fn held_hash(held: impl Iterator<Item = (impl Display, impl Display)>) -> Option<String> {
    let mut lines: Vec<String> = held.map(|(target, name)| format!("{target}/{name}\n")).collect();
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
        let one = held_hash([("b", "x"), ("a", "y")].into_iter());
        assert_eq!(one, held_hash([("a", "y"), ("b", "x")].into_iter()));
        assert_eq!(one.as_deref(), Some(short_hash("a/y\nb/x\n").as_str()));
        assert_eq!(held_hash(std::iter::empty::<(&str, &str)>()), None);
    }
}
