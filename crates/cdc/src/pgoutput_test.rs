//! Each message, each refusal, and bytes that are no message at all. What servers really send is in `tests/`.

use proptest::prelude::*;

use super::*;

/// Bytes from parts: numbers are big-endian, texts end with 0.
macro_rules! bytes {
    ($($part:expr),* $(,)?) => {{
        let mut bytes = Vec::new();
        $(Part::put(&$part, &mut bytes);)*
        bytes
    }};
}

trait Part {
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! number_parts {
    ($($number:ty),*) => {$(
        impl Part for $number {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_be_bytes());
            }
        }
    )*};
}
number_parts!(u8, u16, u32, u64, i32, i64);

impl Part for &str {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.as_bytes());
        bytes.push(0);
    }
}

impl Part for Vec<u8> {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self);
    }
}

fn row(values: &[&str]) -> Vec<u8> {
    let mut row = bytes![u16::try_from(values.len()).unwrap()];
    for value in values {
        row.extend(bytes![b't', u32::try_from(value.len()).unwrap(), value.as_bytes().to_vec()]);
    }
    row
}

fn outside(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    Decoder::default().decode(bytes)
}

fn inside(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    Decoder { in_chunk: true }.decode(bytes)
}

fn texts<'a>(tuple: &Tuple<'a>) -> Vec<&'a str> {
    let text = |value| match value {
        Value::Text(text) => std::str::from_utf8(text).unwrap(),
        other => panic!("{other:?}"),
    };
    tuple.values().map(text).collect()
}

const COMMIT: Commit = Commit { commit_lsn: Lsn(10), end_lsn: Lsn(20), committed_micros: -30 };

#[test]
fn a_transaction_begins_and_ends() {
    let begin = bytes![b'B', 10_u64, -30_i64, 40_u32];
    let read = Begin { commit_lsn: Lsn(10), committed_micros: -30, xid: Xid(40) };
    assert_eq!(outside(&begin), Ok(Message::Begin(read)));
    let commit = bytes![b'C', 0_u8, 10_u64, 20_u64, -30_i64];
    assert_eq!(outside(&commit), Ok(Message::Commit(COMMIT)));
}

#[test]
fn chunks_begin_end_commit_and_roll_back() {
    let mut decoder = Decoder::default();
    for (bytes, expected) in [
        (bytes![b'S', 7_u32, 1_u8], Message::StreamStart { xid: Xid(7), first: true }),
        (bytes![b'E'], Message::StreamStop),
        (bytes![b'S', 7_u32, 0_u8], Message::StreamStart { xid: Xid(7), first: false }),
        (bytes![b'E'], Message::StreamStop),
        (bytes![b'A', 7_u32, 8_u32], Message::StreamAbort { xid: Xid(7), subxid: Xid(8) }),
        (bytes![b'A', 7_u32, 8_u32, 1_u64, 2_i64], Message::StreamAbort { xid: Xid(7), subxid: Xid(8) }),
        (
            bytes![b'c', 7_u32, 0_u8, 10_u64, 20_u64, -30_i64],
            Message::StreamCommit { xid: Xid(7), commit: COMMIT },
        ),
    ] {
        assert_eq!(decoder.decode(&bytes), Ok(expected));
    }
}

#[test]
fn only_what_is_in_a_chunk_has_a_subtransaction() {
    let change = bytes![5_u32, b'N', row(&["a"])];
    let plain = bytes![b'I', change.clone()];
    let streamed = bytes![b'I', 7_u32, change];
    assert!(matches!(outside(&plain), Ok(Message::Insert { xid: None, relation: 5, .. })));
    assert!(matches!(inside(&streamed), Ok(Message::Insert { xid: Some(Xid(7)), relation: 5, .. })));
    assert!(outside(&streamed).is_err());
    assert!(inside(&plain).is_err());
    // An origin is about the whole transaction.
    let origin = bytes![b'O', 9_u64, "elsewhere"];
    let read = Message::Origin { commit_lsn: Lsn(9), name: "elsewhere" };
    assert_eq!(outside(&origin), Ok(read.clone()));
    assert_eq!(inside(&origin), Ok(read));
}

#[test]
fn rows_change() {
    let insert = bytes![b'I', 5_u32, b'N', row(&["a", ""])];
    let Ok(Message::Insert { new, .. }) = outside(&insert) else { panic!() };
    assert_eq!(texts(&new), ["a", ""]);
    assert_eq!((new.len(), new.values().len(), new.is_empty()), (2, 2, false));

    for (mark, old) in [(b'K', "key"), (b'O', "row")] {
        let update = bytes![b'U', 5_u32, mark, row(&[old]), b'N', row(&["new"])];
        let Ok(Message::Update { old: Some(before), new, .. }) = outside(&update) else { panic!() };
        assert_eq!(texts(&new), ["new"]);
        let delete = bytes![b'D', 5_u32, mark, row(&[old])];
        let Ok(Message::Delete { old: gone, .. }) = outside(&delete) else { panic!() };
        assert_eq!(before, gone);
        let tuple = match before {
            Old::Key(tuple) if mark == b'K' => tuple,
            Old::Full(tuple) if mark == b'O' => tuple,
            other => panic!("{other:?}"),
        };
        assert_eq!(texts(&tuple), [old]);
    }
    let update = bytes![b'U', 5_u32, b'N', row(&["new"])];
    assert!(matches!(outside(&update), Ok(Message::Update { old: None, .. })));
}

#[test]
fn values_are_null_unchanged_text_or_binary() {
    let values = bytes![b'n', b'u', b't', 1_u32, b'x', b'b', 2_u32, 0_u16];
    let insert = bytes![b'I', 5_u32, b'N', 4_u16, values];
    let Ok(Message::Insert { new, .. }) = outside(&insert) else { panic!() };
    let expected = [Value::Null, Value::Unchanged, Value::Text(b"x"), Value::Binary(&[0, 0])];
    assert_eq!(new.values().collect::<Vec<_>>(), expected);
}

#[test]
fn tables_and_types_are_described() {
    let identities = [
        (b'd', ReplicaIdentity::Default),
        (b'n', ReplicaIdentity::Nothing),
        (b'f', ReplicaIdentity::Full),
        (b'i', ReplicaIdentity::Index),
    ];
    for (mark, identity) in identities {
        let columns = bytes![1_u8, "id", 23_u32, -1_i32, 0_u8, "größe", 1700_u32, 5_i32];
        let relation = bytes![b'R', 5_u32, "public", "t", mark, 2_u16, columns];
        let expected = Relation {
            xid: None,
            oid: 5,
            schema: "public",
            name: "t",
            identity,
            columns: vec![
                Column { in_identity: true, name: "id", type_oid: 23, type_modifier: -1 },
                Column { in_identity: false, name: "größe", type_oid: 1700, type_modifier: 5 },
            ],
        };
        assert_eq!(outside(&relation), Ok(Message::Relation(expected)));
    }
    let named = bytes![b'Y', 7_u32, 6_u32, "", "mood"];
    let expected = Message::Type { xid: Some(Xid(7)), oid: 6, schema: "", name: "mood" };
    assert_eq!(inside(&named), Ok(expected));
}

#[test]
fn tables_are_emptied() {
    for options in 0..4_u8 {
        let bytes = bytes![b'T', 2_u32, options, 5_u32, 6_u32];
        let Ok(Message::Truncate { xid: None, cascade, restart_identity, relations }) = outside(&bytes)
        else {
            panic!()
        };
        assert_eq!(relations.oids().collect::<Vec<_>>(), [5, 6]);
        assert_eq!((cascade, restart_identity), (options & 1 == 1, options & 2 == 2));
    }
}

#[test]
fn logical_messages_belong_to_a_transaction_or_stand_alone() {
    for flag in [0_u8, 1] {
        let said = bytes![flag, 9_u64, "topic", 2_u32, 0_u8, 255_u8];
        let expected = |xid| Message::Logical {
            xid,
            transactional: flag == 1,
            lsn: Lsn(9),
            prefix: "topic",
            content: &[0, 255],
        };
        assert_eq!(outside(&bytes![b'M', said.clone()]), Ok(expected(None)));
        assert_eq!(inside(&bytes![b'M', 7_u32, said]), Ok(expected(Some(Xid(7)))));
    }
}

#[test]
fn what_cannot_be_is_refused_and_says_where() {
    let check = |bytes: &[u8], expected: &str| {
        assert_eq!(outside(bytes).expect_err("refused").to_string(), expected, "{bytes:?}");
    };
    check(b"", "message `\\u{0}` ends too early, in what begins at byte 0");
    check(b"X", "message `X` is of no known kind: use protocol 1 to 4");
    for kind in *b"bPKrp" {
        let kind_name = char::from(kind);
        let advice = format!(
            "message `{kind_name}` belongs to a prepared transaction: create the slot without two_phase"
        );
        check(&[kind, 1, 2, 3], &advice);
    }
    check(&bytes![b'B', 10_u64, 0_i64, 1_u16], "message `B` ends too early, in what begins at byte 17");
    check(&bytes![b'B', 0_u64, 0_i64, 1_u32], "message `B` has no commit position at byte 1");
    check(&bytes![b'C', 0_u8, 0_u64, 1_u64, 0_i64], "message `C` has no commit position at byte 2");
    check(&bytes![b'C', 2_u8, 1_u64, 1_u64, 0_i64], "message `C` has the unknown mark `\\u{2}` at byte 1");
    check(&bytes![b'B', 10_u64, 0_i64, 1_u32, 1_u8], "message `B` goes on after its end at byte 21");
    check(&bytes![b'I', 5_u32, b'K', row(&[])], "message `I` has the unknown mark `K` at byte 5");
    check(&bytes![b'U', 5_u32, b'K', row(&[]), b'K'], "message `U` has the unknown mark `K` at byte 8");
    check(&bytes![b'D', 5_u32, b'N', row(&[])], "message `D` has the unknown mark `N` at byte 5");
    check(&bytes![b'D', 5_u32], "message `D` ends too early, in what begins at byte 5");
    check(&bytes![b'I', 5_u32, b'N', 1_u16, b'x'], "message `I` has the unknown mark `x` at byte 8");
    check(&bytes![b'I', 5_u32, b'N', 1665_u16], "message `I` has a bad length at byte 6");
    check(&bytes![b'I', 5_u32, b'N', 1_u16, b't', -1_i32], "message `I` has a bad length at byte 8");
    check(
        &bytes![b'I', 5_u32, b'N', 1_u16, b't', i32::MAX],
        "message `I` ends too early, in what begins at byte 8",
    );
    check(&bytes![b'T', -1_i32, 0_u8], "message `T` has a bad length at byte 5");
    check(&bytes![b'T', i32::MAX, 0_u8], "message `T` ends too early, in what begins at byte 6");
    check(&bytes![b'T', 0_u32, 4_u8], "message `T` has the unknown mark `\\u{4}` at byte 5");
    check(&bytes![b'R', 5_u32, "s", "t", b'x'], "message `R` has the unknown mark `x` at byte 9");
    check(&bytes![b'R', 5_u32, "s", "t", b'd', 2000_u16], "message `R` has a bad length at byte 10");
    check(
        &bytes![b'O', 5_u64, b'a'],
        "message `O` has at byte 9 a text that does not end or is not UTF-8: set client_encoding to UTF8",
    );
    check(
        &bytes![b'O', 5_u64, 255_u8, 0_u8],
        "message `O` has at byte 9 a text that does not end or is not UTF-8: set client_encoding to UTF8",
    );
    check(&bytes![b'M', 2_u8], "message `M` has the unknown mark `\\u{2}` at byte 1");
    check(&bytes![b'S', 7_u32, 2_u8], "message `S` has the unknown mark `\\u{2}` at byte 5");
    check(&bytes![b'A', 7_u32, 8_u32, 1_u64], "message `A` ends too early, in what begins at byte 17");
    check(b"E", "message `E` comes where it cannot");
}

#[test]
fn nothing_that_ends_a_transaction_comes_within_a_chunk() {
    for kind in *b"BCScA" {
        let refused = inside(&[kind]).expect_err("refused");
        assert_eq!(refused.problem, Problem::OutOfPlace);
    }
}

#[test]
fn a_refused_message_leaves_the_decoder_as_it_was() {
    let mut decoder = Decoder::default();
    decoder.decode(&bytes![b'S', 7_u32, 1_u8, 0_u8]).expect_err("goes on");
    decoder.decode(b"E").expect_err("no chunk is open");
    decoder.decode(&bytes![b'S', 7_u32, 1_u8]).expect("begins");
    decoder.decode(b"EE").expect_err("goes on");
    decoder.decode(b"E").expect("ends");
}

#[test]
fn what_rows_and_messages_say_stays_out_of_debug() {
    let insert = bytes![b'I', 5_u32, b'N', row(&["secret"])];
    assert_eq!(
        format!("{:?}", outside(&insert).unwrap()),
        "Insert { xid: None, relation: 5, new: [Text(6 bytes)] }"
    );
    let said = bytes![b'M', 1_u8, 9_u64, "topic", 6_u32, b"secret".to_vec()];
    assert!(!format!("{:?}", outside(&said).unwrap()).contains("115"), "the number of `s`");
}

/// Looks at all of a message: whatever was read must be safe to use.
fn walk(message: &Message<'_>) {
    let tuple = |tuple: &Tuple<'_>| assert_eq!(tuple.values().count(), tuple.len());
    match message {
        Message::Insert { new, .. } => tuple(new),
        Message::Update { new, old, .. } => {
            tuple(new);
            if let Some(Old::Key(old) | Old::Full(old)) = old {
                tuple(old);
            }
        }
        Message::Delete { old: Old::Key(old) | Old::Full(old), .. } => tuple(old),
        Message::Truncate { relations, .. } => assert!(relations.oids().count() < 1 << 29),
        Message::Relation(relation) => assert!(relation.columns.len() <= COLUMNS_MAX),
        _ => {}
    }
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(kind in any::<u8>(), known in 0..24_usize, rest in any::<Vec<u8>>()) {
        // Mostly a kind that exists.
        let kind = b"BCORYIUDTMSEcAbPKrp".get(known).copied().unwrap_or(kind);
        let bytes = bytes![kind, rest];
        for read in [outside(&bytes), inside(&bytes)] {
            match read {
                Ok(message) => walk(&message),
                Err(refused) => {
                    prop_assert!(refused.offset <= bytes.len());
                    prop_assert!(!refused.to_string().is_empty());
                }
            }
        }
    }
}
