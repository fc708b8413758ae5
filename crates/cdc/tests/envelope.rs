//! What a real Postgres sends, shown as events, and cast back by the same server: nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;
use serde_json::value::RawValue;
use tenure_cdc::envelope::{self, Event, Op};
use tenure_cdc::pgoutput::{Decoder, Message, Old, Xid};
use tenure_cdc::table::{Place, Table, TypeNames};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_stream::identity::{Floor, Header, Lanes, Position};
use tokio_postgres::{Client, Config, NoTls};

/// What our replication sessions set.
const SETTINGS: &str = "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; \
                        SET extra_float_digits = 3; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'";

/// A database of its own, with a publication of everything and a slot that ends with the session.
struct Database {
    name: String,
    client: Client,
    types: TypeNames,
    tables: BTreeMap<u32, Table>,
    decoder: Decoder,
}

impl Database {
    /// Runs a test in a database of its own, which goes away also when the test fails.
    async fn with<F>(options: &str, test: impl FnOnce(Self) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let server = std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
            panic!(
                "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
                 `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
            )
        });
        let mut config: Config = server.parse().unwrap();
        let admin = connect(&config).await;
        let name = format!("envelope_{:016x}", Entropy::system().u64());
        admin.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0 {options}")).await.unwrap();
        config.dbname(&name);
        let client = connect(&config).await;
        client.batch_execute(SETTINGS).await.unwrap();
        client.batch_execute("CREATE PUBLICATION everything FOR ALL TABLES").await.unwrap();
        let sql =
            format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', temporary => true)");
        client.batch_execute(&sql).await.unwrap();
        let (types, tables, decoder) = Default::default();
        // The slot ends with the session, and the session with the test.
        let ended = tokio::spawn(test(Self { name: name.clone(), client, types, tables, decoder })).await;
        let by = SystemClock.deadline(Duration::from_secs(30));
        while let Err(error) = admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await {
            // The server has not noticed yet that the session is over.
            assert!(SystemClock.monotonic() < by, "{error:?}");
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
        ended.unwrap();
    }

    /// What was published since the last call, each with the table that it concerns.
    async fn changes(&mut self) -> Vec<Vec<u8>> {
        let sql = "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL, \
                   'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')";
        let rows = self.client.query(sql, &[&self.name]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Shows every change of a row, in order, and where it belongs.
    fn show(&mut self, changes: &[Vec<u8>]) -> Vec<Result<Shown, String>> {
        let mut shown = Vec::new();
        for bytes in changes {
            let message = self.decoder.decode(bytes).unwrap();
            let (op, place) = match &message {
                Message::Type { oid, schema, name, .. } => {
                    self.types.learn(*oid, schema, name);
                    continue;
                }
                Message::Relation(relation) => {
                    self.tables.insert(relation.oid, Table::new(relation, &self.types));
                    continue;
                }
                Message::Insert { relation, new, .. } => {
                    let table = &self.tables[relation];
                    (Op::Insert { table, new: *new, moved_from: None }, place(table, new, None))
                }
                Message::Update { relation, old, new, .. } => {
                    let table = &self.tables[relation];
                    (Op::Update { table, old: *old, new: *new }, place(table, new, old.as_ref()))
                }
                Message::Delete { relation, old, .. } => {
                    let table = &self.tables[relation];
                    let (Old::Key(row) | Old::Full(row)) = old;
                    (Op::Delete { table, old: *old, moved: false }, place(table, row, None))
                }
                _ => continue,
            };
            let header = Header {
                source: "test",
                id: Position::default(),
                lane: Lanes::default().of(place.0),
                lanes: Lanes::default(),
                prev: None,
                floor: Floor::default(),
                leader: 1,
            };
            let event = Event { header, op, xid: Some(Xid(1)), committed_micros: Some(0) };
            let mut out = Vec::new();
            shown.push(match envelope::write(&mut out, &event) {
                Ok(()) => {
                    assert!(!out.contains(&b'\n'));
                    let text = String::from_utf8(out).unwrap();
                    Ok(Shown { json: serde_json::from_str(&text).unwrap(), text, place })
                }
                Err(error) => Err(error.to_string()),
            });
        }
        shown
    }
}

struct Shown {
    text: String,
    json: Json,
    place: (u64, String),
}

fn place(table: &Table, row: &tenure_cdc::pgoutput::Tuple<'_>, old: Option<&Old<'_>>) -> (u64, String) {
    let mut place = Place::default();
    (table.place(&mut place, row, old).unwrap(), place.partition_key)
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Types that are built in, each with values that are hard to keep.
fn built_in() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("bool", vec!["true", "false"]),
        ("int2", vec!["-32768", "32767", "0"]),
        ("int4", vec!["-2147483648", "2147483647"]),
        ("int8", vec!["-9223372036854775808", "9223372036854775807", "9007199254740993"]),
        ("oid", vec!["0", "4294967295"]),
        ("float4", vec!["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1", "16777216"]),
        (
            "float8",
            vec![
                "NaN",
                "Infinity",
                "-Infinity",
                "-0",
                "5e-324",
                "2.2250738585072014e-308",
                "1.7976931348623157e308",
                "0.1",
                "123456789012345680",
                "0.30000000000000004",
            ],
        ),
        (
            "numeric",
            vec![
                "NaN",
                "Infinity",
                "-Infinity",
                "0",
                "1.50",
                "-0.000",
                "1e-200",
                "123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890.123456789012345678901234567890",
            ],
        ),
        ("money", vec!["-92233720368547758.08", "92233720368547758.07", "0"]),
        ("\"char\"", vec!["a", "", "\"", "\\"]),
        ("name", vec!["", "a\"b'c\\d"]),
        ("text", vec!["", "NULL", "null", "{}", "\u{1F600}\u{10FFFF}\u{FEFF}", " a,b ", "\\", "\"", "\\x41"]),
        ("varchar", vec!["", "é\n"]),
        ("bpchar", vec!["", "a  "]),
        ("bytea", vec!["", "\\x00", "\\x00ff10", "\\x5c22270a"]),
        ("json", vec!["{\"a\" :  1.000, \"a\":\n\t2, \"b\": 1e999}", "null", "\"\"", " [ ] "]),
        ("jsonb", vec!["{\"a\": 1.000, \"b\": 123456789012345678901234567890}", "null", "\"\\\"\"", "[]"]),
        ("jsonpath", vec!["$.a[*] ? (@ > 1)"]),
        ("xml", vec!["<a b=\"c\">\n</a>", "text"]),
        ("date", vec!["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "2026-11-16"]),
        ("time", vec!["00:00", "24:00:00", "23:59:59.999999"]),
        ("timetz", vec!["00:00+00", "24:00:00-15:59:59", "23:59:59.999999+05:30"]),
        (
            "timestamp",
            vec![
                "infinity",
                "-infinity",
                "4713-01-01 00:00:00 BC",
                "294276-12-31 23:59:59.999999",
                "2026-11-16 05:00:00.1",
                "0001-01-01 00:00:00",
            ],
        ),
        (
            "timestamptz",
            vec![
                "infinity",
                "-infinity",
                "4713-01-01 00:00:00+00 BC",
                "294276-12-31 23:59:59.999999+00",
                "2026-11-16 05:00:00.123456+05:30",
                "1800-01-01 00:00:00+00",
            ],
        ),
        (
            "interval",
            vec![
                "178000000 years",
                "-178000000 years",
                "1 year -2 mons +3 days -04:05:06.789012",
                "0",
                "-00:00:00.000001",
                "2562047788:00:54.775807",
            ],
        ),
        ("uuid", vec!["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
        ("inet", vec!["::1", "10.0.0.1/8", "192.168.0.1", "::ffff:1.2.3.4/96"]),
        ("cidr", vec!["10.0.0.0/8", "::/0"]),
        ("macaddr", vec!["08:00:2b:01:02:03"]),
        ("macaddr8", vec!["08:00:2b:01:02:03:04:05"]),
        ("bit", vec!["0", "1"]),
        ("varbit", vec!["", "10110011100011110000"]),
        ("tsvector", vec!["", "'a''b':1A,2B 'c d':3 '\\\\x'"]),
        ("tsquery", vec!["'a' & !'b''c' <2> 'd':*A"]),
        ("point", vec!["(1e-300,-0)", "(NaN,Infinity)", "(0.1,0.30000000000000004)"]),
        ("line", vec!["{1,-1,0.1}"]),
        ("lseg", vec!["[(0,0),(1,0.1)]"]),
        ("box", vec!["(1,1),(0,0)", "(0.3,1e20),(-1,-2)"]),
        ("path", vec!["[(0,0),(1,1)]", "((0,0),(1,1.5))"]),
        ("polygon", vec!["((0,0),(1,1),(2,0.1))"]),
        ("circle", vec!["<(0.1,0),5>"]),
        ("int4range", vec!["empty", "[1,10)", "(,)", "[5,)"]),
        ("int8range", vec!["[-9223372036854775808,9223372036854775807)"]),
        ("numrange", vec!["(1.50,2.500]", "[,NaN]"]),
        ("tsrange", vec!["[2026-01-01 00:00:00.5,infinity)", "(,4713-01-01 00:00:00 BC]"]),
        ("tstzrange", vec!["[2026-01-01 00:00:00+05:30,2027-01-01 00:00:00+00]"]),
        ("daterange", vec!["[2026-01-01,2026-12-31]"]),
        ("int4multirange", vec!["{}", "{[1,2),[5,9)}"]),
        ("int8multirange", vec!["{[1,2)}"]),
        ("nummultirange", vec!["{(1.0,2.00],[3,)}"]),
        ("tsmultirange", vec!["{[2026-01-01 00:00:00,2026-02-01 00:00:00)}"]),
        ("tstzmultirange", vec!["{[2026-01-01 00:00:00+00,infinity)}"]),
        ("datemultirange", vec!["{[2026-01-01,2026-02-01),[2026-03-01,)}"]),
        ("pg_lsn", vec!["0/0", "FFFFFFFF/FFFFFFFF"]),
        ("txid_snapshot", vec!["10:20:10,14,15"]),
        ("pg_snapshot", vec!["10:20:10,14,15"]),
        ("tid", vec!["(4294967295,65535)"]),
        ("xid", vec!["4294967295"]),
        ("xid8", vec!["18446744073709551615"]),
        ("cid", vec!["7"]),
        ("int2vector", vec!["", "1 -2 3"]),
        ("oidvector", vec!["", "1 4294967295"]),
        ("refcursor", vec!["some cursor"]),
        ("aclitem", vec!["postgres=r*w/postgres"]),
        ("regproc", vec!["now", "-"]),
        ("regprocedure", vec!["abs(bigint)"]),
        ("regoper", vec!["||/"]),
        ("regoperator", vec!["+(integer,integer)"]),
        ("regclass", vec!["pg_class"]),
        ("regtype", vec!["integer", "timestamp with time zone"]),
        ("regconfig", vec!["english"]),
        ("regdictionary", vec!["simple"]),
        ("regrole", vec!["postgres"]),
        ("regnamespace", vec!["pg_catalog"]),
        ("regcollation", vec!["\"C\""]),
    ]
}

/// Made by the test: a kind each of what users make.
const OWN_TYPES: &str = r#"
    CREATE TYPE mood AS ENUM ('sad', 'o"k', 'a,b');
    CREATE TYPE pair AS (n int, t text);
    CREATE DOMAIN posint AS int CHECK (VALUE > 0);
    CREATE DOMAIN tags AS text[];
    CREATE TYPE floatrange AS RANGE (subtype = float8);
"#;

fn own() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("mood", vec!["sad", "o\"k", "a,b"]),
        ("pair", vec!["(1,\"a \"\"b\"\" \\\\\")", "(,)", "(1,\"\")"]),
        ("posint", vec!["1"]),
        ("tags", vec!["{a,NULL,\"NULL\"}", "{}"]),
        ("floatrange", vec!["[0.1,0.30000000000000004)"]),
        ("varchar(5)", vec!["abcde"]),
        ("char(4)", vec!["ab"]),
        ("numeric(10,3)", vec!["1.5"]),
        ("bit(4)", vec!["0101"]),
        ("timestamptz(3)", vec!["2026-11-16 05:00:00.123+00"]),
        ("interval day to second", vec!["3 days 04:05:06.5"]),
    ]
}

/// Types of which nobody can store a value.
const WITHOUT_VALUES: [&str; 7] = [
    "gtsvector",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
];

#[tokio::test]
async fn values_of_every_type_come_back_as_they_were() {
    Database::with("ENCODING 'UTF8'", every_type).await;
}

async fn every_type(mut database: Database) {
    let client = &database.client;
    client.batch_execute(OWN_TYPES).await.unwrap();

    // The list is complete: what a newer server adds fails here.
    let mut types = built_in();
    let sql = "SELECT typname FROM pg_type WHERE oid < 10000 AND typtype IN ('b', 'r', 'm') \
               AND (typcategory <> 'A' OR typname IN ('int2vector', 'oidvector'))";
    let known: BTreeSet<&str> =
        types.iter().map(|(name, _)| name.trim_matches('"')).chain(WITHOUT_VALUES).collect();
    for row in client.query(sql, &[]).await.unwrap() {
        let name: &str = row.get(0);
        assert!(known.contains(name), "type {name} is not tested");
    }
    types.extend(own());
    let hstore = "SELECT count(*) FROM pg_available_extensions WHERE name = 'hstore'";
    if client.query_one(hstore, &[]).await.unwrap().get::<_, i64>(0) == 1 {
        client.batch_execute("CREATE EXTENSION hstore").await.unwrap();
        types.push(("hstore", vec!["\"a\"=>\"b\", \"c\"=>NULL, \"\\\"\"=>\"\\\\\""]));
    }

    let mut columns = BTreeMap::new();
    for (index, (kind, literals)) in types.iter().enumerate() {
        let mut sql = format!("CREATE TABLE v{index} (id int PRIMARY KEY, v {kind});");
        for (id, literal) in literals.iter().enumerate() {
            let literal = literal.replace('\'', "''");
            write!(sql, "INSERT INTO v{index} VALUES ({id}, '{literal}');").unwrap();
        }
        write!(sql, "INSERT INTO v{index} VALUES (99, NULL);").unwrap();
        columns.insert(format!("v{index}"), (*kind).to_owned());
        // Arrays of arrays that are none, and of domains over arrays, cannot be made in this way.
        if !["int2vector", "oidvector", "tags"].contains(kind) {
            write!(
                sql,
                "CREATE TABLE a{index} (id int PRIMARY KEY, v {kind}[]);
                 INSERT INTO a{index} SELECT 1, array_agg(v ORDER BY id) FROM v{index};
                 INSERT INTO a{index} VALUES (2, '{{}}'), (3, ARRAY[NULL]::{kind}[]), (4, NULL);
                 INSERT INTO a{index} SELECT 5, ARRAY[a.v, a.v] FROM a{index} a WHERE id = 1;
                 INSERT INTO a{index} SELECT 6, ARRAY[a.v, a.v] FROM a{index} a WHERE id = 5;
                 INSERT INTO a{index} SELECT 7, array_fill(v, ARRAY[2, 2], ARRAY[0, -3]) FROM v{index} \
                                      WHERE id = 0;"
            )
            .unwrap();
            columns.insert(format!("a{index}"), format!("{kind}[]"));
        }
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
    }
    // Every character that JSON escapes, and one of every length.
    let odd: String = (1..0x100_u32).chain([0x2028, 0xFFFF, 0x1_F600]).filter_map(char::from_u32).collect();
    let text = types.iter().position(|(kind, _)| *kind == "text").unwrap();
    client.execute(&format!("INSERT INTO v{text} VALUES (50, $1)"), &[&odd]).await.unwrap();
    let sql = format!("INSERT INTO a{text} VALUES (50, ARRAY[$1, NULL, $1])");
    client.execute(&sql, &[&odd]).await.unwrap();

    let changes = database.changes().await;
    let mut checked = 0;
    for shown in database.show(&changes) {
        let shown = shown.unwrap();
        let (table, id) =
            (shown.json["table"].as_str().unwrap(), shown.json["after"]["id"].as_i64().unwrap());
        let kind = &columns[table];
        let back = literal(&shown.text, kind);
        let sql =
            format!("SELECT record_image_eq(ROW($1::text::{kind}), ROW(v)) FROM {table} WHERE id = {id}");
        // Byte for byte, whatever the type holds to be equal.
        let same: bool = match database.client.query_one(&sql, &[&back]).await {
            Ok(row) => row.get(0),
            Err(error) => panic!("{kind} {id}: {back:?}: {error:?}"),
        };
        assert!(same, "{kind} {id}: {back:?} of {}", shown.text);
        // An array for the built-in types, text for the others and for own lower bounds.
        if kind.ends_with("[]") && back.is_some() {
            let is_own = own()
                .iter()
                .any(|(own, _)| kind.strip_suffix("[]") == Some(own) && !own.contains(['(', ' ']));
            let is_text = is_own || kind == "hstore[]" || id == 7;
            assert_eq!(shown.json["after"]["v"].is_string(), is_text, "{kind} {id}: {}", shown.text);
        }
        checked += 1;
    }
    let rows: usize = types.iter().map(|(_, literals)| literals.len() + 1).sum();
    let arrays = columns.keys().filter(|name| name.starts_with('a')).count();
    assert_eq!(checked, rows + 7 * arrays + 2);
}

/// What casts back to the value of column `v`, from the event's text alone.
fn literal(event: &str, kind: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        after: BTreeMap<&'a str, &'a RawValue>,
    }
    // Raw, so that no library rounds a number.
    let envelope: Envelope<'_> = serde_json::from_str(event).unwrap();
    text_of(envelope.after["v"], kind.strip_suffix("[]").unwrap_or(kind))
}

fn text_of(value: &RawValue, element: &str) -> Option<String> {
    let raw = value.get();
    match raw.as_bytes()[0] {
        b'n' => None,
        b'"' => {
            let text: String = serde_json::from_str(raw).unwrap();
            // An array that is shown as its text has its bytes in hex already.
            if element != "bytea" || text.starts_with('[') {
                return Some(text);
            }
            let hex: String =
                STANDARD.decode(text).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
            Some(format!("\\x{hex}"))
        }
        b'[' => {
            let elements: Vec<&RawValue> = serde_json::from_str(raw).unwrap();
            let elements: Vec<String> = elements
                .iter()
                .map(|value| match text_of(value, element) {
                    None => "NULL".to_owned(),
                    Some(array) if value.get().starts_with('[') => array,
                    Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
                })
                .collect();
            Some(format!("{{{}}}", elements.join(if element == "box" { ";" } else { "," })))
        }
        _ => Some(raw.to_owned()),
    }
}

#[tokio::test]
async fn large_values_and_keys_are_known_or_named() {
    Database::with("ENCODING 'UTF8'", large_values).await;
}

async fn large_values(mut database: Database) {
    // Large enough to be stored outside of the row, small enough for an index.
    let sql = "
        CREATE TABLE large (id text PRIMARY KEY, n int, doc text);
        ALTER TABLE large ALTER COLUMN id SET STORAGE EXTERNAL, ALTER COLUMN doc SET STORAGE EXTERNAL;
        INSERT INTO large VALUES (repeat('k', 2500), 1, repeat('d', 5000));
        UPDATE large SET n = 2;
        ALTER TABLE large REPLICA IDENTITY FULL;
        UPDATE large SET n = 3;
        DELETE FROM large;";
    database.client.batch_execute(sql).await.unwrap();
    let changes = database.changes().await;
    let shown: Vec<Shown> = database.show(&changes).into_iter().map(Result::unwrap).collect();
    let [insert, update, full, delete] = &shown[..] else { panic!("{} events", shown.len()) };
    let (key, doc) = ("k".repeat(2500), "d".repeat(5000));
    assert_eq!(insert.json["key"]["id"], key);
    assert_eq!(insert.json["after"]["doc"], doc);
    // The key did not change, is not in the new row, and is known nevertheless.
    assert_eq!(update.json["key"]["id"], key);
    assert_eq!(update.place, insert.place);
    assert!(update.place.1.starts_with("public.large#"), "{}", update.place.1);
    assert_eq!(update.json["unchanged"], serde_json::json!(["doc"]));
    assert_eq!(update.json["after"].get("doc"), None);
    // With the whole old row, nothing is missing.
    assert_eq!((&full.json["after"]["doc"], &full.json["before"]["n"]), (&doc.into(), &2.into()));
    assert_eq!((full.json.get("key"), full.json.get("unchanged")), (None, None));
    assert_eq!(full.place.1, "public.large");
    assert_eq!((&delete.json["op"], &delete.json["before"]["n"]), (&"delete".into(), &3.into()));
}

#[tokio::test]
async fn text_without_an_encoding_is_refused_by_name() {
    Database::with("ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'", bare_text).await;
}

async fn bare_text(mut database: Database) {
    // With any other, the server itself refuses to send the change, for ever.
    let sql = r"
        SET client_encoding = 'SQL_ASCII';
        CREATE TABLE raw (id int PRIMARY KEY, v text);
        INSERT INTO raw VALUES (1, 'plain'), (2, E'\xff');
        UPDATE raw SET v = 'good' WHERE id = 2;";
    database.client.batch_execute(sql).await.unwrap();
    let changes = database.changes().await;
    let shown = database.show(&changes);
    let ok: Vec<bool> = shown.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, true]);
    let error = shown[1].as_ref().err().unwrap();
    assert!(error.starts_with("column \"v\": its text is not UTF-8"), "{error}");
}
