//! Marks what must be evaluated again after a source is replanned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kilo::entry::Entry;
use crate::kilo::mesh::ActiveMesh;
use crate::kilo::outcome::Act;
use crate::kilo::own_nodes::OwnNodes;
use crate::kilo::source::SourcePlan;
use crate::kilo::target::Target;
use crate::names::{ClusterId, ClusterName, PeerName};

/// Scope of a source's changes.
pub(super) enum SourceChange {
    Names(BTreeSet<PeerName>),
    Whole,
}

pub(super) fn source_change(old: Option<&SourcePlan>, new: Option<&SourcePlan>) -> SourceChange {
    let (Some(old), Some(new)) = (old, new) else {
        return SourceChange::Whole;
    };
    let same_anchor = match (&old.anchor_peer, &new.anchor_peer) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    };
    let same_anchor = same_anchor && old.anchor == new.anchor;
    if old.inner_endpoints != new.inner_endpoints || old.extras != new.extras || !same_anchor {
        return SourceChange::Whole;
    }
    let mut names = BTreeSet::new();
    differing(&mut names, &old.base, &new.base, Arc::ptr_eq);
    differing(&mut names, &old.kept, &new.kept, PartialEq::eq);
    differing(
        &mut names,
        &old.endpoint_inside,
        &new.endpoint_inside,
        PartialEq::eq,
    );
    names.extend(
        old.led_by_another
            .symmetric_difference(&new.led_by_another)
            .cloned(),
    );
    SourceChange::Names(names)
}

fn differing<T>(
    names: &mut BTreeSet<PeerName>,
    old: &BTreeMap<PeerName, T>,
    new: &BTreeMap<PeerName, T>,
    same: impl Fn(&T, &T) -> bool,
) {
    names.extend(
        old.iter()
            .filter(|(name, value)| !new.get(*name).is_some_and(|other| same(value, other)))
            .map(|(name, _)| name.clone()),
    );
    names.extend(new.keys().filter(|name| !old.contains_key(*name)).cloned());
}

pub(super) fn mark_source(
    targets: &mut BTreeMap<ClusterId, Target>,
    mesh: &ActiveMesh,
    at: (usize, usize),
    change: &SourceChange,
) {
    for member in &mesh.members {
        let Some(target) = targets.get_mut(&member.id) else {
            continue;
        };
        if target.dirt.all {
            continue;
        }
        // Pending deletes depend on the set of nodes.
        let pending = target.outcomes.iter().filter(|((_, mesh), outcome)| {
            let deletes = matches!(outcome.act, Act::Delete(_) | Act::Held(_));
            *mesh == Some(at.0) && outcome.source == Some(at.1) && deletes
        });
        let pending: Vec<PeerName> = pending.map(|((name, _), _)| name.clone()).collect();
        match change {
            SourceChange::Whole => _ = target.dirt.sources.insert(at),
            SourceChange::Names(names) => target
                .dirt
                .names
                .extend(names.iter().cloned().chain(pending)),
        }
    }
}

pub(super) fn mark_own(
    target: &mut Target,
    mesh: &ActiveMesh,
    at: usize,
    old: &OwnNodes,
    new: &OwnNodes,
) {
    let mut sources: BTreeSet<usize> = BTreeSet::new();
    for key in old.keys.symmetric_difference(&new.keys) {
        sources.extend(mesh.clusters_with_key(*key));
    }
    if old.family != new.family {
        sources.extend(0..mesh.members.len());
    }
    let named = |name: &ClusterName| mesh.position_of(name.as_str());
    sources.extend(
        old.hits
            .iter()
            .filter(|(name, hits)| new.hits.get(*name) != Some(hits))
            .filter_map(|(name, _)| named(name)),
    );
    sources.extend(
        new.hits
            .keys()
            .filter(|name| !old.hits.contains_key(*name))
            .filter_map(named),
    );
    let mut keys = BTreeSet::new();
    for (old, new) in [(&old.discovered, &new.discovered), (&old.faded, &new.faded)] {
        keys.extend(
            old.keys()
                .chain(new.keys())
                .filter(|key| old.get(*key) != new.get(*key))
                .copied(),
        );
    }
    sources.extend(keys.iter().flat_map(|key| mesh.clusters_with_key(*key)));
    if !keys.is_empty() {
        // A Peer may still have the previous key of its node.
        let holds = |entry: &Entry| entry.key().is_some_and(|key| keys.contains(&key));
        target.dirt.names.extend(
            target
                .entries
                .iter()
                .filter(|(_, entry)| holds(entry))
                .map(|(name, _)| name.clone()),
        );
    }
    target
        .dirt
        .sources
        .extend(sources.into_iter().map(|source| (at, source)));
}
