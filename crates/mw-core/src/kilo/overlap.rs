//! Declared networks must be disjoint: within a cluster, within a mesh, and
//! between meshes that share a member. Decides which meshes are admitted.

use std::collections::{BTreeMap, BTreeSet};

use crate::cidr::Cidr;
use crate::kilo::spec::MeshSpec;
use crate::names::{ClusterId, ClusterName, MeshId};
use crate::problem::{Problem, Reason};
use crate::time::Timestamp;

/// A mesh to be admitted.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// The mesh in question.
    pub mesh: &'a MeshId,
    /// The creation time: the older mesh wins conflicts. `None` counts as the
    /// youngest.
    pub created: Option<Timestamp>,
    /// Its valid spec, as declared.
    pub spec: &'a MeshSpec,
    /// The spec it runs with now, and keeps if the new spec is rejected.
    pub running: Option<&'a MeshSpec>,
    /// True if only the status says that it runs; others can write the status
    /// too.
    pub recalled: bool,
    /// The physical cluster of each entry.
    pub members: BTreeMap<ClusterName, ClusterId>,
}

/// The decision on one [`Applicant`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// Problems of the new spec; empty if it is accepted.
    pub overlaps: Vec<Problem>,
    /// Pairs that an older mesh already connects: the clusters shared with it.
    pub duplicates: Vec<Duplicate>,
}

/// An older mesh that connects some of the same clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// The mesh that keeps the pairs.
    pub older: MeshId,
    /// The clusters that are in both; each pair of them is a duplicate.
    pub shared: BTreeSet<ClusterId>,
}

/// One network of one cluster of one mesh.
#[derive(Debug, Clone, Copy)]
struct Claim<'a> {
    cidr: Cidr,
    applicant: usize,
    /// True if it belongs to the running spec, false if to the new one.
    running: bool,
    cluster: &'a ClusterName,
    id: Option<&'a ClusterId>,
    index: usize,
}

/// Admits meshes from the oldest to the youngest, then by name. A mesh is
/// admitted if it is disjoint with itself and with the running or admitted
/// specs of the others.
pub fn admit(applicants: &[Applicant<'_>]) -> BTreeMap<MeshId, Admission> {
    let shared = shared_members(applicants);
    let conflicts = conflicts(&shared, &claims(applicants));
    let mut order = by_age(applicants);
    // Meshes that run according to their status go first, so that they are
    // confirmed before new ones.
    order.sort_by_key(|at| !applicants.get(*at).is_some_and(|a| a.recalled));
    let unchanged = |at: &usize| {
        applicants
            .get(*at)
            .is_some_and(|a| a.running == Some(a.spec) && !a.recalled)
    };
    let mut admitted: BTreeSet<usize> = order.iter().copied().filter(unchanged).collect();
    let mut result: BTreeMap<MeshId, Admission> = BTreeMap::new();
    for at in order.iter().copied() {
        let Some(applicant) = applicants.get(at) else {
            continue;
        };
        let mut overlaps = Vec::new();
        for (one, other) in &conflicts {
            let (own, against) = match (one.applicant == at, other.applicant == at) {
                (true, _) => (one, other),
                (false, true) => (other, one),
                _ => continue,
            };
            let inside = against.applicant == at && !against.running && !own.running;
            let stands = against.applicant != at
                && !own.running
                && against.running != admitted.contains(&against.applicant);
            if inside || stands {
                overlaps.push(overlap_problem(applicants, own, against));
            }
        }
        if unchanged(&at) {
            overlaps.clear();
        } else if overlaps.is_empty() {
            admitted.insert(at);
        }
        let duplicates = duplicates(applicants, &shared, &order, at);
        result.insert(
            applicant.mesh.clone(),
            Admission {
                overlaps,
                duplicates,
            },
        );
    }
    result
}

fn by_age(applicants: &[Applicant<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..applicants.len()).collect();
    order.sort_by_key(|at| {
        applicants
            .get(*at)
            .map(|a| (a.created.is_none(), a.created, a.mesh))
    });
    order
}

fn claims<'a>(applicants: &'a [Applicant<'a>]) -> Vec<Claim<'a>> {
    let mut claims = Vec::new();
    for (at, applicant) in applicants.iter().enumerate() {
        let specs = [
            (false, Some(applicant.spec)),
            (
                true,
                applicant
                    .running
                    .filter(|running| *running != applicant.spec),
            ),
        ];
        for (running, spec) in specs
            .into_iter()
            .filter_map(|(running, spec)| Some((running, spec?)))
        {
            for (cluster, entry) in &spec.clusters {
                let id = applicant.members.get(cluster);
                claims.extend(entry.networks.all().map(|cidr| Claim {
                    cidr,
                    applicant: at,
                    running,
                    cluster,
                    id,
                    index: entry.index,
                }));
            }
        }
    }
    claims
}

/// One pass over the sorted networks with a stack of the enclosing ones.
fn conflicts<'a>(shared: &SharedMembers, claims: &[Claim<'a>]) -> Vec<(Claim<'a>, Claim<'a>)> {
    // Small keys sort fast; wider networks come before those they contain.
    let mut order: Vec<(Cidr, u32)> = claims
        .iter()
        .zip(0..)
        .map(|(claim, at)| (claim.cidr, at))
        .collect();
    order.sort_unstable();
    let claim = |at: u32| claims.get(usize::try_from(at).ok()?);
    let mut found = Vec::new();
    let mut open: Vec<(Cidr, u32)> = Vec::new();
    for (cidr, at) in order {
        while open.last().is_some_and(|(outer, _)| !outer.contains(cidr)) {
            open.pop();
        }
        for (_, outer) in &open {
            if let (Some(outer), Some(inner)) = (claim(*outer), claim(at))
                && clash(shared, outer, inner)
            {
                found.push((*outer, *inner));
            }
        }
        open.push((cidr, at));
    }
    found
}

/// Reports whether two overlapping networks conflict: always within one mesh;
/// between two meshes with a common member, unless both belong to the same
/// cluster.
fn clash(shared: &SharedMembers, one: &Claim<'_>, other: &Claim<'_>) -> bool {
    if one.applicant == other.applicant {
        return one.running == other.running;
    }
    let same_cluster = one.id.is_some() && one.id == other.id;
    !same_cluster && shared.contains_key(&ordered(one.applicant, other.applicant))
}

/// The clusters that two meshes have in common, by their positions.
type SharedMembers = BTreeMap<(usize, usize), BTreeSet<ClusterId>>;

fn ordered(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

fn shared_members(applicants: &[Applicant<'_>]) -> SharedMembers {
    let of = |(at, applicant): (usize, &Applicant<'_>)| {
        applicant
            .members
            .values()
            .map(|id| (id.clone(), at))
            .collect::<Vec<_>>()
    };
    let mut members: Vec<(ClusterId, usize)> = applicants.iter().enumerate().flat_map(of).collect();
    members.sort_unstable();
    members.dedup();
    let mut shared = SharedMembers::new();
    for same in members.chunk_by(|one, other| one.0 == other.0) {
        for (i, (id, one)) in same.iter().enumerate() {
            for (_, other) in same.iter().skip(i + 1) {
                shared
                    .entry(ordered(*one, *other))
                    .or_default()
                    .insert(id.clone());
            }
        }
    }
    shared
}

fn duplicates(
    applicants: &[Applicant<'_>],
    shared: &SharedMembers,
    order: &[usize],
    at: usize,
) -> Vec<Duplicate> {
    let older = order.iter().take_while(|other| **other != at);
    let duplicate = |other: &usize| {
        let shared = shared
            .get(&ordered(*other, at))
            .filter(|shared| shared.len() > 1)?;
        Some(Duplicate {
            older: applicants.get(*other)?.mesh.clone(),
            shared: shared.clone(),
        })
    };
    older.filter_map(duplicate).collect()
}

fn overlap_problem(applicants: &[Applicant<'_>], own: &Claim<'_>, against: &Claim<'_>) -> Problem {
    let mesh = |claim: &Claim<'_>| {
        applicants
            .get(claim.applicant)
            .map(|a| a.mesh.to_string())
            .unwrap_or_default()
    };
    let message = format!(
        "{} of cluster {} in mesh {} overlaps {} of cluster {} in mesh {}",
        own.cidr,
        own.cluster,
        mesh(own),
        against.cidr,
        against.cluster,
        mesh(against)
    );
    let entry = applicants
        .get(own.applicant)
        .and_then(|a| a.spec.clusters.get(own.cluster));
    let place = entry
        .and_then(|entry| entry.networks.path_of(own.cidr))
        .map(|field| format!(".{field}"))
        .unwrap_or_default();
    Problem::new(
        Reason::CIDROverlap,
        format!("spec.clusters[{}]{place}", own.index),
        message,
        "networks must not overlap: change one of the two",
    )
}
