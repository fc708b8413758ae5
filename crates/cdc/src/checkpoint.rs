//! How far a pipeline is, as its own durable row: what the slot says is never taken on trust.
//!
//! The slot forgets on a crash, can be dropped and made anew, and can be moved on by others. So the row is
//! written first and the slot is told afterwards; whatever the slot says beyond the row is foreign.
//!
//! - CP-10: a position is fed back to the slot only after the row holds it.
//! - CP-11: the row is written on condition of the leader's fence and of its era, and never goes back.
//! - CP-12: a row that only follows the server's idle progress is written rarely: a store inside the
//!   captured database would otherwise feed itself.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Monotonic, WallTime};
use tenure_election::Epoch;
use tenure_store::{Condition, Item, Key, Update, Write};
use tenure_stream::identity::{Era, LANE_HASH, Lanes, Lsn};

/// The row's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The server, as it names itself.
    pub system_id: Arc<str>,
    /// Its timeline when the row was written.
    pub timeline: u32,
    /// The slot.
    pub slot: Arc<str>,
    /// Everything that committed below this is in the stream.
    pub lsn: Lsn,
    /// Under which era positions are published.
    pub era: Era,
    /// How many lanes.
    pub lanes: Lanes,
    /// The highest fence that has written it.
    pub fence: Epoch,
    /// When it was written.
    pub updated: WallTime,
}

/// Where the row of a pipeline lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPlace {
    /// The table that Tenure's own rows share.
    pub table: Arc<str>,
    /// The stream's name.
    pub stream: Arc<str>,
    /// The pipeline's name.
    pub source: Arc<str>,
}

impl CheckpointPlace {
    /// The row's key.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new("pk", self.pk()).and("sk", &*self.source)
    }

    fn pk(&self) -> String {
        format!("CDC#{}", self.stream)
    }

    /// Creates the row, if there is none.
    #[must_use]
    pub fn create(&self, checkpoint: &Checkpoint) -> Write {
        Write::Put {
            table: self.table.to_string(),
            item: self.item(checkpoint),
            when: Condition::absent("pk"),
        }
    }

    /// Replaces a row of an older era: positions mean something else from here on.
    #[must_use]
    pub fn begin_era(&self, checkpoint: &Checkpoint) -> Write {
        let when = Condition::lt("era", checkpoint.era.0).and(Condition::le("fence", checkpoint.fence.0));
        let mut item = self.item(checkpoint);
        if tenure_planted::is("era_stays") {
            item.set("era", checkpoint.era.0 - 1);
        }
        Write::Put { table: self.table.to_string(), item, when }
    }

    /// Moves the row on (CP-11). With the same `lsn` it only stamps the fence, and an older leader's next
    /// write is refused.
    #[must_use]
    pub fn advance(&self, checkpoint: &Checkpoint) -> Write {
        let Checkpoint { timeline, lsn, era, fence, updated, .. } = checkpoint;
        let guarded = if tenure_planted::is("fence_is_the_era") {
            Condition::le("era", era.0)
        } else {
            Condition::eq("era", era.0)
        };
        let guarded = if tenure_planted::is("row_goes_back") {
            guarded
        } else {
            guarded.and(Condition::le("lsn", lsn.0))
        };
        let guarded = if tenure_planted::is("checkpoint_without_fence") {
            guarded
        } else {
            guarded.and(Condition::le("fence", fence.0))
        };
        Write::Update {
            table: self.table.to_string(),
            key: self.key(),
            change: Update::new()
                .set("timeline", *timeline)
                .set("lsn", lsn.0)
                .set("fence", fence.0)
                .set("updated", updated.as_millis()),
            when: guarded,
        }
    }

    /// Ends the pipeline, and remembers its era: another one under the same name must not begin at the first
    /// again, or readers would take its events for old ones.
    #[must_use]
    pub fn tear_down(&self) -> Write {
        Write::Update {
            table: self.table.to_string(),
            key: self.key(),
            change: Update::new().set("slot", ""),
            when: Condition::exists("pk"),
        }
    }

    fn item(&self, checkpoint: &Checkpoint) -> Item {
        let Checkpoint { system_id, timeline, slot, lsn, era, lanes, fence, updated } = checkpoint;
        Item::new()
            .with("pk", self.pk())
            .with("sk", &*self.source)
            .with("system_id", &**system_id)
            .with("timeline", *timeline)
            .with("slot", &**slot)
            .with("lsn", lsn.0)
            .with("era", era.0)
            .with("lanes", u32::from(lanes.count()))
            .with("hash", LANE_HASH)
            .with("fence", fence.0)
            .with("updated", updated.as_millis())
    }
}

impl Checkpoint {
    /// Whether only the era is left of it.
    #[must_use]
    pub fn is_torn_down(&self) -> bool {
        self.slot.is_empty()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// `Corrupt` if it is not one, `Invalid` if it was written with another way of hashing keys.
    pub fn read(item: &Item) -> Result<Self> {
        let corrupt = |name: &str| {
            Error::new(
                Kind::Corrupt,
                format!("the checkpoint row has no valid `{name}`: restore or delete it"),
            )
        };
        let text = |name: &str| item.text(name).ok_or_else(|| corrupt(name));
        let number = |name: &str| {
            let digits = item.get(name).and_then(tenure_store::Value::as_number);
            digits.and_then(|number| number.to_string().parse::<u64>().ok()).ok_or_else(|| corrupt(name))
        };
        let small =
            |name: &str| number(name).and_then(|number| u32::try_from(number).map_err(|_| corrupt(name)));
        let hash = text("hash")?;
        if hash != LANE_HASH {
            return Err(Error::invalid(format!(
                "the checkpoint row was written with lane hash `{hash}`, this version knows `{LANE_HASH}`: \
                 run the version that wrote it, or set up a pipeline under another --source"
            )));
        }
        let lanes =
            u16::try_from(small("lanes")?).ok().and_then(Lanes::new).ok_or_else(|| corrupt("lanes"))?;
        Ok(Self {
            system_id: text("system_id")?.into(),
            timeline: small("timeline")?,
            slot: text("slot")?.into(),
            lsn: Lsn(number("lsn")?),
            // Not the fence: it rises with every leader, and what a change is called must not.
            era: Era(small(if tenure_planted::is("fence_is_the_era") { "fence" } else { "era" })?),
            lanes,
            fence: Epoch(number("fence")?),
            updated: WallTime::from_millis(item.integer("updated").ok_or_else(|| corrupt("updated"))?),
        })
    }
}

/// Decides when the row is written, and what the slot may be told.
#[derive(Debug, Clone)]
pub struct Checkpointer {
    interval: Duration,
    idle_interval: Duration,
    /// What the row holds.
    durable: Lsn,
    /// How many events had been settled then.
    durable_events: u64,
    /// A write is under way, of this.
    writing: Option<(Lsn, u64)>,
    last: Monotonic,
    /// The last write did not land: no hurry makes the next one come at once.
    failed: bool,
}

impl Checkpointer {
    /// The row holds `durable`.
    #[must_use]
    pub const fn new(durable: Lsn, interval: Duration, idle_interval: Duration, now: Monotonic) -> Self {
        Self { interval, idle_interval, durable, durable_events: 0, writing: None, last: now, failed: false }
    }

    /// What to write now, if anything. `events` counts what was ever settled; `hurry` waits for no interval,
    /// unless the last write failed.
    pub fn poll(&mut self, now: Monotonic, confirmed: Lsn, events: u64, hurry: bool) -> Option<Lsn> {
        if self.writing.is_some() || confirmed <= self.durable {
            return None;
        }
        let pause = match (hurry, self.failed) {
            (true, false) => Duration::ZERO,
            (true, true) => self.interval,
            (false, _) => self.pause(events),
        };
        if now < self.last + pause {
            return None;
        }
        self.writing = Some((confirmed, events));
        Some(confirmed)
    }

    /// When to ask again, if `confirmed` stays ahead of the row. Whoever is in a hurry asks more often.
    #[must_use]
    pub fn wake(&self, confirmed: Lsn, events: u64) -> Option<Monotonic> {
        (self.writing.is_none() && confirmed > self.durable).then(|| self.last + self.pause(events))
    }

    /// The write has ended: the row holds it, or perhaps not.
    pub fn written(&mut self, now: Monotonic, landed: bool) {
        let Some((lsn, events)) = self.writing.take() else { return };
        self.last = now;
        self.failed = !landed;
        if landed {
            self.durable = lsn;
            self.durable_events = events;
        }
    }

    /// What the slot may be told (CP-10).
    #[must_use]
    pub fn feedback(&self) -> Lsn {
        match self.writing {
            Some((lsn, _)) if tenure_planted::is("feedback_before_row") => lsn,
            _ => self.durable,
        }
    }

    fn pause(&self, events: u64) -> Duration {
        let idle = events == self.durable_events && !tenure_planted::is("idle_written_often");
        if idle { self.idle_interval } else { self.interval }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_backend::Env;
    use tenure_clock::{Clock, SystemClock};
    use tenure_store::{Memory, Store, StoreExt, Written};

    use super::*;

    fn place() -> CheckpointPlace {
        CheckpointPlace {
            table: "tenure_coordination".into(),
            stream: "orders".into(),
            source: "shop".into(),
        }
    }

    fn checkpoint(lsn: u64, era: u32, fence: u64) -> Checkpoint {
        Checkpoint {
            system_id: "7301".into(),
            timeline: 1,
            slot: "tenure".into(),
            lsn: Lsn(lsn),
            era: Era(era),
            lanes: Lanes::default(),
            fence: Epoch(fence),
            updated: WallTime::from_millis(5),
        }
    }

    /// What the row is after a write, or `None` if it was refused.
    fn after(row: Option<&Item>, write: &Write) -> Option<Item> {
        let store = Memory::new(&Env::system());
        let by = SystemClock.deadline(Duration::from_secs(60));
        let all = async {
            store.ensure_table(by, &tenure_election::table_spec("tenure_coordination")).await?;
            if let Some(row) = row {
                store.put(by, "tenure_coordination", row.clone(), Condition::Always).await?;
            }
            store.write(by, write).await
        };
        match tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(all).unwrap() {
            Written::Applied(item) => Some(item),
            Written::Refused(_) => None,
        }
    }

    #[test]
    fn the_row_reads_as_documented() {
        let item = after(None, &place().create(&checkpoint(4096, 1, 3))).unwrap();
        expect_test::expect![[r#"
            era: N(1)
            fence: N(3)
            hash: S("xxh3-64-v1")
            lanes: N(1024)
            lsn: N(4096)
            pk: S("CDC#orders")
            sk: S("shop")
            slot: S("tenure")
            system_id: S("7301")
            timeline: N(1)
            updated: N(5)
        "#]]
        .assert_eq(&item.iter().map(|(name, value)| format!("{name}: {value:?}\n")).collect::<String>());
    }

    #[test]
    fn an_older_leader_an_older_era_and_an_older_position_are_refused() {
        let row = after(None, &place().create(&checkpoint(100, 2, 5))).unwrap();
        assert!(after(Some(&row), &place().create(&checkpoint(100, 2, 5))).is_none(), "there is one");
        for (lsn, era, fence, lands) in
            [(100, 2, 5, true), (101, 2, 6, true), (99, 2, 5, false), (101, 2, 4, false), (101, 1, 5, false)]
        {
            let landed = after(Some(&row), &place().advance(&checkpoint(lsn, era, fence)));
            assert_eq!(landed.is_some(), lands, "{lsn} {era} {fence}");
        }
        let begun = after(Some(&row), &place().begin_era(&checkpoint(7, 3, 5))).unwrap();
        assert_eq!(Checkpoint::read(&begun).unwrap(), checkpoint(7, 3, 5));
        assert!(after(Some(&row), &place().begin_era(&checkpoint(7, 2, 5))).is_none());
        assert!(after(Some(&row), &place().begin_era(&checkpoint(7, 3, 4))).is_none());
    }

    #[test]
    fn of_a_pipeline_that_was_torn_down_the_era_stays() {
        let row = after(None, &place().create(&checkpoint(100, 2, 5))).unwrap();
        let row = after(Some(&row), &place().tear_down()).unwrap();
        let read = Checkpoint::read(&row).unwrap();
        assert!(read.is_torn_down());
        assert_eq!((read.era, read.fence), (Era(2), Epoch(5)));
        assert!(after(Some(&row), &place().begin_era(&checkpoint(7, 3, 5))).is_some());
    }

    #[test]
    fn rows_that_are_none_are_refused() {
        let row = after(None, &place().create(&checkpoint(100, 2, 5))).unwrap();
        for name in ["system_id", "timeline", "slot", "lsn", "era", "lanes", "hash", "fence", "updated"] {
            let mut broken = row.clone();
            broken.set(name, true);
            assert_eq!(Checkpoint::read(&broken).unwrap_err().kind(), Kind::Corrupt, "{name}");
        }
        let mut other = row;
        other.set("hash", "md5");
        assert_eq!(Checkpoint::read(&other).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn the_slot_is_told_what_the_row_holds_and_nothing_more() {
        let at = Monotonic::from_nanos;
        let second = Duration::from_secs(1);
        let mut checkpointer = Checkpointer::new(Lsn(10), second, 10 * second, at(0));
        assert_eq!(checkpointer.poll(at(0), Lsn(20), 5, false), None, "not so often");
        assert_eq!(checkpointer.poll(at(1_000_000_000), Lsn(20), 5, false), Some(Lsn(20)));
        assert_eq!(checkpointer.feedback(), Lsn(10), "it is under way");
        assert_eq!(checkpointer.poll(at(2_000_000_000), Lsn(30), 9, true), None, "one at a time");
        checkpointer.written(at(2_000_000_000), false);
        assert_eq!(checkpointer.feedback(), Lsn(10));
        assert_eq!(checkpointer.poll(at(3_000_000_000), Lsn(30), 9, false), Some(Lsn(30)));
        checkpointer.written(at(3_000_000_000), true);
        assert_eq!(checkpointer.feedback(), Lsn(30));
    }

    #[test]
    fn idle_progress_is_written_rarely_and_at_once_in_a_hurry() {
        let at = |seconds: u64| Monotonic::from_nanos(seconds * 1_000_000_000);
        let second = Duration::from_secs(1);
        let mut checkpointer = Checkpointer::new(Lsn(10), second, 10 * second, at(0));
        assert_eq!(checkpointer.poll(at(9), Lsn(20), 0, false), None);
        assert_eq!(checkpointer.wake(Lsn(20), 0), Some(at(10)));
        assert_eq!(
            checkpointer.clone().poll(at(9), Lsn(20), 1, false),
            Some(Lsn(20)),
            "events are no idling"
        );
        assert_eq!(checkpointer.clone().poll(at(0), Lsn(20), 0, true), Some(Lsn(20)));
        assert_eq!(checkpointer.poll(at(10), Lsn(20), 0, false), Some(Lsn(20)));
    }

    #[test]
    fn a_store_that_fails_is_not_asked_again_and_again() {
        let at = |millis: u64| Monotonic::from_nanos(millis * 1_000_000);
        let second = Duration::from_secs(1);
        let mut checkpointer = Checkpointer::new(Lsn(10), second, 10 * second, at(0));
        assert_eq!(checkpointer.poll(at(0), Lsn(20), 0, true), Some(Lsn(20)));
        checkpointer.written(at(1), false);
        assert_eq!(checkpointer.poll(at(1), Lsn(20), 0, true), None, "it has just failed");
        assert_eq!(checkpointer.poll(at(1001), Lsn(20), 0, true), Some(Lsn(20)));
        checkpointer.written(at(1002), true);
        assert_eq!(checkpointer.poll(at(1002), Lsn(30), 0, true), Some(Lsn(30)), "all is well again");
    }

    proptest! {
        #[test]
        fn a_row_comes_back(lsn: u64, era: u32, fence in 0u64..1 << 63, timeline: u32, lanes in 1u16..16384) {
            let lanes = Lanes::new(lanes).unwrap();
            let written = Checkpoint { timeline, lanes, ..checkpoint(lsn, era, fence) };
            let item = after(None, &place().create(&written)).unwrap();
            prop_assert_eq!(Checkpoint::read(&item).unwrap(), written);
        }
    }
}
