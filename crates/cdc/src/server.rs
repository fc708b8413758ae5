//! What is asked of the server beside the stream: who it is, its slots and publications, and whether we may.
//!
//! Everything is a simple query on the replication session. Nothing here decides: a missing slot is an
//! answer, and what follows from it is for the caller.

use std::str::FromStr;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_stream::identity::Lsn;

use crate::transport::{PublicationName, Row, Session, SlotName};

/// Which server this is, and how far its log reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Differs between any two servers that were not copied from each other.
    pub system_id: u64,
    /// Rises with every failover.
    pub timeline: u32,
    /// How far the log is flushed.
    pub flushed: Lsn,
    /// The database of this session.
    pub database: String,
}

/// What of the server decides whether changes can be read from it at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitness {
    /// `logical` is needed.
    pub wal_level: String,
    /// A standby.
    pub in_recovery: bool,
    /// The user may replicate: it has REPLICATION, or is a superuser.
    pub may_replicate: bool,
    /// The user is a superuser.
    pub superuser: bool,
    /// How many slots and senders there may be.
    pub max_replication_slots: u32,
    /// How many of both.
    pub max_wal_senders: u32,
}

/// A replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// `pgoutput` for ours; `None` for a physical slot.
    pub plugin: Option<String>,
    /// `logical` or `physical`.
    pub slot_type: String,
    /// Whose changes it keeps; `None` for a physical slot.
    pub database: Option<String>,
    /// It vanishes with the session that made it.
    pub temporary: bool,
    /// It was made for two-phase commit.
    pub two_phase: bool,
    /// Somebody streams from it.
    pub active: bool,
    /// The server's process of whoever does.
    pub active_pid: Option<i32>,
    /// Everything before it was confirmed.
    pub confirmed_flush: Option<Lsn>,
    /// The oldest part of the log that it keeps.
    pub restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<WalStatus>,
    /// How much more may be written before it may be lost; `None` if there is no limit.
    pub safe_wal_bytes: Option<i64>,
    /// How much log it keeps, in bytes. `None` if it keeps none, or on a standby.
    pub retained_bytes: Option<u64>,
    /// Why the server gave it up. Known from Postgres 16 on, as a word from 17 on.
    pub invalidated: Option<String>,
}

impl Slot {
    /// Whether the server gave it up: changes are missing, and nothing can be streamed from it any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.invalidated.is_some() || self.wal_status == Some(WalStatus::Lost)
    }
}

/// Whether the log that a slot needs is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WalStatus {
    /// Within `max_wal_size`.
    Reserved,
    /// More than that, and kept.
    Extended,
    /// It may go at the next checkpoint.
    Unreserved,
    /// It is gone.
    Lost,
}

impl FromStr for WalStatus {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "reserved" => Ok(Self::Reserved),
            "extended" => Ok(Self::Extended),
            "unreserved" => Ok(Self::Unreserved),
            "lost" => Ok(Self::Lost),
            _ => Err(()),
        }
    }
}

/// A slot that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Everything that commits after it will be streamed.
    pub consistent_point: Lsn,
    /// The snapshot that was exported; it lives until this session's next statement.
    pub snapshot: Option<String>,
}

/// Whether a slot outlives its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is dropped.
    Permanent,
    /// Until the session ends.
    Temporary,
}

/// What is done with the snapshot of the moment at which a slot begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotUse {
    /// Nothing.
    Nothing,
    /// Other sessions may read in it, while this one does nothing else.
    Export,
    /// The transaction that is open on this session reads in it.
    Use,
}

/// A publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// FOR ALL TABLES.
    pub all_tables: bool,
    /// Whether each of these is published.
    pub inserts: bool,
    /// See `inserts`.
    pub updates: bool,
    /// See `inserts`.
    pub deletes: bool,
    /// See `inserts`.
    pub truncates: bool,
    /// Changes of partitions are told as those of their root.
    pub via_root: bool,
}

/// A table of a publication.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublishedTable {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub table: String,
}

/// Who the server is (IDENTIFY_SYSTEM).
///
/// # Errors
/// The server does not answer, or not as Postgres does.
pub async fn identify(session: &mut Session, by: Monotonic) -> Result<System> {
    const DOING: &str = "identify the server";
    let rows = session.read(by, DOING, "IDENTIFY_SYSTEM").await?;
    let row = one(DOING, &rows)?;
    Ok(System {
        system_id: column(DOING, row, "systemid")?,
        timeline: column(DOING, row, "timeline")?,
        flushed: column(DOING, row, "xlogpos")?,
        database: column(DOING, row, "dbname")?,
    })
}

/// Whether changes can be read from the server at all, and by us.
///
/// # Errors
/// The server does not answer, or not as Postgres does.
pub async fn fitness(session: &mut Session, by: Monotonic) -> Result<Fitness> {
    const DOING: &str = "look whether the server can stream changes";
    let sql = "SELECT pg_catalog.current_setting('wal_level') AS wal_level, \
               pg_catalog.pg_is_in_recovery() AS in_recovery, \
               pg_catalog.current_setting('max_replication_slots') AS max_replication_slots, \
               pg_catalog.current_setting('max_wal_senders') AS max_wal_senders, \
               rolsuper AS superuser, rolsuper OR rolreplication AS may_replicate \
               FROM pg_catalog.pg_roles WHERE rolname = current_user";
    let rows = session.read(by, DOING, sql).await?;
    let row = one(DOING, &rows)?;
    Ok(Fitness {
        wal_level: column(DOING, row, "wal_level")?,
        in_recovery: flag(DOING, row, "in_recovery")?,
        may_replicate: flag(DOING, row, "may_replicate")?,
        superuser: flag(DOING, row, "superuser")?,
        max_replication_slots: column(DOING, row, "max_replication_slots")?,
        max_wal_senders: column(DOING, row, "max_wal_senders")?,
    })
}

/// How far the primary's log reaches.
///
/// # Errors
/// `Unavailable` on a standby, which writes no log of its own.
pub async fn current_wal(session: &mut Session, by: Monotonic) -> Result<Lsn> {
    const DOING: &str = "read the end of the log";
    let sql =
        "SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_lsn() END AS lsn";
    let rows = session.read(by, DOING, sql).await?;
    optional(DOING, one(DOING, &rows)?, "lsn")?.ok_or_else(|| {
        Error::unavailable("the server is a standby, which writes no log of its own: connect to the primary")
    })
}

/// Looks at a slot; `None` if there is none.
///
/// # Errors
/// The server does not answer, or not as Postgres does.
pub async fn slot(session: &mut Session, by: Monotonic, name: &SlotName) -> Result<Option<Slot>> {
    const DOING: &str = "look at a replication slot";
    let invalidated = match session.version().major() {
        ..16 => "NULL",
        16 => "CASE WHEN conflicting THEN 'conflict' END",
        17.. => "invalidation_reason",
    };
    let sql = format!(
        "SELECT plugin, slot_type, database, temporary, two_phase, active, active_pid, \
         confirmed_flush_lsn, restart_lsn, wal_status, safe_wal_size, {invalidated} AS invalidated, \
         CASE WHEN NOT pg_catalog.pg_is_in_recovery() \
         THEN GREATEST(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn), 0) END AS retained \
         FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
        name.literal()
    );
    let rows = session.read(by, DOING, &sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Slot {
        plugin: optional(DOING, row, "plugin")?,
        slot_type: column(DOING, row, "slot_type")?,
        database: optional(DOING, row, "database")?,
        temporary: flag(DOING, row, "temporary")?,
        two_phase: flag(DOING, row, "two_phase")?,
        active: flag(DOING, row, "active")?,
        active_pid: optional(DOING, row, "active_pid")?,
        confirmed_flush: optional(DOING, row, "confirmed_flush_lsn")?,
        restart: optional(DOING, row, "restart_lsn")?,
        wal_status: optional(DOING, row, "wal_status")?,
        safe_wal_bytes: optional(DOING, row, "safe_wal_size")?,
        retained_bytes: optional(DOING, row, "retained")?,
        invalidated: optional(DOING, row, "invalidated")?,
    }))
}

/// Makes a logical slot for `pgoutput`. It waits for all transactions that are under way.
///
/// # Errors
/// `Invalid` if it is there already (SQLSTATE 42710) or `wal_level` is not `logical` (55000), `Unavailable`
/// if there is no slot left (53400), `Unknown` if no answer came: then look whether it is there.
pub async fn create_slot(
    session: &mut Session,
    by: Monotonic,
    name: &SlotName,
    lifetime: Lifetime,
    snapshot: SnapshotUse,
) -> Result<CreatedSlot> {
    let temporary = match lifetime {
        Lifetime::Permanent => "",
        Lifetime::Temporary => " TEMPORARY",
    };
    let new_form = session.version().major() >= 15;
    let snapshot = match (snapshot, new_form) {
        (SnapshotUse::Nothing, true) => "(SNAPSHOT 'nothing')",
        (SnapshotUse::Export, true) => "(SNAPSHOT 'export')",
        (SnapshotUse::Use, true) => "(SNAPSHOT 'use')",
        (SnapshotUse::Nothing, false) => "NOEXPORT_SNAPSHOT",
        (SnapshotUse::Export, false) => "EXPORT_SNAPSHOT",
        (SnapshotUse::Use, false) => "USE_SNAPSHOT",
    };
    let doing = format!("create slot `{name}`");
    let sql = format!("CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput {snapshot}", name.quoted());
    let rows = session.query(by, &sql).await.map_err(|error| error.during(&*doing))?;
    let row = one(&doing, &rows)?;
    Ok(CreatedSlot {
        consistent_point: column(&doing, row, "consistent_point")?,
        snapshot: optional(&doing, row, "snapshot_name")?,
    })
}

/// Drops a slot. Nothing that it kept can be streamed afterwards.
///
/// # Errors
/// `Invalid` if there is none (SQLSTATE 42704), `Unavailable` if somebody uses it (55006), `Unknown` if no
/// answer came.
pub async fn drop_slot(session: &mut Session, by: Monotonic, name: &SlotName) -> Result<()> {
    let sql = format!("DROP_REPLICATION_SLOT {}", name.quoted());
    session.query(by, &sql).await.map_err(|error| error.during(format!("drop slot `{name}`")))?;
    Ok(())
}

/// Looks at a publication; `None` if there is none.
///
/// # Errors
/// The server does not answer, or not as Postgres does.
pub async fn publication(
    session: &mut Session,
    by: Monotonic,
    name: &PublicationName,
) -> Result<Option<Publication>> {
    const DOING: &str = "look at a publication";
    let sql = format!(
        "SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot \
         FROM pg_catalog.pg_publication WHERE pubname = {}",
        name.literal()
    );
    let rows = session.read(by, DOING, &sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Publication {
        all_tables: flag(DOING, row, "puballtables")?,
        inserts: flag(DOING, row, "pubinsert")?,
        updates: flag(DOING, row, "pubupdate")?,
        deletes: flag(DOING, row, "pubdelete")?,
        truncates: flag(DOING, row, "pubtruncate")?,
        via_root: flag(DOING, row, "pubviaroot")?,
    }))
}

/// The tables of a publication, by schema and name; none if there is no such publication.
///
/// # Errors
/// The server does not answer, or not as Postgres does.
pub async fn published_tables(
    session: &mut Session,
    by: Monotonic,
    name: &PublicationName,
) -> Result<Vec<PublishedTable>> {
    const DOING: &str = "look at a publication's tables";
    let sql = format!(
        "SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname = {} ORDER BY 1, 2",
        name.literal()
    );
    let rows = session.read(by, DOING, &sql).await?;
    rows.iter()
        .map(|row| {
            Ok(PublishedTable {
                schema: column(DOING, row, "schemaname")?,
                table: column(DOING, row, "tablename")?,
            })
        })
        .collect()
}

// === reading answers ===

fn one<'a>(doing: &str, rows: &'a [Row]) -> Result<&'a Row> {
    rows.first().ok_or_else(|| Error::new(Kind::Corrupt, format!("{doing}: the server sent no row")))
}

fn optional<T: FromStr>(doing: &str, row: &Row, name: &str) -> Result<Option<T>> {
    let parsed = row.named(name).map(|text| {
        text.parse()
            .map_err(|_| Error::new(Kind::Corrupt, format!("{doing}: `{name}` is not as expected: `{text}`")))
    });
    parsed.transpose()
}

fn column<T: FromStr>(doing: &str, row: &Row, name: &str) -> Result<T> {
    optional(doing, row, name)?
        .ok_or_else(|| Error::new(Kind::Corrupt, format!("{doing}: the server sent no `{name}`")))
}

fn flag(doing: &str, row: &Row, name: &str) -> Result<bool> {
    match row.named(name) {
        Some("t") => Ok(true),
        Some("f") => Ok(false),
        other => Err(Error::new(Kind::Corrupt, format!("{doing}: `{name}` is {other:?}, not true or false"))),
    }
}
