//! Anonymous network namespaces, which exist as long as they are referenced.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

use crate::apart::{on_thread, refused};
use crate::error::{Error, Result};

/// Settings of every namespace: forwarding on, reverse path filter off, ping for all
/// users, no router advertisements, and no duplicate address detection, which would
/// delay the use of IPv6 addresses.
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

/// Device file for TUN devices.
const TUN: &str = "/dev/net/tun";

/// A network namespace. Cheap to clone; it ends with the last clone and the last socket
/// in it.
#[derive(Debug, Clone)]
pub struct Namespace {
    handle: Arc<File>,
}

impl Namespace {
    /// Creates a namespace. Fails with [`Error::Missing`] if this process lacks the
    /// permission, or if the machine has no TUN devices.
    pub fn new() -> Result<Self> {
        if !Path::new(TUN).exists() {
            return Err(Error::Missing {
                what: format!("{TUN} does not exist"),
                hint: "load the module with `modprobe tun`".into(),
            });
        }
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let handle = File::open("/proc/thread-self/ns/net")?;
            for (name, value) in SETTINGS {
                std::fs::write(format!("/proc/sys/net/{name}"), value)?;
            }
            Ok(handle)
        });
        let failed = |error| {
            refused(&error, "network namespaces")
                .unwrap_or_else(|| Error::network("making a network namespace", error))
        };
        made.map(|handle| Self {
            handle: Arc::new(handle),
        })
        .map_err(failed)
    }

    /// Runs a closure inside of the namespace, on a new thread. Sockets and devices
    /// that it opens stay in the namespace and can be used from anywhere.
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
