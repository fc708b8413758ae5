//! One executor, as `executor.rs` drives the machine, taken apart at its calls.
//!
//! Whatever it does between two calls takes no time: it sends the next call as soon as it heard of the last. A
//! call that was sent lands at any later moment; until then the executor waits.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use tenure_autoscaler::change::{Change, Stamp};
use tenure_autoscaler::machine::Manner;
use tenure_autoscaler::observation::{Answer, Observation};
use tenure_autoscaler::rows::STATE_TABLE;
use tenure_autoscaler::rules::Rule;
use tenure_autoscaler::state::{ActionId, State};
use tenure_autoscaler::table::write;
use tenure_autoscaler::{Effect, Needs, Now, Policy, needs, step};
use tenure_store::Write;

use super::Fault;
use super::shared::Shared;
use super::world::{Heard, World};

const REFUSALS_MAX: u8 = 5;
const UNANSWERED_MAX: u8 = 3;

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub(super) struct Executor {
    pub(super) name: char,
    /// How often it died.
    pub(super) life: u8,
    /// Whether it ever ticked.
    pub(super) woke: bool,
    /// It stands still in the middle of a tick.
    pub(super) stalled: bool,
    lease_until_ms: Option<i64>,
    unanswered_launches: BTreeSet<(ActionId, u32, u32)>,
    pub(super) tick: Option<Tick>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub(super) struct Tick {
    /// Without it, the next thing is to read it.
    state: Option<Shared<State>>,
    /// What was seen before the state was read: only without the first rule.
    seen: Option<Observation>,
    answers: Vec<Answer>,
    refusals: u8,
    unanswered: u8,
    /// Whether the metrics answered when it looked last.
    measured: bool,
    effects: VecDeque<Effect>,
    pub(super) flight: Option<Shared<Flight>>,
}

/// A call that was sent.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct Flight {
    pub(super) effect: Effect,
    /// The state for which it was planned.
    pub(super) planned: Shared<State>,
    pub(super) write: Option<Shared<Sent>>,
    pub(super) sent: i64,
    pub(super) measured: bool,
}

/// A write, told apart by what it was made from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sent {
    pub(super) write: Write,
    pub(super) from: u64,
}

impl Hash for Sent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.from.hash(state);
    }
}

thread_local! {
    /// Writes that were made before, by what they were made from: each is worked out once.
    static WRITES: RefCell<HashMap<u64, Option<Shared<Sent>>>> = RefCell::default();
}

/// The write of a change, if it fits.
fn write_of(state: &Shared<State>, change: &Change, stamp: &Stamp) -> Option<Shared<Sent>> {
    let from = Shared::new((state.print(), change.clone(), stamp.clone())).print();
    let known = WRITES.with_borrow(|writes| writes.get(&from).cloned());
    known.unwrap_or_else(|| {
        let sent = write(STATE_TABLE, state, change, stamp).ok();
        let sent = sent.map(|write| Shared::new(Sent { write, from }));
        WRITES.with_borrow_mut(|writes| writes.insert(from, sent.clone()));
        sent
    })
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// It lands, and nobody is told.
    ReplyLost,
    /// It lands later, if at all; by then nobody waits for it.
    Late,
    /// There is no capacity: a launch, if it has not landed before.
    Short,
}

impl Executor {
    pub(super) fn new(name: char) -> Self {
        Self { name, ..Self::default() }
    }

    /// The process dies, and another takes its place.
    pub(super) fn crash(&mut self) -> Option<Shared<Flight>> {
        let flight = self.tick.take().and_then(|tick| tick.flight);
        *self = Self { life: self.life + 1, woke: true, ..Self::new(self.name) };
        flight
    }

    /// Whether the fault can strike it where it is.
    pub(super) fn is_hindered_by(&self, fault: Fault) -> bool {
        let flight = self.tick.as_ref().and_then(|tick| tick.flight.as_ref());
        match fault {
            Fault::Stall | Fault::Crash => self.tick.is_some(),
            Fault::ReplyLost | Fault::Late | Fault::CrashSent => flight.is_some(),
            Fault::Short => flight.is_some_and(|flight| matches!(flight.effect, Effect::Launch(_))),
            Fault::Touch | Fault::PersonCordons | Fault::Blind => false,
        }
    }

    fn now(&self, world: &World) -> Now {
        let ms = world.now_ms();
        Now {
            ms,
            owner: format!("{}{}", self.name, self.life),
            lease_left_ms: self.lease_until_ms.map_or(0, |until| (until - ms).max(0)),
        }
    }
}

/// Goes on with whatever does not wait for an answer: begins a tick, reads, or looks and decides.
pub(super) fn go_on(world: &mut World, index: usize, policy: &Policy) {
    let mut own = Executor::clone(&world.executors[index]);
    own.stalled = false;
    world.fresh = false;
    match &mut own.tick {
        None => {
            own.woke = true;
            let seen = (!Rule::ReadThenList.kept()).then(|| world.observe(Needs::ALL, &State::default()));
            own.tick = Some(Tick {
                state: Rule::ReadThenList.kept().then(|| world.state.clone()),
                measured: !world.blind,
                seen,
                ..Tick::default()
            });
        }
        Some(tick) if tick.state.is_none() => tick.state = Some(world.state.clone()),
        Some(_) => return finish(world, index, own, policy),
    }
    // Where nothing need be seen, it decides as soon as it has read.
    let now = own.now(world);
    let decides = own.tick.as_ref().and_then(|tick| tick.state.as_ref().map(|state| (tick, state)));
    let decides = decides.is_some_and(|(tick, state)| {
        tick.seen.is_none() && needs(state, &tick.answers, &now, policy) == Needs::default()
    });
    if decides {
        return finish(world, index, own, policy);
    }
    world.executors[index] = Shared::new(own);
}

fn finish(world: &mut World, index: usize, mut own: Executor, policy: &Policy) {
    look(&mut own, world, policy);
    world.executors[index] = Shared::new(own);
}

fn look(own: &mut Executor, world: &World, policy: &Policy) {
    let now = own.now(world);
    let Some(tick) = &mut own.tick else { return };
    let Some(state) = tick.state.clone() else { return };
    let mut observation = tick.seen.take().unwrap_or_else(|| {
        tick.measured = !world.blind;
        world.observe(needs(&state, &tick.answers, &now, policy), &state)
    });
    observation.answers = tick.answers.clone();
    tick.effects = step(&state, &observation, policy, &now).effects.into();
    if tick.effects.is_empty() {
        own.tick = None;
    } else {
        send(own, world, policy);
    }
}

/// Sends the next call. Questions are answered at once: they change nothing.
fn send(own: &mut Executor, world: &World, policy: &Policy) {
    let now = own.now(world);
    let Some(tick) = &mut own.tick else { return };
    while let Some(effect) = tick.effects.pop_front() {
        let Some(state) = tick.state.clone() else { return };
        let is_question = matches!(effect, Effect::AskEnd(_) | Effect::Evict { manner: Manner::DryRun, .. });
        let mut sent = None;
        if let Effect::Write(change) = &effect {
            sent = write_of(&state, change, &now.stamp(policy));
            if sent.is_none() {
                return refused(own, None);
            }
        } else if state.action_id().is_some() && now.lease_left_ms <= 0 {
            tick.effects.clear();
            return;
        }
        let flight =
            Flight { effect, planned: state, write: sent, sent: world.epoch(), measured: tick.measured };
        if !is_question {
            tick.flight = Some(Shared::new(flight));
            return;
        }
        if let Heard::Answered(answer) = world.clone().carry_out(&flight) {
            tick.answers.push(answer);
        }
    }
}

/// The call that is under way lands, or does not, and the executor hears of it, or does not.
pub(super) fn land(world: &mut World, index: usize, fate: Fate, policy: &Policy) {
    let mut own = Executor::clone(&world.executors[index]);
    own.stalled = false;
    world.fresh = false;
    let Some(flight) = own.tick.as_mut().and_then(|tick| tick.flight.take()) else { return };
    let heard = match fate {
        Fate::Answered => Some(world.carry_out(&flight)),
        Fate::ReplyLost => {
            world.carry_out(&flight);
            None
        }
        Fate::Late => {
            world.leave_on_its_way(&flight);
            None
        }
        Fate::Short => match &flight.effect {
            Effect::Launch(order) => Some(Heard::Answered(Answer::NoCapacity {
                slot: order.slot,
                attempt: order.attempt,
                why: "InsufficientInstanceCapacity".to_owned(),
            })),
            _ => None,
        },
    };
    hear(&mut own, &flight, heard, policy);
    send(&mut own, world, policy);
    world.executors[index] = Shared::new(own);
}

fn hear(own: &mut Executor, flight: &Flight, heard: Option<Heard>, policy: &Policy) {
    let launch = match &flight.effect {
        Effect::Launch(order) => {
            let action = flight.planned.action_id().cloned();
            own.unanswered_launches.retain(|(of, ..)| Some(of) == action.as_ref());
            action.map(|action| (action, order.slot, order.attempt))
        }
        _ => None,
    };
    let may_land = launch.as_ref().is_some_and(|launch| own.unanswered_launches.contains(launch));
    let owner = format!("{}{}", own.name, own.life);
    let Some(tick) = &mut own.tick else { return };
    match heard {
        Some(Heard::Applied(after)) => {
            let Effect::Write(change) = &flight.effect else { return };
            if after.lock_owner.as_deref() != Some(&owner) {
                own.lease_until_ms = None;
            } else if change.name().row().extends_lease() {
                let lease = (policy.lease - policy.skew).as_millis();
                own.lease_until_ms = Some(flight.sent * 1000 + i64::try_from(lease).unwrap_or(0));
            }
            tick.state = Some(after);
        }
        Some(Heard::Refused(current)) => refused(own, Some(current)),
        Some(Heard::Answered(Answer::NoCapacity { .. })) if may_land => failed(own, flight),
        Some(Heard::Answered(answer)) => tick.answers.push(answer),
        Some(Heard::Silence) => {}
        None if matches!(flight.effect, Effect::Write(_)) => refused(own, None),
        None => {
            own.unanswered_launches.extend(launch);
            failed(own, flight);
        }
    }
}

/// The write was refused, or nobody knows: it goes on with what is there.
fn refused(own: &mut Executor, current: Option<Shared<State>>) {
    let Some(tick) = &mut own.tick else { return };
    tick.refusals += 1;
    tick.effects.clear();
    tick.state = current;
    if tick.refusals >= REFUSALS_MAX {
        own.tick = None;
    }
}

fn failed(own: &mut Executor, flight: &Flight) {
    let Some(tick) = &mut own.tick else { return };
    tick.unanswered += 1;
    tick.answers.push(Answer::Failed { what: flight.effect.what(), why: String::new() });
    if tick.unanswered >= UNANSWERED_MAX {
        own.tick = None;
    }
}
