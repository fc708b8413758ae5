//! Each test has a database, a publication and a slot of its own, and drops them.

mod leading;
mod logging_in;
mod shutting_down;
mod streaming;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind};
use tenure_cdc::server::{self, Lifetime, SnapshotUse};
use tenure_cdc::transport::{
    Endpoint, Frame, PluginOptions, PublicationName, Receiver, Sender, ServerError, Session, SlotName,
};
use tenure_clock::{Clock, Entropy, Monotonic, SystemClock, within};
use tenure_stream::identity::Lsn;
use tokio_postgres::{Client, NoTls};

/// The server that tests share.
fn shared_server() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

/// A database of a test's own, with a table `t`, the publication `all tables` and a slot.
struct World {
    url: String,
    name: String,
    slot: SlotName,
    publication: PublicationName,
    client: Client,
    admin: String,
}

impl World {
    async fn new() -> Self {
        Self::at(&shared_server()).await
    }

    /// On the server of a superuser's URL.
    async fn at(admin: &str) -> Self {
        let name = format!("transport_{}", &Entropy::system().nonce()[..16]);
        let superuser = client(admin).await;
        superuser.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let (server, _) = admin.rsplit_once('/').unwrap();
        let url = format!("{server}/{name}");
        let client = client(&url).await;
        client
            .batch_execute(
                "CREATE TABLE t (id int PRIMARY KEY, body text); CREATE PUBLICATION \"all tables\" FOR ALL TABLES",
            )
            .await
            .unwrap();
        let publication = PublicationName::new("all tables").unwrap();
        let slot = SlotName::new(name.clone()).unwrap();
        Self { url, name, slot, publication, client, admin: admin.to_owned() }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::parse(&self.url).unwrap().with_application_name(&self.name)
    }

    async fn session(&self) -> Session {
        connect(&self.endpoint()).await.unwrap()
    }

    /// A session, and the slot made on it.
    async fn session_with_slot(&self) -> Session {
        let mut session = self.session().await;
        let made =
            server::create_slot(&mut session, soon(), &self.slot, Lifetime::Permanent, SnapshotUse::Nothing);
        made.await.unwrap();
        session
    }

    async fn stream(&self, session: Session) -> (Receiver, Sender) {
        self.try_stream(session).await.unwrap()
    }

    async fn try_stream(&self, session: Session) -> Result<(Receiver, Sender), Error> {
        session.start_replication(soon(), &self.slot, Lsn(0), &self.options()).await
    }

    fn options(&self) -> PluginOptions {
        PluginOptions::new(vec![self.publication.clone()])
    }

    async fn insert(&self, id: i32) {
        self.client.execute("INSERT INTO t VALUES ($1, 'x')", &[&id]).await.unwrap();
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// What a query of one column says, as text.
    async fn text(&self, sql: &str) -> String {
        text(&self.client, sql).await
    }

    async fn confirmed(&self) -> Lsn {
        let sql = format!(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'",
            self.slot
        );
        self.text(&sql).await.parse().unwrap()
    }

    /// Drops everything, whatever uses it.
    async fn clear(admin: &str, name: &str) {
        let superuser = client(admin).await;
        let slots = format!("FROM pg_replication_slots WHERE database = '{name}' AND NOT temporary");
        for _ in 0..300 {
            let end = format!("SELECT count(pg_terminate_backend(active_pid))::text {slots} AND active");
            text(&superuser, &end).await;
            let drop =
                format!("SELECT count(pg_drop_replication_slot(slot_name))::text {slots} AND NOT active");
            let _ = superuser.simple_query(&drop).await;
            if text(&superuser, &format!("SELECT count(*)::text {slots}")).await == "0" {
                break;
            }
            pause(100).await;
        }
        superuser.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await.unwrap();
    }
}

/// Also when the test fails: a slot that stays keeps the server's log forever.
impl Drop for World {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        let cleaning = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // A server of the test's own may be gone by now.
            runtime.block_on(async {
                if tokio_postgres::connect(&admin, NoTls).await.is_ok() {
                    Self::clear(&admin, &name).await;
                }
            });
        });
        let _ = cleaning.join();
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn connect(endpoint: &Endpoint) -> Result<Session, Error> {
    Session::connect(endpoint, Arc::new(SystemClock), soon()).await
}

fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}

async fn in_time<F: Future>(future: F) -> F::Output {
    within(&SystemClock, soon(), Box::pin(future)).await.expect("done within 30 s")
}

async fn pause(millis: u64) {
    SystemClock.sleep(Duration::from_millis(millis)).await;
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if is_so().await {
            return;
        }
        pause(50).await;
    }
    panic!("not within 30 s: {what}");
}

/// Reads until so many inserts have come, and gives the end of the last commit.
async fn read_inserts(receiver: &mut Receiver, count: usize) -> Lsn {
    let (mut inserts, mut end) = (0, Lsn(0));
    while inserts < count || end == Lsn(0) {
        if let Frame::Data { payload, .. } = in_time(receiver.next()).await.unwrap() {
            match payload[0] {
                b'I' => (inserts, end) = (inserts + 1, Lsn(0)),
                b'C' => end = Lsn(u64::from_be_bytes(payload[10..18].try_into().unwrap())),
                _ => {}
            }
        }
    }
    end
}

#[track_caller]
fn tells(error: &Error, kind: Kind, text: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.chain().contains(text), "{error:?}");
    assert!(!error.chain().contains("s3cret"), "{error:?}");
}

fn code(error: &Error) -> &str {
    ServerError::of(error).map_or("", |answer| &answer.code)
}
