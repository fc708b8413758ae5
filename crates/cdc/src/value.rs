//! Writes one value as JSON, without loss: whoever casts it back in Postgres has what was there.
//!
//! Values come as the text that Postgres writes with the settings of our session (ISO dates, UTC, hex
//! `bytea`). How a type is shown is chosen once per column, by [`Rendering::of_type`]; `docs/events.md` has the
//! table. A text that does not look as its type's should is shown as a string, as it is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postgres_types::{Kind, Type};

/// Why a value has no JSON form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its text is not UTF-8, as can be in a database whose encoding is `SQL_ASCII`.
    NotUtf8,
    /// It came in binary, which our sessions do not ask for.
    Binary,
    /// A `bytea` that is not in hex: the session has another `bytea_output`.
    NotHex,
}

/// How values of a column are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rendering {
    Scalar(Scalar),
    Array { delimiter: u8, element: Scalar },
}

/// How a value that is no array is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// A number, as it is written; `NaN` and the infinities as strings.
    Number,
    Bool,
    /// A string of base64.
    Bytes,
    /// A string with `T` in the middle.
    Timestamp,
    /// The same, with `Z` at the end.
    ZonedTimestamp,
    /// A string of what Postgres wrote.
    Text,
}

impl Rendering {
    /// How values of a type are shown. Types that are not built in are shown as text.
    pub(crate) fn of_type(oid: u32) -> Self {
        let Some(built_in) = Type::from_oid(oid) else { return Self::Scalar(Scalar::Text) };
        match built_in.kind() {
            // Arrays to Postgres, yet their text is numbers with spaces in between.
            _ if built_in == Type::INT2_VECTOR || built_in == Type::OID_VECTOR => Self::Scalar(Scalar::Text),
            Kind::Array(element) => Self::Array {
                // Boxes have commas within, so their arrays have another mark between them.
                delimiter: if *element == Type::BOX { b';' } else { b',' },
                element: Scalar::of_type(element),
            },
            _ => Self::Scalar(Scalar::of_type(&built_in)),
        }
    }

    /// Appends the value. After an error, what was appended is to be taken away.
    pub(crate) fn write(self, out: &mut Vec<u8>, text: &[u8]) -> Result<(), Reason> {
        match self {
            Self::Scalar(scalar) => scalar.write(out, text),
            Self::Array { delimiter, element } => {
                let start = out.len();
                if let Some(written) = write_array(out, delimiter, element, text) {
                    return written;
                }
                out.truncate(start);
                write_text(out, text)
            }
        }
    }
}

impl Scalar {
    fn of_type(built_in: &Type) -> Self {
        match *built_in {
            Type::INT2 | Type::INT4 | Type::INT8 | Type::OID | Type::FLOAT4 | Type::FLOAT8 => Self::Number,
            Type::BOOL => Self::Bool,
            Type::BYTEA => Self::Bytes,
            Type::TIMESTAMP => Self::Timestamp,
            Type::TIMESTAMPTZ => Self::ZonedTimestamp,
            _ => Self::Text,
        }
    }

    fn write(self, out: &mut Vec<u8>, text: &[u8]) -> Result<(), Reason> {
        match self {
            Self::Number if is_json_number(text) => out.extend_from_slice(text),
            Self::Bool if text == b"t" => out.extend_from_slice(b"true"),
            Self::Bool if text == b"f" => out.extend_from_slice(b"false"),
            Self::Bytes => return write_bytes(out, text),
            Self::Timestamp => return write_timestamp(out, text, false),
            Self::ZonedTimestamp => return write_timestamp(out, text, true),
            Self::Number | Self::Bool | Self::Text => return write_text(out, text),
        }
        Ok(())
    }
}

/// Appends a string with the escapes that JSON asks for, and no others.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Reason> {
    let text = std::str::from_utf8(text).map_err(|_| Reason::NotUtf8)?;
    write_str(out, text);
    Ok(())
}

/// [`write_text`] of what is known to be UTF-8.
pub(crate) fn write_str(out: &mut Vec<u8>, text: &str) {
    let mut left = text.as_bytes();
    out.reserve(left.len() + 2);
    out.push(b'"');
    loop {
        let (plain, rest) = left.split_at(plain_prefix(left));
        out.extend_from_slice(plain);
        if rest.is_empty() {
            break;
        }
        // Where one byte needs an escape, as in JSON, others are near.
        let (near, rest) = rest.split_at(rest.len().min(NEAR));
        write_near(out, near);
        left = rest;
    }
    out.push(b'"');
}

/// Bytes that are looked at one by one after the first that needs an escape.
const NEAR: usize = 32;

/// Appends up to [`NEAR`] bytes with escapes, all at once.
fn write_near(out: &mut Vec<u8>, bytes: &[u8]) {
    const ESCAPE_MAX: usize = 6;
    let mut escaped = [0; NEAR * ESCAPE_MAX];
    let mut len = 0;
    for byte in bytes {
        if needs_escape(*byte) {
            let (escape, size) = escape(*byte);
            escaped[len..len + ESCAPE_MAX].copy_from_slice(&escape);
            len += size;
        } else {
            escaped[len] = *byte;
            len += 1;
        }
    }
    out.extend_from_slice(&escaped[..len]);
}

const fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// How many bytes from the front need no escape.
fn plain_prefix(bytes: &[u8]) -> usize {
    // Eight at a time, as one number: the lowest mark is at the first byte that needs one.
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marks = escape_marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return index * 8 + (marks.trailing_zeros() / 8) as usize;
        }
    }
    let end = rest.iter().position(|byte| needs_escape(*byte)).unwrap_or(rest.len());
    words.len() * 8 + end
}

/// Marks the highest bit of bytes that need an escape. Above the first of them, marks may be wrong.
const fn escape_marks(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const fn zeros(word: u64) -> u64 {
        word.wrapping_sub(ONES) & !word
    }
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = zeros(word ^ (ONES * b'"' as u64));
    let backslash = zeros(word ^ (ONES * b'\\' as u64));
    (control | quote | backslash) & (ONES << 7)
}

/// What stands for a byte, and how much of it counts.
const fn escape(byte: u8) -> ([u8; 6], usize) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            let (high, low) = (HEX[(byte >> 4) as usize], HEX[(byte & 0xf) as usize]);
            return ([b'\\', b'u', b'0', b'0', high, low], 6);
        }
    };
    ([b'\\', short, 0, 0, 0, 0], 2)
}

/// Whether the text is a number as JSON writes them.
fn is_json_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text[0] == b'0') {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', unsigned @ ..] => unsigned,
            unsigned => unsigned,
        };
        let count = digits(exponent);
        if count == 0 {
            return false;
        }
        rest = &exponent[count..];
    }
    rest.is_empty()
}

/// `2026-11-16 05:00:00.5+00` as `2026-11-16T05:00:00.5Z`; the infinities and ` BC` stay as they are.
fn write_timestamp(out: &mut Vec<u8>, text: &[u8], zoned: bool) -> Result<(), Reason> {
    let usual = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b':' | b'.' | b' ');
    let (moment, era) = match text.strip_suffix(b" BC") {
        Some(moment) => (moment, &b" BC"[..]),
        None => (text, &b""[..]),
    };
    let Some(space) = moment.iter().position(|byte| *byte == b' ') else { return write_text(out, text) };
    if !moment.iter().all(usual) {
        return write_text(out, text);
    }
    let (date, time) = (&moment[..space], &moment[space + 1..]);
    out.push(b'"');
    out.extend_from_slice(date);
    out.push(b'T');
    match time.strip_suffix(b"+00") {
        Some(utc) if zoned => {
            out.extend_from_slice(utc);
            out.push(b'Z');
        }
        _ => out.extend_from_slice(time),
    }
    out.extend_from_slice(era);
    out.push(b'"');
    Ok(())
}

/// `\x0aff` as a string of base64.
fn write_bytes(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Reason> {
    let (pairs, []) = text.strip_prefix(b"\\x").ok_or(Reason::NotHex)?.as_chunks::<2>() else {
        return Err(Reason::NotHex);
    };
    out.push(b'"');
    // A multiple of three, so that padding comes at the end alone.
    let mut bytes = [0; 192];
    for pairs in pairs.chunks(bytes.len()) {
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = nibble(*high).ok_or(Reason::NotHex)? << 4 | nibble(*low).ok_or(Reason::NotHex)?;
        }
        write_base64(out, &bytes[..pairs.len()]);
    }
    out.push(b'"');
    Ok(())
}

/// Appends base64, without quotes.
pub(crate) fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, b'=');
    // It is exactly what is needed, padding included.
    let _ = STANDARD.encode_slice(bytes, &mut out[start..]);
}

const fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Most dimensions of an array: Postgres' own limit.
const DIMENSIONS_MAX: usize = 6;

/// `{1,NULL,"a b"}` as a JSON array. `None` if it is none of that form, such as `[0:1]={1,2}`, whose own lower
/// bounds a JSON array could not tell.
fn write_array(out: &mut Vec<u8>, delimiter: u8, element: Scalar, text: &[u8]) -> Option<Result<(), Reason>> {
    // Filled only by elements with backslashes.
    let mut unescaped = Vec::new();
    let mut depth = 0;
    let mut left = text;
    loop {
        // An element comes, or an array of them.
        match left {
            [b'{', rest @ ..] if depth < DIMENSIONS_MAX => {
                depth += 1;
                out.push(b'[');
                if rest.first() != Some(&b'}') {
                    left = rest;
                    continue;
                }
                left = rest;
            }
            _ if depth == 0 => return None,
            [b'"', rest @ ..] => {
                let (content, after) = quoted(rest, &mut unescaped)?;
                if let Err(reason) = element.write(out, content) {
                    return Some(Err(reason));
                }
                left = after;
            }
            _ => {
                let special = |byte: &u8| *byte == delimiter || matches!(byte, b'{' | b'}' | b'"' | b'\\');
                let (content, after) = left.split_at(left.iter().position(special)?);
                if content.is_empty() {
                    return None;
                }
                if content == b"NULL" {
                    out.extend_from_slice(b"null");
                } else if let Err(reason) = element.write(out, content) {
                    return Some(Err(reason));
                }
                left = after;
            }
        }
        // Arrays end, then the next element comes, or nothing.
        while let [b'}', rest @ ..] = left {
            if depth == 0 {
                return None;
            }
            depth -= 1;
            out.push(b']');
            left = rest;
        }
        match left {
            [] if depth == 0 => return Some(Ok(())),
            [mark, rest @ ..] if *mark == delimiter && depth > 0 => {
                out.push(b',');
                left = rest;
            }
            _ => return None,
        }
    }
}

/// The content up to the closing quote, and what comes after it.
fn quoted<'t: 'c, 'c>(text: &'t [u8], unescaped: &'c mut Vec<u8>) -> Option<(&'c [u8], &'t [u8])> {
    let end = text.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    if text[end] == b'"' {
        return Some((&text[..end], &text[end + 1..]));
    }
    unescaped.clear();
    let mut left = text;
    loop {
        let end = left.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        unescaped.extend_from_slice(&left[..end]);
        if left[end] == b'"' {
            return Some((unescaped, &left[end + 1..]));
        }
        unescaped.push(*left.get(end + 1)?);
        left = &left[end + 2..];
    }
}

#[cfg(test)]
#[path = "value_test.rs"]
mod tests;
