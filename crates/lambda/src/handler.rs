//! What an invocation does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_autoscaler::check::FAILURES_ALARM;
use tenure_autoscaler::observation::{Node, tags};
use tenure_autoscaler::state::{InstanceId, Interrupt};
use tenure_autoscaler::{Book, Tick};
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Monotonic, WallTime, within};
use tracing::{Instrument as _, error, info, info_span, warn};

use crate::Context;
use crate::event::{Event, Interruption, Message, Single, Unexpected};

/// Kept back of an invocation's time, to answer.
const MARGIN: Duration = Duration::from_secs(2);
/// While a function is frozen its connections die. The clients do not try again by themselves, because a hidden second
/// try of a change would look like a lost race; a tick may be repeated. Four sides are talked to.
const TICKS_MAX: u32 = 4;

/// An invocation.
#[derive(Debug, Clone)]
pub struct Request {
    /// Lambda's id of it.
    pub id: String,
    /// What came.
    pub event: Value,
    /// When Lambda ends it.
    pub deadline: WallTime,
}

/// Why an invocation failed. What was done until then is recorded, and nothing is lost: the schedule comes again, and
/// so do messages and events that nobody handled.
#[derive(Debug)]
pub enum Failure {
    /// The event is none of ours.
    Unexpected(Unexpected),
    /// There is no time for a single call and its answer.
    TooShort {
        /// What is left.
        left: Duration,
        /// What is needed.
        needed: Duration,
    },
    /// The time was over in the middle of it.
    CutOff,
    /// A call failed.
    Call(Error),
}

impl Failure {
    /// One word for it, the type that Lambda shows.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unexpected(_) => "UnexpectedEvent",
            Self::TooShort { .. } => "TimeoutTooShort",
            Self::CutOff => "CutOff",
            Self::Call(error) => error.kind().name(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unexpected(unexpected) => unexpected.fmt(f),
            Self::TooShort { left, needed } => write!(
                f,
                "{left:?} are left, and a call with its answer may need {needed:?}: raise the function's timeout to a \
                 minute"
            ),
            Self::CutOff => f.write_str("the time was over before an answer came; the next tick goes on"),
            Self::Call(error) => f.write_str(&error.chain()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Unexpected> for Failure {
    fn from(unexpected: Unexpected) -> Self {
        Self::Unexpected(unexpected)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

/// Handles one invocation, to its end: nothing goes on when this returns.
///
/// # Errors
/// If the event is none of ours, or a tick failed. Messages that could not be handled are in the answer instead.
pub async fn handle(context: &Context, request: Request) -> Result<Value, Failure> {
    let span = info_span!("invocation", request_id = request.id);
    // Boxed: futures with three SDKs in them are large.
    let done = Box::pin(Invocation::run(context, request)).instrument(span.clone()).await;
    if let Err(failure) = &done {
        let _entered = span.enter();
        error!(kind = failure.kind(), error = %failure, "the invocation failed");
    }
    done
}

struct Invocation<'a> {
    context: &'a Context,
    id: String,
    /// After this nothing begins.
    until: Monotonic,
}

/// What became of a told interruption.
enum Noted {
    /// It is in the inbox.
    Stored,
    /// The instance is not of this cluster, or has gone.
    Stranger,
    /// It has to be told again.
    Failed(Failure),
}

impl<'a> Invocation<'a> {
    async fn run(context: &'a Context, request: Request) -> Result<Value, Failure> {
        let event = Event::read(request.event)?;
        let clock = &context.env.clock;
        let left = request.deadline.as_millis() - clock.wall().as_millis();
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let needed = context.places.call_timeout * 2 + MARGIN;
        if left < needed {
            return Err(Failure::TooShort { left, needed });
        }
        let until = clock.deadline(left - MARGIN);
        let invocation = Self { context, id: request.id, until };
        match event {
            Event::Tick => Ok(told(&invocation.tick().await?)),
            Event::Interruption(interruption) => invocation.interruption(interruption).await,
            Event::Batch(messages) => Ok(invocation.batch(messages).await),
        }
    }

    async fn interruption(&self, interruption: Interruption) -> Result<Value, Failure> {
        let instance = interruption.instance.clone();
        match self.note(&[interruption]).await.remove(&instance) {
            Some(Noted::Stored) => Ok(told(&self.tick().await?)),
            Some(Noted::Failed(failure)) => Err(failure),
            Some(Noted::Stranger) | None => {
                Ok(json!({ "ignored": format!("{instance} is no instance of this cluster") }))
            }
        }
    }

    /// What a queue is told: the messages that are to come again.
    async fn batch(&self, messages: Vec<Message>) -> Value {
        let (mut failed, mut ticks, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for message in messages {
            match message.body {
                Ok(Single::Tick) => ticks.push(message.id),
                Ok(Single::Interruption(interruption)) => told.push((message.id, interruption)),
                Err(unexpected) => {
                    error!(message_id = message.id, error = %unexpected, "a message is not understood");
                    failed.push(message.id);
                }
            }
        }
        let interruptions: Vec<_> = told.iter().map(|(_, interruption)| interruption.clone()).collect();
        let noted = self.note(&interruptions).await;
        let mut stored = false;
        for (message_id, interruption) in told {
            match noted.get(&interruption.instance) {
                Some(Noted::Stored) => stored = true,
                Some(Noted::Stranger) => {}
                Some(Noted::Failed(failure)) => {
                    error!(message_id, error = %failure, "an interruption could not be stored; it comes again");
                    failed.push(message_id);
                }
                None => failed.push(message_id),
            }
        }
        if (stored || !ticks.is_empty())
            && let Err(failure) = self.tick().await
        {
            // What is stored is stored. Only who asked for the tick asks again.
            error!(error = %failure, "the tick failed; the next one goes on");
            failed.append(&mut ticks);
        }
        let items: Vec<_> = failed.into_iter().map(|id| json!({ "itemIdentifier": id })).collect();
        json!({ "batchItemFailures": items })
    }

    // === interruptions ===

    /// Puts those of this cluster into the inbox.
    async fn note(&self, told: &[Interruption]) -> BTreeMap<InstanceId, Noted> {
        let mut noted = BTreeMap::new();
        if told.is_empty() {
            return noted;
        }
        let ids: Vec<_> = told.iter().map(|interruption| interruption.instance.clone()).collect();
        let ours = match self.in_time(self.ours(&ids)).await {
            Ok(ours) => ours,
            Err(failure) => {
                warn!(error = %failure, "whose instances these are is unknown");
                let again = || Noted::Failed(Failure::Call(Error::unavailable(failure.to_string())));
                return ids.into_iter().map(|id| (id, again())).collect();
            }
        };
        let Context { ports, env, places, .. } = self.context;
        let book = Book::new(ports.store.clone(), env, &self.id, places.clone());
        for Interruption { instance, kind } in told {
            if !ours.contains(instance) {
                info!(instance = instance.as_str(), "an interruption of another's instance is left alone");
                noted.entry(instance.clone()).or_insert(Noted::Stranger);
                continue;
            }
            // When it is stored, not when it was sent: of several the oldest are answered first.
            let interrupt = Interrupt::told(*kind, env.clock.wall().as_seconds());
            let stored = match self.in_time(book.interrupt(instance, interrupt)).await {
                Ok(()) => Noted::Stored,
                Err(failure) => Noted::Failed(failure),
            };
            noted.insert(instance.clone(), stored);
        }
        noted
    }

    /// Those that are of this cluster and still there: by its tag, or by a node that names them. Warnings come for
    /// every instance of the account, and the inbox has room for a hundred.
    async fn ours(&self, ids: &[InstanceId]) -> Result<BTreeSet<InstanceId>> {
        let Context { ports, policy, .. } = self.context;
        let listed = ports.cloud.instances(self.by(), ids).await;
        let listed = listed.map_err(|error| error.during("list the instances"))?;
        let mut there = listed.iter().filter(|instance| ids.contains(&instance.id) && instance.is_live());
        let is_tagged = |tag: Option<&str>| tag == Some(policy.cluster.as_str());
        let (mut ours, mut untagged) = (BTreeSet::new(), BTreeSet::new());
        for instance in &mut there {
            match instance.tag(tags::CLUSTER) {
                tag if is_tagged(tag) => ours.insert(instance.id.clone()),
                // An old writer's worker has none.
                None => untagged.insert(instance.id.clone()),
                Some(_) => false,
            };
        }
        if !untagged.is_empty() {
            let nodes = ports.cluster.nodes(self.by()).await;
            let nodes = nodes.map_err(|error| error.during("list the nodes"))?;
            let named: BTreeSet<_> = nodes.iter().filter_map(Node::claimed_instance).collect();
            ours.extend(untagged.into_iter().filter(|id| named.contains(id.as_str())));
        }
        Ok(ours)
    }

    // === ticks ===

    async fn tick(&self) -> Result<Tick, Failure> {
        let Context { env, places, .. } = self.context;
        let mut executor = self.context.executor(&self.id)?;
        let mut ticks = 1;
        loop {
            let tick = self.in_time(executor.tick_until(self.until)).await;
            match tick {
                Err(Failure::Call(error))
                    if error.kind() == Kind::Unavailable
                        && ticks < TICKS_MAX
                        && env.clock.deadline(places.call_timeout * 2) <= self.until =>
                {
                    warn!(error = %error.chain(), "a tick failed; it is tried again");
                    ticks += 1;
                }
                Ok(tick) => {
                    tell(&tick);
                    return Ok(tick);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    // === time ===

    /// Dropped when the time is over: all that is done here may be.
    async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T, Failure> {
        match within(&*self.context.env.clock, self.until, Box::pin(call)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Failure::CutOff),
        }
    }

    /// Until when a single call may take.
    fn by(&self) -> Monotonic {
        self.context.env.clock.deadline(self.context.places.call_timeout).min(self.until)
    }
}

fn titles(tick: &Tick) -> Vec<&'static str> {
    tick.writes.iter().map(|name| name.row().title).collect()
}

fn tell(tick: &Tick) {
    let action = tick.state.action_id().map(ToString::to_string).unwrap_or_default();
    let (writes, reasons) = (titles(tick).join(", "), tick.reasons.join("; "));
    info!(rev = tick.state.rev, action_id = action, writes, reasons, "ticked");
    for failure in &tick.failures {
        warn!(error = failure, "a call failed; the next tick makes it again");
    }
    // Each of these ticks ended well, and what it began did not: nothing else would say so.
    if let Some(failed_actions @ FAILURES_ALARM..) = tick.state.fail_count {
        let last = tick.state.last_failure.as_deref().unwrap_or("the reason is not recorded");
        error!(failed_actions, error = last, "actions fail one after another");
    }
}

fn told(tick: &Tick) -> Value {
    json!({
        "rev": tick.state.rev,
        "action": tick.state.action_id().map(ToString::to_string),
        "writes": titles(tick),
        "reasons": tick.reasons,
        "failures": tick.failures,
    })
}
