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

use tenure_backend::Result;
use tenure_clock::{Clock, Monotonic, WallTime};
use tenure_stream::Stream;
use tokio::sync::{Mutex, MutexGuard};

/// An answer is as good as new for so long.
pub(crate) const ANSWER_AGE_MAX: Duration = Duration::from_secs(600);
/// Where nobody could tell, it is asked again so soon.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);
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
        // Until this answer came, the old retention may have held.
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
    known: Mutex<Option<(Monotonic, Kept)>>,
}

impl Retention {
    pub(crate) fn new(stream: Arc<dyn Stream>) -> Self {
        Self { stream, known: Mutex::new(None) }
    }

    /// What the stream says, or said lately.
    ///
    /// # Errors
    /// As the stream's.
    pub(crate) async fn ask(&self, clock: &dyn Clock, by: Monotonic) -> Result<Kept> {
        // One asks, and the others wait for its answer.
        let known = self.known.lock().await;
        self.answer(known, clock, by).await
    }

    /// The same, for whoever need not know now: `None` if somebody is asking, or there is no answer.
    pub(crate) async fn ask_unless_busy(&self, clock: &dyn Clock, by: Monotonic) -> Option<Kept> {
        let known = self.known.try_lock().ok()?;
        self.answer(known, clock, by).await.ok()
    }

    async fn answer(
        &self,
        mut known: MutexGuard<'_, Option<(Monotonic, Kept)>>,
        clock: &dyn Clock,
        by: Monotonic,
    ) -> Result<Kept> {
        let before = match *known {
            Some((asked, kept)) if clock.monotonic().since(asked) < ANSWER_AGE_MAX => return Ok(kept),
            before => before.map(|(_, kept)| kept),
        };
        let retention = self.stream.describe(by).await?.retention_age;
        let kept = Kept::after(before, retention, clock.wall());
        *known = Some((clock.monotonic(), kept));
        Ok(kept)
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
        let shorter = Kept::after(Some(longer), 12 * HOUR, at(120));
        assert!(!shorter.all_since(at(100), at(120)));
        assert!(shorter.all_since(at(109), at(120)));
    }
}
