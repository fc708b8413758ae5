//! Against a real server; `cargo xtask test` starts it and says where it is.
#![cfg(feature = "postgres")]

use crate::site::Site;

/// The server that tests share.
fn server() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

#[test]
fn rows_live_in_the_database_and_the_doctor_looks_at_it() {
    let url = server();
    let site = Site::new();
    let with = if url.contains('?') { '&' } else { '?' };
    let schema = format!("tenure_cli_{}", std::process::id());
    site.write(
        "tenure.toml",
        format!("[store]\nurl = '{url}{with}schema={schema}'\n[postgres]\nurl = '{url}'\n"),
    );
    let doctor = site.run("doctor --json").expect(0).json();
    let found = doctor.iter().find(|line| line["check"] == "postgres").unwrap();
    assert!(
        found["status"] == "ok" && found["message"].as_str().unwrap().contains("wal_level=logical"),
        "{found}"
    );
    site.ok("store create-table locks --hash name");
    site.run_with("store put locks --if-absent", r#"{"name":"orders","owner":"ann"}"#).expect(0);
    site.run_with("store put locks --if-absent", r#"{"name":"orders","owner":"bob"}"#).expect(3);
    assert_eq!(site.ok("store scan locks"), "name=orders  {\"owner\":\"ann\"}\n");
}
