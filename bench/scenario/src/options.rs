//! Options of the benchmark.

use std::path::PathBuf;

use crate::latency::MOST_CHANGES;

#[derive(Debug)]
pub(crate) struct Options {
    /// Nodes per cluster for the measurement of single changes.
    pub(crate) nodes: usize,
    /// Nodes per cluster for bring-up, idle requests, memory and startup; 0 skips these.
    pub(crate) many: usize,
    /// Repetitions of bring-up, node changes and address changes, for the spread.
    pub(crate) rounds: usize,
    /// Changes per round, for operator and floor each, at most [`MOST_CHANGES`]; 0
    /// skips these.
    pub(crate) changes: usize,
    /// Duration of the idle measurement; 0 skips the measurement of requests.
    pub(crate) idle_seconds: u64,
    /// Address changes of a load balancer per round, for provider and floor each; 0
    /// skips these.
    pub(crate) moves: usize,
    pub(crate) command: Vec<String>,
    /// True for another operator. It gets all permissions, because our roles are not
    /// made for it.
    pub(crate) foreign: bool,
}

const USAGE: &str = "scenario [--nodes 50] [--many 200] [--rounds 5] [--changes 35] [--idle 60] [--moves 15] [-- OPERATOR ARGUMENT…]
{kubeconfig} and {namespace} in the arguments are replaced by the hub's kubeconfig and the operator's namespace.";

const OPERATOR: &str = "operator --kubeconfig {kubeconfig} --namespace {namespace} --leader-elect \
                        --metrics-bind-address 127.0.0.1:0 --health-probe-bind-address 127.0.0.1:0";

const PROVIDER: &str = "provider --hub --node-id bench --mgmt-kubeconfig {kubeconfig} --mgmt-namespace {namespace} --leader-elect \
                        --metrics-bind-address 127.0.0.1:0 --health-probe-bind-address 127.0.0.1:0";

impl Options {
    pub(crate) fn read() -> Self {
        let mut options = Self {
            nodes: 50,
            many: 200,
            rounds: 5,
            changes: MOST_CHANGES,
            idle_seconds: 60,
            moves: 15,
            command: Vec::new(),
            foreign: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                options.command = arguments.by_ref().collect();
                break;
            }
            let mut number = || {
                arguments
                    .next()
                    .and_then(|value| value.parse::<usize>().ok())
                    .expect(USAGE)
            };
            match argument.as_str() {
                "--nodes" => options.nodes = number(),
                "--many" => options.many = number(),
                "--rounds" => options.rounds = number(),
                "--changes" => options.changes = number(),
                "--idle" => options.idle_seconds = number() as u64,
                "--moves" => options.moves = number(),
                _ => panic!("{USAGE}"),
            }
        }
        let grows = options.many == 0 || options.many > options.nodes;
        assert!(
            options.rounds > 0 && options.nodes > 1 && grows && options.many <= 250,
            "--rounds must be at least 1, --nodes at least 2, --many greater than --nodes and at most 250, or 0"
        );
        assert!(
            options.changes <= MOST_CHANGES,
            "--changes must be at most {MOST_CHANGES}: the operator rate-limits changes of one source"
        );
        options.foreign = !options.command.is_empty();
        if options.foreign {
            // Support for Cilium in another operator is unknown.
            options.moves = 0;
        } else {
            options.command = ours(OPERATOR);
        }
        options
    }
}

/// Returns the command of the Cilium back end.
pub(crate) fn provider(dials: bool) -> Vec<String> {
    let mut command = ours(PROVIDER);
    if !dials {
        command.extend(["--verify-dial", "off"].map(str::to_owned));
    }
    command
}

fn ours(arguments: &str) -> Vec<String> {
    std::iter::once(beside("meshwright").display().to_string())
        .chain(arguments.split_whitespace().map(str::to_owned))
        .collect()
}

/// Returns the path of a program that was built into the folder of this one.
pub(crate) fn beside(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(
        path.exists(),
        "{} is not built; run `make bench`",
        path.display()
    );
    path
}
