//! Where records go: a stream, a file or terminal as lines of JSON, or nowhere.
//!
//! An acknowledgement means that it is safe there: a stream says so itself, a file has been synced.

use std::fmt::{self, Debug};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_stream::identity::Lanes;
use tenure_stream::{Limits, Put, Record, SequenceNumber, ShardId, Stream};

use crate::framing::Framing;

/// Takes records.
#[async_trait]
pub trait Sink: Debug + Send + Sync {
    /// Its name, which the checkpoint row is kept under.
    fn name(&self) -> &str;

    /// What fits in a record and in a call.
    async fn limits(&self, by: Monotonic) -> Result<Limits>;

    /// How events become records, if nobody says otherwise.
    fn framing(&self) -> Framing;

    /// How many lanes, if nobody says otherwise.
    fn lanes(&self) -> Lanes;

    /// Puts records, with a result for each.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the records may or may not be there.
    async fn put(&self, by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>>;
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
}

enum Out {
    Stdout,
    File {
        path: PathBuf,
        file: File,
        /// Where our last call ended. Where else it ends, somebody else has written, or a call has failed.
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
        Self { name: "stdout".to_owned(), out: Arc::new(Mutex::new(Out::Stdout)) }
    }

    /// Lines at the end of a file. A last line without end is of a writer that died, and was never
    /// acknowledged: it is removed before the first line is written, and comes again. Until then nothing is
    /// touched: whoever only stands by shares the file with the leader.
    ///
    /// # Errors
    /// `Denied` or `Unavailable` if the file cannot be opened.
    pub fn file(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        // A pipe has no end to go to.
        let file = file.and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file));
        let file = file.map_err(|error| failed("open", path, error))?;
        let out = Out::File { path: path.to_owned(), file, good: u64::MAX };
        Ok(Self { name: path.display().to_string(), out: Arc::new(Mutex::new(out)) })
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
        Ok(Limits { records_per_put_max: 500, bytes_per_put_max: room, bytes_per_record_max: room })
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn lanes(&self) -> Lanes {
        ONE_LANE
    }

    async fn put(&self, _by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        let out = self.out.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            out.write(&records).map(|()| records.len())
        });
        let count = writing.await.map_err(|_| Error::new(Kind::Unknown, "writing lines was ended"))??;
        let stored = Put::Stored { shard: ShardId::numbered(0), sequence: SequenceNumber::from(0u64) };
        Ok(vec![stored; count])
    }
}

impl Out {
    fn write(&mut self, records: &[Record]) -> Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                let all = records.iter().try_for_each(|record| stdout.write_all(&record.data));
                all.and_then(|()| stdout.flush())
                    .map_err(|error| Error::new(kind_of(&error), "write to standard output").because(error))
            }
            Self::File { path, file, good } => {
                let mut write = || -> io::Result<u64> {
                    let end = file.seek(SeekFrom::End(0))?;
                    if end != *good {
                        // Whole lines stay, whoever wrote them: they may be acknowledged. Half a line is left
                        // by a write that failed.
                        *good = end_of_last_line(file)?;
                        if *good < end {
                            file.set_len(*good)?;
                        }
                    }
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
        let sink = LinesSink::file(&path).unwrap();
        put(&sink, "two").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("one\n{whole}\ntwo\n"));
        std::fs::write(&path, "torn").unwrap();
        put(&LinesSink::file(&path).unwrap(), "one").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\n");
    }

    #[tokio::test]
    async fn a_failed_write_leaves_no_half_line_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let sink = LinesSink::file(&path).unwrap();
        put(&sink, "one").await.unwrap();
        // What a write that failed halfway leaves.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"half").unwrap();
        put(&sink, "two").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    #[tokio::test]
    async fn who_stood_by_keeps_what_the_leader_before_has_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let leader = LinesSink::file(&path).unwrap();
        put(&leader, "one").await.unwrap();
        // The leader is in the middle of a line while the other opens the file.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"tw").unwrap();
        let standby = LinesSink::file(&path).unwrap();
        file.write_all(b"o\n").unwrap();
        put(&leader, "three").await.unwrap();
        put(&standby, "four").await.unwrap();
        put(&leader, "five").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\nfour\nfive\n");
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_and_not_an_end() {
        let sink = LinesSink {
            name: "full".to_owned(),
            out: Arc::new(Mutex::new(Out::File {
                path: "/dev/full".into(),
                file: OpenOptions::new().append(true).open("/dev/full").unwrap(),
                good: 0,
            })),
        };
        assert!(put(&sink, "one").await.is_err());
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
