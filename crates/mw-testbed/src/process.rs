//! Runs a server so that it never outlives us, not even when we are killed.
//!
//! Each server has a small shell as its parent. The shell waits on a pipe whose
//! other end only this process holds: when it closes, on drop or because the
//! kernel closes it for a killed process, the shell kills the server and
//! removes its folder. This needs no unsafe code, unlike a death signal.
//!
//! The shell also starts a stopped server again, with the same command, so that
//! the folder has one owner all the time.
//!
//! A server that reads fixed paths gets a mount namespace ([`Surroundings`]): it
//! belongs to the shell and the server, and goes with them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::apart::{on_thread, refused};
use crate::error::{Error, Result};

/// `$1` is the server's folder, `$2` its log; the rest is the command. Says the
/// process number at each start, and when the server has ended.
///
/// Once the server has ended its number may belong to someone else, so the
/// watcher that would kill it has to go first. It also has to be gone before
/// the next line comes through the pipe, which is not for it. What is said is
/// said by a shell of its own: it dies of it when nobody is there to hear.
const SUPERVISOR: &str = r#"
folder=$1 log=$2
shift 2
exec 3<&0 </dev/null
while
    "$@" 3<&- >>"$log" 2>&1 &
    server=$!
    (echo "$server")
    (read -r _ <&3; kill -KILL "$server") >/dev/null &
    watcher=$!
    wait "$server"
    kill -KILL "$watcher"
    wait "$watcher"
    (echo ended)
    read -r _ <&3
do :; done
rm -rf "$folder"
rmdir "$(dirname "$folder")"
"#;

/// What a server finds around it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Files and folders, and what they take the place of for this server.
    pub(crate) mounts: Vec<(PathBuf, &'static str)>,
}

impl Surroundings {
    fn enter(&self) -> std::io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Else what is mounted here would be seen by everybody.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        for (source, place) in &self.mounts {
            mount(Some(source), *place, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        }
        Ok(())
    }

    fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        command.envs(self.environment.iter().cloned());
        if self.mounts.is_empty() { command.spawn() } else { on_thread(|| self.enter().and_then(|()| command.spawn())) }
    }
}

/// A server. Dropping it kills the server and removes its folder.
#[derive(Debug)]
pub(crate) struct Server {
    program: String,
    log: PathBuf,
    supervisor: Child,
    /// Nothing once the supervisor has been let go.
    leash: Mutex<Option<Leash>>,
}

/// The two pipes to the supervisor, and what it last said.
#[derive(Debug)]
struct Leash {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Nothing while the server is stopped.
    pid: Option<i32>,
}

impl Leash {
    fn hear(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn hear_pid(&mut self) -> std::io::Result<()> {
        let said = self.hear()?;
        self.pid = Some(said.parse().map_err(|_| std::io::Error::other("the supervisor named no process"))?);
        Ok(())
    }
}

impl Server {
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path) -> Result<Self> {
        Self::start_in(&Surroundings::default(), program, arguments, folder)
    }

    /// [`Error::Missing`] when this process may not make mount namespaces and
    /// the surroundings need one.
    pub(crate) fn start_in(surroundings: &Surroundings, program: &Path, arguments: &[String], folder: &Path) -> Result<Self> {
        let log = folder.join("log");
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |error: std::io::Error| Error::Start { program: name.clone(), reason: error.to_string() };
        // Its own process group: an interrupt at the terminal goes to the
        // test, which then lets go of the leash.
        let mut command = Command::new("/bin/sh");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
            .args(["-c", SUPERVISOR, "supervisor"])
            .args([folder, log.as_path(), program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let may_not = |error: std::io::Error| refused(&error, "mount namespaces").unwrap_or_else(|| failed(error));
        let mut supervisor = surroundings.spawn(&mut command).map_err(may_not)?;
        let pipes = supervisor.stdin.take().zip(supervisor.stdout.take());
        let (commands, answers) = pipes.ok_or_else(|| failed(std::io::Error::other("the supervisor has no pipes")))?;
        let mut leash = Leash { commands, answers: BufReader::new(answers), pid: None };
        leash.hear_pid().map_err(failed)?;
        Ok(Self { program: name, log, supervisor, leash: Mutex::new(Some(leash)) })
    }

    /// Kills the server, if it runs, and returns when it is gone. Its folder
    /// stays.
    pub(crate) fn stop(&self) -> Result<()> {
        let mut held = self.leash();
        let Some(leash) = held.as_mut() else { return Ok(()) };
        let Some(pid) = leash.pid else { return Ok(()) };
        // An error means that it has ended by itself.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        leash.hear().map_err(|error| Error::Stop { program: self.program.clone(), reason: error.to_string() })?;
        leash.pid = None;
        Ok(())
    }

    /// Starts a stopped server with the command it was started with at first.
    pub(crate) fn start_again(&self) -> Result<()> {
        let mut held = self.leash();
        let Some(leash) = held.as_mut().filter(|leash| leash.pid.is_none()) else {
            return Err(self.failed("it was not stopped".into()));
        };
        leash.commands.write_all(b"again\n").and_then(|()| leash.hear_pid()).map_err(|error| self.failed(error.to_string()))
    }

    /// Nothing while the server is stopped.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.leash().as_ref().and_then(|leash| leash.pid)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().ok_or_else(|| Error::Stopped(self.program.clone()))?;
        kill(Pid::from_raw(pid), signal).map_err(|source| Error::Signal { pid, source })
    }

    /// An error with the end of the log when the server has ended by itself.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.pid().map(|pid| kill(Pid::from_raw(pid), None)) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(self.failed(format!("it ended: {}", self.log_tail()))),
            None => Err(Error::Stopped(self.program.clone())),
        }
    }

    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn leash(&self) -> MutexGuard<'_, Option<Leash>> {
        self.leash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, reason: String) -> Error {
        Error::Start { program: self.program.clone(), reason }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.leash().take());
        // Ends as soon as the server is dead and its folder gone.
        let _ = self.supervisor.wait();
    }
}
