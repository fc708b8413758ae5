//! A database of one's own on the shared server, and a replication session as plain as can be: it records
//! what comes, with its place in the log. The pipeline's own session has its own tests.

use std::pin::Pin;
use std::time::Duration;

use tenure_clock::{Clock, Entropy, SystemClock, within};
use tenure_stream::identity::Lsn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_postgres::{Client, Config, NoTls};

/// The server that tests share.
pub(crate) fn url() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    let by = SystemClock.deadline(Duration::from_secs(30));
    within(&SystemClock, by, Box::pin(future)).await.expect("done within 30 s")
}

/// A database that goes away with the test, and with it every slot in it.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pub(crate) name: String,
    server: Config,
}

impl Database {
    /// Runs a test in a database of its own, which is dropped however the test ends.
    pub(crate) async fn lend<F>(server: &str, test: F)
    where
        F: FnOnce(Database) -> Pin<Box<dyn Future<Output = ()> + Send>>,
    {
        let name = format!("cdc_{}", &Entropy::system().nonce().replace('-', "")[..12]);
        let mut config: Config = server.parse().unwrap();
        let admin = connect(&config).await;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        config.dbname(&name);
        let ended = tokio::spawn(test(Database { name: name.clone(), server: config })).await;
        // A slot can be dropped once its session has noticed that nobody listens.
        let cleaned = in_time(async {
            loop {
                let ends = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                            WHERE database = $1 AND active_pid IS NOT NULL";
                admin.query(ends, &[&name]).await.unwrap();
                let drops = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                             WHERE database = $1 AND NOT active";
                let dropped = admin.query(drops, &[&name]).await.is_ok();
                let left = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
                let left: i64 = admin.query_one(left, &[&name]).await.unwrap().get(0);
                if dropped && left == 0 {
                    return admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
                }
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
        });
        let cleaned = cleaned.await;
        if let Err(panicked) = ended {
            std::panic::resume_unwind(panicked.into_panic());
        }
        cleaned.unwrap();
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.server).await
    }

    /// Starts to record a new slot.
    pub(crate) async fn record(&self, slot: &str, options: &str, work_mem: &str) -> Recording {
        let slot = format!("{}_{slot}", self.name);
        let make = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        self.client().await.query(make, &[&slot]).await.unwrap();
        let host = match &self.server.get_hosts()[0] {
            tokio_postgres::config::Host::Tcp(host) => host.clone(),
            other => panic!("the tests' server listens on TCP, not on {other:?}"),
        };
        let stream = TcpStream::connect((host.as_str(), self.server.get_ports()[0])).await.unwrap();
        let mut recording = Recording { stream: BufReader::new(stream), messages: Vec::new() };
        let mut startup = 196_608_u32.to_be_bytes().to_vec();
        for (name, value) in [
            ("user", self.server.get_user().unwrap_or("postgres")),
            ("database", &self.name),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("options", &format!("-c logical_decoding_work_mem={work_mem}")),
        ] {
            startup.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        }
        startup.push(0);
        recording.send(None, &startup).await;
        while recording.receive().await.0 != b'Z' {}
        let start = format!("START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})\0");
        recording.send(Some(b'Q'), start.as_bytes()).await;
        while recording.receive().await.0 != b'W' {}
        recording
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// What one replication session was sent.
#[derive(Debug)]
pub(crate) struct Recording {
    stream: BufReader<TcpStream>,
    /// Where in the log, and what.
    pub(crate) messages: Vec<(Lsn, Vec<u8>)>,
}

impl Recording {
    async fn send(&mut self, kind: Option<u8>, body: &[u8]) {
        let mut bytes: Vec<u8> = kind.into_iter().collect();
        bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend(body);
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn receive(&mut self) -> (u8, Vec<u8>) {
        let kind = self.stream.read_u8().await.unwrap();
        let mut body = vec![0; self.stream.read_u32().await.unwrap() as usize - 4];
        self.stream.read_exact(&mut body).await.unwrap();
        assert_ne!(kind, b'E', "{}", String::from_utf8_lossy(&body));
        (kind, body)
    }

    /// Records up to the commit of the transaction that says this.
    pub(crate) async fn until(&mut self, said: &str) {
        let mut seen = false;
        loop {
            let (kind, body) = in_time(self.receive()).await;
            match (kind, body.first()) {
                (b'd', Some(b'w')) => {
                    let at = Lsn(u64::from_be_bytes(body[1..9].try_into().unwrap()));
                    let message = body[25..].to_vec();
                    seen |= message[0] == b'M' && message.ends_with(said.as_bytes());
                    let ends = seen && message[0] == b'C';
                    self.messages.push((at, message));
                    if ends {
                        return;
                    }
                }
                (b'd', Some(b'k')) if body[17] == 1 => {
                    let mut alive = [0; 34];
                    alive[0] = b'r';
                    self.send(Some(b'd'), &alive).await;
                }
                _ => {}
            }
        }
    }
}
