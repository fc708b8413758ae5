//! One `tenure elect` process, and the two below it.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::world::{SHARD, World};
use crate::site::eventually;

/// Killed at the end of a test, however that ends; the guard then kills the command.
pub(super) struct Candidate {
    pub(super) child: Child,
    log: PathBuf,
}

impl Candidate {
    pub(super) fn start(world: &World, options: &str, log: &str, script: &str) -> Self {
        Self::start_in(world, options, log, script, &[])
    }

    /// As [`Candidate::start`], with variables in its environment.
    pub(super) fn start_in(
        world: &World,
        options: &str,
        log: &str,
        script: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let log = world.path(&format!("{log}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = world
            .site
            .command(&format!("elect {SHARD} {options} {}", world.place()))
            .args(["--", "sh", "-c", script])
            .env("TENURE_BIN", env!("CARGO_BIN_EXE_tenure"))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    pub(super) fn wait_for_log(&self, text: &str) {
        eventually(&format!("`{text}` in the log"), || self.log().contains(text).then_some(()));
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The process between this one and the command.
    #[track_caller]
    pub(super) fn guard(&self) -> Pid {
        child_of(Pid::from_child(&self.child))
    }

    /// The process of the command.
    #[track_caller]
    pub(super) fn command(&self) -> Pid {
        child_of(self.guard())
    }

    /// Must end by itself; its exit status.
    #[track_caller]
    pub(super) fn status(&mut self) -> i32 {
        let status = eventually("the candidate ends", || self.child.try_wait().unwrap());
        status.code().unwrap_or_else(|| panic!("{status}: {}", self.log()))
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

#[track_caller]
fn child_of(process: Pid) -> Pid {
    eventually("a child process", || {
        let path = format!("/proc/{0}/task/{0}/children", Pid::as_raw(Some(process)));
        let own = std::fs::read_to_string(path).ok()?;
        // A process with threads may have started it from any of them.
        let all = std::fs::read_dir(format!("/proc/{}/task", Pid::as_raw(Some(process)))).ok()?;
        let lists = all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        let first =
            std::iter::once(own).chain(lists).find_map(|list| list.split_whitespace().next()?.parse().ok());
        first.and_then(Pid::from_raw)
    })
}

/// Whether a process runs, stopped or not.
pub(super) fn is_alive(process: Pid) -> bool {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", Pid::as_raw(Some(process)))).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}
