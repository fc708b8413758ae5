//! Standard output: JSON lines and nothing else with `--json`, text for people without.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, BufWriter, ErrorKind, Stdout, Write};

use serde::Serialize;

/// Nobody reads our output any more, as after `| head`. A command that only shows things ends quietly,
/// with success.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for Closed {}

/// Where answers go. Lines are kept back until [`Output::flush`], which every command calls when it
/// is about to wait or to end.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    lines: RefCell<BufWriter<Stdout>>,
}

impl Output {
    /// Prints JSON lines, or text.
    pub(crate) fn new(json: bool) -> Self {
        Self { json, lines: RefCell::new(BufWriter::new(io::stdout())) }
    }

    /// Whether JSON lines were asked for.
    pub(crate) const fn is_json(&self) -> bool {
        self.json
    }

    /// One JSON line or one text, whichever was asked for.
    pub(crate) fn say<J: Serialize>(
        &self,
        json: impl FnOnce() -> J,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        if self.json { self.json_line(&json()) } else { self.line(&text()) }
    }

    /// One JSON line.
    pub(crate) fn json_line(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string(value)?)
    }

    /// One line as it is.
    pub(crate) fn line(&self, text: &str) -> anyhow::Result<()> {
        told(writeln!(self.lines.borrow_mut(), "{text}"))
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> anyhow::Result<()> {
        told(self.lines.borrow_mut().write_all(bytes))
    }

    /// Lets the reader see what was printed so far.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        told(self.lines.borrow_mut().flush())
    }
}

fn told(result: io::Result<()>) -> anyhow::Result<()> {
    result.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => anyhow::Error::new(Closed),
        _ => anyhow::Error::new(error).context("write to standard output"),
    })
}

/// Text that may stand on one line of a terminal: control characters are escaped, so that stored
/// content cannot move the cursor or forge lines.
pub(crate) fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// `1 shard`, `2 shards`.
pub(crate) fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Lines of columns, each as wide as its widest cell.
pub(crate) fn aligned<const N: usize>(lines: &[[String; N]]) -> Vec<String> {
    let wide: Vec<_> =
        (0..N).map(|cell| lines.iter().map(|line| line[cell].chars().count()).max().unwrap_or(0)).collect();
    let line = |cells: &[String; N]| {
        let padded = cells.iter().zip(&wide).map(|(cell, &wide)| format!("{cell:wide$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|count: u64| counted(count, "shard")), ["0 shards", "1 shard", "2 shards"]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(one_line("a\tb\u{1b}[2J\nü"), "a\\tb\\u{1b}[2J\\nü");
    }
}
