//! Which nodes may take a pod: its selector and required affinity against labels, its tolerations against taints.
//!
//! Only what a scheduler must keep is looked at; preferences are not. What cannot be judged by one node alone
//! (pods that must or must not stand beside others) is unclear, and unclear is no.

use std::collections::BTreeMap;

/// Labels that tell one node from all others: a new worker has none of these values.
const NAMES: [&str; 2] = ["kubernetes.io/hostname", "tenure.dev/instance-id"];
/// Labels of where a node stands: a new worker may stand in another place than those that are there.
const PLACES: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// A taint that keeps pods away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, often empty.
    pub value: String,
    /// `NoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A taint that a pod does not mind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Toleration {
    /// The key; every key if there is none.
    pub key: Option<String>,
    /// The value; every value if there is none.
    pub value: Option<String>,
    /// The effect; every effect if there is none.
    pub effect: Option<String>,
}

/// What taints of a condition, or of a start that is not done, begin with: a new worker will have none of them.
const PASSING: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

impl Taint {
    /// Whether it tells of the state that a node is in, not of its kind.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        PASSING.iter().any(|prefix| self.key.starts_with(prefix))
    }
}

impl Toleration {
    fn covers(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.as_ref().is_none_or(|effect| *effect == taint.effect)
    }
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Test {
    /// One of these.
    In(Vec<String>),
    /// None of these; it need not be there.
    NotIn(Vec<String>),
    /// There.
    Exists,
    /// Not there.
    Absent,
    /// A number above this.
    Above(i64),
    /// A number below this.
    Below(i64),
    /// Something that is not known here: it never holds.
    Unknown(String),
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Self::NotIn(values) => !value.is_some_and(|value| values.iter().any(|one| one == value)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Above(bound) => number().is_some_and(|number| number > *bound),
            Self::Below(bound) => number().is_some_and(|number| number < *bound),
            Self::Unknown(_) => false,
        }
    }
}

/// Tests that must all hold, each of one label. The node's own name is the label `metadata.name`.
pub type Term = Vec<(String, Test)>;

/// What a node offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// The node's name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its taints.
    pub taints: &'a [Taint],
}

/// Which nodes may take a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Placement {
    /// Of each of these, one term must hold: the pod's own selector, its affinity, that of each of its volumes.
    pub terms: Vec<Vec<Term>>,
    /// Taints that do not keep it away.
    pub tolerations: Vec<Toleration>,
    /// What cannot be judged by a node alone.
    pub unclear: Option<String>,
}

/// The field that a term names a node by.
pub const NODE_NAME: &str = "metadata.name";

impl Placement {
    /// Whether that node may take the pod. What is unclear may not.
    #[must_use]
    pub fn admits(&self, node: Offer<'_>) -> bool {
        let value = |key: &str| match key {
            NODE_NAME => Some(node.name),
            key => node.labels.get(key).map(String::as_str),
        };
        let holds = |term: &Term| term.iter().all(|(key, test)| test.holds(value(key)));
        self.unclear.is_none()
            && self.tolerates(node.taints.iter())
            && self.terms.iter().all(|any| any.iter().any(holds))
    }

    /// Whether a new worker of the kind of that node could take the pod. What pods stand beside is not asked: a
    /// new worker is empty.
    #[must_use]
    pub fn admits_another(&self, node: Offer<'_>) -> bool {
        let holds = |(key, test): &(String, Test)| match key.as_str() {
            key if key == NODE_NAME || NAMES.contains(&key) => match test {
                Test::In(_) => false,
                test => test.holds(Some("")),
            },
            // Where it will stand is not known yet.
            key if PLACES.contains(&key) => true,
            key => test.holds(node.labels.get(key).map(String::as_str)),
        };
        self.tolerates(node.taints.iter().filter(|taint| !taint.is_passing()))
            && self.terms.iter().all(|any| any.iter().any(|term| term.iter().all(holds)))
    }

    fn tolerates<'a>(&self, mut taints: impl Iterator<Item = &'a Taint>) -> bool {
        taints.all(|taint| self.tolerations.iter().any(|toleration| toleration.covers(taint)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn wants(key: &str, test: Test) -> Placement {
        Placement { terms: vec![vec![vec![(key.to_owned(), test)]]], ..Placement::default() }
    }

    fn any_of(values: &[&str]) -> Test {
        Test::In(values.iter().map(|value| (*value).to_owned()).collect())
    }

    #[test]
    fn labels_are_tested_as_the_scheduler_does() {
        let labels = labels(&[("disk", "ssd"), ("cores", "8")]);
        let node = Offer { name: "n1", labels: &labels, taints: &[] };
        let none_of = |value: &str| Test::NotIn(vec![value.to_owned()]);
        for (placement, holds) in [
            (Placement::default(), true),
            (wants("disk", any_of(&["ssd", "nvme"])), true),
            (wants("disk", any_of(&["nvme"])), false),
            (wants("gpu", any_of(&["a100"])), false),
            (wants("disk", none_of("ssd")), false),
            (wants("gpu", none_of("a100")), true),
            (wants("disk", Test::Exists), true),
            (wants("gpu", Test::Exists), false),
            (wants("gpu", Test::Absent), true),
            (wants("cores", Test::Above(7)), true),
            (wants("cores", Test::Below(8)), false),
            (wants("disk", Test::Above(0)), false),
            (wants("disk", Test::Unknown("Like".to_owned())), false),
            (wants(NODE_NAME, any_of(&["n1"])), true),
            (wants(NODE_NAME, any_of(&["n2"])), false),
            (Placement { terms: vec![vec![]], ..Placement::default() }, false),
        ] {
            assert_eq!(placement.admits(node), holds, "{placement:?}");
        }
        let mut both = wants("disk", any_of(&["ssd"]));
        both.terms.extend(wants("gpu", Test::Exists).terms);
        assert!(!both.admits(node), "every requirement holds, or none");
        let mut either = wants("gpu", Test::Exists);
        either.terms[0].extend(wants("disk", Test::Exists).terms.remove(0));
        assert!(either.admits(node), "of its terms one is enough");
        let unclear = Placement { unclear: Some("anti-affinity".to_owned()), ..Placement::default() };
        assert!(!unclear.admits(node) && unclear.admits_another(node));
    }

    #[test]
    fn taints_keep_away_whom_nothing_excuses() {
        let taint = Taint { key: "team".into(), value: "a".into(), effect: "NoSchedule".into() };
        let node = Offer { name: "n1", labels: &BTreeMap::new(), taints: &[taint] };
        let with =
            |toleration: Toleration| Placement { tolerations: vec![toleration], ..Placement::default() };
        let key = |key: &str| Toleration { key: Some(key.to_owned()), ..Toleration::default() };
        assert!(!Placement::default().admits(node));
        assert!(with(Toleration::default()).admits(node), "whoever tolerates everything");
        assert!(with(key("team")).admits(node) && !with(key("other")).admits(node));
        let value = |value: &str| Toleration { value: Some(value.to_owned()), ..key("team") };
        assert!(with(value("a")).admits(node) && !with(value("b")).admits(node));
        let effect = |effect: &str| Toleration { effect: Some(effect.to_owned()), ..key("team") };
        assert!(with(effect("NoSchedule")).admits(node) && !with(effect("NoExecute")).admits(node));
        assert!(!Placement::default().admits_another(node), "another of its kind has it, too");
        let pressed = Taint {
            key: "node.kubernetes.io/disk-pressure".into(),
            value: String::new(),
            effect: "NoSchedule".into(),
        };
        let node = Offer { name: "n1", labels: &BTreeMap::new(), taints: &[pressed] };
        assert!(!Placement::default().admits(node));
        assert!(Placement::default().admits_another(node), "another of its kind is not under pressure");
    }

    #[test]
    fn a_new_worker_is_like_the_others_under_another_name_and_in_any_place() {
        let labels = labels(&[("disk", "ssd"), (NAMES[0], "n1"), (PLACES[0], "a")]);
        let node = Offer { name: "n1", labels: &labels, taints: &[] };
        for (placement, holds) in [
            (wants("disk", any_of(&["ssd"])), true),
            (wants("gpu", Test::Exists), false),
            (wants(NAMES[0], any_of(&["n1"])), false),
            (wants(NODE_NAME, any_of(&["n1"])), false),
            (wants(NAMES[0], Test::NotIn(vec!["n1".to_owned()])), true),
            (wants(PLACES[0], any_of(&["b"])), true),
        ] {
            assert_eq!(placement.admits_another(node), holds, "{placement:?}");
        }
    }
}
