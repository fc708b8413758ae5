//! Durations as text: a number and its unit.

use std::time::Duration;

/// Parses `500ms`, `10s`, `5m`, `24h` or `7d`.
///
/// # Errors
/// A message that says what was expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad =
        || format!("`{text}` is not a duration: write a number and a unit, like 500ms, 10s, 5m, 24h or 7d");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(bad)
}

/// As [`parse`], and longer than nothing.
///
/// # Errors
/// A message that says what was expected.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("`{text}` is no time at all: give a duration above zero")),
        duration => Ok(duration),
    }
}

/// The duration in the largest unit that shows it whole, as [`parse`] would take it.
#[must_use]
pub fn shown(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, unit_ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if millis >= unit_ms && millis.is_multiple_of(unit_ms) {
            return format!("{}{unit}", millis / unit_ms);
        }
    }
    format!("{millis}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_a_unit() {
        for (text, millis) in
            [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("36h", 129_600_000), ("1d", 86_400_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)));
            assert_eq!(shown(Duration::from_millis(millis)), text);
        }
        for bad in ["", "10", "s", "1.5s", "-1s", "10 s", "99999999999999999999s", "9999999999999999999d"] {
            assert!(parse(bad).unwrap_err().contains("10s"), "{bad}");
        }
        assert!(parse_positive("0s").unwrap_err().contains("above zero"));
    }
}
