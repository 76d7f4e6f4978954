//! A mesh during planning: its members, their source plans, constraints as
//! targets, and which node has which key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::key::PublicKey;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::discovered::Vanished;
use crate::kilo::duplicates::{Claimant, Losers, settle};
use crate::kilo::node::Nodes;
use crate::kilo::overlap::Duplicate;
use crate::kilo::own_nodes::OwnNodes;
use crate::kilo::peer::Labels;
use crate::kilo::peer_history::PeerHistory;
use crate::kilo::roaming::Roaming;
use crate::kilo::source::{SourcePlan, SourcePlanner, keepalive};
use crate::kilo::spec::{ClusterSpec, MeshSpec, Networks};
use crate::kilo::survey::{Survey, Surveyor};
use crate::names::{ClusterId, ClusterName, MeshId, PeerName, label_value};
use crate::time::Timestamp;

/// A mesh that is reconciled.
#[derive(Debug)]
pub(super) struct ActiveMesh {
    pub(super) id: MeshId,
    pub(super) spec: MeshSpec,
    pub(super) declared: DeclaredIndex,
    /// Sorted by cluster name; the position in this list identifies a cluster.
    pub(super) members: Vec<Member>,
    pub(super) by_id: Arc<BTreeMap<ClusterId, usize>>,
    /// Networks that an anchor may have to carry.
    pub(super) wide: BTreeSet<Cidr>,
    /// Common prefix of all Peer names of this mesh; `None` if the mesh's name
    /// is so long that names are truncated.
    name_start: Option<String>,
    pub(super) duplicates: Vec<Duplicate>,
    /// Every valid key of a node of the mesh, with the positions of the
    /// clusters that have it: one entry per node.
    keys: BTreeMap<PublicKey, Vec<usize>>,
    contested: BTreeSet<PublicKey>,
    rivals: bool,
    losers: Losers,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: ClusterName,
    pub(super) id: ClusterId,
    /// Identifies the cluster across owners if proven to be the same.
    proven: ClusterId,
    pub(super) survey: Survey,
    /// `None` while its nodes are not known.
    pub(super) plan: Option<SourcePlan>,
    pub(super) own: OwnNodes,
    keys: Vec<PublicKey>,
    pub(super) labels: Arc<Labels>,
}

impl Member {
    /// The time at which to replan although nothing changed.
    pub(super) fn recheck_at(&self) -> Option<Timestamp> {
        let of_plan = self.plan.as_ref().and_then(|plan| plan.recheck_at);
        of_plan.into_iter().chain(self.own.recheck_at()).min()
    }
}

/// The clusters that the entries of a mesh refer to.
#[derive(Debug)]
pub(super) struct Clusters {
    pub(super) ids: BTreeMap<ClusterName, ClusterId>,
    pub(super) proven: BTreeMap<ClusterName, ClusterId>,
}

/// Inputs of planning a source, besides its nodes.
#[derive(Clone, Copy)]
pub(super) struct Moment<'a> {
    pub(super) now: Timestamp,
    pub(super) node_grace: u64,
    pub(super) vanished: &'a Vanished,
}

impl ActiveMesh {
    pub(super) fn new(
        id: MeshId,
        spec: MeshSpec,
        clusters: &Clusters,
        duplicates: Vec<Duplicate>,
        hub: Option<&str>,
    ) -> ActiveMesh {
        let found = |ids: &BTreeMap<ClusterName, ClusterId>, name: &ClusterName| {
            ids.get(name)
                .cloned()
                .unwrap_or_else(|| ClusterId::from(name.as_str()))
        };
        let member = |name: &ClusterName| Member {
            name: name.clone(),
            id: found(&clusters.ids, name),
            proven: found(&clusters.proven, name),
            survey: Survey::default(),
            plan: None,
            own: OwnNodes::default(),
            keys: Vec::new(),
            labels: Arc::new(labels(&id, name, hub)),
        };
        let members: Vec<Member> = spec.clusters.keys().map(member).collect();
        ActiveMesh {
            declared: DeclaredIndex::of(&spec),
            rivals: members
                .iter()
                .any(|member| member.name.as_str().contains("--")),
            wide: spec.clusters.values().flat_map(wide_networks).collect(),
            name_start: name_start(&id.name, &members),
            by_id: Arc::new(
                members
                    .iter()
                    .enumerate()
                    .map(|(at, member)| (member.id.clone(), at))
                    .collect(),
            ),
            id,
            spec,
            members,
            duplicates,
            keys: BTreeMap::new(),
            contested: BTreeSet::new(),
            losers: Losers::default(),
        }
    }

    pub(super) fn position(&self, id: &ClusterId) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    pub(super) fn position_of(&self, name: &str) -> Option<usize> {
        self.members
            .binary_search_by(|member| member.name.as_str().cmp(name))
            .ok()
    }

    pub(super) fn keepalive(&self, source: usize, target: usize) -> u16 {
        match (self.members.get(source), self.members.get(target)) {
            (Some(source), Some(target)) => keepalive(&self.spec, &source.name, &target.name),
            _ => 0,
        }
    }

    /// The older mesh that already connects this pair of clusters.
    pub(super) fn older_mesh_with(&self, source: usize, target: usize) -> Option<&MeshId> {
        let (source, target) = (
            &self.members.get(source)?.proven,
            &self.members.get(target)?.proven,
        );
        self.duplicates
            .iter()
            .find(|d| d.shared.contains(source) && d.shared.contains(target))
            .map(|d| &d.older)
    }

    /// The clusters with a node that has this key.
    pub(super) fn clusters_with_key(&self, key: PublicKey) -> &[usize] {
        self.keys.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Reports whether existing Peers can decide which node keeps a name or a
    /// key.
    pub(super) fn is_contested(&self) -> bool {
        self.rivals || !self.contested.is_empty()
    }

    /// Reports whether a Peer with one of these keys can decide which node
    /// keeps a name or a key.
    pub(super) fn may_be_settled_by(&self, keys: &BTreeSet<PublicKey>) -> bool {
        self.rivals || keys.iter().any(|key| self.contested.contains(key))
    }

    fn surveyor<'a>(&'a self, member: &'a Member) -> Option<Surveyor<'a>> {
        let spec = self.spec.clusters.get(&member.name)?;
        Some(Surveyor {
            mesh: &self.id.name,
            cluster: &member.name,
            spec,
        })
    }

    /// Reports whether another member gets the Peer of a node without an
    /// endpoint: a keepalive in any cluster applies to at least one pair.
    fn roams(
        &self,
        member: &Member,
        roaming: &Roaming<'_>,
        name: &PeerName,
        key: PublicKey,
    ) -> bool {
        self.spec.clusters.values().any(|spec| spec.keepalive > 0)
            || roaming.exists(self, member, name, key)
    }

    /// The members with a node whose survey result no longer matches the
    /// existing Peers; limited to one Peer name if given.
    pub(super) fn unsettled(&self, roaming: &Roaming<'_>, name: Option<&PeerName>) -> Vec<usize> {
        let unsettled = |at: &usize| {
            self.members.get(*at).is_some_and(|member| {
                let mut named = member
                    .survey
                    .candidates
                    .iter()
                    .filter(|candidate| name.is_none_or(|name| candidate.peer_name == *name));
                named.any(|candidate| {
                    !candidate.is_settled(&|name, key| self.roams(member, roaming, name, key))
                })
            })
        };
        let members = name.map_or_else(
            || (0..self.members.len()).collect(),
            |name| self.named_like(name),
        );
        members.into_iter().filter(unsettled).collect()
    }

    /// Surveys the nodes of all members for the first time.
    pub(super) fn survey_all(&mut self, roaming: &Roaming<'_>) {
        for position in 0..self.members.len() {
            self.survey_nodes(position, roaming);
        }
        let held = |(position, member): (usize, &Member)| {
            member
                .keys
                .iter()
                .map(|key| (*key, position))
                .collect::<Vec<_>>()
        };
        let mut holders: Vec<(PublicKey, usize)> =
            self.members.iter().enumerate().flat_map(held).collect();
        holders.sort_unstable();
        let by_key = holders.chunk_by(|one, other| one.0 == other.0);
        let by_key = by_key.filter_map(|same| {
            Some((
                same.first()?.0,
                same.iter()
                    .map(|(_, position)| *position)
                    .collect::<Vec<_>>(),
            ))
        });
        self.keys = by_key.collect();
        self.contested = self
            .keys
            .iter()
            .filter(|(_, positions)| positions.len() > 1)
            .map(|(key, _)| *key)
            .collect();
    }

    /// Surveys a member's nodes again. The member must be replanned afterwards.
    pub(super) fn survey(&mut self, position: usize, roaming: &Roaming<'_>) {
        if let Some((old, new)) = self.survey_nodes(position, roaming) {
            self.note_keys(position, &old, &new);
        }
    }

    /// Returns the keys of the member's nodes before and after.
    fn survey_nodes(
        &mut self,
        position: usize,
        roaming: &Roaming<'_>,
    ) -> Option<(Vec<PublicKey>, Vec<PublicKey>)> {
        let member = self.members.get(position)?;
        let nodes = roaming.sources.nodes(&member.id);
        let survey = match (self.surveyor(member), nodes) {
            (Some(surveyor), Some(nodes)) => {
                surveyor.survey(nodes, &member.survey, &|name, key| {
                    self.roams(member, roaming, name, key)
                })
            }
            _ => Survey::default(),
        };
        let keys = nodes
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter_map(|node| node.key.as_ref().ok().copied().flatten());
        let mut keys: Vec<PublicKey> = keys.collect();
        keys.sort_unstable();
        let member = self.members.get_mut(position)?;
        member.survey = survey;
        let old = std::mem::replace(&mut member.keys, keys.clone());
        Some((old, keys))
    }

    fn note_keys(&mut self, position: usize, old: &[PublicKey], new: &[PublicKey]) {
        for key in differing(old, new) {
            let count = new.iter().filter(|other| **other == key).count();
            let holders = self.keys.entry(key).or_default();
            holders.retain(|holder| *holder != position);
            holders.extend(std::iter::repeat_n(position, count));
            match holders.len() {
                0 => _ = (self.keys.remove(&key), self.contested.remove(&key)),
                1 => _ = self.contested.remove(&key),
                _ => _ = self.contested.insert(key),
            }
        }
    }

    /// Decides which nodes keep contested names and keys. Returns true if that
    /// changed, so that every member must be replanned.
    pub(super) fn settle(&mut self, existing: &PeerHistory<'_>) -> bool {
        let claimants: Vec<Option<Claimant<'_>>> = self
            .members
            .iter()
            .map(|member| {
                Some(Claimant {
                    cluster: &member.name,
                    survey: &member.survey,
                })
            })
            .collect();
        let losers = settle(&claimants, &self.contested, existing);
        let changed = losers != self.losers;
        self.losers = losers;
        changed
    }

    /// Plans a member as a source. Returns its previous plan.
    pub(super) fn plan(
        &mut self,
        position: usize,
        nodes: Option<&Nodes>,
        history: &PeerHistory<'_>,
        moment: Moment<'_>,
    ) -> Option<SourcePlan> {
        let (plan, own) = match (self.members.get(position), nodes) {
            (Some(member), Some(nodes)) => self
                .planned(position, member, nodes, history, moment)
                .unzip(),
            _ => (None, None),
        };
        let member = self.members.get_mut(position)?;
        member.own = own.unwrap_or_default();
        std::mem::replace(&mut member.plan, plan)
    }

    fn planned(
        &self,
        position: usize,
        member: &Member,
        nodes: &Nodes,
        history: &PeerHistory<'_>,
        moment: Moment<'_>,
    ) -> Option<(SourcePlan, OwnNodes)> {
        let nothing = BTreeMap::new();
        let planner = SourcePlanner {
            surveyor: self.surveyor(member)?,
            declared: &self.declared,
            labels: Arc::clone(&member.labels),
            nodes,
            survey: &member.survey,
            position,
            losers: &self.losers,
            history,
            takes_key: &|key| {
                (0..self.members.len())
                    .any(|at| at != position && !self.clusters_with_key(key).contains(&at))
            },
            earlier: member.plan.as_ref().map_or(&nothing, |plan| &plan.base),
            now: moment.now,
            node_grace: moment.node_grace,
        };
        let plan = planner.plan();
        let spec = planner.surveyor.spec;
        let own = OwnNodes::of(
            (&member.name, spec),
            nodes,
            &member.survey,
            &plan,
            &self.declared,
            (moment.vanished, moment.now),
        );
        Some((plan, own))
    }

    /// The member that wants a Peer of this name.
    pub(super) fn wanted_by(&self, name: &PeerName, labelled: Option<&str>) -> Option<usize> {
        let wants = |at: &usize| {
            self.members
                .get(*at)
                .and_then(|member| member.plan.as_ref())
                .is_some_and(|plan| plan.base.contains_key(name))
        };
        let labelled = labelled
            .and_then(|label| self.position_of(label))
            .filter(wants);
        labelled.or_else(|| (0..self.members.len()).find(wants))
    }

    /// Reports whether the nodes of the member with this name are not known.
    pub(super) fn is_unknown(&self, name: &str) -> bool {
        self.position_of(name)
            .and_then(|at| self.members.get(at))
            .is_some_and(|member| member.plan.is_none())
    }

    /// Reports whether a Peer of this name could belong to a member whose nodes
    /// are not known.
    pub(super) fn unknown_source_of(&self, name: &PeerName) -> bool {
        let unknown = |at: usize| {
            self.members
                .get(at)
                .is_some_and(|member| member.plan.is_none())
        };
        self.named_like(name).into_iter().any(unknown)
    }

    /// The members that a Peer of this name can belong to, by its prefix.
    pub(super) fn named_like(&self, name: &PeerName) -> Vec<usize> {
        let Some(start) = &self.name_start else {
            return (0..self.members.len()).collect();
        };
        let Some(rest) = name.as_str().strip_prefix(start.as_str()) else {
            return Vec::new();
        };
        let clusters = rest
            .match_indices("--")
            .filter_map(|(end, _)| rest.get(..end));
        clusters
            .filter_map(|cluster| self.position_of(cluster))
            .collect()
    }

    /// Common prefix of the Peer names of one member.
    pub(super) fn name_start_of(&self, cluster: &ClusterName) -> Option<String> {
        self.name_start
            .as_ref()
            .map(|start| format!("{start}{cluster}--"))
    }
}

fn labels(mesh: &MeshId, cluster: &ClusterName, hub: Option<&str>) -> Labels {
    Labels {
        mesh: Some(label_value(&mesh.name)),
        source: Some(label_value(cluster.as_str())),
        namespace: Some(label_value(&mesh.namespace)),
        hub: hub.map(str::to_owned),
    }
}

fn name_start(mesh: &str, members: &[Member]) -> Option<String> {
    let longest = members
        .iter()
        .max_by_key(|member| member.name.as_str().len())?;
    let name = PeerName::of(mesh, &longest.name, "x");
    name.as_str()
        .strip_suffix(&format!("{}--x", longest.name))
        .map(str::to_owned)
}

fn wide_networks(spec: &ClusterSpec) -> Vec<Cidr> {
    match &spec.networks {
        Networks::Typed {
            service,
            additional,
            ..
        } => service.iter().chain(additional).copied().collect(),
        Networks::Flat(list) => list.clone(),
    }
}

/// The keys whose number of occurrences differs between two sorted lists.
fn differing(old: &[PublicKey], new: &[PublicKey]) -> BTreeSet<PublicKey> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    let mut found = BTreeSet::new();
    loop {
        match (old.peek(), new.peek()) {
            (Some(one), Some(other)) if one == other => _ = (old.next(), new.next()),
            (Some(one), Some(other)) if one < other => found.extend(old.next()),
            (_, Some(_)) => found.extend(new.next()),
            (Some(_), None) => found.extend(old.next()),
            (None, None) => return found,
        }
    }
}
