//! What the processes of the demo tell each other: reports by standard output, orders by standard input.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// A worker's line to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// The files are open.
    Ready,
    /// A racer has raced for the row of this round, and the row says who won.
    Raced { round: u32, won: bool, winner: String },
    /// The record with this number is durable for every key of the writer.
    Acknowledged { number: u64 },
    /// The shard is mine now, taken from whom.
    Took { shard: String, from: Option<String> },
    /// A batch of the shard had its effect, without those that had it before.
    Delivered { delivered: u64, dropped: u64 },
    /// A write for the shard was refused: it is not mine any more.
    Refused { shard: String, owner: Option<String> },
    /// The shard was given back, for a reader with fewer.
    Released { shard: String },
    /// The shard was read to its end.
    Ended { shard: String },
}

/// Tells the parent. Fails if it is gone.
pub(super) fn report(report: &Report) -> Result<()> {
    let line = serde_json::to_string(report).context("render a report")?;
    writeln!(std::io::stdout().lock(), "{line}").context("report to the parent process")
}

/// Orders that may wait; a parent gives one at a time.
const ORDERS_MAX: usize = 16;

/// The lines of standard input. The channel closes when the parent closes its end.
///
/// Read by a thread of its own, which does not keep the process alive as a task of the runtime would.
pub(super) fn orders() -> mpsc::Receiver<String> {
    let (sender, orders) = mpsc::channel(ORDERS_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_no_report() {
        let line = serde_json::to_string(&Report::Acknowledged { number: 120 }).unwrap();
        assert_eq!(line, r#"{"acknowledged":{"number":120}}"#);
        // A killed process leaves the beginning of a line: no beginning may pass for a whole.
        for end in 0..line.len() {
            assert!(serde_json::from_str::<Report>(&line[..end]).is_err(), "{}", &line[..end]);
        }
    }
}
