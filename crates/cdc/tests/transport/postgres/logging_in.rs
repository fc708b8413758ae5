//! Who gets in, how, and what is said to whom does not.

use tenure_scratch_postgres::{Authority, End, PASSWORD, StrictPostgres};

use super::*;

async fn refusal(url: &str) -> Error {
    connect(&Endpoint::parse(url).unwrap()).await.expect_err(url)
}

async fn one(session: &mut Session, sql: &str) -> String {
    let rows = session.query(soon(), sql).await.unwrap();
    rows[0].get(0).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn each_way_to_log_in_works_and_each_refusal_says_what_to_do() {
    let hba = "host all by_md5 127.0.0.1/32 md5\nhost all by_password 127.0.0.1/32 password\n\
               host postgres by_scram 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 scram-sha-256\n\
               host all plain 127.0.0.1/32 scram-sha-256\nhost all by_trust 127.0.0.1/32 trust\n\
               local all all scram-sha-256\n";
    let settings = ["wal_level=logical", "max_wal_senders=3"];
    let mut server = StrictPostgres::start(&[("pg_hba.conf", hba)], &settings).await.unwrap();
    let superuser = server.superuser().await.unwrap();
    superuser
        .batch_execute(
            "SET password_encryption = 'md5'; CREATE ROLE by_md5 LOGIN REPLICATION PASSWORD 'md5-s3cret'; \
             SET password_encryption = 'scram-sha-256'; \
             CREATE ROLE by_password LOGIN REPLICATION PASSWORD 'clear-s3cret'; \
             CREATE ROLE by_scram LOGIN REPLICATION PASSWORD 'scram-s3cret'; \
             CREATE ROLE by_trust LOGIN REPLICATION; CREATE ROLE plain LOGIN PASSWORD 'plain-s3cret'",
        )
        .await
        .unwrap();
    for (user, password) in [
        ("by_md5", "md5-s3cret"),
        ("by_password", "clear-s3cret"),
        ("by_scram", "scram-s3cret"),
        ("by_trust", "x"),
    ] {
        let mut session = connect(&Endpoint::parse(&server.url(user, password)).unwrap()).await.unwrap();
        assert_eq!(one(&mut session, "SELECT current_user").await, user);
        assert_eq!(one(&mut session, "SELECT pg_backend_pid()").await, session.backend().to_string());
        let fitness = server::fitness(&mut session, soon()).await.unwrap();
        assert!(fitness.may_replicate && !fitness.superuser && !fitness.in_recovery);
        assert_eq!((fitness.wal_level.as_str(), fitness.max_wal_senders), ("logical", 3));
        session.close(soon()).await.unwrap();
    }
    let by_socket = format!(
        "postgres:///postgres?user=by_scram&password=scram-s3cret&port={}&host={}",
        server.port(),
        server.folder().display()
    );
    let mut session = connect(&Endpoint::parse(&by_socket).unwrap()).await.unwrap();
    assert_eq!(one(&mut session, "SELECT current_user").await, "by_scram");
    session.close(soon()).await.unwrap();

    for user in ["by_md5", "by_password", "by_scram", "postgres"] {
        let error = refusal(&server.url(user, "wrong-s3cret")).await;
        tells(&error, Kind::Denied, "PGPASSWORD");
        assert_eq!(code(&error), "28P01");
    }
    let no_password = format!("postgres://by_scram@127.0.0.1:{}/postgres", server.port());
    let address = tenure_backend::Address::parse(&no_password).unwrap();
    let without = connect(&Endpoint::from_address(address, None).unwrap()).await.unwrap_err();
    tells(&without, Kind::Denied, "asks for a password");
    tells(&refusal(&server.url("nobody", "x")).await, Kind::Denied, "pg_hba.conf");
    let elsewhere = server.url_of("by_scram", "scram-s3cret", "template1");
    tells(&refusal(&elsewhere).await, Kind::Denied, "pg_hba.conf");
    let no_database = server.url_of("postgres", PASSWORD, "none");
    tells(&refusal(&no_database).await, Kind::Invalid, "no such database");
    tells(&refusal(&server.url("plain", "plain-s3cret")).await, Kind::Denied, "REPLICATION");
    let bound = format!("{}?channel_binding=require", server.url("by_scram", "scram-s3cret"));
    tells(&refusal(&bound).await, Kind::Denied, "channel_binding=require");
    let trusted = format!("{}?channel_binding=require", server.url("by_trust", "x"));
    tells(&refusal(&trusted).await, Kind::Denied, "channel_binding=require");
    tells(
        &refusal(&format!("{}?sslmode=require", server.url("by_trust", "x"))).await,
        Kind::Denied,
        "offers no TLS",
    );

    // As many as there may be.
    let by_trust = Endpoint::parse(&server.url("by_trust", "x")).unwrap();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(connect(&by_trust).await.unwrap());
    }
    let error = connect(&by_trust).await.unwrap_err();
    tells(&error, Kind::Unavailable, "max_wal_senders");
    assert_eq!(code(&error), "53300");
    drop(sessions);

    server.end(End::Immediate).await.unwrap();
    let port = server.port();
    let gone = refusal(&format!("postgres://postgres@127.0.0.1:{port}/postgres")).await;
    tells(&gone, Kind::Unavailable, "cannot be reached");
}

#[tokio::test]
async fn tls_is_verified_and_the_login_is_tied_to_it() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let (certificate, key) = (ours.certificate_for("db.test").unwrap(), ours.key());
    let files = [("server.crt", certificate.as_str()), ("server.key", &key)];
    let server = StrictPostgres::start(&files, &["wal_level=logical", "ssl=on"]).await.unwrap();
    let at = |host: &str, tail: &str| {
        format!("postgres://postgres:{PASSWORD}@{host}:{}/postgres?hostaddr=127.0.0.1&{tail}", server.port())
    };
    let full = |host: &str, ca: &str| at(host, &format!("sslmode=verify-full&sslrootcert={ca}"));
    let (ca, other_ca) = (ours.root_file().unwrap(), theirs.root_file().unwrap());
    let encrypted = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

    let url = format!("{}&channel_binding=require", full("db.test", &ca));
    let mut session = connect(&Endpoint::parse(&url).unwrap()).await.unwrap();
    assert_eq!(one(&mut session, encrypted).await, "true");
    // The stream too, both ways at once.
    let superuser = server.superuser().await.unwrap();
    superuser
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, body text); CREATE PUBLICATION p FOR ALL TABLES")
        .await
        .unwrap();
    let slot = SlotName::new("tls").unwrap();
    server::create_slot(&mut session, soon(), &slot, Lifetime::Temporary, SnapshotUse::Nothing)
        .await
        .unwrap();
    let options = PluginOptions::new(vec![PublicationName::new("p").unwrap()]);
    let (mut receiver, sender) = session.start_replication(soon(), &slot, Lsn(0), &options).await.unwrap();
    superuser
        .batch_execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 3000) i")
        .await
        .unwrap();
    let end = read_inserts(&mut receiver, 3000).await;
    sender.status(end, end, end, true).await.unwrap();
    let session = receiver.rejoin(soon(), sender).await.unwrap();
    session.close(soon()).await.unwrap();

    for tail in ["sslmode=require", "sslmode=prefer", "sslmode=require&channel_binding=disable"] {
        let mut session = connect(&Endpoint::parse(&at("other.test", tail)).unwrap()).await.unwrap();
        assert_eq!(one(&mut session, encrypted).await, "true", "{tail}");
    }
    let mut session = connect(&Endpoint::parse(&at("x", "sslmode=disable")).unwrap()).await.unwrap();
    assert_eq!(one(&mut session, encrypted).await, "false");
    tells(&refusal(&full("other.test", &ca)).await, Kind::Denied, "name in the certificate");
    tells(&refusal(&full("db.test", &other_ca)).await, Kind::Denied, "sslrootcert=PATH");
    let checked = at("other.test", &format!("sslmode=verify-ca&sslrootcert={ca}"));
    connect(&Endpoint::parse(&checked).unwrap()).await.unwrap();
    let wrong = full("db.test", &ca).replace(PASSWORD, "wrong-s3cret");
    tells(&refusal(&wrong).await, Kind::Denied, "PGPASSWORD");
}

#[tokio::test]
async fn sql_is_exact_and_a_dropped_question_does_not_confuse_the_next() {
    let world = World::new().await;
    let mut session = world.session().await;
    assert!(session.version().major() >= 14);
    let rows = session
        .query(soon(), "SELECT 'ignored'; SELECT 1 AS a, NULL AS b, 'x' AS c; SET TimeZone = 'UTC'")
        .await
        .unwrap();
    assert_eq!(
        (rows.len(), rows[0].named("a"), rows[0].named("b"), rows[0].get(2)),
        (1, Some("1"), None, Some("x"))
    );
    for (sql, exact) in [
        ("SELECT '2024-02-03 04:05:06.789+02'::timestamptz", "2024-02-03 02:05:06.789+00"),
        ("SELECT '1 year 2 days'::interval", "1 year 2 days"),
        ("SELECT 0.1::float8 + 0.2::float8", "0.30000000000000004"),
        ("SELECT '\\x00ff'::bytea", "\\x00ff"),
        ("SELECT 'public.t'::regclass", "public.t"),
        ("SHOW wal_sender_timeout", "10s"),
        ("SHOW tcp_user_timeout", "10000"),
    ] {
        assert_eq!(one(&mut session, sql).await, exact, "{sql}");
    }
    for (sql, state) in [
        ("SELECT 1/0", "22012"),
        ("SELEKT", "42601"),
        ("COPY public.t FROM STDIN", ""),
        ("COPY (SELECT 1) TO STDOUT", ""),
    ] {
        let error = session.query(soon(), sql).await.unwrap_err();
        assert_eq!((error.kind(), code(&error)), (Kind::Invalid, state), "{sql}: {error:?}");
    }
    let zero = session.query(soon(), "SELECT '\0'").await.unwrap_err();
    assert_eq!(zero.kind(), Kind::Invalid);
    let huge =
        session.query(soon(), "SELECT repeat('x', 1000000) FROM generate_series(1, 70)").await.unwrap_err();
    tells(&huge, Kind::Invalid, "ask for less");

    let late = session.query(SystemClock.monotonic(), "SELECT 'late', pg_sleep(0.3)").await.unwrap_err();
    tells(&late, Kind::Unknown, "in time");
    assert_eq!(one(&mut session, "SELECT 'next'").await, "next");

    // Ended by somebody else.
    world.run(&format!("SELECT pg_terminate_backend({})", session.backend())).await;
    let error = in_time(async {
        loop {
            if let Err(error) = session.query(soon(), "SELECT 1").await {
                return error;
            }
        }
    })
    .await;
    assert!(matches!(error.kind(), Kind::Unavailable | Kind::Unknown), "{error:?}");
}

#[tokio::test]
async fn the_server_tells_of_itself_its_slots_and_publications() {
    let world = World::new().await;
    let mut session = world.session().await;
    let system = server::identify(&mut session, soon()).await.unwrap();
    assert_eq!(system.database, world.name);
    let id = world.text("SELECT system_identifier::text FROM pg_control_system()").await;
    assert_eq!(system.system_id.to_string(), id);
    assert!(system.timeline >= 1 && system.flushed > Lsn(0));
    assert!(server::current_wal(&mut session, soon()).await.unwrap() >= system.flushed);

    assert_eq!(server::slot(&mut session, soon(), &world.slot).await.unwrap(), None);
    let create = async |session: &mut Session| {
        server::create_slot(session, soon(), &world.slot, Lifetime::Permanent, SnapshotUse::Nothing).await
    };
    let made = create(&mut session).await.unwrap();
    assert_eq!(made.snapshot, None);
    assert_eq!(code(&create(&mut session).await.unwrap_err()), "42710");
    world.insert(1).await;
    let slot = server::slot(&mut session, soon(), &world.slot).await.unwrap().unwrap();
    assert_eq!((slot.plugin.as_deref(), slot.slot_type.as_str()), (Some("pgoutput"), "logical"));
    assert_eq!(slot.database.as_ref(), Some(&world.name));
    assert_eq!(slot.confirmed_flush, Some(made.consistent_point));
    assert_eq!(slot.wal_status, Some(server::WalStatus::Reserved));
    assert!(!slot.active && !slot.temporary && !slot.two_phase && !slot.is_lost());
    assert!(slot.retained_bytes.unwrap() > 0);
    server::drop_slot(&mut session, soon(), &world.slot).await.unwrap();
    let error = server::drop_slot(&mut session, soon(), &world.slot).await.unwrap_err();
    assert_eq!((error.kind(), code(&error)), (Kind::Invalid, "42704"));
    let exported =
        server::create_slot(&mut session, soon(), &world.slot, Lifetime::Temporary, SnapshotUse::Export)
            .await
            .unwrap();
    let snapshot = exported.snapshot.unwrap();
    world
        .run(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'; COMMIT"))
        .await;
    let slot = server::slot(&mut session, soon(), &world.slot).await.unwrap().unwrap();
    assert!(slot.temporary && slot.active_pid == Some(session.backend()));

    let found = server::publication(&mut session, soon(), &world.publication).await.unwrap().unwrap();
    assert!(
        found.all_tables
            && found.inserts
            && found.updates
            && found.deletes
            && found.truncates
            && !found.via_root
    );
    let odd = PublicationName::new("it's \"odd\" \\").unwrap();
    assert_eq!(server::publication(&mut session, soon(), &odd).await.unwrap(), None);
    world.run(r#"CREATE PUBLICATION "it's ""odd"" \" FOR TABLE t WITH (publish = 'insert')"#).await;
    let found = server::publication(&mut session, soon(), &odd).await.unwrap().unwrap();
    assert!(!found.all_tables && found.inserts && !found.updates);
    let tables = server::published_tables(&mut session, soon(), &odd).await.unwrap();
    assert_eq!(
        tables.iter().map(|t| (t.schema.as_str(), t.table.as_str())).collect::<Vec<_>>(),
        [("public", "t")]
    );
    session.close(soon()).await.unwrap();
}
