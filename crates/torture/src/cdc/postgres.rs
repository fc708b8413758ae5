//! A Postgres of our own, that crashes and comes back.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tenure_clock::{Clock as _, SystemClock, within};
use tokio::process::{Child, Command};
use tokio_postgres::{Client, NoTls};

use super::PATIENCE;

/// A cluster in a folder of its own, on a port of loopback.
pub(crate) struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    folder: PathBuf,
    port: u16,
    user: Option<User>,
    running: Option<Child>,
}

#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl Postgres {
    /// Makes the cluster and starts it.
    pub(crate) async fn start_new(folder: &Path) -> Result<Self> {
        let programs = programs().context("there is no Postgres: run `cargo xtask setup`")?;
        let user = user()?;
        fs::create_dir_all(folder).context("make the folder of Postgres")?;
        if let Some(user) = user {
            chown(folder, Some(user.uid), Some(user.gid)).context("hand its folder to Postgres")?;
        }
        let data = folder.join("data");
        let mut initdb = Command::new(programs.join("initdb"));
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]);
        initdb.args(["--no-sync", "-D"]).arg(&data).current_dir(folder).stdin(Stdio::null());
        if let Some(user) = user {
            initdb.uid(user.uid).gid(user.gid);
        }
        let output = initdb.output().await.context("run initdb")?;
        ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
        let port = free_port()?;
        let mut postgres = Self { programs, data, folder: folder.to_owned(), port, user, running: None };
        postgres.start().await?;
        Ok(postgres)
    }

    /// Starts the server and waits until it answers; after a crash it replays its log first.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let by = SystemClock.deadline(PATIENCE);
        loop {
            if self.running.is_none() {
                self.running = Some(self.spawn()?);
            }
            if within(
                &SystemClock,
                SystemClock.deadline(Duration::from_secs(5)),
                Box::pin(self.connect("start")),
            )
            .await
            .is_ok_and(|found| found.is_ok())
            {
                return Ok(());
            }
            let exited = self.running.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = exited {
                // A process of the crashed server may still hold its memory for a moment.
                ensure!(
                    SystemClock.monotonic() < by,
                    "Postgres ends with {status}: see {}",
                    self.log().display()
                );
                self.running = None;
            }
            ensure!(SystemClock.monotonic() < by, "Postgres does not start: see {}", self.log().display());
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the server as `pg_ctl stop -m immediate` does, without a checkpoint, and starts it again.
    pub(crate) async fn crash_and_restart(&mut self) -> Result<()> {
        self.end(Signal::QUIT).await?;
        self.start().await
    }

    /// Ends the server; what it has is about to be removed.
    pub(crate) async fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(mut child) = self.running.take() else { return Ok(()) };
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, signal).context("signal Postgres")?;
        }
        if within(&SystemClock, SystemClock.deadline(PATIENCE), Box::pin(child.wait())).await.is_err() {
            bail!("Postgres does not end: see {}", self.log().display());
        }
        Ok(())
    }

    pub(crate) async fn connect(&self, name: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(name), NoTls).await?;
        // It ends with the client, and whatever it meets, the client meets too.
        tokio::spawn(connection);
        Ok(client)
    }

    pub(crate) fn url(&self, application: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?application_name={application}", self.port)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn spawn(&self) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.log()).context("open Postgres' log")?;
        let mut command = Command::new(self.programs.join("postgres"));
        command.arg("-D").arg(&self.data).current_dir(&self.folder);
        for setting in [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", self.port),
            format!("unix_socket_directories={}", self.folder.display()),
            "wal_level=logical".to_owned(),
            "max_wal_senders=16".to_owned(),
            "max_replication_slots=8".to_owned(),
            // So that transactions of some hundred rows are sent before they commit.
            "logical_decoding_work_mem=64kB".to_owned(),
            // So that a crash is recovered from quickly.
            "checkpoint_timeout=30s".to_owned(),
            "max_wal_size=256MB".to_owned(),
        ] {
            command.args(["-c", &setting]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().context("share the log")?).stderr(log);
        command.process_group(0).kill_on_drop(true);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command.spawn().context("start Postgres")
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Debian keeps the server's programs out of the PATH, one folder for each version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/postgres").is_file())
        .max_by_key(|path| version(path))
        .map(|path| path.join("bin"));
    let on_path = || {
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders).find(|folder| folder.join("postgres").is_file())
    };
    newest.or_else(on_path)
}

/// Whom Postgres runs as: ourselves, or its own user if we are root, which it refuses to be.
fn user() -> Result<Option<User>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let accounts = fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    let found = accounts.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    });
    found.map(Some).context("Postgres refuses to run as root and there is no user `postgres`")
}
