//! Definition of one run: tenants with their clusters and objects, and the steps
//! that happen to them. Everything is drawn from a seed in advance, so that each
//! step can be left out alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::cilium::world::DialFailure;
use mw_sim::{Delivery, Reachability};
use serde_json::Value;

use crate::faults::{Crash, Fault};
use crate::lies::{Hostile, Telling};
use crate::object::Object;
use crate::site::{Ca, Site};

/// Number of seeds that `make test` plays.
pub(crate) const SEEDS: u64 = 1504;

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) sites: Vec<CiliumSite>,
    /// Clusters whose credentials each namespace holds.
    pub(crate) holdings: BTreeMap<String, BTreeSet<String>>,
    pub(crate) objects: Vec<Object>,
    /// True if providers must acquire the Lease first.
    pub(crate) elects: bool,
    pub(crate) hostile: Option<Hostile>,
    pub(crate) dial_delays: Vec<Duration>,
    pub(crate) steps: Vec<Step>,
}

/// Initial state of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct CiliumSite {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) ca: Ca,
    pub(crate) kvstoremesh: bool,
    /// True if it has a cluster-name and a cluster-id.
    pub(crate) named: bool,
    /// True if it has the Secret cilium-ca.
    pub(crate) has_ca: bool,
    pub(crate) has_lab: bool,
    /// Services in its namespace shop.
    pub(crate) services: Vec<&'static str>,
}

impl CiliumSite {
    pub(crate) fn new(name: &str, id: u32) -> CiliumSite {
        let name = name.to_owned();
        let services = vec!["cart", "cart-2"];
        CiliumSite {
            name,
            id,
            ca: Ca::Common,
            kvstoremesh: true,
            named: true,
            has_ca: true,
            has_lab: true,
            services,
        }
    }

    pub(crate) fn site(&self) -> Site {
        let mut site = Site::new(&self.name, self.id, self.ca);
        site.kvstoremesh = self.kvstoremesh;
        if !self.named {
            site.cilium_name = String::new();
        }
        site
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// An action at a time after the start.
    Act(Duration, Action),
    Fault(Fault),
    Crash(Crash),
}

/// Actions of users, clusters and the environment. Objects are numbered in the
/// order of [`Case::objects`].
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Delete {
        object: usize,
    },
    /// Resets an object to its initial state.
    Restore {
        object: usize,
    },
    Edit {
        object: usize,
        spec: Value,
    },
    RemoveService {
        site: String,
        name: &'static str,
    },
    AddService {
        site: String,
        name: &'static str,
    },
    /// Deletes the namespace with everything in it.
    RemoveNamespace {
        site: String,
        name: &'static str,
    },
    AddNamespace {
        site: String,
        name: &'static str,
    },
    RenewCredentials {
        site: String,
        revoke: bool,
    },
    /// Deletes and recreates the Secret.
    ReplaceSecret {
        site: String,
    },
    BreakSecret {
        site: String,
    },
    DeleteSecret {
        site: String,
    },
    /// Writes working credentials of another cluster to a cluster's Secret.
    SwitchSecret {
        site: String,
        to: String,
    },
    RestoreSecret {
        site: String,
    },
    SetLink {
        site: String,
        link: Reachability,
    },
    /// Closes a stalled link, as unanswered pings do.
    CutStalled {
        site: String,
    },
    /// Serves some lists from another API server that lags behind.
    Lag {
        site: String,
        behind: u64,
    },
    Compact {
        site: String,
    },
    /// Moves clustermesh-apiserver to another address.
    MoveAddress {
        site: String,
        last: u8,
    },
    RenewCertificates {
        site: String,
        ca: Ca,
    },
    EtcdFails {
        site: String,
        failure: Option<DialFailure>,
    },
    RestartCilium {
        site: String,
    },
    /// Deletes Cilium's DaemonSet or Deployment.
    RemoveWorkload {
        site: String,
        which: Workload,
    },
    AddWorkload {
        site: String,
        which: Workload,
    },
    EditPolicy {
        site: String,
        how: PolicyEdit,
    },
    EditAnnotation {
        site: String,
        value: Option<&'static str>,
    },
    EditKey {
        site: String,
        pick: usize,
        removes: bool,
    },
    /// Adds a key of another manager that points nowhere.
    ForeignKey {
        site: String,
    },
    /// Another manager takes over the keys of a link and writes working or broken
    /// ones.
    ForeignLink {
        site: String,
        pick: usize,
        works: bool,
    },
    /// A server starts to give wrong answers.
    Lie(Telling),
    Restart,
    /// Starts another provider, independent of the first.
    StartSecond,
    StopSecond,
    JumpClock {
        seconds: i64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Workload {
    Agents,
    ApiServer,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PolicyEdit {
    Delete,
    Spec,
    StripLabels,
}

/// Timeout of silent HTTP/2 connections.
const PINGS: Duration = Duration::from_secs(15);

impl Case {
    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.steps
            .iter()
            .filter_map(|step| {
                if let Step::Fault(fault) = step {
                    Some(fault.clone())
                } else {
                    None
                }
            })
            .collect()
    }

    pub(crate) fn crashes(&self) -> Vec<Crash> {
        self.steps
            .iter()
            .filter_map(|step| {
                if let Step::Crash(crash) = step {
                    Some(*crash)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Actions in chronological order.
    pub(crate) fn actions(&self) -> Vec<(Duration, Action)> {
        let actions = self.steps.iter().filter_map(|step| {
            if let Step::Act(at, action) = step {
                Some((*at, action.clone()))
            } else {
                None
            }
        });
        let mut actions: Vec<(Duration, Action)> = actions.collect();
        let stalls = actions.iter().filter_map(|(at, action)| match action {
            Action::SetLink {
                site,
                link: Reachability::Stalled,
            } => Some((*at + PINGS, Action::CutStalled { site: site.clone() })),
            _ => None,
        });
        let stalls: Vec<(Duration, Action)> = stalls.collect();
        actions.extend(stalls);
        actions.sort_by_key(|(at, _)| *at);
        actions
    }

    /// Reports whether an event was withheld that only a full resync recovers.
    pub(crate) fn loses_events(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Fault(Fault::Event { delivery, .. }) => *delivery == Delivery::Skip,
            Step::Act(_, Action::JumpClock { .. }) => true,
            _ => false,
        })
    }

    /// Number of full resyncs until the true state is accepted. A server that
    /// answered in place of another showed later versions: its own state looks older
    /// and is accepted only if the next resync still shows it.
    pub(crate) fn resyncs(&self) -> u32 {
        if self.has_lies() {
            2
        } else {
            u32::from(self.loses_events())
        }
    }

    pub(crate) fn has_lies(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Step::Act(_, Action::Lie(_))))
    }

    pub(crate) fn without(&self, dropped: &[usize]) -> Case {
        let steps = self
            .steps
            .iter()
            .enumerate()
            .filter(|(at, _)| !dropped.contains(at))
            .map(|(_, step)| step.clone())
            .collect();
        Case {
            steps,
            ..self.clone()
        }
    }
}
