//! Amounts as Kubernetes writes them: `2`, `250m`, `0.5`, `128Mi`, `1e3`, `1.5G`.

/// Which way a part of the unit goes: what is asked for is not made smaller, what there is not larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    Up,
    Down,
}

/// Digits that are read at most: more than any quantity has that the API server lets pass.
const DIGITS_MAX: usize = 40;
/// Powers of ten that are followed at most; beyond, every number here is the largest there is, or nothing.
const EXPONENT_MAX: i32 = 40;

/// The quantity in units of `unit` thousandths; what is larger than fits is the largest that fits. None if it
/// is no quantity, or below zero.
pub(super) fn parse_quantity(text: &str, unit: u128, rounding: Rounding) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '+').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: String = [whole, part].concat();
    let is_number =
        !digits.is_empty() && digits.len() <= DIGITS_MAX && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number || unit == 0 {
        return None;
    }
    let (binary, decimal) = scale(suffix)?;
    // value = digits × 2^binary × 10^(decimal - places), and three more places for thousandths.
    let exponent = decimal.checked_sub(i32::try_from(part.len()).ok()?)?.checked_add(3)?;
    let digits: u128 = digits
        .trim_start_matches('0')
        .parse()
        .or_else(|error| if digits.bytes().all(|byte| byte == b'0') { Ok(0) } else { Err(error) })
        .unwrap_or(u128::MAX);
    let mut thousandths = digits.saturating_mul(1 << binary);
    let mut has_rest = false;
    for _ in 0..exponent.clamp(0, EXPONENT_MAX) {
        thousandths = thousandths.saturating_mul(10);
    }
    for _ in 0..(-exponent).clamp(0, EXPONENT_MAX + 40) {
        has_rest |= !thousandths.is_multiple_of(10);
        thousandths /= 10;
    }
    has_rest |= !thousandths.is_multiple_of(unit);
    let mut units = thousandths / unit;
    if has_rest && rounding == Rounding::Up {
        units = units.saturating_add(1);
    }
    Some(u64::try_from(units).unwrap_or(u64::MAX))
}

/// A suffix as powers of two and of ten.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => {
            let exponent = suffix.strip_prefix('e').or_else(|| suffix.strip_prefix('E'))?;
            let exponent: i32 = exponent.parse().ok()?;
            (0, exponent.clamp(-EXPONENT_MAX, EXPONENT_MAX))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u128 = 1000 << 20;

    #[test]
    fn cores_in_thousandths() {
        let cpu = |text: &str| parse_quantity(text, 1, Rounding::Up);
        assert_eq!(cpu("2"), Some(2000));
        assert_eq!(cpu("250m"), Some(250));
        assert_eq!(cpu("0.5"), Some(500));
        assert_eq!(cpu(".5"), Some(500));
        assert_eq!(cpu("+1.5"), Some(1500));
        assert_eq!(cpu("1e3"), Some(1_000_000));
        assert_eq!(cpu("15E-1"), Some(1500));
        assert_eq!(cpu("0"), Some(0));
        assert_eq!(cpu("1u"), Some(1), "what is asked for is not made nothing");
        assert_eq!(parse_quantity("1999999u", 1, Rounding::Down), Some(1999));
    }

    #[test]
    fn memory_in_mebibytes() {
        let up = |text: &str| parse_quantity(text, MIB, Rounding::Up);
        let down = |text: &str| parse_quantity(text, MIB, Rounding::Down);
        assert_eq!(up("128Mi"), Some(128));
        assert_eq!(up("1.5Gi"), Some(1536));
        assert_eq!((up("128974848"), down("128974848")), (Some(123), Some(123)));
        assert_eq!((up("129M"), down("129M")), (Some(124), Some(123)));
        assert_eq!((up("1"), down("1")), (Some(1), Some(0)));
        assert_eq!(down("8010340Ki"), Some(7822));
        assert_eq!(up("1Ei"), Some(1 << 40));
        assert_eq!(up("1000m"), Some(1), "a thousand thousandths of a byte");
    }

    #[test]
    fn what_is_too_large_is_the_largest_and_what_is_no_quantity_is_none() {
        let cpu = |text: &str| parse_quantity(text, 1, Rounding::Up);
        assert_eq!(cpu("1e39"), Some(u64::MAX));
        assert_eq!(cpu("9999999999999999999999999999999999999999"), Some(u64::MAX));
        assert_eq!(cpu("1e-39"), Some(1));
        assert_eq!(cpu("1e99999999999"), None);
        for text in ["", "-1", "m", ".", "1.2.3", "1x", "1 Gi", "0x10", "1Kii", "e3", "1++", "NaN"] {
            assert_eq!(cpu(text), None, "{text}");
        }
        assert_eq!(cpu(&"1".repeat(41)), None);
    }
}
