//! Policy features read from Cilium's own CRDs, and plans for Cilium versions that lack
//! some of them.

use std::path::PathBuf;

use mw_api::cilium::policy::{CLUSTERWIDE_CRD, NAMESPACED_CRD, policy_features};
use mw_core::cilium::facts::{PolicyCrds, PolicyFeatures};
use mw_core::problem::Reason;
use mw_testbed::binaries::{cilium_crds, old_cilium_crds};
use serde_json::Value;

use crate::asked::Asked;
use crate::mesh::{CLUSTERS, planned, sent};
use crate::policies::drawn_meshes;

/// Reads the policy CRDs from a folder.
fn crds(folder: mw_testbed::Result<PathBuf>) -> Option<PolicyCrds> {
    let folder = mw_testbed::or_skip(folder)?;
    let features = |name: &str| {
        let file = folder
            .join(name.split('.').next().unwrap())
            .with_extension("yaml");
        let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(crd["metadata"]["name"], name);
        Some(policy_features(&crd))
    };
    Some(PolicyCrds {
        namespaced: features(NAMESPACED_CRD),
        clusterwide: features(CLUSTERWIDE_CRD),
    })
}

fn alike(features: PolicyFeatures) -> PolicyCrds {
    PolicyCrds {
        namespaced: Some(features),
        clusterwide: Some(features),
    }
}

#[test]
fn the_features_of_policies_are_read_from_ciliums_own_crds() {
    let (Some(old), Some(new)) = (crds(old_cilium_crds()), crds(cilium_crds())) else {
        return;
    };
    assert_eq!(
        old,
        alike(PolicyFeatures {
            default_deny: false,
            end_port: false
        })
    );
    assert_eq!(
        new,
        alike(PolicyFeatures {
            default_deny: true,
            end_port: true
        })
    );
}

/// Reports whether the intent needs a field that Cilium 1.15 would silently drop.
fn needs_more(intent: &Asked) -> bool {
    intent.deny
        || intent.isolate == Some(false)
        || intent.ports.iter().any(|ports| ports.last.is_some())
}

#[test]
fn on_cilium_1_15_what_its_crds_lack_is_refused_and_not_mutilated() {
    let Some(old) = crds(old_cilium_crds()) else {
        return;
    };
    let (mut refused, mut applied) = (0, 0);
    for (mut mesh, intents) in drawn_meshes() {
        CLUSTERS.iter().for_each(|of| mesh.set_crds(of, old));
        for intent in intents {
            let plan = mesh.plan(std::slice::from_ref(&intent));
            let policies: Vec<Value> = CLUSTERS.iter().flat_map(|of| sent(&plan, of)).collect();
            let problems = &planned(&plan, 0).outcome.problems;
            if needs_more(&intent) {
                refused += 1;
                assert_eq!(policies, Vec::<Value>::new(), "{intent:#?}");
                assert_eq!(
                    problems
                        .iter()
                        .map(|problem| problem.reason)
                        .collect::<Vec<_>>(),
                    [Reason::CiliumTooOld; 3],
                    "{intent:#?}"
                );
            } else {
                applied += 1;
                assert!(
                    problems.is_empty() && !policies.is_empty(),
                    "{problems:#?} {intent:#?}"
                );
                let text = serde_json::to_string(&policies).unwrap();
                assert!(
                    !text.contains("\"enableDefaultDeny\"") && !text.contains("\"endPort\""),
                    "{text}"
                );
            }
        }
    }
    assert!(
        refused > 100 && applied > 20,
        "{refused} refused, {applied} applied"
    );
}
