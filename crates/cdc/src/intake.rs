//! Turns the changes of transactions into events on lanes: pure.
//!
//! - CP-14: the same change gets the same identity on every replay and from every leader. Events with the
//!   same place in the log are counted in the order in which they come.
//! - CP-15: whatever concerns a key goes to the key's lane. An update that changes the key is a delete on
//!   the lane of the old and an insert on the lane of the new.
//! - CP-16: what is too large, or has no JSON form, is parked, and a pointer takes its place.
//! - CP-18: a table that looks otherwise than the leader before has seen it is told of (see [`Shapes`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_stream::identity::{Era, Header, KeyHash, Lane, Lanes, Lsn, Position};

use crate::assembler::{Assembled, Transaction};
use crate::envelope::{self, Event, Op, Pointer, PointerKind};
use crate::pgoutput::{Message, Old, Tuple, Value, Xid};
use crate::publisher::{Barrier, Offer, Parked, Publisher, Refused};
use crate::quarantine::{TABLE, body_of, sha256};
use crate::shapes::Shapes;
use crate::table::{Place, Table, TypeNames};

/// Most of a message's prefix that goes into a partition key.
const PREFIX_CHARACTERS_MAX: usize = 200;

/// Whose events these are.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The pipeline.
    pub source: Arc<str>,
    /// Under which era it publishes.
    pub era: Era,
    /// On how many lanes.
    pub lanes: Lanes,
    /// The leader's epoch.
    pub leader: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Intake {
    pen: Pen,
    tables: Tables,
    /// How they looked to the leader before.
    shapes: Shapes,
    types: TypeNames,
    /// What is to be told, the lanes of the first that were told already left out.
    barrier: VecDeque<Notice>,
    /// How many lanes those are.
    lanes_told: u16,
}

/// The tables that the server has described.
#[derive(Debug, Default)]
struct Tables(BTreeMap<u32, Table>);

impl Tables {
    fn get(&self, oid: u32) -> Result<&Table> {
        self.0.get(&oid).ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                format!("the server sent a row of table {oid} that it did not describe"),
            )
        })
    }
}

/// Writes events.
#[derive(Debug)]
struct Pen {
    origin: Origin,
    open: Option<Open>,
    place: Place,
    scratch: Vec<u8>,
}

/// The transaction that is being taken in.
#[derive(Debug, Clone, Copy)]
struct Open {
    commit: Lsn,
    xid: Option<Xid>,
    committed_micros: Option<i64>,
    /// Where the last event was, and how many there were at that place.
    last: Lsn,
    count: u32,
}

/// What all lanes are told.
#[derive(Debug, Clone, Copy)]
struct Notice {
    at: Lsn,
    table: u32,
    kind: NoticeKind,
}

#[derive(Debug, Clone, Copy)]
enum NoticeKind {
    Schema,
    Truncate { cascade: bool, restart_identity: bool },
}

impl Intake {
    /// Begins with no table known.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        let pen = Pen { origin, open: None, place: Place::default(), scratch: Vec::with_capacity(4096) };
        let (tables, types) = (Tables::default(), TypeNames::default());
        Self { pen, tables, shapes: Shapes::default(), types, barrier: VecDeque::new(), lanes_told: 0 }
    }

    /// With what the leader before has seen.
    #[must_use]
    pub fn with_shapes(mut self, shapes: Shapes) -> Self {
        self.shapes = shapes;
        self
    }

    /// What the next leader must know.
    pub const fn shapes(&mut self) -> &mut Shapes {
        &mut self.shapes
    }

    /// Takes what the assembler gives out, and offers its events.
    ///
    /// # Errors
    /// `Corrupt` if the server sent a row of a table that it did not describe.
    pub fn take(
        &mut self,
        now: Monotonic,
        publisher: &mut Publisher,
        assembled: Assembled<'_>,
    ) -> Result<()> {
        match assembled {
            Assembled::Nothing => {}
            Assembled::Begin(Transaction { commit_lsn, committed_micros, xid }) => {
                publisher.begin();
                self.pen.begin(commit_lsn, Some(xid), Some(committed_micros));
            }
            Assembled::Commit { end_lsn } => {
                self.pen.open = None;
                publisher.commit(end_lsn);
            }
            Assembled::Change { at, message } => self.change(now, publisher, at, message)?,
            Assembled::Loose { at, message } => {
                // It stands by itself, as a transaction of its own that ends where it is: the next
                // commit or keepalive moves beyond it. The server names the end of its record, where the
                // commit of a transaction that began before may begin.
                publisher.begin();
                self.pen.begin(within(at), None, None);
                self.change(now, publisher, at, message)?;
                self.pen.open = None;
                publisher.commit(at);
            }
        }
        Ok(())
    }

    fn change(
        &mut self,
        now: Monotonic,
        publisher: &mut Publisher,
        at: Lsn,
        message: Message<'_>,
    ) -> Result<()> {
        match message {
            Message::Insert { relation, new, .. } => {
                let table = self.tables.get(relation)?;
                let op = Op::Insert { table, new, moved_from: None };
                self.pen.row(now, publisher, at, table, &new, None, &op);
            }
            Message::Update { relation, old, new, .. } => {
                let table = self.tables.get(relation)?;
                match old {
                    Some(old)
                        if table.is_keyed() && table.key_changed(&old, &new) && !planted_key_change() =>
                    {
                        let (Old::Key(before) | Old::Full(before)) = old;
                        let gone = Op::Delete { table, old, moved: true };
                        self.pen.row(now, publisher, at, table, &before, None, &gone);
                        let come = Op::Insert { table, new, moved_from: Some(old) };
                        self.pen.row(now, publisher, at, table, &new, Some(&old), &come);
                    }
                    old => {
                        let op = Op::Update { table, old, new };
                        self.pen.row(now, publisher, at, table, &new, old.as_ref(), &op);
                    }
                }
            }
            Message::Delete { relation, old, .. } => {
                let table = self.tables.get(relation)?;
                let op = Op::Delete { table, old, moved: false };
                let (Old::Key(before) | Old::Full(before)) = old;
                self.pen.row(now, publisher, at, table, &before, None, &op);
            }
            Message::Truncate { cascade, restart_identity, relations, .. } => {
                for oid in relations.oids() {
                    self.tables.get(oid)?;
                    let kind = NoticeKind::Truncate { cascade, restart_identity };
                    self.barrier.push_back(Notice { at, table: oid, kind });
                }
                publisher.barrier_begin();
            }
            Message::Relation(relation) => {
                let table = Table::new(&relation, &self.types);
                let digest = table.digest();
                let changed = match self.tables.0.get(&relation.oid) {
                    Some(known) => !known.is_same_shape(&table),
                    None => self.shapes.differs(relation.oid, digest),
                };
                let known = self.tables.0.insert(relation.oid, table);
                if changed || known.is_none() {
                    let commit = self.pen.open.map_or(Lsn(0), |open| open.commit);
                    self.shapes.saw(commit, relation.oid, digest);
                }
                if changed {
                    // The server gives no place in the log for it: it comes right after the last change.
                    let at = self.pen.open.map_or(Lsn(0), |open| open.last);
                    self.barrier.push_back(Notice { at, table: relation.oid, kind: NoticeKind::Schema });
                    publisher.barrier_begin();
                }
            }
            Message::Type { oid, schema, name, .. } => self.types.learn(oid, schema, name),
            Message::Logical { transactional, prefix, content, .. } => {
                self.pen.message(now, publisher, within(at), prefix, content, transactional);
            }
            Message::Origin { .. } => {}
            Message::Begin(_)
            | Message::Commit(_)
            | Message::StreamStart { .. }
            | Message::StreamStop
            | Message::StreamCommit { .. }
            | Message::StreamAbort { .. } => {
                return Err(Error::new(
                    Kind::Corrupt,
                    "the server sent the frame of a transaction within one",
                ));
            }
        }
        Ok(())
    }

    /// Goes on with a barrier, once all lanes are empty.
    ///
    /// # Errors
    /// As [`Intake::take`].
    pub fn go_on(&mut self, now: Monotonic, publisher: &mut Publisher) -> Result<()> {
        if publisher.barrier() != Barrier::Ready {
            return Ok(());
        }
        while let Some(Notice { at, table, kind }) = self.barrier.front().copied() {
            let table = self.tables.get(table)?;
            let op = match kind {
                NoticeKind::Schema => Op::Schema { table },
                NoticeKind::Truncate { cascade, restart_identity } => {
                    Op::Truncate { table, cascade, restart_identity }
                }
            };
            while self.lanes_told < self.pen.origin.lanes.count() {
                if !publisher.has_room() {
                    // The rest follows when these are settled.
                    return Ok(());
                }
                table.place_whole(&mut self.pen.place);
                self.pen.write(now, publisher, at, Lane(self.lanes_told), &op);
                self.lanes_told += 1;
            }
            self.barrier.pop_front();
            self.lanes_told = 0;
        }
        publisher.barrier_offered();
        Ok(())
    }

    /// Parks what the stream refused for good.
    pub fn replace(&self, now: Monotonic, publisher: &mut Publisher, refused: Refused) {
        let Refused { lane, events, reason } = refused;
        let pointers = events.iter().map(|event| {
            let parked = Parked { content: body_of(&event.bytes), reason: Some(reason.clone()) };
            let link = publisher.link(lane);
            let header = Header { prev: event.prev, ..self.pen.header(event.id, lane, &link) };
            let mut pointer = Vec::new();
            self.pen.write_pointer(&mut pointer, &header, &parked, "refused", None);
            (pointer, parked)
        });
        let pointers = pointers.collect();
        publisher.replace(now, lane, pointers);
    }
}

/// The place of a logical message, of which the server names the end of its record: the next record begins there,
/// and within this one nothing else is.
const fn within(end: Lsn) -> Lsn {
    Lsn(end.0.saturating_sub(1))
}

fn planted_key_change() -> bool {
    tenure_planted::is("key_change_is_update")
}

impl Pen {
    fn begin(&mut self, commit: Lsn, xid: Option<Xid>, committed_micros: Option<i64>) {
        self.open = Some(Open { commit, xid, committed_micros, last: Lsn(0), count: 0 });
    }

    /// An event about one row.
    #[expect(clippy::too_many_arguments, reason = "a row, what it was, what happened, and where to")]
    fn row(
        &mut self,
        now: Monotonic,
        publisher: &mut Publisher,
        at: Lsn,
        table: &Table,
        row: &Tuple<'_>,
        before: Option<&Old<'_>>,
        op: &Op<'_>,
    ) {
        // A key that is not told has no lane of its own; the event itself will be parked.
        let hash = table.place(&mut self.place, row, before);
        let hash = hash.unwrap_or_else(|_| table.place_whole(&mut self.place));
        self.write(now, publisher, at, self.origin.lanes.of(hash), op);
    }

    fn message(
        &mut self,
        now: Monotonic,
        publisher: &mut Publisher,
        at: Lsn,
        prefix: &str,
        content: &[u8],
        transactional: bool,
    ) {
        self.place.partition_key.clear();
        self.place.partition_key.push_str("message/");
        self.place.partition_key.extend(prefix.chars().take(PREFIX_CHARACTERS_MAX));
        let mut hash = KeyHash::of_table("", "message");
        hash.add(Some(prefix.as_bytes()));
        let op = Op::Message { prefix, content, transactional };
        self.write(now, publisher, at, self.origin.lanes.of(hash.digest()), &op);
    }

    /// Writes an event and offers it. `self.place` holds its partition key.
    fn write(&mut self, now: Monotonic, publisher: &mut Publisher, at: Lsn, lane: Lane, op: &Op<'_>) {
        let Some(open) = &mut self.open else { return };
        let id = open.number(self.origin.era, at);
        let (xid, committed_micros) = (open.xid, open.committed_micros);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let header = self.header(id, lane, &publisher.link(lane));
        let written = envelope::write(&mut scratch, &Event { header, op: *op, xid, committed_micros });
        let partition_key = &*self.place.partition_key;
        let parked = match written {
            Ok(()) if publisher.fits(partition_key, scratch.len()) => None,
            Ok(()) => Some(Parked { content: body_of(&scratch), reason: None }),
            Err(_) if tenure_planted::is("unfit_is_left_out") => return,
            Err(why) => Some(Parked { content: raw(op), reason: Some(why.to_string().into()) }),
        };
        if let Some(parked) = &parked {
            scratch.clear();
            self.write_pointer(&mut scratch, &header, parked, op.name(), op.table());
        }
        publisher.offer(now, Offer { lane, id, partition_key, bytes: &scratch, parked });
        // One huge event is no reason to keep its memory.
        if scratch.capacity() > 1 << 20 {
            scratch = Vec::with_capacity(4096);
        }
        self.scratch = scratch;
    }

    fn header(&self, id: Position, lane: Lane, link: &crate::publisher::Link) -> Header<'_> {
        let Origin { source, lanes, leader, .. } = &self.origin;
        Header { source, id, lane, lanes: *lanes, prev: link.prev, floor: link.floor, leader: *leader }
    }

    fn write_pointer(
        &self,
        out: &mut Vec<u8>,
        header: &Header<'_>,
        parked: &Parked,
        op: &str,
        table: Option<&Table>,
    ) {
        let kind = if parked.reason.is_none() { PointerKind::ClaimCheck } else { PointerKind::Quarantined };
        let place = format!("{TABLE}/{}/{}", self.origin.source, header.id);
        let pointer = Pointer {
            kind,
            place: &place,
            bytes: parked.content.len() as u64,
            sha256: &sha256(&parked.content),
            reason: parked.reason.as_deref(),
            op,
            table,
        };
        envelope::write_pointer(out, header, &pointer);
    }
}

impl Open {
    /// The identity of the next event (CP-14).
    fn number(&mut self, era: Era, at: Lsn) -> Position {
        // Places rise within a transaction. If one ever fell, the event would still come after the last.
        if at > self.last {
            self.last = at;
            self.count = 0;
        }
        let k = self.count;
        self.count += 1;
        let k = if tenure_planted::is("every_k_is_zero") { 0 } else { k };
        Position { era, commit: self.commit, change: self.last, k }
    }
}

/// What the log tells of an event that has no JSON form: its values as they came, in base64.
fn raw(op: &Op<'_>) -> Bytes {
    let values = |tuple: &Tuple<'_>| -> Json {
        let value = |value: Value<'_>| match value {
            Value::Null => Json::Null,
            Value::Unchanged => json!({"unchanged": true}),
            Value::Text(bytes) => json!({"text": STANDARD.encode(bytes)}),
            Value::Binary(bytes) => json!({"binary": STANDARD.encode(bytes)}),
        };
        tuple.values().map(value).collect()
    };
    let before = |old: &Old<'_>| match old {
        Old::Key(tuple) | Old::Full(tuple) => values(tuple),
    };
    let (old, new) = match op {
        Op::Insert { new, moved_from, .. } => (moved_from.as_ref().map(before), Some(values(new))),
        Op::Update { old, new, .. } => (old.as_ref().map(before), Some(values(new))),
        Op::Delete { old, .. } => (Some(before(old)), None),
        Op::Truncate { .. } | Op::Schema { .. } | Op::Message { .. } => (None, None),
    };
    let table = op.table();
    let columns: Option<Vec<&str>> =
        table.map(|table| table.columns.iter().map(|column| &*column.name).collect());
    let raw = json!({
        "op": op.name(),
        "schema": table.map(|table| &*table.schema),
        "table": table.map(|table| &*table.name),
        "columns": columns,
        "raw_before": old,
        "raw_after": new,
    });
    raw.to_string().into()
}

#[cfg(test)]
#[path = "intake_test.rs"]
mod tests;
