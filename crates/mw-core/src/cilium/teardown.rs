//! The cleanup of a deleted object: what still stands where, and when to give
//! up on a cluster that does not answer. It needs no valid spec.

use std::collections::BTreeSet;

use crate::cilium::connection::wanted_by_others;
use crate::cilium::facts::ClusterSeen;
use crate::cilium::membership::Mesh;
use crate::cilium::object::{Binding, Common, Refusal, Resolution};
use crate::cilium::peer_file::remote_of;
use crate::cilium::plan::{BindingPlan, Condition, Outcome, Status, Teardown};
use crate::cilium::remote_users;
use crate::cilium::scene::Scene;
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::names::{CiliumName, ClusterId};
use crate::text::{listed, printable};

/// What becomes of an object while it is being deleted. `remains` says whether
/// something of it stands on a cluster; nothing where that is not known.
pub(super) fn outcome<P: Default>(
    world: &World,
    common: &Common,
    refs: &[String],
    remains: impl Fn(&ClusterId, &ClusterSeen) -> Option<bool>,
) -> Outcome<P> {
    let mut teardown = Teardown::default();
    let all: BTreeSet<&String> = refs.iter().chain(&common.touched).collect();
    for name in all {
        match waits(world, common, name, &remains) {
            None => {}
            Some(why) if is_over(world, common) => _ = teardown.left_behind.insert(name.clone(), why.to_owned()),
            Some(_) => _ = teardown.waits_for.insert(name.clone()),
        }
    }
    let waiting: Vec<String> = teardown.waits_for.iter().map(|name| printable(name, 253)).collect();
    let message = if waiting.is_empty() { String::new() } else { format!("waits for {}", listed(&waiting, 20)) };
    let conditions = vec![Condition { kind: kind::READY, status: Status::False, reason: reason::DELETING, message }];
    Outcome { conditions, touches: common.touched.iter().cloned().collect(), teardown: Some(teardown), ..Outcome::default() }
}

/// Why a ref is not known to be clean.
fn waits(world: &World, common: &Common, name: &str, remains: impl Fn(&ClusterId, &ClusterSeen) -> Option<bool>) -> Option<&'static str> {
    match common.refs.get(name) {
        // A cluster that is not this object's any more is not its to clean up.
        Some(Resolution::Gone(_) | Resolution::Revoked(_) | Resolution::Refused(Refusal::Shared)) => None,
        Some(Resolution::Cluster(id)) => match world.clusters.get(id).filter(|seen| seen.silent.is_none()) {
            Some(seen) => remains(id, seen).map_or(Some("it can't be read"), |remains| remains.then_some("it is still there")),
            None => Some("the cluster does not answer"),
        },
        Some(Resolution::Pending(_) | Resolution::OwnerMissing(_) | Resolution::Refused(_) | Resolution::Unreachable(_)) | None => {
            Some("the cluster can't be asked")
        }
    }
}

fn is_over(world: &World, common: &Common) -> bool {
    common.deleting.is_some_and(|since| since.plus(world.options.cleanup_timeout_seconds) <= world.now)
}

/// A deleted binding waits until its keys have left the Secrets, unless
/// another binding wants the same ones.
pub(super) fn binding(scene: &Scene<'_>, of: &Binding) -> BindingPlan {
    let outcome = outcome(scene.world, &of.common, &of.spec.refs, |id, seen| binding_remains(scene, of, id, seen));
    BindingPlan { outcome, ..BindingPlan::default() }
}

/// Whether a ref that left a binding is not known to be clean.
pub(super) fn binding_waits(scene: &Scene<'_>, of: &Binding, name: &str) -> bool {
    waits(scene.world, &of.common, name, |id, seen| binding_remains(scene, of, id, seen)).is_some()
}

fn binding_remains(scene: &Scene<'_>, of: &Binding, reader: &ClusterId, seen: &ClusterSeen) -> Option<bool> {
    let names: Option<BTreeSet<&str>> = of.spec.refs.iter().chain(&of.common.touched).map(|name| remote_name(scene, of, name)).collect();
    let links = scene.links.plans.keys().filter(|link| link.reader == *reader);
    let lost = scene.meshes.iter().filter(|mesh| !mesh.binding.common.lost.is_empty() && mesh.involved().contains(reader));
    let others = links.map(|link| &link.remote).chain(lost.flat_map(Mesh::involved));
    let wanted: BTreeSet<&str> = others.filter_map(|remote| scene.identities.name(remote)).map(CiliumName::as_str).collect();
    let of_it = |key: &str| names.as_ref().is_none_or(|names| names.contains(remote_of(key))) && !wanted.contains(remote_of(key));
    let others = wanted_by_others(scene, reader);
    let mut keys = seen.secrets.known()?.iter().flat_map(|(name, secret)| secret.keys.iter().map(|(key, held)| (*name, key, held)));
    let users = remote_users::left_by(scene, reader, seen, |cluster| of_it(cluster));
    Some(users || keys.any(|(name, key, held)| held.is_ours() && of_it(key) && !others.contains(&(name, key.clone()))))
}

/// The Cilium name behind a ref; nothing where it may be any.
fn remote_name<'a>(scene: &'a Scene<'_>, of: &Binding, name: &str) -> Option<&'a str> {
    scene.identities.name(of.common.cluster(name)?).map(CiliumName::as_str)
}
