//! `tenure leaders`: who leads what, as the rows say.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tenure_clock::WallTime;
use tenure_election::{Lock, Place, shard_of};
use tenure_store::{Item, Store, StoreExt};

use super::Table;
use crate::context::Context;
use crate::failure::misuse_if_invalid;
use crate::output::{aligned, one_line};
use crate::{duration, looking};

/// Most rows that are read, two per shard: they are all kept in memory.
const ROWS_MAX: usize = 100_000;

#[derive(clap::Args)]
#[command(after_help = "\
One line per shard, sorted: the leader's name, its epoch, since when, its lease, and what it says of
itself.
  led         somebody leads, as far as the row says
  past        the row's ttl is past by this machine's clock: its leader has probably gone, and
              nobody claimed the shard since; candidates judge by watching the row, not by this
  released    its leader gave it up, and nobody claimed it since
  unreadable  the row is not one of an election; candidates leave it alone, and fail
With --watch changes are printed until SIGINT or SIGTERM; a renewal is none.

Examples:
  tenure leaders
  tenure leaders --json | jq -r 'select(.state == \"led\") | .shard'
  tenure leaders --watch --interval 200ms")]
pub(crate) struct Args {
    #[command(flatten)]
    table: Table,

    /// Print changes until SIGINT or SIGTERM
    #[arg(long)]
    watch: bool,

    /// How long to wait between two looks of --watch
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration::parse_positive)]
    interval: Duration,
}

impl Args {
    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        self.watch
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let store = context.store().await?;
    let table = args.table.existing(context, &*store).await?;
    if args.watch {
        return watch(&table, args.interval, context, &*store).await;
    }
    let found =
        context.look(async |by| read(&table, store.scan_all(by, &table, ROWS_MAX).await?, context)).await;
    let found = found.map_err(misuse_if_invalid).with_context(|| format!("scan table `{table}`"))?;
    if context.out.is_json() {
        for line in found.values() {
            context.out.json_line(line)?;
        }
        context.out.json_line(&serde_json::json!({ "shards": found.len() }))?;
    } else if found.is_empty() {
        context.out.line(&format!("nobody ever led anything in table `{table}`"))?;
    } else {
        let lines: Vec<_> = found.values().map(Line::cells).collect();
        for line in aligned(&lines) {
            context.out.line(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

// === one shard ===

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Led,
    Past,
    Released,
    Unreadable,
}

/// What a row says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    shard: String,
    state: State,
    /// The leader, or the last one: its name and its id. The name is absent of a Go process.
    name: Option<String>,
    owner: Option<String>,
    epoch: Option<u64>,
    /// When its term began, by its own clock.
    since: Option<String>,
    about: BTreeMap<String, String>,
    lease_ms: Option<u64>,
    /// Epoch second; 0 once released.
    ttl: Option<i64>,
    /// Of a released row: who should have it next.
    reserved_for: Option<String>,
    /// Somebody asked the leader to hand over.
    resign_asked: bool,
    /// What is wrong with an unreadable row.
    problem: Option<String>,
}

impl Line {
    fn of(shard: &str, lock: &Lock, now: WallTime) -> Self {
        let card = lock.card.as_ref();
        Self {
            shard: shard.to_owned(),
            state: match lock {
                lock if lock.is_released() => State::Released,
                lock if lock.ttl < now.as_seconds() => State::Past,
                _ => State::Led,
            },
            name: card.map(|card| card.name.to_string()),
            owner: Some(lock.owner.to_string()),
            epoch: lock.epoch.map(|epoch| epoch.0),
            since: card.map(|card| card.since.to_string()),
            about: card.map(|card| (*card.about).clone()).unwrap_or_default(),
            lease_ms: lock.lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)),
            ttl: Some(lock.ttl),
            reserved_for: lock.reserved_for.as_ref().map(ToString::to_string),
            resign_asked: lock.resign.is_some(),
            problem: None,
        }
    }

    fn unreadable(shard: &str, problem: String) -> Self {
        Self {
            shard: shard.to_owned(),
            state: State::Unreadable,
            name: None,
            owner: None,
            epoch: None,
            since: None,
            about: BTreeMap::new(),
            lease_ms: None,
            ttl: None,
            reserved_for: None,
            resign_asked: false,
            problem: Some(problem),
        }
    }

    /// What makes a change: everything but renewals.
    fn told(&self) -> Self {
        Self { ttl: None, ..self.clone() }
    }

    /// The columns for people, the last as long as it likes.
    fn cells(&self) -> [String; 7] {
        let or_dash = |text: Option<String>| one_line(text.as_deref().unwrap_or("-"));
        let state = match self.state {
            State::Led => "led",
            State::Past => "past",
            State::Released => "released",
            State::Unreadable => "unreadable",
        };
        let mut rest = Vec::new();
        if let Some(owner) = &self.owner {
            rest.push(format!("owner={owner}"));
        }
        rest.extend(self.about.iter().map(|(name, value)| format!("{name}={value}")));
        rest.extend(self.reserved_for.iter().map(|name| format!("(reserved for {name})")));
        rest.extend(self.resign_asked.then(|| "(asked to resign)".to_owned()));
        rest.extend(self.problem.clone());
        [
            one_line(&self.shard),
            state.to_owned(),
            or_dash(self.name.clone()),
            or_dash(self.epoch.map(|epoch| format!("epoch {epoch}"))),
            or_dash(self.since.clone()),
            or_dash(self.lease_ms.map(|lease| duration::shown(Duration::from_millis(lease)))),
            one_line(&rest.join(" ")),
        ]
    }
}

type Lines = BTreeMap<String, Line>;

/// The LOCK rows among the items, by shard.
#[allow(clippy::unnecessary_wraps, reason = "stands in a look, which may be made again")]
fn read(table: &str, items: Vec<Item>, context: &Context) -> tenure_store::Result<Lines> {
    let now = context.env.clock.wall();
    let lines = items.iter().filter_map(|item| line_of(table, item, now));
    Ok(lines.map(|line| (line.shard.clone(), line)).collect())
}

fn line_of(table: &str, item: &Item, now: WallTime) -> Option<Line> {
    let Some(shard) = shard_of(item) else {
        // The FENCE rows, and what is none of ours.
        let pk = item.text("pk").filter(|_| item.text("sk") == Some("LOCK"))?;
        return Some(Line::unreadable(pk, "its `pk` is not SHARD# and a shard id".to_owned()));
    };
    let place = Place { table: table.to_owned(), shard };
    Some(match place.lock(item) {
        Ok(lock) => Line::of(place.shard.as_str(), &lock, now),
        Err(error) => Line::unreadable(place.shard.as_str(), error.chain()),
    })
}

// === --watch ===

async fn watch(
    table: &str,
    interval: Duration,
    context: &Context,
    store: &dyn Store,
) -> anyhow::Result<ExitCode> {
    let mut seen: Option<Lines> = None;
    let look = async || read(table, store.scan_all(context.by(), table, ROWS_MAX).await?, context);
    looking::until_asked_to_end(context, table, interval, look, |found| {
        for (event, line) in changes(seen.as_ref(), &found) {
            say(event, line, context)?;
        }
        seen = Some(found);
        Ok(())
    })
    .await
}

fn changes<'a>(before: Option<&'a Lines>, now: &'a Lines) -> Vec<(&'static str, &'a Line)> {
    let Some(before) = before else { return now.values().map(|line| ("present", line)).collect() };
    let gone =
        before.iter().filter(|(shard, _)| !now.contains_key(*shard)).map(|(_, line)| ("removed", line));
    let other = now.iter().filter_map(|(shard, line)| match before.get(shard) {
        None => Some(("added", line)),
        Some(was) if was.told() != line.told() => Some(("changed", line)),
        Some(_) => None,
    });
    gone.chain(other).collect()
}

#[derive(Serialize)]
struct Change<'a> {
    at: String,
    event: &'static str,
    #[serde(flatten)]
    line: &'a Line,
}

fn say(event: &'static str, line: &Line, context: &Context) -> anyhow::Result<()> {
    let at = context.env.clock.wall().to_string();
    context.out.say(
        || Change { at: at.clone(), event, line },
        || format!("{at}  {event:7}  {}", line.cells().join("  ").trim_end()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallTime = WallTime::from_millis(1_000_000);

    fn row(pk: &str, ttl: i64) -> Item {
        Item::new().with("pk", pk).with("sk", "LOCK").with("ownerId", "go-1").with("ttl", ttl)
    }

    #[test]
    fn rows_are_told_apart() {
        let line = |item: &Item| line_of("t", item, NOW);
        let state = |item: &Item| line(item).map(|line| line.state);
        assert_eq!(state(&row("SHARD#a", 1000)), Some(State::Led));
        assert_eq!(state(&row("SHARD#a", 999)), Some(State::Past));
        assert_eq!(state(&row("SHARD#a", 0)), Some(State::Released));
        assert_eq!(state(&row("SHARD#a", 1000).with("epoch", "x")), Some(State::Unreadable));
        assert_eq!(state(&row("other", 1000)), Some(State::Unreadable));
        assert_eq!(line(&row("SHARD#a", 1000).with("sk", "FENCE")), None);
        assert_eq!(line(&Item::new().with("pk", "x")), None);
    }

    #[test]
    fn a_renewal_is_no_change() {
        let lines = |items: &[Item]| -> Lines {
            let lines = items.iter().filter_map(|item| line_of("t", item, NOW));
            lines.map(|line| (line.shard.clone(), line)).collect()
        };
        let before = lines(&[row("SHARD#a", 1000), row("SHARD#b", 1000), row("SHARD#c", 1000)]);
        let now = lines(&[row("SHARD#b", 1005), row("SHARD#c", 0), row("SHARD#d", 1000)]);
        let told: Vec<_> = changes(Some(&before), &now)
            .into_iter()
            .map(|(event, line)| (event, line.shard.as_str()))
            .collect();
        assert_eq!(told, [("removed", "a"), ("changed", "c"), ("added", "d")]);
        assert_eq!(changes(None, &before).len(), 3);
    }
}
