//! Plans and status of the Cilium back end: as data, or as text for people.

mod change;
pub(super) mod report;
pub(crate) mod status;
pub(super) mod status_report;
pub(super) mod text;

use mw_core::cilium::object::ObjectId;
use mw_core::cilium::plan::{Condition, Outcome, Plan};
use mw_core::cilium::world::World;
use mw_core::problem::Problem;
use mw_operator::cilium::Kind;

use crate::input::cilium::objects::Objects;

/// A plan and what it was made from.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) world: &'a World,
    pub(crate) objects: &'a Objects,
    /// What to keep in mind about it.
    pub(crate) notes: &'a [String],
}

/// What the results of all kinds have in common.
#[derive(Debug)]
struct Result<'a> {
    kind: Kind,
    id: &'a ObjectId,
    phase: &'static str,
    conditions: &'a [Condition],
    problems: &'a [Problem],
}

/// Every object's, in the order in which they rely on each other.
fn results(plan: &Plan) -> Vec<Result<'_>> {
    fn of<'a, P>(kind: Kind, id: &'a ObjectId, outcome: &'a Outcome<P>, phase: &'static str) -> Result<'a> {
        Result { kind, id, phase, conditions: &outcome.conditions, problems: &outcome.problems }
    }
    let bindings = plan.bindings.iter().map(|(id, plan)| of(Kind::Binding, id, &plan.outcome, plan.outcome.phase.as_str()));
    let services = plan.services.iter().map(|(id, plan)| of(Kind::Service, id, &plan.outcome, plan.outcome.phase.as_str()));
    let intents = plan.intents.iter().map(|(id, plan)| of(Kind::Intent, id, &plan.outcome, plan.outcome.phase.as_str()));
    bindings.chain(services).chain(intents).collect()
}
