//! Records on standard output, and readers that do not read.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use super::world::{World, eventually, numbers};

/// Far more than fits in a pipe.
const RECORDS: u32 = 5000;

fn piped(world: &World, name: &str) -> Child {
    let line = format!("consume --app orders --worker {name}");
    world.site.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_reader_that_does_not_read_holds_everything_up_and_loses_nothing() {
    let world = World::new(2);
    world.put(0..RECORDS);
    let mut ann = piped(&world, "ann");
    eventually("it has begun", || (world.shares().get("ann") == Some(&2)).then_some(()));
    let mut out = BufReader::new(ann.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    // It hangs in the pipe now, or will in a moment.
    kill_process(Pid::from_child(&ann), Signal::TERM).unwrap();
    let status = eventually("it ends although nobody reads", || ann.try_wait().unwrap());
    let mut text = first;
    out.read_to_string(&mut text).unwrap();
    assert!(status.success(), "{status}");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut seen: Vec<Json> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!seen.is_empty() && seen.len() < RECORDS as usize, "{}", seen.len());
    assert_eq!(world.shares().get("nobody"), Some(&2), "its shards are given back");

    // Whoever comes next begins right after the last whole line.
    let bob = world.worker("bob", "");
    eventually("the rest", || (seen.len() + bob.printed().len() >= RECORDS as usize).then_some(()));
    bob.stop();
    seen.extend(world.lines("bob.out"));
    let mut all = numbers(&seen);
    all.sort_unstable();
    assert_eq!(all, (0..RECORDS).collect::<Vec<_>>());
}

#[test]
fn a_reader_that_has_gone_ends_it_in_good_order() {
    let world = World::new(1);
    world.put(0..RECORDS);
    let mut ann = piped(&world, "ann");
    let mut out = BufReader::new(ann.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    drop(out);
    let status = eventually("it ends", || ann.try_wait().unwrap());
    let mut log = String::new();
    ann.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(status.success() && !log.contains("error:") && !log.contains("ERROR"), "{status}: {log}");
    assert_eq!(world.shares().get("nobody"), Some(&1));
}
