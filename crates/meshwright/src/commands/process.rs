//! Flags, logging and shutdown shared by the operator and the provider.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgAction, ValueEnum};
use mw_controller::address::AddressPolicy;
use mw_controller::kubeconfig::Allowed;
use mw_controller::run::{BackEnd, Options, RunError};
use mw_core::cidr::Cidr;
use mw_core::kilo::spec::duration_seconds;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::exit_code::Answer;

#[derive(Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// Elect a leader with a Lease, so that only one replica acts.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) leader_elect: bool,

    /// Serve metrics over HTTPS, only to clients whose bearer token may get /metrics.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    metrics_secure: bool,

    /// Serve metrics on this address; 0 disables.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = address)]
    metrics_bind_address: Address,

    /// Serve /healthz and /readyz on this address; 0 disables.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081", value_parser = address)]
    health_probe_bind_address: Address,

    /// Relist everything at this interval, in case a watch event was lost.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = some_duration)]
    pub(super) resync_period: Duration,

    /// Time out a request to a cluster after this long; a write also ends before the Lease expires.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = some_duration)]
    request_timeout: Duration,

    /// Assume this memory limit of the process, e.g. 256Mi or 1Gi; a cluster whose objects take more
    /// than a quarter of it counts as unreachable.
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi", value_parser = quantity)]
    memory_limit: usize,

    #[command(flatten)]
    members: MemberArgs,

    /// Install or update the CRDs at startup.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    apply_crds: bool,

    /// Write log lines in this format.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,

    /// Log at this level: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing::Level,
}

/// Restrictions on member clusters, whose kubeconfigs are provided by others.
#[derive(Debug, clap::Args)]
pub(crate) struct MemberArgs {
    /// Allow members' kubeconfigs to use these settings, which weaken the connection.
    #[arg(long, value_name = "SETTING", value_enum, value_delimiter = ',')]
    kubeconfig_allow: Vec<Allow>,

    /// Connect to members in this network even if it is loopback, link-local or a metadata service;
    /// repeatable.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    allow_address: Vec<Cidr>,
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

/// Parses an address like the Go operator: `:8080` binds all addresses, `0` disables.
fn address(text: &str) -> Result<Address, String> {
    if text == "0" {
        return Ok(Address(None));
    }
    let whole = match text.strip_prefix(':') {
        Some(port) => SocketAddr::new(
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            port.parse()
                .map_err(|_| "expected an address such as :8080")?,
        ),
        None => text
            .parse()
            .map_err(|_| "expected an address such as :8080, 127.0.0.1:8080 or 0")?,
    };
    Ok(Address(Some(whole)))
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => duration_seconds(text)
            .map(Duration::from_secs)
            .ok_or_else(|| "expected a duration such as 90s, 5m or 0".to_owned()),
    }
}

pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| {
        if duration.is_zero() {
            Err("must be greater than 0".to_owned())
        } else {
            Ok(duration)
        }
    })
}

/// Parses a Kubernetes quantity of bytes.
fn quantity(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, f64); 8] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
    ];
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1.0));
    let bytes = number
        .parse::<f64>()
        .ok()
        .map(|number| number * unit)
        .filter(|bytes| bytes.is_finite() && *bytes >= 1.0);
    bytes
        .map(|bytes| bytes as usize)
        .ok_or_else(|| "expected a quantity such as 256Mi or 1Gi".to_owned())
}

fn network(text: &str) -> Result<Cidr, String> {
    Cidr::try_from(text)
        .map_err(|_| "expected a network such as 127.0.0.0/8 or fe80::/64".to_owned())
}

impl MemberArgs {
    pub(crate) fn allowed(&self) -> Allowed {
        let named = |setting: Allow| self.kubeconfig_allow.contains(&setting);
        Allowed {
            insecure_skip_tls_verify: named(Allow::InsecureSkipTlsVerify),
            proxy_url: named(Allow::ProxyUrl),
            impersonation: named(Allow::Impersonation),
            addresses: AddressPolicy {
                allowed: self.allow_address.clone(),
                refuses_loopback: runs_inside_a_cluster(),
            },
        }
    }
}

/// Kubernetes sets this variable in every pod.
fn runs_inside_a_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
}

impl ProcessArgs {
    pub(super) fn allowed(&self) -> Allowed {
        self.members.allowed()
    }

    /// Runs until a signal arrives or the Lease is lost. `name` identifies this process in the
    /// Lease.
    pub(super) fn run<B: BackEnd>(
        self,
        back_end: B,
        kubeconfig: Option<PathBuf>,
        namespace: String,
        name: &str,
    ) -> Result<Answer> {
        start_log(self.log_format, self.log_level);
        let options = Options {
            back_end,
            kubeconfig,
            namespace,
            allowed: self.allowed(),
            request_timeout: self.request_timeout,
            memory_limit: self.memory_limit,
            apply_crds: self.apply_crds,
            // Random suffix, so that a restarted process has a new identity.
            leader_elect: self
                .leader_elect
                .then(|| format!("{name}_{:016x}", fastrand::u64(..))),
            metrics: self.metrics_bind_address.0,
            metrics_secure: self.metrics_secure,
            health: self.health_probe_bind_address.0,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        let ended = runtime.block_on(async {
            let (mut term, mut interrupt) = (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            );
            let stop = async move {
                tokio::select! {
                    biased;
                    _ = term.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            anyhow::Ok(mw_controller::run::run(options, stop).await)
        });
        // A hanging DNS lookup must not keep the process alive.
        runtime.shutdown_background();
        match ended.context("cannot install signal handlers")? {
            Ok(()) => Ok(Answer::Yes),
            Err(lost @ RunError::LostLease(_)) => {
                tracing::error!("{lost}");
                Ok(Answer::No)
            }
            Err(wrong) => Err(wrong.into()),
        }
    }
}

fn start_log(format: LogFormat, level: tracing::Level) {
    // kube_client logs whole responses that it can't parse; they may contain Secrets.
    let filter = EnvFilter::new(format!(
        "{level},kube_client=off,hyper_util=warn,h2=warn,rustls=warn,tower=warn"
    ));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init(),
        LogFormat::Json => log.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_limit_is_a_kubernetes_quantity() {
        let read = [
            ("256Mi", 256 << 20),
            ("1.5Gi", 1536 << 20),
            ("512M", 512_000_000),
            ("268435456", 256 << 20),
            ("64Ki", 64 << 10),
        ];
        for (text, bytes) in read {
            assert_eq!(quantity(text), Ok(bytes), "{text}");
        }
        assert_eq!(
            quantity("256Mi"),
            Ok(mw_controller::fleet::MEMORY_LIMIT),
            "the default"
        );
        for wrong in ["", "Mi", "-1Gi", "0", "1 Gi", "much", "NaN", "inf"] {
            assert!(quantity(wrong).is_err(), "{wrong}");
        }
    }
}
