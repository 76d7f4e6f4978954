//! Plans and status of the Cilium back end, as text or data.

mod change;
pub(super) mod endpoints;
pub(super) mod report;
pub(crate) mod status;
pub(super) mod status_report;
pub(super) mod text;

use std::collections::BTreeMap;

use mw_controller::cilium::{Kind, PublishedObject};
use mw_controller::published_status::PublishedStatus;
use mw_core::cilium::object::ObjectId;
use mw_core::cilium::plan::{Condition, ObjectOutcome, Plan, Status};
use mw_core::cilium::world::World;
use mw_core::condition::READY;
use mw_core::problem::Problem;
use serde::Serialize;

use crate::input::cilium::objects::Objects;

/// A plan and its input.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) world: &'a World,
    pub(crate) objects: &'a Objects,
    /// Caveats of the plan.
    pub(crate) notes: &'a [String],
}

/// Results of reading the clusters live, by kind, namespace and name.
pub(crate) type Views = BTreeMap<(Kind, String, String), View>;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct View {
    pub(crate) ready: bool,
    pub(crate) phase: &'static str,
    pub(crate) message: String,
}

pub(crate) fn views(plan: &Plan) -> Views {
    let view = |of: Result<'_>| {
        let ready = of
            .conditions
            .iter()
            .find(|condition| condition.kind == READY);
        let message = ready.map(|ready| ready.message.clone()).unwrap_or_default();
        let view = View {
            ready: ready.is_some_and(|ready| ready.status == Status::True),
            phase: of.phase,
            message,
        };
        ((of.kind, of.id.namespace.clone(), of.id.name.clone()), view)
    };
    results(plan).into_iter().map(view).collect()
}

/// The recorded status, and the live views; these are empty without --live.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overview<'a> {
    pub(crate) published_status: &'a PublishedStatus<PublishedObject>,
    pub(crate) views: &'a Views,
}

/// Fields that the results of all kinds have in common.
#[derive(Debug)]
struct Result<'a> {
    kind: Kind,
    id: &'a ObjectId,
    phase: &'static str,
    conditions: &'a [Condition],
    problems: &'a [Problem],
}

/// Results of all objects. Bindings come first, since services and intents depend on them.
fn results(plan: &Plan) -> Vec<Result<'_>> {
    fn of<'a, P>(
        kind: Kind,
        id: &'a ObjectId,
        outcome: &'a ObjectOutcome<P>,
        phase: &'static str,
    ) -> Result<'a> {
        Result {
            kind,
            id,
            phase,
            conditions: &outcome.conditions,
            problems: &outcome.problems,
        }
    }
    let bindings = plan.bindings.iter().map(|(id, plan)| {
        of(
            Kind::Binding,
            id,
            &plan.outcome,
            plan.outcome.phase.as_str(),
        )
    });
    let services = plan.services.iter().map(|(id, plan)| {
        of(
            Kind::Service,
            id,
            &plan.outcome,
            plan.outcome.phase.as_str(),
        )
    });
    let intents = plan
        .intents
        .iter()
        .map(|(id, plan)| of(Kind::Intent, id, &plan.outcome, plan.outcome.phase.as_str()));
    bindings.chain(services).chain(intents).collect()
}
