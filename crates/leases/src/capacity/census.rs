//! How many workers there are meant to be, and how many shards there are.
//!
//! "I do not know" is an answer of its own. It is never taken for a number: one worker that is cut off from
//! its cluster's API and believes to be alone would tell all others to take everything.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_backend::{Error, Result};
use tenure_clock::Monotonic;
use tenure_stream::Stream;

/// The variable that declares how many workers there are.
pub const WORKER_COUNT: &str = "WORKER_COUNT";

/// How many workers there are meant to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Count {
    /// So many, at least one.
    Known(u64),
    /// As many as have a row that is fresh, this one included.
    ByHeartbeats,
    /// Nobody could tell; why, in words.
    Unknown(String),
}

/// Tells how many workers there are meant to be.
#[async_trait]
pub trait Census: Debug + Send + Sync {
    /// Counts. What fails is [`Count::Unknown`].
    async fn count(&self, by: Monotonic) -> Count;

    /// Whom it asks, in words: `WORKER_COUNT`, `deployment my-app`.
    fn source(&self) -> String;
}

/// A number that was declared, as by `WORKER_COUNT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared(u64);

impl Declared {
    /// A number of workers.
    ///
    /// # Errors
    /// `Invalid` if it is 0.
    pub fn new(workers: u64) -> Result<Self> {
        if workers == 0 {
            return Err(Error::invalid("the worker count is 0: give at least 1"));
        }
        Ok(Self(workers))
    }

    /// The number in the variable `WORKER_COUNT`.
    ///
    /// # Errors
    /// `Invalid` if it is no whole number, or 0.
    pub fn from_variable(text: &str) -> Result<Self> {
        let workers = text.trim().parse::<u64>().ok().filter(|workers| *workers > 0);
        let workers = workers.ok_or_else(|| {
            Error::invalid(format!(
                "{WORKER_COUNT} is `{text}`: give the number of workers, at least 1, or unset it"
            ))
        })?;
        Ok(Self(workers))
    }
}

#[async_trait]
impl Census for Declared {
    async fn count(&self, _by: Monotonic) -> Count {
        Count::Known(self.0)
    }

    fn source(&self) -> String {
        WORKER_COUNT.to_owned()
    }
}

/// Nobody declares a number: those count that show that they live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heartbeats;

#[async_trait]
impl Census for Heartbeats {
    async fn count(&self, _by: Monotonic) -> Count {
        Count::ByHeartbeats
    }

    fn source(&self) -> String {
        "the workers' rows".to_owned()
    }
}

/// Tells how many shards are open. An `Arc<dyn Stream>` does.
#[async_trait]
pub trait OpenShards: Debug + Send + Sync {
    /// Counts the shards that are not closed.
    ///
    /// # Errors
    /// What the stream says.
    async fn open_shards(&self, by: Monotonic) -> Result<u64>;
}

/// By the stream's own summary: there are no pages to follow, and none to lose.
#[async_trait]
impl OpenShards for Arc<dyn Stream> {
    async fn open_shards(&self, by: Monotonic) -> Result<u64> {
        Ok(self.describe(by).await?.open_shards.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_count_is_a_number_of_at_least_one() {
        assert_eq!(Declared::from_variable(" 3 ").unwrap(), Declared(3));
        for bad in ["0", "", "three", "-1", "3.5", "99999999999999999999"] {
            let error = Declared::from_variable(bad).unwrap_err();
            assert!(error.chain().contains(&format!("WORKER_COUNT is `{bad}`")), "{error:?}");
        }
        assert!(Declared::new(0).is_err());
    }
}
