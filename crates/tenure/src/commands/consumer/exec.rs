//! A command that processes the records of a shard, batch by batch.
//!
//! It gets a batch as lines of JSON on its standard input and has processed it when it ends well. So a
//! checkpoint never passes what a command has read and not dealt with, as it would if one command were fed
//! for ever.

use std::collections::BTreeSet;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tenure_backend::{Error, Kind};
use tenure_consumer::{Batch, Failure, ShardContext, ShardProcessor};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

use super::consume::lines;

/// Most records that one command gets: what it has done is settled before the next, so that a slow command
/// loses little when its shard goes elsewhere.
const RECORDS_MAX: usize = 500;

/// The process groups of all commands that run.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Kills all commands that run: their worker leaves at once, and their shards will be another's.
pub(super) fn kill_all() {
    for group in std::mem::take(&mut *GROUPS.lock().unwrap_or_else(PoisonError::into_inner)) {
        if let Some(group) = Pid::from_raw(group) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs the command for each batch of one shard.
pub(super) struct Exec {
    pub(super) command: Arc<str>,
}

#[async_trait]
impl ShardProcessor for Exec {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        for records in batch.records().chunks(RECORDS_MAX) {
            if !batch.is_valid() {
                return Err(Error::new(Kind::Fenced, "the lease is over").into());
            }
            let mut running = Running::start(&self.command, batch.shard())?;
            let status = running.feed(lines(batch.shard(), records)).await?;
            match status.code() {
                Some(0) => {}
                // What a shell says of a command that it cannot find, or not run: no record is to blame.
                Some(code @ (126 | 127)) => {
                    let text = format!("the command could not be run (status {code}): correct --exec");
                    return Err(Error::unavailable(text).into());
                }
                _ => return Err(format!("the command ended with {status}").into()),
            }
            if let Some(last) = records.last() {
                batch.settle_through(last);
            }
        }
        Ok(())
    }
}

/// A command that runs. Dropped before it ended, it is killed with all that it started: the shard may be
/// another worker's by then.
struct Running {
    child: Child,
    group: Option<Pid>,
}

impl Running {
    fn start(command: &str, shard: &ShardContext) -> Result<Self, Failure> {
        let child = Command::new("sh")
            .args(["-c", command])
            .env("TENURE_APP", shard.app())
            .env("TENURE_STREAM", shard.stream())
            .env("TENURE_SHARD", shard.shard().as_str())
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            // No record is to blame.
            .map_err(|error| Error::unavailable("start the command").because(error))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            GROUPS.lock().unwrap_or_else(PoisonError::into_inner).insert(group.as_raw_pid());
        }
        Ok(Self { child, group })
    }

    /// Feeds it, and waits for its end. One that ends well without having read everything has decided so.
    async fn feed(&mut self, lines: Vec<u8>) -> Result<ExitStatus, Failure> {
        let input = self.child.stdin.take();
        let feeding = async move {
            if let Some(mut input) = input {
                // It hears no more when it has ended or closed its input: its status says what that means.
                let _ = input.write_all(&lines).await;
            }
        };
        tokio::pin!(feeding);
        let failed = |error| Error::unavailable("run the command").because(error);
        let ended = tokio::select! {
            biased;
            ended = self.child.wait() => ended,
            () = &mut feeding => self.child.wait().await,
        };
        let status = ended.map_err(failed)?;
        // What it left in the background is its own business.
        self.forget();
        Ok(status)
    }
}

impl Running {
    fn forget(&mut self) -> Option<Pid> {
        let group = self.group.take()?;
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&group.as_raw_pid());
        Some(group)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.forget() {
            // It may have ended by itself a moment ago.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
