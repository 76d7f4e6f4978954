//! False answers to reads: a server shows something other than it holds.
//!
//! A lie changes only the answer. The request needs the same permissions as usual, and
//! writes act on the real state.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::account::Account;
use crate::answer::Answer;
use crate::cluster::{Cluster, Who};
use crate::json::{map_mut, meta_mut, meta_text};
use crate::object::written;
use crate::query::Query;
use crate::request::{Request, Verb};

/// A false answer to a read. Several can be combined.
#[derive(Debug, Clone)]
pub enum Lie {
    /// A list without items.
    Empty,
    /// A list that ends early: it lacks this share of its first page, at least one
    /// item, and has no further page. With `counted`, `remainingItemCount` gives the
    /// number of missing items.
    Truncated { percent: u8, counted: bool },
    /// A list that never ends: pages of this many items, always under new names.
    Endless { page: usize },
    /// The state at this version, for every request. A watch sends no later events.
    Frozen { version: u64 },
    /// Objects with the UIDs of another server's objects: of the object with the same
    /// name, else of the one at the same position in the list.
    Uids { of: Cluster },
    /// A get returns a different object than requested; lists and watches contain
    /// objects that their namespace and selectors exclude. A list lacks the requested
    /// objects.
    Unasked,
    /// All answers come from the state of another server.
    Another { server: Cluster },
    /// A watch that omits all DELETED events.
    NoDeletes,
    /// Objects with an additional label of this many bytes, which no server would accept.
    Fat { bytes: usize },
}

impl Lie {
    fn concerns(&self, verb: Verb) -> bool {
        match self {
            Lie::Empty | Lie::Truncated { .. } | Lie::Endless { .. } => verb == Verb::List,
            Lie::NoDeletes => verb == Verb::Watch,
            Lie::Frozen { .. }
            | Lie::Uids { .. }
            | Lie::Unasked
            | Lie::Another { .. }
            | Lie::Fat { .. } => !verb.writes(),
        }
    }
}

/// Duration of a lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// This many matching requests.
    Requests(u64),
    Until(Instant),
    ForEver,
}

/// Active lies of all servers, for [`crate::Faults::lies`].
#[derive(Debug, Default)]
pub struct Lies(Mutex<Vec<Told>>);

#[derive(Debug)]
struct Told {
    cluster: String,
    plural: String,
    lie: Lie,
    span: Span,
}

impl Lies {
    /// Starts a lie of one server about one kind, e.g. `nodes`. Open watches are not
    /// affected; see [`Cluster::hang_up`].
    pub fn tell(&self, cluster: &str, plural: &str, lie: Lie, span: Span) {
        self.lock().push(Told {
            cluster: cluster.to_owned(),
            plural: plural.to_owned(),
            lie,
            span,
        });
    }

    /// Ends all lies of a server.
    pub fn stop(&self, cluster: &str) {
        self.lock().retain(|told| told.cluster != cluster);
    }

    /// Returns the lies for this request, and counts them as told.
    pub fn about(&self, request: &Request) -> Vec<Lie> {
        let Some(target) = &request.target else {
            return Vec::new();
        };
        let mut all = self.lock();
        all.retain(|told| match told.span {
            Span::Requests(left) => left > 0,
            Span::Until(end) => Instant::now() < end,
            Span::ForEver => true,
        });
        let of = |told: &&mut Told| {
            *told.cluster == *request.cluster
                && told.plural == target.plural
                && told.lie.concerns(request.verb)
        };
        let mut lies = Vec::new();
        for told in all.iter_mut().filter(of) {
            if let Span::Requests(left) = &mut told.span {
                *left -= 1;
            }
            lies.push(told.lie.clone());
        }
        lies
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a read with lies, if the client may read the kind at all.
pub(crate) fn answer(
    cluster: &Cluster,
    request: &Request,
    who: &Who,
    behind: u64,
    lies: Vec<Lie>,
) -> Answer {
    let honest = cluster.perform(request, who, behind);
    if lies.is_empty() || matches!(honest.code(), 401 | 403) {
        return honest;
    }
    let mut server = cluster.clone();
    let (mut asked, mut behind) = (request.clone(), behind);
    for lie in &lies {
        match lie {
            Lie::Another { server: other } => server = other.clone(),
            Lie::Frozen { version } => {
                asked.query = Query {
                    resource_version: None,
                    resource_version_match: None,
                    ..asked.query
                };
                behind = server.version().saturating_sub(*version);
            }
            Lie::Endless { page } => {
                asked.query = Query {
                    continue_token: None,
                    limit: (*page).max(1),
                    ..asked.query
                }
            }
            Lie::Unasked => widen(&mut asked),
            Lie::Empty
            | Lie::Truncated { .. }
            | Lie::Uids { .. }
            | Lie::NoDeletes
            | Lie::Fat { .. } => {}
        }
    }
    // Permissions were checked above, on the server that got the request.
    match server.perform(
        &asked,
        &Who::Known(Arc::new(Account::admin("liar"))),
        behind,
    ) {
        Answer::Watch(mut watch) => {
            watch.lies = lies;
            if let Some(version) = frozen_at(&watch.lies) {
                watch.start_from(version, request);
            }
            Answer::Watch(watch)
        }
        Answer::Whole {
            code: 200, body, ..
        } => {
            let mut shown: Value = serde_json::from_slice(&body).unwrap_or_default();
            lies.iter()
                .for_each(|lie| lie.distort(&mut shown, request, &honest));
            Answer::json(200, &shown)
        }
        refused => refused,
    }
}

/// Extends a request to all objects of the kind.
fn widen(asked: &mut Request) {
    let narrow = Query {
        continue_token: None,
        limit: 0,
        label_selector: None,
        field_selector: None,
        ..asked.query.clone()
    };
    asked.query = narrow;
    if let Some(target) = &mut asked.target {
        (target.namespace, target.name) = (None, None);
    }
    if asked.verb == Verb::Get {
        asked.verb = Verb::List;
    }
}

pub(crate) fn frozen_at(lies: &[Lie]) -> Option<u64> {
    lies.iter().find_map(|lie| {
        if let Lie::Frozen { version } = lie {
            Some(*version)
        } else {
            None
        }
    })
}

impl Lie {
    /// Turns an honest answer into a false one.
    fn distort(&self, shown: &mut Value, request: &Request, honest: &Answer) {
        match self {
            Lie::Empty => keep(shown, 0, None),
            Lie::Truncated { percent, counted } => {
                let all = items_of(shown).len();
                let dropped = (all * usize::from(*percent) / 100).max(1).min(all);
                let remaining = shown
                    .pointer("/metadata/remainingItemCount")
                    .and_then(Value::as_u64)
                    .unwrap_or(0);
                keep(
                    shown,
                    all - dropped,
                    counted.then_some(remaining + dropped as u64),
                );
            }
            Lie::Endless { page } => endless(shown, request, *page),
            Lie::Uids { of } => put_uids(shown, request, of),
            Lie::Unasked => unasked(shown, request, honest),
            Lie::Fat { bytes } => match shown.get("items").is_some_and(Value::is_array) {
                true => items_of(shown)
                    .iter_mut()
                    .for_each(|object| fatten(object, *bytes)),
                false => fatten(shown, *bytes),
            },
            Lie::Frozen { .. } | Lie::Another { .. } | Lie::NoDeletes => {}
        }
    }

    /// Returns the event as shown by a watch; `None` to omit it.
    pub(crate) fn of_event(&self, line: Bytes, version: u64, request: &Request) -> Option<Bytes> {
        match self {
            Lie::NoDeletes if line.starts_with(b"{\"type\":\"DELETED\"") => None,
            Lie::Frozen { version: newest } if version > *newest => None,
            Lie::Uids { of } => {
                let mut event: Value = serde_json::from_slice(&line).unwrap_or_default();
                event
                    .get_mut("object")
                    .into_iter()
                    .for_each(|object| put_uids(object, request, of));
                Some([written(&event), Bytes::from_static(b"\n")].concat().into())
            }
            Lie::Fat { bytes } => {
                let mut event: Value = serde_json::from_slice(&line).unwrap_or_default();
                event
                    .get_mut("object")
                    .into_iter()
                    .for_each(|object| fatten(object, *bytes));
                Some([written(&event), Bytes::from_static(b"\n")].concat().into())
            }
            _ => Some(line),
        }
    }
}

fn fatten(object: &mut Value, bytes: usize) {
    if let Value::Object(labels) = meta_mut(object)
        .entry("labels")
        .or_insert_with(|| Value::Object(Map::new()))
    {
        labels.insert("fat".to_owned(), "x".repeat(bytes).into());
    }
}

fn items_of(shown: &mut Value) -> &mut Vec<Value> {
    let items = map_mut(shown).entry("items").or_insert(Value::Null);
    if !items.is_array() {
        *items = Value::Array(Vec::new());
    }
    let Value::Array(items) = items else {
        unreachable!("replaced by a list above")
    };
    items
}

/// Ends a list after this many items, without a continue token.
fn keep(shown: &mut Value, most: usize, remaining: Option<u64>) {
    items_of(shown).truncate(most);
    let metadata = meta_mut(shown);
    metadata.remove("continue");
    metadata.remove("remainingItemCount");
    if let Some(remaining) = remaining {
        metadata.insert("remainingItemCount".to_owned(), remaining.into());
    }
}

fn endless(shown: &mut Value, request: &Request, page: usize) {
    let nth = request
        .query
        .continue_token
        .as_deref()
        .and_then(|token| token.strip_prefix("endless-")?.parse::<u64>().ok())
        .unwrap_or(0);
    keep(shown, page, None);
    meta_mut(shown).insert("continue".to_owned(), format!("endless-{}", nth + 1).into());
    for item in items_of(shown).iter_mut().filter(|_| nth > 0) {
        rename(item, &nth.to_string());
    }
}

/// Renames an object and gives it a new identity.
fn rename(object: &mut Value, suffix: &str) {
    for field in ["name", "uid"] {
        let renamed = format!("{}-{suffix}", meta_text(object, field));
        meta_mut(object).insert(field.to_owned(), renamed.into());
    }
}

fn key_of(object: &Value) -> (String, String) {
    (
        meta_text(object, "namespace").to_owned(),
        meta_text(object, "name").to_owned(),
    )
}

/// Replaces the UIDs in a list, an object or a watch event.
fn put_uids(shown: &mut Value, request: &Request, of: &Cluster) {
    let Some(target) = &request.target else {
        return;
    };
    let (prefix, group) = if target.group.is_empty() {
        ("api", String::new())
    } else {
        ("apis", format!("/{}", target.group))
    };
    let others = of.list(&format!(
        "/{prefix}{group}/{}/{}",
        target.version, target.plural
    ));
    let uid_for = |object: &Value, place: usize| {
        let same = others
            .iter()
            .find(|other| key_of(other) == key_of(object))
            .or_else(|| others.get(place));
        same.map(|other| meta_text(other, "uid").to_owned())
    };
    let put = |object: &mut Value, place: usize| {
        if let Some(uid) = uid_for(object, place) {
            meta_mut(object).insert("uid".to_owned(), uid.into());
        }
    };
    match shown.get("items").is_some_and(Value::is_array) {
        true => items_of(shown)
            .iter_mut()
            .enumerate()
            .for_each(|(place, object)| put(object, place)),
        false => put(shown, 0),
    }
}

/// Reduces a list of all objects to those that were not requested.
fn unasked(shown: &mut Value, request: &Request, honest: &Answer) {
    let told: Value = match honest {
        Answer::Whole {
            code: 200, body, ..
        } => serde_json::from_slice(body).unwrap_or_default(),
        _ => Value::Null,
    };
    if request.verb == Verb::Get {
        return one_unasked(shown, request, told);
    }
    let chooses = request.query.field_selector.is_some() || request.query.label_selector.is_some();
    if !chooses
        && request
            .target
            .as_ref()
            .is_none_or(|target| target.namespace.is_none())
    {
        return;
    }
    let asked: Vec<(String, String)> = told
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(key_of)
        .collect();
    items_of(shown).retain(|item| !asked.contains(&key_of(item)));
}

/// Shows the object after the requested one, or the requested one under another name if
/// there is no other.
fn one_unasked(shown: &mut Value, request: &Request, honest: Value) {
    let target = request.target.as_ref();
    let asked = target
        .map(|target| {
            (
                target.namespace.clone().unwrap_or_default(),
                target.name.clone().unwrap_or_default(),
            )
        })
        .unwrap_or_default();
    let kind = shown
        .get("kind")
        .and_then(Value::as_str)
        .and_then(|kind| kind.strip_suffix("List"))
        .map(str::to_owned);
    let version = shown.get("apiVersion").cloned().unwrap_or_default();
    let items = std::mem::take(items_of(shown));
    let (before, after): (Vec<Value>, Vec<Value>) = items
        .into_iter()
        .filter(|item| key_of(item) != asked)
        .partition(|item| key_of(item) < asked);
    let mut other = after.into_iter().chain(before).next().unwrap_or_else(|| {
        let mut own = if honest.is_object() {
            honest
        } else {
            Value::Object(Map::new())
        };
        rename(&mut own, "other");
        own
    });
    let fields = map_mut(&mut other);
    fields.insert("apiVersion".to_owned(), version);
    fields.insert("kind".to_owned(), kind.unwrap_or_default().into());
    *shown = other;
}
