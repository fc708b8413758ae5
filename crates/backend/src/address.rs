//! How a backend is named: `scheme:place?option=value&…`.
//!
//! ```text
//!   sqlite:./tenure.db
//!   dynamodb:?region=eu-west-1&endpoint=http://127.0.0.1:8000
//!   faulty+sqlite:./tenure.db?seed=7&lost=0.05
//!   postgres://user:secret@db.example.com/app?sslmode=verify-full
//! ```
//!
//! An option that nobody takes is an error that names the nearest one, so a typing mistake never
//! silently means "default".

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A parsed backend address. Its `Debug` and `Display` hide passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    scheme: String,
    place: String,
    options: BTreeMap<String, String>,
    /// Every option that was asked for, so that an unknown one can be compared with them.
    asked: Vec<&'static str>,
}

impl Address {
    /// Splits an address into its parts.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if there is no scheme, or an option is not `name=value` or stands twice.
    pub fn parse(text: &str) -> Result<Self> {
        let shape = "an address reads scheme:place?option=value, for instance sqlite:./tenure.db";
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(Error::invalid(format!("address `{text}` has no scheme: {shape}")));
        };
        if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) {
            return Err(Error::invalid(format!("address scheme `{scheme}` is not a word: {shape}")));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.starts_with("//") && !place.contains('@') && query.contains('@') {
            // The first half of a password is in `place`, the second in `query`: neither is shown.
            return Err(Error::invalid(
                "the address has a `?` before its `@`: write a `?` in a password as %3F",
            ));
        }
        let mut options = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
            // It may be the end of a password that holds a `?`, so it is not shown.
            if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
                return Err(Error::invalid(
                    "an address option's name is not a word: write a `?` that is no separator as %3F",
                ));
            }
            let Some(value) = value else {
                return Err(Error::invalid(format!("address option `{name}` has no value: {shape}")));
            };
            if options
                .insert(name.to_owned(), percent_decoded(&format!("address option `{name}`"), value)?)
                .is_some()
            {
                return Err(Error::invalid(format!("address option `{name}` is given twice: keep one")));
            }
        }
        Ok(Self { scheme: scheme.to_owned(), place: place.to_owned(), options, asked: Vec::new() })
    }

    /// The word before the first colon, e.g. `sqlite` or `faulty+sqlite`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What stands between the scheme and the options: a path, a name, or `//host/database`.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Takes `wrapper+` off the scheme, if it is there.
    #[must_use]
    pub fn unwrapped(mut self, wrapper: &str) -> Option<Self> {
        let inner = self.scheme.strip_prefix(wrapper)?.strip_prefix('+')?.to_owned();
        self.scheme = inner;
        Some(self)
    }

    /// Takes an option out and parses it.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if its value does not parse; the message says what was expected.
    pub fn take<T>(&mut self, name: &'static str, expected: &str) -> Result<Option<T>>
    where
        T: FromStr,
    {
        self.asked.push(name);
        let Some(value) = self.options.remove(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| {
            Error::invalid(format!("address option `{name}={value}` is not valid: expected {expected}"))
        })
    }

    /// Takes an option out as it is.
    pub fn take_text(&mut self, name: &'static str) -> Option<String> {
        self.asked.push(name);
        self.options.remove(name)
    }

    /// Gives back the options that nobody took, for a driver that knows its own.
    pub fn take_rest(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.options)
    }

    /// Refuses what is left over. Call it after the last `take`.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) naming an option that was not taken and the nearest one that would have been.
    pub fn finish(self) -> Result<()> {
        let Some(unknown) = self.options.keys().next() else { return Ok(()) };
        let scheme = &self.scheme;
        if self.asked.is_empty() {
            return Err(Error::invalid(format!("`{scheme}:` addresses take no option, found `{unknown}`")));
        }
        let nearest = nearest(unknown, self.asked.iter().copied());
        let all = self.asked.join(", ");
        Err(Error::invalid(match nearest {
            Some(name) => format!(
                "`{scheme}:` addresses have no option `{unknown}`: did you mean `{name}`? (known: {all})"
            ),
            None => format!("`{scheme}:` addresses have no option `{unknown}` (known: {all})"),
        }))
    }

    /// Refuses a scheme that nothing opens, naming the nearest.
    #[must_use]
    pub fn unknown_scheme(&self, role: &str, known: &[&str]) -> Error {
        let hint = nearest(&self.scheme, known.iter().copied())
            .map(|name| format!(" did you mean `{name}:`?"))
            .unwrap_or_default();
        Error::invalid(format!(
            "unknown scheme `{}:` for a {role}:{hint} (known: {})",
            self.scheme,
            known.iter().map(|name| format!("{name}:")).collect::<Vec<_>>().join(", ")
        ))
    }

    fn masked_place(&self) -> String {
        // //user:password@host → //user:***@host; a password may hold any sign, the user no colon.
        let masked = self.place.strip_prefix("//").and_then(|rest| {
            let (credentials, host) = rest.rsplit_once('@')?;
            let (user, _) = credentials.split_once(':')?;
            Some(format!("//{user}:***@{host}"))
        });
        masked.unwrap_or_else(|| self.place.clone())
    }
}

/// The word of `known` that is nearest to `word`, if one is near.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(distance, name)| {
            let begun = word.len() >= 3 && name.starts_with(word);
            begun || *distance <= 1 + name.len().max(word.len()) / 3
        })
        .min()
        .map(|(_, name)| name)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.masked_place())?;
        for (index, (name, value)) in self.options.iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            // With an at in it, it may be the end of a password that holds a `?`.
            let secret = name.contains("pass") || name.contains("secret") || value.contains('@');
            let shown = if secret { "***" } else { value };
            write!(f, "{separator}{name}={shown}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// Reads the %-escapes of a part of an address. A failure names the part by `what` and does not show it.
///
/// # Errors
/// [`Kind::Invalid`](crate::Kind::Invalid) if an escape is not one, or the whole is not UTF-8.
pub fn percent_decoded(what: &str, text: &str) -> Result<String> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let bad = || Error::invalid(format!("{what} has a bad %-escape: write %25 for %"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
            let value = digit()? * 16 + digit()?;
            bytes.push(u8::try_from(value).map_err(|_| bad())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn parts_are_taken_apart() {
        let mut address = parsed("faulty+sqlite:./a b.db?seed=7&lost=0.5&endpoint=http%3A//x");
        assert_eq!(address.scheme(), "faulty+sqlite");
        assert_eq!(address.place(), "./a b.db");
        assert_eq!(address.take::<u64>("seed", "a number").unwrap(), Some(7));
        assert_eq!(address.take_text("endpoint").as_deref(), Some("http://x"));
        assert_eq!(address.take::<f64>("lost", "a share").unwrap(), Some(0.5));
        assert_eq!(address.take_text("absent"), None);
        let inner = address.unwrapped("faulty").unwrap();
        assert_eq!(inner.scheme(), "sqlite");
        inner.finish().unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        let message = |text: &str| Address::parse(text).unwrap_err().chain();
        assert!(message("tenure.db").contains("has no scheme"));
        assert!(message("sqlite:x?seed").contains("`seed` has no value"));
        assert!(message("sqlite:x?a=1&a=2").contains("given twice"));
        assert!(message("sqlite:x?a=%zz").contains("%-escape"));
        let mut address = parsed("sqlite:x?sede=1");
        assert_eq!(address.take::<u64>("seed", "a number").unwrap(), None);
        assert!(address.finish().unwrap_err().chain().contains("did you mean `seed`"));
        let wrong = parsed("sqlite:x?seed=abc").take::<u64>("seed", "a number").unwrap_err();
        assert_eq!(wrong.chain(), "address option `seed=abc` is not valid: expected a number");
        let scheme = parsed("sqlit:x").unknown_scheme("store", &["sqlite", "memory"]);
        assert!(scheme.chain().contains("did you mean `sqlite:`"), "{scheme:?}");
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = format!("{:?}", parsed("postgres://ann:s3cret@db/app?sslpassword=s3cret"));
        assert_eq!(shown, "Address(postgres://ann:***@db/app?sslpassword=***)");
        for split in ["pa?s3cret&x@db/app", "pa?s3cret=1@db/app", "s3cret?b=x@db/app"] {
            let refused = Address::parse(&format!("postgres://ann:{split}")).unwrap_err().chain();
            assert!(refused.contains("%3F") && !refused.contains("s3cret"), "{refused}");
        }
        assert_eq!(parsed("postgres://ann:a:b@c@db/app").to_string(), "postgres://ann:***@db/app");
        assert_eq!(parsed("postgres://ann@db/app").to_string(), "postgres://ann@db/app");
        assert_eq!(parsed("sqlite:/a@b.db").to_string(), "sqlite:/a@b.db");
        assert_eq!(parsed("postgres://:s3cret@db").to_string(), "postgres://:***@db");
        for bad in [
            "postgres://ann:a?b=s3cret@db/app",
            "postgres://ann:a?s3cret@db/app",
            "postgres://ann:a?s3cret@db/app?b=c",
            "postgres://db/app?password=s3cret%zz",
        ] {
            let message = Address::parse(bad).unwrap_err().chain();
            assert!(!message.contains("s3cret"), "{message}");
        }
    }
}
