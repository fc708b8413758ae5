//! A command that processes the records of a shard, batch by batch.
//!
//! It gets a batch as lines of JSON on its standard input and has processed it when it ends well. So a
//! checkpoint never passes what a command has read and not dealt with, as it would if one command were fed
//! for ever.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

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
            if !status.success() {
                return Err(format!("the command ended with {status}").into());
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
        self.group = None;
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // It may have ended by itself a moment ago.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
