//! What the flags switch on and off.

use serde_json::Value;

use crate::fleet::Fleet;
use crate::look::{none, until};
use crate::trials::scenarios;

scenarios![
    it_says_that_it_is_ready_and_what_it_does_as_json,
    it_leaves_the_crds_alone_when_told,
    an_older_crd_of_somebody_else_is_brought_up_to_date,
    a_resync_period_lists_everything_again,
];

async fn it_says_that_it_is_ready_and_what_it_does_as_json() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let operator = fleet.operator(&["--health-probe-bind-address", "127.0.0.1:0", "--log-format", "json"]).await;
    fleet.converged().await;
    for path in ["/healthz", "/readyz"] {
        let (code, answer) = operator.fetch("health", path).await;
        assert_eq!(code, 200, "{path}: {answer}");
    }
    let log = operator.log();
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()), "not JSON: {line}");
    }
    assert!(!log.contains("eyJ"), "a token is in the log");
    let metrics = operator.metrics().await;
    assert_eq!(metrics.sum("meshwright_writes_total", &[("kind", "Peer"), ("verb", "create"), ("result", "done")]), 6.0);
    assert_eq!(metrics.sum("meshwright_cluster_reachable", &[]), 3.0);
    assert!(metrics.sum("meshwright_api_requests_total", &[]) > 6.0);
    fleet.finish().await;
}

async fn it_leaves_the_crds_alone_when_told() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let mark = fleet.mark();
    let _operator = fleet.operator(&["--apply-crds", "false"]).await;
    fleet.converged().await;
    none(&fleet.calls(&mark).into_iter().filter(|(_, call)| call.resource == "customresourcedefinitions").collect::<Vec<_>>(), "CRDs");
    fleet.finish().await;
}

/// As a chart or kubectl left it: another manager owns every field.
async fn an_older_crd_of_somebody_else_is_brought_up_to_date() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clustermeshes.kilo.squat.ai";
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let hub = fleet.cluster("hub");
    let mut crd = hub.get(path).await.unwrap().unwrap();
    let new = crd.pointer_mut(field).unwrap().as_object_mut().unwrap();
    assert!(new.remove("maxDeletePercent").is_some());
    new["clusters"]["maxItems"] = 9.into();
    crd["spec"]["versions"][0]["additionalPrinterColumns"] = Value::Null;
    for name in ["managedFields", "creationTimestamp", "uid", "generation"] {
        crd["metadata"].as_object_mut().unwrap().remove(name);
    }
    let answer = hub.request("PUT", &format!("{path}?fieldManager=helm"), Some(&crd)).await.unwrap();
    assert!(answer.is_success(), "{answer:?}");
    let _operator = fleet.operator(&[]).await;
    until("the CRD is ours", || async {
        let crd = fleet.cluster("hub").get(path).await.map_err(|error| error.to_string())?.unwrap();
        let fields = crd.pointer(field).unwrap();
        let right = fields.get("maxDeletePercent").is_some() && fields["clusters"]["maxItems"] != 9;
        if right { Ok(()) } else { Err(fields["clusters"]["maxItems"].to_string()) }
    })
    .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_resync_period_lists_everything_again() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let _operator = fleet.operator(&["--resync-period", "2s"]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    until("two resyncs", || async {
        let calls = fleet.calls(&mark);
        let lists = |site: &str| calls.iter().filter(|(at, call)| at == site && call.verb == "list" && call.resource == "nodes").count();
        if ["hub", "east", "west"].iter().all(|site| lists(site) >= 2) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    none(&fleet.writes(&mark), "a resync of a converged fleet writes nothing");
    fleet.finish().await;
}
