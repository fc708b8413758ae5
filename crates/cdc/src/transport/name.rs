//! Names of the server's things: checked once, quoted wherever they are used.

use std::fmt;
use std::str::FromStr;

use tenure_backend::{Error, Result};

/// Postgres cuts longer names silently, so that two could become one.
const NAME_BYTES_MAX: usize = 63;

/// The name of a replication slot: lower case letters, digits and underscores, 1 to 63 of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotName(String);

impl SlotName {
    /// Checks a name.
    ///
    /// # Errors
    /// `Invalid` if the server would not take it.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !plain || name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "`{}` is not the name of a replication slot: use a to z, 0 to 9 and _, at most {NAME_BYTES_MAX} of them",
                name.escape_default()
            )));
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As an identifier.
    pub(crate) fn quoted(&self) -> String {
        identifier(&self.0)
    }

    /// As a literal.
    pub(crate) fn literal(&self) -> String {
        literal(&self.0)
    }
}

/// The name of a publication.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicationName(String);

impl PublicationName {
    /// Checks a name. It means exactly what it says: `Orders` is not `orders`.
    ///
    /// # Errors
    /// `Invalid` if the server would not take it, or would cut it.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(Error::invalid(format!(
                "`{}` is not the name of a publication: give 1 to {NAME_BYTES_MAX} bytes",
                name.escape_default()
            )));
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As an identifier.
    pub(crate) fn quoted(&self) -> String {
        identifier(&self.0)
    }

    /// As a literal.
    pub(crate) fn literal(&self) -> String {
        literal(&self.0)
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SlotName {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl fmt::Display for PublicationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PublicationName {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// For SQL: with a backslash in it, it means the same whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        format!("E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_mean_themselves_are_taken() {
        assert_eq!(SlotName::new("orders_1").unwrap().quoted(), "\"orders_1\"");
        for bad in ["", "Orders", "a-b", "a b", "é", "a\"b", &"a".repeat(64)] {
            assert!(SlotName::new(bad).is_err(), "{bad}");
        }
        let odd = PublicationName::new("O'Neil \"x\" \\").unwrap();
        assert_eq!(odd.quoted(), r#""O'Neil ""x"" \""#);
        assert_eq!(odd.literal(), r#"E'O''Neil "x" \\'"#);
        for bad in ["", "a\0b", &"é".repeat(32)] {
            assert!(PublicationName::new(bad).is_err(), "{bad}");
        }
    }
}
