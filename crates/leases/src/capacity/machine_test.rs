//! Decisions, one at a time: what a start does, when the leader changes the row, who counts as alive.

use super::*;
use crate::capacity::{Ours, Place};

const WINDOW: Duration = Duration::from_secs(90);
const KEEP: Duration = Duration::from_secs(3600);

fn place() -> Place {
    Place { table: "t".into(), stream: "s".into(), app: "a".into() }
}

fn row(shards: u64, workers: u64) -> Row {
    place().new_coordinator(Target::of(shards, workers, 80), None, "x", None, WallTime::default())
}

#[test]
fn a_start_creates_keeps_or_changes() {
    let of = |shards, workers| Target::of(shards, workers, 80);
    assert_eq!(opening(None, 30, Some(3), 80), Opening::Create(of(30, 3)));
    assert_eq!(opening(Some(&row(30, 3)), 30, Some(3), 80), Opening::Use);
    assert_eq!(opening(Some(&row(30, 3)), 60, Some(3), 80), Opening::Update(of(60, 3)));
    assert_eq!(opening(Some(&row(30, 3)), 30, Some(4), 80), Opening::Update(of(30, 4)));
    // With the limit of somebody else, and the same counts: as in the seed, no change.
    assert_eq!(opening(Some(&row(30, 3)), 30, Some(3), 5), Opening::Use);
}

#[test]
fn an_unknown_count_changes_nothing() {
    assert_eq!(opening(Some(&row(30, 3)), 60, None, 80), Opening::Use);
    assert_eq!(opening(None, 60, None, 80), Opening::Abstain);
}

/// Looks at a fleet of so many workers of 60 shards, one after the other, and marks where the row is written:
/// `3 3! 4` is three workers seen twice, and written the second time.
#[track_caller]
fn looks(story: &str) {
    let mut current = row(60, 6);
    let mut adjuster = Adjuster::default();
    for (number, look) in story.split_whitespace().enumerate() {
        let (workers, written) = match look.strip_suffix('!') {
            Some(workers) => (workers, true),
            None => (look, false),
        };
        let wanted = Target::of(60, workers.parse().unwrap(), 80);
        let due = adjuster.tick(Some(&current), wanted);
        assert_eq!(due, written.then_some(wanted), "look {number} ({look}) of {story}");
        if due.is_some() {
            current = row(wanted.shards, wanted.workers);
        }
    }
}

#[test]
fn more_per_worker_is_written_at_the_second_look() {
    looks("6 6 6 5 5! 5 5");
}

#[test]
fn less_per_worker_is_written_at_the_sixth_look() {
    looks("6 10 10 10 10 10 10! 10");
}

#[test]
fn a_worker_that_restarts_changes_nothing() {
    looks("6 5 6 5 6 6 5 6");
    looks("10 10 10 10 10 6 10 10 10 10 10 6 6");
    looks("5 10 5 10 5 10");
}

#[test]
fn a_wavering_fleet_is_written_as_it_is_at_last() {
    // 60 / 5 = 12, 60 / 4 = 15: more than 10 at both looks.
    looks("5 4!");
}

#[test]
fn the_same_cap_for_other_counts_is_no_hurry() {
    let mut adjuster = Adjuster::default();
    let wanted = Target::of(59, 6, 80);
    assert_eq!(wanted.max, row(60, 6).max_leases_per_worker);
    for _ in 1..TICKS_DOWN {
        assert_eq!(adjuster.tick(Some(&row(60, 6)), wanted), None);
    }
    assert_eq!(adjuster.tick(Some(&row(60, 6)), wanted), Some(wanted));
}

#[test]
fn another_limit_reaches_the_row() {
    let mut adjuster = Adjuster::default();
    let current = place().new_coordinator(Target::of(60, 3, 10), None, "x", None, WallTime::default());
    let wanted = Target::of(60, 3, 80);
    assert_eq!(adjuster.tick(Some(&current), wanted), None);
    assert_eq!(adjuster.tick(Some(&current), wanted), Some(wanted));
}

#[test]
fn a_row_that_is_gone_is_written_at_once() {
    let wanted = Target::of(60, 3, 80);
    assert_eq!(Adjuster::default().tick(None, wanted), Some(wanted));
}

// === who is alive ===

struct Watched {
    fleet: Fleet,
    report: Report,
}

impl Watched {
    fn new() -> Self {
        Self { fleet: Fleet::new(WINDOW, KEEP), report: Report::default() }
    }

    /// Looks at `seconds`; each worker is `name` and the second of its last heartbeat, by a clock that is `off`
    /// by so many seconds.
    fn look(&mut self, seconds: u64, off: i64, workers: &[(&str, u64)]) -> String {
        let rows: Vec<_> = workers
            .iter()
            .map(|(name, beat)| {
                let ours = Ours {
                    incarnation: Some("i".into()),
                    expires_at: Some(i64::try_from(*beat + KEEP.as_secs()).unwrap() + off),
                    ..Ours::default()
                };
                place().row((*name).into(), Target::of(60, 3, 80), WallTime::default(), ours)
            })
            .collect();
        self.look_at(seconds, &rows)
    }

    fn look_at(&mut self, seconds: u64, rows: &[Row]) -> String {
        let now = Monotonic::from_nanos(seconds * 1_000_000_000);
        let wall = WallTime::from_millis(i64::try_from(seconds).unwrap() * 1000);
        let members = self.fleet.observe(now, wall, rows, &self.report);
        let names = members.iter().map(|member| member.worker_id.as_str());
        names.collect::<Vec<_>>().join(" ")
    }
}

fn ids(names: &[&str]) -> BTreeSet<WorkerId> {
    names.iter().map(|name| WorkerId::from(*name)).collect()
}

#[test]
fn a_worker_counts_while_its_row_changes() {
    let mut watched = Watched::new();
    assert_eq!(watched.look(1000, 0, &[("a", 990), ("b", 800)]), "a", "b's row is old at the first look");
    assert_eq!(watched.look(1030, 0, &[("a", 1020), ("b", 800)]), "a");
    assert_eq!(watched.look(1119, 0, &[("a", 1020), ("b", 1110)]), "a b", "b came back");
    assert_eq!(watched.look(1120, 0, &[("a", 1020), ("b", 1110)]), "b", "a's last change was seen at 1030");
    assert_eq!(watched.look(1121, 0, &[("b", 1110)]), "b");
}

#[test]
fn wall_clocks_decide_the_first_look_alone() {
    let mut watched = Watched::new();
    let behind = -7200;
    assert_eq!(watched.look(10_000, behind, &[("a", 9_990)]), "", "two hours behind looks old");
    assert_eq!(watched.look(10_025, behind, &[("a", 10_020)]), "a", "it changed: it lives");
    let mut watched = Watched::new();
    assert_eq!(watched.look(10_000, 7200, &[("a", 9_000)]), "a", "two hours ahead looks fresh");
    assert_eq!(watched.look(10_090, 7200, &[("a", 9_000)]), "", "it did not change within the window");
}

#[test]
fn a_lease_that_is_renewed_speaks_for_its_owner() {
    let mut watched = Watched::new();
    watched.report.moving = ids(&["go", "a"]);
    assert_eq!(watched.look(1000, 0, &[("a", 990), ("b", 990)]), "a b go");
    let go = Row { ours: Ours::default(), ..row(60, 3) };
    watched.report.moving = ids(&[]);
    assert_eq!(watched.look_at(1001, &[go]), "", "a Go worker's row says nothing about its life");
}

#[test]
fn an_owner_that_renews_nothing_is_gone_whatever_its_row_says() {
    let mut watched = Watched::new();
    watched.report.stalled = ids(&["a"]);
    assert_eq!(watched.look(1000, 0, &[("a", 990), ("b", 990)]), "b");
    watched.report.moving = ids(&["a"]);
    assert_eq!(watched.look(1001, 0, &[("a", 990), ("b", 990)]), "a b", "of two leases one moves");
}
