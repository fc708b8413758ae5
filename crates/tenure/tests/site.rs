//! One door to the binary: a directory, a command line, and what came of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;
use tempfile::TempDir;
use tenure_clock::{Clock, SystemClock, pause_thread};

/// A directory in which commands run.
pub(crate) struct Site {
    directory: TempDir,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Our command with the words of `line`; quotes are not special. The surroundings have none of our variables.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(line.split_whitespace()).current_dir(self.directory.path());
        for (name, _) in std::env::vars_os() {
            let ours = name.to_str().is_some_and(|name| name.starts_with("TENURE_") || name == "PGPASSWORD");
            if ours || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs the words of `line` to the end.
    pub(crate) fn run(&self, line: &str) -> Ran {
        ran(self.command(line))
    }

    /// As [`Site::run`], with one more argument that may hold anything.
    pub(crate) fn run_with(&self, line: &str, last: &str) -> Ran {
        let mut command = self.command(line);
        command.arg(last);
        ran(command)
    }

    /// As [`Site::run`], with standard input.
    pub(crate) fn run_on(&self, line: &str, input: &[u8]) -> Ran {
        let mut child = started(self.command(line).stdin(Stdio::piped()));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // It may stop reading before the end.
        let feeding = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feeding.join().unwrap();
        told(&output)
    }

    /// As [`Site::run`]; it must succeed.
    pub(crate) fn ok(&self, line: &str) -> String {
        self.run(line).expect(0).stdout
    }

    /// As [`Site::ok`], with `--json`.
    pub(crate) fn json(&self, line: &str) -> Vec<Json> {
        self.run(&format!("{line} --json")).expect(0).json()
    }
}

pub(crate) fn ran(mut command: Command) -> Ran {
    told(&started(&mut command).wait_with_output().unwrap())
}

/// Starts a command with piped output.
pub(crate) fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn told(output: &std::process::Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout.clone()).unwrap(),
        stderr: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

impl Ran {
    /// Must have ended with this status.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Must have printed one line of error that has all of these in it.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in {self:#?}");
        }
        self
    }

    /// Every line of standard output is JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Json> {
        let line = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        self.stdout.lines().map(line).collect()
    }
}

/// Waits until `found` answers, at most ten seconds.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let by = SystemClock.deadline(Duration::from_secs(30));
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(SystemClock.monotonic() < by, "not in thirty seconds: {what}");
        pause_thread(Duration::from_millis(10));
    }
}

/// Whether a file is there and not empty.
pub(crate) fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}
