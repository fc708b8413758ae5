//! A server that asks for passwords, and a certificate authority for it: for tests of who gets in.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tenure_clock::{Clock as _, SystemClock, pause_thread};
use tokio_postgres::Client;

use crate::{End, ScratchPostgres};

/// The superuser's password.
pub const PASSWORD: &str = "postgres-s3cret";
/// How long a server that is dropped is waited for, so that nothing is left in its folder.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

/// A server in a temporary folder whose superuser, `postgres`, needs [`PASSWORD`]. Ends with the value.
#[derive(Debug)]
pub struct StrictPostgres {
    server: ScratchPostgres,
    /// Removed after the server has ended.
    _dir: TempDir,
}

impl StrictPostgres {
    /// Starts a server with `files` in its data directory, and these settings (`name=value`).
    ///
    /// # Errors
    /// As [`ScratchPostgres::start_new`].
    pub async fn start(files: &[(&str, &str)], settings: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir().context("make a folder")?;
        // Of the server, which is somebody else if we are root, in a folder that it can enter.
        let folder = dir.path().join("postgres");
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        // What it holds is of no use after the test.
        let settings: Vec<&str> = [&["fsync=off"], settings].concat();
        let server = ScratchPostgres::start_with(&folder, &settings, Some(PASSWORD), files).await?;
        Ok(Self { server, _dir: dir })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.server.port
    }

    /// The folder of its socket.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.server.folder.clone()
    }

    /// `postgres://user:password@127.0.0.1:port/postgres`.
    #[must_use]
    pub fn url(&self, user: &str, password: &str) -> String {
        self.url_of(user, password, "postgres")
    }

    /// The same, of another database.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str, database: &str) -> String {
        format!("postgres://{user}:{password}@127.0.0.1:{}/{database}", self.port())
    }

    /// The superuser, by another client than the one that is tested.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn superuser(&self) -> Result<Client> {
        self.server.connect("superuser").await
    }

    /// Stops the server and starts it as a standby that waits for a primary.
    ///
    /// # Errors
    /// As [`ScratchPostgres::start`].
    pub async fn restart_as_standby(&mut self) -> Result<()> {
        self.end(End::Immediate).await?;
        self.server.put_file("standby.signal", "")?;
        self.server.start().await
    }

    /// Ends the server and waits until it is gone.
    ///
    /// # Errors
    /// As [`ScratchPostgres::end`].
    pub async fn end(&mut self, how: End) -> Result<()> {
        self.server.end(how).await
    }
}

impl Drop for StrictPostgres {
    fn drop(&mut self) {
        self.server.signal(End::Immediate);
        let by = SystemClock.deadline(DROP_PATIENCE);
        while self.server.is_running() && SystemClock.monotonic() < by {
            pause_thread(Duration::from_millis(10));
        }
    }
}

/// Somebody who signs certificates.
pub struct Authority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
    server_key: KeyPair,
    dir: TempDir,
}

impl Authority {
    /// An authority of that name.
    ///
    /// # Errors
    /// If there is no randomness, or no room for its files.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let root = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { root, issuer, server_key: KeyPair::generate()?, dir: tempfile::tempdir()? })
    }

    /// A certificate for a host, in PEM.
    ///
    /// # Errors
    /// If that is no name of a host.
    pub fn certificate_for(&self, host: &str) -> Result<String> {
        let params = CertificateParams::new(vec![host.to_owned()])?;
        Ok(params.signed_by(&self.server_key, &self.issuer)?.pem())
    }

    /// The key of those certificates, in PEM.
    #[must_use]
    pub fn key(&self) -> String {
        self.server_key.serialize_pem()
    }

    /// The path of a file with this authority's own certificate.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn root_file(&self) -> Result<String> {
        let path = self.dir.path().join("root.crt");
        fs::write(&path, &self.root)?;
        Ok(path.display().to_string())
    }
}
