//! The servers, what stands before them, the players, and the one process that is watched.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_autoscaler::Policy;
use tenure_autoscaler::ec2::{Ec2, Settings as Ec2Settings};
use tenure_autoscaler::kubernetes::{Kubernetes, Settings as KubernetesSettings};
use tenure_autoscaler::state::{NodePhase, Place};
use tenure_backend::Env;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_scratch_cluster::ec2::{Cloud, REGION};
use tenure_scratch_cluster::kubernetes::{Cluster, Replicas, Sight};
use tenure_scratch_cluster::{Exporter, Gate, Shim, Tap, variable};

use super::record::{Phase, Record};
use crate::site::Site;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(20);
/// How long a change of EC2 takes to arrive, and its answer to come back: so that there are moments in between.
pub(super) const EC2_LATENCY: Duration = Duration::from_millis(120);
/// The secret key that the process is given: nothing may show it.
pub(super) const SECRET: &str = "Zk9-not-to-be-seen";

pub(super) const WORKERS_MIN: u32 = 1;
/// As many as the load needs: pods that the scheduler has not looked at again yet ask for another one.
pub(super) const WORKERS_MAX: u32 = 3;
const COOLDOWN: Duration = Duration::from_secs(2);

/// Pods that are always there, and pods that come and go. Two of the latter fill a node.
pub(super) const WEB: &str = "web";
pub(super) const WEB_COUNT: usize = 4;
pub(super) const LOAD: &str = "load";
const WEB_PODS: Replicas = Replicas { count: WEB_COUNT, cpu_millis: 100, memory_mib: 64 };
const LOAD_PODS: Replicas = Replicas { count: 0, cpu_millis: 700, memory_mib: 1200 };

pub(super) struct Stage {
    pub(super) site: Site,
    pub(super) cloud: Cloud,
    pub(super) cluster: Cluster,
    pub(super) shim: Shim,
    pub(super) tap: Tap,
    /// Before the API server.
    pub(super) gate: Gate,
    pub(super) record: Arc<Record>,
    running: Option<Child>,
}

impl Stage {
    pub(super) async fn start() -> Self {
        let name = format!("live-{}", &Entropy::system().nonce()[..12]);
        let (moto, kubeconfig) = (variable("TENURE_TEST_MOTO"), variable("TENURE_TEST_CLUSTER"));
        let cloud = Cloud::create(&moto, &name).await.unwrap();
        let place =
            Place { subnet: cloud.subnet.clone(), market: "on-demand".to_owned(), template: "1".to_owned() };
        let policy =
            Policy { cooldown: COOLDOWN, ..Policy::new(&name, WORKERS_MIN, WORKERS_MAX, vec![place]) };
        let mut direct = Ec2Settings::new(&name, &name);
        direct.region = Some(REGION.to_owned());
        direct.endpoint = Some(moto.clone());
        let direct = Ec2::connect(&direct, &Env::system()).await.unwrap();
        let settings = KubernetesSettings {
            kubeconfig: Some(kubeconfig.clone().into()),
            ..KubernetesSettings::default()
        };
        let nodes = Kubernetes::connect(&settings, &Env::system()).await.unwrap();
        let record = Arc::new(Record::new(policy, direct, nodes));

        let shim = Shim::start(&moto, record.clone()).await.unwrap();
        shim.latency(EC2_LATENCY);
        let state_table = format!("{name}-state");
        let tap = Tap::start(&variable("TENURE_TEST_DYNOXIDE"), &state_table, record.clone()).await.unwrap();
        let text = std::fs::read_to_string(&kubeconfig).unwrap();
        let server = text.lines().find_map(|line| line.trim().strip_prefix("server: https://")).unwrap();
        let gate = Gate::start(server).await.unwrap();
        let cluster = Cluster::start(Path::new(&kubeconfig), cloud.clone(), Exporter::start().await.unwrap())
            .await
            .unwrap();
        cluster.wish(|wishes| {
            wishes.apps = BTreeMap::from([(WEB, WEB_PODS), (LOAD, LOAD_PODS)]);
            wishes.budget = Some((WEB, WEB_COUNT - 1));
        });

        let site = Site::new();
        site.write("kubeconfig", text.replace(server, &gate.address().to_string()));
        site.write(
            "tenure.toml",
            format!(
                "[store]
url = 'dynamodb:?region={REGION}&endpoint={}'
[autoscaler]
state_table = '{state_table}'
logs_table = '{name}-logs'
cluster = '{name}'
workers_min = '{WORKERS_MIN}'
workers_max = '{WORKERS_MAX}'
launch_template = '{name}'
subnets = '{}'
region = '{REGION}'
endpoint = '{}'
kubeconfig = '{}'
prometheus = '{}'
pending_window = '1s'
idle_window = '2s'
cooldown = '{}s'
lease = '5s'
skew = '1s'
",
                tap.url(),
                cloud.subnet,
                shim.url(),
                site.path("kubeconfig").display(),
                variable("TENURE_TEST_PROMETHEUS"),
                COOLDOWN.as_secs(),
            ),
        );
        Self { site, cloud, cluster, shim, tap, gate, record, running: None }
    }

    pub(super) fn log(&self) -> PathBuf {
        self.site.path("log")
    }

    // === the process ===

    /// Ticks that could not be finished so far, as the log tells.
    pub(super) fn failed_ticks(&self) -> usize {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().filter(|line| line.contains("a tick failed")).count()
    }

    /// What a tick would find, as `plan` tells it.
    pub(super) fn plans(&self, wanted: &str) -> bool {
        let told = self.site.run("autoscale plan --timeout 2s --json");
        let reasons = |line: &serde_json::Value| line["reasons"].to_string().contains(wanted);
        told.code == 0 && told.json().iter().any(reasons)
    }

    /// Starts the executor.
    pub(super) fn run(&mut self) {
        assert!(self.running.is_none(), "one runs");
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = self.site.command("autoscale run --loop 1s --timeout 2s --log info");
        command.env("AWS_SECRET_ACCESS_KEY", SECRET).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.running = Some(child);
    }

    /// Kills it, and says how far the action was.
    pub(super) fn kill(&mut self) -> Phase {
        let mut child = self.running.take().expect("one runs");
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself: {}", self.told());
        child.kill().unwrap();
        child.wait().unwrap();
        self.record.phase()
    }

    /// Asks it to end, which it must do well.
    pub(super) async fn ask_to_end(&mut self) {
        let mut child = self.running.take().expect("one runs");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let by = SystemClock.deadline(PATIENCE);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(SystemClock.monotonic() < by, "it did not end: {}", self.told());
            SystemClock.sleep(POLL).await;
        };
        assert!(status.success(), "{status}: {}", self.told());
    }

    // === the cluster ===

    /// So many pods that come and go.
    pub(super) fn load(&self, count: usize) {
        self.cluster.wish(|wishes| wishes.apps.get_mut(LOAD).unwrap().count = count);
    }

    /// All pods are Ready, and this many workers are there, all free of cordons.
    pub(super) async fn settles(&self, load: usize, workers: usize) {
        let what = format!("{load} pods of load and {workers} workers");
        let count = |sight: &Sight, app: &str| sight.ready.get(app).map_or(0, Vec::len);
        self.eventually(&what, |stage| {
            let sight = stage.cluster.sight();
            count(&sight, LOAD) == load
                && count(&sight, WEB) == WEB_COUNT
                && sight.waiting.is_empty()
                && sight.workers.len() == workers
                && sight.cordoned.is_empty()
                && stage.record.phase() == Phase::Idle
        })
        .await;
    }

    /// The budget lets no more pods of the web go, and a node waits for that.
    pub(super) async fn budget_holds_the_drain(&self) {
        self.eventually("the budget holds the drain", |stage| {
            let nodes = stage.record.state().down_nodes;
            let drains = nodes.iter().flatten().any(|(_, node)| node.phase == NodePhase::Draining);
            drains && stage.cluster.sight().ready.get(WEB).map_or(0, Vec::len) < WEB_COUNT
        })
        .await;
    }

    /// Pods of the web move until there is one on each worker.
    pub(super) async fn spread(&self) {
        for _ in 0..10 {
            self.cluster.replace(WEB).await.unwrap();
            let round = self.cluster.sight().round;
            self.eventually("the web runs again", |stage| {
                let sight = stage.cluster.sight();
                sight.round > round + 1 && sight.ready.get(WEB).map_or(0, Vec::len) == WEB_COUNT
            })
            .await;
            let sight = self.cluster.sight();
            if sight.workers.iter().all(|node| sight.ready[WEB].contains(node)) {
                return;
            }
        }
        panic!("the scheduler does not spread the web: {:?}", self.cluster.sight());
    }

    // === waiting ===

    pub(super) async fn eventually(&self, what: &str, found: impl Fn(&Self) -> bool) {
        let by = SystemClock.deadline(PATIENCE);
        while !found(self) {
            assert!(SystemClock.monotonic() < by, "never: {what}; {}", self.told());
            SystemClock.sleep(POLL).await;
        }
    }

    /// Until the action under way, or the next one, is in that phase. False if it went past it.
    pub(super) async fn reaches(&self, phase: Phase, ended: u32) -> bool {
        let mut states = self.record.watch();
        let waiting = states.wait_for(|state| {
            let now = Phase::of(state);
            now == phase
                || self.record.ended_count() > ended
                || (now > phase && is_down(now) == is_down(phase))
        });
        let by = SystemClock.deadline(PATIENCE);
        match tenure_clock::within(&SystemClock, by, waiting).await {
            Ok(state) => Phase::of(&state.unwrap()) == phase,
            Err(_) => panic!("never {phase:?}; {}", self.told()),
        }
    }

    /// For whoever reads a failure.
    pub(super) fn told(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        format!(
            "state {:#?}\nseen {:#?}\nwrites {:?}\nviolations {:#?}\nlog\n{tail}",
            self.record.state(),
            self.cluster.sight(),
            self.record.writes(),
            self.record.violations()
        )
    }
}

fn is_down(phase: Phase) -> bool {
    phase >= Phase::Planned
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
