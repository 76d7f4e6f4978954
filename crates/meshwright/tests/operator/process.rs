//! Runs the operator, or another long-running command, as a child process that never outlives the
//! test.
//!
//! As in the testbed, its parent is a shell that kills it when the pipe held by this process is
//! closed. The shell exits with the operator's exit code.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use mw_testbed::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::metrics::Metrics;

#[path = "../common/binary.rs"]
mod binary;

pub(crate) use binary::binary;

const SUPERVISOR: &str = r#"
log=$1
shift
exec 3<&0 </dev/null
"$@" 3<&- >"$log" 2>&1 &
operator=$!
echo "$operator"
exec >/dev/null
(read -r _ <&3; kill -KILL "$operator") &
watcher=$!
wait "$operator"
code=$?
kill -KILL "$watcher"
exit "$code"
"#;

/// Kubernetes sets this variable in every pod.
const INSIDE: &str = "KUBERNETES_SERVICE_HOST";

/// Environment variables that are removed for the operator.
const FOREIGN_ENVIRONMENT: [&str; 10] = [
    INSIDE,
    "KUBECONFIG",
    "MGMT_KUBECONFIG",
    "KCP_KUBECONFIG",
    "MGMT_NAMESPACE",
    "POD_NAMESPACE",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "RUST_LOG",
];

#[derive(Debug)]
pub(crate) struct Operator {
    pid: i32,
    log: PathBuf,
    supervisor: Child,
    leash: Option<ChildStdin>,
    code: Option<i32>,
}

impl Operator {
    /// Starts a command with its flags.
    pub(crate) fn start(arguments: &[String], log: &Path) -> Self {
        Self::launch(arguments, log, None)
    }

    /// Starts a pod of a namespace.
    #[allow(dead_code, reason = "the chart's pods are")]
    pub(crate) fn start_in(namespace: &str, arguments: &[String], log: &Path) -> Self {
        Self::launch(arguments, log, Some(("POD_NAMESPACE", namespace)))
    }

    /// Starts it as if in a pod.
    pub(crate) fn start_inside(arguments: &[String], log: &Path) -> Self {
        Self::launch(arguments, log, Some((INSIDE, "10.96.0.1")))
    }

    fn launch(arguments: &[String], log: &Path, set: Option<(&str, &str)>) -> Self {
        let mut command = Command::new("/bin/sh");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        for name in FOREIGN_ENVIRONMENT {
            command.env_remove(name);
        }
        command.envs(set);
        command
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(log)
            .arg(binary())
            .args(arguments);
        let mut supervisor = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let (leash, pid) = (supervisor.stdin.take(), line.trim().parse().unwrap());
        Self {
            pid,
            log: log.to_owned(),
            supervisor,
            leash,
            code: None,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).unwrap();
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Sends SIGTERM and returns the exit code and the time it took.
    pub(crate) async fn terminate(&mut self) -> (i32, Duration) {
        let start = Instant::now();
        self.signal(Signal::SIGTERM);
        (self.ended(Duration::from_secs(15)).await, start.elapsed())
    }

    /// Waits until it exits; a signal counts as 128 plus its number.
    pub(crate) async fn ended(&mut self, deadline: Duration) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(code) = self.exit_code() {
                return code;
            }
            assert!(
                start.elapsed() < deadline,
                "the operator still runs after {deadline:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        if self.code.is_none() {
            self.code = self
                .supervisor
                .try_wait()
                .unwrap()
                .map(|status| status.code().unwrap_or(-1));
        }
        self.code
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub(crate) async fn metrics(&self) -> Metrics {
        Metrics::of(&self.fetch("metrics", "/metrics").await.1)
    }

    /// Status code and body at a path of a server whose address is in the log.
    pub(crate) async fn fetch(&self, what: &str, path: &str) -> (u16, String) {
        let address = self.served(what).await;
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
                    .as_bytes(),
            )
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let code = answer
            .split(' ')
            .nth(1)
            .unwrap_or_default()
            .parse()
            .unwrap_or_else(|_| panic!("no answer: {answer}"));
        (code, answer)
    }

    /// Waits for the address of a server in the log.
    pub(crate) async fn served(&self, what: &str) -> String {
        eventually(Duration::from_secs(10), || async {
            self.address(what).ok_or(format!("no {what} served yet"))
        })
        .await
        .unwrap()
    }

    /// Finds the address in the log.
    fn address(&self, what: &str) -> Option<String> {
        let log = self.log();
        let line = log
            .lines()
            .find(|line| line.contains(&format!("serving {what}")))?;
        let port = line.split_once("127.0.0.1:")?.1;
        let end = port
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(port.len());
        Some(format!("127.0.0.1:{}", &port[..end]))
    }

    fn end(&mut self) {
        drop(self.leash.take());
        if self.code.is_none() {
            self.code = self.supervisor.wait().ok().and_then(|status| status.code());
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!(
                "--- the operator's log, {} of {} lines:\n{}\n---",
                tail.len(),
                lines.len(),
                tail.join("\n")
            );
        }
    }
}
