//! GlobalServices: the annotations of each Service in each target, as the union
//! of what all of them want, and the progress of each GlobalService.

mod status;

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::annotation::{Chosen, Export, read};
use crate::cilium::binding_dependents::{self, Unmet, Words, held_clusters};
use crate::cilium::context::{Context, Targets};
use crate::cilium::export::status::status;
use crate::cilium::facts::{ClusterSeen, Held, ServiceName, ServiceSeen};
use crate::cilium::object::{Binding, GlobalService, ObjectId};
use crate::cilium::plan::{AnnotationApply, BindingPlan, ServicePhase, ServicePlan};
use crate::cilium::planner::at;
use crate::cilium::sharing::claimants;
use crate::cilium::teardown;
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::names::ClusterId;
use crate::precondition::Precondition;
use crate::problem::{Problem, Reason};
use crate::text::quoted;

const WORDS: Words = Words {
    done: kind::EXPORTED,
    everywhere: reason::ALL_CLUSTERS_EXPORTED,
    doing: reason::EXPORTING,
};

/// A valid GlobalService.
struct Active<'a> {
    of: &'a GlobalService,
    export: Export,
    targets: Vec<&'a String>,
}

/// The wanted annotations of each Service; the oldest GlobalService decides.
type Wanted<'a> = BTreeMap<(&'a ClusterId, &'a ServiceName), BTreeMap<&'a str, &'a str>>;

pub(super) fn plan(
    context: &Context<'_>,
    bindings: &BTreeMap<ObjectId, BindingPlan>,
    targets: &mut Targets,
) -> BTreeMap<ObjectId, ServicePlan> {
    let world = context.world;
    let mut plans = BTreeMap::new();
    let mut active = Vec::new();
    for of in world
        .services
        .values()
        .filter(|of| of.common.deleting.is_none())
    {
        match activate(world, bindings, of) {
            Ok(one) => active.push(one),
            Err(unmet) => _ = plans.insert(of.common.id.clone(), stopped(of, unmet)),
        }
    }
    active.sort_by_key(|one| one.of.common.age());
    let wanted = wanted(world, &active);
    let held: BTreeSet<&ClusterId> = {
        let acted_on = |id: &ObjectId| active.iter().any(|one| one.of.common.id == *id);
        world
            .services
            .values()
            .flat_map(|of| held_clusters(&of.common, acted_on(&of.common.id)))
            .collect()
    };
    write(world, &wanted, &held, targets);
    plans.extend(active.iter().map(|one| {
        (
            one.of.common.id.clone(),
            status(context, one, &wanted, &held),
        )
    }));
    let deleted = world
        .services
        .values()
        .filter(|of| of.common.deleting.is_some());
    plans.extend(deleted.map(|of| (of.common.id.clone(), deletion(world, of, targets))));
    plans
}

fn stopped(of: &GlobalService, unmet: Unmet) -> ServicePlan {
    let outcome = binding_dependents::stopped(
        WORDS,
        &of.common,
        unmet,
        ServicePhase::Pending,
        ServicePhase::Error,
    );
    ServicePlan {
        outcome,
        ..ServicePlan::default()
    }
}

fn activate<'a>(
    world: &'a World,
    bindings: &BTreeMap<ObjectId, BindingPlan>,
    of: &'a GlobalService,
) -> Result<Active<'a>, Unmet> {
    let export = read(&of.spec, &world.options.annotation_prefixes).map_err(Unmet::Refused)?;
    let binding = binding_dependents::binding(world, bindings, &of.common, &of.spec.mesh)?;
    match unknown_targets(&of.spec.targets, binding) {
        Some(problem) => Err(Unmet::Never(problem)),
        None if of.spec.targets.is_empty() => Ok(Active {
            of,
            export,
            targets: binding.spec.refs.iter().collect(),
        }),
        None => Ok(Active {
            of,
            export,
            targets: binding
                .spec
                .refs
                .iter()
                .filter(|name| of.spec.targets.contains(name))
                .collect(),
        }),
    }
}

fn unknown_targets(targets: &[String], binding: &Binding) -> Option<Problem> {
    let unknown: Vec<String> = targets
        .iter()
        .filter(|name| !binding.spec.refs.contains(name))
        .map(|name| quoted(name))
        .collect();
    let text = format!(
        "targetClusters names {}, which is not in the mesh",
        unknown.join(", ")
    );
    let hint = "use names from the binding's clusterRefs";
    (!unknown.is_empty()).then(|| {
        Problem::new(
            Reason::UnknownTargetCluster,
            "spec.targetClusters",
            text,
            hint,
        )
    })
}

impl<'a> Active<'a> {
    fn seen(&self, world: &'a World, name: &str) -> Option<(&'a ClusterId, &'a ClusterSeen)> {
        let binding = world
            .bindings
            .get(&self.of.common.id.neighbour(&self.of.spec.mesh))?;
        let id = binding.common.cluster(name)?;
        Some((id, world.clusters.get(id)?))
    }

    /// The selected Services; `None` if they are not known.
    fn matches(&self, seen: &'a ClusterSeen) -> Option<Vec<(&'a ServiceName, &'a ServiceSeen)>> {
        let services = seen.services.known().filter(|_| seen.silent.is_none())?;
        Some(
            services
                .iter()
                .filter(|(name, service)| self.selects(name, service))
                .collect(),
        )
    }

    fn selects(&self, name: &ServiceName, service: &ServiceSeen) -> bool {
        let chosen = match &self.export.chosen {
            Chosen::Named(wanted) => name.name == *wanted,
            Chosen::Labelled(labels) => labels
                .iter()
                .all(|(key, value)| service.labels.get(key) == Some(value)),
        };
        chosen
            && name.namespace == self.export.namespace
            && !service.external_name
            && !service.deleting
    }
}

fn wanted<'a>(world: &'a World, active: &'a [Active<'a>]) -> Wanted<'a> {
    let mut wanted = Wanted::new();
    for one in active {
        for name in &one.targets {
            let Some((id, seen)) = one.seen(world, name) else {
                continue;
            };
            for (service, _) in one.matches(seen).into_iter().flatten() {
                let of_service = wanted.entry((id, service)).or_default();
                for (key, value) in &one.export.annotations {
                    of_service.entry(key).or_insert(value);
                }
            }
        }
    }
    wanted
}

/// Another owner's credentials for a cluster that may be the same.
type Claimant<'a> = (&'a ClusterId, &'a ClusterSeen);

/// The annotations that other owners of the same cluster want on a Service.
#[derive(Default)]
struct Others<'a> {
    wanted: Vec<&'a BTreeMap<&'a str, &'a str>>,
    /// True if not everything is known that one of them may want.
    unknown: bool,
}

impl<'a> Others<'a> {
    /// Owners that observe this very Service: only clients that can read it
    /// know its UID.
    fn of(
        world: &'a World,
        wanted: &'a Wanted<'a>,
        held: &BTreeSet<&ClusterId>,
        claimants: &[Claimant<'a>],
        name: &'a ServiceName,
        service: &ServiceSeen,
    ) -> Self {
        let shows = |seen: &ClusterSeen| {
            seen.services
                .known()
                .and_then(|all| all.get(name))
                .is_some_and(|other| other.uid == service.uid)
        };
        let others: Vec<&ClusterId> = claimants
            .iter()
            .filter(|(_, seen)| shows(seen))
            .map(|(id, _)| *id)
            .collect();
        Others {
            unknown: others
                .iter()
                .any(|id| !world.settled.contains(*id) || held.contains(*id)),
            wanted: others
                .iter()
                .filter_map(|id| wanted.get(&(*id, name)))
                .collect(),
        }
    }

    fn holds(&self, key: &str) -> bool {
        self.unknown || self.wanted.iter().any(|of| of.contains_key(key))
    }

    /// Reports whether one of them wants this value: the first value stays, so
    /// that two owners don't keep overwriting each other.
    fn has_taken(&self, key: &str, value: &str) -> bool {
        self.wanted.iter().any(|of| of.get(key) == Some(&value))
    }
}

/// Reports whether an annotation can be set: a different value of another
/// manager stays.
fn is_ours_to_set(service: &ServiceSeen, others: &Others<'_>, key: &str, value: &str) -> bool {
    let changeable =
        |held: &Held<String>| held.is_ours_alone() && !others.has_taken(key, &held.value);
    service
        .annotations
        .get(key)
        .is_none_or(|held| held.value == value || changeable(held))
}

fn write(world: &World, wanted: &Wanted<'_>, held: &BTreeSet<&ClusterId>, targets: &mut Targets) {
    let nothing = BTreeMap::new();
    for (id, seen) in world
        .clusters
        .iter()
        .filter(|(_, seen)| seen.silent.is_none())
    {
        let claimants: Vec<Claimant<'_>> = claimants(world, id).collect();
        let stays = !world.settled.contains(id)
            || held.contains(id)
            || may_be_anothers(world, id, &claimants);
        for (name, service) in seen.services.known().into_iter().flatten() {
            let others = Others::of(world, wanted, held, &claimants, name, service);
            let apply = apply(
                service,
                wanted.get(&(id, name)).unwrap_or(&nothing),
                &others,
                stays,
            );
            if let Some(apply) = apply {
                at(targets, id).services.insert(name.clone(), apply);
            }
        }
    }
}

/// Reports whether annotations on a cluster may belong to another owner only:
/// its Services can't be read now, it lost access, or its workspace is not
/// bound, and no known GlobalService of this owner ever wrote there.
fn may_be_anothers(world: &World, cluster: &ClusterId, claimants: &[Claimant<'_>]) -> bool {
    let mut touched = world
        .services
        .values()
        .flat_map(|of| of.common.touched_clusters());
    let unread = claimants
        .iter()
        .any(|(_, other)| other.services.known().is_none());
    (unread || is_lost(world, cluster) || world.unbound.contains(cluster))
        && !touched.any(|id| id == cluster)
}

/// Reports whether a GlobalService lost access to a cluster that may be this
/// one.
fn is_lost(world: &World, cluster: &ClusterId) -> bool {
    let may_have_led = |of: &GlobalService, uid: &str| {
        let mesh = world.bindings.get(&of.common.id.neighbour(&of.spec.mesh));
        of.common
            .may_have_led_to(mesh.map_or(&of.common.touched, |mesh| &mesh.spec.refs), uid)
    };
    world.origins.get(cluster).is_some_and(|origin| {
        world
            .services
            .values()
            .any(|of| may_have_led(of, &origin.uid))
    })
}

fn apply(
    service: &ServiceSeen,
    wanted: &BTreeMap<&str, &str>,
    others: &Others<'_>,
    stays: bool,
) -> Option<AnnotationApply> {
    let settable = wanted
        .iter()
        .filter(|(key, value)| is_ours_to_set(service, others, key, value));
    let mut annotations: BTreeMap<String, String> = settable
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let ours: BTreeMap<&String, &String> = service
        .annotations
        .iter()
        .filter(|(_, held)| held.is_ours())
        .map(|(key, held)| (key, &held.value))
        .collect();
    for (key, value) in &ours {
        // A value shared with another owner stays, even if they want a different one now.
        if stays || wanted.contains_key(key.as_str()) || others.holds(key) {
            annotations
                .entry((*key).clone())
                .or_insert_with(|| (*value).clone());
        }
    }
    let as_wanted = annotations.len() == ours.len()
        && annotations
            .iter()
            .all(|(key, value)| ours.get(key) == Some(&value));
    let removed = ours
        .keys()
        .filter(|key| !annotations.contains_key(**key))
        .map(|key| (*key).clone())
        .collect();
    let on = Precondition {
        uid: service.uid.as_str().into(),
        resource_version: service.resource_version.as_str().into(),
    };
    (!as_wanted).then_some(AnnotationApply {
        on,
        annotations,
        removed,
    })
}

fn deletion(world: &World, of: &GlobalService, targets: &Targets) -> ServicePlan {
    let remains = |id: &ClusterId, seen: &ClusterSeen| {
        seen.services.known()?;
        let pending = targets.get(id).is_some_and(|target| {
            target
                .services
                .values()
                .any(|apply| !apply.removed.is_empty())
        });
        // Nothing is removed until everything is known, so it is still there.
        Some(pending || !world.settled.contains(id))
    };
    ServicePlan {
        outcome: teardown::outcome(world, &of.common, &[], remains),
        ..ServicePlan::default()
    }
}
