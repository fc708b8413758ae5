//! How much fits in a call and in a record, the same for every backend.
//!
//! A record that is too large is refused alone: its neighbours are stored. A call that is too large
//! is refused whole, before anything of it is sent.

use tenure_backend::{Error, Result};

use crate::{Put, Record};

/// Most records in one put.
pub const RECORDS_PER_PUT_MAX: usize = 500;

/// Most records that one read answers.
pub const RECORDS_PER_READ_MAX: usize = 10_000;

/// A read stops at the record with which it passes this size.
pub const BYTES_PER_READ: usize = 10 << 20;

/// Most characters in a partition key.
pub const KEY_CHARACTERS_MAX: usize = 256;

/// Most open shards of a stream that this crate makes.
pub const SHARDS_MAX: u32 = 10_000;

/// The smallest and the largest size of a record that a stream can be set to allow.
pub const RECORD_BYTES_RANGE: std::ops::RangeInclusive<usize> = 1 << 20..=10 << 20;

/// What one stream allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most records in one put.
    pub records_per_put_max: usize,
    /// Most bytes in one put, keys included.
    pub bytes_per_put_max: usize,
    /// Most bytes in one record, key included.
    pub bytes_per_record_max: usize,
    /// How much one shard takes in a second. Absent: as much as comes.
    pub shard_rate: Option<ShardRate>,
}

/// How much one shard takes in a second, from all who write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRate {
    /// How many records.
    pub records_per_s: u64,
    /// How many bytes, keys included.
    pub bytes_per_s: u64,
}

impl ShardRate {
    /// That of every shard at Kinesis.
    pub const KINESIS: Self = Self { records_per_s: 1000, bytes_per_s: 1 << 20 };
}

impl Limits {
    /// The limits of a stream that allows records of this size.
    ///
    /// A stream of ordinary records (1 MiB) takes 5 MiB a call everywhere; one that is set to larger
    /// records takes as much in a call as the largest record there can be.
    #[must_use]
    pub fn for_record_bytes(bytes: usize) -> Self {
        let ordinary = *RECORD_BYTES_RANGE.start();
        Self {
            records_per_put_max: RECORDS_PER_PUT_MAX,
            bytes_per_put_max: if bytes <= ordinary { 5 << 20 } else { *RECORD_BYTES_RANGE.end() },
            bytes_per_record_max: bytes,
            shard_rate: None,
        }
    }

    /// Whether the call as a whole may be made.
    ///
    /// # Errors
    /// `Invalid` if it has too many records or bytes. Records that would be refused alone do not count.
    pub fn check_call<'a>(&self, records: impl ExactSizeIterator<Item = &'a Record> + Clone) -> Result<()> {
        if records.len() > self.records_per_put_max {
            return Err(Error::invalid(format!(
                "{} records in one put: send at most {} (put_all divides them)",
                records.len(),
                self.records_per_put_max
            )));
        }
        let bytes: usize =
            records.clone().map(Record::size_bytes).filter(|&size| size <= self.bytes_per_record_max).sum();
        if bytes > self.bytes_per_put_max {
            return Err(Error::invalid(format!(
                "{bytes} bytes in one put: send at most {} (put_all divides them)",
                self.bytes_per_put_max
            )));
        }
        Ok(())
    }

    /// The refusal of a record that can never be stored as it is.
    #[must_use]
    pub fn refusal(&self, record: &Record) -> Option<Put> {
        let reason = if record.partition_key.is_empty() {
            "the partition key is empty: give 1 to 256 characters".to_owned()
        } else if record.partition_key.len() > KEY_CHARACTERS_MAX
            && record.partition_key.chars().count() > KEY_CHARACTERS_MAX
        {
            format!(
                "the partition key has {} characters: shorten or hash it to at most {KEY_CHARACTERS_MAX}",
                record.partition_key.chars().count()
            )
        } else if record.size_bytes() > self.bytes_per_record_max {
            format!(
                "the record has {} bytes with its key, the stream allows {}: store the content elsewhere and send a reference, or allow larger records",
                record.size_bytes(),
                self.bytes_per_record_max
            )
        } else {
            return None;
        };
        Some(Put::Refused { reason })
    }

    /// How many records from the front of `records` fit in one call; at least one.
    #[must_use]
    pub fn fitting(&self, records: &[Record]) -> usize {
        let mut bytes = 0;
        for (count, record) in records.iter().enumerate().take(self.records_per_put_max) {
            let size = record.size_bytes();
            // Refused alone, it takes no room.
            if size > self.bytes_per_record_max {
                continue;
            }
            bytes += size;
            if bytes > self.bytes_per_put_max {
                return count.max(1);
            }
        }
        records.len().min(self.records_per_put_max)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::for_record_bytes(*RECORD_BYTES_RANGE.start())
    }
}

/// Refuses a name that Kinesis would refuse.
///
/// # Errors
/// `Invalid` saying what a name may hold.
pub fn check_name(name: &str) -> Result<()> {
    let fits = (1..=128).contains(&name.len());
    if fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "stream name `{}` is not valid: use 1 to 128 letters, digits, `_`, `.` and `-`",
        name.chars().take(140).collect::<String>()
    )))
}

/// Refuses a number of records that no read may ask for.
pub(crate) fn check_read_limit(limit: usize) -> Result<()> {
    if (1..=RECORDS_PER_READ_MAX).contains(&limit) {
        return Ok(());
    }
    Err(Error::invalid(format!("a read of {limit} records: ask for 1 to {RECORDS_PER_READ_MAX}")))
}

/// Refuses a number of shards that no stream may have.
pub(crate) fn check_shard_count(count: u32) -> Result<()> {
    if (1..=SHARDS_MAX).contains(&count) {
        return Ok(());
    }
    Err(Error::invalid(format!("{count} shards: ask for 1 to {SHARDS_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(bytes: usize) -> Record {
        Record::new("k", vec![0; bytes - 1])
    }

    #[test]
    fn a_record_is_as_large_as_its_content_and_key() {
        let limits = Limits::default();
        assert_eq!(limits.refusal(&sized(1 << 20)), None);
        assert!(limits.refusal(&sized((1 << 20) + 1)).is_some());
        assert_eq!(Limits::for_record_bytes(2 << 20).refusal(&sized(2 << 20)), None);
    }

    #[test]
    fn keys_are_counted_in_characters() {
        let limits = Limits::default();
        assert_eq!(limits.refusal(&Record::new("ü".repeat(256), "")), None);
        assert!(limits.refusal(&Record::new("ü".repeat(257), "")).is_some());
        assert!(limits.refusal(&Record::new("", "x")).is_some());
    }

    #[test]
    fn a_call_holds_500_records_and_5_mib() {
        let limits = Limits::default();
        assert!(limits.check_call(vec![sized(1); 500].iter()).is_ok());
        assert!(limits.check_call(vec![sized(1); 501].iter()).is_err());
        assert!(limits.check_call(vec![sized(1 << 20); 5].iter()).is_ok());
        assert!(limits.check_call(vec![sized(1 << 20); 6].iter()).is_err());
        // Those refused alone are never sent.
        assert!(limits.check_call(vec![sized(2 << 20); 6].iter()).is_ok());
    }

    #[test]
    fn chunks_fit_and_move_on() {
        let limits = Limits::default();
        assert_eq!(limits.fitting(&vec![sized(1); 1200]), 500);
        assert_eq!(limits.fitting(&vec![sized(1 << 20); 6]), 5);
        assert_eq!(limits.fitting(&vec![sized(9 << 20); 6]), 6);
        assert_eq!(limits.fitting(&[]), 0);
    }

    #[test]
    fn names_are_those_that_kinesis_takes() {
        assert!(check_name("Orders_2.eu-west").is_ok());
        for bad in ["", "a b", "a/b", "ü", &"x".repeat(129)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
