//! Peer names and keys claimed by more than one node of a mesh, and which node
//! keeps them.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::PublicKey;
use crate::kilo::peer_history::PeerHistory;
use crate::kilo::survey::{Candidate, Passed, Skip, SkipReason, Survey};
use crate::names::{ClusterName, NodeName, PeerName};

/// One cluster's entry in a conflict.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimant<'a> {
    pub(super) cluster: &'a ClusterName,
    pub(super) survey: &'a Survey,
}

/// Nodes that lost a name or a key: by position of the cluster, then by node.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub(super) struct Losers {
    names: BTreeSet<(usize, NodeName)>,
    /// Contested key to the node that keeps it.
    winners: BTreeMap<PublicKey, (usize, NodeName)>,
}

/// Resolves name conflicts, then key conflicts.
pub(super) fn settle(
    clusters: &[Option<Claimant<'_>>],
    contested: &BTreeSet<PublicKey>,
    existing: &PeerHistory<'_>,
) -> Losers {
    let mut losers = Losers {
        names: settle_names(clusters, existing),
        ..Losers::default()
    };
    if contested.is_empty() {
        return losers;
    }
    let mut claims: BTreeMap<PublicKey, Vec<(usize, &Candidate)>> = BTreeMap::new();
    for (at, claimant) in clusters.iter().enumerate() {
        let Some(claimant) = claimant else { continue };
        let verdicts = verdicts(at, claimant.survey, &losers);
        for (candidate, verdict) in claimant.survey.candidates.iter().zip(verdicts) {
            if let Ok(passed) = verdict
                && contested.contains(&passed.key)
            {
                claims.entry(passed.key).or_default().push((at, candidate));
            }
        }
    }
    for (key, rivals) in claims {
        let first = rivals
            .into_iter()
            .min_by_key(|(at, c)| (!existing.holds(&c.peer_name, key), *at, c.node.name.clone()));
        losers
            .winners
            .extend(first.map(|(at, c)| (key, (at, c.node.name.clone()))));
    }
    losers
}

/// Two clusters can produce the same name if one cluster's name is a prefix of
/// the other's, followed by `--`. Equal names within a cluster are resolved by
/// its own order.
fn settle_names(
    clusters: &[Option<Claimant<'_>>],
    existing: &PeerHistory<'_>,
) -> BTreeSet<(usize, NodeName)> {
    let mut losers = BTreeSet::new();
    let mut shared: BTreeMap<&PeerName, Vec<(usize, &Candidate)>> = BTreeMap::new();
    for at in rivals(clusters) {
        let mut own = BTreeSet::new();
        let candidates = clusters
            .get(at)
            .and_then(Option::as_ref)
            .map(|claimant| &claimant.survey.candidates);
        for candidate in candidates
            .into_iter()
            .flatten()
            .filter(|candidate| own.insert(&candidate.peer_name))
        {
            shared
                .entry(&candidate.peer_name)
                .or_default()
                .push((at, candidate));
        }
    }
    for (name, claims) in shared.into_iter().filter(|(_, claims)| claims.len() > 1) {
        let holder = existing.source_of(name);
        let holds = |at: usize| {
            clusters
                .get(at)
                .and_then(Option::as_ref)
                .is_some_and(|c| holder.as_deref() == Some(c.cluster.as_str()))
        };
        let winner = claims
            .iter()
            .find(|(at, _)| holds(*at))
            .or(claims.first())
            .map(|(at, _)| *at);
        losers.extend(
            claims
                .iter()
                .filter(|(at, _)| Some(*at) != winner)
                .map(|(at, c)| (*at, c.node.name.clone())),
        );
    }
    losers
}

fn rivals(clusters: &[Option<Claimant<'_>>]) -> BTreeSet<usize> {
    let mut rivals = BTreeSet::new();
    let named: Vec<(usize, &str)> = clusters
        .iter()
        .enumerate()
        .filter_map(|(at, c)| Some((at, c.as_ref()?.cluster.as_str())))
        .collect();
    for (at, name) in named.iter().filter(|(_, name)| name.contains("--")) {
        for (split, _) in name.match_indices("--") {
            let prefix = name.get(..split).unwrap_or_default();
            if let Some((other, _)) = named.iter().find(|(_, other)| *other == prefix) {
                rivals.extend([*at, *other]);
            }
        }
    }
    rivals
}

/// The final result for each candidate, in their order.
pub(super) fn verdicts<'a>(
    at: usize,
    survey: &'a Survey,
    losers: &Losers,
) -> Vec<Result<&'a Passed, Skip>> {
    let mut names: BTreeSet<&PeerName> = BTreeSet::new();
    let mut verdicts = Vec::with_capacity(survey.candidates.len());
    let plain = losers.names.is_empty() && losers.winners.is_empty();
    for candidate in &survey.candidates {
        let me = || (at, candidate.node.name.clone());
        let verdict =
            if !names.insert(&candidate.peer_name) || (!plain && losers.names.contains(&me())) {
                Err(Skip::new(
                    SkipReason::PeerNameDuplicate,
                    format!(
                        "Peer name {} is taken by an earlier node of the mesh",
                        candidate.peer_name
                    ),
                ))
            } else if !plain && losers.lost_key(&me(), candidate) {
                Err(Skip::new(
                    SkipReason::PublicKeyDuplicate,
                    "another node of the mesh has the same public key",
                ))
            } else {
                candidate.verdict.as_ref().map_err(Skip::clone)
            };
        verdicts.push(verdict);
    }
    verdicts
}

impl Losers {
    /// The key is checked before the endpoint: a node with no usable endpoint
    /// and a key that another node has is skipped for the key.
    fn lost_key(&self, me: &(usize, NodeName), candidate: &Candidate) -> bool {
        let key = match (&candidate.verdict, &candidate.node.key) {
            (Ok(passed), _) => passed.key,
            (Err(skip), Ok(Some(key)))
                if matches!(
                    skip.reason,
                    SkipReason::NodeNoEndpoint | SkipReason::NodeEndpointInvalid
                ) =>
            {
                *key
            }
            _ => return false,
        };
        self.winners.get(&key).is_some_and(|winner| winner != me)
    }
}
