//! Separate threads for namespace changes.

use std::io;

use nix::errno::Errno;

use crate::error::Error;

/// Errors that the kernel returns to users other than root, and to root in a restricted
/// container.
const REFUSALS: [Errno; 3] = [Errno::EPERM, Errno::EACCES, Errno::EROFS];

/// Runs `work` on a new thread: after a change of namespace the thread must not be
/// reused.
pub(crate) fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Returns [`Error::Missing`] if the kernel denied permission; `None` for other errors.
pub(crate) fn refused(error: &io::Error, namespaces: &str) -> Option<Error> {
    let refused = REFUSALS
        .iter()
        .any(|refusal| error.raw_os_error() == Some(*refusal as i32));
    refused.then(|| Error::Missing {
        what: format!("no permission to create {namespaces}"),
        hint: "run `sudo -E make test`".into(),
    })
}
