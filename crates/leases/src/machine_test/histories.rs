//! Many workers and many leases: how long things take, and what random faults leave behind.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::super::*;
use super::timeline::{World, shard, short};

// === figures ===

/// The workers that may deliver each lease, counted.
fn counts(world: &World, names: &[&str]) -> Vec<usize> {
    let may = |name: &&str| {
        let node = &world.nodes[*name];
        let now = node.monotonic(world.now);
        node.machine.held().filter(|(_, deadline)| now < *deadline).count()
    };
    names.iter().map(may).collect()
}

/// How long it takes until it is so.
fn timed(world: &mut World, until: impl Fn(&World) -> bool) -> Duration {
    let began = world.now;
    while !until(world) {
        assert!(world.now - began < Duration::from_secs(600), "never");
        world.told.clear();
        let next = world.now + Duration::from_millis(50);
        world.run_until(next).unwrap();
    }
    world.now - began
}

#[test]
fn a_join_of_sixty_leases_and_a_crash() {
    let mut world = World::new();
    let rows: Vec<String> = (0..60).map(|number: u32| number.to_string()).collect();
    let play = |world: &mut World, line: &str| world.play_freely(line).unwrap();
    play(&mut world, &format!("rows {}", rows.join(" ")));
    for name in ["a", "b", "c"] {
        play(&mut world, &format!("0s {name} starts"));
        play(&mut world, &format!("0s {name} plans{}", if name == "a" { "" } else { " not" }));
    }
    play(&mut world, "100s");
    assert_eq!(counts(&world, &["a", "b", "c"]), [20, 20, 20]);
    let before = world.table.leases.clone();
    play(&mut world, "100s d starts");
    play(&mut world, "100s d plans not");
    let took = timed(&mut world, |world| counts(world, &["a", "b", "c", "d"]) == [15; 4]);
    assert!(took <= world.timing.lease * 2, "{took:?}");
    let moved = |before: &BTreeMap<LeaseKey, Arc<Lease>>, world: &World| {
        world.table.leases.values().filter(|lease| before[&lease.key].owner != lease.owner).count()
    };
    assert_eq!(moved(&before, &world), 15, "exactly its share");
    let before = world.table.leases.clone();
    play(&mut world, "200s b crashes");
    let took = timed(&mut world, |world| counts(world, &["a", "c", "d"]) == [20; 3]);
    assert!(took <= world.timing.lease * 3 / 2, "{took:?}");
    assert_eq!(moved(&before, &world), 15, "only those of the dead");
}

#[test]
fn a_cold_start_of_a_thousand_shards() {
    let mut world = World::new();
    world.shards = (0..1000).map(|number| shard(&number.to_string())).collect();
    let names: Vec<String> = (0..10).map(|number| format!("w{number}")).collect();
    for name in &names {
        world.play_freely(&format!("0s {name} starts cap=200")).unwrap();
        let plans = if name == "w3" { "plans" } else { "plans not" };
        world.play_freely(&format!("0s {name} {plans}")).unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let took = timed(&mut world, |world| counts(world, &names) == [100; 10]);
    assert!(took <= world.timing.lease * 2, "{took:?}");
}

// === faults ===

/// Random faults, in the words of the timelines; then everything is mended, and every lease that can be read
/// is held, by everybody's fair share.
#[test]
fn random_histories_keep_the_rules_and_heal() {
    let histories = if cfg!(debug_assertions) { 40 } else { 1000 };
    for seed in 0..histories {
        let dice = tenure_clock::Entropy::seeded(seed);
        let mut world = World::new();
        let play = |world: &mut World, line: &str| {
            let _ = writeln!(world.story, "{line}");
            if let Err(problem) = world.play_freely(line) {
                let story: Vec<&str> = world.story.lines().rev().take(250).collect();
                let story: Vec<&str> = story.into_iter().rev().collect();
                panic!("seed {seed}: {line}\n  {problem}\n\nwhat happened:\n{}", story.join("\n"));
            }
        };
        play(&mut world, "shards 0 1 2 3");
        let names = ["a", "b", "c"];
        for name in names {
            let rate = ["-1", "0", "1"][usize::try_from(dice.below(3)).unwrap()];
            play(&mut world, &format!("{name} clock rate={rate}%"));
        }
        // Rates of faults differ by history: what is rare together with what is frequent finds more.
        let weights: Vec<u64> = (0..20).map(|_| dice.below(8)).collect();
        let mut now = 0_u64;
        let mut next_shard = 4;
        for _ in 0..60 {
            now += 1 + dice.below(4000);
            let name = names[usize::try_from(dice.below(3)).unwrap()];
            let id = dice.below(next_shard);
            let running = world.nodes.get(name).is_some_and(|node| node.machine.is_running());
            let exists = world.nodes.get(name).is_some_and(|node| !node.machine.is_stopped() && node.begun);
            let mut pick = dice.below(weights.iter().sum::<u64>().max(1));
            let which = weights.iter().position(|weight| {
                let found = pick < *weight;
                pick = pick.saturating_sub(*weight);
                found
            });
            let line = match which.unwrap_or(0) {
                0 | 1 if !exists => format!("{name} restarts"),
                2 if exists => format!("{name} crashes"),
                3 if exists => format!("{name} pauses"),
                4 | 5 if exists => format!("{name} resumes"),
                6 if exists => format!("{name} calls fail"),
                7 if exists => format!("{name} calls hang"),
                8 if exists => format!("{name} loses replies"),
                9 | 10 if exists => format!("{name} calls work"),
                11 if exists => format!("{name} hung calls land"),
                12 if running => format!("{name} checkpoints {id} at {now}"),
                13 if running => format!("{name} gives {id}"),
                14 if running => format!("{name} stops"),
                15 if exists => {
                    let others: Vec<String> =
                        world.nodes.keys().filter(|other| *other != name).cloned().collect();
                    for other in others {
                        play(&mut world, &format!("{}s {other} plans not", seconds_of(now)));
                    }
                    format!("{name} plans")
                }
                16 if running => format!("{name} cap {}", dice.below(5)),
                17 if running && dice.chance(0.3) => format!("row {id} deleted"),
                18 if running && dice.chance(0.5) => {
                    let open: Vec<usize> =
                        (0..world.shards.len()).filter(|&at| world.shards[at].is_open()).collect();
                    let at = open[usize::try_from(dice.below(open.len() as u64)).unwrap()];
                    world.shards[at].last_sequence = Some(9.into());
                    let parent = world.shards[at].id.number().unwrap();
                    for _ in 0..2 {
                        world.shards.push(shard(&format!("{next_shard}<{parent}")));
                        next_shard += 1;
                    }
                    continue;
                }
                19 if running => {
                    let closed: Vec<u64> = world
                        .shards
                        .iter()
                        .filter(|shard| !shard.is_open())
                        .filter_map(|shard| shard.id.number())
                        .collect();
                    if closed.is_empty() {
                        continue;
                    }
                    let id = closed[usize::try_from(dice.below(closed.len() as u64)).unwrap()];
                    format!("{name} checkpoints {id} at end")
                }
                _ => continue,
            };
            play(&mut world, &format!("{}s {line}", seconds_of(now)));
        }
        // Everything is mended.
        now += 1;
        for name in names {
            let at = seconds_of(now);
            let alive = world.nodes.get(name).is_some_and(|node| !node.machine.is_stopped() && node.begun);
            play(&mut world, &format!("{at}s {name} {}", if alive { "resumes" } else { "restarts" }));
            play(&mut world, &format!("{at}s {name} calls work"));
            play(&mut world, &format!("{at}s {name} resumes"));
            play(&mut world, &format!("{at}s {name} cap 80"));
            play(&mut world, &format!("{at}s {name} plans{}", if name == "a" { "" } else { " not" }));
        }
        // Two processes of one name in a row, slow handoffs and what was shunned take their time.
        now += 150_000;
        play(&mut world, &format!("{}s", seconds_of(now)));
        for name in names {
            // Whoever was on its way out when the faults ended has left.
            if world.nodes[name].machine.is_stopped() {
                play(&mut world, &format!("{}s {name} restarts", seconds_of(now)));
                play(
                    &mut world,
                    &format!("{}s {name} plans{}", seconds_of(now), if name == "a" { "" } else { " not" }),
                );
            }
        }
        now += 150_000;
        play(&mut world, &format!("{}s", seconds_of(now)));
        let mut counts = BTreeMap::new();
        for lease in world.table.leases.values() {
            let ready = is_ready(lease, |key| world.table.leases.get(key).map(|lease| &**lease));
            if lease.checkpoint.is_end() || !ready {
                continue;
            }
            let holder = names.iter().find(|name| {
                let node = &world.nodes[**name];
                node.machine.may_deliver(&lease.key, node.monotonic(world.now))
            });
            let Some(holder) = holder else {
                panic!("seed {seed}: LS-5: nobody holds {}: {lease:?}\n{}", short(&lease.key), world.tail());
            };
            *counts.entry(*holder).or_insert(0_usize) += 1;
        }
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        let (most, least) =
            (names.iter().map(|name| of(name)).max(), names.iter().map(|name| of(name)).min());
        assert!(most.unwrap() - least.unwrap() <= 1, "seed {seed}: LS-6: {counts:?}\n{}", world.tail());
        for shard in world.shards.iter().filter(|shard| shard.is_open()) {
            assert!(
                world.table.leases.contains_key(&LeaseKey::of_shard(&shard.id)),
                "seed {seed}: LS-7: no lease of {}\n{}",
                shard.id,
                world.tail()
            );
        }
    }
}

fn seconds_of(millis: u64) -> f64 {
    millis as f64 / 1000.0
}
