//! Connects to members. New credentials are tested, then swapped in without a restart, or
//! refused.

use std::sync::Arc;

use mw_core::names::ClusterId;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::engine::{Engine, Event, Steps};
use crate::fleet::follow::RelistSignal;
use crate::fleet::{Attempt, Credentials, Live, ShownClient, Trial, Verdict, secret_of};
use crate::kubeconfig::Access;

impl<B: Steps> Engine<B> {
    /// Tries credentials, unless they are in use or on trial. Returns true if they are new.
    pub(crate) fn try_credentials(
        &mut self,
        cluster: &ClusterId,
        access: Access,
        fingerprint: [u8; 32],
    ) -> bool {
        let trial = Trial {
            connect: Arc::clone(&self.environment.connect),
            backoff: self.backoff(),
            probe: B::probe,
            events: self.inbox.sender.clone(),
            wrap: move |cluster, epoch, attempt| Event::Attempted {
                cluster,
                epoch,
                fingerprint,
                attempt,
            },
        };
        let Some(member) = self
            .members
            .get_mut(cluster)
            .filter(|member| member.link.fingerprint != Some(fingerprint))
        else {
            return false;
        };
        member.newest_ca = access.private_ca();
        member
            .link
            .try_out(access, fingerprint, trial, &mut self.tasks);
        true
    }

    /// Disconnects a member that has no valid credentials.
    pub(crate) fn lose_credentials(&mut self, cluster: &ClusterId, trouble: Credentials) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        if !member.link.lose(trouble) {
            return;
        }
        warn!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), error = member.link.trouble().unwrap_or_default(), "cluster unreachable");
        B::disconnected(self, cluster);
    }

    pub(super) fn observe_attempt(
        &mut self,
        cluster: &ClusterId,
        epoch: u64,
        fingerprint: [u8; 32],
        attempt: Attempt,
    ) {
        let Some(member) = self
            .member_at(cluster, epoch)
            .filter(|member| member.link.fingerprint == Some(fingerprint))
        else {
            return;
        };
        let why = attempt.to_string();
        if let Attempt::Connected(client) = attempt {
            return self.connect_through(cluster, client);
        }
        match member.link.judge(&why) {
            Verdict::Known => {}
            Verdict::Stale(trouble) => {
                warn!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), error = trouble, "new credentials do not work, keeping the previous ones");
                B::credentials_are_stale(self, cluster);
            }
            Verdict::Lost(trouble) => self.lose_credentials(cluster, trouble),
        }
    }

    /// Watches a member through a new connection and drops the old one.
    pub(crate) fn connect_through(
        &mut self,
        cluster: &ClusterId,
        ShownClient(client): ShownClient,
    ) {
        let memory = self.environment.memory();
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        let swapped = member.link.renew();
        member.swap = swapped.then(B::Swap::default);
        // Ends the watches of the previous connection.
        member.link.live = Some(Live {
            client,
            relist: RelistSignal::default(),
            tasks: JoinSet::new(),
            memory,
        });
        if swapped {
            info!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), "credentials replaced");
        }
        B::connected(self, cluster);
    }
}
