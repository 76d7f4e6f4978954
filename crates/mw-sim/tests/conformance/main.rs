//! Conformance of the simulator with a real API server.
//!
//! Each behaviour is a function that sends requests and returns its observations. It
//! runs on the simulator and on a kube-apiserver of the testbed, and the observations
//! must be equal. `--list` prints all behaviours; select one by name:
//! `cargo test -p mw-sim --test conformance -- a_merge_patch`.
//!
//! Without the server binaries, only the simulator's side runs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod applying;
mod builtins;
mod changing;
mod choices;
mod creating;
mod definitions;
mod deleting;
mod limits;
mod listing;
mod managing;
mod names;
mod nonsense;
mod patching;
mod rights;
mod sides;
mod status;
mod subject;
mod values;
mod walks;
mod watching;
mod workloads;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

use subject::Subject;

const LONGEST_BEHAVIOUR: Duration = Duration::from_secs(90);

/// A behaviour of API servers.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Subject) -> futures::future::BoxFuture<'static, Value>,
}

/// Defines `all()`, which returns these behaviours, named like their functions.
macro_rules! behaviours {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn all() -> Vec<crate::Behaviour> {
            vec![$(crate::Behaviour { name: stringify!($name), run: |subject| Box::pin($name(subject)) }),*]
        }
    };
}
pub(crate) use behaviours;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let real = if arguments.list {
        None
    } else {
        sides::Real::start()
    };
    if real.is_none() && !arguments.list {
        eprintln!("running on the simulator only: no real API server to compare with");
    }
    let all = [
        creating::all(),
        changing::all(),
        patching::all(),
        status::all(),
        deleting::all(),
        listing::all(),
        watching::all(),
        names::all(),
        values::all(),
        builtins::all(),
        definitions::all(),
        rights::all(),
        limits::all(),
        walks::all(),
        nonsense::all(),
        applying::all(),
        managing::all(),
        workloads::all(),
        choices::all(),
    ];
    let trials = all
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(index, behaviour)| trial(index, behaviour, real))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if conclusion.has_failed() {
        ExitCode::from(101)
    } else {
        ExitCode::SUCCESS
    }
}

fn trial(index: usize, behaviour: Behaviour, real: Option<&'static sides::Real>) -> Trial {
    let Behaviour { name, run } = behaviour;
    Trial::test(name, move || {
        let simulated = sides::on_simulator(index, run);
        let Some(real) = real else { return Ok(()) };
        let wanted = sides::on_real(real, index, run);
        if simulated == wanted {
            return Ok(());
        }
        let mut differences = Vec::new();
        differ("", &simulated, &wanted, &mut differences);
        Err(Failed::from(format!(
            "the simulator differs from the real server:\n{}",
            differences.join("\n")
        )))
    })
}

fn differ(path: &str, simulated: &Value, real: &Value, differences: &mut Vec<String>) {
    match (simulated, real) {
        (Value::Object(one), Value::Object(two)) => {
            let names: std::collections::BTreeSet<&String> = one.keys().chain(two.keys()).collect();
            for name in names {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(name).cloned().unwrap_or_else(|| "(absent)".into())
                };
                differ(&format!("{path}.{name}"), &of(one), &of(two), differences);
            }
        }
        (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
            for (index, (one, two)) in one.iter().zip(two).enumerate() {
                differ(&format!("{path}[{index}]"), one, two, differences);
            }
        }
        _ if simulated == real => {}
        _ => differences.push(format!(
            "{path}\n    simulated: {simulated}\n    real:      {real}"
        )),
    }
}
