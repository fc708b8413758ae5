//! `[consumer]`: who reads the stream, how the shards are shared, and what becomes of what fails.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::text::{Count, Size, Text, Textual};
use crate::timestamp;

/// `[consumer]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Consumption {
    /// The application: workers of one share the shards. Also the name of its lease table. Default: `tenure`.
    pub(crate) app: String,
    /// This worker's name. Default: made of the host, the process and a random number.
    pub(crate) worker: Option<String>,
    /// How long a lease lasts without a sign of life; the same for all workers. Default: `10s`.
    pub(crate) lease: Text<Duration>,
    /// Where shards are begun that nobody has read. Default: `trim-horizon`.
    pub(crate) from: Text<From>,
    /// Most leases of one worker, unless they are dynamic. Default: no bound.
    pub(crate) max_leases: Option<Text<Count>>,
    /// Whether the workers agree on how many leases each may hold, in the table `<stream>_meta`. Default: `false`.
    pub(crate) enable_dynamic_max_leases: Text<bool>,
    /// The bound of dynamic leases. Default: 80.
    pub(crate) max_leases_limit: Text<Count>,
    /// How many workers there are; `WORKER_COUNT` is read as well. Default: as many as give signs of life.
    pub(crate) worker_count: Option<Text<Count>>,
    /// What leases are shared out by: `count` or `bytes`. Default: `count`.
    pub(crate) balance: BalanceBy,
    /// How often progress is stored. Default: `5s`.
    pub(crate) checkpoint_interval: Text<Duration>,
    /// Most bytes that are read ahead. Default: `256MiB`.
    pub(crate) buffer_bytes: Text<Size>,
    /// How often a batch is tried. Default: 5.
    pub(crate) attempts: Text<Count>,
    /// What becomes of a record that fails: `stop` (its shard stops) or `dead_letter`. Default: `stop`.
    pub(crate) on_failure: OnFailure,
}

impl Default for Consumption {
    fn default() -> Self {
        Self {
            app: "tenure".to_owned(),
            worker: None,
            lease: Text(Duration::from_secs(10)),
            from: Text(From::TrimHorizon),
            max_leases: None,
            enable_dynamic_max_leases: Text(false),
            max_leases_limit: Text(Count(80)),
            worker_count: None,
            balance: BalanceBy::Count,
            checkpoint_interval: Text(Duration::from_secs(5)),
            buffer_bytes: Text(Size(256 << 20)),
            attempts: Text(Count(5)),
            on_failure: OnFailure::Stop,
        }
    }
}

/// What leases are shared out by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BalanceBy {
    /// As many for one as for another.
    Count,
    /// As many bytes a second.
    Bytes,
}

/// What becomes of a record that fails again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnFailure {
    /// Its shard is given back and tried again later.
    Stop,
    /// It is stored as a dead letter, and its shard goes on.
    DeadLetter,
}

/// Where a shard is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    TrimHorizon,
    Latest,
    At(tenure_clock::WallTime),
}

impl Textual for From {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "trim-horizon" | "trim_horizon" => Ok(Self::TrimHorizon),
            "latest" => Ok(Self::Latest),
            _ => timestamp::parse(text).map(Self::At).map_err(|_| {
                format!(
                    "`{text}` is no beginning: write trim-horizon (the oldest record), latest (what comes from now \
                     on), or a moment like 2026-11-16T09:30:00Z"
                )
            }),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::TrimHorizon => "trim-horizon".to_owned(),
            Self::Latest => "latest".to_owned(),
            Self::At(moment) => moment.to_string(),
        }
    }
}
