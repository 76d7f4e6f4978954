//! ConfigMap clustermesh-remote-users of each remote whose etcd has users for
//! single readers: adds the users of its readers' certificates.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::connection::neighbour_names;
use crate::cilium::context::Context;
use crate::cilium::facts::{ClusterSeen, RemoteUsers};
use crate::cilium::finding::{Fault, Finding, Step};
use crate::cilium::identity::Identities;
use crate::cilium::link::Links;
use crate::cilium::membership::Mesh;
use crate::cilium::plan::UsersWrite;
use crate::cilium::sharing::{LostWays, claimants};
use crate::cilium::users_file::UsersFile;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::precondition::Precondition;
use crate::problem::Reason;

const CONFIG_MAP: &str = "ConfigMap clustermesh-remote-users";
const PREFIX: &str = "remote-";

/// The writes of each cluster that needs one.
pub(super) fn writes(
    world: &World,
    meshes: &[Mesh<'_>],
    identities: &Identities,
    links: &Links,
    untouchable: &BTreeSet<&ClusterId>,
) -> BTreeMap<ClusterId, UsersWrite> {
    let around = Around {
        world,
        meshes,
        identities,
        links,
        untouchable,
    };
    world
        .clusters
        .iter()
        .filter_map(|(target, seen)| Some((target.clone(), around.write(target, seen)?)))
        .collect()
}

/// Inputs for working out the users of a cluster.
struct Around<'a, 'm> {
    world: &'a World,
    meshes: &'m [Mesh<'m>],
    identities: &'a Identities,
    links: &'m Links,
    untouchable: &'m BTreeSet<&'m ClusterId>,
}

impl Around<'_, '_> {
    /// The write of one cluster; `None` if its users are as wanted or not known.
    fn write(&self, target: &ClusterId, seen: &ClusterSeen) -> Option<UsersWrite> {
        let users = seen.users.known().filter(|_| seen.silent.is_none())?;
        let owners = owners(self.world, target, users.as_ref());
        let meshes = meshes_of(self.meshes, &owners);
        let needed = self.needed(target);
        let Some(found) = users else {
            let awaited = seen.apiserver.known()?.as_ref()?.mounts_users && !meshes.is_empty();
            return awaited.then(|| create(needed));
        };
        let file = UsersFile::read(&found.text)?;
        let added: BTreeSet<String> = needed
            .into_iter()
            .filter(|name| !file.lists(name))
            .collect();
        let removed = self.removed(target, &file, &owners, &meshes);
        let changes = !added.is_empty() || !removed.is_empty();
        changes.then(|| UsersWrite {
            on: Some(on(found)),
            text: file.with(&added, &removed),
            added,
            removed,
        })
    }

    /// The users of the links to a cluster.
    fn needed(&self, target: &ClusterId) -> BTreeSet<String> {
        self.links
            .plans
            .iter()
            .filter(|(link, _)| link.remote == *target)
            .filter_map(|(_, plan)| plan.user.clone())
            .collect()
    }

    /// Our users that no mesh can need any more; none while that is not known.
    fn removed(
        &self,
        target: &ClusterId,
        file: &UsersFile,
        owners: &BTreeSet<&ClusterId>,
        meshes: &[&Mesh<'_>],
    ) -> BTreeSet<String> {
        if owners
            .iter()
            .any(|id| !self.world.settled.contains(*id) || self.untouchable.contains(id))
        {
            return BTreeSet::new();
        }
        let lost = LostWays::to(self.world, self.identities, target);
        let neighbours = neighbour_names(self.world, self.identities, target);
        let is_lost = |user: &str| {
            user.strip_prefix(PREFIX)
                .is_some_and(|name| !neighbours.contains(name) && lost.may_want(name))
        };
        file.ours()
            .filter(|user| !is_lost(user))
            .filter(|user| {
                !meshes
                    .iter()
                    .any(|mesh| may_use(mesh, self.identities, user))
            })
            .map(str::to_owned)
            .collect()
    }
}

/// A cluster, and the ids under which other owners know it: only those who can
/// read this object know its UID.
fn owners<'a>(
    world: &'a World,
    target: &'a ClusterId,
    found: Option<&RemoteUsers>,
) -> BTreeSet<&'a ClusterId> {
    let uid = |users: &RemoteUsers| users.uid.clone();
    let shows = |seen: &ClusterSeen| {
        found.is_some() && seen.users.known().and_then(Option::as_ref).map(uid) == found.map(uid)
    };
    let others = claimants(world, target)
        .filter(|(_, seen)| shows(seen))
        .map(|(id, _)| id);
    others.chain([target]).collect()
}

/// The meshes that one of these owners takes part in.
fn meshes_of<'m, 'a>(meshes: &'m [Mesh<'a>], owners: &BTreeSet<&ClusterId>) -> Vec<&'m Mesh<'a>> {
    meshes
        .iter()
        .filter(|mesh| mesh.involved().iter().any(|id| owners.contains(id)))
        .collect()
}

fn create(added: BTreeSet<String>) -> UsersWrite {
    let empty = UsersFile::default();
    UsersWrite {
        on: None,
        text: empty.with(&added, &BTreeSet::new()),
        added,
        removed: BTreeSet::new(),
    }
}

fn on(found: &RemoteUsers) -> Precondition {
    Precondition {
        uid: found.uid.as_str().into(),
        resource_version: found.resource_version.as_str().into(),
    }
}

/// Reports whether a user may belong to a cluster in a mesh.
fn may_use(mesh: &Mesh<'_>, identities: &Identities, user: &str) -> bool {
    let is_it = |cluster: &&ClusterId| {
        let name = identities.name(cluster);
        name.is_none_or(|name| user.strip_prefix(PREFIX) == Some(name.as_str()))
    };
    !mesh.is_known() || mesh.involved().iter().any(is_it)
}

/// Reports whether entries of ours are left that no mesh may use, for the
/// clusters selected by `is_left`.
pub(super) fn left_by(
    context: &Context<'_>,
    cluster: &ClusterId,
    seen: &ClusterSeen,
    is_left: impl Fn(&str) -> bool,
) -> bool {
    let found = seen.users.known().and_then(Option::as_ref);
    let meshes = meshes_of(&context.meshes, &owners(context.world, cluster, found));
    let unused = |user: &&str| {
        !meshes
            .iter()
            .any(|mesh| may_use(mesh, &context.identities, user))
    };
    let file = found.and_then(|found| UsersFile::read(&found.text));
    file.is_some_and(|file| {
        file.ours()
            .filter(unused)
            .filter_map(|user| user.strip_prefix(PREFIX))
            .any(is_left)
    })
}

/// Adds what the user of a link's certificate still needs. A denied dial names
/// the user; the finding is temporary while the entry is being added.
pub(super) fn explain(
    findings: &mut Vec<Finding>,
    user: &str,
    remote: &ClusterSeen,
    id: &ClusterId,
) {
    let missing = missing(user, remote, id);
    for finding in findings
        .iter_mut()
        .filter(|finding| finding.reason == Reason::DialPermission)
    {
        let state = match &missing {
            None => format!("listed in {CONFIG_MAP} there; etcd knows it after about a minute"),
            Some(_) => format!("not yet listed in {CONFIG_MAP} there"),
        };
        finding
            .text
            .push_str(&format!(" (etcd user {user}, {state})"));
        if missing
            .as_ref()
            .is_none_or(|missing| missing.fault != Fault::Permanent)
        {
            finding.fault = Fault::Waiting;
        }
    }
    findings.extend(missing);
    findings.extend(helm(user, remote, id));
}

/// The reason why a user can't be listed, or is not listed yet.
fn missing(user: &str, remote: &ClusterSeen, id: &ClusterId) -> Option<Finding> {
    let reason = Reason::RemoteUserMissing;
    let found = match (remote.users.known(), remote.users.why_unknown()) {
        (_, Some(why)) => {
            let text =
                format!("etcd user {user} may be missing: can't read {CONFIG_MAP} ({why}) in");
            let hint = "apply config/rbac/cilium-target.yaml in that cluster";
            return Some(
                Finding::waiting(Step::Keys, reason, text)
                    .hint(hint)
                    .about(id),
            );
        }
        (found, None) => found?,
    };
    let Some(found) = found else {
        let text = format!("etcd user {user} is not listed yet: {CONFIG_MAP} does not exist in");
        return Some(Finding::waiting(Step::Keys, reason, text).about(id));
    };
    match UsersFile::read(&found.text) {
        Some(file) if file.lists(user) => None,
        Some(_) => {
            let text = format!("etcd user {user} is not listed yet in {CONFIG_MAP} of");
            Some(Finding::waiting(Step::Keys, reason, text).about(id))
        }
        None => {
            let text = format!(
                "etcd user {user} is not listed and can't be added: users.yaml is not a plain list in {CONFIG_MAP} of"
            );
            let hint = format!("add to its users: {{name: {user}, role: remote}}");
            Some(
                Finding::permanent(Step::Keys, reason, text)
                    .hint(hint)
                    .about(id),
            )
        }
    }
}

/// Charts up to 1.18 render the ConfigMap from the clusters configured in Helm.
fn helm(user: &str, remote: &ClusterSeen, id: &ClusterId) -> Option<Finding> {
    let found = remote
        .users
        .known()?
        .as_ref()
        .filter(|found| found.of_helm)?;
    let file = UsersFile::read(&found.text)?;
    file.ours().find(|name| *name == user)?;
    let cluster = user.strip_prefix(PREFIX).unwrap_or(user);
    let text = format!(
        "a Helm upgrade removes etcd user {user} until it is added again: {CONFIG_MAP} is managed by Helm in"
    );
    let hint = format!("to keep it, list {cluster} in clustermesh.config.clusters of that release");
    Some(
        Finding::remark(Step::Keys, Reason::RemoteUsersOfHelm, text)
            .hint(hint)
            .about(id),
    )
}
