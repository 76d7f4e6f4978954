//! A network namespace without a name: it lives as long as somebody holds it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{Error, Result};

/// For every namespace: it forwards, believes any way back, lets everybody
/// ping, and takes IPv6 addresses at once.
const SETTINGS: [(&str, &str); 8] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/ping_group_range", "0 2147483647"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/forwarding", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// Where devices come from that this process carries packets for.
const TUN: &str = "/dev/net/tun";
/// Not root, or root in a container that is kept from this.
const REFUSALS: [Errno; 3] = [Errno::EPERM, Errno::EACCES, Errno::EROFS];

/// Cheap to clone; the last clone, and the last socket in it, end it.
#[derive(Debug, Clone)]
pub struct Namespace {
    handle: Arc<File>,
}

impl Namespace {
    /// [`Error::Missing`] when this process may not, or lacks what goes with it.
    pub fn new() -> Result<Self> {
        if !Path::new(TUN).exists() {
            return Err(Error::Missing { what: format!("there is no {TUN}"), hint: "load the module with `modprobe tun`".into() });
        }
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let handle = File::open("/proc/thread-self/ns/net")?;
            for (name, value) in SETTINGS {
                std::fs::write(format!("/proc/sys/net/{name}"), value)?;
            }
            Ok(handle)
        });
        match made {
            Ok(handle) => Ok(Self { handle: Arc::new(handle) }),
            Err(error) if REFUSALS.iter().any(|refusal| error.raw_os_error() == Some(*refusal as i32)) => {
                Err(Error::Missing { what: "this user may not make network namespaces".into(), hint: "run `sudo -E make test`".into() })
            }
            Err(error) => Err(Error::network("making a network namespace", error)),
        }
    }

    /// Runs something inside, on a thread of its own. Sockets and devices that
    /// it opens stay in the namespace and can be used from anywhere.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            setns(&self.handle, CloneFlags::CLONE_NEWNET)?;
            inside()
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.handle
    }
}

/// A thread that changes its namespace must not be used for anything else.
fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}
