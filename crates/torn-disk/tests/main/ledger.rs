//! A small history whose every state can be told: rows 1, 2, 3 … one per commit, and their count.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use tempfile::TempDir;
use tenure_clock::Entropy;
use tenure_torn_disk::{Mark, TornDisk};

/// Why an image is wrong begins with one of these.
pub(crate) const LOST: &str = "lost";
pub(crate) const DAMAGED: &str = "damaged";

/// A disk, the directory of its files, and what was acknowledged: the number of rows by then.
pub(crate) struct Ledger {
    pub(crate) disk: TornDisk,
    pub(crate) db: PathBuf,
    pub(crate) acks: Vec<(Mark, u64)>,
    pub(crate) entropy: Entropy,
    _directory: TempDir,
}

impl Ledger {
    pub(crate) fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            disk: TornDisk::register(),
            db: directory.path().join("ledger.db"),
            acks: Vec::new(),
            entropy: Entropy::seeded(seed),
            _directory: directory,
        }
    }

    pub(crate) fn open(&self, pragmas: &str) -> Connection {
        let connection = connect(&self.db, &self.disk);
        connection.execute_batch(pragmas).unwrap();
        connection
    }

    pub(crate) fn create(&mut self, connection: &Connection) {
        let schema = "CREATE TABLE total(n INTEGER); CREATE TABLE entry(id INTEGER PRIMARY KEY, body BLOB)";
        connection.execute_batch(&format!("BEGIN; {schema}; INSERT INTO total VALUES (0); COMMIT")).unwrap();
        self.acks.push((self.disk.mark(), 0));
    }

    /// The number of the next row.
    pub(crate) fn next(&self) -> u64 {
        self.acks.last().map_or(0, |(_, rows)| rows + 1)
    }

    pub(crate) fn append(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let id = self.next();
        append(connection, id, self.entropy.below(6000))?;
        self.acks.push((self.disk.mark(), id));
        Ok(())
    }
}

pub(crate) fn connect(db: &Path, disk: &TornDisk) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    Connection::open_with_flags_and_vfs(db, flags, disk.vfs_name()).unwrap()
}

pub(crate) fn append(connection: &Connection, id: u64, len: u64) -> rusqlite::Result<()> {
    let committed = (|| {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        connection.execute("INSERT INTO entry VALUES (?1, ?2)", (id.cast_signed(), body(id, len)))?;
        // Old rows change too, so that a checkpoint writes into the middle of the file.
        connection.execute("UPDATE entry SET body = body WHERE id = ?1", [(id / 2).cast_signed()])?;
        connection.execute("UPDATE total SET n = n + 1", [])?;
        connection.execute_batch("COMMIT")
    })();
    if committed.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    committed
}

fn body(id: u64, len: u64) -> Vec<u8> {
    vec![id.to_le_bytes()[0]; usize::try_from(len).unwrap()]
}

/// The rows of an image are the first so many, whole, and no fewer than were acknowledged.
pub(crate) fn verify(image: &Path, acked: &[u64]) -> Result<(), String> {
    let acked = acked.last();
    if !image.exists() {
        return acked.map_or(Ok(()), |_| Err(format!("{LOST}: the file is missing")));
    }
    let damaged = |error: rusqlite::Error| format!("{DAMAGED}: {error}");
    let connection = Connection::open(image).map_err(damaged)?;
    connection.execute_batch("PRAGMA synchronous=OFF").map_err(damaged)?;
    let integrity: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).map_err(damaged)?;
    if integrity != "ok" {
        return Err(format!("{DAMAGED}: {integrity}"));
    }
    let Some(acked) = acked else {
        return Ok(());
    };
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(damaged)?;
    if tables != 2 {
        return Err(format!("{LOST}: the tables"));
    }
    let total: i64 = connection.query_row("SELECT n FROM total", [], |row| row.get(0)).map_err(damaged)?;
    let mut select = connection.prepare("SELECT id, body FROM entry ORDER BY id").map_err(damaged)?;
    let rows = select
        .query_map([], |row| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, Vec<u8>>(1)?)))
        .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
        .map_err(damaged)?;
    for (index, (id, stored)) in rows.iter().enumerate() {
        if *id != index as u64 + 1 || *stored != body(*id, stored.len() as u64) {
            return Err(format!("{DAMAGED}: row {id} in place {index}"));
        }
    }
    let found = rows.len() as u64;
    if total.cast_unsigned() != found {
        return Err(format!("{DAMAGED}: {found} rows and a total of {total}"));
    }
    if found < *acked {
        return Err(format!("{LOST}: {found} rows of {acked} acknowledged"));
    }
    // What recovered must go on.
    append(&connection, found + 1, 100).map_err(damaged)?;
    let next: Option<i64> = connection
        .query_row("SELECT id FROM entry WHERE id = ?1", [(found + 1).cast_signed()], |row| row.get(0))
        .optional()
        .map_err(damaged)?;
    next.map(drop).ok_or_else(|| format!("{DAMAGED}: an append after recovery is not there"))
}
