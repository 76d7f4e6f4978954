//! TCP forwarding into a cluster: the addresses of a load balancer and of node ports,
//! and the API server's connections to pods. All forwarding runs in this process and
//! ends with it.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{Error, Result};
use crate::http::runtime;

const ATTEMPTS: usize = 100;
/// Maximum size of the API server's CONNECT request.
const LONGEST_REQUEST: usize = 4096;
/// Delay after a failed accept, e.g. for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns a loopback address on which these ports are free. The range is large enough
/// that two testbeds do not collide.
pub(super) fn free_address(ports: &[u16]) -> Result<Ipv4Addr> {
    let failed = |reason: String| Error::network("finding a loopback address", reason);
    for _ in 0..ATTEMPTS {
        let mut random = [0_u8; 3];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|error| failed(error.to_string()))?;
        let [second, third, last] = random;
        let address = Ipv4Addr::new(127, second | 1, third, last | 1);
        if ports
            .iter()
            .all(|port| std::net::TcpListener::bind((address, *port)).is_ok())
        {
            return Ok(address);
        }
    }
    Err(failed(format!("none of {ATTEMPTS} was free on {ports:?}")))
}

/// Returns the address that represents a loopback address in the API server, which
/// refuses to connect to loopback.
pub(super) fn shown(address: Ipv4Addr) -> Ipv4Addr {
    let [_, second, third, last] = address.octets();
    Ipv4Addr::new(10, second, third, last)
}

fn behind(shown: Ipv4Addr) -> Ipv4Addr {
    let [_, second, third, last] = shown.octets();
    Ipv4Addr::new(127, second, third, last)
}

/// An address that is forwarded to another one. Dropping it closes the address and all
/// connections through it.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) address: SocketAddrV4,
    task: AbortHandle,
}

impl Door {
    pub(super) fn open(address: SocketAddrV4, target: SocketAddrV4) -> Result<Self> {
        let failed = |error: io::Error| Error::network(format!("listening on {address}"), error);
        let _runtime = runtime()?.enter();
        let listener = std::net::TcpListener::bind(address)
            .and_then(nonblocking)
            .and_then(TcpListener::from_std)
            .map_err(failed)?;
        let task = runtime()?.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                match listener.accept().await {
                    Ok((inside, _)) => _ = connections.spawn(lead(inside, target)),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            task: task.abort_handle(),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn nonblocking(listener: std::net::TcpListener) -> io::Result<std::net::TcpListener> {
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn lead(mut from: TcpStream, target: SocketAddrV4) {
    if let Ok(mut to) = TcpStream::connect(target).await {
        // A load balancer does not delay packets.
        let _ = from.set_nodelay(true).and_then(|()| to.set_nodelay(true));
        // Both ends notice errors themselves.
        let _ = copy_bidirectional(&mut from, &mut to).await;
    }
}

/// Forwards the API server's connections to pods, as an HTTP proxy.
#[derive(Debug)]
pub(super) struct Egress {
    socket: PathBuf,
    task: AbortHandle,
}

impl Egress {
    pub(super) fn open(socket: &Path) -> Result<Self> {
        let _runtime = runtime()?.enter();
        let listener = UnixListener::bind(socket).map_err(Error::file("listening on", socket))?;
        let task = runtime()?.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => _ = connections.spawn(connect(stream)),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            task: task.abort_handle(),
        })
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.task.abort();
        // If this fails, the file is removed with the cluster's folder.
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn connect(mut api_server: UnixStream) {
    let Some(target) = wanted(&mut api_server).await else {
        return;
    };
    let Ok(mut pod) = TcpStream::connect(target).await else {
        let _ = api_server
            .write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            .await;
        return;
    };
    if api_server
        .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
        .await
        .is_ok()
    {
        let _ = copy_bidirectional(&mut api_server, &mut pod).await;
    }
}

/// Reads a CONNECT request. The client sends nothing more before the response.
async fn wanted(stream: &mut UnixStream) -> Option<SocketAddrV4> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() > LONGEST_REQUEST || stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    target(std::str::from_utf8(&request).ok()?)
}

fn target(request: &str) -> Option<SocketAddrV4> {
    let address = request.strip_prefix("CONNECT ")?.split(' ').next()?;
    let shown: SocketAddrV4 = address.parse().ok()?;
    Some(SocketAddrV4::new(behind(*shown.ip()), shown.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_address_leads_to_the_loopback_address_behind_it() {
        let address = free_address(&[2379]).unwrap();
        assert!(address.is_loopback() && !shown(address).is_loopback());
        assert_eq!(
            target(&format!(
                "CONNECT {}:9964 HTTP/1.1\r\nHost: x\r\n\r\n",
                shown(address)
            )),
            Some(SocketAddrV4::new(address, 9964))
        );
        assert_eq!(target("GET / HTTP/1.1\r\n\r\n"), None);
    }
}
