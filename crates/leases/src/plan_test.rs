use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn workers(caps: &[usize]) -> Vec<Worker> {
    caps.iter().enumerate().map(|(at, &cap)| Worker { id: name(at), cap }).collect()
}

fn name(at: usize) -> WorkerId {
    format!("w{at:02}").as_str().into()
}

fn load(number: usize, holder: Option<WorkerId>) -> Load {
    Load { key: format!("shard-{number:04}").as_str().into(), holder, kbps: None, pinned: false }
}

/// Carries a plan out.
fn apply(loads: &mut [Load], plan: &Plan) {
    for load in loads {
        if let Some(to) = plan.placements.get(&load.key) {
            load.holder = Some(to.clone());
        }
        for step in plan.moves.iter().filter(|step| step.key == load.key) {
            assert_eq!(load.holder.as_ref(), Some(&step.from), "moved from whoever has it");
            load.holder = Some(step.to.clone());
        }
    }
}

fn counts(workers: &[Worker], loads: &[Load]) -> Vec<usize> {
    let count = |id: &WorkerId| loads.iter().filter(|load| load.holder.as_ref() == Some(id)).count();
    workers.iter().map(|worker| count(&worker.id)).collect()
}

fn settled(workers: &[Worker], leases: usize, balance: Balance) -> Vec<Load> {
    let mut loads: Vec<Load> = (0..leases).map(|number| load(number, None)).collect();
    let found = plan(workers, &loads, balance);
    apply(&mut loads, &found);
    loads
}

#[test]
fn a_join_moves_its_share_and_no_more() {
    let three = workers(&[80; 3]);
    let mut loads = settled(&three, 60, Balance::Count);
    assert_eq!(counts(&three, &loads), [20, 20, 20]);
    let four = workers(&[80; 4]);
    let found = plan(&four, &loads, Balance::Count);
    assert_eq!(found.moves.len(), 15);
    assert!(found.moves.iter().all(|step| step.to == name(3)));
    apply(&mut loads, &found);
    assert_eq!(counts(&four, &loads), [15; 4]);
}

#[test]
fn workers_are_found_by_name() {
    for count in [0, 1, 2, 3, 1000] {
        let ids: Vec<WorkerId> = (0..count).map(name).collect();
        let roster = Roster::new(ids.iter());
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(roster.find(id), Some(number));
        }
        assert_eq!(roster.find(&"somebody else".into()), None);
    }
}

#[test]
fn what_fits_nowhere_is_said_aloud() {
    let two = workers(&[3, 4]);
    let loads = settled(&two, 10, Balance::Count);
    assert_eq!(counts(&two, &loads), [3, 4]);
    let found = plan(&two, &loads, Balance::Count);
    assert_eq!((found.deficit, found.desired_workers), (3, 3));
    assert!(plan(&[], &loads, Balance::Count).placements.is_empty());
    assert_eq!(plan(&[], &loads, Balance::Count).deficit, 10);
}

#[test]
fn whoever_is_above_its_cap_sheds_by_itself() {
    let loads: Vec<Load> = (0..6).map(|number| load(number, Some(name(0)))).collect();
    let found = plan(&workers(&[2, 9]), &loads, Balance::Count);
    assert_eq!(found.moves, []);
}

#[test]
fn pinned_leases_stay() {
    let mut loads: Vec<Load> = (0..4).map(|number| load(number, Some(name(0)))).collect();
    loads.iter_mut().for_each(|load| load.pinned = true);
    assert_eq!(plan(&workers(&[9, 9]), &loads, Balance::Count).moves, []);
    loads[1].pinned = false;
    let found = plan(&workers(&[9, 9]), &loads, Balance::Count).moves;
    assert_eq!(found.iter().map(|step| step.key.as_str()).collect::<Vec<_>>(), ["shard-0001"]);
}

#[test]
fn by_bytes_the_load_counts() {
    let two = workers(&[80; 2]);
    let mut loads: Vec<Load> = (0..10).map(|number| load(number, Some(name(number % 2)))).collect();
    // One worker has all the traffic.
    for load in loads.iter_mut().step_by(2) {
        load.kbps = Some(100.0);
    }
    for load in loads.iter_mut().skip(1).step_by(2) {
        load.kbps = Some(0.0);
    }
    let found = plan(&two, &loads, Balance::Bytes);
    assert_eq!(found.moves.len(), 2);
    apply(&mut loads, &found);
    assert_eq!(plan(&two, &loads, Balance::Bytes).moves, []);
    // Nothing measured: every lease counts the same.
    let unmeasured = settled(&workers(&[80; 4]), 22, Balance::Bytes);
    let counts = counts(&workers(&[80; 4]), &unmeasured);
    assert!(counts.iter().all(|count| (5..=6).contains(count)), "{counts:?}");
}

proptest! {
    #[test]
    fn pl1_counts_differ_by_at_most_one(
        holders in proptest::collection::vec(proptest::option::of(0..6_usize), 0..60),
        live in 1..6_usize,
    ) {
        let workers = workers(&vec![usize::MAX; live]);
        let mut loads: Vec<Load> =
            holders.into_iter().enumerate().map(|(at, holder)| load(at, holder.map(name))).collect();
        let found = plan(&workers, &loads, Balance::Count);
        apply(&mut loads, &found);
        let counts = counts(&workers, &loads);
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        prop_assert!(most - least <= 1, "{counts:?}");
        // And that is that.
        let again = plan(&workers, &loads, Balance::Count);
        prop_assert!(again.moves.is_empty() && again.placements.is_empty());
    }

    #[test]
    fn pl2_a_join_moves_exactly_its_share(leases in 0..80_usize, before in 1..7_usize) {
        let mut loads = settled(&workers(&vec![999; before]), leases, Balance::Count);
        let after = workers(&vec![999; before + 1]);
        let found = plan(&after, &loads, Balance::Count);
        prop_assert_eq!(found.moves.len(), leases / (before + 1));
        prop_assert!(found.placements.is_empty());
        apply(&mut loads, &found);
        // And then somebody dies: only its leases find a new holder.
        let dead = name(before / 2);
        let survivors: Vec<Worker> = after.into_iter().filter(|worker| worker.id != dead).collect();
        let orphans: BTreeSet<_> =
            loads.iter().filter(|load| load.holder.as_ref() == Some(&dead)).map(|load| load.key.clone()).collect();
        let found = plan(&survivors, &loads, Balance::Count);
        prop_assert!(found.moves.is_empty(), "{:?}", found.moves);
        prop_assert_eq!(found.placements.keys().cloned().collect::<BTreeSet<_>>(), orphans);
    }

    #[test]
    fn pl3_caps_hold_and_the_deficit_is_exact(
        leases in 0..60_usize,
        caps in proptest::collection::vec(0..15_usize, 1..6),
        by_bytes in any::<bool>(),
    ) {
        let balance = if by_bytes { Balance::Bytes } else { Balance::Count };
        let workers = workers(&caps);
        let loads = settled(&workers, leases, balance);
        let counts = counts(&workers, &loads);
        prop_assert!(counts.iter().zip(&caps).all(|(count, cap)| count <= cap), "{counts:?} {caps:?}");
        let room: usize = caps.iter().sum();
        prop_assert_eq!(counts.iter().sum::<usize>(), leases.min(room));
        prop_assert_eq!(plan(&workers, &loads, balance).deficit, leases.saturating_sub(room));
        // Whoever has room and less than another: only because that other has one more at most.
        for (at, &count) in counts.iter().enumerate() {
            if count < caps[at] && !by_bytes {
                prop_assert!(counts.iter().all(|&other| other <= count + 1), "{counts:?} {caps:?}");
            }
        }
    }

    #[test]
    fn by_bytes_a_plan_comes_to_rest(
        loads in proptest::collection::vec((0..4_usize, 0..1000_u32), 0..40),
    ) {
        let workers = workers(&[80; 4]);
        let mut loads: Vec<Load> = loads
            .into_iter()
            .enumerate()
            .map(|(at, (holder, kbps))| Load { kbps: Some(f64::from(kbps)), ..load(at, Some(name(holder))) })
            .collect();
        for _ in 0..20 {
            let found = plan(&workers, &loads, Balance::Bytes);
            if found.moves.is_empty() {
                return Ok(());
            }
            apply(&mut loads, &found);
        }
        prop_assert!(false, "still moving");
    }
}
