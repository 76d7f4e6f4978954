//! A mesh of three connected clusters, and the policies planned for them.

use std::collections::{BTreeMap, BTreeSet};

use mw_api::cilium::policy::policy_object;
use mw_core::cilium::facts::PolicyCrds;
use mw_core::cilium::object::ObjectId;
use mw_core::cilium::plan::{IntentPlan, Plan};
use mw_core::cilium::world::World;
use mw_core::seen::Seen;
use serde_json::{Value, json};

use crate::apply::settle;
use crate::asked::Asked;
use crate::drawn::NAMESPACES;
use crate::fleet::{Fleet, id};

pub(crate) const CLUSTERS: [&str; 3] = ["a", "b", "c"];
/// A cluster, and the namespace it lacks.
const POOR: (&str, &str) = ("c", "shop-2");

/// Cilium names of the three clusters. No cluster has the same name and ref.
pub(crate) const NAMES: [[&str; 3]; 3] = [
    ["b", "c", "a"],
    ["east-1", "east-10", "1"],
    ["k8s", "any", "reserved-0-with-the-longest-name"],
];

/// A mesh of three clusters.
#[derive(Debug, Clone)]
pub(crate) struct Mesh {
    /// Cilium name of each cluster by ref.
    pub(crate) names: BTreeMap<&'static str, String>,
    world: World,
}

impl Mesh {
    pub(crate) fn new(names: [&'static str; 3]) -> Self {
        let names: BTreeMap<&'static str, String> =
            CLUSTERS.into_iter().zip(names.map(str::to_owned)).collect();
        let clusters: BTreeMap<&str, Value> = CLUSTERS
            .into_iter()
            .map(|of| {
                (
                    of,
                    json!({ "name": names[of], "namespaces": namespaces(of) }),
                )
            })
            .collect();
        let binding = json!({ "kind": "ClusterMeshBinding", "wasUp": true, "spec": { "clusterRefs": CLUSTERS } });
        let fleet = json!({ "options": { "allowSystemNamespaces": true }, "clusters": clusters, "objects": { "mesh": binding } });
        let fleet: Fleet = serde_json::from_value(fleet).unwrap();
        let mut world = fleet.world();
        settle(&mut world);
        Mesh { names, world }
    }

    pub(crate) fn cilium_names(&self) -> BTreeSet<String> {
        self.names.values().cloned().collect()
    }

    /// Plans new intents.
    pub(crate) fn plan(&self, intents: &[Asked]) -> Plan {
        let mut world = self.world.clone();
        for (at, intent) in intents.iter().enumerate() {
            let object = json!({
                "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": "ConnectivityIntent",
                "metadata": { "name": format!("intent-{at}"), "namespace": "net" }, "spec": intent.spec(),
            });
            let intent =
                mw_api::cilium::convert::intent("w1", &serde_json::from_value(object).unwrap());
            world.intents.insert(intent.common.id.clone(), intent);
        }
        mw_core::cilium::plan(&world)
    }

    /// Replaces the policy features of one cluster.
    pub(crate) fn set_crds(&mut self, of: &str, crds: PolicyCrds) {
        self.world.clusters.get_mut(&id(of)).unwrap().policy_crds = Seen::Known(crds);
    }
}

/// Returns the namespaces of a cluster.
pub(crate) fn namespaces(of: &str) -> Vec<&'static str> {
    NAMESPACES
        .into_iter()
        .filter(|namespace| (of, *namespace) != POOR)
        .collect()
}

/// Returns the objects that the plan creates in a cluster.
pub(crate) fn sent(plan: &Plan, to: &str) -> Vec<Value> {
    let policies = plan.targets.get(&id(to)).map(|target| &target.policies);
    policies
        .into_iter()
        .flat_map(|policies| policies.create.values())
        .map(policy_object)
        .collect()
}

pub(crate) fn planned(plan: &Plan, at: usize) -> &IntentPlan {
    &plan.intents[&ObjectId::new("w1", "net", &format!("intent-{at}"))]
}
