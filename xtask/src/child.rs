//! Child processes that do not outlive the wish to end.
//!
//! Each child leads its own process group, so that a signal we pass on reaches what it started
//! (cargo's compilers, a benchmark), and nothing else.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::interrupt;
use crate::progress::Step;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// nextest gives its tests ten seconds after SIGTERM; this leaves it time to say so.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs to the end with our own stdout and stderr.
pub(crate) fn run(command: &mut Command) -> Result<ExitStatus> {
    let child = spawn(command)?;
    wait(child, &describe(command))
}

/// What a quiet child said, kept for the day it fails.
pub(crate) struct Captured {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

/// Runs to the end under a progress line that shows the last thing the child said.
pub(crate) fn run_captured(command: &mut Command, step: &Step) -> Result<Captured> {
    let mut child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let output = Arc::new(Mutex::new(String::new()));
    let readers = [
        child.stdout.take().map(|pipe| collect(pipe, step, &output)),
        child.stderr.take().map(|pipe| collect(pipe, step, &output)),
    ];
    let status = wait(child, &describe(command))?;
    for reader in readers.into_iter().flatten() {
        // A reader that panicked has kept what it read so far.
        let _ = reader.join();
    }
    let output = output.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Captured { status, output })
}

/// As [`run_captured`], where failing is an error that ends with what the child said last.
pub(crate) fn run_quietly(command: &mut Command, step: &Step) -> Result<()> {
    let captured = run_captured(command, step)?;
    if !captured.status.success() {
        bail!("{}: {}\n{}", describe(command), captured.status, tail(&captured.output, 30));
    }
    Ok(())
}

/// The command line as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let program = command.get_program();
    // The toolchain's full path tells a reader nothing.
    let name = std::path::Path::new(program).file_name().unwrap_or(program);
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The last lines of a longer text.
pub(crate) fn tail(text: &str, lines_max: usize) -> String {
    let lines = text.lines().collect::<Vec<_>>();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

fn spawn(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("run {}", describe(command)))
}

fn collect(pipe: impl Read + Send + 'static, step: &Step, output: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let (detail, output) = (step.detail(), Arc::clone(output));
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            detail.set(&line);
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            output.push_str(&line);
            output.push('\n');
        }
    })
}

fn wait(mut child: Child, name: &str) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().with_context(|| format!("wait for {name}"))? {
            return Ok(status);
        }
        if let Err(interrupted) = interrupt::check() {
            end(&mut child)?;
            return Err(interrupted.context(name.to_owned()));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn end(child: &mut Child) -> Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = group.context("a child has a pid")?;
    // An error means that the group has ended by itself.
    let _ = kill_process_group(group, Signal::TERM);
    let began = Instant::now();
    while child.try_wait()?.is_none() && began.elapsed() < END_TIMEOUT {
        thread::sleep(POLL_INTERVAL);
    }
    let _ = kill_process_group(group, Signal::KILL);
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_child_is_quoted() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let captured = run_captured(&mut command, &Step::begin("sh")).expect("sh runs");
        assert_eq!(captured.status.code(), Some(3));
        assert!(captured.output.contains("out\n") && captured.output.contains("err\n"));
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
