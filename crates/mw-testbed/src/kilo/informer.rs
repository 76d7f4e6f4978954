//! Follows a collection of an API server as client-go's informers do.
//!
//! What went while the watch was broken is noticed when everything is listed
//! anew, but nobody is told: client-go hands over a marker in the place of the
//! object then, and Kilo does not know what to do with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::Value;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::http::{Http, JSON};

/// Between two attempts to reach a server that does not answer.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) enum Event {
    Added(Value),
    /// As it was, and as it is.
    Updated(Value, Value),
    Deleted(Value),
}

pub(super) struct Informer {
    pub(super) http: Http,
    pub(super) collection: &'static str,
    pub(super) events: Sender<Event>,
    /// How often everything is told again.
    pub(super) resync: Duration,
    /// Whether the way to the server is cut off.
    pub(super) cut_off: watch::Receiver<bool>,
}

/// What is known, and up to which version of the server's state.
#[derive(Default)]
struct Cache {
    objects: BTreeMap<String, Value>,
    version: String,
    told: Option<Instant>,
}

impl Informer {
    /// Until nobody listens any more.
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
            // A watch that ends is taken up where it broke off, if the server
            // still knows; else all is listed again.
            if is_listed && let Err(Error::Object(_)) = self.watch(&mut cache).await {
                is_listed = false;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn list(&self, cache: &mut Cache) -> Result<()> {
        let list = self.http.expect(Method::GET, self.collection, JSON, None).await?;
        cache.version = text(&list, "/metadata/resourceVersion");
        let items = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        let listed: BTreeMap<String, Value> = items.into_iter().map(|item| (text(&item, "/metadata/name"), item)).collect();
        cache.objects.retain(|name, _| listed.contains_key(name));
        for (name, object) in listed {
            self.store(cache, name, object).await;
        }
        Ok(())
    }

    async fn watch(&self, cache: &mut Cache) -> Result<()> {
        let path = format!("{}?watch=true&allowWatchBookmarks=true&resourceVersion={}", self.collection, cache.version);
        let mut events = self.http.watch(&path).await?;
        let mut cut_off = self.cut_off.clone();
        cache.told.get_or_insert_with(Instant::now);
        loop {
            let next = tokio::select! {
                biased;
                // Also when it is over by now: what was said meanwhile is lost.
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
        // Nobody listens to an agent that has ended.
        let _ = self.events.send(event).await;
    }

    fn until_resync(&self, cache: &Cache) -> Duration {
        self.resync.saturating_sub(cache.told.map(|told| told.elapsed()).unwrap_or_default())
    }

    async fn tell_again(&self, cache: &mut Cache) {
        cache.told = Some(Instant::now());
        for object in cache.objects.values() {
            self.tell(Event::Updated(object.clone(), object.clone())).await;
        }
    }
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}
