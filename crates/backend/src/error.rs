//! One error type, sorted by what its reader should do.

use std::fmt;

/// What went wrong, as advice. Match on this, never on a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Somebody newer holds what you guard: stop this work, it is not yours any more.
    Fenced,
    /// The write may have landed: read back and look for your own nonce before deciding anything.
    Unknown,
    /// It did not land; the backend asks for less: try again after a backoff.
    Throttled,
    /// It did not land; the backend cannot be reached or is busy: try again.
    Unavailable,
    /// Credentials or permissions are missing: a person must grant them.
    Denied,
    /// The request itself is wrong and will stay wrong: mend the caller or its configuration.
    Invalid,
    /// What is stored is damaged: restore it; nothing was written over it.
    Corrupt,
}

impl Kind {
    /// One lowercase word, for messages and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fenced => "fenced",
            Self::Unknown => "unknown",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Corrupt => "corrupt",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the same call may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// At once, or after a short jitter.
    Soon,
    /// After a growing pause.
    AfterBackoff,
    /// Only after reading back what the first call did.
    AfterReadingBack,
    /// It would fail in the same way.
    Never,
}

/// The one table from what went wrong to whether to try again.
#[must_use]
pub const fn retry_policy(kind: Kind) -> Retry {
    match kind {
        Kind::Unavailable => Retry::Soon,
        Kind::Throttled => Retry::AfterBackoff,
        Kind::Unknown => Retry::AfterReadingBack,
        Kind::Fenced | Kind::Denied | Kind::Invalid | Kind::Corrupt => Retry::Never,
    }
}

/// What a backend answers when it has no result.
///
/// The message names the thing and, where it can, what to do. The cause is kept as `source`, and
/// [`Error::chain`] shows both.
#[derive(thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A result of a backend.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a kind, with a message that names the thing and what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// [`Kind::Invalid`] with a message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// [`Kind::Unavailable`] with a message.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// Keeps what caused this.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says what was being done: `put my-table: throttled`. The kind stays.
    #[must_use]
    pub fn during(self, what: impl Into<String>) -> Self {
        Self { kind: self.kind, message: what.into(), source: Some(Box::new(self)) }
    }

    /// What the reader should do.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// This message and those of all causes, joined by colons; for one line of a log or a terminal.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let next = error.to_string();
            // Some libraries repeat their cause in their own text.
            if !text.ends_with(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.chain())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_reads_from_the_outside_in_and_keeps_the_kind() {
        let error = Error::new(Kind::Throttled, "too many writes").during("put table t");
        assert_eq!(error.kind(), Kind::Throttled);
        assert_eq!(error.chain(), "put table t: too many writes");
        assert_eq!(error.to_string(), "put table t");
    }

    #[test]
    fn only_what_did_not_land_is_tried_again_blindly() {
        assert_eq!(retry_policy(Kind::Unavailable), Retry::Soon);
        assert_eq!(retry_policy(Kind::Throttled), Retry::AfterBackoff);
        assert_eq!(retry_policy(Kind::Unknown), Retry::AfterReadingBack);
        for kind in [Kind::Fenced, Kind::Denied, Kind::Invalid, Kind::Corrupt] {
            assert_eq!(retry_policy(kind), Retry::Never);
        }
    }
}
