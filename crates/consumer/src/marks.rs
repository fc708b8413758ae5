//! What goes with a checkpoint: the attribute `tenureMarks` of a lease, and the row of `TransactionalMarks`.
//!
//! ```text
//! version 2 │ flags │ sequence, sub │ begun │ through │ number of sources │ sources … │ xxh3-64 of all before
//! flags       checkpoint: 0 trim horizon  1 latest  2 timestamp  3 number  4 long number  5 end
//!             + 8 the record was processed to its last part   + 16 complete   + 32 begun   + 64 through
//! begun       0 and a sequence number as text, or 1 and milliseconds: where "latest" or "timestamp" was
//! through     milliseconds: all that arrived before was read
//! source      name │ era │ lanes │ floor │ known lanes (0, or 1 and their bits) │ number of marks │ marks …
//! mark        lanes since the last mark │ commit − floor │ commit − change │ k
//! ```
//!
//! Numbers are varints of seven bits, differences zigzag. A few bytes per mark, and as many marks as the
//! publisher has events under way. Version 1 is the same without begun and through; it is still read.
//!
//! Invariant MK-1: marks belong to the checkpoint that they name. Beside any other they mean nothing.

use bytes::Bytes;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::WallTime;
use tenure_leases::Checkpoint;
use tenure_stream::identity::{Era, Lanes, Lsn, Position, check_source};
use tenure_stream::{Position as StreamPosition, SequenceNumber};
use xxhash_rust::xxh3::xxh3_64;

use crate::dedup::{Dedup, LaneSet, SOURCES_MAX, Source};

/// Most bytes of marks: a lease is one small row, written often.
pub const BYTES_MAX: usize = 16 << 10;
const VERSION: u8 = 2;
const VERSION_MIN: u8 = 1;
const CHECKSUM_BYTES: usize = 8;
const WHOLE: u8 = 8;
const COMPLETE: u8 = 16;
const BEGUN: u8 = 32;
const THROUGH: u8 = 64;

/// How far a shard was processed, and what is known of what came before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// The checkpoint that they belong to.
    pub at: Checkpoint,
    /// Whether nothing is left of the record that the checkpoint names.
    pub whole: bool,
    /// What is known.
    pub dedup: Dedup,
    /// Where reading began, as long as the checkpoint is a word that would mean another place later.
    pub begun: Option<Begun>,
    /// Everything that arrived before this moment was read: what is missing is not lost if it is not older than
    /// what the stream keeps.
    pub through: Option<WallTime>,
}

/// Where a shard was begun for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// At the first record with this number or a higher one.
    At(SequenceNumber),
    /// At the first record that arrived then or later.
    Since(WallTime),
}

impl Begun {
    /// A position, if it is one that stays where it is.
    #[must_use]
    pub fn of(position: &StreamPosition) -> Option<Self> {
        match position {
            StreamPosition::At(sequence) => Some(Self::At(sequence.clone())),
            StreamPosition::AtTimestamp(moment) => Some(Self::Since(*moment)),
            StreamPosition::TrimHorizon | StreamPosition::Latest | StreamPosition::After(_) => None,
        }
    }

    /// Where to read.
    #[must_use]
    pub fn position(&self) -> StreamPosition {
        match self {
            Self::At(sequence) => StreamPosition::At(sequence.clone()),
            Self::Since(moment) => StreamPosition::AtTimestamp(*moment),
        }
    }
}

/// Marks as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// At most [`BYTES_MAX`].
    pub bytes: Bytes,
    /// Of how many sources the marks had to be left out: their floors alone are kept.
    pub cut: usize,
}

impl Marks {
    /// Marks of a checkpoint.
    #[must_use]
    pub const fn new(at: Checkpoint, whole: bool, dedup: Dedup) -> Self {
        Self { at, whole, dedup, begun: None, through: None }
    }

    /// In their stored form. Where they are too many, those of the sources with the most are left out, and
    /// it is said that they are not known.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut dedup = self.dedup.clone().compacted();
        let mut cut = 0;
        loop {
            let bytes = self.encode_with(&dedup);
            if bytes.len() <= BYTES_MAX || cut == dedup.sources.len() {
                return Encoded { bytes: bytes.into(), cut };
            }
            let size = |source: &Source| {
                source.marks.len() + source.known.as_ref().map_or(0, |known| known.as_bytes().len())
            };
            if let Some(largest) = dedup.sources.iter_mut().max_by_key(|source| size(source)) {
                largest.marks.clear();
                largest.known = Some(LaneSet::default());
            }
            cut += 1;
        }
    }

    fn encode_with(&self, dedup: &Dedup) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 10 * dedup.marks());
        let checkpoint = match &self.at {
            Checkpoint::TrimHorizon => 0,
            Checkpoint::Latest => 1,
            Checkpoint::AtTimestamp => 2,
            Checkpoint::At { sequence, .. } if sequence.as_u64().is_some() => 3,
            Checkpoint::At { .. } => 4,
            Checkpoint::ShardEnd => 5,
        };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out.extend_from_slice(&[
            VERSION,
            checkpoint
                | flag(self.whole, WHOLE)
                | flag(dedup.complete, COMPLETE)
                | flag(self.begun.is_some(), BEGUN)
                | flag(self.through.is_some(), THROUGH),
        ]);
        if let Checkpoint::At { sequence, sub } = &self.at {
            match sequence.as_u64() {
                Some(number) => push_varint(&mut out, number),
                None => push_sized(&mut out, sequence.to_string().as_bytes()),
            }
            push_varint(&mut out, *sub);
        }
        match &self.begun {
            None => {}
            Some(Begun::At(sequence)) => {
                out.push(0);
                push_sized(&mut out, sequence.to_string().as_bytes());
            }
            Some(Begun::Since(moment)) => {
                out.push(1);
                push_moment(&mut out, *moment);
            }
        }
        if let Some(through) = self.through {
            push_moment(&mut out, through);
        }
        push_varint(&mut out, dedup.sources.len() as u64);
        for source in &dedup.sources {
            push_source(&mut out, source);
        }
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// From their stored form.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged, `Invalid` if a newer version wrote them.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::new(Kind::Corrupt, "the stored marks are damaged");
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(damaged)?;
        if bytes.len() > BYTES_MAX || xxh3_64(body) != u64::from_le_bytes(*checksum) {
            return Err(damaged());
        }
        if let Some(version) = body.first().filter(|version| !(VERSION_MIN..=VERSION).contains(*version)) {
            let text = format!("the stored marks are of version {version}: update this program to read them");
            return Err(Error::invalid(text));
        }
        Scan { rest: body }.marks().ok_or_else(damaged)
    }
}

fn push_source(out: &mut Vec<u8>, source: &Source) {
    push_sized(out, source.name.as_bytes());
    push_varint(out, source.era.0.into());
    push_varint(out, source.lanes.count().into());
    push_varint(out, source.below.0);
    match &source.known {
        None => out.push(0),
        Some(known) => {
            out.push(1);
            push_sized(out, known.as_bytes());
        }
    }
    push_varint(out, source.marks.len() as u64);
    let mut lane_min = 0;
    for (lane, mark) in &source.marks {
        push_varint(out, (lane - lane_min).into());
        push_varint(out, zigzag(mark.commit.0.wrapping_sub(source.below.0)));
        push_varint(out, zigzag(mark.commit.0.wrapping_sub(mark.change.0)));
        push_varint(out, mark.k.into());
        lane_min = lane.saturating_add(1);
    }
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn push_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn push_moment(out: &mut Vec<u8>, moment: WallTime) {
    push_varint(out, zigzag(moment.as_millis() as u64));
}

/// Small numbers for small differences, up or down.
const fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

const fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// What is left to read.
struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    fn marks(mut self) -> Option<Marks> {
        let [_version, flags] = *self.take(2)?.first_chunk()?;
        let at = match flags & 7 {
            0 => Checkpoint::TrimHorizon,
            1 => Checkpoint::Latest,
            2 => Checkpoint::AtTimestamp,
            3 => Checkpoint::At { sequence: self.varint()?.into(), sub: self.varint()? },
            4 => {
                let sequence = self.sequence()?;
                Checkpoint::At { sequence, sub: self.varint()? }
            }
            5 => Checkpoint::ShardEnd,
            _ => return None,
        };
        let begun = match flags & BEGUN {
            0 => None,
            _ => Some(match self.take(1)? {
                [0] => Begun::At(self.sequence()?),
                [1] => Begun::Since(self.moment()?),
                _ => return None,
            }),
        };
        let through = match flags & THROUGH {
            0 => None,
            _ => Some(self.moment()?),
        };
        let complete = flags & COMPLETE != 0;
        let count = usize::try_from(self.varint()?).ok().filter(|count| *count <= SOURCES_MAX)?;
        let mut sources = Vec::with_capacity(count);
        for _ in 0..count {
            sources.push(self.source(complete)?);
        }
        self.rest.is_empty().then_some(Marks {
            at,
            whole: flags & WHOLE != 0,
            dedup: Dedup { sources, complete },
            begun,
            through,
        })
    }

    fn sequence(&mut self) -> Option<SequenceNumber> {
        std::str::from_utf8(self.sized()?).ok()?.parse().ok()
    }

    fn moment(&mut self) -> Option<WallTime> {
        Some(WallTime::from_millis(unzigzag(self.varint()?) as i64))
    }

    fn source(&mut self, complete: bool) -> Option<Source> {
        let name = std::str::from_utf8(self.sized()?).ok()?;
        check_source(name).ok()?;
        let era = Era(u32::try_from(self.varint()?).ok()?);
        let lanes = Lanes::new(u16::try_from(self.varint()?).ok()?)?;
        let mut source = Source::new(&name.into(), era, lanes, complete);
        source.below = Lsn(self.varint()?);
        source.known = match self.take(1)? {
            [0] => None,
            [1] => Some(LaneSet::from_bytes(self.sized()?, lanes)?),
            _ => return None,
        };
        let count = self.varint()?;
        let mut lane_min: u64 = 0;
        for _ in 0..count {
            let lane = lane_min.checked_add(self.varint()?).filter(|lane| *lane < lanes.count().into())?;
            let commit = source.below.0.wrapping_add(unzigzag(self.varint()?));
            let change = commit.wrapping_sub(unzigzag(self.varint()?));
            let k = u32::try_from(self.varint()?).ok()?;
            let mark = Position { era, commit: Lsn(commit), change: Lsn(change), k };
            source.marks.insert(lane as u16, mark);
            lane_min = lane + 1;
        }
        Some(source)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[index + 1..];
                return Some(number);
            }
        }
        None
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_stream::identity::{Floor, Header, Lane};

    use super::*;
    use crate::dedup::Verdict;

    fn header(source: &str, lane: u16, commit: u64, below: u64, lanes: Lanes) -> Header<'_> {
        let era = Era(3);
        let id = Position { era, commit: Lsn(commit), change: Lsn(commit.saturating_sub(64)), k: 0 };
        Header {
            source,
            id,
            lane: Lane(lane),
            lanes,
            prev: None,
            floor: Floor { era, below: Lsn(below) },
            leader: 1,
        }
    }

    fn example() -> Marks {
        let mut dedup = Dedup::complete();
        for (lane, commit) in [(7, 0x16_B374_D848), (300, 0x16_B374_E000)] {
            let event = header("shop", lane, commit, 0x16_B374_D000, Lanes::default());
            assert_eq!(dedup.take(&event).0, Verdict::New);
        }
        Marks::new(Checkpoint::At { sequence: 1234.into(), sub: 5 }, true, dedup)
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn old_bytes_are_read_for_ever() {
        // In rows of running systems: if this changes, it is a new version, and the old one stays readable.
        let old = "011bd20905010473686f7003800880a0d39beb020002079021800100a402804080010045e13f3b61a8ed20";
        assert_eq!(Marks::decode(&unhex(old)).unwrap(), example());
        let second = "021bd20905010473686f7003800880a0d39beb020002079021800100a4028040800100d82624053b3350d6";
        assert_eq!(hex(&example().encode().bytes), second);
        assert_eq!(Marks::decode(&unhex(second)).unwrap(), example());
        let moment = WallTime::from_millis(1_800_000_000_000);
        let begun = Marks {
            begun: Some(Begun::Since(moment)),
            through: Some(moment),
            ..Marks::new(Checkpoint::Latest, false, Dedup::unknown())
        };
        let third = "02610180c0e285e36880c0e285e36800b69e871c047a4a1f";
        assert_eq!(hex(&begun.encode().bytes), third);
        assert_eq!(Marks::decode(&unhex(third)).unwrap(), begun);
    }

    #[test]
    fn every_checkpoint_comes_back() {
        let long = "49590338271490256608559692538361571095921575989136588898";
        for at in [
            Checkpoint::TrimHorizon,
            Checkpoint::Latest,
            Checkpoint::AtTimestamp,
            Checkpoint::At { sequence: u64::MAX.into(), sub: u64::MAX },
            Checkpoint::At { sequence: long.parse().unwrap(), sub: 0 },
            Checkpoint::ShardEnd,
        ] {
            for begun in [None, Some(Begun::At(long.parse().unwrap())), Some(Begun::At(7.into()))] {
                let marks = Marks { begun, ..Marks::new(at.clone(), false, Dedup::unknown()) };
                assert_eq!(Marks::decode(&marks.encode().bytes).unwrap(), marks);
            }
        }
    }

    #[test]
    fn damage_and_newer_versions_are_told() {
        let bytes = example().encode().bytes;
        for cut in 0..bytes.len() {
            assert_eq!(Marks::decode(&bytes[..cut]).unwrap_err().kind(), Kind::Corrupt);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x10;
            assert_eq!(Marks::decode(&damaged).unwrap_err().kind(), Kind::Corrupt, "{at}");
        }
        let mut newer = bytes[..bytes.len() - CHECKSUM_BYTES].to_vec();
        newer[0] = 3;
        newer.extend_from_slice(&xxh3_64(&newer).to_le_bytes());
        assert_eq!(Marks::decode(&newer).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn too_many_marks_leave_the_floors_and_say_so() {
        let lanes = Lanes::new(Lanes::MAX).unwrap();
        let mut dedup = Dedup::complete();
        for lane in 0..4000 {
            let event = header("large", lane, 1_000_000 + u64::from(lane) * 977, 5000, lanes);
            assert_eq!(dedup.take(&event).0, Verdict::New);
        }
        assert_eq!(dedup.take(&header("small", 1, 1_000_000, 5000, lanes)).0, Verdict::New);
        let marks = Marks::new(Checkpoint::ShardEnd, false, dedup);
        let encoded = marks.encode();
        assert_eq!(encoded.cut, 1);
        assert!(encoded.bytes.len() <= BYTES_MAX);
        let read = Marks::decode(&encoded.bytes).unwrap().dedup;
        assert_eq!(read.marks(), 1, "those of the small source stay");
        let below = header("large", 9, 4999, 0, lanes);
        assert_eq!(read.judge(&below), Verdict::Duplicate, "the floor stays");
        let jump = Header {
            prev: Some(header("large", 9, 6000, 0, lanes).id),
            ..header("large", 9, 7000, 0, lanes)
        };
        assert_eq!(read.judge(&jump), Verdict::New, "no gap is judged on lanes that are not known");
    }

    proptest! {
        #[test]
        fn marks_come_back(
            events in prop::collection::vec((0_usize..3, 0_u16..1024, 100_u64..u64::MAX, any::<u64>(), 0_u32..60), 0..80),
            complete: bool, whole: bool, sequence: u64, sub: u64, through: Option<i64>,
        ) {
            let mut dedup = if complete { Dedup::complete() } else { Dedup::unknown() };
            for (source, lane, commit, below, shift) in events {
                let commit = commit >> shift;
                let event = header(["a", "b-2", "c.d"][source], lane, commit, below >> shift, Lanes::default());
                let _ = dedup.take(&event);
            }
            let at = Checkpoint::At { sequence: sequence.into(), sub };
            let through = through.map(WallTime::from_millis);
            let marks = Marks { through, ..Marks::new(at, whole, dedup.compacted()) };
            prop_assert_eq!(Marks::decode(&marks.encode().bytes).unwrap(), marks);
        }

        #[test]
        fn nonsense_is_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), right: bool) {
            if right && !bytes.is_empty() {
                bytes[0] = VERSION;
                bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
            }
            if let Ok(marks) = Marks::decode(&bytes) {
                // Whatever it is, it is bounded, and means the same again.
                let again = Marks::decode(&marks.encode().bytes).unwrap();
                prop_assert_eq!(again.at, marks.at);
            }
        }
    }
}
