//! Finds out who an event is, without reading the event.
//!
//! Our publisher writes the `tenure` object first and always in one form, so its bytes alone are looked at.
//! An event that somebody else wrote again (with spaces, or with its members in another order) is read as the
//! JSON that it is. Whatever has no such object is nobody's, and passes.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;
use tenure_stream::identity::{Header, Lane, Lanes, check_source};

const BEGIN: &[u8] = br#"{"tenure":"#;
const POINTER: &[u8] = br#","op":"pointer""#;
static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""tenure""#));

/// Who an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity<'a> {
    /// It carries no identity: it passes as it is.
    None,
    /// Ours.
    Event {
        /// What it says of itself.
        header: Header<'a>,
        /// It stands where an event should be that is elsewhere.
        is_pointer: bool,
    },
    /// It is one of ours, and what it says of itself cannot be understood.
    Damaged,
    /// It is one of ours, in a form that is newer than this program.
    Newer,
}

impl<'a> Identity<'a> {
    /// Looks at an event.
    #[must_use]
    pub fn of(event: &'a [u8]) -> Self {
        if let Some(object) = event.strip_prefix(BEGIN)
            && let Some((header, bytes)) = Header::read_json(object)
        {
            let is_pointer = object[bytes..].starts_with(POINTER);
            return Self::Event { header, is_pointer };
        }
        // Most of what is not ours is told by its first byte, and the rest by a name that is not in it.
        let begins = event.iter().find(|byte| !byte.is_ascii_whitespace());
        if begins != Some(&b'{') || NAME.find(event).is_none() {
            return Self::None;
        }
        Self::read_slowly(event)
    }

    fn read_slowly(event: &'a [u8]) -> Self {
        let Ok(Outer { op, tenure: Some(tenure) }) = serde_json::from_slice(event) else { return Self::None };
        let Ok(inner) = serde_json::from_str::<Inner<'_>>(tenure.get()) else {
            // Somebody else's `tenure`: a number of years, say. Ours has a version, a source and an id.
            return match serde_json::from_str::<Marked>(tenure.get()) {
                Ok(Marked { v: 2.., .. }) => Self::Newer,
                Ok(_) => Self::Damaged,
                Err(_) => Self::None,
            };
        };
        if inner.v != 1 {
            return Self::Newer;
        }
        match inner.header() {
            Some(header) => Self::Event { header, is_pointer: op == Some("pointer") },
            None => Self::Damaged,
        }
    }
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow, default)]
    op: Option<&'a str>,
    #[serde(borrow)]
    tenure: Option<&'a serde_json::value::RawValue>,
}

/// What makes a `tenure` object one of ours, whatever else is in it.
#[derive(Deserialize)]
struct Marked {
    v: u64,
    #[serde(rename = "source")]
    _source: String,
    #[serde(rename = "id")]
    _id: String,
}

#[derive(Deserialize)]
struct Inner<'a> {
    v: u64,
    source: &'a str,
    id: &'a str,
    lane: u16,
    lanes: u16,
    prev: Option<&'a str>,
    floor: &'a str,
    #[serde(default)]
    leader: u64,
}

impl<'a> Inner<'a> {
    fn header(&self) -> Option<Header<'a>> {
        check_source(self.source).ok()?;
        let lanes = Lanes::new(self.lanes)?;
        if self.lane >= lanes.count() {
            return None;
        }
        Some(Header {
            source: self.source,
            id: self.id.parse().ok()?,
            lane: Lane(self.lane),
            lanes,
            prev: self.prev.map(str::parse).transpose().ok()?,
            floor: self.floor.parse().ok()?,
            leader: self.leader,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = r#"{"tenure":{"v":1,"source":"shop","id":"1:0/20:0/10:0","lane":7,"lanes":1024,"prev":"1:0/8:0/8:0","floor":"1:0/10","leader":4},"op":"insert"}"#;

    fn header(event: &str) -> Option<(String, u16, bool)> {
        match Identity::of(event.as_bytes()) {
            Identity::Event { header, is_pointer } => {
                Some((header.id.to_string(), header.lane.0, is_pointer))
            }
            _ => None,
        }
    }

    #[test]
    fn our_own_form_and_any_other_form_say_the_same() {
        let told = Some(("1:0/20:0/10:0".to_owned(), 7, false));
        assert_eq!(header(FIRST), told);
        let json: serde_json::Value = serde_json::from_str(FIRST).unwrap();
        // Members sorted by their names, and on many lines.
        assert_eq!(header(&serde_json::to_string_pretty(&json).unwrap()), told);
        assert_eq!(header(&format!(" {FIRST}")), told);
        let pointer = FIRST.replace("insert", "pointer");
        assert!(header(&pointer).unwrap().2);
        let json: serde_json::Value = serde_json::from_str(&pointer).unwrap();
        assert!(header(&json.to_string()).unwrap().2);
    }

    #[test]
    fn what_is_not_ours_passes() {
        for event in
            ["", "plain", "[1]", "{}", r#"{"a":"tenure"}"#, r#"{"tenure":7}"#, r#"{"tenure":{"years":7}}"#]
        {
            assert_eq!(Identity::of(event.as_bytes()), Identity::None, "{event}");
        }
        assert_eq!(Identity::of(&FIRST.as_bytes()[..40]), Identity::None, "no JSON");
        assert_eq!(Identity::of(&[0xff, b'{']), Identity::None);
    }

    #[test]
    fn damage_and_newer_versions_are_told() {
        for (from, to) in [
            ("1:0/20:0/10:0", "1:0/20"),
            ("\"lane\":7", "\"lane\":1024"),
            ("\"lane\":7,", ""),
            ("\"lanes\":1024", "\"lanes\":0"),
            ("\"floor\":\"1:0/10\"", "\"floor\":3"),
            ("\"shop\"", "\"a shop\""),
        ] {
            let event = FIRST.replace(from, to);
            assert_eq!(Identity::of(event.as_bytes()), Identity::Damaged, "{event}");
        }
        assert_eq!(Identity::of(FIRST.replace("\"v\":1", "\"v\":2").as_bytes()), Identity::Newer);
        let newer = FIRST.replace("\"v\":1", "\"v\":2").replace("\"lane\":7,", "");
        assert_eq!(Identity::of(newer.as_bytes()), Identity::Newer);
    }
}
