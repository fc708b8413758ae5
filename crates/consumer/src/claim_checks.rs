//! Events that did not fit in the stream, fetched from where they are kept.

use std::sync::Arc;

use bytes::Bytes;
use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_quarantine::{KEPT_BEYOND_RETENTION, Quarantine};
use tenure_store::Store;

use crate::header::Identity;
use crate::record::Pointer;

/// Fetches them.
#[derive(Debug, Clone)]
pub(crate) struct ClaimChecks {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) env: Env,
}

impl ClaimChecks {
    /// The event that a pointer stands for, with the pointer's own `tenure` object.
    ///
    /// # Errors
    /// `Corrupt` if it is not there or not what the pointer says.
    pub(crate) async fn fetch(&self, by: Monotonic, event: &Bytes, pointer: &Pointer) -> Result<Bytes> {
        let Identity::Event { header, .. } = Identity::of(event) else {
            return Err(Error::new(Kind::Corrupt, "a pointer without an identity"));
        };
        let clock = self.env.clock.clone();
        let quarantine =
            Quarantine::new(self.store.clone(), clock, header.source.into(), KEPT_BEYOND_RETENTION);
        let missing = || Error::new(Kind::Corrupt, format!("nothing is stored at {}", pointer.place));
        let manifest = quarantine.manifest(by, header.id).await?.ok_or_else(missing)?;
        if manifest.sha256 != pointer.sha256 || manifest.bytes != pointer.bytes {
            let text = format!("what is stored at {} is not what the pointer says", pointer.place);
            return Err(Error::new(Kind::Corrupt, text));
        }
        let body = quarantine.content(by, &manifest).await?;
        let rest = body.strip_prefix(b"{").ok_or_else(|| {
            Error::new(Kind::Corrupt, format!("what is stored at {} is no event", pointer.place))
        })?;
        let mut whole = Vec::with_capacity(body.len() + 320);
        whole.extend_from_slice(br#"{"tenure":"#);
        header.write_json(&mut whole);
        if rest != b"}" {
            whole.push(b',');
        }
        whole.extend_from_slice(rest);
        Ok(whole.into())
    }
}
