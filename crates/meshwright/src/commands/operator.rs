//! `meshwright operator`

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgAction, ValueEnum};
use mw_core::kilo::spec::duration_seconds;
use mw_operator::kilo::Settings;
use mw_operator::kubeconfig::Allowed;
use mw_operator::run::{Options, RunError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::answer::Answer;

/// Run the Kilo back end: keep the Peers of every ClusterMesh true, in all its clusters.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kubeconfig of the hub; without it the pod's own cluster, or what KUBECONFIG names.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespace whose ClusterMeshes are acted on, and where the Lease is.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "default")]
    namespace: String,

    /// Act on the ClusterMeshes of all namespaces.
    #[arg(long)]
    all_namespaces: bool,

    /// Elect a leader by a Lease, so that of several replicas one acts.
    #[arg(long)]
    leader_elect: bool,

    /// Where metrics are served; 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = address)]
    metrics_bind_address: Address,

    /// Where /healthz and /readyz are served; 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081", value_parser = address)]
    health_probe_bind_address: Address,

    /// How long a node that lost its annotations keeps its Peer: 90s, 5m, or 0.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration)]
    node_grace: Duration,

    /// How often everything is listed again, in case an event was lost.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = some_duration)]
    resync_period: Duration,

    /// How long a cluster may take to answer a request.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_duration)]
    request_timeout: Duration,

    /// Whether to remove what the Go operator left of meshes that do not exist.
    #[arg(long, value_enum, default_value_t)]
    sweep_legacy: Sweep,

    /// What a member's kubeconfig may do although it weakens the connection.
    #[arg(long, value_name = "SETTING", value_enum, value_delimiter = ',')]
    kubeconfig_allow: Vec<Allow>,

    /// Install or update the ClusterMesh CRD at start.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    apply_crds: bool,

    /// How log lines are written.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,

    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing::Level,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Sweep {
    /// Unless Peers of another hub are in the same cluster.
    #[default]
    Auto,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allow {
    InsecureSkipTlsVerify,
    ProxyUrl,
    Impersonation,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address(Option<SocketAddr>);

/// As the Go operator takes it: `:8080` is that port of every address, `0` none.
fn address(text: &str) -> Result<Address, String> {
    if text == "0" {
        return Ok(Address(None));
    }
    let whole = match text.strip_prefix(':') {
        Some(port) => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port.parse().map_err(|_| "write it like :8080")?),
        None => text.parse().map_err(|_| "write it like :8080, 127.0.0.1:8080 or 0")?,
    };
    Ok(Address(Some(whole)))
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => duration_seconds(text).map(Duration::from_secs).ok_or_else(|| "write it like 90s, 5m or 0".to_owned()),
    }
}

pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| if duration.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(duration) })
}

pub(crate) fn run(args: Args) -> Result<Answer> {
    start_log(args.log_format, args.log_level);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime could be started")?;
    let ended = runtime.block_on(async {
        let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = async move {
            tokio::select! {
                biased;
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        anyhow::Ok(mw_operator::run::run(options(args), stop).await)
    });
    // A name server that hangs must not keep the process alive.
    runtime.shutdown_background();
    match ended.context("signals can't be received")? {
        Ok(()) => Ok(Answer::Yes),
        Err(RunError::LostLease) => {
            tracing::error!("{}", RunError::LostLease);
            Ok(Answer::No)
        }
        Err(wrong) => Err(wrong.into()),
    }
}

fn options(args: Args) -> Options {
    Options {
        kubeconfig: args.kubeconfig,
        settings: Settings {
            namespace: args.namespace,
            all_namespaces: args.all_namespaces,
            node_grace: args.node_grace,
            resync: args.resync_period,
            sweep_legacy: args.sweep_legacy == Sweep::Auto,
            allowed: allowed(&args.kubeconfig_allow),
        },
        request_timeout: args.request_timeout,
        apply_crds: args.apply_crds,
        leader_elect: args.leader_elect.then(identity),
        metrics: args.metrics_bind_address.0,
        health: args.health_probe_bind_address.0,
    }
}

pub(crate) fn allowed(named: &[Allow]) -> Allowed {
    Allowed {
        insecure_skip_tls_verify: named.contains(&Allow::InsecureSkipTlsVerify),
        proxy_url: named.contains(&Allow::ProxyUrl),
        impersonation: named.contains(&Allow::Impersonation),
    }
}

/// The pod's name, and something that no restart has again.
fn identity() -> String {
    let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "meshwright".to_owned());
    format!("{host}_{:016x}", fastrand::u64(..))
}

fn start_log(format: LogFormat, level: tracing::Level) {
    // The client library logs whole answers that it can't read: they may hold Secrets.
    let filter = EnvFilter::new(format!("{level},kube_client=off,hyper_util=warn,h2=warn,rustls=warn,tower=warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => log.json().init(),
    }
}
