//! Dials a remote's etcd as its reader would, with the same client files and
//! server name, and reads the remote's cluster ID and heartbeat. A failure is
//! classified by how far the dial got; its text says what was tried, what
//! happened and what to do.

mod etcd;
mod tls;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::jiff;
use mw_core::cilium::plan::Dial;
use mw_core::cilium::world::{DialFailure, DialOutcome, Heartbeat};
use mw_core::text::printable;
use mw_core::time::Timestamp;
use rustls_pki_types::ServerName;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::address::{AddressPolicy, Forbidden, ResolveError};
use crate::clock::Clock;

/// Timeout of a dial, all addresses together.
pub const PATIENCE: Duration = Duration::from_secs(5);
const CLUSTER_CONFIG: &str = "cilium/cluster-config/";
const HEARTBEAT: &str = "cilium/.heartbeat";
/// A host name may resolve to any number of addresses.
const MOST_ADDRESSES: usize = 8;
/// Longer texts from a remote are truncated.
const LONGEST: usize = 200;
/// Room for a host name of 253 characters and the reason for its refusal.
const LONGEST_REFUSAL: usize = 600;

/// Identity and liveness that a remote reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Cluster ID in its cluster-config.
    pub id: u32,
    /// Time of the last heartbeat; None if there was none.
    pub heartbeat: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failed {
    pub kind: DialFailure,
    pub text: String,
}

impl Failed {
    fn new(kind: DialFailure, text: impl Into<String>) -> Failed {
        Failed {
            kind,
            text: text.into(),
        }
    }
}

/// Performs dials. Simulations provide their own.
pub trait Dialler: Send + Sync {
    fn dial(&self, dial: Dial) -> BoxFuture<'static, Result<Answer, Failed>>;
}

/// Dials over the network.
#[derive(Debug, Clone)]
pub struct Network {
    /// Clock that certificates are checked against.
    pub clock: Clock,
    pub timeouts: Duration,
    pub addresses: AddressPolicy,
}

impl Dialler for Network {
    fn dial(&self, dial: Dial) -> BoxFuture<'static, Result<Answer, Failed>> {
        let deadline = Deadline {
            at: Instant::now() + self.timeouts,
            timeouts: self.timeouts,
        };
        Box::pin(reach(
            dial,
            self.clock.clone(),
            self.addresses.clone(),
            deadline,
        ))
    }
}

/// Redacts a failed dial for a kcp tenant. The tenant chooses the address, so the
/// text must not reveal which addresses and ports answer from here.
pub fn for_tenant(outcome: DialOutcome) -> DialOutcome {
    let unreachable = |text: &str| DialOutcome::Failed {
        kind: DialFailure::Unreachable,
        text: text.to_owned(),
    };
    match outcome {
        DialOutcome::Failed { kind: DialFailure::Dns | DialFailure::Tcp | DialFailure::Tls, .. } => unreachable(
            "no etcd answers at this address; check the address of Service clustermesh-apiserver and the firewalls between the provider and it",
        ),
        DialOutcome::Failed { kind: DialFailure::Address, .. } => DialOutcome::Failed {
            kind: DialFailure::Address,
            text: "the provider may not dial this address; check the address of Service clustermesh-apiserver".to_owned(),
        },
        other => other,
    }
}

/// Combines a dial's result with the previous outcome. A heartbeat that changes
/// proves liveness even if the clocks differ; a missing one is tolerated for a
/// while after it was first missed.
pub fn outcome(
    before: Option<&DialOutcome>,
    result: Result<Answer, Failed>,
    now: Timestamp,
) -> DialOutcome {
    let before = before.and_then(|outcome| match outcome {
        DialOutcome::Read { heartbeat, .. } => Some(*heartbeat),
        DialOutcome::Failed { .. } => None,
    });
    match result {
        Err(Failed { kind, text }) => DialOutcome::Failed { kind, text },
        Ok(Answer {
            id,
            heartbeat: Some(time),
        }) => {
            let moved = match before {
                Some(Heartbeat::At {
                    time: before,
                    moved,
                }) if before == time => moved,
                Some(Heartbeat::At { .. } | Heartbeat::Absent { .. }) => Some(now),
                None => None,
            };
            DialOutcome::Read {
                id,
                heartbeat: Heartbeat::At { time, moved },
            }
        }
        Ok(Answer {
            id,
            heartbeat: None,
        }) => {
            let since = match before {
                Some(Heartbeat::Absent { since }) => since,
                _ => now,
            };
            DialOutcome::Read {
                id,
                heartbeat: Heartbeat::Absent { since },
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    timeouts: Duration,
}

impl Deadline {
    /// Returns the result, or `late`'s failure if the deadline passes first.
    async fn hold<T>(
        self,
        doing: impl Future<Output = Result<T, Failed>>,
        late: impl FnOnce(String) -> Failed,
    ) -> Result<T, Failed> {
        match timeout_at(self.at, doing).await {
            Ok(result) => result,
            Err(_) => Err(late(format!("within {}s", self.timeouts.as_secs_f64()))),
        }
    }
}

/// One address of a remote, displayed with the host name it was resolved from.
#[derive(Debug, Clone)]
struct Target {
    host: String,
    address: SocketAddr,
    /// Name that its certificate must be valid for.
    name: ServerName<'static>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(_) => write!(f, "{}", self.address),
            Err(_) => write!(f, "{} ({})", self.host, self.address),
        }
    }
}

/// Dials all addresses concurrently: one answer is enough, as for etcd's own
/// client.
async fn reach(
    dial: Dial,
    clock: Clock,
    addresses: AddressPolicy,
    deadline: Deadline,
) -> Result<Answer, Failed> {
    let connector = TlsConnector::from(tls::config(&dial.files, clock)?);
    let mut attempts = JoinSet::new();
    for (order, target) in targets(&dial, &addresses, deadline)
        .await?
        .into_iter()
        .enumerate()
    {
        let (connector, cluster) = (connector.clone(), dial.cluster_name.to_string());
        attempts.spawn(async move {
            attempt(&target, &connector, &cluster, deadline)
                .await
                .map_err(|failed| (order, failed))
        });
    }
    let mut failures = Vec::new();
    while let Some(done) = attempts.join_next().await {
        match done {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failures.push(failure),
            Err(_) => {}
        }
    }
    Err(furthest(failures))
}

/// Merges the failures that got furthest.
fn furthest(mut failures: Vec<(usize, Failed)>) -> Failed {
    let Some(kind) = failures.iter().map(|(_, failed)| failed.kind).max() else {
        return Failed::new(
            DialFailure::Tcp,
            "no address to dial; check the status of Service clustermesh-apiserver",
        );
    };
    failures.retain(|(_, failed)| failed.kind == kind);
    failures.sort_by_key(|(order, _)| *order);
    let texts: Vec<String> = failures
        .into_iter()
        .map(|(_, failed)| failed.text)
        .collect();
    Failed::new(kind, texts.join("; "))
}

async fn targets(
    dial: &Dial,
    addresses: &AddressPolicy,
    deadline: Deadline,
) -> Result<Vec<Target>, Failed> {
    let mut targets = Vec::new();
    for host in &dial.hosts {
        let found = match addresses.literal(host).map_err(|why| forbidden(&why))? {
            Some(ip) => vec![SocketAddr::new(ip, dial.port)],
            None => resolve(host, dial.port, addresses, deadline).await?,
        };
        let name = dial.server_name.as_ref().unwrap_or(host);
        let name = ServerName::try_from(name.clone())
            .map_err(|_| unresolved(name, "neither an IP address nor a host name"))?;
        targets.extend(found.into_iter().map(|address| Target {
            host: host.clone(),
            address,
            name: name.clone(),
        }));
    }
    targets.truncate(MOST_ADDRESSES);
    Ok(targets)
}

async fn resolve(
    host: &str,
    port: u16,
    addresses: &AddressPolicy,
    deadline: Deadline,
) -> Result<Vec<SocketAddr>, Failed> {
    let looking = async {
        crate::address::resolve(host, port, Some(addresses))
            .await
            .map_err(|wrong| match wrong {
                ResolveError::Forbidden { .. } => Failed::new(
                    DialFailure::Address,
                    printable(&wrong.to_string(), LONGEST_REFUSAL),
                ),
                wrong => unresolved(host, &wrong.to_string()),
            })
    };
    deadline
        .hold(looking, |late| {
            unresolved(host, &format!("no answer {late}"))
        })
        .await
}

fn forbidden(why: &Forbidden) -> Failed {
    Failed::new(DialFailure::Address, why.to_string())
}

fn unresolved(host: &str, why: &str) -> Failed {
    let (host, why) = (printable(host, LONGEST), printable(why, LONGEST));
    Failed::new(
        DialFailure::Dns,
        format!("cannot resolve {host}: {why}; check the name and the DNS servers in use here"),
    )
}

async fn attempt(
    target: &Target,
    connector: &TlsConnector,
    cluster: &str,
    deadline: Deadline,
) -> Result<Answer, Failed> {
    let connecting = async {
        let stream = TcpStream::connect(target.address)
            .await
            .map_err(|wrong| unreachable(target, &wrong))?;
        // Many small messages: with Nagle's algorithm each may wait for an acknowledgement.
        stream
            .set_nodelay(true)
            .map_err(|wrong| unreachable(target, &wrong))?;
        Ok(stream)
    };
    let silent = |late: String| {
        let text =
            format!("no answer from {target} {late}; check the firewalls and routes from here");
        Failed::new(DialFailure::Tcp, text)
    };
    let stream = deadline.hold(connecting, silent).await?;
    let shaking = async {
        connector
            .connect(target.name.clone(), stream)
            .await
            .map_err(|wrong| tls::failed(target, &wrong))
    };
    let mute = |late: String| {
        let text = format!(
            "{target} accepts the connection but sends nothing {late}; check that etcd listens there"
        );
        Failed::new(DialFailure::Tls, text)
    };
    let stream = deadline.hold(shaking, mute).await?;
    let reading = async {
        etcd::read(stream, [config_key(cluster).as_str(), HEARTBEAT])
            .await
            .map_err(|wrong| wrong.failed(target, cluster))
    };
    let [config, heartbeat] = deadline
        .hold(reading, |late| {
            tls::mistrusted(target, &format!("sends nothing {late}"))
        })
        .await?;
    Ok(Answer {
        id: cluster_id(config.as_deref(), target, cluster)?,
        heartbeat: heartbeat.as_deref().and_then(heartbeat_time),
    })
}

fn config_key(cluster: &str) -> String {
    format!("{CLUSTER_CONFIG}{cluster}")
}

fn unreachable(target: &Target, wrong: &io::Error) -> Failed {
    let text = match wrong.kind() {
        io::ErrorKind::ConnectionRefused => format!(
            "{target} refuses connections; check that clustermesh-apiserver is exposed there"
        ),
        _ => format!("cannot reach {target}: {wrong}; check the routes from here"),
    };
    Failed::new(DialFailure::Tcp, text)
}

#[derive(Deserialize)]
struct ClusterConfig {
    id: u32,
}

fn cluster_id(config: Option<&[u8]>, target: &Target, cluster: &str) -> Result<u32, Failed> {
    let key = config_key(cluster);
    let Some(config) = config else {
        let text = format!(
            "etcd at {target} has no key {key}; check that the cluster there is named {cluster} \
             and that its clustermesh-apiserver has finished starting"
        );
        return Err(Failed::new(DialFailure::Name, text));
    };
    let read = serde_json::from_slice(config).map(|ClusterConfig { id }| id);
    read.map_err(|wrong| {
        let wrong = printable(&wrong.to_string(), LONGEST);
        let text =
            format!("cannot parse {key} in etcd at {target}: {wrong}; check what writes it there");
        Failed::new(DialFailure::Name, text)
    })
}

/// Parses a heartbeat; text that is not a time counts as none.
fn heartbeat_time(text: &[u8]) -> Option<Timestamp> {
    let time: jiff::Timestamp = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    Some(Timestamp(time.as_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(heartbeat: Heartbeat) -> DialOutcome {
        DialOutcome::Read { id: 2, heartbeat }
    }

    fn next(before: Option<Heartbeat>, time: Option<i64>) -> Heartbeat {
        let answer = Answer {
            id: 2,
            heartbeat: time.map(Timestamp),
        };
        match outcome(before.map(read).as_ref(), Ok(answer), Timestamp(1000)) {
            DialOutcome::Read { id: 2, heartbeat } => heartbeat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_heartbeat_moves_when_its_text_changes() {
        let at = |time: i64, moved: Option<i64>| Heartbeat::At {
            time: Timestamp(time),
            moved: moved.map(Timestamp),
        };
        let absent = Heartbeat::Absent {
            since: Timestamp(5),
        };
        assert_eq!(next(None, Some(50)), at(50, None));
        assert_eq!(next(Some(at(50, None)), Some(50)), at(50, None));
        assert_eq!(next(Some(at(50, None)), Some(110)), at(110, Some(1000)));
        assert_eq!(
            next(Some(at(50, Some(990))), Some(50)),
            at(50, Some(990)),
            "it is not forgotten"
        );
        assert_eq!(
            next(Some(at(110, None)), Some(50)),
            at(50, Some(1000)),
            "a clock that was set back"
        );
        assert_eq!(
            next(Some(absent), Some(50)),
            at(50, Some(1000)),
            "it appeared"
        );
    }

    #[test]
    fn an_absent_heartbeat_is_absent_since_it_was_first_missed() {
        let absent = |since: i64| Heartbeat::Absent {
            since: Timestamp(since),
        };
        assert_eq!(next(None, None), absent(1000));
        assert_eq!(next(Some(absent(900)), None), absent(900));
        assert_eq!(
            next(
                Some(Heartbeat::At {
                    time: Timestamp(900),
                    moved: None
                }),
                None
            ),
            absent(1000)
        );
        let failed = DialOutcome::Failed {
            kind: DialFailure::Tcp,
            text: "x".to_owned(),
        };
        let after = outcome(
            Some(&failed),
            Ok(Answer {
                id: 2,
                heartbeat: None,
            }),
            Timestamp(1000),
        );
        assert_eq!(after, read(absent(1000)));
    }

    #[test]
    fn a_failure_is_told_as_it_is() {
        let failed = Failed::new(DialFailure::Dns, "why");
        let expected = DialOutcome::Failed {
            kind: DialFailure::Dns,
            text: "why".to_owned(),
        };
        assert_eq!(outcome(None, Err(failed), Timestamp(0)), expected);
    }

    #[test]
    fn to_a_tenant_dns_tcp_and_tls_failures_are_the_same() {
        let tenant = |kind: DialFailure| {
            for_tenant(DialOutcome::Failed {
                kind,
                text: "10.0.0.7:22 refuses connections".to_owned(),
            })
        };
        let unreachable = tenant(DialFailure::Tcp);
        assert!(
            matches!(&unreachable, DialOutcome::Failed { kind: DialFailure::Unreachable, text } if !text.contains("refuses"))
        );
        assert_eq!(
            (tenant(DialFailure::Dns), tenant(DialFailure::Tls)),
            (unreachable.clone(), unreachable)
        );
        assert!(
            matches!(tenant(DialFailure::Address), DialOutcome::Failed { text, .. } if !text.contains("10.0.0.7"))
        );
        // The remote has identified itself by its certificate, or failed to.
        assert!(matches!(
            tenant(DialFailure::Certificate),
            DialOutcome::Failed {
                kind: DialFailure::Certificate,
                ..
            }
        ));
        assert_eq!(
            for_tenant(read(Heartbeat::Absent {
                since: Timestamp(5)
            })),
            read(Heartbeat::Absent {
                since: Timestamp(5)
            })
        );
    }

    #[test]
    fn of_several_addresses_the_failure_that_got_furthest_counts() {
        let failed = |kind: DialFailure, text: &str| Failed::new(kind, text);
        let all = vec![
            (2, failed(DialFailure::Certificate, "third")),
            (1, failed(DialFailure::Tcp, "second")),
            (0, failed(DialFailure::Certificate, "first")),
        ];
        assert_eq!(
            furthest(all),
            failed(DialFailure::Certificate, "first; third")
        );
        assert_eq!(furthest(Vec::new()).kind, DialFailure::Tcp);
    }

    #[test]
    fn a_heartbeat_is_a_time_of_rfc_3339() {
        for (text, time) in [
            ("1970-01-01T00:01:40Z", Some(100)),
            ("1970-01-01T01:01:40.5+01:00\n", Some(100)),
            ("Thu, 01 Jan 1970 00:01:40 UTC", None),
            ("", None),
        ] {
            assert_eq!(
                heartbeat_time(text.as_bytes()),
                time.map(Timestamp),
                "{text}"
            );
        }
        assert_eq!(heartbeat_time(&[0xff]), None);
    }
}
