//! What is stored stays readable: exact rows, round trips, old rows, and what every condition lets through.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use proptest::option;
use proptest::prelude::*;

use super::*;

const TABLE: &str = "kds-stream-prod_meta";

fn place() -> Place {
    Place { table: TABLE.into(), stream: "kds-stream-prod".into(), app: "my-app".into() }
}

/// 2025-11-19T10:00:00.250Z.
fn ten() -> WallTime {
    WallTime::from_millis(1_763_546_400_250)
}

fn coordinator(shards: u64, workers: u64) -> Row {
    place().new_coordinator(Target::of(shards, workers, 80), None, "a", None, ten())
}

/// As a Go worker's put leaves it.
fn wiped(mut row: Row) -> Row {
    row.ours = Ours::default();
    row
}

fn decide(write: &Write, current: Option<&Item>) -> Option<Item> {
    match write.decide(&table_spec(TABLE), current).unwrap()? {
        tenure_store::Effect::Store(item) => Some(item),
        tenure_store::Effect::Erase => Some(Item::new()),
        tenure_store::Effect::Keep => current.cloned(),
    }
}

#[track_caller]
fn shows(item: &Item, expected: &Expect) {
    let mut text = String::new();
    for (name, value) in item {
        writeln!(text, "{name}: {value:?}").unwrap();
    }
    expected.assert_eq(&text);
}

// === exact rows ===

#[test]
fn a_coordinator_row_is_the_documented_one() {
    let created = decide(&place().create(coordinator(30, 3)), None).unwrap();
    shows(
        &created,
        &expect![[r#"
            app_name: S("my-app")
            epoch: N(1763546400250)
            incarnation: S("a")
            last_update_time: S("2025-11-19T10:00:00Z")
            max_leases_per_worker: N(10)
            shard_count: N(30)
            stream_name: S("kds-stream-prod")
            worker_count: N(3)
            worker_id: S("my-app_coordinator")
        "#]],
    );
}

#[test]
fn a_workers_row_is_the_documented_one() {
    let ours = Ours {
        epoch: None,
        incarnation: Some("a".into()),
        demand: Some(35),
        held: Some(9),
        behind: Some(Behind { ms: 1500, at: 1_763_546_400 }),
        expires_at: Some(expiry(ten(), Duration::from_secs(3600))),
    };
    let row = place().row("worker-1".into(), Target::of(30, 3, 80), ten(), ours);
    shows(
        &decide(&place().save(row), None).unwrap(),
        &expect![[r#"
            app_name: S("my-app")
            behind_at: N(1763546400)
            behind_ms: N(1500)
            demand: N(35)
            expires_at: N(1763550000)
            held: N(9)
            incarnation: S("a")
            last_update_time: S("2025-11-19T10:00:00Z")
            max_leases_per_worker: N(10)
            shard_count: N(30)
            stream_name: S("kds-stream-prod")
            worker_count: N(3)
            worker_id: S("worker-1")
        "#]],
    );
}

#[test]
fn a_row_of_a_go_worker_is_read() {
    let item = Item::new()
        .with("worker_id", "my-app_coordinator")
        .with("max_leases_per_worker", 10)
        .with("stream_name", "kds-stream-prod")
        .with("app_name", "my-app")
        .with("shard_count", 30)
        .with("worker_count", 3)
        .with("last_update_time", "2025-11-19T10:00:00Z")
        .with("something_new", "ignored");
    assert_eq!(place().coordinator_row(&item).unwrap(), wiped(coordinator(30, 3)));
}

#[test]
fn the_table_has_the_seeds_key_and_a_time_to_live() {
    let spec = table_spec(TABLE);
    assert_eq!((spec.hash, spec.range), (KeyAttribute::text("worker_id"), None));
    assert_eq!(spec.ttl.as_deref(), Some("expires_at"));
}

// === what cannot be read ===

#[test]
fn bad_numbers_are_rejected_with_row_and_column() {
    let good = coordinator(30, 3).into_item();
    Row::of(TABLE, &good).unwrap();
    let columns = ["max_leases_per_worker", "shard_count", "worker_count"];
    let bad =
        [Value::from("30"), Value::from(0), Value::from(-3), Value::N("2.5".parse().unwrap()), Value::Null];
    for column in columns {
        let mut broken: Vec<_> = bad.iter().map(|value| good.clone().with(column, value.clone())).collect();
        let mut without = good.clone();
        without.remove(column);
        broken.push(without);
        for item in broken {
            let error = Row::of(TABLE, &item).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            let named = format!("column `{column}` of row `my-app_coordinator` in table `{TABLE}` is ");
            assert!(error.chain().starts_with(&named), "{error:?}");
        }
    }
    let item = good.with("last_update_time", 1_763_546_400);
    let error = Row::of(TABLE, &item).unwrap_err();
    assert!(error.chain().contains("`last_update_time`") && error.chain().contains("not text"), "{error:?}");
}

#[test]
fn bad_columns_of_ours_are_rejected_too() {
    let good = coordinator(30, 3).into_item();
    for column in ["epoch", "demand", "held", "behind_ms", "behind_at", "expires_at"] {
        let error = Row::of(TABLE, &good.clone().with(column, "x")).unwrap_err();
        assert!(error.chain().contains(column), "{error:?}");
    }
    assert!(Row::of(TABLE, &good.clone().with("incarnation", 1)).is_err());
    assert!(Row::of(TABLE, &good.with("epoch", i64::MAX)).is_err(), "the next could not be stored");
}

#[test]
fn a_row_of_another_application_or_stream_is_refused() {
    for column in ["app_name", "stream_name"] {
        let item = coordinator(30, 3).into_item().with(column, "other");
        let error = place().coordinator_row(&item).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.chain().contains("`other`"), "{error:?}");
    }
}

// === conditions ===

#[test]
fn a_coordinator_row_is_created_once() {
    let there = coordinator(30, 3).into_item();
    assert!(decide(&place().create(coordinator(30, 3)), Some(&there)).is_none());
}

#[test]
fn an_update_needs_the_row_that_was_read() {
    let read = coordinator(30, 3);
    let next = place().new_coordinator(Target::of(60, 3, 80), Some(&read), "b", None, ten());
    let write = place().update(&read, next.clone());
    assert_eq!(decide(&write, Some(&read.clone().into_item())), Some(next.clone().into_item()));
    assert!(decide(&write, None).is_none(), "deleted meanwhile");
    assert!(decide(&write, Some(&next.into_item())).is_none(), "its own resend");
    assert!(decide(&write, Some(&wiped(read.clone()).into_item())).is_none(), "wiped by a put of Go");
    // Go may change its columns and leave ours alone.
    for (column, value) in [("shard_count", 31), ("worker_count", 4)] {
        assert!(decide(&write, Some(&read.clone().into_item().with(column, value))).is_none(), "{column}");
    }
    let later = read.into_item().with("last_update_time", "2025-11-19T10:00:01Z");
    assert!(decide(&write, Some(&later)).is_none());
}

#[test]
fn there_and_back_again_is_another_row() {
    // 30 shards, then 60, then 30: the columns that Go compares are as they were, within one second.
    let first = coordinator(30, 3);
    let second = place().new_coordinator(Target::of(60, 3, 80), Some(&first), "b", None, ten());
    let third = place().new_coordinator(Target::of(30, 3, 80), Some(&second), "b", None, ten());
    assert_eq!(third.target(), first.target());
    assert_eq!(third.last_update_time, first.last_update_time);
    let late = place()
        .update(&first, place().new_coordinator(Target::of(45, 3, 80), Some(&first), "c", None, ten()));
    assert!(decide(&late, Some(&third.into_item())).is_none());
}

#[test]
fn there_and_back_again_by_way_of_go_is_another_row() {
    let first = coordinator(30, 3);
    let later = ten() + Duration::from_secs(60);
    // Go puts its row, and one of us changes it back: the epoch does not begin at 1.
    let by_go = wiped(place().new_coordinator(Target::of(60, 3, 80), None, "go", None, later));
    let back = place().new_coordinator(Target::of(30, 3, 80), Some(&by_go), "b", None, later);
    assert!(back.ours.epoch > first.ours.epoch);
    let change = |read: &Row| place().update(read, coordinator(45, 3));
    assert!(decide(&change(&first), Some(&back.clone().into_item())).is_none());
    // Of a row without an epoch, its time is compared.
    let by_go_later = Row { last_update_time: "2025-11-19T10:02:00Z".into(), ..by_go.clone() };
    assert!(decide(&change(&by_go), Some(&by_go.clone().into_item())).is_some());
    assert!(decide(&change(&by_go), Some(&by_go_later.into_item())).is_none());
    assert!(decide(&change(&by_go), Some(&back.into_item())).is_none());
}

#[test]
fn an_epoch_rises_although_a_clock_goes_back() {
    let first = coordinator(30, 3);
    let earlier = WallTime::from_millis(5);
    let next = place().new_coordinator(Target::of(60, 3, 80), Some(&first), "b", None, earlier);
    assert_eq!(next.ours.epoch, first.ours.epoch.map(|epoch| epoch + 1));
}

#[test]
fn a_heartbeat_touches_none_of_gos_columns() {
    let ours = |incarnation: &str, expires_at| Ours {
        incarnation: Some(incarnation.to_owned()),
        held: Some(4),
        behind: (expires_at == 200).then_some(Behind { ms: 7, at: 8 }),
        expires_at: Some(expires_at),
        ..Ours::default()
    };
    let row = place().row("worker-1".into(), Target::of(30, 3, 80), ten(), ours("a", 100));
    let beat = place().heartbeat("worker-1", &ours("a", 200), Heartbeat::Ours);
    let after = Row::of(TABLE, &decide(&beat, Some(&row.clone().into_item())).unwrap()).unwrap();
    assert_eq!(after, Row { ours: ours("a", 200), ..row.clone() });
    let other = place().row("worker-1".into(), Target::of(30, 3, 80), ten(), ours("b", 100));
    assert!(decide(&beat, Some(&other.clone().into_item())).is_none(), "another process");
    assert!(decide(&beat, None).is_none(), "swept away");
    let again = place().heartbeat("worker-1", &ours("a", 200), Heartbeat::Wiped);
    let restored = decide(&again, Some(&wiped(row.clone()).into_item())).unwrap();
    assert_eq!(Row::of(TABLE, &restored).unwrap(), Row { ours: ours("a", 200), ..row });
    assert!(decide(&again, Some(&other.into_item())).is_none());
}

#[test]
fn only_what_is_still_gone_is_swept() {
    let ours = |expires_at| Ours {
        incarnation: Some("a".to_owned()),
        expires_at: Some(expires_at),
        ..Ours::default()
    };
    let row = |expires_at| place().row("worker-1".into(), Target::of(30, 3, 80), ten(), ours(expires_at));
    let sweep = place().sweep(&row(100)).unwrap();
    assert_eq!(decide(&sweep, Some(&row(100).into_item())), Some(Item::new()));
    assert!(decide(&sweep, Some(&row(200).into_item())).is_none(), "it came back");
    assert!(place().sweep(&wiped(row(100))).is_none(), "a Go worker's row says nothing about its life");
    let leave = place().leave("worker-1", "a");
    assert!(decide(&leave, Some(&row(100).into_item())).is_some());
    let next = Row { ours: Ours { incarnation: Some("b".into()), ..ours(100) }, ..row(100) };
    assert!(decide(&leave, Some(&next.into_item())).is_none(), "a successor of the same name stays");
}

#[test]
fn a_name_that_another_application_uses_is_not_written_over() {
    let row = place().row("worker-1".into(), Target::of(30, 3, 80), ten(), Ours::default());
    let theirs = Row { app_name: "other".into(), ..row.clone() };
    assert!(decide(&place().save(row.clone()), Some(&theirs.into_item())).is_none());
    assert!(decide(&place().save(row.clone()), Some(&row.into_item())).is_some());
}

// === round trip ===

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..200, 1u64..i64::MAX.unsigned_abs()]
}

prop_compose! {
    fn any_row()(
        names in ("\\PC{1,20}", "\\PC{0,20}", "\\PC{0,20}", "\\PC{0,30}"),
        counts in (any_count(), any_count(), any_count()),
        epoch in option::of(0..EPOCH_MAX),
        incarnation in option::of("[0-9a-f]{32}"),
        numbers in (option::of(0u64..1 << 60), option::of(0u64..1 << 60), option::of(0i64..1 << 40)),
        behind in option::of((0u64..1 << 60, 0i64..1 << 40)),
    ) -> Row {
        Row {
            worker_id: names.0,
            max_leases_per_worker: counts.0,
            stream_name: names.1,
            app_name: names.2,
            shard_count: counts.1,
            worker_count: counts.2,
            last_update_time: names.3,
            ours: Ours {
                epoch,
                incarnation,
                demand: numbers.0,
                held: numbers.1,
                behind: behind.map(|(ms, at)| Behind { ms, at }),
                expires_at: numbers.2,
            },
        }
    }
}

proptest! {
    #[test]
    fn what_is_stored_is_read_back(row in any_row()) {
        prop_assert_eq!(Row::of(TABLE, &row.clone().into_item()).unwrap(), row);
    }
}
