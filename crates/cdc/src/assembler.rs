//! Gives out whole committed transactions, in the order of their commits, whichever way the server sent them.
//!
//! A transaction that fits the server's memory comes in one piece after its commit, and passes straight
//! through. A large one comes in chunks while it is under way, between other transactions. Its chunks are set
//! aside, in memory first and then in a file, until it commits and is given out in one piece too.
//!
//! ```text
//! from the server   [T1 chunk] (T2 whole) [T1 chunk] [T3 chunk] (T1 commits) (T3 rolls back)
//! given out                     T2 T2                            T1 T1 T1
//! ```
//!
//! A message is given out byte for byte as it would have come without chunks: the number of the
//! subtransaction, which only chunks carry, is taken off. So who a change is does not depend on how large its
//! transaction was or how much memory the server had. What does differ: the server repeats `Relation` and
//! `Type` for each streamed transaction, a streamed `Origin` does not tell the commit there, and a streamed
//! transaction of which nothing is published comes out empty.
//!
//! What a rolled back subtransaction sent is left out, its `Relation`s and `Type`s too. They may describe a
//! table as it never was for anybody else (`ALTER TABLE` after the savepoint), and the server forgets at each
//! roll back what it described in this transaction, and describes it again.
//!
//! One thing cannot be told from what the server sends: it names the whole transaction with each logical
//! message in a chunk, also if a subtransaction emitted it. If one is rolled back after that, the message may
//! have gone with it or not. Such a transaction is refused at its commit, with the advice to do without
//! streaming, rather than given out with a message too many or too few.
//!
//! Nothing here is durable, nor needs to be: the server sends again what was not confirmed.
//!
//! Invariant AS-1: between `Begin` and `Commit` everything belongs to one committed transaction.
//! Invariant AS-2: after an error nothing more is given out, so no transaction comes out with a part missing.

use std::collections::BTreeMap;
use std::fmt;

use tenure_backend::{Error, Kind, Result};
use tenure_stream::identity::Lsn;

use crate::pgoutput::{Begin, Commit, Decoder, Malformed, Message, Relation, Xid};
pub use crate::spill::SpillSettings;
use crate::spill::{Directory, Disk, Record, Replay, Spill, Spool};

/// Most runs of consecutive subtransactions that a transaction may roll back after they were streamed: 8 MiB.
const ABORTED_RUNS_MAX: usize = 1 << 20;

/// A committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// Where its commit record is.
    pub commit_lsn: Lsn,
    /// When it committed, in microseconds since 2000-01-01 UTC.
    pub committed_micros: i64,
    /// Its number.
    pub xid: Xid,
}

/// What a message amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled<'a> {
    /// Nothing to pass on: it was set aside, or only ends what was.
    Nothing,
    /// A committed transaction begins; everything until `Commit` belongs to it.
    Begin(Transaction),
    /// Of the transaction: a relation, type, origin, insert, update, delete, truncate or transactional logical
    /// message. It has no `xid`, streamed or not.
    Change {
        /// The change's place in the log. The server gives none (0) for relations and types.
        at: Lsn,
        /// What changed.
        message: Message<'a>,
    },
    /// The transaction ends.
    Commit {
        /// Where its commit record ends: what may be confirmed once all of it is settled.
        end_lsn: Lsn,
    },
    /// A logical message that belongs to no transaction.
    Loose {
        /// Its place in the log.
        at: Lsn,
        /// The message.
        message: Message<'a>,
    },
}

/// See the [module](self).
pub struct Assembler {
    decoder: Decoder,
    spill: Spill,
    /// Streamed transactions that are under way.
    streamed: BTreeMap<Xid, Streamed>,
    state: State,
}

enum State {
    /// Between transactions and chunks.
    Idle,
    /// In a transaction that came in one piece.
    Passing(Begin),
    /// In a chunk.
    Chunk {
        /// Of this transaction,
        xid: Xid,
        /// which is not among the others meanwhile.
        streamed: Streamed,
    },
    /// A streamed transaction is being given out.
    Replaying(Box<Replaying>),
    /// Something failed.
    Stopped,
}

#[derive(Default)]
struct Streamed {
    spool: Spool,
    aborted: Aborted,
    /// A logical message came, and we do not know of which subtransaction.
    has_message: bool,
    /// After that a subtransaction was rolled back: maybe that one.
    is_doubtful: bool,
}

struct Replaying {
    replay: Replay,
    aborted: Aborted,
    end_lsn: Lsn,
}

/// The subtransactions that were rolled back, as runs of consecutive numbers: whoever rolls back a million of
/// them mostly did so in one go.
#[derive(Default)]
struct Aborted {
    runs: Vec<(Xid, Xid)>,
}

impl Assembler {
    /// An assembler for one session: each begins with a new one, since the server sends everything again.
    pub fn new(spill: SpillSettings) -> Self {
        Self::on(Box::new(Directory(spill.directory)), spill.bytes_max)
    }

    fn on(disk: Box<dyn Disk>, bytes_max: u64) -> Self {
        Self {
            decoder: Decoder::default(),
            spill: Spill::new(disk, bytes_max),
            streamed: BTreeMap::new(),
            state: State::Idle,
        }
    }

    /// Takes the next message from the server, with its place in the log (`wal_start`).
    ///
    /// # Errors
    /// `Invalid` while [`is_replaying`](Self::is_replaying), which changes nothing. After every other error the
    /// assembler refuses to go on: make a new session and a new assembler, nothing was confirmed.
    /// - `Corrupt`: the message is malformed or out of place.
    /// - `Unavailable`, `Denied`: the disk is full or cannot be written to.
    /// - `Invalid`: there is no such directory, a bound is exceeded, a streamed transaction cannot be told from
    ///   what it rolled back (see the [module](self)), or an error came before.
    #[inline]
    pub fn push<'a>(&mut self, at: Lsn, bytes: &'a [u8]) -> Result<Assembled<'a>> {
        match self.state {
            State::Replaying(_) => {
                return Err(Error::invalid(
                    "a committed transaction is still being given out: call replay until it gave the commit",
                ));
            }
            State::Stopped => return Err(stopped()),
            _ => {}
        }
        let pushed = self.push_next(at, bytes);
        if pushed.is_err() {
            self.stop();
        }
        pushed
    }

    fn push_next<'a>(&mut self, at: Lsn, bytes: &'a [u8]) -> Result<Assembled<'a>> {
        let message = self.decoder.decode(bytes).map_err(malformed)?;
        match message {
            Message::Insert { xid, .. }
            | Message::Update { xid, .. }
            | Message::Delete { xid, .. }
            | Message::Type { xid, .. }
            | Message::Truncate { xid, .. }
            | Message::Relation(Relation { xid, .. })
            | Message::Logical { transactional: true, xid, .. } => self.change(at, xid, message, bytes),
            Message::Origin { .. } => self.change(at, None, message, bytes),
            Message::Logical { transactional: false, lsn, prefix, content, .. } => {
                let message = Message::Logical { xid: None, transactional: false, lsn, prefix, content };
                Ok(Assembled::Loose { at, message })
            }
            Message::Begin(begin) => self.begin(begin),
            Message::Commit(commit) => self.commit(commit),
            Message::StreamStart { xid, first } => self.chunk_starts(xid, first),
            Message::StreamStop => self.chunk_stops(),
            Message::StreamCommit { xid, commit } => self.streamed_commit(xid, commit),
            Message::StreamAbort { xid, subxid } => self.streamed_abort(xid, subxid),
        }
    }

    fn change<'a>(
        &mut self,
        at: Lsn,
        subxid: Option<Xid>,
        message: Message<'a>,
        bytes: &'a [u8],
    ) -> Result<Assembled<'a>> {
        match &mut self.state {
            State::Passing(_) => Ok(Assembled::Change { at, message }),
            State::Chunk { xid, streamed } => {
                // The kind, then the number of the subtransaction if there is one, then what a transaction in
                // one piece would have as well. It was decoded just now, so it is that long.
                let (kind, rest) = match subxid {
                    Some(_) => (bytes.first(), bytes.get(5..)),
                    None => (bytes.first(), bytes.get(1..)),
                };
                let (Some(kind), Some(rest)) = (kind, rest) else { return Err(out_of_place()) };
                streamed.has_message |= matches!(message, Message::Logical { .. });
                self.spill.append(&mut streamed.spool, at, subxid.unwrap_or(*xid), *kind, rest)?;
                Ok(Assembled::Nothing)
            }
            _ => Err(out_of_place()),
        }
    }

    fn begin<'a>(&mut self, begin: Begin) -> Result<Assembled<'a>> {
        self.expect_idle("a transaction begins")?;
        self.state = State::Passing(begin);
        let Begin { commit_lsn, committed_micros, xid } = begin;
        Ok(Assembled::Begin(Transaction { commit_lsn, committed_micros, xid }))
    }

    fn commit<'a>(&mut self, commit: Commit) -> Result<Assembled<'a>> {
        match self.state {
            State::Passing(begin) if begin.commit_lsn == commit.commit_lsn => {
                self.state = State::Idle;
                Ok(Assembled::Commit { end_lsn: commit.end_lsn })
            }
            State::Passing(begin) => Err(disorder(format!(
                "a transaction began with the commit position {} and ended with {}",
                begin.commit_lsn, commit.commit_lsn
            ))),
            _ => Err(disorder("a transaction ends that did not begin")),
        }
    }

    fn chunk_starts<'a>(&mut self, xid: Xid, first: bool) -> Result<Assembled<'a>> {
        self.expect_idle("a chunk begins")?;
        let streamed = match (self.streamed.remove(&xid), first) {
            (None, true) => Streamed::default(),
            (Some(streamed), false) => streamed,
            (None, false) => {
                return Err(disorder(format!("the first chunk of transaction {} is missing", xid.0)));
            }
            (Some(_), true) => {
                return Err(disorder(format!("transaction {} has two first chunks", xid.0)));
            }
        };
        self.state = State::Chunk { xid, streamed };
        Ok(Assembled::Nothing)
    }

    fn chunk_stops<'a>(&mut self) -> Result<Assembled<'a>> {
        let State::Chunk { xid, mut streamed } = std::mem::replace(&mut self.state, State::Idle) else {
            return Err(disorder("a chunk ends that did not begin"));
        };
        self.spill.settle(&mut streamed.spool)?;
        self.streamed.insert(xid, streamed);
        Ok(Assembled::Nothing)
    }

    fn streamed_commit<'a>(&mut self, xid: Xid, commit: Commit) -> Result<Assembled<'a>> {
        self.expect_idle("a streamed transaction commits")?;
        let Some(Streamed { spool, mut aborted, is_doubtful, .. }) = self.streamed.remove(&xid) else {
            return Err(disorder(format!("transaction {} commits, and no chunk of it came", xid.0)));
        };
        if is_doubtful {
            return Err(Error::invalid(format!(
                "transaction {} emitted logical messages and then rolled back to a savepoint, and the server does \
                 not tell whether they were rolled back too: turn streaming off for this pipeline, so that the \
                 server sorts them out, or leave logical messages out; nothing is lost",
                xid.0
            )));
        }
        aborted.sort();
        let replay = self.spill.replay(spool)?;
        self.state = State::Replaying(Box::new(Replaying { replay, aborted, end_lsn: commit.end_lsn }));
        let Commit { commit_lsn, committed_micros, .. } = commit;
        Ok(Assembled::Begin(Transaction { commit_lsn, committed_micros, xid }))
    }

    fn streamed_abort<'a>(&mut self, xid: Xid, subxid: Xid) -> Result<Assembled<'a>> {
        self.expect_idle("a streamed transaction rolls back")?;
        if xid == subxid {
            // One that is not known has nothing to be dropped.
            if let Some(streamed) = self.streamed.remove(&xid) {
                self.spill.discard(&streamed.spool);
            }
        } else if let Some(streamed) = self.streamed.get_mut(&xid) {
            streamed.aborted.add(subxid)?;
            streamed.is_doubtful |= streamed.has_message;
        }
        Ok(Assembled::Nothing)
    }

    /// Whether a streamed transaction that committed is being given out: [`replay`](Self::replay) is to be called
    /// until it gave `Commit`.
    pub const fn is_replaying(&self) -> bool {
        matches!(self.state, State::Replaying(_))
    }

    /// Gives out the next message of a streamed transaction that committed, or at last its `Commit`. Between
    /// transactions there is `Nothing`.
    ///
    /// # Errors
    /// - `Corrupt`: the disk gave back something else than was written, or a message is malformed.
    /// - `Invalid`: an error came before.
    pub fn replay(&mut self) -> Result<Assembled<'_>> {
        let record = match &mut self.state {
            State::Replaying(replaying) => replaying.next(),
            State::Stopped => Err(stopped()),
            _ => return Ok(Assembled::Nothing),
        };
        let record = match record {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(self.replayed()),
            Err(error) => {
                self.stop();
                return Err(error);
            }
        };
        let State::Replaying(replaying) = &self.state else { return Ok(Assembled::Nothing) };
        // As it would have come without chunks. It was decoded when it came, and its checksum is right.
        let message = Decoder::default().decode(replaying.replay.message(&record)).map_err(malformed)?;
        Ok(Assembled::Change { at: record.at, message })
    }

    fn replayed(&mut self) -> Assembled<'static> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Replaying(replaying) => {
                self.spill.finish(&replaying.replay);
                Assembled::Commit { end_lsn: replaying.end_lsn }
            }
            _ => Assembled::Nothing,
        }
    }

    /// Bytes that are on disk now.
    pub const fn spilled_bytes(&self) -> u64 {
        self.spill.on_disk()
    }

    /// Streamed transactions that are under way.
    pub fn open_transactions(&self) -> usize {
        self.streamed.len() + usize::from(matches!(self.state, State::Chunk { .. }))
    }

    fn expect_idle(&self, what: &str) -> Result<()> {
        match self.state {
            State::Idle => Ok(()),
            State::Stopped => Err(stopped()),
            _ => Err(disorder(format!("{what} before the last one ended"))),
        }
    }

    /// Gives the disk back, and nothing out from here on.
    fn stop(&mut self) {
        self.state = State::Stopped;
        self.streamed.clear();
        self.spill.forget_all();
    }
}

impl fmt::Debug for Assembler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assembler")
            .field("open_transactions", &self.open_transactions())
            .field("spilled_bytes", &self.spilled_bytes())
            .field("is_replaying", &self.is_replaying())
            .finish_non_exhaustive()
    }
}

impl Replaying {
    /// The next message that was not rolled back.
    fn next(&mut self) -> Result<Option<Record>> {
        // Ends with the spool, which is finite.
        loop {
            match self.replay.next()? {
                Some(record) if self.aborted.contains(record.subxid) => {}
                other => return Ok(other),
            }
        }
    }
}

impl Aborted {
    fn add(&mut self, subxid: Xid) -> Result<()> {
        if let Some((_, last)) = self.runs.last_mut()
            && last.0.checked_add(1) == Some(subxid.0)
        {
            *last = subxid;
            return Ok(());
        }
        if self.runs.len() == ABORTED_RUNS_MAX {
            return Err(Error::invalid(format!(
                "a transaction rolled back more than {ABORTED_RUNS_MAX} subtransactions after they were \
                 streamed: turn streaming off for this pipeline, so that the server sorts them out; \
                 nothing is lost"
            )));
        }
        self.runs.push((subxid, subxid));
        Ok(())
    }

    /// To be called before [`contains`](Self::contains): in order, and no two overlap.
    fn sort(&mut self) {
        self.runs.sort_unstable();
        self.runs.dedup_by(|next, run| {
            let overlaps = next.0 <= run.1;
            if overlaps {
                run.1 = run.1.max(next.1);
            }
            overlaps
        });
    }

    fn contains(&self, subxid: Xid) -> bool {
        let after = self.runs.partition_point(|(first, _)| *first <= subxid);
        after.checked_sub(1).is_some_and(|run| subxid <= self.runs[run].1)
    }
}

fn malformed(malformed: Malformed) -> Error {
    let advice = "what the server sent cannot be read: check that its version is supported; nothing is lost";
    Error::new(Kind::Corrupt, advice).because(malformed)
}

fn disorder(what: impl fmt::Display) -> Error {
    Error::new(
        Kind::Corrupt,
        format!("{what}: what the server sent is out of order; start a new session, nothing is lost"),
    )
}

fn out_of_place() -> Error {
    disorder("a change comes outside of any transaction")
}

fn stopped() -> Error {
    Error::invalid("an error came before: start a new session with a new assembler; nothing is lost")
}

#[cfg(test)]
#[path = "assembler_test.rs"]
mod tests;
