//! Shards, the hash space they divide, and how a record finds its own.
//!
//! The space is the 128-bit numbers. Every open shard owns one range of it, the ranges leave no gap
//! and do not overlap, and a record belongs to the shard whose range holds its hash key: the one it
//! names itself, or else the MD5 of its partition key.
//!
//! ```text
//!   0                                  2¹²⁷                                2¹²⁸ − 1
//!   ├──── shardId-000000000000 ────────┼──── shardId-000000000001 ─────────┤
//!                    ▲ MD5("orders/7")
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use md5::{Digest, Md5};
use tenure_backend::{Error, Result};

use crate::{Record, SequenceNumber};

/// A shard's name, `shardId-` and twelve digits. Names are given in order and never twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(Arc<str>);

impl ShardId {
    /// The name of the shard with this number.
    #[must_use]
    pub fn numbered(number: u64) -> Self {
        Self(format!("shardId-{number:012}").into())
    }

    /// The number in the name, if it has the usual form.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.0.strip_prefix("shardId-").filter(|digits| digits.len() == 12)?.parse().ok()
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ShardId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A point of the hash space. Its text is decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashKey(pub u128);

impl HashKey {
    /// The lowest point.
    pub const MIN: Self = Self(0);
    /// The highest point.
    pub const MAX: Self = Self(u128::MAX);

    /// The point of a partition key: its MD5, read as a big-endian number.
    #[must_use]
    pub fn of(partition_key: &str) -> Self {
        Self(u128::from_be_bytes(Md5::digest(partition_key.as_bytes()).into()))
    }
}

impl fmt::Display for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for HashKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).map(Self).ok_or_else(|| {
            Error::invalid(format!("hash key `{text}` is no decimal number from 0 to {}", Self::MAX))
        })
    }
}

/// The points from `start` to `end`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashRange {
    /// The first point.
    pub start: HashKey,
    /// The last point.
    pub end: HashKey,
}

impl HashRange {
    /// The whole space.
    pub const ALL: Self = Self { start: HashKey::MIN, end: HashKey::MAX };

    /// Whether the point lies in the range.
    #[must_use]
    pub fn contains(&self, key: HashKey) -> bool {
        self.start <= key && key <= self.end
    }

    /// Whether `upper` begins right where this range ends.
    #[must_use]
    pub fn touches(&self, upper: &Self) -> bool {
        self.end.0.checked_add(1) == Some(upper.start.0)
    }

    /// The two parts before and from `at`, or `None` if one of them would be empty.
    #[must_use]
    pub fn split(&self, at: HashKey) -> Option<(Self, Self)> {
        (self.start < at && at <= self.end)
            .then(|| (Self { start: self.start, end: HashKey(at.0 - 1) }, Self { start: at, end: self.end }))
    }

    /// The space in `count` ranges of one size, the remainder in the last: how Kinesis divides it.
    #[must_use]
    pub fn uniform(count: u32) -> Vec<Self> {
        let count = u128::from(count.max(1));
        // 2¹²⁸ / count, which a u128 holds for every count but one.
        let size =
            if count == 1 { 0 } else { u128::MAX / count + u128::from(u128::MAX % count == count - 1) };
        (0..count)
            .map(|index| Self {
                start: HashKey(index * size),
                end: if index + 1 == count { HashKey::MAX } else { HashKey((index + 1) * size - 1) },
            })
            .collect()
    }
}

impl fmt::Display for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.start, self.end)
    }
}

/// One shard as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its name.
    pub id: ShardId,
    /// The shard it was split from, or the first of the two it was merged from.
    pub parent: Option<ShardId>,
    /// The second of the two it was merged from.
    pub adjacent_parent: Option<ShardId>,
    /// The points it owns, or owned while it was open.
    pub hash_range: HashRange,
    /// No record of it has a lower number.
    pub first_sequence: SequenceNumber,
    /// Set once the shard is closed: no record of it has a higher number, and none will be added.
    pub last_sequence: Option<SequenceNumber>,
}

impl Shard {
    /// Whether records are still added to it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.last_sequence.is_none()
    }

    /// The shards that a reader finishes before it begins this one.
    pub fn parents(&self) -> impl Iterator<Item = &ShardId> {
        self.parent.iter().chain(self.adjacent_parent.iter())
    }
}

/// The open shard that `record` belongs to. `None` only if the open shards leave a gap there.
#[must_use]
pub fn route<'a>(shards: &'a [Shard], record: &Record) -> Option<&'a Shard> {
    let key = record.hash_key();
    shards.iter().find(|shard| shard.is_open() && shard.hash_range.contains(key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_twelve_digits() {
        assert_eq!(ShardId::numbered(42).as_str(), "shardId-000000000042");
        assert_eq!(ShardId::from("shardId-000000000042").number(), Some(42));
        assert_eq!(ShardId::from("shardId-42").number(), None);
        assert_eq!(ShardId::from("shard-000000000042").number(), None);
    }

    #[test]
    fn a_partition_key_has_the_point_that_its_md5_names() {
        // The test suite of RFC 1321, read as big-endian numbers.
        assert_eq!(HashKey::of("").0, 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e);
        assert_eq!(HashKey::of("a").0, 0x0cc1_75b9_c0f1_b6a8_31c3_99e2_6977_2661);
        assert_eq!(HashKey::of("abc").0, 0x9001_5098_3cd2_4fb0_d696_3f7d_28e1_7f72);
        assert_eq!(HashKey::of("message digest").0, 0xf96b_697d_7cb7_938d_525a_2f31_aaf1_61d0);
    }

    #[test]
    fn hash_keys_are_decimal_text() {
        let max = "340282366920938463463374607431768211455";
        assert_eq!(max.parse::<HashKey>().unwrap(), HashKey::MAX);
        assert_eq!(HashKey::MAX.to_string(), max);
        for bad in ["", "-1", "+1", "0x1", "340282366920938463463374607431768211456"] {
            assert!(bad.parse::<HashKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn uniform_ranges_are_those_of_kinesis() {
        let shown = |count| HashRange::uniform(count).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(1), ["0..=340282366920938463463374607431768211455"]);
        assert_eq!(
            shown(2),
            [
                "0..=170141183460469231731687303715884105727",
                "170141183460469231731687303715884105728..=340282366920938463463374607431768211455"
            ]
        );
        assert_eq!(
            shown(3),
            [
                "0..=113427455640312821154458202477256070484",
                "113427455640312821154458202477256070485..=226854911280625642308916404954512140969",
                "226854911280625642308916404954512140970..=340282366920938463463374607431768211455"
            ]
        );
    }

    #[test]
    fn a_split_leaves_two_parts_or_none() {
        let range = HashRange { start: HashKey(10), end: HashKey(12) };
        let (lower, upper) = range.split(HashKey(11)).unwrap();
        assert_eq!((lower.to_string(), upper.to_string()), ("10..=10".to_owned(), "11..=12".to_owned()));
        assert!(lower.touches(&upper) && !upper.touches(&lower));
        assert!(range.split(HashKey(12)).is_some());
        assert!(range.split(HashKey(10)).is_none() && range.split(HashKey(13)).is_none());
    }

    proptest! {
        #[test]
        fn uniform_ranges_leave_no_gap(count in 1u32..3000) {
            let ranges = HashRange::uniform(count);
            prop_assert_eq!(ranges.len(), count as usize);
            prop_assert_eq!(ranges[0].start, HashKey::MIN);
            prop_assert_eq!(ranges[ranges.len() - 1].end, HashKey::MAX);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].touches(&pair[1])));
        }
    }
}
