//! `tenure demo` as its users run it: it ends well, and it leaves nothing behind however it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_clock::{Clock, Monotonic, SystemClock, pause_thread};

/// How long an ending demo may take to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// The demo with a directory of its own for temporary files, so that leftovers can be seen.
fn demo(temporary: &Path, seconds: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["demo", "--json", "--seconds", &seconds.to_string()]);
    command.env("TMPDIR", temporary).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Processes whose command line names the directory: the workers of the demo.
fn workers(temporary: &Path) -> Vec<PathBuf> {
    let name = temporary.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let runs_there = |process: &PathBuf| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(name)
    };
    processes.filter(runs_there).collect()
}

fn leftovers(temporary: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn until(by: Monotonic, mut happened: impl FnMut() -> bool) -> bool {
    while SystemClock.monotonic() < by {
        if happened() {
            return true;
        }
        pause_thread(Duration::from_millis(20));
    }
    happened()
}

/// Reads the demo's lines until changes go all the way.
fn wait_for_work(demo: &mut Child) {
    let lines = BufReader::new(demo.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
    let mut progress = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    assert!(progress.any(|line| line["delivered"].as_u64() > Some(0)), "the demo ended before it worked");
}

fn signal(demo: &Child, signal: Signal) {
    kill_process(Pid::from_child(demo), signal).unwrap();
}

#[test]
fn a_short_demo_holds_what_it_promises() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), 6).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert!(output.status.success(), "{last}");

    let number = |field: &str| last[field].as_u64().unwrap_or_else(|| panic!("no `{field}` in {last}"));
    for field in ["lost", "duplicates", "out_of_order"] {
        assert_eq!(number(field), 0, "{field}");
    }
    assert!(number("committed") > 100, "{last}");
    assert_eq!(number("delivered"), number("committed"));
    // Six seconds have room for these two; the others need more.
    assert_eq!((number("leader_kills"), number("reshards"), number("worker_pauses")), (1, 1, 0));
    assert!(last["failover_ms_max"].is_u64());
    assert!(lines.iter().any(|line| line["event"] == "progress"));

    assert_eq!(leftovers(temporary.path()), Vec::<PathBuf>::new());
    assert_eq!(workers(temporary.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_signal_ends_it_and_everything_it_started() {
    for (asked, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let temporary = tempfile::tempdir().unwrap();
        let mut demo = demo(temporary.path(), 60).spawn().unwrap();
        wait_for_work(&mut demo);
        // Postgres, two publishers and three workers, at least.
        assert!(workers(temporary.path()).len() >= 6);
        signal(&demo, asked);
        let by = SystemClock.deadline(END_TIMEOUT);
        assert!(until(by, || demo.try_wait().unwrap().is_some()), "the demo did not end");
        assert_eq!(demo.wait().unwrap().code(), Some(code));
        assert_eq!(workers(temporary.path()), Vec::<PathBuf>::new());
        assert_eq!(leftovers(temporary.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn its_processes_die_with_it_even_if_it_is_killed_and_its_files_with_the_next() {
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = demo(temporary.path(), 60).spawn().unwrap();
    wait_for_work(&mut demo);
    // One that is stopped cannot notice anything by itself.
    let stopped: i32 = workers(temporary.path())[0].file_name().unwrap().to_str().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(stopped).unwrap(), Signal::STOP).unwrap();
    demo.kill().unwrap();
    demo.wait().unwrap();
    let by = SystemClock.deadline(END_TIMEOUT);
    assert!(until(by, || workers(temporary.path()).is_empty()), "{:?}", workers(temporary.path()));

    // Its files are still there; the next demo removes them, and those of one that runs stay.
    let left = leftovers(temporary.path());
    assert_eq!(left.len(), 1);
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut demo = self::demo(temporary.path(), 60).spawn().unwrap();
        wait_for_work(&mut demo);
        running.push(demo);
        let there = leftovers(temporary.path());
        assert!(there.len() == running.len() && !there.contains(&left[0]), "{there:?} after {left:?}");
    }
    for mut demo in running {
        signal(&demo, Signal::TERM);
        assert_eq!(demo.wait().unwrap().code(), Some(143));
    }
    assert_eq!(leftovers(temporary.path()), Vec::<PathBuf>::new());
}
