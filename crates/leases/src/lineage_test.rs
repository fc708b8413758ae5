//! Told as rows of shards and leases: `0 1<0 2<0 3<1+2` are the shards, `!` marks closed ones.

use std::fmt::Write as _;

use proptest::prelude::*;
use tenure_stream::HashRange;

use super::*;

fn shard(text: &str) -> Shard {
    let (text, closed) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let (id, parents) = text.split_once('<').unwrap_or((text, ""));
    let number = |text: &str| ShardId::numbered(text.parse().unwrap());
    let mut parents = parents.split('+').filter(|text| !text.is_empty()).map(number);
    Shard {
        id: number(id),
        parent: parents.next(),
        adjacent_parent: parents.next(),
        hash_range: HashRange::ALL,
        first_sequence: 1.into(),
        last_sequence: closed.then(|| 9.into()),
    }
}

fn listed(text: &str) -> StreamShards {
    StreamShards { stream: None, shards: text.split_whitespace().map(shard).collect() }
}

/// `0=end 1=th@a`: a lease per word, with its checkpoint and its owner.
fn leases(text: &str, of: &StreamShards) -> BTreeMap<LeaseKey, Arc<Lease>> {
    let lease = |word: &str| {
        let (id, rest) = word.split_once('=').unwrap();
        let (at, owner) = rest.split_once('@').unwrap_or((rest, ""));
        let id = ShardId::numbered(id.parse().unwrap());
        let checkpoint = match at {
            "th" => Checkpoint::TrimHorizon,
            "latest" => Checkpoint::Latest,
            "end" => Checkpoint::ShardEnd,
            number => Checkpoint::At { sequence: number.parse().unwrap(), sub: 0 },
        };
        let parents = of.shards.iter().find(|shard| shard.id == id);
        let parents = parents.map(|shard| shard.parents().cloned().collect()).unwrap_or_default();
        let lease = Lease {
            key: LeaseKey::of_shard(&id),
            stream: None,
            shard: id,
            owner: (!owner.is_empty()).then(|| owner.into()),
            giver: None,
            counter: 5,
            owner_switches: 0,
            checkpoint,
            parents,
            children: BTreeSet::new(),
            range: None,
            throughput_kbps: None,
            marks: None,
        };
        (lease.key.clone(), Arc::new(lease))
    };
    text.split_whitespace().map(lease).collect()
}

#[track_caller]
fn check(shards: &str, rows: &str, initial: InitialPosition, expected: &str) {
    let listed = listed(shards);
    let rows = leases(rows, &listed);
    let found = chores(&listed, &rows, &BTreeMap::new(), initial);
    assert_eq!(shown(&found), expected);
}

fn shown(chores: &Chores) -> String {
    let mut text = String::new();
    for lease in &chores.create {
        let number = lease.shard.number().unwrap();
        let at = match &lease.checkpoint {
            Checkpoint::TrimHorizon => "th".to_owned(),
            Checkpoint::Latest => "latest".to_owned(),
            Checkpoint::AtTimestamp => "time".to_owned(),
            Checkpoint::ShardEnd => "end".to_owned(),
            Checkpoint::At { sequence, .. } => sequence.to_string(),
        };
        write!(text, "+{number}={at} ").unwrap();
    }
    if chores.later > 0 {
        write!(text, "later:{} ", chores.later).unwrap();
    }
    for deletion in &chores.delete {
        write!(text, "-{} ", ShardId::from(deletion.key.as_str()).number().unwrap()).unwrap();
    }
    text.trim_end().to_owned()
}

use InitialPosition::{AtTimestamp, Latest, TrimHorizon};

#[test]
fn a_stream_that_nobody_has_read() {
    check("0 1", "", TrimHorizon, "+0=th +1=th");
    check("0 1", "", Latest, "+0=latest +1=latest");
    check("0 1", "", AtTimestamp, "+0=time +1=time");
}

#[test]
fn the_past_is_read_parents_first() {
    check("0! 1<0 2<0", "", TrimHorizon, "+0=th later:2");
    check("0! 1<0 2<0", "", AtTimestamp, "+0=time later:2");
    check("0! 1! 2<0+1", "", TrimHorizon, "+0=th +1=th later:1");
}

#[test]
fn from_now_on_means_open_shards_alone() {
    check("0! 1<0! 2<0 3<1 4<1", "", Latest, "+2=latest +3=latest +4=latest");
}

#[test]
fn li2_a_child_of_a_leased_shard_begins_at_its_oldest_record() {
    for initial in [TrimHorizon, Latest, AtTimestamp] {
        check("0! 1<0 2<0", "0=7@a", initial, "+1=th +2=th");
        // Split twice before anybody looked.
        check("0! 1<0! 2<0 3<1 4<1", "0=7@a", initial, "+1=th +2=th later:2");
    }
}

#[test]
fn one_branch_has_a_leased_ancestor_and_the_other_has_not() {
    check("0! 1! 2<0 3<1", "0=7", Latest, "+2=th +3=latest");
    // A merge of both: its leased parent decides, and the other's past is not asked for.
    check("0! 1! 2<0+1", "0=7", Latest, "+2=th");
    check("0! 1! 2<0+1", "0=7", TrimHorizon, "+1=th later:1");
}

#[test]
fn parents_that_are_gone_are_not_waited_for() {
    check("5<3 6<3", "", TrimHorizon, "+5=th +6=th");
}

#[test]
fn li4_a_finished_lease_waits_for_all_its_children() {
    check("0! 1<0 2<0", "0=end 1=5@a 2=th", TrimHorizon, "");
    check("0! 1<0 2<0", "0=end 1=5@a 2=6@b", TrimHorizon, "-0");
    check("0! 1<0 2<0", "0=end 1=5@a", TrimHorizon, "+2=th");
    // Nothing is known of its children yet.
    check("0! 1", "0=end 1=5", TrimHorizon, "");
}

#[test]
fn li4_grandparents_go_first() {
    check("0! 1<0! 2<0 3<1 4<1", "0=end 1=end 2=th 3=5 4=5", TrimHorizon, "");
    check("0! 1<0! 2<0 3<1 4<1", "0=end 1=end 2=9 3=5 4=5", TrimHorizon, "-0");
    check("0! 1<0! 2<0 3<1 4<1", "1=end 2=9 3=5 4=5", TrimHorizon, "-1");
}

#[test]
fn a_lease_whose_shard_is_gone_goes_if_nobody_has_it() {
    check("5", "0=7@a 5=1", TrimHorizon, "");
    check("5", "0=7 5=1", TrimHorizon, "-0");
    check("5", "0=end 5=1", TrimHorizon, "-0");
    // A stream that could not be listed says nothing.
    check("", "0=7", TrimHorizon, "");
}

#[test]
fn leases_of_another_stream_are_another_streams_business() {
    let one = StreamShards { stream: Some("one".into()), shards: vec![shard("0")] };
    let mut rows = leases("0=7 4=5", &listed("0 4"));
    assert_eq!(shown(&chores(&one, &rows, &BTreeMap::new(), Latest)), "+0=latest");
    let made = chores(&one, &rows, &BTreeMap::new(), Latest).create.remove(0);
    assert_eq!(made.key.as_str(), "one:shardId-000000000000");
    assert_eq!(made.stream.as_deref(), Some("one"));
    rows.insert(made.key.clone(), Arc::new(made));
    assert_eq!(shown(&chores(&one, &rows, &BTreeMap::new(), Latest)), "");
}

#[test]
fn a_lost_row_is_made_again_where_it_was() {
    let listed = listed("0 1");
    let remembered = leases("0=7@a", &listed);
    let found = chores(&listed, &leases("1=5", &listed), &remembered, Latest);
    assert_eq!(shown(&found), "+0=7");
    assert_eq!(found.create[0].owner, None);
    assert!(found.create[0].counter > 5, "the counter only rises");
}

#[test]
fn a_lost_row_does_not_bring_back_what_was_read_before_it() {
    let listed = listed("0! 1<0 2<0");
    let found = |rows: &str, remembered: &str| {
        shown(&chores(&listed, &leases(rows, &listed), &leases(remembered, &listed), TrimHorizon))
    };
    // 0 was read and cleaned away, then the row of 1 was lost.
    assert_eq!(found("2=7", "1=5"), "+1=5");
    // The list is older than the end of 1, which was cleaned away.
    assert_eq!(found("2=7", "1=end"), "");
    // Neither 1 nor 0 had been read to its end.
    assert_eq!(found("2=th", "0=7 1=th"), "+0=7 later:1");
}

#[test]
fn li4_a_parent_that_is_waited_for_was_lost_and_is_made_again() {
    check("0! 1<0 2<0", "1=th 2=th", TrimHorizon, "+0=th");
    check("0! 1<0 2<0", "1=7 2=th", TrimHorizon, "");
    check("0! 1<0 2<0", "1=7 2=7", TrimHorizon, "");
    check("0! 1<0 2<0", "1=latest 2=latest", Latest, "");
}

#[test]
fn li1_both_parents_of_a_merge_finish_first() {
    let listed = listed("0! 1! 2<0+1");
    let ready = |rows: &str| {
        let rows = leases(rows, &listed);
        is_ready(&rows[&LeaseKey::of_shard(&ShardId::numbered(2))], |key| rows.get(key).map(|lease| &**lease))
    };
    assert!(!ready("0=7 1=7 2=th"));
    assert!(!ready("0=end 1=7 2=th"));
    assert!(ready("0=end 1=end 2=th"));
    assert!(ready("0=end 2=th"));
    assert!(ready("2=th"));
}

proptest! {
    /// However a stream was resharded, and wherever its readers are: the chores end, every open shard has a
    /// lease, no lease is made before its parents', and done chores leave nothing to do.
    #[test]
    fn chores_end(splits in proptest::collection::vec(any::<prop::sample::Index>(), 0..12), initial in 0..3_u8) {
        let initial = [TrimHorizon, Latest, AtTimestamp][usize::from(initial)];
        let mut shards = vec![shard("0"), shard("1")];
        for pick in splits {
            let open: Vec<usize> = (0..shards.len()).filter(|&at| shards[at].is_open()).collect();
            let at = open[pick.index(open.len())];
            let next = shards.len();
            let other = open.iter().copied().find(|&other| other != at);
            match other {
                Some(other) if next.is_multiple_of(3) => {
                    shards.push(shard(&format!("{next}<{at}+{other}")));
                    shards[other].last_sequence = Some(9.into());
                }
                _ => {
                    shards.push(shard(&format!("{next}<{at}")));
                    shards.push(shard(&format!("{}<{at}", next + 1)));
                }
            }
            shards[at].last_sequence = Some(9.into());
        }
        let listed = StreamShards { stream: None, shards };
        let mut rows = BTreeMap::new();
        for _ in 0..40 {
            let found = chores(&listed, &rows, &BTreeMap::new(), initial);
            prop_assert!(found.delete.is_empty());
            if found.create.is_empty() {
                prop_assert_eq!(found.later, 0);
                break;
            }
            for lease in found.create {
                rows.insert(lease.key.clone(), Arc::new(lease));
            }
        }
        for shard in listed.shards.iter().filter(|shard| shard.is_open()) {
            prop_assert!(rows.contains_key(&LeaseKey::of_shard(&shard.id)));
        }
        // Everything is read to its end, or begun: what is finished goes, and does not come back.
        for lease in rows.values_mut() {
            let closed = listed.shards.iter().any(|shard| shard.id == lease.shard && !shard.is_open());
            Arc::make_mut(lease).checkpoint =
                if closed { Checkpoint::ShardEnd } else { Checkpoint::At { sequence: 5.into(), sub: 0 } };
        }
        for _ in 0..40 {
            let found = chores(&listed, &rows, &BTreeMap::new(), initial);
            prop_assert!(found.create.is_empty(), "{}", shown(&found));
            if found.delete.is_empty() {
                break;
            }
            for deletion in found.delete {
                rows.remove(&deletion.key);
            }
        }
        prop_assert!(rows.values().all(|lease| !lease.checkpoint.is_end()), "finished leases stay");
    }
}
