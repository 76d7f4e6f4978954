//! Lists across all workspaces at one revision.

use base64ct::{Base64UrlUnpadded, Encoding};
use hyper::Method;
use serde_json::{Value, json};

use super::answer::{self, Backend, Refusal, name_cluster, name_version};
use super::front::Sent;
use super::model::{array, revision, string};
use super::source::{Place, Source};
use super::target::Query;
use crate::serve::Served;

/// A namespace that no tenant has.
const NOWHERE: &str = "no-namespace-across-clusters";

/// Content of all workspaces at one revision.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) revision: u64,
    /// List without items.
    pub(super) head: Value,
    /// Items by workspace ID, namespace and name.
    pub(super) items: Vec<(Key, Value)>,
    pub(super) places: Vec<Place>,
}

/// Cluster, namespace and name.
pub(super) type Key = (String, String, String);

/// Returns the parameters of the list in each workspace. Limits are not passed on, but
/// applied to the merged list.
pub(super) fn selection(query: &Query, across: bool) -> Query {
    let query = query.only(&[
        "labelSelector",
        "fieldSelector",
        "resourceVersion",
        "resourceVersionMatch",
    ]);
    if !across {
        return query;
    }
    // Across clusters, this selector silently matches nothing.
    let fields = query.get("fieldSelector").split(',');
    let fields = fields.map(|field| {
        if field.starts_with("metadata.namespace=") {
            format!("metadata.namespace={NOWHERE}")
        } else {
            field.into()
        }
    });
    let fields = fields.collect::<Vec<String>>().join(",");
    query.with("fieldSelector", &fields)
}

/// Lists the first workspace, and all others at its revision.
pub(super) async fn gather(source: &Source, query: &Query, sent: &Sent) -> Result<Listed, Refusal> {
    let mut listed: Option<Listed> = None;
    for place in source.places() {
        let at = match &listed {
            Some(listed) => query
                .with("resourceVersion", &listed.revision.to_string())
                .with("resourceVersionMatch", "Exact"),
            None => query.clone(),
        };
        // The tenant may have unbound in the meantime.
        let Some(list) = one(source, &place, &at, sent).await? else {
            continue;
        };
        let listed = listed.get_or_insert_with(|| Listed {
            revision: revision(&list),
            head: head(&list),
            items: vec![],
            places: vec![],
        });
        listed
            .items
            .extend(items(source, &list, &place.workspace.id));
        listed.places.push(place);
    }
    let mut listed = listed.ok_or_else(answer::no_such_resource)?;
    listed.items.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(listed)
}

/// Lists one workspace; `None` if it does not serve the resource.
pub(super) async fn one(
    source: &Source,
    place: &Place,
    query: &Query,
    sent: &Sent,
) -> Result<Option<Value>, Refusal> {
    let path = query.selecting(&place.labels).on(&source.path);
    let headers = sent.as_admitted();
    let response = place
        .workspace
        .http
        .pass(&Method::GET, &path, headers, bytes::Bytes::new())
        .await;
    let answered = Backend::read(response.map_err(|error| answer::unreachable(&error))?).await?;
    match answered.code {
        404 => Ok(None),
        200 => Ok(Some(answered.body())),
        _ => Err(Box::new(answered.serve(&place.workspace.id))),
    }
}

/// Returns the items of a list, or the rows of a table.
pub(super) fn items(source: &Source, list: &Value, cluster: &str) -> Vec<(Key, Value)> {
    let mut list = list.clone();
    name_cluster(&mut list, cluster);
    let kind = item_kind(&list);
    let version = string(&list, "/apiVersion").to_owned();
    let rows = if list.get("rows").is_some() {
        "/rows"
    } else {
        "/items"
    };
    let keyed = array(&list, rows).iter().cloned().map(|mut item| {
        let object = if rows == "/rows" {
            item.get("object").cloned().unwrap_or_default()
        } else {
            item.clone()
        };
        // Lists of built-in kinds omit `kind` and `apiVersion` of their items.
        if let (false, Some(fields)) = (
            item.get("kind").is_some() || rows == "/rows",
            item.as_object_mut(),
        ) {
            fields.insert("kind".into(), kind.clone().into());
            fields.insert("apiVersion".into(), version.clone().into());
        }
        name_version(&mut item, &source.version());
        let text = |pointer: &str| string(&object, pointer).to_owned();
        (
            (
                cluster.to_owned(),
                text("/metadata/namespace"),
                text("/metadata/name"),
            ),
            item,
        )
    });
    keyed.collect()
}

pub(super) fn item_kind(list: &Value) -> String {
    let kind = string(list, "/kind");
    kind.strip_suffix("List").unwrap_or(kind).to_owned()
}

fn head(list: &Value) -> Value {
    let mut head = list.clone();
    if let Some(fields) = head.as_object_mut() {
        fields.remove("items");
        fields.remove("rows");
    }
    head
}

/// Answers a list, in pages if the client requests a limit.
pub(super) async fn answer(source: &Source, query: &Query, sent: &Sent) -> Result<Served, Refusal> {
    let mut asked = selection(query, true);
    let mut after: Option<Key> = None;
    if !query.get("continue").is_empty() {
        let (at, key) = read_token(query.get("continue")).ok_or_else(|| {
            answer::failure(
                400,
                "BadRequest",
                "continue key is not valid: it was not made here",
            )
        })?;
        asked = asked
            .with("resourceVersion", &at.to_string())
            .with("resourceVersionMatch", "Exact");
        after = Some(key);
    }
    let mut listed = gather(source, &asked, sent).await?;
    listed
        .items
        .retain(|(key, _)| after.as_ref().is_none_or(|after| key > after));
    let limit = query
        .get("limit")
        .parse()
        .ok()
        .filter(|limit| *limit > 0)
        .unwrap_or(usize::MAX);
    let remaining = listed.items.len().saturating_sub(limit);
    listed.items.truncate(limit);
    let mut metadata = json!({ "resourceVersion": listed.revision.to_string(), "continue": "" });
    if let (Some(fields), Some((last, _)), true) =
        (metadata.as_object_mut(), listed.items.last(), remaining > 0)
    {
        fields.insert("continue".into(), token(listed.revision, last).into());
        // Like in every API server, the count is omitted with a selector.
        if query.get("labelSelector").is_empty() && query.get("fieldSelector").is_empty() {
            fields.insert("remainingItemCount".into(), remaining.into());
        }
    }
    let rows = if string(&listed.head, "/kind") == "Table" {
        "rows"
    } else {
        "items"
    };
    if let Some(fields) = listed.head.as_object_mut() {
        fields.insert("metadata".into(), metadata);
        fields.insert(
            rows.into(),
            listed.items.into_iter().map(|(_, item)| item).collect(),
        );
    }
    Ok(answer::json(200, &listed.head))
}

fn token(revision: u64, last: &Key) -> String {
    Base64UrlUnpadded::encode_string(
        json!([revision, last.0, last.1, last.2])
            .to_string()
            .as_bytes(),
    )
}

fn read_token(token: &str) -> Option<(u64, Key)> {
    let parts: Value = serde_json::from_slice(&Base64UrlUnpadded::decode_vec(token).ok()?).ok()?;
    let text = |at: usize| parts.get(at).and_then(Value::as_str).map(str::to_owned);
    Some((parts.get(0)?.as_u64()?, (text(1)?, text(2)?, text(3)?)))
}
