//! Bytes that may be a private key: they can be stored, compared and written,
//! but not printed.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Bytes whose `Debug` output is redacted; cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretBytes(Arc<[u8]>);

impl SecretBytes {
    /// Copies the bytes.
    pub fn new(bytes: &[u8]) -> Self {
        SecretBytes(bytes.into())
    }

    /// The bytes, for writing them only.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The first 16 hex digits of their SHA-256.
    pub fn fingerprint(&self) -> String {
        hex::encode(Sha256::digest(&self.0).get(..8).unwrap_or_default())
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        let key = SecretBytes::new(b"c2VjcmV0");
        assert_eq!(
            format!("{key:?} {key:#?}"),
            "SecretBytes(redacted) SecretBytes(redacted)"
        );
        assert_eq!(key.expose(), b"c2VjcmV0");
    }
}
