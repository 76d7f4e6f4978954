//! The planner, as a table of contents: each step is a module of its own.

use std::collections::BTreeSet;

use crate::cilium::membership::{Mesh, Reach, components, meshes, validate};
use crate::cilium::object::Binding;
use crate::cilium::plan::{BindingPlan, Plan, TargetPlan};
use crate::cilium::scene::{Scene, Targets};
use crate::cilium::world::World;
use crate::cilium::{authority, balancer, binding, connection, export, identity, intent, link, remote_users, sharing, teardown};
use crate::names::ClusterId;
use crate::seen::Seen;
use crate::time::Timestamp;

/// The pure function: what everything that was declared and seen amounts to.
pub fn plan(world: &World) -> Plan {
    let world = &*sharing::without_shared(world);
    let meshes = meshes(world);
    let identities = identity::identify(world, &meshes, &components(&meshes));
    let mut links = link::plan_links(world, &meshes, &identities);
    connection::tell_taken(world, &meshes, &identities, &mut links);
    let scene = Scene { world, meshes, identities, links };
    let mut plan = Plan { targets: targets(&scene), ..Plan::default() };
    plan.dials = scene.links.plans.iter().filter_map(|(link, of)| Some((link.clone(), of.dial.clone()?))).collect();
    plan.bindings = world.bindings.values().map(|of| (of.common.id.clone(), binding_plan(&scene, of))).collect();
    plan.services = export::plan(&scene, &plan.bindings, &mut plan.targets);
    plan.intents = intent::plan(&scene, &plan.bindings, &mut plan.targets);
    plan.targets.retain(|_, target| !target.is_empty());
    plan.recheck_at = recheck_at(&scene);
    plan
}

/// What the bindings want in every target.
fn targets(scene: &Scene<'_>) -> Targets {
    let Scene { world, meshes, identities, links } = scene;
    let mut targets = Targets::new();
    for (id, write) in &identities.writes {
        at(&mut targets, id).identity = Some(write.clone());
    }
    for (id, create) in authority::creations(world, meshes) {
        at(&mut targets, &id).ca = Some(create);
    }
    for (id, write) in balancer::writes(world, meshes) {
        at(&mut targets, &id).elb = Some(write);
    }
    for (id, write) in remote_users::writes(world, meshes, identities, links) {
        at(&mut targets, &id).users = Some(write);
    }
    for (id, applies) in connection::applies(world, meshes, identities, links) {
        at(&mut targets, &id).secrets = applies;
    }
    targets
}

pub(super) fn at<'a>(targets: &'a mut Targets, id: &ClusterId) -> &'a mut TargetPlan {
    targets.entry(id.clone()).or_default()
}

fn binding_plan(scene: &Scene<'_>, of: &Binding) -> BindingPlan {
    if of.common.deleting.is_some() {
        return teardown::binding(scene, of);
    }
    match validate(of) {
        Ok(reach) => binding::plan(scene, &Mesh { binding: of, reach }),
        Err(problems) => binding::refused(scene, &Mesh { binding: of, reach: Reach::LoadBalancer }, problems),
    }
}

/// The next moment at which time alone changes something.
fn recheck_at(scene: &Scene<'_>) -> Option<Timestamp> {
    let coming_up = scene.meshes.iter().filter_map(|mesh| binding::bring_up_ends(scene, mesh));
    let timeout = scene.world.options.cleanup_timeout_seconds;
    let world = scene.world;
    let commons = world.bindings.values().map(|of| &of.common);
    let commons = commons.chain(world.services.values().map(|of| &of.common)).chain(world.intents.values().map(|of| &of.common));
    let cleanups = commons.filter_map(|of| of.deleting).map(|since| since.plus(timeout));
    let certificates = world.clusters.values().filter_map(|seen| seen.certificates.known());
    let ends = certificates.flat_map(|of| [&of.server, &of.remote, &of.local]).filter_map(Seen::known).flatten().map(|of| of.not_after);
    let moments: BTreeSet<Timestamp> = coming_up.chain(cleanups).chain(ends).filter(|moment| *moment > world.now).collect();
    moments.first().copied()
}
