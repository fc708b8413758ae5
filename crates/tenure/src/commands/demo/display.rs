//! What the demo shows while it runs: the story line by line, and a live view of every role.
//!
//! On a terminal the live view is a block that is redrawn; elsewhere it is a line each second. With
//! `--json`, standard output has JSON lines only and the text goes to standard error.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tenure_clock::{Clock, Monotonic, SystemClock};

use super::crew::Name;
use super::summary::Summary;

/// Lines of the block must not wrap, or it could not be redrawn.
const WIDTH_MAX: usize = 79;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// All processes at one moment.
pub(super) struct Live {
    pub members: Vec<LiveMember>,
    pub open_shards: u32,
    pub committed: u64,
    pub delivered: u64,
}

/// One of them.
pub(super) struct LiveMember {
    pub who: Name,
    /// What it has done so far, if that is counted.
    pub changes: Option<u64>,
    /// In a few words.
    pub doing: String,
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
    pub(super) fn new(json: bool) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
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
        let members = self.members.iter().map(|member| {
            let changes = member.changes.map_or_else(String::new, |changes| format!("{changes} changes"));
            format!("  {:<12} {changes:>15}   {}", member.who.to_string(), member.doing)
        });
        let ledger = format!(
            "  {:<12} {:>7} committed, {} carried out, {} open shards",
            "ledger", self.committed, self.delivered, self.open_shards
        );
        members.chain([ledger]).map(|line| line.chars().take(WIDTH_MAX).collect()).collect()
    }

    /// All on one line.
    fn line(&self) -> String {
        let members: Vec<_> =
            self.members.iter().map(|member| format!("{} {}", member.who, member.doing)).collect();
        format!("{} | {} of {} carried out", members.join(", "), self.delivered, self.committed)
    }

    fn to_json(&self) -> Value {
        let members = self.members.iter().map(|member| {
            (member.who.to_string(), json!({"changes": member.changes, "doing": member.doing}))
        });
        json!({
            "event": "progress",
            "committed": self.committed,
            "delivered": self.delivered,
            "open_shards": self.open_shards,
            "processes": Value::Object(members.collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Live {
        let member = |who, changes, doing: &str| LiveMember { who, changes, doing: doing.to_owned() };
        Live {
            members: vec![
                member(Name::publisher(1), Some(160), "leads"),
                member(Name::publisher(2), None, "stands by"),
                member(Name::worker(1), Some(120), "reads 0+3"),
            ],
            open_shards: 4,
            committed: 160,
            delivered: 120,
        }
    }

    #[test]
    fn every_process_has_its_line() {
        assert_eq!(
            live().block(),
            [
                "  publisher-1      160 changes   leads",
                "  publisher-2                    stands by",
                "  worker-1         120 changes   reads 0+3",
                "  ledger           160 committed, 120 carried out, 4 open shards",
            ]
        );
    }

    #[test]
    fn without_a_terminal_one_line_says_it() {
        let expected =
            "publisher-1 leads, publisher-2 stands by, worker-1 reads 0+3 | 120 of 160 carried out";
        assert_eq!(live().line(), expected);
    }
}
