//! What pods ask of nodes, and what nodes offer: selectors, affinity, taints, volumes that cannot move.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, NodeSpec, PersistentVolume,
    PersistentVolumeClaim, PodSpec, Toleration as ApiToleration,
};

use crate::placement::{NODE_NAME, Placement, Taint, Term, Test, Toleration};

/// Taints that tell a cordon or a condition that is read from the node itself.
const TOLD_OTHERWISE: [&str; 3] =
    ["node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The taints of a node that keep pods away.
pub(super) fn taints(spec: &NodeSpec, startup_taint: &str) -> Vec<Taint> {
    let keeps_away = |effect: &str| matches!(effect, "NoSchedule" | "NoExecute");
    let taints = spec.taints.iter().flatten().filter(|taint| keeps_away(&taint.effect));
    taints
        .filter(|taint| taint.key != startup_taint && !TOLD_OTHERWISE.contains(&taint.key.as_str()))
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        })
        .collect()
}

/// The volumes of the cluster, by the claims that pods name.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// The volume that a claim got, by namespace and name.
    bound: BTreeMap<(String, String), String>,
    volumes: BTreeMap<String, PersistentVolume>,
}

impl Volumes {
    pub(super) fn new(claims: Vec<PersistentVolumeClaim>, volumes: Vec<PersistentVolume>) -> Self {
        let named = |claim: PersistentVolumeClaim| {
            let key = (claim.metadata.namespace.unwrap_or_default(), claim.metadata.name.unwrap_or_default());
            Some((key, claim.spec?.volume_name.filter(|name| !name.is_empty())?))
        };
        let by_name = |volume: PersistentVolume| Some((volume.metadata.name.clone()?, volume));
        Self {
            bound: claims.into_iter().filter_map(named).collect(),
            volumes: volumes.into_iter().filter_map(by_name).collect(),
        }
    }

    fn of(&self, namespace: &str, claim: &str) -> Option<&PersistentVolume> {
        let name = self.bound.get(&(namespace.to_owned(), claim.to_owned()))?;
        self.volumes.get(name)
    }
}

/// The claims that a pod names, those that were made for it alone too.
pub(super) fn claims(pod: &str, spec: &PodSpec) -> Vec<String> {
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        None => volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name)),
    };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}

/// Which nodes may take a pod, and whether it stores something on the one it is on.
pub(super) fn wants(namespace: &str, pod: &str, spec: &PodSpec, volumes: &Volumes) -> (Placement, bool) {
    let mut placement = Placement {
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
        unclear: unclear(spec),
        ..Placement::default()
    };
    if let Some(selector) = spec.node_selector.as_ref().filter(|selector| !selector.is_empty()) {
        let equals = |(key, value): (&String, &String)| (key.clone(), Test::In(vec![value.clone()]));
        placement.terms.push(vec![selector.iter().map(equals).collect()]);
    }
    let affinity = spec.affinity.as_ref().and_then(|it| it.node_affinity.as_ref());
    placement.terms.extend(
        affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref()).map(terms),
    );
    let mut local_storage = spec.volumes.iter().flatten().any(|volume| {
        // What lies in memory is lost by every restart, so nobody counts on it.
        let on_disk = |medium: Option<&str>| medium != Some("Memory");
        volume.host_path.is_some()
            || volume.empty_dir.as_ref().is_some_and(|dir| on_disk(dir.medium.as_deref()))
    });
    for claim in claims(pod, spec) {
        let Some(volume) = volumes.of(namespace, &claim).and_then(|volume| volume.spec.as_ref()) else {
            // Where its data is, nobody knows: not to be lost on doubt.
            placement.unclear.get_or_insert(format!("which volume its claim {claim} got is not known"));
            local_storage = true;
            continue;
        };
        let required = volume.node_affinity.as_ref().and_then(|it| it.required.as_ref()).map(terms);
        let names_host = |term: &Term| term.iter().any(|(key, _)| key == HOSTNAME || key == NODE_NAME);
        local_storage |=
            volume.local.is_some() || volume.host_path.is_some() || required.iter().flatten().any(names_host);
        placement.terms.extend(required);
    }
    (placement, local_storage)
}

/// What the scheduler judges by other pods, not by the node alone.
fn unclear(spec: &PodSpec) -> Option<String> {
    let has_ports = || {
        let ports = spec.containers.iter().filter_map(|container| container.ports.as_ref()).flatten();
        ports.into_iter().any(|port| port.host_port.is_some_and(|port| port != 0))
    };
    let is_spread = || {
        let constraints = spec.topology_spread_constraints.iter().flatten();
        constraints.into_iter().any(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
    };
    let why = if spec.affinity.as_ref().is_some_and(stands_by_others) {
        "it must, or must not, stand beside certain pods"
    } else if is_spread() {
        "it must be spread among nodes"
    } else if has_ports() {
        "it takes a port of its node"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn stands_by_others(affinity: &Affinity) -> bool {
    let with = affinity.pod_affinity.as_ref();
    let with = with.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let without = affinity.pod_anti_affinity.as_ref();
    let without = without.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    [with, without].into_iter().flatten().any(|terms| !terms.is_empty())
}

fn terms(selector: &NodeSelector) -> Vec<Term> {
    selector.node_selector_terms.iter().map(term).collect()
}

fn term(term: &NodeSelectorTerm) -> Term {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let tests: Term = labels.chain(fields).map(|it| (it.key.clone(), test(it))).collect();
    // One without any test fits no node.
    if tests.is_empty() { vec![(String::new(), Test::Unknown(String::new()))] } else { tests }
}

fn test(requirement: &NodeSelectorRequirement) -> Test {
    let values = requirement.values.clone().unwrap_or_default();
    let number = || values.first().and_then(|value| value.parse().ok());
    let unknown = || Test::Unknown(requirement.operator.clone());
    match requirement.operator.as_str() {
        "In" => Test::In(values),
        "NotIn" => Test::NotIn(values),
        "Exists" => Test::Exists,
        "DoesNotExist" => Test::Absent,
        "Gt" => number().map_or_else(unknown, Test::Above),
        "Lt" => number().map_or_else(unknown, Test::Below),
        _ => unknown(),
    }
}

fn toleration(toleration: &ApiToleration) -> Toleration {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let exists = toleration.operator.as_deref() == Some("Exists");
    Toleration {
        key: given(&toleration.key),
        value: (!exists).then(|| toleration.value.clone().unwrap_or_default()),
        effect: given(&toleration.effect),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::placement::Offer;

    fn volumes() -> Volumes {
        let from = |value: Value| serde_json::from_value(value).unwrap();
        let claim = |name: &str, volume: Value| {
            from(
                json!({ "metadata": { "namespace": "shop", "name": name }, "spec": { "volumeName": volume } }),
            )
        };
        let volume = |name: &str, spec: Value| {
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
        };
        let on = |key: &str, value: &str| {
            json!({ "required": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": key, "operator": "In", "values": [value] }] }
            ] } })
        };
        Volumes::new(
            vec![
                claim("local", json!("pv-local")),
                claim("zonal", json!("pv-zonal")),
                claim("network", json!("pv-network")),
                claim("unbound", Value::Null),
                claim("pod-scratch", json!("pv-path")),
            ],
            vec![
                // As k3s's own provisioner makes them.
                volume(
                    "pv-local",
                    json!({ "hostPath": { "path": "/x" }, "nodeAffinity": on(HOSTNAME, "n1") }),
                ),
                volume("pv-path", json!({ "local": { "path": "/x" }, "nodeAffinity": on(HOSTNAME, "n1") })),
                volume(
                    "pv-zonal",
                    json!({ "csi": { "driver": "d", "volumeHandle": "v" },
                    "nodeAffinity": on("topology.kubernetes.io/zone", "a") }),
                ),
                volume("pv-network", json!({ "nfs": { "server": "s", "path": "/" } })),
            ],
        )
    }

    fn wanted(spec: Value) -> (Placement, bool) {
        let mut spec = spec;
        spec["containers"].as_array().is_none().then(|| spec["containers"] = json!([]));
        wants("shop", "pod", &serde_json::from_value(spec).unwrap(), &volumes())
    }

    fn claiming(claim: &str) -> Value {
        json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }] })
    }

    #[test]
    fn volumes_of_a_node_do_not_move_and_those_of_a_zone_only_inside_of_it() {
        assert_eq!(wanted(json!({})), (Placement::default(), false));
        assert!(wanted(claiming("local")).1, "k3s's local-path");
        assert!(wanted(json!({ "volumes": [{ "name": "scratch", "ephemeral": {} }] })).1);
        assert_eq!(wanted(claiming("network")), (Placement::default(), false));
        let (zonal, local) = wanted(claiming("zonal"));
        let zone = |zone: &str| BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), zone.to_owned())]);
        let admits =
            |zone: &BTreeMap<String, String>| zonal.admits(Offer { name: "n", labels: zone, taints: &[] });
        assert!(!local && admits(&zone("a")) && !admits(&zone("b")));
        for doubtful in ["unbound", "missing"] {
            let (placement, local) = wanted(claiming(doubtful));
            assert!(local && placement.unclear.is_some_and(|why| why.contains(doubtful)));
        }
        assert!(wanted(json!({ "volumes": [{ "name": "v", "emptyDir": {} }] })).1);
        assert!(!wanted(json!({ "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory" } }] })).1);
    }

    #[test]
    fn what_depends_on_other_pods_is_unclear() {
        let unclear = |spec: Value| wanted(spec).0.unclear;
        let term = json!([{ "topologyKey": HOSTNAME }]);
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": term });
        assert!(unclear(json!({ "affinity": { "podAntiAffinity": required } })).is_some());
        assert!(unclear(json!({ "affinity": { "podAffinity": required } })).is_some());
        let preferred = json!({ "preferredDuringSchedulingIgnoredDuringExecution": [] });
        assert_eq!(unclear(json!({ "affinity": { "podAntiAffinity": preferred } })), None);
        let spread = |when: &str| json!({ "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": when }] });
        assert!(unclear(spread("DoNotSchedule")).is_some() && unclear(spread("ScheduleAnyway")).is_none());
        let port =
            json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 1 }] }] });
        assert!(unclear(port).is_some());
    }

    #[test]
    fn selectors_affinity_and_tolerations_are_read_as_the_scheduler_reads_them() {
        let (placement, _) = wanted(json!({
            "nodeSelector": { "disk": "ssd" },
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    { "matchExpressions": [{ "key": "cores", "operator": "Gt", "values": ["4"] }] },
                    { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n9"] }] },
                    {},
                ] } } },
            "tolerations": [
                { "key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule" },
                { "key": "old", "operator": "Exists" },
            ],
        }));
        let labels = |cores: &str| {
            BTreeMap::from([("disk".to_owned(), "ssd".to_owned()), ("cores".to_owned(), cores.to_owned())])
        };
        let spec = json!({ "taints": [
            { "key": "team", "value": "a", "effect": "NoSchedule" },
            { "key": "old", "value": "x", "effect": "NoExecute" },
            { "key": "soft", "effect": "PreferNoSchedule" },
            { "key": "tenure.dev/starting", "effect": "NoSchedule" },
            { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" },
        ] });
        let taints = taints(&serde_json::from_value(spec).unwrap(), "tenure.dev/starting");
        assert_eq!(taints.len(), 2, "{taints:?}");
        let admits = |name: &str, cores: &str, taints: &[Taint]| {
            placement.admits(Offer { name, labels: &labels(cores), taints })
        };
        assert!(admits("n1", "8", &taints) && !admits("n1", "4", &taints) && admits("n9", "4", &taints));
        let other = Taint { value: "b".to_owned(), ..taints[0].clone() };
        assert!(!admits("n1", "8", &[other]));
    }
}
