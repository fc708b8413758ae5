//! Sequence numbers: decimal text of any length, compared as numbers.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use tenure_backend::{Error, Result};

/// Where a record stands in its shard: later records have higher numbers.
///
/// Kinesis's have 56 digits and more, the embedded backends' fit in 64 bits; both are decimal text
/// to everybody else. Leading zeros mean nothing and are not kept.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SequenceNumber(Digits);

/// A number has one form only (small if it fits), so that equality may be derived.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Digits {
    Small(u64),
    Large(Box<str>),
}

/// Longest number accepted: twice the longest that Kinesis has been seen to give.
const DIGITS_MAX: usize = 128;

impl SequenceNumber {
    /// The number as 64 bits, if it fits.
    #[must_use]
    pub const fn as_u64(&self) -> Option<u64> {
        match self.0 {
            Digits::Small(number) => Some(number),
            Digits::Large(_) => None,
        }
    }
}

impl From<u64> for SequenceNumber {
    fn from(number: u64) -> Self {
        Self(Digits::Small(number))
    }
}

impl FromStr for SequenceNumber {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        if text.is_empty() || text.len() > DIGITS_MAX || !digits {
            return Err(Error::invalid(format!(
                "sequence number `{text}` is no decimal number of 1 to {DIGITS_MAX} digits"
            )));
        }
        let text = text.trim_start_matches('0');
        Ok(Self(match text.parse() {
            Ok(number) => Digits::Small(number),
            Err(_) if text.is_empty() => Digits::Small(0),
            Err(_) => Digits::Large(text.into()),
        }))
    }
}

impl Ord for SequenceNumber {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Digits::Small(one), Digits::Small(two)) => one.cmp(two),
            (Digits::Small(_), Digits::Large(_)) => Ordering::Less,
            (Digits::Large(_), Digits::Small(_)) => Ordering::Greater,
            // Without leading zeros the longer number is the higher one.
            (Digits::Large(one), Digits::Large(two)) => one.len().cmp(&two.len()).then_with(|| one.cmp(two)),
        }
    }
}

impl PartialOrd for SequenceNumber {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Digits::Small(number) => number.fmt(f),
            Digits::Large(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SequenceNumber({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> SequenceNumber {
        text.parse().unwrap()
    }

    #[test]
    fn numbers_compare_as_numbers_whatever_their_length() {
        let ordered = [
            "0",
            "9",
            "10",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999",
            "49590338271490256608559692538361571095921575989136588898",
            "49590338271490256608559692538361571095921575989136588899",
        ];
        for pair in ordered.windows(2) {
            assert!(number(pair[0]) < number(pair[1]), "{pair:?}");
        }
        assert_eq!(number("000"), number("0"));
        assert_eq!(number("00018446744073709551616").to_string(), "18446744073709551616");
        assert_eq!(number("42").as_u64(), Some(42));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bad in ["", "-1", "+1", " 1", "1e3", "LATEST", &"9".repeat(DIGITS_MAX + 1)] {
            assert!(bad.parse::<SequenceNumber>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn text_and_order_agree_with_the_number(one: u128, two: u128) {
            let (a, b) = (number(&one.to_string()), number(&two.to_string()));
            prop_assert_eq!(a.cmp(&b), one.cmp(&two));
            prop_assert_eq!(a.to_string(), one.to_string());
        }
    }
}
