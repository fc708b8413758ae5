//! Nanoseconds per event of what happens to each: reading the message, its lane, its envelope.
//!
//! One core, a row of about 240 bytes in six columns, the best of short runs in turn: the others were
//! disturbed. `cargo bench -p tenure-cdc --bench envelope -- --json` answers a line per step.

use std::hint::black_box;

use bytes::Bytes;
use serde_json::json;
use tenure_cdc::envelope::{self, Event, Op};
use tenure_cdc::pgoutput::{Column, Decoder, Message, Relation, ReplicaIdentity, Tuple, Xid};
use tenure_cdc::table::{Place, Table, TypeNames};
use tenure_clock::{Clock, SystemClock};
use tenure_stream::identity::{Era, Floor, Header, Lanes, Lsn, Position};
use tenure_stream::kpl::{self, Aggregator};
use tenure_stream::{HashKey, HashRange};

/// What decoding, envelope and lane may take together.
const AIM_NANOS: f64 = 2000.0;
/// So few that a run fits into a turn that a busy machine gives us.
const EVENTS: u32 = 1000;
const RUNS: usize = 300;
/// Events of an aggregated record: about 256 KiB.
const AGGREGATED: usize = 500;

const ROW: [&str; 6] = [
    "9007199254740993",
    "8f14e45f-ceea-467f-a9af-2f1a1c3f9b1e",
    "Zoë O'Hara, 12 Long Street, Springfield",
    "1249.90",
    r#"{"lines": [{"sku": "A-100", "n": 2}, {"sku": "B-7", "n": 1}], "gift": false, "note": "ring twice"}"#,
    "2026-11-16 05:00:00.123456+00",
];

fn main() {
    let columns = ["id", "token", "customer", "total", "doc", "created"];
    let types = [20, 2950, 25, 1700, 3802, 1184];
    let columns = columns
        .iter()
        .zip(types)
        .map(|(name, type_oid)| Column { in_identity: *name == "id", name, type_oid, type_modifier: -1 })
        .collect();
    let identity = ReplicaIdentity::Default;
    let relation = Relation { xid: None, oid: 16_384, schema: "public", name: "orders", identity, columns };
    let table = Table::new(&relation, &TypeNames::default());
    let message = insert();
    let row_bytes: usize = ROW.iter().map(|value| value.len()).sum();

    let mut decoder = Decoder::default();
    let mut place = Place::default();
    let mut out = Vec::with_capacity(1 << 20);
    let mut steps = ["decode", "place", "header", "write", "all", "aggregate", "deaggregate"]
        .map(|step| (step, f64::MAX));
    let tuple = read(&mut decoder, &message);
    let event = Event {
        header: header(),
        op: Op::Insert { table: &table, new: tuple, moved_from: None },
        xid: Some(Xid(741)),
        committed_micros: Some(848_120_400_123_456),
    };
    let mut event_bytes = Vec::new();
    envelope::write(&mut event_bytes, &event).expect("the row has a form");
    let sealed = aggregated(&event_bytes);
    let partition_key = "public.orders/42".into();

    for _ in 0..RUNS {
        for (step, best) in &mut steps {
            let each = match *step {
                "decode" => time(EVENTS, || {
                    black_box(read(&mut decoder, black_box(&message)));
                }),
                "place" => time(EVENTS, || {
                    let _ = black_box(table.place(&mut place, black_box(&tuple), None));
                }),
                "header" => time(EVENTS, || {
                    out.clear();
                    black_box(&event).header.write_json(&mut out);
                    black_box(&out);
                }),
                "write" => time(EVENTS, || {
                    out.clear();
                    let _ = black_box(envelope::write(&mut out, black_box(&event)));
                }),
                "all" => time(EVENTS, || {
                    out.clear();
                    let new = read(&mut decoder, black_box(&message));
                    let _ = black_box(table.place(&mut place, &new, None));
                    let op = Op::Insert { table: &table, new, moved_from: None };
                    let _ = black_box(envelope::write(&mut out, &Event { op, ..event }));
                }),
                // Per event, its share of the digest included.
                "aggregate" => time(2, || drop(black_box(aggregated(&event_bytes)))) / AGGREGATED as f64,
                _ => {
                    let all = HashRange::ALL;
                    time(2, || drop(black_box(kpl::deaggregate(&partition_key, &sealed, all))))
                        / AGGREGATED as f64
                }
            };
            *best = each.min(*best);
        }
    }
    let as_json = std::env::args().any(|argument| argument == "--json");
    for (step, nanos) in steps {
        let aim = (step == "all").then_some(AIM_NANOS);
        if as_json {
            let met = aim.map(|aim| nanos <= aim);
            let line = json!({
                "bench": "envelope", "step": step, "nanos_per_event": nanos, "aim": aim, "met": met,
                "row_bytes": row_bytes, "event_bytes": event_bytes.len(),
            });
            println!("{line}");
        } else {
            let aim = aim.map_or_else(String::new, |aim| format!(" (aim: at most {aim:.0})"));
            println!("{step:>12} {nanos:8.1} ns per event{aim}");
        }
    }
}

/// Nanoseconds per call.
fn time(calls: u32, mut call: impl FnMut()) -> f64 {
    let begin = SystemClock.monotonic();
    for _ in 0..calls {
        call();
    }
    SystemClock.monotonic().since(begin).as_nanos() as f64 / f64::from(calls)
}

fn insert() -> Vec<u8> {
    let mut message = b"I\0\0\x40\0N\0\x06".to_vec();
    for value in ROW {
        message.push(b't');
        message.extend_from_slice(&(value.len() as u32).to_be_bytes());
        message.extend_from_slice(value.as_bytes());
    }
    message
}

fn read<'a>(decoder: &mut Decoder, message: &'a [u8]) -> Tuple<'a> {
    match decoder.decode(message) {
        Ok(Message::Insert { new, .. }) => new,
        other => panic!("{other:?}"),
    }
}

fn header() -> Header<'static> {
    let id = Position { era: Era(3), commit: Lsn(0x16_B374_D848), change: Lsn(0x16_B374_C2A0), k: 0 };
    let lanes = Lanes::default();
    let floor = Floor { era: Era(3), below: Lsn(0x16_B374_A000) };
    Header { source: "orders-eu", id, lane: lanes.of(77), lanes, prev: Some(id), floor, leader: 12 }
}

fn aggregated(event: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(512 << 10);
    let mut record = Aggregator::begin(&mut out, Some(HashKey(1 << 100)));
    for n in 0..AGGREGATED {
        record.add(&mut out, if n % 2 == 0 { "public.orders/42" } else { "public.orders/43" }, event);
    }
    record.finish(&mut out);
    out.into()
}
