use std::time::Duration;

use tenure_clock::SystemClock;

use super::*;

const SPEC: FileSpec = FileSpec {
    role: "test",
    application_id: 0x7e57,
    format: 1,
    schema: "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER)",
    vfs: None,
};

fn open(path: &Path) -> Result<Engine> {
    Engine::open(path, &SPEC, Arc::new(SystemClock))
}

fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(20))
}

fn insert(id: i64) -> impl FnOnce(&Connection) -> Result<()> + Send + 'static {
    move |connection| {
        connection
            .execute("INSERT INTO t VALUES (?1, 0)", [id])
            .map(drop)
            .map_err(|error| failure(Path::new("t"), &error))
    }
}

async fn count(engine: &Engine) -> i64 {
    engine
        .read(soon(), |connection| {
            Ok(connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap())
        })
        .await
        .unwrap()
}

#[tokio::test]
async fn a_failed_write_leaves_its_neighbours_and_nothing_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(&dir.path().join("a.db")).unwrap());
    let mut tasks = Vec::new();
    for id in 0..64 {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            engine
                .write(soon(), move |connection| {
                    insert(id)(connection)?;
                    if id % 2 == 1 { Err(Error::invalid("odd")) } else { Ok(()) }
                })
                .await
        }));
    }
    let mut failed = 0;
    for task in tasks {
        failed += i64::from(task.await.unwrap().is_err());
    }
    assert_eq!((failed, count(&engine).await), (32, 32));
}

#[tokio::test]
async fn a_write_that_never_began_is_known_not_to_have_landed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let (engine, other) = (open(&path).unwrap(), open(&path).unwrap());
    let (holding, held) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let holder = tokio::spawn(async move {
        other
            .write(soon(), move |_| {
                holding.send(()).unwrap();
                released.recv().unwrap();
                Ok(())
            })
            .await
    });
    held.await.unwrap();
    let brief = SystemClock.deadline(Duration::from_millis(20));
    let refused = engine.write(brief, insert(1)).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable);
    release.send(()).unwrap();
    holder.await.unwrap().unwrap();
    engine.write(soon(), insert(2)).await.unwrap();
    assert_eq!(count(&engine).await, 1);
}

#[tokio::test]
async fn files_of_others_are_refused_and_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign.db");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE theirs(x)").unwrap();
    let before = std::fs::read(&foreign).unwrap();
    let refused = open(&foreign).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert_eq!(std::fs::read(&foreign).unwrap(), before);

    let text = dir.path().join("text.db");
    std::fs::write(&text, "this is a letter, not a database\n".repeat(100)).unwrap();
    assert_eq!(open(&text).unwrap_err().kind(), Kind::Corrupt);

    let nowhere = open(&dir.path().join("missing/a.db")).unwrap_err();
    assert_eq!(nowhere.kind(), Kind::Denied);
    assert!(nowhere.chain().contains("does its directory exist"), "{nowhere:?}");

    let newer = dir.path().join("newer.db");
    drop(open(&newer).unwrap());
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 2).unwrap();
    assert!(open(&newer).unwrap_err().chain().contains("its format is 2"));
}

#[test]
fn many_openers_of_a_new_file_agree() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&path).map(drop))).collect();
        for opener in openers {
            opener.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_file_that_is_being_created_is_not_somebody_elses() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = dir.path().join(format!("{round}.db"));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        file::wait_for_locks_until(clock.clone(), soon());
        let looker = file::connect(&path, &SPEC).unwrap();
        std::thread::scope(|scope| {
            let creator = scope.spawn(|| open(&path).map(drop));
            while !creator.is_finished() {
                assert!(file::look(&looker, &SPEC).is_ok(), "round {round}");
            }
            creator.join().unwrap().unwrap();
        });
    }
}

/// SQLite may give up a whole transaction by itself (disk full). Whoever was in it, or was to come
/// after, is told that nothing happened, and the engine goes on.
#[tokio::test]
async fn a_transaction_that_sqlite_gave_up_is_known_not_to_have_landed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(open(&dir.path().join("a.db")).unwrap());
    let (holding, held) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let holder = {
        let engine = engine.clone();
        tokio::spawn(async move {
            let hold = move |_: &Connection| {
                holding.send(()).unwrap();
                released.recv().unwrap();
                Ok(())
            };
            engine.write(soon(), hold).await
        })
    };
    held.await.unwrap();
    // These gather behind the holder, in this order, and are carried out together.
    let gathered: Vec<_> = (0..4)
        .map(|id| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let work = move |connection: &Connection| {
                    insert(id)(connection)?;
                    if id == 1 {
                        connection.execute_batch("ROLLBACK").unwrap();
                    }
                    Ok(())
                };
                engine.write(soon(), work).await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    release.send(()).unwrap();
    holder.await.unwrap().unwrap();
    for task in gathered {
        let refused = task.await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), Kind::Unavailable, "{refused:?}");
        assert!(refused.chain().contains("rolled back"), "{refused:?}");
    }
    engine.write(soon(), insert(9)).await.unwrap();
    assert_eq!(count(&engine).await, 1);
}
