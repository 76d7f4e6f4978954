//! Informer for a collection, like those of client-go.
//!
//! Objects that were deleted while the watch was broken are noticed on relist, but not
//! reported: client-go passes a tombstone instead of the object, which Kilo does not
//! handle.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::Value;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::http::{Http, JSON};

/// Delay before an unreachable server is retried.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) enum Event {
    Added(Value),
    /// Old and new state.
    Updated(Value, Value),
    Deleted(Value),
}

pub(super) struct Informer {
    pub(super) http: Http,
    pub(super) collection: &'static str,
    pub(super) events: Sender<Event>,
    /// Interval of resyncs, which report all objects again.
    pub(super) resync: Duration,
    /// True while the agent is cut off from the server.
    pub(super) cut_off: watch::Receiver<bool>,
}

/// Known objects, and the resourceVersion of the last list or event.
#[derive(Default)]
struct Cache {
    objects: BTreeMap<String, Value>,
    version: String,
    told: Option<Instant>,
}

impl Informer {
    /// Runs until the receiver is dropped.
    pub(super) async fn run(mut self) {
        let mut cache = Cache::default();
        let mut is_listed = false;
        while !self.events.is_closed() {
            if self.cut_off.wait_for(|cut_off| !cut_off).await.is_err() {
                return;
            }
            if !is_listed {
                is_listed = self.list(&mut cache).await.is_ok();
            }
            // A watch that ends is resumed at its last version, if the server still has
            // it; otherwise all objects are listed again.
            if is_listed && let Err(Error::Object(_)) = self.watch(&mut cache).await {
                is_listed = false;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn list(&self, cache: &mut Cache) -> Result<()> {
        let list = self
            .http
            .expect(Method::GET, self.collection, JSON, None)
            .await?;
        cache.version = text(&list, "/metadata/resourceVersion");
        let items = list
            .get("items")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let listed: BTreeMap<String, Value> = items
            .into_iter()
            .map(|item| (text(&item, "/metadata/name"), item))
            .collect();
        cache.objects.retain(|name, _| listed.contains_key(name));
        for (name, object) in listed {
            self.store(cache, name, object).await;
        }
        Ok(())
    }

    async fn watch(&self, cache: &mut Cache) -> Result<()> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}",
            self.collection, cache.version
        );
        let mut events = self.http.watch(&path).await?;
        let mut cut_off = self.cut_off.clone();
        cache.told.get_or_insert_with(Instant::now);
        loop {
            let next = tokio::select! {
                biased;
                // Also if the connection is back by now: events in between are lost.
                _ = cut_off.changed() => return Err(Error::Object("cut off for too long".into())),
                next = tokio::time::timeout(self.until_resync(cache), events.next()) => next,
            };
            match next {
                Err(_) => self.tell_again(cache).await,
                Ok(Some(event)) => self.take(cache, event).await?,
                Ok(None) => return Ok(()),
            }
        }
    }

    async fn take(&self, cache: &mut Cache, mut event: Value) -> Result<()> {
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        let name = text(&object, "/metadata/name");
        let kind = text(&event, "/type");
        if kind == "ERROR" {
            return Err(Error::Object(text(&object, "/message")));
        }
        cache.version = text(&object, "/metadata/resourceVersion");
        match kind.as_str() {
            "ADDED" | "MODIFIED" => self.store(cache, name, object).await,
            "DELETED" => {
                cache.objects.remove(&name);
                self.tell(Event::Deleted(object)).await;
            }
            _ => {}
        }
        Ok(())
    }

    async fn store(&self, cache: &mut Cache, name: String, object: Value) {
        let event = match cache.objects.insert(name, object.clone()) {
            Some(old) => Event::Updated(old, object),
            None => Event::Added(object),
        };
        self.tell(event).await;
    }

    async fn tell(&self, event: Event) {
        // The receiver is gone if the agent has ended.
        let _ = self.events.send(event).await;
    }

    fn until_resync(&self, cache: &Cache) -> Duration {
        self.resync
            .saturating_sub(cache.told.map(|told| told.elapsed()).unwrap_or_default())
    }

    async fn tell_again(&self, cache: &mut Cache) {
        cache.told = Some(Instant::now());
        for object in cache.objects.values() {
            self.tell(Event::Updated(object.clone(), object.clone()))
                .await;
        }
    }
}

fn text(object: &Value, pointer: &str) -> String {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}
