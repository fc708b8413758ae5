//! A Postgres of the benchmark's own: started on loopback in a temporary folder, gone afterwards.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tenure_clock::{Clock as _, SystemClock};
use tokio_postgres::{Client, NoTls};

/// What differs from the server's defaults: the log is kept, and nothing runs beside what is measured.
const SETTINGS: [&str; 10] = [
    "listen_addresses=127.0.0.1",
    "wal_level=logical",
    "max_wal_senders=8",
    "max_replication_slots=16",
    "shared_buffers=256MB",
    "max_wal_size=32GB",
    "checkpoint_timeout=1h",
    "autovacuum=off",
    "log_min_messages=fatal",
    "wal_sender_timeout=60s",
];
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The table that is written to: a row is about 240 bytes in the log's plugin messages.
const SCHEMA: &str = "
    CREATE TABLE orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer bigint NOT NULL,
        status text NOT NULL,
        amount numeric(12, 2) NOT NULL,
        placed timestamptz NOT NULL,
        note text NOT NULL
    );
    CREATE PUBLICATION bench FOR TABLE orders;
    CREATE PROCEDURE place(rows bigint) LANGUAGE sql AS $$
        INSERT INTO orders (customer, status, amount, placed, note)
        SELECT n * 7919 % 1000000, 'pending', n % 100000 / 100.0, clock_timestamp(), repeat(md5(n::text), 4)
        FROM generate_series(1, rows) AS n
    $$;
    CREATE PROCEDURE fill(transactions bigint, rows bigint) LANGUAGE plpgsql AS $$
    BEGIN
        FOR n IN 1..transactions LOOP
            CALL place(rows);
            COMMIT;
        END LOOP;
    END $$;";

pub(crate) const PUBLICATION: &str = "bench";

pub(crate) struct Cluster {
    programs: PathBuf,
    folder: TempDir,
    user: Option<(u32, u32)>,
    server: Child,
    port: u16,
}

impl Cluster {
    pub(crate) async fn start(programs: Option<&Path>) -> anyhow::Result<Self> {
        let programs = match programs {
            Some(programs) => programs.to_owned(),
            None => newest_programs().context(
                "no Postgres under /usr/lib/postgresql: name its programs' folder with --postgres",
            )?,
        };
        let user = postgres_user()?;
        // On a disk: the usual place may be memory.
        let folder = tempfile::Builder::new().prefix("tenure-bench-cdc").tempdir_in("/var/tmp")?;
        let data = folder.path().join("data");
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).context("hand its folder to Postgres")?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let run = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let mut initdb = run("initdb");
        initdb.args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
            "-D",
        ]);
        let made = initdb.arg(&data).output().context("run initdb")?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr).trim());
        let mut postgres = run("postgres");
        postgres.arg("-D").arg(&data).arg("-c").arg(format!("port={port}"));
        postgres.arg("-c").arg(format!("unix_socket_directories={}", folder.path().display()));
        for setting in SETTINGS {
            postgres.args(["-c", setting]);
        }
        let server = postgres.stderr(Stdio::null()).spawn().context("start postgres")?;
        let cluster = Self { programs, folder, user, server, port };
        cluster.ready().await?.batch_execute(SCHEMA).await?;
        Ok(cluster)
    }

    async fn ready(&self) -> anyhow::Result<Client> {
        let by = SystemClock.deadline(START_TIMEOUT);
        loop {
            match self.client().await {
                Ok(client) => return Ok(client),
                Err(error) if SystemClock.monotonic() > by => {
                    return Err(error.context("Postgres did not start"));
                }
                Err(_) => SystemClock.sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// A folder on the same disk.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = Command::new(self.programs.join("pg_ctl"));
        stop.args(["stop", "--mode=immediate", "--wait", "-D"]).arg(self.folder.path().join("data"));
        stop.current_dir(self.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = self.user {
            stop.uid(uid).gid(gid);
        }
        if !stop.status().is_ok_and(|status| status.success()) {
            let _ = self.server.kill();
        }
        let _ = self.server.wait();
    }
}

fn newest_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| {
        let version = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let programs = entry.path().join("bin");
        programs.join("pg_recvlogical").is_file().then_some((version, programs))
    });
    newest.max().map(|(_, programs)| programs)
}

/// Whom Postgres runs as if we are root, which it refuses to be.
fn postgres_user() -> anyhow::Result<Option<(u32, u32)>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let accounts = fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    let user = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == "postgres").then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    user.map(Some).context("Postgres refuses to run as root and there is no user `postgres`")
}
