//! Keeps the chunks of one streamed transaction until it commits: in memory while they are few, then in a file.
//!
//! The file has no name, so that nothing is left behind whichever way the process ends. Nothing in it needs
//! to outlive the process either: the server sends again whatever was not confirmed.
//!
//! ```text
//! record   at u64 · subxid u32 · length u32 · checksum u64 · message
//! ```

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use tenure_backend::{Error, Kind, Result};
use tenure_stream::identity::Lsn;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::pgoutput::Xid;

/// What one transaction keeps in memory before it goes to its file, and what is read back at once.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;

/// What all transactions without a file keep in memory together. There may be as many open transactions
/// as the server has connections, so the bound for one is not enough.
pub(crate) const MEMORY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Postgres makes no message beyond this: it cannot allocate one.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

const HEADER_BYTES: usize = 24;

/// Where streamed transactions wait for their commit.
#[derive(Debug, Clone)]
pub struct SpillSettings {
    /// A directory that this process may write to. Files in it have no name.
    pub directory: PathBuf,
    /// Most bytes of all files together.
    pub bytes_max: u64,
}

/// Makes the files: the disk, or in a test one that fails.
pub(crate) trait Disk: Send {
    fn create(&mut self) -> io::Result<Box<dyn DiskFile>>;
    /// For messages.
    fn place(&self) -> &Path;
}

pub(crate) trait DiskFile: Read + Write + Seek + Send {}

impl DiskFile for File {}

/// Nameless files in a directory.
pub(crate) struct Directory(pub PathBuf);

impl Disk for Directory {
    fn create(&mut self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(tempfile::tempfile_in(&self.0)?))
    }

    fn place(&self) -> &Path {
        &self.0
    }
}

/// Makes [`Spool`]s and knows what they hold together.
pub(crate) struct Spill {
    disk: Box<dyn Disk>,
    bytes_max: u64,
    /// In all files.
    on_disk: u64,
    /// In the memory of all spools.
    in_memory: usize,
}

/// The messages of one transaction.
#[derive(Default)]
pub(crate) struct Spool {
    /// What is not in the file, after what is.
    memory: Vec<u8>,
    file: Option<Box<dyn DiskFile>>,
    file_bytes: u64,
}

impl Spill {
    pub(crate) fn new(disk: Box<dyn Disk>, bytes_max: u64) -> Self {
        Self { disk, bytes_max, on_disk: 0, in_memory: 0 }
    }

    pub(crate) const fn on_disk(&self) -> u64 {
        self.on_disk
    }

    #[cfg(test)]
    pub(crate) const fn in_memory(&self) -> usize {
        self.in_memory
    }

    /// Adds a message, given as its first byte and the rest of it.
    ///
    /// After an error the spool may lack it: it must not be read then.
    pub(crate) fn append(
        &mut self,
        spool: &mut Spool,
        at: Lsn,
        subxid: Xid,
        kind: u8,
        rest: &[u8],
    ) -> Result<()> {
        if rest.len() >= MESSAGE_BYTES_MAX {
            let text = format!("a message of {} bytes, which Postgres cannot make", rest.len());
            return Err(Error::new(Kind::Corrupt, text));
        }
        let head = head_of(at, subxid, kind, rest);
        let bytes = head.len() + rest.len();
        if spool.memory.len() + bytes > BUFFER_BYTES {
            let memory = std::mem::take(&mut spool.memory);
            self.write(spool, [&memory, &[]])?;
            self.in_memory -= memory.len();
            spool.memory = memory;
            spool.memory.clear();
        }
        if bytes > BUFFER_BYTES {
            return self.write(spool, [&head, rest]);
        }
        spool.memory.extend_from_slice(&head);
        spool.memory.extend_from_slice(rest);
        self.in_memory += bytes;
        Ok(())
    }

    /// To be called when a chunk ends: only the transaction that is being received may hold a buffer beyond
    /// what all together may keep.
    pub(crate) fn settle(&mut self, spool: &mut Spool) -> Result<()> {
        if spool.file.is_some() || self.in_memory > MEMORY_BYTES_MAX {
            let memory = std::mem::take(&mut spool.memory);
            self.write(spool, [&memory, &[]])?;
            self.in_memory -= memory.len();
        }
        Ok(())
    }

    /// Appends to the file.
    fn write(&mut self, spool: &mut Spool, parts: [&[u8]; 2]) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if bytes == 0 {
            return Ok(());
        }
        if self.on_disk + bytes > self.bytes_max {
            return Err(Error::invalid(format!(
                "transactions that are under way need more than the {} bytes that they may take in {}: \
                 raise the bound, or change less in one transaction; nothing is lost",
                self.bytes_max,
                self.disk.place().display()
            )));
        }
        let file = match &mut spool.file {
            Some(file) => file,
            none => none.insert(self.disk.create().map_err(|error| refused(&*self.disk, error))?),
        };
        for part in parts {
            file.write_all(part).map_err(|error| refused(&*self.disk, error))?;
        }
        self.on_disk += bytes;
        spool.file_bytes += bytes;
        Ok(())
    }

    /// Forgets a transaction.
    pub(crate) fn discard(&mut self, spool: &Spool) {
        self.in_memory -= spool.memory.len();
        self.on_disk -= spool.file_bytes;
    }

    /// Reads a transaction from its beginning. What it holds counts until [`Spill::finish`].
    pub(crate) fn replay(&self, mut spool: Spool) -> Result<Replay> {
        if let Some(file) = &mut spool.file {
            file.rewind().map_err(|error| refused(&*self.disk, error))?;
        }
        Ok(Replay {
            held: (spool.file_bytes, spool.memory.len()),
            file: spool.file,
            left_in_file: spool.file_bytes,
            tail: spool.memory,
            buffer: Vec::new(),
            next: 0,
        })
    }

    /// Forgets all, when every spool is gone.
    pub(crate) fn forget_all(&mut self) {
        self.on_disk = 0;
        self.in_memory = 0;
    }

    /// Forgets a transaction that was read.
    pub(crate) fn finish(&mut self, replay: &Replay) {
        self.on_disk -= replay.held.0;
        self.in_memory -= replay.held.1;
    }
}

#[cfg(test)]
impl Spool {
    pub(crate) fn memory_capacity(&self) -> usize {
        self.memory.capacity()
    }
}

/// Reads the messages of a transaction in their order.
pub(crate) struct Replay {
    /// Bytes on disk and in memory that it counts for.
    held: (u64, usize),
    file: Option<Box<dyn DiskFile>>,
    left_in_file: u64,
    /// What comes after the file.
    tail: Vec<u8>,
    /// What was read; `next..` is to come.
    buffer: Vec<u8>,
    next: usize,
}

/// One message that was read back. Its bytes are had from [`Replay::message`], as long as it is the last one.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub at: Lsn,
    pub subxid: Xid,
    bytes: Range<usize>,
}

impl Replay {
    /// The next message.
    pub(crate) fn next(&mut self) -> Result<Option<Record>> {
        if self.next == self.buffer.len() && self.left_in_file == 0 {
            // No record lies in both.
            self.buffer = std::mem::take(&mut self.tail);
            self.next = 0;
            if self.buffer.is_empty() {
                return Ok(None);
            }
        }
        self.fill(HEADER_BYTES)?;
        let header = self.buffer[self.next..].first_chunk().ok_or_else(damaged)?;
        let (at, subxid, length, sum) = open_header(header);
        if !(1..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(damaged());
        }
        self.fill(HEADER_BYTES + length)?;
        let bytes = self.next + HEADER_BYTES..self.next + HEADER_BYTES + length;
        let (kind, rest) = self.buffer[bytes.clone()].split_first().ok_or_else(damaged)?;
        if sum != checksum(at, subxid, *kind, rest) {
            return Err(damaged());
        }
        self.next = bytes.end;
        Ok(Some(Record { at, subxid, bytes }))
    }

    /// The bytes of the record that was read last.
    pub(crate) fn message(&self, record: &Record) -> &[u8] {
        &self.buffer[record.bytes.clone()]
    }

    /// Has at least so many bytes at `next`.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        let had = self.buffer.len() - self.next;
        if had >= wanted {
            return Ok(());
        }
        self.buffer.drain(..self.next);
        self.next = 0;
        // It grows for a message that is larger, and has its size again with the next one.
        let size = BUFFER_BYTES.max(wanted);
        if self.buffer.capacity() > size {
            self.buffer.shrink_to(size);
        } else {
            self.buffer.reserve_exact(size - had);
        }
        let more = self.left_in_file.min((size - had) as u64);
        if (wanted - had) as u64 > more {
            return Err(damaged());
        }
        self.buffer.resize(had + more as usize, 0);
        let Some(file) = &mut self.file else { return Err(damaged()) };
        file.read_exact(&mut self.buffer[had..]).map_err(|error| damaged().because(error))?;
        self.left_in_file -= more;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn buffer_capacity(&self) -> usize {
        self.buffer.capacity()
    }
}

/// The header of a record, and the first byte of its message.
fn head_of(at: Lsn, subxid: Xid, kind: u8, rest: &[u8]) -> [u8; HEADER_BYTES + 1] {
    let mut head = [0; HEADER_BYTES + 1];
    head[..8].copy_from_slice(&at.0.to_le_bytes());
    head[8..12].copy_from_slice(&subxid.0.to_le_bytes());
    // Who calls has checked that it is at most 1 GiB.
    head[12..16].copy_from_slice(&(rest.len() as u32 + 1).to_le_bytes());
    head[16..24].copy_from_slice(&checksum(at, subxid, kind, rest).to_le_bytes());
    head[24] = kind;
    head
}

fn open_header(header: &[u8; HEADER_BYTES]) -> (Lsn, Xid, usize, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = *header;
    let at = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let subxid = u32::from_le_bytes([i, j, k, l]);
    let length = u32::from_le_bytes([m, n, o, p]);
    (Lsn(at), Xid(subxid), length as usize, u64::from_le_bytes([q, r, s, t, u, v, w, x]))
}

/// Of all that a record says. The length is part of it, since the hash takes it in.
fn checksum(at: Lsn, subxid: Xid, kind: u8, rest: &[u8]) -> u64 {
    let seed = at.0 ^ u64::from(subxid.0).rotate_left(24) ^ u64::from(kind).rotate_left(56);
    xxh3_64_with_seed(rest, seed)
}

fn damaged() -> Error {
    Error::new(
        Kind::Corrupt,
        "what was spilled of a transaction reads back otherwise than it was written: check the disk, and start \
         again; nothing is lost",
    )
}

fn refused(disk: &dyn Disk, error: io::Error) -> Error {
    let place = disk.place().display();
    let (kind, advice) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Kind::Unavailable, "make room there, or spill elsewhere")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (Kind::Denied, "let this process write there, or spill elsewhere")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            (Kind::Invalid, "make that directory, or spill elsewhere")
        }
        _ => (Kind::Unavailable, "check that disk and how many files this process may open"),
    };
    Error::new(kind, format!("cannot spill a large transaction to {place}: {advice}; nothing is lost"))
        .because(error)
}
