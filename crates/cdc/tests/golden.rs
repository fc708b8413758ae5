//! What real servers sent, read and shown. See `capture.rs` for how the files come about.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::expect_file;
use tenure_cdc::assembler::{Assembled, Assembler, SpillSettings};
use tenure_cdc::pgoutput::{Decoder, Message, Old, Tuple, Value};
use tenure_stream::identity::Lsn;

/// One recorded session.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) messages: Vec<(Lsn, Vec<u8>)>,
}

pub(crate) fn all() -> Vec<Golden> {
    let mut goldens = Vec::new();
    for entry in std::fs::read_dir("tests/golden").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "hex") {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let messages = lines.map(|line| {
                let (at, hex) = line.split_once(' ').unwrap();
                (at.parse().unwrap(), from_hex(hex))
            });
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            goldens.push(Golden { messages: messages.collect(), name });
        }
    }
    goldens.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(goldens.len() >= 17, "{} golden files", goldens.len());
    goldens
}

fn from_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Shows a message as text. Unlike its `Debug`, with what it says.
pub(crate) fn show(message: &Message<'_>) -> String {
    match message {
        Message::Insert { xid, relation, new } => {
            format!("insert {relation}{} {}", of(*xid), show_tuple(new))
        }
        Message::Update { xid, relation, old, new } => {
            let old = old.as_ref().map(|old| format!("{} -> ", show_old(old))).unwrap_or_default();
            format!("update {relation}{} {old}{}", of(*xid), show_tuple(new))
        }
        Message::Delete { xid, relation, old } => {
            format!("delete {relation}{} {}", of(*xid), show_old(old))
        }
        Message::Relation(relation) => {
            let mut text = format!(
                "relation {}{} {}.{} by {:?}:",
                relation.oid,
                of(relation.xid),
                relation.schema,
                relation.name,
                relation.identity
            );
            for column in &relation.columns {
                let key = if column.in_identity { "*" } else { "" };
                write!(text, " {}{key}:{}:{}", column.name, column.type_oid, column.type_modifier).unwrap();
            }
            text
        }
        Message::Type { xid, oid, schema, name } => format!("type {oid}{} {schema}.{name}", of(*xid)),
        Message::Truncate { xid, cascade, restart_identity, relations } => {
            let oids: Vec<u32> = relations.oids().collect();
            let cascade = if *cascade { " cascade" } else { "" };
            let restart = if *restart_identity { " restart identity" } else { "" };
            format!("truncate {oids:?}{}{cascade}{restart}", of(*xid))
        }
        Message::Logical { xid, transactional, lsn, prefix, content } => format!(
            "message{}{} at {lsn} {prefix:?} {}",
            of(*xid),
            if *transactional { "" } else { " by itself" },
            content.escape_ascii()
        ),
        Message::Origin { commit_lsn, name } => format!("origin {name} {commit_lsn}"),
        other => format!("{other:?}"),
    }
}

fn of(xid: Option<tenure_cdc::pgoutput::Xid>) -> String {
    xid.map(|xid| format!(" ({})", xid.0)).unwrap_or_default()
}

fn show_old(old: &Old<'_>) -> String {
    match old {
        Old::Key(tuple) => format!("key {}", show_tuple(tuple)),
        Old::Full(tuple) => format!("row {}", show_tuple(tuple)),
    }
}

fn show_tuple(tuple: &Tuple<'_>) -> String {
    let values = tuple.values().map(|value| match value {
        Value::Null => "null".to_owned(),
        Value::Unchanged => "unchanged".to_owned(),
        Value::Text(text) if text.len() > 100 => format!("text of {} bytes", text.len()),
        Value::Binary(bytes) if bytes.len() > 100 => format!("{} bytes", bytes.len()),
        Value::Text(text) => format!("'{}'", std::str::from_utf8(text).unwrap()),
        Value::Binary(bytes) => format!("b'{}'", bytes.escape_ascii()),
    });
    format!("({})", values.collect::<Vec<_>>().join(", "))
}

#[test]
fn golden_messages_read_as_what_happened() {
    for golden in all() {
        let mut decoder = Decoder::default();
        let mut text = String::new();
        for (at, bytes) in &golden.messages {
            let message = decoder.decode(bytes).unwrap();
            writeln!(text, "{at:<10} {}", show(&message)).unwrap();
        }
        let path = std::path::absolute(format!("tests/golden/{}.txt", golden.name)).unwrap();
        expect_file![path].assert_eq(&text);
    }
}

/// Whatever each committed transaction did to which table, as text. Tables are described by the last
/// `Relation` before, as a consumer has it.
pub(crate) fn committed(messages: &[(Lsn, Vec<u8>)], bytes_max: u64) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let settings = SpillSettings { directory: directory.path().to_owned(), bytes_max };
    let mut assembler = Assembler::new(settings);
    let mut story = Story::default();
    for (at, bytes) in messages {
        let assembled = assembler.push(*at, bytes).unwrap();
        story.take(&assembled);
        while assembler.is_replaying() {
            story.take(&assembler.replay().unwrap());
        }
    }
    assert_eq!(assembler.spilled_bytes(), 0, "of {} open transactions", assembler.open_transactions());
    story.lines
}

#[derive(Default)]
struct Story {
    tables: BTreeMap<u32, String>,
    begin: Option<String>,
    lines: Vec<String>,
}

impl Story {
    fn take(&mut self, assembled: &Assembled<'_>) {
        match assembled {
            Assembled::Nothing => {}
            Assembled::Begin(begin) => {
                self.begin = Some(format!("begin {begin:?}"));
            }
            Assembled::Change { message: Message::Relation(relation), .. } => {
                assert_eq!(relation.xid, None);
                self.tables.insert(relation.oid, show(&Message::Relation(relation.clone())));
            }
            Assembled::Change { message: Message::Type { .. } | Message::Origin { .. }, .. } => {}
            Assembled::Change { at, message } => {
                // A transaction of which nothing is published may come out empty or not at all.
                self.lines.extend(self.begin.take());
                let oid = match message {
                    Message::Insert { relation, .. }
                    | Message::Update { relation, .. }
                    | Message::Delete { relation, .. } => Some(relation),
                    _ => None,
                };
                let table = oid.map(|oid| self.tables[oid].as_str()).unwrap_or_default();
                self.lines.push(format!("{at} {} {table}", show(message)));
            }
            Assembled::Commit { end_lsn } => {
                if self.begin.take().is_none() {
                    self.lines.push(format!("commit {end_lsn}"));
                }
            }
            Assembled::Loose { at, message } => self.lines.push(format!("{at} {}", show(message))),
        }
    }
}

#[test]
fn golden_transactions_are_the_same_streamed_or_not() {
    let goldens = all();
    let find = |name: &str| goldens.iter().find(|golden| golden.name == name).unwrap();
    for (plain, streamed) in [
        ("messages_15_v1", "messages_15_v2_streamed"),
        ("streamed_15_v1", "streamed_15_v2_streamed"),
        ("messages_18_v1", "messages_18_v2_streamed"),
        ("streamed_18_v1", "streamed_18_v2_streamed"),
        ("streamed_18_v1", "streamed_18_v4_parallel"),
    ] {
        let plain = committed(&find(plain).messages, 0);
        let streamed = committed(&find(streamed).messages, u64::MAX);
        assert!(plain.len() > 10);
        assert_eq!(plain, streamed);
    }
}
