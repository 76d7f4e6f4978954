//! Watches: streams of events, one per line, from a version on.
//!
//! A watch reads the log of its kind whenever it changes. It runs in the task that
//! reads the stream; there is no separate task.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::answer::Answer;
use crate::cluster::{Cluster, Reachability, State};
use crate::fault::Delivery;
use crate::kind::Kind;
use crate::lie::{Lie, frozen_at};
use crate::object::written;
use crate::query::Query;
use crate::read::snapshot;
use crate::refusal::{FieldError, Refusal};
use crate::request::Request;
use crate::selector::Selector;
use crate::server::Lost;
use crate::store::{Change, Collection, Entry, event};

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
const LONGEST_WATCH: Duration = Duration::from_secs(1_800);

/// An accepted watch.
pub(crate) struct Watch {
    cluster: Cluster,
    request: Arc<Request>,
    kind: Arc<Kind>,
    selector: Selector,
    changed: Arc<Notify>,
    /// Version up to which the log has been read.
    seen: u64,
    /// Lines to send next.
    lines: VecDeque<Line>,
    next_bookmark: Option<Instant>,
    end: Instant,
    /// True if nothing follows the lines.
    is_over: bool,
    /// Value of [`State::hung_up`] when the watch started.
    hung_up: u64,
    pub(crate) lies: Vec<Lie>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("request", &self.request)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Line {
    Event {
        version: u64,
        bytes: Bytes,
    },
    /// A line that is not subject to delivery faults.
    Other(Bytes),
}

pub(crate) fn start(
    state: &State,
    cluster: &Cluster,
    kind: &Arc<Kind>,
    request: &Request,
    behind: u64,
) -> Result<Answer, Refusal> {
    let query = &request.query;
    let target = request.target.as_ref();
    let selector = Selector::of(
        kind,
        target.and_then(|target| target.namespace.as_deref()),
        query,
    )?;
    check_options(query)?;
    let collection = state.of_kind(kind).ok_or_else(Refusal::no_such_resource)?;
    let now = Instant::now();
    let lasts = query
        .timeout_seconds
        .filter(|seconds| *seconds > 0)
        .map_or(LONGEST_WATCH, Duration::from_secs);
    let mut watch = Watch {
        cluster: cluster.clone(),
        request: Arc::new(Request {
            body: Bytes::new(),
            ..request.clone()
        }),
        kind: Arc::clone(kind),
        selector,
        changed: Arc::clone(&collection.changed),
        seen: 0,
        lines: VecDeque::new(),
        next_bookmark: query.bookmarks.then(|| now + BOOKMARK_EVERY),
        end: now + lasts,
        is_over: false,
        hung_up: state.hung_up,
        lies: Vec::new(),
    };
    watch.begin(state, collection, query, behind)?;
    Ok(Answer::Watch(Box::new(watch)))
}

fn check_options(query: &Query) -> Result<(), Refusal> {
    let wrong = |errors: &[FieldError]| Err(Refusal::invalid_options("ListOptions", errors));
    let matching = query.resource_version_match.as_deref();
    match (query.send_initial_events, matching) {
        (None, Some(_)) => {
            let why =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            wrong(&[FieldError::forbidden("resourceVersionMatch", why)])
        }
        (Some(_), None) => wrong(&[needs_match()]),
        (Some(_), Some(other)) if other != "NotOlderThan" => wrong(&[
            needs_match(),
            FieldError::unsupported(
                "resourceVersionMatch",
                &json!(other),
                &[json!("NotOlderThan")],
            ),
        ]),
        _ if query.continue_token.is_some() => Err(Refusal::unsupported("continue for watches")),
        _ => Ok(()),
    }
}

fn needs_match() -> FieldError {
    let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    FieldError::forbidden("resourceVersionMatch", why)
}

impl Watch {
    fn begin(
        &mut self,
        state: &State,
        collection: &Collection,
        query: &Query,
        behind: u64,
    ) -> Result<(), Refusal> {
        // A list answers with 400 in this case.
        let wrong = |_| Refusal::new(500, "", "the resourceVersion is no number");
        let asked = query.version().map_err(wrong)?.unwrap_or_default();
        let streams = query.send_initial_events;
        if streams == Some(true) && asked > state.version {
            return Err(Refusal::from_the_future(asked, state.version));
        }
        if streams == Some(true) || (asked == 0 && streams.is_none()) {
            let version = state
                .version
                .saturating_sub(behind)
                .max(asked)
                .max(collection.floor.min(state.version));
            for object in snapshot(collection, state.version, version)
                .values()
                .filter(|object| self.selector.matches(&object.value))
            {
                self.lines.push_back(Line::Event {
                    version: object.version,
                    bytes: event("ADDED", &object.bytes()),
                });
            }
            if streams == Some(true) && query.bookmarks {
                let annotations = json!({ "k8s.io/initial-events-end": "true" });
                self.lines
                    .push_back(Line::Other(self.bookmark(version, Some(annotations))));
            }
            self.seen = version;
        } else if asked != 0 && asked < collection.floor {
            let message = format!("too old resource version: {asked} ({})", collection.floor);
            self.give_up(&Refusal::expired(message));
        } else {
            self.seen = if asked == 0 { state.version } else { asked };
        }
        Ok(())
    }

    /// Continues from the version that the server considers its newest. A later version
    /// that the client asked for does not exist yet.
    pub(crate) fn start_from(&mut self, version: u64, asked: &Request) {
        if asked
            .query
            .version()
            .is_ok_and(|asked| asked.is_some_and(|asked| asked > 0))
        {
            self.lines.clear();
            self.seen = version;
        }
    }

    /// Queues an ERROR event, after which the watch ends.
    fn give_up(&mut self, refusal: &Refusal) {
        self.lines
            .push_back(Line::Other(event("ERROR", &written(&refusal.status()))));
        self.is_over = true;
    }

    fn bookmark(&self, version: u64, annotations: Option<Value>) -> Bytes {
        let mut metadata =
            json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
        if let Some(annotations) = annotations {
            crate::json::map_mut(&mut metadata).insert("annotations".to_owned(), annotations);
        }
        let object = json!({ "kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata });
        event("BOOKMARK", &written(&object))
    }

    /// Returns the next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Lost>> {
        loop {
            if self.is_over && self.lines.is_empty() {
                return None;
            }
            if let Err(lost) = self.cluster.passable().await {
                return Some(self.cut(lost));
            }
            if self.cluster.state().hung_up != self.hung_up {
                return Some(self.cut(Lost::Broken));
            }
            if let Some(line) = self.lines.pop_front() {
                match self.deliver(line).await {
                    Some(delivered) => return Some(delivered),
                    None => continue,
                }
            }
            // Created before reading the log, so that no change is missed.
            let changed = Arc::clone(&self.changed);
            let changed = changed.notified();
            if self.look() {
                continue;
            }
            let now = Instant::now();
            if now >= self.end {
                return None;
            }
            if let Some(due) = self.next_bookmark.filter(|due| now >= *due) {
                self.next_bookmark = Some(due + BOOKMARK_EVERY);
                let version = self.cluster.version();
                self.seen = self.seen.max(version);
                return Some(Ok(self.bookmark(
                    frozen_at(&self.lies).map_or(version, |frozen| frozen.min(version)),
                    None,
                )));
            }
            let wake = self.next_bookmark.map_or(self.end, |due| due.min(self.end));
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Applies lies and delivery faults to a line; `None` if it is not delivered.
    async fn deliver(&mut self, line: Line) -> Option<Result<Bytes, Lost>> {
        let (version, bytes) = match line {
            Line::Event { version, bytes } => (version, bytes),
            Line::Other(bytes) => return Some(Ok(bytes)),
        };
        let bytes = self.lies.iter().try_fold(bytes, |bytes, lie| {
            lie.of_event(bytes, version, &self.request)
        })?;
        let delivery = self.cluster.faults().map_or(Delivery::Now, |faults| {
            faults.delivery(&self.request, version)
        });
        match delivery {
            Delivery::Now => Some(Ok(bytes)),
            Delivery::After(late) => {
                sleep(late).await;
                match self.cluster.passable().await {
                    Ok(()) => Some(Ok(bytes)),
                    Err(lost) => Some(self.cut(lost)),
                }
            }
            Delivery::Skip => None,
            Delivery::Cut => Some(self.cut(Lost::Broken)),
            Delivery::Gone => {
                self.lines.clear();
                self.give_up(&Refusal::expired(format!(
                    "too old resource version: {version} ({version})"
                )));
                None
            }
        }
    }

    fn cut(&mut self, lost: Lost) -> Result<Bytes, Lost> {
        self.lines.clear();
        self.is_over = true;
        Err(lost)
    }

    /// Reads the log. Returns true if there are lines to send, or the watch is over.
    fn look(&mut self) -> bool {
        let cluster = self.cluster.clone();
        let state = cluster.state();
        let Some(collection) = state.of_kind(&self.kind) else {
            self.is_over = true;
            return true;
        };
        let Some(entries) = collection.since(self.seen) else {
            // A real server closes watches that are too slow.
            self.is_over = true;
            return true;
        };
        for entry in entries {
            self.seen = entry.version;
            if let Some(bytes) = line_for(&self.selector, entry) {
                self.lines.push_back(Line::Event {
                    version: entry.version,
                    bytes,
                });
            }
        }
        !self.lines.is_empty()
    }
}

/// Returns the event for a client that sees only selected objects.
fn line_for(selector: &Selector, entry: &Entry) -> Option<Bytes> {
    if selector.takes_all() {
        return Some(entry.line());
    }
    let sees = |object: &Option<Arc<crate::object::Object>>| {
        object
            .as_ref()
            .is_some_and(|object| selector.matches(&object.value))
    };
    match (sees(&entry.before), sees(&entry.after)) {
        (false, false) => None,
        (false, true) => Some(entry.line_as(Change::Added)),
        (true, true) => Some(entry.line_as(Change::Modified)),
        (true, false) => Some(entry.line_as(Change::Deleted)),
    }
}

impl Cluster {
    /// Returns when the link is up, or an error if it refuses connections.
    pub(crate) async fn passable(&self) -> Result<(), Lost> {
        loop {
            let changed = self.link_changed().notified();
            // Read after creating `changed`, so that no change is missed.
            let link = self.state().link();
            match link {
                Reachability::Up => return Ok(()),
                Reachability::Refusing => return Err(Lost::Refused),
                Reachability::Stalled => changed.await,
            }
        }
    }
}
