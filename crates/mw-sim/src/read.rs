//! Get and list.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use base64ct::{Base64UrlUnpadded, Encoding};
use bytes::{BufMut, BytesMut};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::cluster::{State, key};
use crate::kind::Kind;
use crate::object::{Object, written};
use crate::path::Target;
use crate::query::Query;
use crate::refusal::{FieldError, Refusal};
use crate::selector::Selector;
use crate::store::{Collection, Objects};

pub(crate) fn get(
    state: &State,
    kind: &Kind,
    target: &Target,
    query: &Query,
    behind: u64,
) -> Result<Answer, Refusal> {
    let collection = state.of_kind(kind).ok_or_else(Refusal::no_such_resource)?;
    if let Some(asked) = query.version()?.filter(|asked| *asked > state.version) {
        return Err(Refusal::from_the_future(asked, state.version));
    }
    let found = key(target).and_then(|key| {
        snapshot(
            collection,
            state.version,
            state.version.saturating_sub(behind),
        )
        .get(key.as_str())
        .cloned()
    });
    let name = target.name.as_deref().unwrap_or_default();
    found
        .map(|found| Answer::new(200, found.bytes()))
        .ok_or_else(|| Refusal::not_found(kind, name))
}

/// Returns the objects at a version.
pub(crate) fn snapshot(collection: &Collection, newest: u64, version: u64) -> Cow<'_, Objects> {
    if version >= newest {
        Cow::Borrowed(&collection.objects)
    } else {
        Cow::Owned(collection.at(version))
    }
}

pub(crate) fn list(
    state: &State,
    kind: &Kind,
    target: &Target,
    query: &Query,
    behind: u64,
) -> Result<Answer, Refusal> {
    let collection = state.of_kind(kind).ok_or_else(Refusal::no_such_resource)?;
    let selector = Selector::of(kind, target.namespace.as_deref(), query)?;
    let page = Page::of(query, collection, state.version, behind)?;
    let objects = snapshot(collection, state.version, page.version);
    let start = page
        .start
        .as_deref()
        .map_or(Bound::Unbounded, Bound::Excluded);
    let mut chosen = objects
        .range::<str, _>((start, Bound::Unbounded))
        .filter(|(_, object)| selector.matches(&object.value));
    let limit = if page.limit == 0 {
        usize::MAX
    } else {
        page.limit
    };
    let items: Vec<(&Arc<str>, &Arc<Object>)> = chosen.by_ref().take(limit).collect();
    let left = chosen.count();
    let mut metadata = Map::new();
    metadata.insert(
        "resourceVersion".to_owned(),
        page.version.to_string().into(),
    );
    if kind.is_custom() {
        metadata.insert("continue".to_owned(), "".into());
    }
    if let Some((last, _)) = items.last().filter(|_| left > 0) {
        metadata.insert("continue".to_owned(), token(page.version, last).into());
        // A real server does not count items that it has to filter one by one.
        if !selector.chooses() {
            metadata.insert("remainingItemCount".to_owned(), json!(left));
        }
    }
    let objects: Vec<&Object> = items.iter().map(|(_, object)| &***object).collect();
    Ok(Answer::new(
        200,
        body(kind, &Value::Object(metadata), &objects),
    ))
}

/// Builds a list as JSON from objects that are mostly serialized already.
pub(crate) fn body(kind: &Kind, metadata: &Value, objects: &[&Object]) -> bytes::Bytes {
    let mut body = BytesMut::with_capacity(200 + objects.len() * 1024);
    let (kind_name, version) = (json!(kind.list_kind), json!(kind.api_version()));
    body.put_slice(
        format!("{{\"kind\":{kind_name},\"apiVersion\":{version},\"metadata\":").as_bytes(),
    );
    body.put_slice(&written(metadata));
    body.put_slice(b",\"items\":[");
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        body.put_slice(&if kind.is_custom() {
            object.bytes()
        } else {
            object.bare_bytes()
        });
    }
    body.put_slice(b"]}");
    body.freeze()
}

/// Requested part of a list and the state it is from.
struct Page {
    version: u64,
    /// Starts after this key.
    start: Option<String>,
    limit: usize,
}

impl Page {
    fn of(
        query: &Query,
        collection: &Collection,
        newest: u64,
        behind: u64,
    ) -> Result<Page, Refusal> {
        check_match(query)?;
        if let Some(token) = &query.continue_token {
            return Page::continued(token, query, collection.floor, newest);
        }
        let latest = newest.saturating_sub(behind).max(1);
        let asked = query.version()?.unwrap_or_default();
        if asked > newest {
            return Err(Refusal::from_the_future(asked, newest));
        }
        let exact = match query.resource_version_match.as_deref() {
            Some("Exact") => true,
            Some(_) => false,
            None => asked > 0 && query.limit > 0,
        };
        if exact {
            if asked < collection.floor {
                return Err(Refusal::expired(
                    "The resourceVersion for the provided list is too old.",
                ));
            }
            return Ok(Page {
                version: asked,
                start: None,
                limit: query.limit,
            });
        }
        // resourceVersion=0 is served from the cache, without pagination.
        let limit = if query.resource_version.as_deref() == Some("0") {
            0
        } else {
            query.limit
        };
        Ok(Page {
            version: latest.max(asked),
            start: None,
            limit,
        })
    }

    fn continued(token: &str, query: &Query, floor: u64, newest: u64) -> Result<Page, Refusal> {
        if query
            .resource_version
            .as_deref()
            .is_some_and(|version| version != "0")
        {
            return Err(Refusal::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let wrong = || Refusal::bad_request("continue key is not valid");
        let bytes = Base64UrlUnpadded::decode_vec(token).map_err(|_| wrong())?;
        let text = String::from_utf8(bytes).map_err(|_| wrong())?;
        let (version, start) = text.split_once(' ').ok_or_else(wrong)?;
        let version: i64 = version.parse().map_err(|_| wrong())?;
        let version = match u64::try_from(version) {
            // -1: the client accepts an inconsistent continuation, from the newest state.
            Err(_) => newest,
            Ok(version) if version < floor => {
                return Err(Refusal::expired_page(inconsistent(start)));
            }
            Ok(version) => version,
        };
        Ok(Page {
            version,
            start: Some(start.to_owned()),
            limit: query.limit,
        })
    }
}

fn token(version: u64, last: &str) -> String {
    Base64UrlUnpadded::encode_string(format!("{version} {last}").as_bytes())
}

fn inconsistent(start: &str) -> String {
    Base64UrlUnpadded::encode_string(format!("-1 {start}").as_bytes())
}

fn check_match(query: &Query) -> Result<(), Refusal> {
    let Some(asked) = query.resource_version_match.as_deref() else {
        return Ok(());
    };
    let field = "resourceVersionMatch";
    let wrong = |error| Err(Refusal::invalid_options("ListOptions", &[error]));
    if query.resource_version.is_none() {
        return wrong(FieldError::forbidden(
            field,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    if query.continue_token.is_some() {
        return wrong(FieldError::forbidden(
            field,
            "resourceVersionMatch is forbidden when continue is provided",
        ));
    }
    match asked {
        "NotOlderThan" => Ok(()),
        "Exact" if query.resource_version.as_deref() == Some("0") => {
            let why = "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"";
            wrong(FieldError::forbidden(field, why))
        }
        "Exact" => Ok(()),
        other => wrong(FieldError::unsupported(
            field,
            &json!(other),
            &[json!("Exact"), json!("NotOlderThan"), json!("")],
        )),
    }
}
