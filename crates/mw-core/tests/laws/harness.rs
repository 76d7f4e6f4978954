//! Checks a law on random fleets and counts the cases they reach: a law fails
//! if some rule was never exercised.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use mw_core::kilo::SkipReason;
use mw_core::kilo::guard::DeleteCause;
use mw_core::kilo::plan;
use mw_core::kilo::plan::{HeldChange, HeldFor, Plan};
use mw_core::kilo::planner::World;
use mw_core::problem::Reason;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::fleet::{FleetDesign, fleet};
use crate::steps::{Step, step};

/// A fleet and the steps applied to it.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) fleet: FleetDesign,
    pub(crate) steps: Vec<Step>,
}

impl Scenario {
    /// The world at the end of the story.
    pub(crate) fn world(&self) -> World {
        let mut world = self.fleet.world();
        for step in &self.steps {
            step.play(&mut world, None);
        }
        world
    }
}

pub(crate) type Verdict = Result<(), TestCaseError>;

/// Cases reached by the random fleets.
#[derive(Debug, Default)]
pub(crate) struct Reach(BTreeMap<String, usize>);

impl Reach {
    fn count(&mut self, what: impl ToString) {
        *self.0.entry(what.to_string()).or_default() += 1;
    }

    pub(crate) fn note(&mut self, plan: &Plan) {
        for (_, problem) in plan.problems() {
            self.count(problem.reason);
        }
        for mesh in plan.meshes.values() {
            for skip in mesh
                .clusters
                .values()
                .flat_map(|cluster| cluster.skipped.values())
            {
                self.count(format!("skip {}", skip.reason));
            }
            for changes in mesh.targets.values() {
                changes
                    .delete
                    .values()
                    .for_each(|delete| self.count(format!("delete {:?}", delete.cause)));
                for held in changes.held.values() {
                    match (&held.change, held.why) {
                        (HeldChange::Delete(delete), HeldFor::Deletes) => {
                            self.count(format!("held {:?}", delete.cause))
                        }
                        (change, why) => self.count(format!("{why:?}, held {}", kind(change))),
                    }
                }
                changes
                    .update
                    .values()
                    .for_each(|update| self.count(format!("update, adopts: {}", update.adopts)));
            }
        }
        for delete in plan
            .orphans
            .values()
            .flat_map(|changes| changes.delete.values())
        {
            self.count(format!("delete {:?}", delete.cause));
        }
    }

    /// Cases not reached: skip reasons, never-write rules, cases of the guard.
    fn missing(&self) -> Vec<String> {
        let skips = SkipReason::ALL
            .iter()
            .map(|reason| format!("skip {reason}"));
        let never = [
            Reason::KeyOfTarget,
            Reason::KeyTaken,
            Reason::PrefixTaken,
            Reason::PrefixOfAnotherFamily,
            Reason::PrefixOverlapsTarget,
            Reason::PrefixContainsEndpoint,
            Reason::NothingToRoute,
            Reason::EndpointInsideMesh,
            Reason::PeerNameTaken,
            Reason::DeletionHeld,
            Reason::SourceFlapping,
            Reason::SourceReplaced,
            Reason::WGIPDuplicate,
        ];
        let deletes = DeleteCause::ALL
            .iter()
            .map(|cause| format!("delete {cause:?}"));
        let held =
            [DeleteCause::NotWanted, DeleteCause::Withheld].map(|cause| format!("held {cause:?}"));
        let waits = |why: HeldFor| {
            ["create", "update", "delete"].map(|change| format!("{why:?}, held {change}"))
        };
        let waits = waits(HeldFor::Replaced)
            .into_iter()
            .chain(waits(HeldFor::Budget));
        let wanted: BTreeSet<String> = skips
            .chain(never.map(|reason| reason.to_string()))
            .chain(deletes)
            .chain(held)
            .chain(waits)
            .collect();
        wanted
            .into_iter()
            .filter(|what| !self.0.contains_key(what))
            .collect()
    }
}

fn kind(change: &HeldChange) -> &'static str {
    match change {
        HeldChange::Create(_) => "create",
        HeldChange::Update(_) => "update",
        HeldChange::Delete(_) => "delete",
    }
}

const CASES: u32 = 1500;

/// Number of fleets per law; set LAW_CASES for more, and LAW_SEED for different
/// ones.
fn runner() -> TestRunner {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let cases = number("LAW_CASES")
        .and_then(|cases| u32::try_from(cases).ok())
        .unwrap_or(CASES);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number("LAW_SEED").unwrap_or(0).to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

pub(crate) fn scenario() -> impl Strategy<Value = Scenario> {
    let steps = (any::<bool>(), prop::collection::vec(step(), 0..10));
    (fleet(), steps).prop_map(|(fleet, (settled, steps))| Scenario {
        fleet,
        steps: settled
            .then_some(Step::Apply)
            .into_iter()
            .chain(steps)
            .collect(),
    })
}

/// Checks a law on scenarios; the law gets the final world and its plan.
pub(crate) fn law(check: impl Fn(&Scenario, &World, &Plan) -> Verdict) {
    let reach = RefCell::new(Reach::default());
    let result = runner().run(&scenario(), |scenario| {
        let world = scenario.world();
        let plan = plan(world.clone());
        reach.borrow_mut().note(&plan);
        check(&scenario, &world, &plan)
    });
    if let Err(wrong) = result {
        panic!("{wrong}");
    }
    if std::env::var("LAW_SEED").is_ok() {
        // Other seeds may miss what is rare.
        return;
    }
    let missing = reach.borrow().missing();
    assert!(
        missing.is_empty(),
        "the law was never tried on: {missing:?}\nreached: {:#?}",
        reach.borrow().0
    );
}
