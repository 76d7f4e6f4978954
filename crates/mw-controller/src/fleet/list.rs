//! Lists all objects of a kind, with limits on bytes, items, pages and time that
//! hold whatever a server returns.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::time::Duration;

use futures::AsyncBufReadExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::fleet::items::{PageMeta, PageReader};
use crate::transport::Streamed;

/// Several times what is usual in a large cluster.
const MOST_OBJECTS: usize = 50_000;
/// Size limit of a list; only the projections are kept.
const MOST_BYTES: usize = 256 << 20;
/// Maximum number of pages: each but the last must hold at least this fraction of
/// the maximum number of items.
const MOST_PAGES: usize = 100;
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Selects the objects to read and limits their number.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Name of the only object to read.
    pub name: Option<String>,
    pub label_selector: Option<String>,
    pub most: usize,
}

impl Default for Scope {
    fn default() -> Self {
        Scope { name: None, label_selector: None, most: MOST_OBJECTS }
    }
}

impl Scope {
    pub fn named(name: &str) -> Scope {
        Scope { name: Some(name.to_owned()), ..Scope::default() }
    }

    pub fn labelled(selector: &str) -> Scope {
        Scope { label_selector: Some(selector.to_owned()), ..Scope::default() }
    }

    pub fn at_most(most: usize) -> Scope {
        Scope { most, ..Scope::default() }
    }

    pub(super) fn field_selector(&self) -> Option<String> {
        self.name.as_ref().map(|name| format!("metadata.name={name}"))
    }

    /// Refuses an object that was not requested.
    pub(super) fn check(&self, namespace: Option<&str>, meta: &ObjectMeta) -> Result<(), Failure> {
        let other_name = self.name.is_some() && self.name != meta.name;
        let other_namespace = namespace.is_some() && namespace != meta.namespace.as_deref();
        match other_name || other_namespace {
            true => Err(Failure::Wrong("it contains an object that was not requested".to_owned())),
            false => Ok(()),
        }
    }

    pub(super) fn too_many(&self) -> Failure {
        Failure::TooLarge(format!("more than {} objects of one kind are not supported", self.most))
    }
}

/// Identifies an object among those of its kind: a hash, because there may be
/// 200,000 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey(u64);

impl ObjectKey {
    pub(super) fn of(meta: &ObjectMeta) -> ObjectKey {
        // In kcp, one list contains objects of several workspaces.
        let workspace = meta.annotations.as_ref().and_then(|all| all.get("kcp.io/cluster"));
        ObjectKey(hash_of((workspace, &meta.namespace, &meta.name)))
    }
}

/// Known objects, with a hash of their UIDs.
pub(super) type ObjectKeys = BTreeMap<ObjectKey, u64>;

pub(super) fn uid_hash(meta: &ObjectMeta) -> u64 {
    hash_of(&meta.uid)
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// All objects of a kind at one version.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    pub(crate) version: String,
    pub(super) keys: ObjectKeys,
}

pub(crate) async fn list<K, T>(api: &Api<K>, scope: &Scope, project: &impl Fn(K) -> T) -> Result<Listed<T>, Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams {
        limit: Some(u32::try_from(scope.most * 2 / MOST_PAGES).unwrap_or(u32::MAX).max(1)),
        field_selector: scope.field_selector(),
        label_selector: scope.label_selector.clone(),
        ..ListParams::default()
    };
    let mut listed = Listed { items: Vec::new(), version: String::new(), keys: BTreeMap::new() };
    let mut bytes_left = MOST_BYTES;
    loop {
        let before = listed.items.len();
        let page = read_page(api, &params, &mut bytes_left, |object: K| {
            scope.check(api.namespace(), object.meta())?;
            if listed.keys.insert(ObjectKey::of(object.meta()), uid_hash(object.meta())).is_some() {
                return Err(Failure::Wrong("list contains an object twice".to_owned()));
            }
            listed.items.push(project(object));
            if listed.items.len() > scope.most { Err(scope.too_many()) } else { Ok(()) }
        });
        let late = |_| Failure::Timeout(PAGE_TIMEOUT);
        let page = timeout(PAGE_TIMEOUT, page).await.map_err(late)??;
        if page.token.is_empty() {
            if page.remaining_item_count.is_some_and(|missing| missing > 0) {
                return Err(Failure::Wrong("list ends before its last item".to_owned()));
            }
            listed.version = page.resource_version;
            return Ok(listed);
        }
        if listed.items.len() - before < (scope.most / MOST_PAGES).max(1) || params.continue_token.as_ref() == Some(&page.token) {
            return Err(Failure::TooLarge("list has too many pages".to_owned()));
        }
        params.continue_token = Some(page.token);
    }
}

async fn read_page<K: Resource + Clone + DeserializeOwned>(
    api: &Api<K>,
    params: &ListParams,
    bytes_left: &mut usize,
    mut take: impl FnMut(K) -> Result<(), Failure>,
) -> Result<PageMeta, Failure> {
    let request = kube::core::Request::new(api.resource_url()).list(params);
    let mut request = request.map_err(|wrong| Failure::Unreadable(wrong.to_string()))?;
    request.extensions_mut().insert(Streamed);
    let body = api.clone().into_client().request_stream(request).await.map_err(|error| Failure::of(&error))?;
    let (mut body, mut reader) = (pin!(body), PageReader::default());
    loop {
        let bytes = body.fill_buf().await.map_err(|error| Failure::of_read(&error))?;
        if bytes.is_empty() {
            return reader.finish();
        }
        *bytes_left = bytes_left.checked_sub(bytes.len()).ok_or_else(too_many_bytes)?;
        reader.read(bytes, &mut take)?;
        let read = bytes.len();
        body.consume_unpin(read);
        // A list that arrives faster than it is parsed must not starve other tasks.
        tokio::task::yield_now().await;
    }
}

fn too_many_bytes() -> Failure {
    Failure::TooLarge("list exceeds 256 MiB".to_owned())
}
