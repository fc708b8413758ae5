//! The place where the demo happens: a Postgres server, a store and a stream in one directory.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_clock::Monotonic;
use tenure_leases::admin::Admin;
use tenure_scratch_postgres::{End, ScratchPostgres};
use tenure_store::{Env, Store};
use tenure_stream::{Stream, StreamSpec};
use tokio_postgres::Client;

use super::crew::{Name, Role};
use super::faults::Owned;

/// Shards to begin with.
pub(super) const SHARDS: u32 = 4;
/// Workers to begin with.
pub(super) const WORKERS: u32 = 3;
/// As the workers call themselves; also the name of the lease table.
pub(super) const APP: &str = "demo";
/// Without a sign of life for so long, a worker loses its leases.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// How long a call may take before it counts as failed. Far above a commit on a slow disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// What the demo needs beyond the server's defaults.
const POSTGRES_SETTINGS: [&str; 4] =
    ["wal_level=logical", "max_wal_senders=8", "max_replication_slots=4", "max_wal_size=256MB"];

/// The tables that are published, all of one shape.
pub(super) const TABLES: [&str; 2] = ["orders", "payments"];

/// What the workers do to the database, in a transaction with their marks.
///
/// A change of no version is a delete: it has the version after the last one.
const EFFECTS: &str = "
    CREATE SCHEMA effects;
    CREATE TABLE effects.latest (tab text, id bigint, version bigint NOT NULL, PRIMARY KEY (tab, id));
    CREATE TABLE effects.changes (
        tab text, id bigint, version bigint, times bigint NOT NULL, in_order boolean NOT NULL,
        PRIMARY KEY (tab, id, version)
    );
    CREATE FUNCTION effects.apply(t text, i bigint, v bigint) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        last bigint := coalesce((SELECT version FROM effects.latest WHERE tab = t AND id = i), 0);
        this bigint := coalesce(v, last + 1);
    BEGIN
        INSERT INTO effects.changes VALUES (t, i, this, 1, this = last + 1)
            ON CONFLICT (tab, id, version) DO UPDATE SET times = changes.times + 1;
        INSERT INTO effects.latest VALUES (t, i, this)
            ON CONFLICT (tab, id) DO UPDATE SET version = greatest(latest.version, this);
    END $$;";

/// Everything that the processes share.
pub(super) struct Site {
    pub env: Env,
    pub store: Arc<dyn Store>,
    pub stream: Arc<dyn Stream>,
    postgres: ScratchPostgres,
    dir: PathBuf,
}

impl Site {
    /// Makes it all.
    pub(super) async fn create(dir: &Path) -> Result<Self> {
        // Postgres may run as another user, and has to get to its own folder within.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))
            .context("open the directory")?;
        let postgres = ScratchPostgres::start_new(&dir.join("postgres"), &POSTGRES_SETTINGS).await?;
        let sql = postgres.connect("demo").await?;
        for table in TABLES {
            let columns =
                "id bigint PRIMARY KEY, version bigint NOT NULL, customer text, amount numeric(12, 2)";
            sql.batch_execute(&format!("CREATE TABLE {table} ({columns})"))
                .await
                .context("make the tables")?;
        }
        sql.batch_execute(EFFECTS).await.context("make the tables of effects")?;
        let env = Env::system();
        let store = tenure_store::open(&store_address(dir), &env).await.context("open the store")?;
        let stream = tenure_stream::open(&stream_address(dir), &env).await.context("open the stream")?;
        let site = Self { env, store, stream, postgres, dir: dir.to_owned() };
        site.stream.create(site.soon(), &StreamSpec::with_shards(SHARDS)).await.context("make the stream")?;
        Ok(site)
    }

    /// Ends the server.
    pub(super) async fn end(&mut self) -> Result<()> {
        self.postgres.end(End::Fast).await
    }

    /// The deadline of a call that begins now.
    pub(super) fn soon(&self) -> Monotonic {
        self.env.clock.deadline(CALL_TIMEOUT)
    }

    /// A client of the server.
    pub(super) async fn connect(&self, name: &str) -> Result<Client> {
        self.postgres.connect(name).await
    }

    /// The command that begins the pipeline.
    pub(super) fn setup(&self) -> Vec<OsString> {
        let mut arguments = self.pipeline("setup", "setup");
        for table in TABLES {
            arguments.extend(["--table".into(), format!("public.{table}").into()]);
        }
        arguments
    }

    /// The command of a process.
    pub(super) fn command(&self, who: Name) -> Vec<OsString> {
        let name = who.to_string();
        match who.role {
            Role::Publisher => {
                let mut arguments = self.pipeline("run", &name);
                arguments.extend(["--spill".into(), self.dir.clone().into()]);
                arguments
            }
            Role::Worker => {
                let mut arguments = self.places();
                arguments.extend(["demo-worker", "--name", &name, "--postgres"].map(OsString::from));
                arguments.push(self.postgres.url(&name).into());
                arguments
            }
        }
    }

    /// The shards that each worker holds, and has not finished.
    pub(super) async fn owned_shards(&self) -> Result<Owned> {
        let settings = tenure_leases::Settings::default();
        let admin = Admin::new(&*self.store, &self.env, APP, &settings);
        let mut owned = Owned::new();
        for lease in admin.inventory().await.context("read the leases")?.leases {
            if let Some(owner) = lease.owner.filter(|_| !lease.checkpoint.is_end()) {
                owned.entry(owner.to_string()).or_default().insert(lease.shard.to_string());
            }
        }
        Ok(owned)
    }

    fn pipeline(&self, verb: &str, name: &str) -> Vec<OsString> {
        let mut arguments = self.places();
        let names = ["--json", "cdc", verb, "--slot", "demo", "--publication", "demo", "--source", "demo"];
        arguments.extend(names.map(OsString::from));
        arguments.extend(["--postgres".into(), self.postgres.url(name).into()]);
        arguments
    }

    fn places(&self) -> Vec<OsString> {
        vec![
            "--store".into(),
            store_address(&self.dir).into(),
            "--stream".into(),
            stream_address(&self.dir).into(),
        ]
    }
}

fn store_address(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("store.db").display())
}

fn stream_address(dir: &Path) -> String {
    format!("sqlite:{}?name=demo", dir.join("stream.db").display())
}
