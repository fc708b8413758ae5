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
    assert!(checked.stdout.contains("note: sd-1730000900-req is an old writer's"), "{checked:?}");
    assert!(checked.stdout.ends_with("1 thing wrong\n"), "{checked:?}");
    put(&site, r#"{"pk":"cluster","workerCount":"two"}"#);
    for command in ["state show", "state check", "state migrate", "pause"] {
        site.run(&format!("autoscale {command}")).expect(1).says(&["workerCount"]);
    }
    assert_eq!(
        site.json("store get k3s-autoscaler-state pk=cluster --plain")[0]["item"]["workerCount"],
        "two",
        "nothing is written over it"
    );
}

#[test]
fn tables_that_are_not_there_are_told() {
    let site = Site::new();
    site.run("autoscale state show").expect(2).says(&["k3s-autoscaler-state", "--state-table"]);
    site.ok("store create-table mine --hash pk");
    site.run("autoscale log --state-table mine").expect(2).says(&["k3s-autoscaler-logs", "--logs-table"]);
    site.run("autoscale log --state-table mine --logs-table mine").expect(2).says(&["a table of its own"]);
}
