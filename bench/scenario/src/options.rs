//! What is measured, and how often.

use std::path::PathBuf;

use crate::latency::MOST_CHANGES;

#[derive(Debug)]
pub(crate) struct Options {
    /// Nodes of a cluster while single changes are measured.
    pub(crate) nodes: usize,
    /// Nodes of a cluster at bring-up, when idle, and for memory; with 0 none of it is measured.
    pub(crate) many: usize,
    /// How often everything is repeated, for the spread.
    pub(crate) rounds: usize,
    /// Changes a round, of operator and floor each, at most [`MOST_CHANGES`]; with 0 none is measured.
    pub(crate) changes: usize,
    /// With 0 nobody looks at requests.
    pub(crate) idle_seconds: u64,
    /// Addresses a round that a load balancer gets, of provider and floor each; with 0 none is measured.
    pub(crate) moves: usize,
    pub(crate) command: Vec<String>,
    /// Somebody else's operator: it gets all rights, for its roles are not ours.
    pub(crate) foreign: bool,
}

const USAGE: &str = "scenario [--nodes 50] [--many 200] [--rounds 5] [--changes 35] [--idle 60] [--moves 15] [-- OPERATOR ARGUMENT…]
In the arguments {kubeconfig} and {namespace} stand for the hub's kubeconfig and the operator's namespace.";

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
            let mut number = || arguments.next().and_then(|value| value.parse::<usize>().ok()).expect(USAGE);
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
        assert!(options.rounds > 0 && options.nodes > 1 && grows && options.many <= 250, "2 nodes or more, then more, at most 250");
        assert!(options.changes <= MOST_CHANGES, "at most {MOST_CHANGES} changes a round: the operator delays more of one source");
        options.foreign = !options.command.is_empty();
        if options.foreign {
            // What it does with Cilium is not ours to know.
            options.moves = 0;
        } else {
            options.command = ours(OPERATOR);
        }
        options
    }
}

/// The Cilium back end.
pub(crate) fn provider(dials: bool) -> Vec<String> {
    let mut command = ours(PROVIDER);
    if !dials {
        command.extend(["--verify-dial", "off"].map(str::to_owned));
    }
    command
}

fn ours(arguments: &str) -> Vec<String> {
    std::iter::once(beside("meshwright").display().to_string()).chain(arguments.split_whitespace().map(str::to_owned)).collect()
}

/// A program that was built into the same folder.
pub(crate) fn beside(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(path.exists(), "{} is not built: type `make bench`", path.display());
    path
}
