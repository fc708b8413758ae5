//! Which advisory lock.

use std::fmt;
use std::str::FromStr;

use md5::{Digest, Md5};
use tenure_backend::{Error, Result};

/// The key of an advisory lock, in either of Postgres' two forms. The two never meet: `One(7)` and
/// `Two(0, 7)` are different locks.
///
/// Locks belong to a database: candidates that connect to different databases of a server do not
/// exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKey {
    /// `pg_try_advisory_lock(bigint)`.
    One(i64),
    /// `pg_try_advisory_lock(int, int)`.
    Two(i32, i32),
}

impl LockKey {
    /// A key for a name: the first half of its MD5, as a bigint. Other programs compute the same by
    ///
    /// ```sql
    /// ('x' || left(md5('name'), 16))::bit(64)::bigint
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Self {
        let digest = Md5::digest(name.as_bytes());
        let mut half = [0; 8];
        half.copy_from_slice(&digest[..8]);
        Self::One(i64::from_be_bytes(half))
    }

    /// As arguments of Postgres' functions: digits, signs and a comma only.
    #[must_use]
    pub fn arguments(self) -> String {
        match self {
            // The smallest bigint cannot be written as a negated literal, but as a text it can.
            Self::One(key) => format!("'{key}'::bigint"),
            Self::Two(first, second) => format!("'{first}'::int, '{second}'::int"),
        }
    }

    /// The row of `pg_locks`, as its `classid`, `objid` and `objsubid`.
    #[must_use]
    pub const fn in_pg_locks(self) -> (u32, u32, i16) {
        match self {
            Self::One(key) => ((key.cast_unsigned() >> 32) as u32, key.cast_unsigned() as u32, 1),
            Self::Two(first, second) => (first.cast_unsigned(), second.cast_unsigned(), 2),
        }
    }
}

/// `42`, or `7,42`.
impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(key) => key.fmt(f),
            Self::Two(first, second) => write!(f, "{first},{second}"),
        }
    }
}

/// Reads what [`LockKey`] shows.
impl FromStr for LockKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let key = match text.split_once(',') {
            None => text.trim().parse().ok().map(Self::One),
            Some((first, second)) => {
                let halves = (first.trim().parse().ok(), second.trim().parse().ok());
                if let (Some(first), Some(second)) = halves { Some(Self::Two(first, second)) } else { None }
            }
        };
        key.ok_or_else(|| {
            Error::invalid(format!(
                "`{text}` is not the key of an advisory lock: give one 64-bit number as `42`, or two 32-bit numbers \
                 as `7,42`"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_as_it_shows() {
        for key in [LockKey::One(42), LockKey::One(i64::MIN), LockKey::Two(7, -1), LockKey::named("orders")] {
            assert_eq!(key.to_string().parse::<LockKey>().unwrap(), key);
        }
        assert_eq!(" 7, 42 ".parse::<LockKey>().unwrap(), LockKey::Two(7, 42));
        for wrong in ["", "orders", "1,2,3", "1,", "9223372036854775808", "2147483648,0"] {
            assert!(wrong.parse::<LockKey>().unwrap_err().chain().contains("`7,42`"), "{wrong}");
        }
    }

    #[test]
    fn a_name_gives_the_key_that_the_documented_sql_gives() {
        // md5('orders') begins with 12c500ed0b787910.
        assert_eq!(LockKey::named("orders"), LockKey::One(0x12c5_00ed_0b78_7910));
        assert_ne!(LockKey::named("orders"), LockKey::named("Orders"));
    }

    #[test]
    fn each_form_has_its_own_row() {
        assert_eq!(LockKey::One(-1).in_pg_locks(), (u32::MAX, u32::MAX, 1));
        assert_eq!(LockKey::One((7 << 32) + 42).in_pg_locks(), (7, 42, 1));
        assert_eq!(LockKey::Two(7, -42).in_pg_locks(), (7, u32::MAX - 41, 2));
    }
}
