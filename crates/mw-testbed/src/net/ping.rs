//! ICMP echo from inside a namespace: once, or all the time.

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

/// An answer that comes later is no answer: packets can wait in a tunnel for
/// a session and come through long after anybody cares.
const LATEST_ANSWER: Duration = Duration::from_secs(1);

/// Whether one ping is answered in time.
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
    on_runtime(once).await.map_err(|reason| Error::network("pinging", reason))
}

/// The kernel answers for whom it is, numbers the sender and sums up.
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
    // Connecting looks for a route, and there may be none yet.
    let _ = socket.connect(&SocketAddr::new(to, 0).into());
    UdpSocket::from_std(socket.into()).map_err(failed)
}

fn request(to: IpAddr, number: u16) -> [u8; 16] {
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let [high, low] = number.to_be_bytes();
    [kind, 0, 0, 0, 0, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Pings at a fixed interval until it is dropped.
#[derive(Debug)]
pub struct Flow {
    pub name: String,
    probes: Arc<Mutex<Vec<Probe>>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    sent: Instant,
    answered: bool,
}

/// What became of the pings of some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub sent: usize,
    pub lost: usize,
    /// The longest time from a ping that was lost to the next that was
    /// answered.
    pub gap: Duration,
}

impl Flow {
    pub fn start(name: &str, from: &Namespace, to: IpAddr, interval: Duration) -> Result<Self> {
        let socket = Arc::new(open(from, None, to)?);
        let probes = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let runtime = runtime()?.handle();
        tasks.spawn_on(send_all(socket.clone(), to, interval, probes.clone()), runtime);
        tasks.spawn_on(receive_all(socket, probes.clone()), runtime);
        Ok(Self { name: name.to_owned(), probes, _tasks: tasks })
    }

    /// What became of the pings that were sent from then until now, once the
    /// last of them can have been answered.
    pub async fn since(&self, start: Instant) -> Report {
        let end = Instant::now();
        tokio::time::sleep(LATEST_ANSWER).await;
        self.between(start, end)
    }

    fn between(&self, start: Instant, end: Instant) -> Report {
        let probes: Vec<Probe> = lock(&self.probes).iter().filter(|probe| (start..end).contains(&probe.sent)).copied().collect();
        let lost = probes.iter().filter(|probe| !probe.answered).count();
        let (mut gap, mut since) = (Duration::ZERO, None);
        for Probe { sent, answered } in probes.iter().copied().chain([Probe { sent: end, answered: true }]) {
            match (answered, since) {
                (false, None) => since = Some(sent),
                (true, Some(first)) => {
                    gap = gap.max(sent.duration_since(first));
                    since = None;
                }
                _ => {}
            }
        }
        Report { sent: probes.len(), lost, gap }
    }

    /// When the ping was sent that was answered last.
    pub fn last_answered(&self) -> Option<Instant> {
        lock(&self.probes).iter().rev().find(|probe| probe.answered).map(|probe| probe.sent)
    }

    pub fn answered_after(&self, start: Instant) -> bool {
        self.last_answered().is_some_and(|sent| sent > start)
    }
}

/// The same over several flows: all that was lost, and the longest gap of any.
pub async fn total_since(flows: &[Flow], start: Instant) -> Report {
    let end = Instant::now();
    tokio::time::sleep(LATEST_ANSWER).await;
    let reports = flows.iter().map(|flow| flow.between(start, end));
    reports.fold(Report::default(), |all, one| Report { sent: all.sent + one.sent, lost: all.lost + one.lost, gap: all.gap.max(one.gap) })
}

async fn send_all(socket: Arc<UdpSocket>, to: IpAddr, interval: Duration, probes: Arc<Mutex<Vec<Probe>>>) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0_u16.. {
        ticks.tick().await;
        lock(&probes).push(Probe { sent: Instant::now(), answered: false });
        // Without a route it can't be sent: that is a loss as any other.
        if socket.send(&request(to, number)).await.is_err() {
            let _ = socket.connect(SocketAddr::new(to, 0)).await;
        }
    }
}

async fn receive_all(socket: Arc<UdpSocket>, probes: Arc<Mutex<Vec<Probe>>>) {
    let mut buffer = [0; 128];
    loop {
        // An error tells of a ping that found no way.
        let Ok(length) = socket.recv(&mut buffer).await else { continue };
        let Some([high, low]) = buffer.get(..length).and_then(|answer| answer.get(6..8)) else { continue };
        let number = usize::from(u16::from_be_bytes([*high, *low]));
        if let Some(probe) = lock(&probes).get_mut(number) {
            probe.answered = probe.sent.elapsed() < LATEST_ANSWER;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
