//! Follows one kind of object in one cluster: a list, then a watch from there,
//! for ever. Says when the watch stands and when it does not, which is what
//! tells a quiet cluster from a dead one.

use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
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
    pub most: Option<usize>,
}

/// How the server is asked.
#[derive(Debug)]
pub struct Manner {
    pub scope: Scope,
    pub backoff: Backoff,
    /// Lists again whenever this changes.
    pub relist: watch::Receiver<u64>,
}

const PAGE: u32 = 500;
/// How long a watch lasts at most; a server that forgets us is noticed then.
const WATCH_SECONDS: u32 = 240;
const WATCH_SLACK: Duration = Duration::from_secs(5);
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
    loop {
        manner.relist.mark_unchanged();
        let version = match list(&api, &manner.scope).await {
            Ok((items, version)) => {
                let items = items.into_iter().map(&project).collect();
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
        watch_from(&api, &mut manner, version, &project, &outlet).await;
    }
}

async fn list<K>(api: &Api<K>, scope: &Scope) -> Result<(Vec<K>, String), Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams { limit: Some(PAGE), field_selector: scope.field_selector.clone(), ..ListParams::default() };
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| Failure::of(&error))?;
        items.extend(page.items);
        if let Some(most) = scope.most.filter(|most| items.len() > *most) {
            return Err(Failure::TooLarge(format!("it has more than {most} objects of one kind, which is not supported")));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((items, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

/// Returns when everything has to be listed again.
async fn watch_from<K, T, E, W>(api: &Api<K>, manner: &mut Manner, mut version: String, project: &impl Fn(K) -> T, outlet: &Outlet<E, W>)
where
    K: Resource + Clone + DeserializeOwned + Debug,
    W: Fn(Observed<T>) -> E,
    E: Send,
{
    let params =
        WatchParams { field_selector: manner.scope.field_selector.clone(), timeout: Some(WATCH_SECONDS), ..WatchParams::default() };
    let mut broken = false;
    loop {
        let started = Instant::now();
        let failure = match api.watch(&params, &version).await {
            Ok(events) => {
                if std::mem::take(&mut broken) {
                    outlet.tell(Observed::Standing).await;
                }
                let events = events.map_err(|error| Failure::of(&error)).boxed();
                match read(events, &mut manner.relist, &mut version, project, outlet).await {
                    Ok(Next::Relist) => return,
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
            return;
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
    relist: &mut watch::Receiver<u64>,
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
            () = asked(relist) => return Ok(Next::Relist),
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

/// Until a new list is asked for; for ever, when nobody is left to ask.
async fn asked(relist: &mut watch::Receiver<u64>) {
    if relist.changed().await.is_err() {
        std::future::pending().await
    }
}
