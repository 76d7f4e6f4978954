//! Clusters of one mesh whose Cilium is more than one minor release apart,
//! which Cilium does not support. Reported in a condition, without effect on
//! the phase.

use crate::cilium::context::Context;
use crate::cilium::membership::Mesh;
use crate::cilium::plan::{Behind, Condition, Status};
use crate::cilium::version::Version;
use crate::condition::cilium::{kind, reason};
use crate::names::ClusterId;
use crate::text::listed;

/// Limit from Cilium's docs: clusters "differ by no more than one minor
/// release".
const MOST_MINORS: u16 = 1;

/// The members with a known version, each with its ref.
fn versions<'a>(context: &Context<'_>, mesh: &Mesh<'a>) -> Vec<(&'a str, Version)> {
    let version = |id: &ClusterId| {
        context
            .world
            .clusters
            .get(id)?
            .agents
            .known()?
            .as_ref()?
            .version
    };
    mesh.members()
        .into_iter()
        .filter_map(|id| Some((mesh.ref_of(id)?, version(id)?)))
        .collect()
}

/// The number of minor releases between the oldest and the newest known
/// version; the maximum if the major version differs.
pub(super) fn minors(context: &Context<'_>, mesh: &Mesh<'_>) -> Option<u16> {
    let versions = versions(context, mesh);
    let (oldest, newest) = (
        versions.iter().map(|(_, of)| *of).min()?,
        versions.iter().map(|(_, of)| *of).max()?,
    );
    Some(oldest.minors_between(newest).unwrap_or(u16::MAX))
}

/// The members that must be upgraded, the oldest first.
pub(super) fn behind(context: &Context<'_>, mesh: &Mesh<'_>) -> Vec<Behind> {
    let versions = versions(context, mesh);
    let Some(newest) = versions.iter().map(|(_, of)| *of).max() else {
        return Vec::new();
    };
    let is_behind = |of: Version| {
        of.minors_between(newest)
            .is_none_or(|minors| minors > MOST_MINORS)
    };
    let behind = versions.into_iter().filter(|(_, of)| is_behind(*of));
    let mut behind: Vec<Behind> = behind
        .map(|(name, runs)| Behind {
            cluster: name.to_owned(),
            runs,
        })
        .collect();
    behind.sort_by_key(|of| of.runs);
    behind
}

pub(super) fn condition(
    context: &Context<'_>,
    mesh: &Mesh<'_>,
    behind: &[Behind],
) -> Option<Condition> {
    if behind.is_empty() {
        return None;
    }
    let versions = versions(context, mesh);
    let told: Vec<String> = versions
        .iter()
        .map(|(name, of)| format!("cluster {} runs Cilium {of}", context.shown(mesh, name)))
        .collect();
    let behind: Vec<String> = behind
        .iter()
        .map(|of| context.shown(mesh, &of.cluster))
        .collect();
    let message = format!(
        "{}: clusters of a mesh may differ by one minor release; upgrade {}",
        listed(&told, 20),
        listed(&behind, 20)
    );
    Some(Condition {
        kind: kind::VERSION_SKEW,
        status: Status::True,
        reason: reason::MINORS_APART,
        message,
    })
}
