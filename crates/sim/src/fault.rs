//! What can go wrong, by name, and how often it did.

use std::collections::BTreeMap;

macro_rules! faults {
    ($($kind:ident $name:literal $what:literal,)*) => {
        /// A kind of fault, or of disturbance that an operator causes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $(#[doc = $what] $kind,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// One lowercase word.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

faults! {
    Pause "pause" "A node stands still; what happens to it meanwhile waits.",
    Crash "crash" "A process dies, and starts again later without memory.",
    Stop "stop" "A process is stopped in good order, and started again later.",
    Partition "partition" "Nothing passes between a node and the store.",
    RequestsDropped "requests_dropped" "A node's requests do not reach the store.",
    RepliesDropped "replies_dropped" "The store's replies do not reach a node.",
    Outage "outage" "The store fails every call, or leaves it without an answer.",
    Reaped "reaped" "The store deletes a LOCK row whose ttl is past.",
    Deleted "deleted" "Somebody deletes the LOCK row.",
    Resign "resign" "The leader hands over.",
    ResignTo "resign_to" "The leader hands over to a named candidate.",
    ResignAsked "resign_asked" "An operator asks the leader, by its row, to hand over.",
    Unhealthy "unhealthy" "A node's health check fails.",
    WallStep "wall_step" "A wall clock jumps.",
    WallSkew "wall_skew" "A wall clock is off from the beginning.",
    KeptOwner "kept_owner" "A node's processes have one owner id, given to each in turn.",
    SharedOwner "shared_owner" "Two live processes have one owner id.",
    RateError "rate_error" "A monotonic clock runs fast or slow.",
    Throttled "throttled" "A call is turned away.",
    Failed "failed" "A call fails before it reaches the store.",
    RequestLost "request_lost" "A call never arrives, and is never answered.",
    ReplyLost "reply_lost" "A call is carried out, and its reply is lost.",
    Late "late" "A write arrives long after its caller gave up.",
    Duplicated "duplicated" "A write is carried out, and once more later.",
    Slow "slow" "A call takes up to a lease.",
}

/// How often each fault was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultTally([u64; Fault::ALL.len()]);

impl FaultTally {
    /// Counts one.
    pub const fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// How many there were.
    #[must_use]
    pub const fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// The counts by name, zeros included.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
        Fault::ALL.iter().map(|fault| (fault.name(), self.of(*fault))).collect()
    }

    /// Those that never happened.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        Fault::ALL.iter().filter(|fault| self.of(**fault) == 0).map(|fault| fault.name()).collect()
    }
}
