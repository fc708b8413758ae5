//! How far consumers are behind, as the rows of their workers tell.
//!
//! Every worker of an application that counts its workers says in its row how far it is behind. What was said long
//! ago is no news: a worker that is gone has left its row behind, and its shards to others.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Env, Result};
use tenure_clock::{Clock, Monotonic};
use tenure_leases::capacity::{Settings, survey};
use tenure_store::Store;

use crate::policy::seconds;
use crate::ports::Backlog;

/// What was said longer ago, or lies ahead by more, is not counted.
const AGE_MAX: Duration = Duration::from_secs(120);

/// The workers of one application.
#[derive(Debug)]
pub struct Consumers {
    store: Arc<dyn Store>,
    stream: String,
    app: String,
    settings: Settings,
    clock: Arc<dyn Clock>,
}

impl Consumers {
    /// The workers of that application. Nothing is read yet.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        stream: impl Into<String>,
        app: impl Into<String>,
        settings: Settings,
        env: &Env,
    ) -> Self {
        Self { store, stream: stream.into(), app: app.into(), settings, clock: env.clock.clone() }
    }
}

#[async_trait]
impl Backlog for Consumers {
    async fn behind(&self, by: Monotonic) -> Result<Option<Duration>> {
        let survey = survey(&*self.store, by, &self.stream, &self.app, &self.settings).await;
        let survey = survey.map_err(|error| error.during(format!("read the workers of {}", self.app)))?;
        let now = self.clock.wall().as_seconds();
        let said = survey.workers.iter().filter_map(|row| row.ours.behind);
        let lately = said.filter(|behind| (now - behind.at).abs() <= seconds(AGE_MAX));
        Ok(lately.map(|behind| Duration::from_millis(behind.ms)).max())
    }
}

/// Whose lag counts, and from when on the silence of one does not hide what another says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// Streams and the applications that read them.
    pub of: Vec<(String, String)>,
    /// As the policy's `lag_max`: who is further behind than this is reason enough to add a worker.
    pub enough: Duration,
}

impl Behind {
    /// Those who tell, in this store. Nothing is read yet.
    #[must_use]
    pub fn told(&self, store: &Arc<dyn Store>, env: &Env) -> Furthest {
        let one = |(stream, app): &(String, String)| {
            Consumers::new(store.clone(), stream, app, Settings::default(), env)
        };
        Furthest { of: self.of.iter().map(one).collect(), enough: self.enough }
    }
}

/// The one of several applications that is furthest behind.
///
/// While one of them is silent it is unknown, and nothing is taken away: unless another is so far behind that a
/// worker is needed whatever the silent one would say.
#[derive(Debug)]
pub struct Furthest {
    of: Vec<Consumers>,
    enough: Duration,
}

#[async_trait]
impl Backlog for Furthest {
    async fn behind(&self, by: Monotonic) -> Result<Option<Duration>> {
        let (mut furthest, mut silent, mut failed) = (None, false, None);
        for consumers in &self.of {
            match consumers.behind(by).await {
                Ok(Some(behind)) => furthest = furthest.max(Some(behind)),
                Ok(None) => silent = true,
                Err(error) => failed = Some(error),
            }
        }
        match (furthest, failed) {
            (Some(behind), _) if behind > self.enough => Ok(Some(behind)),
            (_, Some(error)) => Err(error),
            (furthest, None) => Ok(furthest.filter(|_| !silent)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_clock::{Entropy, ManualTime, WallTime};
    use tenure_leases::capacity::{Behind as Said, Ours, Place, Target, table_spec};
    use tenure_store::Memory;

    use super::*;

    #[tokio::test]
    async fn the_one_that_is_furthest_behind_counts_if_it_said_so_lately() {
        let time = ManualTime::starting_at(WallTime::from_millis(1_730_000_000_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let store = Arc::new(Memory::new(&env));
        let place = Place { table: "workers".into(), stream: "orders".into(), app: "billing".into() };
        let settings = Settings { table: Some("workers".into()), ..Settings::default() };
        let consumers = Consumers::new(store.clone(), "orders", "billing", settings, &env);
        let never = Monotonic::NEVER;
        assert_eq!(consumers.behind(never).await.unwrap(), None, "no table: nobody knows");
        store.ensure_table(never, &table_spec("workers")).await.unwrap();
        let says = async |worker: &str, behind: Option<Said>| {
            let ours = Ours { incarnation: Some("i".into()), behind, ..Ours::default() };
            let row = place.row(worker.into(), Target::of(4, 2, 80), env.clock.wall(), ours);
            store.write(never, &place.save(row)).await.unwrap();
        };
        says("silent", None).await;
        assert_eq!(consumers.behind(never).await.unwrap(), None, "unknown is not none");
        says("old", Some(Said { ms: 900_000, at: 1_730_000_000 - 121 })).await;
        assert_eq!(consumers.behind(never).await.unwrap(), None);
        says("a", Some(Said { ms: 1_000, at: 1_730_000_000 })).await;
        says("b", Some(Said { ms: 7_500, at: 1_730_000_000 - 100 })).await;
        assert_eq!(consumers.behind(never).await.unwrap(), Some(Duration::from_millis(7_500)));
    }

    #[tokio::test]
    async fn of_several_the_silent_one_is_unknown_unless_another_is_far_behind() {
        let time = ManualTime::starting_at(WallTime::from_millis(1_730_000_000_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let memory = Arc::new(Memory::new(&env));
        let store: Arc<dyn Store> = memory.clone();
        let of = vec![("orders".to_owned(), "billing".to_owned()), ("orders".to_owned(), "audit".to_owned())];
        let all = Behind { of, enough: Duration::from_secs(60) }.told(&store, &env);
        let never = Monotonic::NEVER;
        store.ensure_table(never, &table_spec("orders_meta")).await.unwrap();
        let says = async |app: &str, seconds: u64| {
            let place = Place { table: "orders_meta".into(), stream: "orders".into(), app: app.into() };
            let behind = Some(Said { ms: seconds * 1000, at: 1_730_000_000 });
            let ours = Ours { incarnation: Some("i".into()), behind, ..Ours::default() };
            let row = place.row(format!("{app}-1"), Target::of(4, 2, 80), env.clock.wall(), ours);
            store.write(never, &place.save(row)).await.unwrap();
        };
        says("billing", 30).await;
        assert_eq!(all.behind(never).await.unwrap(), None, "audit says nothing");
        says("billing", 61).await;
        assert_eq!(all.behind(never).await.unwrap(), Some(Duration::from_secs(61)), "enough to know");
        says("audit", 20).await;
        says("billing", 10).await;
        assert_eq!(all.behind(never).await.unwrap(), Some(Duration::from_secs(20)), "all said so");
    }
}
