//! Leader election with a Lease and optimistic concurrency: every write carries
//! the resourceVersion it is based on, so that two candidates that read the same
//! expired Lease can't both acquire it.
//!
//! `Elector` decides without access to server and clock; `campaign` executes. A
//! Lease has expired if *we* have seen it unchanged for its duration; clocks of
//! two machines are never compared.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use tokio::time::{Instant, sleep, timeout};

/// Time after which a Lease that is not renewed expires.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time without a renewal after which the holder stops. Together with the longest
/// request this is over before another process may acquire the Lease.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Next step for the Lease.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Create(Lease),
    Replace(Lease),
    /// Another process holds it.
    Wait,
}

#[derive(Debug)]
pub struct Elector {
    name: String,
    identity: String,
    /// The Lease as last read, and when we first saw it like this.
    observed: Option<(Fingerprint, Instant)>,
    renewed: Option<Instant>,
    annotations: BTreeMap<String, String>,
    /// Annotations to write.
    marks: BTreeMap<String, String>,
}

/// Fields that change when a Lease is renewed or acquired.
#[derive(Debug, Clone, PartialEq)]
struct Fingerprint {
    holder: String,
    renewed: Option<MicroTime>,
    version: Option<String>,
}

impl Elector {
    pub fn new(name: &str, identity: &str) -> Elector {
        Elector {
            name: name.to_owned(),
            identity: identity.to_owned(),
            observed: None,
            renewed: None,
            annotations: BTreeMap::new(),
            marks: BTreeMap::new(),
        }
    }

    /// Adds an annotation to the Lease.
    #[must_use]
    pub fn marked(mut self, key: &str, value: String) -> Elector {
        self.marks.insert(key.to_owned(), value);
        self
    }

    /// Decides about a Lease that was read at `now`; `wall` is written as renewTime.
    pub fn decide(&mut self, found: Option<&Lease>, now: Instant, wall: &MicroTime) -> Step {
        let Some(found) = found else {
            self.observed = None;
            return Step::Create(self.lease(None, wall));
        };
        let seen = fingerprint(found);
        let since = match &self.observed {
            Some((before, since)) if *before == seen => *since,
            _ => now,
        };
        let free = seen.holder.is_empty()
            || seen.holder == self.identity
            || now.duration_since(since) >= duration(found);
        self.observed = Some((seen, since));
        match free {
            true => Step::Replace(self.lease(Some(found), wall)),
            false => Step::Wait,
        }
    }

    /// Records a successful write that was sent at `asked`. The time of sending
    /// counts, since the server may have stored it right then.
    pub fn written(&mut self, lease: &Lease, asked: Instant) {
        self.observed = Some((fingerprint(lease), asked));
        self.renewed = Some(asked);
        self.annotations = lease.metadata.annotations.clone().unwrap_or_default();
    }

    /// Returns the holder of the Lease when it was last read.
    pub fn holder(&self) -> &str {
        self.observed
            .as_ref()
            .map_or("", |(seen, _)| seen.holder.as_str())
    }

    /// Returns until when we may write; None if we are not leader.
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + RENEW_DEADLINE)
    }

    /// Returns the Lease without a holder, if we are its holder.
    pub fn release(&self, found: &Lease, wall: &MicroTime) -> Option<Lease> {
        (fingerprint(found).holder == self.identity).then(|| {
            let mut lease = self.lease(Some(found), wall);
            let spec = lease.spec.get_or_insert_default();
            (spec.holder_identity, spec.lease_duration_seconds) = (Some(String::new()), Some(1));
            lease
        })
    }

    fn lease(&self, found: Option<&Lease>, wall: &MicroTime) -> Lease {
        let old = found
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        let ours = old.holder_identity.as_deref() == Some(&self.identity);
        let transitions = old.lease_transitions.unwrap_or(0);
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: old
                .acquire_time
                .filter(|_| ours)
                .or_else(|| Some(wall.clone())),
            renew_time: Some(wall.clone()),
            lease_transitions: Some(if ours || found.is_none() {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..old
        };
        let metadata = found.map(|lease| lease.metadata.clone());
        let mut metadata = metadata.unwrap_or_else(|| ObjectMeta {
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        });
        if !self.marks.is_empty() {
            metadata
                .annotations
                .get_or_insert_default()
                .extend(self.marks.clone());
        }
        Lease {
            metadata,
            spec: Some(spec),
        }
    }
}

fn fingerprint(lease: &Lease) -> Fingerprint {
    let spec = lease.spec.as_ref();
    Fingerprint {
        holder: spec
            .and_then(|spec| spec.holder_identity.clone())
            .unwrap_or_default(),
        renewed: spec.and_then(|spec| spec.renew_time.clone()),
        version: lease.metadata.resource_version.clone(),
    }
}

/// Returns the duration of a Lease as set by its holder, at least a second.
fn duration(lease: &Lease) -> Duration {
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds)
        .unwrap_or(0);
    let default = i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(15);
    let seconds = if seconds <= 0 { default } else { seconds };
    Duration::from_secs(u64::try_from(seconds).unwrap_or(1))
}

/// Reads the Lease once and writes it if we may acquire or renew it. Returns true
/// if we are leader afterwards, false if another process is. After a failure, the
/// leader stays leader until its deadline.
pub async fn attempt(
    api: &Api<Lease>,
    elector: &mut Elector,
    wall: &MicroTime,
) -> Result<bool, LeaseError> {
    let name = elector.name.clone();
    let asked = Instant::now();
    let found = timeout(REQUEST_TIMEOUT, api.get_opt(&name))
        .await
        .map_err(|_| LeaseError::Timeout)?
        .map_err(LeaseError::Read)?;
    let post = PostParams::default();
    let written = match elector.decide(found.as_ref(), Instant::now(), wall) {
        Step::Wait => return Ok(false),
        Step::Create(lease) => timeout(REQUEST_TIMEOUT, api.create(&post, &lease)).await,
        Step::Replace(lease) => timeout(REQUEST_TIMEOUT, api.replace(&name, &post, &lease)).await,
    };
    match written.map_err(|_| LeaseError::Timeout)? {
        Ok(lease) => {
            elector.written(&lease, asked);
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Err(LeaseError::Conflict),
        Err(wrong) => Err(LeaseError::Write(wrong)),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("no answer from the API server within 5s")]
    Timeout,
    #[error("the Lease has changed since it was read; retrying")]
    Conflict,
    #[error("failed to read the Lease: {0}")]
    Read(#[source] kube::Error),
    #[error("failed to write the Lease: {0}")]
    Write(#[source] kube::Error),
}

/// Waits until we are leader. Reports the holder of the Lease after every attempt.
pub async fn campaign(
    api: &Api<Lease>,
    elector: &mut Elector,
    wall: impl Fn() -> MicroTime,
    mut tell: impl FnMut(Result<&str, &LeaseError>),
) {
    loop {
        match attempt(api, elector, &wall()).await {
            Ok(true) => return,
            Ok(false) => tell(Ok(elector.holder())),
            Err(wrong) => tell(Err(&wrong)),
        }
        sleep(RETRY_PERIOD).await;
    }
}

/// Annotations of the Lease as last read; users confirm changes with them.
#[derive(Debug, Clone, Default)]
pub struct LeaseAnnotations(Arc<Mutex<BTreeMap<String, String>>>);

impl LeaseAnnotations {
    pub fn get(&self, key: &str) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned()
    }

    fn set(&self, annotations: BTreeMap<String, String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = annotations;
    }
}

/// Renews the Lease and reports until when we certainly hold it. Returns when it
/// is lost, at the latest after the renew deadline; the process must exit then.
pub async fn keep(
    api: &Api<Lease>,
    elector: &mut Elector,
    annotations: &LeaseAnnotations,
    wall: impl Fn() -> MicroTime,
    holds_until: impl Fn(Option<Instant>),
) {
    loop {
        annotations.set(elector.annotations.clone());
        holds_until(elector.leads_until());
        let Some(until) = elector.leads_until() else {
            return;
        };
        sleep(RETRY_PERIOD).await;
        match tokio::time::timeout_at(until, attempt(api, elector, &wall())).await {
            Ok(Ok(true) | Err(_)) if Instant::now() < elector.leads_until().unwrap_or(until) => {}
            _ => {
                holds_until(None);
                return;
            }
        }
    }
}

/// Releases the Lease, so that another process need not wait until it expires.
pub async fn give_up(
    api: &Api<Lease>,
    elector: &Elector,
    wall: &MicroTime,
) -> Result<(), LeaseError> {
    let found = timeout(REQUEST_TIMEOUT, api.get(&elector.name))
        .await
        .map_err(|_| LeaseError::Timeout)?
        .map_err(LeaseError::Read)?;
    let Some(released) = elector.release(&found, wall) else {
        return Ok(());
    };
    let replaced = timeout(
        REQUEST_TIMEOUT,
        api.replace(&elector.name, &PostParams::default(), &released),
    )
    .await;
    replaced
        .map_err(|_| LeaseError::Timeout)?
        .map(drop)
        .map_err(LeaseError::Write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    use kube::Client;
    use kube::client::Body;

    fn wall(second: i64) -> MicroTime {
        serde_json::from_value(serde_json::json!(format!(
            "2026-01-01T00:{:02}:{:02}.000000Z",
            second / 60,
            second % 60
        )))
        .unwrap()
    }

    /// A server that stores one Lease, with optimistic concurrency.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        lease: Option<serde_json::Value>,
        version: u64,
        hangs: bool,
        refuses: bool,
    }

    impl Server {
        fn api(&self) -> Api<Lease> {
            let server = self.clone();
            let answer = move |request: http::Request<Body>| {
                let server = server.clone();
                async move { server.answer(request).await }
            };
            Api::namespaced(Client::new(tower::service_fn(answer), "ns"), "ns")
        }

        async fn answer(
            &self,
            request: http::Request<Body>,
        ) -> Result<http::Response<Body>, std::convert::Infallible> {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            if self.0.lock().unwrap().hangs {
                std::future::pending::<()>().await;
            }
            let (code, value) = self.0.lock().unwrap().handle(&parts.method, &body);
            Ok(http::Response::builder()
                .status(code)
                .body(Body::from(serde_json::to_vec(&value).unwrap()))
                .unwrap())
        }

        fn holder(&self) -> Option<String> {
            self.0
                .lock()
                .unwrap()
                .lease
                .as_ref()
                .and_then(|lease| lease["spec"]["holderIdentity"].as_str().map(str::to_owned))
        }
    }

    impl State {
        fn handle(&mut self, method: &http::Method, body: &[u8]) -> (u16, serde_json::Value) {
            let status = |code: u16, reason: &str| {
                (
                    code,
                    serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "", "reason": reason, "code": code}),
                )
            };
            if self.refuses {
                return status(500, "InternalError");
            }
            if *method == http::Method::GET {
                return self
                    .lease
                    .clone()
                    .map_or_else(|| status(404, "NotFound"), |lease| (200, lease));
            }
            let mut lease: serde_json::Value = serde_json::from_slice(body).unwrap();
            let found = self
                .lease
                .as_ref()
                .map(|lease| lease["metadata"]["resourceVersion"].clone());
            let named = lease["metadata"].get("resourceVersion").cloned();
            if (*method == http::Method::POST && found.is_some())
                || (*method == http::Method::PUT && found != named)
            {
                return status(409, "Conflict");
            }
            self.version += 1;
            lease["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.lease = Some(lease.clone());
            (200, lease)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_candidate_leads_and_the_second_waits() {
        let server = Server::default();
        let (mut one, mut two) = (Elector::new("lease", "one"), Elector::new("lease", "two"));
        assert!(attempt(&server.api(), &mut one, &wall(0)).await.unwrap());
        assert!(!attempt(&server.api(), &mut two, &wall(0)).await.unwrap());
        assert_eq!(server.holder().as_deref(), Some("one"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unrenewed_lease_is_taken_after_its_time_and_not_before() {
        let server = Server::default();
        let (mut one, mut two) = (Elector::new("lease", "one"), Elector::new("lease", "two"));
        attempt(&server.api(), &mut one, &wall(0)).await.unwrap();
        let start = Instant::now();
        // The holder's clock is an hour ahead; that makes no difference.
        campaign(&server.api(), &mut two, || wall(3599), |_| {}).await;
        let waited = start.elapsed();
        assert!(
            waited >= LEASE_DURATION && waited <= LEASE_DURATION + RETRY_PERIOD,
            "{waited:?}"
        );
        assert_eq!(server.holder().as_deref(), Some("two"));
        assert!(
            !attempt(&server.api(), &mut one, &wall(20)).await.unwrap(),
            "the old holder must not take it back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_is_never_taken() {
        let server = Server::default();
        let (mut one, mut two) = (Elector::new("lease", "one"), Elector::new("lease", "two"));
        attempt(&server.api(), &mut one, &wall(0)).await.unwrap();
        for second in 1..60 {
            tokio::time::advance(Duration::from_secs(2)).await;
            assert!(
                attempt(&server.api(), &mut one, &wall(second))
                    .await
                    .unwrap()
            );
            assert!(
                !attempt(&server.api(), &mut two, &wall(second))
                    .await
                    .unwrap()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_that_saw_the_same_expired_lease_one_wins() {
        let server = Server::default();
        let mut old = Elector::new("lease", "old");
        attempt(&server.api(), &mut old, &wall(0)).await.unwrap();
        let found: Lease = server.api().get("lease").await.unwrap();
        let (mut one, mut two) = (Elector::new("lease", "one"), Elector::new("lease", "two"));
        for elector in [&mut one, &mut two] {
            assert_eq!(
                elector.decide(Some(&found), Instant::now(), &wall(1)),
                Step::Wait
            );
        }
        tokio::time::advance(LEASE_DURATION).await;
        let mut wins = 0;
        for elector in [&mut one, &mut two] {
            // Both read before either writes.
            let Step::Replace(lease) = elector.decide(Some(&found), Instant::now(), &wall(16))
            else {
                panic!("it has expired")
            };
            wins += usize::from(
                server
                    .api()
                    .replace("lease", &PostParams::default(), &lease)
                    .await
                    .is_ok(),
            );
        }
        assert_eq!(wins, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_cannot_renew_stops_before_anybody_else_may_start() {
        for hangs in [true, false] {
            let server = Server::default();
            let mut one = Elector::new("lease", "one");
            attempt(&server.api(), &mut one, &wall(0)).await.unwrap();
            {
                let mut state = server.0.lock().unwrap();
                (state.hangs, state.refuses) = (hangs, !hangs);
            }
            let start = Instant::now();
            keep(
                &server.api(),
                &mut one,
                &LeaseAnnotations::default(),
                || wall(1),
                |_| {},
            )
            .await;
            assert!(
                start.elapsed() <= RENEW_DEADLINE + RETRY_PERIOD,
                "{:?}",
                start.elapsed()
            );
            assert!(start.elapsed() < LEASE_DURATION);
        }
        const {
            assert!(
                RENEW_DEADLINE.as_secs() + REQUEST_TIMEOUT.as_secs() <= LEASE_DURATION.as_secs()
            )
        };
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_free_at_once() {
        let server = Server::default();
        let (mut one, mut two) = (Elector::new("lease", "one"), Elector::new("lease", "two"));
        attempt(&server.api(), &mut one, &wall(0)).await.unwrap();
        give_up(&server.api(), &two, &wall(1)).await.unwrap();
        assert_eq!(
            server.holder().as_deref(),
            Some("one"),
            "only the holder gives it up"
        );
        give_up(&server.api(), &one, &wall(1)).await.unwrap();
        assert!(attempt(&server.api(), &mut two, &wall(1)).await.unwrap());
    }
}
