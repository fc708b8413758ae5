//! The race: several processes put one row on condition that it is not there. One wins.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tenure_clock::{Clock, Monotonic, SystemClock};
use tenure_store::{Condition, Item, Key, Kind, Store, StoreExt, Written};
use tokio::sync::mpsc;

use super::crew::{Crew, Name, What};
use super::display::Display;
use super::rows::RACES;
use super::site::Site;
use super::wire::{Report, report};

const RACERS: u32 = 6;
const ROUNDS: u32 = 20;

/// From the starting order to the start: enough for the order to reach every racer.
const STARTING_TIME: Duration = Duration::from_millis(10);

/// After so long no further race is begun: a slow disk must not hold up the rest.
const RACES_TIMEOUT: Duration = Duration::from_secs(10);

/// A round is a handful of commits.
const ROUND_TIMEOUT: Duration = Duration::from_secs(20);

/// Attempts of a racer to get an answer from the store.
const ATTEMPTS_MAX: u32 = 5;

/// How the races ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Races {
    /// Races held.
    pub races: u64,
    /// Races with exactly one winner, whose row all others were shown.
    pub single_winners: u64,
    /// Refused racers, over all races.
    pub losers: u64,
    /// Races won, by racer.
    pub wins: BTreeMap<Name, u64>,
}

/// Holds all races.
pub(super) async fn hold(crew: &mut Crew, site: &Site, display: &mut Display) -> Result<Races> {
    let racers: Vec<Name> = (1..=RACERS).map(Name::racer).collect();
    display.say(&format!("{RACERS} processes race for one row, and again for another, {ROUNDS} times."))?;
    crew.start_all(&racers).await?;
    let mut races = Races::default();
    let by = SystemClock.deadline(RACES_TIMEOUT);
    for round in (1..=ROUNDS).take_while(|_| SystemClock.monotonic() < by) {
        if let Some(broken) = hold_one(crew, site, &racers, round, &mut races).await? {
            display.event(&broken, json!({"event": "race_broken", "round": round}))?;
        }
    }
    for racer in &racers {
        crew.ask_to_end(*racer);
    }
    let by = SystemClock.deadline(ROUND_TIMEOUT);
    for _ in &racers {
        let heard = crew.next_by(by).await?;
        ensure!(matches!(heard.what, What::Closed), "{} spoke after the races", heard.who);
        crew.bury(heard.who).await?;
    }
    let wins: Vec<_> = races.wins.iter().map(|(racer, wins)| format!("{racer} {wins}")).collect();
    display.event(
        &format!(
            "{} races, {} single winners ({}); {} losers were refused and shown the winner's row.",
            races.races,
            races.single_winners,
            wins.join(", "),
            races.losers
        ),
        json!({"event": "races", "races": races.races, "race_winners": races.single_winners}),
    )?;
    Ok(races)
}

/// Holds one race; says what was wrong with it, if anything was.
async fn hold_one(
    crew: &mut Crew,
    site: &Site,
    racers: &[Name],
    round: u32,
    races: &mut Races,
) -> Result<Option<String>> {
    let start = SystemClock.deadline(STARTING_TIME);
    for racer in racers {
        crew.order(*racer, &format!("{round} {}", start.as_nanos())).await?;
    }
    let by = SystemClock.deadline(ROUND_TIMEOUT);
    let (mut winners, mut told) = (Vec::new(), Vec::new());
    for _ in racers {
        let heard = crew.next_by(by).await.with_context(|| format!("hold race {round}"))?;
        match heard.what {
            What::Said(Report::Raced { round: raced, won, winner }) if raced == round => {
                winners.extend(won.then_some(heard.who));
                told.push((heard.who, winner));
            }
            What::Said(other) => bail!("{} raced for round {round} and said {other:?}", heard.who),
            What::Closed => return Err(crew.failure_of(heard.who).await),
        }
    }
    let row = site.store.get(site.soon(), RACES, &key(round)).await?.context("nobody put the row")?;
    let owner = row.text("owner").unwrap_or_default();
    let agreed = told.iter().all(|(_, winner)| winner == owner);
    races.races += 1;
    races.losers += (racers.len() - winners.len()) as u64;
    if let [winner] = winners[..]
        && agreed
        && winner.to_string() == owner
    {
        races.single_winners += 1;
        *races.wins.entry(winner).or_default() += 1;
        return Ok(None);
    }
    let list = |names: Vec<String>| names.join(", ");
    Ok(Some(format!(
        "Race {round} had no single winner: [{}] believe to have won, the row names {owner}, the racers were shown [{}].",
        list(winners.iter().map(Name::to_string).collect()),
        list(told.iter().map(|(who, winner)| format!("{who}: {winner}")).collect()),
    )))
}

/// A racer: at each order `round start`, it waits for the start and puts the round's row.
pub(super) async fn run(site: &Site, me: Name, mut orders: mpsc::Receiver<String>) -> Result<()> {
    report(&Report::Ready)?;
    while let Some(order) = orders.recv().await {
        let (round, start) = order.split_once(' ').context("an order is a round and its start")?;
        let (round, start): (u32, u64) = (round.parse()?, start.parse()?);
        // All processes of one machine read the same monotonic clock.
        site.env.clock.sleep_until(Monotonic::from_nanos(start)).await;
        let (won, winner) = race(site, me, round).await?;
        report(&Report::Raced { round, won, winner })?;
    }
    Ok(())
}

/// Puts the row and says whether it is ours, and whose it is.
///
/// Only the row decides. An attempt whose outcome stayed unknown may land after we read back, and the
/// next attempt is then refused by our own row: that is a race won, not lost.
async fn race(site: &Site, me: Name, round: u32) -> Result<(bool, String)> {
    let mine = Item::new().with("race", round.to_string()).with("owner", me.to_string());
    for _ in 0..ATTEMPTS_MAX {
        let row = match site.store.put(site.soon(), RACES, mine.clone(), Condition::absent("race")).await {
            Ok(Written::Applied(row)) => Some(row),
            Ok(Written::Refused(refusal)) => {
                Some(refusal.current.context("refused by a row that is not there")?)
            }
            Err(error) if error.kind() == Kind::Unknown => site
                .store
                .get(site.soon(), RACES, &key(round))
                .await
                .context("read back the row of the race")?,
            Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::Throttled) => None,
            Err(error) => return Err(error).context("put the row of the race"),
        };
        if let Some(row) = row {
            return Ok(verdict(me, &row));
        }
    }
    bail!("no answer from the store after {ATTEMPTS_MAX} attempts")
}

fn verdict(me: Name, row: &Item) -> (bool, String) {
    let winner = row.text("owner").unwrap_or_default();
    (winner == me.to_string(), winner.to_owned())
}

fn key(round: u32) -> Key {
    Key::new("race", round.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_store::{Env, Memory};

    use super::*;
    use crate::commands::demo::rows;

    /// What is left of an attempt that landed after its outcome was given up as unknown.
    #[tokio::test]
    async fn being_refused_by_ones_own_row_is_winning() {
        let env = Env::system();
        let store = Arc::new(Memory::new(&env));
        let stream = tenure_stream::open("memory:race", &env).await.unwrap();
        let site = Site { env, store, stream };
        for table in rows::tables() {
            site.store.ensure_table(site.soon(), &table).await.unwrap();
        }
        let landed = Item::new().with("race", "1").with("owner", "racer-1");
        site.store.put(site.soon(), RACES, landed, Condition::Always).await.unwrap();
        assert_eq!(race(&site, Name::racer(1), 1).await.unwrap(), (true, "racer-1".to_owned()));
        assert_eq!(race(&site, Name::racer(2), 1).await.unwrap(), (false, "racer-1".to_owned()));
        assert_eq!(race(&site, Name::racer(2), 2).await.unwrap(), (true, "racer-2".to_owned()));
    }
}
