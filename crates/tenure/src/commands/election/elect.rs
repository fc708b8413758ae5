//! `tenure elect`: runs a command while this process leads.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tenure_clock::Clock;
use tenure_election::{Elector, Leadership, LossReason, OnRenewalError, Settings, Skew, Timing};
use tokio::sync::watch;
use tracing::Instrument as _;

use super::Table;
use super::guard::{NOT_EXECUTABLE, NOT_FOUND};
use super::guarded::{Ended, Guarded, Plan};
use crate::context::Context;
use crate::duration;
use crate::failure::{misuse, misuse_if_invalid};
use crate::settings::Pace;
use crate::shutdown::{self, Signalled};

/// The grace unless another is given, as a part of the lease.
const GRACE_PER_LEASE: u32 = 5;
/// How often a renewed deadline is passed on to the guard, as a part of the lease, and at least.
const TICKS_PER_LEASE: u32 = 50;
const TICK_MAX: Duration = Duration::from_millis(250);

#[derive(clap::Args)]
#[command(after_help = "\
Stands for election, and runs the command while it leads:
  it ends by itself     gives the shard up, and ends with the command's status
                        (128 + N if signal N ended it)
  leadership is lost    ends the command, stands again, and runs it anew when elected
                        (with --once, fails instead)
  tenure resign SHARD   ends the command, hands over, and stands again
  SIGTERM or SIGINT     ends the command, gives the shard up, and ends with the command's status
                        (128 + N if none ran); a second signal kills it and leaves at once

Ending the command means: SIGTERM to its process group, and after the grace SIGKILL to all that it
started. After a loss the grace ends with the lease, never later; a lease that is not renewed until
shortly before its end counts as lost, so that there is time for the grace. A process of its own
guards the lease: the command is ended in time even if `tenure elect` is stopped (SIGSTOP), and at
once if it is killed.

The command finds in its environment TENURE_SHARD, TENURE_TABLE, TENURE_OWNER (the id in the row)
and TENURE_EPOCH, which rises with every election: let what you write to refuse a lower one, and a
command that was paused with its whole machine does no harm. Its standard input is empty; standard
output and error are ours. State changes are logged on standard error (--log-format json for
machines).

Examples:
  tenure elect nightly-report -- ./report.sh
  tenure elect batches --preset fast --owner host-1 --about address=10.0.0.7:80 -- ./worker -n 4
  tenure elect batches --on-error retry --stop-grace 3s -- sh -c './worker --epoch $TENURE_EPOCH'
  tenure elect batches --go-peers --skew 1s -- ./worker")]
pub(crate) struct Args {
    /// What is led: a name that everybody who stands for it agrees on
    shard: String,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    #[command(flatten)]
    table: Table,

    /// This candidate's name, which `tenure resign --to` means; a random part makes its id [default: the host's name]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// This candidate's id as it is to stand in the row; no two live processes may have the same
    #[arg(long, value_name = "ID", conflicts_with = "owner")]
    owner_id: Option<String>,

    /// Lease and renew period: stable 30s 10s, balanced 15s 5s, fast 10s 3s [default: election.preset of the settings,
    /// balanced]
    #[arg(long)]
    preset: Option<Pace>,

    /// How long leadership lasts without renewal [default: the preset's]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    lease: Option<Duration>,

    /// How often the lease is renewed [default: the preset's; a third of --lease if that is given]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    renew: Option<Duration>,

    /// By how much any two wall clocks may differ: a row whose ttl is past by more is taken at once [default: nothing is
    /// assumed, and a row is watched for its whole lease]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    skew: Option<Duration>,

    /// Processes with the Go library stand for the same shard (needs --skew)
    #[arg(long)]
    go_peers: bool,

    /// What a renewal that failed or timed out means
    #[arg(long, value_name = "POLICY", default_value = "step-down")]
    on_error: OnError,

    /// What others should know of this leader, as `tenure leaders` shows it; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = about)]
    about: Vec<(String, String)>,

    /// How long the command may take to end after SIGTERM [default: a fifth of the lease]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    stop_grace: Option<Duration>,

    /// Lead once: after a loss, fail instead of standing again
    #[arg(long)]
    once: bool,
}

/// What a failed renewal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OnError {
    /// Leadership is over at once
    StepDown,
    /// Try again until the lease is nearly over
    Retry,
}

fn about(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not NAME=VALUE: write it like address=10.0.0.7:8080")),
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    if context.out.is_json() {
        return Err(misuse(
            "--json does not fit here: standard output is the command's; --log-format json tells state changes as JSON \
             lines on standard error",
        ));
    }
    if let Err((status, message)) = find(&args.command[0]) {
        // Before it stands for election: a follower would not know until its turn comes.
        eprintln!("error: {message}");
        return Ok(ExitCode::from(status));
    }
    let settings = settings(&args, context);
    let asked_to_end = shutdown::first_signal()?;
    // Checked before anything is opened, and again with what the store is.
    settings.timing(false).map_err(misuse_if_invalid)?;
    let store = context.store().await?;
    let timing = settings.timing(store.is_local()).map_err(misuse_if_invalid)?;
    let mut builder = Elector::builder(store, &args.shard, &context.env).settings(settings.clone());
    builder = match args.owner_id {
        Some(id) => builder.owner_id(id),
        None => builder.owner(args.owner.map_or_else(host_name, Ok)?),
    };
    for (name, value) in args.about {
        builder = builder.about(name, value);
    }
    let elector = builder.build().map_err(misuse_if_invalid)?;
    let candidate = Candidate {
        environment: BTreeMap::from([
            ("TENURE_SHARD", args.shard.clone()),
            ("TENURE_OWNER", elector.owner().to_string()),
            ("TENURE_TABLE", settings.table),
        ]),
        grace: args.stop_grace.unwrap_or(timing.lease / GRACE_PER_LEASE),
        command: args.command,
        shard: args.shard,
        clock: context.env.clock.clone(),
        elector,
        timing,
        asked_to_end,
    };
    candidate.stand(args.once).await
}

fn settings(args: &Args, context: &Context) -> Settings {
    let pace = args.preset.unwrap_or(context.settings.election.preset);
    let preset = match pace {
        Pace::Stable => Settings::stable(),
        Pace::Balanced => Settings::balanced(),
        Pace::Fast => Settings::fast(),
    };
    Settings {
        table: args.table.name(context),
        lease: args.lease.unwrap_or(preset.lease),
        renew: args.renew.or(args.lease.map(|lease| lease / 3)).unwrap_or(preset.renew),
        skew: args.skew.map_or(Skew::Unbounded, Skew::Bounded),
        go_peers: args.go_peers,
        on_renewal_error: match args.on_error {
            OnError::StepDown => OnRenewalError::StepDown,
            OnError::Retry => OnRenewalError::RetryUntilDeadline,
        },
        ..preset
    }
}

fn host_name() -> anyhow::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("read the host's name")?;
    Ok(name.trim().to_owned())
}

/// Looks for the command as the shell would: its exit status and a message if it cannot be run.
fn find(command: &OsStr) -> Result<(), (u8, String)> {
    let path = Path::new(command);
    let found = |path: &Path| path.metadata().ok().filter(std::fs::Metadata::is_file);
    let runs = |file: std::fs::Metadata| file.permissions().mode() & 0o111 != 0;
    let found = if command.as_encoded_bytes().contains(&b'/') {
        found(path).map(runs)
    } else {
        let places = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        std::env::split_paths(&places).filter_map(|place| found(&place.join(path))).map(runs).max()
    };
    let name = command.display();
    match found {
        Some(true) => Ok(()),
        Some(false) => Err((NOT_EXECUTABLE, format!("`{name}` cannot be run: it is not executable"))),
        None => Err((NOT_FOUND, format!("command `{name}` is not there: nothing was done"))),
    }
}

struct Candidate {
    elector: Elector,
    shard: String,
    command: Vec<OsString>,
    environment: BTreeMap<&'static str, String>,
    grace: Duration,
    timing: Timing,
    clock: Arc<dyn Clock>,
    asked_to_end: watch::Receiver<Option<Signalled>>,
}

/// What to do after a term.
enum After {
    Stand,
    End(ExitCode),
}

/// Why a command should not go on.
enum Why {
    Ended(Ended),
    Signal(Signalled),
    Lost(LossReason),
    Asked(Option<Arc<str>>),
}

impl Candidate {
    async fn stand(&self, once: bool) -> anyhow::Result<ExitCode> {
        // The elector's own lines have a span with these; those of a term name it.
        tracing::info!(shard = self.shard, owner = %self.elector.owner(), "standing for election");
        loop {
            let leadership = tokio::select! {
                biased;
                signal = self.signal() => {
                    self.elector.stop().await;
                    return Ok(signal.status());
                }
                elected = self.elector.lead() => elected.map_err(misuse_if_invalid)?,
            };
            let span = tracing::info_span!("term", shard = self.shard, epoch = leadership.fence().epoch().0);
            let after = self.lead(leadership).instrument(span).await;
            if once || !matches!(after, Ok(After::Stand)) {
                self.elector.stop().await;
            }
            match after? {
                After::End(status) => return Ok(status),
                After::Stand if once => {
                    anyhow::bail!(
                        "leadership of shard `{}` was lost, and --once says not to stand again",
                        self.shard
                    );
                }
                After::Stand => {}
            }
        }
    }

    async fn signal(&self) -> Signalled {
        let mut asked = self.asked_to_end.clone();
        let signal = asked.wait_for(Option::is_some).await.ok().and_then(|signal| *signal);
        match signal {
            Some(signal) => signal,
            // Nobody listens to signals any more: the process is ending.
            None => std::future::pending().await,
        }
    }

    /// One term: runs the command until it ends or must end. Whatever the answer, nothing of it is left.
    async fn lead(&self, leadership: Leadership) -> anyhow::Result<After> {
        let term = leadership.term().clone();
        let mut environment = self.environment.clone();
        environment.insert("TENURE_EPOCH", term.fence().epoch().to_string());
        let plan = Plan {
            command: self.command.clone(),
            environment,
            grace: self.grace,
            // At most half of what is left when the next renewal is due, so that a late renewal has its chance.
            early: self.grace.min(self.timing.validity.saturating_sub(self.timing.renew) / 2),
            tick: (self.timing.lease / TICKS_PER_LEASE).min(TICK_MAX),
        };
        let mut command = Guarded::start(&plan, &term)?;
        let why = tokio::select! {
            biased;
            ended = command.ended() => Why::Ended(ended),
            signal = self.signal() => Why::Signal(signal),
            reason = term.lost() => Why::Lost(reason),
            to = term.resign_asked() => Why::Asked(to),
        };
        match why {
            Why::Ended(ended) if ended.late => {
                resign(leadership, None).await;
                Ok(After::Stand)
            }
            Why::Ended(ended) => {
                tracing::info!(status = ended.status, "command ended");
                resign(leadership, None).await;
                Ok(After::End(ExitCode::from(ended.status)))
            }
            Why::Signal(signal) => {
                tracing::info!(signal = signal.name(), "ending the command");
                let ended = self.end(&mut command, &leadership).await;
                tracing::info!(status = ended.status, "command ended");
                resign(leadership, None).await;
                Ok(After::End(ExitCode::from(ended.status)))
            }
            Why::Lost(reason) => {
                let ended = self.end(&mut command, &leadership).await;
                tracing::info!(status = ended.status, reason = reason.name(), "command ended after a loss");
                Ok(After::Stand)
            }
            Why::Asked(to) => {
                let ended = self.end(&mut command, &leadership).await;
                tracing::info!(status = ended.status, to = to.as_deref(), "command ended to hand over");
                resign(leadership, to.as_deref()).await;
                Ok(After::Stand)
            }
        }
    }

    /// Ends the command. It has its grace while the term is renewed, what is left of the lease if not, and
    /// nothing if the shard may be somebody else's.
    async fn end(&self, command: &mut Guarded, leadership: &Leadership) -> Ended {
        command.ask();
        let mut kill_at = self.clock.deadline(self.grace);
        let mut lost = false;
        loop {
            tokio::select! {
                biased;
                ended = command.ended() => return ended,
                reason = leadership.lost(), if !lost => {
                    lost = true;
                    let until = if may_linger(&reason) { command.until() } else { self.clock.monotonic() };
                    kill_at = kill_at.min(until);
                }
                () = self.clock.sleep_until(kill_at) => return command.kill().await,
            }
        }
    }
}

/// Whether the row is still ours after such a loss, so that the command may use what is left of the lease.
const fn may_linger(reason: &LossReason) -> bool {
    match reason {
        LossReason::StoreDown | LossReason::Unhealthy => true,
        LossReason::Expired
        | LossReason::Superseded { .. }
        | LossReason::Resigned
        | LossReason::LeaderLockLost => false,
    }
}

async fn resign(leadership: Leadership, to: Option<&str>) {
    // A term that is over has nothing to give up.
    if leadership.is_valid()
        && let Err(error) = leadership.resign(to).await
    {
        tracing::warn!(error = %error.chain(), "resign");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_looked_for_as_the_shell_does() {
        assert!(find(OsStr::new("sh")).is_ok() && find(OsStr::new("/bin/sh")).is_ok());
        assert_eq!(find(OsStr::new("no-such-command")).unwrap_err().0, NOT_FOUND);
        assert_eq!(find(OsStr::new("/etc/passwd")).unwrap_err().0, NOT_EXECUTABLE);
        assert_eq!(find(OsStr::new("./nowhere")).unwrap_err().0, NOT_FOUND);
    }

    #[test]
    fn a_leader_describes_itself_by_pairs() {
        assert_eq!(about("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(about("=x").is_err() && about("x").is_err());
    }
}
