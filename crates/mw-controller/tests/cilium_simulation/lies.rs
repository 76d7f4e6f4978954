//! Wrong answers of the servers in a run, and hostile tenants.

use std::time::Duration;

use mw_sim::{Lie, Span};
use tokio::time::Instant;

use crate::bed::Bed;

/// Kinds that are watched in every cluster.
pub(crate) const WATCHED: [&str; 12] = [
    "namespaces",
    "daemonsets",
    "deployments",
    "configmaps",
    "secrets",
    "services",
    "pods",
    "nodes",
    "ciliumnetworkpolicies",
    "ciliumclusterwidenetworkpolicies",
    "endpointslices",
    "customresourcedefinitions",
];

/// Wrong answers of a server about one kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Telling {
    pub(crate) cluster: String,
    pub(crate) kind: &'static str,
    pub(crate) how: Untruth,
    pub(crate) lasts: Lasts,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Untruth {
    Empty,
    Truncated {
        percent: u8,
        counted: bool,
    },
    Endless {
        page: usize,
    },
    Frozen,
    /// Of another cluster, or of a copy of the hub.
    Uids {
        of: String,
    },
    Unasked,
    /// The state of another cluster, or of a copy of the hub.
    Another {
        of: String,
    },
    NoDeletes,
    /// Never drawn: long texts cost time.
    Fat {
        bytes: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lasts {
    Requests(u64),
    For(Duration),
    ForEver,
}

impl Telling {
    /// Starts the wrong answers: closes watches and forces relists.
    pub(crate) fn begin(&self, bed: &Bed) {
        let server = bed.on(&self.cluster);
        let lie = match &self.how {
            Untruth::Empty => Lie::Empty,
            Untruth::Truncated { percent, counted } => Lie::Truncated {
                percent: *percent,
                counted: *counted,
            },
            Untruth::Endless { page } => Lie::Endless { page: *page },
            Untruth::Frozen => Lie::Frozen {
                version: server.version(),
            },
            Untruth::Uids { of } => Lie::Uids {
                of: bed.double_or(of),
            },
            Untruth::Unasked => Lie::Unasked,
            Untruth::Another { of } => Lie::Another {
                server: bed.double_or(of),
            },
            Untruth::NoDeletes => Lie::NoDeletes,
            Untruth::Fat { bytes } => Lie::Fat { bytes: *bytes },
        };
        let span = match self.lasts {
            Lasts::Requests(count) => Span::Requests(count),
            Lasts::For(duration) => Span::Until(Instant::now() + duration),
            Lasts::ForEver => Span::ForEver,
        };
        bed.script.lies.tell(&self.cluster, self.kind, lie, span);
        server.compact();
        server.hang_up();
    }
}

/// A tenant that tries to act on another tenant's cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hostile {
    pub(crate) namespace: &'static str,
    pub(crate) attack: Attack,
    pub(crate) victim: String,
    pub(crate) lies: Vec<Telling>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Attack {
    /// Its cluster reports the UID of the victim's cluster.
    CopiedUid,
    /// Its Secret holds the victim's URL and an invalid token.
    StolenUrl,
}

/// Clusters of a hostile tenant.
pub(crate) const HOSTILE_SITES: [&str; 2] = ["e1", "e2"];

pub(crate) fn is_hostile(namespace: &str) -> bool {
    namespace.ends_with("hostile")
}
