//! Follows one kind of object in one cluster: a list, then a watch from there,
//! for ever. Says when the watch stands and when it does not, which is what
//! tells a quiet cluster from a dead one.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::failure::Failure;

/// What was seen of a kind of object.
#[derive(Debug, Clone, PartialEq)]
pub enum Observed<T> {
    /// All there are, as of this version.
    Listed {
        items: Vec<T>,
        version: Version,
    },
    Set {
        item: T,
        version: Version,
    },
    Gone {
        item: T,
        version: Version,
    },
    /// The watch stands again after it was broken.
    Standing,
    /// It can't be followed at the moment.
    Broken(Failure),
}

/// A resourceVersion. API servers count them up, and nothing else orders what
/// a watch says with what the answer to a write said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version(u64);

impl Version {
    pub fn of(text: Option<&str>) -> Version {
        Version(text.and_then(|text| text.parse().ok()).unwrap_or_default())
    }
}

/// What to follow, and how much of it is too much.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    pub field_selector: Option<String>,
    pub label_selector: Option<String>,
    pub most: Option<usize>,
}

impl Scope {
    /// The one object of this name.
    pub fn named(name: &str) -> Scope {
        Scope { field_selector: Some(format!("metadata.name={name}")), ..Scope::default() }
    }

    pub fn labelled(selector: &str) -> Scope {
        Scope { label_selector: Some(selector.to_owned()), ..Scope::default() }
    }
}

/// How the server is asked.
#[derive(Debug)]
pub struct Manner {
    pub scope: Scope,
    pub backoff: Backoff,
    /// Lists again whenever it rings.
    pub relist: Arc<Notify>,
}

/// Has everybody list again who follows something. Not tokio's `watch`, which
/// wakes them in an order of its own each time.
#[derive(Debug, Default)]
pub struct Bell(Vec<Arc<Notify>>);

impl Bell {
    pub fn listen(&mut self) -> Arc<Notify> {
        // Those who ended took their half with them.
        self.0.retain(|listener| Arc::strong_count(listener) > 1);
        let listener = Arc::new(Notify::new());
        self.0.push(Arc::clone(&listener));
        listener
    }

    pub fn ring(&self) {
        self.0.iter().for_each(|listener| listener.notify_one());
    }
}

const PAGE: u32 = 100;
/// How long a watch lasts at most; a server that forgets us is noticed then.
const WATCH_SECONDS: u32 = 240;
const WATCH_SLACK: Duration = Duration::from_secs(5);
const LONGEST_LAG: Duration = Duration::from_secs(60);
/// A watch that lasted this long worked.
const LASTING: Duration = Duration::from_secs(5);

enum Next {
    Relist,
    Rewatch,
}

/// Where to say what was seen. A slow receiver slows the watch.
#[derive(Debug)]
pub struct Outlet<E, W> {
    pub events: mpsc::Sender<E>,
    /// Makes the receiver's event.
    pub wrap: W,
}

impl<E: Send, W> Outlet<E, W> {
    async fn tell<T>(&self, observed: Observed<T>)
    where
        W: Fn(Observed<T>) -> E,
    {
        // Without a receiver we end in a moment.
        _ = self.events.send((self.wrap)(observed)).await;
    }
}

/// Never returns.
pub async fn follow<K, T, E, W>(api: Api<K>, mut manner: Manner, project: impl Fn(K) -> T, outlet: Outlet<E, W>)
where
    K: Resource + Clone + DeserializeOwned + Debug,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    let mut past = Past::default();
    loop {
        // What rang before is answered by this list.
        _ = manner.relist.notified().now_or_never();
        let listed = list(&api, &manner.scope, &project).await;
        let listed = listed.and_then(|(items, version)| past.admits(&version).map(|()| (items, version)));
        let version = match listed {
            Ok((items, version)) => {
                outlet.tell(Observed::Listed { items, version: Version::of(Some(&version)) }).await;
                version
            }
            Err(failure) => {
                let wait = manner.backoff.next(failure.retry_after());
                outlet.tell(Observed::Broken(failure)).await;
                sleep(wait).await;
                continue;
            }
        };
        let seen = watch_from(&api, &mut manner, version, &project, &outlet).await;
        past.newest = Version::of(Some(&seen));
    }
}

/// What a server has said before. One of several that lags must not take us
/// back in time: what has come since would look as if it had gone.
#[derive(Debug, Default)]
struct Past {
    newest: Version,
    /// Since when answers have been older than that.
    back_since: Option<Instant>,
}

impl Past {
    fn admits(&mut self, version: &str) -> Result<(), Failure> {
        if Version::of(Some(version)) >= self.newest {
            self.back_since = None;
            return Ok(());
        }
        // Nobody lags that long: the cluster was restored from a backup.
        match self.back_since.get_or_insert_with(Instant::now).elapsed() >= LONGEST_LAG {
            true => Ok(()),
            false => Err(Failure::Unreadable("it answers from an older state than before".to_owned())),
        }
    }
}

/// Each page is projected before the next is asked for: whole Nodes are large.
pub(crate) async fn list<K, T>(api: &Api<K>, scope: &Scope, project: &impl Fn(K) -> T) -> Result<(Vec<T>, String), Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams {
        limit: Some(PAGE),
        field_selector: scope.field_selector.clone(),
        label_selector: scope.label_selector.clone(),
        ..ListParams::default()
    };
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| Failure::of(&error))?;
        items.extend(page.items.into_iter().map(project));
        if let Some(most) = scope.most.filter(|most| items.len() > *most) {
            return Err(Failure::TooLarge(format!("it has more than {most} objects of one kind, which is not supported")));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((items, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

/// Returns when everything has to be listed again, with the last version seen.
async fn watch_from<K, T, E, W>(
    api: &Api<K>,
    manner: &mut Manner,
    mut version: String,
    project: &impl Fn(K) -> T,
    outlet: &Outlet<E, W>,
) -> String
where
    K: Resource + Clone + DeserializeOwned + Debug,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    let params = WatchParams {
        field_selector: manner.scope.field_selector.clone(),
        label_selector: manner.scope.label_selector.clone(),
        timeout: Some(WATCH_SECONDS),
        ..WatchParams::default()
    };
    let mut broken = false;
    loop {
        let started = Instant::now();
        let failure = match api.watch(&params, &version).await {
            Ok(events) => {
                if std::mem::take(&mut broken) {
                    outlet.tell(Observed::Standing).await;
                }
                let events = events.map_err(|error| Failure::of(&error)).boxed();
                match read(events, &manner.relist, &mut version, project, outlet).await {
                    Ok(Next::Relist) => return version,
                    Ok(Next::Rewatch) => None,
                    Err(failure) => Some(failure),
                }
            }
            Err(error) => {
                let failure = Failure::of(&error);
                if failure != Failure::Gone {
                    broken = true;
                    outlet.tell(Observed::Broken(failure.clone())).await;
                }
                Some(failure)
            }
        };
        if failure == Some(Failure::Gone) {
            return version;
        }
        if started.elapsed() >= LASTING {
            manner.backoff.reset();
        }
        // A watch that ended in time is renewed at once, one that was cut after a moment.
        if failure.is_some() || started.elapsed() < LASTING {
            sleep(manner.backoff.next(failure.and_then(|failure| failure.retry_after()))).await;
        }
    }
}

async fn read<K, T, E, W>(
    mut events: impl futures::Stream<Item = Result<WatchEvent<K>, Failure>> + Unpin,
    relist: &Notify,
    version: &mut String,
    project: &impl Fn(K) -> T,
    outlet: &Outlet<E, W>,
) -> Result<Next, Failure>
where
    K: Resource,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    let idle = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_SLACK;
    let seen = |object: &K, version: &mut String| {
        if let Some(found) = &object.meta().resource_version {
            version.clone_from(found);
        }
        Version::of(Some(version))
    };
    loop {
        let event = tokio::select! {
            biased;
            () = relist.notified() => return Ok(Next::Relist),
            event = timeout(idle, events.next()) => event.map_err(|_| Failure::Timeout(idle))?,
        };
        match event {
            None => return Ok(Next::Rewatch),
            Some(Err(failure)) => return Err(failure),
            Some(Ok(WatchEvent::Error(status))) => return Err(Failure::of_status(&status)),
            Some(Ok(WatchEvent::Bookmark(bookmark))) => *version = bookmark.metadata.resource_version,
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                let version = seen(&object, version);
                outlet.tell(Observed::Set { item: project(object), version }).await;
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                let version = seen(&object, version);
                outlet.tell(Observed::Gone { item: project(object), version }).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    /// Answers to requests in their order; what follows hangs.
    #[derive(Clone, Default)]
    struct Script {
        answers: Arc<Mutex<VecDeque<(u16, String)>>>,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Script {
        fn then(self, code: u16, body: impl ToString) -> Script {
            self.answers.lock().unwrap().push_back((code, body.to_string()));
            self
        }

        fn api(&self) -> Api<Node> {
            let script = self.clone();
            let answer = move |request: Request<Body>| {
                let script = script.clone();
                async move {
                    script.asked.lock().unwrap().push(request.uri().to_string());
                    let next = script.answers.lock().unwrap().pop_front();
                    match next {
                        Some((code, body)) => {
                            Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap())
                        }
                        None => std::future::pending().await,
                    }
                }
            };
            Api::all(Client::new(tower::service_fn(answer), "default"))
        }

        fn asked(&self) -> Vec<String> {
            let short = |uri: &String| if uri.contains("watch=true") { "watch" } else { "list" }.to_owned();
            self.asked.lock().unwrap().iter().map(short).collect()
        }
    }

    fn node(name: &str, version: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": version}})
    }

    fn list(version: &str, items: &[Value]) -> Value {
        json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": version}, "items": items})
    }

    fn status(code: u16) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "x", "code": code})
    }

    fn event(kind: &str, object: &Value) -> String {
        format!("{}\n", json!({"type": kind, "object": object}))
    }

    async fn told(script: &Script, count: usize) -> Vec<String> {
        let (events, mut seen) = mpsc::channel(16);
        let backoff = Backoff::new(fastrand::Rng::with_seed(1), Duration::from_millis(200), Duration::from_secs(10));
        let manner = Manner { scope: Scope { most: Some(3), ..Scope::default() }, backoff, relist: Arc::new(Notify::new()) };
        let outlet = Outlet { events, wrap: |observed: Observed<String>| observed };
        let following = tokio::spawn(follow(script.api(), manner, |node: Node| node.metadata.name.unwrap_or_default(), outlet));
        let mut lines = Vec::new();
        while lines.len() < count {
            lines.push(match seen.recv().await.unwrap() {
                Observed::Listed { items, .. } => format!("listed {}", items.join(" ")),
                Observed::Set { item, .. } => format!("set {item}"),
                Observed::Gone { item, .. } => format!("gone {item}"),
                Observed::Standing => "standing".to_owned(),
                Observed::Broken(failure) => format!("broken {}", failure.category()),
            });
        }
        following.abort();
        lines
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_goes_on_where_it_was() {
        let script = Script::default()
            .then(200, list("5", &[node("a", "3")]))
            .then(200, event("ADDED", &node("b", "6")))
            .then(200, event("DELETED", &node("a", "7")));
        assert_eq!(told(&script, 3).await, ["listed a", "set b", "gone a"]);
        assert_eq!(script.asked()[..3], ["list", "watch", "watch"]);
        assert!(script.asked.lock().unwrap()[2].contains("resourceVersion=6"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_too_old_is_listed_again() {
        let script = Script::default()
            .then(200, list("5", &[node("a", "3")]))
            .then(200, event("ERROR", &status(410)))
            .then(200, list("9", &[node("b", "8")]));
        assert_eq!(told(&script, 2).await, ["listed a", "listed b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_from_an_older_state_does_not_count_unless_it_stays() {
        let mut past = Past { newest: Version(9), back_since: None };
        assert!(past.admits("8").is_err());
        assert!(past.admits("9").is_ok(), "it caught up");
        assert!(past.admits("8").is_err());
        tokio::time::advance(LONGEST_LAG).await;
        assert!(past.admits("3").is_ok(), "it was restored from a backup");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_said_when_a_watch_breaks_and_when_it_stands_again() {
        let script = Script::default()
            .then(500, status(500))
            .then(200, list("5", &[]))
            .then(503, status(503))
            .then(200, event("ADDED", &node("a", "6")));
        assert_eq!(told(&script, 5).await, ["broken api", "listed ", "broken api", "standing", "set a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_objects_are_not_taken_for_all() {
        let page = |items: &[Value], token: &str| {
            let mut list = list("5", items);
            list["metadata"]["continue"] = token.into();
            list
        };
        let script = Script::default()
            .then(200, page(&[node("a", "1"), node("b", "2")], "next"))
            .then(200, page(&[node("c", "3"), node("d", "4")], ""));
        assert_eq!(told(&script, 1).await, ["broken too_large"]);
    }
}
