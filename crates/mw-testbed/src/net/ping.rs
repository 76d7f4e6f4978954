//! ICMP echo from inside of a namespace, once or continuously.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::http::{on_runtime, runtime};
use crate::net::Namespace;

/// Timeout of a ping. Later answers do not count: packets can be queued in a tunnel
/// until a session exists, and arrive much later.
pub const LATEST_ANSWER: Duration = Duration::from_secs(1);

/// Reports whether a ping is answered in time.
pub async fn ping(from: &Namespace, source: Option<IpAddr>, to: IpAddr) -> Result<bool> {
    let socket = open(from, source, to)?;
    let once = async move {
        let answer = async {
            socket.send(&request(to, 0)).await?;
            let mut buffer = [0; 128];
            socket.recv(&mut buffer).await
        };
        matches!(tokio::time::timeout(LATEST_ANSWER, answer).await, Ok(Ok(_)))
    };
    on_runtime(once)
        .await
        .map_err(|reason| Error::network("pinging", reason))
}

/// Opens a ping socket. The kernel sets identifier and checksum.
fn open(from: &Namespace, source: Option<IpAddr>, to: IpAddr) -> Result<UdpSocket> {
    let failed = |error: io::Error| Error::network(format!("pinging {to}"), error);
    let socket = from
        .run(|| {
            let (domain, protocol) = match to {
                IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
                IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
            };
            let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
            if let Some(source) = source {
                socket.bind(&SocketAddr::new(source, 0).into())?;
            }
            socket.set_nonblocking(true)?;
            Ok(socket)
        })
        .map_err(failed)?;
    let _context = runtime()?.enter();
    // Connecting needs a route, which may not exist yet.
    let _ = socket.connect(&SocketAddr::new(to, 0).into());
    UdpSocket::from_std(socket.into()).map_err(failed)
}

fn request(to: IpAddr, number: u16) -> [u8; 16] {
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let [high, low] = number.to_be_bytes();
    [kind, 0, 0, 0, 0, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Continuous pings at a fixed interval, until it is dropped.
#[derive(Debug)]
pub struct Flow {
    pub name: String,
    interval: Duration,
    probes: Arc<Mutex<Vec<Probe>>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    sent: Instant,
    answered: bool,
}

/// Statistics of pings in a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub sent: usize,
    pub lost: usize,
    /// Maximum number of consecutive losses.
    pub in_a_row: usize,
    /// Longest time from a lost ping to the next answered one.
    pub gap: Duration,
    /// Maximum delay in sending a ping. If it is large, the other values are
    /// unreliable.
    pub late: Duration,
}

impl Flow {
    pub fn start(name: &str, from: &Namespace, to: IpAddr, interval: Duration) -> Result<Self> {
        let socket = Arc::new(open(from, None, to)?);
        let probes = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let runtime = runtime()?.handle();
        tasks.spawn_on(
            send_all(socket.clone(), to, interval, probes.clone()),
            runtime,
        );
        tasks.spawn_on(receive_all(socket, probes.clone()), runtime);
        Ok(Self {
            name: name.to_owned(),
            interval,
            probes,
            _tasks: tasks,
        })
    }

    /// Returns the statistics of pings since `start`, after waiting for the answer to
    /// the last one.
    pub async fn since(&self, start: Instant) -> Report {
        let end = Instant::now();
        tokio::time::sleep(LATEST_ANSWER).await;
        self.between(start, end)
    }

    /// Like `since`, for a period that ended at least [`LATEST_ANSWER`] ago.
    pub fn between(&self, start: Instant, end: Instant) -> Report {
        let probes: Vec<Probe> = lock(&self.probes)
            .iter()
            .filter(|probe| (start..end).contains(&probe.sent))
            .copied()
            .collect();
        let lost = probes.iter().filter(|probe| !probe.answered).count();
        let in_a_row = probes
            .split(|probe| probe.answered)
            .map(<[Probe]>::len)
            .max()
            .unwrap_or(0);
        let (mut gap, mut since) = (Duration::ZERO, None);
        for Probe { sent, answered } in probes.iter().copied().chain([Probe {
            sent: end,
            answered: true,
        }]) {
            match (answered, since) {
                (false, None) => since = Some(sent),
                (true, Some(first)) => {
                    gap = gap.max(sent.duration_since(first));
                    since = None;
                }
                _ => {}
            }
        }
        let apart = probes
            .windows(2)
            .filter_map(|pair| Some(pair.last()?.sent.duration_since(pair.first()?.sent)));
        let late = apart
            .max()
            .unwrap_or_default()
            .saturating_sub(self.interval);
        Report {
            sent: probes.len(),
            lost,
            in_a_row,
            gap,
            late,
        }
    }

    /// Returns the time at which the last answered ping was sent.
    pub fn last_answered(&self) -> Option<Instant> {
        lock(&self.probes)
            .iter()
            .rev()
            .find(|probe| probe.answered)
            .map(|probe| probe.sent)
    }

    pub fn answered_after(&self, start: Instant) -> bool {
        self.last_answered().is_some_and(|sent| sent > start)
    }
}

/// Returns the combined statistics of several flows since `start`: the sum of losses,
/// and the longest gap of any flow.
pub async fn total_since(flows: &[Flow], start: Instant) -> Report {
    let end = Instant::now();
    tokio::time::sleep(LATEST_ANSWER).await;
    let reports = flows.iter().map(|flow| flow.between(start, end));
    reports.fold(Report::default(), |all, one| Report {
        sent: all.sent + one.sent,
        lost: all.lost + one.lost,
        in_a_row: all.in_a_row.max(one.in_a_row),
        gap: all.gap.max(one.gap),
        late: all.late.max(one.late),
    })
}

async fn send_all(
    socket: Arc<UdpSocket>,
    to: IpAddr,
    interval: Duration,
    probes: Arc<Mutex<Vec<Probe>>>,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0_u16.. {
        ticks.tick().await;
        lock(&probes).push(Probe {
            sent: Instant::now(),
            answered: false,
        });
        // A ping without a route counts as lost.
        if socket.send(&request(to, number)).await.is_err() {
            let _ = socket.connect(SocketAddr::new(to, 0)).await;
        }
    }
}

async fn receive_all(socket: Arc<UdpSocket>, probes: Arc<Mutex<Vec<Probe>>>) {
    let mut buffer = [0; 128];
    loop {
        // An error refers to an earlier ping that had no route.
        let Ok(length) = socket.recv(&mut buffer).await else {
            continue;
        };
        let Some([high, low]) = buffer.get(..length).and_then(|answer| answer.get(6..8)) else {
            continue;
        };
        let number = usize::from(u16::from_be_bytes([*high, *low]));
        if let Some(probe) = lock(&probes).get_mut(number) {
            probe.answered = probe.sent.elapsed() < LATEST_ANSWER;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
