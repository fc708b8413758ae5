//! Transactions come out whole and in order, or not at all.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::pgoutput::{Tuple, Value};
use crate::spill::{BUFFER_BYTES, DiskFile, MEMORY_BYTES_MAX};

// === what a server sends ===

fn begin(commit: u64, xid: u32) -> Vec<u8> {
    [&b"B"[..], &commit.to_be_bytes(), &5_u64.to_be_bytes(), &xid.to_be_bytes()].concat()
}

fn ending(commit: u64) -> Vec<u8> {
    [&[0][..], &commit.to_be_bytes(), &(commit + 8).to_be_bytes(), &5_u64.to_be_bytes()].concat()
}

fn commit(at: u64) -> Vec<u8> {
    [&b"C"[..], &ending(at)].concat()
}

fn stream_commit(xid: u32, at: u64) -> Vec<u8> {
    [&b"c"[..], &xid.to_be_bytes(), &ending(at)].concat()
}

fn start(xid: u32, first: bool) -> Vec<u8> {
    [&b"S"[..], &xid.to_be_bytes(), &[u8::from(first)]].concat()
}

fn stop() -> Vec<u8> {
    b"E".to_vec()
}

fn abort(xid: u32, subxid: u32) -> Vec<u8> {
    [&b"A"[..], &xid.to_be_bytes(), &subxid.to_be_bytes()].concat()
}

/// An insert of one text, in a chunk if there is a subtransaction.
fn insert(subxid: Option<u32>, text: &[u8]) -> Vec<u8> {
    let mut bytes = b"I".to_vec();
    bytes.extend(subxid.map(u32::to_be_bytes).iter().flatten());
    bytes.extend([0, 0, 0, 9, b'N', 0, 1, b't']);
    bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text);
    bytes
}

fn relation(subxid: Option<u32>, name: &str) -> Vec<u8> {
    let mut bytes = b"R".to_vec();
    bytes.extend(subxid.map(u32::to_be_bytes).iter().flatten());
    bytes.extend([0, 0, 0, 9]);
    bytes.extend(format!("s\0{name}\0d").as_bytes());
    bytes.extend([0, 0]);
    bytes
}

fn loose(subxid: Option<u32>) -> Vec<u8> {
    let mut bytes = b"M".to_vec();
    bytes.extend(subxid.map(u32::to_be_bytes).iter().flatten());
    bytes.extend([0; 9]);
    bytes.extend(b"topic\0\0\0\0\0");
    bytes
}

fn origin() -> Vec<u8> {
    [&b"O"[..], &[0; 8], b"afar\0"].concat()
}

// === a disk of memory, and one that fails ===

#[derive(Default, Clone)]
struct TestDisk {
    /// Writes that succeed before one fails in this way.
    fails: Option<(usize, io::ErrorKind)>,
    /// The byte that changes on the way.
    flips: Option<usize>,
    /// How many bytes from the end get lost.
    loses: usize,
}

struct TestFile {
    disk: TestDisk,
    bytes: Cursor<Vec<u8>>,
}

impl Disk for TestDisk {
    fn create(&mut self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(TestFile { disk: self.clone(), bytes: Cursor::default() }))
    }

    fn place(&self) -> &Path {
        Path::new("/spill")
    }
}

impl Write for TestFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some((left, kind)) = &mut self.disk.fails {
            *left = left.checked_sub(1).ok_or(io::Error::from(*kind))?;
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for TestFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let bytes = self.bytes.get_mut();
        if let Some(flipped) = self.disk.flips.and_then(|at| bytes.get_mut(at)) {
            *flipped ^= 0x10;
        }
        bytes.truncate(bytes.len() - self.disk.loses);
        self.bytes.seek(to)
    }
}

impl Read for TestFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(into)
    }
}

impl DiskFile for TestFile {}

// === the one door ===

fn assembler() -> Assembler {
    Assembler::on(Box::new(TestDisk::default()), u64::MAX)
}

/// Everything that comes out when this goes in, each at its number.
fn run(assembler: &mut Assembler, messages: &[Vec<u8>]) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for (at, bytes) in messages.iter().enumerate() {
        out.extend(show(&assembler.push(Lsn(at as u64), bytes)?));
        while assembler.is_replaying() {
            out.extend(show(&assembler.replay()?));
        }
    }
    Ok(out)
}

fn show(assembled: &Assembled<'_>) -> Option<String> {
    let text = |tuple: &Tuple<'_>| match tuple.values().next() {
        Some(Value::Text(text)) if text.len() < 100 => String::from_utf8_lossy(text).into_owned(),
        Some(Value::Text(text)) => format!("{}*{}", text[0], text.len()),
        other => panic!("{other:?}"),
    };
    Some(match assembled {
        Assembled::Nothing => return None,
        Assembled::Begin(begin) => format!("begin {} of {}", begin.commit_lsn.0, begin.xid.0),
        Assembled::Commit { end_lsn } => format!("commit {}", end_lsn.0),
        Assembled::Loose { at, message: Message::Logical { xid: None, .. } } => format!("{} loose", at.0),
        Assembled::Change { at, message: Message::Insert { xid: None, new, .. } } => {
            format!("{} {}", at.0, text(new))
        }
        Assembled::Change { at, message: Message::Relation(relation) } => {
            assert_eq!(relation.xid, None);
            format!("{} is {}", at.0, relation.name)
        }
        Assembled::Change { at, message: Message::Origin { name, .. } } => format!("{} from {name}", at.0),
        other => panic!("{other:?}"),
    })
}

fn refusal(assembler: &mut Assembler, messages: &[Vec<u8>]) -> (Kind, String) {
    let error = run(assembler, messages).expect_err("refused");
    (error.kind(), error.chain())
}

#[test]
fn a_transaction_in_one_piece_passes_straight_through() {
    let messages =
        [begin(100, 1), origin(), relation(None, "t"), insert(None, b"a"), loose(None), commit(100)];
    let out = run(&mut assembler(), &messages).unwrap();
    assert_eq!(out, ["begin 100 of 1", "1 from afar", "2 is t", "3 a", "4 loose", "commit 108"]);
}

#[test]
fn a_streamed_transaction_comes_out_at_its_commit_with_the_places_of_its_changes() {
    let mut assembler = assembler();
    let before = [
        start(1, true),
        origin(),
        relation(Some(1), "t"),
        insert(Some(1), b"a"),
        stop(),
        begin(100, 2),
        insert(None, b"between"),
        commit(100),
        start(1, false),
        insert(Some(3), b"b"),
        stop(),
    ];
    assert_eq!(run(&mut assembler, &before).unwrap(), ["begin 100 of 2", "6 between", "commit 108"]);
    assert_eq!(assembler.open_transactions(), 1);
    let out = run(&mut assembler, &[stream_commit(1, 200)]).unwrap();
    assert_eq!(out, ["begin 200 of 1", "1 from afar", "2 is t", "3 a", "9 b", "commit 208"]);
    assert_eq!(assembler.open_transactions(), 0);
}

#[test]
fn what_was_rolled_back_stays_inside_with_its_view_of_the_tables() {
    let messages = [
        start(1, true),
        relation(Some(1), "t"),
        insert(Some(1), b"a"),
        relation(Some(2), "never"),
        insert(Some(2), b"gone"),
        insert(Some(3), b"gone too"),
        stop(),
        abort(1, 2),
        abort(1, 3),
        start(1, false),
        relation(Some(4), "t"),
        insert(Some(4), b"b"),
        stop(),
        abort(1, 7),
        stream_commit(1, 200),
    ];
    let out = run(&mut assembler(), &messages).unwrap();
    assert_eq!(out, ["begin 200 of 1", "1 is t", "2 a", "10 is t", "11 b", "commit 208"]);
}

#[test]
fn a_whole_transaction_that_was_rolled_back_is_forgotten_and_so_is_one_that_is_not_known() {
    let mut assembler = assembler();
    let large = vec![b'x'; 3 * BUFFER_BYTES];
    let held = [start(1, true), insert(Some(1), &large), insert(Some(1), b"a"), stop()];
    assert_eq!(run(&mut assembler, &held).unwrap(), [""; 0]);
    assert!(assembler.spilled_bytes() > large.len() as u64);
    assert_eq!(run(&mut assembler, &[abort(1, 1), abort(5, 5), abort(5, 6)]).unwrap(), [""; 0]);
    assert_eq!((assembler.spilled_bytes(), assembler.open_transactions()), (0, 0));
    assert_eq!(assembler.spill.in_memory(), 0);
}

#[test]
fn subtransactions_told_twice_or_out_of_order_are_left_out_all_the_same() {
    let mut aborted = Aborted::default();
    for subxid in [5, 6, 7, 6, 20, 3, 4, 21, u32::MAX, 0] {
        aborted.add(Xid(subxid)).unwrap();
    }
    aborted.sort();
    let found: Vec<u32> =
        (0..30).chain([u32::MAX - 1, u32::MAX]).filter(|xid| aborted.contains(Xid(*xid))).collect();
    assert_eq!(found, [0, 3, 4, 5, 6, 7, 20, 21, u32::MAX]);
}

#[test]
fn there_is_a_bound_on_what_is_rolled_back() {
    let mut assembler = assembler();
    run(&mut assembler, &[start(1, true), stop()]).unwrap();
    for run in 0..ABORTED_RUNS_MAX {
        assembler.push(Lsn(0), &abort(1, 10 + 2 * run as u32)).unwrap();
    }
    // One that extends a run needs no room.
    assembler.push(Lsn(0), &abort(1, 9 + 2 * ABORTED_RUNS_MAX as u32)).unwrap();
    let (kind, text) = refusal(&mut assembler, &[abort(1, 5)]);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("turn streaming off"), "{text}");
}

#[test]
fn a_message_that_belongs_to_nobody_never_waits() {
    let messages = [loose(None), start(1, true), loose(Some(1)), stop(), loose(None), abort(1, 1)];
    assert_eq!(run(&mut assembler(), &messages).unwrap(), ["0 loose", "2 loose", "4 loose"]);
}

/// A logical message of a transaction.
fn said(subxid: u32) -> Vec<u8> {
    let mut bytes = loose(Some(subxid));
    bytes[5] = 1;
    bytes
}

#[test]
fn a_message_that_may_have_been_rolled_back_is_not_guessed_about() {
    let doubtful = [start(1, true), insert(Some(2), b"a"), said(1), stop(), abort(1, 2)];
    let (kind, text) = refusal(&mut assembler(), &[&doubtful[..], &[stream_commit(1, 200)]].concat());
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("turn streaming off"), "{text}");
    // Nobody needs to know if all of it is rolled back.
    run(&mut assembler(), &[&doubtful[..], &[abort(1, 1)]].concat()).unwrap();
    // What comes after a rollback is not part of it.
    let messages =
        [start(1, true), insert(Some(2), b"a"), stop(), abort(1, 2), start(1, false), said(1), stop()];
    let mut assembler = assembler();
    run(&mut assembler, &messages).unwrap();
    assembler.push(Lsn(0), &stream_commit(1, 200)).unwrap();
    let given = assembler.replay().unwrap();
    assert!(matches!(given, Assembled::Change { at: Lsn(5), message: Message::Logical { xid: None, .. } }));
}

#[test]
fn nothing_is_taken_in_while_a_transaction_is_given_out() {
    let mut assembler = assembler();
    run(&mut assembler, &[start(1, true), insert(Some(1), b"a"), stop()]).unwrap();
    assembler.push(Lsn(0), &stream_commit(1, 200)).unwrap();
    assert!(assembler.is_replaying());
    let misuse = assembler.push(Lsn(0), &begin(300, 2)).expect_err("not now");
    assert_eq!(misuse.kind(), Kind::Invalid);
    // It was only a misuse: the transaction still comes out.
    assert_eq!(show(&assembler.replay().unwrap()).unwrap(), "1 a");
    assert_eq!(show(&assembler.replay().unwrap()).unwrap(), "commit 208");
    assert_eq!(assembler.replay().unwrap(), Assembled::Nothing);
    run(&mut assembler, &[begin(300, 2), commit(300)]).unwrap();
}

#[test]
fn what_is_out_of_order_is_refused() {
    for (messages, expected) in [
        (vec![insert(None, b"a")], "a change comes outside of any transaction"),
        (vec![start(1, true), stop(), insert(None, b"a")], "a change comes outside of any transaction"),
        (vec![commit(1)], "a transaction ends that did not begin"),
        (vec![begin(1, 1), commit(2)], "a transaction began with the commit position 0/1 and ended with 0/2"),
        (vec![begin(1, 1), begin(2, 2)], "a transaction begins before the last one ended"),
        (vec![begin(1, 1), start(2, true)], "a chunk begins before the last one ended"),
        (vec![begin(1, 1), stream_commit(2, 2)], "a streamed transaction commits before the last one ended"),
        (vec![begin(1, 1), abort(2, 2)], "a streamed transaction rolls back before the last one ended"),
        (vec![start(1, false)], "the first chunk of transaction 1 is missing"),
        (vec![start(1, true), stop(), start(1, true)], "transaction 1 has two first chunks"),
        (vec![stream_commit(1, 1)], "transaction 1 commits, and no chunk of it came"),
        (vec![start(1, true), begin(1, 1)], "message `B` comes where it cannot"),
        (vec![b"K".to_vec()], "create the slot without two_phase"),
        (vec![start(1, true), insert(None, b"")], "cannot be read"),
    ] {
        let (kind, text) = refusal(&mut assembler(), &messages);
        assert_eq!(kind, Kind::Corrupt);
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("nothing is lost"), "{text}");
    }
}

#[test]
fn after_an_error_nothing_more_comes_out() {
    let mut assembler = assembler();
    run(&mut assembler, &[start(1, true), insert(Some(1), b"a"), stop()]).unwrap();
    refusal(&mut assembler, &[b"?".to_vec()]);
    for message in [stream_commit(1, 200), begin(300, 2), insert(None, b"a"), loose(None)] {
        let (kind, text) = refusal(&mut assembler, &[message]);
        assert_eq!(kind, Kind::Invalid);
        assert!(text.contains("an error came before"), "{text}");
    }
    assert_eq!(assembler.replay().expect_err("stopped").kind(), Kind::Invalid);
    assert_eq!((assembler.open_transactions(), assembler.spilled_bytes()), (0, 0));
}

// === disks ===

/// A transaction that does not fit in memory.
fn large() -> Vec<Vec<u8>> {
    let rows = (0..40).map(|row| insert(Some(1), &vec![b'a' + row % 26; 8000]));
    let mut messages = vec![start(1, true)];
    messages.extend(rows);
    messages.extend([stop(), stream_commit(1, 200)]);
    messages
}

#[test]
fn a_disk_that_fails_stops_everything_and_says_what_to_do() {
    for (error, kind, advice) in [
        (io::ErrorKind::StorageFull, Kind::Unavailable, "make room there"),
        (io::ErrorKind::PermissionDenied, Kind::Denied, "let this process write there"),
        (io::ErrorKind::Other, Kind::Unavailable, "check that disk"),
    ] {
        for after in 0..4 {
            let disk = TestDisk { fails: Some((after, error)), ..TestDisk::default() };
            let mut assembler = Assembler::on(Box::new(disk), u64::MAX);
            let (got, text) = refusal(&mut assembler, &large());
            assert_eq!(got, kind);
            assert!(text.contains("cannot spill a large transaction to /spill"), "{text}");
            assert!(text.contains(advice) && text.contains("nothing is lost"), "{text}");
            assert_eq!(refusal(&mut assembler, &[stream_commit(1, 200)]).0, Kind::Invalid);
        }
    }
}

#[test]
fn a_directory_that_is_not_there_or_is_none_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for place in [directory.path().join("absent"), file] {
        let settings = SpillSettings { directory: place.clone(), bytes_max: u64::MAX };
        let (kind, text) = refusal(&mut Assembler::new(settings), &large());
        assert_eq!(kind, Kind::Invalid);
        assert!(text.contains(place.to_str().unwrap()) && text.contains("make that directory"), "{text}");
    }
}

/// `/dev/full` as a file.
struct FullDevice;

impl Disk for FullDevice {
    fn create(&mut self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(std::fs::File::options().read(true).write(true).open("/dev/full")?))
    }

    fn place(&self) -> &Path {
        Path::new("/dev/full")
    }
}

#[test]
fn a_full_disk_is_told_as_the_system_tells_it() {
    let (kind, text) = refusal(&mut Assembler::on(Box::new(FullDevice), u64::MAX), &large());
    assert_eq!(kind, Kind::Unavailable);
    assert!(text.contains("make room there"), "{text}");
}

#[test]
fn files_take_no_more_than_they_may() {
    let mut assembler = Assembler::on(Box::new(TestDisk::default()), 100_000);
    let (kind, text) = refusal(&mut assembler, &large());
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("more than the 100000 bytes"), "{text}");
    // What stays in memory needs no disk.
    let mut assembler = Assembler::on(Box::new(TestDisk::default()), 0);
    let small = [start(1, true), insert(Some(1), b"a"), stop(), stream_commit(1, 200)];
    assert_eq!(run(&mut assembler, &small).unwrap(), ["begin 200 of 1", "1 a", "commit 208"]);
}

#[test]
fn a_disk_that_gives_back_something_else_is_noticed() {
    let expected = run(&mut assembler(), &large()).unwrap();
    assert_eq!(expected.len(), 42);
    // In a place, a number, a length, a checksum, a message; in the first and in a later record.
    for flips in [0, 9, 12, 15, 17, 24, 25, 4000, 8025 + 38, 60_000, 100_000] {
        let disk = TestDisk { flips: Some(flips), ..TestDisk::default() };
        let error = run(&mut Assembler::on(Box::new(disk), u64::MAX), &large()).expect_err("noticed");
        assert_eq!(error.kind(), Kind::Corrupt, "{flips}");
    }
    for loses in [1, 10, 8000, 100_000] {
        let disk = TestDisk { loses, ..TestDisk::default() };
        let mut assembler = Assembler::on(Box::new(disk), u64::MAX);
        assert_eq!(refusal(&mut assembler, &large()).0, Kind::Corrupt, "{loses}");
        assert_eq!(assembler.replay().expect_err("stopped").kind(), Kind::Invalid);
    }
}

#[test]
fn nothing_is_left_in_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let settings = SpillSettings { directory: directory.path().to_owned(), bytes_max: u64::MAX };
    let mut assembler = Assembler::new(settings);
    let messages = large();
    let (last, before) = messages.split_last().unwrap();
    run(&mut assembler, before).unwrap();
    assert!(assembler.spilled_bytes() > 300_000);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "even while it is held");
    assert_eq!(run(&mut assembler, std::slice::from_ref(last)).unwrap().len(), 42);
}

// === bounds ===

#[test]
fn memory_stays_bounded_for_a_million_changes() {
    let directory = tempfile::tempdir().unwrap();
    let settings = SpillSettings { directory: directory.path().to_owned(), bytes_max: u64::MAX };
    let mut assembler = Assembler::new(settings);
    let message = insert(Some(1), b"0123456789");
    for chunk in 0..100 {
        assembler.push(Lsn(0), &start(1, chunk == 0)).unwrap();
        for at in 0..10_000 {
            assembler.push(Lsn(chunk * 10_000 + at), &message).unwrap();
            let State::Chunk { streamed, .. } = &assembler.state else { panic!() };
            assert!(streamed.spool.memory_capacity() <= 2 * BUFFER_BYTES);
        }
        assembler.push(Lsn(0), &stop()).unwrap();
        assert_eq!(assembler.spill.in_memory(), 0, "a transaction with a file keeps nothing");
    }
    assembler.push(Lsn(0), &stream_commit(1, 200)).unwrap();
    for expected in 0..1_000_000 {
        match assembler.replay().unwrap() {
            Assembled::Change { at, .. } => assert_eq!(at.0, expected),
            other => panic!("{other:?}"),
        }
        let State::Replaying(replaying) = &assembler.state else { panic!() };
        assert!(replaying.replay.buffer_capacity() <= BUFFER_BYTES);
    }
    assert_eq!(assembler.replay().unwrap(), Assembled::Commit { end_lsn: Lsn(208) });
    assert_eq!(assembler.spilled_bytes(), 0);
}

#[test]
fn the_buffer_grows_for_one_large_message_and_shrinks_again() {
    let mut assembler = assembler();
    let huge = vec![b'h'; 5 << 20];
    let mut messages = large();
    messages.insert(3, insert(Some(1), &huge));
    let last = messages.pop().unwrap();
    run(&mut assembler, &messages).unwrap();
    assembler.push(Lsn(0), &last).unwrap();
    let (mut most, mut at_end) = (0, 0);
    while assembler.is_replaying() {
        assembler.replay().unwrap();
        if let State::Replaying(replaying) = &assembler.state {
            at_end = replaying.replay.buffer_capacity();
            most = most.max(at_end);
        }
    }
    assert!((huge.len()..huge.len() + 100).contains(&most), "{most}");
    assert!(at_end <= BUFFER_BYTES, "{at_end}");
}

#[test]
fn many_open_transactions_share_one_bound() {
    let mut assembler = assembler();
    let row = vec![b'x'; 50_000];
    for xid in 1..=500 {
        run(&mut assembler, &[start(xid, true), insert(Some(xid), &row), stop()]).unwrap();
        assert!(assembler.spill.in_memory() <= MEMORY_BYTES_MAX);
    }
    assert_eq!(assembler.open_transactions(), 500);
    for xid in 1..=500 {
        let out = run(&mut assembler, &[stream_commit(xid, 1000 + u64::from(xid))]).unwrap();
        assert_eq!(out[1], "1 120*50000");
    }
    assert_eq!((assembler.spilled_bytes(), assembler.spill.in_memory()), (0, 0));
}

// === against a model ===

#[derive(Debug, Clone)]
enum Act {
    Whole { rows: u8 },
    Chunk { who: usize, rows: Vec<(u8, usize)> },
    RollBackTo { who: usize, sub: u8 },
    RollBack { who: usize },
    Commit { who: usize },
    Loose,
}

fn act() -> impl Strategy<Value = Act> {
    let size = prop_oneof![8 => 1..50_usize, 2 => 1000..30_000_usize, 1 => 60_000..200_000_usize];
    let rows = prop::collection::vec((0..4_u8, size), 0..8);
    prop_oneof![
        2 => (0..3_u8).prop_map(|rows| Act::Whole { rows }),
        6 => (0..4_usize, rows).prop_map(|(who, rows)| Act::Chunk { who, rows }),
        2 => (0..4_usize, 1..4_u8).prop_map(|(who, sub)| Act::RollBackTo { who, sub }),
        1 => (0..4_usize).prop_map(|who| Act::RollBack { who }),
        2 => (0..4_usize).prop_map(|who| Act::Commit { who }),
        1 => Just(Act::Loose),
    ]
}

/// A transaction under way, as the model knows it.
#[derive(Default)]
struct Open {
    xid: u32,
    /// The numbers that its four levels have now; the first is its own.
    subs: [u32; 4],
    rows: Vec<(u32, String)>,
}

/// What the server would send for a story, and what must come out: changes are simply kept in lists.
#[derive(Default)]
struct Model {
    sent: Vec<Vec<u8>>,
    expected: Vec<String>,
    open: BTreeMap<usize, Open>,
    next_xid: u32,
}

impl Model {
    fn xid(&mut self) -> u32 {
        self.next_xid += 1;
        self.next_xid
    }

    fn send(&mut self, message: Vec<u8>) -> usize {
        self.sent.push(message);
        self.sent.len() - 1
    }

    fn act(&mut self, act: Act) {
        let commit_at = 1000 + self.sent.len() as u64;
        match act {
            Act::Whole { rows } => {
                let xid = self.xid();
                self.send(begin(commit_at, xid));
                self.expected.push(format!("begin {commit_at} of {xid}"));
                for _ in 0..rows {
                    let at = self.send(insert(None, b"whole"));
                    self.expected.push(format!("{at} whole"));
                }
                self.send(commit(commit_at));
                self.expected.push(format!("commit {}", commit_at + 8));
            }
            Act::Chunk { who, rows } => {
                let known = self.open.remove(&who);
                let first = known.is_none();
                let mut open = known.unwrap_or_else(|| {
                    let subs = std::array::from_fn(|_| self.xid());
                    Open { xid: subs[0], subs, rows: Vec::new() }
                });
                self.send(start(open.xid, first));
                for (sub, size) in rows {
                    let subxid = open.subs[usize::from(sub)];
                    let fill = b'a' + u8::try_from(self.sent.len() % 26).unwrap();
                    let at = self.send(insert(Some(subxid), &vec![fill; size]));
                    let text = if size < 100 {
                        char::from(fill).to_string().repeat(size)
                    } else {
                        format!("{fill}*{size}")
                    };
                    open.rows.push((subxid, format!("{at} {text}")));
                }
                self.send(stop());
                self.open.insert(who, open);
            }
            Act::RollBackTo { who, sub } => {
                let fresh = self.xid();
                if let Some(open) = self.open.get_mut(&who) {
                    let gone = std::mem::replace(&mut open.subs[usize::from(sub)], fresh);
                    open.rows.retain(|(subxid, _)| *subxid != gone);
                    let message = abort(open.xid, gone);
                    self.send(message);
                }
            }
            Act::RollBack { who } => {
                if let Some(open) = self.open.remove(&who) {
                    self.send(abort(open.xid, open.xid));
                }
            }
            Act::Commit { who } => {
                if let Some(open) = self.open.remove(&who) {
                    self.send(stream_commit(open.xid, commit_at));
                    self.expected.push(format!("begin {commit_at} of {}", open.xid));
                    self.expected.extend(open.rows.into_iter().map(|(_, row)| row));
                    self.expected.push(format!("commit {}", commit_at + 8));
                }
            }
            Act::Loose => {
                let at = self.send(loose(None));
                self.expected.push(format!("{at} loose"));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_story_comes_out_as_its_committed_transactions(acts in prop::collection::vec(act(), 0..60)) {
        let mut model = Model::default();
        for act in acts {
            model.act(act);
        }
        let mut assembler = assembler();
        prop_assert_eq!(run(&mut assembler, &model.sent).unwrap(), model.expected);
        prop_assert_eq!(assembler.open_transactions(), model.open.len());
        for open in std::mem::take(&mut model.open).into_values() {
            assembler.push(Lsn(0), &abort(open.xid, open.xid)).unwrap();
        }
        prop_assert_eq!((assembler.spilled_bytes(), assembler.spill.in_memory()), (0, 0));
    }
}
