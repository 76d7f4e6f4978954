//! What is followed in a cluster: its Nodes and its Peers.

use crate::failure::Failure;
use crate::fleet::{Feed, Feeds};

/// What is followed in a cluster.
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
    /// What a failure to read it means, and what to do.
    pub(super) fn why_not(self, failure: &Failure) -> String {
        match failure {
            Failure::NotFound(_) if self == Followed::Peers => "it has no Peer resource (404): install Kilo's CRDs there".to_owned(),
            Failure::Forbidden(message) => {
                format!("reading its {self} is not allowed (403): apply config/rbac/remote.yaml there ({message})")
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
        PeerFeeds { nodes: Feed::Starting, peers: Feed::Starting }
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
        matches!((&self.nodes, &self.peers), (Feed::Starting, _) | (_, Feed::Starting))
    }

    fn trouble(&self) -> Option<String> {
        let about = |what: Followed, feed: &Feed| feed.failure().map(|failure| what.why_not(failure));
        about(Followed::Nodes, &self.nodes).or_else(|| about(Followed::Peers, &self.peers))
    }
}
