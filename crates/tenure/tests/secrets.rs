//! Passwords are used and never shown.

use crate::site::{Site, ran};

/// Stands in no message of ours.
const SECRET: &str = "Xq7hunter2";

#[test]
fn a_password_is_in_no_output() {
    let site = Site::new();
    let url = format!("postgres://ann:{SECRET}@127.0.0.1:1/app?sslmode=disable");
    let file = |section: &str| format!("[{section}]\nurl = '{url}'\n");
    let lines = [
        "config check",
        "config check --json",
        "doctor --timeout 2s",
        "doctor --timeout 2s --json",
        "store scan locks --timeout 2s",
        "store scan locks --timeout 2s --log-format json",
        "stream list --timeout 2s",
    ];
    for section in ["store", "stream", "postgres"] {
        site.write("tenure.toml", file(section));
        for line in lines {
            let mut command = site.command(line);
            command.env("RUST_LOG", "trace");
            check(ran(command), line);
        }
    }
    std::fs::remove_file(site.path("tenure.toml")).unwrap();
    for line in lines {
        let mut command = site.command(line);
        command.args(["--store", &url, "--stream", &url]).env("RUST_LOG", "trace");
        check(ran(command), line);
        let mut command = site.command(line);
        command.env("TENURE__POSTGRES__URL", &url).env("TENURE__STORE__URL", &url).env("RUST_LOG", "trace");
        check(ran(command), line);
    }
    for flag in
        [format!("{url}&x"), url.replace("postgres:", "postgre:"), url.replace(SECRET, &format!("?{SECRET}"))]
    {
        let mut command = site.command("store scan locks --timeout 2s");
        command.args(["--store", &flag]).env("RUST_LOG", "trace");
        check(ran(command).expect(2), &flag);
    }
    // Mistakes beside it do not show it either.
    for text in [
        format!("store = '{url}'"),
        format!("[store]\nurl = '{url}"),
        format!("[store]\nulr = '{url}'"),
        format!("[postgres]\nurl = 'x{url}'"),
        format!("[store]\nurl = ['{url}']"),
        format!("[store]\nurl = '{url}&nonsense=1'"),
    ] {
        site.write("tenure.toml", &text);
        for line in ["config check", "doctor --timeout 2s", "store scan locks --timeout 2s"] {
            let ran = site.run(line);
            assert_ne!(
                ran.code,
                if line == "config check" && text.contains("nonsense") { 2 } else { 0 },
                "{text}"
            );
            check(ran, line);
        }
    }
}

#[test]
fn a_token_of_prometheus_is_in_no_output() {
    let site = Site::new();
    let told = [
        format!("prometheus_token = '{SECRET}'"),
        format!("prometheus_user = 'ann'\nprometheus_password = '{SECRET}'"),
    ];
    for secret in told {
        site.write("tenure.toml", format!("[autoscaler]\nprometheus = 'http://127.0.0.1:1'\n{secret}\n"));
        let shown = site.run("config check").expect(0);
        assert!(shown.stdout.contains("***"), "{shown:#?}");
        for line in ["config check", "config check --json", "doctor --timeout 2s --json"] {
            check(site.run(line), line);
        }
        // Nor where the address is missing, and it is of no use.
        site.write("tenure.toml", format!("[autoscaler]\n{secret}\n"));
        check(site.run("config check").expect(2), "config check");
    }
    for address in [
        format!("prometheus = 'http://ann:{SECRET}@127.0.0.1:1'"),
        format!("prometheus = 'http://127.0.0.1:1/?token={SECRET}'"),
        format!("endpoint = 'http://ann:{SECRET}@127.0.0.1:1'"),
    ] {
        site.write("tenure.toml", format!("[autoscaler]\n{address}\n"));
        check(site.run("config check").expect(2), "config check");
        for line in ["config check --json", "doctor --timeout 2s", "autoscale state check"] {
            check(site.run(line), line);
        }
    }
}

#[track_caller]
fn check(ran: crate::site::Ran, line: &str) {
    assert!(
        !ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET),
        "`{line}` shows a password: {ran:#?}"
    );
}
