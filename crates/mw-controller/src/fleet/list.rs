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
use tokio::time::{Instant, timeout, timeout_at};

use crate::failure::Failure;
use crate::fleet::items::{PageMeta, PageReader};
use crate::fleet::memory::MemoryShare;
use crate::transport::Streamed;

/// Several times what is usual in a large cluster.
const MOST_OBJECTS: usize = 50_000;
/// Size limit of a list; only the projections are kept.
const MOST_BYTES: usize = 256 << 20;
/// Maximum number of pages: each but the last must hold at least this fraction of
/// the maximum number of items.
const MOST_PAGES: usize = 100;
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Twice as long as API servers accept a `continue` token.
const LIST_TIMEOUT: Duration = Duration::from_secs(600);

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
        Scope {
            name: None,
            label_selector: None,
            most: MOST_OBJECTS,
        }
    }
}

impl Scope {
    pub fn named(name: &str) -> Scope {
        Scope {
            name: Some(name.to_owned()),
            ..Scope::default()
        }
    }

    pub fn labelled(selector: &str) -> Scope {
        Scope {
            label_selector: Some(selector.to_owned()),
            ..Scope::default()
        }
    }

    pub fn at_most(most: usize) -> Scope {
        Scope {
            most,
            ..Scope::default()
        }
    }

    pub(super) fn field_selector(&self) -> Option<String> {
        self.name
            .as_ref()
            .map(|name| format!("metadata.name={name}"))
    }

    /// Refuses an object that was not requested.
    pub(super) fn check(&self, namespace: Option<&str>, meta: &ObjectMeta) -> Result<(), Failure> {
        let other_name = self.name.is_some() && self.name != meta.name;
        let other_namespace = namespace.is_some() && namespace != meta.namespace.as_deref();
        match other_name || other_namespace {
            true => Err(Failure::Wrong(
                "it contains an object that was not requested".to_owned(),
            )),
            false => Ok(()),
        }
    }

    pub(super) fn too_many(&self) -> Failure {
        Failure::TooLarge(format!(
            "more than {} objects of one kind are not supported",
            self.most
        ))
    }
}

/// Identifies an object among those of its kind: a hash, because there may be
/// 200,000 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey(u64);

impl ObjectKey {
    pub(super) fn of(meta: &ObjectMeta) -> ObjectKey {
        // In kcp, one list contains objects of several workspaces.
        let workspace = meta
            .annotations
            .as_ref()
            .and_then(|all| all.get("kcp.io/cluster"));
        ObjectKey(hash_of((workspace, &meta.namespace, &meta.name)))
    }
}

/// Known objects.
pub(super) type ObjectKeys = BTreeMap<ObjectKey, KnownObject>;

/// A known object.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownObject {
    /// Hash of its UID.
    pub(super) uid: u64,
    /// Memory of its projection.
    pub(super) size: usize,
}

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

/// Lists for a single answer, which is not kept.
pub(crate) async fn list<K, T>(
    api: &Api<K>,
    scope: &Scope,
    project: &impl Fn(K) -> T,
) -> Result<Listed<T>, Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    list_within(api, scope, project, &mut MemoryShare::unlimited()).await
}

/// Lists while the projections fit into the share.
pub(super) async fn list_within<K, T>(
    api: &Api<K>,
    scope: &Scope,
    project: &impl Fn(K) -> T,
    memory: &mut MemoryShare<T>,
) -> Result<Listed<T>, Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    memory.give_up();
    let mut params = ListParams {
        limit: Some(
            u32::try_from(scope.most * 2 / MOST_PAGES)
                .unwrap_or(u32::MAX)
                .max(1),
        ),
        field_selector: scope.field_selector(),
        label_selector: scope.label_selector.clone(),
        ..ListParams::default()
    };
    let mut listed = Listed {
        items: Vec::new(),
        version: String::new(),
        keys: BTreeMap::new(),
    };
    let (mut bytes_left, end) = (MOST_BYTES, Instant::now() + LIST_TIMEOUT);
    loop {
        let before = listed.items.len();
        let page = read_page(api, &params, &mut bytes_left, |object: K| {
            scope.check(api.namespace(), object.meta())?;
            let (key, uid) = (ObjectKey::of(object.meta()), uid_hash(object.meta()));
            let item = project(object);
            let size = memory.read(&item)?;
            if listed.keys.insert(key, KnownObject { uid, size }).is_some() {
                return Err(Failure::Wrong("list contains an object twice".to_owned()));
            }
            listed.items.push(item);
            if listed.items.len() > scope.most {
                Err(scope.too_many())
            } else {
                Ok(())
            }
        });
        let page = timeout_at(end, timeout(PAGE_TIMEOUT, page))
            .await
            .map_err(|_| too_slow())?
            .map_err(|_| Failure::Timeout(PAGE_TIMEOUT))??;
        if page.token.is_empty() {
            if page.remaining_item_count.is_some_and(|missing| missing > 0) {
                return Err(Failure::Wrong("list ends before its last item".to_owned()));
            }
            listed.version = page.resource_version;
            return Ok(listed);
        }
        if listed.items.len() - before < (scope.most / MOST_PAGES).max(1)
            || params.continue_token.as_ref() == Some(&page.token)
        {
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
    let body = api
        .clone()
        .into_client()
        .request_stream(request)
        .await
        .map_err(|error| Failure::of(&error))?;
    let (mut body, mut reader) = (pin!(body), PageReader::default());
    loop {
        let bytes = body
            .fill_buf()
            .await
            .map_err(|error| Failure::of_read(&error))?;
        if bytes.is_empty() {
            return reader.finish();
        }
        *bytes_left = bytes_left
            .checked_sub(bytes.len())
            .ok_or_else(too_many_bytes)?;
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

fn too_slow() -> Failure {
    Failure::TooLarge(format!(
        "list is not complete after {} minutes",
        LIST_TIMEOUT.as_secs() / 60
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures::StreamExt;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};
    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;
    use tokio::time::Instant;

    /// A server that answers every request with this body, after counting it.
    fn api<B>(
        answers: &Arc<AtomicUsize>,
        body: impl Fn(usize) -> B + Clone + Send + Sync + 'static,
    ) -> Api<Node>
    where
        B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let answers = Arc::clone(answers);
        let answer = move |_: http::Request<Body>| {
            let body = body(answers.fetch_add(1, Ordering::Relaxed));
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        };
        Api::all(Client::new(tower::service_fn(answer), "default"))
    }

    async fn failure(api: &Api<Node>) -> Failure {
        list(api, &Scope::at_most(1_000), &|_: Node| ())
            .await
            .map(drop)
            .unwrap_err()
    }

    #[tokio::test]
    async fn a_list_of_more_than_256_mib_is_given_up_though_nothing_of_it_is_kept() {
        let large = "x".repeat(1 << 20);
        let page = move |number: usize| {
            let item = |nth: usize| {
                format!(
                    r#"{{"metadata":{{"name":"{number}-{nth}","annotations":{{"a":"{large}"}}}}}}"#
                )
            };
            let items: Vec<String> = (0..10).map(item).collect();
            let page = format!(
                r#"{{"metadata":{{"resourceVersion":"5","continue":"{number}"}},"items":[{}]}}"#,
                items.join(",")
            );
            Full::from(page)
        };
        let answers = Arc::default();
        assert_eq!(failure(&api(&answers, page)).await, too_many_bytes());
        assert_eq!(answers.load(Ordering::Relaxed), 26);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_trickles_in_for_60_seconds_is_given_up() {
        let trickle = |_| {
            let spaces = futures::stream::repeat(()).then(|()| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b" ")))
            });
            StreamBody::new(spaces)
        };
        let (answers, start) = (Arc::default(), Instant::now());
        assert_eq!(
            failure(&api(&answers, trickle)).await,
            Failure::Timeout(PAGE_TIMEOUT)
        );
        assert_eq!(
            (start.elapsed().as_secs(), answers.load(Ordering::Relaxed)),
            (60, 1)
        );
    }

    /// A server that sends one page of 20 Nodes after this time, each time.
    fn slow(seconds: u64) -> (Arc<AtomicUsize>, Api<Node>) {
        let page = move |number: usize| {
            let items: Vec<String> = (0..20)
                .map(|nth| format!(r#"{{"metadata":{{"name":"{number}-{nth}"}}}}"#))
                .collect();
            let page = format!(
                r#"{{"metadata":{{"resourceVersion":"5","continue":"{number}"}},"items":[{}]}}"#,
                items.join(",")
            );
            StreamBody::new(futures::stream::once(Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok::<_, Infallible>(Frame::data(Bytes::from(page)))
            })))
        };
        let answers = Arc::default();
        let api = api(&answers, page);
        (answers, api)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_trickles_is_given_up() {
        let start = Instant::now();
        let (answers, api) = slow(55);
        assert_eq!(failure(&api).await, too_slow());
        assert_eq!(
            (start.elapsed(), answers.load(Ordering::Relaxed)),
            (LIST_TIMEOUT, 11)
        );
    }
}
