//! How a worker reads, retries and checkpoints.

use std::time::Duration;

use tenure_backend::{Error, Result};
use tenure_clock::WallTime;
use tenure_stream::{BYTES_PER_READ, RECORDS_PER_READ_MAX};

/// The settings of a worker. The defaults suit most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that all shards together may hold that are read and not processed. 256 MiB by default.
    pub budget_bytes: usize,
    /// Most records of one read, and so of one batch before it is taken apart. 10,000 by default.
    pub records_per_read_max: usize,
    /// Batches that are read ahead per shard. 2 by default.
    pub prefetch_batches: usize,
    /// How often a checkpoint is stored while records are processed. 5 s by default. `None`: only when the
    /// processor asks for it, and when a shard is given away or ends.
    pub checkpoint_every: Option<Duration>,
    /// Records that a processor may have that it has not settled. 100,000 by default.
    pub unsettled_records_max: u64,
    /// Bytes that a processor may have that it has not settled. 64 MiB by default.
    pub unsettled_bytes_max: usize,
    /// How often a batch is tried, the first time included. 5 by default.
    pub attempts_max: u32,
    /// The pause after the first failure; it doubles from there. 100 ms by default.
    pub retry_pause_min: Duration,
    /// The longest pause between two attempts. 10 s by default.
    pub retry_pause_max: Duration,
    /// What becomes of a record that could not be processed.
    pub on_failure: OnFailure,
    /// What becomes of an aggregated record that is damaged.
    pub on_damaged: OnDamaged,
    /// Goes on after a gap or after trimming, and with the pointer of an event that cannot be fetched. Each is
    /// still told loudly, once. Off by default: turn it on, let it pass, turn it off.
    pub accept_loss: bool,
    /// Where AT_TIMESTAMP is.
    pub initial_timestamp: Option<WallTime>,
    /// Events that are kept beside the stream are fetched if they are not larger. 64 MiB by default.
    pub claim_check_bytes_max: u64,
    /// How long one call to the stream or the store may take. 30 s by default.
    pub call_timeout: Duration,
    /// A shard without news is looked at this often at least. 250 ms by default.
    pub idle_pause_max: Duration,
    /// How long a shard that stopped is left alone by this worker; it doubles with every stop. 1 s by default.
    pub stop_pause_min: Duration,
    /// The longest such pause. 5 minutes by default.
    pub stop_pause_max: Duration,
    /// How long dead letters are kept. 30 days by default.
    pub dead_letters_kept: Duration,
}

/// What becomes of a record that could not be processed, after all attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The shard stops, loudly, and its lease is given back.
    #[default]
    Stop,
    /// It is stored in the table `tenure_dead_letters`, and then the shard goes on. Failures that are nobody's
    /// fault (`Unavailable`, `Throttled`, `Unknown`) still stop the shard: else one outage would bury everything.
    DeadLetter,
}

/// What becomes of a record that begins like an aggregated one and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDamaged {
    /// The shard stops, loudly.
    #[default]
    Stop,
    /// It is delivered as it is, as one record, which is what the Java library does.
    Deliver,
    /// It is stored in the table `tenure_dead_letters`, and then the shard goes on.
    DeadLetter,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            budget_bytes: 256 << 20,
            records_per_read_max: RECORDS_PER_READ_MAX,
            prefetch_batches: 2,
            checkpoint_every: Some(Duration::from_secs(5)),
            unsettled_records_max: 100_000,
            unsettled_bytes_max: 64 << 20,
            attempts_max: 5,
            retry_pause_min: Duration::from_millis(100),
            retry_pause_max: Duration::from_secs(10),
            on_failure: OnFailure::default(),
            on_damaged: OnDamaged::default(),
            accept_loss: false,
            initial_timestamp: None,
            claim_check_bytes_max: 64 << 20,
            call_timeout: Duration::from_secs(30),
            idle_pause_max: Duration::from_millis(250),
            stop_pause_min: Duration::from_secs(1),
            stop_pause_max: Duration::from_secs(300),
            dead_letters_kept: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

impl Settings {
    /// Refuses what cannot work.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn validate(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::invalid(text));
        // One read must fit.
        let budget_min = 2 * BYTES_PER_READ;
        if !(budget_min..=1 << 40).contains(&self.budget_bytes) {
            return refuse(format!("budget_bytes {}: give {budget_min} or more", self.budget_bytes));
        }
        if !(1..=RECORDS_PER_READ_MAX).contains(&self.records_per_read_max) {
            return refuse(format!(
                "records_per_read_max {}: give 1 to {RECORDS_PER_READ_MAX}",
                self.records_per_read_max
            ));
        }
        if !(1..=64).contains(&self.prefetch_batches) {
            return refuse(format!("prefetch_batches {}: give 1 to 64", self.prefetch_batches));
        }
        if self.checkpoint_every.is_some_and(|every| every < Duration::from_millis(10)) {
            return refuse("checkpoint_every is below 10 ms: each is a write to the lease table".to_owned());
        }
        if self.unsettled_records_max == 0 || self.unsettled_bytes_max == 0 {
            return refuse("unsettled_records_max and unsettled_bytes_max must be above 0".to_owned());
        }
        if self.attempts_max == 0 {
            return refuse("attempts_max is 0: nothing would be processed; give 1 or more".to_owned());
        }
        for (name, min, max) in [
            ("retry_pause", self.retry_pause_min, self.retry_pause_max),
            ("stop_pause", self.stop_pause_min, self.stop_pause_max),
        ] {
            if min.is_zero() || min > max || max > Duration::from_secs(3600) {
                return refuse(format!(
                    "{name}_min {min:?} and {name}_max {max:?}: give more than zero, the lower first, at most an hour"
                ));
            }
        }
        if self.call_timeout.is_zero() || self.idle_pause_max.is_zero() {
            return refuse("call_timeout and idle_pause_max must be above zero".to_owned());
        }
        Ok(())
    }

    pub(crate) const fn needs_store(&self) -> bool {
        matches!(self.on_failure, OnFailure::DeadLetter) || matches!(self.on_damaged, OnDamaged::DeadLetter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert!(Settings::default().validate().is_ok());
        let refused = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.validate().unwrap_err().to_string()
        };
        assert!(refused(|settings| settings.budget_bytes = 1).contains("budget_bytes"));
        assert!(refused(|settings| settings.records_per_read_max = 0).contains("records_per_read_max"));
        assert!(refused(|settings| settings.prefetch_batches = 0).contains("prefetch_batches"));
        assert!(
            refused(|settings| settings.checkpoint_every = Some(Duration::ZERO)).contains("checkpoint_every")
        );
        assert!(refused(|settings| settings.unsettled_bytes_max = 0).contains("unsettled"));
        assert!(refused(|settings| settings.attempts_max = 0).contains("attempts_max"));
        assert!(
            refused(|settings| settings.retry_pause_min = Duration::from_secs(60)).contains("retry_pause")
        );
        assert!(refused(|settings| settings.stop_pause_min = Duration::ZERO).contains("stop_pause"));
        assert!(refused(|settings| settings.call_timeout = Duration::ZERO).contains("call_timeout"));
    }
}
