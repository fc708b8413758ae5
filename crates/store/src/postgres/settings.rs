//! What a `postgres://…` address says.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use rustls::ClientConfig;
use tenure_backend::postgres_tls::{self, SslMode};
use tenure_backend::{Address, Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::ttl::SWEEP_INTERVAL;

/// Enough for a process's leases, checkpoints and status at once; a fleet of fifty still fits a
/// server of five hundred.
const CONNECTIONS: usize = 8;
/// Beyond this a server spends its time on switching between backends.
const CONNECTIONS_MAX: usize = 200;
/// Postgres cuts longer names silently, so that two could become one.
const SCHEMA_BYTES_MAX: usize = 63;
/// A host that does not answer within this is not there; callers' deadlines are usually shorter.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long sent bytes may stay unacknowledged, and how soon a silent peer is asked for a sign of
/// life: a connection whose other end vanished is noticed within about half a minute.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Options of libpq that the driver knows, handed on as they are.
const DRIVER_OPTIONS: [&str; 18] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
    "sslnegotiation",
];

/// How a connection is secured; `None` for plain text.
pub(super) type Tls = Option<MakeRustlsConnect>;

/// Everything that an address decides. Holds the password, so it has no `Debug`.
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) schema: String,
    pub(super) connections: usize,
    pub(super) sweep_interval: Duration,
    /// `postgres host:port/database`, for messages: no user, no password.
    pub(super) place: String,
}

impl Settings {
    /// Takes all options of `address`; `password` is used if the address has none.
    pub(super) fn from_address(address: &mut Address, password: Option<String>) -> Result<Self> {
        const SHAPE: &str = "a Postgres address reads postgres://user@host:port/database?option=value";
        let seconds = "a whole number of seconds";
        let sweep = address.take("sweep_seconds", seconds)?.map(Duration::from_secs);
        let connections = address.take("connections", "a number of connections")?.unwrap_or(CONNECTIONS);
        if !(1..=CONNECTIONS_MAX).contains(&connections) {
            return Err(Error::invalid(format!(
                "address option `connections={connections}` is not from 1 to {CONNECTIONS_MAX}"
            )));
        }
        let schema = address.take_text("schema").unwrap_or_else(|| "tenure".to_owned());
        if schema.is_empty() || schema.len() > SCHEMA_BYTES_MAX || schema.contains('\0') {
            return Err(Error::invalid(format!(
                "address option `schema={schema}` is not a schema's name: give 1 to {SCHEMA_BYTES_MAX} bytes"
            )));
        }
        let sslmode = address.take::<SslMode>("sslmode", SslMode::WORDS)?;
        let sslrootcert = address.take_text("sslrootcert");
        let mut given = Vec::new();
        for name in DRIVER_OPTIONS {
            if let Some(value) = address.take_text(name) {
                given.push((name, value));
            }
        }
        address.clone().finish()?;

        if !address.place().starts_with("//") {
            return Err(Error::invalid(SHAPE));
        }
        let query: Vec<_> = given.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let text = format!("postgres:{}?{}", address.place(), query.join("&"));
        // The driver's message names the option, never a value.
        let mut config = Config::from_str(&text)
            .map_err(|error| Error::invalid(SHAPE).because(super::failure::causes(&error)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(Error::invalid(format!("the address names no host: {SHAPE}")));
        }
        if config.get_password().is_none()
            && let Some(password) = password
        {
            config.password(password);
        }
        let is_given = |name: &str| given.iter().any(|(option, _)| *option == name);
        fill_in(&mut config, is_given);

        let place = shown_place(&config);
        let mode = sslmode.unwrap_or(SslMode::default_for(is_local(&config)));
        if mode.verifies_nothing(sslrootcert.as_deref()) {
            tracing::warn!(%place, sslmode = %mode, "the server's certificate is not verified: use sslmode=verify-full");
        }
        let direct = given.iter().any(|(name, value)| *name == "sslnegotiation" && value == "direct");
        let tls = postgres_tls::client_config(mode, sslrootcert.as_deref(), direct)?
            .map(|config| MakeRustlsConnect::new(ClientConfig::clone(&config)));
        config.ssl_mode(in_driver(mode));
        let sweep_interval = sweep.unwrap_or(SWEEP_INTERVAL);
        Ok(Self { config, tls, schema, connections, sweep_interval, place })
    }
}

/// Our own defaults, where the address says nothing.
fn fill_in(config: &mut Config, is_given: impl Fn(&str) -> bool) {
    if !is_given("application_name") {
        config.application_name("tenure");
    }
    if !is_given("connect_timeout") {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if !is_given("tcp_user_timeout") {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    if !is_given("keepalives_idle") {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if !is_given("keepalives_interval") {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if !is_given("keepalives_retries") {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
    // Of several hosts the primary is the one to find. With one host we look ourselves, and say more.
    let several = config.get_hosts().len().max(config.get_hostaddrs().len()) > 1;
    if several && !is_given("target_session_attrs") {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
}

const fn in_driver(mode: SslMode) -> tokio_postgres::config::SslMode {
    match mode {
        SslMode::Disable => tokio_postgres::config::SslMode::Disable,
        SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
            tokio_postgres::config::SslMode::Require
        }
    }
}

/// Whether what is said to the server stays on this machine.
fn is_local(config: &Config) -> bool {
    if !config.get_hostaddrs().is_empty() {
        return config.get_hostaddrs().iter().all(IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => postgres_tls::is_local_host(name),
        Host::Unix(_) => true,
    })
}

fn shown_place(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |index: usize| ports.get(index).or_else(|| ports.first()).copied().unwrap_or(5432);
    let mut hosts: Vec<String> = Vec::new();
    for (index, host) in config.get_hosts().iter().enumerate() {
        hosts.push(match host {
            Host::Tcp(name) => format!("{name}:{}", port(index)),
            Host::Unix(path) => format!("{}:{}", path.display(), port(index)),
        });
    }
    if hosts.is_empty() {
        for (index, address) in config.get_hostaddrs().iter().enumerate() {
            hosts.push(format!("{address}:{}", port(index)));
        }
    }
    // Without a name the server takes the user's.
    let database = config.get_dbname().or_else(|| config.get_user()).unwrap_or_default();
    format!("postgres {}/{database}", hosts.join(","))
}

/// For a value in a URL's query.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings> {
        Settings::from_address(&mut Address::parse(text)?, None)
    }

    fn refusal(text: &str) -> String {
        match settings(text) {
            Ok(_) => panic!("{text} was taken"),
            Err(error) => error.chain(),
        }
    }

    #[test]
    fn an_address_is_taken_apart() {
        let found = settings(
            "postgres://ann:s3%40cret@localhost:6000/app?schema=other&connections=2&options=-c%20x%3D1",
        )
        .unwrap();
        assert_eq!(found.place, "postgres localhost:6000/app");
        assert_eq!((found.schema.as_str(), found.connections), ("other", 2));
        assert_eq!(found.config.get_password(), Some(&b"s3@cret"[..]));
        assert_eq!(found.config.get_options(), Some("-c x=1"));
        assert_eq!(found.config.get_application_name(), Some("tenure"));
        let named = settings("postgres:///app?host=/run/postgresql&user=ann&application_name=mine").unwrap();
        assert_eq!(named.place, "postgres /run/postgresql:5432/app");
        assert_eq!(named.config.get_application_name(), Some("mine"));
    }

    #[test]
    fn a_password_may_come_from_the_environment() {
        let with = |text: &str| {
            let found =
                Settings::from_address(&mut Address::parse(text).unwrap(), Some("env".into())).unwrap();
            found.config.get_password().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        assert_eq!(with("postgres://ann@localhost/app").as_deref(), Some("env"));
        assert_eq!(with("postgres://ann:own@localhost/app").as_deref(), Some("own"));
    }

    #[test]
    fn mistakes_are_named_and_passwords_are_not() {
        assert!(refusal("postgres://localhost/app?sslmod=disable").contains("did you mean `sslmode`"));
        assert!(refusal("postgres://localhost/app?sslmode=allow").contains("verify-full"));
        assert!(refusal("postgres://localhost/app?connections=0").contains("not from 1 to 200"));
        assert!(refusal("postgres://localhost/app?schema=").contains("schema"));
        assert!(refusal("postgres:app").contains("postgres://user@host"));
        assert!(refusal("postgres:///app").contains("names no host"));
        let message = refusal("postgres://ann:s3cret@localhost:notaport/app");
        assert!(message.contains("port") && !message.contains("s3cret"), "{message}");
    }

    #[test]
    fn only_this_machine_is_spoken_to_in_plain_text() {
        use tokio_postgres::config::SslMode::{Disable, Prefer, Require};
        let mode = |text: &str| settings(text).unwrap().config.get_ssl_mode();
        for local in ["localhost", "127.0.0.1", "127.8.0.1", "%2Frun%2Fpostgresql"] {
            assert_eq!(mode(&format!("postgres://ann@{local}/app")), Disable, "{local}");
        }
        assert_eq!(mode("postgres://ann@db.example.com/app?sslrootcert=system&sslmode=verify-full"), Require);
        assert_eq!(mode("postgres://ann@db.example.com/app?sslmode=require"), Require);
        assert_eq!(mode("postgres://ann@db.example.com/app?sslmode=prefer"), Prefer);
        assert_eq!(mode("postgres://ann@localhost,db.example.com/app"), Require);
        assert_eq!(mode("postgres://ann@localhost/app?hostaddr=10.0.0.1"), Require);
    }
}
