//! What the log says, and which events come of it.

use tenure_clock::Entropy;
use tenure_store::Write;
use tenure_stream::Limits;
use tenure_stream::identity::Lanes;

use super::*;
use crate::checkpoint::CheckpointPlace;
use crate::framing::Framing;
use crate::pgoutput::Decoder;
use crate::publisher::{Answer, Call, PublisherSettings, Work};

/// Builds messages as the server writes them.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn kind(kind: u8) -> Self {
        Self(vec![kind])
    }
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn u32(self, number: u32) -> Self {
        self.raw(&number.to_be_bytes())
    }
    fn text(self, text: &str) -> Self {
        self.raw(text.as_bytes()).raw(&[0])
    }
    fn row(mut self, values: &[Option<&[u8]>]) -> Self {
        self = self.raw(&(values.len() as u16).to_be_bytes());
        for value in values {
            self = match value {
                None => self.raw(b"n"),
                Some(text) => self.raw(b"t").u32(text.len() as u32).raw(text),
            };
        }
        self
    }
}

fn relation(oid: u32, name: &str, identity: u8, columns: &[(&str, bool)]) -> Vec<u8> {
    let mut message = Bytes::kind(b'R').u32(oid).text("public").text(name).raw(&[identity]);
    message = message.raw(&(columns.len() as u16).to_be_bytes());
    for (column, in_key) in columns {
        message = message.raw(&[u8::from(*in_key)]).text(column).u32(25).u32(u32::MAX);
    }
    message.0
}

fn insert(oid: u32, row: &[Option<&[u8]>]) -> Vec<u8> {
    Bytes::kind(b'I').u32(oid).raw(b"N").row(row).0
}

fn truncate(oids: &[u32]) -> Vec<u8> {
    let mut message = Bytes::kind(b'T').u32(oids.len() as u32).raw(&[1]);
    for oid in oids {
        message = message.u32(*oid);
    }
    message.0
}

struct World {
    intake: Intake,
    publisher: Publisher,
    now: u64,
    parked: Vec<(Position, String)>,
}

impl World {
    fn new() -> Self {
        Self::with(PublisherSettings::default())
    }

    fn with(settings: PublisherSettings) -> Self {
        let lanes = Lanes::new(8).unwrap();
        let settings = PublisherSettings { framing: Framing::Lines, ..settings };
        let limits = Limits { bytes_per_record_max: 1000, ..Limits::default() };
        let origin = Origin { source: "shop".into(), era: Era(1), lanes, leader: 7 };
        Self {
            intake: Intake::new(origin),
            publisher: Publisher::new(settings, limits, lanes, Era(1), Lsn(0), Entropy::seeded(1)),
            now: 0,
            parked: Vec::new(),
        }
    }

    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(self.now * 1_000_000_000)
    }

    fn begin(&mut self, commit: u64) {
        let transaction = Transaction { commit_lsn: Lsn(commit), committed_micros: 0, xid: Xid(5) };
        self.take(Assembled::Begin(transaction));
    }

    fn change(&mut self, at: u64, message: &[u8]) {
        let message = Decoder::default().decode(message).unwrap();
        self.take(Assembled::Change { at: Lsn(at), message });
    }

    fn take(&mut self, assembled: Assembled<'_>) {
        self.intake.take(self.now(), &mut self.publisher, assembled).unwrap();
    }

    /// Publishes everything that can be, and gives it as `lane id text`.
    fn published(&mut self) -> Vec<Json> {
        let mut published = Vec::new();
        for _ in 0..100 {
            self.intake.go_on(self.now(), &mut self.publisher).unwrap();
            published.extend(self.published_once());
        }
        published
    }

    /// Publishes what was taken in.
    fn published_once(&mut self) -> Vec<Json> {
        let mut published = Vec::new();
        self.now += 10;
        let now = self.now();
        while let Some(work) = self.publisher.poll(now, true) {
            match work {
                Work::Call(Call { id, records }) => {
                    for record in &records {
                        let text = std::str::from_utf8(&record.data).unwrap();
                        published
                            .extend(text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()));
                    }
                    let stored = tenure_stream::Put::Stored {
                        shard: tenure_stream::ShardId::numbered(0),
                        sequence: 1u64.into(),
                    };
                    self.publisher.answered(now, id, Answer::Records(vec![stored; records.len()]));
                }
                Work::Store { lane, id, parked } => {
                    self.parked.push((id, String::from_utf8(parked.content.to_vec()).unwrap()));
                    self.publisher.stored(now, lane, true);
                }
                Work::Replace(refused) => self.intake.replace(now, &mut self.publisher, refused),
            }
        }
        published
    }
}

fn ids(events: &[Json]) -> Vec<&str> {
    events.iter().map(|event| event["tenure"]["id"].as_str().unwrap()).collect()
}

fn ops(events: &[Json]) -> Vec<&str> {
    events.iter().map(|event| event["op"].as_str().unwrap()).collect()
}

const KEYED: &[(&str, bool)] = &[("id", true), ("note", false)];

#[test]
fn changes_at_one_place_are_counted_and_a_key_keeps_its_lane() {
    let mut world = World::new();
    world.begin(100);
    world.change(0, &relation(1, "t", b'd', KEYED));
    world.change(40, &insert(1, &[Some(b"a"), Some(b"x")]));
    world.change(40, &insert(1, &[Some(b"a"), Some(b"y")]));
    world.change(48, &insert(1, &[Some(b"a"), None]));
    world.take(Assembled::Commit { end_lsn: Lsn(108) });
    let events = world.published();
    assert_eq!(ids(&events), ["1:0/64:0/28:0", "1:0/64:0/28:1", "1:0/64:0/30:0"]);
    let lanes: Vec<_> = events.iter().map(|event| event["tenure"]["lane"].as_u64().unwrap()).collect();
    assert!(lanes.iter().all(|lane| *lane == lanes[0]));
    assert_eq!(events[1]["tenure"]["prev"], "1:0/64:0/28:0");
    assert_eq!(events[0]["tenure"]["leader"], 7);
    assert_eq!(world.publisher.confirmed(), Lsn(108));
}

#[test]
fn an_update_of_the_key_leaves_the_old_lane_and_comes_to_the_new() {
    let mut world = World::new();
    world.begin(100);
    world.change(0, &relation(1, "t", b'd', KEYED));
    let old: &[Option<&[u8]>] = &[Some(b"a"), None];
    let new: &[Option<&[u8]>] = &[Some(b"b"), Some(b"x")];
    world.change(40, &Bytes::kind(b'U').u32(1).raw(b"K").row(old).raw(b"N").row(new).0);
    world.change(48, &Bytes::kind(b'U').u32(1).raw(b"N").row(new).0);
    let mut events = world.published();
    events.sort_by_key(|event| event["tenure"]["id"].as_str().unwrap().to_owned());
    assert_eq!(ops(&events), ["delete", "insert", "update"]);
    assert_eq!(ids(&events), ["1:0/64:0/28:0", "1:0/64:0/28:1", "1:0/64:0/30:0"]);
    assert_eq!(events[0]["key"]["id"], "a");
    assert_ne!(events[0]["tenure"]["lane"], events[1]["tenure"]["lane"]);
    assert_eq!(events[1]["tenure"]["lane"], events[2]["tenure"]["lane"]);
}

#[test]
fn a_table_without_a_key_has_one_lane() {
    for identity in *b"fn" {
        let mut world = World::new();
        world.begin(100);
        world.change(0, &relation(1, "t", identity, KEYED));
        for row in 0..20u8 {
            world.change(40 + u64::from(row), &insert(1, &[Some(&[b'a' + row]), None]));
        }
        let events = world.published();
        assert_eq!(events.len(), 20);
        assert!(events.iter().all(|event| event["tenure"]["lane"] == events[0]["tenure"]["lane"]));
    }
}

#[test]
fn a_truncate_is_told_on_every_lane_after_all_that_came_before() {
    let mut world = World::new();
    world.begin(100);
    world.change(0, &relation(1, "t", b'd', KEYED));
    world.change(0, &relation(2, "u", b'd', KEYED));
    world.change(40, &insert(1, &[Some(b"a"), None]));
    world.change(48, &truncate(&[1, 2]));
    assert!(!world.publisher.wants_more());
    let events = world.published();
    assert!(world.publisher.wants_more());
    assert_eq!(events.len(), 1 + 2 * 8);
    assert_eq!(ops(&events)[0], "insert");
    let truncates = &events[1..];
    let mut all: Vec<&str> = ids(truncates);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 16, "each copy is an event of its own");
    for lane in 0..8 {
        let on_lane: Vec<_> = truncates.iter().filter(|event| event["tenure"]["lane"] == lane).collect();
        assert_eq!(
            on_lane.iter().map(|event| event["table"].as_str().unwrap()).collect::<Vec<_>>(),
            ["t", "u"]
        );
    }
}

#[test]
fn however_many_tables_are_truncated_no_more_is_taken_in_than_may_be() {
    let all = |inflight_events_max: usize| {
        let mut world =
            World::with(PublisherSettings { inflight_events_max, ..PublisherSettings::default() });
        world.begin(100);
        let tables: Vec<u32> = (1..=50).collect();
        for table in &tables {
            world.change(0, &relation(*table, &format!("t{table}"), b'd', KEYED));
        }
        world.change(48, &truncate(&tables));
        let mut events = Vec::new();
        for _ in 0..100 {
            world.intake.go_on(world.now(), &mut world.publisher).unwrap();
            assert!(world.publisher.inflight().0 <= inflight_events_max);
            if world.publisher.wants_more() {
                break;
            }
            events.extend(world.published_once());
        }
        assert!(world.publisher.wants_more(), "the barrier is over");
        let mut ids: Vec<String> = ids(&events).into_iter().map(str::to_owned).collect();
        ids.sort_unstable();
        ids
    };
    let few = all(30);
    assert_eq!(few.len(), 50 * 8);
    assert_eq!(few, all(100_000), "each has the identity that it has with all the room there is");
}

#[test]
fn another_shape_is_told_on_every_lane_and_the_first_is_not() {
    let mut world = World::new();
    world.begin(100);
    world.change(0, &relation(1, "t", b'd', KEYED));
    world.change(40, &insert(1, &[Some(b"a"), None]));
    world.change(0, &relation(1, "t", b'd', KEYED));
    assert!(world.publisher.wants_more(), "nothing has changed");
    world.change(0, &relation(1, "t", b'd', &[("id", true), ("note", false), ("more", false)]));
    assert!(!world.publisher.wants_more());
    let events = world.published();
    assert_eq!(ops(&events)[1..], ["schema"; 8]);
    world.change(48, &insert(1, &[Some(b"a"), None, Some(b"z")]));
    let after = world.published();
    // The row has the identity that it has without the notice.
    assert_eq!(ids(&after), ["1:0/64:0/30:0"]);
}

#[test]
fn a_new_leader_tells_of_a_change_that_the_one_before_has_not_seen() {
    let wider: &[(&str, bool)] = &[("id", true), ("note", false), ("more", false)];
    let mut first = World::new();
    first.intake = Intake::new(first.intake.pen.origin.clone()).with_shapes(Shapes::read(None, "s".into()));
    first.begin(100);
    first.change(0, &relation(1, "t", b'd', KEYED));
    first.change(40, &insert(1, &[Some(b"a"), None]));
    first.take(Assembled::Commit { end_lsn: Lsn(108) });
    assert!(first.intake.shapes().advance(Lsn(108)));
    let place = CheckpointPlace { table: "t".into(), stream: "s".into(), source: "x".into() };
    let Write::Put { item, .. } = first.intake.shapes().write(&place) else { panic!("a put") };

    let told = |columns| {
        let mut next = World::new();
        let shapes = Shapes::read(Some(&item), "s".into());
        next.intake = Intake::new(next.intake.pen.origin.clone()).with_shapes(shapes);
        next.begin(200);
        next.change(0, &relation(1, "t", b'd', columns));
        next.change(0, &relation(2, "new", b'd', columns));
        next.published().len()
    };
    assert_eq!(told(KEYED), 0, "all is as it was, and a new table is no news");
    assert_eq!(told(wider), 8, "once on each lane");
}

#[test]
fn a_row_right_after_a_message_has_the_same_identity_with_a_notice_between_them_and_without() {
    let message = Bytes::kind(b'M').raw(&[1]).raw(&48u64.to_be_bytes()).text("p").u32(1).raw(b"c").0;
    let mut rows = Vec::new();
    for knew_the_table_before in [true, false] {
        let mut world = World::new();
        world.begin(100);
        if knew_the_table_before {
            world.change(0, &relation(1, "t", b'd', &KEYED[..1]));
        }
        // It ends where the row begins.
        world.change(48, &message);
        world.change(0, &relation(1, "t", b'd', KEYED));
        let mut events = world.published();
        world.change(48, &insert(1, &[Some(b"a"), None]));
        events.extend(world.published());
        assert_eq!(ops(&events).contains(&"schema"), knew_the_table_before);
        rows.push(ids(&events).last().unwrap().to_string());
    }
    assert_eq!(rows, ["1:0/64:0/30:0"; 2]);
}

#[test]
fn what_is_too_large_is_parked_whole_and_the_same_from_every_leader() {
    let mut contents = Vec::new();
    for leader in [7, 8] {
        let mut world = World::new();
        world.intake.pen.origin.leader = leader;
        world.begin(100);
        world.change(0, &relation(1, "t", b'd', KEYED));
        world.change(40, &insert(1, &[Some(b"a"), Some(&[b'x'; 5000])]));
        world.change(48, &insert(1, &[Some(b"a"), Some(b"y")]));
        world.take(Assembled::Commit { end_lsn: Lsn(108) });
        let events = world.published();
        assert_eq!(ids(&events), ["1:0/64:0/28:0", "1:0/64:0/30:0"], "in its place");
        assert_eq!(events[1]["tenure"]["prev"], "1:0/64:0/28:0");
        let (id, content) = world.parked.remove(0);
        assert_eq!(id.to_string(), "1:0/64:0/28:0");
        let whole: Json = serde_json::from_str(&content).unwrap();
        assert_eq!(whole["after"]["note"].as_str().unwrap().len(), 5000);
        let pointer = events[0].to_string();
        assert!(pointer.contains(&sha256(content.as_bytes())), "{pointer}");
        contents.push(content);
    }
    assert_eq!(contents[0], contents[1]);
}

#[test]
fn what_has_no_json_form_is_quarantined_with_its_bytes_and_the_reason() {
    let mut world = World::new();
    world.begin(100);
    world.change(0, &relation(1, "t", b'd', KEYED));
    world.change(40, &insert(1, &[Some(b"a"), Some(&[0xff, 0xfe])]));
    let events = world.published();
    assert_eq!(ids(&events), ["1:0/64:0/28:0"]);
    assert!(events[0].to_string().contains("UTF-8"), "{}", events[0]);
    let raw: Json = serde_json::from_str(&world.parked[0].1).unwrap();
    assert_eq!(raw["raw_after"][1]["text"], STANDARD.encode([0xff, 0xfe]));
}

#[test]
fn a_row_of_an_unknown_table_is_an_error() {
    let mut world = World::new();
    world.begin(100);
    let message = insert(9, &[Some(b"a")]);
    let message = Decoder::default().decode(&message).unwrap();
    let taken = world.intake.take(
        Monotonic::from_nanos(0),
        &mut world.publisher,
        Assembled::Change { at: Lsn(1), message },
    );
    assert_eq!(taken.unwrap_err().kind(), Kind::Corrupt);
}
