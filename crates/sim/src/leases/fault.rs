//! What can go wrong while a fleet keeps leases.

use crate::fault::named;
use crate::network::{CallFault, CallFaults};

named! {
    /// A kind of fault, or of disturbance that an operator causes.
    Fault:
    Crash "crash" "A worker dies, and starts again later without memory.",
    Restart "restart" "A worker dies, and is back at once.",
    Pause "pause" "A worker stands still; what happens to it meanwhile waits.",
    KeeperStalled "keeper_stalled" "A worker's keeper is not polled, while its consumers go on.",
    Partition "partition" "Nothing passes between a worker and the store.",
    RequestsDropped "requests_dropped" "A worker's requests do not reach the store.",
    RepliesDropped "replies_dropped" "The store's replies do not reach a worker.",
    Outage "outage" "The store fails every call, or leaves it without an answer.",
    Join "join" "A worker comes that was not there before.",
    Leave "leave" "A worker is stopped in good order, and comes back later.",
    Deploy "deploy" "Worker after worker is replaced by one with another cap.",
    CapChange "cap_change" "A worker may hold more or fewer leases from now on.",
    Split "split" "A shard is split.",
    Merge "merge" "Two shards are merged.",
    RowDeleted "row_deleted" "Somebody deletes the row of a lease.",
    PresenceDeleted "presence_deleted" "Somebody deletes the row of a worker.",
    SlowConsumer "slow_consumer" "The consumers of a worker take long for what they have taken.",
    StuckConsumer "stuck_consumer" "The consumers of a worker do not get on at all.",
    Foreign "foreign" "A worker of another kind comes, takes leases, and dies.",
    NoPlanner "no_planner" "Nobody is elected to plan.",
    LateHandover "late_handover" "A planner is followed by another only after long.",
    TwoPlanners "two_planners" "Two workers believe that they plan.",
    SameName "same_name" "Two workers have one name.",
    KeptName "kept_name" "A worker comes back under the name that it had.",
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
