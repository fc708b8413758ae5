//! Shards split, merge and are rescaled, and nobody loses a record or its order over it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_backend::Kind;

use super::{Fixture, texts};
use crate::{HashKey, HashRange, Page, Position, Put, Record, Shard, ShardId};

/// Pages hold what was asked for, follow each other by token, and leave nothing out.
pub async fn shards_come_in_pages(fixture: Fixture) {
    let all = fixture.created(7).await;
    assert_eq!(all.len(), 7);
    let mut page = Page { token: None, size: 3 };
    let mut found = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let shown = fixture.stream.shards(fixture.soon(), &page).await.expect("page");
        sizes.push(shown.shards.len());
        found.extend(shown.shards);
        match shown.next {
            Some(token) => page.token = Some(token),
            None => break,
        }
        assert!(sizes.len() < 10, "the pages do not end");
    }
    assert_eq!(found, all);
    if fixture.can.page_sizes {
        // Some services end with an empty page.
        assert!(sizes == [3, 3, 1] || sizes == [3, 3, 1, 0], "{sizes:?}");
    }
}

fn middle(range: HashRange) -> HashKey {
    HashKey(range.start.0 + (range.end.0 - range.start.0) / 2 + 1)
}

fn by_id<'a>(shards: &'a [Shard], id: &ShardId) -> &'a Shard {
    shards.iter().find(|shard| shard.id == *id).unwrap_or_else(|| panic!("no {id} in {shards:?}"))
}

/// The parent closes, the children divide its range, and new records go to them.
pub async fn a_split_closes_one_and_opens_two(fixture: Fixture) {
    let before = fixture.created(2).await;
    let parent = before[1].clone();
    let at = middle(parent.hash_range);
    fixture.stream.split(fixture.soon(), &parent.id, at).await.expect("split");
    let shards = fixture.shards().await;
    assert_eq!(shards.len(), 4);
    let closed = by_id(&shards, &parent.id);
    let ended = closed.last_sequence.clone().expect("closed");
    assert_eq!(closed.hash_range, parent.hash_range);
    let (lower, upper) = parent.hash_range.split(at).expect("two parts");
    for (number, range) in [(2, lower), (3, upper)] {
        let child = by_id(&shards, &ShardId::numbered(number));
        assert_eq!(
            (child.hash_range, &child.parent, &child.adjacent_parent),
            (range, &Some(parent.id.clone()), &None)
        );
        assert!(child.is_open() && child.first_sequence > ended);
        let puts = fixture.put(&[Record::new("k", "x").at_hash_key(range.start)]).await;
        assert_eq!(puts[0].stored().expect("stored").0, &child.id);
    }
    assert_eq!(fixture.stream.describe(fixture.soon()).await.expect("describe").open_shards, 3);
}

/// Both parents close, the child owns both ranges and knows both.
pub async fn a_merge_closes_two_and_opens_one(fixture: Fixture) {
    let before = fixture.created(3).await;
    fixture.stream.merge(fixture.soon(), &before[0].id, &before[1].id).await.expect("merge");
    let shards = fixture.shards().await;
    assert_eq!(shards.len(), 4);
    assert!(!by_id(&shards, &before[0].id).is_open() && !by_id(&shards, &before[1].id).is_open());
    let child = by_id(&shards, &ShardId::numbered(3));
    assert_eq!(child.parent, Some(before[0].id.clone()));
    assert_eq!(child.adjacent_parent, Some(before[1].id.clone()));
    let range = HashRange { start: before[0].hash_range.start, end: before[1].hash_range.end };
    assert_eq!(child.hash_range, range);
    let puts = fixture.put(&[Record::new("k", "x").at_hash_key(range.end)]).await;
    assert_eq!(puts[0].stored().expect("stored").0, &child.id);
}

/// What cannot be done is refused and leaves the shards as they are.
pub async fn impossible_changes_are_refused(fixture: Fixture) {
    let shards = fixture.created(3).await;
    let by = fixture.soon();
    let stream = &fixture.stream;
    let missing = ShardId::numbered(99);
    let answers = [
        ("split at the start", stream.split(by, &shards[1].id, shards[1].hash_range.start).await),
        ("split outside", stream.split(by, &shards[1].id, HashKey::MAX).await),
        ("split what is missing", stream.split(by, &missing, HashKey(5)).await),
        ("merge strangers", stream.merge(by, &shards[0].id, &shards[2].id).await),
        ("merge what is missing", stream.merge(by, &shards[0].id, &missing).await),
        ("rescale to nothing", stream.rescale(by, 0).await),
    ];
    for (what, answer) in answers {
        assert_eq!(answer.expect_err(what).kind(), Kind::Invalid, "{what}");
    }
    assert_eq!(fixture.shards().await, shards);
}

/// Up and down, if the backend can; a refusal that says so, if it cannot.
pub async fn a_rescale_reaches_its_number(fixture: Fixture) {
    fixture.created(2).await;
    if !fixture.can.rescale {
        let refused = fixture.stream.rescale(fixture.soon(), 4).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
        assert_eq!(fixture.open_shards().await.len(), 2);
        return;
    }
    for count in [4, 3, 3, 2] {
        fixture.stream.rescale(fixture.soon(), count).await.expect("rescale");
        let open = fixture.open_shards().await;
        let ranges: Vec<_> = open.iter().map(|shard| shard.hash_range).collect();
        assert_eq!(ranges.len(), count as usize);
        assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (HashKey::MIN, HashKey::MAX));
        assert!(ranges.windows(2).all(|pair| pair[0].touches(&pair[1])), "{ranges:?}");
        assert!(open.iter().all(|shard| shard.parents().count() <= 2));
    }
}

/// A rescale while others write: nothing is lost, and each key's records keep their order.
pub async fn a_rescale_under_writers_loses_nothing(fixture: Fixture) {
    fixture.created(2).await;
    let writers = Writers::start(&fixture);
    if fixture.can.rescale {
        for count in [4, 3] {
            fixture.stream.rescale(fixture.soon(), count).await.expect("rescale");
        }
    }
    let written = writers.stop().await;
    check_ledger(&fixture, &written).await;
}

/// The same by hand: two splits and a merge.
pub async fn splits_and_merges_under_writers_keep_order(fixture: Fixture) {
    let shards = fixture.created(2).await;
    let writers = Writers::start(&fixture);
    for shard in &shards {
        fixture.stream.split(fixture.soon(), &shard.id, middle(shard.hash_range)).await.expect("split");
    }
    let open = fixture.open_shards().await;
    fixture.stream.merge(fixture.soon(), &open[1].id, &open[2].id).await.expect("merge");
    let written = writers.stop().await;
    check_ledger(&fixture, &written).await;
}

/// Writers that put until told to stop, each with keys of its own.
struct Writers {
    stopping: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<(String, usize)>>>,
}

const KEYS_PER_WRITER: usize = 4;

impl Writers {
    fn start(fixture: &Fixture) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let tasks = (0..2)
            .map(|writer| {
                let stream = if writer == 0 { fixture.stream.clone() } else { fixture.other.clone() };
                let (stopping, clock, by) = (stopping.clone(), fixture.clock.clone(), fixture.soon());
                tokio::spawn(async move {
                    let mut counts = vec![0; KEYS_PER_WRITER];
                    // Each key is put often enough to be in motion at every change.
                    for round in 0..2000 {
                        if stopping.load(Ordering::Relaxed) && round >= 10 {
                            break;
                        }
                        for (key, count) in counts.iter_mut().enumerate() {
                            let record = Record::new(format!("w{writer}k{key}"), count.to_string());
                            loop {
                                match &stream.put(by, std::slice::from_ref(&record)).await.expect("put")[0] {
                                    Put::Stored { .. } => break,
                                    Put::Throttled => clock.sleep(super::PAUSE).await,
                                    Put::Refused { reason } => panic!("{reason}"),
                                }
                            }
                            *count += 1;
                        }
                        clock.sleep(std::time::Duration::from_millis(2)).await;
                    }
                    counts
                        .into_iter()
                        .enumerate()
                        .map(|(key, count)| (format!("w{writer}k{key}"), count))
                        .collect()
                })
            })
            .collect();
        Self { stopping, tasks }
    }

    async fn stop(self) -> BTreeMap<String, usize> {
        self.stopping.store(true, Ordering::Relaxed);
        let mut written = BTreeMap::new();
        for task in self.tasks {
            written.extend(task.await.expect("writer"));
        }
        written
    }
}

/// Reads every shard after its parents and compares with what was written.
async fn check_ledger(fixture: &Fixture, written: &BTreeMap<String, usize>) {
    let shards = fixture.shards().await;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut finished = BTreeSet::new();
    let mut waiting: VecDeque<_> = shards.iter().collect();
    let mut open = Vec::new();
    while let Some(shard) = waiting.pop_front() {
        if !shard.parents().all(|parent| finished.contains(parent)) {
            waiting.push_back(shard);
            continue;
        }
        finished.insert(shard.id.clone());
        if shard.is_open() {
            open.push(shard);
            continue;
        }
        let cursor = fixture.cursor(&shard.id, Position::TrimHorizon).await;
        collect(&mut found, fixture.read_on(cursor, None).await.0);
    }
    // Every open shard is a leaf: what is still missing is in these.
    for shard in open {
        let mut cursor = fixture.cursor(&shard.id, Position::TrimHorizon).await;
        // A tip may need a few reads to show; two empty ones in a row that are not behind are the end.
        let mut quiet = 0;
        while quiet < 2 {
            let batch = fixture.read(&cursor, 1000).await;
            quiet = if batch.records.is_empty() && batch.behind.is_zero() { quiet + 1 } else { 0 };
            collect(&mut found, batch.records);
            cursor = batch.next.expect("open");
        }
    }
    let expected: BTreeMap<_, _> = written
        .iter()
        .map(|(key, count)| (key.clone(), (0..*count).map(|number| number.to_string()).collect::<Vec<_>>()))
        .collect();
    assert_eq!(found, expected);
}

fn collect(found: &mut BTreeMap<String, Vec<String>>, records: Vec<crate::Stored>) {
    for (record, text) in records.iter().zip(texts(&records)) {
        found.entry(record.partition_key.to_string()).or_default().push(text);
    }
}
