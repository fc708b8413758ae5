//! A stream in a directory of its own, and workers that read it.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tenure_clock::{Clock, SystemClock, pause_thread};

use crate::site::{Ran, Site};

/// A machine that is busy with other tests is slow, and a lease must not end because of that.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) site: Site,
}

impl World {
    pub(crate) fn new(shards: u32) -> Self {
        let site = Site::new();
        site.ok(&format!("stream create --shards {shards}"));
        Self { site }
    }

    /// Puts records of several keys: `FIRST..END`, each with its number.
    pub(crate) fn put(&self, numbers: std::ops::Range<u32>) {
        for key in 0..5 {
            let mine: Vec<_> =
                numbers.clone().filter(|number| number % 5 == key).map(|number| number.to_string()).collect();
            if !mine.is_empty() {
                self.site
                    .run_on(&format!("stream put --key key-{key} --lines"), mine.join("\n").as_bytes())
                    .expect(0);
            }
        }
    }

    pub(crate) fn worker(&self, name: &str, line: &str) -> Worker<'_> {
        self.start(name, self.site.command(&format!("consume --app orders --worker {name} {line}")))
    }

    /// A worker with a command of its own.
    pub(crate) fn exec(&self, name: &str, line: &str, command: &str) -> Worker<'_> {
        let mut worker = self.site.command(&format!("consume --app orders --worker {name} {line}"));
        worker.args(["--exec", command]);
        self.start(name, worker)
    }

    pub(crate) fn start(&self, name: &str, mut command: Command) -> Worker<'_> {
        let out = File::create(self.site.path(&format!("{name}.out"))).unwrap();
        let err = File::create(self.site.path(&format!("{name}.err"))).unwrap();
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        Worker { world: self, name: name.to_owned(), child }
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        self.site.run(line)
    }

    /// What `tenure leases list` says, by lease.
    pub(crate) fn leases(&self) -> BTreeMap<String, Json> {
        let mut lines = self.site.json("leases list --app orders");
        lines.pop();
        lines.into_iter().map(|line| (line["lease"].as_str().unwrap().to_owned(), line)).collect()
    }

    /// How many leases each worker has.
    pub(crate) fn shares(&self) -> BTreeMap<String, usize> {
        let mut shares = BTreeMap::new();
        for lease in self.leases().values() {
            *shares.entry(lease["owner"].as_str().unwrap_or("nobody").to_owned()).or_default() += 1;
        }
        shares
    }

    /// Lines of a file of a worker or a command, whole ones.
    pub(crate) fn lines(&self, file: &str) -> Vec<Json> {
        let text = std::fs::read_to_string(self.site.path(file)).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The numbers of records, as they came.
pub(crate) fn numbers(lines: &[Json]) -> Vec<u32> {
    lines.iter().map(|line| line["data"].as_str().unwrap().parse().unwrap()).collect()
}

/// Waits until `found` answers.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let by = SystemClock.deadline(PATIENCE);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(SystemClock.monotonic() < by, "not in {PATIENCE:?}: {what}");
        pause_thread(Duration::from_millis(50));
    }
}

pub(crate) struct Worker<'a> {
    world: &'a World,
    name: String,
    pub(crate) child: Child,
}

impl Worker<'_> {
    pub(crate) fn printed(&self) -> Vec<Json> {
        self.world.lines(&format!("{}.out", self.name))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.world.site.path(&format!("{}.err", self.name))).unwrap()
    }

    #[track_caller]
    pub(crate) fn wait_for_log(&self, part: &str) {
        eventually(&format!("`{part}` in the log of {}", self.name), || {
            self.log().contains(part).then_some(())
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    pub(crate) fn status(&mut self) -> i32 {
        let status = eventually("the worker ends", || self.child.try_wait().unwrap());
        status.code().unwrap_or(-1)
    }

    /// Stops it as a deployment does.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.status();
        assert_eq!(status, 0, "{}", self.log());
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
