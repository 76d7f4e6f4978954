//! Userspace WireGuard device: boringtun's protocol between a TUN device and a UDP
//! socket of one host.
//!
//! It behaves like the kernel in everything that a controller can observe:
//! configuration replaces all peers and ends their sessions, a prefix belongs to the
//! peer that was given it last, the own key is rejected, peers roam, and a keepalive is
//! sent immediately when a peer is configured with one.
//! One difference remains: if both sides initiate a handshake simultaneously, the kernel
//! drops both responses and initiates again after 5 s; boringtun accepts both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use ipnet::IpNet;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::task::JoinSet;
use tun_rs::{AsyncDevice, DeviceBuilder};

use crate::error::{Error, Result};
use crate::http::runtime;
use crate::net::Namespace;

const LONGEST_PACKET: usize = 2048;
/// Interval of timer checks; the timers of the protocol are seconds long.
const TICK: Duration = Duration::from_millis(50);
/// Message type of a handshake initiation, the first byte. `ANSWER` is the response.
const CALL: u8 = 1;
const ANSWER: u8 = 2;
/// Leaves room for the outer headers, like Kilo.
const MTU: u16 = 1420;

/// A public or preshared key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let bytes = Base64::decode_vec(text).map_err(|error| error.to_string())?;
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| "a key has 32 bytes".to_owned())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Base64::encode_string(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Configuration of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    pub key: Key,
    pub preshared: Option<Key>,
    pub endpoint: Option<SocketAddr>,
    /// Keepalive interval in seconds; 0 for none.
    pub keepalive: u16,
    pub allowed: Vec<IpNet>,
}

/// State of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerState {
    pub key: Key,
    pub preshared: Option<Key>,
    /// Endpoint from which it was last heard, or the configured one.
    pub endpoint: Option<SocketAddr>,
    pub keepalive: u16,
    pub allowed: BTreeSet<IpNet>,
    pub has_session: bool,
}

/// A device. Dropping it removes it from its host.
#[derive(Debug)]
pub struct WireGuard {
    device: Arc<Device>,
    /// Aborted together with the device.
    _tasks: JoinSet<()>,
}

struct Device {
    secret: StaticSecret,
    public: PublicKey,
    port: u16,
    tun: AsyncDevice,
    udp: UdpSocket,
    state: Mutex<State>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    up: bool,
    peers: BTreeMap<Key, Peer>,
    /// Indexes are never reused, so that packets of an old session match no peer.
    last_index: u32,
    configured: u64,
}

struct Peer {
    tunn: Tunn,
    index: u32,
    preshared: Option<Key>,
    endpoint: Option<SocketAddr>,
    keepalive: u16,
    allowed: BTreeSet<IpNet>,
    /// Index under which the other side last initiated a handshake. It grows with every
    /// configuration there.
    called_from: u32,
}

impl WireGuard {
    /// Creates a device with a new key, down and without peers.
    pub fn new(namespace: &Namespace, name: &str, port: u16) -> Result<Self> {
        let failed = |error: std::io::Error| Error::network(format!("making {name}"), error);
        let (tun, udp) = namespace
            .run(|| {
                let tun = DeviceBuilder::new()
                    .name(name)
                    .mtu(MTU)
                    .enable(false)
                    .build_sync()?;
                let udp = UdpSocket::bind(("0.0.0.0", port))?;
                udp.set_nonblocking(true)?;
                Ok((tun, udp))
            })
            .map_err(failed)?;
        let runtime = runtime()?;
        let _context = runtime.enter();
        let secret = random_secret()?;
        let receiver =
            tokio::net::UdpSocket::from_std(udp.try_clone().map_err(failed)?).map_err(failed)?;
        let tun = AsyncDevice::new(tun).map_err(failed)?;
        let device = Arc::new(Device {
            public: PublicKey::from(&secret),
            secret,
            port,
            tun,
            udp,
            state: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(device.clone().read_tunnel());
        tasks.spawn(device.clone().read_network(receiver));
        tasks.spawn(device.clone().keep_time());
        Ok(Self {
            device,
            _tasks: tasks,
        })
    }

    pub fn key(&self) -> Key {
        Key(self.device.public.to_bytes())
    }

    pub fn port(&self) -> u16 {
        self.device.port
    }

    /// Sets the device up or down. A device that is down neither sends nor answers.
    /// Independent of the state of the TUN device.
    pub fn set_up(&self, up: bool) {
        let mut state = self.device.state();
        let comes_up = up && !state.up;
        state.up = up;
        if comes_up {
            state
                .peers
                .values_mut()
                .for_each(|peer| self.device.greet(peer));
        }
    }

    /// Replaces all peers and ends all sessions.
    pub fn configure(&self, peers: &[PeerConfig]) {
        let mut state = self.device.state();
        state.peers.clear();
        state.configured += 1;
        for config in peers.iter().filter(|config| config.key != self.key()) {
            self.device.add(&mut state, config);
        }
        if state.up {
            state
                .peers
                .values_mut()
                .for_each(|peer| self.device.greet(peer));
        }
    }

    /// Returns the number of configurations so far.
    pub fn configured(&self) -> u64 {
        self.device.state().configured
    }

    /// Returns all peers, sorted by key.
    pub fn peers(&self) -> Vec<PeerState> {
        let state = self.device.state();
        state
            .peers
            .iter()
            .map(|(key, peer)| peer.state(*key))
            .collect()
    }
}

impl Peer {
    fn state(&self, key: Key) -> PeerState {
        PeerState {
            key,
            preshared: self.preshared,
            endpoint: self.endpoint,
            keepalive: self.keepalive,
            allowed: self.allowed.clone(),
            has_session: self.tunn.time_since_last_handshake().is_some(),
        }
    }

    /// Reports whether a handshake response is outdated, because the other side was
    /// configured again and has already initiated a new handshake: packets can be
    /// reordered. boringtun would use a session that the other side does not have; the
    /// kernel drops the response.
    fn is_outdated(&mut self, datagram: &[u8]) -> bool {
        // Type, three zeros, and the sender's index, which boringtun does not expose.
        let Some([kind, _, _, _, index @ ..]) = datagram.first_chunk::<8>() else {
            return false;
        };
        let life = u32::from_le_bytes(*index) >> 8;
        match *kind {
            CALL => {
                self.called_from = self.called_from.max(life);
                false
            }
            ANSWER => life < self.called_from,
            _ => false,
        }
    }
}

impl State {
    /// Returns the peer with the longest prefix that contains an address.
    fn owner(&self, address: IpAddr) -> Option<Key> {
        let holding = |peer: &Peer| {
            peer.allowed
                .iter()
                .filter(|net| net.contains(&address))
                .map(IpNet::prefix_len)
                .max()
        };
        let all = self
            .peers
            .iter()
            .filter_map(|(key, peer)| Some((holding(peer)?, *key)));
        all.max_by_key(|(length, _)| *length).map(|(_, key)| key)
    }
}

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, state: &mut State, config: &PeerConfig) {
        let allowed: BTreeSet<IpNet> = config.allowed.iter().map(IpNet::trunc).collect();
        for other in state.peers.values_mut() {
            other.allowed.retain(|net| !allowed.contains(net));
        }
        state.last_index += 1;
        let (index, keepalive) = (state.last_index, config.keepalive);
        let preshared = config.preshared.map(|key| key.0);
        let tunn = Tunn::new(
            self.secret.clone(),
            config.key.0.into(),
            preshared,
            Some(keepalive).filter(|seconds| *seconds > 0),
            index,
            None,
        );
        let peer = Peer {
            tunn,
            index,
            preshared: config.preshared,
            endpoint: config.endpoint,
            keepalive,
            allowed,
            called_from: 0,
        };
        state.peers.insert(config.key, peer);
    }

    /// Initiates a handshake immediately, like the kernel when keepalive is enabled.
    fn greet(&self, peer: &mut Peer) {
        if peer.keepalive > 0 {
            let mut buffer = [0; LONGEST_PACKET];
            let result = peer.tunn.encapsulate(&[], &mut buffer);
            self.send(peer, result);
        }
    }

    /// Sends a packet. Errors count as packet loss.
    fn send(&self, peer: &mut Peer, result: TunnResult<'_>) {
        if let (Some(to), TunnResult::WriteToNetwork(packet)) = (peer.endpoint, result) {
            let _ = self.udp.send_to(packet, to);
        }
    }

    async fn read_tunnel(self: Arc<Self>) {
        let mut buffer = [0; LONGEST_PACKET];
        loop {
            // Reading fails while the TUN device is down.
            match self.tun.recv(&mut buffer).await {
                Ok(length) => self.outgoing(buffer.get(..length).unwrap_or_default()),
                Err(_) => tokio::time::sleep(TICK).await,
            }
        }
    }

    fn outgoing(&self, packet: &[u8]) {
        let mut state = self.state();
        let owner = Tunn::dst_address(packet).and_then(|address| state.owner(address));
        let Some(peer) = owner.and_then(|key| state.peers.get_mut(&key)) else {
            return;
        };
        let mut buffer = [0; LONGEST_PACKET];
        let result = peer.tunn.encapsulate(packet, &mut buffer);
        self.send(peer, result);
    }

    async fn read_network(self: Arc<Self>, receiver: tokio::net::UdpSocket) {
        let mut buffer = [0; LONGEST_PACKET];
        loop {
            // An error belongs to a packet that was sent earlier.
            if let Ok((length, from)) = receiver.recv_from(&mut buffer).await {
                self.incoming(buffer.get(..length).unwrap_or_default(), from);
            }
        }
    }

    fn incoming(&self, datagram: &[u8], from: SocketAddr) {
        let mut state = self.state();
        let Some(key) = self.sender(&state, datagram).filter(|_| state.up) else {
            return;
        };
        let Some(peer) = state.peers.get_mut(&key) else {
            return;
        };
        if peer.is_outdated(datagram) {
            return;
        }
        let mut buffer = [0; LONGEST_PACKET];
        match peer
            .tunn
            .decapsulate(Some(from.ip()), datagram, &mut buffer)
        {
            TunnResult::Err(_) => return,
            TunnResult::Done => peer.endpoint = Some(from),
            TunnResult::WriteToNetwork(answer) => {
                peer.endpoint = Some(from);
                self.send(peer, TunnResult::WriteToNetwork(answer));
            }
            TunnResult::WriteToTunnelV4(packet, source) => {
                self.deliver(&mut state, key, from, packet, source.into())
            }
            TunnResult::WriteToTunnelV6(packet, source) => {
                self.deliver(&mut state, key, from, packet, source.into())
            }
        }
        if let Some(peer) = state.peers.get_mut(&key) {
            self.send_waiting(peer);
        }
    }

    /// Delivers a packet, if its source belongs to this peer.
    fn deliver(
        &self,
        state: &mut State,
        key: Key,
        from: SocketAddr,
        packet: &[u8],
        source: IpAddr,
    ) {
        if let Some(peer) = state.peers.get_mut(&key) {
            peer.endpoint = Some(from);
        }
        if state.owner(source) == Some(key) {
            let _ = self.tun.try_send(packet);
        }
    }

    /// Sends packets that waited for a session.
    fn send_waiting(&self, peer: &mut Peer) {
        let mut buffer = [0; LONGEST_PACKET];
        while peer.tunn.time_since_last_handshake().is_some() {
            match peer.tunn.decapsulate(None, &[], &mut buffer) {
                TunnResult::WriteToNetwork(packet) => {
                    self.send(peer, TunnResult::WriteToNetwork(packet))
                }
                _ => return,
            }
        }
    }

    fn sender(&self, state: &State, datagram: &[u8]) -> Option<Key> {
        let by_index = |index: u32| {
            state
                .peers
                .iter()
                .find(|(_, peer)| peer.index == index >> 8)
                .map(|(key, _)| *key)
        };
        match Tunn::parse_incoming_packet(datagram).ok()? {
            Packet::HandshakeInit(packet) => {
                parse_handshake_anon(&self.secret, &self.public, &packet)
                    .ok()
                    .map(|half| Key(half.peer_static_public))
            }
            Packet::HandshakeResponse(packet) => by_index(packet.receiver_idx),
            Packet::PacketCookieReply(packet) => by_index(packet.receiver_idx),
            Packet::PacketData(packet) => by_index(packet.receiver_idx),
        }
    }

    async fn keep_time(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            ticks.tick().await;
            let mut state = self.state();
            if state.up {
                state.peers.values_mut().for_each(|peer| self.tick(peer));
            }
        }
    }

    fn tick(&self, peer: &mut Peer) {
        let mut buffer = [0; LONGEST_PACKET];
        match peer.tunn.update_timers(&mut buffer) {
            // boringtun gives up after 90 s; the kernel with keepalive does not.
            TunnResult::Err(WireGuardError::ConnectionExpired) => self.greet(peer),
            result => self.send(peer, result),
        }
    }
}

fn random_secret() -> Result<StaticSecret> {
    random::<32>()
        .map(StaticSecret::from)
        .map_err(|error| Error::network("making a key", error))
}

fn random<const BYTES: usize>() -> std::result::Result<[u8; BYTES], ring::error::Unspecified> {
    let mut bytes = [0; BYTES];
    SystemRandom::new().fill(&mut bytes).map(|()| bytes)
}
