//! Reads the messages of the `pgoutput` plugin: pure, without copying, and without trust.
//!
//! One message in, one [`Message`] out that borrows from it. Protocol versions 1 to 4, values as text or
//! binary. The only state between messages is whether a chunk of a streamed transaction is open, because
//! messages in one carry the (sub)transaction they belong to.
//!
//! Whatever the bytes are, the answer is a message or an error that names the offset: lengths are checked
//! before anything is taken, and nothing is allocated from a length that the server claims.

use std::fmt;

use tenure_stream::identity::Lsn;

/// Most columns of a relation: Postgres' own limit.
const COLUMNS_MAX: usize = 1664;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A committed transaction begins.
    Begin(Begin),
    /// It ends.
    Commit(Commit),
    /// The changes that follow came from another server.
    Origin {
        /// The commit there.
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
    Logical {
        /// Of a streamed transaction.
        xid: Option<Xid>,
        /// Whether it belongs to the transaction, or stands by itself.
        transactional: bool,
        /// Its position.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

/// The values of a [`Tuple`].
#[derive(Debug, Clone)]
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

/// The tables of a truncate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relations<'a>(&'a [u8]);

impl Relations<'_> {
    /// Their numbers.
    pub fn oids(&self) -> impl Iterator<Item = u32> {
        self.0.chunks_exact(4).map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
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
    /// A mark that we do not know.
    UnknownMark(u8),
    /// A kind of message that we do not know.
    UnknownKind,
    /// A message of a prepared transaction: create the slot without `two_phase`.
    TwoPhase,
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
            Problem::UnknownKind => write!(f, "message `{kind}` is of no known kind"),
            Problem::Truncated => write!(f, "message `{kind}` ends at byte {offset}, too early"),
            Problem::Trailing => write!(f, "message `{kind}` goes on after its end at byte {offset}"),
            Problem::BadText => write!(f, "message `{kind}` has a bad text at byte {offset}"),
            Problem::BadLength => write!(f, "message `{kind}` has a bad length at byte {offset}"),
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
    /// If it is not one, with the offset. The decoder may go on with the next.
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let kind = bytes.first().copied().unwrap_or(0);
        let mut reader = Reader { all: bytes, left: bytes.get(1..).unwrap_or(&[]) };
        let message = self.message(kind, &mut reader);
        let message = message
            .and_then(|message| if reader.left.is_empty() { Ok(message) } else { Err(Problem::Trailing) });
        message.map_err(|problem| Malformed { kind, offset: reader.offset(), problem })
    }

    fn message<'a>(&mut self, kind: u8, reader: &mut Reader<'a>) -> Result<Message<'a>, Problem> {
        Ok(match kind {
            b'B' => {
                self.outside_chunk()?;
                Message::Begin(Begin {
                    commit_lsn: reader.lsn()?,
                    committed_micros: reader.i64()?,
                    xid: reader.xid()?,
                })
            }
            b'C' => {
                self.outside_chunk()?;
                Message::Commit(reader.commit()?)
            }
            b'O' => Message::Origin { commit_lsn: reader.lsn()?, name: reader.text()? },
            b'R' => Message::Relation(reader.relation(self.in_chunk)?),
            b'Y' => Message::Type {
                xid: reader.xid_if(self.in_chunk)?,
                oid: reader.u32()?,
                schema: reader.text()?,
                name: reader.text()?,
            },
            b'I' => {
                let (xid, relation) = (reader.xid_if(self.in_chunk)?, reader.u32()?);
                match reader.u8()? {
                    b'N' => Message::Insert { xid, relation, new: reader.tuple()? },
                    mark => return Err(Problem::UnknownMark(mark)),
                }
            }
            b'U' => {
                let (xid, relation) = (reader.xid_if(self.in_chunk)?, reader.u32()?);
                let mut mark = reader.u8()?;
                let old = match mark {
                    b'K' => Some(Old::Key(reader.tuple()?)),
                    b'O' => Some(Old::Full(reader.tuple()?)),
                    _ => None,
                };
                if old.is_some() {
                    mark = reader.u8()?;
                }
                if mark != b'N' {
                    return Err(Problem::UnknownMark(mark));
                }
                Message::Update { xid, relation, old, new: reader.tuple()? }
            }
            b'D' => {
                let (xid, relation) = (reader.xid_if(self.in_chunk)?, reader.u32()?);
                let old = match reader.u8()? {
                    b'K' => Old::Key(reader.tuple()?),
                    b'O' => Old::Full(reader.tuple()?),
                    mark => return Err(Problem::UnknownMark(mark)),
                };
                Message::Delete { xid, relation, old }
            }
            b'T' => reader.truncate(self.in_chunk)?,
            b'M' => Message::Logical {
                xid: reader.xid_if(self.in_chunk)?,
                transactional: reader.u8()? & 1 == 1,
                lsn: reader.lsn()?,
                prefix: reader.text()?,
                content: reader.sized()?,
            },
            b'S' => {
                self.outside_chunk()?;
                let start = Message::StreamStart { xid: reader.xid()?, first: reader.u8()? == 1 };
                self.in_chunk = true;
                start
            }
            b'E' => {
                if !std::mem::take(&mut self.in_chunk) {
                    return Err(Problem::OutOfPlace);
                }
                Message::StreamStop
            }
            b'c' => {
                self.outside_chunk()?;
                Message::StreamCommit { xid: reader.xid()?, commit: reader.commit()? }
            }
            b'A' => {
                self.outside_chunk()?;
                let abort = Message::StreamAbort { xid: reader.xid()?, subxid: reader.xid()? };
                // Protocol 4 with parallel streaming adds where and when, which nobody needs.
                if !reader.left.is_empty() {
                    reader.lsn()?;
                    reader.i64()?;
                }
                abort
            }
            b'b' | b'P' | b'K' | b'r' | b'p' => return Err(Problem::TwoPhase),
            _ => return Err(Problem::UnknownKind),
        })
    }

    const fn outside_chunk(&self) -> Result<(), Problem> {
        if self.in_chunk { Err(Problem::OutOfPlace) } else { Ok(()) }
    }
}

/// Takes bytes from the front, as long as there are any.
struct Reader<'a> {
    all: &'a [u8],
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    const fn offset(&self) -> usize {
        self.all.len() - self.left.len()
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

    fn xid(&mut self) -> Result<Xid, Problem> {
        self.u32().map(Xid)
    }

    fn xid_if(&mut self, in_chunk: bool) -> Result<Option<Xid>, Problem> {
        if in_chunk { self.xid().map(Some) } else { Ok(None) }
    }

    fn text(&mut self) -> Result<&'a str, Problem> {
        let end = self.left.iter().position(|byte| *byte == 0).ok_or(Problem::BadText)?;
        let text = std::str::from_utf8(&self.left[..end]).map_err(|_| Problem::BadText)?;
        self.left = &self.left[end + 1..];
        Ok(text)
    }

    fn sized(&mut self) -> Result<&'a [u8], Problem> {
        let length = usize::try_from(self.i32()?).map_err(|_| Problem::BadLength)?;
        self.take(length)
    }

    fn commit(&mut self) -> Result<Commit, Problem> {
        let _flags = self.u8()?;
        Ok(Commit { commit_lsn: self.lsn()?, end_lsn: self.lsn()?, committed_micros: self.i64()? })
    }

    fn relation(&mut self, in_chunk: bool) -> Result<Relation<'a>, Problem> {
        let xid = self.xid_if(in_chunk)?;
        let (oid, schema, name) = (self.u32()?, self.text()?, self.text()?);
        let identity = match self.u8()? {
            b'd' => ReplicaIdentity::Default,
            b'n' => ReplicaIdentity::Nothing,
            b'f' => ReplicaIdentity::Full,
            b'i' => ReplicaIdentity::Index,
            mark => return Err(Problem::UnknownMark(mark)),
        };
        let count = usize::from(self.u16()?);
        if count > COLUMNS_MAX {
            return Err(Problem::BadLength);
        }
        let mut columns = Vec::new();
        for _ in 0..count {
            columns.push(Column {
                in_identity: self.u8()? & 1 == 1,
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
        let options = self.u8()?;
        let relations = self.take(count.checked_mul(4).ok_or(Problem::BadLength)?)?;
        Ok(Message::Truncate {
            xid,
            cascade: options & 1 != 0,
            restart_identity: options & 2 != 0,
            relations: Relations(relations),
        })
    }

    /// Walks over the columns once, so that taking them later cannot fail.
    fn tuple(&mut self) -> Result<Tuple<'a>, Problem> {
        let columns = self.u16()?;
        if usize::from(columns) > COLUMNS_MAX {
            return Err(Problem::BadLength);
        }
        let start = self.left;
        for _ in 0..columns {
            self.value()?;
        }
        Ok(Tuple { columns, bytes: &start[..start.len() - self.left.len()] })
    }

    fn value(&mut self) -> Result<Value<'a>, Problem> {
        match self.u8()? {
            b'n' => Ok(Value::Null),
            b'u' => Ok(Value::Unchanged),
            b't' => self.sized().map(Value::Text),
            b'b' => self.sized().map(Value::Binary),
            mark => Err(Problem::UnknownMark(mark)),
        }
    }
}
