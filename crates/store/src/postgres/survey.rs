//! What a database server is like: whether changes can be captured from it, before anybody tries.

use tenure_backend::{Address, Env, Error, Result};
use tenure_clock::{Monotonic, within};
use tokio_postgres::{NoTls, Row};

use super::failure::told;
use super::settings::Settings;

/// What a server says of itself and of the user that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// `postgres host:port/database`, for messages: no user, no password.
    pub place: String,
    /// Its version, e.g. `17.2`.
    pub version: String,
    /// `logical` if changes can be decoded.
    pub wal_level: String,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// How many replication slots it allows.
    pub slots_max: i32,
    /// How many replication slots there are.
    pub slots_used: i64,
    /// How many replication connections it allows.
    pub senders_max: i32,
    /// The user that asked.
    pub user: String,
    /// Whether that user may replicate.
    pub may_replicate: bool,
}

/// Managed servers grant replication by membership of a role, ours do by an attribute.
const QUESTION: &str = "SELECT current_setting('server_version'), current_setting('wal_level'), pg_is_in_recovery(), \
     current_setting('max_replication_slots')::int4, (SELECT count(*) FROM pg_replication_slots), \
     current_setting('max_wal_senders')::int4, current_user::text, \
     EXISTS (SELECT 1 FROM pg_roles WHERE rolname = current_user AND (rolreplication OR rolsuper)) \
     OR EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(current_user, oid, 'MEMBER'))";

/// Connects to the server at a `postgres://…` address and asks. Changes nothing.
///
/// # Errors
/// As those of the store: unreachable is `Unavailable`, a refused user is `Denied`.
///
/// # Cancel safety
/// It only looks; it may be dropped.
pub async fn survey(address: &str, by: Monotonic, env: &Env) -> Result<Survey> {
    let mut address = Address::parse(address)?;
    let settings = Settings::from_address(&mut address, std::env::var("PGPASSWORD").ok())?;
    let place = settings.place.clone();
    match within(&*env.clock, by, Box::pin(ask(&settings))).await {
        Ok(Ok(row)) => Survey::from_row(place.clone(), &row).map_err(|error| told(&place, &error)),
        Ok(Err(error)) => Err(told(&place, &error)),
        Err(_) => Err(Error::unavailable(format!("{place}: the server does not answer in time"))),
    }
}

async fn ask(settings: &Settings) -> Result<Row, tokio_postgres::Error> {
    // The connection ends with the task that drives it, when the client is dropped.
    let client = match &settings.tls {
        None => {
            let (client, connection) = settings.config.connect(NoTls).await?;
            tokio::spawn(connection);
            client
        }
        Some(tls) => {
            let (client, connection) = settings.config.connect(tls.clone()).await?;
            tokio::spawn(connection);
            client
        }
    };
    client.query_one(QUESTION, &[]).await
}

impl Survey {
    fn from_row(place: String, row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            place,
            version: row.try_get(0)?,
            wal_level: row.try_get(1)?,
            in_recovery: row.try_get(2)?,
            slots_max: row.try_get(3)?,
            slots_used: row.try_get(4)?,
            senders_max: row.try_get(5)?,
            user: row.try_get(6)?,
            may_replicate: row.try_get(7)?,
        })
    }
}
