//! Ends everything that a command started.
//!
//! The command leads a process group, and the group is killed as one. Whoever left it (`setsid`, a daemon)
//! becomes a child of the nearest subreaper, which the guard is, once the process that started it is gone;
//! so killing group and children until there is no child left ends them all.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use tenure_clock::{Clock, SystemClock};

/// Pauses before looking again at processes that are about to die: soon at first, then less often.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Kills the group and every child of this process, and waits until none is left. `reaped` is told of
/// each that ended.
///
/// A process in an uninterruptible call of the kernel dies only when that ends: it is waited for, because
/// it may still act.
pub(super) async fn end_all(group: Pid, mut reaped: impl FnMut(Pid, u8)) {
    let mut pause = PAUSE_MIN;
    loop {
        // The group may be gone by now; what is left of it then are children.
        let _ = kill_process_group(group, Signal::KILL);
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
        }
        if !reap(&mut reaped) {
            return;
        }
        SystemClock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Takes note of every child that ended. Answers whether there are others.
pub(super) fn reap(mut reaped: impl FnMut(Pid, u8)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((process, status))) => {
                let status = match (status.exit_status(), status.terminating_signal()) {
                    (Some(status), _) => status,
                    (None, signal) => 128 + signal.unwrap_or(0),
                };
                reaped(process, u8::try_from(status).unwrap_or(u8::MAX));
            }
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// The processes whose parent is this one. Empty on a kernel that does not list them.
fn children() -> Vec<Pid> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
        .collect::<Vec<_>>();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}
