//! What a worker does when it starts: the steps of a Go worker, with their messages.

use tenure_backend::{Error, Result, Retry, retry_policy};
use tenure_store::{Refusal, Written};
use tracing::{info, warn};

use super::super::census::Count;
use super::super::explain::{Alarm, find_table, usual_table, worker_rows};
use super::super::formula::{Cap, per_worker};
use super::super::machine::{Opening, Target, opening};
use super::super::rows::{Place, Row, table_spec};
use super::{BACKOFF, CALLS_MAX, Inner, Race, Subject};

/// How often the coordinator row may change under our eyes before we say so.
const RACES_MAX: u32 = 10;

impl Inner {
    pub(super) async fn initialize(&self) -> Result<Cap> {
        if !self.settings.enable_dynamic_max_leases {
            self.publish();
            return Ok(*self.cap.borrow());
        }
        info!(
            stream = self.stream,
            app = self.app,
            worker = self.worker,
            "Initializing max leases per worker"
        );
        let place = self.ensure_table().await?;
        self.lock().place = Some(place.clone());
        let target = self.open(&place).await?;
        self.save(&place, target).await?;
        info!(maxLeasesPerWorker = target.max, "Successfully initialized dynamic max leases per worker");
        self.publish();
        Ok(*self.cap.borrow())
    }

    /// Counts, and makes the coordinator row say so.
    async fn open(&self, place: &Place) -> Result<Target> {
        let shards = self.count_shards().await?;
        let (declared, workers) = self.count_workers(place).await?;
        info!(currentShardCount = shards, currentWorkerCount = workers, "Retrieved current system state");
        self.settle(place, shards, declared, workers).await
    }

    pub(super) async fn open_again(&self, place: &Place) -> Result<()> {
        let target = self.open(place).await?;
        self.save(place, target).await
    }

    /// The table, created if there is none.
    async fn ensure_table(&self) -> Result<Place> {
        let found = match &self.settings.table {
            Some(table) => table.clone(),
            None => self
                .again("look for the table", |by| {
                    find_table(&*self.store, by, &self.stream, &self.app, &self.settings)
                })
                .await?
                .unwrap_or_else(|| usual_table(&self.stream)),
        };
        if self.settings.table.is_none() && found != usual_table(&self.stream) {
            info!(table = found, "Using the metadata table of the application");
        }
        let spec = table_spec(&found);
        self.again("create the table", |by| self.store.ensure_table(by, &spec)).await?;
        Ok(Place { table: found, stream: self.stream.clone(), app: self.app.clone() })
    }

    pub(super) async fn count_shards(&self) -> Result<u64> {
        let shards = self.again("count the shards", |by| self.shards.open_shards(by)).await?;
        if shards == 0 {
            return Err(Error::invalid(format!(
                "stream `{}` has no open shards: check its name, and that it is active",
                self.stream
            )));
        }
        Ok(shards)
    }

    /// The declared count, if there is one, and the number to go by.
    async fn count_workers(&self, place: &Place) -> Result<(Option<u64>, u64)> {
        let count = match self.census.count(self.deadline()).await {
            // Nobody to read and nobody to ask: not a number to divide by.
            Count::Known(0) => Count::Unknown(format!("{} says 0", self.census.source())),
            count => count,
        };
        let alarm = match &count {
            Count::Unknown(why) => Some(Alarm::WorkerCountUnknown { why: why.clone() }),
            Count::Known(_) | Count::ByHeartbeats => None,
        };
        self.lock().count = Some(count.clone());
        self.set_alarm(Subject::WorkerCount, alarm);
        Ok(match count {
            Count::Known(workers) => (Some(workers), workers),
            Count::ByHeartbeats => {
                let alive = self.count_alive(place).await?;
                (Some(alive), alive)
            }
            Count::Unknown(_) => (None, self.count_alive(place).await?),
        })
    }

    /// Workers with a fresh row, and this one.
    async fn count_alive(&self, place: &Place) -> Result<u64> {
        let (rows, bad) =
            self.again("read the workers' rows", |by| worker_rows(&*self.store, by, place)).await?;
        self.note_bad_rows(&bad);
        let (now, wall) = (self.clock.monotonic(), self.clock.wall());
        let report = self.lock().report.clone();
        let members = self.with_me(self.new_fleet().observe(now, wall, &rows, &report));
        let alive = members.len() as u64;
        self.lock().members = members;
        Ok(alive)
    }

    /// Makes the coordinator row say what is so, or uses what somebody else made it say.
    async fn settle(
        &self,
        place: &Place,
        shards: u64,
        declared: Option<u64>,
        workers: u64,
    ) -> Result<Target> {
        for _ in 0..RACES_MAX {
            let row = self.read_coordinator(place).await?;
            let opening = opening(row.as_ref(), shards, declared, self.settings.limit);
            let (target, race) = match (opening, &row) {
                (Opening::Use, Some(row)) => {
                    let target = row.target();
                    if declared.is_some() {
                        info!(
                            maxLeasesPerWorker = target.max,
                            shardCount = target.shards,
                            workerCount = target.workers,
                            "Configuration unchanged, using existing coordinator metadata"
                        );
                    } else {
                        info!(
                            maxLeasesPerWorker = target.max,
                            "Worker count unknown, using existing coordinator metadata"
                        );
                    }
                    return Ok(self.use_row(row.clone()));
                }
                (Opening::Use | Opening::Abstain, _) => {
                    let target = Target::of(shards, workers, self.settings.limit);
                    let mut state = self.lock();
                    state.row = None;
                    state.alone = Some(target);
                    return Ok(target);
                }
                (Opening::Update(target), Some(row)) => {
                    info!(
                        oldShardCount = row.shard_count,
                        newShardCount = target.shards,
                        oldWorkerCount = row.worker_count,
                        newWorkerCount = target.workers,
                        oldMaxLeases = row.max_leases_per_worker,
                        "Detected configuration change, recalculating max leases per worker"
                    );
                    calculated(target);
                    (target, self.change(place, Some(row), target).await?)
                }
                (Opening::Create(target) | Opening::Update(target), _) => {
                    calculated(target);
                    (target, self.change(place, None, target).await?)
                }
            };
            let coordinator = place.coordinator();
            match (race, row.is_some()) {
                (Race::Won, true) => {
                    info!(
                        coordinatorKey = coordinator,
                        newMaxLeasesPerWorker = target.max,
                        "Successfully updated coordinator metadata"
                    );
                    return Ok(target);
                }
                (Race::Won, false) => {
                    info!(
                        coordinatorKey = coordinator,
                        maxLeasesPerWorker = target.max,
                        "Successfully created coordinator metadata"
                    );
                    return Ok(target);
                }
                (Race::Lost, existed) => {
                    if existed {
                        info!("Another worker already updated coordinator metadata");
                    } else {
                        info!("Another worker already created coordinator metadata");
                    }
                    // The winner's number, whatever ours was.
                    if let Some(row) = self.read_coordinator(place).await? {
                        return Ok(self.use_row(row));
                    }
                }
                (Race::Unclear, _) => {}
            }
        }
        Err(Error::unavailable(format!(
            "row `{}` of table `{}` changed {RACES_MAX} times while it was read: start the worker again",
            place.coordinator(),
            place.table
        )))
    }

    pub(super) fn use_row(&self, row: Row) -> Target {
        let target = row.target();
        let mut state = self.lock();
        state.row = Some(row);
        state.alone = None;
        target
    }

    pub(super) async fn read_coordinator(&self, place: &Place) -> Result<Option<Row>> {
        let key = place.coordinator_key();
        let item =
            self.again("read the coordinator row", |by| self.store.get(by, &place.table, &key)).await?;
        item.map(|item| place.coordinator_row(&item)).transpose()
    }

    /// Writes the coordinator row, if it is still the one that was read.
    pub(super) async fn change(&self, place: &Place, read: Option<&Row>, target: Target) -> Result<Race> {
        let demand = self.lock().report.demand;
        let row = place.new_coordinator(target, read, &self.incarnation, demand, self.clock.wall());
        let write = match read {
            Some(read) => place.update(read, row.clone()),
            None => place.create(row.clone()),
        };
        let mut pause = BACKOFF;
        for attempt in 1..=CALLS_MAX {
            match self.store.write(self.deadline(), &write).await {
                Ok(Written::Applied(_)) => {
                    self.use_row(row);
                    return Ok(Race::Won);
                }
                Ok(Written::Refused(_)) => return Ok(Race::Lost),
                Err(error) => match retry_policy(error.kind()) {
                    Retry::AfterReadingBack => return self.look_for(place, read, row).await,
                    Retry::Soon | Retry::AfterBackoff if attempt < CALLS_MAX => {
                        warn!(error = %error.chain(), attempt, "write the coordinator row");
                        self.pause(&mut pause).await;
                    }
                    _ => return Err(error.during("write the coordinator row")),
                },
            }
        }
        Ok(Race::Unclear)
    }

    /// After a write without an answer: did it land?
    async fn look_for(&self, place: &Place, read: Option<&Row>, row: Row) -> Result<Race> {
        let now = self.read_coordinator(place).await?;
        if now.as_ref().is_some_and(|now| {
            (now.ours.epoch, &now.ours.incarnation) == (row.ours.epoch, &row.ours.incarnation)
        }) {
            self.use_row(row);
            return Ok(Race::Won);
        }
        Ok(if now.as_ref() == read { Race::Unclear } else { Race::Lost })
    }

    /// Stores this worker's own row.
    pub(super) async fn save(&self, place: &Place, target: Target) -> Result<()> {
        let row = place.row(self.worker.clone(), target, self.clock.wall(), self.ours());
        let write = place.save(row);
        match self.again("save this worker's row", |by| self.store.write(by, &write)).await? {
            Written::Applied(_) => {
                self.lock().saved = Some(target);
                Ok(())
            }
            Written::Refused(Refusal { current, .. }) => Err(Error::invalid(format!(
                "worker id `{}` is in use by application `{}` in table `{}`: choose another worker id, or \
                 another table",
                self.worker,
                current.as_ref().and_then(|item| item.text("app_name")).unwrap_or("?"),
                place.table
            ))),
        }
    }
}

fn calculated(target: Target) {
    info!(
        shardCount = target.shards,
        workerCount = target.workers,
        shardsPerWorker = per_worker(target.shards, target.workers),
        maxLeasesPerWorker = target.max,
        "Calculated max leases per worker"
    );
}
