//! What the processes of the demo say, by standard output.

use std::io::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A line of a process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    /// A worker's.
    Worker(Report),
    /// A publisher's: what `tenure cdc run --json` tells. It tells more than this.
    Publisher { role: String, events: u64 },
}

/// A worker's line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// A batch was carried out and committed: so many changes.
    Applied { changes: u64 },
    /// How many leases it may hold has changed.
    Cap { leases: u64 },
}

/// Tells the parent. Fails if it is gone.
pub(super) fn report(report: &Report) -> Result<()> {
    let line = serde_json::to_string(report).context("render a report")?;
    writeln!(std::io::stdout().lock(), "{line}").context("report to the parent process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_lines_are_read() {
        let line: Line = serde_json::from_str(r#"{"applied":{"changes":120}}"#).unwrap();
        assert_eq!(line, Line::Worker(Report::Applied { changes: 120 }));
        let line = r#"{"at":"2026-11-16T09:00:00Z","event":"state","role":"leader","epoch":2,"events":7,"alarm":null}"#;
        let line: Line = serde_json::from_str(line).unwrap();
        assert_eq!(line, Line::Publisher { role: "leader".to_owned(), events: 7 });
    }

    #[test]
    fn a_torn_line_is_no_report() {
        let line = serde_json::to_string(&Report::Applied { changes: 120 }).unwrap();
        // A killed process leaves the beginning of a line: no beginning may pass for a whole.
        for end in 0..line.len() {
            assert!(serde_json::from_str::<Line>(&line[..end]).is_err(), "{}", &line[..end]);
        }
    }
}
