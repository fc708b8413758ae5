//! Servers that do not let everybody in: passwords, rights, TLS, standbys. Each test has a server
//! of its own, because the shared one trusts everybody.

use tenure_scratch_postgres::{Authority, PASSWORD, StrictPostgres};
use tenure_store::{Condition, Error, Kind, Store, StoreExt};

use super::{in_seconds, put, read, row, rows, store_at};

async fn failure(address: &str) -> Error {
    let store = store_at(address).await;
    let error = store.ensure_table(in_seconds(10), &rows()).await.unwrap_err();
    assert!(
        !error.chain().contains("s3cret") && !format!("{error:?} {store:?}").contains("s3cret"),
        "{error:?}"
    );
    error
}

#[track_caller]
fn tells(error: &Error, kind: Kind, words: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.chain().contains(words), "`{words}` is not in: {}", error.chain());
}

#[tokio::test]
async fn who_may_not_is_denied_and_told_what_to_do() {
    let server = StrictPostgres::start(&[], &[]).await.unwrap();
    let at = &format!("127.0.0.1:{}", server.port());
    let admin = store_at(&format!("postgres://postgres:postgres-s3cret@{at}/postgres")).await;
    admin.ensure_table(in_seconds(10), &rows()).await.unwrap();
    put(&admin, row("a")).await;
    let superuser = server.superuser().await.unwrap();
    superuser
        .batch_execute(
            "CREATE ROLE reader LOGIN PASSWORD 'reader-s3cret'; \
             GRANT USAGE ON SCHEMA tenure TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO reader; \
             CREATE ROLE writer LOGIN PASSWORD 'writer-s3cret'; GRANT USAGE ON SCHEMA tenure TO writer; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO writer; \
             CREATE ROLE single LOGIN PASSWORD 'single-s3cret' CONNECTION LIMIT 1; \
             GRANT USAGE ON SCHEMA tenure TO single; GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO single",
        )
        .await
        .unwrap();

    let wrong = failure(&format!("postgres://postgres:wrong-s3cret@{at}/postgres")).await;
    tells(&wrong, Kind::Denied, "check user, password");
    tells(&wrong, Kind::Denied, &format!("postgres {at}/postgres"));
    tells(&failure(&format!("postgres://postgres@{at}/postgres")).await, Kind::Denied, "by PGPASSWORD");
    tells(
        &failure(&format!("postgres://nobody:s3cret@{at}/postgres")).await,
        Kind::Denied,
        "refuses this user",
    );
    let missing = failure(&format!("postgres://postgres:postgres-s3cret@{at}/nothing")).await;
    tells(&missing, Kind::Invalid, "create it, or correct the address");

    // Who may only read reads; who may write needs no right to create what is there.
    let reader = store_at(&format!("postgres://reader:reader-s3cret@{at}/postgres")).await;
    reader.ensure_table(in_seconds(10), &rows()).await.unwrap();
    assert_eq!(read(&reader, "a").await, Some(row("a")));
    let error = reader.put(in_seconds(10), "rows", row("b"), Condition::Always).await.unwrap_err();
    tells(&error, Kind::Denied, "grant this user");
    let other = tenure_store::TableSpec { name: "others".into(), ..rows() };
    tells(&reader.ensure_table(in_seconds(10), &other).await.unwrap_err(), Kind::Denied, "grant this user");
    let writer = store_at(&format!("postgres://writer:writer-s3cret@{at}/postgres")).await;
    writer.ensure_table(in_seconds(10), &rows()).await.unwrap();
    put(&writer, row("b")).await;

    let single = |tail: &str| format!("postgres://single:single-s3cret@{at}/postgres{tail}");
    let first = store_at(&single("?connections=1")).await;
    assert_eq!(read(&first, "b").await, Some(row("b")));
    tells(&failure(&single("")).await, Kind::Unavailable, "lower `connections=`");
}

#[tokio::test]
async fn tls_is_verified_by_authority_and_name() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let (certificate, key) = (ours.certificate_for("db.test").unwrap(), ours.key());
    let files = [("server.crt", certificate.as_str()), ("server.key", &key)];
    let server = StrictPostgres::start(&files, &["ssl=on"]).await.unwrap();
    let superuser = server.superuser().await.unwrap();
    let port = server.port();
    // The name that the certificate is made out to, and the address where the server is.
    let at = |host: &str, tail: String| {
        format!("postgres://postgres:postgres-s3cret@{host}:{port}/postgres?hostaddr=127.0.0.1&{tail}")
    };
    let (ca, other_ca) = (ours.root_file().unwrap(), theirs.root_file().unwrap());
    let encrypted = async |address: String| {
        let store = store_at(&address).await;
        store.ensure_table(in_seconds(10), &rows()).await.unwrap();
        put(&store, row("a")).await;
        let sql = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'tenure' AND ssl";
        superuser.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0
    };
    let full = |host: &str, ca: &str| at(host, format!("sslmode=verify-full&sslrootcert={ca}"));
    assert!(encrypted(full("db.test", &ca)).await);
    tells(&failure(&full("other.test", &ca)).await, Kind::Denied, "name in the certificate");
    tells(&failure(&full("db.test", &other_ca)).await, Kind::Denied, "sslrootcert=PATH");
    // Not on this machine, so verification is the default, and the system does not know our authority.
    let by_name = format!("postgres://postgres:postgres-s3cret@db.test:{port}/postgres?hostaddr=127.0.0.1");
    tells(&failure(&format!("{by_name}&sslmode=verify-full")).await, Kind::Denied, "not accepted");

    let checked = |host: &str, ca: &str| at(host, format!("sslmode=verify-ca&sslrootcert={ca}"));
    assert!(encrypted(checked("other.test", &ca)).await);
    tells(&failure(&checked("db.test", &other_ca)).await, Kind::Denied, "not accepted");
    let required = |tail: &str| at("other.test", format!("sslmode=require{tail}"));
    assert!(encrypted(required("")).await);
    assert!(encrypted(required(&format!("&sslrootcert={ca}"))).await);
    tells(&failure(&required(&format!("&sslrootcert={other_ca}"))).await, Kind::Denied, "not accepted");
    assert!(encrypted(at("other.test", "sslmode=prefer".into())).await);
    assert!(!encrypted(at("other.test", "sslmode=disable".into())).await);
}

#[tokio::test]
async fn nothing_falls_back_to_plain_text_unasked() {
    let server = StrictPostgres::start(&[], &[]).await.unwrap();
    let at = |mode: &str| format!("{}?sslmode={mode}", server.url("postgres", PASSWORD));
    for mode in ["require", "verify-ca", "verify-full"] {
        tells(&failure(&at(mode)).await, Kind::Denied, "offers no TLS");
    }
    store_at(&at("prefer")).await.ensure_table(in_seconds(10), &rows()).await.unwrap();
}

#[tokio::test]
async fn a_standby_is_refused_for_the_primary() {
    let mut server = StrictPostgres::start(&[], &[]).await.unwrap();
    let address = server.url("postgres", PASSWORD);
    store_at(&address).await.ensure_table(in_seconds(10), &rows()).await.unwrap();
    server.restart_as_standby().await.unwrap();
    tells(&failure(&address).await, Kind::Unavailable, "connect to the primary");
}
