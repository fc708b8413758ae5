//! What the demo has shown, in numbers and in words.

use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::Findings;

/// What happened to the pipeline.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub findings: Findings,
    /// How many rows there ever were.
    pub rows: u64,
    pub leader_kills: u64,
    /// The longest time from a leader's end to the next one's beginning.
    pub failover_max: Duration,
    /// Pauses of a worker during which others took its shards.
    pub worker_pauses: u64,
    /// Shards that others took from a worker that was paused.
    pub takeovers: u64,
    /// The longest time one of them waited.
    pub takeover_max: Duration,
    pub worker_joins: u64,
    pub reshards: u64,
    /// The numbers of open shards that the stream went through.
    pub shard_counts: Vec<u32>,
    /// How long it took after the last write until every change had its effect.
    pub healing: Duration,
}

impl Outcome {
    /// With the promises that go with a workload of this length.
    pub(super) const fn judged(self, every_fault_due: bool) -> Summary {
        Summary { outcome: self, every_fault_due }
    }
}

/// All that is told at the end.
#[derive(Debug, Clone)]
pub(super) struct Summary {
    outcome: Outcome,
    /// Whether the workload was long enough for every kind of fault.
    every_fault_due: bool,
}

impl Summary {
    /// The promises that did not hold, in words.
    pub(super) fn broken_promises(&self) -> Vec<String> {
        let Outcome { findings, .. } = &self.outcome;
        let mut broken = Vec::new();
        let mut none = |count: u64, what: &str| {
            if count > 0 {
                broken.push(format!("{count} {what}"));
            }
        };
        none(findings.lost, "committed changes had no effect");
        none(findings.duplicates, "changes had their effect twice");
        none(findings.out_of_order, "changes had their effect out of order");
        let mut some = |count: u64, what: &str| {
            if count == 0 {
                broken.push(format!("no {what}"));
            }
        };
        some(findings.committed, "change was committed");
        if self.every_fault_due {
            some(self.outcome.leader_kills, "leader was killed");
            some(self.outcome.worker_pauses, "worker was paused and taken over from");
            some(self.outcome.worker_joins, "worker joined");
            some(self.outcome.reshards, "reshard happened");
        }
        broken
    }

    /// The last line with `--json`.
    pub(super) fn to_json(&self) -> Value {
        let Outcome { findings, .. } = &self.outcome;
        json!({
            "event": "summary",
            "ok": self.broken_promises().is_empty(),
            "committed": findings.committed,
            "delivered": findings.delivered,
            "lost": findings.lost,
            "duplicates": findings.duplicates,
            "out_of_order": findings.out_of_order,
            "leader_kills": self.outcome.leader_kills,
            "worker_pauses": self.outcome.worker_pauses,
            "worker_joins": self.outcome.worker_joins,
            "reshards": self.outcome.reshards,
            "failover_ms_max": millis(self.outcome.failover_max),
            "takeovers": self.outcome.takeovers,
            "takeover_ms_max": millis(self.outcome.takeover_max),
            "healing_ms": millis(self.outcome.healing),
        })
    }

    /// The ledger in words.
    pub(super) fn to_text(&self) -> String {
        let Outcome { findings, .. } = &self.outcome;
        let counts: Vec<_> = self.outcome.shard_counts.iter().map(u32::to_string).collect();
        let mut lines = vec![
            "The ledger".to_owned(),
            format!(
                "  committed     {} changes of {} rows in Postgres",
                findings.committed, self.outcome.rows
            ),
            format!(
                "  delivered     {} had their effect, the last of them {:.1} s after the writers ended",
                findings.delivered,
                self.outcome.healing.as_secs_f64()
            ),
            format!("  lost          {}", findings.lost),
            format!("  duplicates    {}", findings.duplicates),
            format!("  out of order  {}", findings.out_of_order),
            format!(
                "  leader kills  {}; the standby led after {} ms at most",
                self.outcome.leader_kills,
                millis(self.outcome.failover_max)
            ),
            format!(
                "  pauses        {} of a worker; {} shards had a new one after {} ms at most",
                self.outcome.worker_pauses,
                self.outcome.takeovers,
                millis(self.outcome.takeover_max)
            ),
            format!("  joins         {}", self.outcome.worker_joins),
            format!("  reshards      {} ({} shards)", self.outcome.reshards, counts.join(" to ")),
        ];
        let broken = self.broken_promises();
        lines.push(match broken.is_empty() {
            true => "All that was promised held.".to_owned(),
            false => format!("What was promised did NOT hold: {}.", broken.join("; ")),
        });
        lines.join("\n")
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Outcome {
        let findings = Findings { committed: 10, delivered: 10, ..Findings::default() };
        Outcome {
            findings,
            leader_kills: 1,
            worker_pauses: 1,
            worker_joins: 1,
            reshards: 1,
            ..Outcome::default()
        }
    }

    #[test]
    fn a_good_run_breaks_no_promise_and_has_the_contracts_fields() {
        let summary = good().judged(true);
        assert_eq!(summary.broken_promises(), Vec::<String>::new());
        let json = summary.to_json();
        for field in [
            "committed",
            "delivered",
            "lost",
            "duplicates",
            "out_of_order",
            "leader_kills",
            "worker_pauses",
            "reshards",
            "failover_ms_max",
        ] {
            assert!(json[field].is_u64(), "{field} in {json}");
        }
    }

    #[test]
    fn each_broken_promise_is_said() {
        let mut outcome = good();
        outcome.findings.lost = 2;
        outcome.findings.duplicates = 1;
        outcome.leader_kills = 0;
        assert_eq!(
            outcome.clone().judged(true).broken_promises(),
            ["2 committed changes had no effect", "1 changes had their effect twice", "no leader was killed"]
        );
        assert_eq!(outcome.judged(false).broken_promises().len(), 2, "a short run need not kill anybody");
    }
}
