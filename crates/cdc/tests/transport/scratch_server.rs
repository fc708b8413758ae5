//! A Postgres server of a test's own, and a certificate authority for it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

/// The superuser's password.
pub(super) const PASSWORD: &str = "postgres-s3cret";

/// A server on a free port of 127.0.0.1 that asks for passwords and can stream changes. Ends with the value.
pub(super) struct ScratchServer {
    pub(super) port: u16,
    /// The folder of its socket.
    pub(super) folder: PathBuf,
    data: PathBuf,
    /// Removed after the server is stopped.
    _dir: TempDir,
}

impl ScratchServer {
    /// Starts a server with `files` in its data directory, and more settings.
    pub(super) async fn start(files: &[(&str, &str)], settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        give_to_server(dir.path());
        let password = dir.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        give_to_server(&password);
        let data = dir.path().join("data");
        let shown = |path: &Path| path.to_str().unwrap().to_owned();
        let pwfile = format!("--pwfile={}", shown(&password));
        run("initdb", &["-D", &shown(&data), "-U", "postgres", "-A", "scram-sha-256", &pwfile, "--no-sync"]);
        for (name, content) in files {
            let path = data.join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            give_to_server(&path);
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = dir.path().to_owned();
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nfsync = off\n\
             wal_level = logical\n{settings}\n",
            folder.display()
        );
        std::fs::write(data.join("postgresql.auto.conf"), settings).unwrap();
        let server = Self { port, folder, data, _dir: dir };
        let log = server.data.join("log");
        run("pg_ctl", &["-D", &shown(&server.data), "-l", &shown(&log), "-w", "start"]);
        server
    }

    /// Stops the server in good order, within half a minute.
    pub(super) fn stop_fast(&self) -> bool {
        let data = self.data.to_str().unwrap();
        let output = output("pg_ctl", &["-D", data, "-w", "-t", "30", "-m", "fast", "stop"]).unwrap();
        output.status.success()
    }

    /// `postgres://user:password@127.0.0.1:port/postgres`.
    pub(super) fn url(&self, user: &str, password: &str) -> String {
        self.url_of(user, password, "postgres")
    }

    /// The same, of another database.
    pub(super) fn url_of(&self, user: &str, password: &str, database: &str) -> String {
        format!("postgres://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The superuser, by another client.
    pub(super) async fn superuser(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.url("postgres", PASSWORD), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for ScratchServer {
    fn drop(&mut self) {
        let data = self.data.to_str().unwrap_or_default();
        // Nothing may be left of it, but a failure here would hide the test's own.
        let _ = output("pg_ctl", &["-D", data, "-w", "-m", "immediate", "stop"]);
    }
}

/// Debian keeps the server's programs out of the PATH.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| name.into())
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Runs a program of the server, which refuses to be root.
fn output(name: &str, arguments: &[&str]) -> std::io::Result<Output> {
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(program(name));
        command
    } else {
        Command::new(program(name))
    };
    command.args(arguments).current_dir("/").output()
}

fn run(name: &str, arguments: &[&str]) {
    let output = output(name, arguments).unwrap_or_else(|error| {
        panic!("{name} does not start ({error}): install Postgres with `cargo xtask setup`")
    });
    assert!(
        output.status.success(),
        "{name} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn give_to_server(path: &Path) {
    if !is_root() {
        return;
    }
    let id = |flag: &str| {
        let output = Command::new("id").args([flag, "postgres"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    };
    std::os::unix::fs::chown(path, Some(id("-u")), Some(id("-g"))).unwrap();
}

/// Somebody who signs certificates.
pub(super) struct Authority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
    server_key: KeyPair,
    dir: TempDir,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { root, issuer, server_key: KeyPair::generate().unwrap(), dir: tempfile::tempdir().unwrap() }
    }

    /// A certificate for a host, in PEM.
    pub(super) fn certificate_for(&self, host: &str) -> String {
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.signed_by(&self.server_key, &self.issuer).unwrap().pem()
    }

    /// The key of those certificates, in PEM.
    pub(super) fn key(&self) -> String {
        self.server_key.serialize_pem()
    }

    /// A file with this authority's own certificate.
    pub(super) fn root_file(&self) -> String {
        let path = self.dir.path().join("root.crt");
        std::fs::write(&path, &self.root).unwrap();
        path.to_str().unwrap().to_owned()
    }
}
