use proptest::prelude::*;

use super::*;

fn version(text: &str) -> ServerVersion {
    ServerVersion::for_test(text)
}

fn options(names: &[&str]) -> PluginOptions {
    PluginOptions::new(names.iter().map(|name| PublicationName::new(*name).unwrap()).collect())
}

fn command(server: &str, options: &PluginOptions) -> Result<String> {
    options.command(&version(server), &SlotName::new("orders").unwrap(), Lsn(0x16_b374_d848))
}

#[test]
fn the_command_asks_for_what_the_server_can() {
    assert_eq!(
        command("15.4", &options(&["all"])).unwrap(),
        "START_REPLICATION SLOT \"orders\" LOGICAL 16/B374D848 (proto_version '3', publication_names '\"all\"', \
         streaming 'on')"
    );
    let odd = PluginOptions {
        proto_version: Some(1),
        binary: true,
        streaming: false,
        messages: true,
        origin: Origin::Local,
        ..options(&["O'Neil", "a\"b,c"])
    };
    assert_eq!(
        command("17.2", &odd).unwrap(),
        "START_REPLICATION SLOT \"orders\" LOGICAL 16/B374D848 (proto_version '1', publication_names \
         '\"O''Neil\",\"a\"\"b,c\"', binary 'true', messages 'true', origin 'none')"
    );
    for (server, spoken) in [("14.9", 2), ("15.4", 3), ("16.1", 4), ("18.0", 4)] {
        assert_eq!(options(&["all"]).version_for(&version(server)), spoken);
    }
}

#[test]
fn what_the_server_cannot_is_refused_beforehand() {
    let refused = |server: &str, options: PluginOptions| command(server, &options).unwrap_err().chain();
    let usual = options(&["all"]);
    assert!(refused("15.4", options(&[])).contains("at least one"));
    assert!(refused("14.9", PluginOptions { proto_version: Some(3), ..usual.clone() }).contains("1 to 2"));
    assert!(refused("14.9", PluginOptions { proto_version: Some(0), ..usual.clone() }).contains("1 to 2"));
    assert!(refused("15.4", PluginOptions { proto_version: Some(1), ..usual.clone() }).contains("streaming"));
    assert!(refused("15.4", PluginOptions { origin: Origin::Local, ..usual }).contains("Postgres 16"));
}

#[test]
fn frames_are_read_as_they_are_written() {
    let mut body = vec![b'w'];
    body.extend(1u64.to_be_bytes());
    body.extend(2u64.to_be_bytes());
    body.extend((-3i64).to_be_bytes());
    body.extend(b"payload");
    assert_eq!(
        read_frame(&body),
        Some(Frame::Data { wal_start: Lsn(1), wal_end: Lsn(2), sent_micros: -3, payload: b"payload" })
    );
    assert_eq!(read_frame(&body[..24]), None);
    let mut body = vec![b'k'];
    body.extend(2u64.to_be_bytes());
    body.extend(4i64.to_be_bytes());
    body.push(1);
    assert_eq!(
        read_frame(&body),
        Some(Frame::Keepalive { wal_end: Lsn(2), sent_micros: 4, reply_requested: true })
    );
    assert_eq!(read_frame(&body[..17]), None);
    body.push(0);
    assert_eq!(read_frame(&body), None);
}

proptest! {
    #[test]
    fn whatever_a_frame_holds_nothing_panics(body in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = read_frame(&body);
    }
}
