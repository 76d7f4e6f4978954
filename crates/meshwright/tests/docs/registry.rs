//! Maps command lines of the pages to the tests that run them. Lines that start with kubectl are
//! run by `follow.rs`, and those that configure Cilium by `CILIUM`; every other line is listed
//! here.

/// Renders Cilium's chart with the values of each line.
pub(crate) const CILIUM: &str =
    "mw-api/tests/oracles/chart.rs::the_lines_of_the_pages_are_understood";
pub(crate) const KUBECTL: &str = "meshwright/tests/docs/follow.rs::every_line_of_kubectl_works";

/// Pages whose blocks are run by another test.
pub(crate) const FOLLOWED: &[(&str, &str)] = &[
    (
        "docs/install.md",
        "meshwright/tests/chart/installed.rs::every_command_of_the_page_is_run",
    ),
    (
        "docs/kcp.md",
        "meshwright/tests/kcp.rs::the_page_on_kcp_leads_from_an_empty_kcp_to_a_served_tenant_and_back",
    ),
];

/// `file under crates/::test`, and the lines.
pub(crate) const REGISTRY: &[(&str, &[&str])] = &[
    (
        "meshwright/tests/demo.rs::into_a_pipe_every_step_is_told_with_its_time",
        &["make demo"],
    ),
    // This test is itself part of `make test`.
    (
        "meshwright/tests/docs/commands.rs::every_command_is_run_by_a_test",
        &["make test"],
    ),
    (
        "meshwright/tests/examples.rs::planned",
        &[
            "cargo run -q -p meshwright -- plan -f examples/hub-and-spoke/mesh.yaml --cluster hub=examples/hub-and-spoke/hub.yaml \
             --cluster shop=examples/hub-and-spoke/shop.yaml --cluster bank=examples/hub-and-spoke/bank.yaml",
            "cargo run -q -p meshwright -- plan -f examples/location/mesh.yaml --cluster campus=examples/location/campus.yaml \
             --cluster cloud=examples/location/cloud.yaml",
            "cargo run -q -p meshwright -- plan -f examples/migration/mesh.yaml --cluster east=examples/migration/east.yaml \
             --cluster west=examples/migration/west.yaml",
            "cargo run -q -p meshwright -- plan -f examples/three-clusters/mesh.yaml --cluster berlin=examples/three-clusters/berlin.yaml \
             --cluster oslo=examples/three-clusters/oslo.yaml --cluster lab=examples/three-clusters/lab.yaml",
        ],
    ),
    (
        "meshwright/tests/cilium_plan.rs::the_readme_of_the_example_shows_its_plan",
        &[
            "cargo run -q -p meshwright -- plan -f examples/cilium/mesh-binding.yaml -f examples/cilium/global-service.yaml \
             -f examples/cilium/connectivity-intent.yaml --cluster cluster-ffm-1=examples/cilium/ffm.yaml \
             --cluster cluster-ber-2=examples/cilium/ber.yaml --hub-uid 6f0d9c1e-0000-4000-8000-000000000000",
            "meshwright plan -f binding.yaml -f service.yaml --cluster eu=eu.yaml --cluster us=us.yaml",
        ],
    ),
    (
        "meshwright/tests/plan.rs::a_connected_mesh_needs_nothing",
        &[
            "meshwright plan -f mesh.yaml",
            "meshwright plan -f mesh.yaml --cluster eu=eu.yaml --cluster us=us.yaml",
        ],
    ),
    (
        "meshwright/tests/plan.rs::the_hub_uid_comes_from_the_flag_or_from_the_local_cluster",
        &["meshwright plan -f mesh.yaml --hub-uid UID"],
    ),
    (
        "meshwright/tests/plan.rs::peers_of_other_meshes_are_orphans_only_when_all_meshes_are_given",
        &[
            "meshwright plan -f meshes.yaml --cluster eu=eu.yaml --cluster us=us.yaml --all-meshes --hub-uid \"$HUB\"",
        ],
    ),
    (
        "meshwright/tests/live.rs::a_live_plan_says_what_the_plan_of_dumps_says",
        &[
            "meshwright plan NAME -n NAMESPACE",
            "meshwright plan prod -n kilo-system",
        ],
    ),
    (
        "meshwright/tests/live.rs::status_tells_what_the_operator_wrote_and_whether_there_is_one",
        &[
            "meshwright status NAME -n NAMESPACE",
            "meshwright status NAME -n NAMESPACE --live",
            "meshwright status prod -n kilo-system --live",
            "meshwright status prod -n kilo-system --watch",
        ],
    ),
    (
        "meshwright/tests/crd.rs::the_crds_of_one_back_end_or_both",
        &["meshwright crd --backend cilium"],
    ),
    (
        "meshwright/tests/crd.rs::what_kcp_needs_applies_as_it_is_and_claims_clusters_with_an_identity",
        &["meshwright crd --kcp binding"],
    ),
    (
        "meshwright/tests/cilium_status.rs::status_tells_what_a_provider_wrote_and_whether_it_keeps_it",
        &[
            "meshwright status -n NAMESPACE",
            "meshwright status -n default",
            "meshwright status -n net",
        ],
    ),
    (
        "meshwright/tests/doctor/main.rs::what_is_broken_is_named_and_its_command_repairs_it",
        &[
            "meshwright doctor NAME -n NAMESPACE",
            "meshwright doctor prod -n kilo-system",
        ],
    ),
    (
        "meshwright/tests/output.rs::help_is_short_and_names_the_exit_codes",
        &["meshwright plan --help"],
    ),
    (
        "meshwright/tests/output.rs::as_a_plugin_it_calls_itself_what_people_type",
        &["kubectl meshwright status"],
    ),
    (
        "meshwright/tests/docs/entries.rs::every_entry_says_what_it_means_what_is_safe_how_to_see_it_and_what_to_do",
        &["meshwright explain REASON"],
    ),
    (
        "meshwright/tests/operator/leaders.rs::a_killed_leader_is_followed_by_the_other",
        &["meshwright operator --namespace kilo-system"],
    ),
    (
        "meshwright/tests/provider/joining.rs::a_binding_joins_three_clusters_and_nothing_is_left_of_it",
        &[
            "meshwright provider --hub",
            "meshwright provider --hub --node-id provider-1 --mgmt-namespace meshwright",
        ],
    ),
    (
        "meshwright/tests/provider/workspaces.rs::tenants_come_and_go_and_never_meet",
        &[
            "meshwright provider --kcp-kubeconfig kcp.yaml --mgmt-kubeconfig mgmt.yaml --node-id provider-1",
        ],
    ),
    (
        "meshwright/tests/provider/takeover.rs::links_that_were_made_by_hand_stay_up",
        &[
            "meshwright provider --kcp-kubeconfig kcp.yaml --mgmt-kubeconfig mgmt.yaml --node-id provider-1 --trust-cluster-names",
        ],
    ),
];
