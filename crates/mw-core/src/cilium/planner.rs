//! The planner's steps in order; each step is a module of its own.

use std::collections::BTreeSet;

use crate::cilium::context::{Context, Targets};
use crate::cilium::membership::{Mesh, Reach, components, meshes, untouchable, validate};
use crate::cilium::object::Binding;
use crate::cilium::plan::{BindingPlan, Plan, TargetPlan};
use crate::cilium::world::World;
use crate::cilium::{
    balancer, binding, ca, connection, expiry, export, identity, intent, link, remote_users,
    sharing, teardown,
};
use crate::names::ClusterId;
use crate::time::Timestamp;

/// Plans everything. Pure: the same world gives the same plan.
pub fn plan(world: &World) -> Plan {
    let world = &*sharing::without_shared(world);
    let meshes = meshes(world);
    let identities = identity::identify(world, &meshes, &components(&meshes));
    let mut links = link::plan_links(world, &meshes, &identities);
    let untouchable = untouchable(world);
    connection::tell_taken(world, &meshes, &identities, &mut links, &untouchable);
    let context = Context {
        world,
        meshes,
        identities,
        links,
        untouchable,
    };
    let mut plan = Plan {
        targets: targets(&context),
        ..Plan::default()
    };
    plan.dials = context
        .links
        .plans
        .iter()
        .filter_map(|(link, of)| Some((link.clone(), of.dial.clone()?)))
        .collect();
    plan.bindings = world
        .bindings
        .values()
        .map(|of| (of.common.id.clone(), binding_plan(&context, of)))
        .collect();
    plan.services = export::plan(&context, &plan.bindings, &mut plan.targets);
    plan.intents = intent::plan(&context, &plan.bindings, &mut plan.targets);
    plan.targets.retain(|_, target| !target.is_empty());
    plan.recheck_at = recheck_at(&context);
    plan
}

/// The writes of all bindings, by target.
fn targets(context: &Context<'_>) -> Targets {
    let Context {
        world,
        meshes,
        identities,
        links,
        untouchable,
    } = context;
    let mut targets = Targets::new();
    for (id, write) in &identities.writes {
        at(&mut targets, id).identity = Some(write.clone());
    }
    for (id, create) in ca::creations(world, meshes) {
        at(&mut targets, &id).ca = Some(create);
    }
    for (id, write) in balancer::writes(world, meshes) {
        at(&mut targets, &id).elb = Some(write);
    }
    for (id, write) in remote_users::writes(world, meshes, identities, links, untouchable) {
        at(&mut targets, &id).users = Some(write);
    }
    for (id, applies) in connection::applies(world, meshes, identities, links, untouchable) {
        at(&mut targets, &id).secrets = applies;
    }
    targets
}

pub(super) fn at<'a>(targets: &'a mut Targets, id: &ClusterId) -> &'a mut TargetPlan {
    targets.entry(id.clone()).or_default()
}

fn binding_plan(context: &Context<'_>, of: &Binding) -> BindingPlan {
    if of.common.deleting.is_some() {
        return teardown::binding(context, of);
    }
    match validate(of) {
        Ok(reach) => binding::plan(context, &Mesh { binding: of, reach }),
        Err(problems) => binding::refused(
            context,
            &Mesh {
                binding: of,
                reach: Reach::LoadBalancer,
            },
            problems,
        ),
    }
}

/// The next time at which the result changes without new observations.
fn recheck_at(context: &Context<'_>) -> Option<Timestamp> {
    let coming_up = context
        .meshes
        .iter()
        .filter_map(|mesh| binding::bring_up_ends(context, mesh));
    let timeout = context.world.options.cleanup_timeout_seconds;
    let world = context.world;
    let commons = world.bindings.values().map(|of| &of.common);
    let commons = commons
        .chain(world.services.values().map(|of| &of.common))
        .chain(world.intents.values().map(|of| &of.common));
    let cleanups = commons
        .filter_map(|of| of.deleting)
        .map(|since| since.plus(timeout));
    let moments: BTreeSet<Timestamp> = coming_up
        .chain(cleanups)
        .chain(expiry::moments(world))
        .filter(|moment| *moment > world.now)
        .collect();
    moments.first().copied()
}
