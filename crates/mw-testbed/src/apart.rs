//! Threads of their own for what changes a namespace.

use std::io;

use nix::errno::Errno;

use crate::error::Error;

/// Not root, or root in a container that is kept from this.
const REFUSALS: [Errno; 3] = [Errno::EPERM, Errno::EACCES, Errno::EROFS];

/// A thread that changes its namespace must not be used for anything else.
pub(crate) fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// What is missing when the kernel refused; nothing if the error is another.
pub(crate) fn refused(error: &io::Error, namespaces: &str) -> Option<Error> {
    let refused = REFUSALS.iter().any(|refusal| error.raw_os_error() == Some(*refusal as i32));
    refused.then(|| Error::Missing { what: format!("this user may not make {namespaces}"), hint: "run `sudo -E make test`".into() })
}
