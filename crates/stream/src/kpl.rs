//! Several records in one: Amazon's aggregated record format, for whoever publishes and for whoever reads.
//!
//! ```text
//! F3 89 9A C2 │ AggregatedRecord, as protobuf                       │ MD5 of the protobuf
//!             │ 1: partition keys   2: hash keys   3: records …     │
//! record        1: which partition key   2: which hash key   3: data   4: tags
//! ```
//!
//! Readers that do not know the format see one record that begins with the four bytes above.
//!
//! Both halves are written by hand.
//! [`Aggregator`] appends to a buffer while payloads are still being made, so lengths go in afterwards, into a
//! place of fixed width; no protobuf library writes like that. A number that takes more bytes than it needs is
//! legal, and so are the fields of a message in any order.
//! [`deaggregate`] hands out slices of what it was given, without a copy, and refuses a record without its
//! required fields as the Java reader does; the usual library would take their defaults.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest, Md5};

use crate::digests::digests;
use crate::{HashKey, HashRange};

/// What every aggregated record begins with.
pub const MAGIC: [u8; 4] = [0xF3, 0x89, 0x9A, 0xC2];

const DIGEST_BYTES: usize = 16;

// The first bytes of fields: number and kind of what follows.
const PARTITION_KEY: u8 = 1 << 3 | SIZED;
const HASH_KEY: u8 = 2 << 3 | SIZED;
const RECORD: u8 = 3 << 3 | SIZED;
const KEY_INDEX: u8 = 1 << 3 | VARINT;
const HASH_KEY_INDEX: u8 = 2 << 3 | VARINT;
const DATA: u8 = 3 << 3 | SIZED;

const VARINT: u8 = 0;
const SIZED: u8 = 2;

/// Bytes of a length that is filled in later. Five hold every length below 32 GiB.
const LENGTH_BYTES: usize = 5;

/// Writes one aggregated record to the end of a buffer, record by record.
///
/// Every call must get the buffer that [`Aggregator::begin`] got, with nothing appended by others in between.
///
/// ```
/// use tenure_stream::kpl::Aggregator;
/// let mut out = Vec::new();
/// let mut record = Aggregator::begin(&mut out, None);
/// record.add(&mut out, "orders/7", b"{}");
/// record.finish(&mut out);
/// ```
#[derive(Debug)]
pub struct Aggregator {
    /// Where in the buffer the record begins.
    start: usize,
    has_hash_key: bool,
    /// Partition keys written so far.
    keys: u64,
    /// Where the last of them is: the next record often has the same.
    last_key: Range<usize>,
    records: usize,
}

impl Aggregator {
    /// Begins a record. All that is added goes by `hash_key`, or each by its partition key.
    pub fn begin(out: &mut Vec<u8>, hash_key: Option<HashKey>) -> Self {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        if let Some(key) = hash_key {
            // At most 39 digits, so the length is one byte.
            let digits = key.to_string();
            out.extend_from_slice(&[HASH_KEY, digits.len() as u8]);
            out.extend_from_slice(digits.as_bytes());
        }
        let last_key = out.len()..out.len();
        Self { start, has_hash_key: hash_key.is_some(), keys: 0, last_key, records: 0 }
    }

    /// Adds a record.
    pub fn add(&mut self, out: &mut Vec<u8>, partition_key: &str, data: &[u8]) {
        let Ok(()) = self.add_with(out, partition_key, |out| {
            out.extend_from_slice(data);
            Ok::<_, std::convert::Infallible>(())
        });
    }

    /// Adds a record whose content `write` appends to the buffer.
    ///
    /// # Errors
    /// What `write` answers. Then nothing was added and the buffer is as it was.
    pub fn add_with<E>(
        &mut self,
        out: &mut Vec<u8>,
        partition_key: &str,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = out.len();
        let (key_index, key) = match self.index_of(out, partition_key) {
            Some(index) => (index, self.last_key.clone()),
            None => {
                out.push(PARTITION_KEY);
                push_varint(out, partition_key.len() as u64);
                let begin = out.len();
                out.extend_from_slice(partition_key.as_bytes());
                (self.keys, begin..out.len())
            }
        };
        out.push(RECORD);
        let record = reserve_length(out);
        out.push(KEY_INDEX);
        push_varint(out, key_index);
        if self.has_hash_key {
            out.extend_from_slice(&[HASH_KEY_INDEX, 0]);
        }
        out.push(DATA);
        let data = reserve_length(out);
        if let Err(error) = write(out) {
            out.truncate(before);
            return Err(error);
        }
        fill_length(out, data);
        fill_length(out, record);
        self.keys = key_index + 1;
        self.last_key = key;
        self.records += 1;
        Ok(())
    }

    /// How many records were added.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.records
    }

    /// The record's exact size if it were finished now.
    #[must_use]
    pub const fn size_bytes(&self, out: &[u8]) -> usize {
        out.len() - self.start + DIGEST_BYTES
    }

    /// Its exact size if this were added and it were finished then.
    #[must_use]
    pub fn size_bytes_with(&self, out: &[u8], partition_key: &str, data_bytes: usize) -> usize {
        let (index, key) = match self.index_of(out, partition_key) {
            Some(index) => (index, 0),
            None => (self.keys, 1 + varint_bytes(partition_key.len() as u64) + partition_key.len()),
        };
        let hash_key = if self.has_hash_key { 2 } else { 0 };
        let record = 1 + LENGTH_BYTES + 1 + varint_bytes(index) + hash_key + 1 + LENGTH_BYTES + data_bytes;
        self.size_bytes(out) + key + record
    }

    /// Ends the record with its digest.
    pub fn finish(self, out: &mut Vec<u8>) {
        let digest = Md5::digest(&out[self.start + MAGIC.len()..]);
        out.extend_from_slice(&digest);
    }

    /// The index of a key that need not be written again.
    fn index_of(&self, out: &[u8], partition_key: &str) -> Option<u64> {
        let last = self.keys.checked_sub(1)?;
        (out[self.last_key.clone()] == *partition_key.as_bytes()).then_some(last)
    }
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

const fn varint_bytes(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Leaves room for a length. Answers where the counted bytes begin.
fn reserve_length(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.len()
}

/// Fills in how many bytes there are from `begin` on.
fn fill_length(out: &mut [u8], begin: usize) {
    let mut length = (out.len() - begin) as u64;
    let [first @ .., last] = &mut out[begin - LENGTH_BYTES..begin] else { return };
    for byte in first {
        *byte = length as u8 | 0x80;
        length >>= 7;
    }
    *last = length as u8;
}

/// A record as its publisher gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRecord {
    /// Its own partition key.
    pub partition_key: Arc<str>,
    /// The hash key that its publisher chose, as far as the record tells.
    pub explicit_hash_key: Option<HashKey>,
    /// Its content: a slice of the record that it was taken from.
    pub data: Bytes,
    /// Its place within that record, from 0.
    pub sub_sequence: usize,
}

/// What was in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deaggregated {
    /// What kind of record it was.
    pub found: Found,
    /// What is to be processed, in order.
    pub records: Vec<UserRecord>,
}

/// See [`Deaggregated`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// An ordinary record: it is the only one.
    Plain,
    /// It begins like an aggregated record and is none. It is handed on as an ordinary one, so nothing is lost.
    Damaged(Damage),
    /// An aggregated record.
    Aggregated,
    /// An aggregated record with one that belongs to another shard. The publisher saw where it landed and
    /// sent it again, so there is nothing to process.
    Elsewhere,
}

/// Why a record that begins like an aggregated one is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Nothing between its beginning and its digest.
    TooShort,
    /// The digest is another.
    Digest,
    /// The digest is right, and the message cannot be read.
    Message,
    /// A record in it names a key that is not there, or a hash key that is none.
    ///
    /// Java's reader hands on what came before it and loses the rest; we hand on the whole.
    Key,
}

/// Which of these begin like aggregated records and have the digest that one would have.
///
/// All at once, this takes a quarter of the time that it takes for one after the other.
#[must_use]
pub fn intact<'a>(records: impl IntoIterator<Item = &'a Bytes>) -> Vec<bool> {
    let bodies: Vec<Option<Body<'a>>> = records.into_iter().map(|data| body(data)).collect();
    let messages: Vec<&[u8]> = bodies.iter().flatten().map(|(body, _)| *body).collect();
    let mut digests = digests(&messages).into_iter();
    let is_intact = |body: &Option<Body<'_>>| {
        body.as_ref().is_some_and(|(_, digest)| digests.next().is_some_and(|found| found == **digest))
    };
    bodies.iter().map(is_intact).collect()
}

/// The message of an aggregated record, and the digest after it.
type Body<'a> = (&'a [u8], &'a [u8; DIGEST_BYTES]);

fn body(data: &[u8]) -> Option<Body<'_>> {
    let (body, digest) = data.strip_prefix(&MAGIC)?.split_last_chunk()?;
    (!body.is_empty()).then_some((body, digest))
}

/// Takes a record apart, if it is an aggregated one.
///
/// `within` are the hash keys of the shard: [`HashRange::ALL`] takes everything, as suits whoever has no
/// shard. As in Java's reader, one record outside means that none of them counts.
#[must_use]
pub fn deaggregate(partition_key: &Arc<str>, data: &Bytes, within: HashRange) -> Deaggregated {
    let is_intact = body(data).is_some_and(|(body, digest)| Md5::digest(body)[..] == digest[..]);
    deaggregate_checked(partition_key, data, within, is_intact)
}

/// As [`deaggregate`], for a record of which [`intact`] has said whether it is.
#[must_use]
pub fn deaggregate_checked(
    partition_key: &Arc<str>,
    data: &Bytes,
    within: HashRange,
    is_intact: bool,
) -> Deaggregated {
    let whole = |found| Deaggregated {
        found,
        records: vec![UserRecord {
            partition_key: partition_key.clone(),
            explicit_hash_key: None,
            data: data.clone(),
            sub_sequence: 0,
        }],
    };
    if !data.starts_with(&MAGIC) {
        return whole(Found::Plain);
    }
    let Some((body, _)) = body(data) else { return whole(Found::Damaged(Damage::TooShort)) };
    if !is_intact {
        return whole(Found::Damaged(Damage::Digest));
    }
    let Some(message) = AggregatedRecord::read(body) else { return whole(Found::Damaged(Damage::Message)) };
    let Some(records) = message.records(data) else { return whole(Found::Damaged(Damage::Key)) };
    if within != HashRange::ALL && any_outside(&records, within) {
        return Deaggregated { found: Found::Elsewhere, records: Vec::new() };
    }
    Deaggregated { found: Found::Aggregated, records }
}

/// Whether one of the records belongs to another shard.
fn any_outside(records: &[UserRecord], within: HashRange) -> bool {
    // Neighbours often share their keys, and then also the text of the key: one hash does for them.
    let mut last: Option<&Arc<str>> = None;
    records.iter().any(|record| match record.explicit_hash_key {
        Some(key) => !within.contains(key),
        None if last.is_some_and(|last| Arc::ptr_eq(last, &record.partition_key)) => false,
        None => {
            last = Some(&record.partition_key);
            !within.contains(HashKey::of(&record.partition_key))
        }
    })
}

/// The message, in slices of its bytes.
#[derive(Default)]
struct AggregatedRecord<'a> {
    partition_keys: Vec<&'a [u8]>,
    hash_keys: Vec<&'a [u8]>,
    records: Vec<RawRecord<'a>>,
}

struct RawRecord<'a> {
    partition_key: u64,
    hash_key: Option<u64>,
    data: &'a [u8],
}

impl<'a> AggregatedRecord<'a> {
    fn read(body: &'a [u8]) -> Option<Self> {
        let mut message = Self::default();
        let mut fields = Fields(body);
        while !fields.0.is_empty() {
            match fields.next()? {
                (1, Field::Sized(key)) => message.partition_keys.push(key),
                (2, Field::Sized(key)) => message.hash_keys.push(key),
                (3, Field::Sized(record)) => message.records.push(RawRecord::read(record)?),
                _ => {}
            }
        }
        Some(message)
    }

    /// The records with their keys, or `None` if one names a key that is not there.
    fn records(&self, all: &Bytes) -> Option<Vec<UserRecord>> {
        let mut records: Vec<UserRecord> = Vec::with_capacity(self.records.len());
        // Neighbours often share their keys.
        let mut last_key: Option<(u64, Arc<str>)> = None;
        let mut last_hash_key: Option<(u64, HashKey)> = None;
        for (sub_sequence, raw) in self.records.iter().enumerate() {
            let partition_key = match &last_key {
                Some((index, key)) if *index == raw.partition_key => key.clone(),
                _ => {
                    let bytes = self.partition_keys.get(usize::try_from(raw.partition_key).ok()?)?;
                    // As Java reads it: what is not UTF-8 is replaced.
                    let key: Arc<str> = String::from_utf8_lossy(bytes).into();
                    last_key = Some((raw.partition_key, key.clone()));
                    key
                }
            };
            let explicit_hash_key = match (raw.hash_key, last_hash_key) {
                (None, _) => None,
                (Some(index), Some((last, key))) if index == last => Some(key),
                (Some(index), _) => {
                    let bytes = self.hash_keys.get(usize::try_from(index).ok()?)?;
                    let key: HashKey = std::str::from_utf8(bytes).ok()?.parse().ok()?;
                    last_hash_key = Some((index, key));
                    Some(key)
                }
            };
            let data = all.slice_ref(raw.data);
            records.push(UserRecord { partition_key, explicit_hash_key, data, sub_sequence });
        }
        Some(records)
    }
}

impl<'a> RawRecord<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (mut partition_key, mut hash_key, mut data) = (None, None, None);
        let mut fields = Fields(bytes);
        while !fields.0.is_empty() {
            // Of a field that comes twice, the last counts.
            match fields.next()? {
                (1, Field::Varint(index)) => partition_key = Some(index),
                (2, Field::Varint(index)) => hash_key = Some(index),
                (3, Field::Sized(bytes)) => data = Some(bytes),
                (4, Field::Sized(tag)) => check_tag(tag)?,
                _ => {}
            }
        }
        Some(Self { partition_key: partition_key?, hash_key, data: data? })
    }
}

/// A tag is a key and perhaps a value. Nobody uses them, yet one without a key spoils the message.
fn check_tag(bytes: &[u8]) -> Option<()> {
    let mut has_key = false;
    let mut fields = Fields(bytes);
    while !fields.0.is_empty() {
        has_key |= matches!(fields.next()?, (1, Field::Sized(_)));
    }
    has_key.then_some(())
}

/// One field's content.
enum Field<'a> {
    Varint(u64),
    Sized(&'a [u8]),
    /// Of a kind that this format does not use, already skipped.
    Other,
}

/// The fields that are left of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Groups within groups that are skipped: as many as Java's reader bears.
    const DEPTH_MAX: usize = 100;

    /// The next field's number and content.
    fn next(&mut self) -> Option<(u32, Field<'a>)> {
        let (number, kind) = self.key()?;
        let field = match kind {
            VARINT => Field::Varint(self.varint()?),
            SIZED => Field::Sized(self.sized()?),
            _ => {
                self.skip(number, kind)?;
                Field::Other
            }
        };
        Some((number, field))
    }

    fn key(&mut self) -> Option<(u32, u8)> {
        let key = u32::try_from(self.varint()?).ok()?;
        (key >> 3 != 0).then_some((key >> 3, (key & 7) as u8))
    }

    /// Skips what this format does not use.
    fn skip(&mut self, number: u32, kind: u8) -> Option<()> {
        let mut open: Vec<u32> = Vec::new();
        let (mut number, mut kind) = (number, kind);
        loop {
            match kind {
                VARINT => _ = self.varint()?,
                1 => _ = self.take(8)?,
                SIZED => _ = self.sized()?,
                3 if open.len() < Self::DEPTH_MAX => open.push(number),
                4 if open.pop()? == number => {}
                5 => _ = self.take(4)?,
                _ => return None,
            }
            if open.is_empty() {
                return Some(());
            }
            (number, kind) = self.key()?;
        }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for (index, byte) in self.0.iter().take(10).enumerate() {
            // What does not fit in 64 bits is lost, as everywhere.
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Some(number);
            }
        }
        None
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.varint()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(count)?;
        self.0 = left;
        Some(taken)
    }
}

#[cfg(test)]
#[path = "kpl_test.rs"]
mod tests;
