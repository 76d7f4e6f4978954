//! Policies of at least 300 generated intents, checked by Cilium.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use crate::asked::{Asked, Because, decide};
use crate::drawn;
use crate::flows::samples;
use crate::mesh::{CLUSTERS, Mesh, NAMES, planned, sent};
use crate::policycheck::{Flow, Pod, Question, Verdict, ask};

const SEED: u64 = 7;
const INTENTS: usize = 320;

/// Generates meshes with their intents.
pub(crate) fn drawn_meshes() -> Vec<(Mesh, Vec<Asked>)> {
    let mut rng = Rng::with_seed(SEED);
    let meshes = NAMES.map(Mesh::new);
    let mut drawn = Vec::new();
    let mut count = 0;
    while count < INTENTS {
        let intents = drawn::some(&mut rng);
        count += intents.len();
        drawn.push((meshes[drawn.len() % meshes.len()].clone(), intents));
    }
    drawn
}

/// Returns a question for each cluster of each mesh, with its policies and flows to its
/// pods, and the expected result of each flow.
fn questions() -> Vec<(Question, Vec<Because>, Vec<Asked>)> {
    let mut rng = Rng::with_seed(SEED);
    let mut questions = Vec::new();
    for (mesh, intents) in drawn_meshes() {
        let plan = mesh.plan(&intents);
        for (at, intent) in intents.iter().enumerate() {
            assert_eq!(planned(&plan, at).outcome.problems, [], "{intent:?}");
        }
        for local in CLUSTERS {
            let flows = samples(&mut rng, &mesh, local, &intents);
            let meant = flows
                .iter()
                .map(|flow| decide(&intents, &mesh.cilium_names(), flow))
                .collect();
            let question = Question {
                cluster: mesh.names[local].clone(),
                default_local_cluster: true,
                policies: sent(&plan, local),
                flows,
            };
            questions.push((question, meant, intents.clone()));
        }
    }
    questions
}

/// Returns each question with and without policy-default-local-cluster.
fn both_ways(questions: Vec<Question>) -> Vec<Question> {
    let without = questions.iter().cloned().map(|question| Question {
        default_local_cluster: false,
        ..question
    });
    questions.iter().cloned().chain(without).collect()
}

#[test]
fn cilium_accepts_every_policy_and_means_by_it_what_was_asked() {
    let asked = questions();
    let questions = both_ways(
        asked
            .iter()
            .map(|(question, ..)| question.clone())
            .collect(),
    );
    let Some(answers) = ask(&questions) else {
        return;
    };
    let mut reached: BTreeMap<Because, usize> = BTreeMap::new();
    for ((question, answer), (_, meant, intents)) in questions
        .iter()
        .zip(&answers)
        .zip(asked.iter().chain(&asked))
    {
        for (policy, wrong) in question.policies.iter().zip(&answer.errors) {
            assert!(wrong.is_empty(), "{wrong:#?}\n{policy:#}");
        }
        assert_eq!(answer.flows.len(), question.flows.len());
        for ((flow, verdict), because) in question.flows.iter().zip(&answer.flows).zip(meant) {
            // Intents never restrict egress: that would cut off DNS.
            let expected = Verdict {
                egress: true,
                ingress: because.passes(),
            };
            assert_eq!(
                *verdict,
                expected,
                "{because:?}: {flow:#?}\n{intents:#?}\n{:#}",
                json!(question.policies)
            );
            *reached.entry(*because).or_default() += 1;
        }
    }
    for because in Because::ALL {
        assert!(
            reached.get(&because).is_some_and(|count| *count > 100),
            "{because:?} was hardly tried: {reached:?}"
        );
    }
}

// The tests below prove that Cilium's code really runs.

fn policy(spec: &Value) -> Value {
    json!({ "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": { "name": "p", "namespace": "prod" }, "spec": spec })
}

fn pod(cluster: &str, namespace: &str) -> Pod {
    Pod {
        cluster: cluster.to_owned(),
        namespace: namespace.to_owned(),
        labels: BTreeMap::new(),
    }
}

#[track_caller]
fn assert_refused(object: Value, reason: &str) {
    let question = Question {
        cluster: "east".to_owned(),
        default_local_cluster: true,
        policies: vec![object.clone()],
        flows: Vec::new(),
    };
    let Some(answers) = ask(&[question]) else {
        return;
    };
    let wrong = answers[0].errors[0].join("\n");
    assert!(
        wrong.contains(reason),
        "{reason:?} is not among {wrong:?} of {object:#}"
    );
}

#[test]
fn policies_that_cilium_rejects_are_refused() {
    let ports = |ports: Value| json!({ "endpointSelector": {}, "ingress": [{ "toPorts": [{ "ports": ports }] }] });
    let many: Vec<Value> = (1..=41)
        .map(|port| json!({ "port": port.to_string(), "protocol": "TCP" }))
        .collect();
    assert_refused(policy(&ports(json!(many))), "too many ports, the max is 40");
    assert_refused(
        policy(&ports(json!([{ "port": "80", "protocol": "ICMP" }]))),
        "Unsupported value: \"ICMP\"",
    );
    assert_refused(
        policy(&ports(json!([{ "port": 80 }]))),
        "must be of type string",
    );
    assert_refused(
        policy(&ports(json!([{ "port": "80", "lastPort": 90 }]))),
        "unknown fields found",
    );
    assert_refused(
        policy(&json!({ "endpointSelector": {} })),
        "at least one of Ingress",
    );
    let elsewhere = json!({ "matchLabels": { "k8s:io.kubernetes.pod.namespace": "front" } });
    assert_refused(
        policy(&json!({ "endpointSelector": elsewhere, "ingress": [{}] })),
        "illegal namespace match",
    );
    let mut clusterwide = policy(&json!({ "endpointSelector": {}, "ingress": [{}] }));
    clusterwide["kind"] = json!("CiliumClusterwideNetworkPolicy");
    assert_refused(clusterwide, "must not have a namespace");
    assert_refused(
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n" } }),
        "is not a policy",
    );
}

#[test]
fn without_its_label_a_cluster_means_the_local_one_or_any_as_the_agent_is_set() {
    let from = json!({ "matchLabels": { "k8s:io.kubernetes.pod.namespace": "front" } });
    let policies = vec![policy(
        &json!({ "endpointSelector": {}, "ingress": [{ "fromEndpoints": [from] }] }),
    )];
    let flow = |from: &str| Flow {
        from: pod(from, "front"),
        to: pod("east", "prod"),
        protocol: "TCP",
        port: 80,
    };
    let flows = vec![
        flow("east"),
        flow("west"),
        Flow {
            from: Pod::default(),
            ..flow("east")
        },
    ];
    let question = Question {
        cluster: "east".to_owned(),
        default_local_cluster: true,
        policies,
        flows,
    };
    let Some(answers) = ask(&both_ways(vec![question])) else {
        return;
    };
    let ingress = |at: usize| {
        answers[at]
            .flows
            .iter()
            .map(|verdict| verdict.ingress)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (ingress(0), ingress(1)),
        (vec![true, false, false], vec![true, true, false])
    );
}
