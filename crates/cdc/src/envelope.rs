//! What a change looks like when it is published: one line of JSON. `docs/events.md` describes it for readers.
//!
//! The same event is always the same bytes, whoever writes it, but for what its header says of the leader.

use std::fmt;
use std::sync::Arc;

use tenure_stream::identity::Header;

use crate::pgoutput::{Old, Tuple, Value, Xid};
use crate::table::{Table, identity_name};
pub use crate::value::Reason;
use crate::value::{write_base64, write_str};

/// One event.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Who it is.
    pub header: Header<'a>,
    /// What happened.
    pub op: Op<'a>,
    /// The transaction.
    pub xid: Option<Xid>,
    /// When it committed, in microseconds since 2000-01-01 UTC. A message outside a transaction has no such time.
    pub committed_micros: Option<i64>,
}

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Op<'a> {
    /// A row came to be.
    Insert {
        /// Where.
        table: &'a Table,
        /// The row.
        new: Tuple<'a>,
        /// It had another key before; a delete on the lane of that key comes with this.
        moved_from: Option<Old<'a>>,
    },
    /// A row changed and kept its key.
    Update {
        /// Where.
        table: &'a Table,
        /// What is known of the row before.
        old: Option<Old<'a>>,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row went away.
    Delete {
        /// Where.
        table: &'a Table,
        /// What is known of it.
        old: Old<'a>,
        /// It has another key now; an insert on the lane of that key comes with this.
        moved: bool,
    },
    /// The table was emptied.
    Truncate {
        /// Which.
        table: &'a Table,
        /// `CASCADE` was given.
        cascade: bool,
        /// `RESTART IDENTITY` was given.
        restart_identity: bool,
    },
    /// The table looks like this from here on.
    Schema {
        /// Which.
        table: &'a Table,
    },
    /// A message of `pg_logical_emit_message`.
    Message {
        /// What it is about.
        prefix: &'a str,
        /// What it says.
        content: &'a [u8],
        /// Whether it belongs to a transaction.
        transactional: bool,
    },
}

impl<'a> Op<'a> {
    /// Its name in the event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Insert { .. } => "insert",
            Self::Update { .. } => "update",
            Self::Delete { .. } => "delete",
            Self::Truncate { .. } => "truncate",
            Self::Schema { .. } => "schema",
            Self::Message { .. } => "message",
        }
    }

    /// The table that it concerns.
    #[must_use]
    pub const fn table(&self) -> Option<&'a Table> {
        match self {
            Self::Insert { table, .. }
            | Self::Update { table, .. }
            | Self::Delete { table, .. }
            | Self::Truncate { table, .. }
            | Self::Schema { table } => Some(table),
            Self::Message { .. } => None,
        }
    }
}

/// The event has no JSON form: it is to be kept as it came, and a pointer takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unencodable {
    /// The column with which it failed.
    pub column: Option<Arc<str>>,
    /// Why.
    pub why: Why,
}

/// See [`Unencodable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A value has no JSON form.
    Value(Reason),
    /// The row has more or fewer values than the table has columns.
    OtherShape,
    /// A large key did not change, and the log does not tell it.
    KeyNotTold,
}

impl fmt::Display for Unencodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(column) = &self.column {
            write!(f, "column {column:?}: ")?;
        }
        f.write_str(match self.why {
            Why::Value(Reason::NotUtf8) => {
                "its text is not UTF-8: convert the value, or leave the column out of the publication"
            }
            Why::Value(Reason::Binary) => "the value came in binary: start replication without `binary`",
            Why::Value(Reason::NotHex) => "the bytes are not in hex: set `bytea_output` to `hex`",
            Why::OtherShape => "the row has another number of values than its table has columns",
            Why::KeyNotTold => {
                "the log does not tell the large key: update Postgres to its latest minor release"
            }
        })
    }
}

impl std::error::Error for Unencodable {}

/// Appends an event, one line without its end.
///
/// # Errors
/// If a value has no JSON form. Then nothing was appended.
pub fn write(out: &mut Vec<u8>, event: &Event<'_>) -> Result<(), Unencodable> {
    let start = out.len();
    let written = write_event(out, event);
    if written.is_err() {
        out.truncate(start);
    }
    written
}

fn write_event(out: &mut Vec<u8>, event: &Event<'_>) -> Result<(), Unencodable> {
    begin(out, &event.header, event.op.name(), event.op.table());
    match &event.op {
        Op::Insert { table, new, moved_from } => {
            let before = moved_from.as_ref();
            write_key(out, table, new, before)?;
            if let Some(before) = before {
                write_before(out, table, before)?;
            }
            write_after(out, table, new, before)?;
            if before.is_some() {
                out.extend_from_slice(br#","key_change":"to""#);
            }
        }
        Op::Update { table, old, new } => {
            write_key(out, table, new, old.as_ref())?;
            if let Some(old) = old {
                write_before(out, table, old)?;
            }
            write_after(out, table, new, old.as_ref())?;
        }
        Op::Delete { table, old, moved } => {
            let (Old::Key(row) | Old::Full(row)) = old;
            write_key(out, table, row, None)?;
            // Of a row of which the key alone is known, the key has said it all.
            if !table.is_keyed() || matches!(old, Old::Full(_)) {
                write_before(out, table, old)?;
            }
            if *moved {
                out.extend_from_slice(br#","key_change":"from""#);
            }
        }
        Op::Truncate { cascade, restart_identity, .. } => {
            out.extend_from_slice(br#","cascade":"#);
            push_bool(out, *cascade);
            out.extend_from_slice(br#","restart_identity":"#);
            push_bool(out, *restart_identity);
        }
        Op::Schema { table } => write_shape(out, table),
        Op::Message { prefix, content, transactional } => {
            out.extend_from_slice(br#","prefix":"#);
            write_str(out, prefix);
            match std::str::from_utf8(content) {
                Ok(text) => {
                    out.extend_from_slice(br#","content":"#);
                    write_str(out, text);
                }
                Err(_) => {
                    out.extend_from_slice(br#","content_base64":""#);
                    write_base64(out, content);
                    out.push(b'"');
                }
            }
            out.extend_from_slice(br#","transactional":"#);
            push_bool(out, *transactional);
        }
    }
    if let Some(Xid(xid)) = event.xid {
        out.extend_from_slice(br#","xid":"#);
        push_decimal(out, xid);
    }
    if let Some(micros) = event.committed_micros {
        out.extend_from_slice(br#","committed":""#);
        push_moment(out, micros);
        out.push(b'"');
    }
    out.push(b'}');
    Ok(())
}

/// Why a pointer stands where an event should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerKind {
    /// The event is too large for the stream. Its bytes are elsewhere, whole.
    ClaimCheck,
    /// The event could not be encoded, or was refused. What there is of it waits for a person.
    Quarantined,
}

/// Where an event is that is not here.
#[derive(Debug, Clone, Copy)]
pub struct Pointer<'a> {
    /// Why it is not.
    pub kind: PointerKind,
    /// Where it is.
    pub place: &'a str,
    /// How many bytes it has there.
    pub bytes: u64,
    /// Their SHA-256, in hex.
    pub sha256: &'a str,
    /// What a person should know. Beyond 500 characters it is cut.
    pub reason: Option<&'a str>,
    /// What happened, as [`Op::name`] says it.
    pub op: &'a str,
    /// The table that it concerns.
    pub table: Option<&'a Table>,
}

const REASON_CHARACTERS_MAX: usize = 500;

/// Appends the small event that takes the place of one that cannot be here.
pub fn write_pointer(out: &mut Vec<u8>, header: &Header<'_>, pointer: &Pointer<'_>) {
    begin(out, header, "pointer", pointer.table);
    out.extend_from_slice(br#","pointer":{"kind":""#);
    out.extend_from_slice(match pointer.kind {
        PointerKind::ClaimCheck => b"claim_check",
        PointerKind::Quarantined => b"quarantined",
    });
    out.extend_from_slice(br#"","op":"#);
    write_str(out, pointer.op);
    out.extend_from_slice(br#","place":"#);
    write_str(out, pointer.place);
    out.extend_from_slice(br#","bytes":"#);
    push_decimal(out, pointer.bytes);
    out.extend_from_slice(br#","sha256":"#);
    write_str(out, pointer.sha256);
    if let Some(reason) = pointer.reason {
        let end = reason.char_indices().nth(REASON_CHARACTERS_MAX).map_or(reason.len(), |(end, _)| end);
        out.extend_from_slice(br#","reason":"#);
        write_str(out, &reason[..end]);
    }
    out.extend_from_slice(b"}}");
}

fn begin(out: &mut Vec<u8>, header: &Header<'_>, op: &str, table: Option<&Table>) {
    out.extend_from_slice(br#"{"tenure":"#);
    header.write_json(out);
    out.extend_from_slice(br#","op":"#);
    write_str(out, op);
    if let Some(table) = table {
        out.push(b',');
        out.extend_from_slice(&table.json_names);
    }
}

fn write_key(
    out: &mut Vec<u8>,
    table: &Table,
    row: &Tuple<'_>,
    before: Option<&Old<'_>>,
) -> Result<(), Unencodable> {
    if !table.is_keyed() {
        return Ok(());
    }
    out.extend_from_slice(br#","key":"#);
    write_row(out, table, row, before, true).map(drop)
}

fn write_before(out: &mut Vec<u8>, table: &Table, old: &Old<'_>) -> Result<(), Unencodable> {
    out.extend_from_slice(br#","before":"#);
    match old {
        Old::Key(row) => write_row(out, table, row, None, true).map(drop),
        Old::Full(row) => write_row(out, table, row, None, false).map(drop),
    }
}

fn write_after(
    out: &mut Vec<u8>,
    table: &Table,
    row: &Tuple<'_>,
    before: Option<&Old<'_>>,
) -> Result<(), Unencodable> {
    out.extend_from_slice(br#","after":"#);
    if write_row(out, table, row, before, false)? == Complete::Yes {
        return Ok(());
    }
    out.extend_from_slice(br#","unchanged":"#);
    let mut separator = b'[';
    for (column, value) in table.values(row, before) {
        if value == Value::Unchanged {
            out.push(separator);
            separator = b',';
            write_str(out, &column.name);
        }
    }
    out.push(b']');
    Ok(())
}

/// Whether all values of a row were told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Complete {
    Yes,
    /// Large values that did not change were not.
    No,
}

fn write_row(
    out: &mut Vec<u8>,
    table: &Table,
    row: &Tuple<'_>,
    before: Option<&Old<'_>>,
    key_only: bool,
) -> Result<Complete, Unencodable> {
    if row.len() != table.columns.len() {
        return Err(Unencodable { column: None, why: Why::OtherShape });
    }
    let mut complete = Complete::Yes;
    out.push(b'{');
    let empty = out.len();
    for (column, value) in table.values(row, before) {
        if key_only && !column.in_key {
            continue;
        }
        if value == Value::Unchanged {
            complete = Complete::No;
            continue;
        }
        if out.len() > empty {
            out.push(b',');
        }
        out.extend_from_slice(&column.json_name);
        let written = match value {
            Value::Text(text) => column.rendering.write(out, text),
            Value::Binary(_) => Err(Reason::Binary),
            Value::Null | Value::Unchanged => {
                out.extend_from_slice(b"null");
                Ok(())
            }
        };
        written
            .map_err(|reason| Unencodable { column: Some(column.name.clone()), why: Why::Value(reason) })?;
    }
    out.push(b'}');
    Ok(complete)
}

fn write_shape(out: &mut Vec<u8>, table: &Table) {
    out.extend_from_slice(br#","identity":""#);
    out.extend_from_slice(identity_name(table.identity).as_bytes());
    out.extend_from_slice(br#"","columns":"#);
    if table.columns.is_empty() {
        out.push(b'[');
    }
    let mut separator = b'[';
    for column in &table.columns {
        out.push(separator);
        separator = b',';
        out.extend_from_slice(br#"{"name":"#);
        write_str(out, &column.name);
        out.extend_from_slice(br#","type":{"oid":"#);
        push_decimal(out, column.type_oid);
        if let Some(name) = &column.type_name {
            out.extend_from_slice(br#","name":"#);
            write_str(out, name);
        }
        if column.type_modifier != -1 {
            out.extend_from_slice(br#","modifier":"#);
            push_decimal(out, column.type_modifier);
        }
        out.extend_from_slice(br#"},"key":"#);
        push_bool(out, column.in_key);
        out.push(b'}');
    }
    out.push(b']');
}

fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

fn push_decimal(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// `2026-11-16T05:00:00.123456Z`, from microseconds since 2000-01-01.
fn push_moment(out: &mut Vec<u8>, micros: i64) {
    const MICROS_PER_DAY: i64 = 86_400_000_000;
    let (days, micros) = (micros.div_euclid(MICROS_PER_DAY), micros.rem_euclid(MICROS_PER_DAY));
    let (year, month, day) = civil(days);
    if year < 0 {
        out.push(b'-');
    }
    let year = year.unsigned_abs();
    if year <= 9999 {
        push_padded::<4>(out, year);
    } else {
        push_decimal(out, year);
    }
    let micros = micros.unsigned_abs();
    let seconds = micros / 1_000_000;
    for (mark, number) in
        [(b'-', month), (b'-', day), (b'T', seconds / 3600), (b':', seconds / 60 % 60), (b':', seconds % 60)]
    {
        out.push(mark);
        push_padded::<2>(out, number);
    }
    out.push(b'.');
    push_padded::<6>(out, micros % 1_000_000);
    out.push(b'Z');
}

fn push_padded<const N: usize>(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits);
}

/// Year, month and day of so many days after 2000-01-01, in the Gregorian calendar at all times.
///
/// Years are counted from March on, so that the day which comes and goes is the last of its year.
const fn civil(days: i64) -> (i64, u64, u64) {
    const DAYS_PER_ERA: i64 = 146_097; // Of 400 years.
    // 2000-03-01 is 60 days after 2000-01-01 and begins an era.
    let days = days - 60;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 2000 + 400 * era + year_of_era + if month <= 2 { 1 } else { 0 };
    (year, month.unsigned_abs(), day.unsigned_abs())
}

#[cfg(test)]
#[path = "envelope_test.rs"]
mod tests;
