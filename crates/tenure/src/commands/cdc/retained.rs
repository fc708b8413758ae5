//! What the slot costs the server: while a sink is slow the log cannot be removed, and the disk fills.

use serde::{Deserialize, Serialize};
use tenure_cdc::server::{self, Slot, WalStatus};
use tenure_cdc::transport::{Endpoint, Session, SlotName};

use super::sql;
use crate::context::Context;
use crate::size;

/// What the server keeps for the slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Retained {
    /// How much log.
    pub(super) bytes: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(super) wal_status: Option<String>,
    /// How much more may be written before the slot may be lost, if there is a limit.
    pub(super) safe_bytes: Option<i64>,
}

impl Retained {
    pub(super) fn of(slot: &Slot) -> Self {
        Self {
            bytes: slot.retained_bytes,
            wal_status: slot.wal_status.map(|status| word(status).to_owned()),
            safe_bytes: slot.safe_wal_bytes,
        }
    }

    /// Sets the gauges.
    pub(super) fn measure(&self, source: &str) {
        let source = source.to_owned();
        let lost = self.wal_status.as_deref() == Some(word(WalStatus::Lost));
        metrics::gauge!("tenure_cdc_retained_wal_bytes", "source" => source.clone())
            .set(self.bytes.unwrap_or(0) as f64);
        if let Some(safe) = self.safe_bytes {
            metrics::gauge!("tenure_cdc_safe_wal_bytes", "source" => source.clone()).set(safe as f64);
        }
        metrics::gauge!("tenure_cdc_slot_lost", "source" => source).set(f64::from(u8::from(lost)));
    }

    /// What a person should know, if the server keeps more than it should.
    pub(super) fn alarm(&self, warn: u64) -> Option<String> {
        let bytes = self.bytes.filter(|bytes| *bytes > warn)?;
        Some(format!(
            "the server keeps {} of log for the slot, more than {}: its disk fills while the sink is slow. Make the \
             sink faster (more shards), raise --retained-warn, or free the disk and accept a gap by `tenure cdc teardown`",
            size::rounded(bytes),
            size::rounded(warn)
        ))
    }
}

/// As the server spells it.
pub(super) const fn word(status: WalStatus) -> &'static str {
    match status {
        WalStatus::Reserved => "reserved",
        WalStatus::Extended => "extended",
        WalStatus::Unreserved => "unreserved",
        WalStatus::Lost => "lost",
    }
}

/// Looks at the slot on a session of its own, which is kept between looks.
pub(super) struct Watcher<'a> {
    context: &'a Context,
    endpoint: Endpoint,
    slot: SlotName,
    session: Option<Session>,
}

impl<'a> Watcher<'a> {
    pub(super) const fn new(context: &'a Context, endpoint: Endpoint, slot: SlotName) -> Self {
        Self { context, endpoint, slot, session: None }
    }

    /// What the server keeps; `None` if there is no slot, or it cannot be asked now.
    pub(super) async fn look(&mut self) -> Option<Retained> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => match sql::connect(self.context, &self.endpoint).await {
                Ok(session) => session,
                Err(error) => {
                    tracing::debug!(error = %error.chain(), "the slot cannot be looked at");
                    return None;
                }
            },
        };
        match server::slot(&mut session, self.context.by(), &self.slot).await {
            Ok(slot) => {
                self.session = Some(session);
                slot.as_ref().map(Retained::of)
            }
            Err(error) => {
                tracing::debug!(error = %error.chain(), "the slot cannot be looked at");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alarm_names_the_choices() {
        let kept = |bytes| Retained { bytes: Some(bytes), ..Retained::default() };
        assert_eq!(kept(10).alarm(10), None);
        assert_eq!(Retained::default().alarm(0), None);
        let alarm = kept(3 << 30).alarm(1 << 30).unwrap();
        for part in ["3.0 GiB", "more than 1.0 GiB", "tenure cdc teardown", "--retained-warn"] {
            assert!(alarm.contains(part), "{alarm}");
        }
    }
}
