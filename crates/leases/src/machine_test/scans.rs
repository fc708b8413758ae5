//! A store may show its rows in any order, and a row twice: what is known of them afterwards is the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Monotonic, WallTime};
use tenure_stream::ShardId;

use super::super::{Answer, Call, CallId, Effect, Event, Machine, Me, Now, Scan};
use crate::attempt::Presence;
use crate::{Checkpoint, Lease, LeaseKey, Settings};

fn row(number: u64, owner: Option<&str>, counter: u64) -> Arc<Lease> {
    let shard = ShardId::numbered(number);
    // Every third descends from the first.
    let parents = (number > 0 && number.is_multiple_of(3)).then(|| ShardId::numbered(0));
    Arc::new(Lease {
        key: LeaseKey::of_shard(&shard),
        stream: None,
        shard,
        owner: owner.map(Into::into),
        giver: None,
        counter,
        owner_switches: 0,
        checkpoint: if number == 0 { Checkpoint::ShardEnd } else { Checkpoint::TrimHorizon },
        parents: parents.into_iter().collect::<BTreeSet<_>>(),
        children: BTreeSet::new(),
        range: None,
        throughput_kbps: None,
        marks: None,
    })
}

/// One worker that is shown these rows at these seconds, each time as `order` says, and looks around between them.
fn shown(looks: &[(u64, Vec<Arc<Lease>>)], order: fn(&mut Vec<Arc<Lease>>)) -> (Machine, usize) {
    let me = Me { worker: "a".into(), incarnation: "1".into() };
    let timing = Settings::default().timing().unwrap();
    let mut machine = Machine::new(me, 3, timing);
    let mut writes = 0;
    for (second, rows) in looks {
        let now = Now {
            monotonic: Monotonic::default() + Duration::from_secs(1000 + second),
            wall: WallTime::from_millis(0),
        };
        let mut asked: Vec<(CallId, Call)> = Vec::new();
        let mut event = Event::Wake;
        // Every call is answered: by the rows, and by nothing that would change them.
        for _ in 0..100 {
            for effect in machine.step(now, event) {
                if let Effect::Call { id, call, .. } = effect {
                    asked.push((id, call));
                }
            }
            let Some((id, call)) = asked.pop() else { break };
            let mut leases = rows.clone();
            order(&mut leases);
            let other = Presence {
                worker: "b".into(),
                incarnation: "1".into(),
                cap: 80,
                holding: true,
                counter: *second,
                expires: i64::MAX,
            };
            let answer = match call {
                Call::Scan => Answer::Scanned(Scan {
                    nudge: *second,
                    settings: Some(timing.lease),
                    workers: vec![other],
                    leases,
                    bad: Vec::new(),
                }),
                Call::Nudge => Answer::Nudge(*second),
                Call::Note(_) => Answer::Applied(None),
                Call::Write(_) => {
                    writes += 1;
                    Answer::Failed
                }
                Call::Read(_) | Call::List => Answer::Failed,
            };
            event = Event::Answered(id, answer);
        }
    }
    (machine, writes)
}

#[test]
fn rows_may_be_shown_in_any_order() {
    let all = |owner: Option<&'static str>, counter| (0..40).map(|at| row(at, owner, counter)).collect();
    let some = |rows: Vec<Arc<Lease>>| rows.into_iter().filter(|row| row.counter != 7).collect::<Vec<_>>();
    let mut changed: Vec<_> = all(Some("b"), 5);
    changed[9] = row(9, Some("b"), 7);
    changed[17] = row(17, None, 6);
    let looks = [
        (0, some(all(Some("b"), 4))),
        (4, changed.clone()),
        (8, some(changed.clone())),
        (12, changed),
        (30, all(None, 9)),
    ];
    let (sorted, writes) = shown(&looks, |_| {});
    assert!(writes > 0, "something is to be taken");
    assert_eq!(shown(&looks, |rows| rows.reverse()), (sorted.clone(), writes));
    let twice = |rows: &mut Vec<Arc<Lease>>| rows.extend(rows.clone());
    assert_eq!(shown(&looks, twice), (sorted, writes));
}
