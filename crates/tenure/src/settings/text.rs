//! A value that stands in a file, a variable or a flag as text, and is shown as that text again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{duration, size};

/// Something that reads from text and shows as text.
pub(crate) trait Textual: Sized {
    /// Reads it.
    fn read(text: &str) -> Result<Self, String>;
    /// As [`Textual::read`] would take it.
    fn shown(&self) -> String;
}

/// The same, for serde.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text<T>(pub(crate) T);

impl<T: Textual> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.shown())
    }
}

impl<'de, T: Textual> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::read(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl Textual for Size {
    fn read(text: &str) -> Result<Self, String> {
        size::parse(text).map(Self)
    }

    fn shown(&self) -> String {
        size::exact(self.0)
    }
}

impl Textual for Duration {
    fn read(text: &str) -> Result<Self, String> {
        duration::parse(text)
    }

    fn shown(&self) -> String {
        duration::shown(*self)
    }
}

impl Textual for bool {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("`{text}` is neither true nor false")),
        }
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

/// A whole number above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) u32);

impl Textual for Count {
    fn read(text: &str) -> Result<Self, String> {
        match u32::from_str(text) {
            Ok(count) if count > 0 => Ok(Self(count)),
            _ => Err(format!("`{text}` is not a number above zero")),
        }
    }

    fn shown(&self) -> String {
        self.0.to_string()
    }
}

/// A number, zero included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount(pub(crate) u32);

impl Textual for Amount {
    fn read(text: &str) -> Result<Self, String> {
        u32::from_str(text).map(Self).map_err(|_| format!("`{text}` is not a number from zero up"))
    }

    fn shown(&self) -> String {
        self.0.to_string()
    }
}

impl<T: Textual> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown())
    }
}
