//! What two nodes of a mesh can't both have: a Peer name, a key. Decides who
//! keeps it.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::PublicKey;
use crate::kilo::survey::{Candidate, Passed, Skip, SkipReason, Survey};
use crate::names::{ClusterName, NodeName, PeerName};

/// One cluster's place in a contest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contestant<'a> {
    pub(super) cluster: &'a ClusterName,
    pub(super) survey: &'a Survey,
}

/// Who lost what: by position of the cluster, then by node.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub(super) struct Losers {
    names: BTreeSet<(usize, NodeName)>,
    /// Contested key to the one that holds it.
    winners: BTreeMap<PublicKey, (usize, NodeName)>,
}

/// Which existing Peers speak for a claim.
pub(super) trait Holdings {
    /// The source named by the label of an existing Peer of this mesh with that name.
    fn source_of(&self, name: &PeerName) -> Option<String>;
    /// Whether a readable target holds a Peer of this mesh with that name and key.
    fn holds(&self, name: &PeerName, key: PublicKey) -> bool;
}

/// Decides names among rivals, then keys.
pub(super) fn settle(clusters: &[Option<Contestant<'_>>], contested: &BTreeSet<PublicKey>, holdings: &dyn Holdings) -> Losers {
    let mut losers = Losers { names: settle_names(clusters, holdings), ..Losers::default() };
    if contested.is_empty() {
        return losers;
    }
    let mut claims: BTreeMap<PublicKey, Vec<(usize, &Candidate)>> = BTreeMap::new();
    for (at, contestant) in clusters.iter().enumerate() {
        let Some(contestant) = contestant else { continue };
        let verdicts = verdicts(at, contestant.survey, &losers);
        for (candidate, verdict) in contestant.survey.candidates.iter().zip(verdicts) {
            if let Ok(passed) = verdict
                && contested.contains(&passed.key)
            {
                claims.entry(passed.key).or_default().push((at, candidate));
            }
        }
    }
    for (key, rivals) in claims {
        let first = rivals.into_iter().min_by_key(|(at, c)| (!holdings.holds(&c.peer_name, key), *at, c.node.name.clone()));
        losers.winners.extend(first.map(|(at, c)| (key, (at, c.node.name.clone()))));
    }
    losers
}

/// Two clusters can make the same name when one is named like the other and
/// a `--`. Equal names inside a cluster are settled by its own order.
fn settle_names(clusters: &[Option<Contestant<'_>>], holdings: &dyn Holdings) -> BTreeSet<(usize, NodeName)> {
    let mut losers = BTreeSet::new();
    let mut shared: BTreeMap<&PeerName, Vec<(usize, &Candidate)>> = BTreeMap::new();
    for at in rivals(clusters) {
        let mut own = BTreeSet::new();
        let candidates = clusters.get(at).and_then(Option::as_ref).map(|contestant| &contestant.survey.candidates);
        for candidate in candidates.into_iter().flatten().filter(|candidate| own.insert(&candidate.peer_name)) {
            shared.entry(&candidate.peer_name).or_default().push((at, candidate));
        }
    }
    for (name, claims) in shared.into_iter().filter(|(_, claims)| claims.len() > 1) {
        let holder = holdings.source_of(name);
        let holds = |at: usize| clusters.get(at).and_then(Option::as_ref).is_some_and(|c| holder.as_deref() == Some(c.cluster.as_str()));
        let winner = claims.iter().find(|(at, _)| holds(*at)).or(claims.first()).map(|(at, _)| *at);
        losers.extend(claims.iter().filter(|(at, _)| Some(*at) != winner).map(|(at, c)| (*at, c.node.name.clone())));
    }
    losers
}

fn rivals(clusters: &[Option<Contestant<'_>>]) -> BTreeSet<usize> {
    let mut rivals = BTreeSet::new();
    let named: Vec<(usize, &str)> = clusters.iter().enumerate().filter_map(|(at, c)| Some((at, c.as_ref()?.cluster.as_str()))).collect();
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

/// The final word on each candidate, in their order.
pub(super) fn verdicts<'a>(at: usize, survey: &'a Survey, losers: &Losers) -> Vec<Result<&'a Passed, Skip>> {
    let mut names: BTreeSet<&PeerName> = BTreeSet::new();
    let mut verdicts = Vec::with_capacity(survey.candidates.len());
    let plain = losers.names.is_empty() && losers.winners.is_empty();
    for candidate in &survey.candidates {
        let me = || (at, candidate.node.name.clone());
        let verdict = if !names.insert(&candidate.peer_name) || (!plain && losers.names.contains(&me())) {
            Err(Skip::new(
                SkipReason::PeerNameDuplicate,
                format!("Peer name {} is taken by an earlier node of the mesh", candidate.peer_name),
            ))
        } else if !plain && losers.lost_key(&me(), candidate) {
            Err(Skip::new(SkipReason::PublicKeyDuplicate, "another node of the mesh holds the same public key"))
        } else {
            candidate.verdict.as_ref().map_err(Skip::clone)
        };
        verdicts.push(verdict);
    }
    verdicts
}

impl Losers {
    /// The endpoint is looked at after the key: a node that has no usable
    /// endpoint and a key that another holds is told about the key.
    fn lost_key(&self, me: &(usize, NodeName), candidate: &Candidate) -> bool {
        let key = match (&candidate.verdict, &candidate.node.key) {
            (Ok(passed), _) => passed.key,
            (Err(skip), Ok(Some(key))) if matches!(skip.reason, SkipReason::NodeNoEndpoint | SkipReason::NodeEndpointInvalid) => *key,
            _ => return false,
        };
        self.winners.get(&key).is_some_and(|winner| winner != me)
    }
}
