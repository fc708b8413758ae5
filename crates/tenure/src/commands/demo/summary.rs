//! What the demo has shown, in numbers and in words.

use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::Findings;
use super::race::Races;

/// What happened to the workload.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub findings: Findings,
    /// How many keys the writers wrote.
    pub keys: u64,
    pub writer_kills: u64,
    /// Pauses of a reader during which others took over from it.
    pub worker_pauses: u64,
    pub reshards: u64,
    /// The numbers of open shards that the stream went through.
    pub shard_counts: Vec<u32>,
    /// Shards read to their end.
    pub shards_finished: u64,
    /// Shards taken over from a reader that was paused.
    pub takeovers: u64,
    /// Writes refused because the shard had another owner by then.
    pub writes_refused: u64,
    /// The longest time a shard waited for its new reader.
    pub failover_max: Duration,
    /// How long it took after the last write until every record had its effect.
    pub healing: Duration,
}

/// All that is told at the end.
#[derive(Debug, Clone)]
pub(super) struct Summary {
    races: Races,
    outcome: Outcome,
    /// Whether the workload was long enough for every kind of fault.
    every_fault_due: bool,
}

impl Summary {
    pub(super) const fn new(races: Races, outcome: Outcome, every_fault_due: bool) -> Self {
        Self { races, outcome, every_fault_due }
    }

    /// The promises that did not hold, in words.
    pub(super) fn broken_promises(&self) -> Vec<String> {
        let Outcome { findings, .. } = &self.outcome;
        let mut broken = Vec::new();
        let mut none = |count: u64, what: &str| {
            if count > 0 {
                broken.push(format!("{count} {what}"));
            }
        };
        none(findings.lost, "acknowledged records had no effect");
        none(findings.duplicates, "records had their effect twice");
        none(findings.out_of_order, "records came out of order");
        none(self.races.races - self.races.single_winners, "races had no single winner");
        let mut some = |count: u64, what: &str| {
            if count == 0 {
                broken.push(format!("no {what}"));
            }
        };
        some(self.races.races, "race was held");
        some(findings.committed, "record was written");
        if self.every_fault_due {
            some(self.outcome.writer_kills, "writer was killed");
            some(self.outcome.worker_pauses, "reader was paused and taken over from");
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
            "leader_kills": 0,
            "writer_kills": self.outcome.writer_kills,
            "worker_pauses": self.outcome.worker_pauses,
            "reshards": self.outcome.reshards,
            "failover_ms_max": millis(self.outcome.failover_max),
            "takeovers": self.outcome.takeovers,
            "writes_refused": self.outcome.writes_refused,
            "repeats_dropped": findings.repeats_dropped,
            "races": self.races.races,
            "race_winners": self.races.single_winners,
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
                "  races         {} held, {} with one winner whose row the {} losers were shown",
                self.races.races, self.races.single_winners, self.races.losers
            ),
            format!(
                "  committed     {} records of {} keys; writers killed and replaced: {}",
                findings.committed, self.outcome.keys, self.outcome.writer_kills
            ),
            format!(
                "  delivered     {} records, the last of them {:.1} s after the writers ended",
                findings.delivered,
                self.outcome.healing.as_secs_f64()
            ),
            format!("  lost          {}", findings.lost),
            format!(
                "  duplicates    {} ({} records were put twice and had effect once)",
                findings.duplicates, findings.repeats_dropped
            ),
            format!("  out of order  {}", findings.out_of_order),
            format!(
                "  reshards      {} ({} shards); {} shards were read to their end",
                self.outcome.reshards,
                counts.join(" to "),
                self.outcome.shards_finished
            ),
            format!(
                "  pauses        {} of a reader; {} shards got a new one after {} ms at most; {} late writes refused",
                self.outcome.worker_pauses,
                self.outcome.takeovers,
                millis(self.outcome.failover_max),
                self.outcome.writes_refused
            ),
            "  leader kills  0 (there is no leader yet)".to_owned(),
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

    fn good() -> Summary {
        let findings = Findings { committed: 10, delivered: 10, ..Findings::default() };
        let outcome =
            Outcome { findings, writer_kills: 1, worker_pauses: 1, reshards: 1, ..Outcome::default() };
        let races = Races { races: 2, single_winners: 2, ..Races::default() };
        Summary::new(races, outcome, true)
    }

    #[test]
    fn a_good_run_breaks_no_promise_and_has_the_contracts_fields() {
        assert_eq!(good().broken_promises(), Vec::<String>::new());
        let json = good().to_json();
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
            assert!(json[field].is_u64(), "{field}");
        }
        assert_eq!(json["ok"], true);
    }

    #[test]
    fn each_broken_promise_is_named() {
        let check = |spoil: fn(&mut Summary), expected: &str| {
            let mut summary = good();
            spoil(&mut summary);
            assert_eq!(summary.broken_promises(), [expected]);
            assert_eq!(summary.to_json()["ok"], false);
            assert!(summary.to_text().ends_with(&format!("did NOT hold: {expected}.")));
        };
        check(|s| s.outcome.findings.lost = 3, "3 acknowledged records had no effect");
        check(|s| s.outcome.findings.duplicates = 1, "1 records had their effect twice");
        check(|s| s.outcome.findings.out_of_order = 2, "2 records came out of order");
        check(|s| s.races.single_winners = 1, "1 races had no single winner");
        check(|s| s.outcome.writer_kills = 0, "no writer was killed");
        check(|s| s.outcome.worker_pauses = 0, "no reader was paused and taken over from");
        check(|s| s.outcome.reshards = 0, "no reshard happened");
    }
}
