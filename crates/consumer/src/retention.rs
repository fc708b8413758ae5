//! How long a stream keeps its records: asked for by one reader, for all of them.
//!
//! A worker may read a thousand shards of a stream, and Kinesis answers twenty such questions a second for a whole
//! account. What was trimmed does not come back when the retention is lengthened, so the oldest record that may
//! still be there only ever gets younger:
//!
//! ```text
//!   retention   24 h ────────────┐ lengthened to 7 d
//!   kept since  ······•••••••••••┴─────────────────── stays, until it is 7 d ago
//! ```

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, WallTime};
use tenure_stream::Stream;
use tokio::sync::{Mutex, MutexGuard};

/// An answer is as good as new for so long.
pub(crate) const ANSWER_AGE_MAX: Duration = Duration::from_secs(600);
/// Where nobody could tell, it is asked again so soon.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// One that had no answer is not asked again sooner, however many want to know.
const FAILURE_AGE_MAX: Duration = Duration::from_secs(1);
/// How far the clocks of the stream and of whoever reads it may be apart, with the time until a record can be read:
/// within it of the end of the retention, a record may be there or not.
pub(crate) const CLOCKS_APART_MAX: Duration = Duration::from_secs(300);

/// What a stream keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    /// For so long.
    pub(crate) retention: Duration,
    /// What is older is gone, though the retention be longer by now.
    since: WallTime,
}

impl Kept {
    /// What is known after another answer. `None` before: the first.
    fn after(before: Option<Self>, retention: Duration, now: WallTime) -> Self {
        let first = now - retention;
        // Until this answer came, the old retention may have held. What lies in the future was put there by a clock
        // that has been set right since.
        let before = before.filter(|before| before.since <= now);
        let since = before.map_or(first, |before| first.max(before.since).max(now - before.retention));
        Self { retention, since }
    }

    /// Whether everything that arrived since `through` is still there.
    pub(crate) fn all_since(&self, through: WallTime, now: WallTime) -> bool {
        through - CLOCKS_APART_MAX >= self.since.max(now - self.retention)
    }
}

/// Whom to ask about one stream.
pub(crate) struct Retention {
    stream: Arc<dyn Stream>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The last answer, and when it was asked for.
    kept: Option<(Monotonic, Kept)>,
    /// When no answer came, and why, if that was after the last answer.
    failed: Option<(Monotonic, Kind)>,
}

impl Retention {
    pub(crate) fn new(stream: Arc<dyn Stream>) -> Self {
        Self { stream, known: Mutex::default() }
    }

    /// What the stream says, asked for at `since` or later: by this reader or by another.
    ///
    /// # Errors
    /// As the stream's.
    pub(crate) async fn ask(&self, clock: &dyn Clock, timeout: Duration, since: Monotonic) -> Result<Kept> {
        // One asks, and the others wait for its answer.
        let known = self.known.lock().await;
        self.answer(known, clock, timeout, |asked| asked >= since, FAILURE_AGE_MAX).await
    }

    /// What it said lately, for whoever need not know now: `None` if somebody is asking, or there is no answer.
    pub(crate) async fn ask_unless_busy(&self, clock: &dyn Clock, timeout: Duration) -> Option<Kept> {
        let known = self.known.try_lock().ok()?;
        let now = clock.monotonic();
        let is_new = |asked| now.since(asked) < ANSWER_AGE_MAX;
        self.answer(known, clock, timeout, is_new, ASK_AGAIN_AFTER).await.ok()
    }

    /// The answer that is known, if it is good enough; else a new one.
    async fn answer(
        &self,
        mut known: MutexGuard<'_, Known>,
        clock: &dyn Clock,
        timeout: Duration,
        is_good: impl Fn(Monotonic) -> bool,
        failure_age_max: Duration,
    ) -> Result<Kept> {
        if let Some((_, kept)) = known.kept.filter(|(asked, _)| is_good(*asked)) {
            return Ok(kept);
        }
        let asked = clock.monotonic();
        if let Some((_, kind)) = known.failed.filter(|(failed, _)| asked.since(*failed) < failure_age_max) {
            return Err(Error::new(kind, "the stream was asked a moment ago, and gave no answer"));
        }
        match self.stream.describe(clock.deadline(timeout)).await {
            Ok(described) => {
                let before = known.kept.map(|(_, kept)| kept);
                let kept = Kept::after(before, described.retention_age, clock.wall());
                *known = Known { kept: Some((asked, kept)), failed: None };
                Ok(kept)
            }
            Err(error) => {
                known.failed = Some((asked, error.kind()));
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hour: u32) -> WallTime {
        WallTime::from_millis(1_800_000_000_000) + HOUR * hour
    }

    #[test]
    fn what_was_trimmed_does_not_come_back() {
        let first = Kept::after(None, 24 * HOUR, at(100));
        assert!(first.all_since(at(77), at(100)));
        assert!(!first.all_since(at(76), at(100)), "within the clocks' difference");
        assert!(!first.all_since(at(80), at(110)), "time passes");
        let longer = Kept::after(Some(first), 168 * HOUR, at(110));
        assert!(!longer.all_since(at(80), at(110)), "trimmed before it was lengthened");
        assert!(longer.all_since(at(87), at(200)), "what was there then stays for longer");
        assert!(!longer.all_since(at(87), at(300)));
        let set_right = Kept::after(Some(Kept::after(None, HOUR, at(900))), 24 * HOUR, at(110));
        assert!(set_right.all_since(at(87), at(110)), "a clock was far ahead for a while");
        let shorter = Kept::after(Some(longer), 12 * HOUR, at(120));
        assert!(!shorter.all_since(at(100), at(120)));
        assert!(shorter.all_since(at(109), at(120)));
    }
}
