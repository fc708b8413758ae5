//! A Postgres of our own: for the demo, and for tests and torture that crash it.
//!
//! It listens on a free port of loopback, keeps everything in the folder it was given, and ends with the
//! process that started it, however that ends.

#[cfg(feature = "strict")]
mod strict;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tenure_clock::{Clock as _, SystemClock, within};
use tokio::process::{Child, Command};
use tokio_postgres::{Client, NoTls};

#[cfg(feature = "strict")]
pub use crate::strict::{Authority, PASSWORD, StrictPostgres};

/// Longer than a start takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an attempt is made while the server starts.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How a server is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In good order, as `pg_ctl stop -m fast` does: what was committed is written out first.
    Fast,
    /// At once, as a crash does: the log is replayed at the next start.
    Immediate,
}

impl End {
    const fn signal(self) -> Signal {
        match self {
            Self::Fast => Signal::INT,
            Self::Immediate => Signal::QUIT,
        }
    }
}

/// A server with one superuser, `postgres`, who needs no password.
#[derive(Debug)]
pub struct ScratchPostgres {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    settings: Vec<String>,
    /// What the superuser needs after all.
    password: Option<String>,
    user: Option<User>,
    running: Option<Child>,
}

#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl ScratchPostgres {
    /// Makes the cluster in `folder`, which must be reachable for the server's user, and starts it with
    /// these settings (`name=value`).
    ///
    /// # Errors
    /// If there is no Postgres on this machine, or it does not start: the message names its log.
    pub async fn start_new(folder: &Path, settings: &[&str]) -> Result<Self> {
        Self::start_with(folder, settings, None, &[]).await
    }

    /// The same, with a password, and with `files` in its data directory.
    async fn start_with(
        folder: &Path,
        settings: &[&str],
        password: Option<&str>,
        files: &[(&str, &str)],
    ) -> Result<Self> {
        let programs = programs().context(
            "there is no Postgres: install Debian's package `postgresql`, or run `cargo xtask setup`",
        )?;
        let user = user()?;
        fs::create_dir_all(folder).context("make the folder of Postgres")?;
        let mut postgres = Self {
            programs,
            folder: folder.to_owned(),
            port: free_port()?,
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            password: password.map(str::to_owned),
            user,
            running: None,
        };
        postgres.hand_over(folder)?;
        let mut initdb = postgres.program("initdb");
        initdb.args(["--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]);
        match password {
            None => initdb.arg("--auth=trust"),
            Some(password) => {
                let file = folder.join("password");
                fs::write(&file, password).context("write the password")?;
                postgres.hand_over(&file)?;
                initdb.arg("--auth=scram-sha-256").arg("--pwfile").arg(file)
            }
        };
        let output =
            initdb.args(["--no-sync", "-D"]).arg(postgres.data()).output().await.context("run initdb")?;
        ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
        for (name, content) in files {
            postgres.put_file(name, content)?;
        }
        postgres.start().await?;
        Ok(postgres)
    }

    /// Puts a file in the data directory, for nobody but the server to read.
    fn put_file(&self, name: &str, content: &str) -> Result<()> {
        let path = self.data().join(name);
        fs::write(&path, content).with_context(|| format!("write {name} for Postgres"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .context("protect a file of Postgres")?;
        self.hand_over(&path)
    }

    fn hand_over(&self, path: &Path) -> Result<()> {
        let Some(User { uid, gid }) = self.user else { return Ok(()) };
        chown(path, Some(uid), Some(gid)).with_context(|| format!("hand {} to Postgres", path.display()))
    }

    /// Starts the server and waits until it answers; after a crash it replays its log first.
    ///
    /// # Errors
    /// If it does not start: the message names its log.
    pub async fn start(&mut self) -> Result<()> {
        let by = SystemClock.deadline(PATIENCE);
        loop {
            if self.running.is_none() {
                self.running = Some(self.spawn()?);
            }
            let soon = SystemClock.deadline(CONNECT_TIMEOUT);
            let answer = within(&SystemClock, soon, Box::pin(self.connect("start"))).await;
            if answer.is_ok_and(|found| found.is_ok()) {
                return Ok(());
            }
            let exited = self.running.as_mut().map(Child::try_wait).transpose()?.flatten();
            let log = self.log();
            if let Some(status) = exited {
                // A process of the crashed server may still hold its memory for a moment.
                ensure!(SystemClock.monotonic() < by, "Postgres ends with {status}: see {}", log.display());
                self.running = None;
            }
            ensure!(SystemClock.monotonic() < by, "Postgres does not start: see {}", log.display());
            SystemClock.sleep(POLL_INTERVAL).await;
        }
    }

    /// Crashes the server and starts it again.
    ///
    /// # Errors
    /// As [`ScratchPostgres::start`].
    pub async fn crash_and_restart(&mut self) -> Result<()> {
        self.end(End::Immediate).await?;
        self.start().await
    }

    /// Ends the server and waits until it is gone.
    ///
    /// # Errors
    /// If it does not end: the message names its log.
    pub async fn end(&mut self, how: End) -> Result<()> {
        self.signal(how);
        let Some(mut child) = self.running.take() else { return Ok(()) };
        if within(&SystemClock, SystemClock.deadline(PATIENCE), Box::pin(child.wait())).await.is_err() {
            bail!("Postgres does not end: see {}", self.log().display());
        }
        Ok(())
    }

    /// Tells it to end, if it has not.
    fn signal(&self, how: End) {
        if let Some(pid) = self.running.as_ref().and_then(pid_of) {
            // It may have ended by itself this very moment: then there is nothing to tell.
            let _ = kill_process(pid, how.signal());
        }
    }

    #[cfg(feature = "strict")]
    fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// A client that calls itself `name`.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn connect(&self, name: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(name), NoTls).await?;
        // It ends with the client, and whatever it meets, the client meets too.
        tokio::spawn(connection);
        Ok(client)
    }

    /// The address of the database `postgres`, for a client that calls itself `application`.
    #[must_use]
    pub fn url(&self, application: &str) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}")).unwrap_or_default();
        format!(
            "postgres://postgres{password}@127.0.0.1:{}/postgres?application_name={application}",
            self.port
        )
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn spawn(&self) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.log()).context("open Postgres' log")?;
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data());
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={}", self.port)]);
        command.args(["-c", &format!("unix_socket_directories={}", self.folder.display())]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.stdout(log.try_clone().context("share the log")?).stderr(log);
        command.process_group(0).kill_on_drop(true);
        command.spawn().context("start Postgres")
    }

    /// A program of the server, which refuses to be root and ends with us.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=QUIT");
        if let Some(User { uid, gid }) = self.user {
            command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".to_owned()]);
        }
        command.arg("--").arg(self.programs.join(name)).current_dir(&self.folder).stdin(Stdio::null());
        command
    }
}

impl Drop for ScratchPostgres {
    fn drop(&mut self) {
        // Killed without a word, it would leave its other processes to find out by themselves.
        self.signal(End::Immediate);
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// A port of loopback that was free a moment ago.
///
/// # Errors
/// If the machine has none.
pub fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// The folder of the newest Postgres on this machine.
///
/// Debian keeps the server's programs out of the PATH, one folder for each version.
#[must_use]
pub fn programs() -> Option<PathBuf> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn what_was_committed_survives_a_crash_and_nothing_outlives_the_value() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut server =
            ScratchPostgres::start_new(&folder.path().join("pg"), &["wal_level=logical"]).await.unwrap();
        let client = server.connect("one").await.unwrap();
        client.batch_execute("CREATE TABLE kept AS SELECT 7 AS n").await.unwrap();
        server.crash_and_restart().await.unwrap();
        let client = server.connect("two").await.unwrap();
        let row = client.query_one("SELECT n, current_setting('wal_level') FROM kept", &[]).await.unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, String>(1)), (7, "logical".to_owned()));
        server.end(End::Fast).await.unwrap();
        assert!(server.connect("three").await.is_err());
    }
}
