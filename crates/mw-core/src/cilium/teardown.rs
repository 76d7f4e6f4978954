//! Cleanup of a deleted object: what is left where, and when to give up on an
//! unreachable cluster. It needs no valid spec.

use std::collections::BTreeSet;

use crate::cilium::connection::wanted_by_others;
use crate::cilium::context::Context;
use crate::cilium::facts::ClusterSeen;
use crate::cilium::membership::Mesh;
use crate::cilium::object::{Binding, Common, Refusal, Resolution};
use crate::cilium::peer_file::remote_of;
use crate::cilium::plan::{BindingPlan, Condition, ObjectOutcome, Status, Teardown};
use crate::cilium::remote_users;
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::names::{CiliumName, ClusterId};
use crate::text::{listed, printable};

/// The outcome of an object that is being deleted. `remains` reports whether
/// something of it is left in a cluster; `None` if that is not known.
pub(super) fn outcome<P: Default>(
    world: &World,
    common: &Common,
    refs: &[String],
    remains: impl Fn(&ClusterId, &ClusterSeen) -> Option<bool>,
) -> ObjectOutcome<P> {
    let mut teardown = Teardown::default();
    let all: BTreeSet<&String> = refs.iter().chain(&common.touched).collect();
    for name in all {
        match waits(world, common, name, &remains) {
            None => {}
            Some(why) if is_over(world, common) => {
                _ = teardown.left_behind.insert(name.clone(), why.to_owned())
            }
            Some(_) => _ = teardown.waits_for.insert(name.clone()),
        }
    }
    let waiting: Vec<String> = teardown
        .waits_for
        .iter()
        .map(|name| printable(name, 253))
        .collect();
    let message = if waiting.is_empty() {
        String::new()
    } else {
        format!("waiting for {}", listed(&waiting, 20))
    };
    let conditions = vec![Condition {
        kind: kind::READY,
        status: Status::False,
        reason: reason::DELETING,
        message,
    }];
    ObjectOutcome {
        conditions,
        touches: common.touched.iter().cloned().collect(),
        teardown: Some(teardown),
        ..ObjectOutcome::default()
    }
}

/// The reason why a ref is not known to be clean.
fn waits(
    world: &World,
    common: &Common,
    name: &str,
    remains: impl Fn(&ClusterId, &ClusterSeen) -> Option<bool>,
) -> Option<&'static str> {
    match common.refs.get(name) {
        // A cluster that no longer belongs to this object is not cleaned up by
        // it.
        Some(
            Resolution::Gone(_) | Resolution::Revoked(_) | Resolution::Refused(Refusal::Shared),
        ) => None,
        Some(Resolution::Cluster(id)) => {
            match world.clusters.get(id).filter(|seen| seen.silent.is_none()) {
                Some(seen) => remains(id, seen)
                    .map_or(Some("the cluster can't be read"), |remains| {
                        remains.then_some("cleanup is not finished")
                    }),
                None => Some("the cluster is unreachable"),
            }
        }
        Some(
            Resolution::Pending(_)
            | Resolution::OwnerMissing(_)
            | Resolution::Refused(_)
            | Resolution::Unreachable(_),
        )
        | None => Some("the cluster can't be accessed"),
    }
}

fn is_over(world: &World, common: &Common) -> bool {
    common
        .deleting
        .is_some_and(|since| since.plus(world.options.cleanup_timeout_seconds) <= world.now)
}

/// A deleted binding waits until its keys are removed from the Secrets, except
/// those that another binding wants.
pub(super) fn binding(context: &Context<'_>, of: &Binding) -> BindingPlan {
    let outcome = outcome(context.world, &of.common, &of.spec.refs, |id, seen| {
        binding_remains(context, of, id, seen)
    });
    BindingPlan {
        outcome,
        ..BindingPlan::default()
    }
}

/// Reports whether a ref that was removed from a binding is not known to be
/// clean.
pub(super) fn binding_waits(context: &Context<'_>, of: &Binding, name: &str) -> bool {
    waits(context.world, &of.common, name, |id, seen| {
        binding_remains(context, of, id, seen)
    })
    .is_some()
}

fn binding_remains(
    context: &Context<'_>,
    of: &Binding,
    reader: &ClusterId,
    seen: &ClusterSeen,
) -> Option<bool> {
    let names: Option<BTreeSet<&str>> = of
        .spec
        .refs
        .iter()
        .chain(&of.common.touched)
        .map(|name| remote_name(context, of, name))
        .collect();
    let links = context
        .links
        .plans
        .keys()
        .filter(|link| link.reader == *reader);
    let lost = context
        .meshes
        .iter()
        .filter(|mesh| !mesh.binding.common.lost.is_empty() && mesh.involved().contains(reader));
    let others = links
        .map(|link| &link.remote)
        .chain(lost.flat_map(Mesh::involved));
    let wanted: BTreeSet<&str> = others
        .filter_map(|remote| context.identities.name(remote))
        .map(CiliumName::as_str)
        .collect();
    let of_it = |key: &str| {
        names
            .as_ref()
            .is_none_or(|names| names.contains(remote_of(key)))
            && !wanted.contains(remote_of(key))
    };
    let others = wanted_by_others(context, reader);
    let mut keys = seen
        .secrets
        .known()?
        .iter()
        .flat_map(|(name, secret)| secret.keys.iter().map(|(key, held)| (*name, key, held)));
    let users = remote_users::left_by(context, reader, seen, |cluster| of_it(cluster));
    Some(
        users
            || keys.any(|(name, key, held)| {
                held.is_ours() && of_it(key) && !others.contains(&(name, key.clone()))
            }),
    )
}

/// The Cilium name of a ref; `None` if it is not known.
fn remote_name<'a>(context: &'a Context<'_>, of: &Binding, name: &str) -> Option<&'a str> {
    context
        .identities
        .name(of.common.cluster(name)?)
        .map(CiliumName::as_str)
}
