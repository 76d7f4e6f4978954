//! Runs a server so that it never outlives us, not even when we are killed.
//!
//! Each server has a small shell as its parent. The shell waits on a pipe whose
//! other end only this process holds: when it closes, on drop or because the
//! kernel closes it for a killed process, the shell kills the server and
//! removes its folder. This needs no unsafe code, unlike a death signal.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// `$1` is the server's folder, `$2` its log; the rest is the command.
/// Once the server has ended by itself its number may belong to someone else,
/// so the watcher that would kill it has to go first.
const SUPERVISOR: &str = r#"
folder=$1 log=$2
shift 2
exec 3<&0 </dev/null
"$@" 3<&- >"$log" 2>&1 &
server=$!
echo "$server"
exec >/dev/null
(read -r _ <&3; kill -KILL "$server") &
watcher=$!
wait "$server"
kill -KILL "$watcher" 2>/dev/null
read -r _ <&3
rm -rf "$folder"
rmdir "$(dirname "$folder")" 2>/dev/null
"#;

/// A running server. Dropping it kills the server and removes its folder.
#[derive(Debug)]
pub(crate) struct Server {
    program: String,
    pid: i32,
    log: PathBuf,
    supervisor: Child,
    /// The pipe the supervisor waits on.
    leash: Option<ChildStdin>,
}

impl Server {
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path) -> Result<Self> {
        let log = folder.join("log");
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |reason: String| Error::Start { program: name.clone(), reason };
        // Its own process group: an interrupt at the terminal goes to the
        // test, which then lets go of the leash.
        let mut command = Command::new("/bin/sh");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut supervisor = command
            .args(["-c", SUPERVISOR, "supervisor"])
            .args([folder, log.as_path(), program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let leash = supervisor.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = supervisor.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(|error| failed(error.to_string()))?;
        }
        let pid = line.trim().parse().map_err(|_| failed("the supervisor named no process".into()))?;
        Ok(Self { program: name, pid, log, supervisor, leash })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.pid), signal).map_err(|source| Error::Signal { pid: self.pid, source })
    }

    /// An error with the end of the log when the server has ended by itself.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match kill(Pid::from_raw(self.pid), None) {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::Start { program: self.program.clone(), reason: format!("it ended: {}", self.log_tail()) }),
        }
    }

    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.leash.take());
        // Ends as soon as the server is dead and its folder gone.
        let _ = self.supervisor.wait();
    }
}
