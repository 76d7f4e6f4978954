//! Watches of a cluster: its Nodes and its Peers.

use crate::failure::Failure;
use crate::fleet::{Feed, Feeds};

/// Watched kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    Nodes,
    Peers,
}

impl std::fmt::Display for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

impl Followed {
    /// Describes a failure to read it, and what to do.
    pub(super) fn why_not(self, failure: &Failure) -> String {
        match failure {
            Failure::NotFound(_) if self == Followed::Peers => {
                "the Peer CRD is not installed (404); install Kilo's CRDs in this cluster"
                    .to_owned()
            }
            Failure::Forbidden(message) => {
                format!(
                    "not allowed to read {self} (403): {message}; apply config/rbac/remote.yaml in this cluster"
                )
            }
            other => other.to_string(),
        }
    }
}

#[derive(Debug)]
pub(super) struct PeerFeeds {
    nodes: Feed,
    peers: Feed,
}

impl Default for PeerFeeds {
    fn default() -> Self {
        PeerFeeds {
            nodes: Feed::Starting,
            peers: Feed::Starting,
        }
    }
}

impl PeerFeeds {
    pub(super) fn of(&mut self, what: Followed) -> &mut Feed {
        match what {
            Followed::Nodes => &mut self.nodes,
            Followed::Peers => &mut self.peers,
        }
    }
}

impl Feeds for PeerFeeds {
    fn is_starting(&self) -> bool {
        matches!(
            (&self.nodes, &self.peers),
            (Feed::Starting, _) | (_, Feed::Starting)
        )
    }

    fn trouble(&self) -> Option<String> {
        let about =
            |what: Followed, feed: &Feed| feed.failure().map(|failure| what.why_not(failure));
        about(Followed::Nodes, &self.nodes).or_else(|| about(Followed::Peers, &self.peers))
    }
}
