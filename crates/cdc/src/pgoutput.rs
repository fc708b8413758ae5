//! Reads the messages of the `pgoutput` plugin: pure, without copying, and without trust.
//!
//! One message in, one [`Message`] out that borrows from it. Protocol versions 1 to 4, values as text or
//! binary. The only state between messages is whether a chunk of a streamed transaction is open, because
//! messages in one carry the (sub)transaction they belong to.
//!
//! Whatever the bytes are, the answer is a message or an error that names the offset: lengths are checked
//! before anything is taken, and nothing is allocated from a length that the server claims.
//!
//! Names come in the client's encoding, so the session must have set `client_encoding` to UTF8.
//! `Debug` tells how long values are and never what they are: rows stay out of logs.

use std::fmt;

use tenure_stream::identity::Lsn;

/// Most columns of a row: Postgres' own limit. A table may have a few less.
const COLUMNS_MAX: usize = 1664;

/// One message.
#[derive(Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A committed transaction begins.
    Begin(Begin),
    /// It ends.
    Commit(Commit),
    /// The transaction came from another server. In a chunk it names no (sub)transaction: it is about the whole.
    Origin {
        /// The commit there; 0 in a chunk, since the transaction is still under way.
        commit_lsn: Lsn,
        /// The origin's name.
        name: &'a str,
    },
    /// What a table looks like, from here on.
    Relation(Relation<'a>),
    /// A type that is not built in.
    Type {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// The type.
        oid: u32,
        /// Its schema; empty for `pg_catalog`.
        schema: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A row came to be.
    Insert {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// The table.
        relation: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row changed.
    Update {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// The table.
        relation: u32,
        /// What is known of the row before.
        old: Option<Old<'a>>,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row went away.
    Delete {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// The table.
        relation: u32,
        /// What is known of it.
        old: Old<'a>,
    },
    /// Tables were emptied.
    Truncate {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// `CASCADE` was given.
        cascade: bool,
        /// `RESTART IDENTITY` was given.
        restart_identity: bool,
        /// The tables.
        relations: Relations<'a>,
    },
    /// A message of `pg_logical_emit_message`.
    ///
    /// One that belongs to no transaction is sent as soon as the server reads it, between transactions and
    /// between chunks. Were it ever sent in a chunk it would carry an `xid` as everything else there does.
    Logical {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// Whether it belongs to the transaction, or stands by itself.
        transactional: bool,
        /// Where it is in the log.
        lsn: Lsn,
        /// What it is about.
        prefix: &'a str,
        /// What it says.
        content: &'a [u8],
    },
    /// A chunk of a transaction that is still under way begins.
    StreamStart {
        /// The transaction.
        xid: Xid,
        /// Whether this is its first chunk.
        first: bool,
    },
    /// The chunk ends.
    StreamStop,
    /// A streamed transaction committed.
    StreamCommit {
        /// The transaction.
        xid: Xid,
        /// Where and when.
        commit: Commit,
    },
    /// A streamed transaction, or a part of it, was undone.
    StreamAbort {
        /// The transaction.
        xid: Xid,
        /// The part; the same as `xid` if it is the whole.
        subxid: Xid,
    },
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |f: &mut fmt::Formatter<'_>, name: &str, fields: &[(&str, &dyn fmt::Debug)]| {
            let mut shown = f.debug_struct(name);
            for (field, value) in fields {
                shown.field(field, value);
            }
            shown.finish()
        };
        match self {
            Self::Begin(begin) => begin.fmt(f),
            Self::Commit(commit) => commit.fmt(f),
            Self::Origin { commit_lsn, name } => {
                named(f, "Origin", &[("commit_lsn", commit_lsn), ("name", name)])
            }
            Self::Relation(relation) => relation.fmt(f),
            Self::Type { xid, oid, schema, name } => {
                named(f, "Type", &[("xid", xid), ("oid", oid), ("schema", schema), ("name", name)])
            }
            Self::Insert { xid, relation, new } => {
                named(f, "Insert", &[("xid", xid), ("relation", relation), ("new", new)])
            }
            Self::Update { xid, relation, old, new } => {
                named(f, "Update", &[("xid", xid), ("relation", relation), ("old", old), ("new", new)])
            }
            Self::Delete { xid, relation, old } => {
                named(f, "Delete", &[("xid", xid), ("relation", relation), ("old", old)])
            }
            Self::Truncate { xid, cascade, restart_identity, relations } => {
                let options: [(&str, &dyn fmt::Debug); 4] = [
                    ("xid", xid),
                    ("cascade", cascade),
                    ("restart_identity", restart_identity),
                    ("relations", relations),
                ];
                named(f, "Truncate", &options)
            }
            Self::Logical { xid, transactional, lsn, prefix, content } => {
                let fields: [(&str, &dyn fmt::Debug); 5] = [
                    ("xid", xid),
                    ("transactional", transactional),
                    ("lsn", lsn),
                    ("prefix", prefix),
                    ("content_bytes", &content.len()),
                ];
                named(f, "Logical", &fields)
            }
            Self::StreamStart { xid, first } => named(f, "StreamStart", &[("xid", xid), ("first", first)]),
            Self::StreamStop => f.write_str("StreamStop"),
            Self::StreamCommit { xid, commit } => {
                named(f, "StreamCommit", &[("xid", xid), ("commit", commit)])
            }
            Self::StreamAbort { xid, subxid } => named(f, "StreamAbort", &[("xid", xid), ("subxid", subxid)]),
        }
    }
}

/// A transaction's number, while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u32);

/// The beginning of a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where its commit record is: known from the first message on.
    pub commit_lsn: Lsn,
    /// When it committed, in microseconds since 2000-01-01 UTC.
    pub committed_micros: i64,
    /// The transaction.
    pub xid: Xid,
}

/// The end of a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where its commit record is.
    pub commit_lsn: Lsn,
    /// Where that record ends: the only position that may be confirmed.
    pub end_lsn: Lsn,
    /// When, in microseconds since 2000-01-01 UTC.
    pub committed_micros: i64,
}

/// What identifies a row of a table, as far as the log tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// The primary key.
    Default,
    /// Nothing.
    Nothing,
    /// All columns.
    Full,
    /// A chosen unique index.
    Index,
}

/// What a table looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation<'a> {
    /// Of a streamed transaction.
    pub xid: Option<Xid>,
    /// The table.
    pub oid: u32,
    /// Its schema; empty for `pg_catalog`.
    pub schema: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What identifies a row.
    pub identity: ReplicaIdentity,
    /// Its columns, those that are published.
    pub columns: Vec<Column<'a>>,
}

/// One column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column<'a> {
    /// Whether it belongs to the replica identity.
    pub in_identity: bool,
    /// Its name.
    pub name: &'a str,
    /// Its type.
    pub type_oid: u32,
    /// The type's modifier, −1 without one.
    pub type_modifier: i32,
}

/// What is known of a row as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old<'a> {
    /// The columns of its identity; the others are null.
    Key(Tuple<'a>),
    /// All columns.
    Full(Tuple<'a>),
}

/// The values of a row, checked when the message was read, and taken one by one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    /// Exactly the columns, no byte more.
    bytes: &'a [u8],
}

/// One value of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Null.
    Null,
    /// A large value that did not change, and was not sent.
    Unchanged,
    /// As text.
    Text(&'a [u8]),
    /// As the type's own bytes.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// How many columns there are.
    pub const fn len(&self) -> usize {
        self.columns as usize
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The values, in the order of the relation's columns.
    pub fn values(&self) -> Values<'a> {
        Values { left: self.columns, bytes: self.bytes }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::Text(bytes) => write!(f, "Text({} bytes)", bytes.len()),
            Self::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

/// The values of a [`Tuple`].
#[derive(Clone)]
pub struct Values<'a> {
    left: u16,
    bytes: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut reader = Reader { all: self.bytes, left: self.bytes };
        // The same walk succeeded when the message was read.
        let value = reader.value().ok()?;
        self.bytes = reader.left;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// The tables of a truncate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Relations<'a>(&'a [u8]);

impl fmt::Debug for Relations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.oids()).finish()
    }
}

impl<'a> Relations<'a> {
    /// Their numbers.
    pub fn oids(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0.as_chunks().0.iter().map(|four| u32::from_be_bytes(*four))
    }
}

/// What was sent is not a message that we know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The kind of the message, as its first byte.
    pub kind: u8,
    /// Where in the message.
    pub offset: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// See [`Malformed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// It ends too early.
    Truncated,
    /// Bytes follow its end.
    Trailing,
    /// A text without end, or not UTF-8.
    BadText,
    /// A count or length below zero or beyond its limit.
    BadLength,
    /// A mark or flag that we do not know.
    UnknownMark(u8),
    /// A kind of message that we do not know.
    UnknownKind,
    /// A message of a prepared transaction: create the slot without `two_phase`.
    TwoPhase,
    /// A commit without a place in the log, on which everything else rests.
    NoPosition,
    /// A chunk begins within a chunk, or ends outside one, or a commit comes within one.
    OutOfPlace,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, offset, problem } = self;
        let kind = char::from(*kind).escape_default();
        match problem {
            Problem::TwoPhase => write!(
                f,
                "message `{kind}` belongs to a prepared transaction: create the slot without two_phase"
            ),
            Problem::UnknownMark(mark) => write!(
                f,
                "message `{kind}` has the unknown mark `{}` at byte {offset}",
                char::from(*mark).escape_default()
            ),
            Problem::UnknownKind => write!(f, "message `{kind}` is of no known kind: use protocol 1 to 4"),
            Problem::Truncated => {
                write!(f, "message `{kind}` ends too early, in what begins at byte {offset}")
            }
            Problem::Trailing => write!(f, "message `{kind}` goes on after its end at byte {offset}"),
            Problem::BadText => write!(
                f,
                "message `{kind}` has at byte {offset} a text that does not end or is not UTF-8: \
                 set client_encoding to UTF8"
            ),
            Problem::BadLength => write!(f, "message `{kind}` has a bad length at byte {offset}"),
            Problem::NoPosition => write!(f, "message `{kind}` has no commit position at byte {offset}"),
            Problem::OutOfPlace => write!(f, "message `{kind}` comes where it cannot"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Reads messages one after another.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    /// A chunk of a streamed transaction is open.
    in_chunk: bool,
}

impl Decoder {
    /// Reads one message.
    ///
    /// # Errors
    /// If it is not one, with the offset. The decoder is then as it was before.
    #[inline]
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let mut reader = Reader { all: bytes, left: bytes };
        let message = reader
            .message(self.in_chunk)
            .and_then(|message| if reader.left.is_empty() { Ok(message) } else { Err(Problem::Trailing) });
        match message {
            Ok(message) => {
                match message {
                    Message::StreamStart { .. } => self.in_chunk = true,
                    Message::StreamStop => self.in_chunk = false,
                    _ => {}
                }
                Ok(message)
            }
            Err(problem) => {
                Err(Malformed { kind: bytes.first().copied().unwrap_or(0), offset: reader.offset(), problem })
            }
        }
    }
}

/// Takes bytes from the front, as long as there are any. What cannot be taken stays, so that the offset is
/// where the trouble begins.
struct Reader<'a> {
    all: &'a [u8],
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    const fn offset(&self) -> usize {
        self.all.len() - self.left.len()
    }

    fn message(&mut self, in_chunk: bool) -> Result<Message<'a>, Problem> {
        let kind = self.u8()?;
        Ok(match kind {
            b'I' => {
                let (xid, relation) = (self.xid_if(in_chunk)?, self.u32()?);
                self.mark(b'N')?;
                Message::Insert { xid, relation, new: self.tuple()? }
            }
            b'U' => {
                let (xid, relation) = (self.xid_if(in_chunk)?, self.u32()?);
                let old = self.old()?;
                self.mark(b'N')?;
                Message::Update { xid, relation, old, new: self.tuple()? }
            }
            b'D' => {
                let (xid, relation) = (self.xid_if(in_chunk)?, self.u32()?);
                let old = self.old()?;
                let old = old.ok_or_else(|| self.unknown_mark())?;
                Message::Delete { xid, relation, old }
            }
            b'B' if !in_chunk => Message::Begin(Begin {
                commit_lsn: self.commit_lsn()?,
                committed_micros: self.i64()?,
                xid: self.xid()?,
            }),
            b'C' if !in_chunk => Message::Commit(self.commit()?),
            b'R' => Message::Relation(self.relation(in_chunk)?),
            b'Y' => Message::Type {
                xid: self.xid_if(in_chunk)?,
                oid: self.u32()?,
                schema: self.text()?,
                name: self.text()?,
            },
            b'O' => Message::Origin { commit_lsn: self.lsn()?, name: self.text()? },
            b'T' => self.truncate(in_chunk)?,
            b'M' => Message::Logical {
                xid: self.xid_if(in_chunk)?,
                transactional: self.flag()?,
                lsn: self.lsn()?,
                prefix: self.text()?,
                content: self.sized()?,
            },
            b'S' if !in_chunk => Message::StreamStart { xid: self.xid()?, first: self.flag()? },
            b'E' if in_chunk => Message::StreamStop,
            b'c' if !in_chunk => Message::StreamCommit { xid: self.xid()?, commit: self.commit()? },
            b'A' if !in_chunk => {
                let abort = Message::StreamAbort { xid: self.xid()?, subxid: self.xid()? };
                // Protocol 4 with parallel streaming adds where and when, which nobody needs.
                if !self.left.is_empty() {
                    self.lsn()?;
                    self.i64()?;
                }
                abort
            }
            b'B' | b'C' | b'S' | b'E' | b'c' | b'A' => return Err(Problem::OutOfPlace),
            b'b' | b'P' | b'K' | b'r' | b'p' => return Err(Problem::TwoPhase),
            _ => return Err(Problem::UnknownKind),
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Problem> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(Problem::Truncated)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let (taken, left) = self.left.split_first_chunk::<N>().ok_or(Problem::Truncated)?;
        self.left = left;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Problem> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Problem> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        self.array().map(u32::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, Problem> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, Problem> {
        self.array().map(i64::from_be_bytes)
    }

    fn lsn(&mut self) -> Result<Lsn, Problem> {
        self.array().map(u64::from_be_bytes).map(Lsn)
    }

    fn commit_lsn(&mut self) -> Result<Lsn, Problem> {
        if self.left.first_chunk() == Some(&[0; 8]) { Err(Problem::NoPosition) } else { self.lsn() }
    }

    fn xid(&mut self) -> Result<Xid, Problem> {
        self.u32().map(Xid)
    }

    fn xid_if(&mut self, in_chunk: bool) -> Result<Option<Xid>, Problem> {
        if in_chunk { self.xid().map(Some) } else { Ok(None) }
    }

    /// The problem of a byte that is not what it can be.
    fn unknown_mark(&self) -> Problem {
        self.left.first().map_or(Problem::Truncated, |mark| Problem::UnknownMark(*mark))
    }

    /// Exactly this byte.
    fn mark(&mut self, mark: u8) -> Result<(), Problem> {
        match self.left.split_first() {
            Some((first, left)) if *first == mark => {
                self.left = left;
                Ok(())
            }
            _ => Err(self.unknown_mark()),
        }
    }

    /// 0 or 1. Another number would be a flag that we do not know the meaning of.
    fn flag(&mut self) -> Result<bool, Problem> {
        match self.left.split_first() {
            Some((flag @ (0 | 1), left)) => {
                self.left = left;
                Ok(*flag == 1)
            }
            _ => Err(self.unknown_mark()),
        }
    }

    fn text(&mut self) -> Result<&'a str, Problem> {
        let end = self.left.iter().position(|byte| *byte == 0).ok_or(Problem::BadText)?;
        let text = std::str::from_utf8(&self.left[..end]).map_err(|_| Problem::BadText)?;
        self.left = &self.left[end + 1..];
        Ok(text)
    }

    fn sized(&mut self) -> Result<&'a [u8], Problem> {
        let before = self.left;
        let taken = match usize::try_from(self.i32()?) {
            Ok(length) => self.take(length),
            Err(_) => Err(Problem::BadLength),
        };
        if taken.is_err() {
            self.left = before;
        }
        taken
    }

    fn commit(&mut self) -> Result<Commit, Problem> {
        // Flags, of which none exists so far.
        self.mark(0)?;
        Ok(Commit { commit_lsn: self.commit_lsn()?, end_lsn: self.lsn()?, committed_micros: self.i64()? })
    }

    fn relation(&mut self, in_chunk: bool) -> Result<Relation<'a>, Problem> {
        let xid = self.xid_if(in_chunk)?;
        let (oid, schema, name) = (self.u32()?, self.text()?, self.text()?);
        let identity = match self.left.first() {
            Some(b'd') => ReplicaIdentity::Default,
            Some(b'n') => ReplicaIdentity::Nothing,
            Some(b'f') => ReplicaIdentity::Full,
            Some(b'i') => ReplicaIdentity::Index,
            _ => return Err(self.unknown_mark()),
        };
        self.u8()?;
        let count = self.column_count()?;
        let mut columns = Vec::new();
        for _ in 0..count {
            columns.push(Column {
                in_identity: self.flag()?,
                name: self.text()?,
                type_oid: self.u32()?,
                type_modifier: self.i32()?,
            });
        }
        Ok(Relation { xid, oid, schema, name, identity, columns })
    }

    fn truncate(&mut self, in_chunk: bool) -> Result<Message<'a>, Problem> {
        let xid = self.xid_if(in_chunk)?;
        let count = usize::try_from(self.i32()?).map_err(|_| Problem::BadLength)?;
        let options = match self.left.first() {
            Some(options @ 0..=3) => *options,
            _ => return Err(self.unknown_mark()),
        };
        self.u8()?;
        let relations = self.take(count.checked_mul(4).ok_or(Problem::BadLength)?)?;
        Ok(Message::Truncate {
            xid,
            cascade: options & 1 != 0,
            restart_identity: options & 2 != 0,
            relations: Relations(relations),
        })
    }

    fn column_count(&mut self) -> Result<u16, Problem> {
        let before = self.left;
        let columns = self.u16()?;
        if usize::from(columns) > COLUMNS_MAX {
            self.left = before;
            return Err(Problem::BadLength);
        }
        Ok(columns)
    }

    /// What precedes the new row, if anything does.
    fn old(&mut self) -> Result<Option<Old<'a>>, Problem> {
        let old = match self.left.first() {
            Some(b'K') => Old::Key,
            Some(b'O') => Old::Full,
            _ => return Ok(None),
        };
        self.u8()?;
        self.tuple().map(old).map(Some)
    }

    /// Walks over the columns once, so that taking them later cannot fail.
    fn tuple(&mut self) -> Result<Tuple<'a>, Problem> {
        let columns = self.column_count()?;
        let start = self.left;
        for _ in 0..columns {
            self.value()?;
        }
        Ok(Tuple { columns, bytes: &start[..start.len() - self.left.len()] })
    }

    #[inline]
    fn value(&mut self) -> Result<Value<'a>, Problem> {
        let before = self.left;
        let value = match self.u8()? {
            b't' => self.sized().map(Value::Text),
            b'n' => Ok(Value::Null),
            b'b' => self.sized().map(Value::Binary),
            b'u' => Ok(Value::Unchanged),
            mark => Err(Problem::UnknownMark(mark)),
        };
        if value.is_err() {
            self.left = before;
        }
        value
    }
}

#[cfg(test)]
#[path = "pgoutput_test.rs"]
mod tests;
