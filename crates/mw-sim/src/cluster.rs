//! One API server: its state, and direct access for tests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::account::Account;
use crate::answer::Answer;
use crate::builtin;
use crate::crd::{Definition, Unsupported};
use crate::fault::{Faults, Observer, Write};
use crate::kind::{Builtin, Kind};
use crate::object::Object;
use crate::path::Target;
use crate::proxy::Pods;
use crate::query::Query;
use crate::refusal::Refusal;
use crate::request::{Request, Verb};
use crate::server::Server;
use crate::store::{Collection, Entry};
use crate::uid::Draws;
use crate::wall::Wall;

/// Configuration of a cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    pub name: String,
    /// Seed of uids and generated names.
    pub seed: u64,
    /// Wall clock for creationTimestamp, deletionTimestamp and times in managedFields.
    pub wall: Wall,
    /// Keeps `managedFields`. Makes writes and reads slower; without it, server-side
    /// apply is not supported.
    pub managed_fields: bool,
}

/// State of the network link to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachability {
    Up,
    /// Traffic is held back, but nothing breaks: requests and watches wait and continue
    /// when the link is up again.
    Stalled,
    /// Connections break: open watches are cut, requests fail immediately.
    Refusing,
}

/// An in-memory API server; a cheap handle.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    state: Mutex<State>,
    hooks: Mutex<Hooks>,
    requests: AtomicU64,
    link_changed: Notify,
}

#[derive(Clone, Default)]
struct Hooks {
    faults: Option<Arc<dyn Faults>>,
    observer: Option<Arc<dyn Observer>>,
    pods: Option<Arc<dyn Pods>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Creates a cluster with the Namespaces `default` and `kube-system`, and without
    /// accounts.
    pub fn new(settings: Settings) -> Cluster {
        let inner = Inner {
            name: settings.name.into(),
            state: Mutex::new(State::new(
                settings.seed,
                settings.wall,
                settings.managed_fields,
            )),
            hooks: Mutex::default(),
            requests: AtomicU64::new(0),
            link_changed: Notify::new(),
        };
        let cluster = Cluster(Arc::new(inner));
        for name in ["default", "kube-system"] {
            cluster.call(
                &Method::POST,
                "/api/v1/namespaces?fieldManager=kube-apiserver",
                "",
                Some(&json!({ "metadata": { "name": name } })),
            );
        }
        cluster
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Parses and installs a definition; see [`Cluster::install`].
    pub fn install_crd(&self, crd: &Value) -> Result<(), Unsupported> {
        self.install(&Definition::parse(crd)?);
        Ok(())
    }

    /// Serves a definition immediately. An existing definition of the same name is
    /// kept.
    pub fn install(&self, definition: &Definition) {
        let mut state = self.state();
        // Fails only if the definition exists, which is then kept.
        _ = crate::write::create_definition(&mut state, definition);
        self.report(state, 0, None, Verb::Create);
    }

    /// Handles a request of the test itself: with the same code as for clients, as an
    /// administrator, immediately and without faults. Watches are not supported.
    pub fn call(
        &self,
        method: &Method,
        path_and_query: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        let body = body.map(crate::object::written).unwrap_or_default();
        let request = match self.request(method.clone(), path_and_query.to_owned(), body) {
            Ok(request) => Request {
                content_type: content_type.to_owned(),
                ..request
            },
            Err(refusal) => return (status_code(refusal.code), refusal.status()),
        };
        let who = Who::Known(Arc::new(Account::admin("tester")));
        match self.perform(&request, &who, 0) {
            Answer::Whole { code, body, .. } => (
                status_code(code),
                serde_json::from_slice(&body).unwrap_or_default(),
            ),
            Answer::Watch(_) => {
                let refusal = Refusal::unsupported("watches through Cluster::call");
                (status_code(refusal.code), refusal.status())
            }
        }
    }

    /// Returns the object at a path, e.g. `/api/v1/nodes/a`.
    pub fn get(&self, path: &str) -> Option<Arc<Value>> {
        let target = Target::of(path)?;
        let state = self.state();
        let found = state
            .collection(&target.group, &target.plural)?
            .objects
            .get(key(&target)?.as_str())?;
        Some(Arc::clone(&found.value))
    }

    /// Returns the objects of a collection, e.g. `/api/v1/nodes`, sorted by key.
    pub fn list(&self, collection: &str) -> Vec<Arc<Value>> {
        let Some(target) = Target::of(collection) else {
            return Vec::new();
        };
        let state = self.state();
        let all = state
            .collection(&target.group, &target.plural)
            .map(|collection| collection.objects.values());
        let lies_there = |object: &&Arc<Object>| {
            target.namespace.as_deref().is_none_or(|namespace| {
                crate::json::meta_text(&object.value, "namespace") == namespace
            })
        };
        all.into_iter()
            .flatten()
            .filter(lies_there)
            .map(|object| Arc::clone(&object.value))
            .collect()
    }

    /// Returns the newest resourceVersion.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Raises the version, as writes to other kinds do.
    pub fn advance_to(&self, version: u64) {
        let mut state = self.state();
        state.version = state.version.max(version);
    }

    /// Discards the history: lists and watches from older versions get 410 Gone. Open
    /// watches are not affected.
    pub fn compact(&self) {
        let mut state = self.state();
        let version = state.version;
        state
            .collections
            .iter_mut()
            .for_each(|collection| collection.floor = version);
    }

    /// Breaks every open watch, like a restart of the server.
    pub fn hang_up(&self) {
        let mut state = self.state();
        state.hung_up += 1;
        state
            .collections
            .iter()
            .for_each(|collection| collection.changed.notify_waiters());
    }

    /// Resets all objects to an earlier version, like a restored etcd backup: later
    /// writes are lost, their versions are assigned again, and open watches break.
    /// Definitions are kept.
    pub fn restore(&self, version: u64) {
        let mut state = self.state();
        state.version = state.version.min(version.max(1));
        let version = state.version;
        let of_objects = state
            .collections
            .iter_mut()
            .filter(|collection| collection.kind.builtin != Some(Builtin::Definition));
        of_objects.for_each(|collection| collection.restore(version));
        drop(state);
        self.hang_up();
    }

    /// Sets the account of a bearer token; `None` revokes the token (401). Open watches
    /// continue.
    pub fn set_token(&self, token: &str, account: Option<Account>) {
        let mut state = self.state();
        match account {
            Some(account) => state.accounts.insert(token.to_owned(), Arc::new(account)),
            None => state.accounts.remove(token),
        };
    }

    pub fn set_faults(&self, faults: Arc<dyn Faults>) {
        lock(&self.0.hooks).faults = Some(faults);
    }

    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        lock(&self.0.hooks).observer = Some(observer);
    }

    /// Sets the HTTP servers that run in pods. By default there are none.
    pub fn set_pods(&self, pods: Arc<dyn Pods>) {
        lock(&self.0.hooks).pods = Some(pods);
    }

    pub fn set_link(&self, link: Reachability) {
        let mut state = self.state();
        state.link = link;
        state
            .collections
            .iter()
            .for_each(|collection| collection.changed.notify_waiters());
        drop(state);
        self.0.link_changed.notify_waiters();
    }

    pub fn link(&self) -> Reachability {
        self.state().link
    }

    /// Returns a service for clients that send a bearer token with each request.
    pub fn server(&self) -> Server {
        Server::new(self.clone(), None)
    }

    /// Returns a service that uses this token for clients that send none.
    pub fn server_as(&self, token: &str) -> Server {
        Server::new(self.clone(), Some(token))
    }
}

impl Cluster {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    pub(crate) fn faults(&self) -> Option<Arc<dyn Faults>> {
        lock(&self.0.hooks).faults.clone()
    }

    pub(crate) fn observer(&self) -> Option<Arc<dyn Observer>> {
        lock(&self.0.hooks).observer.clone()
    }

    pub(crate) fn link_changed(&self) -> &Notify {
        &self.0.link_changed
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.0.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path_and_query: String,
        body: Bytes,
    ) -> Result<Request, Refusal> {
        let (path, query) = path_and_query
            .split_once('?')
            .map_or((path_and_query.as_str(), None), |(path, query)| {
                (path, Some(query))
            });
        let (target, query) = (Target::of(path), Query::of(query)?);
        let verb = Verb::of(&method, target.as_ref(), query.watch);
        let (content_type, accept, user_agent) = (String::new(), String::new(), String::new());
        let cluster = Arc::clone(&self.0.name);
        Ok(Request {
            number: 0,
            cluster,
            user: None,
            method,
            verb,
            target,
            query,
            path_and_query,
            content_type,
            accept,
            user_agent,
            body,
        })
    }

    /// Executes a request. A read sees the state `behind` versions ago.
    pub(crate) fn perform(&self, request: &Request, who: &Who, behind: u64) -> Answer {
        let mut state = self.state();
        if let Who::Known(account) = who {
            match crate::proxy::call(&state, account, request) {
                Ok(None) => {}
                Ok(Some(call)) => {
                    // Unlocked, because the pod may access the cluster.
                    drop(state);
                    let pods = lock(&self.0.hooks).pods.clone();
                    return call
                        .make(pods.as_deref())
                        .unwrap_or_else(|refusal| Answer::refused(&refusal));
                }
                Err(refusal) => return Answer::refused(&refusal),
            }
        }
        let answer = state.answer(self, request, who, behind);
        self.report(state, request.number, request.user.as_deref(), request.verb);
        answer.unwrap_or_else(|refusal| Answer::refused(&refusal))
    }

    /// Reports the writes of a request to the observer, after releasing the lock on the
    /// state.
    fn report(
        &self,
        mut state: MutexGuard<'_, State>,
        number: u64,
        user: Option<&str>,
        verb: Verb,
    ) {
        let writes = std::mem::take(&mut state.writes);
        drop(state);
        if writes.is_empty() {
            return;
        }
        let Some(observer) = self.observer() else {
            return;
        };
        for (kind, entry) in &writes {
            observer.wrote(&Write {
                request: (number > 0).then_some(number),
                user,
                verb,
                group: &kind.group,
                plural: &kind.plural,
                key: &entry.key,
                version: entry.version,
                before: entry.before.as_ref().map(|before| &*before.value),
                after: entry.after.as_ref().map(|after| &*after.value),
            });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status_code(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Identity of a client.
#[derive(Debug, Clone)]
pub(crate) enum Who {
    Known(Arc<Account>),
    Anonymous,
    /// A client with an unknown token.
    Unknown,
}

/// Returns `NAMESPACE/NAME`, or the name alone.
pub(crate) fn key(target: &Target) -> Option<String> {
    let name = target.name.as_ref()?;
    Some(match &target.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.clone(),
    })
}

/// Complete state of a server.
#[derive(Debug)]
pub(crate) struct State {
    pub version: u64,
    pub wall: Wall,
    pub draws: Draws,
    pub keeps_managers: bool,
    collections: Vec<Collection>,
    accounts: std::collections::BTreeMap<String, Arc<Account>>,
    link: Reachability,
    /// Number of times that all watches were broken.
    pub hung_up: u64,
    /// Writes of the request that is being handled.
    writes: Vec<(Arc<Kind>, Arc<Entry>)>,
}

impl State {
    fn new(seed: u64, wall: Wall, keeps_managers: bool) -> State {
        // 0 would mean "any version" to a client.
        let version = 1;
        let collections = builtin::kinds()
            .iter()
            .map(|kind| Collection::new(Arc::clone(kind), version))
            .collect();
        let accounts = std::collections::BTreeMap::new();
        State {
            version,
            wall,
            draws: Draws::new(seed),
            keeps_managers,
            collections,
            accounts,
            link: Reachability::Up,
            hung_up: 0,
            writes: Vec::new(),
        }
    }

    pub(crate) fn link(&self) -> Reachability {
        self.link
    }

    pub(crate) fn who(&self, token: Option<&str>) -> Who {
        match token {
            None => Who::Anonymous,
            Some(token) => self
                .accounts
                .get(token)
                .map_or(Who::Unknown, |account| Who::Known(Arc::clone(account))),
        }
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.collections.iter().map(|collection| &*collection.kind)
    }

    pub(crate) fn collection(&self, group: &str, plural: &str) -> Option<&Collection> {
        self.collections
            .iter()
            .find(|collection| collection.kind.plural == plural && collection.kind.group == group)
    }

    pub(crate) fn of_kind(&self, kind: &Kind) -> Option<&Collection> {
        self.collection(&kind.group, &kind.plural)
    }

    pub(crate) fn serve(&mut self, kind: Arc<Kind>) {
        self.collections.push(Collection::new(kind, self.version));
    }

    pub(crate) fn unserve(&mut self, group: &str, plural: &str) {
        if let Some(gone) = self
            .collections
            .iter()
            .position(|one| one.kind.plural == plural && one.kind.group == group)
        {
            // Wakes its watches, which then end because the kind no longer exists.
            self.collections.remove(gone).changed.notify_waiters();
        }
    }

    /// Writes or removes one object at the next version.
    pub(crate) fn commit(
        &mut self,
        kind: &Arc<Kind>,
        key: &str,
        value: Option<Value>,
    ) -> Option<Arc<Object>> {
        self.version += 1;
        let version = self.version;
        let object = value.map(|mut value| {
            crate::json::meta_mut(&mut value)
                .insert("resourceVersion".to_owned(), version.to_string().into());
            Object::new(value, version)
        });
        let found = self
            .collections
            .iter_mut()
            .find(|one| one.kind.plural == kind.plural && one.kind.group == kind.group)?;
        let entry = found.record(key.into(), version, object.clone());
        self.writes.push((Arc::clone(kind), entry));
        object
    }

    fn answer(
        &mut self,
        cluster: &Cluster,
        request: &Request,
        who: &Who,
        behind: u64,
    ) -> Result<Answer, Refusal> {
        let account = match who {
            Who::Known(account) => Some(account),
            Who::Anonymous => None,
            Who::Unknown => return Err(Refusal::unauthorized()),
        };
        let Some(target) = &request.target else {
            if request.method != Method::GET {
                return Err(Refusal::unsupported(format!(
                    "{} {}",
                    request.method,
                    request.path()
                )));
            }
            return crate::discovery::answer(self, request.path())
                .map(|value| Answer::json(200, &value));
        };
        let is_review =
            target.group == "authorization.k8s.io" && target.plural == "selfsubjectaccessreviews";
        match account {
            Some(_) if is_review => {}
            Some(account) => account.check(request.verb, &request.aims_at(target))?,
            None => {
                return Err(crate::account::denied(
                    "system:anonymous",
                    request.verb,
                    target,
                ));
            }
        }
        if !matches!(
            request.method,
            Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE
        ) {
            return Err(Refusal::unsupported(format!(
                "the method {}",
                request.method
            )));
        }
        let kind = self.kind_of(target, request.verb)?;
        check_manner(request)?;
        match (request.verb, account) {
            (Verb::Create, Some(account)) if kind.builtin == Some(Builtin::AccessReview) => {
                crate::review::answer(account, &kind, crate::decode::object(&kind, request)?)
            }
            (_, _) if kind.builtin == Some(Builtin::AccessReview) => {
                Err(Refusal::method_not_allowed())
            }
            (Verb::Get, _) => crate::read::get(self, &kind, target, &request.query, behind),
            (Verb::List, _) => crate::read::list(self, &kind, target, &request.query, behind),
            (Verb::Watch, _) => crate::watch::start(self, cluster, &kind, request, behind),
            (Verb::Create, _) => crate::write::create(self, &kind, request, target),
            (Verb::Update, _) => crate::write::update(self, &kind, request, target),
            (Verb::Patch, Some(account)) => {
                crate::write::patch(self, &kind, account, request, target)
            }
            (Verb::Patch, None) => Err(Refusal::unauthorized()),
            (Verb::Delete, _) => crate::write::delete(self, &kind, request, target),
            (Verb::DeleteCollection, _) => {
                crate::write::delete_collection(self, &kind, request, target)
            }
        }
    }

    /// Returns the kind of a path, if the path allows this verb.
    fn kind_of(&self, target: &Target, verb: Verb) -> Result<Arc<Kind>, Refusal> {
        let found = self
            .collection(&target.group, &target.plural)
            .filter(|found| found.kind.version == target.version);
        let Some(kind) = found.map(|found| Arc::clone(&found.kind)) else {
            return Err(if is_of_kubernetes(&target.group) {
                Refusal::unsupported(format!(
                    "{} in version {}",
                    target.resource(),
                    target.version
                ))
            } else {
                Refusal::no_such_page()
            });
        };
        if let Some(part) = &target.subresource {
            if !kind.has_subresource(part) {
                return Err(if kind.is_custom() {
                    Refusal::no_such_resource()
                } else {
                    Refusal::unsupported(format!("the subresource {part} of {}", kind.qualified()))
                });
            }
            if !matches!(verb, Verb::Get | Verb::Update | Verb::Patch) {
                return Err(Refusal::method_not_allowed());
            }
        }
        if !kind.namespaced && target.namespace.is_some() {
            return Err(Refusal::no_such_page());
        }
        // The collection across all namespaces is read-only and has no names.
        if kind.namespaced && target.namespace.is_none() {
            let only_reads = matches!(verb, Verb::List | Verb::Watch);
            if target.name.is_some() || (kind.is_custom() && !only_reads) {
                return Err(Refusal::no_such_page());
            }
            if !only_reads {
                return Err(Refusal::method_not_allowed());
            }
        }
        Ok(kind)
    }
}

/// Reports whether a group is one of Kubernetes' own.
fn is_of_kubernetes(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Rejects dry runs, watches of a single object's path, and answers other than JSON.
fn check_manner(request: &Request) -> Result<(), Refusal> {
    if request.query.dry_run {
        return Err(Refusal::unsupported("dry runs"));
    }
    if request.verb == Verb::Watch
        && request
            .target
            .as_ref()
            .is_some_and(|target| target.name.is_some())
    {
        return Err(Refusal::unsupported(
            "watches of a single object's path; use a field selector",
        ));
    }
    let accept = request.accept.as_str();
    if accept.is_empty() {
        return Ok(());
    }
    let mut offers = accept.split(',').map(str::trim);
    if offers
        .clone()
        .next()
        .is_some_and(|first| first.contains("as="))
    {
        return Err(Refusal::unsupported(format!("answers as {accept:?}")));
    }
    let is_json = |offer: &str| {
        matches!(
            offer.split(';').next().unwrap_or_default().trim(),
            "application/json" | "application/*" | "*/*"
        )
    };
    if offers.clone().any(is_json) {
        return Ok(());
    }
    if offers
        .any(|offer| offer.contains("protobuf") || offer.contains("yaml") || offer.contains("cbor"))
    {
        return Err(Refusal::unsupported(format!("answers as {accept:?}")));
    }
    let types = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    Err(Refusal::new(
        406,
        "NotAcceptable",
        format!("only the following media types are accepted: {types}"),
    ))
}
