//! Records the golden files from a real server:
//!
//! ```text
//! TENURE_TEST_POSTGRES=… cargo test -p tenure-cdc -- --ignored capture
//! UPDATE_EXPECT=1 cargo test -p tenure-cdc golden
//! ```
//!
//! The files say in their names which version of Postgres they are from. Only what that version can do is
//! recorded from it.

use std::fmt::Write as _;

use tokio_postgres::Client;

use crate::server::{Database, Recording, url};

/// A way to be sent the log.
struct Way {
    name: &'static str,
    options: &'static str,
    since: i32,
}

const PLAIN: Way = Way { name: "v1", options: "proto_version '1', messages 'on'", since: 15 };
const BINARY: Way =
    Way { name: "v1_binary", options: "proto_version '1', messages 'on', binary 'on'", since: 15 };
const STREAMED: Way =
    Way { name: "v2_streamed", options: "proto_version '2', messages 'on', streaming 'on'", since: 15 };
const STREAMED_3: Way = Way {
    name: "v3_streamed_binary",
    options: "proto_version '3', messages 'on', streaming 'on', binary 'on'",
    since: 15,
};
const PARALLEL: Way =
    Way { name: "v4_parallel", options: "proto_version '4', messages 'on', streaming 'parallel'", since: 16 };

struct Story {
    name: &'static str,
    ways: &'static [Way],
    /// Before anything is recorded.
    setup: &'static str,
    /// Who does what. After each step every recording has come as far.
    steps: &'static [(char, &'static str)],
}

const STORIES: &[Story] = &[
    Story {
        name: "rows",
        ways: &[PLAIN, BINARY],
        setup: "
            CREATE TYPE mood AS ENUM ('sad', 'glad');
            CREATE DOMAIN positive AS int CHECK (VALUE > 0);
            CREATE TYPE point2 AS (x int, y int);
            CREATE TABLE by_key (id int PRIMARY KEY, name varchar(20), amount numeric(10,2), big text);
            ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL;
            CREATE TABLE by_index (a int NOT NULL, b int, note text);
            CREATE UNIQUE INDEX by_index_a ON by_index (a);
            ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a;
            CREATE TABLE by_all (a int, b text);
            ALTER TABLE by_all REPLICA IDENTITY FULL;
            CREATE TABLE by_nothing (a int);
            ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
            CREATE TABLE typed (id positive PRIMARY KEY, m mood, p point2, many int[], j jsonb, at timestamptz);
            CREATE TABLE parent (id serial PRIMARY KEY);
            CREATE TABLE child (id int PRIMARY KEY REFERENCES parent);
            CREATE PUBLICATION p FOR ALL TABLES;",
        steps: &[
            ('a', "INSERT INTO by_key VALUES (1, 'eins', 1.50, repeat('x', 3000)), (2, '', NULL, NULL)"),
            ('a', "UPDATE by_key SET name = 'uno' WHERE id = 1"),
            ('a', "UPDATE by_key SET id = 3 WHERE id = 2"),
            ('a', "UPDATE by_key SET id = 4 WHERE id = 1"),
            ('a', "DELETE FROM by_key WHERE id = 3"),
            ('a', "INSERT INTO by_index VALUES (1, 2, 'three')"),
            ('a', "UPDATE by_index SET b = 5"),
            ('a', "UPDATE by_index SET a = 6"),
            ('a', "DELETE FROM by_index"),
            ('a', "INSERT INTO by_all VALUES (1, NULL)"),
            ('a', "UPDATE by_all SET b = 'é'"),
            ('a', "DELETE FROM by_all"),
            ('a', "INSERT INTO by_nothing VALUES (1)"),
            (
                'a',
                "INSERT INTO typed VALUES (1, 'glad', (1, 2), '{3,4}', '{\"a\": 1}', '2026-01-02 03:04:05.678+00')",
            ),
            ('a', "INSERT INTO parent DEFAULT VALUES; INSERT INTO child VALUES (1)"),
            ('a', "TRUNCATE parent CASCADE"),
            ('a', "TRUNCATE parent, child RESTART IDENTITY"),
            ('a', "TRUNCATE by_all, by_key RESTART IDENTITY CASCADE"),
            ('a', "TRUNCATE by_nothing"),
            ('a', "ALTER TABLE by_key ADD COLUMN more int DEFAULT 7"),
            ('a', "INSERT INTO by_key VALUES (9)"),
            ('a', "ALTER TABLE by_key DROP COLUMN amount"),
            ('a', "INSERT INTO by_key VALUES (10)"),
            ('a', "BEGIN; INSERT INTO by_all VALUES (2); SAVEPOINT s; INSERT INTO by_all VALUES (3); ROLLBACK TO s; INSERT INTO by_all VALUES (4); COMMIT"),
        ],
    },
    Story {
        name: "messages",
        ways: &[PLAIN, STREAMED],
        setup: "
            CREATE TABLE t (id int PRIMARY KEY);
            CREATE PUBLICATION p FOR TABLE t;
            SELECT pg_replication_origin_create('tenure_golden');",
        steps: &[
            ('a', "SELECT pg_logical_emit_message(true, 'topic', 'of a transaction')"),
            ('a', "SELECT pg_logical_emit_message(false, 'topic', 'by itself')"),
            ('a', "BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(false, '', ''); \
                   SELECT pg_logical_emit_message(true, 'wörter', '\\x00ff'::bytea); COMMIT"),
            ('a', "BEGIN; INSERT INTO t VALUES (2); SELECT pg_logical_emit_message(false, 'of nobody', 'kept'); ROLLBACK"),
            ('a', "SELECT pg_replication_origin_session_setup('tenure_golden')"),
            ('a', "BEGIN; SELECT pg_replication_origin_xact_setup('16/B374D848', '2026-01-02 03:04:05+00'); \
                   INSERT INTO t VALUES (3); COMMIT"),
            ('a', "SELECT pg_replication_origin_session_reset()"),
            ('a', "INSERT INTO t VALUES (4)"),
        ],
    },
    Story {
        name: "shapes",
        ways: &[PLAIN],
        setup: "
            CREATE TABLE columns (id int PRIMARY KEY, shown text, hidden text);
            CREATE TABLE filtered (id int PRIMARY KEY, region text NOT NULL);
            ALTER TABLE filtered REPLICA IDENTITY FULL;
            CREATE TABLE whole (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
            CREATE TABLE whole_1 PARTITION OF whole FOR VALUES IN (1);
            CREATE TABLE whole_2 PARTITION OF whole FOR VALUES IN (2);
            CREATE TABLE elsewhere (id int PRIMARY KEY);
            CREATE PUBLICATION p FOR TABLE columns (id, shown), TABLE filtered WHERE (region = 'eu'), TABLE whole
                WITH (publish_via_partition_root = true);",
        steps: &[
            ('a', "INSERT INTO columns VALUES (1, 'a', 'b')"),
            ('a', "UPDATE columns SET hidden = 'c'"),
            ('a', "INSERT INTO filtered VALUES (1, 'eu'), (2, 'us')"),
            ('a', "UPDATE filtered SET region = 'eu' WHERE id = 2"),
            ('a', "UPDATE filtered SET region = 'us' WHERE id = 1"),
            ('a', "DELETE FROM filtered"),
            ('a', "INSERT INTO whole VALUES (1, 1), (2, 2)"),
            ('a', "UPDATE whole SET part = 2 WHERE id = 1"),
            ('a', "TRUNCATE whole"),
            ('a', "INSERT INTO elsewhere VALUES (1)"),
        ],
    },
    Story {
        name: "streamed",
        ways: &[PLAIN, STREAMED, STREAMED_3, PARALLEL],
        // What nobody publishes fills the server's memory too.
        setup: "
            CREATE TYPE mood AS ENUM ('sad', 'glad');
            CREATE TABLE t (id int PRIMARY KEY, name text);
            CREATE TABLE u (id int PRIMARY KEY, m mood);
            CREATE TABLE filler (id int);
            CREATE PUBLICATION p FOR TABLE t, u;
            SELECT pg_replication_origin_create('tenure_golden');",
        steps: &[
            ('a', "BEGIN; INSERT INTO t VALUES (1, 'one'); INSERT INTO u VALUES (1, 'glad')"),
            ('a', "INSERT INTO filler SELECT generate_series(1, 600)"),
            ('b', "INSERT INTO t VALUES (100, 'between')"),
            ('a', "SAVEPOINT s; INSERT INTO t VALUES (2, 'gone'); INSERT INTO filler SELECT generate_series(1, 600)"),
            ('a', "ROLLBACK TO s; INSERT INTO t VALUES (3, 'three')"),
            ('a', "SAVEPOINT r; INSERT INTO t VALUES (4, 'four'); RELEASE r"),
            ('a', "SELECT pg_logical_emit_message(true, 'topic', 'inside'); SELECT pg_logical_emit_message(false, 'topic', 'outside')"),
            ('a', "INSERT INTO filler SELECT generate_series(1, 600)"),
            ('b', "BEGIN; INSERT INTO t VALUES (101, 'b'); INSERT INTO filler SELECT generate_series(1, 600)"),
            ('a', "UPDATE t SET id = 5 WHERE id = 1; DELETE FROM t WHERE id = 3; TRUNCATE u; COMMIT"),
            ('b', "INSERT INTO t VALUES (102, 'b'); ROLLBACK"),
            ('b', "INSERT INTO t VALUES (103, 'after')"),
            // A table as it never was for anybody else.
            ('a', "BEGIN; SAVEPOINT s; ALTER TABLE t RENAME name TO never; INSERT INTO t VALUES (7, 'never')"),
            ('a', "INSERT INTO filler SELECT generate_series(1, 600)"),
            ('a', "ROLLBACK TO s; INSERT INTO filler SELECT generate_series(1, 600)"),
            ('b', "INSERT INTO t VALUES (104, 'after')"),
            ('a', "INSERT INTO u VALUES (8, 'sad'); INSERT INTO filler SELECT generate_series(1, 600)"),
            ('a', "COMMIT"),
            ('b', "INSERT INTO t VALUES (105, 'after')"),
            ('a', "SELECT pg_replication_origin_session_setup('tenure_golden')"),
            ('a', "BEGIN; SELECT pg_replication_origin_xact_setup('16/B374D848', '2026-01-02 03:04:05+00'); \
                   INSERT INTO t VALUES (9, 'from afar'); INSERT INTO filler SELECT generate_series(1, 600)"),
            ('a', "COMMIT; SELECT pg_replication_origin_session_reset()"),
        ],
    },
];

#[ignore = "writes the golden files anew"]
#[tokio::test]
async fn capture() {
    for story in STORIES {
        Database::lend(&url(), |database| Box::pin(record(story, database))).await;
    }
}

async fn record(story: &Story, database: Database) {
    let (a, b, other) = (database.client().await, database.client().await, database.client().await);
    let version: i32 = {
        let row =
            a.query_one("SELECT current_setting('server_version_num')::int / 10000", &[]).await.unwrap();
        row.get(0)
    };
    // What an earlier run left behind.
    let forget =
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = 'tenure_golden'";
    other.batch_execute(forget).await.unwrap();
    a.batch_execute(story.setup).await.unwrap();

    let mut recordings = Vec::new();
    for way in story.ways.iter().filter(|way| way.since <= version) {
        let options = format!("{}, publication_names 'p'", way.options);
        recordings.push((way, database.record(way.name, &options, "64kB").await));
    }
    for (number, (who, what)) in story.steps.iter().enumerate() {
        let who = if *who == 'a' { &a } else { &b };
        who.batch_execute(what).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        come_as_far(&other, &mut recordings, number).await;
    }
    other.batch_execute(forget).await.unwrap();

    for (way, recording) in recordings {
        let mut text = String::from("# place in the log, message\n");
        for (at, message) in &recording.messages {
            write!(text, "{at} ").unwrap();
            for byte in message {
                write!(text, "{byte:02x}").unwrap();
            }
            text.push('\n');
        }
        let path = format!("tests/golden/{}_{version}_{}.hex", story.name, way.name);
        std::fs::write(path, text).unwrap();
    }
}

async fn come_as_far(other: &Client, recordings: &mut [(&Way, Recording)], number: usize) {
    let said = format!("step {number}.");
    other.execute("SELECT pg_logical_emit_message(true, 'tenure', $1)", &[&said]).await.unwrap();
    for (_, recording) in recordings {
        recording.until(&said).await;
    }
}
