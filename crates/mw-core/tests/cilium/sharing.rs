//! One cluster used by two owners, each with their own credentials: two views
//! of the same objects.

use mw_core::cilium::plan;
use mw_core::cilium::world::World;
use serde_json::json;

use crate::apply::{answer, apply};
use crate::fleet::{Fleet, id};

/// Our ref for the cluster is `a`, theirs is `x`. Both have a remote called
/// `r`.
fn fleet(their_mesh: &[&str]) -> World {
    let binding = |created: u32, refs: &[&str]| json!({ "kind": "ClusterMeshBinding", "created": created, "spec": { "clusterRefs": refs } });
    let mut theirs = binding(2, their_mesh);
    theirs["workspace"] = "w2".into();
    let export = json!({ "meshRef": { "name": "mesh" }, "selector": { "namespace": "prod", "name": "nginx" }, "shared": true });
    let mut their_export = json!({ "meshRef": { "name": "theirs" }, "selector": { "namespace": "prod", "name": "nginx" } });
    their_export["shared"] = false.into();
    let fleet: Fleet = serde_json::from_value(json!({
        "clusters": {
            "a": { "owner": "ours", "uid": "u1", "services": { "prod/nginx": {} }, "keys": { "cilium-clustermesh/zz": { "value": "Helm's", "by": ["helm"] } } },
            "b": { "owner": "ours", "name": "r", "id": "8" },
            "x": { "owner": "theirs", "uid": "u1", "sameAs": "a", "name": "a", "id": "1" },
            "z": { "owner": "theirs", "name": "r", "id": "9" },
        },
        "objects": {
            "mesh": binding(1, &["a", "b"]),
            "theirs": theirs,
            "svc": { "kind": "GlobalService", "created": 1, "spec": export },
            "their-svc": { "kind": "GlobalService", "workspace": "w2", "created": 2, "spec": their_export },
        },
    }))
    .unwrap();
    let mut world = fleet.world();
    show(&mut world, "a", "x");
    world
}

/// Makes the writes of one owner visible to the other.
fn show(world: &mut World, from: &str, to: &str) {
    let seen = world.clusters[&id(from)].clone();
    let other = world.clusters.get_mut(&id(to)).unwrap();
    (other.secrets, other.services) = (seen.secrets, seen.services);
}

/// Lets the owners write in turn until neither has anything to write.
fn settle(world: &mut World) {
    answer(&plan(world), world);
    for _ in 0..12 {
        let mut quiet = true;
        for (writer, other) in [("a", "x"), ("x", "a")] {
            let mut planned = plan(world);
            answer(&planned, world);
            planned.targets.remove(&id(other));
            quiet &= !planned.has_changes();
            apply(&planned, world);
            show(world, writer, other);
        }
        if quiet {
            return;
        }
    }
    panic!(
        "they overwrite each other without end: {:#?}",
        plan(world).targets
    );
}

fn key(world: &World, name: &str) -> Option<String> {
    let secrets = world.clusters[&id("a")].secrets.known().unwrap();
    let held = secrets.values().find_map(|secret| secret.keys.get(name))?;
    Some(String::from_utf8(held.value.expose().to_vec()).unwrap())
}

#[test]
fn the_first_of_two_values_stays_and_the_second_owner_is_told() {
    let mut world = fleet(&["x", "z"]);
    settle(&mut world);
    assert!(
        key(&world, "r").unwrap().contains("192.0.2.2"),
        "the key of b was there first"
    );
    let planned = plan(&world);
    let of = |workspace: &str| {
        let plan = planned
            .bindings
            .iter()
            .find(|(id, _)| id.workspace.as_str() == workspace)
            .unwrap()
            .1;
        plan.outcome
            .problems
            .iter()
            .map(|problem| (problem.reason.as_str(), problem.message.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("w1"), []);
    let told = of("w2");
    assert!(
        told.iter()
            .any(|(reason, text)| *reason == "KeyOwnedByOther" && text.contains("another owner")),
        "{told:?}"
    );
    assert!(
        !told
            .iter()
            .any(|(_, text)| text.contains("ours") || text.contains("w1")),
        "{told:?}"
    );
}

#[test]
fn values_that_the_other_owner_wants_stay_when_one_leaves() {
    let mut world = fleet(&["x", "z"]);
    settle(&mut world);
    let (now, gone) = (
        world.now,
        world
            .bindings
            .keys()
            .find(|id| id.workspace.as_str() == "w2")
            .unwrap()
            .clone(),
    );
    world.bindings.get_mut(&gone).unwrap().common.deleting = Some(now);
    let exports = world
        .services
        .values_mut()
        .filter(|of| of.common.id.workspace == gone.workspace);
    exports.for_each(|of| of.common.deleting = Some(now));
    settle(&mut world);
    assert!(key(&world, "r").unwrap().contains("192.0.2.2"));
    let services = world.clusters[&id("a")].services.known().unwrap();
    let annotations = &services.values().next().unwrap().annotations;
    assert_eq!(annotations["service.cilium.io/shared"].value, "true");
    let teardown = plan(&world).bindings[&gone]
        .outcome
        .teardown
        .clone()
        .unwrap();
    assert!(teardown.waits_for.is_empty(), "{teardown:?}");
}

#[test]
fn values_that_no_owner_wants_are_removed() {
    let mut world = fleet(&["x", "z"]);
    settle(&mut world);
    let now = world.now;
    world
        .bindings
        .values_mut()
        .for_each(|of| of.common.deleting = Some(now));
    world
        .services
        .values_mut()
        .for_each(|of| of.common.deleting = Some(now));
    settle(&mut world);
    assert_eq!(
        (key(&world, "r"), key(&world, "zz").as_deref()),
        (None, Some("Helm's"))
    );
    let services = world.clusters[&id("a")].services.known().unwrap();
    assert!(
        services
            .values()
            .all(|service| service.annotations.is_empty())
    );
}
