//! State of the Cilium back end about a cluster.

use std::collections::BTreeSet;

use mw_core::cilium::facts::{CaId, Identity};

use crate::cilium::cluster_cache::Wants;
use crate::cilium::diff::Operation;
use crate::cilium::engine::Cilium;

pub(super) type Member = crate::engine::Member<Cilium>;

#[derive(Debug, Default)]
pub(super) struct MemberState {
    /// Optional kinds watched through the connection in use.
    pub(super) wants: Wants,
    /// Owners: a namespace of the hub, or the workspaces that its Clusters name;
    /// empty if anybody may use it.
    pub(super) owners: BTreeSet<String>,
    /// Credentials of the connection in use; `swapping` has those of its
    /// replacement.
    pub(super) in_use: Made,
    pub(super) swapping: Made,
    /// UID that the cluster reported last.
    pub(super) uid: Option<String>,
    pub(super) remembered: Option<Identity>,
    /// Credentials through which `uid` and `remembered` were read.
    pub(super) learnt_by: Option<[u8; 32]>,
    /// Operations last handed to the writer.
    pub(super) offered: Vec<Operation>,
    /// List counts at the time of a write that got no answer.
    pub(super) lists_in_doubt: Option<Vec<u64>>,
}

/// Credentials that a connection was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Made {
    pub(super) fingerprint: Option<[u8; 32]>,
    pub(super) private_ca: Option<CaId>,
}
