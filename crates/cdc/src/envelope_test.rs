use expect_test::{Expect, expect};
use postgres_types::Type;
use proptest::prelude::*;
use tenure_stream::identity::{Era, Floor, Lane, Lanes, Lsn, Position};

use super::*;
use crate::pgoutput::{Relation, ReplicaIdentity};
use crate::table::TypeNames;
use crate::table::tests::{read, row, table, texts};

/// 2026-11-16 05:00:00.123456 UTC.
const COMMITTED: i64 = 848_120_400_123_456;

fn header() -> Header<'static> {
    Header {
        source: "shop",
        id: Position { era: Era(1), commit: Lsn(0x20), change: Lsn(0x10), k: 0 },
        lane: Lane(7),
        lanes: Lanes::default(),
        prev: None,
        floor: Floor { era: Era(1), below: Lsn(0x10) },
        leader: 4,
    }
}

fn event(op: Op<'_>) -> Event<'_> {
    Event { header: header(), op, xid: Some(Xid(741)), committed_micros: Some(COMMITTED) }
}

/// What follows the header, checked to be JSON.
fn shown(op: Op<'_>) -> String {
    let mut out = Vec::new();
    write(&mut out, &event(op)).unwrap();
    rest(out)
}

fn rest(out: Vec<u8>) -> String {
    let text = String::from_utf8(out).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap();
    assert!(!text.contains('\n'));
    text.split_once("},").unwrap().1.to_owned()
}

#[track_caller]
fn check(op: Op<'_>, expected: Expect) {
    expected.assert_eq(&shown(op));
}

fn orders() -> Table {
    table(ReplicaIdentity::Default, &[("*id", Type::INT8), ("state", Type::TEXT), ("doc", Type::JSONB)])
}

fn full() -> Table {
    table(ReplicaIdentity::Full, &[("id", Type::INT8), ("state", Type::TEXT), ("doc", Type::JSONB)])
}

#[test]
fn an_event_begins_with_who_it_is() {
    let table = orders();
    let new = texts(&[Some("42"), Some("new"), None]);
    let mut out = Vec::new();
    write(&mut out, &event(Op::Insert { table: &table, new: read(&new), moved_from: None })).unwrap();
    expect![[r#"{"tenure":{"v":1,"source":"shop","id":"1:0/20:0/10:0","lane":7,"lanes":1024,"floor":"1:0/10","leader":4},"op":"insert","schema":"public","table":"orders","key":{"id":42},"after":{"id":42,"state":"new","doc":null},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#]]
        .assert_eq(&String::from_utf8(out).unwrap());
}

#[test]
fn rows_come_change_and_go() {
    let table = orders();
    let old = texts(&[Some("41"), None, None]);
    let new = texts(&[Some("42"), Some("paid"), Some(r#"{"a": 1.0}"#)]);
    check(
        Op::Update { table: &table, old: None, new: read(&new) },
        expect![[
            r#""op":"update","schema":"public","table":"orders","key":{"id":42},"after":{"id":42,"state":"paid","doc":"{\"a\": 1.0}"},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    check(
        Op::Update { table: &table, old: Some(Old::Key(read(&old))), new: read(&new) },
        expect![[
            r#""op":"update","schema":"public","table":"orders","key":{"id":42},"before":{"id":41},"after":{"id":42,"state":"paid","doc":"{\"a\": 1.0}"},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    check(
        Op::Delete { table: &table, old: Old::Key(read(&old)), moved: false },
        expect![[
            r#""op":"delete","schema":"public","table":"orders","key":{"id":41},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
}

#[test]
fn a_row_that_moves_is_two_events() {
    let table = orders();
    let old = texts(&[Some("41"), None, None]);
    let new = row(&[Value::Text(b"42"), Value::Text(b"paid"), Value::Unchanged]);
    check(
        Op::Delete { table: &table, old: Old::Key(read(&old)), moved: true },
        expect![[
            r#""op":"delete","schema":"public","table":"orders","key":{"id":41},"key_change":"from","xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    let moved_from = Some(Old::Key(read(&old)));
    check(
        Op::Insert { table: &table, new: read(&new), moved_from },
        expect![[
            r#""op":"insert","schema":"public","table":"orders","key":{"id":42},"before":{"id":41},"after":{"id":42,"state":"paid"},"unchanged":["doc"],"key_change":"to","xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
}

#[test]
fn large_values_that_did_not_change_are_named_or_filled_in() {
    let new = row(&[Value::Text(b"42"), Value::Text(b"paid"), Value::Unchanged]);
    check(
        Op::Update { table: &orders(), old: None, new: read(&new) },
        expect![[
            r#""op":"update","schema":"public","table":"orders","key":{"id":42},"after":{"id":42,"state":"paid"},"unchanged":["doc"],"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    let old = texts(&[Some("42"), Some("new"), Some("{}")]);
    check(
        Op::Update { table: &full(), old: Some(Old::Full(read(&old))), new: read(&new) },
        expect![[
            r#""op":"update","schema":"public","table":"orders","before":{"id":42,"state":"new","doc":"{}"},"after":{"id":42,"state":"paid","doc":"{}"},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    // A large key too: the old key tells it.
    let table = table(ReplicaIdentity::Default, &[("*name", Type::TEXT), ("n", Type::INT4)]);
    let (old, new) = (texts(&[Some("long"), None]), row(&[Value::Unchanged, Value::Text(b"1")]));
    check(
        Op::Update { table: &table, old: Some(Old::Key(read(&old))), new: read(&new) },
        expect![[
            r#""op":"update","schema":"public","table":"orders","key":{"name":"long"},"before":{"name":"long"},"after":{"name":"long","n":1},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
}

#[test]
fn a_table_without_a_key_shows_the_whole_row() {
    let old = texts(&[Some("42"), Some("new"), None]);
    check(
        Op::Delete { table: &full(), old: Old::Full(read(&old)), moved: false },
        expect![[
            r#""op":"delete","schema":"public","table":"orders","before":{"id":42,"state":"new","doc":null},"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
}

#[test]
fn tables_are_emptied_and_change() {
    check(
        Op::Truncate { table: &orders(), cascade: true, restart_identity: false },
        expect![[
            r#""op":"truncate","schema":"public","table":"orders","cascade":true,"restart_identity":false,"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    let mut types = TypeNames::default();
    types.learn(90_001, "shop", "mood");
    let column = |in_identity, name, type_oid, type_modifier| crate::pgoutput::Column {
        in_identity,
        name,
        type_oid,
        type_modifier,
    };
    let relation = Relation {
        xid: None,
        oid: 1,
        schema: "",
        name: "odd \"name\"\n",
        identity: ReplicaIdentity::Index,
        columns: vec![
            column(true, "id", 1043, 14),
            column(false, "mood", 90_001, -1),
            column(false, "other", 90_002, -1),
            column(false, "list", 1007, -1),
        ],
    };
    check(
        Op::Schema { table: &Table::new(&relation, &types) },
        expect![[
            r#""op":"schema","schema":"pg_catalog","table":"odd \"name\"\n","identity":"index","columns":[{"name":"id","type":{"oid":1043,"name":"varchar","modifier":14},"key":true},{"name":"mood","type":{"oid":90001,"name":"shop.mood"},"key":false},{"name":"other","type":{"oid":90002},"key":false},{"name":"list","type":{"oid":1007,"name":"_int4"},"key":false}],"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    let none = Relation { columns: Vec::new(), name: "none", ..relation };
    check(
        Op::Schema { table: &Table::new(&none, &types) },
        expect![[
            r#""op":"schema","schema":"pg_catalog","table":"none","identity":"index","columns":[],"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
}

#[test]
fn messages_are_text_or_base64() {
    check(
        Op::Message { prefix: "audit", content: b"by \"ann\"", transactional: true },
        expect![[
            r#""op":"message","prefix":"audit","content":"by \"ann\"","transactional":true,"xid":741,"committed":"2026-11-16T05:00:00.123456Z"}"#
        ]],
    );
    let mut out = Vec::new();
    let op = Op::Message { prefix: "raw", content: b"\xff\x00", transactional: false };
    write(&mut out, &Event { header: header(), op, xid: None, committed_micros: None }).unwrap();
    expect![[r#""op":"message","prefix":"raw","content_base64":"/wA=","transactional":false}"#]]
        .assert_eq(&rest(out));
}

#[test]
fn a_pointer_is_small() {
    let table = orders();
    let mut pointer = Pointer {
        kind: PointerKind::ClaimCheck,
        place: "quarantine/shop/1:0/20:0/10:0",
        bytes: 20_000_000,
        sha256: "e3b0c442",
        reason: None,
        op: "insert",
        table: Some(&table),
    };
    let mut out = Vec::new();
    write_pointer(&mut out, &header(), &pointer);
    expect![[r#""op":"pointer","schema":"public","table":"orders","pointer":{"kind":"claim_check","op":"insert","place":"quarantine/shop/1:0/20:0/10:0","bytes":20000000,"sha256":"e3b0c442"}}"#]].assert_eq(&rest(out));
    let reason = "é".repeat(2000);
    pointer = Pointer {
        kind: PointerKind::Quarantined,
        reason: Some(&reason),
        table: None,
        op: "message",
        ..pointer
    };
    let mut out = Vec::new();
    write_pointer(&mut out, &header(), &pointer);
    assert!(rest(out).ends_with(&format!(r#""reason":"{}"}}}}"#, "é".repeat(REASON_CHARACTERS_MAX))));
}

#[test]
fn what_has_no_form_leaves_no_trace() {
    let table = orders();
    let failed = |values: &[Value<'_>]| {
        let new = row(values);
        let mut out = b"before".to_vec();
        let written =
            write(&mut out, &event(Op::Insert { table: &table, new: read(&new), moved_from: None }));
        assert_eq!(out, b"before");
        written.unwrap_err().to_string()
    };
    let id = Value::Text(b"1");
    expect![[r#"column "state": its text is not UTF-8: convert the value, or leave the column out of the publication"#]].assert_eq(&failed(&[id, Value::Text(b"\xff"), Value::Null]));
    expect![[r#"column "state": the value came in binary: start replication without `binary`"#]]
        .assert_eq(&failed(&[id, Value::Binary(b"x"), Value::Null]));
    expect!["the row has another number of values than its table has columns"]
        .assert_eq(&failed(&[id, Value::Null]));
}

#[test]
fn moments_of_every_age() {
    let moment = |micros| {
        let mut out = Vec::new();
        push_moment(&mut out, micros);
        String::from_utf8(out).unwrap()
    };
    const DAY: i64 = 86_400_000_000;
    assert_eq!(moment(0), "2000-01-01T00:00:00.000000Z");
    assert_eq!(moment(59 * DAY), "2000-02-29T00:00:00.000000Z");
    assert_eq!(moment(60 * DAY - 1), "2000-02-29T23:59:59.999999Z");
    assert_eq!(moment(366 * DAY), "2001-01-01T00:00:00.000000Z");
    assert_eq!(moment(-1), "1999-12-31T23:59:59.999999Z");
    assert_eq!(moment(36_584 * DAY), "2100-03-01T00:00:00.000000Z");
    assert_eq!(moment(COMMITTED), "2026-11-16T05:00:00.123456Z");
    assert_eq!(moment(i64::MAX), "294277-01-09T04:00:54.775807Z");
    assert_eq!(moment(i64::MIN), "-290278-12-22T19:59:05.224192Z");
}

proptest! {
    #[test]
    fn an_event_is_json_on_one_line(
        state in any::<Option<String>>(),
        (schema, name, column) in (any::<String>(), any::<String>(), any::<String>()),
    ) {
        let columns = vec![crate::pgoutput::Column {
            in_identity: true,
            name: &column,
            type_oid: 25,
            type_modifier: -1,
        }];
        let identity = ReplicaIdentity::Default;
        let relation = Relation { xid: None, oid: 1, schema: &schema, name: &name, identity, columns };
        let table = Table::new(&relation, &TypeNames::default());
        let new = texts(&[state.as_deref()]);
        let mut out = Vec::new();
        write(&mut out, &event(Op::Insert { table: &table, new: read(&new), moved_from: None })).unwrap();
        prop_assert!(!out.contains(&b'\n'));
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!(&json["table"], &name);
        prop_assert_eq!(&json["after"][&column], &serde_json::json!(state));
        prop_assert_eq!(&json["after"], &json["key"]);
    }
}
