//! The faults by themselves, under plain SQLite.

use rusqlite::{Connection, ErrorCode};
use tenure_torn_disk::Survival;

use crate::ledger::{Ledger, append, connect, verify};

const PRAGMAS: &str = "PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL";

#[test]
fn a_full_disk_says_so_until_freed() {
    let mut ledger = Ledger::new(1);
    let connection = ledger.open(PRAGMAS);
    ledger.create(&connection);
    ledger.disk.fill_after(10_000);
    let refused = loop {
        if let Err(error) = ledger.append(&connection) {
            break error;
        }
    };
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DiskFull));
    ledger.disk.free();
    ledger.append(&connection).unwrap();
}

#[test]
fn a_failed_sync_says_so_as_often_as_asked() {
    let mut ledger = Ledger::new(1);
    let connection = ledger.open(PRAGMAS);
    ledger.create(&connection);
    ledger.append(&connection).unwrap();
    ledger.disk.fail_sync(2);
    for _ in 0..2 {
        let failed = ledger.append(&connection).unwrap_err();
        assert_eq!(failed.sqlite_error_code(), Some(ErrorCode::SystemIoFailure));
    }
    ledger.append(&connection).unwrap();
}

/// Why a commit whose sync failed is neither there nor gone: it is hidden from readers, yet its frames
/// are in the log for recovery to find, until the next commit takes their place.
#[test]
fn a_commit_whose_sync_failed_may_surface_after_the_outage() {
    let mut ledger = Ledger::new(1);
    let connection = ledger.open(PRAGMAS);
    ledger.create(&connection);
    ledger.append(&connection).unwrap();
    ledger.disk.fail_sync(1);
    append(&connection, 2, 1000).unwrap_err();
    let total = |connection: &Connection| {
        connection.query_row("SELECT n FROM total", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(total(&connection), 1);

    // As after a crash of the process alone; a power failure may leave either.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["ledger.db", "ledger.db-wal"] {
        std::fs::copy(ledger.db.with_file_name(name), crashed.path().join(name)).unwrap();
    }
    assert_eq!(total(&Connection::open(crashed.path().join("ledger.db")).unwrap()), 2);

    connection.execute("UPDATE total SET n = n", []).unwrap();
    let settled = ledger.disk.mark();
    for seed in 0..50 {
        let image = tempfile::tempdir().unwrap();
        ledger.disk.image_at(settled, Survival::Seeded(seed), image.path()).unwrap();
        assert_eq!(total(&Connection::open(image.path().join("ledger.db")).unwrap()), 1, "seed {seed}");
    }
}

#[test]
fn a_file_from_before_is_durable_as_found() {
    let mut ledger = Ledger::new(1);
    let connection = ledger.open(PRAGMAS);
    ledger.create(&connection);
    for _ in 0..20 {
        ledger.append(&connection).unwrap();
    }
    drop(connection);
    let later = tenure_torn_disk::TornDisk::register();
    let total = connect(&ledger.db, &later).query_row("SELECT n FROM total", [], |row| row.get::<_, i64>(0));
    assert_eq!(total, Ok(20));
    let image = tempfile::tempdir().unwrap();
    later.image_at(later.mark(), Survival::Synced, image.path()).unwrap();
    verify(&image.path().join("ledger.db"), &[20]).unwrap();
}

#[test]
fn a_disk_that_is_gone_cannot_be_opened_and_leaves_open_files_alone() {
    let mut ledger = Ledger::new(1);
    let connection = ledger.open(PRAGMAS);
    ledger.create(&connection);
    let name = ledger.disk.vfs_name().to_owned();
    ledger.disk = tenure_torn_disk::TornDisk::register();
    ledger.append(&connection).unwrap();
    drop(connection);
    let reopened =
        Connection::open_with_flags_and_vfs(&ledger.db, rusqlite::OpenFlags::default(), name.as_str());
    assert!(reopened.is_err());
}
