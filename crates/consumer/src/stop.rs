//! Why a shard is not read on, until somebody has looked.

use std::fmt;

use tenure_clock::WallTime;
use tenure_stream::SequenceNumber;

/// Why a shard stopped. Nothing was skipped: the checkpoint is before what stopped it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// An event of a source is missing.
    Gap {
        /// The event after it, and the one that should have come before.
        what: String,
    },
    /// The stream trimmed records before they were read.
    Trimmed {
        /// Where reading stood.
        from: SequenceNumber,
        /// The first number that may still be there.
        to: SequenceNumber,
        /// When the last record that was read had arrived, if any was.
        since: Option<WallTime>,
    },
    /// The checkpoint is not of this stream, or the shard is unknown: the stream was created anew.
    Recreated(String),
    /// A record cannot be taken apart, or says of itself what cannot be understood.
    Damaged(String),
    /// An event that is kept beside the stream cannot be fetched, or is not what it should be.
    ClaimCheck(String),
    /// The processor failed again and again.
    Processor(String),
    /// A record could not be kept as a dead letter.
    DeadLetter(String),
    /// The settings do not allow to begin.
    Settings(String),
}

impl Stop {
    /// One word, for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Gap { .. } => "gap",
            Self::Trimmed { .. } => "trimmed",
            Self::Recreated(_) => "recreated",
            Self::Damaged(_) => "damaged",
            Self::ClaimCheck(_) => "claim_check",
            Self::Processor(_) => "processor",
            Self::DeadLetter(_) => "dead_letter",
            Self::Settings(_) => "settings",
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap { what } => {
                write!(
                    f,
                    "{what}; look for it in the stream and in the quarantine, or go on without it with `accept_loss`"
                )
            }
            Self::Trimmed { from, to, since } => {
                match from.as_u64() {
                    Some(0) => write!(f, "records before {to} may have been trimmed before they were read")?,
                    Some(_) => write!(f, "records from {from} to {to} were trimmed before they were read")?,
                    // Such a stream does not say what it trimmed.
                    None => {
                        write!(
                            f,
                            "records between {from} and {to} may have been trimmed before they were read"
                        )?;
                    }
                }
                if let (Some(from), Some(to)) = (from.as_u64().filter(|from| *from > 0), to.as_u64()) {
                    write!(f, " (at most {})", to.saturating_sub(from))?;
                }
                if let Some(since) = since {
                    write!(f, "; all that arrived before {since} was read")?;
                }
                f.write_str(
                    "; go on without them with `accept_loss`, and then lengthen the stream's retention",
                )
            }
            Self::Recreated(why) => {
                write!(
                    f,
                    "the checkpoint does not belong to this stream: {why}; mend the stream's name, or begin again under another application name"
                )
            }
            Self::Damaged(why) | Self::Processor(why) | Self::Settings(why) => f.write_str(why),
            Self::ClaimCheck(why) => {
                write!(
                    f,
                    "an event that is kept beside the stream is not there: {why}; or go on with its pointer with `accept_loss`"
                )
            }
            Self::DeadLetter(why) => write!(f, "a record could not be kept as a dead letter: {why}"),
        }
    }
}

impl std::error::Error for Stop {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_in_numbers_and_in_time() {
        let since = Some(WallTime::from_millis(1_763_553_900_000));
        let stop = Stop::Trimmed { from: 10.into(), to: 25.into(), since };
        let text = stop.to_string();
        assert!(text.starts_with("records from 10 to 25 were trimmed"), "{text}");
        assert!(text.contains("at most 15") && text.contains("2025-11-19T12:05:00"), "{text}");
        assert!(text.contains("accept_loss"), "{text}");
    }
}
