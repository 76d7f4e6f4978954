//! Effects of each fault of the proxy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{CONFIG_MAPS, QUIET, SOON, client, config_map, shared};
use futures::StreamExt;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use mw_testbed::proxy::{Effect, Fault, Match, Moment, ProxyOutcome, Trigger, Verb, lies};
use mw_testbed::{Cluster, FaultProxy, eventually};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Starts a proxy in front of a shared cluster.
async fn proxied(name: &str) -> Option<(&'static Cluster, FaultProxy)> {
    let cluster = shared().await?.cluster(name).unwrap();
    Some((cluster, FaultProxy::start(cluster).unwrap()))
}

async fn exists(cluster: &Cluster, name: &str) -> bool {
    cluster
        .get(&format!("{CONFIG_MAPS}/{name}"))
        .await
        .unwrap()
        .is_some()
}

/// Returns a client that uses HTTP/1.1.
async fn maps(cluster: &Cluster, proxy: &FaultProxy) -> Api<ConfigMap> {
    Api::namespaced(
        client(&proxy.front(&cluster.admin_kubeconfig())).await,
        "default",
    )
}

/// An HTTP/2 connection without a pool: a broken one is not replaced silently.
struct Http2 {
    sender: http2::SendRequest<Empty<Bytes>>,
    url: String,
    token: String,
}

impl Http2 {
    async fn connect(cluster: &Cluster, proxy: &FaultProxy) -> Self {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(cluster.ca_pem().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let mut tls = tls.with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(proxy.url().trim_start_matches("https://"))
            .await
            .unwrap();
        let stream = TlsConnector::from(Arc::new(tls))
            .connect("127.0.0.1".try_into().unwrap(), stream)
            .await
            .unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self {
            sender,
            url: proxy.url().to_owned(),
            token: cluster.admin_token().to_owned(),
        }
    }

    async fn open(&mut self, path: &str) -> Incoming {
        let request = Request::get(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {}", self.token));
        let answer = self
            .sender
            .send_request(request.body(Empty::new()).unwrap())
            .await
            .unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.version()),
            (200, Version::HTTP_2)
        );
        answer.into_body()
    }
}

/// Reads an event of a watch. Events are small and arrive separately here, so each is
/// one frame.
async fn next_event(watch: &mut Incoming) -> Result<serde_json::Value, String> {
    let frame = watch
        .frame()
        .await
        .ok_or("the watch ended")?
        .map_err(|error| format!("{error:?}"))?;
    serde_json::from_slice(&frame.into_data().unwrap_or_default())
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn without_faults_both_protocols_pass_and_are_counted() {
    let Some((cluster, proxy)) = proxied("west").await else {
        return;
    };
    let by_http2 = proxy
        .request("POST", CONFIG_MAPS, Some(&config_map("passes")))
        .await
        .unwrap();
    assert_eq!(by_http2.code, 201);
    let by_http1 = maps(cluster, &proxy).await.get("passes").await.unwrap();
    assert_eq!(by_http1.metadata.name.as_deref(), Some("passes"));
    assert_eq!(
        proxy
            .request("GET", "/api/v1/namespaces/default/configmaps/missing", None)
            .await
            .unwrap()
            .code,
        404
    );

    let count = |verb, code| {
        proxy
            .counts()
            .get(&(verb, "configmaps".to_owned(), ProxyOutcome::Code(code)))
            .copied()
    };
    assert_eq!(
        (
            count(Verb::Create, 201),
            count(Verb::Get, 200),
            count(Verb::Get, 404)
        ),
        (Some(1), Some(1), Some(1))
    );
    assert_eq!(proxy.count(&Match::verb(Verb::Get).name("missing")), 1);
    proxy.forget_counts();
    assert!(proxy.requests().is_empty());
}

#[tokio::test]
async fn a_delay_holds_back_what_it_matches_and_nothing_else() {
    let Some((_, proxy)) = proxied("west").await else {
        return;
    };
    let delay = Duration::from_millis(700);
    proxy.add(Fault::new(
        Match::verb(Verb::List).resource("nodes"),
        Effect::Delay(delay),
    ));
    let start = Instant::now();
    assert_eq!(
        proxy
            .request("GET", "/api/v1/nodes", None)
            .await
            .unwrap()
            .code,
        200
    );
    assert!(start.elapsed() >= delay);
    proxy.switch(false);
    assert!(
        tokio::time::timeout(delay, proxy.request("GET", "/api/v1/nodes", None))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_drop_before_has_no_effect_and_a_drop_after_has_one() {
    let Some((cluster, proxy)) = proxied("west").await else {
        return;
    };
    let writes = || Match::verb(Verb::Create).resource("configmaps");
    proxy.add(Fault::new(writes(), Effect::DropBefore).times(1));
    let api = maps(cluster, &proxy).await;
    let create = async |name: &str| {
        let map = serde_json::from_value(config_map(name)).unwrap();
        api.create(&PostParams::default(), &map).await
    };
    assert!(matches!(
        create("dropped-before").await,
        Err(kube::Error::HyperError(_) | kube::Error::Service(_))
    ));
    assert!(!exists(cluster, "dropped-before").await);

    proxy.add(Fault::new(writes(), Effect::DropAfter).times(1));
    assert!(matches!(
        create("dropped-after").await,
        Err(kube::Error::HyperError(_) | kube::Error::Service(_))
    ));
    assert!(exists(cluster, "dropped-after").await);
    assert!(create("dropped-no-more").await.is_ok());

    proxy.add(Fault::new(writes(), Effect::DropAfter));
    assert!(
        proxy
            .request("POST", CONFIG_MAPS, Some(&config_map("dropped-http2")))
            .await
            .is_err()
    );
    assert!(exists(cluster, "dropped-http2").await);
    let dropped = proxy
        .counts()
        .get(&(Verb::Create, "configmaps".to_owned(), ProxyOutcome::Dropped))
        .copied();
    assert_eq!(dropped, Some(3));
}

#[tokio::test]
async fn a_hung_request_is_never_answered_while_others_are() {
    let Some((_, proxy)) = proxied("west").await else {
        return;
    };
    let fault = proxy.add(Fault::new(Match::all().resource("secrets"), Effect::Hang));
    assert!(
        tokio::time::timeout(QUIET, proxy.request("GET", "/api/v1/secrets", None))
            .await
            .is_err()
    );
    assert_eq!(
        proxy
            .request("GET", "/api/v1/nodes", None)
            .await
            .unwrap()
            .code,
        200
    );
    assert_eq!(
        proxy.requests().first().map(|(_, outcome)| *outcome),
        Some(ProxyOutcome::Hung)
    );
    proxy.remove(fault);
    assert_eq!(
        proxy
            .request("GET", "/api/v1/secrets", None)
            .await
            .unwrap()
            .code,
        200
    );
}

#[tokio::test]
async fn an_injected_answer_is_a_status_that_clients_understand() {
    let Some((cluster, proxy)) = proxied("west").await else {
        return;
    };
    let api = maps(cluster, &proxy).await;
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
    ] {
        proxy.add(Fault::new(Match::verb(Verb::Get).name("x"), Effect::answer(code)).times(1));
        let Err(kube::Error::Api(status)) = api.get("x").await else {
            panic!("no Status for {code}")
        };
        assert_eq!((status.code, status.reason.as_str()), (code, reason));
        let retry = status.details.map(|details| details.retry_after_seconds);
        assert_eq!(retry, Some(u32::from(code == 429)));
    }
    proxy.add(
        Fault::new(Match::all(), Effect::answer(503))
            .skip(1)
            .times(1),
    );
    let codes =
        [api.get("x").await, api.get("x").await, api.get("x").await].map(|answer| match answer {
            Err(kube::Error::Api(status)) => status.code,
            other => panic!("{other:?}"),
        });
    assert_eq!(codes, [404, 503, 404]);
}

#[tokio::test]
async fn a_cut_ends_the_watches_it_matches_and_events_stream_until_then() {
    let Some((cluster, proxy)) = proxied("west").await else {
        return;
    };
    let api = maps(cluster, &proxy).await;
    let params = WatchParams::default()
        .fields("metadata.name=streamed")
        .disable_bookmarks();
    let mut events = api.watch(&params, "0").await.unwrap().boxed();
    proxy.cut_watches(Match::all().resource("nodes"));
    cluster.create(&config_map("streamed")).await.unwrap();
    let first = tokio::time::timeout(SOON, events.next())
        .await
        .expect("the event arrives while the watch is open");
    assert!(matches!(first, Some(Ok(WatchEvent::Added(_)))), "{first:?}");

    proxy.cut_watches(Match::all().resource("configmaps"));
    let rest = tokio::time::timeout(SOON, events.next())
        .await
        .expect("the watch ends");
    assert!(!matches!(rest, Some(Ok(_))), "{rest:?}");
}

#[tokio::test]
async fn a_cut_over_http2_ends_one_stream_and_leaves_its_connection() {
    let Some((cluster, proxy)) = proxied("west").await else {
        return;
    };
    let watched =
        |name: &str| format!("{CONFIG_MAPS}?watch=true&fieldSelector=metadata.name%3D{name}");
    let mut client = Http2::connect(cluster, &proxy).await;
    let mut maps = client.open(&watched("streamed-http2")).await;
    let mut nodes = client.open("/api/v1/nodes?watch=true").await;
    proxy.cut_watches(Match::all().resource("secrets"));
    cluster.create(&config_map("streamed-http2")).await.unwrap();
    let event = tokio::time::timeout(SOON, next_event(&mut maps))
        .await
        .expect("the event arrives while the watch is open")
        .unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "streamed-http2");

    proxy.cut_watches(Match::all().resource("configmaps"));
    let rest = tokio::time::timeout(SOON, next_event(&mut maps))
        .await
        .expect("the watch ends");
    let error = rest.expect_err("nothing comes after the cut");
    assert!(
        error.contains("INTERNAL_ERROR"),
        "the watch must break off, not end: {error}"
    );

    let node = serde_json::json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "streamed-http2" } });
    cluster.create(&node).await.unwrap();
    let event = tokio::time::timeout(SOON, next_event(&mut nodes))
        .await
        .expect("the other watch goes on")
        .unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "streamed-http2");
    let mut again = client.open(&watched("streamed-http2")).await;
    let event = tokio::time::timeout(SOON, next_event(&mut again))
        .await
        .expect("the connection takes new watches")
        .unwrap();
    assert_eq!(event["type"], "ADDED");
}

#[tokio::test]
async fn a_lie_about_a_list_changes_its_items_and_what_it_says_of_itself() {
    let Some((cluster, proxy)) = proxied("hub").await else {
        return;
    };
    let role = |name: &str| {
        let metadata = serde_json::json!({ "name": name, "labels": { "lied": "about" } });
        serde_json::json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [] })
    };
    for name in ["lied-1", "lied-2", "lied-3"] {
        cluster.create(&role(name)).await.unwrap();
    }
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles?labelSelector=lied%3Dabout";
    let told = async |lie: Effect| {
        proxy.add(Fault::new(Match::verb(Verb::List).resource("clusterroles"), lie).times(1));
        let list = proxy.request("GET", roles, None).await.unwrap().body;
        let names: Vec<_> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].clone())
            .collect();
        (names, list)
    };
    assert_eq!(told(lies::empty_list()).await.0, [""; 0]);
    let (names, list) = told(lies::truncated_list(1, true)).await;
    assert_eq!(
        (names.len(), &list["metadata"]["remainingItemCount"]),
        (1, &serde_json::json!(2))
    );
    assert_eq!(
        told(lies::truncated_list(1, false)).await.1["metadata"]["remainingItemCount"],
        serde_json::Value::Null
    );
    let (names, list) = told(lies::older_list(2, "7")).await;
    assert_eq!(
        (names.len(), &list["metadata"]["resourceVersion"]),
        (2, &serde_json::json!("7"))
    );
    let uids = [("lied-2".to_owned(), "u".to_owned())].into();
    assert_eq!(
        told(lies::other_uids(uids)).await.1["items"][1]["metadata"]["uid"],
        "u"
    );
    assert_eq!(
        told(lies::rewritten("lied-3".into(), "lied-4".into()))
            .await
            .0,
        ["lied-1", "lied-2", "lied-4"]
    );
    let endless = lies::endless_list(2, &role("any"));
    assert_eq!(told(endless.clone()).await.0, ["endless-0", "endless-1"]);
    let (names, list) = told(endless).await;
    assert_eq!(
        (names[0].as_str(), list["metadata"]["continue"].is_string()),
        (Some("endless-2"), true)
    );
}

#[tokio::test]
async fn a_lie_about_a_watch_leaves_events_out_and_tells_the_others() {
    let Some((cluster, proxy)) = proxied("west").await else {
        return;
    };
    proxy.add(Fault::new(
        Match::verb(Verb::Watch).resource("configmaps"),
        lies::without_deletes(),
    ));
    let api = maps(cluster, &proxy).await;
    let params = WatchParams::default()
        .fields("metadata.name=undeleted")
        .disable_bookmarks();
    let mut events = api.watch(&params, "0").await.unwrap().boxed();
    for _ in 0..2 {
        cluster.create(&config_map("undeleted")).await.unwrap();
        cluster
            .delete(&format!("{CONFIG_MAPS}/undeleted"))
            .await
            .unwrap();
    }
    for _ in 0..2 {
        let event = tokio::time::timeout(SOON, events.next())
            .await
            .expect("the event arrives");
        assert!(matches!(event, Some(Ok(WatchEvent::Added(_)))), "{event:?}");
    }
}

#[tokio::test]
async fn a_trigger_fires_once_at_the_nth_write_over_all_proxies() {
    let Some((cluster, first)) = proxied("west").await else {
        return;
    };
    let second = FaultProxy::start(cluster).unwrap();
    for (moment, name) in [
        (Moment::Before, "fired-before"),
        (Moment::After, "fired-after"),
    ] {
        let fired = Arc::new(AtomicU32::new(0));
        let seen = fired.clone();
        let hook = move || {
            seen.fetch_add(1, Ordering::SeqCst);
        };
        let trigger = Trigger::new(Match::writes().except("leases"), 3, moment, hook);
        first.add_trigger(trigger.clone());
        second.add_trigger(trigger.clone());
        let mut answered = Vec::new();
        for (at, proxy) in [&first, &second, &second, &first].into_iter().enumerate() {
            assert_eq!(
                proxy
                    .request("GET", "/api/v1/nodes", None)
                    .await
                    .unwrap()
                    .code,
                200
            );
            answered.push(
                proxy
                    .request(
                        "POST",
                        CONFIG_MAPS,
                        Some(&config_map(&format!("{name}-{at}"))),
                    )
                    .await
                    .is_ok(),
            );
        }
        assert_eq!(answered, [true, true, false, true]);
        assert!(trigger.has_fired() && fired.load(Ordering::SeqCst) == 1);
        assert_eq!(
            exists(cluster, &format!("{name}-2")).await,
            moment == Moment::After
        );
        assert!(exists(cluster, &format!("{name}-3")).await);
    }
}

#[tokio::test]
async fn a_refusing_proxy_closes_its_port_and_opens_it_again() {
    let Some((_, proxy)) = proxied("west").await else {
        return;
    };
    assert_eq!(
        proxy
            .request("GET", "/api/v1/nodes", None)
            .await
            .unwrap()
            .code,
        200
    );
    proxy.refuse(true).await.unwrap();
    // The client may first notice that its pooled connection is closed.
    eventually(SOON, || async {
        let error = proxy
            .request("GET", "/api/v1/nodes", None)
            .await
            .expect_err("nobody listens")
            .to_string();
        if error.contains("refused") {
            Ok(())
        } else {
            Err(error)
        }
    })
    .await
    .unwrap();
    proxy.refuse(false).await.unwrap();
    eventually(SOON, || proxy.request("GET", "/api/v1/nodes", None))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_dead_api_server_shows_as_a_closed_connection() {
    let Some(mut bed) = mw_testbed::Testbed::start_or_skip(&["mortal"]).await else {
        return;
    };
    let proxy = FaultProxy::start(bed.cluster("mortal").unwrap()).unwrap();
    assert_eq!(
        proxy
            .request("GET", "/api/v1/nodes", None)
            .await
            .unwrap()
            .code,
        200
    );
    bed.remove("mortal").unwrap();
    assert!(proxy.request("GET", "/api/v1/nodes", None).await.is_err());
    assert!(bed.cluster("mortal").is_err());
}
