//! What came of it.

use std::io::{self, Write as _};

use anyhow::{Context, Result};
use serde::Serialize;

use super::ledger::Verdict;

/// The last line.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) torture: &'static str,
    pub(crate) seed: u64,
    pub(crate) ok: bool,
    /// Of a process that was leading with records in flight.
    pub(crate) kills: usize,
    pub(crate) committed: usize,
    /// Distinct, in the stream.
    pub(crate) published: usize,
    /// Of those, as a pointer to what was read from the quarantine.
    pub(crate) quarantined: usize,
    pub(crate) lost: usize,
    pub(crate) duplicates_published: usize,
    pub(crate) duplicates_without_identity: usize,
    pub(crate) out_of_order: usize,
    pub(crate) pg_crashes: usize,
    pub(crate) pauses: usize,
    pub(crate) throttles: u64,
    pub(crate) lost_replies: u64,
    pub(crate) reshards: usize,
    pub(crate) handover_duplicates: usize,
    pub(crate) failover_ms_p50: u64,
    pub(crate) failover_ms_p99: u64,
    // Beyond the contract.
    pub(crate) kills_in_spill: usize,
    pub(crate) kills_in_handover: usize,
    /// Right before a table got other columns.
    pub(crate) kills_in_alter: usize,
    /// How often a table got other columns.
    pub(crate) alters: usize,
    /// `advisory` or `store`.
    pub(crate) leadership: &'static str,
    pub(crate) standby_kills: usize,
    /// Planned ones, all in good order.
    pub(crate) handovers: usize,
    /// Planned ones whose drain did not finish: these may repeat.
    pub(crate) handovers_cut_short: usize,
    /// Of the handovers, those of a leader that had published all that leaders before it had.
    pub(crate) handovers_caught_up: usize,
    /// Published again after one of the others, because a leader before it was killed further ahead.
    pub(crate) repeated_for_kills: usize,
    /// Events that no ledger row explains.
    pub(crate) uncommitted: usize,
    /// One identity for two changes.
    pub(crate) identity_conflicts: usize,
    /// Behind a reader that goes by floors and marks.
    pub(crate) gaps: usize,
    pub(crate) duplicates_after_dedup: usize,
    pub(crate) lost_after_dedup: usize,
    /// Processes that a fault of the stream kept from starting; others took their place.
    pub(crate) failed_starts: usize,
    /// Processes that ended by themselves.
    pub(crate) unexpected_exits: usize,
    pub(crate) seconds: u64,
    #[serde(skip)]
    pub(crate) examples: Vec<String>,
}

impl Summary {
    pub(crate) fn take(&mut self, verdict: Verdict) {
        self.ok = verdict.holds() && self.everything_happened();
        self.committed = verdict.committed;
        self.published = verdict.published;
        self.quarantined = verdict.quarantined;
        self.lost = verdict.lost;
        self.duplicates_published = verdict.duplicates_published;
        self.duplicates_without_identity = verdict.duplicates_without_identity;
        self.out_of_order = verdict.out_of_order;
        self.handover_duplicates = verdict.handover_duplicates;
        self.repeated_for_kills = verdict.repeated_for_kills;
        self.uncommitted = verdict.uncommitted;
        self.identity_conflicts = verdict.conflicts;
        self.gaps = verdict.gaps;
        self.duplicates_after_dedup = verdict.duplicates_after_dedup;
        self.lost_after_dedup = verdict.lost_after_dedup;
        self.examples = verdict.examples;
    }

    /// A run without one of the faults has proven nothing of it.
    fn everything_happened(&self) -> bool {
        self.unexpected_exits == 0
            && self.pg_crashes > 0
            && self.pauses > 0
            && self.handovers_caught_up > 0
            && self.throttles > 0
            && self.lost_replies > 0
            && self.reshards > 0
            && self.alters > 0
    }

    pub(crate) const fn holds(&self) -> bool {
        self.ok
    }

    pub(crate) fn tell(&self, json: bool) -> Result<()> {
        for example in &self.examples {
            eprintln!("  {example}");
        }
        eprintln!(
            "torture cdc: {} after {} kills ({} in spill, {} in handover), {} Postgres crashes, {} pauses, {} reshards, {} alters, \
             {} planned handovers, {} throttles, {} lost replies: {} committed, {} published ({} in quarantine), \
             {} lost, {} copies, {} without identity, {} out of order, {} after handovers; failover p50 {} ms, p99 {} ms; \
             seed {}, {} s",
            if self.ok { "held" } else { "BROKEN" },
            self.kills,
            self.kills_in_spill,
            self.kills_in_handover,
            self.pg_crashes,
            self.pauses,
            self.reshards,
            self.alters,
            self.handovers,
            self.throttles,
            self.lost_replies,
            self.committed,
            self.published,
            self.quarantined,
            self.lost,
            self.duplicates_published,
            self.duplicates_without_identity,
            self.out_of_order,
            self.handover_duplicates,
            self.failover_ms_p50,
            self.failover_ms_p99,
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
