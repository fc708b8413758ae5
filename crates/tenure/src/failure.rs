//! How a command ends: the one place that knows exit statuses and the line on standard error.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | it failed |
//! | 2 | the command line, the configuration or the input is wrong |
//! | 3 | a condition did not hold, or there is no such row |
//! | 4 | it may have been carried out: read back before trying again |

use std::fmt;
use std::process::ExitCode;

use tenure_backend::{Error, Kind};

use crate::output::Closed;

/// The exit status of a failure.
pub(crate) const FAILED: u8 = 1;
/// The exit status of a mistake on the command line, in the configuration or in the input.
pub(crate) const MISUSED: u8 = 2;
/// The exit status of a refused write, and of a row that is not there.
pub(crate) const REFUSED: u8 = 3;
/// The exit status of a call that may have been carried out.
pub(crate) const UNKNOWN: u8 = 4;

/// The caller's mistake, told with what to do about it.
#[derive(Debug)]
struct Misuse(String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// The caller's mistake: exit status 2.
pub(crate) fn misuse(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Misuse(message.into()))
}

/// What a backend says of an address or of input: `Invalid` is the caller's mistake.
pub(crate) fn misuse_if_invalid(error: Error) -> anyhow::Error {
    match error.kind() {
        Kind::Invalid => misuse(error.chain()),
        _ => error.into(),
    }
}

/// Prints the error's line and chooses the exit status.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever read our output has seen enough.
    if error.downcast_ref::<Closed>().is_some() {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", line(error));
    ExitCode::from(status(error))
}

fn status(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Misuse>().is_some() {
        return MISUSED;
    }
    match kind(error) {
        Some(Kind::Unknown) => UNKNOWN,
        _ => FAILED,
    }
}

fn kind(error: &anyhow::Error) -> Option<Kind> {
    error.chain().find_map(|cause| cause.downcast_ref::<Error>()).map(Error::kind)
}

/// The causes from the outside in, and advice where the kind has some that the text lacks.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let next = cause.to_string();
        // Some libraries repeat their cause in their own text.
        if text.ends_with(&next) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&next);
    }
    if let Some(advice) = kind(error).and_then(advice) {
        text.push_str(&format!(" ({advice})"));
    }
    // One line, whatever a library puts in its messages.
    text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// What to do about a kind of failure, for a person at a terminal.
pub(crate) const fn advice(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Fenced => Some("somebody newer has taken over: stop this work"),
        Kind::Unknown => Some("it may have been carried out: read back before trying again"),
        Kind::Throttled => Some("nothing was changed: try again later, or ask for less"),
        Kind::Unavailable => Some("nothing was changed: try again, perhaps with a longer --timeout"),
        Kind::Denied => Some("nothing was changed: check the credentials and what they allow"),
        Kind::Corrupt => Some("nothing was written over it"),
        // The message says it.
        Kind::Invalid => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_from_the_outside_in_and_ends_with_advice() {
        let inner = Error::new(Kind::Unknown, "no answer in time").because("connection\nreset");
        let error = anyhow::Error::new(inner).context("put table `t`");
        assert_eq!(
            line(&error),
            "put table `t`: no answer in time: connection reset \
             (it may have been carried out: read back before trying again)"
        );
        assert_eq!(status(&error), UNKNOWN);
    }

    #[test]
    fn mistakes_are_told_apart_from_failures() {
        assert_eq!(status(&misuse_if_invalid(Error::invalid("no such scheme"))), MISUSED);
        assert_eq!(status(&misuse_if_invalid(Error::unavailable("down"))), FAILED);
        assert_eq!(status(&misuse("x").context("read the row")), MISUSED);
        assert_eq!(status(&anyhow::anyhow!("x")), FAILED);
    }
}
