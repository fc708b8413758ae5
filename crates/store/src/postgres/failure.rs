//! From what Postgres says to what the caller should do.

use std::error::Error as StdError;

use tenure_backend::{Error, Kind};
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Why a step did not succeed: the server or the driver said so, or we did.
#[derive(Debug)]
pub(super) enum Failure {
    Postgres(tokio_postgres::Error),
    Ours(Error),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Failure {
    /// The same, told to a caller.
    pub(super) fn told(self, place: &str) -> Error {
        match self {
            Self::Postgres(error) => told(place, &error),
            Self::Ours(error) => error,
        }
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Postgres(error) => error.code(),
            Self::Ours(_) => None,
        }
    }

    /// Whether another transaction was in the way and the same work may succeed at once.
    pub(super) fn is_conflict(&self) -> bool {
        let conflicts = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::UNIQUE_VIOLATION,
        ];
        self.code().is_some_and(|code| conflicts.contains(code))
    }

    /// Whether a table, column or schema that we counted on is not there.
    pub(super) fn is_missing_relation(&self) -> bool {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::INVALID_SCHEMA_NAME];
        self.code().is_some_and(|code| missing.contains(code))
    }

    /// Whether the connection can be used again after a ROLLBACK: the server answered, and stays.
    pub(super) fn spares_the_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => is_answer(error),
            Self::Ours(_) => true,
        }
    }
}

/// Whether the server refused the statement and lives on. If not, the connection ends, and what
/// was sent may or may not have been carried out.
pub(super) fn is_answer(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|answer| {
        !matches!(answer.parsed_severity(), None | Some(Severity::Fatal | Severity::Panic))
    })
}

/// The texts of an error's causes, joined: the driver's own texts say little by themselves.
pub(super) fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // A server's answer may show row contents in its details; its message does not.
        let next = error.downcast_ref::<DbError>().map_or_else(|| error.to_string(), shown_answer);
        text.push_str(": ");
        text.push_str(&next);
        cause = error.source();
    }
    text
}

fn shown_answer(answer: &DbError) -> String {
    format!("{} (SQLSTATE {})", answer.message(), answer.code().code())
}

/// What went wrong at `place`, before anything was committed.
pub(super) fn told(place: &str, error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(answer) => {
            let (kind, advice) = meaning(answer.code());
            Error::new(kind, format!("{place}: {advice}")).because(shown_answer(answer))
        }
        None => without_answer(place, error),
    }
}

/// The one table from SQLSTATE to kind and advice.
fn meaning(code: &SqlState) -> (Kind, &'static str) {
    match code.code() {
        "42501" => (
            Kind::Denied,
            "permission is missing: grant this user USAGE and CREATE on the schema, and its tables",
        ),
        code if code.starts_with("28") => (
            Kind::Denied,
            "the server refuses this user: check user, password (or PGPASSWORD) and pg_hba.conf",
        ),
        "3D000" => (Kind::Invalid, "there is no such database: create it, or correct the address"),
        "25006" => (Kind::Unavailable, "the server is read-only, perhaps a standby: connect to the primary"),
        "53100" => (Kind::Unavailable, "the server's disk is full: free space on it"),
        "53300" => (
            Kind::Unavailable,
            "the server takes no more connections: lower `connections=`, or raise max_connections",
        ),
        "57P03" => (Kind::Unavailable, "the server is starting or stopping"),
        "57P01" | "57P02" | "57P05" => (Kind::Unavailable, "the server ended the connection"),
        "25P03" | "25P04" => (Kind::Unavailable, "the transaction was left open too long and was ended"),
        "55P03" | "57014" => {
            (Kind::Unavailable, "not done in time: others hold the rows, or the server is slow")
        }
        "XX001" | "XX002" => (Kind::Corrupt, "the server finds its files damaged: restore them"),
        "3F000" | "42P01" | "42703" => (
            Kind::Corrupt,
            "a table of the catalog is not there as described: restore it, or delete its catalog row",
        ),
        code => match code.get(..2) {
            Some("40") => (Kind::Unavailable, "other transactions are in the way"),
            Some("08" | "53" | "55" | "57" | "58" | "XX" | "F0") => {
                (Kind::Unavailable, "the server cannot do it now")
            }
            _ => (Kind::Invalid, "the server refuses it"),
        },
    }
}

/// What went wrong while no server answered: connecting, TLS, logging in, or a lost connection.
fn without_answer(place: &str, error: &tokio_postgres::Error) -> Error {
    let causes_text = causes(error);
    let (kind, advice) = if mentions::<rustls::Error>(error) {
        (
            Kind::Denied,
            "the server's certificate is not accepted: give its authority by sslrootcert=PATH, and the host \
             by the name in the certificate",
        )
    } else if causes_text.contains("server does not support TLS") {
        (Kind::Denied, "the server offers no TLS: enable it there, or trust the network with sslmode=disable")
    } else if causes_text.contains("no hostname provided for TLS") {
        (Kind::Invalid, "TLS needs the server's name: give host= beside hostaddr=")
    } else if causes_text.contains("password missing") {
        (Kind::Denied, "the server asks for a password: give it in the address or by PGPASSWORD")
    } else if causes_text.starts_with("authentication error") {
        (Kind::Denied, "the server and we found no way to log in")
    } else if causes_text.starts_with("error connecting to server") {
        (Kind::Unavailable, "the server cannot be reached: is it running, and are host and port right?")
    } else if causes_text.starts_with("invalid configuration") {
        (Kind::Invalid, "the address cannot be used")
    } else {
        (Kind::Unavailable, "the connection was lost")
    };
    Error::new(kind, format!("{place}: {advice}")).because(causes_text)
}

/// Whether an error of type `E` is among the causes. An `io::Error` hides what it wraps from
/// `source`, so it is asked by itself.
fn mentions<E: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<E>() || wrapped.is_some_and(|inner| inner.is::<E>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_tells_what_to_do() {
        let of = |code: &str| meaning(&SqlState::from_code(code));
        assert_eq!(of("28P01").0, Kind::Denied);
        assert_eq!(of("28000").0, Kind::Denied);
        assert_eq!(of("42501").0, Kind::Denied);
        assert_eq!(of("3D000").0, Kind::Invalid);
        for code in ["53300", "57P03", "57P01", "53100", "25006", "40P01", "40001", "08006", "58030", "XX000"]
        {
            assert_eq!(of(code).0, Kind::Unavailable, "{code}");
        }
        assert!(of("25006").1.contains("connect to the primary"));
        assert_eq!(of("XX001").0, Kind::Corrupt);
        assert_eq!(of("54000").0, Kind::Invalid);
    }
}
