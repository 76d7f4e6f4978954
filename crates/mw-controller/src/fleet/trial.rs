//! Connects with a kubeconfig: new credentials are tested, then swapped in without
//! a restart, or refused.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use mw_core::names::ClusterId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::fleet::{ClusterLink, Connect, Credentials, Feeds};
use crate::kubeconfig::{Access, Refusal};

/// Result of an attempt to connect.
#[derive(Debug)]
pub enum Attempt {
    Connected(ShownClient),
    Refused(Refusal),
    Failed(Failure),
}

/// A client with a `Debug` implementation, for events.
pub struct ShownClient(pub Client);

impl std::fmt::Debug for ShownClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// Parameters of a test of new credentials.
pub struct Trial<E, W> {
    pub connect: Arc<dyn Connect>,
    pub backoff: Backoff,
    /// Tests whether a client works; called only if another one is in use.
    pub probe: fn(Client) -> BoxFuture<'static, Result<(), Failure>>,
    pub events: mpsc::Sender<E>,
    /// Wraps an attempt into the receiver's event.
    pub wrap: W,
}

impl<E, W> std::fmt::Debug for Trial<E, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}

/// Effect of a failed attempt on a link.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The same failure as before.
    Known,
    /// The previous credentials stay in use.
    Stale(String),
    /// There are no credentials to connect with.
    Lost(Credentials),
}

impl<F: Feeds> ClusterLink<F> {
    /// Connects with new credentials. The first ones are used at once, since the
    /// watches report failures; later ones must work before they replace those in
    /// use.
    pub fn try_out<E, W>(
        &mut self,
        access: Access,
        fingerprint: [u8; 32],
        trial: Trial<E, W>,
        tasks: &mut JoinSet<()>,
    ) where
        E: Send + 'static,
        W: Fn(ClusterId, u64, Attempt) -> E + Send + 'static,
    {
        if let Some(trial) = self.trial.take() {
            trial.abort();
        }
        if self.live.is_none() {
            self.credentials = Credentials::Fine;
        }
        let probes = self.live.is_some();
        (self.fingerprint, self.server) = (Some(fingerprint), access.server());
        let (cluster, epoch, access) = (self.id.clone(), self.epoch, Arc::new(access));
        let Trial {
            connect,
            mut backoff,
            probe,
            events,
            wrap,
        } = trial;
        self.trial = Some(tasks.spawn(async move {
            loop {
                let attempt = match connect.connect(&cluster, Arc::clone(&access)).await {
                    Err(refusal) => Attempt::Refused(refusal),
                    Ok(client) if !probes => Attempt::Connected(ShownClient(client)),
                    Ok(client) => match probe(client.clone()).await {
                        Ok(()) => Attempt::Connected(ShownClient(client)),
                        Err(failure) => Attempt::Failed(failure),
                    },
                };
                let is_last = !matches!(attempt, Attempt::Failed(_));
                _ = events.send(wrap(cluster.clone(), epoch, attempt)).await;
                if is_last {
                    return;
                }
                sleep(backoff.next(None)).await;
            }
        }));
    }

    /// Records a failed attempt.
    pub fn judge(&mut self, why: &str) -> Verdict {
        if self.live.is_none() {
            return Verdict::Lost(Credentials::Refused(why.to_owned()));
        }
        let stale = Credentials::Stale(format!("{why}; the previous credentials stay in use"));
        match self.credentials == stale {
            true => Verdict::Known,
            false => {
                self.credentials = stale;
                Verdict::Stale(why.to_owned())
            }
        }
    }

    /// Disconnects, since there are no valid credentials. Returns false if that is known.
    pub fn lose(&mut self, trouble: Credentials) -> bool {
        if self.credentials == trouble {
            return false;
        }
        self.disconnect();
        (self.feeds, self.server) = (F::default(), None);
        self.credentials = trouble;
        true
    }

    /// Records a new connection. Returns true if it replaces another.
    pub fn renew(&mut self) -> bool {
        let swapped = self.live.is_some();
        self.epoch += 1;
        self.trial = None;
        self.credentials = Credentials::Fine;
        if !swapped {
            self.feeds = F::default();
        }
        swapped
    }
}

impl std::fmt::Display for Attempt {
    /// Describes the failure.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Attempt::Connected(_) => f.write_str("new credentials work"),
            Attempt::Refused(refusal) => write!(f, "kubeconfig refused: {refusal}"),
            Attempt::Failed(failure) => write!(f, "new credentials do not work: {failure}"),
        }
    }
}
