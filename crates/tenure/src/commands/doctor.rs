//! `tenure doctor`: tries what is configured, and says what to do.
//!
//! It writes one row with a nonce of its own to the table `tenure_doctor`, reads it, is refused a
//! second time, and removes it. Nothing else is changed.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tenure_backend::Env;
use tenure_clock::{Monotonic, WallTime};
use tenure_store::{Condition, Item, Key, KeyAttribute, Store, StoreExt, TableSpec, Written};
use tenure_stream::{Kind, Stream, StreamExt};

use crate::context::Context;
use crate::failure::{self, FAILED};
use crate::output::{Output, counted};
use crate::settings::{AddressText, KEYS, Loaded, Settings};

/// The table that is written to.
const TABLE: &str = "tenure_doctor";
/// When a row that could not be removed may be swept away.
const ROW_LIFE: Duration = Duration::from_secs(3600);
/// Less free space than this is worth a word: retention of the embedded stream alone may take it.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Check settings, store, stream, database and machine, and say what to do.
#[derive(clap::Args)]
#[command(after_help = "\
Checks the settings, the store, the table of the elections if there is one, the stream, the database under [postgres]
if there is one, and the machine. To try the store it makes the table `tenure_doctor` (where it is missing), and in it
writes, reads, refuses and removes one row of its own. The rest is only looked at (a SQLite file that is missing is
created, empty).
Exit status 1 if a check fails; warnings do not count.

Examples:
  tenure doctor
  tenure doctor --json --timeout 3s
  tenure doctor --store postgres://tenure@db.example.com/tenure")]
pub(crate) struct Args {}

/// What the checks need.
#[derive(Debug)]
pub(crate) struct Doctor<'a> {
    /// Time and randomness.
    pub(crate) env: Env,
    /// How long one call may take.
    pub(crate) timeout: Duration,
    /// Where findings go.
    pub(crate) out: &'a Output,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// What one check found.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    status: Verdict,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, status: Verdict::Ok, message: message.into(), advice: None }
    }

    fn warn(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, status: Verdict::Warn, message: message.into(), advice: Some(advice.into()) }
    }

    fn fail(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, status: Verdict::Fail, message: message.into(), advice: Some(advice.into()) }
    }

    /// A failure whose message says what to do.
    fn error(check: &'static str, error: &anyhow::Error) -> Self {
        Self { check, status: Verdict::Fail, message: failure::line(error), advice: None }
    }
}

impl Doctor<'_> {
    /// Makes all checks and shows what each found.
    pub(crate) async fn run(self, _args: &Args, loaded: anyhow::Result<Loaded>) -> anyhow::Result<ExitCode> {
        let mut tally = [0u32; 3];
        let mut say = |finding: Finding| {
            tally[finding.status as usize] += 1;
            self.say(&finding)
        };
        match loaded {
            Err(error) => say(Finding::error("config", &error))?,
            Ok(loaded) => {
                say(config(&loaded))?;
                let context = Context {
                    settings: loaded.settings,
                    env: self.env.clone(),
                    timeout: self.timeout,
                    out: Output::new(self.out.is_json()),
                };
                say(store(&context).await)?;
                if let Some(finding) = election(&context).await {
                    say(finding)?;
                }
                say(stream(&context).await)?;
                for finding in Box::pin(database(&context)).await {
                    say(finding)?;
                }
                for finding in disks(&context.settings) {
                    say(finding)?;
                }
            }
        }
        say(monotonic(&self.env).await)?;
        say(wall(self.env.clock.wall()))?;
        let [ok, warnings, failures] = tally;
        self.out.say(
            || json!({ "ok": failures == 0, "passed": ok, "warnings": warnings, "failures": failures }),
            || format!("{ok} ok, {}, {}", counted(warnings, "warning"), counted(failures, "failure")),
        )?;
        Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
    }

    fn say(&self, finding: &Finding) -> anyhow::Result<()> {
        let Finding { check, status, message, advice } = finding;
        self.out.say(
            || finding,
            || {
                let status = match status {
                    Verdict::Ok => "ok  ",
                    Verdict::Warn => "warn",
                    Verdict::Fail => "fail",
                };
                let advice =
                    advice.as_ref().map(|advice| format!("\n                → {advice}")).unwrap_or_default();
                format!("{status}  {check:8}  {message}{advice}")
            },
        )?;
        self.out.flush()
    }
}

// === Settings ===

fn config(loaded: &Loaded) -> Finding {
    let shown = |key| Some(format!("{}={}", crate::settings::Key::path(key), loaded.settings.shown(key)?));
    let merged = KEYS.iter().filter_map(shown).collect::<Vec<_>>().join(" ");
    match &loaded.file {
        Some(file) => Finding::ok("config", format!("{}: {merged}", file.display())),
        None => Finding::ok("config", format!("no tenure.toml, defaults and environment: {merged}")),
    }
}

// === Store ===

async fn store(context: &Context) -> Finding {
    match try_store(context).await {
        Ok(()) => Finding::ok(
            "store",
            format!(
                "{}: wrote, read, was rightly refused, and removed a row of table `{TABLE}`",
                context.settings.store.url
            ),
        ),
        Err(error) => Finding::error("store", &error),
    }
}

async fn try_store(context: &Context) -> anyhow::Result<()> {
    let store = context.store().await?;
    let spec = TableSpec::new(TABLE, KeyAttribute::text("nonce")).with_ttl("expires");
    store
        .ensure_table(context.by(), &spec)
        .await
        .map_err(|error| error.during(format!("make table `{TABLE}`")))?;
    let nonce = context.env.entropy.nonce();
    let key = Key::new("nonce", nonce.as_str());
    let expires = (context.env.clock.wall() + ROW_LIFE).as_seconds();
    let row = Item::new().with("nonce", nonce.as_str()).with("expires", expires);
    let tried = try_row(context, &*store, &key, &row).await;
    // Removed whatever came of it; what cannot be removed is swept away later.
    let removed = store.delete(context.by(), TABLE, key, Condition::Always).await;
    tried?;
    removed.map_err(|error| error.during(format!("remove a row of table `{TABLE}`")))?;
    Ok(())
}

async fn try_row(context: &Context, store: &dyn Store, key: &Key, row: &Item) -> anyhow::Result<()> {
    let put = || store.put(context.by(), TABLE, row.clone(), Condition::absent("nonce"));
    let during = |what: &str| {
        let what = format!("{what} a row of table `{TABLE}`");
        move |error: tenure_store::Error| error.during(what)
    };
    let first = put().await.map_err(during("write"))?;
    anyhow::ensure!(
        first.is_applied(),
        "a new row was refused: does another program use the table `{TABLE}`?"
    );
    let read = store.get(context.by(), TABLE, key).await.map_err(during("read"))?;
    anyhow::ensure!(
        read.as_ref() == Some(row),
        "a row does not read as it was written: do not use this store"
    );
    let second = put().await.map_err(during("write"))?;
    let Written::Refused(refusal) = second else {
        anyhow::bail!("a condition that did not hold was not refused: do not use this store");
    };
    anyhow::ensure!(
        refusal.current.as_ref() == Some(row),
        "a refusal showed another row: do not use this store"
    );
    Ok(())
}

// === Election ===

/// The table of the elections, if somebody made it: it must have their key.
async fn election(context: &Context) -> Option<Finding> {
    // A store that cannot be opened was told of already.
    let store = context.store().await.ok()?;
    let table = &context.settings.election.table;
    Some(match store.describe_table(context.by(), table).await {
        Ok(found) => match tenure_election::table_spec(table).check_same_key(&found?) {
            Ok(()) => Finding::ok("election", format!("table `{table}` has the key of elections")),
            Err(error) => Finding::fail(
                "election",
                error.chain(),
                "name another with `table` under [election], or with --table",
            ),
        },
        Err(error) => Finding::error("election", &error.during(format!("describe table `{table}`")).into()),
    })
}

// === Stream ===

async fn stream(context: &Context) -> Finding {
    let url = &context.settings.stream.url;
    match context.stream().await {
        Ok(stream) => look_at_stream(context, &*stream, url).await,
        Err(error) => Finding::error("stream", &error),
    }
}

async fn look_at_stream(context: &Context, stream: &dyn Stream, url: &AddressText) -> Finding {
    let name = stream.name();
    match stream.describe(context.by()).await {
        Ok(_) => {}
        Err(error) if error.kind() == Kind::Invalid => {
            return Finding::warn(
                "stream",
                format!("{url}: {}", error.chain()),
                "make it with `tenure stream create`",
            );
        }
        Err(error) => {
            return Finding::error("stream", &error.during(format!("describe stream {url}")).into());
        }
    }
    match stream.all_shards(context.by()).await {
        Ok(shards) => {
            let open = shards.iter().filter(|shard| shard.is_open()).count();
            let all = shards.len();
            Finding::ok("stream", format!("{url}: stream `{name}` has {open} open shards of {all}"))
        }
        Err(error) => {
            Finding::error("stream", &error.during(format!("list the shards of stream {url}")).into())
        }
    }
}

// === Database ===

#[cfg(feature = "postgres")]
async fn database(context: &Context) -> Vec<Finding> {
    let Some(url) = &context.settings.postgres.url else { return Vec::new() };
    match tenure_store::survey_postgres(url.reveal(), context.by(), &context.env).await {
        Ok(found) => judge(&found),
        Err(error) => {
            vec![Finding::error("postgres", &error.during(format!("look at database {url}")).into())]
        }
    }
}

#[cfg(not(feature = "postgres"))]
#[allow(clippy::unused_async, reason = "stands in for the one that awaits")]
async fn database(context: &Context) -> Vec<Finding> {
    let Some(url) = &context.settings.postgres.url else { return Vec::new() };
    let message = format!("database {url} was not looked at: this build leaves Postgres out");
    vec![Finding::fail("postgres", message, "build it with `--features postgres`")]
}

#[cfg(feature = "postgres")]
fn judge(found: &tenure_store::PostgresSurvey) -> Vec<Finding> {
    let check = "postgres";
    let place = &found.place;
    let mut findings = Vec::new();
    if found.in_recovery {
        findings.push(Finding::warn(
            check,
            format!("{place} is a standby"),
            "point [postgres] url at the primary: changes are captured there",
        ));
    }
    if found.wal_level != "logical" {
        findings.push(Finding::fail(
            check,
            format!("{place} has wal_level={}", found.wal_level),
            "set wal_level=logical and restart the server (on RDS: rds.logical_replication=1)",
        ));
    }
    if !found.may_replicate {
        let user = &found.user;
        findings.push(Finding::fail(
            check,
            format!("user `{user}` of {place} may not replicate"),
            format!("as a superuser: ALTER ROLE \"{user}\" REPLICATION (on RDS: GRANT rds_replication TO \"{user}\")"),
        ));
    }
    if found.slots_used >= i64::from(found.slots_max) {
        findings.push(Finding::fail(
            check,
            format!("{place} has {} of {} replication slots in use", found.slots_used, found.slots_max),
            "drop a slot that nobody reads, or raise max_replication_slots",
        ));
    }
    if found.senders_max == 0 {
        findings.push(Finding::fail(
            check,
            format!("{place} has max_wal_senders=0"),
            "set max_wal_senders to 10 and restart the server",
        ));
    }
    if findings.is_empty() {
        let (version, used, max) = (&found.version, found.slots_used, found.slots_max);
        findings.push(Finding::ok(
            check,
            format!(
                "{place}: Postgres {version}, wal_level=logical, may replicate, {used} of {max} slots in use"
            ),
        ));
    }
    findings
}

// === Machine ===

/// Free space where embedded files lie, once per file system place.
fn disks(settings: &Settings) -> Vec<Finding> {
    let mut files: Vec<&str> =
        [&settings.store.url, &settings.stream.url].iter().filter_map(|url| url.file()).collect();
    files.dedup();
    files.into_iter().map(disk).collect()
}

fn disk(file: &str) -> Finding {
    let directory = match Path::new(file).parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let shown = directory.display();
    match rustix::fs::statvfs(directory) {
        Ok(space) => {
            let free = space.f_bavail.saturating_mul(space.f_frsize);
            let message = format!("{} MiB free in {shown}", free >> 20);
            match free < FREE_BYTES_MIN {
                true => Finding::warn("disk", message, "free some space: a full disk stops every write"),
                false => Finding::ok("disk", message),
            }
        }
        Err(error) => Finding::fail(
            "disk",
            format!("{shown}: {error}"),
            "make the directory, or choose another place for the store and the stream",
        ),
    }
}

/// A millisecond of waiting must be a millisecond or more on the clock that leases are measured with.
async fn monotonic(env: &Env) -> Finding {
    let wait = Duration::from_millis(1);
    let before = env.clock.monotonic();
    env.clock.sleep(wait).await;
    let after = env.clock.monotonic();
    match before > Monotonic::default() && after.since(before) >= wait {
        true => Finding::ok("clock", "CLOCK_BOOTTIME counts, suspended time included"),
        false => Finding::fail(
            "clock",
            "CLOCK_BOOTTIME does not count",
            "run on a kernel that has it (Linux 2.6.39)",
        ),
    }
}

/// The years in which this program can run: it was made after the first, and leases would be judged
/// wrong long before the second.
fn wall(now: WallTime) -> Finding {
    const EARLIEST: WallTime = WallTime::from_millis(1_735_689_600_000); // 2025-01-01
    const LATEST: WallTime = WallTime::from_millis(4_102_444_800_000); // 2100-01-01
    match (EARLIEST..LATEST).contains(&now) {
        true => Finding::ok("clock", format!("the wall clock says {now}")),
        false => Finding::fail(
            "clock",
            format!("the wall clock says {now}"),
            "set it, and keep it so with NTP (chrony or systemd-timesyncd)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_outside_our_time_fails() {
        assert_eq!(wall(WallTime::from_millis(0)).status, Verdict::Fail);
        assert_eq!(wall(WallTime::from_millis(1_763_553_900_000)).status, Verdict::Ok);
    }

    #[test]
    fn a_missing_directory_is_told() {
        let finding = disk("/nowhere/at/all/tenure.db");
        assert_eq!(finding.status, Verdict::Fail);
        assert!(finding.message.contains("/nowhere/at/all"));
        assert_ne!(disk("tenure.db").status, Verdict::Fail);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_database_is_judged_by_what_capturing_needs() {
        let good = tenure_store::PostgresSurvey {
            place: "postgres db:5432/app".to_owned(),
            version: "17.2".to_owned(),
            wal_level: "logical".to_owned(),
            in_recovery: false,
            slots_max: 10,
            slots_used: 1,
            senders_max: 10,
            user: "ann".to_owned(),
            may_replicate: true,
        };
        assert_eq!(judge(&good)[0].status, Verdict::Ok);
        let bad = tenure_store::PostgresSurvey {
            wal_level: "replica".to_owned(),
            may_replicate: false,
            slots_used: 10,
            senders_max: 0,
            ..good
        };
        let findings = judge(&bad);
        assert_eq!(findings.len(), 4);
        assert!(findings.iter().all(|finding| finding.status == Verdict::Fail && finding.advice.is_some()));
    }
}
