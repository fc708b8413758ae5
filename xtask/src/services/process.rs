//! Who a pid is: a number that the kernel gives out again cannot be trusted alone.
//!
//! A process is its pid together with its start time since boot, and the boot it belongs to.
//! We signal a recorded pid only while all three still agree.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks since boot, field 22 of `/proc/PID/stat`.
    pub(crate) started: u64,
}

impl Process {
    /// The process that has this pid now.
    pub(crate) fn observe(pid: u32) -> Result<Process> {
        let pid = i32::try_from(pid).context("a pid is positive")?;
        let stat =
            fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("find process {pid}"))?;
        let (_, started) = parse_stat(&stat).with_context(|| format!("read /proc/{pid}/stat"))?;
        Ok(Process { pid, started })
    }

    pub(crate) fn current() -> Result<Process> {
        Process::observe(std::process::id())
    }

    /// Still the process we recorded, and not merely waiting to be reaped.
    pub(crate) fn is_alive(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        parse_stat(&stat)
            .is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Signals it if it is still itself; with a group, everything it started too.
    pub(crate) fn signal(self, signal: Signal, reach: Reach) {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else { return };
        // An error means that it ended since we looked.
        let _ = match reach {
            Reach::Itself => kill_process(pid, signal),
            Reach::Group => kill_process_group(pid, signal),
        };
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Reach {
    Itself,
    /// Services lead their own session, so the group is theirs alone.
    Group,
}

/// Names this boot; start times of another one mean nothing.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// State and start time. The name in parentheses may hold spaces and parentheses itself.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 3 was the state; 22 is 18 fields after field 4.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn stat_is_read_past_a_hostile_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 777 0 0";
        assert_eq!(parse_stat(stat), Some(('S', 777)));
        assert_eq!(parse_stat("42 (x"), None);
    }

    #[test]
    fn a_reused_pid_is_somebody_else() {
        let me = Process::current().expect("we run");
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let process = Process::observe(child.id()).expect("it runs");
        process.signal(Signal::KILL, Reach::Itself);
        for _ in 0..500 {
            if !process.is_alive() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!process.is_alive(), "killed and not yet reaped");
        child.wait().expect("reaped");
    }
}
