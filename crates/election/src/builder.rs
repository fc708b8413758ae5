//! From settings to a candidate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Result};
use tenure_store::Store;
use tracing::warn;

use crate::elector::{Candidate, Elector, Health};
use crate::identity::{OwnerId, ShardId};
use crate::machine::Me;
use crate::rows::Place;
use crate::settings::{OnRenewalError, Settings, Skew};

/// Random hexadecimal digits that make an owner's name unique.
const OWNER_RANDOM_DIGITS: usize = 12;

/// Describes a candidate.
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    shard: String,
    env: Env,
    owner: Owner,
    about: BTreeMap<String, String>,
    settings: Settings,
    health: Option<Health>,
}

enum Owner {
    Named(String),
    Exact(String),
}

impl Builder {
    pub(crate) fn new(store: Arc<dyn Store>, shard: String, env: &Env) -> Self {
        Self {
            store,
            shard,
            env: env.clone(),
            owner: Owner::Named("tenure".to_owned()),
            about: BTreeMap::new(),
            settings: Settings::default(),
            health: None,
        }
    }

    /// The candidate's name. Its owner id is the name and a random part, so that no two processes
    /// share one.
    pub fn owner(mut self, name: impl Into<String>) -> Self {
        self.owner = Owner::Named(name.into());
        self
    }

    /// The owner id as it is to stand in the row. No two live processes may have the same.
    pub fn owner_id(mut self, id: impl Into<String>) -> Self {
        self.owner = Owner::Exact(id.into());
        self
    }

    /// How long leadership lasts without renewal.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How often the lease is renewed.
    pub fn renew(mut self, renew: Duration) -> Self {
        self.settings.renew = renew;
        self
    }

    /// What may be assumed of wall clocks.
    pub fn skew(mut self, skew: Skew) -> Self {
        self.settings.skew = skew;
        self
    }

    /// What a failed renewal means.
    pub fn on_renewal_error(mut self, policy: OnRenewalError) -> Self {
        self.settings.on_renewal_error = policy;
        self
    }

    /// All settings at once.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Something that others should know of this candidate when it leads: an address, a version.
    pub fn about(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.about.insert(name.into(), value.into());
        self
    }

    /// A check that holds renewals and claims back: no progress, no renewal. It is asked often and must
    /// not block; of a follower, whose work does not run, too.
    pub fn health(mut self, healthy: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.health = Some(Arc::new(healthy));
        self
    }

    /// Checks everything and makes the candidate. Nothing is read or written yet.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn build(self) -> Result<Elector> {
        let shard = ShardId::new(&self.shard)?;
        let timing = self.settings.timing(self.store.is_local())?;
        let (name, owner) = match self.owner {
            Owner::Exact(id) => (id.clone(), id),
            Owner::Named(name) => {
                // Checked by itself: an empty name must not hide behind the random part.
                OwnerId::new(&name)?;
                let random = self.env.entropy.nonce();
                let id = format!("{name}-{}", &random[..OWNER_RANDOM_DIGITS]);
                (name, id)
            }
        };
        let me = Me { owner: OwnerId::new(owner)?, name: name.into(), about: Arc::new(self.about) };
        if let Some(advice) = self.settings.advice() {
            warn!(shard = %shard, advice, "settings");
        }
        let candidate = Candidate {
            store: self.store,
            clock: self.env.clock,
            entropy: self.env.entropy,
            place: Place { table: self.settings.table, shard },
            me,
            timing,
            health: self.health,
        };
        Ok(Elector::of(candidate))
    }
}
