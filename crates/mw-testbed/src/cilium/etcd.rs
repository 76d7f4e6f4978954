//! The etcd of one cluster's mesh, with TLS and client certificates.

use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::{Error, Result};
use crate::process::Server;
use crate::wait::eventually;

const DEADLINE: Duration = Duration::from_secs(30);

/// A running etcd. It reloads its certificate for each connection, its CA only at the
/// start.
#[derive(Debug)]
pub(super) struct Etcd {
    server: Server,
    address: SocketAddrV4,
}

impl Etcd {
    /// Starts etcd. `secrets` contains ca.crt, tls.crt and tls.key.
    pub(super) async fn start(
        program: &Path,
        folder: &Path,
        secrets: &Path,
        address: SocketAddrV4,
    ) -> Result<Self> {
        let file = |name: &str| secrets.join(name).display().to_string();
        let arguments = [
            "--name=clustermesh-apiserver".into(),
            format!("--data-dir={}", folder.join("data").display()),
            "--client-cert-auth".into(),
            format!("--trusted-ca-file={}", file("ca.crt")),
            format!("--cert-file={}", file("tls.crt")),
            format!("--key-file={}", file("tls.key")),
            format!("--listen-client-urls=https://{address}"),
            format!("--advertise-client-urls=https://{address}"),
            format!(
                "--listen-peer-urls=unix://{}",
                folder.join("peers").display()
            ),
            // Data does not need to survive a power failure.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let etcd = Self {
            server: Server::start(program, &arguments, folder)?,
            address,
        };
        etcd.wait_ready().await?;
        Ok(etcd)
    }

    async fn wait_ready(&self) -> Result<()> {
        eventually(DEADLINE, || async {
            match (
                self.server.check_alive(),
                tokio::net::TcpStream::connect(self.address).await,
            ) {
                (Err(error), _) => Ok(Err(error)),
                (Ok(()), Ok(_)) => Ok(Ok(())),
                (Ok(()), Err(error)) => Err(format!("etcd: {error}")),
            }
        })
        .await?
    }

    /// Creates the same users and roles as Cilium's init container.
    pub(super) async fn make_users(
        &self,
        program: &Path,
        cluster: &str,
        server_name: &str,
        secrets: &Path,
    ) -> Result<()> {
        let file = |name: &str| secrets.join(name).display().to_string();
        let mut command = std::process::Command::new(program);
        command.args([
            "users".into(),
            format!("--endpoint=https://{}", self.address),
            format!("--cluster-name={cluster}"),
            format!("--server-name={server_name}"),
            format!("--trusted-ca-file={}", file("ca.crt")),
            format!("--cert-file={}", file("tls.crt")),
            format!("--key-file={}", file("tls.key")),
        ]);
        let failed = |reason: String| Error::Start {
            program: "etcd's users".into(),
            reason,
        };
        let done = tokio::task::spawn_blocking(move || command.output())
            .await
            .map_err(|error| failed(error.to_string()))?;
        let output = done.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }

    /// Pauses etcd with SIGSTOP: the kernel accepts connections, but nothing is
    /// answered.
    pub(super) fn pause(&self) -> Result<()> {
        self.server.pause()
    }

    pub(super) fn resume(&self) -> Result<()> {
        self.server.signal(Signal::SIGCONT)
    }

    pub(super) fn stop(&self) -> Result<()> {
        self.server.stop()
    }

    /// Restarts etcd with its data and users.
    pub(super) async fn start_again(&self) -> Result<()> {
        self.server.start_again()?;
        self.wait_ready().await
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.server.pid()
    }

    pub(super) fn log_tail(&self) -> String {
        self.server.log_tail()
    }
}
