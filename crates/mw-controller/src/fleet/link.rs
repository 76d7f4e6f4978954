//! Link to one cluster: credentials, the connection in use, and the state of each
//! watch.

use kube::Client;
use mw_core::names::ClusterId;
use tokio::task::{AbortHandle, JoinSet};

use crate::failure::Failure;
use crate::fleet::follow::RelistSignal;
use crate::fleet::{MemoryBudget, Source};
use crate::kubeconfig::Server;

/// State of a cluster's credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The Secret was not read yet, or can't be read.
    Unread(Option<Failure>),
    /// No Secret, or no kubeconfig in it: the cluster counts as gone.
    Missing(String),
    Refused(String),
    /// In use, or on trial.
    Fine,
    /// The newest do not work; the previous ones stay in use.
    Stale(String),
}

impl Credentials {
    /// Returns why there are no credentials to connect with, if so.
    pub fn trouble(&self, source: &Source) -> Option<String> {
        match self {
            Credentials::Unread(Some(failure)) => {
                Some(format!("cannot read Secret {source}: {failure}"))
            }
            Credentials::Unread(None) => Some("Secret not read yet".to_owned()),
            Credentials::Missing(why) | Credentials::Refused(why) => Some(why.clone()),
            Credentials::Fine | Credentials::Stale(_) => None,
        }
    }
}

/// The state of one watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feed {
    Starting,
    Established,
    /// Failed once; the cached objects are still valid.
    Doubtful,
    Down(Failure),
}

impl Feed {
    /// Records a failed attempt. Returns true if the cached objects became invalid,
    /// or if the reason changed.
    pub fn fail(&mut self, failure: &Failure) -> bool {
        let transient = matches!(
            failure,
            Failure::Unreachable(_)
                | Failure::Api { .. }
                | Failure::Unreadable(_)
                | Failure::Wrong(_)
        );
        let next = match self {
            Feed::Established if transient => Feed::Doubtful,
            _ => Feed::Down(failure.clone()),
        };
        let changed = *self != next;
        *self = next;
        changed && matches!(self, Feed::Down(_))
    }

    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Feed::Down(failure) => Some(failure),
            _ => None,
        }
    }
}

/// A connection in use. Dropping it aborts its watches.
pub struct Live {
    pub client: Client,
    pub relist: RelistSignal,
    pub tasks: JoinSet<()>,
    /// Budget for the objects of its watches.
    pub memory: MemoryBudget,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

/// The watches of a link.
pub trait Feeds: Default + std::fmt::Debug {
    /// Reports whether one of them has not listed yet.
    fn is_starting(&self) -> bool;

    /// Returns what can't be read and what to do, if so.
    fn trouble(&self) -> Option<String>;
}

#[derive(Debug)]
pub struct ClusterLink<F> {
    pub id: ClusterId,
    pub source: Source,
    /// Counts connections; events of earlier ones are ignored.
    pub epoch: u64,
    pub credentials: Credentials,
    pub server: Option<Server>,
    pub live: Option<Live>,
    /// New credentials that are being tried out.
    pub trial: Option<AbortHandle>,
    /// The watch on its Secret.
    pub secret: Option<AbortHandle>,
    /// A hash of the kubeconfig in use or on trial.
    pub fingerprint: Option<[u8; 32]>,
    pub feeds: F,
}

impl<F: Feeds> ClusterLink<F> {
    pub fn new(source: Source) -> Self {
        ClusterLink {
            id: source.id(),
            source,
            epoch: 0,
            credentials: Credentials::Unread(None),
            server: None,
            live: None,
            trial: None,
            secret: None,
            fingerprint: None,
            feeds: F::default(),
        }
    }

    /// Relists everything.
    pub fn relist(&self) {
        if let Some(live) = &self.live {
            live.relist.ring();
        }
    }

    /// Returns the estimated size of its watched objects.
    pub fn memory(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.memory.kept())
    }

    /// Reports whether the cluster has not been observed yet.
    pub fn is_starting(&self) -> bool {
        match &self.credentials {
            Credentials::Unread(failure) => failure.is_none(),
            Credentials::Missing(_) | Credentials::Refused(_) => false,
            Credentials::Fine | Credentials::Stale(_) => self.feeds.is_starting(),
        }
    }

    /// Returns why the cluster can't be used, if so.
    pub fn trouble(&self) -> Option<String> {
        self.credentials
            .trouble(&self.source)
            .or_else(|| self.feeds.trouble())
    }
}

impl<F> ClusterLink<F> {
    /// Closes the connection.
    pub fn disconnect(&mut self) {
        self.epoch += 1;
        self.live = None;
        self.fingerprint = None;
        if let Some(trial) = self.trial.take() {
            trial.abort();
        }
    }
}

impl<F> Drop for ClusterLink<F> {
    fn drop(&mut self) {
        self.disconnect();
        if let Some(secret) = self.secret.take() {
            secret.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_is_cut_once_loses_nothing() {
        let cut = Failure::Unreachable("reset".to_owned());
        let mut feed = Feed::Established;
        assert!(!feed.fail(&cut));
        assert!(feed.fail(&cut), "twice in a row is no accident");
        assert!(!feed.fail(&cut), "it was lost before");
    }

    #[test]
    fn what_a_server_says_plainly_counts_at_once() {
        for failure in [
            Failure::Unauthorized,
            Failure::Forbidden(String::new()),
            Failure::Timeout(std::time::Duration::from_secs(5)),
        ] {
            assert!(Feed::Established.fail(&failure), "{failure}");
        }
    }
}
