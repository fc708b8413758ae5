//! The engine's promise: what was acknowledged, or read, survives power loss.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_backend::sqlite::{Engine, FileSpec, failure};
use tenure_backend::{Kind, Result};
use tenure_clock::{Clock, Monotonic, SystemClock};
use tenure_torn_disk::power_loss::{self, Plan};
use tenure_torn_disk::{Mark, Survival, TornDisk};
use tokio::runtime::Runtime;

const SEED: u64 = 42;
const WRITERS: i64 = 6;

/// A row: which writer, and its how manieth.
type Row = (i64, i64);

/// In the place of the writer: that row of writer 0 was refused for certain, from this mark on.
const REFUSED: i64 = -7;

#[derive(Clone)]
struct World {
    disk: TornDisk,
    db: PathBuf,
    acks: Arc<Mutex<Vec<(Mark, Row)>>>,
    _directory: Arc<TempDir>,
}

fn spec(vfs: Option<&TornDisk>) -> FileSpec {
    FileSpec {
        role: "test",
        application_id: 0x7e57,
        format: 1,
        schema: "CREATE TABLE entry(writer, n, body, PRIMARY KEY (writer, n)); \
                 CREATE TABLE shadow(writer, n, PRIMARY KEY (writer, n))",
        vfs: vfs.map(|disk| disk.vfs_name().to_owned()),
    }
}

fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}

fn insert(row: Row) -> impl FnOnce(&Connection) -> Result<()> + Send + 'static {
    move |connection| {
        let insert = || {
            let body = vec![7u8; usize::try_from(row.1 * 97 % 3000).unwrap()];
            connection.execute("INSERT INTO entry VALUES (?1, ?2, ?3)", (row.0, row.1, body))?;
            connection.execute("INSERT INTO shadow VALUES (?1, ?2)", row)
        };
        insert().map(drop).map_err(|error| failure(Path::new("entry"), &error))
    }
}

fn rows(connection: &Connection, table: &str) -> Vec<Row> {
    let mut select = connection.prepare(&format!("SELECT writer, n FROM {table} ORDER BY 1, 2")).unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

impl World {
    fn new() -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let disk = TornDisk::register();
        // Long enough for writes to gather meanwhile.
        disk.slow_sync(Duration::from_micros(200));
        Self { disk, db: directory.path().join("engine.db"), acks: Arc::default(), _directory: directory }
    }

    async fn open(&self) -> Arc<Engine> {
        let engine = Engine::open(&self.db, &spec(Some(&self.disk)), Arc::new(SystemClock)).unwrap();
        let checkpoint_often = |connection: &Connection| {
            connection.pragma_update(None, "wal_autocheckpoint", 20).unwrap();
            Ok(())
        };
        engine.write(soon(), checkpoint_often).await.unwrap();
        Arc::new(engine)
    }

    fn ack(&self, rows: impl IntoIterator<Item = Row>) {
        let mark = self.disk.mark();
        self.acks.lock().unwrap().extend(rows.into_iter().map(|row| (mark, row)));
    }

    /// Writers that run at once, and a reader that takes what it sees for durable.
    async fn write_concurrently(&self, engine: &Arc<Engine>, from: i64, to: i64) {
        let mut tasks = Vec::new();
        for writer in 0..WRITERS {
            let (world, engine) = (self.clone(), engine.clone());
            tasks.push(tokio::spawn(async move {
                for n in from..to {
                    engine.write(soon(), insert((writer, n))).await.unwrap();
                    world.ack([(writer, n)]);
                }
            }));
        }
        let (world, engine) = (self.clone(), engine.clone());
        tasks.push(tokio::spawn(async move {
            for _ in from..to {
                let seen = engine.read(soon(), |connection| Ok(rows(connection, "entry"))).await.unwrap();
                world.ack(seen);
            }
        }));
        for task in tasks {
            task.await.unwrap();
        }
    }

    fn check(&self, plan: Plan) -> usize {
        self.check_without(&[], plan)
    }

    /// Also finds none of the rows that were refused for certain.
    fn check_without(&self, refused: &[Row], plan: Plan) -> usize {
        let runtime = Runtime::new().unwrap();
        let acks = self.acks.lock().unwrap().clone();
        power_loss::check(&self.disk, &self.db, acks, plan, |image, acked| {
            runtime.block_on(verify(image, acked, refused))
        })
    }
}

/// Opened as a program would after the outage, at whatever moment that came.
async fn verify(image: &Path, acked: &[Row], refused: &[Row]) -> std::result::Result<(), String> {
    if !acked.is_empty() && !image.exists() {
        return Err("the file is missing".into());
    }
    let engine = Engine::open(image, &spec(None), Arc::new(SystemClock)).map_err(|error| error.chain())?;
    let (refused_by_then, acked): (Vec<Row>, Vec<Row>) =
        acked.iter().partition(|(writer, _)| *writer == REFUSED);
    let refused: Vec<Row> =
        refused.iter().copied().chain(refused_by_then.into_iter().map(|(_, n)| (0, n))).collect();
    let verdict = engine.read(soon(), move |connection| {
        let integrity: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        if integrity != "ok" {
            return Ok(Err(integrity));
        }
        let found = rows(connection, "entry");
        if found != rows(connection, "shadow") {
            return Ok(Err("half of a write".into()));
        }
        if let Some(row) = refused.iter().find(|row| found.binary_search(row).is_ok()) {
            return Ok(Err(format!("{row:?} was refused and is there")));
        }
        let lost = acked.iter().find(|row| found.binary_search(row).is_err());
        Ok(lost.map_or(Ok(()), |row| Err(format!("lost {row:?}, found {} rows", found.len()))))
    });
    verdict.await.map_err(|error| error.chain())??;
    engine.write(soon(), insert((-1, 0))).await.map_err(|error| error.chain())
}

#[test]
fn what_was_acknowledged_or_read_survives() {
    let world = World::new();
    Runtime::new().unwrap().block_on(async {
        // Each opening but the first finds a file whose log was deleted when it was last closed.
        for opening in 0..3 {
            let engine = world.open().await;
            world.write_concurrently(&engine, opening * 15, opening * 15 + 15).await;
        }
        // Two engines on one file, as two processes would be.
        let (one, two) = (world.open().await, world.open().await);
        tokio::join!(world.write_concurrently(&one, 45, 50), async {
            for n in 0..10 {
                two.write(soon(), insert((100, n))).await.unwrap();
                world.ack([(100, n)]);
            }
        });
    });
    let checked = world.check(Plan { seed: SEED, moments_max: 300, seeded_per_moment: 1 });
    assert!(checked >= 900, "only {checked} images");
}

#[test]
fn a_disk_that_only_claims_to_sync_is_caught() {
    let world = World::new();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = world.open().await;
        world.disk.ignore_syncs(true);
        world.write_concurrently(&engine, 0, 10).await;
    });
    let acks = world.acks.lock().unwrap().clone();
    let plan = Plan { seed: SEED, moments_max: 60, seeded_per_moment: 2 };
    let losses = power_loss::survey(&world.disk, &world.db, acks, plan, |image, acked| {
        runtime.block_on(verify(image, acked, &[]))
    });
    let by_cut = losses.iter().filter(|loss| loss.survival == Survival::Synced).count();
    assert!(by_cut > 20 && losses.len() > by_cut, "lost in {} images, {by_cut} by the cut", losses.len());
    assert!(losses.iter().all(|loss| loss.survival != Survival::All), "{losses:?}");
}

#[test]
fn the_first_moments_of_a_file_leave_one_that_opens() {
    let world = World::new();
    Runtime::new().unwrap().block_on(async {
        let engine = world.open().await;
        engine.write(soon(), insert((0, 0))).await.unwrap();
        world.ack([(0, 0)]);
    });
    // So few operations that each of them is a moment, many times over.
    let checked = world.check(Plan { seed: SEED, moments_max: 1000, seeded_per_moment: 12 });
    assert!(checked >= 300, "only {checked} images");
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let world = World::new();
    let mut refused = Vec::new();
    Runtime::new().unwrap().block_on(async {
        let engine = world.open().await;
        world.write_concurrently(&engine, 0, 10).await;
        for round in 0..6 {
            // Different amounts end a commit at different places.
            world.disk.fill_after(round * 3001);
            let before = refused.len();
            for n in 0..40 {
                let row = (1000 + round.cast_signed(), n);
                match engine.write(soon(), insert(row)).await {
                    Ok(()) => world.ack([row]),
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
                        refused.push(row);
                    }
                }
            }
            assert!(refused.len() > before, "round {round}: the disk never filled");
            world.disk.free();
            engine.write(soon(), insert((2000, round.cast_signed()))).await.unwrap();
            world.ack([(2000, round.cast_signed())]);
        }
    });
    world.check_without(&refused, Plan { seed: SEED, moments_max: 150, seeded_per_moment: 1 });
}

#[test]
fn a_failed_sync_is_definite_if_the_next_one_works_and_else_unknown() {
    let world = World::new();
    let (mut definite, mut unknown) = (0, 0);
    Runtime::new().unwrap().block_on(async {
        let engine = world.open().await;
        for n in 0..120 {
            if n % 4 == 1 {
                world.disk.fail_sync(1 + u32::try_from(n % 3).unwrap());
            }
            match engine.write(soon(), insert((0, n))).await {
                Ok(()) => world.ack([(0, n)]),
                Err(error) if error.kind() == Kind::Unavailable => {
                    definite += 1;
                    world.ack([(REFUSED, n)]);
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Unknown, "{}", error.chain());
                    unknown += 1;
                }
            }
        }
    });
    assert!(unknown > 5 && definite > 5, "{unknown} unknown and {definite} definite failures");
    world.check(Plan { seed: SEED, moments_max: 300, seeded_per_moment: 1 });
}
