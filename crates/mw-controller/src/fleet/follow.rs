//! Lists and watches one kind of object in one cluster, forever. Reports when the
//! watch breaks and when it is established again, which tells a quiet cluster
//! from a dead one.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::fleet::list::{
    KnownObject, Listed, ObjectKey, ObjectKeys, Scope, list_within, uid_hash,
};
use crate::fleet::memory::{Footprint, MemoryBudget, MemoryShare};

/// Observation of a kind of object.
#[derive(Debug, Clone, PartialEq)]
pub enum Observed<T> {
    /// All objects as of this version.
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
    /// The watch is established again after it was broken.
    Established,
    /// The list or watch failed.
    Broken(Failure),
}

/// A resourceVersion. API servers count them up, and nothing else orders watch
/// events and responses to writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version(u64);

impl Version {
    pub fn of(text: Option<&str>) -> Version {
        Version(text.and_then(|text| text.parse().ok()).unwrap_or_default())
    }
}

/// Configuration of a watch.
#[derive(Debug)]
pub struct WatchConfig {
    pub scope: Scope,
    pub backoff: Backoff,
    /// Triggers a relist.
    pub relist: Arc<Notify>,
    /// An older state counts only if a list this much later still shows it.
    pub resync: Duration,
}

/// Triggers a relist of several watches. Not tokio's `watch`, which wakes its
/// receivers in varying order.
#[derive(Debug, Default)]
pub struct RelistSignal(Vec<Arc<Notify>>);

impl RelistSignal {
    pub fn listen(&mut self) -> Arc<Notify> {
        // Drops listeners whose watch has ended.
        self.0.retain(|listener| Arc::strong_count(listener) > 1);
        let listener = Arc::new(Notify::new());
        self.0.push(Arc::clone(&listener));
        listener
    }

    pub fn ring(&self) {
        self.0.iter().for_each(|listener| listener.notify_one());
    }
}

/// Maximum duration of a watch, after which a server that stopped sending is noticed.
const WATCH_SECONDS: u32 = 240;
/// Default interval between relists.
pub const RESYNC: Duration = Duration::from_secs(600);
const WATCH_SLACK: Duration = Duration::from_secs(5);
/// A watch that lasted this long resets the backoff.
const LASTING: Duration = Duration::from_secs(5);

enum Next {
    Relist,
    Rewatch,
}

/// Receiver of observations. A slow receiver slows down the watch.
#[derive(Debug)]
pub struct EventSink<E, W> {
    pub events: mpsc::Sender<E>,
    /// Wraps an observation into the receiver's event.
    pub wrap: W,
}

impl<E: Send, W> EventSink<E, W> {
    async fn tell<T>(&self, observed: Observed<T>)
    where
        W: Fn(Observed<T>) -> E,
    {
        // Without a receiver the task is about to be aborted.
        _ = self.events.send((self.wrap)(observed)).await;
    }
}

/// Lists and watches on the hub. Never returns.
pub async fn follow<K, T, E, W>(
    api: Api<K>,
    watch_config: WatchConfig,
    project: impl Fn(K) -> T,
    sink: EventSink<E, W>,
) where
    K: Resource + Clone + DeserializeOwned + Debug,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    follow_within(
        api,
        watch_config,
        project,
        History::of(MemoryShare::unlimited()),
        sink,
    )
    .await;
}

/// Lists and watches in a member, whose objects must fit into the budget. Never
/// returns.
pub async fn follow_member<K, T, E, W>(
    api: Api<K>,
    watch_config: WatchConfig,
    project: impl Fn(K) -> T,
    memory: MemoryBudget,
    sink: EventSink<E, W>,
) where
    K: Resource + Clone + DeserializeOwned + Debug,
    T: Footprint,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    follow_within(
        api,
        watch_config,
        project,
        History::of(MemoryShare::of(memory)),
        sink,
    )
    .await;
}

async fn follow_within<K, T, E, W>(
    api: Api<K>,
    mut watch_config: WatchConfig,
    project: impl Fn(K) -> T,
    mut history: History<T>,
    sink: EventSink<E, W>,
) where
    K: Resource + Clone + DeserializeOwned + Debug,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    loop {
        // This list answers earlier requests to relist.
        _ = watch_config.relist.notified().now_or_never();
        match list_twice_if_needed(&api, &watch_config, &mut history, &project).await {
            Ok(Listed {
                items,
                version,
                keys,
            }) => {
                (history.newest, history.keys) = (Version::of(Some(&version)), keys);
                sink.tell(Observed::Listed {
                    items,
                    version: history.newest,
                })
                .await;
                watch_from(
                    &api,
                    &mut watch_config,
                    version,
                    &mut history,
                    &project,
                    &sink,
                )
                .await;
            }
            Err(failure) => {
                history.memory.give_up();
                let wait = watch_config.backoff.next(failure.retry_after());
                sink.tell(Observed::Broken(failure)).await;
                sleep(wait).await;
            }
        }
    }
}

/// The kind of a watch event about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Added,
    Modified,
    Deleted,
}

/// Objects that a server has shown so far, to check its next response against.
#[derive(Debug)]
struct History<T> {
    newest: Version,
    keys: ObjectKeys,
    /// Time and version of the first list older than `newest`.
    back: Option<(Instant, Version)>,
    memory: MemoryShare<T>,
}

impl<T> History<T> {
    fn of(memory: MemoryShare<T>) -> History<T> {
        History {
            newest: Version::default(),
            keys: ObjectKeys::new(),
            back: None,
            memory,
        }
    }

    /// Refuses a list that is older than the previous one: one of several API
    /// servers may lag, and newer objects would look deleted. A cluster that was
    /// restored from a backup still shows the older state a resync later.
    fn admit(&mut self, version: Version, resync: Duration) -> Result<(), Failure> {
        if version >= self.newest {
            self.back = None;
            return Ok(());
        }
        match self.back {
            Some((since, first)) if version >= first && since.elapsed() >= resync => return Ok(()),
            Some((_, first)) if version >= first => {}
            _ => self.back = Some((Instant::now(), version)),
        }
        Err(Failure::Wrong(
            "list is older than the previous one".to_owned(),
        ))
    }

    fn check_order(&self, version: Version) -> Result<(), Failure> {
        match version < self.newest {
            true => Err(Failure::Wrong(
                "watch event is older than the previous one".to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// Records an object from a watch event, and returns its projection.
    fn note<K: Resource>(
        &mut self,
        object: K,
        change: Change,
        (scope, namespace): (&Scope, Option<&str>),
        project: &impl Fn(K) -> T,
    ) -> Result<(T, Version), Failure> {
        let meta = object.meta();
        scope.check(namespace, meta)?;
        let version = Version::of(meta.resource_version.as_deref());
        self.check_order(version)?;
        let (key, uid) = (ObjectKey::of(meta), uid_hash(meta));
        match (self.keys.get(&key), change) {
            (None, Change::Modified) => {
                return Err(Failure::Wrong(
                    "watch event modifies an object that is missing from the list".to_owned(),
                ));
            }
            (Some(known), _) if known.uid != uid => {
                return Err(Failure::Wrong(
                    "watch event replaces an object without a delete event".to_owned(),
                ));
            }
            _ => {}
        }
        let item = project(object);
        let before = self.keys.get(&key).map_or(0, |known| known.size);
        match change {
            Change::Deleted => {
                self.memory.forget(before);
                self.keys.remove(&key);
            }
            Change::Added | Change::Modified => {
                let size = self.memory.keep(&item, before)?;
                self.keys.insert(key, KnownObject { uid, size });
            }
        }
        self.newest = version;
        if self.keys.len() > scope.most {
            Err(scope.too_many())
        } else {
            Ok((item, version))
        }
    }
}

/// Lists again if objects are missing without a delete event: they count as
/// deleted only if the second list omits them too.
async fn list_twice_if_needed<K, T>(
    api: &Api<K>,
    watch_config: &WatchConfig,
    history: &mut History<T>,
    project: &impl Fn(K) -> T,
) -> Result<Listed<T>, Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut listed = list_within(api, &watch_config.scope, project, &mut history.memory).await?;
    history.admit(Version::of(Some(&listed.version)), watch_config.resync)?;
    let vanished: Vec<ObjectKey> = history
        .keys
        .keys()
        .filter(|key| !listed.keys.contains_key(key))
        .copied()
        .collect();
    if !vanished.is_empty() {
        drop(listed);
        listed = list_within(api, &watch_config.scope, project, &mut history.memory).await?;
        history.admit(Version::of(Some(&listed.version)), watch_config.resync)?;
        if vanished.iter().any(|key| listed.keys.contains_key(key)) {
            return Err(Failure::Wrong(
                "list omits objects that the next list contains".to_owned(),
            ));
        }
    }
    history.memory.keep_list()?;
    Ok(listed)
}

/// Watches until a relist is needed.
async fn watch_from<K, T, E, W>(
    api: &Api<K>,
    watch_config: &mut WatchConfig,
    mut version: String,
    history: &mut History<T>,
    project: &impl Fn(K) -> T,
    sink: &EventSink<E, W>,
) where
    K: Resource + Clone + DeserializeOwned + Debug,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    let params = WatchParams {
        field_selector: watch_config.scope.field_selector(),
        label_selector: watch_config.scope.label_selector.clone(),
        timeout: Some(WATCH_SECONDS),
        ..WatchParams::default()
    };
    let mut broken = false;
    let listed = Instant::now();
    loop {
        let started = Instant::now();
        let ended = match api.watch(&params, &version).await {
            Ok(events) => {
                if std::mem::take(&mut broken) {
                    sink.tell(Observed::Established).await;
                }
                let events = events.map_err(|error| Failure::of(&error)).boxed();
                let mut watch = Watch {
                    scope: &watch_config.scope,
                    namespace: api.namespace(),
                    version: &mut version,
                    history,
                };
                watch
                    .read(events, &watch_config.relist, project, sink)
                    .await
            }
            Err(error) => {
                let failure = Failure::of(&error);
                if failure != Failure::Gone {
                    broken = true;
                    sink.tell(Observed::Broken(failure.clone())).await;
                }
                Err(failure)
            }
        };
        let failure = match ended {
            Ok(Next::Relist) => return,
            // A server that lists one state and watches another would loop without pause.
            Err(Failure::Gone) if listed.elapsed() < LASTING => {
                return sleep(watch_config.backoff.next(None)).await;
            }
            Err(Failure::Gone) => return,
            Ok(Next::Rewatch) => None,
            Err(failure) => Some(failure),
        };
        if started.elapsed() >= LASTING {
            watch_config.backoff.reset();
        }
        // A watch that ran its full time is renewed at once, one that was cut off after a backoff.
        if failure.is_some() || started.elapsed() < LASTING {
            let wait = watch_config
                .backoff
                .next(failure.as_ref().and_then(Failure::retry_after));
            if let Some(wrong) = failure.filter(Failure::demands_a_list) {
                sink.tell(Observed::Broken(wrong)).await;
                return sleep(wait).await;
            }
            sleep(wait).await;
        }
    }
}

/// An open watch.
struct Watch<'a, T> {
    scope: &'a Scope,
    namespace: Option<&'a str>,
    /// Version to resume from when it ends.
    version: &'a mut String,
    history: &'a mut History<T>,
}

impl<T> Watch<'_, T> {
    async fn read<K, E, W>(
        &mut self,
        mut events: impl futures::Stream<Item = Result<WatchEvent<K>, Failure>> + Unpin,
        relist: &Notify,
        project: &impl Fn(K) -> T,
        sink: &EventSink<E, W>,
    ) -> Result<Next, Failure>
    where
        K: Resource,
        W: Fn(Observed<T>) -> E,
        E: Send,
    {
        let idle = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_SLACK;
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
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    let found = bookmark.metadata.resource_version;
                    let version = Version::of(Some(&found));
                    self.history.check_order(version)?;
                    (self.history.newest, *self.version) = (version, found);
                }
                Some(Ok(WatchEvent::Added(object))) => {
                    let (item, version) = self.note(object, Change::Added, project)?;
                    sink.tell(Observed::Set { item, version }).await;
                }
                Some(Ok(WatchEvent::Modified(object))) => {
                    let (item, version) = self.note(object, Change::Modified, project)?;
                    sink.tell(Observed::Set { item, version }).await;
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    let (item, version) = self.note(object, Change::Deleted, project)?;
                    sink.tell(Observed::Gone { item, version }).await;
                }
            }
        }
    }

    fn note<K: Resource>(
        &mut self,
        object: K,
        change: Change,
        project: &impl Fn(K) -> T,
    ) -> Result<(T, Version), Failure> {
        let found = object.meta().resource_version.clone();
        let noted = self
            .history
            .note(object, change, (self.scope, self.namespace), project)?;
        if let Some(found) = found {
            *self.version = found;
        }
        Ok(noted)
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

    /// Responses to requests, in order; further requests hang.
    #[derive(Clone, Default)]
    struct Script {
        answers: Arc<Mutex<VecDeque<(u16, String)>>>,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Script {
        fn then(self, code: u16, body: impl ToString) -> Script {
            self.answers
                .lock()
                .unwrap()
                .push_back((code, body.to_string()));
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
                        Some((code, body)) => Ok::<_, std::convert::Infallible>(
                            Response::builder()
                                .status(code)
                                .body(Body::from(body.into_bytes()))
                                .unwrap(),
                        ),
                        None => std::future::pending().await,
                    }
                }
            };
            Api::all(Client::new(tower::service_fn(answer), "default"))
        }

        fn asked(&self) -> Vec<String> {
            let short = |uri: &String| {
                if uri.contains("watch=true") {
                    "watch"
                } else {
                    "list"
                }
                .to_owned()
            };
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
        told_of(script, Scope::at_most(3), count).await
    }

    async fn told_of(script: &Script, scope: Scope, count: usize) -> Vec<String> {
        told_within(script, scope, count, MemoryBudget::new(usize::MAX)).await
    }

    async fn told_within(
        script: &Script,
        scope: Scope,
        count: usize,
        memory: MemoryBudget,
    ) -> Vec<String> {
        let (events, mut seen) = mpsc::channel(16);
        let backoff = Backoff::new(
            fastrand::Rng::with_seed(1),
            Duration::from_millis(200),
            Duration::from_secs(10),
        );
        let watch_config = WatchConfig {
            scope,
            backoff,
            relist: Arc::new(Notify::new()),
            resync: RESYNC,
        };
        let sink = EventSink {
            events,
            wrap: |observed: Observed<String>| observed,
        };
        let name = |node: Node| node.metadata.name.unwrap_or_default();
        let following = tokio::spawn(follow_member(
            script.api(),
            watch_config,
            name,
            memory,
            sink,
        ));
        let mut lines = Vec::new();
        while lines.len() < count {
            lines.push(match seen.recv().await.unwrap() {
                Observed::Listed { items, .. } => format!("listed {}", items.join(" ")),
                Observed::Set { item, .. } => format!("set {item}"),
                Observed::Gone { item, .. } => format!("gone {item}"),
                Observed::Established => "standing".to_owned(),
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
            .then(200, list("9", &[node("a", "3"), node("b", "8")]));
        assert_eq!(told(&script, 2).await, ["listed a", "listed a b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_state_counts_only_if_it_is_still_shown_a_resync_later() {
        let mut history = History {
            newest: Version(9),
            ..History::of(MemoryShare::<()>::unlimited())
        };
        let mut admits = |version| history.admit(Version(version), RESYNC).is_ok();
        assert!(!admits(8));
        assert!(admits(9), "it caught up");
        assert!(!admits(5));
        tokio::time::advance(RESYNC / 2).await;
        assert!(!admits(3), "older still: another server");
        tokio::time::advance(RESYNC / 2).await;
        assert!(!admits(4));
        tokio::time::advance(RESYNC / 2).await;
        assert!(admits(4), "it was restored from a backup");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_one_list_lacks_is_looked_for_in_a_second_one() {
        let both = || list("5", &[node("a", "3"), node("b", "4")]);
        let gone = || event("ERROR", &status(410));
        let shorter = || list("6", &[node("a", "3")]);
        let script = Script::default()
            .then(200, both())
            .then(200, gone())
            .then(200, shorter())
            .then(200, both())
            .then(200, both());
        assert_eq!(
            told(&script, 3).await,
            ["listed a b", "broken wrong_answer", "listed a b"]
        );
        let script = Script::default()
            .then(200, both())
            .then(200, gone())
            .then(200, shorter())
            .then(200, shorter());
        assert_eq!(told(&script, 2).await, ["listed a b", "listed a"]);
        assert_eq!(script.asked()[..4], ["list", "watch", "list", "list"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_that_the_watch_told_needs_no_second_list() {
        let script = Script::default()
            .then(200, list("5", &[node("a", "3"), node("b", "4")]))
            .then(
                200,
                event("DELETED", &node("b", "6")) + &event("ERROR", &status(410)),
            )
            .then(200, list("6", &[node("a", "3")]));
        assert_eq!(told(&script, 3).await, ["listed a b", "gone b", "listed a"]);
        assert_eq!(script.asked()[..4], ["list", "watch", "list", "watch"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_says_that_it_is_not_complete_is_not_taken_for_all() {
        let mut short = list("5", &[node("a", "3")]);
        short["metadata"]["remainingItemCount"] = 1.into();
        let script = Script::default()
            .then(200, short)
            .then(200, list("5", &[node("a", "3"), node("b", "4")]));
        assert_eq!(
            told(&script, 2).await,
            ["broken wrong_answer", "listed a b"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_goes_back_is_not_believed() {
        let script = Script::default()
            .then(200, list("5", &[node("a", "3")]))
            .then(200, event("DELETED", &node("a", "4")))
            .then(200, list("6", &[node("a", "3")]));
        assert_eq!(
            told(&script, 3).await,
            ["listed a", "broken wrong_answer", "listed a"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn another_object_of_that_name_is_not_believed_before_the_first_is_deleted() {
        let with_uid = |uid: &str, version: &str| {
            let mut node = node("a", version);
            node["metadata"]["uid"] = uid.into();
            node
        };
        let script = Script::default()
            .then(200, list("5", &[with_uid("1", "3")]))
            .then(200, event("DELETED", &with_uid("2", "6")))
            .then(200, list("7", &[with_uid("1", "3")]))
            .then(200, event("MODIFIED", &with_uid("2", "8")))
            .then(200, list("9", &[with_uid("1", "3")]))
            .then(
                200,
                event("DELETED", &with_uid("1", "10")) + &event("ADDED", &with_uid("2", "11")),
            );
        let doubted = [
            "listed a",
            "broken wrong_answer",
            "listed a",
            "broken wrong_answer",
            "listed a",
            "gone a",
            "set a",
        ];
        assert_eq!(told(&script, 7).await, doubted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bookmark_that_goes_back_is_not_believed() {
        let bookmark = |version: &str| {
            let meta = json!({"resourceVersion": version});
            event(
                "BOOKMARK",
                &json!({"apiVersion": "v1", "kind": "Node", "metadata": meta}),
            )
        };
        let script = Script::default()
            .then(200, list("5", &[node("a", "3")]))
            .then(200, bookmark("8") + &bookmark("7"))
            .then(200, list("8", &[node("a", "3")]))
            .then(200, bookmark("9") + &event("MODIFIED", &node("a", "8")))
            .then(200, list("9", &[node("a", "3")]));
        assert_eq!(
            told(&script, 5).await,
            [
                "listed a",
                "broken wrong_answer",
                "listed a",
                "broken wrong_answer",
                "listed a"
            ]
        );
        assert_eq!(script.asked()[..4], ["list", "watch", "list", "watch"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_an_object_that_the_list_lacks_makes_the_list_wrong() {
        let script = Script::default()
            .then(200, list("5", &[]))
            .then(200, event("MODIFIED", &node("a", "6")))
            .then(200, list("6", &[node("a", "6"), node("b", "3")]));
        assert_eq!(
            told(&script, 3).await,
            ["listed ", "broken wrong_answer", "listed a b"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn more_objects_than_supported_are_too_many_in_a_watch_too() {
        let many: String = (1..9)
            .map(|nth| event("ADDED", &node(&format!("n{nth}"), &(10 + nth).to_string())))
            .collect();
        let script = Script::default().then(200, list("5", &[])).then(200, many);
        assert_eq!(
            told(&script, 5).await,
            ["listed ", "set n1", "set n2", "set n3", "broken too_large"]
        );
    }

    /// A node whose projection takes 400 bytes more than its name.
    fn fat(name: &str, version: &str) -> Value {
        node(&format!("{name}{}", "x".repeat(400)), version)
    }

    async fn told_in_1000_bytes(script: &Script, count: usize) -> Vec<String> {
        let lines = told_within(script, Scope::at_most(9), count, MemoryBudget::new(4_000)).await;
        lines
            .iter()
            .map(|line| line.replace(&"x".repeat(400), "+"))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_takes_too_much_memory_is_given_up() {
        let script = Script::default()
            .then(
                200,
                list("5", &[fat("a", "1"), fat("b", "2"), fat("c", "3")]),
            )
            .then(200, list("6", &[fat("a", "1"), fat("b", "2")]));
        assert_eq!(
            told_in_1000_bytes(&script, 2).await,
            ["broken too_large", "listed a+ b+"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_grow_in_a_watch_are_too_large_too() {
        let grown = |name: &str, version: &str| {
            let mut node = fat(name, version);
            node["metadata"]["uid"] = name.into();
            event("ADDED", &node)
        };
        let script = Script::default()
            .then(200, list("5", &[fat("a", "3")]))
            .then(200, grown("b", "6") + &grown("c", "7"))
            .then(
                200,
                list("8", &[fat("a", "3"), fat("b", "6"), fat("c", "7")]),
            )
            .then(200, list("9", &[fat("a", "3")]))
            .then(200, list("9", &[fat("a", "3")]));
        assert_eq!(
            told_in_1000_bytes(&script, 5).await,
            [
                "listed a+",
                "set b+",
                "broken too_large",
                "broken too_large",
                "listed a+"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_replaced_or_deleted_takes_no_memory() {
        let script = Script::default()
            .then(200, list("5", &[fat("a", "1"), fat("b", "2")]))
            .then(
                200,
                event("DELETED", &fat("a", "6"))
                    + &event("ADDED", &fat("c", "7"))
                    + &event("MODIFIED", &fat("c", "8")),
            )
            .then(200, event("ERROR", &status(410)))
            .then(200, list("9", &[fat("b", "2"), fat("c", "8")]));
        assert_eq!(
            told_in_1000_bytes(&script, 5).await,
            [
                "listed a+ b+",
                "gone a+",
                "set c+",
                "set c+",
                "listed b+ c+"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_lists_are_always_too_old_is_not_asked_without_a_pause() {
        let script = (0..9).fold(Script::default(), |script, _| {
            script
                .then(200, list("5", &[node("a", "3")]))
                .then(200, event("ERROR", &status(410)))
        });
        let start = Instant::now();
        assert_eq!(told(&script, 9).await, ["listed a"; 9]);
        assert!(
            start.elapsed() > Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_of_another_name_is_a_wrong_answer() {
        let script = Script::default()
            .then(200, list("5", &[node("a", "3")]))
            .then(200, event("MODIFIED", &node("b", "6")));
        assert_eq!(
            told_of(&script, Scope::named("a"), 2).await,
            ["listed a", "broken wrong_answer"]
        );
        let script = Script::default().then(200, list("5", &[node("b", "3")]));
        assert_eq!(
            told_of(&script, Scope::named("a"), 1).await,
            ["broken wrong_answer"]
        );
        let script = Script::default().then(200, list("5", &[node("a", "3"), node("a", "4")]));
        assert_eq!(told(&script, 1).await, ["broken wrong_answer"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_without_end_are_given_up() {
        let page = |items: &[Value], token: &str| {
            let mut list = list("5", items);
            list["metadata"]["continue"] = token.into();
            list
        };
        let empty = Script::default().then(200, page(&[], "next"));
        assert_eq!(told(&empty, 1).await, ["broken too_large"]);
        let again = Script::default()
            .then(200, page(&[node("a", "1")], "next"))
            .then(200, page(&[node("b", "1")], "next"));
        assert_eq!(told(&again, 1).await, ["broken too_large"]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_said_when_a_watch_breaks_and_when_it_stands_again() {
        let script = Script::default()
            .then(500, status(500))
            .then(200, list("5", &[]))
            .then(503, status(503))
            .then(200, event("ADDED", &node("a", "6")));
        assert_eq!(
            told(&script, 5).await,
            ["broken api", "listed ", "broken api", "standing", "set a"]
        );
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
