//! Input of one run: a fleet, and the steps that happen to it. Everything is drawn
//! from a seed beforehand, so that each step can be left out on its own.

use std::time::Duration;

use mw_sim::kilo::{Mesh, Site};
use mw_sim::{Delivery, Fate, Reachability};

use crate::faults::{Crash, Fault};
use crate::lies::{
    Attack, HOSTILE_SITES, Hostile, Lasts, Telling, Untruth, hostile_sites, neighbour, tenant_mesh,
};

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) sites: Vec<Site>,
    pub(crate) meshes: Vec<Mesh>,
    /// True if operators have to acquire the Lease first.
    pub(crate) elects: bool,
    /// True if all held deletes are confirmed at once.
    pub(crate) trusts: bool,
    /// True if nothing happens that needs a person's attention.
    pub(crate) quiet: bool,
    /// True if the Go operator created Peers for nodes without an endpoint, which
    /// nothing in the case is a reason to delete.
    pub(crate) roaming: bool,
    /// Namespace of a hostile owner, with its own clusters.
    pub(crate) hostile: Option<Hostile>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// At a time after the start.
    Act(Duration, Action),
    Fault(Fault),
    Crash(Crash),
}

/// An action of users, agents or the environment.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    AddNode {
        site: String,
        at: u8,
    },
    /// A Node without an agent and with an address of another family joins.
    AddPlainNode {
        site: String,
    },
    DeleteNode {
        site: String,
        node: String,
    },
    /// Kilo generates a new key.
    ChangeKey {
        site: String,
        node: String,
        to: String,
    },
    ChangeEndpoint {
        site: String,
        node: String,
        to: Option<String>,
    },
    SetReady {
        site: String,
        node: String,
        ready: bool,
    },
    /// The agent stops cleanly: its annotations vanish.
    StopAgent {
        site: String,
        node: String,
    },
    StartAgent {
        site: String,
        node: String,
    },
    /// The agent starts; its WireGuard address follows later.
    ReturnAgent {
        site: String,
        node: String,
    },
    /// A node publishes its WireGuard address: each at its own check-in, up to half
    /// a minute after it changed.
    Publish {
        site: String,
        node: String,
    },
    /// The agent dies; the others keep checking in.
    KillAgent {
        site: String,
        node: String,
    },
    MarkLeader {
        site: String,
        node: String,
    },
    /// A node discovers the real endpoint of a node of another cluster.
    Discover {
        site: String,
        of: (String, String),
        /// Changes with each new NAT mapping.
        port: u16,
    },
    /// Kilo reconfigures its tunnels and forgets discovered endpoints.
    Reload {
        site: String,
    },
    /// Handshakes reveal the endpoints again.
    Reloaded {
        site: String,
    },
    /// A node gets invalid or unusual values.
    Spoil {
        site: String,
        node: String,
        how: Spoilt,
    },
    EditPeer {
        site: String,
        pick: usize,
        how: Edit,
    },
    Foreign {
        site: String,
        kind: ForeignPeer,
    },
    RemoveEntry {
        mesh: usize,
        site: String,
    },
    RestoreEntries {
        mesh: usize,
    },
    RenameEntry {
        mesh: usize,
        site: String,
    },
    DeleteMesh {
        mesh: usize,
    },
    RestoreMesh {
        mesh: usize,
    },
    /// A field of the spec changes.
    MutateMesh {
        mesh: usize,
        pointer: String,
        to: serde_json::Value,
    },
    Trigger {
        mesh: usize,
    },
    RenewCredentials {
        site: String,
        revoke: bool,
    },
    BreakSecret {
        site: String,
    },
    DeleteSecret {
        site: String,
    },
    /// The Secret of a cluster gets working credentials of another one.
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
    /// Another API server that lags serves some lists.
    Lag {
        site: String,
        behind: u64,
    },
    /// A stalled connection is closed after unanswered pings.
    CutStalled {
        site: String,
    },
    Compact {
        site: String,
    },
    /// A server starts to give false answers.
    Lie(Telling),
    /// An annotation of a node changes every second, this many times.
    Flap {
        site: String,
        node: String,
        times: u64,
    },
    Restart,
    /// Starts a second operator, with leader election only if the case has it.
    StartSecond,
    StopSecond,
    JumpClock {
        seconds: i64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Spoilt {
    NoKey,
    BadKey,
    WireguardIpOutside,
    HugeAnnotation,
    DiscoveredNonsense,
    InternalIpOfAnotherFamily,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Edit {
    Delete,
    Endpoint,
    DropPrefix,
    AddPrefix,
    StripLabels,
    /// The operator must not undo these two.
    OwnLabel,
    PresharedKey,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ForeignPeer {
    Plain,
    OtherHub,
    /// Has the name of the Peer of a future node.
    TakenName,
}

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
        let stalls: Vec<(Duration, Action)> = actions
            .iter()
            .filter_map(|(at, action)| match action {
                Action::SetLink {
                    site,
                    link: Reachability::Stalled,
                } => Some((*at + PINGS, Action::CutStalled { site: site.clone() })),
                _ => None,
            })
            .collect();
        actions.extend(stalls);
        let flaps: Vec<(Duration, Action)> = actions
            .iter()
            .flat_map(|(at, action)| flaps(*at, action))
            .collect();
        actions.extend(flaps);
        actions.sort_by_key(|(at, _)| *at);
        actions
    }

    /// Reports whether events are lost that only a full resync recovers.
    pub(crate) fn loses_events(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Fault(Fault::Event { delivery, .. }) => *delivery == Delivery::Skip,
            Step::Act(_, Action::JumpClock { .. }) => true,
            _ => false,
        })
    }

    fn lies(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Step::Act(_, Action::Lie(_))))
    }

    /// Reports whether convergence may need a full resync.
    pub(crate) fn needs_resync(&self) -> bool {
        self.resyncs() > 0
    }

    /// Number of full resyncs until the true state is accepted. After a server
    /// answered as another one with later versions, its own state looks older, and
    /// is accepted only if it is still shown a resync later.
    pub(crate) fn resyncs(&self) -> u32 {
        if self.lies() {
            2
        } else {
            u32::from(self.loses_events())
        }
    }

    pub(crate) fn takes_names(&self) -> bool {
        self.steps.iter().any(|step| {
            matches!(
                step,
                Step::Act(
                    _,
                    Action::Foreign {
                        kind: ForeignPeer::TakenName,
                        ..
                    }
                )
            )
        })
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

/// Number of seeds that `make test` runs, and size of the fleets.
pub(crate) const SEEDS: u64 = 3200;
const SITES: u8 = 3;
const NODES: u8 = 4;

impl Case {
    pub(crate) fn draw(seed: u64) -> Case {
        let mut dice = Dice(fastrand::Rng::with_seed(seed));
        let sites = dice.sites();
        let meshes = dice.meshes(&sites);
        let elects = dice.chance(8);
        let mut steps = Vec::new();
        for _ in 0..dice.between(2, 8) {
            steps.extend(dice.happening(&sites, &meshes));
        }
        for _ in 0..dice.between(0, 8) {
            steps.push(Step::Fault(dice.fault(&sites)));
        }
        if dice.chance(30) {
            steps.push(Step::Crash(Crash {
                at_write: dice.between(1, 60),
                after: dice.chance(50),
            }));
        }
        let trusts = dice.chance(30);
        let mut case = Case {
            seed,
            sites,
            meshes,
            elects,
            trusts,
            quiet: false,
            roaming: false,
            hostile: None,
            steps,
        };
        dice.owners(&mut case);
        dice.lies(&mut case);
        case
    }
}

/// Single changes of a flapping node.
fn flaps(at: Duration, action: &Action) -> Vec<(Duration, Action)> {
    let Action::Flap { site, node, times } = action else {
        return Vec::new();
    };
    let change = |nth: u64| Action::ChangeKey {
        site: site.clone(),
        node: node.clone(),
        to: format!("flap {nth} of {site}/{node}"),
    };
    (0..*times)
        .map(|nth| (at + Duration::from_secs(nth), change(nth)))
        .collect()
}

/// Time after which a silent HTTP/2 connection is closed.
const PINGS: Duration = Duration::from_secs(15);
/// Edits that users try.
const MUTATIONS: [(&str, &str); 8] = [
    ("/spec/maxDeletePercent", "0"),
    ("/spec/cleanupTimeout", "\"1s\""),
    ("/spec/clusters/1/podCIDRs", "[\"10.99.0.0/16\"]"),
    ("/spec/clusters/1/wireguardCIDR", "\"10.1.0.0/16\""),
    ("/spec/clusters/1/serviceCIDR", "null"),
    ("/spec/clusters/1/kubeconfigSecretRef/name", "\"nobody\""),
    ("/spec/clusters/0/local", "false"),
    ("/spec/clusters/1/persistentKeepalive", "7"),
];

struct Dice(fastrand::Rng);

impl Dice {
    fn chance(&mut self, percent: u8) -> bool {
        self.0.u8(0..100) < percent
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.u64(least..=most)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.0.usize(0..of.len())]
    }

    fn sites(&mut self) -> Vec<Site> {
        let mut sites = Vec::new();
        for number in 1..=SITES {
            let nodes = self.0.u8(1.max(NODES / 2)..=NODES);
            let mut site = Site::new(&format!("c{number}"), number, nodes);
            let by_location = self.chance(25);
            for (at, node) in site.nodes.values_mut().enumerate() {
                if by_location {
                    node.annotations
                        .insert("granularity".into(), "location".into());
                    node.annotations
                        .insert("location".into(), format!("place-{}", at % 2));
                }
                if self.chance(15) {
                    node.annotations
                        .insert("force-endpoint".into(), String::new());
                    node.external_ip = self
                        .chance(50)
                        .then(|| format!("198.19.{number}.{}", at + 1));
                }
                node.ready = !self.chance(10);
            }
            let addresses: Vec<String> = site
                .nodes
                .keys()
                .map(|node| site.wireguard_ip(node, |_| true))
                .collect();
            for (node, address) in site.nodes.values_mut().zip(addresses) {
                node.annotations.insert("wireguard-ip".into(), address);
            }
            sites.push(site);
        }
        sites
    }

    fn meshes(&mut self, sites: &[Site]) -> Vec<Mesh> {
        let all: Vec<&Site> = sites.iter().collect();
        let mut meshes = match sites.len() > 2 && self.chance(20) {
            // Hub and spoke: the hub is a member of each.
            true => sites[1..]
                .iter()
                .map(|spoke| Mesh::new(&format!("to-{}", spoke.name), &[&sites[0], spoke]))
                .collect(),
            false => vec![Mesh::new("mesh", &all)],
        };
        for (at, site) in sites.iter().enumerate() {
            let (flat, internal, keepalive) = (self.chance(20), self.chance(20), self.chance(30));
            for entry in meshes.iter_mut().filter_map(|mesh| mesh.entry(&site.name)) {
                entry.flat = flat;
                entry.additional_cidr =
                    (internal && !flat).then(|| format!("192.168.{}.0/24", at + 1));
                entry.keepalive = if keepalive { 25 } else { 0 };
            }
        }
        meshes
    }

    fn when(&mut self) -> Duration {
        Duration::from_millis(self.between(0, 240_000))
    }

    /// Draws an incident and, in most cases, its end.
    fn happening(&mut self, sites: &[Site], meshes: &[Mesh]) -> Vec<Step> {
        let at = self.when();
        let later = at + Duration::from_millis(self.between(100, 120_000));
        let site = self.pick(sites);
        let name = || site.name.clone();
        let nodes: Vec<String> = site.nodes.keys().cloned().collect();
        let node = self.pick(&nodes).clone();
        let member = self.pick(&sites[1..]).name.clone();
        let mesh = self.0.usize(0..meshes.len());
        let pick = self.0.usize(0..64);
        let both =
            |first: Action, second: Action| vec![Step::Act(at, first), Step::Act(later, second)];
        let one = |action: Action| vec![Step::Act(at, action)];
        match self.0.u8(0..34) {
            0 | 1 => {
                let joins = 100 + self.0.u8(0..4);
                let mut steps = one(Action::AddNode {
                    site: name(),
                    at: joins,
                });
                steps.push(Step::Act(
                    at,
                    Action::Publish {
                        site: name(),
                        node: format!("n{joins}"),
                    },
                ));
                steps.extend(self.renumbering(site, at));
                steps
            }
            2 | 3 => {
                let mut steps = one(Action::DeleteNode { site: name(), node });
                steps.extend(self.renumbering(site, at));
                steps
            }
            4 | 5 => one(Action::ChangeKey {
                site: name(),
                node,
                to: format!("new-{}", self.0.u32(..)),
            }),
            6 => one(Action::ChangeEndpoint {
                site: name(),
                node,
                to: Some(format!("198.19.200.{}:51821", self.0.u8(1..))),
            }),
            7 => one(Action::ChangeEndpoint {
                site: name(),
                node,
                to: None,
            }),
            8 => one(Action::SetReady {
                site: name(),
                node,
                ready: self.chance(50),
            }),
            9 => both(
                Action::StopAgent {
                    site: name(),
                    node: node.clone(),
                },
                Action::StartAgent { site: name(), node },
            ),
            10 => {
                let mut steps = both(
                    Action::StopAgent {
                        site: name(),
                        node: node.clone(),
                    },
                    Action::ReturnAgent { site: name(), node },
                );
                steps.extend(self.renumbering(site, at));
                steps.extend(self.renumbering(site, later));
                steps
            }
            11 => {
                let roll = |node: &String| {
                    both(
                        Action::StopAgent {
                            site: name(),
                            node: node.clone(),
                        },
                        Action::StartAgent {
                            site: name(),
                            node: node.clone(),
                        },
                    )
                };
                nodes.iter().flat_map(roll).collect()
            }
            12 => one(Action::KillAgent { site: name(), node }),
            13 if self.chance(50) => one(Action::AddPlainNode { site: name() }),
            13 => one(Action::MarkLeader { site: name(), node }),
            14 => {
                let others: Vec<&Site> = sites
                    .iter()
                    .filter(|other| other.name != site.name)
                    .collect();
                let other = self.pick(&others);
                let of = (
                    other.name.clone(),
                    self.pick(&other.nodes.keys().collect::<Vec<_>>())
                        .to_string(),
                );
                let discover = |port| Action::Discover {
                    site: name(),
                    of: of.clone(),
                    port,
                };
                let mut steps = both(discover(40_000), Action::Reload { site: name() });
                if self.chance(50) {
                    steps.push(Step::Act(
                        at + Duration::from_millis(self.between(100, 240_000)),
                        discover(40_001),
                    ));
                }
                let back = later + Duration::from_millis(self.between(100, 400_000));
                steps.push(Step::Act(back, Action::Reloaded { site: name() }));
                steps
            }
            15 => {
                let how = *self.pick(&[
                    Spoilt::NoKey,
                    Spoilt::BadKey,
                    Spoilt::WireguardIpOutside,
                    Spoilt::HugeAnnotation,
                    Spoilt::DiscoveredNonsense,
                    Spoilt::InternalIpOfAnotherFamily,
                ]);
                both(
                    Action::Spoil {
                        site: name(),
                        node: node.clone(),
                        how,
                    },
                    Action::StartAgent { site: name(), node },
                )
            }
            16..=18 => {
                let edits = [
                    Edit::Delete,
                    Edit::Endpoint,
                    Edit::DropPrefix,
                    Edit::AddPrefix,
                    Edit::StripLabels,
                    Edit::OwnLabel,
                    Edit::PresharedKey,
                ];
                one(Action::EditPeer {
                    site: name(),
                    pick,
                    how: *self.pick(&edits),
                })
            }
            19 | 20 => one(Action::Foreign {
                site: name(),
                kind: *self.pick(&[
                    ForeignPeer::Plain,
                    ForeignPeer::OtherHub,
                    ForeignPeer::TakenName,
                ]),
            }),
            21 => both(
                Action::RemoveEntry { mesh, site: member },
                Action::RestoreEntries { mesh },
            ),
            22 => one(Action::RenameEntry { mesh, site: member }),
            23 => both(Action::DeleteMesh { mesh }, Action::RestoreMesh { mesh }),
            24 => one(Action::DeleteMesh { mesh }),
            25 if self.chance(50) => one(Action::Trigger { mesh }),
            25 => {
                let (pointer, to) = self.pick(&MUTATIONS);
                let to = serde_json::from_str(to).unwrap();
                both(
                    Action::MutateMesh {
                        mesh,
                        pointer: (*pointer).to_owned(),
                        to,
                    },
                    Action::RestoreEntries { mesh },
                )
            }
            26 => one(Action::RenewCredentials {
                site: member,
                revoke: self.chance(70),
            }),
            27 => both(
                Action::BreakSecret {
                    site: member.clone(),
                },
                Action::RestoreSecret { site: member },
            ),
            28 => both(
                Action::DeleteSecret {
                    site: member.clone(),
                },
                Action::RestoreSecret { site: member },
            ),
            29 | 30 => {
                let link = if self.chance(50) {
                    Reachability::Stalled
                } else {
                    Reachability::Refusing
                };
                both(
                    Action::SetLink { site: name(), link },
                    Action::SetLink {
                        site: name(),
                        link: Reachability::Up,
                    },
                )
            }
            31 if self.chance(50) => one(Action::Compact { site: name() }),
            31 => {
                let lag = Action::Lag {
                    site: name(),
                    behind: self.between(1, 12),
                };
                let change = Action::SetReady {
                    site: name(),
                    node,
                    ready: self.chance(50),
                };
                let second = Duration::from_secs(1);
                let joined = Action::AddNode {
                    site: name(),
                    at: 104,
                };
                vec![
                    Step::Act(at, joined),
                    Step::Act(at + second * 60, lag),
                    Step::Act(at + second * 61, change),
                ]
            }
            32 if self.chance(40) => both(Action::StartSecond, Action::StopSecond),
            32 => one(Action::JumpClock {
                seconds: self.0.i64(-300..=300),
            }),
            _ => one(Action::Restart),
        }
    }

    /// Kilo renumbers the nodes of a site, and each publishes its address at its own time.
    fn renumbering(&mut self, site: &Site, from: Duration) -> Vec<Step> {
        let publish = |node: &String| Action::Publish {
            site: site.name.clone(),
            node: node.clone(),
        };
        site.nodes
            .keys()
            .map(|node| {
                Step::Act(
                    from + Duration::from_millis(self.between(0, 30_000)),
                    publish(node),
                )
            })
            .collect()
    }

    /// Adds namespaces of other owners: a team that shares a cluster, or a hostile one.
    fn owners(&mut self, case: &mut Case) {
        let hub = case.sites[0].clone();
        match self.0.u8(0..10) {
            0 => {
                let shared = case.sites.last().unwrap().clone();
                let entry = case
                    .meshes
                    .iter_mut()
                    .find_map(|mesh| mesh.entry(&shared.name).cloned())
                    .unwrap();
                let (site, mesh) = neighbour(&hub, (&shared, &entry));
                case.sites.push(site);
                case.meshes.push(mesh);
            }
            1 => {
                let victim = self.pick(&case.sites[1..]).name.clone();
                let attack = *self.pick(&[Attack::CopiedUids, Attack::StolenUrl]);
                let sites = hostile_sites();
                let namespace = *self.pick(&["a-hostile", "z-hostile"]);
                case.meshes.push(tenant_mesh(
                    namespace,
                    &hub.name,
                    &sites.iter().collect::<Vec<_>>(),
                ));
                case.sites.extend(sites);
                let lies = (0..self.between(0, 2))
                    .map(|_| Telling {
                        lasts: Lasts::ForEver,
                        ..self.telling(HOSTILE_SITES[1], &victim)
                    })
                    .collect();
                case.hostile = Some(Hostile {
                    attack,
                    victim,
                    lies,
                });
            }
            _ => {}
        }
    }

    fn lies(&mut self, case: &mut Case) {
        if self.chance(4) {
            let site = &case.sites[1];
            let node = self
                .pick(&site.nodes.keys().cloned().collect::<Vec<_>>())
                .clone();
            let flap = Action::Flap {
                site: site.name.clone(),
                node,
                times: self.between(5, 60),
            };
            case.steps.push(Step::Act(self.when(), flap));
        }
        if !self.chance(35) {
            return;
        }
        // Confirming everything would confirm lies too.
        case.trusts = false;
        let honest: Vec<String> = case
            .sites
            .iter()
            .map(|site| site.name.clone())
            .filter(|name| !HOSTILE_SITES.contains(&name.as_str()))
            .collect();
        for _ in 0..self.between(1, 3) {
            let (at, of) = (self.when(), self.pick(&case.sites[1..3]).name.clone());
            let cluster = self.pick(&honest).clone();
            let telling = if cluster == case.sites[0].name && self.chance(60) {
                self.hub_telling(&cluster, &of, case.elects)
            } else {
                self.telling(&cluster, &of)
            };
            case.steps.push(Step::Act(at, Action::Lie(telling)));
        }
    }

    /// Draws a lie of any member about its Nodes or Peers.
    fn telling(&mut self, cluster: &str, of: &str) -> Telling {
        let kind = *self.pick(&["nodes", "nodes", "peers"]);
        let how = match self.0.u8(0..10) {
            0 => Untruth::Empty,
            1 => Untruth::Endless {
                page: self.0.usize(0..3),
            },
            2 => Untruth::Frozen,
            3 if of != cluster => Untruth::Uids { of: of.to_owned() },
            4 if of != cluster => Untruth::Another { of: of.to_owned() },
            5 if kind == "nodes" => Untruth::Double,
            6 => Untruth::NoDeletes,
            7 => Untruth::Unasked,
            _ => Untruth::Truncated {
                percent: self.0.u8(1..100),
                counted: self.chance(50),
            },
        };
        Telling {
            cluster: cluster.to_owned(),
            kind,
            how,
            lasts: self.lasts(),
        }
    }

    /// Draws a lie of the hub about ClusterMeshes, Secrets or Leases.
    fn hub_telling(&mut self, hub: &str, of: &str, elects: bool) -> Telling {
        let kind = match elects && self.chance(50) {
            true => "leases",
            false => *self.pick(&["clustermeshes", "clustermeshes", "secrets"]),
        };
        let how = match self.0.u8(0..12) {
            at if kind == "leases" => match at % 3 {
                0 => Untruth::Empty,
                1 => Untruth::Frozen,
                _ => Untruth::Unasked,
            },
            0 | 1 => Untruth::Empty,
            2 => Untruth::Endless {
                page: self.0.usize(0..2),
            },
            3 => Untruth::NoDeletes,
            4 => Untruth::Unasked,
            5 => Untruth::Frozen,
            6 => Untruth::Uids { of: hub.to_owned() },
            7 => Untruth::Another { of: of.to_owned() },
            8 => Untruth::Double,
            _ => Untruth::Truncated {
                percent: self.0.u8(1..100),
                counted: self.chance(50),
            },
        };
        Telling {
            cluster: hub.to_owned(),
            kind,
            how,
            lasts: self.lasts(),
        }
    }

    fn lasts(&mut self) -> Lasts {
        match self.chance(50) {
            true => Lasts::Requests(self.between(1, 3)),
            false => Lasts::For(Duration::from_secs(self.between(1, 240))),
        }
    }

    fn fault(&mut self, sites: &[Site]) -> Fault {
        let cluster = self.pick(sites).name.clone();
        let pause = Duration::from_millis(self.between(1, 8_000));
        let nth = if self.chance(50) {
            self.between(1, 12)
        } else {
            self.between(1, 80)
        };
        if self.chance(35) {
            let delivery = *self.pick(&[
                Delivery::After(pause),
                Delivery::After(pause),
                Delivery::Cut,
                Delivery::Gone,
                Delivery::Skip,
            ]);
            return Fault::Event {
                cluster,
                nth,
                delivery,
            };
        }
        let refuse = |code: u16| Fate::Refuse {
            code,
            retry_after: (code == 429).then_some(2),
        };
        let fates = [
            Fate::Delay(pause),
            Fate::AnswerLate(pause),
            Fate::LoseRequest,
            Fate::LoseAnswer,
            Fate::LoseAnswer,
            refuse(409),
            refuse(410),
            refuse(429),
            refuse(500),
            refuse(503),
            Fate::Hang,
            Fate::Stale {
                behind: self.between(1, 20),
            },
        ];
        let fate = *self.pick(&fates);
        match self.chance(50) {
            true => Fault::Request { cluster, nth, fate },
            false => Fault::Write { cluster, nth, fate },
        }
    }
}
