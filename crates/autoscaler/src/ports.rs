//! The edges: what the executor asks of the cloud, the cluster and the metrics.
//!
//! Every call takes the moment `by` which an answer is wanted. As of a store, an error of kind `Unknown`
//! means that the call may have had its effect; all others that it had none.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::Result;
use tenure_clock::Monotonic;

use crate::machine::Manner;
use crate::observation::{CordonMark, Instance, LaunchOrder, Load, Node, Pod};
use crate::state::{ActionId, InstanceId};

/// How a launch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// This instance was launched, now or by an earlier call with the same token.
    Started(InstanceId),
    /// There is no capacity: nothing was launched, and this call will launch nothing.
    NoCapacity(String),
}

/// How ending an instance went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It is ending, or had ended.
    Accepted,
    /// The cloud does not know it.
    NotFound,
}

/// How the change of a node went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patched {
    /// It changed.
    Done,
    /// It has another version by now: look again.
    Conflict,
    /// There is no such node.
    Gone,
}

/// How an eviction went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// It goes, or in a dry run: it may.
    Accepted,
    /// There is no such pod any more.
    Gone,
    /// Its disruption budget does not allow it now.
    Blocked(String),
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Measures {
    /// Load by node name.
    pub loads: BTreeMap<String, Load>,
    /// Whoever measured it: its clock when it was asked, in epoch seconds.
    pub asked_epoch: Option<i64>,
}

/// Where instances are launched and ended.
#[async_trait]
pub trait Cloud: Debug + Send + Sync {
    /// All instances with the cluster's tag, pending and ending ones too, and those named: by the state item,
    /// or by nodes, so there may be many. What the cloud does not know is left out.
    async fn instances(&self, by: Monotonic, also: &[InstanceId]) -> Result<Vec<Instance>>;

    /// Launches one instance; with the same token, once.
    async fn launch(&self, by: Monotonic, order: &LaunchOrder) -> Result<Launch>;

    /// Ends an instance. May be repeated.
    async fn terminate(&self, by: Monotonic, id: &InstanceId) -> Result<Ended>;

    /// Why an instance may not be ended, if it may not: protected, or not granted to us. Changes nothing.
    async fn why_not_end(&self, by: Monotonic, id: &InstanceId) -> Result<Option<String>>;

    /// Sets a tag. May be repeated.
    async fn tag(&self, by: Monotonic, id: &InstanceId, name: &str, value: &str) -> Result<()>;
}

/// Where pods run.
#[async_trait]
pub trait Cluster: Debug + Send + Sync {
    /// All nodes.
    async fn nodes(&self, by: Monotonic) -> Result<Vec<Node>>;

    /// All pods that have not ended.
    async fn pods(&self, by: Monotonic) -> Result<Vec<Pod>>;

    /// Cordons a node of that version and writes who did, in one change.
    async fn cordon(&self, by: Monotonic, node: &str, version: &str, mark: &CordonMark) -> Result<Patched>;

    /// Gives a node of that version back: writes which action did; with `uncordon`, lifts the cordon and
    /// removes its mark, all in one change.
    async fn release(
        &self,
        by: Monotonic,
        node: &str,
        version: &str,
        action: &ActionId,
        uncordon: bool,
    ) -> Result<Patched>;

    /// Removes the start-up taint from a node of that version.
    async fn untaint(&self, by: Monotonic, node: &str, version: &str) -> Result<Patched>;

    /// Asks a pod of that uid to go.
    async fn evict(
        &self,
        by: Monotonic,
        namespace: &str,
        name: &str,
        uid: &str,
        manner: Manner,
    ) -> Result<Evicted>;
}

/// Where loads are measured.
#[async_trait]
pub trait Metrics: Debug + Send + Sync {
    /// Loads.
    async fn measures(&self, by: Monotonic) -> Result<Measures>;

    /// What the readiness query says of each node that it knows, by name.
    async fn readiness(&self, by: Monotonic) -> Result<BTreeMap<String, bool>>;
}

/// Where consumers tell how far they are behind.
#[async_trait]
pub trait Backlog: Debug + Send + Sync {
    /// The one that is furthest behind; none if nobody reported lately.
    async fn behind(&self, by: Monotonic) -> Result<Option<Duration>>;
}
