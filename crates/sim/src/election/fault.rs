//! What can go wrong in an election.

use crate::fault::named;
use crate::network::{CallFault, CallFaults};

named! {
    /// A kind of fault, or of disturbance that an operator causes.
    Fault:
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

impl CallFaults for Fault {
    fn of_call(fault: CallFault) -> Self {
        match fault {
            CallFault::Throttled => Self::Throttled,
            CallFault::Failed => Self::Failed,
            CallFault::RequestLost => Self::RequestLost,
            CallFault::ReplyLost => Self::ReplyLost,
            CallFault::Late => Self::Late,
            CallFault::Duplicated => Self::Duplicated,
            CallFault::Slow => Self::Slow,
        }
    }
}
