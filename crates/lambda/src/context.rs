//! What is built once and outlives invocations: connections, policy, clock.

#[cfg(feature = "runtime")]
use anyhow::{Context as _, anyhow};
use tenure_autoscaler::{Executor, Places, Policy, Ports};
use tenure_backend::{Env, Result};

/// What every invocation gets. It keeps no state of an action: that is in the store.
#[derive(Debug)]
pub struct Context {
    /// The edges. Their clients keep connections from one invocation to the next.
    pub ports: Ports,
    /// What the operator wants.
    pub policy: Policy,
    /// Where state and log are.
    pub places: Places,
    /// Time and randomness.
    pub env: Env,
}

impl Context {
    /// Connects as the configuration says. Nothing is sent: neither tables nor instances are looked at before the
    /// first event asks for them.
    ///
    /// # Errors
    /// If a setting is missing or cannot be used.
    #[cfg(feature = "runtime")]
    pub async fn connect(configuration: &crate::Configuration, env: Env) -> anyhow::Result<Self> {
        let settings = &configuration.settings;
        let policy = settings.policy()?;
        let edges = settings.edges()?;
        let invalid = |error: tenure_backend::Error| anyhow!(error.chain());
        let store = tenure_store::open(&configuration.store, &env)
            .await
            .map_err(invalid)
            .context("open the store")?;
        let ports = edges.ports(store, &env).await.map_err(invalid).context("connect")?;
        let context = Self { ports, policy, places: settings.places(configuration.call_timeout()), env };
        // Found out now rather than by the first event.
        context.executor("start").map_err(invalid).context("check the policy")?;
        Ok(context)
    }

    /// An executor for one invocation, under the name of its request.
    ///
    /// Each invocation has its own. An executor trusts its lease by a monotonic clock, and a function is frozen
    /// between invocations: whether that clock goes on meanwhile is not promised, so no lease is carried over.
    /// Lambda also repeats an event under the same request id while the first try may still be at work elsewhere;
    /// the nonce that the book adds to the name tells them apart. The next invocation takes the action over once the
    /// lease of the last one has passed, so a lease plus the skew should be shorter than the schedule's period.
    ///
    /// # Errors
    /// `Invalid` if the policy cannot be carried out.
    pub fn executor(&self, request_id: &str) -> Result<Executor> {
        Executor::builder(self.ports.clone(), self.policy.clone(), self.env.clone())
            .name(request_id)
            .places(self.places.clone())
            .build()
    }
}
