//! WireGuard public keys.

use std::fmt;

use base64ct::{Base64, Encoding};

/// A WireGuard public key. Parsing accepts only the canonical base64 form, so
/// that texts are equal if and only if the keys are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

/// 32 bytes in padded base64.
const TEXT_LENGTH: usize = 44;

/// The reason why text is not a [`PublicKey`]. Displays as the end of a
/// sentence: "… is all zero".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// Not the canonical base64 of 32 bytes.
    #[error("is not the base64 of 32 bytes")]
    NotBase64,
    /// The key that WireGuard reads as "no key".
    #[error("is all zero")]
    Zero,
}

impl PublicKey {
    /// The canonical base64, as in a Peer's publicKey.
    pub fn to_base64(self) -> String {
        Base64::encode_string(&self.0)
    }
}

impl TryFrom<&str> for PublicKey {
    type Error = InvalidKey;

    fn try_from(text: &str) -> Result<Self, InvalidKey> {
        if text.len() != TEXT_LENGTH {
            return Err(InvalidKey::NotBase64);
        }
        let mut bytes = [0; 32];
        let decoded = Base64::decode(text, &mut bytes).map_err(|_| InvalidKey::NotBase64)?;
        if decoded.len() != 32 {
            return Err(InvalidKey::NotBase64);
        }
        if bytes == [0; 32] {
            return Err(InvalidKey::Zero);
        }
        Ok(PublicKey(bytes))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_base64())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_a_key() {
        let text = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        assert_eq!(PublicKey::try_from(text).unwrap().to_base64(), text);
        let loose_bits = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQF=";
        let url_safe = "_-EBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        for bad in [
            "",
            "notakey",
            loose_bits,
            url_safe,
            text.trim_end_matches('='),
            &format!("{text}\n"),
        ] {
            assert_eq!(
                PublicKey::try_from(bad),
                Err(InvalidKey::NotBase64),
                "{bad}"
            );
        }
        let zero = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        assert_eq!(PublicKey::try_from(zero), Err(InvalidKey::Zero));
    }
}
