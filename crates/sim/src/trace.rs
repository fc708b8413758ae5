//! What happened, as a number to compare and as lines to read.
//!
//! The number is always kept: it costs little, and two runs that differ anywhere differ in it. Lines are
//! written only when somebody will read them.

use std::fmt::{self, Write};

/// The record of one run.
#[derive(Debug, Clone)]
pub struct Trace {
    hash: u64,
    lines: Option<Vec<Line>>,
}

/// One line of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When, in nanoseconds of true time.
    pub at: u64,
    /// Whether it belongs to the story, or only to the full record.
    pub telling: bool,
    /// What.
    pub text: String,
}

impl Trace {
    /// An empty record, with lines or without.
    #[must_use]
    pub fn new(with_lines: bool) -> Self {
        Self { hash: 0, lines: with_lines.then(Vec::new) }
    }

    /// Takes a number into the hash.
    #[inline]
    pub const fn mix(&mut self, bits: u64) {
        self.hash = (self.hash ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// Whether lines are kept.
    #[must_use]
    pub const fn has_lines(&self) -> bool {
        self.lines.is_some()
    }

    /// Keeps a line of the full record.
    pub fn note(&mut self, at: u64, text: fmt::Arguments<'_>) {
        self.line(at, false, text);
    }

    /// Keeps a line of the story.
    pub fn tell(&mut self, at: u64, text: fmt::Arguments<'_>) {
        self.line(at, true, text);
    }

    fn line(&mut self, at: u64, telling: bool, text: fmt::Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            lines.push(Line { at, telling, text: text.to_string() });
        }
    }

    /// The number and the lines.
    #[must_use]
    pub fn finish(self) -> (u64, Vec<Line>) {
        (self.hash, self.lines.unwrap_or_default())
    }
}

/// A moment as seconds and milliseconds.
#[must_use]
pub fn seconds(at: u64) -> String {
    let mut text = String::new();
    let _ = write!(text, "{}.{:03}s", at / 1_000_000_000, at / 1_000_000 % 1000);
    text
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10}  {}", seconds(self.at), self.text)
    }
}
