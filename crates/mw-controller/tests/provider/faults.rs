//! Faults: the provider crashes before and after every single write, requests and
//! answers are lost, and clusters are unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mw_sim::{Cluster, Fate, Faults, Observer, Request, Write};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{BINDINGS, Bed, HUB, INTENTS, Kind, SERVICES, kind_path};
use crate::exports::{allow, annotations, export, furnish};
use crate::site::SYSTEM;
use crate::stories::three;

const SITES: [&str; 3] = ["a", "b", "c"];
const FOREIGN: &str = "endpoints: [somewhere]";
/// Time during which requests fail.
const TROUBLE: Duration = Duration::from_secs(60);
/// Time to converge after that.
const PATIENCE: Duration = Duration::from_secs(900);

/// A crash of the provider at its n-th write.
#[derive(Debug, Clone, Copy)]
struct Crash {
    at_write: u64,
    /// True if the write takes effect before the crash.
    after: bool,
}

struct Script {
    state: Mutex<State>,
    started: Instant,
    /// Writes of the provider and their results.
    trace: Mutex<Vec<String>>,
}

#[derive(Default)]
struct State {
    crash: Option<Crash>,
    random: Option<fastrand::Rng>,
    written: u64,
    /// True after a crash: later requests of the process have no effect.
    dead: bool,
}

impl Script {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Faults for Script {
    fn fate(&self, request: &Request) -> Fate {
        let fate = self.decide(request);
        if request.verb.writes() && request.user.is_some() {
            self.trace.lock().unwrap().push(format!(
                "{:>9.3} {request} {fate:?}",
                self.started.elapsed().as_secs_f64()
            ));
        }
        fate
    }
}

impl Script {
    fn decide(&self, request: &Request) -> Fate {
        let mut state = self.lock();
        if request.user.is_none() || state.dead {
            return if state.dead { Fate::Hang } else { Fate::Answer };
        }
        if request.verb.writes() {
            state.written += 1;
            let written = state.written;
            if let Some(crash) = state.crash.take_if(|crash| crash.at_write == written) {
                state.dead = true;
                return if crash.after {
                    Fate::AnswerLate(Duration::from_secs(1_000_000))
                } else {
                    Fate::Hang
                };
            }
        }
        if self.started.elapsed() > TROUBLE {
            return Fate::Answer;
        }
        let Some(random) = &mut state.random else {
            return Fate::Answer;
        };
        match random.u8(..100) {
            0..4 => Fate::LoseRequest,
            4..8 => Fate::LoseAnswer,
            8..10 => Fate::Hang,
            10..14 => Fate::Refuse {
                code: [409, 429, 500, 503][random.usize(..4)],
                retry_after: None,
            },
            14..20 => Fate::Delay(Duration::from_millis(random.u64(..3000))),
            _ => Fate::Answer,
        }
    }
}

/// Checks every write of the provider.
struct Witness {
    site: String,
    hub: Cluster,
    wrongs: Arc<Mutex<BTreeSet<String>>>,
}

impl Witness {
    fn object(&self, kind: Kind) -> Value {
        let name = if kind == BINDINGS { "mesh" } else { "cart" };
        self.hub
            .get(&format!("{}/{name}", kind_path(kind)))
            .map(|object| (*object).clone())
            .unwrap_or_default()
    }

    fn wrong(&self, text: String) {
        self.wrongs.lock().unwrap().insert(text);
    }
}

impl Observer for Witness {
    fn wrote(&self, write: &Write<'_>) {
        if write.user != Some("provider") {
            return;
        }
        let kind = match write.plural {
            "secrets" | "configmaps" => BINDINGS,
            "services" => SERVICES,
            "ciliumnetworkpolicies" => INTENTS,
            other => return self.wrong(format!("{} was written to {}", other, self.site)),
        };
        let object = self.object(kind);
        let touched =
            object["metadata"]["annotations"]["networking.edge-portal.eu/touched-clusters"]
                .as_str()
                .unwrap_or_default();
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty());
        if !held || !touched.split(',').any(|name| name == self.site) {
            self.wrong(format!(
                "{} {} was written on {} before that was noted: {touched:?}",
                write.verb, write.key, self.site
            ));
        }
        let keys = |value: Option<&Value>| -> BTreeMap<String, Value> {
            let data = value
                .and_then(|value| value["data"].as_object().cloned())
                .unwrap_or_default();
            data.into_iter().collect()
        };
        let (before, after) = (keys(write.before), keys(write.after));
        let deleting = object["metadata"]["deletionTimestamp"].is_string();
        for (key, value) in before {
            if key == "z" && after.get("z") != Some(&value) {
                self.wrong(format!("a key of somebody else changed in {}", write.key));
            }
            if !deleting && !after.contains_key(&key) {
                self.wrong(format!("the wanted key {key} was absent in {}", write.key));
            }
        }
    }
}

struct Report {
    written: u64,
    wrongs: Vec<String>,
    trace: String,
}

/// Creates and deletes all three kinds under the given faults.
async fn play(crash: Option<Crash>, seed: Option<u64>) -> Report {
    let mut bed = Bed::new(&three());
    let state = State {
        crash,
        random: seed.map(fastrand::Rng::with_seed),
        ..State::default()
    };
    let script = Arc::new(Script {
        state: Mutex::new(state),
        started: Instant::now(),
        trace: Mutex::default(),
    });
    let wrongs = Arc::new(Mutex::new(BTreeSet::new()));
    furnish(&bed);
    bed.patch(
        "a",
        &format!("{SYSTEM}/secrets/cilium-kvstoremesh"),
        &json!({ "stringData": { "z": FOREIGN } }),
    );
    bed.clusters
        .values()
        .for_each(|cluster| cluster.set_faults(script.clone()));
    for site in SITES {
        let witness = Witness {
            site: site.to_owned(),
            hub: bed.on(HUB).clone(),
            wrongs: wrongs.clone(),
        };
        bed.on(site).set_observer(Arc::new(witness));
    }
    bed.bind("mesh", &SITES, &json!({}));
    export(&bed);
    allow(&bed);
    bed.start();
    let phases = [
        (BINDINGS, "mesh", "Connected"),
        (SERVICES, "cart", "Exported"),
        (INTENTS, "cart", "Applied"),
    ];
    let is_up = |bed: &Bed| {
        let phase = |(kind, name, _): &(Kind, &str, &str)| {
            bed.object(*kind, name)
                .map(|object| object["status"]["phase"].clone())
        };
        let is: Vec<Value> = phases
            .iter()
            .map(|of| phase(of).unwrap_or_default())
            .collect();
        if is == phases.map(|(_, _, wanted)| Value::from(wanted)) {
            Ok(())
        } else {
            Err(format!("{is:?}"))
        }
    };
    let mut failed: Vec<String> = settle(&mut bed, &script, "all is up", is_up)
        .await
        .into_iter()
        .collect();
    let order = seed.unwrap_or_default() % 3;
    let mut all = [(BINDINGS, "mesh"), (SERVICES, "cart"), (INTENTS, "cart")];
    all.rotate_left(usize::try_from(order).unwrap());
    all.iter()
        .for_each(|(kind, name)| bed.delete(HUB, &bed.path(*kind, name)));
    let is_gone = |bed: &Bed| {
        let left: Vec<&str> = all
            .iter()
            .filter(|(kind, name)| bed.object(*kind, name).is_some())
            .map(|(kind, _)| kind.1)
            .collect();
        let show = |(kind, name): &(Kind, &str)| {
            bed.object(*kind, name)
                .map(|object| format!("{:#}", json!([object["metadata"], object["status"]])))
        };
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{left:?} are left {}",
                show(&all[0]).unwrap_or_default()
            ))
        }
    };
    failed.extend(settle(&mut bed, &script, "all is gone", is_gone).await);
    let mut wrongs: Vec<String> = wrongs
        .lock()
        .unwrap()
        .iter()
        .cloned()
        .chain(failed)
        .collect();
    for site in SITES {
        let keys: Vec<String> = ["cilium-clustermesh", "cilium-kvstoremesh"]
            .iter()
            .flat_map(|secret| bed.keys(site, secret).into_keys())
            .collect();
        let foreign = if site == "a" {
            vec!["z".to_owned()]
        } else {
            Vec::new()
        };
        if keys != foreign || annotations(&bed, site) != json!({ "own": "yes" }) {
            wrongs.push(format!(
                "something is left on {site}: {keys:?} {}",
                annotations(&bed, site)
            ));
        }
        let policies = bed
            .on(site)
            .list("/apis/cilium.io/v2/namespaces/shop/ciliumnetworkpolicies");
        if !policies.is_empty() {
            wrongs.push(format!("a policy is left on {site}"));
        }
    }
    let written = script.lock().written;
    let trace = script.trace.lock().unwrap().join("\n");
    Report {
        written,
        wrongs,
        trace,
    }
}

/// Waits until a check succeeds; restarts a provider that crashes.
async fn settle(
    bed: &mut Bed,
    script: &Script,
    what: &str,
    is: impl Fn(&Bed) -> Result<(), String>,
) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if script.lock().dead {
            bed.stop();
            script.lock().dead = false;
            bed.start();
        }
        match is(bed) {
            Ok(()) => return None,
            Err(last) if Instant::now() >= deadline => return Some(format!("{what}: {last}")),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_provider_may_die_before_and_after_every_write() {
    let calm = play(None, None).await;
    assert_eq!(calm.wrongs, [""; 0], "without a crash");
    for at_write in 1..=calm.written {
        for after in [false, true] {
            let report = play(Some(Crash { at_write, after }), None).await;
            let when = if after { "after" } else { "before" };
            assert_eq!(
                report.wrongs, [""; 0],
                "dying {when} write {at_write} of {}\n{}",
                calm.written, report.trace
            );
        }
    }
    println!("{} crash points", 2 * calm.written);
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_for_a_minute_is_mended() {
    for seed in 0..60 {
        let report = play(None, Some(seed)).await;
        assert_eq!(report.wrongs, [""; 0], "seed {seed}\n{}", report.trace);
    }
}
