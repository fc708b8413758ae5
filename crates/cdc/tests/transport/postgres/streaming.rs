//! Frames in, feedback out.

use super::*;

#[tokio::test]
async fn a_session_streams_and_takes_sql_again() {
    let world = World::new().await;
    let session = world.session_with_slot().await;
    let backend = session.backend();
    let (mut receiver, sender) = world.stream(session).await;
    for id in 0..50 {
        world.insert(id).await;
    }
    let end = read_inserts(&mut receiver, 50).await;
    sender.status(end, end, end, false).await.unwrap();
    until("the slot moves", async || world.confirmed().await == end).await;
    // Before we say so, nothing is over; and what is on the way then comes first.
    world.insert(50).await;
    sender.finish().await.unwrap();
    in_time(async { while receiver.next().await.unwrap() != Frame::Done {} }).await;
    tells(&receiver.next().await.unwrap_err(), Kind::Invalid, "rejoin");
    let mut session = in_time(receiver.rejoin(soon(), sender.clone())).await.unwrap();
    let rows = session.query(soon(), "SELECT pg_backend_pid()").await.unwrap();
    assert_eq!(rows[0].get(0), Some(backend.to_string().as_str()));
    tells(&sender.status(end, end, end, false).await.unwrap_err(), Kind::Invalid, "finished");
    // Postgres would say yes and send nothing.
    tells(&world.try_stream(session).await.unwrap_err(), Kind::Invalid, "connect anew");

    let (receiver, sender) = world.stream(world.session().await).await;
    let session = in_time(receiver.rejoin(soon(), sender)).await.unwrap();
    session.close(soon()).await.unwrap();
    let slot = world.text(
        "SELECT count(*)::text FROM pg_replication_slots WHERE active AND slot_name = current_database()",
    );
    assert_eq!(slot.await, "0");
}

#[tokio::test]
async fn frames_that_are_there_are_taken_without_waiting() {
    let world = World::new().await;
    let session = world.session_with_slot().await;
    world.run("INSERT INTO t SELECT i, repeat('x', i % 3000) FROM generate_series(1, 5000) i").await;
    // Longer than the buffer.
    world.run("INSERT INTO t VALUES (0, repeat('y', 3000000))").await;
    let (mut receiver, _sender) = world.stream(session).await;
    let (mut lengths, mut buffered, mut last) = (Vec::new(), 0, Lsn(0));
    while lengths.len() < 5001 {
        // Dropped in the middle, nothing is lost.
        if let Ok(frame) = within(&SystemClock, SystemClock.monotonic(), receiver.next()).await {
            note(frame.unwrap(), &mut lengths, &mut last);
        }
        note(in_time(receiver.next()).await.unwrap(), &mut lengths, &mut last);
        while let Some(frame) = receiver.try_next_buffered().unwrap() {
            note(frame, &mut lengths, &mut last);
            buffered += 1;
        }
    }
    assert_eq!(lengths.pop(), Some(3_000_000));
    let sent: Vec<_> = (1..=5000).map(|i| i % 3000).collect();
    assert_eq!(lengths, sent);
    assert!(buffered > 2500, "{buffered}");
}

/// Keeps the length of an inserted row's text.
fn note(frame: Frame<'_>, lengths: &mut Vec<usize>, last: &mut Lsn) {
    if let Frame::Data { wal_start, payload, wal_end, .. } = frame
        && payload[0] == b'I'
    {
        assert!(wal_start >= *last && wal_end >= wal_start);
        *last = wal_start;
        // Tag, relation, 'N', two columns, 't' and a length and digits; then 't' and the length.
        let digits = usize::try_from(u32::from_be_bytes(payload[9..13].try_into().unwrap())).unwrap();
        let at = 13 + digits + 1;
        lengths.push(u32::from_be_bytes(payload[at..at + 4].try_into().unwrap()) as usize);
    }
}

#[tokio::test]
async fn feedback_goes_on_while_nobody_reads() {
    let world = World::new().await;
    let session =
        connect(&world.endpoint().with_wal_sender_timeout(Duration::from_secs(2)).unwrap()).await.unwrap();
    let session = {
        let mut session = session;
        server::create_slot(&mut session, soon(), &world.slot, Lifetime::Permanent, SnapshotUse::Nothing)
            .await
            .unwrap();
        session
    };
    let (mut receiver, sender) = world.stream(session).await;
    // From here on, since a busy machine may need longer for the rows than the server waits.
    let feeding = tokio::spawn(async move {
        loop {
            sender.status(Lsn(1), Lsn(0), Lsn(0), false).await.unwrap();
            pause(500).await;
        }
    });
    // Far more than sockets keep, so that the server is stuck in writing.
    world.run("INSERT INTO t SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 20000) i").await;
    pause(6000).await;
    read_inserts(&mut receiver, 20000).await;
    feeding.abort();

    // Without any feedback the server takes us for dead.
    let error = in_time(async {
        loop {
            if let Err(error) = receiver.next().await {
                return error;
            }
        }
    })
    .await;
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert_eq!(receiver.next().await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn an_idle_slot_moves_while_another_database_writes() {
    let world = World::new().await;
    let elsewhere = World::new().await;
    let (mut receiver, sender) = world.stream(world.session_with_slot().await).await;
    let before = world.confirmed().await;
    elsewhere.run("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 1000) i").await;
    let target: Lsn = elsewhere.text("SELECT pg_current_wal_lsn()::text").await.parse().unwrap();
    assert!(before < target);
    let confirmed = in_time(async {
        loop {
            sender.status(Lsn(0), Lsn(0), Lsn(0), true).await.unwrap();
            match receiver.next().await.unwrap() {
                Frame::Keepalive { wal_end, .. } if wal_end >= target => {
                    sender.status(wal_end, wal_end, wal_end, false).await.unwrap();
                    return wal_end;
                }
                Frame::Keepalive { .. } => pause(50).await,
                frame => panic!("{frame:?}"),
            }
        }
    })
    .await;
    until("the slot moves", async || world.confirmed().await >= confirmed).await;
}

#[tokio::test]
async fn what_cannot_be_streamed_says_why() {
    let world = World::new().await;
    let missing = world.try_stream(world.session().await).await.unwrap_err();
    assert_eq!((missing.kind(), code(&missing)), (Kind::Invalid, "42704"), "{missing:?}");

    let (mut receiver, sender) = world.stream(world.session_with_slot().await).await;
    let in_use = world.try_stream(world.session().await).await.unwrap_err();
    assert_eq!((in_use.kind(), code(&in_use)), (Kind::Unavailable, "55006"), "{in_use:?}");

    world.run("DROP PUBLICATION \"all tables\"").await;
    world.insert(1).await;
    let error = in_time(async {
        loop {
            if let Err(error) = receiver.next().await {
                return error;
            }
        }
    })
    .await;
    assert_eq!((error.kind(), code(&error)), (Kind::Invalid, "42704"), "{error:?}");
    let over = in_time(receiver.rejoin(soon(), sender)).await.unwrap_err();
    assert_eq!(over.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_terminated_backend_is_an_error_that_says_so() {
    let world = World::new().await;
    let (mut receiver, sender) = world.stream(world.session_with_slot().await).await;
    world.run(&format!("SELECT pg_terminate_backend({})", receiver.backend())).await;
    let error = in_time(async {
        loop {
            if let Err(error) = receiver.next().await {
                return error;
            }
        }
    })
    .await;
    assert_eq!((error.kind(), code(&error)), (Kind::Unavailable, "57P01"), "{error:?}");
    until("writing fails too", async || sender.status(Lsn(0), Lsn(0), Lsn(0), false).await.is_err()).await;
}

#[tokio::test]
async fn versions_and_forms_are_as_asked() {
    let world = World::new().await;
    world.session_with_slot().await.close(soon()).await.unwrap();
    for (proto_version, streaming, binary) in
        [(Some(1), false, false), (Some(2), true, true), (None, true, false)]
    {
        let options = PluginOptions { proto_version, streaming, binary, messages: true, ..world.options() };
        let (mut receiver, sender) =
            world.session().await.start_replication(soon(), &world.slot, Lsn(0), &options).await.unwrap();
        world.run("SELECT pg_logical_emit_message(true, 'here', 'said')").await;
        in_time(async {
            while !matches!(receiver.next().await.unwrap(), Frame::Data { payload: [b'M', ..], .. }) {}
        })
        .await;
        in_time(receiver.rejoin(soon(), sender)).await.unwrap().close(soon()).await.unwrap();
    }
    let session = world.session().await;
    let small = PluginOptions { frame_bytes_max: 1000, ..world.options() };
    let (mut receiver, _sender) =
        session.start_replication(soon(), &world.slot, Lsn(0), &small).await.unwrap();
    world.run("INSERT INTO t VALUES (1, repeat('x', 2000))").await;
    let error = in_time(async {
        loop {
            if let Err(error) = receiver.next().await {
                return error;
            }
        }
    })
    .await;
    tells(&error, Kind::Invalid, "raise the limit");
}
