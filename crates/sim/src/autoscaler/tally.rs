//! What is counted while a cluster is scaled.

use std::collections::BTreeMap;

use tenure_autoscaler::testing::Symptom;

use crate::scenario;

/// What is counted of one schedule, or of many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Schedules.
    pub schedules: u64,
    /// Actions that came to their end.
    pub ended: u64,
    /// Instances that were launched.
    pub launched: u64,
    /// Ticks of executors.
    pub ticks: u64,
    /// Pods that waited for a node at the end.
    pub waiting: u64,
    /// Schedules that showed what the old documents' rules are known to cause.
    pub symptoms: BTreeMap<Symptom, u64>,
}

impl scenario::Tally for Tally {
    fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.ended += other.ended;
        self.launched += other.launched;
        self.ticks += other.ticks;
        self.waiting += other.waiting;
        for (symptom, count) in &other.symptoms {
            *self.symptoms.entry(*symptom).or_default() += count;
        }
    }

    fn progress(&self) -> u64 {
        self.ended
    }

    fn stands_still(&self, _lived_nanos: u64) -> Option<String> {
        (self.ended < 2 * self.schedules || self.launched < self.schedules)
            .then(|| format!("{} actions ended and {} instances launched in all", self.ended, self.launched))
    }

    fn line(&self, _lived_nanos: u64) -> String {
        format!(
            "{} actions ended, {} instances launched, {} ticks, {} pods waited at the end",
            self.ended, self.launched, self.ticks, self.waiting
        )
    }

    fn fields(&self) -> BTreeMap<&'static str, Option<f64>> {
        BTreeMap::new()
    }

    fn by_symptom(&self) -> BTreeMap<&'static str, u64> {
        let count = |symptom: &Symptom| self.symptoms.get(symptom).copied().unwrap_or(0);
        Symptom::ALL.iter().map(|symptom| (symptom.name(), count(symptom))).collect()
    }
}
