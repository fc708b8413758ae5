//! From what the server says to what the reader should do. The SQLSTATE decides, never a text.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;
use tenure_backend::{Error, Kind};

/// What the server answered instead of a result. The source of a [`tenure_backend::Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// ERROR, FATAL or PANIC, in this spelling whatever the server's language is.
    pub severity: String,
    /// The SQLSTATE, such as `55006`.
    pub code: String,
    /// What the server says about it.
    pub message: String,
    /// More of it. May hold row contents, so it is not shown by `Display`.
    pub detail: Option<String>,
    /// What the server suggests.
    pub hint: Option<String>,
}

impl ServerError {
    /// The server's answer among the causes of an error, if there is one.
    #[must_use]
    pub fn of(error: &Error) -> Option<&Self> {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// Whether the session is over with this answer.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        // Answered by something that sends no severity, it is safer to begin anew.
        self.severity != "ERROR"
    }

    pub(super) fn read(mut fields: ErrorFields<'_>) -> io::Result<Self> {
        let mut found = Self {
            severity: String::new(),
            code: String::new(),
            message: String::new(),
            detail: None,
            hint: None,
        };
        while let Some(field) = fields.next()? {
            let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'V' => found.severity = text,
                b'C' => found.code = text,
                b'M' => found.message = text,
                b'D' => found.detail = Some(text),
                b'H' => found.hint = Some(text),
                _ => {}
            }
        }
        Ok(found)
    }

    /// The same, told to a caller.
    pub(super) fn told(self, doing: &str) -> Error {
        let (kind, advice) = meaning(&self.code);
        Error::new(kind, format!("{doing}: {advice}")).because(self)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl StdError for ServerError {}

/// The one table from SQLSTATE to kind and advice.
fn meaning(code: &str) -> (Kind, &'static str) {
    match code {
        "28P01" => {
            (Kind::Denied, "the server does not accept the password: check it, in the address or PGPASSWORD")
        }
        "28000" => (
            Kind::Denied,
            "the server does not let this user in: check that the role exists and may log in, and that \
             pg_hba.conf has a line for this user, database and host",
        ),
        code if code.starts_with("28") => {
            (Kind::Denied, "the server refuses this user: check user and password")
        }
        "42501" => (
            Kind::Denied,
            "permission is missing: the user needs the REPLICATION attribute (ALTER ROLE … REPLICATION), and \
             SELECT on the tables",
        ),
        "3D000" => (Kind::Invalid, "there is no such database: create it, or correct the address"),
        "25006" => (Kind::Unavailable, "the server is read-only, perhaps a standby: connect to the primary"),
        "53100" => (Kind::Unavailable, "the server's disk is full: free space on it"),
        "53300" => (
            Kind::Unavailable,
            "the server takes no more connections: raise max_connections or max_wal_senders, or end some",
        ),
        "53400" => (
            Kind::Unavailable,
            "the server has no replication slot left: raise max_replication_slots, or drop slots that nobody uses",
        ),
        "55006" => (Kind::Unavailable, "somebody else uses it at the moment"),
        "55000" => (
            Kind::Invalid,
            "the server is not in a state for this: check wal_level=logical, and that the slot still has its WAL",
        ),
        "57P03" => (Kind::Unavailable, "the server is starting or stopping"),
        "57P01" | "57P02" | "57P05" => (Kind::Unavailable, "the server ended the session"),
        "57014" => (Kind::Unavailable, "the statement was canceled"),
        "42704" => {
            (Kind::Invalid, "there is no such slot, publication or setting: create it, or correct the name")
        }
        "42710" => (Kind::Invalid, "it is there already: use it, or choose another name"),
        "XX001" | "XX002" => (Kind::Corrupt, "the server finds its files damaged: restore them"),
        code => match code.get(..2) {
            Some("40") => (Kind::Unavailable, "other transactions are in the way"),
            Some("08" | "53" | "55" | "57" | "58" | "XX" | "F0") => {
                (Kind::Unavailable, "the server cannot do it now")
            }
            _ => (Kind::Invalid, "the server refuses it"),
        },
    }
}

/// The socket failed.
pub(super) fn lost(place: &str, error: io::Error) -> Error {
    Error::unavailable(format!("{place}: the connection was lost")).because(error)
}

/// What arrived is not Postgres' protocol.
pub(super) fn garbled(place: &str, what: impl fmt::Display) -> Error {
    Error::new(
        Kind::Corrupt,
        format!("{place}: the answer is not Postgres' protocol ({what}): is this the server itself?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_tells_what_to_do() {
        for (kind, codes) in [
            (Kind::Denied, vec!["28P01", "28000", "42501"]),
            (Kind::Invalid, vec!["3D000", "42704", "42710", "55000", "42601", ""]),
            (Kind::Unavailable, vec!["53300", "53400", "57P03", "57P01", "55006", "25006", "40001", "XX000"]),
            (Kind::Corrupt, vec!["XX001"]),
        ] {
            for code in codes {
                assert_eq!(meaning(code).0, kind, "{code}");
            }
        }
        assert_eq!(meaning("é1").0, Kind::Invalid);
    }

    #[test]
    fn the_answer_is_found_among_the_causes_and_its_detail_is_not_shown() {
        let answer = ServerError {
            severity: "ERROR".into(),
            code: "55006".into(),
            message: "slot is active".into(),
            detail: Some("row s3cret".into()),
            hint: None,
        };
        let error = answer.clone().told("start").during("publish");
        assert_eq!(ServerError::of(&error), Some(&answer));
        assert!(!answer.is_fatal());
        assert!(!error.chain().contains("s3cret") && error.chain().contains("55006"), "{error:?}");
        assert_eq!(ServerError::of(&Error::invalid("x")), None);
    }
}
