//! Files that cannot be used: each gets an error that names it and says what to do.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_store::testing::{env, soon};
use tenure_store::{Condition, Kind, Sqlite, Store, StoreExt};
use tenure_torn_disk::TornDisk;

use super::processes::{assignment, said, start_by};
use super::{open_at, row, spec};

#[tokio::test]
async fn a_full_disk_loses_nothing_and_is_named() {
    let disk = TornDisk::register();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.db");
    let store = Sqlite::open_through(&path, &env(0), disk.vfs_name()).unwrap();
    store.ensure_table(soon(), &spec()).await.unwrap();
    store.put(soon(), "rows", row("before"), Condition::Always).await.unwrap();
    disk.fill_after(0);
    let large = row("during").with("v", "x".repeat(100_000));
    let error = store.put(soon(), "rows", large, Condition::Always).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(error.chain().contains("full"), "{}", error.chain());
    disk.free();
    store.put(soon(), "rows", row("after"), Condition::Always).await.unwrap();
    let mut rows: Vec<_> = store.scan_all(soon(), "rows", 10).await.unwrap();
    rows.sort_by_key(|row| row.text("pk").map(str::to_owned));
    assert_eq!(rows, [row("after"), row("before")], "nothing is half-written");
}

#[tokio::test]
async fn a_sync_that_fails_is_made_definite_if_the_next_one_works() {
    let disk = TornDisk::register();
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open_through(&dir.path().join("tenure.db"), &env(0), disk.vfs_name()).unwrap();
    store.ensure_table(soon(), &spec()).await.unwrap();
    disk.fail_sync(1);
    let error = store.put(soon(), "rows", row("a"), Condition::Always).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    disk.fail_sync(2);
    let error = store.put(soon(), "rows", row("b"), Condition::Always).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown, "{error:?}");
    store.put(soon(), "rows", row("c"), Condition::Always).await.unwrap();
    assert_eq!(store.scan_all(soon(), "rows", 10).await.unwrap(), [row("c")]);
}

#[tokio::test]
async fn a_damaged_page_is_named_and_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.db");
    {
        let store = open_at(&path);
        store.ensure_table(soon(), &spec()).await.unwrap();
        for number in 0..200 {
            store
                .put(soon(), "rows", row(number).with("v", "x".repeat(200)), Condition::Always)
                .await
                .unwrap();
        }
    }
    // It is closed by a thread of its own, and what its log still holds would heal the pages.
    let log = dir.path().join("tenure.db-wal");
    let by = soon();
    while log.exists() && SystemClock.monotonic() < by {
        SystemClock.sleep(Duration::from_millis(1)).await;
    }
    assert!(!log.exists(), "it was not closed");
    let mut bytes = std::fs::read(&path).unwrap();
    for byte in &mut bytes[4096..] {
        *byte = 0xa5;
    }
    std::fs::write(&path, &bytes).unwrap();
    let error = match Sqlite::open(&path, &env(0)) {
        Err(error) => error,
        Ok(store) => store.scan_all(soon(), "rows", 1000).await.unwrap_err(),
    };
    assert_eq!(error.kind(), Kind::Corrupt, "{error:?}");
    assert!(error.chain().contains("tenure.db") && error.chain().contains("restore"), "{}", error.chain());
}

/// Reads a file that it may not write, and tries to.
#[tokio::test]
#[ignore = "the part of another process: started by the test below"]
async fn reader() {
    let store = open_at(&assignment().0);
    assert_eq!(store.scan_all(soon(), "rows", 10).await.unwrap(), [row("a")]);
    let error = store.put(soon(), "rows", row("b"), Condition::Always).await.unwrap_err();
    println!("REFUSED {:?} {}", error.kind(), error.chain());
}

#[tokio::test]
async fn a_read_only_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.db");
    let store = open_at(&path);
    store.ensure_table(soon(), &spec()).await.unwrap();
    store.put(soon(), "rows", row("a"), Condition::Always).await.unwrap();
    drop(store);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let mut reader = start_by(bound_by_permissions(), "sqlite::bad_files::reader", &path, 0);
    let refused = said(&mut reader, "REFUSED");
    assert!(reader.wait().unwrap().success(), "{refused:?}");
    assert_eq!(refused.len(), 1, "a read-only file was written");
    assert!(refused[0].starts_with("Denied") && refused[0].contains("tenure.db is read-only"), "{refused:?}");
}

/// This test binary, in a process that may do what a file's mode says, root or not.
fn bound_by_permissions() -> Command {
    let binary = std::env::current_exe().unwrap();
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Command::new(binary);
    }
    // What lets root write any file is taken from it; whose the files are stays as it is.
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(binary);
    command
}

#[tokio::test]
async fn an_address_without_a_file_is_refused() {
    for (address, message) in [
        ("sqlite:", "names no file"),
        ("sqlite::memory:", "or memory: for no file"),
        ("sqlite:/no/such/dir/tenure.db", "does its directory exist"),
        ("sqlite:x.db?sweep=1", "did you mean `sweep_seconds`"),
    ] {
        let error = tenure_store::open(address, &env(0)).await.unwrap_err();
        assert!(error.chain().contains(message), "{address}: {}", error.chain());
    }
}
