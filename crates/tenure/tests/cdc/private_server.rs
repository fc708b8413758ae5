//! A server of our own, for what the shared one does not have: passwords, and a `wal_level` that is too low.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cdc::world::{try_sql, until};
use crate::site::Site;

/// Where Debian and others put the server's programs.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().collect();
    found.sort_by_key(std::fs::DirEntry::file_name);
    let newest = found.into_iter().map(|version| version.path().join("bin")).rev();
    newest.into_iter().find(|bin| bin.join("initdb").exists())
}

/// A program of the server, which refuses to be run by root.
fn program(bin: &Path, name: &str) -> Command {
    let path = bin.join(name);
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
    command
}

struct Server {
    bin: PathBuf,
    data: PathBuf,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start(bin: PathBuf) -> Self {
        let directory = tempfile::Builder::new().prefix("tenure-pg").tempdir_in("/tmp").unwrap();
        let data = directory.path().join("data");
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            let chown = Command::new("chown").arg("postgres").arg(directory.path()).status().unwrap();
            assert!(chown.success());
        }
        let password = directory.path().join("password");
        std::fs::write(&password, "right\n").unwrap();
        set_readable(&password);
        let made = program(&bin, "initdb")
            .current_dir("/tmp")
            .args(["--auth=scram-sha-256", "--username=ann", "--no-sync"])
            .arg(format!("--pwfile={}", password.display()))
            .arg("--pgdata")
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success(), "initdb");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = program(&bin, "pg_ctl")
            .current_dir("/tmp")
            .args(["start", "--wait", "--silent", "--log"])
            .arg(directory.path().join("data/log"))
            .arg("--pgdata")
            .arg(&data)
            .arg("--options")
            .arg(format!("-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c wal_level=replica -c fsync=off"))
            .stdout(Stdio::null())
            .status();
        assert!(started.unwrap().success(), "pg_ctl start");
        Self { bin, data, port, _directory: directory }
    }
}

fn set_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = program(&self.bin, "pg_ctl")
            .current_dir("/tmp")
            .args(["stop", "--mode=immediate", "--silent", "--pgdata"])
            .arg(&self.data)
            .status();
    }
}

#[test]
fn a_low_wal_level_and_a_wrong_password_are_told() {
    let Some(bin) = programs() else {
        eprintln!("skipped: there is no initdb under /usr/lib/postgresql");
        return;
    };
    let server = Server::start(bin);
    let url = |password: &str| format!("postgres://ann:{password}@127.0.0.1:{}/postgres", server.port);
    until("the server answers", || try_sql(&url("right"), "SELECT 1").ok());
    let site = Site::new();
    let run = |verb: &str, password: &str| site.run(&format!("cdc {verb} --postgres {}", url(password)));
    for verb in ["setup --to null --all-tables", "run --to null --log error"] {
        run(verb, "right").expect(2).says(&["wal_level is `replica`", "wal_level = logical", "restart"]);
        let refused = run(verb, "Xq7hunter2").expect(1).says(&["does not accept the password", "PGPASSWORD"]);
        assert!(
            !refused.stderr.contains("Xq7hunter2") && !refused.stdout.contains("Xq7hunter2"),
            "{refused:#?}"
        );
    }
    site.run(&format!("cdc tail {}", url("right"))).expect(2).says(&["wal_level"]);
}
