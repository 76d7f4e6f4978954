//! Connections to the clusters of tenants. A tenant chooses the host in its
//! kubeconfig and reads the result in its status. The status says that a host
//! can't be reached but not why, so that a tenant can't scan the network of this
//! process for addresses and ports. The log has the details.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use mw_core::names::ClusterId;
use serde_json::json;
use tower::BoxError;
use tracing::warn;

use crate::cluster_names::ClusterNames;
use crate::failure::Failure;
use crate::fleet::{Connect, secret_of};
use crate::kubeconfig::{Access, Refusal};
use crate::transport::TransportError;

const NOT_KUBERNETES: &str = "the response is not from a Kubernetes API";

/// Wraps another `Connect` and hides the details of failures from tenants.
pub struct Coarse {
    connect: Arc<dyn Connect>,
    names: ClusterNames,
    process: &'static str,
    administrators: Option<String>,
    failures: Failures,
}

/// The last logged failure of each cluster that does not answer.
type Failures = Arc<Mutex<BTreeMap<ClusterId, String>>>;

/// Clusters whose failures are remembered; tenants can add and remove others.
const MOST_FAILURES: usize = 1_000;

impl Coarse {
    /// Wraps a `Connect`. `process` is the word for this process in messages. The
    /// owners of the namespace `administrators` can read the log: connections of its
    /// Secrets keep their details.
    pub fn new(
        connect: Arc<dyn Connect>,
        names: ClusterNames,
        process: &'static str,
        administrators: Option<String>,
    ) -> Coarse {
        Coarse {
            connect,
            names,
            process,
            administrators,
            failures: Failures::default(),
        }
    }

    fn is_of_tenant(&self, cluster: &ClusterId) -> bool {
        let namespace = secret_of(cluster).and_then(|secret| secret.split('/').next());
        namespace.is_some() && namespace != self.administrators.as_deref()
    }
}

impl std::fmt::Debug for Coarse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coarse").finish_non_exhaustive()
    }
}

impl Connect for Coarse {
    fn connect(
        &self,
        cluster: &ClusterId,
        access: Arc<Access>,
    ) -> BoxFuture<'static, Result<Client, Refusal>> {
        let connecting = self.connect.connect(cluster, access);
        if !self.is_of_tenant(cluster) {
            return connecting;
        }
        let log = Log {
            cluster: cluster.clone(),
            names: self.names.clone(),
            process: self.process,
            failures: Arc::clone(&self.failures),
        };
        Box::pin(async move { Ok(coarse(connecting.await?, log)) })
    }
}

fn coarse(client: Client, log: Log) -> Client {
    let namespace = client.default_namespace().to_owned();
    let log = Arc::new(log);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, log) = (client.clone(), Arc::clone(&log));
        async move {
            match client.send(request).await {
                Ok(answer) if answer.status().is_success() => {
                    log.answered();
                    Ok(answer)
                }
                Ok(answer) => {
                    log.answered();
                    plain(answer, &log).await
                }
                Err(error) => Err(hidden(error, &log)),
            }
        }
    });
    Client::new(service, namespace)
}

/// Logs an error and returns it without its details.
fn hidden(error: kube::Error, log: &Log) -> BoxError {
    match Failure::of(&error) {
        Failure::NotLeader => TransportError::NotLeader.into(),
        failure
        @ (Failure::Timeout(_) | Failure::Unreachable(_) | Failure::ForbiddenAddress(_)) => {
            log.failed(&failure.to_string());
            log.hint().into()
        }
        _ => error.into(),
    }
}

/// Passes on an error response if it is a Kubernetes Status. Anything else may be
/// a page of an internal server and is replaced.
async fn plain(answer: Response<Body>, log: &Log) -> Result<Response<Body>, BoxError> {
    let (parts, body) = answer.into_parts();
    let bytes = body
        .collect_bytes()
        .await
        .map_err(|error| hidden(error, log))?;
    let is_status = serde_json::from_slice::<serde_json::Value>(&bytes)
        .is_ok_and(|value| value.get("kind").is_some_and(|kind| kind == "Status"));
    let body = match is_status && serde_json::from_slice::<Status>(&bytes).is_ok() {
        true => bytes.to_vec(),
        false => {
            let code = parts.status.as_u16();
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": NOT_KUBERNETES })
                .to_string()
                .into_bytes()
        }
    };
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// Logs each failure once until it changes, since every attempt and every watch fails
/// for the same reason.
struct Log {
    cluster: ClusterId,
    names: ClusterNames,
    process: &'static str,
    failures: Failures,
}

impl Log {
    /// Follows "can't be reached:" in messages.
    fn hint(&self) -> String {
        format!("see the {}'s log for the cause", self.process)
    }

    fn answered(&self) {
        self.lock().remove(&self.cluster);
    }

    fn failed(&self, why: &str) {
        if self.is_new(why) {
            warn!(cluster = %self.names.of(&self.cluster), secret = secret_of(&self.cluster), error = why, "request failed");
        }
    }

    fn is_new(&self, why: &str) -> bool {
        let mut failures = self.lock();
        if failures.get(&self.cluster).is_some_and(|last| last == why) {
            return false;
        }
        if failures.len() >= MOST_FAILURES {
            failures.clear();
        }
        failures.insert(self.cluster.clone(), why.to_owned());
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClusterId, String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::ListParams;

    use crate::kubeconfig::{Allowed, inspect};

    fn log(cluster: &str, failures: &Failures) -> Log {
        Log {
            cluster: ClusterId::from(cluster),
            names: ClusterNames::default(),
            process: "provider",
            failures: Arc::clone(failures),
        }
    }

    async fn listed(
        answer: impl Fn() -> Result<Response<Body>, BoxError> + Send + Sync + 'static,
    ) -> Failure {
        let answer = Arc::new(answer);
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Arc::clone(&answer);
            async move { answer() }
        });
        let log = log("c", &Failures::default());
        let client = coarse(Client::new(service, "default"), log);
        Failure::of(
            &Api::<Node>::all(client)
                .list(&ListParams::default())
                .await
                .map(drop)
                .unwrap_err(),
        )
    }

    fn answer(code: u16, body: &str) -> Result<Response<Body>, BoxError> {
        Ok(Response::builder()
            .status(code)
            .body(Body::from(body.as_bytes().to_vec()))
            .unwrap())
    }

    #[tokio::test]
    async fn a_tenant_learns_that_a_host_cannot_be_reached_and_not_why() {
        let refused = listed(|| Err("Connection refused (os error 111)".into())).await;
        let silent = listed(|| Err(TransportError::Timeout(Duration::from_secs(5)).into())).await;
        let certificate = listed(|| Err("invalid peer certificate: UnknownIssuer".into())).await;
        assert!(matches!(refused, Failure::Unreachable(_)), "{refused:?}");
        assert_eq!((&silent, &certificate), (&refused, &refused));
        assert_eq!(
            refused.to_string(),
            "can't be reached: see the provider's log for the cause"
        );
    }

    #[tokio::test]
    async fn a_tenant_never_reads_the_pages_of_another_server() {
        let page = listed(|| answer(403, "<html>internal wiki of 10.0.0.7</html>")).await;
        assert_eq!(page, Failure::Forbidden(NOT_KUBERNETES.to_owned()));
        let json = listed(|| answer(500, r#"{"password": "hunter2"}"#)).await;
        assert!(!json.to_string().contains("hunter2"), "{json}");
    }

    #[tokio::test]
    async fn what_a_kubernetes_api_refuses_is_told() {
        let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"nodes is forbidden","reason":"Forbidden","code":403}"#;
        assert_eq!(
            listed(|| answer(403, status)).await,
            Failure::Forbidden("nodes is forbidden".to_owned())
        );
        assert_eq!(listed(|| answer(401, "")).await, Failure::Unauthorized);
        let lost = listed(|| Err(TransportError::NotLeader.into())).await;
        assert_eq!(lost, Failure::NotLeader);
    }

    /// Connects to hosts that refuse all connections.
    struct Closed;

    impl Connect for Closed {
        fn connect(
            &self,
            _: &ClusterId,
            _: Arc<Access>,
        ) -> BoxFuture<'static, Result<Client, Refusal>> {
            let service = tower::service_fn(|_: Request<Body>| async {
                Err::<Response<Body>, BoxError>("Connection refused (os error 111)".into())
            });
            Box::pin(async move { Ok(Client::new(service, "default")) })
        }
    }

    async fn told(cluster: &str, administrators: Option<&str>) -> String {
        let connect = Coarse::new(
            Arc::new(Closed),
            ClusterNames::default(),
            "operator",
            administrators.map(str::to_owned),
        );
        let kubeconfig = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: 'https://203.0.113.1'}\n\
            users:\n- name: u\n  user: {token: t}\ncontexts:\n- name: x\n  context: {cluster: c, user: u}\ncurrent-context: x\n";
        let access = inspect(kubeconfig.as_bytes(), &Allowed::default()).unwrap();
        let client = connect.connect(&ClusterId::from(cluster), Arc::new(access));
        let listed = Api::<Node>::all(client.await.unwrap())
            .list(&ListParams::default())
            .await;
        Failure::of(&listed.map(drop).unwrap_err()).to_string()
    }

    #[tokio::test]
    async fn only_the_namespace_of_the_administrators_gets_details() {
        let hidden = "can't be reached: see the operator's log for the cause";
        let shown = "can't be reached: Connection refused (os error 111)";
        for (cluster, administrators, expected) in [
            ("team-a/us", Some("kilo-system"), hidden),
            ("kilo-system-a/us", Some("kilo-system"), hidden),
            ("team-a/us/key", Some("kilo-system"), hidden),
            ("kilo-system/us", Some("kilo-system"), shown),
            ("kilo-system/us/key", Some("kilo-system"), shown),
            ("kilo-system/us", None, hidden),
            ("local", Some("kilo-system"), shown),
        ] {
            assert_eq!(told(cluster, administrators).await, expected, "{cluster}");
        }
    }

    #[test]
    fn a_failure_is_logged_once_until_it_changes_whatever_the_connection() {
        let failures = Failures::default();
        assert!(log("a/us", &failures).is_new("refused"));
        assert!(!log("a/us", &failures).is_new("refused"));
        assert!(log("b/us", &failures).is_new("refused"));
        assert!(log("a/us", &failures).is_new("timeout"));
        log("a/us", &failures).answered();
        assert!(log("a/us", &failures).is_new("timeout"));
        for number in 0..2 * MOST_FAILURES {
            log(&format!("c/{number}"), &failures).is_new("refused");
        }
        assert!(failures.lock().unwrap().len() <= MOST_FAILURES);
    }
}
