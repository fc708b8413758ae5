//! Moments on the command line: RFC 3339.

use tenure_clock::WallTime;

/// Parses `2026-11-15T12:00:00Z`, with a fraction of a second or an offset like `+01:00` if need be.
///
/// # Errors
/// A message that says what was expected.
pub(crate) fn parse(text: &str) -> Result<WallTime, String> {
    read(text).ok_or_else(|| {
        format!(
            "`{text}` is not a moment: write it like 2026-11-15T12:00:00Z or 2026-11-15T13:00:00.250+01:00"
        )
    })
}

fn read(text: &str) -> Option<WallTime> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(zone_at);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let in_range = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    // Second 60 is a leap second.
    if !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(WallTime::from_millis((seconds - offset_seconds(zone)?) * 1000 + millis(fraction)?))
}

fn numbers(text: &str, separator: char, widths: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut found = [0; 3];
    for (number, width) in found.iter_mut().zip(widths) {
        *number = digits(parts.next()?, width)?;
    }
    parts.next().is_none().then_some(found)
}

fn digits(text: &str, width: usize) -> Option<i64> {
    let plain = text.len() == width && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn millis(fraction: &str) -> Option<i64> {
    let plain = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| format!("{fraction:0<3}")[..3].parse().ok()).flatten()
}

fn offset_seconds(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, rest) = match zone.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, zone.strip_prefix('+')?),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 60 + minutes) * 60)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01. Years are counted from March, so that the leap day is the last of its year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_back() {
        for millis in [0, 1_763_553_900_000, 951_782_400_123, -1, 4_102_444_799_000, 1_709_164_800_000] {
            let moment = WallTime::from_millis(millis);
            assert_eq!(parse(&moment.to_string()), Ok(moment));
        }
    }

    #[test]
    fn offsets_and_fractions() {
        let at = |text: &str| parse(text).unwrap().as_millis();
        assert_eq!(at("1970-01-01T01:00:00.25+01:00"), 250);
        assert_eq!(at("1969-12-31T23:30:00-00:30"), 0);
        assert_eq!(at("1970-01-01 00:00:00.123456789z"), 123);
        for bad in [
            "",
            "2026-11-15",
            "2026-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2026-1-1T00:00:00Z",
            "2026-11-15T24:00:00Z",
            "2026-11-15T12:00:00",
            "2026-11-15T12:00Z",
            "2026-11-15T12:00:00.Z",
            "now",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
