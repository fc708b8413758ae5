//! `cargo xtask bench autoscaler`, its last part: how large the Lambda's zip is, and how long the program in it takes
//! from its start to its first call to the store.
//!
//! `TENURE_LAMBDA_ZIP` names the zip that `cargo xtask package lambda` made. The program runs as Lambda would start it,
//! with a server of ours in the place of the runtime API, and one that is silent in the place of DynamoDB. Both are on
//! loopback and without TLS: connecting to a region's endpoint comes on top.

#[allow(dead_code, reason = "an answer is not waited for")]
#[path = "../tests/runtime_api.rs"]
mod runtime_api;

use std::env;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tenure_clock::{Clock as _, SystemClock};

use self::runtime_api::RuntimeApi;

const ZIP_TARGET_MB: f64 = 4.0;
const START_TARGET_MS: f64 = 60.0;
/// An odd number, so that there is a middle one. The first is left out: it finds the program on disk.
const RUNS: usize = 11;

fn main() -> Result<()> {
    let is_json = env::args().any(|argument| argument == "--json");
    let zip = env::var_os("TENURE_LAMBDA_ZIP").map(PathBuf::from).context(
        "TENURE_LAMBDA_ZIP names no zip: make it with `cargo xtask package lambda`, and give the path that it prints",
    )?;
    let bytes = zip.metadata().with_context(|| format!("look at {}", zip.display()))?.len();
    let megabytes = bytes as f64 / 1e6;
    tell(is_json, "lambda_zip", env::consts::ARCH, megabytes, "MB", ZIP_TARGET_MB);

    let folder = tempfile::tempdir()?;
    let program = unpacked(&zip, folder.path())?;
    eprintln!(
        "lambda: {} of {} bytes, {RUNS} starts, loopback without TLS",
        program.display(),
        program.metadata()?.len()
    );
    let mut starts = (0..=RUNS).map(|_| start(&program, folder.path())).collect::<Result<Vec<_>>>()?;
    starts.remove(0);
    starts.sort();
    let millis: Vec<_> = starts.iter().map(|start| start.as_secs_f64() * 1e3).collect();
    eprintln!("lambda: starts from {:.1} ms to {:.1} ms", millis[0], millis[RUNS - 1]);
    tell(is_json, "lambda_start", "loopback", millis[RUNS / 2], "ms", START_TARGET_MS);
    Ok(())
}

fn tell(is_json: bool, case: &str, backend: &str, value: f64, unit: &str, target: f64) {
    let (value, ok) = ((value * 100.0).round() / 100.0, value <= target);
    match is_json {
        true => println!(
            "{}",
            json!({
                "bench": "autoscaler", "case": case, "backend": backend, "value": value, "unit": unit,
                "target": target, "ok": ok,
            })
        ),
        false => println!(
            "{case:14} {value:8.2} {unit:2}  (at most {target} {unit}: {})",
            if ok { "ok" } else { "MISSED" }
        ),
    }
}

/// The program of the zip.
fn unpacked(zip: &Path, folder: &Path) -> Result<PathBuf> {
    let unzipped = Command::new("python3").args(["-m", "zipfile", "-e"]).arg(zip).arg(folder).status();
    ensure!(unzipped.context("run python3")?.success(), "{} does not unpack", zip.display());
    let program = folder.join("bootstrap");
    // Python does not restore it.
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(program)
}

/// How long one start takes, until the first request to the store is there.
fn start(program: &Path, folder: &Path) -> Result<Duration> {
    let runtime = RuntimeApi::start()?;
    let clock = SystemClock;
    let deadline_ms = (clock.wall() + Duration::from_secs(60)).as_millis();
    runtime.send("bench", json!({ "detail-type": "Scheduled Event" }), deadline_ms);
    let store = TcpListener::bind("127.0.0.1:0")?;
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG)?;
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("AWS_LAMBDA_RUNTIME_API", runtime.address.to_string())
        .env("AWS_LAMBDA_FUNCTION_NAME", "autoscaler")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "none")
        .env("AWS_SECRET_ACCESS_KEY", "none")
        .env("TENURE__STORE__URL", format!("dynamodb:?endpoint=http://{}", store.local_addr()?))
        .env("TENURE__AUTOSCALER__CLUSTER", "bench")
        .env("TENURE__AUTOSCALER__WORKERS_MAX", "3")
        .env("TENURE__AUTOSCALER__SUBNETS", "subnet-a")
        .env("TENURE__AUTOSCALER__LAUNCH_TEMPLATE", "lt-0abc")
        .env("TENURE__AUTOSCALER__KUBECONFIG", &kubeconfig)
        .env("TENURE__AUTOSCALER__PROMETHEUS", "http://127.0.0.1:1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let begun = clock.monotonic();
    let mut running = Running(command.spawn().with_context(|| format!("start {}", program.display()))?);
    // One that cannot start would be waited for in vain: its end closes what is waited on.
    let address = store.local_addr()?;
    let watched = std::thread::spawn(move || -> Result<Duration> {
        let (mut call, _) = store.accept()?;
        let mut first = [0];
        call.read_exact(&mut first).context("the program ended before its first call to the store")?;
        Ok(SystemClock.monotonic().since(begun))
    });
    while !watched.is_finished() {
        if running.0.try_wait()?.is_some() {
            drop(TcpStream::connect(address));
            break;
        }
        tenure_clock::pause_thread(Duration::from_millis(20));
    }
    watched.join().map_err(|_| anyhow::anyhow!("the watching thread panicked"))?
}

/// Ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: c
clusters: [{ name: c, cluster: { server: 'https://127.0.0.1:1' } }]
users: [{ name: u, user: { token: none } }]
contexts: [{ name: c, context: { cluster: c, user: u } }]
";
