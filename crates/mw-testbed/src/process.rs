//! Server processes that never outlive the test process, even if it is killed.
//!
//! Each server has a small shell as its parent. The shell waits on a pipe whose other
//! end is held only by this process. When it closes, on drop or because this process
//! was killed, the shell kills the server and removes its folder. Unlike a parent-death
//! signal, this needs no unsafe code.
//!
//! The shell also restarts a stopped server with the same command, so that the folder
//! always has one owner.
//!
//! A server that reads fixed paths gets a mount namespace ([`Surroundings`]), which
//! exists as long as the shell and the server.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::apart::{on_thread, refused};
use crate::error::{Error, Result};

/// Supervisor script. `$1` is the server's folder, `$2` its log, the rest is the
/// command. Prints the process ID at each start, and a line when the server has ended.
///
/// After the server has ended, its process ID may be reused, so the watcher that would
/// kill it must end first. It must also end before the next line arrives through the
/// pipe, so that it does not read it. Messages are printed by a subshell, which dies of
/// SIGPIPE if nobody reads them.
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

/// Time for all threads of a server to stop after SIGSTOP.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Environment of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Files and folders, and the paths at which this server sees them.
    pub(crate) mounts: Vec<(PathBuf, &'static str)>,
}

impl Surroundings {
    fn enter(&self) -> std::io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Otherwise the mounts would be visible to all processes.
        mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            None::<&str>,
        )?;
        for (source, place) in &self.mounts {
            mount(
                Some(source),
                *place,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )?;
        }
        Ok(())
    }

    fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        command.envs(self.environment.iter().cloned());
        if self.mounts.is_empty() {
            command.spawn()
        } else {
            on_thread(|| self.enter().and_then(|()| command.spawn()))
        }
    }
}

/// A server process. Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub(crate) struct Server {
    program: String,
    log: PathBuf,
    supervisor: Child,
    /// Pipes to the supervisor; `None` after they are closed.
    leash: Mutex<Option<Leash>>,
}

/// Pipes to the supervisor, and the state that it reported last.
#[derive(Debug)]
struct Leash {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Process ID; `None` while the server is stopped.
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
        self.pid = Some(
            said.parse()
                .map_err(|_| std::io::Error::other("the supervisor printed no process ID"))?,
        );
        Ok(())
    }
}

impl Server {
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path) -> Result<Self> {
        Self::start_in(&Surroundings::default(), program, arguments, folder)
    }

    /// Starts a server. Fails with [`Error::Missing`] if it needs a mount namespace and
    /// this process may not create one.
    pub(crate) fn start_in(
        surroundings: &Surroundings,
        program: &Path,
        arguments: &[String],
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join("log");
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let failed = |error: std::io::Error| Error::Start {
            program: name.clone(),
            reason: error.to_string(),
        };
        // A separate process group: an interrupt at the terminal goes only to the test,
        // which then closes the pipe.
        let mut command = Command::new("/bin/sh");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
            .args(["-c", SUPERVISOR, "supervisor"])
            .args([folder, log.as_path(), program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let may_not = |error: std::io::Error| {
            refused(&error, "mount namespaces").unwrap_or_else(|| failed(error))
        };
        let mut supervisor = surroundings.spawn(&mut command).map_err(may_not)?;
        let pipes = supervisor.stdin.take().zip(supervisor.stdout.take());
        let (commands, answers) =
            pipes.ok_or_else(|| failed(std::io::Error::other("the supervisor has no pipes")))?;
        let mut leash = Leash {
            commands,
            answers: BufReader::new(answers),
            pid: None,
        };
        leash.hear_pid().map_err(failed)?;
        Ok(Self {
            program: name,
            log,
            supervisor,
            leash: Mutex::new(Some(leash)),
        })
    }

    /// Kills the server, if it runs, and waits until it is gone. Its folder is kept.
    pub(crate) fn stop(&self) -> Result<()> {
        let mut held = self.leash();
        let Some(leash) = held.as_mut() else {
            return Ok(());
        };
        let Some(pid) = leash.pid else { return Ok(()) };
        // An error means that the server has already ended.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        leash.hear().map_err(|error| Error::Stop {
            program: self.program.clone(),
            reason: error.to_string(),
        })?;
        leash.pid = None;
        Ok(())
    }

    /// Restarts a stopped server with its original command.
    pub(crate) fn start_again(&self) -> Result<()> {
        let mut held = self.leash();
        let Some(leash) = held.as_mut().filter(|leash| leash.pid.is_none()) else {
            return Err(self.failed("the server is not stopped".into()));
        };
        leash
            .commands
            .write_all(b"again\n")
            .and_then(|()| leash.hear_pid())
            .map_err(|error| self.failed(error.to_string()))
    }

    /// Returns the process ID; `None` while the server is stopped.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.leash().as_ref().and_then(|leash| leash.pid)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self
            .pid()
            .ok_or_else(|| Error::Stopped(self.program.clone()))?;
        kill(Pid::from_raw(pid), signal).map_err(|source| Error::Signal { pid, source })
    }

    /// Stops all threads. On a busy machine, some of them run on for a while after
    /// the signal.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let deadline = Instant::now() + STOPS_WITHIN;
        while !self.pid().is_none_or(is_stopped) {
            if Instant::now() > deadline {
                return Err(self.failed("it goes on after SIGSTOP".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Fails with the end of the log if the server has ended by itself.
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
        Error::Start {
            program: self.program.clone(),
            reason,
        }
    }
}

/// Reports whether all threads of a process are stopped, or have ended.
fn is_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name in front of the state may contain any character.
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim_start().chars().next());
        state.is_none_or(|state| matches!(state, 'T' | 'Z' | 'X'))
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.leash().take());
        // Returns as soon as the server is dead and its folder removed.
        let _ = self.supervisor.wait();
    }
}
