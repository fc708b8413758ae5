//! What happens when a processor fails: again, later, and then by the policy.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_backend::{Env, Error, Kind};
use tenure_clock::Monotonic;
use tenure_leases::Holding;
use tenure_quarantine::{DeadLetterKey, DeadLetters};
use tracing::warn;

use crate::meters::Meters;
use crate::processor::Failure;
use crate::record::Delivered;
use crate::settings::{OnFailure, Settings};
use crate::stop::Stop;

/// How often it is looked whether a lease that is not valid has become so again.
const VALIDITY_POLL: Duration = Duration::from_millis(20);

/// Tries again, pauses, and keeps dead letters. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Recovery {
    pub(crate) env: Env,
    pub(crate) settings: Arc<Settings>,
    pub(crate) holding: Holding,
    pub(crate) dead_letters: Option<DeadLetters>,
    pub(crate) meters: Meters,
}

/// What is left to do after a failure.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Try again.
    Again,
    /// Not again, and the records are to blame: go by the policy.
    GaveUp(String),
    /// The shard stops.
    Stop(Stop),
    /// The shard is not ours any more.
    Fenced,
}

impl Recovery {
    /// Waits until records may be delivered.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn until_valid(&self) {
        while !self.holding.is_valid() && !tenure_planted::is("delivers_after_deadline") {
            self.env.clock.sleep(VALIDITY_POLL).await;
        }
    }

    /// What to do after the so-manieth failure in a row, counted from 1. Pauses if it is to be tried again.
    pub(crate) async fn after(&self, failure: &Failure, failures: u32) -> Answer {
        self.meters.failures.increment(1);
        if let Some(stop) = failure.downcast_ref::<Stop>() {
            return Answer::Stop(stop.clone());
        }
        let kind = failure.downcast_ref::<Error>().map(Error::kind);
        let text = chain(&**failure);
        if kind == Some(Kind::Fenced) {
            warn!(error = text, "the processor was fenced");
            return Answer::Fenced;
        }
        if failures < self.settings.attempts_max {
            warn!(error = text, failures, "the processor failed; it is tried again");
            self.env.clock.sleep(self.pause(failures)).await;
            return Answer::Again;
        }
        let nobodys =
            matches!(kind, Some(Kind::Unavailable | Kind::Throttled | Kind::Unknown | Kind::Denied));
        if nobodys || self.settings.on_failure == OnFailure::Stop {
            return Answer::Stop(Stop::Processor(format!("the processor failed {failures} times: {text}")));
        }
        Answer::GaveUp(text)
    }

    /// A growing pause, half of it drawn.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let doubled = self.settings.retry_pause_min.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let full = doubled.min(self.settings.retry_pause_max);
        full / 2 + self.env.entropy.up_to(full / 2)
    }

    /// Keeps a record as a dead letter, durably, before anything goes past it.
    pub(crate) async fn bury(&self, record: &Delivered, why: &str) -> Result<(), Stop> {
        let Some(letters) = &self.dead_letters else {
            return Err(Stop::DeadLetter("there is no store for them".to_owned()));
        };
        let key = DeadLetterKey {
            lease: self.holding.lease().key.as_str().to_owned(),
            sequence: record.sequence.clone(),
            sub: record.sub,
        };
        let mut failures = 0;
        loop {
            self.until_valid().await;
            let stored = letters.store(self.by(), &key, &record.partition_key, &record.data, why).await;
            match stored {
                Ok(()) => break,
                Err(error) if failures + 1 >= self.settings.attempts_max => {
                    return Err(Stop::DeadLetter(error.chain()));
                }
                Err(error) => {
                    failures += 1;
                    warn!(error = %error.chain(), failures, "a dead letter could not be stored; it is tried again");
                    self.env.clock.sleep(self.pause(failures)).await;
                }
            }
        }
        self.meters.dead_letters.increment(1);
        tracing::error!(record = %key, reason = why, "record could not be processed: kept as a dead letter");
        Ok(())
    }

    /// Processes one record until it is done, buried, or the shard stops.
    pub(crate) async fn one<F>(
        &self,
        record: &Delivered,
        mut attempt: impl FnMut() -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let mut failures = 0;
        loop {
            self.until_valid().await;
            self.holding.progress(true);
            let Err(failure) = caught(attempt()).await else { return Ok(()) };
            failures += 1;
            match self.after(&failure, failures).await {
                Answer::Again => {}
                Answer::GaveUp(why) => return Ok(self.bury(record, &why).await?),
                Answer::Stop(stop) => return Err(stop.into()),
                Answer::Fenced => return Err(failure),
            }
        }
    }

    pub(crate) fn by(&self) -> Monotonic {
        self.env.clock.deadline(self.settings.call_timeout)
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery").finish_non_exhaustive()
    }
}

/// Runs somebody else's code: a panic is an error.
pub(crate) async fn caught<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => Poll::Ready(Err(format!("the processor panicked: {}", message(&*panic)).into())),
    })
    .await
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
