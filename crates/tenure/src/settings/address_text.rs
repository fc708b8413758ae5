//! An address as it was written, that shows itself without its password.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tenure_backend::{Address, Error};

/// The text of an address that reads. `Display`, `Debug` and JSON mask passwords.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AddressText {
    text: String,
    parsed: Address,
}

impl AddressText {
    /// The embedded store, and beside it the embedded stream.
    pub(crate) fn embedded() -> Self {
        "sqlite:./tenure.db".parse().expect("a constant that reads")
    }

    /// The text as it was written, password included: for opening it, never for showing.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }

    /// The word before the first colon.
    pub(crate) fn scheme(&self) -> &str {
        self.parsed.scheme()
    }

    /// The path of the file, if the address names one.
    pub(crate) fn file(&self) -> Option<&str> {
        let scheme = self.parsed.scheme();
        (scheme.rsplit('+').next() == Some("sqlite")).then(|| self.parsed.place())
    }
}

impl FromStr for AddressText {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(Self { text: text.to_owned(), parsed: Address::parse(text)? })
    }
}

impl fmt::Display for AddressText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parsed.fmt(f)
    }
}

impl fmt::Debug for AddressText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

impl Serialize for AddressText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddressText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| serde::de::Error::custom(error.chain()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_used_and_not_shown() {
        let address: AddressText = "postgres://ann:s3cret@db/app".parse().unwrap();
        assert!(address.reveal().contains("s3cret"));
        let shown = format!("{address} {address:?} {}", serde_json::to_string(&address).unwrap());
        assert!(shown.contains("ann:***@db") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn files_are_found_under_wrappers() {
        let file = |text: &str| text.parse::<AddressText>().unwrap().file().map(str::to_owned);
        assert_eq!(file("sqlite:./a.db?sweep_seconds=1").as_deref(), Some("./a.db"));
        assert_eq!(file("faulty+sqlite:/a.db?seed=1").as_deref(), Some("/a.db"));
        assert_eq!(file("memory:"), None);
    }
}
