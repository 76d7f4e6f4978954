//! The planned change of one Peer on one target.

use std::collections::BTreeMap;

use crate::kilo::decide::Note;
use crate::kilo::peer::WantedPeer;
use crate::kilo::plan::{Delete, Held, Update};
use crate::names::PeerName;
use crate::time::Timestamp;

/// The planned change of one Peer. Unchanged Peers have no entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerOutcome {
    pub(super) source: Option<usize>,
    pub(super) act: Act,
    pub(super) notes: Vec<Note>,
    pub(super) recheck_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    /// Already as wanted.
    Keep(WantedPeer),
    Create(WantedPeer),
    Update(Update),
    Delete(Delete),
    Held(Held),
    /// In conflict, but not certainly ours: it stays and blocks others.
    Leave,
}

/// Outcomes by name and mesh; orphans belong to no mesh.
pub(super) type Outcomes = BTreeMap<(PeerName, Option<usize>), PeerOutcome>;
