//! Connections that end, servers that are not there, calls that are given up: what the caller is
//! told, and that the next call works.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tenure_clock::{Clock, Entropy, SystemClock, within};
use tenure_store::{Condition, Key, Kind, Postgres, Store, StoreExt, Update, Write};

use super::cutting_proxy::{CuttingProxy, Fate};
use super::{Schema, in_millis, in_seconds, put, read, row, rows, server, store_at, stranger};

const WAITS: &str = "wait_event_type = 'Lock'";

#[tokio::test]
async fn a_killed_connection_is_unavailable_and_the_next_call_works() {
    let schema = Schema::new();
    let store = schema.open_with_rows("&connections=2").await;
    put(&store, row("a")).await;
    let holder = stranger().await;
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {}.rows", schema.name)).await.unwrap();
    let kill = async {
        schema.wait_for_connections(WAITS, 1).await;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        stranger().await.execute(sql, &[&schema.name]).await.unwrap();
    };
    let (written, ()) = tokio::join!(store.put(in_seconds(10), "rows", row("b"), Condition::Always), kill);
    let error = written.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(
        error.chain().contains("127.0.0.1:") && error.chain().contains("ended the connection"),
        "{error:?}"
    );
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(read(&store, "b").await, None, "it did not happen");
    put(&store, row("b")).await;
}

#[tokio::test]
async fn idle_connections_that_died_are_replaced() {
    let schema = Schema::new();
    let store = schema.open_with_rows("").await;
    let fill = (0..8).map(|number| put(&store, row(&format!("r{number}"))).boxed());
    join_all(fill.collect()).await;
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    stranger().await.execute(sql, &[&schema.name]).await.unwrap();
    schema.wait_for_connections("true", 0).await;
    // The sockets' ends reach us just after the backends are gone.
    SystemClock.sleep(Duration::from_millis(50)).await;
    for number in 0..8 {
        put(&store, row(&format!("s{number}"))).await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = store_at(&format!("postgres://ann:s3cret@{free}/app")).await;
    for error in [
        store.ensure_table(in_seconds(5), &rows()).await.unwrap_err(),
        store.get(in_seconds(5), "rows", &Key::new("pk", "a")).await.unwrap_err(),
        store.put(in_seconds(5), "rows", row("a"), Condition::Always).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
        assert!(error.chain().contains(&format!("postgres {free}/app")), "{error:?}");
        assert!(!error.chain().contains("s3cret"), "{error:?}");
    }
    assert!(!format!("{store:?}").contains("s3cret"));
    let unknown = store_at("postgres://ann@no-such-host.invalid/app?sslmode=disable").await;
    let error = unknown.describe_table(in_seconds(20), "rows").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(error.chain().contains("no-such-host.invalid:5432"), "{error:?}");
}

async fn behind_proxy(schema: &Schema) -> (CuttingProxy, Postgres) {
    let server = server();
    let (user, place) = server.split_once('@').unwrap();
    let (upstream, database) = place.split_once('/').unwrap();
    let proxy = CuttingProxy::start(upstream.to_owned()).await;
    let store = schema.open_at(&format!("{user}@{}/{database}", proxy.address), "").await;
    (proxy, store)
}

#[tokio::test]
async fn a_write_takes_two_round_trips_and_a_read_one() {
    let schema = Schema::new();
    drop(schema.open_with_rows("").await);
    let (proxy, store) = behind_proxy(&schema).await;
    put(&store, row("a")).await;
    read(&store, "a").await;
    let before = proxy.round_trips();
    put(&store, row("a").with("n", 1)).await;
    assert_eq!(proxy.round_trips() - before, 2);
    let before = proxy.round_trips();
    read(&store, "a").await;
    assert_eq!(proxy.round_trips() - before, 1);
    let write = |pk: &str| Write::Put { table: "rows".into(), item: row(pk), when: Condition::Always };
    let writes: Vec<_> = (0..20).map(|number| write(&format!("r{number}"))).collect();
    let before = proxy.round_trips();
    store.transact(in_seconds(10), &writes, "nonce").await.unwrap();
    assert_eq!(proxy.round_trips() - before, 2);
}

#[tokio::test]
async fn a_commit_without_an_answer_is_unknown() {
    let schema = Schema::new();
    drop(schema.open_with_rows("").await);
    let (proxy, store) = behind_proxy(&schema).await;
    put(&store, row("before")).await;
    for (pk, fate, landed) in
        [("request", Fate::LoseRequest, false), ("reply", Fate::LoseReply, true), ("hang", Fate::Hang, true)]
    {
        proxy.next_commit(fate);
        let error = store.put(in_millis(700), "rows", row(pk), Condition::Always).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unknown, "{pk}: {error:?}");
        assert!(error.chain().contains("may have happened"), "{pk}: {error:?}");
        // What was sent may still be on its way when the caller hears that nobody knows.
        let by = in_seconds(10);
        while landed && read(&store, pk).await.is_none() && SystemClock.monotonic() < by {}
        assert_eq!(read(&store, pk).await.is_some(), landed, "{pk}");
    }
    proxy.next_commit(Fate::Pass);
    put(&store, row("after")).await;
}

#[tokio::test]
async fn waiting_for_rows_or_connections_ends_at_the_deadline() {
    let schema = Schema::new();
    let store = schema.open_with_rows("&connections=1").await;
    let holder = stranger().await;
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {}.rows", schema.name)).await.unwrap();
    let began = SystemClock.monotonic();
    let (one, other) = tokio::join!(
        store.put(in_millis(400), "rows", row("a"), Condition::Always),
        store.put(in_millis(300), "rows", row("b"), Condition::Always),
    );
    let (one, other) = (one.unwrap_err(), other.unwrap_err());
    assert_eq!((one.kind(), other.kind()), (Kind::Unavailable, Kind::Unavailable), "{one:?} {other:?}");
    assert!(one.chain().contains("not done in time"), "{one:?}");
    assert!(other.chain().contains("all 1 connections were busy"), "{other:?}");
    assert!(SystemClock.monotonic().since(began) < Duration::from_secs(2));
    // The server gives up, too: nobody is left waiting for the lock.
    schema.wait_for_connections(WAITS, 0).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    put(&store, row("a")).await;
    assert_eq!(
        store.get(in_millis(0), "rows", &Key::new("pk", "a")).await.unwrap_err().kind(),
        Kind::Unavailable
    );
}

#[tokio::test]
async fn a_paused_writer_holds_its_rows_no_longer_than_its_deadline() {
    let schema = Schema::new();
    let (paused, other) = (schema.open_with_rows("").await, schema.open_with_rows("").await);
    put(&paused, row("a")).await;
    let holder = stranger().await;
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {}.rows", schema.name)).await.unwrap();
    let mut call =
        Box::pin(paused.put(in_millis(1000), "rows", row("a").with("by", "paused"), Condition::Always));
    while schema.count_connections(WAITS).await == 0 {
        poll_once(call.as_mut()).await;
    }
    // From here on the writer is not run. It gets its locks, and sits on them.
    holder.batch_execute("ROLLBACK").await.unwrap();
    schema.wait_for_connections("state = 'idle in transaction'", 1).await;
    put(&other, row("a").with("by", "other")).await;
    let error = call.await.unwrap_err();
    assert!(matches!(error.kind(), Kind::Unavailable | Kind::Unknown), "{error:?}");
    assert_eq!(read(&other, "a").await.unwrap().text("by"), Some("other"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_leave_nothing_open_and_nothing_half_done() {
    let schema = Schema::new();
    let store = schema.open_with_rows("&connections=3").await;
    let entropy = Entropy::seeded(7);
    let set = |pk: &str, n: i64| Write::Update {
        table: "rows".into(),
        key: Key::new("pk", pk),
        change: Update::new().set("n", n),
        when: Condition::Always,
    };
    let (mut done, mut dropped) = (0, 0);
    for n in 0..100 {
        let writes = [set("left", n), set("right", n)];
        let until = SystemClock.monotonic() + entropy.up_to(Duration::from_millis(4));
        match within(&SystemClock, until, store.transact(in_seconds(10), &writes, "nonce")).await {
            Ok(written) => done += usize::from(written.unwrap().is_applied()),
            Err(_) => dropped += 1,
        }
    }
    assert!(dropped > 10, "{done} done, {dropped} dropped");
    let n = |row: Option<tenure_store::Item>| row.and_then(|row| row.integer("n"));
    for last in 100..110 {
        let (left, right) = (read(&store, "left").await, read(&store, "right").await);
        assert_eq!(n(left), n(right), "a transaction was half done");
        assert!(
            store
                .transact(in_seconds(10), &[set("left", last), set("right", last)], "x")
                .await
                .unwrap()
                .is_applied()
        );
    }
    schema.wait_for_connections("state <> 'idle'", 0).await;
    assert!(schema.count_connections("true").await <= 3);
}

async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending(), "it was to wait");
        Poll::Ready(())
    })
    .await;
}

type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

trait Boxing<'a>: Future<Output = ()> + Send + Sized + 'a {
    fn boxed(self) -> Boxed<'a> {
        Box::pin(self)
    }
}

impl<'a, F: Future<Output = ()> + Send + 'a> Boxing<'a> for F {}

async fn join_all(mut futures: Vec<Boxed<'_>>) {
    poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
