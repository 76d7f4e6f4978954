//! Compares the overlap check with a naive one that compares all pairs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use mw_core::cidr::Cidr;
use mw_core::kilo::node::EndpointFrom;
use mw_core::kilo::overlap::{Applicant, admit};
use mw_core::kilo::spec::{ClusterSpec, MeshSpec, Networks};
use mw_core::names::{ClusterId, ClusterName, MeshId};
use mw_core::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// An identity and networks.
type DrawnCluster = (u8, Vec<(u8, u8, u8)>);
/// Meshes with their age.
type Drawn = Vec<(i64, Vec<DrawnCluster>)>;

/// Meshes of clusters of networks inside one /8, so that they overlap often.
fn drawn() -> impl Strategy<Value = Drawn> {
    let network = (0..4u8, 0..4u8, 12..20u8);
    let cluster = (0..4u8, prop::collection::vec(network, 1..3));
    prop::collection::vec((0..3i64, prop::collection::vec(cluster, 1..4)), 1..4)
}

fn spec(clusters: &[DrawnCluster]) -> MeshSpec {
    let entry = |index: usize, networks: &[(u8, u8, u8)]| ClusterSpec {
        index,
        local: false,
        kubeconfig_secret: None,
        networks: Networks::Flat(
            networks
                .iter()
                .map(|(a, b, length)| {
                    Cidr::try_from(format!("10.{}.{}.0/{length}", a * 16, b * 16).as_str()).unwrap()
                })
                .collect(),
        ),
        wireguard_port: 51820,
        keepalive: 0,
        topology_label: String::new(),
        endpoint_from: EndpointFrom::Global,
    };
    let clusters = clusters.iter().enumerate().map(|(at, (_, networks))| {
        (
            ClusterName::try_from(format!("c{at}").as_str()).unwrap(),
            entry(at, networks),
        )
    });
    MeshSpec {
        clusters: clusters.collect(),
        cleanup_timeout_seconds: 0,
        max_delete_percent: 50,
    }
}

/// The rejected meshes, found by comparing every network with every other.
fn refused_by_hand(meshes: &[(i64, MeshSpec, Vec<u8>)]) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..meshes.len()).collect();
    order.sort_by_key(|at| (meshes[*at].0, *at));
    let networks = |at: usize| -> Vec<(u8, usize, Cidr)> {
        let (_, spec, ids) = &meshes[at];
        spec.clusters
            .values()
            .flat_map(|c| {
                c.networks
                    .all()
                    .map(|cidr| (ids[c.index], c.index, cidr))
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let mut refused = BTreeSet::new();
    let mut admitted: Vec<usize> = Vec::new();
    for at in order {
        let own = networks(at);
        let inside = own
            .iter()
            .enumerate()
            .any(|(i, one)| own.iter().skip(i + 1).any(|other| one.2.overlaps(other.2)));
        let ids = |at: usize| -> BTreeSet<u8> { meshes[at].2.iter().copied().collect() };
        let against = admitted
            .iter()
            .filter(|other| !ids(**other).is_disjoint(&ids(at)))
            .any(|other| {
                networks(*other).iter().any(|theirs| {
                    own.iter()
                        .any(|one| one.0 != theirs.0 && one.2.overlaps(theirs.2))
                })
            });
        match inside || against {
            true => _ = refused.insert(at),
            false => admitted.push(at),
        }
    }
    refused
}

/// The case that a set of random meshes reached.
fn outcome(
    count: usize,
    refused: &BTreeSet<usize>,
    meshes: &[(i64, MeshSpec, Vec<u8>)],
) -> &'static str {
    let alone = |at: &usize| {
        let all: Vec<Cidr> = meshes[*at]
            .1
            .clusters
            .values()
            .flat_map(|cluster| cluster.networks.all().collect::<Vec<_>>())
            .collect();
        all.iter()
            .enumerate()
            .any(|(i, one)| all.iter().skip(i + 1).any(|other| one.overlaps(*other)))
    };
    match refused.len() {
        0 if count > 1 => "several meshes, none refused",
        0 => "one mesh, not refused",
        _ if refused.iter().all(alone) => "refused by itself",
        _ => "refused for another mesh",
    }
}

#[test]
fn the_sweep_agrees_with_comparing_all_pairs() {
    let reached: RefCell<BTreeMap<&str, usize>> = RefCell::default();
    let config = ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&drawn(), |drawn| {
        let meshes: Vec<(i64, MeshSpec, Vec<u8>)> = drawn
            .iter()
            .map(|(age, clusters)| {
                (
                    *age,
                    spec(clusters),
                    clusters.iter().map(|(id, _)| *id).collect(),
                )
            })
            .collect();
        let names: Vec<MeshId> = (0..meshes.len())
            .map(|at| MeshId::new("net", &format!("m{at}")))
            .collect();
        let members = |ids: &[u8], spec: &MeshSpec| -> BTreeMap<ClusterName, ClusterId> {
            spec.clusters
                .iter()
                .map(|(name, c)| {
                    (
                        name.clone(),
                        ClusterId::from(format!("id{}", ids[c.index]).as_str()),
                    )
                })
                .collect()
        };
        let applicants: Vec<Applicant<'_>> = meshes
            .iter()
            .zip(&names)
            .map(|((age, spec, ids), mesh)| Applicant {
                mesh,
                created: Some(Timestamp(*age)),
                spec,
                running: None,
                recalled: false,
                members: members(ids, spec),
            })
            .collect();
        let result = admit(&applicants);
        let refused: BTreeSet<usize> = names
            .iter()
            .enumerate()
            .filter(|(_, name)| !result[*name].overlaps.is_empty())
            .map(|(at, _)| at)
            .collect();
        *reached
            .borrow_mut()
            .entry(outcome(meshes.len(), &refused, &meshes))
            .or_default() += 1;
        prop_assert_eq!(refused, refused_by_hand(&meshes));
        Ok(())
    });
    result.unwrap();
    assert_eq!(
        reached.borrow().len(),
        4,
        "the law was tried on too little: {:?}",
        reached.borrow()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mesh_that_runs_goes_on_when_a_newcomer_overlaps_it(drawn in drawn()) {
        let meshes: Vec<(i64, MeshSpec)> = drawn.iter().map(|(age, clusters)| (*age, spec(clusters))).collect();
        let names: Vec<MeshId> = (0..meshes.len()).map(|at| MeshId::new("net", &format!("m{at}"))).collect();
        let shared = |spec: &MeshSpec| -> BTreeMap<ClusterName, ClusterId> {
            spec.clusters.keys().map(|name| (name.clone(), ClusterId::from(name.as_str()))).collect()
        };
        // The last one already runs, however young it is.
        let runs = meshes.len() - 1;
        let applicants: Vec<Applicant<'_>> = meshes.iter().zip(&names).enumerate().map(|(at, ((age, spec), mesh))| Applicant {
            mesh, created: Some(Timestamp(*age)), spec, running: (at == runs).then_some(spec), recalled: false, members: shared(spec),
        }).collect();
        prop_assert!(admit(&applicants)[&names[runs]].overlaps.is_empty());
    }

    /// Anybody who may write a status can claim that their mesh runs.
    #[test]
    fn a_status_refuses_no_older_mesh(drawn in drawn()) {
        let meshes: Vec<(i64, MeshSpec)> = drawn.iter().map(|(age, clusters)| (*age, spec(clusters))).collect();
        let names: Vec<MeshId> = (0..meshes.len()).map(|at| MeshId::new("net", &format!("m{at}"))).collect();
        let shared = |spec: &MeshSpec| -> BTreeMap<ClusterName, ClusterId> {
            spec.clusters.keys().map(|name| (name.clone(), ClusterId::from(name.as_str()))).collect()
        };
        let all = |running: bool| -> Vec<Applicant<'_>> {
            meshes.iter().zip(&names).map(|((age, spec), mesh)| Applicant {
                mesh, created: Some(Timestamp(*age)), spec, running: running.then_some(spec), recalled: running, members: shared(spec),
            }).collect()
        };
        prop_assert_eq!(admit(&all(true)), admit(&all(false)), "all claim it: the oldest goes first");
    }
}
