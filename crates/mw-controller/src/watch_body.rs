//! Body of a watch: limits the length of each event, and for a member the rate of
//! events. A member that sends more is read later; its connection fills up, and
//! nobody else waits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::BoxError;

use crate::fleet::LARGEST_OBJECT;
use crate::metrics::RequestMetrics;
use crate::transport::TransportError;

/// Size limit of a watch event: an object and its envelope.
pub(crate) const LARGEST_EVENT: usize = LARGEST_OBJECT + (4 << 10);
/// Events of all watches of a member per second, in the long run. 10,000 Nodes whose
/// agents report every 30 s send 333.
const PER_SECOND: u32 = 2_000;
/// Events that may arrive at once, e.g. for all Peers after a large change.
const BURST: u32 = 10_000;
/// A larger event counts as several, so that their rate bounds the bytes too.
const BYTES_PER_EVENT: usize = 32 << 10;

/// Limit on the events of all watches of one member: a token bucket.
#[derive(Debug)]
pub(crate) struct EventRate {
    /// Time at which all events so far would have arrived at the permitted rate.
    due: Mutex<Instant>,
    metrics: RequestMetrics,
}

impl EventRate {
    pub(crate) fn new(metrics: RequestMetrics) -> EventRate {
        EventRate {
            due: Mutex::new(Instant::now()),
            metrics,
        }
    }

    /// Counts events, and returns when to read the next ones, if not now.
    fn charge(&self, events: u32) -> Option<Instant> {
        let now = Instant::now();
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        *due = now.max(*due) + Duration::from_secs(1) * events / PER_SECOND;
        let burst = Duration::from_secs(1) * BURST / PER_SECOND;
        let next = due.checked_sub(burst).filter(|next| *next > now);
        if next.is_some() {
            self.metrics.count_throttle();
        }
        next
    }
}

/// One event per line.
pub(crate) struct Events {
    inner: UnsyncBoxBody<Bytes, BoxError>,
    since_newline: usize,
    /// Bytes that were not counted yet.
    uncounted: usize,
    rate: Option<Arc<EventRate>>,
    paused: Option<Pin<Box<Sleep>>>,
}

impl Events {
    pub(crate) fn new(
        inner: UnsyncBoxBody<Bytes, BoxError>,
        rate: Option<Arc<EventRate>>,
    ) -> Events {
        Events {
            inner,
            since_newline: 0,
            uncounted: 0,
            rate,
            paused: None,
        }
    }

    fn measure(&mut self, data: &Bytes) -> Result<(), TransportError> {
        self.since_newline = match data.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => data.len() - last - 1,
            None => self.since_newline + data.len(),
        };
        match self.since_newline > LARGEST_EVENT {
            true => Err(TransportError::TooLarge("object exceeds 1.5 MiB")),
            false => Ok(()),
        }
    }

    fn pause_if_needed(&mut self, data: &Bytes) {
        let Some(rate) = &self.rate else {
            return;
        };
        self.uncounted += data.len();
        let lines = data.iter().filter(|byte| **byte == b'\n').count();
        let events = lines.max(self.uncounted / BYTES_PER_EVENT);
        if events > 0 {
            self.uncounted %= BYTES_PER_EVENT;
            let until = rate.charge(u32::try_from(events).unwrap_or(u32::MAX));
            self.paused = until.map(|until| Box::pin(sleep_until(until)));
        }
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(pause) = &mut self.paused {
            ready!(pause.as_mut().poll(cx));
            self.paused = None;
        }
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        if let Some(data) = frame.data_ref() {
            if let Err(wrong) = self.measure(data) {
                return Poll::Ready(Some(Err(wrong.into())));
            }
            self.pause_if_needed(data);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::future::ready;

    use futures::StreamExt;
    use futures::stream::{self, BoxStream};
    use http::{Request, Response};
    use http_body_util::{BodyExt, StreamBody};
    use k8s_openapi::api::core::v1::Node;
    use kube::client::Body;
    use kube::{Api, Config};
    use mw_core::names::ClusterId;
    use serde_json::json;
    use tokio::sync::mpsc::{self, Sender};
    use tokio::time::sleep;

    use crate::backoff::Backoff;
    use crate::fleet::MemoryBudget;
    use crate::fleet::follow::{EventSink, Observed, RESYNC, WatchConfig, follow_member};
    use crate::fleet::list::Scope;
    use crate::metrics::Metrics;
    use crate::permit::Permit;
    use crate::transport::{Rules, Timeouts, client_over};

    /// A member that has no Nodes, and sends these events to everybody who watches.
    fn member(
        name: &str,
        metrics: &Metrics,
        events: fn() -> BoxStream<'static, String>,
    ) -> Api<Node> {
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let texts = match query.contains("watch=true") {
                true => events(),
                false => {
                    let list = json!({"metadata": {"resourceVersion": "5"}, "items": []});
                    stream::once(ready(list.to_string())).boxed()
                }
            };
            let frames = texts.map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
            ready(Ok::<_, Infallible>(Response::new(StreamBody::new(frames))))
        });
        let rules = Rules {
            timeouts: Timeouts::of(Duration::from_secs(5)),
            permit: Permit::none(),
            metrics: metrics.of_cluster(&ClusterId::from(name)),
        };
        let rate = EventRate::new(rules.metrics.clone());
        let config = Config::new("http://member".parse().unwrap());
        Api::all(client_over(service, &config, rules, Some(rate)).unwrap())
    }

    fn event(version: u32) -> String {
        let meta = json!({"name": "n", "resourceVersion": version.to_string()});
        format!(
            "{}\n",
            json!({"type": "ADDED", "object": {"apiVersion": "v1", "kind": "Node", "metadata": meta}})
        )
    }

    fn flood() -> BoxStream<'static, String> {
        stream::iter(6..).map(event).boxed()
    }

    fn one_every_second() -> BoxStream<'static, String> {
        let later = |version| async move {
            sleep(Duration::from_secs(1)).await;
            event(version)
        };
        stream::iter(6..).then(later).boxed()
    }

    async fn follow(api: Api<Node>, name: &'static str, events: Sender<&'static str>) {
        let watch_config = WatchConfig {
            scope: Scope::default(),
            backoff: Backoff::new(
                fastrand::Rng::with_seed(1),
                Duration::from_millis(200),
                Duration::from_secs(10),
            ),
            relist: Arc::default(),
            resync: RESYNC,
        };
        let sink = EventSink {
            events,
            wrap: |observed: Observed<String>| match observed {
                Observed::Set { .. } => name,
                _ => "",
            },
        };
        follow_member(
            api,
            watch_config,
            |_| String::new(),
            MemoryBudget::new(usize::MAX),
            sink,
        )
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_floods_delays_nobody() {
        let metrics = Metrics::default();
        let (sender, mut events) = mpsc::channel(16);
        let start = Instant::now();
        let followers = [("flood", flood as fn() -> _), ("quiet", one_every_second)];
        let tasks = followers.map(|(name, events)| {
            tokio::spawn(follow(member(name, &metrics, events), name, sender.clone()))
        });
        let (mut flooded, mut on_time) = (0, 0);
        while on_time < 20 {
            match events.recv().await.unwrap() {
                "flood" => flooded += 1,
                "quiet" => {
                    on_time += 1;
                    assert!(start.elapsed() < Duration::from_millis(on_time * 1_000 + 100));
                }
                _ => {}
            }
            let permitted =
                f64::from(BURST) + f64::from(PER_SECOND) * start.elapsed().as_secs_f64();
            assert!(
                f64::from(flooded) <= permitted + 2.0,
                "{flooded} events after {:?}",
                start.elapsed()
            );
        }
        tasks.iter().for_each(|task| task.abort());
        assert!(flooded > BURST + 19 * PER_SECOND, "{flooded}");
        let text = metrics.text();
        let throttles =
            |name: &str| text.contains(&format!(r#"watch_throttles_total{{cluster="{name}""#));
        assert_eq!(
            (throttles("flood"), throttles("quiet")),
            (true, false),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn large_events_count_as_several() {
        let rate = EventRate::new(Metrics::default().of_cluster(&ClusterId::from("c")));
        assert_eq!(rate.charge(BURST), None);
        let large = Bytes::from(format!("{}\n", "x".repeat(1 << 20)));
        let frames = stream::iter(0..64).map(move |_| Ok(Frame::data(large.clone())));
        let body = StreamBody::new(frames).boxed_unsync();
        let start = Instant::now();
        let read = Events::new(body, Some(Arc::new(rate))).collect().await;
        assert_eq!(read.unwrap().to_bytes().len(), 64 * ((1 << 20) + 1));
        assert_eq!(start.elapsed().as_secs(), 1);
    }
}
