//! A kube-apiserver with its own CA, keys and users.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use hyper::Method;
use nix::sys::signal::Signal;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;
use tokio::task::AbortHandle;

use crate::audit::{self, AuditRecord};
use crate::binaries::Binaries;
use crate::error::{Error, Result};
use crate::http::{Http, JSON, runtime};
use crate::pki::{self, Authority};
use crate::process::Server;
use crate::tokens::TokenController;
use crate::wait::eventually;

/// Attempts to start a server: a port that was free may be taken when the server binds
/// it.
pub(crate) const PORT_ATTEMPTS: usize = 3;
const EGRESS: &str = "egress";
const READY_DEADLINE: Duration = Duration::from_secs(90);

/// A cluster that consists of an API server only.
///
/// Its methods send requests as the user `admin`. Requests of the testbed itself, such
/// as polling and filling token Secrets, use the user `testbed`, so that the audit log
/// distinguishes them.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    url: String,
    admin_token: String,
    folder: PathBuf,
    pub(crate) authority: Authority,
    pub(crate) http: Http,
    /// Client of the user `testbed`.
    pub(crate) own: Http,
    /// Discovered resources: `(apiVersion, kind)` to `(plural, namespaced)`.
    pub(crate) kinds: Mutex<BTreeMap<(String, String), (String, bool)>>,
    token_controller: AbortHandle,
    server: Server,
}

impl Cluster {
    pub(crate) async fn launch(
        binaries: &Binaries,
        etcd: &str,
        root: &Path,
        name: &str,
    ) -> Result<Self> {
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let folder = root.join(format!("cluster-{name}"));
            std::fs::create_dir_all(&folder).map_err(Error::file("creating", &folder))?;
            match Self::attempt(binaries, etcd, folder, name).await {
                Err(error) if is_port_taken(&error) => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| Error::Start {
            program: "kube-apiserver".into(),
            reason: "no attempt was made".into(),
        }))
    }

    async fn attempt(binaries: &Binaries, etcd: &str, folder: PathBuf, name: &str) -> Result<Self> {
        let authority = Authority::new(name)?;
        let token_key = pki::token_key()?;
        let (admin_token, own_token) = (random_token()?, random_token()?);
        let users = format!(
            "{admin_token},admin,admin,\"system:masters\"\n{own_token},testbed,testbed,\"system:masters\"\n"
        );
        let identity = authority.server_identity()?;
        write(&folder, "serving.crt", &identity.certificate)?;
        write(&folder, "serving.key", &identity.key)?;
        write(&folder, "tokens.key", &token_key.serialize_pem())?;
        write(&folder, "tokens.pub", &token_key.public_key_pem())?;
        write(&folder, "users.csv", &users)?;
        write(&folder, "audit-policy.json", &audit::policy().to_string())?;
        write(&folder, "egress.json", &egress(&folder).to_string())?;

        let port = free_port()?;
        let url = format!("https://127.0.0.1:{port}");
        let server = Server::start(
            &binaries.kube_apiserver,
            &arguments(&folder, etcd, name, port),
            &folder,
        )?;
        let own = Http::new(url.clone(), authority.client_config()?, own_token);
        wait_ready(&server, &own).await?;
        let controller = TokenController::new(own.clone(), authority.pem(), &token_key)?;
        let token_controller = runtime()?.spawn(controller.run()).abort_handle();
        let http = own.with_token(&admin_token);
        let (name, kinds) = (name.to_owned(), Mutex::default());
        Ok(Self {
            name,
            url,
            admin_token,
            folder,
            authority,
            http,
            own,
            kinds,
            token_controller,
            server,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the CA that signed the serving certificate.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Returns the process ID of the API server; `None` while it is stopped.
    pub fn pid(&self) -> Option<i32> {
        self.server.pid()
    }

    /// Returns the bearer token of the user `admin`, who may do everything.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// Returns the socket through which the API server reaches pods; see [`egress`].
    pub(crate) fn egress_socket(&self) -> PathBuf {
        self.folder.join(EGRESS)
    }

    /// Returns the end of the API server's log.
    pub fn log_tail(&self) -> String {
        self.server.log_tail()
    }

    /// Pauses the API server with SIGSTOP: connections stay open without answers, new
    /// connections are accepted only by the kernel.
    pub fn pause(&self) -> Result<()> {
        self.server.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.server.signal(Signal::SIGCONT)
    }

    /// Kills the API server and waits until it is gone: connections break, new ones are
    /// refused.
    pub fn stop(&self) -> Result<()> {
        self.server.stop()
    }

    /// Restarts a stopped API server and waits until it is ready. Address, keys, users
    /// and objects are unchanged, so kubeconfigs stay valid.
    pub async fn start(&self) -> Result<()> {
        for _ in 1..PORT_ATTEMPTS {
            match self.start_once().await {
                Err(error) if is_port_taken(&error) => self.stop()?,
                other => return other,
            }
        }
        self.start_once().await
    }

    async fn start_once(&self) -> Result<()> {
        self.server.start_again()?;
        wait_ready(&self.server, &self.own).await
    }

    /// Returns all requests so far. A record may appear a moment after the answer.
    pub fn audit(&self) -> Result<Vec<AuditRecord>> {
        audit::read(&self.folder.join("audit.log"))
    }

    /// Returns the current end of the audit log, for `audit_from`.
    pub fn audit_end(&self) -> u64 {
        std::fs::metadata(self.folder.join("audit.log")).map_or(0, |file| file.len())
    }

    /// Returns the requests since an earlier call, and the new end. A request that was
    /// in progress then, such as a watch, appears again when it ends.
    pub fn audit_from(&self, start: u64) -> Result<(Vec<AuditRecord>, u64)> {
        audit::read_from(&self.folder.join("audit.log"), start)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.token_controller.abort();
    }
}

/// Returns the arguments. The flags below the line disable features that slow down the
/// start and that clients do not notice.
fn arguments(folder: &Path, etcd: &str, name: &str, port: u16) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--etcd-servers={etcd}"),
        format!("--etcd-prefix=/{name}"),
        "--bind-address=127.0.0.1".into(),
        "--advertise-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file("serving.crt")),
        format!("--tls-private-key-file={}", file("serving.key")),
        format!("--cert-dir={}", file("certificates")),
        format!("--token-auth-file={}", file("users.csv")),
        "--authorization-mode=RBAC".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", file("tokens.pub")),
        format!("--service-account-signing-key-file={}", file("tokens.key")),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        format!("--audit-policy-file={}", file("audit-policy.json")),
        format!("--audit-log-path={}", file("audit.log")),
        "--audit-log-mode=blocking".into(),
        // In megabytes. Rotation would remove records before they are read.
        "--audit-log-maxsize=4096".into(),
        // Loopback is not a valid endpoint address, so it must not be published.
        "--endpoint-reconciler-type=none".into(),
        format!("--egress-selector-config-file={}", file("egress.json")),
        // -----
        "--enable-priority-and-fairness=false".into(),
        "--profiling=false".into(),
    ]
}

/// Returns the egress configuration for connections to pods. The API server does not
/// proxy to loopback addresses, so a stand-in for pods listens on this socket and maps
/// the addresses.
fn egress(folder: &Path) -> serde_json::Value {
    let transport = json!({ "uds": { "udsName": folder.join(EGRESS) } });
    json!({ "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration", "egressSelections": [
        { "name": "cluster", "connection": { "proxyProtocol": "HTTPConnect", "transport": transport } },
    ]})
}

/// Waits until the server is ready and creates the initial namespaces: the server
/// creates them itself, but only some time after it is ready.
async fn wait_ready(server: &Server, http: &Http) -> Result<()> {
    eventually(READY_DEADLINE, || async {
        if let Err(error) = server.check_alive() {
            return Ok(Err(error));
        }
        match http.send(Method::GET, "/readyz", JSON, None).await {
            Ok(answer) if answer.is_success() => Ok(Ok(())),
            Ok(answer) => Err(format!("/readyz answered {}", answer.code)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await??;
    for name in ["default", "kube-system"] {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let answer = http
            .send(Method::POST, "/api/v1/namespaces", JSON, Some(&namespace))
            .await?;
        if !answer.is_success() && answer.code != 409 {
            return Err(Error::Start {
                program: "kube-apiserver".into(),
                reason: format!("namespace {name}: {}", answer.body),
            });
        }
    }
    Ok(())
}

pub(crate) fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(Error::file("writing", path))
}

pub(crate) fn random_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|error| Error::Sign(error.to_string()))?;
    Ok(hex::encode(bytes))
}

/// Returns a port of loopback that is free at the moment.
pub(crate) fn free_port() -> Result<u16> {
    let failed = |error: std::io::Error| Error::Start {
        program: "listener".into(),
        reason: error.to_string(),
    };
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(failed)
}

pub(crate) fn is_port_taken(error: &Error) -> bool {
    matches!(error, Error::Start { reason, .. } if reason.contains("address already in use"))
}
