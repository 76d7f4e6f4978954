//! What one run plays: tenants with their clusters and objects, and what happens
//! to them. All of it is drawn from a seed beforehand, so that every step can be
//! left out by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::cilium::world::DialFailure;
use mw_sim::{Delivery, Link};
use serde_json::Value;

use crate::faults::{Crash, Fault};
use crate::lies::{Hostile, Telling};
use crate::object::Object;
use crate::site::{Ca, Site};

/// How many seeds `make test` plays.
pub(crate) const SEEDS: u64 = 1504;

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) sites: Vec<CiliumSite>,
    /// By namespace: the clusters whose credentials it holds.
    pub(crate) holdings: BTreeMap<String, BTreeSet<String>>,
    pub(crate) objects: Vec<Object>,
    /// Whether providers have to win the Lease first.
    pub(crate) elects: bool,
    pub(crate) hostile: Option<Hostile>,
    pub(crate) dial_delays: Vec<Duration>,
    pub(crate) steps: Vec<Step>,
}

/// A cluster as it is when a run begins.
#[derive(Debug, Clone)]
pub(crate) struct CiliumSite {
    pub(crate) name: String,
    pub(crate) id: u32,
    pub(crate) ca: Ca,
    pub(crate) kvstoremesh: bool,
    /// Whether somebody gave it a cluster-name and a cluster-id.
    pub(crate) named: bool,
    /// Whether it has the Secret cilium-ca.
    pub(crate) has_ca: bool,
    pub(crate) has_lab: bool,
    /// The Services in its namespace shop.
    pub(crate) services: Vec<&'static str>,
}

impl CiliumSite {
    pub(crate) fn new(name: &str, id: u32) -> CiliumSite {
        let name = name.to_owned();
        let services = vec!["cart", "cart-2"];
        CiliumSite { name, id, ca: Ca::Common, kvstoremesh: true, named: true, has_ca: true, has_lab: true, services }
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
    /// At a time after the start.
    Act(Duration, Action),
    Fault(Fault),
    Crash(Crash),
}

/// What people, clusters and the world do. Objects are counted in the order of
/// [`Case::objects`].
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Delete {
        object: usize,
    },
    /// Makes an object what it was at the beginning.
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
    /// With all that is in it.
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
    /// The Secret is deleted and created anew.
    ReplaceSecret {
        site: String,
    },
    BreakSecret {
        site: String,
    },
    DeleteSecret {
        site: String,
    },
    /// The Secret of a cluster holds working credentials of another one.
    SwitchSecret {
        site: String,
        to: String,
    },
    RestoreSecret {
        site: String,
    },
    SetLink {
        site: String,
        link: Link,
    },
    /// What a stalled link comes to when pings are not answered.
    CutStalled {
        site: String,
    },
    /// Another API server that is behind takes over for some lists.
    Lag {
        site: String,
        behind: u64,
    },
    Compact {
        site: String,
    },
    /// clustermesh-apiserver is reached at another address.
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
    /// The DaemonSet or the Deployment of Cilium goes.
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
    /// Somebody else's key, which leads nowhere.
    ForeignKey {
        site: String,
    },
    /// A server begins to answer wrongly.
    Lie(Telling),
    Restart,
    /// Another provider that does not know of the first.
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

/// After so long a connection over HTTP/2 that says nothing is given up.
const PINGS: Duration = Duration::from_secs(15);

impl Case {
    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.steps.iter().filter_map(|step| if let Step::Fault(fault) = step { Some(fault.clone()) } else { None }).collect()
    }

    pub(crate) fn crashes(&self) -> Vec<Crash> {
        self.steps.iter().filter_map(|step| if let Step::Crash(crash) = step { Some(*crash) } else { None }).collect()
    }

    /// In the order of time.
    pub(crate) fn actions(&self) -> Vec<(Duration, Action)> {
        let actions =
            self.steps.iter().filter_map(|step| if let Step::Act(at, action) = step { Some((*at, action.clone())) } else { None });
        let mut actions: Vec<(Duration, Action)> = actions.collect();
        let stalls = actions.iter().filter_map(|(at, action)| match action {
            Action::SetLink { site, link: Link::Stalled } => Some((*at + PINGS, Action::CutStalled { site: site.clone() })),
            _ => None,
        });
        let stalls: Vec<(Duration, Action)> = stalls.collect();
        actions.extend(stalls);
        actions.sort_by_key(|(at, _)| *at);
        actions
    }

    /// Something was kept from the provider that only a full resync brings.
    pub(crate) fn loses_events(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Fault(Fault::Event { delivery, .. }) => *delivery == Delivery::Skip,
            Step::Act(_, Action::JumpClock { .. }) => true,
            _ => false,
        })
    }

    /// Full resyncs until the truth counts. A server that answered as another
    /// one showed later versions: its own state looks older, and is believed
    /// when it is still shown a resync later.
    pub(crate) fn resyncs(&self) -> u32 {
        let lies = self.steps.iter().any(|step| matches!(step, Step::Act(_, Action::Lie(_))));
        if lies { 2 } else { u32::from(self.loses_events()) }
    }

    pub(crate) fn without(&self, dropped: &[usize]) -> Case {
        let steps = self.steps.iter().enumerate().filter(|(at, _)| !dropped.contains(at)).map(|(_, step)| step.clone()).collect();
        Case { steps, ..self.clone() }
    }
}
