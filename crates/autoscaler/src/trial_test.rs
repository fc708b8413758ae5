use super::*;
use crate::log::{PodSum, Snapshot};
use crate::state::Place;

fn policy() -> Policy {
    let place = Place { subnet: "subnet-a".into(), market: "on-demand".into(), template: "1".into() };
    let mut policy = Policy::new("trial", 1, 5, vec![place]);
    policy.worker = Resources { cpu_millis: 2000, memory_mib: 4096 };
    // A worker that is full is not busy: what is packed stays packed.
    policy.busy_percent = 100;
    policy
}

fn pods(count: u64) -> Vec<Group> {
    vec![Group { count, requests: Resources { cpu_millis: 500, memory_mib: 100 } }]
}

fn at(at: i64, pods: Vec<Group>) -> Demand {
    Demand { at, pods, ..Demand::default() }
}

#[test]
fn demand_that_comes_and_goes_adds_workers_and_takes_them_away() {
    let trace = [at(0, pods(4)), at(600, pods(16)), at(3600, pods(4))];
    let outcome = run(&policy(), &trace, &Terms::default()).unwrap();
    assert_eq!((outcome.workers_max, outcome.workers_end, outcome.waiting_end), (4, 1, 0), "{outcome:?}");
    assert_eq!(outcome.ups, 1, "once per decision");
    assert!(outcome.downs >= 1);
    // Twelve pods wait for the window, a tick, and the join.
    assert!(outcome.waiting_longest >= 90 && outcome.waiting_longest <= 180, "{outcome:?}");
    let events: Vec<_> = outcome.happenings.iter().map(|it| it.event).collect();
    assert_eq!(events[..3], ["begin up", "complete up", "begin down"]);
}

#[test]
fn a_worker_is_not_added_and_taken_away_in_turn() {
    // Four pods fill one worker: above 85 %. Two are at half of it, and one of those idles.
    let policy = Policy { busy_percent: 85, ..policy() };
    let outcome = run(&policy, &[at(0, pods(4))], &Terms::default()).unwrap();
    assert_eq!((outcome.ups, outcome.downs, outcome.workers_end), (1, 0, 2), "{outcome:?}");
}

#[test]
fn bounds_hold_and_what_does_not_fit_waits() {
    let outcome = run(&policy(), &[at(0, pods(100))], &Terms::default()).unwrap();
    assert_eq!((outcome.workers_max, outcome.waiting_end), (5, 80));
}

#[test]
fn a_spot_worker_that_goes_is_replaced() {
    let demand = Demand { interrupts: 1, ..at(0, pods(4)) };
    let outcome = run(&policy(), &[demand], &Terms::default()).unwrap();
    // The new one is there before the old one goes; nobody has to take one of two away.
    let told = (outcome.ups, outcome.downs, outcome.workers_max, outcome.workers_end, outcome.waiting_end);
    assert_eq!(told, (1, 0, 2, 1, 0), "{outcome:?}");
    assert!(outcome.worker_seconds < outcome.seconds + 180, "two for two minutes at most: {outcome:?}");
    // A second notice strikes another.
    let both = [Demand { interrupts: 1, ..at(0, pods(8)) }, Demand { interrupts: 1, ..at(15, pods(8)) }];
    let outcome = run(&policy(), &both, &Terms { workers: 2, ..Terms::default() }).unwrap();
    assert_eq!((outcome.workers_end, outcome.waiting_end), (2, 0), "{outcome:?}");
    assert!(outcome.ups == 2 || outcome.happenings.len() > 2, "{outcome:?}");
}

#[test]
fn lag_adds_a_worker() {
    let policy = Policy { lag_max: Some(Duration::from_secs(60)), ..policy() };
    let lagging = |seconds| Demand { lag_seconds: Some(seconds), ..at(0, pods(4)) };
    assert_eq!(run(&policy, &[lagging(5)], &Terms::default()).unwrap().ups, 0);
    assert!(run(&policy, &[lagging(90)], &Terms::default()).unwrap().ups > 0);
}

#[test]
fn bad_traces_are_refused_with_advice() {
    let refused = |trace: &[Demand]| run(&policy(), trace, &Terms::default()).unwrap_err().chain();
    assert!(refused(&[]).contains("empty"));
    assert!(refused(&[at(9, pods(1)), at(3, pods(1))]).contains("in order"));
    assert!(refused(&[at(-1, pods(1))]).contains("before 0"));
    assert!(refused(&[at(0, pods(20_001))]).contains("fewer"));
    assert!(refused(&[at(100_000_000, pods(1))]).contains("less often"));
    assert!(refused(&[at(i64::MAX - 1, pods(1))]).contains("less often"));
    let endless = Group { count: u64::MAX, requests: Resources::default() };
    assert!(refused(&[at(0, vec![endless, endless])]).contains("fewer"));
    let crowd = Terms { workers: u32::MAX, ..Terms::default() };
    assert!(run(&policy(), &[at(0, pods(1))], &crowd).unwrap_err().chain().contains("too many"));
}

fn event(rev: i64, epoch: i64, title: &str, action: Option<&str>) -> Event {
    Event {
        rev,
        epoch,
        action: action.map(Into::into),
        ..Event::of(&State::default(), &State::default(), title, "a", epoch, &[])
    }
}

#[test]
fn a_log_becomes_a_trace() {
    let sum = |count, cpu_millis| PodSum { count, requests: Resources { cpu_millis, memory_mib: 10 } };
    let seen = |running, waiting| Some(Snapshot { workers: 1, running, waiting, lag_seconds: Some(3) });
    let events = [
        event(1, 90, "migrate", None),
        Event { seen: seen(sum(2, 1001), sum(0, 0)), ..event(2, 100, "windows", None) },
        Event { seen: seen(sum(2, 1000), sum(3, 900)), ..event(3, 160, "begin up", Some("x")) },
    ];
    let trace = trace_of(&events);
    assert_eq!(trace.iter().map(|demand| demand.at).collect::<Vec<_>>(), [0, 60]);
    assert_eq!(trace[0].pods, [Group { count: 2, requests: Resources { cpu_millis: 501, memory_mib: 5 } }]);
    assert_eq!((trace[1].pods.len(), trace[1].lag_seconds), (2, Some(3)));
    assert_eq!(trace_of(&events[..1]), []);
}

#[test]
fn a_log_is_audited() {
    let good = [
        event(1, 0, "begin up", Some("up-1")),
        event(2, 5, "record", Some("up-1")),
        event(4, 60, "complete up", Some("up-1")),
        event(5, 400, "begin down", Some("sd-2")),
    ];
    let (actions, wrong) = audit(&good);
    assert_eq!(wrong, Vec::<String>::new());
    let told: Vec<_> = actions.iter().map(|it| (it.action.as_str(), it.ended, it.writes)).collect();
    assert_eq!(told, [("up-1", Some(60), 3), ("sd-2", None, 1)]);
    let mut bad = good.to_vec();
    // An end that was not logged is a gap, and no second action.
    let dead = [event(1, 0, "begin up", Some("up-1")), event(3, 400, "begin down", Some("sd-2"))];
    assert_eq!(audit(&dead).1, Vec::<String>::new());
    bad[0].fence = 9;
    bad.push(event(6, 500, "begin up", Some("up-3")));
    let (_, wrong) = audit(&bad);
    assert!(wrong[0].contains("the fence fell"), "{wrong:?}");
    assert!(wrong.last().unwrap().contains("while sd-2 was under way"), "{wrong:?}");
}
