//! What the demo shows while it runs: the story line by line, and a live view of every role.
//!
//! On a terminal the live view is a block that is redrawn; elsewhere it is a line each second. With
//! `--json`, standard output has JSON lines only and the text goes to standard error.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tenure_clock::{Clock, Monotonic};

use super::crew::Name;
use super::summary::Summary;

/// Lines of the block must not wrap, or it could not be redrawn.
const WIDTH_MAX: usize = 79;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// All processes at one moment.
pub(super) struct Live {
    pub writers: Vec<LiveWriter>,
    pub readers: Vec<LiveReader>,
    pub open_shards: u32,
    pub acknowledged: u64,
    pub delivered: u64,
}

pub(super) struct LiveWriter {
    pub who: Name,
    pub records: u64,
    pub state: &'static str,
}

pub(super) struct LiveReader {
    pub who: Name,
    pub records: u64,
    pub shards: Vec<String>,
    pub paused: bool,
}

/// Where text and JSON lines go.
pub(super) struct Display {
    json: bool,
    terminal: bool,
    clock: Arc<dyn Clock>,
    began: Monotonic,
    /// The live block as it stands on the terminal.
    block: Vec<String>,
    next_live: Monotonic,
    next_line: Monotonic,
}

impl Display {
    pub(super) fn new(json: bool, clock: Arc<dyn Clock>) -> Self {
        let terminal = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        let now = clock.monotonic();
        Self { json, terminal, clock, began: now, block: Vec::new(), next_live: now, next_line: now }
    }

    /// A line of text.
    pub(super) fn say(&mut self, text: &str) -> Result<()> {
        let line = format!("{:5.1} s  {text}\n", self.elapsed().as_secs_f64());
        let redrawn = self.block.iter().map(|line| format!("{line}\n")).collect::<String>();
        self.text(&format!("{}{line}{redrawn}", erasing(self.block.len())))
    }

    /// Something happened: a line of text, and a JSON line.
    pub(super) fn event(&mut self, text: &str, event: Value) -> Result<()> {
        self.say(text)?;
        self.json_line(event)
    }

    /// Shows the processes, if it is time again.
    pub(super) fn live(&mut self, live: impl FnOnce() -> Live) -> Result<()> {
        let now = self.clock.monotonic();
        if now < self.next_live {
            return Ok(());
        }
        let live = live();
        if self.terminal {
            let block = live.block();
            let lines: String = block.iter().map(|line| format!("{line}\n")).collect();
            self.text(&format!("{}{lines}", erasing(self.block.len())))?;
            self.block = block;
        }
        self.next_live = now + REDRAW_INTERVAL;
        if now >= self.next_line {
            self.next_line = now + LINE_INTERVAL;
            if !self.terminal {
                self.say(&live.line())?;
            }
            self.json_line(live.to_json())?;
        }
        Ok(())
    }

    /// The end of the story.
    pub(super) fn ledger(&mut self, summary: &Summary) -> Result<()> {
        let erased = erasing(self.block.len());
        self.block.clear();
        self.text(&format!("{erased}\n{}\n", summary.to_text()))?;
        self.json_line(summary.to_json())
    }

    fn elapsed(&self) -> Duration {
        self.clock.monotonic().since(self.began)
    }

    fn json_line(&self, mut line: Value) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        line["at_ms"] = json!(u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).context("write to standard output")
    }

    fn text(&self, text: &str) -> Result<()> {
        if self.json {
            let mut out = std::io::stderr().lock();
            out.write_all(text.as_bytes()).context("write to standard error")
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("write to standard output")
        }
    }
}

/// Moves up to the first line of the block and clears from there on.
fn erasing(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\x1b[J") }
}

impl Live {
    /// A line per process.
    fn block(&self) -> Vec<String> {
        let writers = self.writers.iter().map(|writer| {
            format!(
                "  {:<9} {:>7} records acknowledged   {}",
                writer.who.to_string(),
                writer.records,
                writer.state
            )
        });
        let readers = self.readers.iter().map(|reader| {
            format!(
                "  {:<9} {:>7} records delivered      {}",
                reader.who.to_string(),
                reader.records,
                reader.doing()
            )
        });
        let ledger = format!(
            "  ledger    {:>7} acknowledged, {} delivered, {} open shards",
            self.acknowledged, self.delivered, self.open_shards
        );
        let lines = writers.chain(readers).chain([ledger]);
        lines.map(|line| line.chars().take(WIDTH_MAX).collect()).collect()
    }

    /// All on one line.
    fn line(&self) -> String {
        let writers: Vec<_> =
            self.writers.iter().map(|writer| format!("{} {}", writer.who.number, writer.records)).collect();
        let readers: Vec<_> =
            self.readers.iter().map(|reader| format!("{} {}", reader.who.number, reader.doing())).collect();
        format!(
            "writers: {} | readers: {} | {} of {} delivered",
            writers.join(", "),
            readers.join(", "),
            self.delivered,
            self.acknowledged
        )
    }

    fn to_json(&self) -> Value {
        let readers = self.readers.iter().map(|reader| {
            let state = json!({"records": reader.records, "shards": reader.shards, "paused": reader.paused});
            (reader.who.to_string(), state)
        });
        let writers = self.writers.iter().map(|writer| {
            (writer.who.to_string(), json!({"records": writer.records, "state": writer.state}))
        });
        json!({
            "event": "progress",
            "committed": self.acknowledged,
            "delivered": self.delivered,
            "open_shards": self.open_shards,
            "workers": Value::Object(writers.chain(readers).collect()),
        })
    }
}

impl LiveReader {
    fn doing(&self) -> String {
        match (self.paused, self.shards.is_empty()) {
            (true, _) => "paused".to_owned(),
            (false, true) => "no shard".to_owned(),
            (false, false) => format!("reads {}", self.shards.join("+")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Live {
        let reader = |number, shards: &[&str], paused| LiveReader {
            who: Name::reader(number),
            records: 100,
            shards: shards.iter().map(|&shard| shard.to_owned()).collect(),
            paused,
        };
        Live {
            writers: vec![LiveWriter { who: Name::writer(1), records: 160, state: "writing" }],
            readers: vec![reader(1, &["0", "3"], false), reader(2, &["1"], true), reader(3, &[], false)],
            open_shards: 4,
            acknowledged: 160,
            delivered: 120,
        }
    }

    #[test]
    fn every_process_has_its_line() {
        assert_eq!(
            live().block(),
            [
                "  writer-1      160 records acknowledged   writing",
                "  reader-1      100 records delivered      reads 0+3",
                "  reader-2      100 records delivered      paused",
                "  reader-3      100 records delivered      no shard",
                "  ledger        160 acknowledged, 120 delivered, 4 open shards",
            ]
        );
    }

    #[test]
    fn without_a_terminal_one_line_says_it() {
        let expected = "writers: 1 160 | readers: 1 reads 0+3, 2 paused, 3 no shard | 120 of 160 delivered";
        assert_eq!(live().line(), expected);
    }
}
