//! The servers: how each is started, and how it shows that it really answers.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::port::Ports;
use super::{kubernetes, prometheus};
use crate::cache::Cache;
use crate::setup;

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The user of Debian's package: Postgres refuses to run as root.
const POSTGRES_USER: &str = "postgres";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Postgres,
    /// Amazon's own, the reference for DynamoDB.
    DynamodbLocal,
    /// A second opinion on DynamoDB, and the quicker one.
    Dynoxide,
    /// The better Kinesis when it comes to resharding and fan-out.
    KinesisLocal,
    /// A second opinion on Kinesis, and the quicker one.
    Kinesalite,
    /// An API server with its etcd, and nothing that would run a pod.
    Kubernetes,
    /// Another one, with a scheduler, for tests that scale a whole cluster: all of its nodes and pods are theirs.
    Cluster,
    /// Scrapes what tests tell it to.
    Prometheus,
    /// EC2, and nothing else: as a store or a stream it loses what it acknowledged.
    Moto,
}

/// A server's command line, ready to be started in a folder of its own.
pub(crate) struct Launch {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) user: Option<User>,
}

#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Kind {
    /// What tests speak to.
    pub(crate) fn of_tests(embedded: bool) -> Vec<Kind> {
        let mut kinds = Kind::wanted(embedded).to_vec();
        if !embedded {
            kinds.extend([Kind::Prometheus, Kind::Moto, Kind::Kubernetes, Kind::Cluster]);
        }
        kinds
    }

    /// What benchmarks speak to.
    pub(crate) const fn wanted(embedded: bool) -> &'static [Kind] {
        match embedded {
            true => &[Kind::Postgres],
            false => {
                &[Kind::Postgres, Kind::DynamodbLocal, Kind::Dynoxide, Kind::KinesisLocal, Kind::Kinesalite]
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Postgres => "postgres",
            Kind::DynamodbLocal => "dynamodb-local",
            Kind::Dynoxide => "dynoxide",
            Kind::KinesisLocal => "kinesis-local",
            Kind::Kinesalite => "kinesalite",
            Kind::Kubernetes => "kubernetes",
            Kind::Cluster => "cluster",
            Kind::Prometheus => "prometheus",
            Kind::Moto => "moto",
        }
    }

    /// The variable in which tests find this server's URL, or of Kubernetes the path of a kubeconfig.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Kind::Postgres => "TENURE_TEST_POSTGRES",
            Kind::DynamodbLocal => "TENURE_TEST_DYNAMODB_LOCAL",
            Kind::Dynoxide => "TENURE_TEST_DYNOXIDE",
            Kind::KinesisLocal => "TENURE_TEST_KINESIS_LOCAL",
            Kind::Kinesalite => "TENURE_TEST_KINESALITE",
            Kind::Kubernetes => "TENURE_TEST_KUBERNETES",
            Kind::Cluster => "TENURE_TEST_CLUSTER",
            Kind::Prometheus => "TENURE_TEST_PROMETHEUS",
            Kind::Moto => "TENURE_TEST_MOTO",
        }
    }

    /// What else tests must know; `dir` is the server's own folder.
    pub(crate) fn more_variables(self, dir: &Path) -> Option<(&'static str, String)> {
        match self {
            Kind::Prometheus => {
                let targets = prometheus::targets_path(dir).display().to_string();
                Some(("TENURE_TEST_PROMETHEUS_TARGETS", targets))
            }
            _ => None,
        }
    }

    /// What is in the variable; `dir` is the server's own folder.
    pub(crate) fn url(self, port: u16, dir: &Path) -> String {
        match self {
            Kind::Postgres => postgres_url(port),
            Kind::Kubernetes | Kind::Cluster => kubernetes::kubeconfig_path(dir).display().to_string(),
            _ => format!("http://127.0.0.1:{port}"),
        }
    }

    /// Asks for an orderly end. For Postgres, SIGTERM would wait for every client to leave.
    pub(crate) fn end_signal(self) -> Signal {
        match self {
            Kind::Postgres => Signal::INT,
            _ => Signal::TERM,
        }
    }

    pub(crate) fn launch(self, cache: &Cache, ports: &mut Ports, dir: &Path, port: u16) -> Result<Launch> {
        match self {
            Kind::Postgres => postgres(dir, port),
            Kind::DynamodbLocal => dynamodb_local(cache, port),
            Kind::Dynoxide => Ok(dynoxide(cache, port)),
            Kind::KinesisLocal => Ok(kinesis_local(cache, port, ports.take()?)),
            Kind::Kinesalite => Ok(kinesalite(cache, port)),
            Kind::Kubernetes => kubernetes::launch(cache, dir, port, [ports.take()?, ports.take()?], None),
            Kind::Cluster => {
                let (etcd, scheduler) = ([ports.take()?, ports.take()?], ports.take()?);
                kubernetes::launch(cache, dir, port, etcd, Some(scheduler))
            }
            Kind::Prometheus => prometheus::launch(cache, dir, port),
            Kind::Moto => moto(cache, port),
        }
    }

    /// Whether it answers a request as it should; a listening socket alone proves little.
    pub(crate) fn answers(self, port: u16) -> bool {
        match self {
            Kind::Postgres => postgres_answers(port),
            Kind::DynamodbLocal | Kind::Dynoxide => {
                answers_request(port, "DynamoDB_20120810.ListTables", "1.0").unwrap_or(false)
            }
            Kind::KinesisLocal | Kind::Kinesalite => {
                answers_request(port, "Kinesis_20131202.ListStreams", "1.1").unwrap_or(false)
            }
            Kind::Kubernetes | Kind::Cluster => kubernetes::answers(port),
            Kind::Prometheus => answers_get(port, "/-/ready").unwrap_or(false),
            Kind::Moto => answers_get(port, "/moto-api/data.json").unwrap_or(false),
        }
    }
}

// === Postgres ===

fn postgres(dir: &Path, port: u16) -> Result<Launch> {
    let programs = setup::postgres_programs().context("no Postgres: run `cargo xtask setup`")?;
    let user = postgres_user()?;
    if let Some(user) = user {
        chown(dir, Some(user.uid), Some(user.gid)).context("hand its folder to Postgres")?;
    }
    let data = dir.join("data");
    create_cluster(&programs, &data, dir, user)?;
    let settings = [
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
        format!("unix_socket_directories={}", dir.display()),
        "wal_level=logical".to_owned(),
        // One slot per test that replicates, and tests run side by side.
        "max_wal_senders=64".to_owned(),
        "max_replication_slots=64".to_owned(),
        "max_connections=300".to_owned(),
    ];
    let settings = settings.into_iter().flat_map(|setting| ["-c".into(), setting.into()]);
    Ok(Launch {
        program: programs.join("postgres").into(),
        arguments: ["-D".into(), data.into()].into_iter().chain(settings).collect(),
        environment: Vec::new(),
        user,
    })
}

fn postgres_url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

fn create_cluster(programs: &Path, data: &Path, dir: &Path, user: Option<User>) -> Result<()> {
    let mut initdb = Command::new(programs.join("initdb"));
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]);
    // A cluster of this hour need not survive a power cut while it is created.
    initdb.args(["--no-sync", "-D"]).arg(data).current_dir(dir).stdin(Stdio::null());
    if let Some(user) = user {
        initdb.uid(user.uid).gid(user.gid);
    }
    let output = initdb.output().context("run initdb")?;
    ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Whom Postgres runs as: ourselves, or its own user if we are root.
fn postgres_user() -> Result<Option<User>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let accounts = fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    let user = find_user(&accounts, POSTGRES_USER);
    user.map(Some).context("Postgres refuses to run as root and there is no user `postgres`")
}

fn find_user(accounts: &str, name: &str) -> Option<User> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        Some(User { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    })
}

fn postgres_answers(port: u16) -> bool {
    let Some(programs) = setup::postgres_programs() else { return false };
    Command::new(programs.join("psql"))
        .args(["--no-psqlrc", "--quiet", "--command", "select 1", "--dbname"])
        .arg(postgres_url(port))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

// === Emulators ===

fn dynamodb_local(cache: &Cache, port: u16) -> Result<Launch> {
    let lib = setup::DYNAMODB_LOCAL.module(cache).join("lib");
    let folder = fs::read_dir(&lib)
        .with_context(|| format!("read {}: run `cargo xtask setup`", lib.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("DynamoDBLocal.jar").is_file())
        .with_context(|| format!("no DynamoDBLocal.jar under {}", lib.display()))?;
    let mut libraries = OsString::from("-Djava.library.path=");
    libraries.push(folder.join("DynamoDBLocal_lib"));
    let mut arguments = vec![libraries, "-jar".into(), folder.join("DynamoDBLocal.jar").into()];
    arguments.extend(["-inMemory", "-sharedDb", "-disableTelemetry", "-port"].map(OsString::from));
    arguments.push(port.to_string().into());
    Ok(Launch { program: "java".into(), arguments, environment: vec![stay_on_loopback(cache)], user: None })
}

fn dynoxide(cache: &Cache, port: u16) -> Launch {
    let port = port.to_string();
    Launch {
        program: setup::DYNOXIDE.module(cache).join("dynoxide").into(),
        arguments: ["serve", "--host", "127.0.0.1", "--port", &port].map(OsString::from).into(),
        environment: Vec::new(),
        user: None,
    }
}

fn kinesis_local(cache: &Cache, port: u16, tls_port: u16) -> Launch {
    let module = setup::KINESIS_LOCAL.module(cache);
    // How long it dawdles in CREATING, UPDATING and DELETING: long enough to be seen, no longer.
    let durations = [
        "CREATE_STREAM_DURATION",
        "DELETE_STREAM_DURATION",
        "UPDATE_SHARD_COUNT_DURATION",
        "SPLIT_SHARD_DURATION",
        "MERGE_SHARDS_DURATION",
        "REGISTER_STREAM_CONSUMER_DURATION",
        "DEREGISTER_STREAM_CONSUMER_DURATION",
    ];
    let mut environment = vec![
        stay_on_loopback(cache),
        ("KINESIS_MOCK_PLAIN_PORT", port.to_string().into()),
        ("KINESIS_MOCK_TLS_PORT", tls_port.to_string().into()),
        ("KINESIS_MOCK_CERT_PATH", module.join("server.json").into()),
        ("SHARD_LIMIT", SHARDS_MAX.into()),
    ];
    environment.extend(durations.map(|name| (name, "50ms".into())));
    let arguments = vec![module.join("main.js").into()];
    Launch { program: "node".into(), arguments, environment, user: None }
}

fn kinesalite(cache: &Cache, port: u16) -> Launch {
    let mut arguments = vec![setup::KINESALITE.module(cache).join("cli.js").into()];
    let port = port.to_string();
    arguments
        .extend(["--port", &port, "--createStreamMs", "50", "--deleteStreamMs", "50"].map(OsString::from));
    arguments.extend(["--updateStreamMs", "50", "--shardLimit", SHARDS_MAX].map(OsString::from));
    let environment = vec![stay_on_loopback(cache)];
    Launch { program: "node".into(), arguments, environment, user: None }
}

fn moto(cache: &Cache, port: u16) -> Result<Launch> {
    let python = setup::moto_python(cache).context("no moto: run `cargo xtask setup`")?;
    let port = port.to_string();
    let arguments = ["-m", "moto.server", "-H", "127.0.0.1", "-p", &port].map(OsString::from).into();
    Ok(Launch { program: python.into(), arguments, environment: Vec::new(), user: None })
}

/// Both emulators count the shards of all streams together, and many tests share one emulator.
const SHARDS_MAX: &str = "20000";

fn stay_on_loopback(cache: &Cache) -> (&'static str, OsString) {
    ("LD_PRELOAD", cache.loopback().join("loopback.so").into())
}

/// Sends one JSON request as an SDK would and wants a 200; both Kinesis emulators check the form
/// of the signature, none its value.
fn answers_request(port: u16, operation: &str, json_version: &str) -> Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
    let service = if operation.starts_with("Kinesis") { "kinesis" } else { "dynamodb" };
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 2\r\n\
         Content-Type: application/x-amz-json-{json_version}\r\nX-Amz-Target: {operation}\r\n\
         X-Amz-Date: 20260101T000000Z\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, \
         SignedHeaders=host, Signature=00\r\n\r\n{{}}"
    )?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    Ok(&status == b"HTTP/1.1 200")
}

/// Asks for a page and wants a 200.
fn answers_get(port: u16, path: &str) -> Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    Ok(&status == b"HTTP/1.1 200")
}

impl Launch {
    /// The command, in a session of its own: neither a closing terminal nor Ctrl-C reaches it.
    pub(crate) fn command(&self, dir: &Path, log: fs::File) -> Result<Command> {
        // It replaces itself by the program, so the pid stays.
        let mut command = Command::new("setsid");
        command.arg(&self.program).args(&self.arguments).current_dir(dir);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone().context("share the log")?).stderr(log);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        Ok(command)
    }
}

/// The folder of one server, below its instance's.
pub(crate) fn folder(instance: &Path, kind: Kind) -> PathBuf {
    instance.join(kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_whole_name() {
        let accounts = "postgresql:x:1:2::/:/bin/sh\npostgres:x:101:104:admin:/var:/bin/bash\n";
        let user = find_user(accounts, "postgres").expect("there");
        assert_eq!((user.uid, user.gid), (101, 104));
        assert!(find_user(accounts, "nobody").is_none());
    }

    #[test]
    fn names_agree_with_what_is_stored() {
        for kind in Kind::of_tests(false) {
            let stored = serde_json::to_value(kind).expect("a name");
            assert_eq!(stored, kind.name());
        }
    }
}
