//! Sizes as text: a number of bytes and its unit.

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Parses `512`, `64KiB`, `16MiB`, `10GiB` or `1TiB`.
///
/// # Errors
/// A message that says what was expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a size: write a number and a unit, like 64KiB, 16MiB or 10GiB");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let bytes = match unit {
        "" => 1,
        unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes).ok_or_else(bad)?,
    };
    number.checked_mul(bytes).ok_or_else(bad)
}

/// The size in the largest unit that shows it whole, as [`parse`] would take it.
#[must_use]
pub fn exact(bytes: u64) -> String {
    let whole = UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// The size with one digit after the point, for people.
#[must_use]
pub fn rounded(bytes: u64) -> String {
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if *unit > 1 => {
            let tenths = u128::from(bytes) * 10 / u128::from(*unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_a_unit() {
        for (text, bytes) in [("1B", 1), ("64KiB", 65_536), ("1536MiB", 1_610_612_736), ("10GiB", 10 << 30)] {
            assert_eq!(parse(text), Ok(bytes));
            assert_eq!(exact(bytes), text);
        }
        assert_eq!(parse("77"), Ok(77));
        assert_eq!(exact(0), "0B");
        for bad in ["", "KiB", "1 KiB", "1kb", "-1B", "1.5MiB", "99999999TiB"] {
            assert!(parse(bad).unwrap_err().contains("16MiB"), "{bad}");
        }
    }

    #[test]
    fn people_need_one_digit() {
        let shown = [0, 1023, 1024, 1_600_000, 11 << 30].map(rounded);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "11.0 GiB"]);
    }
}
