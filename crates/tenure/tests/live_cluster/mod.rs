//! A whole cluster, scaled by the real binary on real servers, whatever is done to it.
//!
//! Real: the binary, the API server and scheduler of Kubernetes, Prometheus. Emulated: EC2 by moto, behind a shim of
//! ours that knows client tokens; DynamoDB by dynoxide. Played by the test: kubelets, ReplicaSets, the disruption
//! controller (`tenure-scratch-cluster`). `cargo xtask test` starts the servers.
//!
//! Every write of the state item, every launch and every ending is told to the checkers of AS-1 to AS-9 when it
//! happens; at the end there is nothing that they found. AS-8 is not tried here: what the executor had measured when
//! it decided, nobody outside can tell.

mod record;
mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_scratch_cluster::{Fault, variable};

use self::record::Phase;
use self::stage::{EC2_LATENCY, SECRET, Stage, WEB, WEB_COUNT, WORKERS_MAX, WORKERS_MIN};
use crate::site::{Site, ran};

/// Kills, and with `TENURE_LONG=1`.
const KILLS: u32 = 10;
const KILLS_LONG: u32 = 100;
/// In each of these somebody must have died.
const DEADLY: [Phase; 7] = [
    Phase::Idle,
    Phase::Launching,
    Phase::Verifying,
    Phase::Planned,
    Phase::Cordoning,
    Phase::Draining,
    Phase::Terminating,
];
/// Pods of load that ask for the most workers.
const LOAD_COUNT: usize = 6;
/// Cycles of growing and shrinking, at most.
const CYCLES_MAX: u32 = 40;

/// Kills at moments that a seed draws.
struct Killer {
    entropy: Entropy,
    kills: BTreeMap<Phase, u32>,
}

impl Killer {
    /// Kills the executor some time after the action of now, or the next one, has reached that phase.
    async fn strike(&mut self, stage: &mut Stage, phase: Phase, within_ms: u64) {
        if !stage.reaches(phase, stage.record.ended_count()).await {
            return;
        }
        SystemClock.sleep(self.entropy.up_to(Duration::from_millis(within_ms))).await;
        self.strike_now(stage).await;
    }

    async fn strike_now(&mut self, stage: &mut Stage) {
        let died_in = stage.kill();
        *self.kills.entry(died_in).or_default() += 1;
        SystemClock.sleep(self.entropy.up_to(Duration::from_millis(300))).await;
        stage.run();
    }

    fn count(&self) -> u32 {
        self.kills.values().sum()
    }

    fn is_done(&self, wanted: u32) -> bool {
        self.count() >= wanted && DEADLY.iter().all(|phase| self.kills.contains_key(phase))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grows_and_shrinks_though_its_executor_is_killed_again_and_again() {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| Entropy::system().below(1 << 32));
    println!("seed {seed}: TENURE_SEED={seed} draws the same moments");
    let long = std::env::var_os("TENURE_LONG").is_some_and(|value| value == "1");
    let wanted = if long { KILLS_LONG } else { KILLS };
    let began = SystemClock.monotonic();
    let mut killer = Killer { entropy: Entropy::seeded(seed), kills: BTreeMap::new() };
    let mut stage = Stage::start().await;
    stage.run();

    // Nobody is there: the least of workers is launched, though nothing waits for it.
    killer.strike(&mut stage, Phase::Launching, 200).await;
    killer.strike(&mut stage, Phase::Verifying, 600).await;
    stage.settles(0, WORKERS_MIN as usize).await;

    let mut cycles = 0;
    while !killer.is_done(wanted) {
        cycles += 1;
        assert!(cycles <= CYCLES_MAX, "{:?} after {cycles} cycles", killer.kills);
        grow(&mut stage, &mut killer).await;
        shrink(&mut stage, &mut killer).await;
        assert_eq!(stage.record.violations(), [""; 0]);
    }
    stage.ask_to_end().await;

    let violations = stage.record.violations_at_the_end().await;
    let (launched, ended) = (stage.record.launched_ids(), stage.record.ended_ids());
    println!(
        "seed {seed}: {} kills in {cycles} cycles, {:?}; {} launched, {} ended, {} violations; writes {:?}; {:?}",
        killer.count(),
        killer.kills,
        launched.len(),
        ended.len(),
        violations.len(),
        stage.record.writes(),
        SystemClock.monotonic().since(began),
    );
    assert_eq!(violations, [""; 0], "{}", stage.told());
    assert_eq!(launched.len(), ended.len() + WORKERS_MIN as usize);
    assert!(ended.is_subset(&launched), "{ended:?} of {launched:?}");
    check_what_people_see(&stage);
    check_what_people_ask(&stage).await;
    check_secrets(&stage);
}

/// Pods wait, workers are launched, join, and take them.
async fn grow(stage: &mut Stage, killer: &mut Killer) {
    stage.cluster.wish(|wishes| wishes.machines_wait = true);
    stage.load(LOAD_COUNT);
    killer.strike(stage, Phase::Launching, 400).await;
    killer.strike(stage, Phase::Launching, 400).await;
    // Launched, and no node comes.
    killer.strike(stage, Phase::Verifying, 1500).await;
    stage.cluster.wish(|wishes| wishes.machines_wait = false);
    killer.strike(stage, Phase::Verifying, 1500).await;
    stage.settles(LOAD_COUNT, WORKERS_MAX as usize).await;
    killer.strike_now(stage).await;
}

/// The load goes, workers idle, are drained as the budget of the web allows, and end.
async fn shrink(stage: &mut Stage, killer: &mut Killer) {
    stage.spread().await;
    // No pod of the web may go.
    stage.cluster.wish(|wishes| wishes.budget = Some((WEB, WEB_COUNT)));
    stage.load(0);
    killer.strike(stage, Phase::Planned, 2000).await;
    // One may go; but none that comes in its place becomes Ready.
    stage.cluster.wish(|wishes| {
        wishes.budget = Some((WEB, WEB_COUNT - 1));
        wishes.pods_wait = true;
        wishes.budget_is_kept = true;
    });
    killer.strike(stage, Phase::Cordoning, 20).await;
    killer.strike(stage, Phase::Draining, 2000).await;
    stage
        .eventually("the budget holds the drain", |stage| {
            stage.cluster.sight().ready.get(WEB).map_or(0, Vec::len) < WEB_COUNT
        })
        .await;
    stage.cluster.wish(|wishes| wishes.pods_wait = false);
    killer.strike(stage, Phase::Draining, 1000).await;
    killer.strike(stage, Phase::Terminating, 200).await;
    stage.settles(0, WORKERS_MIN as usize).await;
    let sight = stage.cluster.sight();
    assert_eq!(sight.shortfalls, 0, "the budget was kept: {sight:?}");
    stage.cluster.wish(|wishes| wishes.budget_is_kept = false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_do_to_a_cluster_is_survived() {
    let mut stage = Stage::start().await;
    stage.run();
    stage.settles(0, WORKERS_MIN as usize).await;

    somebody_ends_what_was_launched(&mut stage).await;
    stage.settles(LOAD_COUNT, WORKERS_MAX as usize).await;
    the_api_server_falls_silent(&mut stage).await;
    stage.settles(0, WORKERS_MIN as usize).await;
    idling_costs_a_read(&stage).await;
    stage.ask_to_end().await;
    assert_eq!(stage.record.violations_at_the_end().await, [""; 0], "{}", stage.told());
    check_what_people_see(&stage);
    check_secrets(&stage);
}

/// A process that is asked to end leaves a long tick; the next one takes over. What it launched is ended by somebody
/// else: the scale-up ends without it, tells so, and another one follows after the pause.
async fn somebody_ends_what_was_launched(stage: &mut Stage) {
    stage.ask_to_end().await;
    stage.cluster.wish(|wishes| wishes.machines_wait = true);
    stage.load(LOAD_COUNT);
    // Of six, two fit.
    stage.eventually("pods wait", |stage| stage.cluster.sight().refused == LOAD_COUNT - 2).await;
    // Two launches take longer than a tick is waited for.
    stage.shim.latency(Duration::from_millis(900));
    stage.run();
    let ended = stage.record.ended_count();
    assert!(stage.reaches(Phase::Launching, ended).await);
    stage.ask_to_end().await;
    assert_eq!(stage.record.phase(), Phase::Launching, "the tick went on: {}", stage.told());
    stage.shim.latency(EC2_LATENCY);
    stage.run();

    assert!(stage.reaches(Phase::Verifying, ended).await);
    let launched = stage.record.state().up_instance_ids.unwrap();
    let [victim, other] = &launched[..] else { panic!("{launched:?}") };
    stage.cloud.end(victim.as_str()).await.unwrap();
    stage.record.killed_by_others(victim.as_str());
    stage.cluster.wish(|wishes| wishes.machines_wait = false);
    stage.eventually("the scale-up ends", |stage| stage.record.ended_count() > ended).await;
    let state = stage.record.state();
    assert_eq!(state.fail_count, Some(1), "{state:?}");
    assert_eq!(state.last_failure.as_deref(), Some("1 of 2 instances joined"));
    assert!(!stage.record.ended_ids().contains(victim.as_str()), "it had ended");
    assert!(stage.record.launched_ids().contains(other.as_str()));
}

/// Nothing is ended on doubt, a process that is asked to end does, and the drain goes on afterwards.
async fn the_api_server_falls_silent(stage: &mut Stage) {
    stage.spread().await;
    stage.ask_to_end().await;
    stage.cluster.wish(|wishes| {
        wishes.pods_wait = true;
        wishes.budget_is_kept = true;
    });
    stage.load(0);
    stage.eventually("both idle", |stage| stage.plans("2 nodes idle")).await;
    stage.run();
    stage.budget_holds_the_drain().await;
    stage.gate.shut();
    let before = stage.failed_ticks();
    stage.eventually("a tick fails", |stage| stage.failed_ticks() > before).await;
    let (nodes, ended) = (stage.record.state().down_nodes, stage.record.ended_ids());
    // The budget would let the rest go now.
    stage.cluster.wish(|wishes| wishes.pods_wait = false);
    // Each takes two seconds: longer than the lease together.
    stage.eventually("ticks fail", |stage| stage.failed_ticks() >= before + 4).await;
    stage.ask_to_end().await;
    assert_eq!(stage.record.ended_ids(), ended, "nothing is ended on doubt");
    assert_eq!(stage.record.state().down_nodes, nodes, "and nothing is given up");
    stage.gate.open();
    stage.run();
}

/// A tick that has nothing to do reads the state item once, and writes nothing.
async fn idling_costs_a_read(stage: &Stage) {
    let ticks = |stage: &Stage| stage.shim.count("DescribeInstances");
    // Until the windows are written and the pause after the last action is over.
    let begin = ticks(stage);
    stage.eventually("a few ticks", |stage| ticks(stage) >= begin + 5).await;
    let (counts, from, failed) = (stage.tap.counts(), ticks(stage), stage.failed_ticks());
    stage.eventually("idle ticks", |stage| ticks(stage) >= from + 5).await;
    let (later, to) = (stage.tap.counts(), ticks(stage));
    let unclear = 1 + (stage.failed_ticks() - failed) as u64;
    for (operation, count) in later {
        let calls = count - counts.get(&operation).copied().unwrap_or(0);
        let expected = if operation == "GetItem" { (to - from) as u64 } else { 0 };
        // Those of a tick that was under way, or that a busy machine cut short.
        let unclear = if expected > 0 { unclear } else { 0 };
        assert!(calls.abs_diff(expected) <= unclear, "{operation}: {calls} in {expected} ticks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_and_no_secret_is_shown() {
    let stage = Stage::start().await;
    let once = "autoscale run --once --timeout 2s";
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let elsewhere = stage.site.path("elsewhere");
    let kubeconfig = std::fs::read_to_string(stage.site.path("kubeconfig")).unwrap();
    stage
        .site
        .write("elsewhere", kubeconfig.replace(&stage.gate.address().to_string(), &nowhere.to_string()));
    let run = |line: &str, variables: &[(&str, &str)]| {
        let mut command = stage.site.command(line);
        command.env("AWS_SECRET_ACCESS_KEY", SECRET).envs(variables.iter().copied());
        let told = ran(command);
        println!("$ tenure {line} {variables:?}\n{} {}{}", told.code, told.stdout, told.stderr);
        let mut traced = stage.site.command("autoscale plan --timeout 2s");
        traced.env("AWS_SECRET_ACCESS_KEY", SECRET).env("RUST_LOG", "trace").envs(variables.iter().copied());
        check_shown(&stage, &{ ran(traced) }.stderr);
        told
    };
    stage.gate.shut();
    run(once, &[]).expect(1).says(&["list the nodes", "no answer from", &stage.gate.address().to_string()]);
    stage.gate.open();
    let kubeconfig = [("TENURE__AUTOSCALER__KUBECONFIG", elsewhere.to_str().unwrap())];
    run(once, &kubeconfig).expect(1).says(&["list the nodes", "cannot reach", &nowhere.to_string()]);
    stage.shim.next("DescribeInstances", Fault::Refuse(403, "UnauthorizedOperation"));
    run(once, &[]).expect(1).says(&["list the instances", "EC2 denies ec2:DescribeInstances"]);
    let url = format!("http://{nowhere}");
    let planned = run("autoscale plan --timeout 2s", &[("TENURE__AUTOSCALER__PROMETHEUS", &url)]).expect(0);
    assert!(planned.stderr.contains("metrics are missing; nothing is taken away"), "{planned:?}");
    assert!(planned.stdout.contains("1 workers below the minimum"), "{planned:?}");
    // It may not launch: that is said, and nothing is left behind.
    stage.shim.next("RunInstances", Fault::Refuse(403, "UnauthorizedOperation"));
    let refused = run(once, &[]).expect(1);
    assert!(refused.stdout.contains("failed: launch an instance for slot 0"), "{refused:?}");
    assert!(refused.stdout.contains("EC2 denies ec2:RunInstances"), "{refused:?}");
    let failure = stage.record.state().last_failure.unwrap();
    assert!(failure.starts_with("0 of 1 instances joined: EC2 denies ec2:RunInstances"), "{failure}");
    assert_eq!(stage.record.launched_ids().len(), 0);
    assert_eq!(stage.record.violations_at_the_end().await, [""; 0]);
}

/// The log tells of one action after another, and the item is in order.
fn check_what_people_see(stage: &Stage) {
    assert!(stage.site.ok("autoscale state check").ends_with("the item is in order\n"));
    let events = stage.site.json("autoscale log");
    let mut actions: Vec<&str> = events.iter().filter_map(|event| event["action"].as_str()).collect();
    actions.dedup();
    let runs = actions.len();
    actions.sort_unstable();
    actions.dedup();
    assert_eq!(actions.len(), runs, "one action at a time: {events:#?}");
    let revs: Vec<_> = events.iter().filter_map(|event| event["rev"].as_i64()).collect();
    assert!(revs.is_sorted(), "{revs:?}");
}

/// Neither the key of AWS nor the token of the API server is in what the process printed.
fn check_secrets(stage: &Stage) {
    check_shown(stage, &std::fs::read_to_string(stage.log()).unwrap());
}

fn check_shown(stage: &Stage, shown: &str) {
    assert!(!shown.is_empty(), "nothing was printed at all");
    let kubeconfig = std::fs::read_to_string(stage.site.path("kubeconfig")).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    for secret in [SECRET, token] {
        let line = shown.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "a secret was shown");
    }
}

/// What a person asks for is answered by the same servers, and changes nothing that was not asked for.
async fn check_what_people_ask(stage: &Stage) {
    let (instances, nodes) = stage.record.machines().await.expect("the servers answer");
    let worker = nodes.iter().find(|node| !node.control_plane).expect("there is a worker");
    let instance = worker.claimed_instance().expect("it says which instance it is");
    let site = &stage.site;
    let plan = &site.json("autoscale plan --timeout 2s")[0];
    assert_eq!(plan["decision"], "nothing", "{plan}");
    let effects = plan["effects"].as_array().expect("a list");
    assert!(effects.iter().all(|effect| effect["write"] == "windows"), "{plan}");

    let told = site.ok(&format!("autoscale explain node {} --timeout 2s", worker.name));
    assert!(told.contains(instance) && told.contains("scale-down"), "{told}");
    assert_eq!(
        site.ok(&format!("autoscale explain node {instance} --timeout 2s")),
        told,
        "by its instance, too"
    );
    let nobody = site.run("autoscale explain node nobody --timeout 2s").expect(2);
    assert!(nobody.stderr.contains("there is no node and no instance `nobody`"), "{nobody:?}");
    let drained =
        site.run(&format!("autoscale drain {} --dry-run --json --timeout 2s", worker.name)).expect(3).json();
    let in_the_way = drained[0]["blockers"].to_string();
    assert!(in_the_way.contains("fewest allowed"), "as few as there may be stay: {in_the_way}");
    if let Some(pod) = drained[0]["pods"][0]["pod"].as_str() {
        let told = site.ok(&format!("autoscale explain pod {pod} --timeout 2s"));
        assert!(told.contains(&worker.name), "{told}");
    }
    site.run(&format!("autoscale drain {} --timeout 2s", worker.name)).expect(3);
    assert_eq!(site.json("autoscale gc --dry-run --timeout 2s")[0]["effects"], serde_json::json!([]));
    let adopted = &site.json(&format!("autoscale adopt {instance} --timeout 2s"))[0];
    assert_eq!(adopted["adopted"], false, "it is one of the cluster already: {adopted}");
    let stranger = site.run("autoscale adopt i-0123456789abcdef0 --timeout 2s").expect(2);
    assert!(stranger.stderr.contains("knows no instance i-0123456789abcdef0"), "{stranger:?}");
    let replayed = site.json("autoscale replay");
    assert_eq!(replayed.last().unwrap()["wrong"], 0, "{replayed:?}");
    assert!(replayed.last().unwrap()["trial"]["scale_ups"].is_u64(), "{replayed:?}");

    let (after, _) = stage.record.machines().await.expect("the servers answer");
    assert_eq!(after.len(), instances.len(), "nobody came, nobody went");
}

/// A role is asked for over HTTP before the first call to the store is made.
#[test]
fn a_profile_that_takes_a_role_reaches_the_store() {
    let site = Site::new();
    let config = "[profile base]\naws_access_key_id = base\naws_secret_access_key = secret\n\
                  [profile deep]\nregion = us-east-1\nsource_profile = base\n\
                  role_arn = arn:aws:iam::123456789012:role/deep\n";
    site.write("config", config);
    let endpoint = variable("TENURE_TEST_DYNAMODB_LOCAL");
    let mut command = site.command("store describe none --store");
    command.arg(format!("dynamodb:?profile=deep&endpoint={endpoint}"));
    command.env("AWS_CONFIG_FILE", site.path("config"));
    command.env("AWS_ENDPOINT_URL_STS", variable("TENURE_TEST_MOTO"));
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"] {
        command.env_remove(name);
    }
    let ran = ran(command);
    assert!(ran.stderr.contains("`none` does not exist"), "{ran:?}");
}
