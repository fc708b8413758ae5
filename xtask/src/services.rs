//! Scratch servers for tests and benchmarks: loopback, free ports, temporary folders.
//!
//! Expected flow: an instance is recorded under `$TENURE_CACHE/services/NAME/state.json` before its
//! first server starts, each server as soon as it has a pid; `down` reads the record, stops what is
//! still ours and removes what it made.
//!
//! Guarantees: a recorded pid is signalled only while it is the same process; the services of a run
//! (`xtask test`, `xtask bench`) end with it however it ends, because a guard process waits for the
//! closing of a pipe that only the run holds open.
//!
//! Caveats: services of `services up` live on until `services down`. If run and guard are both
//! killed, the next `up` of any instance sweeps what they left.

mod kubernetes;
mod port;
mod process;
mod prometheus;
mod server;

use std::fs::{self, File, Permissions};
use std::io::{Read, stdin};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use self::port::Ports;
use self::process::{Process, Reach, boot_id};
pub(crate) use self::server::Kind;
use crate::cache::{self, Cache};
use crate::child::tail;
use crate::interrupt;
use crate::progress::Step;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Java and Scala.js on two busy cores; idle, the slowest needs three seconds.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// A lost race for a port shows as a server that ends at once; thrice in a row is no race.
const START_ATTEMPTS_MAX: u32 = 3;
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a developer's shell that would steer an SDK away from the emulators.
const FOREIGN_SETTINGS: [&str; 6] = [
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_DYNAMODB",
    "AWS_ENDPOINT_URL_EC2",
    "AWS_ENDPOINT_URL_KINESIS",
];

/// All instances of this machine's cache.
#[derive(Clone, Copy)]
pub(crate) struct Instances<'a> {
    cache: &'a Cache,
}

/// Instances that nobody else is changing.
pub(crate) struct Locked<'a> {
    cache: &'a Cache,
    _lock: File,
}

/// The services of one run; they end with this value, and with this process.
pub(crate) struct Running<'a> {
    instances: Instances<'a>,
    state: State,
    guard: Child,
}

/// What is known of an instance, as stored.
#[derive(Serialize, Deserialize)]
struct State {
    name: String,
    /// Pids are compared only within one boot.
    boot: String,
    /// The run that the instance ends with; none for `services up`.
    owner: Option<Process>,
    /// The temporary folder, one folder per service inside.
    dir: PathBuf,
    services: Vec<Service>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Service {
    name: Kind,
    #[serde(flatten)]
    process: Process,
    port: u16,
    url: String,
    dir: PathBuf,
}

/// A name is a folder's name, and part of a temporary one's.
pub(crate) fn parse_name(name: &str) -> Result<String, String> {
    let fits = (1..=32).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    fits.then(|| name.to_owned()).ok_or_else(|| "use 1 to 32 letters, digits and dashes".to_owned())
}

// === impl Instances ===

impl<'a> Instances<'a> {
    pub(crate) fn of(cache: &'a Cache) -> Instances<'a> {
        Instances { cache }
    }

    pub(crate) fn lock(&self) -> Result<Locked<'a>> {
        let lock = cache::lock(&self.cache.services().join("lock"))?;
        Ok(Locked { cache: self.cache, _lock: lock })
    }

    /// Starts services that stay until [`Locked::down`].
    pub(crate) fn up_to_stay(self, name: &str, wanted: &[Kind]) -> Result<()> {
        self.lock()?.up(name, wanted, None).map(drop)
    }

    /// Starts services that end with this process.
    pub(crate) fn up_for_this_run(self, chore: &str, wanted: &[Kind]) -> Result<Running<'a>> {
        let name = format!("{chore}-{}", std::process::id());
        let guard = spawn_guard(&name)?;
        let state = self.lock()?.up(&name, wanted, Some(Process::current()?))?;
        Ok(Running { instances: self, state, guard })
    }

    fn state(&self, name: &str) -> Result<State> {
        State::load(&state_dir(self.cache, name))?
            .with_context(|| format!("no services named {name}: start them with `cargo xtask services up`"))
    }
}

// === impl Locked ===

impl Locked<'_> {
    /// Starts those of `wanted` that are not alive; on failure nothing of the instance is left.
    fn up(&self, name: &str, wanted: &[Kind], owner: Option<Process>) -> Result<State> {
        self.sweep()?;
        let state_dir = state_dir(self.cache, name);
        let mut state = match State::load(&state_dir)? {
            Some(state) if state.services.iter().any(|service| state.is_alive(service)) => state,
            // What a reboot left may have lost its temporary folder.
            Some(_) => {
                self.down(name)?;
                State::create(&state_dir, name, owner)?
            }
            None => State::create(&state_dir, name, owner)?,
        };
        match self.start_missing(&mut state, &state_dir, wanted) {
            Ok(()) => Ok(state),
            Err(error) => {
                self.down(name)?;
                Err(error)
            }
        }
    }

    /// Stops what is still ours and removes its files; nothing to stop is success.
    pub(crate) fn down(&self, name: &str) -> Result<()> {
        let state_dir = state_dir(self.cache, name);
        let Some(state) = State::load(&state_dir)? else { return Ok(()) };
        let step = Step::begin(format!("stop services {name}"));
        let alive = state.services.iter().filter(|service| state.is_alive(service)).collect::<Vec<_>>();
        for service in &alive {
            service.process.signal(service.name.end_signal(), Reach::Itself);
        }
        let began = Instant::now();
        while alive.iter().any(|service| service.process.is_alive()) && began.elapsed() < END_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
        for service in &alive {
            service.process.signal(Signal::KILL, Reach::Group);
        }
        remove_dir(&state.dir)?;
        remove_dir(&state_dir)?;
        step.done(&format!("{} stopped", alive.len()));
        Ok(())
    }

    /// Takes down instances whose run is gone and whose guard is too.
    fn sweep(&self) -> Result<()> {
        let folders = fs::read_dir(self.cache.services()).context("list instances")?;
        for folder in folders.flatten().filter(|entry| entry.path().is_dir()) {
            let Some(state) = State::load(&folder.path())? else { continue };
            if state.is_orphan() {
                eprintln!("services {} were left by a run that is gone", state.name);
                self.down(&state.name)?;
            }
        }
        Ok(())
    }

    /// All start at once: they spend their time in different places, and two cores help.
    fn start_missing(&self, state: &mut State, state_dir: &Path, wanted: &[Kind]) -> Result<()> {
        let mut ports = Ports::of_this_run();
        let mut started = Vec::new();
        for &kind in wanted {
            let alive = state.services.iter().any(|it| it.name == kind && state.is_alive(it));
            if alive {
                eprintln!("start {}: already running", kind.name());
                continue;
            }
            let step = Step::begin(format!("start {}", kind.name()));
            self.start(state, state_dir, kind, &mut ports)?;
            drop(step);
            started.push(kind);
        }
        for kind in started {
            let step = Step::begin(format!("start {}", kind.name()));
            let port = self.await_answer(state, state_dir, kind, &mut ports)?;
            step.done(&format!("answers on port {port}"));
        }
        Ok(())
    }

    fn start(&self, state: &mut State, state_dir: &Path, kind: Kind, ports: &mut Ports) -> Result<()> {
        let dir = server::folder(&state.dir, kind);
        remove_dir(&dir)?;
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let port = ports.take()?;
        let log = log_path(state_dir, kind);
        let log = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let launch = kind.launch(self.cache, ports, &dir, port)?;
        let process = spawn(launch.command(&dir, log)?)?;
        let url = kind.url(port, &dir);
        let service = Service { name: kind, process, port, url, dir };
        let pid_file = state_dir.join(format!("{}.pid", kind.name()));
        fs::write(pid_file, format!("{}\n", process.pid)).context("write a pid file")?;
        state.services.retain(|service| service.name != kind);
        state.services.push(service);
        state.save(state_dir)
    }

    /// Waits for a real answer; a server that ended is started again on another port.
    fn await_answer(
        &self,
        state: &mut State,
        state_dir: &Path,
        kind: Kind,
        ports: &mut Ports,
    ) -> Result<u16> {
        let mut attempts = 1;
        let mut began = Instant::now();
        loop {
            interrupt::check()?;
            let service = state.service(kind).context("a started service is recorded")?;
            // Looked at after the answer, which could be a stranger's on the port we lost.
            let (answers, alive) = (kind.answers(service.port), service.process.is_alive());
            if answers && alive {
                return Ok(service.port);
            }
            if !alive && attempts < START_ATTEMPTS_MAX {
                attempts += 1;
                began = Instant::now();
                self.start(state, state_dir, kind, ports)?;
            } else if !alive || began.elapsed() > START_TIMEOUT {
                let what = if alive { "does not answer" } else { "ended by itself" };
                let log = fs::read_to_string(log_path(state_dir, kind)).unwrap_or_default();
                bail!("{} {what}; the end of its log:\n{}", kind.name(), tail(&log, 30));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

// === impl Running ===

impl Running<'_> {
    /// Tells a command where the services are, and hides where the developer's own are.
    pub(crate) fn hand_to(&self, command: &mut Command) {
        for name in FOREIGN_SETTINGS {
            command.env_remove(name);
        }
        command.envs(environment(&self.state));
    }

    pub(crate) fn down(self) -> Result<()> {
        self.instances.lock()?.down(&self.state.name)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Nothing left to do after `down`; on every other way out this is the tear-down.
        let down = self.instances.lock().and_then(|locked| locked.down(&self.state.name));
        if let Err(error) = down {
            eprintln!("warning: stop services {}: {error:#}", self.state.name);
        }
        // Its standard input closes, it finds nothing to do, it ends.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

// === impl State ===

impl State {
    fn create(state_dir: &Path, name: &str, owner: Option<Process>) -> Result<State> {
        fs::create_dir_all(state_dir).with_context(|| format!("create {}", state_dir.display()))?;
        let dir = env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
        let state = State { name: name.to_owned(), boot: boot_id(), owner, dir, services: Vec::new() };
        // Recorded first: what exists is always known to `down`.
        state.save(state_dir)?;
        fs::create_dir(&state.dir)
            // Whatever the umask: Postgres, another user, must pass through.
            .and_then(|()| fs::set_permissions(&state.dir, Permissions::from_mode(0o755)))
            .with_context(|| format!("create {}", state.dir.display()))?;
        Ok(state)
    }

    fn load(state_dir: &Path) -> Result<Option<State>> {
        let path = state_dir.join("state.json");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let state = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: remove its folder", path.display()))?;
        Ok(Some(state))
    }

    /// By way of a second file: a reader sees the old record or the new one, never half of it.
    fn save(&self, state_dir: &Path) -> Result<()> {
        let (path, unfinished) = (state_dir.join("state.json"), state_dir.join("state.unfinished"));
        let text = serde_json::to_string_pretty(self).context("render the state")?;
        fs::write(&unfinished, text + "\n")
            .and_then(|()| fs::rename(&unfinished, &path))
            .with_context(|| format!("write {}", path.display()))
    }

    fn service(&self, kind: Kind) -> Option<&Service> {
        self.services.iter().find(|service| service.name == kind)
    }

    fn is_alive(&self, service: &Service) -> bool {
        self.boot == boot_id() && service.process.is_alive()
    }

    fn is_orphan(&self) -> bool {
        self.owner.is_some_and(|owner| self.boot != boot_id() || !owner.is_alive())
    }
}

// === Verbs that only look ===

pub(crate) fn status(instances: &Instances<'_>, name: &str, json: bool) -> Result<ExitCode> {
    let state = instances.state(name)?;
    let mut all_alive = true;
    for service in &state.services {
        let alive = state.is_alive(service);
        all_alive &= alive;
        if json {
            let mut line = serde_json::to_value(service).context("render a service")?;
            line["alive"] = alive.into();
            println!("{line}");
        } else {
            let (word, kind) = (if alive { "alive" } else { "dead" }, service.name.name());
            println!("{kind:<15} {word:<6} pid {:<8} {}", service.process.pid, service.url);
        }
    }
    Ok(if all_alive { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn print_environment(instances: &Instances<'_>, name: &str) -> Result<()> {
    for line in export_lines(&environment(&instances.state(name)?)) {
        println!("{line}");
    }
    Ok(())
}

fn environment(state: &State) -> Vec<(&'static str, String)> {
    let urls = state.services.iter().map(|service| (service.name.variable(), service.url.clone()));
    let credentials = [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_REGION", "us-east-1"),
        // Otherwise an SDK without credentials asks an address that does not answer here.
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let more = state.services.iter().flat_map(|service| service.name.more_variables(&service.dir));
    urls.chain(more).chain(credentials.map(|(name, value)| (name, value.to_owned()))).collect()
}

fn export_lines(environment: &[(&str, String)]) -> Vec<String> {
    let quoted = |value: &str| format!("'{}'", value.replace('\'', r"'\''"));
    environment.iter().map(|(name, value)| format!("export {name}={}", quoted(value))).collect()
}

// === Guard ===

/// Ends the instance when the run that holds our standard input is gone.
pub(crate) fn guard(instances: &Instances<'_>, name: &str) -> Result<()> {
    stdin().read_to_end(&mut Vec::new()).context("wait for the run to end")?;
    instances.lock()?.down(name)
}

fn spawn_guard(name: &str) -> Result<Child> {
    let program = env::current_exe().context("find this program")?;
    Command::new("setsid")
        .arg(program)
        .args(["services", "guard", "--name", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start the guard of the services")
}

// === Helpers ===

/// It may outlive this program, so nobody waits for it; `is_alive` sees through zombies.
fn spawn(mut command: Command) -> Result<Process> {
    let child = command.spawn().context("start a server through setsid")?;
    Process::observe(child.id())
}

fn state_dir(cache: &Cache, name: &str) -> PathBuf {
    cache.services().join(name)
}

fn log_path(state_dir: &Path, kind: Kind) -> PathBuf {
    state_dir.join(format!("{}.log", kind.name()))
}

/// Removes a folder of ours; one that is gone already is fine.
fn remove_dir(dir: &Path) -> Result<()> {
    ensure!(dir.is_absolute() && dir.components().count() > 2, "refuse to remove {}", dir.display());
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(owner: Option<Process>) -> State {
        let service = Service {
            name: Kind::Dynoxide,
            process: Process { pid: 7, started: 8 },
            port: 9,
            url: Kind::Dynoxide.url(9, Path::new("/tmp/tenure-x-1/dynoxide")),
            dir: PathBuf::from("/tmp/tenure-x-1/dynoxide"),
        };
        let dir = PathBuf::from("/tmp/tenure-x-1");
        State { name: "x".to_owned(), boot: boot_id(), owner, dir, services: vec![service] }
    }

    #[test]
    fn the_environment_names_what_runs_and_nothing_else() {
        let lines = export_lines(&environment(&state(None)));
        assert_eq!(lines[0], "export TENURE_TEST_DYNOXIDE='http://127.0.0.1:9'");
        assert!(lines.contains(&"export AWS_REGION='us-east-1'".to_owned()));
        assert!(!lines.iter().any(|line| line.contains("KINESIS")));
    }

    #[test]
    fn a_quote_in_a_value_stays_a_quote() {
        let lines = export_lines(&[("A", "it's".to_owned())]);
        assert_eq!(lines, [r"export A='it'\''s'"]);
    }

    #[test]
    fn a_state_survives_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        state(None).save(dir.path()).expect("saved");
        let read = State::load(dir.path()).expect("read").expect("there");
        let line = serde_json::to_value(&read.services[0]).expect("json");
        assert_eq!(
            line,
            serde_json::json!({
                "name": "dynoxide", "pid": 7, "started": 8, "port": 9,
                "url": "http://127.0.0.1:9", "dir": "/tmp/tenure-x-1/dynoxide",
            })
        );
    }

    #[test]
    fn only_an_owner_that_is_gone_makes_an_orphan() {
        let me = Process::current().expect("we run");
        assert!(!state(None).is_orphan());
        assert!(!state(Some(me)).is_orphan());
        assert!(state(Some(Process { started: me.started + 1, ..me })).is_orphan());
    }

    #[test]
    fn names_stay_inside_their_folder() {
        assert!(parse_name("default").is_ok());
        assert!(parse_name("../x").is_err() && parse_name("").is_err() && parse_name(".").is_err());
    }
}
