//! Watches that merge the events of several workspaces into one stream.
//!
//! Events of one workspace are in order, events of different workspaces are not. So
//! that a client that resumes misses nothing, the world records the position in each
//! workspace for every revision that was sent.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::{self, Backend, Refusal, name_cluster, name_version};
use super::front::Sent;
use super::list::{self, Listed};
use super::model::{ExportKey, GroupResource, array, revision, string};
use super::source::{Place, Source};
use super::target::Query;
use crate::http::{Events, JSON};
use crate::serve::{BoxError, Served};

/// Delay before a workspace that does not serve a resource yet is retried.
const PAUSE: Duration = Duration::from_millis(50);
/// Timeout for clients that request none.
const FOR_EVER: Duration = Duration::from_secs(3600);
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Relays a watch of one workspace's own API.
pub(super) fn relay(body: Incoming, cluster: String) -> Served {
    let (out, served) = streamed();
    tokio::spawn(async move {
        let mut events = Events::new(body);
        while let Some(Some(mut event)) =
            tokio::select! { event = events.next() => Some(event), () = out.closed() => None }
        {
            name_event(&mut event, &cluster);
            let _ = out.send(event);
        }
    });
    served
}

/// Starts a watch in the virtual workspace. Fails immediately if it cannot start.
pub(super) async fn watch(source: Source, query: &Query, sent: &Sent) -> Result<Served, Refusal> {
    let (out, served) = streamed();
    let across = source.only.is_none();
    let selection = list::selection(query, across);
    let (into_inbox, inbox) = unbounded_channel();
    let mut merge = Merge {
        changes: source.world.changes(),
        switches: source.world.switches(),
        selection: selection.only(&["labelSelector", "fieldSelector"]),
        sent: sent.clone(),
        bookmarks: query.is("allowWatchBookmarks"),
        out,
        told: BTreeMap::new(),
        keys: BTreeMap::new(),
        last: 0,
        into_inbox,
        inbox,
        readers: JoinSet::new(),
        source,
    };
    let seconds = query
        .get("timeoutSeconds")
        .parse()
        .map_or(FOR_EVER, Duration::from_secs);
    let start: u64 = query.get("resourceVersion").parse().unwrap_or(0);
    if start == 0 || query.is("sendInitialEvents") {
        let listed = list::gather(&merge.source, &initially(&selection, query)?, sent).await?;
        merge.tell_initial(&listed, query.is("sendInitialEvents"));
        for place in &listed.places {
            merge.join(place, listed.revision).await.map_err(refused)?;
        }
    } else if start
        < merge
            .source
            .world
            .floor(merge.source.shard, &merge.source.what)
    {
        merge.fail(answer::status(
            410,
            "Expired",
            &format!("too old resource version: {start}"),
        ));
        return Ok(served);
    } else {
        let places = merge.source.places();
        if places.is_empty() {
            return Err(answer::no_such_resource());
        }
        for place in &places {
            match merge.resume(place, start).await {
                // Reported in the stream, unlike all other errors.
                Err(status) if is_expired(&status) => {
                    merge.fail(status);
                    return Ok(served);
                }
                done => done.map_err(refused)?,
            }
        }
    }
    tokio::spawn(merge.run(Instant::now() + seconds));
    Ok(served)
}

/// Returns the parameters of the list for initial events. A list without a revision
/// must omit resourceVersionMatch, which streaming lists require.
fn initially(selection: &Query, query: &Query) -> Result<Query, Refusal> {
    if query.is("sendInitialEvents") && query.get("resourceVersionMatch") != "NotOlderThan" {
        let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(answer::failure(422, "Invalid", message));
    }
    Ok(if query.get("resourceVersion").is_empty() {
        selection.with("resourceVersionMatch", "")
    } else {
        selection.clone()
    })
}

fn is_expired(status: &Value) -> bool {
    status.get("code").and_then(Value::as_u64) == Some(410)
}

fn refused(status: Value) -> Refusal {
    let code = status
        .get("code")
        .and_then(Value::as_u64)
        .and_then(|code| u16::try_from(code).ok())
        .unwrap_or(500);
    Box::new(answer::json(code, &status))
}

/// Returns a body that is written event by event.
fn streamed() -> (UnboundedSender<Value>, Served) {
    let (out, events) = unbounded_channel::<Value>();
    let frames = futures::stream::unfold(events, |mut events| async move {
        let event = events.recv().await?;
        Some((
            Ok::<_, BoxError>(Frame::data(Bytes::from(format!("{event}\n")))),
            events,
        ))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    (out, response)
}

fn name_event(event: &mut Value, cluster: &str) {
    if matches!(string(event, "/type"), "ADDED" | "MODIFIED" | "DELETED")
        && let Some(object) = event.get_mut("object")
    {
        name_cluster(object, cluster);
    }
}

/// Message of a reader: the workspace, its key, and an event or the end.
type Heard = (String, String, Option<Value>);

struct Merge {
    source: Source,
    changes: watch::Receiver<u64>,
    switches: broadcast::Receiver<(ExportKey, GroupResource)>,
    selection: Query,
    sent: Sent,
    bookmarks: bool,
    out: UnboundedSender<Value>,
    /// Revision up to which the client has received all events, per workspace.
    told: BTreeMap<String, u64>,
    /// Key of the place that is read in each workspace.
    keys: BTreeMap<String, String>,
    /// Highest revision sent to the client.
    last: u64,
    into_inbox: UnboundedSender<Heard>,
    inbox: UnboundedReceiver<Heard>,
    readers: JoinSet<()>,
}

impl Merge {
    async fn run(mut self, end: Instant) {
        let mut complete = false;
        loop {
            if !complete {
                complete = self.splice().await;
            }
            let again = if complete { FOR_EVER } else { PAUSE };
            tokio::select! {
                biased;
                () = self.out.closed() => return,
                () = tokio::time::sleep_until(end) => return,
                switched = self.switches.recv() => if self.is_switched(switched) {
                    let message = "unable to decode an event from the watch stream: context canceled";
                    return self.fail(answer::status(500, "InternalError", message));
                },
                heard = self.inbox.recv() => {
                    let Some(heard) = heard else { return };
                    if let Err(status) = self.hear(heard).await {
                        return status.map_or((), |status| self.fail(status));
                    }
                }
                _ = self.changes.changed() => complete = false,
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    fn is_switched(
        &self,
        switched: Result<(ExportKey, GroupResource), broadcast::error::RecvError>,
    ) -> bool {
        switched.map_or(true, |(export, what)| {
            export == self.source.export && what == self.source.what
        })
    }

    /// Sends a final error.
    fn fail(&self, status: Value) {
        let _ = self.out.send(json!({ "type": "ERROR", "object": status }));
    }

    fn tell_initial(&mut self, listed: &Listed, marked: bool) {
        for (_, item) in &listed.items {
            self.tell("ADDED", whole(&listed.head, item));
        }
        self.last = listed.revision;
        if marked && self.bookmarks {
            let metadata = json!({ "resourceVersion": listed.revision.to_string(), "annotations": { INITIAL_EVENTS_END: "true" } });
            let kind = list::item_kind(&listed.head);
            let bookmark = json!({ "kind": kind, "apiVersion": string(&listed.head, "/apiVersion"), "metadata": metadata });
            self.tell("BOOKMARK", bookmark);
        }
    }

    fn tell(&self, kind: &str, object: Value) {
        let _ = self.out.send(json!({ "type": kind, "object": object }));
    }

    /// Resumes for a client that has received events up to `start`.
    async fn resume(&mut self, place: &Place, start: u64) -> Result<(), Value> {
        if start < place.since {
            return self.join_anew(place).await;
        }
        let position = self
            .source
            .world
            .position(&self.source.name(), start, &place.workspace.id);
        self.last = self.last.max(start);
        self.join(place, position.max(place.since)).await
    }

    /// Adds workspaces that appeared in the meantime. Returns true if all of them were
    /// added.
    async fn splice(&mut self) -> bool {
        let mut complete = true;
        for place in self.source.places() {
            if self.keys.get(&place.workspace.id) != Some(&place.key) {
                complete &= self.join_anew(&place).await.is_ok();
            }
        }
        complete
    }

    /// Sends all objects of a workspace as new ones, oldest first, so that a client
    /// that disconnects in between can resume at the last one.
    async fn join_anew(&mut self, place: &Place) -> Result<(), Value> {
        let unserved = || answer::status(404, "NotFound", "the workspace does not serve it yet");
        let listed = list::one(&self.source, place, &self.selection, &self.sent).await;
        let list = listed.map_err(|_| unserved())?.ok_or_else(unserved)?;
        let mut items = list::items(&self.source, &list, &place.workspace.id);
        items.sort_by_key(|(_, item)| revision(item));
        for (_, item) in &items {
            self.tell("ADDED", whole(&list, item));
        }
        self.join(place, revision(&list)).await
    }

    /// Reads the events of a workspace from a revision on.
    async fn join(&mut self, place: &Place, from: u64) -> Result<(), Value> {
        let query = self
            .selection
            .selecting(&place.labels)
            .with("watch", "true")
            .with("allowWatchBookmarks", "true");
        let path = query
            .with("resourceVersion", &from.to_string())
            .on(&self.source.path);
        let headers = self.sent.as_admitted();
        let unreachable =
            |error: crate::Error| answer::status(503, "ServiceUnavailable", &error.to_string());
        let response = place
            .workspace
            .http
            .pass(&Method::GET, &path, headers, Bytes::new())
            .await
            .map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(Backend::read(response)
                .await
                .map_or(Value::Null, |answered| answered.body()));
        }
        let (cluster, key) = (place.workspace.id.clone(), place.key.clone());
        self.told.insert(cluster.clone(), from);
        self.keys.insert(cluster.clone(), key.clone());
        let inbox = self.into_inbox.clone();
        self.readers.spawn(async move {
            let mut events = Events::new(response.into_body());
            while let Some(event) = events.next().await {
                let _ = inbox.send((cluster.clone(), key.clone(), Some(event)));
            }
            let _ = inbox.send((cluster, key, None));
        });
        Ok(())
    }

    /// Handles a message of a reader. An error ends the watch, with a final event if
    /// there is one.
    async fn hear(&mut self, (cluster, key, event): Heard) -> Result<(), Option<Value>> {
        if self.keys.get(&cluster) != Some(&key) {
            return Ok(());
        }
        let Some(mut event) = event else {
            return self.ended(&cluster).await;
        };
        let at = event.get("object").map(object_revision).unwrap_or_default();
        match string(&event, "/type") {
            "ERROR" => return Err(event.get_mut("object").map(Value::take)),
            "BOOKMARK" => self.bookmark(&cluster, at, event),
            _ => {
                name_event(&mut event, &cluster);
                if let Some(object) = event.get_mut("object") {
                    name_version(object, &self.source.version());
                }
                self.told.insert(cluster, at);
                self.last = self.last.max(at);
                self.source
                    .world
                    .note_progress(&self.source.name(), at, &self.told);
                let _ = self.out.send(event);
            }
        }
        Ok(())
    }

    /// Sends a bookmark, limited to the revision that all workspaces have reached.
    fn bookmark(&mut self, cluster: &str, at: u64, mut event: Value) {
        self.told.insert(cluster.to_owned(), at);
        let reached = self.told.values().copied().min().unwrap_or(0);
        if !self.bookmarks || reached < self.last {
            return;
        }
        self.last = reached;
        if let Some(metadata) = event
            .pointer_mut("/object/metadata")
            .and_then(Value::as_object_mut)
        {
            metadata.insert("resourceVersion".into(), reached.to_string().into());
        }
        let _ = self.out.send(event);
    }

    /// Handles the end of a workspace's watch. A tenant that unbound sends nothing more.
    /// Others may close a watch too, e.g. when their copy of the schema changes; it is
    /// resumed.
    async fn ended(&mut self, cluster: &str) -> Result<(), Option<Value>> {
        let told = self.told.remove(cluster).unwrap_or(0);
        let key = self.keys.remove(cluster);
        let place = self
            .source
            .places()
            .into_iter()
            .find(|place| place.workspace.id == cluster && Some(&place.key) == key.as_ref());
        let Some(place) = place else { return Ok(()) };
        self.join(&place, told)
            .await
            .map_err(|status| is_expired(&status).then_some(status))
    }
}

/// Returns an item of a list as the object of an event.
fn whole(list: &Value, item: &Value) -> Value {
    match string(list, "/kind") {
        "Table" => {
            json!({ "kind": "Table", "apiVersion": string(list, "/apiVersion"), "columnDefinitions": array(list, "/columnDefinitions"), "rows": [item] })
        }
        _ => item.clone(),
    }
}

/// Returns the revision of an object, or of the only row of a table.
fn object_revision(object: &Value) -> u64 {
    array(object, "/rows")
        .first()
        .and_then(|row| row.get("object"))
        .map_or_else(|| revision(object), revision)
}
