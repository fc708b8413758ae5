//! Who a change is, and where it belongs: the contract between the publisher of changes and their consumer.
//!
//! A change may be published more than once: a lost reply, a failover, an old leader that still runs.
//! Its [`Position`] is the same every time, so whoever reads can tell, and its [`Lane`] is the same too,
//! so whatever concerns one key arrives in order.
//!
//! ```text
//! position   era : commit record : change : k        3:16/B374D848:16/B374C2A0:0
//! floor      era : everything that committed below   3:16/B374D000
//! lane       xxh3-64(schema, table, key) mod lanes, and the middle of its share of the hash keys
//! ```

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use crate::HashKey;

/// The name of the way in which keys are hashed to lanes, as a checkpoint stores it.
pub const LANE_HASH: &str = "xxh3-64-v1";

/// A byte position in Postgres' write-ahead log, shown as Postgres shows it: `16/B374D848`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// A number that rises whenever positions in the log lose their meaning: another server, a diverged
/// timeline, a slot made anew, another number of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Era(pub u32);

/// Which change this is, and where it stands among all others of its source: both in one.
///
/// Ordered as its fields are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Under which era the log is read.
    pub era: Era,
    /// The commit record of the change's transaction.
    pub commit: Lsn,
    /// The change's own place in the log.
    pub change: Lsn,
    /// Counts events with the same `change` within the transaction, from 0.
    pub k: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.era.0, self.commit, self.change, self.k)
    }
}

/// What a publisher had settled when it wrote an event: everything of this era whose commit record begins
/// below `below` was acknowledged by the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Floor {
    /// Under which era.
    pub era: Era,
    /// Where the settled part of the log ends.
    pub below: Lsn,
}

impl Floor {
    /// Whether what is at this position was settled.
    #[must_use]
    pub fn covers(&self, position: &Position) -> bool {
        position.era == self.era && position.commit < self.below
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.era.0, self.below)
    }
}

/// The text is none of what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not {expected}")]
pub struct BadText {
    expected: &'static str,
}

const LSN: BadText = BadText { expected: "a position in the log such as 16/B374D848" };
const POSITION: BadText = BadText { expected: "a position such as 3:16/B374D848:16/B374C2A0:0" };
const FLOOR: BadText = BadText { expected: "a floor such as 3:16/B374D000" };

impl FromStr for Lsn {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let (high, low) = text.split_once('/').ok_or(LSN)?;
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if plain { u64::from_str_radix(digits, 16).map_err(|_| LSN) } else { Err(LSN) }
        };
        Ok(Self(half(high)? << 32 | half(low)?))
    }
}

impl FromStr for Position {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let mut parts = text.split(':');
        let mut next = || parts.next().ok_or(POSITION);
        let position = Self {
            era: Era(number(next()?).ok_or(POSITION)?),
            commit: next()?.parse()?,
            change: next()?.parse()?,
            k: number(next()?).ok_or(POSITION)?,
        };
        if parts.next().is_some() { Err(POSITION) } else { Ok(position) }
    }
}

impl FromStr for Floor {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let (era, below) = text.split_once(':').ok_or(FLOOR)?;
        Ok(Self { era: Era(number(era).ok_or(FLOOR)?), below: below.parse()? })
    }
}

/// One way to write each number: no sign, no zeros in front.
fn number(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// One of the streams within the stream that keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u16);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many lanes a stream has. It stays for an era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lanes(u16);

impl Lanes {
    /// Most lanes there can be: a barrier publishes one record on each.
    pub const MAX: u16 = 16_384;

    /// So many lanes, from 1 to [`Lanes::MAX`].
    #[must_use]
    pub const fn new(count: u16) -> Option<Self> {
        if count >= 1 && count <= Self::MAX { Some(Self(count)) } else { None }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.0
    }

    /// All of them.
    pub fn all(self) -> impl Iterator<Item = Lane> {
        (0..self.0).map(Lane)
    }

    /// The lane of whatever hashes to this.
    #[must_use]
    pub const fn of(self, hash: u64) -> Lane {
        Lane((hash % self.0 as u64) as u16)
    }

    /// The middle of a lane's share of the hash keys: records that are put there stay on one shard, before
    /// and after resharding.
    #[must_use]
    pub const fn hash_key(self, lane: Lane) -> HashKey {
        let share = u128::MAX / self.0 as u128;
        HashKey(share * lane.0 as u128 + share / 2)
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self(1024)
    }
}

/// Hashes a table and a key to what chooses the lane.
///
/// Each part is preceded by its length, so that no two keys read alike; a null is told from an empty text.
pub struct KeyHash {
    bytes: Vec<u8>,
    /// How many of them name the table.
    table: usize,
}

impl KeyHash {
    /// The hash of a table, to which keys are added, one after another.
    #[must_use]
    pub fn of_table(schema: &str, table: &str) -> Self {
        let mut hash = Self { bytes: Vec::with_capacity(128), table: 0 };
        hash.add(Some(schema.as_bytes()));
        hash.add(Some(table.as_bytes()));
        hash.table = hash.bytes.len();
        hash
    }

    /// Forgets the last key.
    pub fn begin_key(&mut self) {
        self.bytes.truncate(self.table);
    }

    /// Adds one value of the key, as text.
    pub fn add(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.bytes.extend_from_slice(&u64::MAX.to_le_bytes()),
            Some(text) => {
                self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
                self.bytes.extend_from_slice(text);
            }
        }
    }

    /// The hash of all that was added.
    #[must_use]
    pub fn digest(&self) -> u64 {
        xxh3_64(&self.bytes)
    }
}

impl Clone for KeyHash {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), table: self.table }
    }

    /// Keeps its own memory, so that one hash serves for the keys of many tables.
    fn clone_from(&mut self, other: &Self) {
        self.bytes.clone_from(&other.bytes);
        self.table = other.table;
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({:016x})", self.digest())
    }
}

/// What every event carries about itself, in its envelope's `tenure` object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The pipeline that published it; several may feed one stream.
    pub source: &'a str,
    /// Which change it is.
    pub id: Position,
    /// Where it belongs.
    pub lane: Lane,
    /// Of how many.
    pub lanes: Lanes,
    /// The event before it on its lane in this leader's run.
    pub prev: Option<Position>,
    /// What was settled when it was written.
    pub floor: Floor,
    /// The leader's epoch. For people who look into what happened; nobody compares it.
    pub leader: u64,
}

impl Header<'_> {
    /// Appends the object as JSON: `{"v":1,…}`.
    ///
    /// `source` goes in as it is: its characters need no escapes, see [`check_source`].
    pub fn write_json(&self, out: &mut Vec<u8>) {
        // By hand: every event has one, and the formatting machinery takes longer than all the rest of it.
        out.extend_from_slice(br#"{"v":1,"source":""#);
        out.extend_from_slice(self.source.as_bytes());
        let mut line = Line { bytes: [0; Line::BYTES], len: 0 };
        line.text(br#"","id":""#);
        line.position(self.id);
        line.text(br#"","lane":"#);
        line.decimal(self.lane.0);
        line.text(br#","lanes":"#);
        line.decimal(self.lanes.0);
        if let Some(prev) = self.prev {
            line.text(br#","prev":""#);
            line.position(prev);
            line.text(br#"""#);
        }
        line.text(br#","floor":""#);
        line.decimal(self.floor.era.0);
        line.text(b":");
        line.lsn(self.floor.below);
        line.text(br#"","leader":"#);
        line.decimal(self.leader);
        line.text(b"}");
        out.extend_from_slice(&line.bytes[..line.len]);
    }
}

impl<'a> Header<'a> {
    /// Reads the object as [`Header::write_json`] writes it, at the beginning of `bytes`. Also says how many
    /// bytes it takes.
    ///
    /// `None` if it is anything else, and that may still be the same object in another form: with spaces, or
    /// with its members in another order. Readers meet every event, so this one knows a single form.
    #[must_use]
    pub fn read_json(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let mut scan = Scan { rest: bytes };
        scan.text(br#"{"v":1,"source":""#)?;
        let source = scan.source()?;
        scan.text(br#"","id":""#)?;
        let id = scan.position()?;
        scan.text(br#"","lane":"#)?;
        let lane = Lane(scan.decimal(u16::MAX.into())? as u16);
        scan.text(br#","lanes":"#)?;
        let lanes = Lanes::new(scan.decimal(u16::MAX.into())? as u16)?;
        let prev = match scan.text(br#","prev":""#) {
            None => None,
            Some(()) => {
                let prev = scan.position()?;
                scan.text(br#"""#)?;
                Some(prev)
            }
        };
        scan.text(br#","floor":""#)?;
        let floor = Floor { era: scan.era()?, below: scan.lsn()? };
        scan.text(br#"","leader":"#)?;
        let leader = scan.decimal(u64::MAX)?;
        scan.text(b"}")?;
        if lane.0 >= lanes.0 {
            return None;
        }
        Some((Self { source, id, lane, lanes, prev, floor, leader }, bytes.len() - scan.rest.len()))
    }
}

/// What is left to read of a header.
struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    #[inline]
    fn text<const N: usize>(&mut self, text: &[u8; N]) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    fn source(&mut self) -> Option<&'a str> {
        let end = self.rest.iter().take(SOURCE_BYTES_MAX + 1).position(|byte| *byte == b'"')?;
        let source = std::str::from_utf8(&self.rest[..end]).ok()?;
        check_source(source).ok()?;
        self.rest = &self.rest[end..];
        Some(source)
    }

    /// Digits without zeros in front.
    #[inline]
    fn decimal(&mut self, max: u64) -> Option<u64> {
        let mut number: u64 = 0;
        let mut digits = 0;
        while let Some(digit) = self.rest.get(digits).map(|byte| byte.wrapping_sub(b'0')).filter(|d| *d < 10)
        {
            number = number.checked_mul(10)?.checked_add(digit.into())?;
            digits += 1;
        }
        let plain = digits == 1 || digits > 1 && self.rest[0] != b'0';
        self.rest = &self.rest[digits..];
        (plain && number <= max).then_some(number)
    }

    #[inline]
    fn era(&mut self) -> Option<Era> {
        let era = Era(self.decimal(u32::MAX.into())? as u32);
        self.text(b":")?;
        Some(era)
    }

    #[inline]
    fn position(&mut self) -> Option<Position> {
        let era = self.era()?;
        let commit = self.lsn()?;
        self.text(b":")?;
        let change = self.lsn()?;
        self.text(b":")?;
        let k = self.decimal(u32::MAX.into())? as u32;
        Some(Position { era, commit, change, k })
    }

    #[inline]
    fn lsn(&mut self) -> Option<Lsn> {
        let high = self.hex()?;
        self.text(b"/")?;
        let low = self.hex()?;
        Some(Lsn(u64::from(high) << 32 | u64::from(low)))
    }

    /// One to eight upper-case digits, without zeros in front.
    #[inline]
    fn hex(&mut self) -> Option<u32> {
        let mut number: u32 = 0;
        let mut digits = 0;
        while digits < 9 {
            let digit = match self.rest.get(digits) {
                Some(byte @ b'0'..=b'9') => byte - b'0',
                Some(byte @ b'A'..=b'F') => byte - b'A' + 10,
                _ => break,
            };
            number = number << 4 | u32::from(digit);
            digits += 1;
        }
        let plain = digits == 1 || (2..=8).contains(&digits) && self.rest[0] != b'0';
        self.rest = &self.rest[digits..];
        plain.then_some(number)
    }
}

/// Room for everything in a header but its source: on the stack, so that no step asks whether there is room left.
struct Line {
    bytes: [u8; Self::BYTES],
    len: usize,
}

impl Line {
    /// Two positions of at most 57 bytes, a floor of 28, three numbers of at most 20, and the names between
    /// them, with some to spare.
    const BYTES: usize = 320;

    fn text<const N: usize>(&mut self, text: &[u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(text);
        self.len += N;
    }

    fn decimal(&mut self, number: impl itoa::Integer) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        self.bytes[self.len..self.len + digits.len()].copy_from_slice(digits);
        self.len += digits.len();
    }

    /// As its `Display` shows it.
    fn position(&mut self, position: Position) {
        self.decimal(position.era.0);
        self.text(b":");
        self.lsn(position.commit);
        self.text(b":");
        self.lsn(position.change);
        self.text(b":");
        self.decimal(position.k);
    }

    /// As its `Display` shows it.
    fn lsn(&mut self, lsn: Lsn) {
        self.hex((lsn.0 >> 32) as u32);
        self.text(b"/");
        self.hex(lsn.0 as u32);
    }

    /// Upper-case digits, without zeros in front.
    fn hex(&mut self, number: u32) {
        // The digits that count go to the front, and all eight are made at once, one per byte.
        let zeros = (number | 1).leading_zeros() / 4;
        let mut digits = u64::from(number << (4 * zeros));
        digits = (digits | digits << 16) & 0x0000_FFFF_0000_FFFF;
        digits = (digits | digits << 8) & 0x00FF_00FF_00FF_00FF;
        digits = (digits | digits << 4) & 0x0F0F_0F0F_0F0F_0F0F;
        let letters = (digits + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
        let digits = digits + 0x3030_3030_3030_3030 + letters * u64::from(b'A' - b'9' - 1);
        self.text(&digits.to_be_bytes());
        self.len -= zeros as usize;
    }
}

const SOURCE_BYTES_MAX: usize = 64;

/// Checks the name of a source: 1 to 64 of letters, digits, `.`, `_` and `-`.
///
/// # Errors
/// `Invalid` if it is another text.
pub fn check_source(name: &str) -> tenure_backend::Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=SOURCE_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(tenure_backend::Error::invalid(format!(
        "source {name:?}: take 1 to 64 letters, digits, dots, underscores and dashes"
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn position(era: u32, commit: u64, change: u64, k: u32) -> Position {
        Position { era: Era(era), commit: Lsn(commit), change: Lsn(change), k }
    }

    #[test]
    fn texts_are_as_postgres_writes_them() {
        let text = "3:16/B374D848:16/B374C2A0:0";
        let read: Position = text.parse().unwrap();
        assert_eq!(read, position(3, 0x16_B374_D848, 0x16_B374_C2A0, 0));
        assert_eq!(read.to_string(), text);
        assert_eq!("3:0/10".parse(), Ok(Floor { era: Era(3), below: Lsn(16) }));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "16", "/1", "1/", "g/1", "+1/1", "123456789/0", "1/2/3", " 1/2"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
        for text in ["1:0/1:0/1", "1:0/1:0/1:0:0", "01:0/1:0/1:0", "-1:0/1:0/1:0", "1:0/1:0/1:x"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
        for text in ["1", "1:", "x:0/1", "1:0/1:0"] {
            assert!(text.parse::<Floor>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_floor_covers_what_committed_below_it_in_its_era() {
        let floor = Floor { era: Era(2), below: Lsn(100) };
        assert!(floor.covers(&position(2, 99, 500, 7)));
        assert!(!floor.covers(&position(2, 100, 1, 0)));
        assert!(!floor.covers(&position(1, 5, 1, 0)) && !floor.covers(&position(3, 5, 1, 0)));
    }

    #[test]
    fn a_header_is_one_small_object() {
        let mut header = Header {
            source: "orders",
            id: position(1, 32, 16, 0),
            lane: Lane(7),
            lanes: Lanes::default(),
            prev: None,
            floor: Floor { era: Era(1), below: Lsn(16) },
            leader: 4,
        };
        let text = |header: &Header<'_>| {
            let mut out = Vec::new();
            header.write_json(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(&header),
            r#"{"v":1,"source":"orders","id":"1:0/20:0/10:0","lane":7,"lanes":1024,"floor":"1:0/10","leader":4}"#
        );
        header.prev = Some(position(1, 16, 8, 1));
        assert!(text(&header).contains(r#""lanes":1024,"prev":"1:0/10:0/8:1","floor":"#));
    }

    #[test]
    fn keys_that_read_alike_hash_apart() {
        let hash = |schema: &str, table: &str, key: &[Option<&str>]| {
            let mut hash = KeyHash::of_table(schema, table);
            key.iter().for_each(|value| hash.add(value.map(str::as_bytes)));
            hash.digest()
        };
        let hashes = [
            hash("a", "bc", &[]),
            hash("ab", "c", &[]),
            hash("a", "b", &[Some("c")]),
            hash("a", "b", &[None]),
            hash("a", "b", &[Some("")]),
            hash("a", "b", &[Some(""), Some("")]),
        ];
        for (index, one) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(one), "{index}");
        }
        // Stored lanes depend on it: another value is another era.
        assert_eq!(hash("public", "orders", &[Some("42")]), 0x0b27_73f6_ab2d_ff74);
        let mut reused = KeyHash::of_table("public", "orders");
        reused.add(Some(b"41"));
        reused.begin_key();
        reused.add(Some(b"42"));
        assert_eq!(reused.digest(), 0x0b27_73f6_ab2d_ff74);
    }

    #[test]
    fn a_source_needs_no_escapes() {
        assert!(check_source("orders-eu_1.a").is_ok());
        for name in ["", "a b", "a\"b", "é", &"x".repeat(65)] {
            assert!(check_source(name).is_err(), "{name}");
        }
    }

    #[test]
    fn every_lane_lies_within_its_share() {
        for count in [1, 2, 3, 1000, 1024, Lanes::MAX] {
            let lanes = Lanes::new(count).unwrap();
            let keys: Vec<u128> = lanes.all().map(|lane| lanes.hash_key(lane).0).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "{count}");
            let share = u128::MAX / u128::from(count);
            for (index, key) in keys.iter().enumerate() {
                assert_eq!(key / share, index as u128, "{count}");
            }
        }
        assert!(Lanes::new(0).is_none() && Lanes::new(Lanes::MAX + 1).is_none());
    }

    #[test]
    fn a_header_with_any_byte_changed_is_refused_or_read_as_it_stands() {
        let id = position(1, 0x16_B374_D848, 0x16_B374_C2A0, 0);
        let floor = Floor { era: Era(1), below: Lsn(16) };
        let header =
            Header { source: "s", id, lane: Lane(7), lanes: Lanes::default(), prev: None, floor, leader: 4 };
        let mut intact = Vec::new();
        header.write_json(&mut intact);
        for at in 0..intact.len() {
            for byte in 0..=u8::MAX {
                let mut damaged = intact.clone();
                damaged[at] = byte;
                let Some((header, bytes)) = Header::read_json(&damaged) else { continue };
                let mut again = Vec::new();
                header.write_json(&mut again);
                assert_eq!(again, damaged[..bytes], "{}", String::from_utf8_lossy(&damaged));
            }
        }
    }

    proptest! {
        #[test]
        fn a_header_shows_positions_as_everybody_does(
            a in (any::<u32>(), any::<u64>(), any::<u64>(), any::<u32>()),
            (high, low, leader, lane) in (any::<u32>(), any::<u32>(), any::<u64>(), any::<u16>()),
            shift in 0_u32..32,
        ) {
            let id = position(a.0, a.1, a.2, a.3);
            // Positions of every length.
            let below = Lsn(u64::from(high >> shift) << 32 | u64::from(low >> shift));
            let floor = Floor { era: Era(a.3), below };
            let (lane, lanes) = (Lane(lane), Lanes::default());
            let header = Header { source: "s", id, lane, lanes, prev: Some(id), floor, leader };
            let mut out = Vec::new();
            header.write_json(&mut out);
            prop_assert_eq!(
                String::from_utf8(out).unwrap(),
                format!(
                    r#"{{"v":1,"source":"s","id":"{id}","lane":{lane},"lanes":1024,"prev":"{id}","floor":"{floor}","leader":{leader}}}"#
                )
            );
        }

        #[test]
        fn a_header_is_read_back_from_its_own_form(
            a in (any::<u32>(), any::<u64>(), any::<u64>(), any::<u32>()),
            (shift, below, leader, lane) in (0_u32..64, any::<u64>(), any::<u64>(), 0_u16..1024),
            with_prev: bool,
        ) {
            let id = position(a.0, a.1 >> shift, a.2 >> shift, a.3);
            let prev = with_prev.then(|| position(a.0, a.2, a.1, a.3));
            let floor = Floor { era: Era(a.0), below: Lsn(below >> shift) };
            let (lane, lanes) = (Lane(lane), Lanes::default());
            let header = Header { source: "shop-1", id, lane, lanes, prev, floor, leader };
            let mut out = Vec::new();
            header.write_json(&mut out);
            let bytes = out.len();
            out.extend_from_slice(b",\"op\":\"insert\"}");
            prop_assert_eq!(Header::read_json(&out), Some((header, bytes)));
            for cut in 0..bytes {
                prop_assert_eq!(Header::read_json(&out[..cut]), None);
            }
        }

        #[test]
        fn texts_come_back_and_keep_the_order(
            a in (any::<u32>(), any::<u64>(), any::<u64>(), any::<u32>()),
            b in (any::<u32>(), any::<u64>(), any::<u64>(), any::<u32>()),
        ) {
            let (x, y) = (position(a.0, a.1, a.2, a.3), position(b.0, b.1, b.2, b.3));
            prop_assert_eq!(x.to_string().parse(), Ok(x));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            let floor = Floor { era: Era(a.0), below: Lsn(a.1) };
            prop_assert_eq!(floor.to_string().parse(), Ok(floor));
        }

        #[test]
        fn nonsense_never_panics(text in ".{0,40}") {
            let _ = (text.parse::<Lsn>(), text.parse::<Position>(), text.parse::<Floor>());
        }
    }
}
