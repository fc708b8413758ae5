//! How often the lock is asked for, and how long a silent session counts as holding it.

use std::time::Duration;

use tenure_backend::{Error, Result};

use crate::settings::TABLE;

/// More often would load the server for nothing; less often and a takeover is slow.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(10);
/// A shorter deadline is over before a busy server has answered.
const DEADLINE_MIN: Duration = Duration::from_millis(100);
/// A longer one is a mistake of units.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// The settings of leadership by an advisory lock.
///
/// ```text
///   ping ──┬── ping ──┬── ping ─ ─ ─ ╳ no answer
///          │          │ last answered one, sent at t
///          │          ├────────── deadline ──────────┤ t + 5 s: we stop
///          │          ├────────────── server_timeout ───────────────┤ from t + 10 s: the server frees the lock
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvisorySettings {
    /// The table of the FENCE row. `tenure_coordination` by default.
    pub table: String,
    /// The longest pause between two tries for the lock; each is drawn between half of it and all of it.
    /// 200 ms by default.
    pub poll: Duration,
    /// How often the session that holds the lock is asked for a sign of life. 1 s by default.
    pub ping: Duration,
    /// How long the lock counts as held, from when the last answered ping was *sent*. 5 s by default.
    pub deadline: Duration,
    /// How long the *server* waits for a vanished client before it ends the session and frees the lock;
    /// `prepare_config` asks it to. Longer than the deadline, so that a leader that
    /// is cut off stops before the next one begins. 10 s by default.
    pub server_timeout: Duration,
    /// How long the store may take to raise the epoch. A candidate that cannot do it in that time gives the
    /// lock back, for one that can. 5 s by default.
    pub store_timeout: Duration,
}

impl Default for AdvisorySettings {
    fn default() -> Self {
        Self {
            table: TABLE.to_owned(),
            poll: Duration::from_millis(200),
            ping: Duration::from_secs(1),
            deadline: Duration::from_secs(5),
            server_timeout: Duration::from_secs(10),
            store_timeout: Duration::from_secs(5),
        }
    }
}

impl AdvisorySettings {
    /// Checks what must hold between the settings.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn validate(&self) -> Result<()> {
        let Self { table: _, poll, ping, deadline, server_timeout, store_timeout } = self;
        let problem = if !(POLL_MIN..=POLL_MAX).contains(poll) {
            format!("poll period {poll:?} is not from {POLL_MIN:?} to {POLL_MAX:?}: 200ms is usual")
        } else if !(DEADLINE_MIN..=DEADLINE_MAX).contains(deadline) {
            format!("deadline {deadline:?} is not from {DEADLINE_MIN:?} to {DEADLINE_MAX:?}: 5s is usual")
        } else if ping.is_zero() || *ping * 2 > *deadline {
            format!(
                "ping interval {ping:?} must be more than zero and at most half the deadline {deadline:?}: a fifth of \
                 it is usual"
            )
        // Two percent: one for a slow clock here, one for a fast clock there.
        } else if *deadline + *deadline / 50 > *server_timeout {
            format!(
                "server timeout {server_timeout:?} must be longer than the deadline {deadline:?} by at least 2 %: else \
                 the server may free the lock while its holder still counts on it"
            )
        } else if store_timeout.is_zero() {
            "store timeout is zero: the epoch could never be raised".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused() {
        let usual = AdvisorySettings::default();
        usual.validate().unwrap();
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        for (settings, says) in [
            (AdvisorySettings { poll: Duration::ZERO, ..usual.clone() }, "poll period"),
            (AdvisorySettings { poll: s(11), ..usual.clone() }, "poll period"),
            (AdvisorySettings { deadline: ms(50), ..usual.clone() }, "deadline 50ms"),
            (AdvisorySettings { ping: Duration::ZERO, ..usual.clone() }, "ping interval"),
            (AdvisorySettings { ping: ms(2501), ..usual.clone() }, "half the deadline"),
            (AdvisorySettings { server_timeout: ms(5099), ..usual.clone() }, "server timeout"),
            (AdvisorySettings { store_timeout: Duration::ZERO, ..usual.clone() }, "store timeout"),
        ] {
            let error = settings.validate().unwrap_err();
            assert_eq!(error.kind(), tenure_backend::Kind::Invalid);
            assert!(error.chain().contains(says), "{error:?}");
        }
        AdvisorySettings { server_timeout: ms(5100), ..usual }.validate().unwrap();
    }
}
