//! Step 7: verifies links. Dials remotes with exactly the files their readers have, and
//! reads the readers' own metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use mw_core::cilium::plan::{Dial, Link, Plan};
use mw_core::cilium::world::{DialOutcome, Dialled, Evidence, Heartbeat, ReaderView};
use mw_core::names::{CiliumName, ClusterId};
use mw_core::seen::Seen;
use mw_core::text::printable;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::cilium::dial::{Answer, Failed, for_tenant, outcome};
use crate::cilium::engine::{Engine, Event, Input};
use crate::cilium::metrics::result_of;
use crate::cilium::readiness::readiness;
use crate::failure::Failure;
use crate::metrics::DialLabels;

/// Maximum number of concurrent dials.
const DIALS_AT_ONCE: usize = 32;
/// First retry of a check that failed or is incomplete.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
const METRICS_PORT: u16 = 9964;
const METRICS_FORBIDDEN: &str = "not allowed to read KVStoreMesh metrics (403): apply config/rbac/cilium-target-metrics.yaml in this cluster";

/// Schedule and state of a link's dials.
#[derive(Debug)]
pub(super) struct Dialling {
    fingerprint: String,
    due: Instant,
    busy: bool,
    failures: u32,
    /// Last successful outcome, kept across failures.
    read: Option<DialOutcome>,
}

/// Schedule and state of reading a reader's metrics.
#[derive(Debug)]
pub(super) struct Reading {
    due: Instant,
    busy: bool,
    failures: u32,
}

fn retry(failures: u32) -> Duration {
    FIRST_RETRY
        .saturating_mul(1 << failures.min(6))
        .min(LONGEST_RETRY)
}

impl Engine {
    pub(super) fn verify(&mut self, plan: &Plan) {
        self.forget_links(plan);
        self.dial(plan);
        self.read(plan);
    }

    /// Reports whether a dial or a reading is in flight.
    pub(super) fn is_verifying(&self) -> bool {
        self.state
            .checks
            .diallings
            .values()
            .any(|dialling| dialling.busy)
            || self
                .state
                .checks
                .readings
                .values()
                .any(|reading| reading.busy)
    }

    pub(super) fn verify_due(&self) -> Option<Instant> {
        let dials = self
            .state
            .checks
            .diallings
            .values()
            .filter(|dialling| !dialling.busy)
            .map(|dialling| dialling.due);
        let readings = self
            .state
            .checks
            .readings
            .values()
            .filter(|reading| !reading.busy)
            .map(|reading| reading.due);
        dials
            .chain(readings)
            .filter(|due| *due > self.turned_at)
            .min()
    }

    /// Drops the evidence for links that no longer exist.
    fn forget_links(&mut self, plan: &Plan) {
        let clusters = &self.state.world.clusters;
        let exists = |link: &Link| {
            clusters.contains_key(&link.reader) && clusters.contains_key(&link.remote)
        };
        self.state.world.evidence.retain(|link, _| exists(link));
        // An old result is stale if the link is dialled again later.
        for (_, evidence) in self
            .state
            .world
            .evidence
            .iter_mut()
            .filter(|(link, _)| !plan.dials.contains_key(*link))
        {
            evidence.dial = None;
        }
        self.state
            .checks
            .diallings
            .retain(|link, _| plan.dials.contains_key(link));
        self.state
            .checks
            .readings
            .retain(|reader, _| clusters.contains_key(reader));
    }

    fn dial(&mut self, plan: &Plan) {
        let now = self.turned_at;
        let mut running = self
            .state
            .checks
            .diallings
            .values()
            .filter(|dialling| dialling.busy)
            .count();
        for (link, dial) in &plan.dials {
            if let (false, Some(reading)) = (
                self.state.checks.diallings.contains_key(link),
                self.state.checks.readings.get_mut(&link.reader),
            ) {
                // A new or returning link needs a fresh report of its reader.
                reading.due = reading.due.min(now);
            }
            let fresh = || Dialling {
                fingerprint: dial.fingerprint.clone(),
                due: now,
                busy: false,
                failures: 0,
                read: None,
            };
            let dialling = self
                .state
                .checks
                .diallings
                .entry(link.clone())
                .or_insert_with(fresh);
            if dialling.fingerprint != dial.fingerprint {
                *dialling = fresh();
            }
            if dialling.busy || dialling.due > now || running >= DIALS_AT_ONCE {
                continue;
            }
            dialling.busy = true;
            running += 1;
            let (dialler, events) = (
                Arc::clone(&self.state.checks.dialler),
                self.inbox.sender.clone(),
            );
            let (link, dial): (Link, Dial) = (link.clone(), dial.clone());
            self.tasks.spawn(async move {
                let fingerprint = dial.fingerprint.clone();
                let result = dialler.dial(dial).await;
                _ = events
                    .send(Event::Input(Input::Dialled {
                        link,
                        fingerprint,
                        result,
                    }))
                    .await;
            });
        }
    }

    pub(super) fn observe_dial(
        &mut self,
        link: &Link,
        fingerprint: String,
        result: Result<Answer, Failed>,
    ) {
        let now = Instant::now();
        let check = self.jittered(self.settings.check);
        let Some(dialling) = self
            .state
            .checks
            .diallings
            .get_mut(link)
            .filter(|dialling| dialling.fingerprint == fingerprint)
        else {
            return;
        };
        dialling.busy = false;
        let evidence = self
            .state
            .world
            .evidence
            .entry(link.clone())
            .or_insert_with(no_evidence);
        let outcome = outcome(dialling.read.as_ref(), result, self.state.world.now);
        if matches!(outcome, DialOutcome::Read { .. }) {
            dialling.read = Some(outcome.clone());
        }
        let complete = matches!(
            outcome,
            DialOutcome::Read {
                heartbeat: Heartbeat::At { .. },
                ..
            }
        );
        dialling.failures = if complete {
            0
        } else {
            dialling.failures.saturating_add(1)
        };
        dialling.due = now
            + if complete {
                check
            } else {
                retry(dialling.failures).min(check)
            };
        let (reader, remote) = (
            self.environment.names.of(&link.reader),
            self.environment.names.of(&link.remote),
        );
        match &outcome {
            DialOutcome::Failed { text, .. } => {
                info!(%reader, %remote, error = text, "dial failed")
            }
            DialOutcome::Read { .. } => debug!(%reader, %remote, "dial succeeded"),
        }
        self.environment
            .metrics
            .dials
            .get_or_create(&DialLabels {
                result: result_of(&outcome),
            })
            .inc();
        let outcome = if self.state.sources.kcp.is_some() {
            for_tenant(outcome)
        } else {
            outcome
        };
        evidence.dial = Some(Dialled {
            fingerprint,
            at: self.state.world.now,
            outcome,
        });
        self.changes.inputs = true;
    }

    fn jittered(&mut self, time: Duration) -> Duration {
        time.mul_f64(0.9 + 0.2 * self.environment.random.f64())
    }

    /// Reads the KVStoreMesh metrics of every reader.
    fn read(&mut self, plan: &Plan) {
        let now = self.turned_at;
        let readers: BTreeSet<&ClusterId> = plan
            .dials
            .keys()
            .chain(self.state.world.evidence.keys())
            .map(|link| &link.reader)
            .collect();
        for reader in readers {
            let reading = self
                .state
                .checks
                .readings
                .entry(reader.clone())
                .or_insert(Reading {
                    due: now,
                    busy: false,
                    failures: 0,
                });
            let has_mesh = self
                .state
                .world
                .clusters
                .get(reader)
                .and_then(|seen| seen.apiserver.known()?.as_ref())
                .is_some_and(|of| of.kvstoremesh);
            let member = self
                .state
                .identities
                .representatives
                .get(reader)
                .and_then(|id| self.members.get(id));
            // A connection that is not in use yet may reach another cluster.
            let member = member.filter(|member| member.swap.is_none());
            let live = member.and_then(|member| Some((member, member.link.live.as_ref()?)));
            let Some((member, live)) =
                live.filter(|_| has_mesh && !reading.busy && reading.due <= now)
            else {
                if !has_mesh {
                    reading.due = now + LONGEST_RETRY;
                }
                continue;
            };
            reading.busy = true;
            let pods = member.link.feeds.mesh_pods();
            let (client, events, reader, epoch) = (
                live.client.clone(),
                self.inbox.sender.clone(),
                reader.clone(),
                member.link.epoch,
            );
            let namespace = self.settings.cilium_namespace.clone();
            self.tasks.spawn(async move {
                let result = read_pods(&client, &namespace, &pods).await;
                _ = events
                    .send(Event::Input(Input::Read {
                        reader,
                        epoch,
                        result,
                    }))
                    .await;
            });
        }
    }

    pub(super) fn observe_reading(
        &mut self,
        reader: &ClusterId,
        epoch: u64,
        result: Result<BTreeMap<CiliumName, bool>, String>,
    ) {
        let now = Instant::now();
        let member = self
            .state
            .identities
            .representatives
            .get(reader)
            .and_then(|id| self.members.get(id));
        if member.is_none_or(|member| member.link.epoch != epoch) {
            // Stale: read from a previous cluster, or through another link.
            self.state.checks.readings.remove(reader);
            return;
        }
        let check = self.jittered(self.settings.check);
        let names: BTreeMap<ClusterId, CiliumName> = self
            .state
            .world
            .clusters
            .iter()
            .filter_map(|(id, seen)| Some((id.clone(), seen.remembered.as_ref()?.name.clone()?)))
            .collect();
        let links: BTreeSet<Link> = self
            .state
            .plan
            .dials
            .keys()
            .chain(self.state.world.evidence.keys())
            .filter(|link| link.reader == *reader)
            .cloned()
            .collect();
        let mut all_ready = true;
        for link in links {
            let view = match &result {
                Err(why) => Seen::Unknown(why.clone()),
                Ok(remotes) => match names.get(&link.remote).and_then(|name| remotes.get(name)) {
                    Some(ready) => Seen::Known(ReaderView {
                        ready: *ready,
                        at: self.state.world.now,
                    }),
                    None => Seen::Unknown("KVStoreMesh does not report it yet".to_owned()),
                },
            };
            all_ready &= matches!(&view, Seen::Known(view) if view.ready);
            let evidence = self
                .state
                .world
                .evidence
                .entry(link)
                .or_insert_with(no_evidence);
            self.changes.inputs |= evidence.reader != view;
            evidence.reader = view;
        }
        if let Err(why) = &result {
            warn!(reader = %self.environment.names.of(reader), error = why, "failed to read KVStoreMesh metrics");
        }
        let Some(reading) = self.state.checks.readings.get_mut(reader) else {
            return;
        };
        reading.busy = false;
        reading.failures = if all_ready {
            0
        } else {
            reading.failures.saturating_add(1)
        };
        reading.due = now
            + if all_ready {
                check
            } else {
                retry(reading.failures).min(check)
            };
    }

    /// Discards a reader's reports after its keys were written: they are about the
    /// previous keys.
    pub(super) fn ask_again(&mut self, reader: &ClusterId) {
        for (_, evidence) in self
            .state
            .world
            .evidence
            .iter_mut()
            .filter(|(link, _)| link.reader == *reader)
        {
            evidence.reader = Seen::Unknown("its keys were just written".to_owned());
        }
        if let Some(reading) = self.state.checks.readings.get_mut(reader) {
            (reading.due, reading.failures) = (Instant::now() + FIRST_RETRY, 0);
        }
    }
}

fn no_evidence() -> Evidence {
    Evidence {
        dial: None,
        reader: Seen::Unknown("not asked yet".to_owned()),
    }
}

/// Merges the metrics of all replicas: only the active one reports remotes.
async fn read_pods(
    client: &Client,
    namespace: &str,
    pods: &[String],
) -> Result<BTreeMap<CiliumName, bool>, String> {
    let mut remotes: Option<BTreeMap<CiliumName, bool>> = None;
    let mut trouble = "no clustermesh-apiserver pod found".to_owned();
    for pod in pods {
        let path =
            format!("/api/v1/namespaces/{namespace}/pods/{pod}:{METRICS_PORT}/proxy/metrics");
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|wrong| wrong.to_string())?;
        match client.request_text(request).await {
            Ok(text) => {
                let all = remotes.get_or_insert_default();
                for (remote, ready) in readiness(text.as_bytes()) {
                    *all.entry(remote).or_default() |= ready;
                }
            }
            Err(error) => {
                trouble = match Failure::of(&error) {
                    Failure::Forbidden(_) => METRICS_FORBIDDEN.to_owned(),
                    failure => printable(&format!("pod {pod}: {failure}"), 300),
                }
            }
        }
    }
    remotes.ok_or(trouble)
}
