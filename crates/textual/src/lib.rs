//! Values that stand in a file, a variable or a flag as text, and are shown as that text again.

pub mod duration;
pub mod size;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Something that reads from text and shows as text.
pub trait Textual: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// A message that says what was expected.
    fn read(text: &str) -> Result<Self, String>;
    /// As [`Textual::read`] would take it.
    fn shown(&self) -> String;
}

/// The same, for serde.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<T>(pub T);

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
pub struct Size(pub u64);

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
pub struct Count(pub u32);

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
pub struct Amount(pub u32);

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

/// What must not be shown: `***` instead, in text, in JSON and in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The secret itself: for using it, never for showing.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// An empty one is nobody's.
impl Textual for Secret {
    fn read(text: &str) -> Result<Self, String> {
        match text.is_empty() {
            true => Err("an empty secret: give it, or leave the key out".to_owned()),
            false => Ok(Self(text.to_owned())),
        }
    }

    fn shown(&self) -> String {
        "***".to_owned()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_used_and_not_shown() {
        let secret: Text<Secret> = serde_json::from_str("\"hunter2\"").unwrap();
        assert_eq!(secret.0.reveal(), "hunter2");
        let shown = format!("{secret} {secret:?} {}", serde_json::to_string(&secret).unwrap());
        assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
        assert!(Secret::read("").is_err());
    }
}
