//! Draws a case from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::cilium::world::DialFailure;
use mw_sim::{Delivery, Fate, Reachability};
use serde_json::{Value, json};

use crate::bed::{HUB, RESYNC};
use crate::case::{Action, Case, CiliumSite, PolicyEdit, Step, Workload};
use crate::faults::{Crash, Fault};
use crate::lies::{Attack, HOSTILE_SITES, Hostile, Lasts, Telling, Untruth, WATCHED};
use crate::object::{BINDING, INTENT, Object, SERVICE};
use crate::site::Ca;

/// Tenants with the letter of their clusters; the first one always exists.
const TENANTS: [(&str, &str); 2] = [("net", "c"), ("team", "t")];

impl Case {
    pub(crate) fn draw(seed: u64) -> Case {
        let mut dice = Dice(fastrand::Rng::with_seed(seed));
        let mut case = Case {
            seed,
            sites: Vec::new(),
            holdings: BTreeMap::new(),
            objects: Vec::new(),
            elects: dice.chance(8),
            hostile: None,
            dial_delays: dice.dial_delays(),
            steps: Vec::new(),
        };
        let tenants = if dice.chance(30) { 2 } else { 1 };
        for (namespace, letter) in TENANTS.into_iter().take(tenants) {
            dice.tenant(&mut case, namespace, letter);
        }
        dice.share(&mut case);
        dice.hostile(&mut case);
        for _ in 0..dice.between(2, 8) {
            let steps = dice.happening(&case);
            case.steps.extend(steps);
        }
        for _ in 0..dice.between(0, 8) {
            let fault = dice.fault(&case);
            case.steps.push(Step::Fault(fault));
        }
        if dice.chance(30) {
            case.steps.push(Step::Crash(Crash {
                at_write: dice.between(1, 60),
                after: dice.chance(50),
            }));
        }
        dice.lies(&mut case);
        dice.foreign_links(&mut case);
        dice.forgotten_ways(&mut case);
        dice.delay(&mut case);
        case
    }
}

pub(crate) fn binding(namespace: &str, name: &str, refs: &[&str]) -> Object {
    let refs: Vec<Value> = refs.iter().map(|name| json!({ "name": name })).collect();
    Object {
        namespace: namespace.into(),
        kind: BINDING,
        name: name.into(),
        spec: json!({ "clusterRefs": refs, "meshConfig": {} }),
    }
}

pub(crate) fn export(namespace: &str, name: &str) -> Object {
    let spec = json!({ "meshRef": { "name": "mesh" }, "selector": { "namespace": "shop", "name": "cart" } });
    Object {
        namespace: namespace.into(),
        kind: SERVICE,
        name: name.into(),
        spec,
    }
}

pub(crate) fn intent(namespace: &str, name: &str) -> Object {
    let spec = json!({
        "meshRef": { "name": "mesh" }, "action": "Allow",
        "source": { "namespace": "web", "name": "front" }, "destination": { "namespace": "shop", "name": "cart" },
        "ports": [{ "protocol": "TCP", "port": 80 }],
    });
    Object {
        namespace: namespace.into(),
        kind: INTENT,
        name: name.into(),
        spec,
    }
}

/// Adds a hostile tenant with its clusters and objects.
pub(crate) fn add_hostile(case: &mut Case, hostile: Hostile) {
    let namespace = hostile.namespace;
    for (name, id) in HOSTILE_SITES.into_iter().zip([201, 202]) {
        case.sites.push(CiliumSite {
            ca: Ca::Other,
            ..CiliumSite::new(name, id)
        });
    }
    case.objects.extend([
        binding(namespace, "mesh", &HOSTILE_SITES),
        intent(namespace, "cart"),
        export(namespace, "cart"),
    ]);
    let sites = HOSTILE_SITES.map(str::to_owned);
    case.holdings
        .insert(namespace.to_owned(), BTreeSet::from(sites));
    case.hostile = Some(hostile);
}

fn honest_sites(case: &Case) -> impl Iterator<Item = &CiliumSite> {
    case.sites
        .iter()
        .filter(|site| !HOSTILE_SITES.contains(&site.name.as_str()))
}

/// Clusters of the first tenant that holds credentials of this one.
fn neighbours<'a>(case: &'a Case, site: &str) -> impl Iterator<Item = &'a String> {
    let holds = |sites: &&BTreeSet<String>| sites.contains(site);
    case.holdings.values().find(holds).into_iter().flatten()
}

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

    fn dial_delays(&mut self) -> Vec<Duration> {
        let some = (0..self.between(0, 12))
            .map(|_| Duration::from_millis(self.between(0, 8_000)))
            .collect::<Vec<_>>();
        some.into_iter()
            .chain([Duration::from_millis(20)])
            .collect()
    }

    fn tenant(&mut self, case: &mut Case, namespace: &str, letter: &str) {
        let first = u32::try_from(case.sites.len()).unwrap() + 1;
        let count = u32::try_from(if letter == "c" { self.between(2, 4) } else { 2 }).unwrap();
        let mut sites: Vec<CiliumSite> = (0..count)
            .map(|at| CiliumSite::new(&format!("{letter}{}", at + 1), first + at))
            .collect();
        for (at, site) in sites.iter_mut().enumerate() {
            site.ca = if self.chance(20) {
                Ca::Other
            } else {
                Ca::Common
            };
            site.kvstoremesh = self.chance(70);
            site.named = self.chance(85);
            // One cluster must have the CA that is copied to the others.
            site.has_ca = at == 0 || site.ca == Ca::Other || self.chance(85);
            site.has_lab = self.chance(60);
            site.services.retain(|_| self.chance(85));
        }
        if sites[0].ca == Ca::Other {
            sites.iter_mut().for_each(|site| site.has_ca = true);
        }
        let names: Vec<String> = sites.iter().map(|site| site.name.clone()).collect();
        let refs: Vec<&str> = names.iter().map(String::as_str).collect();
        case.objects.push(binding(namespace, "mesh", &refs));
        if refs.len() > 2 && self.chance(30) {
            case.objects
                .push(binding(namespace, "pair", &refs[refs.len() - 2..]));
        }
        if self.chance(70) {
            let mut object = export(namespace, "cart");
            object.spec = self.export_spec(&names);
            case.objects.push(object);
        }
        if self.chance(70) {
            let mut object = intent(namespace, "cart");
            object.spec = self.intent_spec();
            case.objects.push(object);
        }
        case.holdings.insert(
            namespace.to_owned(),
            names.into_iter().collect::<BTreeSet<_>>(),
        );
        case.sites.extend(sites);
    }

    /// Gives another tenant its own credentials for a cluster of the first.
    fn share(&mut self, case: &mut Case) {
        if case.holdings.len() < 2 || !self.chance(30) {
            return;
        }
        let shared = case.sites[0].name.clone();
        let (namespace, letter) = TENANTS[1];
        case.holdings
            .get_mut(namespace)
            .unwrap()
            .insert(shared.clone());
        let refs = [format!("{letter}1"), format!("{letter}2"), shared];
        let refs: Vec<&str> = refs.iter().map(String::as_str).collect();
        let mesh = case
            .objects
            .iter_mut()
            .find(|object| object.namespace == namespace && object.kind == BINDING);
        mesh.into_iter()
            .for_each(|mesh| mesh.spec = binding("", "", &refs).spec);
    }

    fn export_spec(&mut self, sites: &[String]) -> Value {
        let mut spec = export("", "").spec;
        if self.chance(30) {
            spec["selector"] = json!({ "namespace": "shop", "labelSelector": { "app": "cart" } });
        }
        if self.chance(20) {
            spec["targetClusters"] = json!([self.pick(sites)]);
        }
        if self.chance(30) {
            spec["shared"] = self.chance(50).into();
        }
        if self.chance(30) {
            spec["affinity"] = (*self.pick(&["local", "remote"])).into();
        }
        spec
    }

    fn intent_spec(&mut self) -> Value {
        let mut spec = intent("", "").spec;
        spec["action"] = (*self.pick(&["Allow", "Deny"])).into();
        spec["destination"]["namespace"] = (*self.pick(&["shop", "shop", "lab"])).into();
        if self.chance(20) {
            spec["policyMode"] = "Clusterwide".into();
        }
        if self.chance(30) {
            spec["ports"] = json!([]);
        }
        spec
    }

    fn hostile(&mut self, case: &mut Case) {
        if !self.chance(15) {
            return;
        }
        let namespace = *self.pick(&["a-hostile", "z-hostile"]);
        let victim = self.pick(&case.sites).name.clone();
        let attack = *self.pick(&[Attack::CopiedUid, Attack::StolenUrl]);
        let lies = (0..self.between(0, 2))
            .map(|_| Telling {
                lasts: Lasts::ForEver,
                ..self.telling("e2", &victim)
            })
            .collect();
        add_hostile(
            case,
            Hostile {
                namespace,
                attack,
                victim,
                lies,
            },
        );
    }

    fn when(&mut self) -> Duration {
        Duration::from_millis(self.between(0, 240_000))
    }

    /// Draws an event and, in most cases, its end.
    fn happening(&mut self, case: &Case) -> Vec<Step> {
        let at = self.when();
        let later = at + Duration::from_millis(self.between(100, 120_000));
        let honest: Vec<&CiliumSite> = honest_sites(case).collect();
        let of = *self.pick(&honest);
        let site = of.name.clone();
        let object = self.0.usize(0..case.objects.len());
        let name = *self.pick(&["cart", "cart-2"]);
        let place = *self.pick(&["shop", "lab"]);
        let pick = self.0.usize(0..64);
        let both =
            |first: Action, second: Action| vec![Step::Act(at, first), Step::Act(later, second)];
        let one = |action: Action| vec![Step::Act(at, action)];
        match self.0.u8(0..40) {
            0..=2 => both(Action::Delete { object }, Action::Restore { object }),
            3 | 4 => one(Action::Delete { object }),
            5..=7 => {
                let Some(spec) = self.edit(case, object) else {
                    return Vec::new();
                };
                let edit = Action::Edit { object, spec };
                if self.chance(50) {
                    one(edit)
                } else {
                    both(edit, Action::Restore { object })
                }
            }
            8 => both(
                Action::RemoveService {
                    site: site.clone(),
                    name,
                },
                Action::AddService { site, name },
            ),
            9 => one(if self.chance(50) {
                Action::RemoveService { site, name }
            } else {
                Action::AddService { site, name }
            }),
            10 => both(
                Action::RemoveNamespace {
                    site: site.clone(),
                    name: place,
                },
                Action::AddNamespace { site, name: place },
            ),
            11 => one(if self.chance(40) {
                Action::RemoveNamespace { site, name: place }
            } else {
                Action::AddNamespace { site, name: place }
            }),
            12 | 13 => one(Action::RenewCredentials {
                site,
                revoke: self.chance(70),
            }),
            14 => one(Action::ReplaceSecret { site }),
            15 => both(
                Action::BreakSecret { site: site.clone() },
                Action::RestoreSecret { site },
            ),
            16 => both(
                Action::DeleteSecret { site: site.clone() },
                Action::RestoreSecret { site },
            ),
            17 => {
                let others: Vec<&String> = neighbours(case, &site).collect();
                let to = self.pick(&others).to_string();
                both(
                    Action::SwitchSecret {
                        site: site.clone(),
                        to,
                    },
                    Action::RestoreSecret { site },
                )
            }
            18..=20 => {
                let site = if self.chance(20) {
                    HUB.to_owned()
                } else {
                    site
                };
                let link = if self.chance(50) {
                    Reachability::Stalled
                } else {
                    Reachability::Refusing
                };
                both(
                    Action::SetLink {
                        site: site.clone(),
                        link,
                    },
                    Action::SetLink {
                        site,
                        link: Reachability::Up,
                    },
                )
            }
            21 => one(Action::Lag {
                site,
                behind: self.between(1, 12),
            }),
            22 => one(Action::Compact {
                site: if self.chance(30) {
                    HUB.to_owned()
                } else {
                    site
                },
            }),
            23..=25 => one(Action::MoveAddress {
                site,
                last: self.0.u8(100..120),
            }),
            26 => {
                let ca = if self.chance(50) {
                    of.ca
                } else {
                    *self.pick(&[Ca::Common, Ca::Other])
                };
                one(Action::RenewCertificates { site, ca })
            }
            27 | 28 => {
                let failures = [
                    DialFailure::Tcp,
                    DialFailure::Tls,
                    DialFailure::Certificate,
                    DialFailure::Permission,
                ];
                let failure = Some(*self.pick(&failures));
                both(
                    Action::EtcdFails {
                        site: site.clone(),
                        failure,
                    },
                    Action::EtcdFails {
                        site,
                        failure: None,
                    },
                )
            }
            29 => one(Action::RestartCilium { site }),
            30 => {
                let which = *self.pick(&[Workload::Agents, Workload::ApiServer]);
                both(
                    Action::RemoveWorkload {
                        site: site.clone(),
                        which,
                    },
                    Action::AddWorkload { site, which },
                )
            }
            31 | 32 => {
                let how = *self.pick(&[
                    PolicyEdit::Delete,
                    PolicyEdit::Spec,
                    PolicyEdit::StripLabels,
                ]);
                one(Action::EditPolicy { site, how })
            }
            33 => one(Action::EditAnnotation {
                site,
                value: *self.pick(&[None, Some("false"), Some("true")]),
            }),
            34 => one(Action::EditKey {
                site,
                pick,
                removes: self.chance(50),
            }),
            35 => one(Action::ForeignKey { site }),
            36 => both(Action::StartSecond, Action::StopSecond),
            37 => one(Action::JumpClock {
                seconds: self.0.i64(-300..=300),
            }),
            _ => one(Action::Restart),
        }
    }

    fn edit(&mut self, case: &Case, object: usize) -> Option<Value> {
        let of = &case.objects[object];
        let sites: Vec<String> = case.holdings[&of.namespace].iter().cloned().collect();
        match of.kind {
            SERVICE => Some(self.export_spec(&sites)),
            INTENT => Some(self.intent_spec()),
            _ if sites.len() < 3 => None,
            _ => {
                let left = self.pick(&sites).clone();
                let refs: Vec<&str> = sites
                    .iter()
                    .map(String::as_str)
                    .filter(|site| *site != left)
                    .collect();
                Some(binding("", "", &refs).spec)
            }
        }
    }

    fn lies(&mut self, case: &mut Case) {
        if !self.chance(30) {
            return;
        }
        for _ in 0..self.between(1, 3) {
            let at = self.when();
            let telling = if self.chance(30) {
                self.hub_telling(case.elects)
            } else {
                let honest: Vec<&String> = honest_sites(case).map(|site| &site.name).collect();
                let cluster = (*self.pick(&honest)).clone();
                let known: Vec<&String> = neighbours(case, &cluster).collect();
                let of = (*self.pick(&known)).clone();
                self.telling(&cluster, &of)
            };
            case.steps.push(Step::Act(at, Action::Lie(telling)));
        }
    }

    fn foreign_links(&mut self, case: &mut Case) {
        if !self.chance(20) {
            return;
        }
        for _ in 0..self.between(1, 2) {
            let at = self.when();
            let net: Vec<String> = case.holdings["net"].iter().cloned().collect();
            let (site, pick, works) = (
                self.pick(&net).clone(),
                self.0.usize(0..64),
                self.chance(60),
            );
            case.steps
                .push(Step::Act(at, Action::ForeignLink { site, pick, works }));
        }
    }

    /// Starts a provider while the Secret of a cluster is missing, so that it never
    /// resolves the ref.
    fn forgotten_ways(&mut self, case: &mut Case) {
        if !self.chance(15) {
            return;
        }
        let honest: Vec<&String> = honest_sites(case).map(|site| &site.name).collect();
        let site = (*self.pick(&honest)).clone();
        let (at, restart, back) = (
            self.when(),
            self.between(1_000, 90_000),
            self.between(1_000, 150_000),
        );
        let restarted = at + Duration::from_millis(restart);
        case.steps
            .push(Step::Act(at, Action::DeleteSecret { site: site.clone() }));
        case.steps.push(Step::Act(restarted, Action::Restart));
        case.steps.push(Step::Act(
            restarted + Duration::from_millis(back),
            Action::RestoreSecret { site },
        ));
    }

    /// Lets everything happen after the first full resync: a provider that starts removes
    /// less than one that runs.
    fn delay(&mut self, case: &mut Case) {
        if !self.chance(10) {
            return;
        }
        for step in &mut case.steps {
            if let Step::Act(at, _) = step {
                *at += RESYNC.mul_f64(1.2);
            }
        }
    }

    /// Draws a wrong answer that any cluster may give.
    fn telling(&mut self, cluster: &str, of: &str) -> Telling {
        let kind = *self.pick(&WATCHED);
        let how = match self.0.u8(0..9) {
            0 => Untruth::Empty,
            1 => Untruth::Endless {
                page: self.0.usize(0..3),
            },
            2 => Untruth::Frozen,
            3 if of != cluster => Untruth::Uids { of: of.to_owned() },
            4 if of != cluster => Untruth::Another { of: of.to_owned() },
            5 => Untruth::NoDeletes,
            6 => Untruth::Unasked,
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

    /// Draws a wrong answer of the hub. It may also show a copy of itself, with the
    /// same objects under other UIDs and without what the provider wrote.
    fn hub_telling(&mut self, elects: bool) -> Telling {
        let kinds = [
            "clustermeshbindings",
            "globalservices",
            "connectivityintents",
            "secrets",
            "leases",
        ];
        let kind = *self.pick(&kinds[..kinds.len() - usize::from(!elects)]);
        let how = match self.0.u8(0..10) {
            _ if kind == "leases" => self
                .pick(&[Untruth::Empty, Untruth::Frozen, Untruth::Unasked])
                .clone(),
            0 | 1 => Untruth::Empty,
            2 => Untruth::Endless {
                page: self.0.usize(0..2),
            },
            3 => Untruth::NoDeletes,
            4 => Untruth::Unasked,
            5 => Untruth::Frozen,
            6 => Untruth::Uids { of: HUB.to_owned() },
            7 => Untruth::Another { of: HUB.to_owned() },
            _ => Untruth::Truncated {
                percent: self.0.u8(1..100),
                counted: self.chance(50),
            },
        };
        Telling {
            cluster: HUB.to_owned(),
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

    fn fault(&mut self, case: &Case) -> Fault {
        let names: Vec<String> = case.sites.iter().map(|site| site.name.clone()).collect();
        let cluster = if self.chance(30) {
            HUB.to_owned()
        } else {
            self.pick(&names).clone()
        };
        let pause = Duration::from_millis(self.between(1, 8_000));
        let nth = if self.chance(50) {
            self.between(1, 40)
        } else {
            self.between(1, 160)
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
            false => Fault::Write {
                cluster,
                nth: self.between(1, 14),
                fate,
            },
        }
    }
}
