//! Where the server is, who we are there, and how patient both sides are: what a `postgres://…` address
//! says.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tenure_backend::postgres_tls::{self, SslMode};
use tenure_backend::{Address, Error, Result, percent_decoded};

const SHAPE: &str = "a Postgres address reads postgres://user@host:port/database?option=value";
const PORT: u16 = 5432;
/// A host that does not answer within this is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server waits for a sign of life of ours while it streams. Feedback goes out far more often.
const WAL_SENDER_TIMEOUT: Duration = Duration::from_secs(10);
/// A shorter one ends healthy sessions on a busy machine; a longer one is a mistake of units.
const WAL_SENDER_TIMEOUT_MIN: Duration = Duration::from_secs(1);
const WAL_SENDER_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// How long we, and how long the server, keep a connection whose other end has vanished. Ours is shorter,
/// so that a leader that is cut off has stopped when the server frees its lock.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A password. It is shown to the server alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Takes a text that is secret from here on.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How to reach one server, and as whom.
///
/// Options of its address, beside those of the place itself: `user`, `password`, `dbname`, `host` (a name,
/// an address or the folder of a socket), `hostaddr` (where to connect, if not where the name leads),
/// `port`, `application_name`, `options`, `sslmode`, `sslrootcert`, `channel_binding`,
/// `connect_timeout` and `wal_sender_timeout` (whole seconds).
#[derive(Clone)]
pub struct Endpoint {
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) password: Option<Password>,
    pub(super) application_name: String,
    pub(super) options: Option<String>,
    pub(super) ssl_mode: SslMode,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) channel_binding: Binding,
    pub(super) connect_timeout: Duration,
    pub(super) wal_sender_timeout: Duration,
    pub(super) client_timeout: Duration,
    pub(super) server_timeout: Duration,
    place: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// `name` is in the certificate; `connect_to` is where the server is.
    Tcp { name: String, connect_to: String },
    /// The folder of the socket.
    Unix(PathBuf),
}

/// Whether the login must be tied to the connection that it is made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    Disable,
    Prefer,
    Require,
}

impl std::str::FromStr for Binding {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            _ => Err(()),
        }
    }
}

impl Endpoint {
    /// Reads an address; the password comes from `PGPASSWORD` if the address has none.
    ///
    /// # Errors
    /// `Invalid`, naming what is wrong and what to write instead; never the password.
    pub fn parse(text: &str) -> Result<Self> {
        let password = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        Self::from_address(Address::parse(text)?, password.map(Password::new))
    }

    /// Takes an address apart; `password` is used if the address has none.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub fn from_address(mut address: Address, password: Option<Password>) -> Result<Self> {
        if !matches!(address.scheme(), "postgres" | "postgresql") {
            return Err(address.unknown_scheme("source of changes", &["postgres"]));
        }
        let seconds = "a whole number of seconds";
        let ssl_mode = address.take::<SslMode>("sslmode", SslMode::WORDS)?;
        let root = address.take_text("sslrootcert");
        let channel_binding =
            address.take("channel_binding", "disable, prefer or require")?.unwrap_or(Binding::Prefer);
        let connect_timeout = address.take("connect_timeout", seconds)?.map(Duration::from_secs);
        let wal_sender_timeout = address.take("wal_sender_timeout", seconds)?.map(Duration::from_secs);
        let application_name = address.take_text("application_name").unwrap_or_else(|| "tenure".to_owned());
        let options = address.take_text("options");
        let named = Named {
            user: address.take_text("user"),
            password: address.take_text("password"),
            host: address.take_text("host"),
            hostaddr: address.take_text("hostaddr"),
            port: address.take("port", "a port")?,
            database: address.take_text("dbname"),
        };
        let authority = Authority::parse(address.place())?;
        address.finish()?;

        let host = named.host.or(authority.host);
        let host = match (host, named.hostaddr) {
            (Some(folder), None) if folder.starts_with('/') => Host::Unix(folder.into()),
            (Some(name), connect_to) => {
                Host::Tcp { connect_to: connect_to.unwrap_or_else(|| name.clone()), name }
            }
            (None, Some(connect_to)) => Host::Tcp { name: connect_to.clone(), connect_to },
            (None, None) => return Err(Error::invalid(format!("the address names no host: {SHAPE}"))),
        };
        let user = named.user.or(authority.user).ok_or_else(|| {
            Error::invalid(format!("the address names no user, and a user needs REPLICATION: {SHAPE}"))
        })?;
        let database = named.database.or(authority.database).unwrap_or_else(|| user.clone());
        for (what, text) in
            [("user", &user), ("database", &database), ("application_name", &application_name)]
        {
            if text.is_empty() || text.contains('\0') {
                return Err(Error::invalid(format!("the address has no usable {what}: {SHAPE}")));
            }
        }
        let port = named.port.or(authority.port).unwrap_or(PORT);
        let place = match &host {
            Host::Tcp { name, .. } if name.contains(':') => format!("postgres [{name}]:{port}/{database}"),
            Host::Tcp { name, .. } => format!("postgres {name}:{port}/{database}"),
            Host::Unix(folder) => format!("postgres {}:{port}/{database}", folder.display()),
        };
        let mode = ssl_mode.unwrap_or(SslMode::default_for(host.is_local()));
        let tls = match &host {
            Host::Unix(_) => None,
            Host::Tcp { .. } => postgres_tls::client_config(mode, root.as_deref(), false)?,
        };
        if tls.is_some() && mode.verifies_nothing(root.as_deref()) {
            tracing::warn!(%place, sslmode = %mode, "the server's certificate is not verified: use sslmode=verify-full");
        }
        let password = named.password.or(authority.password).map(Password::new).or(password);
        let endpoint = Self {
            host,
            port,
            user,
            database,
            password,
            application_name,
            options,
            ssl_mode: mode,
            tls,
            channel_binding,
            connect_timeout: connect_timeout.unwrap_or(CONNECT_TIMEOUT),
            wal_sender_timeout: WAL_SENDER_TIMEOUT,
            client_timeout: CLIENT_TIMEOUT,
            server_timeout: SERVER_TIMEOUT,
            place,
        };
        match wal_sender_timeout {
            Some(timeout) => endpoint.with_wal_sender_timeout(timeout),
            None => Ok(endpoint),
        }
    }

    /// The same with another password, such as a token that is valid for minutes.
    #[must_use]
    pub fn with_password(mut self, password: Password) -> Self {
        self.password = Some(password);
        self
    }

    /// The same under another name in `pg_stat_activity`.
    #[must_use]
    pub fn with_application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into().replace('\0', "");
        self
    }

    /// How long a streaming server waits for a sign of life of ours. 10 s by default.
    ///
    /// # Errors
    /// `Invalid` if it is shorter than a second or longer than an hour.
    pub fn with_wal_sender_timeout(mut self, timeout: Duration) -> Result<Self> {
        if !(WAL_SENDER_TIMEOUT_MIN..=WAL_SENDER_TIMEOUT_MAX).contains(&timeout) {
            return Err(Error::invalid(format!(
                "wal_sender_timeout {timeout:?} is not from {WAL_SENDER_TIMEOUT_MIN:?} to {WAL_SENDER_TIMEOUT_MAX:?}: \
                 10 seconds are usual"
            )));
        }
        self.wal_sender_timeout = timeout;
        Ok(self)
    }

    /// How long each end keeps a connection whose other end has vanished: ours (5 s by default, give the
    /// lock's deadline), and the server's (10 s by default, give the lock's server timeout). The server's
    /// is to be the longer one, so that a leader that is cut off stops before the next one begins.
    #[must_use]
    pub const fn with_timeouts(mut self, ours: Duration, servers: Duration) -> Self {
        (self.client_timeout, self.server_timeout) = (ours, servers);
        self
    }

    /// `postgres host:port/database`, for messages: no user, no password.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The user's name at the server.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database whose changes are read.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }
}

/// Where it leads, and never how to get in.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}, sslmode {})", self.place, self.ssl_mode)
    }
}

impl Host {
    /// Whether what is said to the server stays on this machine.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp { connect_to, .. } => postgres_tls::is_local_host(connect_to),
            Self::Unix(_) => true,
        }
    }
}

/// What the options of an address say about the place.
struct Named {
    user: Option<String>,
    password: Option<String>,
    host: Option<String>,
    hostaddr: Option<String>,
    port: Option<u16>,
    database: Option<String>,
}

/// `//user:password@host:port/database`, each part of which may be missing.
#[derive(Default)]
struct Authority {
    user: Option<String>,
    password: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    database: Option<String>,
}

impl Authority {
    fn parse(place: &str) -> Result<Self> {
        let rest = place.strip_prefix("//").ok_or_else(|| Error::invalid(SHAPE))?;
        let mut found = Self::default();
        let part = |what: &str, text: &str| {
            let text = percent_decoded(&format!("the {what} in the address"), text)?;
            Ok::<_, Error>((!text.is_empty()).then_some(text))
        };
        // A password may hold an `@` or a `/`; a host holds neither.
        let (credentials, rest) = rest.rsplit_once('@').map_or((None, rest), |(who, rest)| (Some(who), rest));
        if let Some(credentials) = credentials {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            found.user = part("user", user)?;
            found.password = part("password", password)?;
        }
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        found.database = part("database", database)?;
        if host.contains(',') {
            return Err(Error::invalid(
                "the address names several hosts, but a replication slot is on one server: name the primary",
            ));
        }
        // [::1]:5432 has colons of its own.
        let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        found.host = part("host", host)?;
        if !port.is_empty() {
            let port = port
                .parse()
                .map_err(|_| Error::invalid("the port in the address is not a number from 1 to 65535"))?;
            found.port = Some(port);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Result<Endpoint> {
        Endpoint::from_address(Address::parse(text)?, None)
    }

    fn refusal(text: &str) -> String {
        endpoint(text).expect_err(text).chain()
    }

    #[test]
    fn an_address_is_taken_apart() {
        let found = endpoint("postgres://ann:s3%40c:r@t@localhost:6000/app?application_name=x").unwrap();
        assert_eq!(found.place(), "postgres localhost:6000/app");
        assert_eq!((found.user(), found.database()), ("ann", "app"));
        assert_eq!(found.password, Some(Password::new("s3@c:r@t")));
        assert_eq!(found.application_name, "x");
        assert!(found.tls.is_none());
        let found = endpoint("postgresql://ann@[::1]").unwrap();
        assert_eq!((found.place(), found.database()), ("postgres [::1]:5432/ann", "ann"));
        let found = endpoint("postgres:///app?host=/run/postgresql&user=ann&port=6000").unwrap();
        assert_eq!(found.host, Host::Unix("/run/postgresql".into()));
        assert_eq!(found.place(), "postgres /run/postgresql:6000/app");
        let found = endpoint("postgres://ann@db.test/app?hostaddr=127.0.0.1&wal_sender_timeout=7").unwrap();
        assert_eq!(found.host, Host::Tcp { name: "db.test".into(), connect_to: "127.0.0.1".into() });
        assert_eq!(found.wal_sender_timeout, Duration::from_secs(7));
    }

    #[test]
    fn a_password_may_come_from_elsewhere_and_shows_nowhere() {
        let with = |text: &str| {
            let address = Address::parse(text).unwrap();
            Endpoint::from_address(address, Some(Password::new("env-s3cret"))).unwrap()
        };
        assert_eq!(with("postgres://ann@localhost").password, Some(Password::new("env-s3cret")));
        assert_eq!(with("postgres://ann:own@localhost").password, Some(Password::new("own")));
        assert_eq!(with("postgres://ann@localhost?password=own").password, Some(Password::new("own")));
        let shown = with("postgres://ann@localhost");
        let shown = format!("{shown:?} {:?} {}", shown.password, shown.place());
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn only_this_machine_is_spoken_to_in_plain_text() {
        let mode = |text: &str| endpoint(text).unwrap().ssl_mode;
        assert_eq!(mode("postgres://ann@127.0.0.1/app"), SslMode::Disable);
        assert_eq!(mode("postgres://ann@db.example.com/app?hostaddr=127.0.0.1"), SslMode::Disable);
        assert_eq!(mode("postgres://ann@db.example.com/app?sslmode=require"), SslMode::Require);
        let far = endpoint("postgres://ann@db.example.com/app");
        assert!(far.is_err() || far.unwrap().ssl_mode == SslMode::VerifyFull);
    }

    #[test]
    fn mistakes_are_named_and_passwords_are_not() {
        assert!(refusal("postgres://ann@localhost/app?sslmod=disable").contains("did you mean `sslmode`"));
        assert!(refusal("postgres://localhost/app").contains("names no user"));
        assert!(refusal("postgres://ann@/app").contains("names no host"));
        assert!(refusal("postgres:app").contains("postgres://user@host"));
        assert!(refusal("mysql://ann@localhost/app").contains("postgres:"));
        assert!(refusal("postgres://ann@a,b/app").contains("several hosts"));
        assert!(refusal("postgres://ann@a/app?channel_binding=maybe").contains("require"));
        assert!(refusal("postgres://ann@localhost/app?wal_sender_timeout=0").contains("10 seconds"));
        for bad in ["postgres://ann:s3cret@localhost:port/app", "postgres://ann:s3cret%zz@localhost/app"] {
            let message = refusal(bad);
            assert!(!message.contains("s3cret"), "{message}");
        }
    }
}
