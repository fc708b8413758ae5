//! Where records go: a stream, a file or terminal as lines of JSON, or nowhere.
//!
//! An acknowledgement means that it is safe there: a stream says so itself, a file has been synced.

use std::fmt::{self, Debug};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_stream::identity::Lanes;
use tenure_stream::{Limits, Put, Record, SequenceNumber, Shard, ShardId, Stream, StreamExt as _};

use crate::framing::Framing;
use crate::shard_budget::OpenShard;

/// Takes records.
#[async_trait]
pub trait Sink: Debug + Send + Sync {
    /// Its name, which the checkpoint row is kept under.
    fn name(&self) -> &str;

    /// What fits in a record and in a call.
    async fn limits(&self, by: Monotonic) -> Result<Limits>;

    /// Which shards take records now; none if that is not known or means nothing here.
    async fn open_shards(&self, _by: Monotonic) -> Result<Vec<OpenShard>> {
        Ok(Vec::new())
    }

    /// How events become records, if nobody says otherwise.
    fn framing(&self) -> Framing;

    /// How many lanes, if nobody says otherwise.
    fn lanes(&self) -> Lanes;

    /// Puts records, with a result for each.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the records may or may not be there.
    async fn put(&self, by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>>;

    /// Why it will never take anything again, if that is so. Any other failure is waited for.
    fn gone(&self) -> Option<Error> {
        None
    }
}

/// A stream.
#[derive(Debug, Clone)]
pub struct StreamSink {
    stream: Arc<dyn Stream>,
}

impl StreamSink {
    /// Puts records to this stream.
    #[must_use]
    pub const fn new(stream: Arc<dyn Stream>) -> Self {
        Self { stream }
    }
}

#[async_trait]
impl Sink for StreamSink {
    fn name(&self) -> &str {
        self.stream.name()
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.stream.limits(by).await
    }

    async fn open_shards(&self, by: Monotonic) -> Result<Vec<OpenShard>> {
        let shards = self.stream.all_shards(by).await?;
        let open = shards.into_iter().filter(Shard::is_open);
        Ok(open.map(|shard| OpenShard { id: shard.id, range: shard.hash_range }).collect())
    }

    fn framing(&self) -> Framing {
        Framing::Aggregated
    }

    fn lanes(&self) -> Lanes {
        Lanes::default()
    }

    async fn put(&self, by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        self.stream.put(by, &records).await
    }
}

/// Counts, and forgets.
#[derive(Debug)]
pub struct NullSink {
    records: AtomicU64,
    bytes: AtomicU64,
    shard: ShardId,
    sequence: SequenceNumber,
}

impl NullSink {
    /// A sink that takes everything.
    #[must_use]
    pub fn new() -> Self {
        let (shard, sequence) = (ShardId::numbered(0), SequenceNumber::from(0u64));
        Self { records: AtomicU64::new(0), bytes: AtomicU64::new(0), shard, sequence }
    }

    /// How many records and bytes it took.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        (self.records.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl Default for NullSink {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Sink for NullSink {
    fn name(&self) -> &'static str {
        "null"
    }

    async fn limits(&self, _by: Monotonic) -> Result<Limits> {
        Ok(Limits::default())
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn lanes(&self) -> Lanes {
        Lanes::default()
    }

    async fn put(&self, _by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        let bytes: usize = records.iter().map(|record| record.data.len()).sum();
        self.records.fetch_add(records.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let stored = Put::Stored { shard: self.shard.clone(), sequence: self.sequence.clone() };
        Ok(vec![stored; records.len()])
    }
}

/// Events as lines of JSON, in commit order, in a file or on standard output.
pub struct LinesSink {
    name: String,
    out: Arc<Mutex<Out>>,
    /// Whoever reads from it has gone.
    closed: Arc<AtomicBool>,
}

enum Out {
    Writer(Box<dyn io::Write + Send>),
    File {
        path: PathBuf,
        file: File,
        /// How much of it is whole lines that were acknowledged.
        good: u64,
    },
}

/// One lane, so that lines come in commit order.
const ONE_LANE: Lanes = match Lanes::new(1) {
    Some(lanes) => lanes,
    None => unreachable!(),
};

impl LinesSink {
    /// Lines on standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self::writer("stdout", Box::new(io::stdout()))
    }

    /// Lines to a writer of this name.
    #[must_use]
    pub fn writer(name: &str, writer: Box<dyn io::Write + Send>) -> Self {
        Self::new(name.to_owned(), Out::Writer(writer))
    }

    fn new(name: String, out: Out) -> Self {
        Self { name, out: Arc::new(Mutex::new(out)), closed: Arc::default() }
    }

    /// Lines at the end of a file. A last line without end is of a writer that died, and was never
    /// acknowledged: it is removed, and comes again. `None` if somebody else writes to the file.
    ///
    /// # Errors
    /// `Denied`, `Invalid` or `Unavailable` if the file cannot be opened.
    pub fn file(path: &Path) -> Result<Option<Self>> {
        let open = || -> io::Result<Option<(File, u64)>> {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            // Two writers would cut off each other's lines.
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let good = end_of_last_line(&mut file)?;
            file.set_len(good)?;
            Ok(Some((file, good)))
        };
        let opened = open().map_err(|error| failed("open", path, error))?;
        Ok(opened.map(|(file, good)| {
            let out = Out::File { path: path.to_owned(), file, good };
            Self::new(path.display().to_string(), out)
        }))
    }
}

impl Debug for LinesSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinesSink").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sink for LinesSink {
    fn name(&self) -> &str {
        &self.name
    }

    async fn limits(&self, _by: Monotonic) -> Result<Limits> {
        // A line may be as long as a row.
        let room = usize::try_from(u32::MAX).unwrap_or(usize::MAX) / 2;
        Ok(Limits { bytes_per_put_max: room, bytes_per_record_max: room, ..Limits::default() })
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn lanes(&self) -> Lanes {
        ONE_LANE
    }

    async fn put(&self, _by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        let (out, closed) = (self.out.clone(), self.closed.clone());
        let writing = tokio::task::spawn_blocking(move || {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            out.write(&records, &closed).map(|()| records.len())
        });
        let count = writing.await.map_err(|_| Error::new(Kind::Unknown, "writing lines was ended"))??;
        let stored = Put::Stored { shard: ShardId::numbered(0), sequence: SequenceNumber::from(0u64) };
        Ok(vec![stored; count])
    }

    fn gone(&self) -> Option<Error> {
        self.closed.load(Ordering::Relaxed).then(|| {
            Error::invalid(format!(
                "whoever read from {} has gone: start again with a reader; what it had not taken comes again",
                self.name
            ))
        })
    }
}

impl Out {
    fn write(&mut self, records: &[Record], closed: &AtomicBool) -> Result<()> {
        match self {
            Self::Writer(writer) => {
                let all = records.iter().try_for_each(|record| writer.write_all(&record.data));
                all.and_then(|()| writer.flush()).map_err(|error| {
                    closed.fetch_or(error.kind() == io::ErrorKind::BrokenPipe, Ordering::Relaxed);
                    Error::new(kind_of(&error), "write lines").because(error)
                })
            }
            Self::File { path, file, good } => {
                let mut write = || -> io::Result<u64> {
                    // Left by a write that failed halfway.
                    file.set_len(*good)?;
                    let mut length = *good;
                    for record in records {
                        file.write_all(&record.data)?;
                        length += record.data.len() as u64;
                    }
                    file.sync_data()?;
                    Ok(length)
                };
                *good = write().map_err(|error| failed("append to", path, error))?;
                Ok(())
            }
        }
    }
}

fn end_of_last_line(file: &mut File) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = vec![0; 64 << 10];
    while end > 0 {
        let begin = end.saturating_sub(block.len() as u64);
        let piece = &mut block[..(end - begin) as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(piece)?;
        if let Some(newline) = piece.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + newline as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    Error::new(kind_of(&error), format!("{doing} {}", path.display())).because(error)
}

fn kind_of(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => Kind::Invalid,
        _ => Kind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Record {
        Record::new("k", format!("{text}\n"))
    }

    async fn put(sink: &dyn Sink, text: &str) -> Result<Vec<Put>> {
        sink.put(Monotonic::NEVER, vec![line(text)]).await
    }

    #[tokio::test]
    async fn a_torn_line_is_removed_and_the_whole_ones_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let whole = "x".repeat(100_000);
        std::fs::write(&path, format!("one\n{whole}\n{}", "torn".repeat(50_000))).unwrap();
        let sink = LinesSink::file(&path).unwrap().unwrap();
        assert!(LinesSink::file(&path).unwrap().is_none(), "one writer at a time");
        put(&sink, "two").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("one\n{whole}\ntwo\n"));
        drop(sink);
        std::fs::write(&path, "torn").unwrap();
        drop(LinesSink::file(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    #[tokio::test]
    async fn a_failed_write_leaves_no_half_line_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let sink = LinesSink::file(&path).unwrap().unwrap();
        put(&sink, "one").await.unwrap();
        // What a write that failed halfway leaves.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"half").unwrap();
        put(&sink, "two").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_and_not_an_end() {
        let out = Out::File {
            path: "/dev/full".into(),
            file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
            good: 0,
        };
        let sink = LinesSink::new("full".to_owned(), out);
        assert!(put(&sink, "one").await.is_err());
        assert!(sink.gone().is_none(), "somebody may make room");
    }

    #[tokio::test]
    async fn a_reader_that_has_gone_is_an_end() {
        let (reader, writer) = io::pipe().unwrap();
        let sink = LinesSink::writer("stdout", Box::new(writer));
        put(&sink, "one").await.unwrap();
        assert!(sink.gone().is_none());
        drop(reader);
        assert!(put(&sink, "two").await.is_err());
        let gone = sink.gone().unwrap();
        assert_eq!(gone.kind(), Kind::Invalid, "a person must start it again");
        assert!(gone.to_string().contains("stdout"), "{gone}");
    }

    #[test]
    fn a_file_that_cannot_be_is_told() {
        assert_eq!(LinesSink::file(Path::new("/no/such/dir/x")).unwrap_err().kind(), Kind::Invalid);
    }

    #[tokio::test]
    async fn nothing_counts() {
        let sink = NullSink::new();
        assert_eq!(put(&sink, "abc").await.unwrap().len(), 1);
        assert_eq!(sink.taken(), (1, 4));
    }
}
