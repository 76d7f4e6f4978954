//! From a kubeconfig to a connection in use: new credentials are tried out,
//! swapped in while everything goes on, or refused.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use mw_core::names::ClusterId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::fleet::{Connect, Credentials, Feeds, Link};
use crate::kubeconfig::{Access, Refusal};

/// What came of an attempt to connect.
#[derive(Debug)]
pub enum Attempt {
    Connected(ShownClient),
    Refused(Refusal),
    Failed(Failure),
}

/// A client that can be told about in an event.
pub struct ShownClient(pub Client);

impl std::fmt::Debug for ShownClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// How credentials are tried out.
pub struct Trial<E, W> {
    pub connect: Arc<dyn Connect>,
    pub backoff: Backoff,
    /// Whether a client works at all; asked only where another one is in use.
    pub probe: fn(Client) -> BoxFuture<'static, Result<(), Failure>>,
    pub events: mpsc::Sender<E>,
    /// Makes the receiver's event.
    pub wrap: W,
}

impl<E, W> std::fmt::Debug for Trial<E, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}

/// What a failed attempt means for a link.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing new.
    Known,
    /// The former credentials stay in use.
    Stale(String),
    /// There is nothing to connect with.
    Lost(Credentials),
}

impl<F: Feeds> Link<F> {
    /// The first credentials are used at once: the watches will tell. Others
    /// must work before they replace those in use.
    pub fn try_out<E, W>(&mut self, access: Access, fingerprint: [u8; 32], trial: Trial<E, W>, tasks: &mut JoinSet<()>)
    where
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
        let Trial { connect, mut backoff, probe, events, wrap } = trial;
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

    /// An attempt did not lead to a connection.
    pub fn judge(&mut self, why: &str) -> Verdict {
        if self.live.is_none() {
            return Verdict::Lost(Credentials::Refused(why.to_owned()));
        }
        let stale = Credentials::Stale(format!("{why}; the former ones stay in use"));
        match self.credentials == stale {
            true => Verdict::Known,
            false => {
                self.credentials = stale;
                Verdict::Stale(why.to_owned())
            }
        }
    }

    /// There is nothing to connect with any more. False if that is known.
    pub fn lose(&mut self, trouble: Credentials) -> bool {
        if self.credentials == trouble {
            return false;
        }
        self.disconnect();
        (self.feeds, self.server) = (F::default(), None);
        self.credentials = trouble;
        true
    }

    /// A new connection is there. True if it takes the place of another.
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
    /// Why it led to nothing.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Attempt::Connected(_) => f.write_str("its new credentials work"),
            Attempt::Refused(refusal) => write!(f, "its new kubeconfig {refusal}"),
            Attempt::Failed(failure) => write!(f, "its new credentials do not work: {failure}"),
        }
    }
}
