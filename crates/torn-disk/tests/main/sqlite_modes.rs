//! SQLite's own settings: those that promise nothing are caught, those that promise keep it.

use tenure_torn_disk::power_loss::{self, Loss, Plan};
use tenure_torn_disk::{Survival, TornDisk};

use crate::ledger::{DAMAGED, LOST, Ledger, connect, verify};

const SEED: u64 = 42;
const PLAN: Plan = Plan { seed: SEED, moments_max: 300, seeded_per_moment: 2 };

/// Creates the file and commits over three openings, with checkpoints every few pages.
fn history(pragmas: &str) -> Ledger {
    let mut ledger = Ledger::new(SEED);
    for opening in 0..3 {
        let connection = ledger.open(pragmas);
        if opening == 0 {
            ledger.create(&connection);
        }
        // A second connection keeps the log alive for a while and is the one to close it last.
        let other = ledger.open(pragmas);
        for _ in 0..40 {
            ledger.append(&connection).unwrap();
        }
        drop(connection);
        for _ in 0..5 {
            ledger.append(&other).unwrap();
        }
    }
    ledger
}

fn losses(pragmas: &str) -> Vec<Loss> {
    let ledger = history(pragmas);
    power_loss::survey(&ledger.disk, &ledger.db, ledger.acks, PLAN, verify)
}

fn check_keeps(pragmas: &str) {
    let ledger = history(pragmas);
    let checked = power_loss::check(&ledger.disk, &ledger.db, ledger.acks, PLAN, verify);
    assert!(checked > 1000, "only {checked} images");
}

/// Finds losses by both kinds of image, and damage only where SQLite allows that.
fn check_loses(pragmas: &str, may_damage: bool) {
    let losses = losses(pragmas);
    let lost = |wanted: fn(&Survival) -> bool| {
        let lost = |loss: &&Loss| wanted(&loss.survival) && loss.told.contains(&format!("{LOST}: "));
        losses.iter().filter(lost).count()
    };
    let by_cut = lost(|survival| *survival == Survival::Synced);
    let by_chance = lost(|survival| matches!(survival, Survival::Seeded(_)));
    assert!(by_cut >= 10 && by_chance >= 10, "{pragmas}: lost {by_cut} by the cut, {by_chance} by chance");
    assert_eq!(
        lost(|survival| *survival == Survival::All),
        0,
        "{pragmas}: a crash of the process loses nothing"
    );
    let damaged = losses.iter().find(|loss| loss.told.contains(&format!("{DAMAGED}: ")));
    assert!(may_damage || damaged.is_none(), "{pragmas}: {damaged:?}");
}

#[test]
fn off_is_caught_losing() {
    check_loses("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=12", true);
}

#[test]
fn normal_with_a_log_is_caught_losing_but_never_damaged() {
    check_loses("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=12", false);
}

#[test]
fn full_with_a_log_keeps_everything() {
    check_keeps("PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=12");
}

#[test]
fn full_with_a_log_that_is_cut_back_keeps_everything() {
    check_keeps(
        "PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=12; \
         PRAGMA journal_size_limit=20000",
    );
}

#[test]
fn full_with_a_journal_to_delete_is_caught_losing() {
    // Its deletion is the commit, and only EXTRA syncs the directory after it.
    check_loses("PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL", false);
}

#[test]
fn extra_with_a_journal_to_delete_keeps_everything() {
    check_keeps("PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA");
}

#[test]
fn full_with_a_journal_to_truncate_keeps_everything() {
    check_keeps("PRAGMA journal_mode=TRUNCATE; PRAGMA synchronous=FULL");
}

#[test]
fn power_may_fail_again_while_recovering() {
    let ledger = history("PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=12");
    let plan = Plan { moments_max: 25, seeded_per_moment: 1, ..PLAN };
    let mut again = 0;
    for image in power_loss::images(&ledger.disk, &ledger.db, ledger.acks, plan) {
        let Some(rows) = image.acked().last().copied() else { continue };
        let disk = TornDisk::register();
        let begun = disk.mark();
        let connection = connect(image.db(), &disk);
        connection.execute_batch("PRAGMA synchronous=FULL; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        drop(connection);
        let plan = Plan { moments_max: 20, seeded_per_moment: 1, ..PLAN };
        let losses = power_loss::survey(&disk, image.db(), vec![(begun, rows)], plan, verify);
        assert!(losses.is_empty(), "{image}, then {losses:?}");
        again += 1;
    }
    assert!(again > 50, "only {again} recoveries");
}

#[test]
fn an_image_is_the_same_each_time() {
    let ledger = history("PRAGMA synchronous=OFF; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=12");
    let marks: Vec<_> = ledger.acks.iter().map(|(mark, _)| *mark).collect();
    let moments = ledger.disk.moments(&marks, SEED, 10);
    assert_eq!(moments, ledger.disk.moments(&marks, SEED, 10));
    assert_eq!(moments.len(), 10);
    let read_all = |directory: &std::path::Path| {
        let mut files: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let content = |path: std::path::PathBuf| {
            (path.file_name().map(ToOwned::to_owned), std::fs::read(path).unwrap())
        };
        files.into_iter().map(content).collect::<Vec<_>>()
    };
    let mut differing = 0;
    for moment in moments {
        let image = |survival| {
            let directory = tempfile::tempdir().unwrap();
            ledger.disk.image_at(moment, survival, directory.path()).unwrap();
            read_all(directory.path())
        };
        assert_eq!(image(Survival::Seeded(7)), image(Survival::Seeded(7)));
        differing += usize::from(image(Survival::Seeded(7)) != image(Survival::Seeded(8)));
    }
    assert!(differing > 5, "the seed hardly matters: {differing} of 10");
}

#[test]
fn all_of_it_is_what_the_files_hold() {
    let mut ledger = Ledger::new(SEED);
    let connection = ledger.open("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=12");
    ledger.create(&connection);
    for _ in 0..50 {
        ledger.append(&connection).unwrap();
    }
    let image = tempfile::tempdir().unwrap();
    ledger.disk.image_at(ledger.disk.mark(), Survival::All, image.path()).unwrap();
    for name in ["ledger.db", "ledger.db-wal"] {
        let real = std::fs::read(ledger.db.with_file_name(name)).unwrap();
        assert!(std::fs::read(image.path().join(name)).unwrap() == real, "{name} differs");
    }
    assert_eq!(std::fs::read_dir(image.path()).unwrap().count(), 2, "the shared memory is no part of it");
}
