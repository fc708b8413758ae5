//! The autoscaler's item and log, as an operator looks at them.

use crate::site::Site;

/// As the older autoscaler's document shows it.
const IDLE: &str = r#"{"pk":"cluster","scalingInProgress":false,"lastScaleEpoch":1730000000,"pendingSinceEpoch":0,"idleSinceEpoch":1730000100,"workerCount":2}"#;
const DOWN: &str = r#"{"pk":"cluster","scalingInProgress":true,"lastScaleEpoch":1730000000,"scaleDownActionId":"sd-1730000900-req","scaleDownStartedEpoch":1730000900,"scaleDownPhase":"DRAINING","scaleDownTargetInstanceIds":["i-aaa","i-bbb"],"scaleDownCompletedInstanceIds":["i-ccc"]}"#;

fn site() -> Site {
    let site = Site::new();
    site.ok("store create-table k3s-autoscaler-state --hash pk");
    site.ok("store create-table k3s-autoscaler-logs --hash pk --range sk");
    site
}

fn put(site: &Site, item: &str) {
    site.run_with("store put k3s-autoscaler-state", item).expect(0);
}

#[test]
fn an_older_autoscalers_item_is_shown_checked_migrated_and_paused() {
    let site = site();
    assert!(site.ok("autoscale state show").contains("no state item yet"));
    put(&site, IDLE);
    let shown = site.ok("autoscale state show");
    assert!(shown.starts_with("nothing is under way; 2 workers\n"), "{shown}");
    assert!(shown.contains("2024-10-27T03:35:00.000Z"), "an epoch is shown as a moment: {shown}");
    let line = &site.json("autoscale state show")[0];
    assert_eq!(
        (&line["item"]["workerCount"], &line["paused"], &line["action"]),
        (&2.into(), &false.into(), &().into())
    );
    assert!(site.ok("autoscale state check").contains("note: the item has the form of an old writer"));

    assert_eq!(site.json("autoscale state migrate")[0]["schemaVersion"], 2);
    assert_eq!(site.ok("autoscale state check"), "the item is in order\n");
    assert!(site.ok("autoscale pause").starts_with("paused"));
    assert!(site.ok("autoscale pause").starts_with("paused"), "asking twice is asking once");
    assert_eq!(site.json("autoscale state show")[0]["paused"], true);
    assert!(site.ok("autoscale state check").contains("tenure autoscale resume"));
    assert_eq!(site.json("autoscale resume")[0]["paused"], false);

    let events = site.json("autoscale log --since 1h");
    let told: Vec<_> = events.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(told, ["migrate", "pause", "resume"]);
    assert_eq!(events[3]["events"], 3);
    assert_eq!(site.ok("autoscale log").lines().count(), 3);
}

#[test]
fn what_is_wrong_with_an_item_is_told() {
    let site = site();
    put(&site, DOWN);
    let shown = site.ok("autoscale state show");
    assert!(shown.starts_with("scale-down sd-1730000900-req, of an older autoscaler"), "{shown}");
    let checked = site.run("autoscale state check").expect(1);
    assert!(checked.stdout.contains("wrong: i-ccc is completed and no target"), "{checked:?}");
    assert!(checked.stdout.contains("wrong: sd-1730000900-req is an old writer's"), "{checked:?}");
    assert!(checked.stdout.ends_with("2 things wrong\n"), "{checked:?}");
    put(&site, r#"{"pk":"cluster","workerCount":"two"}"#);
    for command in ["state show", "state check", "state migrate", "pause"] {
        let told = site.run(&format!("autoscale {command}")).expect(1);
        let told = told.says(&["workerCount", "tenure autoscale state repair", "tenure store put"]);
        assert!(!told.stderr.contains("copy"), "{told:?}");
    }
    assert_eq!(
        site.json("store get k3s-autoscaler-state pk=cluster --plain")[0]["item"]["workerCount"],
        "two",
        "nothing is written over it"
    );
}

#[test]
fn actions_that_fail_again_and_again_are_an_alarm() {
    let site = site();
    let failed = |count| IDLE.replace('}', &format!(r#","failCount":{count},"lastFailure":"no capacity"}}"#));
    put(&site, &failed(2));
    assert!(site.ok("autoscale state check").contains("no capacity"));
    put(&site, &failed(3));
    let alarm = site.run("autoscale state check").expect(1);
    assert!(alarm.stdout.contains("wrong: the last 3 actions failed"), "{alarm:?}");
}

#[test]
fn a_state_without_a_log_is_enough() {
    let site = Site::new();
    site.ok("store create-table k3s-autoscaler-state --hash pk");
    put(&site, IDLE);
    assert!(site.ok("autoscale state show").starts_with("nothing is under way"));
    let checked = site.run("autoscale state check").expect(0);
    assert_eq!(checked.stderr, "", "nothing is missing: {checked:?}");
    for command in ["state repair --dry-run", "state repair"] {
        assert_eq!(site.ok(&format!("autoscale {command}")), "nothing to mend\n");
    }
    for command in ["state migrate", "pause", "resume", "interrupt i-0123456789abcdef0"] {
        let ran = site.run(&format!("autoscale {command}")).expect(0);
        ran.says(&["what is changed is not logged", "k3s-autoscaler-logs"]);
    }
    for command in ["log", "replay", "explain action up-1"] {
        site.run(&format!("autoscale {command}")).expect(2).says(&["k3s-autoscaler-logs", "--logs-table"]);
    }
}

#[test]
fn other_items_of_the_table_are_told() {
    let site = site();
    assert!(site.ok("autoscale state check").contains("no state item yet"));
    put(&site, &IDLE.replace("cluster", "production"));
    let alone = site.run("autoscale state check").expect(1);
    assert!(alone.stdout.contains("wrong: the table holds other items (production)"), "{alone:?}");
    put(&site, IDLE);
    assert!(site.ok("autoscale state check").contains("note: the table holds other items (production)"));
}

#[test]
fn tables_that_are_not_there_are_told() {
    let site = Site::new();
    site.run("autoscale state show").expect(2).says(&["k3s-autoscaler-state", "--state-table"]);
    site.ok("store create-table mine --hash pk");
    site.run("autoscale log --state-table mine").expect(2).says(&["k3s-autoscaler-logs", "--logs-table"]);
    site.run("autoscale log --state-table mine --logs-table mine").expect(2).says(&["a table of its own"]);
    let same = site.run("autoscale log --state-table k3s-autoscaler-logs").expect(2);
    assert!(same.stderr.contains("--state-table: autoscaler.state_table: "), "{same:?}");
}

#[test]
fn what_is_wrong_is_mended_once_and_told() {
    let site = site();
    assert!(site.ok("autoscale state repair").contains("no state item yet"));
    put(&site, &DOWN.replace("1730000000", "\"1730000000\""));
    site.run("autoscale state show").expect(1).says(&["lastScaleEpoch"]);
    let would = site.ok("autoscale state repair --dry-run");
    assert!(would.contains("would mend: `lastScaleEpoch` was the text 1730000000"), "{would}");
    site.run("autoscale state show").expect(1);
    let mended = site.json("autoscale state repair");
    assert_eq!(mended[0]["mended"].as_array().map(Vec::len), Some(2), "{mended:?}");
    assert_eq!(site.ok("autoscale state repair"), "nothing to mend\n");
    assert!(site.ok("autoscale state show").starts_with("scale-down sd-1730000900-req"));
    let item = &site.json("autoscale state show")[0]["item"];
    assert_eq!(item["scaleDownCompletedInstanceIds"], serde_json::json!([]));
    let events = site.json("autoscale log");
    assert_eq!((&events[0]["event"], &events[0]["rev"]), (&"repair".into(), &1.into()));

    put(&site, &IDLE.replace("1730000000", "\"long ago\""));
    let left = site.run("autoscale state repair").expect(1);
    assert!(left.stdout.starts_with("left to do: ") && left.stdout.contains("tenure store put"), "{left:?}");
    assert!(!left.stdout.contains("state repair"), "{left:?}");
}

const TRACE: &str = r#"{"at": 0, "pods": [{"count": 3, "cpu_millis": 500, "memory_mib": 100}]}
{"at": 600, "pods": [{"count": 9, "cpu_millis": 500, "memory_mib": 100}]}

{"at": 3600, "pods": [{"count": 3, "cpu_millis": 500, "memory_mib": 100}], "interrupt": 1}
"#;

#[test]
fn a_policy_is_tried_on_a_trace() {
    let site = Site::new();
    // As `tenure init` writes it: numbers without quotes.
    let policy = "[store]\nurl = 'sqlite:./x.db'\n[autoscaler]\nworkers_max = 4\nevict_unmanaged = false\n";
    site.write("policy.toml", policy);
    site.write("day.jsonl", TRACE);
    let told = site.ok("autoscale simulate day.jsonl --policy policy.toml");
    assert!(told.contains("begin up") && told.contains("scale-ups and"), "{told}");
    let lines = site.json("autoscale simulate day.jsonl --policy policy.toml");
    let last = lines.last().unwrap();
    assert!(last["scale_ups"].as_u64() >= Some(2), "more pods, and a worker that was taken away: {last}");
    assert_eq!((&last["waiting_end"], &last["workers_end"]), (&0.into(), &1.into()), "{last}");
    let piped = site.run_on("autoscale simulate - --policy policy.toml --json", TRACE.as_bytes()).expect(0);
    assert!(piped.stdout.ends_with(&format!("{last}\n")), "the same from standard input: {}", piped.stdout);

    site.run("autoscale simulate day.jsonl").expect(2).says(&["autoscaler.workers_max", "give"]);
    site.run("autoscale simulate none.jsonl --policy policy.toml").expect(2).says(&["none.jsonl"]);
    site.run("autoscale simulate day.jsonl --policy none.toml")
        .expect(2)
        .says(&["none.toml", "correct --policy"]);
    site.run("autoscale simulate day.jsonl --policy .").expect(2).says(&["correct --policy"]);
    site.write("lag.jsonl", "{\"at\": 0, \"lag_seconds\": 90}\n");
    let unheard = site.run("autoscale simulate lag.jsonl --policy policy.toml").expect(0);
    unheard.says(&["`lag_seconds` of the trace has no effect", "autoscaler.lag_max"]);
    site.write("lag.toml", "[autoscaler]\nworkers_max = 4\nlag_max = '1m'\nconsumers = 'orders/billing'\n");
    let heard = site.run("autoscale simulate lag.jsonl --policy lag.toml").expect(0);
    assert_eq!(heard.stderr, "", "{heard:?}");
    site.write("bad.jsonl", "{\"at\": 0}\n{\"at\": 1, \"pod\": 3}\n");
    site.run("autoscale simulate bad.jsonl --policy policy.toml").expect(2).says(&["line 2", "pod"]);
    site.write("bounds.toml", "[autoscaler]\nworkers_min = '9'\nworkers_max = '4'\n");
    site.run("autoscale simulate day.jsonl --policy bounds.toml").expect(2).says(&["lower the one"]);
    site.write("secret.toml", "[autoscaler]\nprometheus_token = \"hunter2\n");
    let shown = site.run("autoscale simulate day.jsonl --policy secret.toml").expect(2);
    assert!(!shown.stderr.contains("hunter2"), "{shown:?}");
    site.write("endless.jsonl", "x".repeat(200_000));
    site.run("autoscale simulate endless.jsonl --policy policy.toml").expect(2).says(&["line 1", "at most"]);
}

/// Two events with numbers, as executors log them, and an action that ends.
fn logged(site: &Site) {
    let seen = r#"{"workers":1,"running":3,"runningCpuMillis":1500,"runningMemoryMib":300,"waiting":6,"waitingCpuMillis":3000,"waitingMemoryMib":600}"#;
    for (rev, epoch, event, action, more) in [
        (1, 1_730_000_000, "windows", "", format!(r#","seen":{seen}"#)),
        (2, 1_730_000_060, "begin up", "up-1", format!(r#","seen":{seen}"#)),
        (3, 1_730_000_150, "complete up", "up-1", String::new()),
    ] {
        let action = if action.is_empty() { String::new() } else { format!(r#","actionId":"{action}""#) };
        let item = format!(
            r#"{{"pk":"cluster","sk":"{rev:020}","rev":{rev},"epoch":{epoch},"event":"{event}","owner":"a","fence":1,"reasons":["6 pods wait for 2 workers"]{action}{more}}}"#
        );
        site.run_with("store put k3s-autoscaler-logs", &item).expect(0);
    }
}

#[test]
fn a_log_is_replayed_checked_and_tried_again() {
    let site = site();
    assert!(site.ok("autoscale replay").contains("0 actions in 0 events"));
    logged(&site);
    let told = site.ok("autoscale replay");
    assert!(told.contains("up-1") && told.contains("complete up") && told.contains("90 s"), "{told}");
    assert!(told.contains("no policy is given"), "{told}");
    site.write("policy.toml", "[autoscaler]\nworkers_max = '4'\n");
    let lines = site.json("autoscale replay --policy policy.toml");
    assert_eq!((&lines[0]["action"], &lines[0]["how"]), (&"up-1".into(), &"complete up".into()));
    assert_eq!(lines[1]["trial"]["scale_ups"], 1, "{lines:?}");
    for policy in ["none.toml", "."] {
        let refused = site.run(&format!("autoscale replay --policy {policy}")).expect(2);
        assert_eq!(refused.says(&["correct --policy"]).stdout, "");
    }
    site.run("autoscale replay --every 10ms").expect(2).says(&["--every", "1s or more"]);

    let trace = site.ok("autoscale replay --trace");
    assert_eq!(trace.lines().count(), 2);
    let tried = site.run_on("autoscale simulate - --policy policy.toml --json", trace.as_bytes()).expect(0);
    assert!(
        tried.stdout.contains(r#""scale_ups":1"#),
        "what replay prints, simulate reads: {}",
        tried.stdout
    );

    let second = r#"{"pk":"cluster","sk":"00000000000000000004","rev":4,"epoch":1730000200,"event":"begin up","owner":"a","fence":0,"actionId":"up-2","reasons":[]}"#;
    site.run_with("store put k3s-autoscaler-logs", second).expect(0);
    let wrong = site.run("autoscale replay").expect(1);
    assert!(wrong.stdout.contains("wrong: at revision 4 the fence fell"), "{wrong:?}");
}

#[test]
fn an_action_is_explained_by_its_log() {
    let site = site();
    logged(&site);
    site.run("autoscale explain action").expect(2).says(&["nothing is under way"]);
    site.run("autoscale explain action up-9").expect(2).says(&["up-9"]);
    let told = site.ok("autoscale explain action up-1");
    assert!(told.starts_with("up-1 has ended: `complete up`"), "{told}");
    assert!(told.contains("6 pods wait for 2 workers"), "{told}");
    put(&site, DOWN);
    let line = &site.json("autoscale explain action")[0];
    assert_eq!((&line["name"], &line["underWay"]), (&"sd-1730000900-req".into(), &true.into()));
}

#[test]
fn an_interruption_is_told_once() {
    let site = site();
    put(&site, IDLE);
    for _ in 0..2 {
        let line = &site.json("autoscale interrupt i-0123456789abcdef0 --kind rebalance")[0];
        assert_eq!(line["kind"], "rebalance");
    }
    let item = &site.json("autoscale state show")[0]["item"];
    assert_eq!(item["interrupts"]["i-0123456789abcdef0"]["k"], "rebalance");
    let events = site.json("autoscale log");
    assert!(events[1]["reasons"][0].as_str().unwrap().contains("i-0123456789abcdef0"), "{events:?}");
    assert_eq!(events.last().unwrap()["events"], 2, "migrate and one interrupt");
    let refused = site.run("autoscale interrupt worker-1").expect(2);
    assert!(refused.stderr.contains("write it like i-0123456789abcdef0"), "{refused:?}");
    let loud = site.run("autoscale interrupt i-0123456789ABCDEF0").expect(2);
    assert!(loud.stderr.contains("in lower case"), "{loud:?}");
}

#[cfg(feature = "autoscaler")]
#[test]
fn a_run_is_asked_once_or_how_often() {
    let site = Site::new();
    for line in ["autoscale run", "autoscale run --once --loop 15s"] {
        let refused = site.run(line).expect(2);
        assert!(refused.stderr.contains("--once") && refused.stderr.contains("--loop"), "{refused:?}");
    }
}

#[cfg(not(feature = "autoscaler"))]
#[test]
fn what_this_build_cannot_do_says_which_one_can() {
    let site = Site::new();
    for line in ["run --loop 15s", "plan --json", "drain a --dry-run", "gc", "adopt i-0", "explain node a"] {
        site.run(&format!("autoscale {line}")).expect(2).says(&["knows neither EC2", "--features full"]);
    }
}
