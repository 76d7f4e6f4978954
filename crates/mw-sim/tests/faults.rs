//! Features of the simulator beyond a real server: faults, links, time and observers.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request as HttpRequest, StatusCode};
use http_body_util::{BodyExt, Full};
use mw_sim::{
    Account, Body, Cluster, Delivery, Fate, Faults, Lie, Lies, Lost, Observer, Reachability,
    Request, RequestOutcome, Server, Settings, Span, Wall, Write,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tower::Service;

const NODES: &str = "/api/v1/nodes";
const SECOND: Duration = Duration::from_secs(1);

fn cluster() -> Cluster {
    let cluster = Cluster::new(Settings {
        name: "one".into(),
        seed: 1,
        wall: Wall::fixed(0),
        managed_fields: false,
    });
    cluster.set_token("t", Some(Account::admin("admin")));
    cluster
}

fn node(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

async fn send(
    server: &mut Server,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<http::Response<Body>, Lost> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let content = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let request = HttpRequest::builder()
        .method(method)
        .uri(path)
        .header("content-type", content);
    server.call(request.body(Full::from(body)).unwrap()).await
}

async fn json_of(response: http::Response<Body>) -> Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

async fn code(
    server: &mut Server,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<u16, Lost> {
    send(server, method, path, body)
        .await
        .map(|response| response.status().as_u16())
}

/// Returns the type and the object name of the next watch event.
async fn told(body: &mut Body) -> Option<Result<String, Lost>> {
    let frame = match body.frame().await? {
        Ok(frame) => frame.into_data().unwrap(),
        Err(lost) => return Some(Err(lost)),
    };
    let event: Value = serde_json::from_slice(&frame).unwrap();
    let name = event["object"]["metadata"]["name"]
        .as_str()
        .unwrap_or_default();
    Some(Ok(format!("{} {name}", event["type"].as_str().unwrap())))
}

/// Scripted fates and deliveries, in order; no faults afterwards.
#[derive(Default)]
struct Script {
    fates: Mutex<VecDeque<Fate>>,
    deliveries: Mutex<VecDeque<Delivery>>,
    lies: Lies,
}

impl Faults for Script {
    fn fate(&self, _: &Request) -> Fate {
        self.fates
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Fate::Answer)
    }

    fn delivery(&self, _: &Request, _: u64) -> Delivery {
        self.deliveries
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Delivery::Now)
    }

    fn lies(&self, request: &Request) -> Vec<Lie> {
        self.lies.about(request)
    }
}

fn fated(fates: impl IntoIterator<Item = Fate>) -> (Cluster, Server) {
    let cluster = cluster();
    cluster.set_faults(Arc::new(Script {
        fates: Mutex::new(fates.into_iter().collect()),
        ..Script::default()
    }));
    let server = cluster.server_as("t");
    (cluster, server)
}

async fn delivered(deliveries: impl IntoIterator<Item = Delivery>) -> (Cluster, Body) {
    let cluster = cluster();
    cluster.set_faults(Arc::new(Script {
        deliveries: Mutex::new(deliveries.into_iter().collect()),
        ..Script::default()
    }));
    let body = watch(&cluster, "").await;
    (cluster, body)
}

async fn watch(cluster: &Cluster, more: &str) -> Body {
    let path = format!(
        "{NODES}?watch=true&resourceVersion={}{more}",
        cluster.version()
    );
    send(&mut cluster.server_as("t"), Method::GET, &path, None)
        .await
        .unwrap()
        .into_body()
}

fn make(cluster: &Cluster, name: &str) {
    let (code, body) = cluster.call(&Method::POST, NODES, "application/json", Some(&node(name)));
    assert_eq!(code, StatusCode::CREATED, "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_has_no_effect_and_a_lost_answer_has() {
    let (cluster, mut server) = fated([Fate::LoseRequest, Fate::LoseAnswer]);
    assert_eq!(
        code(&mut server, Method::POST, NODES, Some(node("a"))).await,
        Err(Lost::Broken)
    );
    assert_eq!(cluster.get("/api/v1/nodes/a"), None);
    assert_eq!(
        code(&mut server, Method::POST, NODES, Some(node("a"))).await,
        Err(Lost::Broken)
    );
    assert!(cluster.get("/api/v1/nodes/a").is_some());
    assert_eq!(
        code(&mut server, Method::POST, NODES, Some(node("a"))).await,
        Ok(409)
    );
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_takes_effect_late_and_a_late_answer_at_once() {
    let (cluster, mut server) = fated([Fate::Delay(SECOND), Fate::AnswerLate(SECOND)]);
    let start = Instant::now();
    assert!(
        timeout(
            SECOND / 2,
            code(&mut server, Method::POST, NODES, Some(node("a")))
        )
        .await
        .is_err()
    );
    assert_eq!(
        cluster.get("/api/v1/nodes/a"),
        None,
        "a cancelled request has no effect"
    );
    assert!(
        timeout(
            SECOND / 2,
            code(&mut server, Method::POST, NODES, Some(node("b")))
        )
        .await
        .is_err()
    );
    assert!(cluster.get("/api/v1/nodes/b").is_some());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_when_to_come_again() {
    let (_, mut server) = fated([
        Fate::Refuse {
            code: 429,
            retry_after: Some(7),
        },
        Fate::Refuse {
            code: 500,
            retry_after: None,
        },
    ]);
    let response = send(&mut server, Method::GET, NODES, None).await.unwrap();
    assert_eq!(response.headers()["retry-after"], "7");
    let status = json_of(response).await;
    assert_eq!(
        (&status["code"], &status["details"]["retryAfterSeconds"]),
        (&json!(429), &json!(7))
    );
    assert_eq!(code(&mut server, Method::GET, NODES, None).await, Ok(500));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_never_answered() {
    let (_, mut server) = fated([Fate::Hang]);
    assert!(
        timeout(
            Duration::from_secs(1_000_000),
            code(&mut server, Method::GET, NODES, None)
        )
        .await
        .is_err()
    );
    assert_eq!(code(&mut server, Method::GET, NODES, None).await, Ok(200));
}

#[tokio::test(start_paused = true)]
async fn a_stale_read_shows_the_past_and_a_write_the_present() {
    let (cluster, mut server) = fated([
        Fate::Stale { behind: 1 },
        Fate::Stale { behind: 1 },
        Fate::Stale { behind: 1 },
        Fate::Stale { behind: 1 },
    ]);
    make(&cluster, "a");
    make(&cluster, "b");
    let listed = json_of(send(&mut server, Method::GET, NODES, None).await.unwrap()).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        listed["metadata"]["resourceVersion"],
        (cluster.version() - 1).to_string()
    );
    assert_eq!(
        code(&mut server, Method::GET, "/api/v1/nodes/b", None).await,
        Ok(404)
    );
    assert_eq!(
        code(&mut server, Method::POST, NODES, Some(node("b"))).await,
        Ok(409)
    );
    let mut body = send(&mut server, Method::GET, "/api/v1/nodes?watch=true", None)
        .await
        .unwrap()
        .into_body();
    assert_eq!(told(&mut body).await.unwrap().unwrap(), "ADDED a");
    assert_eq!(
        told(&mut body).await.unwrap().unwrap(),
        "ADDED b",
        "the lagging server catches up"
    );
}

#[tokio::test(start_paused = true)]
async fn events_come_late_never_or_cut_the_watch() {
    let (cluster, mut body) = delivered([
        Delivery::After(SECOND),
        Delivery::Skip,
        Delivery::Now,
        Delivery::Cut,
    ])
    .await;
    for name in ["a", "b", "c", "d", "e"] {
        make(&cluster, name);
    }
    let start = Instant::now();
    assert_eq!(told(&mut body).await, Some(Ok("ADDED a".into())));
    assert_eq!(start.elapsed(), SECOND);
    assert_eq!(told(&mut body).await, Some(Ok("ADDED c".into())));
    assert_eq!(told(&mut body).await, Some(Err(Lost::Broken)));
    assert_eq!(told(&mut body).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_be_told_that_its_version_is_gone() {
    let (cluster, mut body) = delivered([Delivery::Gone]).await;
    make(&cluster, "a");
    let event: Value =
        serde_json::from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap()).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(told(&mut body).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_link_holds_everything_and_lets_it_go_again() {
    let cluster = cluster();
    let mut body = watch(&cluster, "").await;
    cluster.set_link(Reachability::Stalled);
    make(&cluster, "a");
    assert!(timeout(SECOND, told(&mut body)).await.is_err());
    let mut server = cluster.server_as("t");
    let request = code(&mut server, Method::POST, NODES, Some(node("b")));
    let up = async {
        tokio::time::sleep(SECOND).await;
        assert_eq!(cluster.get("/api/v1/nodes/b"), None);
        cluster.set_link(Reachability::Up);
    };
    assert_eq!(futures::future::join(request, up).await.0, Ok(201));
    assert_eq!(told(&mut body).await, Some(Ok("ADDED a".into())));
    assert_eq!(told(&mut body).await, Some(Ok("ADDED b".into())));
}

#[tokio::test(start_paused = true)]
async fn a_link_that_goes_down_cuts_watches_and_refuses_requests() {
    let cluster = cluster();
    let mut body = watch(&cluster, "").await;
    let down = async {
        tokio::time::sleep(SECOND).await;
        cluster.set_link(Reachability::Refusing);
    };
    assert_eq!(
        futures::future::join(told(&mut body), down).await.0,
        Some(Err(Lost::Refused))
    );
    assert_eq!(told(&mut body).await, None);
    let mut server = cluster.server_as("t");
    assert_eq!(
        code(&mut server, Method::GET, NODES, None).await,
        Err(Lost::Refused)
    );
    cluster.set_link(Reachability::Up);
    assert_eq!(code(&mut server, Method::GET, NODES, None).await, Ok(200));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_waited_for_wakes_up() {
    let cluster = cluster();
    let mut body = watch(&cluster, "").await;
    let later = async {
        tokio::time::sleep(SECOND).await;
        make(&cluster, "a");
    };
    assert_eq!(
        futures::future::join(told(&mut body), later).await.0,
        Some(Ok("ADDED a".into()))
    );
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_the_end_after_its_time() {
    let cluster = cluster();
    let mut body = watch(&cluster, "&allowWatchBookmarks=true&timeoutSeconds=150").await;
    cluster.call(
        &Method::POST,
        "/api/v1/namespaces",
        "",
        Some(&json!({ "metadata": { "name": "x" } })),
    );
    let start = Instant::now();
    let mut at = Vec::new();
    while let Some(frame) = body.frame().await {
        let event: Value = serde_json::from_slice(&frame.unwrap().into_data().unwrap()).unwrap();
        assert_eq!(
            event["object"]["metadata"]["resourceVersion"],
            cluster.version().to_string()
        );
        at.push((
            event["type"].as_str().unwrap().to_owned(),
            start.elapsed().as_secs(),
        ));
    }
    assert_eq!(
        at,
        [("BOOKMARK".to_owned(), 60), ("BOOKMARK".to_owned(), 120)]
    );
    assert_eq!(start.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_compaction_ends_old_pages_and_old_watches_and_leaves_open_ones() {
    let cluster = cluster();
    let mut server = cluster.server_as("t");
    let mut open = watch(&cluster, "").await;
    for name in ["a", "b", "c"] {
        make(&cluster, name);
    }
    let old = cluster.version() - 1;
    let page = json_of(
        send(&mut server, Method::GET, "/api/v1/nodes?limit=1", None)
            .await
            .unwrap(),
    )
    .await;
    make(&cluster, "d");
    cluster.compact();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let gone = json_of(
        send(
            &mut server,
            Method::GET,
            &format!("/api/v1/nodes?limit=5&continue={token}"),
            None,
        )
        .await
        .unwrap(),
    )
    .await;
    assert_eq!(
        (&gone["code"], &gone["reason"]),
        (&json!(410), &json!("Expired"))
    );
    let token = gone["metadata"]["continue"].as_str().unwrap();
    let rest = json_of(
        send(
            &mut server,
            Method::GET,
            &format!("/api/v1/nodes?continue={token}"),
            None,
        )
        .await
        .unwrap(),
    )
    .await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 3);
    let path = format!("/api/v1/nodes?watch=true&resourceVersion={old}");
    let mut body = send(&mut server, Method::GET, &path, None)
        .await
        .unwrap()
        .into_body();
    assert_eq!(told(&mut body).await, Some(Ok("ERROR ".into())));
    for name in ["a", "b", "c", "d"] {
        assert_eq!(told(&mut open).await, Some(Ok(format!("ADDED {name}"))));
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_come_and_go() {
    let cluster = cluster();
    let mut server = cluster.server_as("t");
    assert_eq!(code(&mut server, Method::GET, NODES, None).await, Ok(200));
    cluster.set_token("t", None);
    assert_eq!(code(&mut server, Method::GET, NODES, None).await, Ok(401));
    assert_eq!(
        code(&mut cluster.server(), Method::GET, NODES, None).await,
        Ok(403)
    );
}

/// Returns a lying cluster with the Nodes a, b and c.
fn lying(lies: impl IntoIterator<Item = (Lie, Span)>) -> (Cluster, Server) {
    let cluster = cluster();
    ["a", "b", "c"].iter().for_each(|name| make(&cluster, name));
    let script = Script::default();
    lies.into_iter()
        .for_each(|(lie, span)| script.lies.tell("one", "nodes", lie, span));
    cluster.set_faults(Arc::new(script));
    let server = cluster.server_as("t");
    (cluster, server)
}

/// Returns another cluster, with the Nodes b, x and y.
fn other() -> Cluster {
    let other = Cluster::new(Settings {
        name: "other".into(),
        seed: 2,
        wall: Wall::fixed(0),
        managed_fields: false,
    });
    ["b", "x", "y"].iter().for_each(|name| make(&other, name));
    other
}

async fn read(server: &mut Server, path: &str) -> Value {
    json_of(send(server, Method::GET, path, None).await.unwrap()).await
}

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

fn uid(cluster: &Cluster, name: &str) -> Value {
    cluster.get(&format!("{NODES}/{name}")).unwrap()["metadata"]["uid"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_lie_is_told_to_so_many_requests_for_a_time_or_for_ever() {
    let (_, mut server) = lying([
        (Lie::Empty, Span::Requests(2)),
        (Lie::Empty, Span::Until(Instant::now() + SECOND)),
    ]);
    for expected in [0, 0, 0] {
        assert_eq!(names(&read(&mut server, NODES).await).len(), expected);
    }
    assert_eq!(
        code(&mut server, Method::GET, "/api/v1/nodes/a", None).await,
        Ok(200),
        "only lists are empty"
    );
    assert_eq!(
        names(&read(&mut server, "/api/v1/namespaces").await).len(),
        2,
        "only of one kind"
    );
    tokio::time::advance(SECOND).await;
    assert_eq!(names(&read(&mut server, NODES).await), ["a", "b", "c"]);
    let (cluster, mut server) = lying([(Lie::Empty, Span::ForEver)]);
    tokio::time::advance(SECOND * 1_000_000).await;
    let list = read(&mut server, NODES).await;
    assert_eq!(
        (names(&list).len(), &list["metadata"]["resourceVersion"]),
        (0, &json!(cluster.version().to_string()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_truncated_list_is_short_and_may_say_so() {
    for counted in [false, true] {
        let (_, mut server) = lying([(
            Lie::Truncated {
                percent: 40,
                counted,
            },
            Span::ForEver,
        )]);
        let list = read(&mut server, NODES).await;
        assert_eq!(names(&list), ["a", "b"]);
        assert_eq!(
            list["metadata"].get("remainingItemCount"),
            counted.then_some(&json!(1))
        );
        let page = read(&mut server, "/api/v1/nodes?limit=2").await;
        assert_eq!(
            (names(&page), page["metadata"].get("continue")),
            (vec!["a"], None),
            "no further page"
        );
        assert_eq!(
            page["metadata"].get("remainingItemCount"),
            counted.then_some(&json!(2))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_list_has_ever_new_names() {
    for page in [0, 2] {
        let (_, mut server) = lying([(Lie::Endless { page }, Span::ForEver)]);
        let (mut seen, mut path) = (
            std::collections::BTreeSet::new(),
            "/api/v1/nodes?limit=100".to_owned(),
        );
        for _ in 0..50 {
            let list = read(&mut server, &path).await;
            seen.extend(names(&list).into_iter().map(str::to_owned));
            path = format!(
                "/api/v1/nodes?limit=100&continue={}",
                list["metadata"]["continue"].as_str().unwrap()
            );
        }
        assert_eq!(seen.len(), 50 * page);
    }
}

#[tokio::test(start_paused = true)]
async fn a_frozen_server_shows_one_state_for_ever() {
    let (cluster, mut server) = lying([]);
    let version = cluster.version();
    let script = Script::default();
    script
        .lies
        .tell("one", "nodes", Lie::Frozen { version }, Span::ForEver);
    cluster.set_faults(Arc::new(script));
    cluster.call(&Method::DELETE, "/api/v1/nodes/a", "", None);
    let newest = cluster.version();
    let mut body = watch(&cluster, "&allowWatchBookmarks=true").await;
    make(&cluster, "d");
    let list = read(
        &mut server,
        &format!("{NODES}?resourceVersion={newest}&resourceVersionMatch=NotOlderThan"),
    )
    .await;
    assert_eq!(
        (names(&list), &list["metadata"]["resourceVersion"]),
        (vec!["a", "b", "c"], &json!(version.to_string()))
    );
    assert_eq!(
        code(&mut server, Method::GET, "/api/v1/nodes/a", None).await,
        Ok(200)
    );
    assert_eq!(
        code(&mut server, Method::GET, "/api/v1/nodes/d", None).await,
        Ok(404)
    );
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&frame).unwrap();
    assert_eq!(
        (
            &event["type"],
            &event["object"]["metadata"]["resourceVersion"]
        ),
        (&json!("BOOKMARK"), &json!(version.to_string()))
    );
}

#[tokio::test(start_paused = true)]
async fn objects_may_show_uids_of_another_server() {
    let (cluster, mut server) = lying([(Lie::Uids { of: other() }, Span::ForEver)]);
    let list = read(&mut server, NODES).await;
    assert_eq!(names(&list), ["a", "b", "c"]);
    let shown: Vec<&Value> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["uid"])
        .collect();
    assert_eq!(
        shown,
        [
            &uid(&other(), "b"),
            &uid(&other(), "b"),
            &uid(&other(), "y")
        ],
        "by name, else by position"
    );
    assert_eq!(
        read(&mut server, "/api/v1/nodes/b").await["metadata"]["uid"],
        uid(&other(), "b")
    );
    let mut body = watch(&cluster, "").await;
    cluster.call(&Method::DELETE, "/api/v1/nodes/b", "", None);
    let event: Value =
        serde_json::from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap()).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["uid"]),
        (&json!("DELETED"), &uid(&other(), "b"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_may_be_another_than_was_asked_for() {
    let (cluster, mut server) = lying([(Lie::Unasked, Span::ForEver)]);
    for (asked, shown) in [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")] {
        let object = read(&mut server, &format!("/api/v1/nodes/{asked}")).await;
        assert_eq!(
            (&object["metadata"]["name"], &object["kind"]),
            (&json!(shown), &json!("Node")),
            "for {asked}"
        );
    }
    assert_eq!(
        names(&read(&mut server, "/api/v1/nodes?fieldSelector=metadata.name=b").await),
        ["a", "c"]
    );
    assert_eq!(names(&read(&mut server, NODES).await), ["a", "b", "c"]);
    ["b", "c"]
        .iter()
        .for_each(|name| _ = cluster.call(&Method::DELETE, &format!("{NODES}/{name}"), "", None));
    assert_eq!(
        read(&mut server, "/api/v1/nodes/a").await["metadata"]["name"],
        "a-other"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_may_answer_as_another_one_does() {
    let other = other();
    let (cluster, mut server) = lying([(
        Lie::Another {
            server: other.clone(),
        },
        Span::ForEver,
    )]);
    let mut body = watch(&cluster, "").await;
    assert_eq!(names(&read(&mut server, NODES).await), ["b", "x", "y"]);
    assert_eq!(
        read(&mut server, "/api/v1/nodes/b").await["metadata"]["uid"],
        uid(&other, "b")
    );
    make(&cluster, "d");
    make(&other, "z");
    assert_eq!(told(&mut body).await, Some(Ok("ADDED z".into())));
    assert_eq!(
        code(&mut server, Method::POST, NODES, Some(node("x"))).await,
        Ok(201),
        "writes go to the server itself"
    );
    cluster.set_token("t", None);
    assert_eq!(
        code(&mut server, Method::GET, NODES, None).await,
        Ok(401),
        "so do permission checks"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_leave_out_deletes_until_it_ends() {
    let (cluster, _) = lying([(Lie::NoDeletes, Span::Requests(1))]);
    let mut body = watch(&cluster, "").await;
    cluster.call(&Method::DELETE, "/api/v1/nodes/a", "", None);
    make(&cluster, "d");
    assert_eq!(told(&mut body).await, Some(Ok("ADDED d".into())));
    cluster.hang_up();
    assert_eq!(told(&mut body).await, Some(Err(Lost::Broken)));
    let mut body = watch(&cluster, "").await;
    cluster.call(&Method::DELETE, "/api/v1/nodes/b", "", None);
    assert_eq!(told(&mut body).await, Some(Ok("DELETED b".into())));
}

#[tokio::test(start_paused = true)]
async fn lies_add_up() {
    let truncated = Lie::Truncated {
        percent: 1,
        counted: false,
    };
    let (_, mut server) = lying([
        (Lie::Another { server: other() }, Span::ForEver),
        (truncated, Span::ForEver),
    ]);
    assert_eq!(names(&read(&mut server, NODES).await), ["b", "x"]);
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_goes_back_and_counts_from_there() {
    let (cluster, mut server) = lying([]);
    let version = cluster.version();
    let mut body = watch(&cluster, "").await;
    cluster.call(&Method::DELETE, "/api/v1/nodes/a", "", None);
    make(&cluster, "d");
    cluster.restore(version);
    assert_eq!(told(&mut body).await, Some(Err(Lost::Broken)));
    let list = read(&mut server, NODES).await;
    assert_eq!(
        (names(&list), &list["metadata"]["resourceVersion"]),
        (vec!["a", "b", "c"], &json!(version.to_string()))
    );
    make(&cluster, "e");
    assert_eq!(cluster.version(), version + 1);
}

/// Records everything, and accesses the cluster when it is notified of a write.
struct Diary {
    cluster: Cluster,
    lines: Mutex<Vec<String>>,
}

impl Observer for Diary {
    fn ended(&self, request: &Request, outcome: &RequestOutcome) {
        self.lines
            .lock()
            .unwrap()
            .push(format!("{request} {outcome:?}"));
    }

    fn wrote(&self, write: &Write<'_>) {
        assert!(self.cluster.version() >= write.version);
        let change = (write.before.is_some(), write.after.is_some());
        self.lines.lock().unwrap().push(format!(
            "{:?} {} {} {} {change:?}",
            write.request, write.verb, write.plural, write.key
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_requests_and_of_what_they_changed() {
    let (cluster, mut server) = fated([Fate::Answer, Fate::Answer, Fate::LoseAnswer, Fate::Hang]);
    let diary = Arc::new(Diary {
        cluster: cluster.clone(),
        lines: Mutex::default(),
    });
    cluster.set_observer(Arc::clone(&diary) as Arc<dyn Observer>);
    make(&cluster, "h");
    code(&mut server, Method::POST, NODES, Some(node("a")))
        .await
        .unwrap();
    code(
        &mut server,
        Method::PATCH,
        "/api/v1/nodes/a",
        Some(json!({})),
    )
    .await
    .unwrap();
    code(&mut server, Method::DELETE, "/api/v1/nodes/a", None)
        .await
        .unwrap_err();
    timeout(SECOND, code(&mut server, Method::GET, NODES, None))
        .await
        .unwrap_err();
    let lines = diary.lines.lock().unwrap().clone();
    assert_eq!(
        lines,
        [
            "None create nodes h (false, true)",
            "Some(1) create nodes a (false, true)",
            "one 1 POST /api/v1/nodes Answered { code: 201 }",
            "one 2 PATCH /api/v1/nodes/a Answered { code: 200 }",
            "Some(3) delete nodes a (true, false)",
            "one 3 DELETE /api/v1/nodes/a Lost",
            "one 4 GET /api/v1/nodes GivenUp",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_supported_says_so() {
    let cluster = cluster();
    for (method, path, content, body) in [
        (Method::GET, "/api/v1/endpoints", "", None),
        (Method::GET, "/apis/apps/v1/statefulsets", "", None),
        (
            Method::POST,
            "/api/v1/nodes?dryRun=All",
            "",
            Some(node("a")),
        ),
        (
            Method::PATCH,
            "/api/v1/nodes/a",
            "application/strategic-merge-patch+json",
            Some(json!({})),
        ),
        (
            Method::PATCH,
            "/api/v1/nodes/a?fieldManager=x",
            "application/apply-patch+yaml",
            Some(node("a")),
        ),
        (
            Method::DELETE,
            "/api/v1/nodes/a?propagationPolicy=Foreground",
            "",
            None,
        ),
        (Method::GET, "/api/v1/nodes/a/proxy", "", None),
        (
            Method::POST,
            "/api/v1/namespaces/default/secrets",
            "",
            Some(json!({ "metadata": { "name": "a" }, "type": "kubernetes.io/dockercfg" })),
        ),
        (
            Method::GET,
            "/api/v1/nodes?watch=true&resourceVersion=1",
            "",
            None,
        ),
    ] {
        let (code, status) = cluster.call(&method, path, content, body.as_ref());
        assert_eq!(
            code,
            StatusCode::NOT_IMPLEMENTED,
            "{method} {path}: {status}"
        );
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .starts_with("the simulator does not support "),
            "{status}"
        );
    }
    assert_eq!(cluster.get("/api/v1/nodes/a"), None);
}

#[test]
fn the_same_seed_gives_the_same_objects() {
    let run = |seed| {
        let cluster = Cluster::new(Settings {
            name: "one".into(),
            seed,
            wall: Wall::fixed(5),
            managed_fields: false,
        });
        make(&cluster, "a");
        cluster.get("/api/v1/nodes/a").unwrap().to_string()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
