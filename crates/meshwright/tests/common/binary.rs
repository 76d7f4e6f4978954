//! Path of the tested binary.

use std::path::PathBuf;

/// Returns the path in MESHWRIGHT_BINARY, by default the binary of this build.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("MESHWRIGHT_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_meshwright").into(), PathBuf::from)
}
