//! The rules of `machine.rs`, told as short timelines.
//!
//! ```text
//!   0s     starts           -> try by=5s
//!   0.1s   tried yes pid=7  -> granted, read by=1.1s
//! ```
//!
//! A line is a moment, what happens then, and everything that follows from it at that moment. A line on
//! which nothing happens is a wake, and must be at the very moment that the machine asked for; no line may
//! be later than that. Polls come every 200 ms (the draws are all zero), pings every second, the deadline is
//! 5 s, and the store has 3 s in three calls.

use super::*;

#[test]
fn a_free_lock_makes_a_leader_once_the_epoch_has_risen() {
    check(
        "
        0s     starts            -> try by=5s
        0.1s   tried yes pid=7   -> granted, read by=1.1s
        0.2s   fence none        -> raise none to 1 by=1.2s
        0.3s   raised            -> elected 1 until=5s
        1s                       -> ping by=5s
        1.1s   pulse pid=7       -> renewed until=6s
        2s                       -> ping by=6s
        ",
    );
}

#[test]
fn a_held_lock_is_asked_for_again_and_again() {
    check(
        "
        0s     starts            -> try by=5s
        0.1s   tried no pid=7
        0.3s                     -> try by=5.3s
        0.3s   tried no pid=7
        0.5s                     -> try by=5.5s
        0.5s   fails
        0.7s                     -> try by=5.7s
        0.7s   tried yes pid=7   -> granted, read by=1.7s
        ",
    );
}

#[test]
fn polls_are_spread_between_half_the_period_and_all_of_it() {
    let settings = settings();
    let machine = Machine::new(&settings, None);
    let after = |draw: u128| {
        let now = Now { monotonic: Monotonic::default(), nonce: Nonce(draw) };
        machine.after_poll(now).since(Monotonic::default())
    };
    assert_eq!(after(0), settings.poll);
    assert_eq!(after(1 << 31), settings.poll * 3 / 4);
    assert!(after(u128::MAX) >= settings.poll / 2 && after(u128::MAX) < settings.poll * 51 / 100);
}

#[test]
fn a1_the_lock_counts_from_the_send_of_what_was_answered() {
    check(
        "
        0s     starts            -> try by=5s
        2s     tried yes pid=7   -> granted, ping by=5s, read by=3s
        2.1s   fence 4           -> raise 4 to 5 by=3.1s
        2.2s   raised            -> elected 5 until=5s
        4s     pulse pid=7       -> renewed until=7s, ping by=7s
        6.9s   pulse pid=7       -> renewed until=9s, ping by=9s
        9s                       -> over silent, end session
        9.1s   pulse pid=7
        ",
    );
}

#[test]
fn a1_an_answer_after_the_deadline_comes_too_late() {
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        ",
    );
    // A process that was paused looks at the clock before it looks at the answer.
    let mut timeline = Timeline::new();
    timeline.line("0s leads 1");
    timeline.line("1s -> ping by=5s");
    timeline.paused = true;
    timeline.line("60s pulse pid=7 -> over silent, end session");
}

#[test]
fn a1_a_try_that_is_answered_too_late_makes_no_leader() {
    check(
        "
        0s     starts            -> try by=5s
        5s                       -> over silent, end session
        5.1s   tried yes pid=7
        ",
    );
}

#[test]
fn a_ping_that_fails_is_sent_again_until_the_deadline() {
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        1s     fails
        1.2s                     -> ping by=5s
        1.2s   pulse pid=7       -> renewed until=6.2s
        2.2s                     -> ping by=6.2s
        6.2s                     -> over silent, end session
        ",
    );
}

#[test]
fn a2_pings_go_on_while_the_epoch_is_raised_and_the_term_has_what_is_left() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0.9s   fence 4           -> raise 4 to 5 by=1.9s
        1s                       -> ping by=5s
        1.1s   pulse pid=7
        1.8s   raised            -> elected 5 until=6s
        ",
    );
}

#[test]
fn a2_a_lock_lost_while_the_epoch_is_raised_makes_no_leader() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0s     fence 4           -> raise 4 to 5 by=1s
        0.5s   session ends      -> over session ended, end session
        0.6s   raised
        ",
    );
}

#[test]
fn a3_an_unknown_raise_is_read_back() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0s     fence 4           -> raise 4 to 5 by=1s
        0.5s   unknown           -> read by=1.5s
        0.6s   fence 5 mine      -> elected 5 until=5s
        ",
    );
}

#[test]
fn a3_an_unknown_raise_that_was_somebody_elses_is_made_anew() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0s     fence 4           -> raise 4 to 5 by=1s
        0.5s   unknown           -> read by=1.5s
        0.5s   fence 5           -> raise 5 to 6 by=1.5s
        0.6s   unknown           -> read by=1.6s
        0.6s   fence 7 mine      -> raise 7 to 8 by=1.6s
        0.7s   unknown           -> read by=1.7s
        0.7s   fence 7           -> raise 7 to 8 by=1.7s
        0.8s   raised            -> elected 8 until=5s
        ",
    );
}

#[test]
fn a_raise_that_lost_a_race_goes_on_from_what_it_met() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0s     fence none        -> raise none to 1 by=1s
        0.1s   refused 3         -> raise 3 to 4 by=1.1s
        0.2s   raised            -> elected 4 until=5s
        ",
    );
}

#[test]
fn a4_who_withdraws_during_a_try_gives_back_what_it_won() {
    check(
        "
        0s     starts            -> try by=5s
        0.1s   withdraws
        0.2s   tried yes pid=7   -> unlock by=5.2s
        0.3s   unlocked          -> over released
        ",
    );
    check(
        "
        0s     starts            -> try by=5s
        0.1s   withdraws
        0.2s   tried no pid=7    -> over released
        ",
    );
    // It may have won all the same.
    check(
        "
        0s     starts            -> try by=5s
        0.1s   withdraws
        0.2s   fails             -> over unconfirmed, end session
        ",
    );
    check(
        "
        0s     starts            -> try by=5s
        0.1s   tried no pid=7
        0.2s   withdraws         -> over released
        ",
    );
}

#[test]
fn a4_who_withdraws_while_the_epoch_is_raised_unlocks() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0.1s   withdraws         -> unlock by=5.1s
        0.2s   fence 4
        0.2s   unlocked          -> over released
        ",
    );
}

#[test]
fn who_resigns_stops_first_and_unlocks_after_the_ping_under_way() {
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        1.1s   withdraws         -> resigned
        1.2s   pulse pid=7       -> unlock by=6.1s
        1.3s   unlocked          -> over released
        ",
    );
}

#[test]
fn a_release_that_is_not_confirmed_ends_the_session() {
    for answer in ["unlocked not", "fails", "broken", "session ends"] {
        check(&format!(
            "
            0s     leads 1
            0.5s   withdraws     -> resigned, unlock by=5.5s
            0.6s   {answer}      -> over unconfirmed, end session
            "
        ));
    }
    check(
        "
        0s     leads 1
        0.5s   withdraws         -> resigned, unlock by=5.5s
        5.5s                     -> over unconfirmed, end session
        ",
    );
}

#[test]
fn a5_the_end_of_the_session_is_the_end_at_once_and_for_good() {
    check(
        "
        0s     leads 1
        0.4s   session ends      -> over session ended, end session
        0.5s   session ends
        0.5s   withdraws
        ",
    );
    check(
        "
        0s     starts            -> try by=5s
        0.1s   tried no pid=7
        0.2s   session ends      -> over session ended, end session
        ",
    );
}

#[test]
fn a6_another_process_behind_the_session_is_a_pooler() {
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        1.1s   pulse pid=8       -> over pooler 7 8, end session
        ",
    );
    check(
        "
        0s     starts            -> try by=5s
        0.1s   tried no pid=7
        0.3s                     -> try by=5.3s
        0.4s   tried yes pid=8   -> over pooler 7 8, end session
        ",
    );
    let mut announced = Timeline::new();
    announced.machine = Machine::new(&settings(), Some(99));
    announced.line("0s starts -> try by=5s");
    announced.line("0.1s tried yes pid=7 -> over pooler 99 7, end session");
    // A session that streams cannot say.
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        1.1s   pulse             -> renewed until=6s
        ",
    );
}

#[test]
fn a_lock_that_was_taken_away_is_lost() {
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        1.1s   pulse not held    -> over not held, end session
        ",
    );
}

#[test]
fn a7_who_cannot_raise_the_epoch_gives_the_lock_back_and_lets_others_have_it_first() {
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0.9s   store fails
        1s                       -> ping by=5s
        1s     pulse pid=7
        1.1s                     -> read by=2.1s
        1.2s   fence 4           -> raise 4 to 5 by=2.2s
        2s                       -> ping by=6s
        2s     pulse pid=7
        2.2s   unknown           -> read by=3s
        3s                       -> unlock by=8s
        3.1s   unlocked          -> gave back
        8.1s                     -> try by=13.1s
        ",
    );
}

#[test]
fn what_a_person_must_mend_ends_the_candidacy() {
    check(
        "
        0s     starts            -> try by=5s
        0s     broken            -> over broken
        ",
    );
    check(
        "
        0s     starts            -> try by=5s
        0s     tried yes pid=7   -> granted, read by=1s
        0s     store broken      -> unlock by=5s
        0s     unlocked          -> over released
        ",
    );
    check(
        "
        0s     leads 1
        1s                       -> ping by=5s
        1s     broken            -> over broken, end session
        ",
    );
}

#[test]
fn every_ending_says_what_to_do() {
    let pooler = LockEnd::Pooler { was: 7, is: 8 }.to_string();
    assert!(pooler.contains("never through a pooler") && pooler.contains('7') && pooler.contains('8'));
    assert!(LockEnd::NotHeld.to_string().contains("DISCARD ALL"));
}

// === the one door ===

fn settings() -> AdvisorySettings {
    AdvisorySettings { store_timeout: Duration::from_secs(3), ..AdvisorySettings::default() }
}

#[track_caller]
fn check(text: &str) {
    let mut timeline = Timeline::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        timeline.line(line);
    }
}

struct Timeline {
    machine: Machine,
    draws: u128,
    raised: Option<Raise>,
    session_call: CallId,
    store_call: CallId,
    /// The process does not wake when it wants to.
    paused: bool,
}

impl Timeline {
    fn new() -> Self {
        Self {
            machine: Machine::new(&settings(), None),
            draws: 0,
            raised: None,
            session_call: CallId(0),
            store_call: CallId(0),
            paused: false,
        }
    }

    #[track_caller]
    fn line(&mut self, line: &str) {
        let (left, expected) = line.split_once("->").unwrap_or((line, ""));
        let (at, what) = left.trim().split_once(' ').unwrap_or((left.trim(), ""));
        let at = moment(at);
        let what = what.trim();
        let wanted = self.machine.wake_at();
        if what.is_empty() {
            assert_eq!(shown(wanted), shown(at), "wakes at another moment: {line}");
        } else if !self.paused && what != "starts" && !what.starts_with("leads") {
            assert!(at <= wanted, "a wake at {} was left out: {line}", shown(wanted));
        }
        if let Some(epoch) = what.strip_prefix("leads ") {
            // The way there has its own test.
            self.step(at, Event::Wake);
            let tried = Tried { granted: true, backend: Some(7) };
            self.step(at, Event::Answered(self.session_call, Answer::Tried(tried)));
            let was = epoch.parse::<u64>().unwrap() - 1;
            let row = (was > 0).then_some(FenceRow { epoch: Epoch(was), claim: None });
            self.step(at, Event::Answered(self.store_call, Answer::Fence(row)));
            self.step(at, Event::Answered(self.store_call, Answer::Raised));
            assert!(self.machine.term().is_some());
            return;
        }
        let event = self.event(what);
        let effects = self.step(at, event);
        assert_eq!(effects, expected.trim(), "{line}");
    }

    fn step(&mut self, at: Monotonic, event: Event) -> String {
        self.draws += 1;
        // The low bits, which spread the polls, are zero.
        let now = Now { monotonic: at, nonce: Nonce(self.draws << 32) };
        let effects = self.machine.step(now, event);
        let shown: Vec<_> = effects.into_iter().map(|effect| self.show(effect)).collect();
        if let Some((_, deadline)) = self.machine.term() {
            assert!(at < deadline, "leads beyond its deadline");
        }
        shown.join(", ")
    }

    fn event(&self, what: &str) -> Event {
        let session = |answer| Event::Answered(self.session_call, answer);
        let store = |answer| Event::Answered(self.store_call, answer);
        let words: Vec<_> = what.split_whitespace().collect();
        let pid = |word: &str| word.strip_prefix("pid=").and_then(|pid| pid.parse().ok());
        let epoch = |word: &str| word.parse().ok().map(|epoch| FenceRow { epoch: Epoch(epoch), claim: None });
        match words.as_slice() {
            [] | ["starts"] => Event::Wake,
            ["tried", yes, backend] => {
                session(Answer::Tried(Tried { granted: *yes == "yes", backend: pid(backend) }))
            }
            ["pulse"] => session(Answer::Pulse(Pulse::default())),
            ["pulse", "not", "held"] => {
                session(Answer::Pulse(Pulse { backend: Some(7), holds: Some(false) }))
            }
            ["pulse", backend] => session(Answer::Pulse(Pulse { backend: pid(backend), holds: Some(true) })),
            ["unlocked"] => session(Answer::Unlocked(true)),
            ["unlocked", "not"] => session(Answer::Unlocked(false)),
            ["fails"] => session(Answer::Failed),
            ["broken"] => session(Answer::Broken),
            ["fence", seen] => store(Answer::Fence(epoch(seen))),
            ["fence", seen, "mine"] => {
                let claim = self.raised.map(|raise| raise.nonce);
                store(Answer::Fence(epoch(seen).map(|row| FenceRow { claim, ..row })))
            }
            ["raised"] => store(Answer::Raised),
            ["refused", seen] => store(Answer::Refused(epoch(seen))),
            ["unknown"] => store(Answer::Unknown),
            ["store", "fails"] => store(Answer::Failed),
            ["store", "broken"] => store(Answer::Broken),
            ["session", "ends"] => Event::SessionEnded,
            ["withdraws"] => Event::Withdraw,
            _ => panic!("not understood: {what}"),
        }
    }

    fn show(&mut self, effect: Effect) -> String {
        match effect {
            Effect::Call { id, by, call } => {
                if call.is_on_session() {
                    self.session_call = id;
                } else {
                    self.store_call = id;
                }
                let what = match call {
                    Call::TryLock => "try".to_owned(),
                    Call::Ping => "ping".to_owned(),
                    Call::Unlock => "unlock".to_owned(),
                    Call::ReadFence => "read".to_owned(),
                    Call::Raise(raise) => {
                        self.raised = Some(raise);
                        let was = raise.was.map_or("none".to_owned(), |epoch| epoch.to_string());
                        format!("raise {was} to {}", raise.epoch())
                    }
                };
                format!("{what} by={}", shown(by))
            }
            Effect::EndSession => "end session".to_owned(),
            Effect::Tell(news) => match news {
                News::Granted => "granted".to_owned(),
                News::GaveBack => "gave back".to_owned(),
                News::Elected { epoch, deadline } => format!("elected {epoch} until={}", shown(deadline)),
                News::Renewed { deadline } => format!("renewed until={}", shown(deadline)),
                News::Resigned => "resigned".to_owned(),
                News::Over(LockEnd::Released { confirmed: true }) => "over released".to_owned(),
                News::Over(LockEnd::Released { confirmed: false }) => "over unconfirmed".to_owned(),
                News::Over(LockEnd::SessionEnded) => "over session ended".to_owned(),
                News::Over(LockEnd::Silent) => "over silent".to_owned(),
                News::Over(LockEnd::Pooler { was, is }) => format!("over pooler {was} {is}"),
                News::Over(LockEnd::NotHeld) => "over not held".to_owned(),
                News::Over(LockEnd::Broken) => "over broken".to_owned(),
            },
        }
    }
}

fn moment(text: &str) -> Monotonic {
    let seconds: f64 = text.strip_suffix('s').unwrap().parse().unwrap();
    Monotonic::default() + Duration::from_millis((seconds * 1000.0).round() as u64)
}

fn shown(at: Monotonic) -> String {
    if at == Monotonic::NEVER {
        return "never".to_owned();
    }
    format!("{}s", at.since(Monotonic::default()).as_secs_f64())
}
