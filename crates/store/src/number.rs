//! DynamoDB's number: an exact decimal of at most 38 digits, never a float.
//!
//! Kept as sign, coefficient and power of ten, with the coefficient's trailing zeros removed, so
//! that equal numbers are equal values: `1`, `1.0` and `10e-1` are the same [`Number`].

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use tenure_backend::Error;

/// Most significant digits a number may have.
pub(crate) const DIGITS_MAX: u32 = 38;
/// The power of ten of the leading digit of the largest number.
const LEADING_MAX: i32 = 125;
/// The power of ten of the leading digit of the smallest number above zero.
const LEADING_MIN: i32 = -130;
/// Longest text of a number: longer ones are not read, so that their digits can be counted.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Larger than any exponent that such a text can make up for.
const EXPONENT_MAX: i32 = 1 << 22;

/// An exact decimal number in DynamoDB's range: 38 digits, 1E-130 to 9.9…E+125, either sign, or zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number {
    negative: bool,
    /// Not divisible by ten, except for zero.
    coefficient: u128,
    exponent: i16,
}

impl Number {
    /// Zero.
    pub const ZERO: Self = Self { negative: false, coefficient: 0, exponent: 0 };

    fn new(negative: bool, mut coefficient: u128, mut exponent: i32) -> Result<Self, Error> {
        if coefficient == 0 {
            return Ok(Self::ZERO);
        }
        while coefficient.is_multiple_of(10) {
            coefficient /= 10;
            exponent += 1;
        }
        let digits = digits_of(coefficient);
        let leading = exponent + digits_signed(digits) - 1;
        if digits > DIGITS_MAX {
            return Err(Error::invalid(format!(
                "number has {digits} significant digits: a number holds at most {DIGITS_MAX}; store it as text"
            )));
        }
        if !(LEADING_MIN..=LEADING_MAX).contains(&leading) {
            return Err(Error::invalid(format!(
                "number of magnitude 1E{leading} is out of range (1E{LEADING_MIN} to 9.9E{LEADING_MAX}): \
                 store it as text"
            )));
        }
        let exponent = i16::try_from(exponent).map_err(|_| Error::invalid("number out of range"))?;
        Ok(Self { negative, coefficient, exponent })
    }

    /// The exact sum.
    ///
    /// # Errors
    /// `Invalid` if it does not fit 38 digits or the range; nothing is rounded.
    pub fn plus(self, other: Self) -> Result<Self, Error> {
        if self.coefficient == 0 {
            return Ok(other);
        }
        if other.coefficient == 0 {
            return Ok(self);
        }
        let (high, low) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        let too_long =
            || Error::invalid(format!("the sum of {self} and {other} has more than {DIGITS_MAX} digits"));
        // The lower number's last digit is not zero and stays the last digit of the sum, so a sum that
        // does not fit 128 bits here has more than 38 digits in any case.
        let shift =
            u32::try_from(i32::from(high.exponent) - i32::from(low.exponent)).map_err(|_| too_long())?;
        let scale = 10u128.checked_pow(shift).ok_or_else(too_long)?;
        let scaled = high.coefficient.checked_mul(scale).ok_or_else(too_long)?;
        let (negative, coefficient) = if high.negative == low.negative {
            (high.negative, scaled.checked_add(low.coefficient).ok_or_else(too_long)?)
        } else if scaled >= low.coefficient {
            (high.negative, scaled - low.coefficient)
        } else {
            (low.negative, low.coefficient - scaled)
        };
        Self::new(negative, coefficient, i32::from(low.exponent))
    }

    /// The value as an `i64`, if it is a whole number in that range.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        let scale = 10i128.checked_pow(u32::try_from(self.exponent).ok()?)?;
        let magnitude = i128::try_from(self.coefficient).ok()?.checked_mul(scale)?;
        i64::try_from(if self.negative { -magnitude } else { magnitude }).ok()
    }

    /// Bytes whose order is the numbers' order: for sorted keys in backends that compare bytes.
    #[must_use]
    pub fn sort_key(self) -> [u8; 19] {
        let mut bytes = [0; 19];
        if self.coefficient == 0 {
            bytes[0] = 1;
            return bytes;
        }
        let digits = digits_of(self.coefficient);
        let leading = u16::try_from(i32::from(self.exponent) + digits_signed(digits) + 1000).unwrap_or(0);
        // Scaled to 38 digits, so that numbers of one magnitude compare by their digits.
        let scaled = self.coefficient * 10u128.pow(DIGITS_MAX - digits);
        bytes[1..3].copy_from_slice(&leading.to_be_bytes());
        bytes[3..].copy_from_slice(&scaled.to_be_bytes());
        if self.negative {
            for byte in &mut bytes[1..] {
                *byte = !*byte;
            }
        } else {
            bytes[0] = 2;
        }
        bytes
    }
}

fn digits_of(coefficient: u128) -> u32 {
    coefficient.checked_ilog10().map_or(0, |log| log + 1)
}

fn digits_signed(digits: u32) -> i32 {
    i32::try_from(digits).unwrap_or(i32::MAX)
}

impl FromStr for Number {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::invalid(format!("`{text}` is not a number: write digits, like 42 or -1.5e3"));
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            // Beyond any digits that could bring it back into range, so that no sum below overflows.
            Some((mantissa, exponent)) => {
                (mantissa, exponent.parse::<i32>().map_err(|_| bad())?.clamp(-EXPONENT_MAX, EXPONENT_MAX))
            }
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if (whole.is_empty() && fraction.is_empty()) || text.len() > TEXT_BYTES_MAX {
            return Err(bad());
        }
        let mut coefficient = 0u128;
        let mut dropped_zeros = 0i32;
        let mut pending_zeros = 0i32;
        for byte in whole.bytes().chain(fraction.bytes()) {
            if !byte.is_ascii_digit() {
                return Err(bad());
            }
            // Zeros are held back until a digit follows: trailing ones only move the exponent.
            if byte == b'0' {
                pending_zeros += 1;
                continue;
            }
            let too_long = || {
                Error::invalid(format!(
                    "number `{text}` has more than {DIGITS_MAX} significant digits: store it as text"
                ))
            };
            if coefficient != 0 {
                let zeros = u32::try_from(pending_zeros).map_err(|_| too_long())?;
                let scale = 10u128.checked_pow(zeros).ok_or_else(too_long)?;
                coefficient = coefficient.checked_mul(scale).ok_or_else(too_long)?;
            }
            pending_zeros = 0;
            coefficient = coefficient
                .checked_mul(10)
                .and_then(|shifted| shifted.checked_add(u128::from(byte - b'0')))
                .ok_or_else(too_long)?;
        }
        dropped_zeros += pending_zeros;
        let fraction_digits = i32::try_from(fraction.len()).map_err(|_| bad())?;
        let exponent = exponent
            .checked_add(dropped_zeros)
            .and_then(|e| e.checked_sub(fraction_digits))
            .ok_or_else(bad)?;
        Self::new(negative, coefficient, exponent)
    }
}

macro_rules! from_integer {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Number {
            fn from(value: $integer) -> Self {
                let value = i128::from(value);
                Self::new(value < 0, value.unsigned_abs(), 0).unwrap_or(Self::ZERO)
            }
        }
    )*};
}
// At most 20 digits each, so always in range.
from_integer!(i32, u32, i64, u64);

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Plain digits, as other programs' integer parsers expect them: never an exponent.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.negative {
            f.write_str("-")?;
        }
        let digits = self.coefficient.to_string();
        match usize::try_from(self.exponent) {
            Ok(zeros) => write!(f, "{digits}{:0<zeros$}", ""),
            Err(_) => {
                let places = usize::from(self.exponent.unsigned_abs());
                if digits.len() > places {
                    let (whole, fraction) = digits.split_at(digits.len() - places);
                    write!(f, "{whole}.{fraction}")
                } else {
                    write!(f, "0.{digits:0>places$}")
                }
            }
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn n(text: &str) -> Number {
        text.parse().unwrap()
    }

    #[test]
    fn equal_numbers_are_equal_values() {
        assert_eq!(n("1"), n("1.0"));
        assert_eq!(n("10e-1"), n("0001"));
        assert_eq!(n("-0"), Number::ZERO);
        assert_eq!(n("0e999"), Number::ZERO);
        assert_eq!(n("1.10"), n("11e-1"));
    }

    #[test]
    fn shown_plainly() {
        for text in ["0", "1", "-1", "1763924400", "100", "0.5", "-0.0001", "12.34", "9007199254740993"] {
            assert_eq!(n(text).to_string(), text);
        }
        assert_eq!(n("1e30").to_string().len(), 31);
        assert_eq!(n("9007199254740993").as_i64(), Some(9_007_199_254_740_993));
        assert_eq!(n("-1200").as_i64(), Some(-1200));
        assert_eq!(n("1.5").as_i64(), None);
        assert_eq!(n("1e30").as_i64(), None);
    }

    #[test]
    fn the_range_is_dynamodbs() {
        for text in ["1e125", "9.9e125", "1e-130", &"9".repeat(38)] {
            assert_eq!(n(text).to_string().parse::<Number>().unwrap(), n(text));
        }
        let refused = |text: &str| text.parse::<Number>().unwrap_err().chain();
        assert!(refused("1e126").contains("out of range"));
        assert!(refused("1e-131").contains("out of range"));
        assert!(refused("1e2147483647").contains("out of range"));
        assert!(refused("1e-2147483648").contains("out of range"));
        assert!(
            refused(&"1".repeat(39)).contains("39 significant digits")
                || refused(&"1".repeat(39)).contains("38")
        );
        assert!(refused(&"9".repeat(60)).contains("more than 38"));
        for text in ["", "-", ".", "abc", "1e", "1.2.3", "0x10", "NaN", "1 "] {
            assert!(refused(text).contains("is not a number"), "{text}");
        }
    }

    #[test]
    fn sums_are_exact_or_refused() {
        assert_eq!(n("0.1").plus(n("0.2")).unwrap(), n("0.3"));
        assert_eq!(n("9007199254740993").plus(n("1")).unwrap(), n("9007199254740994"));
        assert_eq!(n("5").plus(n("-5")).unwrap(), Number::ZERO);
        assert!(n("1e40").plus(n("1")).is_err());
        assert!(n(&"9".repeat(38)).plus(n("1")).is_ok(), "10^38 has one significant digit");
        assert!(n("9e125").plus(n("9e125")).is_err());
        assert_eq!(n("1e100").plus(Number::ZERO).unwrap(), n("1e100"));
    }

    fn any_number() -> impl Strategy<Value = Number> {
        (any::<bool>(), 0u128..10u128.pow(38), -130i32..80)
            .prop_filter_map("in range", |(negative, coefficient, exponent)| {
                Number::new(negative, coefficient, exponent).ok()
            })
    }

    proptest! {
        #[test]
        fn text_round_trips(number in any_number()) {
            prop_assert_eq!(number.to_string().parse::<Number>().unwrap(), number);
        }

        #[test]
        fn order_is_the_integers_order(a in any::<i64>(), b in any::<i64>(), shift in -20i32..20) {
            let shifted = |v: i64| Number::new(v < 0, u128::from(v.unsigned_abs()), shift).unwrap();
            prop_assert_eq!(shifted(a).cmp(&shifted(b)), a.cmp(&b));
        }

        #[test]
        fn sums_agree_with_integers(a in any::<i64>(), b in any::<i64>()) {
            let sum = i128::from(a) + i128::from(b);
            prop_assert_eq!(Number::from(a).plus(Number::from(b)).unwrap(), n(&sum.to_string()));
        }

        #[test]
        fn adding_is_undone_by_subtracting(a in any_number(), b in any_number()) {
            if let Ok(sum) = a.plus(b) {
                let minus_b = Number { negative: !b.negative && b.coefficient != 0, ..b };
                prop_assert_eq!(sum.plus(minus_b).unwrap(), a);
            }
        }
    }
}
