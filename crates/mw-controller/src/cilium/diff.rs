//! Step 4: splits the plan into single writes, in the order in which each
//! cluster may receive them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mw_api::cilium::rbac::REMOTE_USERS;
use mw_core::cilium::facts::{ConnectionSecret, PolicyKey, ServiceName};
use mw_core::cilium::object::{Common, ObjectId};
use mw_core::cilium::plan::{
    AnnotationApply, CaCreate, ElbWrite, IdentityWrite, ObjectOutcome, Plan, PolicyUpdate,
    SecretApply, TargetPlan, UsersWrite, WantedPolicy,
};
use mw_core::names::ClusterId;
use mw_core::precondition::Precondition;

use crate::cilium::certificates::ROOT;
use crate::cilium::cluster_cache::{API_SERVER, CONFIG};
use crate::cilium::engine::Engine;
use crate::cilium::record::Kind;
use crate::engine::{Offer, Offers};
use crate::writer;

/// Object that is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Config,
    Authority,
    Balancer,
    Users,
    Secret(ConnectionSecret),
    Service(ServiceName),
    Policy(PolicyKey),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Identify(IdentityWrite),
    CreateAuthority(CaCreate),
    Balance(ElbWrite),
    ListUsers(UsersWrite),
    ApplyKeys(ConnectionSecret, SecretApply),
    Annotate(ServiceName, AnnotationApply),
    CreatePolicy(WantedPolicy),
    UpdatePolicy(Box<PolicyUpdate>),
    DeletePolicy(PolicyKey, Precondition),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    pub place: Place,
    pub act: Act,
}

/// Lanes are independent; within a lane, dependencies are written first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Keys,
    /// By name alone, which a policy keeps when it moves to another namespace.
    Policy(String),
    Alone(Place),
}

impl writer::Operation for Operation {
    type Name = Place;
    type Lane = Lane;
    type Phase = u8;

    fn name(&self) -> &Place {
        &self.place
    }

    fn lane(&self) -> Lane {
        match &self.place {
            Place::Secret(_) => Lane::Keys,
            Place::Policy(key) => Lane::Policy(key.name.clone()),
            place => Lane::Alone(place.clone()),
        }
    }

    /// Agents switch to the local etcd only after KVStoreMesh fills it. A policy
    /// that replaces another is created before the other is deleted.
    fn phase(&self) -> u8 {
        match (&self.place, &self.act) {
            (Place::Secret(ConnectionSecret::ClusterMesh), _) | (_, Act::DeletePolicy(..)) => 1,
            _ => 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Config => f.write_str("ConfigMap cilium-config"),
            Place::Authority => f.write_str("Secret cilium-ca"),
            Place::Balancer => f.write_str("Service clustermesh-apiserver"),
            Place::Users => write!(f, "ConfigMap {REMOTE_USERS}"),
            Place::Secret(secret) => write!(f, "Secret {}", secret.as_str()),
            Place::Service(ServiceName { namespace, name }) => {
                write!(f, "Service {namespace}/{name}")
            }
            Place::Policy(PolicyKey {
                namespace: Some(namespace),
                name,
            }) => write!(f, "CiliumNetworkPolicy {namespace}/{name}"),
            Place::Policy(PolicyKey {
                namespace: None,
                name,
            }) => write!(f, "CiliumClusterwideNetworkPolicy {name}"),
        }
    }
}

impl Act {
    pub fn verb(&self) -> &'static str {
        match self {
            Act::ListUsers(UsersWrite { on: None, .. }) => "apply",
            Act::Identify(_) | Act::Balance(_) | Act::ListUsers(_) | Act::UpdatePolicy(_) => {
                "patch"
            }
            Act::CreateAuthority(_) | Act::CreatePolicy(_) => "create",
            Act::ApplyKeys(..) | Act::Annotate(..) => "apply",
            Act::DeletePolicy(..) => "delete",
        }
    }
}

impl Place {
    /// Returns its namespace and name; `home` is Cilium's namespace.
    pub fn object<'a>(&'a self, home: &'a str) -> (Option<&'a str>, &'a str) {
        match self {
            Place::Config => (Some(home), CONFIG),
            Place::Authority => (Some(home), ROOT),
            Place::Balancer => (Some(home), API_SERVER),
            Place::Users => (Some(home), REMOTE_USERS),
            Place::Secret(secret) => (Some(home), secret.as_str()),
            Place::Service(ServiceName { namespace, name }) => (Some(namespace), name),
            Place::Policy(PolicyKey { namespace, name }) => (namespace.as_deref(), name),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Place::Config | Place::Users => "ConfigMap",
            Place::Authority | Place::Secret(_) => "Secret",
            Place::Balancer | Place::Service(_) => "Service",
            Place::Policy(PolicyKey {
                namespace: Some(_), ..
            }) => "CiliumNetworkPolicy",
            Place::Policy(PolicyKey {
                namespace: None, ..
            }) => "CiliumClusterwideNetworkPolicy",
        }
    }
}

impl Engine {
    /// Returns the operations that are left to do, by cluster.
    pub(super) fn diff(&mut self, plan: &Plan) -> Offers<Operation> {
        let blocked = self.blocked(plan);
        let stand_for: BTreeMap<ClusterId, ClusterId> = self
            .members
            .keys()
            .filter_map(|id| Some((id.clone(), self.stands_for(id)?.clone())))
            .collect();
        let mut offers = Vec::new();
        for (id, member) in &mut self.members {
            let stands_for = stand_for.get(id);
            let target = stands_for.and_then(|cluster| plan.targets.get(cluster));
            let offered = &mut member.state.offered;
            if stands_for.is_some_and(|cluster| blocked.contains(cluster)) {
                if !offered.is_empty() || target.is_some() {
                    offered.clear();
                    offers.push((id.clone(), Offer::Postpone));
                }
                continue;
            }
            let operations = target.map(operations).unwrap_or_default();
            let writer = &member.writer;
            if operations != *offered || writer.is_outdated() || (writer.asks() && writer.is_idle())
            {
                offered.clone_from(&operations);
                offers.push((id.clone(), Offer::Replace(operations)));
            }
        }
        offers
    }

    /// Clusters whose writes must wait for an object's finalizer and its
    /// annotation of touched clusters.
    fn blocked(&self, plan: &Plan) -> BTreeSet<ClusterId> {
        let mut blocked = BTreeSet::new();
        for ((kind, id), record) in &self.records {
            let Some(touches) = touches(plan, *kind, id).filter(|_| !record.is_deleted()) else {
                continue;
            };
            let common = record.state.object.common();
            let unsaid = touches
                .iter()
                .filter(|name| !record.has_finalizer() || !common.touched.contains(name));
            let resolved = self.resolved(*kind, id);
            blocked.extend(unsaid.filter_map(|name| resolved?.cluster(name).cloned()));
        }
        blocked
    }

    /// Returns an object as the planner sees it, with its refs resolved.
    pub(super) fn resolved(&self, kind: Kind, id: &ObjectId) -> Option<&Common> {
        match kind {
            Kind::Binding => self.state.world.bindings.get(id).map(|of| &of.common),
            Kind::Service => self.state.world.services.get(id).map(|of| &of.common),
            Kind::Intent => self.state.world.intents.get(id).map(|of| &of.common),
        }
    }
}

/// Refs to record on an object before anything is written for it.
pub(super) fn touches<'a>(
    plan: &'a Plan,
    kind: Kind,
    id: &ObjectId,
) -> Option<&'a BTreeSet<String>> {
    fn of<P>(outcome: &ObjectOutcome<P>) -> &BTreeSet<String> {
        &outcome.touches
    }
    match kind {
        Kind::Binding => plan.bindings.get(id).map(|plan| of(&plan.outcome)),
        Kind::Service => plan.services.get(id).map(|plan| of(&plan.outcome)),
        Kind::Intent => plan.intents.get(id).map(|plan| of(&plan.outcome)),
    }
}

/// Lists all writes planned for a cluster.
pub fn operations(target: &TargetPlan) -> Vec<Operation> {
    let TargetPlan {
        identity,
        ca,
        elb,
        users,
        secrets,
        services,
        policies,
    } = target.clone();
    let mut operations = Vec::new();
    let mut add = |place, act| operations.push(Operation { place, act });
    identity
        .into_iter()
        .for_each(|write| add(Place::Config, Act::Identify(write)));
    ca.into_iter()
        .for_each(|create| add(Place::Authority, Act::CreateAuthority(create)));
    elb.into_iter()
        .for_each(|write| add(Place::Balancer, Act::Balance(write)));
    users
        .into_iter()
        .for_each(|write| add(Place::Users, Act::ListUsers(write)));
    // KVStoreMesh's Secret comes first.
    secrets
        .into_iter()
        .rev()
        .for_each(|(secret, apply)| add(Place::Secret(secret), Act::ApplyKeys(secret, apply)));
    services.into_iter().for_each(|(service, apply)| {
        add(
            Place::Service(service.clone()),
            Act::Annotate(service, apply),
        )
    });
    policies
        .create
        .into_iter()
        .for_each(|(key, wanted)| add(Place::Policy(key), Act::CreatePolicy(wanted)));
    policies
        .update
        .into_iter()
        .for_each(|(key, update)| add(Place::Policy(key), Act::UpdatePolicy(Box::new(update))));
    policies
        .delete
        .into_iter()
        .for_each(|(key, on)| add(Place::Policy(key.clone()), Act::DeletePolicy(key, on)));
    operations
}
