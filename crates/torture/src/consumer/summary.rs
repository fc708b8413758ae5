//! What came of it.

use std::io::{self, Write as _};

use anyhow::{Context, Result};
use serde::Serialize;

use super::ledger::Verdict;

/// The last line.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) torture: &'static str,
    pub(crate) backend: String,
    pub(crate) seed: u64,
    pub(crate) ok: bool,
    pub(crate) kills: usize,
    pub(crate) pauses: usize,
    pub(crate) joins: usize,
    pub(crate) leaves: usize,
    pub(crate) reshards: usize,
    pub(crate) written: usize,
    pub(crate) delivered: usize,
    pub(crate) lost: usize,
    pub(crate) out_of_order: usize,
    pub(crate) duplicates_delivered: usize,
    pub(crate) duplicates_beyond_checkpoint: usize,
    pub(crate) duplicates_after_dedup: usize,
    pub(crate) planned_moves: usize,
    pub(crate) planned_move_duplicates: usize,
    pub(crate) takeover_ms_p50: u64,
    pub(crate) takeover_ms_p99: u64,
    // Beyond the contract.
    pub(crate) lost_after_dedup: usize,
    pub(crate) checkpoints_gone_back: usize,
    pub(crate) seconds: u64,
    #[serde(skip)]
    pub(crate) examples: Vec<String>,
}

impl Summary {
    pub(crate) fn take(&mut self, verdict: Verdict) {
        // A run without one of the faults has proven nothing of it.
        let everything_happened = self.pauses > 0 && self.joins > 0 && self.leaves > 0 && self.reshards > 0;
        self.ok = verdict.holds() && everything_happened && verdict.planned_moves > 0;
        self.written = verdict.written;
        self.delivered = verdict.delivered;
        self.lost = verdict.lost;
        self.out_of_order = verdict.out_of_order;
        self.duplicates_delivered = verdict.duplicates_delivered;
        self.duplicates_beyond_checkpoint = verdict.duplicates_beyond_checkpoint;
        self.duplicates_after_dedup = verdict.duplicates_after_dedup;
        self.planned_moves = verdict.planned_moves;
        self.planned_move_duplicates = verdict.planned_move_duplicates;
        self.lost_after_dedup = verdict.lost_after_dedup;
        self.checkpoints_gone_back = verdict.checkpoints_gone_back;
        self.examples = verdict.examples;
    }

    pub(crate) fn tell(&self, json: bool) -> Result<()> {
        for example in &self.examples {
            eprintln!("  {example}");
        }
        eprintln!(
            "torture consumer: {} after {} kills, {} pauses, {} joins, {} leaves, {} reshards: {} written, {} delivered, \
             {} lost, {} out of order, {} came again ({} beyond a checkpoint), {} twice after dedup, {} planned moves \
             with {} copies; takeover p50 {} ms, p99 {} ms; seed {}, {} s",
            if self.ok { "held" } else { "BROKEN" },
            self.kills,
            self.pauses,
            self.joins,
            self.leaves,
            self.reshards,
            self.written,
            self.delivered,
            self.lost,
            self.out_of_order,
            self.duplicates_delivered,
            self.duplicates_beyond_checkpoint,
            self.duplicates_after_dedup,
            self.planned_moves,
            self.planned_move_duplicates,
            self.takeover_ms_p50,
            self.takeover_ms_p99,
            self.seed,
            self.seconds,
        );
        if json {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, self).context("write the summary")?;
            writeln!(out).context("write the summary")?;
        }
        Ok(())
    }
}
