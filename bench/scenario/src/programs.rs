//! The two measured programs, as child processes that never outlive this process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use floor::{Instruction, Prepared, Report};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::options::beside;

/// Runs the operator, and kills it when stdin closes. Only this process holds the other
/// end of that pipe.
const SUPERVISOR: &str = r#"
log=$1
shift
exec 3<&0 </dev/null
"$@" 3<&- >>"$log" 2>&1 &
operator=$!
echo "$operator"
exec >/dev/null
(read -r _ <&3; kill -KILL "$operator") &
watcher=$!
wait "$operator"
kill -KILL "$watcher"
"#;

pub(crate) struct Operator {
    pid: Pid,
    supervisor: Child,
    leash: Option<ChildStdin>,
    pub(crate) started: Instant,
}

/// Resident memory in KiB.
pub(crate) struct Resident {
    pub(crate) now: f64,
    pub(crate) most: f64,
}

impl Operator {
    pub(crate) fn start(fleet: &Fleet, command: &[String]) -> Self {
        let kubeconfig = fleet.kubeconfig().display().to_string();
        let fill = |argument: &String| {
            argument
                .replace("{kubeconfig}", &kubeconfig)
                .replace("{namespace}", fleet.namespace)
        };
        let started = Instant::now();
        let mut supervisor = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(fleet.log())
            .args(command.iter().map(fill))
            .env("KUBECONFIG", &kubeconfig)
            .env("POD_NAMESPACE", fleet.namespace)
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap());
        Self {
            pid,
            leash: supervisor.stdin.take(),
            supervisor,
            started,
        }
    }

    /// Freezes the process with SIGSTOP, so that the next measurement has the machine
    /// for itself.
    pub(crate) fn freeze(&self) {
        kill(self.pid, Signal::SIGSTOP).unwrap();
    }

    pub(crate) fn thaw(&self) {
        kill(self.pid, Signal::SIGCONT).unwrap();
    }

    /// Stops the operator gracefully, so that it releases the Lease and the next one gets
    /// it at once.
    pub(crate) async fn stop(mut self) {
        kill(self.pid, Signal::SIGTERM).unwrap();
        for _ in 0..200 {
            if self.supervisor.try_wait().unwrap().is_some() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("the operator does not stop");
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.pid)
    }

    pub(crate) fn resident(&self) -> Resident {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .expect("the operator is running");
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            line.trim_matches(|c: char| !c.is_ascii_digit())
                .parse::<f64>()
                .unwrap()
        };
        Resident {
            now: field("VmRSS"),
            most: field("VmHWM"),
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        drop(self.leash.take());
        _ = self.supervisor.wait();
    }
}

/// Returns CPU seconds in user and kernel mode, which Linux counts in ticks of 10 ms.
fn cpu_seconds(pid: Pid) -> f64 {
    let stat =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the program is running");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

pub(crate) struct Floor {
    program: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Floor {
    /// Starts a floor that is connected to all clusters and watches a collection of
    /// one.
    pub(crate) async fn start(fleet: &Fleet, watched: usize, collection: &str) -> Self {
        Self::start_with(fleet, watched, collection, None).await
    }

    /// Like `start`, but also reads the events of another collection on all clusters,
    /// as every operator has to.
    pub(crate) async fn start_watching(fleet: &Fleet, collection: &str, idly: &str) -> Self {
        Self::start_with(fleet, 0, collection, Some(format!("{idly}?watch=true"))).await
    }

    async fn start_with(
        fleet: &Fleet,
        watched: usize,
        collection: &str,
        idly: Option<String>,
    ) -> Self {
        let mut program = Command::new(beside("floor"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (
            program.stdin.take().unwrap(),
            BufReader::new(program.stdout.take().unwrap()),
        );
        let mut floor = Self {
            program,
            input,
            output,
        };
        let path = fleet.watch_path(watched, collection).await;
        floor.tell(&Instruction::Start {
            servers: fleet.addresses.clone(),
            watched,
            path,
            idly,
        });
        floor.ready();
        floor
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(Pid::from_raw(self.program.id().cast_signed()))
    }

    /// Makes the floor send these requests at the next event of the watch.
    pub(crate) fn arm(&mut self, requests: Vec<Prepared>) {
        self.tell(&Instruction::React { requests });
        self.ready();
    }

    pub(crate) fn post(&mut self, requests: Vec<Prepared>, each: usize) {
        self.tell(&Instruction::Post { requests, each });
    }

    /// Blocks until the requests are answered. Panics unless `wanted` of them were, all
    /// successfully.
    pub(crate) fn done(&mut self, wanted: usize) {
        match self.hear() {
            Report::Done {
                answers,
                refused: 0,
                ..
            } if answers == wanted => {}
            other => panic!("unexpected report of the floor: {other:?}"),
        }
    }

    fn ready(&mut self) {
        let report = self.hear();
        assert!(
            matches!(report, Report::Ready),
            "unexpected report of the floor: {report:?}"
        );
    }

    fn tell(&mut self, instruction: &Instruction) {
        writeln!(
            self.input,
            "{}",
            serde_json::to_string(instruction).unwrap()
        )
        .unwrap();
    }

    fn hear(&mut self) -> Report {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("invalid report of the floor {line:?}: {error}"))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        _ = self.program.kill();
        _ = self.program.wait();
    }
}
