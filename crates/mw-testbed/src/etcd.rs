//! An etcd configured like that of Cilium's clustermesh-apiserver: TLS, client
//! certificates, and users identified by the common name of the certificate.
//!
//! It is set up over gRPC by a client named `root`. etcd's JSON gateway does not
//! support users by certificate.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use rustls::pki_types::ServerName;
use tempfile::TempDir;

use crate::binaries::Binaries;
use crate::cluster::{PORT_ATTEMPTS, free_port, is_port_taken, write};
use crate::error::{Error, Result};
use crate::grpc::{self, field};
use crate::http::{HttpsClient, http2_client_for};
use crate::pki::{Authority, Identity};
use crate::process::Server;
use crate::wait::eventually;

const DEADLINE: Duration = Duration::from_secs(30);
/// Server name that every certificate of such an etcd covers.
const OWN_NAME: &str = "testbed.mesh.cilium.io";
const ROOT: &str = "root";
/// Role of other clusters.
const READER: &str = "remote";

/// A running etcd on loopback. Dropping it stops it and removes its files.
#[derive(Debug)]
pub struct MeshEtcd {
    port: u16,
    root: HttpsClient<Full<Bytes>>,
    server: Server,
    _folder: TempDir,
}

impl MeshEtcd {
    /// Starts an etcd that presents `serving` and trusts clients of `authority`. The
    /// setup needs a serving certificate of the same authority for `*.mesh.cilium.io`.
    pub async fn start(authority: &Authority, serving: &Identity) -> Result<Self> {
        let locate = tokio::task::spawn_blocking(Binaries::locate).await;
        let binaries = locate.map_err(|error| failed(error.to_string()))??;
        for _ in 1..PORT_ATTEMPTS {
            match Self::attempt(&binaries, authority, serving).await {
                Err(error) if is_port_taken(&error) => {}
                other => return other,
            }
        }
        Self::attempt(&binaries, authority, serving).await
    }

    async fn attempt(
        binaries: &Binaries,
        authority: &Authority,
        serving: &Identity,
    ) -> Result<Self> {
        let temporary = std::env::temp_dir();
        let root = tempfile::Builder::new()
            .prefix("etcd-")
            .tempdir()
            .map_err(Error::file("creating a folder in", temporary))?;
        let folder = root.path().join("etcd");
        std::fs::create_dir_all(&folder).map_err(Error::file("creating", &folder))?;
        write(&folder, "ca.crt", authority.pem())?;
        write(&folder, "tls.crt", &serving.certificate)?;
        write(&folder, "tls.key", &serving.key)?;
        let port = free_port()?;
        let file = |name: &str| folder.join(name).display().to_string();
        let arguments = [
            format!("--data-dir={}", file("data")),
            "--client-cert-auth".into(),
            format!("--trusted-ca-file={}", file("ca.crt")),
            format!("--cert-file={}", file("tls.crt")),
            format!("--key-file={}", file("tls.key")),
            format!("--listen-client-urls=https://127.0.0.1:{port}"),
            format!("--advertise-client-urls=https://127.0.0.1:{port}"),
            format!("--listen-peer-urls=unix://{}", file("peers")),
            "--enable-grpc-gateway=false".into(),
            // Data does not need to survive a power failure.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let server = Server::start(&binaries.etcd, &arguments, &folder)?;
        eventually(DEADLINE, || async {
            match (
                server.check_alive(),
                tokio::net::TcpStream::connect(("127.0.0.1", port)).await,
            ) {
                (Err(error), _) => Ok(Err(error)),
                (Ok(()), Ok(_)) => Ok(Ok(())),
                (Ok(()), Err(error)) => Err(format!("etcd: {error}")),
            }
        })
        .await??;
        let name = ServerName::try_from(OWN_NAME).map_err(|error| failed(error.to_string()))?;
        let tls = authority.client_config_of(&authority.issue(ROOT, &[])?)?;
        Ok(Self {
            port,
            root: http2_client_for(name, tls),
            server,
            _folder: root,
        })
    }

    /// Returns the port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the end of the log.
    pub fn log_tail(&self) -> String {
        self.server.log_tail()
    }

    /// Enables authentication. Afterwards `readers`, given by common name, may read the
    /// keys of `cluster` that Cilium shares with other clusters; all other clients except
    /// `root` are denied.
    pub async fn admit(&self, cluster: &str, readers: &[&str]) -> Result<()> {
        for role in [ROOT, READER] {
            self.call("Auth/RoleAdd", field(1, role.as_bytes())).await?;
        }
        self.add_user(ROOT, ROOT).await?;
        let whole = |prefix: String| {
            let mut end = prefix.clone().into_bytes();
            // The first key after all keys with this prefix.
            end.last_mut().into_iter().for_each(|last| *last += 1);
            [field(2, prefix.as_bytes()), field(3, &end)].concat()
        };
        for permission in [
            field(2, b"cilium/.heartbeat"),
            whole("cilium/state/".to_owned()),
            field(2, format!("cilium/cluster-config/{cluster}").as_bytes()),
            whole(format!("cilium/synced/{cluster}/")),
        ] {
            self.call(
                "Auth/RoleGrantPermission",
                [field(1, READER.as_bytes()), field(2, &permission)].concat(),
            )
            .await?;
        }
        for reader in readers {
            self.add_user(reader, READER).await?;
        }
        self.call("Auth/AuthEnable", Vec::new()).await
    }

    /// Adds a user without a password, who can only authenticate by certificate.
    async fn add_user(&self, name: &str, role: &str) -> Result<()> {
        let no_password = [8, 1];
        self.call(
            "Auth/UserAdd",
            [field(1, name.as_bytes()), field(3, &no_password)].concat(),
        )
        .await?;
        self.call(
            "Auth/UserGrantRole",
            [field(1, name.as_bytes()), field(2, role.as_bytes())].concat(),
        )
        .await
    }

    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.call(
            "KV/Put",
            [field(1, key.as_bytes()), field(2, value.as_bytes())].concat(),
        )
        .await
    }

    pub async fn delete(&self, key: &str) -> Result<()> {
        self.call("KV/DeleteRange", field(1, key.as_bytes())).await
    }

    /// Sends a request whose response has no relevant content.
    async fn call(&self, method: &str, message: Vec<u8>) -> Result<()> {
        grpc::call(
            &self.root,
            &format!("127.0.0.1:{}", self.port),
            method,
            &message,
        )
        .await
        .map(drop)
    }
}

fn failed(reason: String) -> Error {
    Error::Start {
        program: "etcd".into(),
        reason,
    }
}
