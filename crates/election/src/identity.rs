//! Who stands for what: shards, owners, nonces and epochs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tenure_backend::{Error, Result};

/// Most bytes of a shard id: with its prefix it must fit DynamoDB's 2048 bytes of a hash key.
pub const SHARD_BYTES_MAX: usize = 1024;
/// Most bytes of an owner id.
pub const OWNER_BYTES_MAX: usize = 512;

/// What is led: a name that everybody who stands for it agrees on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(Arc<str>);

/// Who leads, or wants to: one id per process, never two processes at once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Arc<str>);

macro_rules! bounded_text {
    ($type:ident, $what:literal, $max:ident) => {
        impl $type {
            /// Takes the text as it is.
            ///
            /// # Errors
            /// `Invalid` if it is empty, too long, or has control characters.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                bounded($what, text.as_ref(), $max).map(Self)
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
bounded_text!(ShardId, "shard id", SHARD_BYTES_MAX);
bounded_text!(OwnerId, "owner id", OWNER_BYTES_MAX);

fn bounded(what: &str, text: &str, bytes_max: usize) -> Result<Arc<str>> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{what} is empty: give it a name")));
    }
    if text.len() > bytes_max {
        return Err(Error::invalid(format!("{what} has {} bytes: at most {bytes_max} fit", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{what} {text:?} has control characters: leave them out")));
    }
    Ok(text.into())
}

/// The number of a term. It rises with every acquisition and never falls, so that a write by an older
/// leader can be told apart and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The term after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Marks one write: drawn anew for each, so that whoever reads it back knows its own.
///
/// Stored as 32 lowercase hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Nonce {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match u128::from_str_radix(text, 16) {
            Ok(nonce) if digits => Ok(Self(nonce)),
            _ => Err(Error::invalid(format!("`{text}` is not 32 lowercase hexadecimal digits"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bounded() {
        assert!(ShardId::new("").unwrap_err().chain().contains("shard id is empty"));
        assert!(OwnerId::new("x".repeat(OWNER_BYTES_MAX + 1)).unwrap_err().chain().contains("at most 512"));
        assert!(ShardId::new("a\nb").unwrap_err().chain().contains("control characters"));
        assert_eq!(ShardId::new("batch-processor").unwrap().as_str(), "batch-processor");
    }

    #[test]
    fn a_nonce_has_one_text() {
        let nonce = Nonce(0xabc);
        assert_eq!(nonce.to_string().parse::<Nonce>().unwrap(), nonce);
        for bad in ["", "abc", "00000000000000000000000000000ABC", "+000000000000000000000000000abcd"] {
            assert!(bad.parse::<Nonce>().is_err(), "{bad}");
        }
    }
}
