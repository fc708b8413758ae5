//! A script as JSON, for `--script FILE` and `PUT /__faults`.
//!
//! ```json
//! {
//!   "seed": 42,
//!   "rules": [
//!     "PutItem=throttle#1",
//!     {"on": "PutRecords", "fault": "partial(0.3)", "chance": 0.5, "skip": 2, "times": 3}
//!   ]
//! }
//! ```
//!
//! A rule is its written form or an object; both go through the same reader. Unknown fields are
//! errors, since a misspelt `chance` would otherwise fire always.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::rule::{Chance, Rule, read_fault, read_on};
use crate::script::Script;

/// More rules than a person writes, few enough to ask each of them for every request.
const RULES_MAX: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptForm {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    rules: Vec<RuleForm>,
}

struct RuleForm(Rule);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleObject {
    on: String,
    fault: String,
    #[serde(default = "always")]
    chance: f64,
    #[serde(default)]
    skip: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
}

const fn always() -> f64 {
    1.0
}

impl Script {
    /// Reads the JSON form; the error names the field or the rule.
    ///
    /// # Errors
    /// Not JSON, an unknown field, a rule that cannot be read, or more than 256 rules.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let form: ScriptForm = serde_json::from_slice(json)?;
        if form.rules.len() > RULES_MAX {
            return Err(serde_json::Error::custom(format_args!(
                "{} rules: a script has at most {RULES_MAX}",
                form.rules.len()
            )));
        }
        Ok(Self::new(form.seed, form.rules.into_iter().map(|RuleForm(rule)| rule).collect()))
    }

    /// The JSON form, which [`Script::from_json`] reads back. How far the rules have come is left out.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let rules: Vec<_> = self.rules().iter().map(RuleObject::from).collect();
        serde_json::json!({ "seed": self.seed(), "rules": rules })
    }
}

impl From<&Rule> for RuleObject {
    fn from(rule: &Rule) -> Self {
        Self {
            on: rule.on.to_string(),
            fault: rule.fault.to_string(),
            chance: rule.chance.get(),
            skip: rule.skip,
            times: rule.times,
        }
    }
}

impl<'de> Deserialize<'de> for RuleForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

struct RuleVisitor;

impl<'de> Visitor<'de> for RuleVisitor {
    type Value = RuleForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule's text or an object with `on`, `fault`, `chance`, `skip`, `times`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RuleForm, E> {
        text.parse().map(RuleForm).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RuleForm, A::Error> {
        let object = RuleObject::deserialize(MapAccessDeserializer::new(map))?;
        let text = format!("{}={}", object.on, object.fault);
        let rule = Rule {
            on: read_on(&text, &object.on).map_err(A::Error::custom)?,
            fault: read_fault(&text, &object.fault).map_err(A::Error::custom)?,
            chance: Chance::new(object.chance).ok_or_else(|| {
                A::Error::custom(format_args!("chance {} is not from 0 to 1", object.chance))
            })?,
            skip: object.skip,
            times: object.times,
        };
        rule.check_fault_fits(&text).map_err(A::Error::custom)?;
        Ok(RuleForm(rule))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn rules_are_texts_or_objects() {
        let script = Script::from_json(
            br#"{"seed": 42, "rules": ["PutItem=throttle#1", {"on": "*", "fault": "delay(20ms)", "skip": 2}]}"#,
        )
        .unwrap();
        let rules: Vec<_> = script.rules().iter().map(Rule::to_string).collect();
        assert_eq!(
            (script.seed(), rules.join(" ").as_str()),
            (42, "PutItem=throttle#1 *=delay_request(20ms)+2")
        );
    }

    #[test]
    fn errors_name_the_field_or_the_rule() {
        let many = format!(r#"{{"rules": [{}"*=hang"]}}"#, r#""*=hang","#.repeat(256));
        let errors = [
            r#"{"rule": []}"#,
            r#"{"rules": [{"on": "PutItem", "fault": "hang", "chanse": 0.5}]}"#,
            r#"{"rules": [{"on": "PutItem", "fault": "hang#1"}]}"#,
            r#"{"rules": [{"on": "PutItem", "fault": "hang", "chance": 1.5}]}"#,
            r#"{"rules": [{"on": "*", "fault": "partial(0.5)"}]}"#,
            r#"{"rules": [7]}"#,
            &many,
        ]
        .map(|json| Script::from_json(json.as_bytes()).expect_err(json).to_string());
        expect![[r#"
            unknown field `rule`, expected `seed` or `rules` at line 1 column 7
            unknown field `chanse`, expected one of `on`, `fault`, `chance`, `skip`, `times` at line 1 column 54
            rule `PutItem=hang#1`: fault `hang#1` is not known, did you mean `hang`?
              valid: throttle[(CODE)], server_error[(500|503)], server_error_applied[(500|503)], hang, hang_applied, lose_reply, reset, delay_request(20ms), delay_reply(2s), partial(SHARE[, at_least_one]) at line 1 column 47
            chance 1.5 is not from 0 to 1 at line 1 column 60
            rule `*=partial(0.5)`: kind `*` has no records that could fail one by one
              valid: PutRecords=partial(0.3) at line 1 column 47
            invalid type: integer `7`, expected a rule's text or an object with `on`, `fault`, `chance`, `skip`, `times` at line 1 column 12
            257 rules: a script has at most 256"#]].assert_eq(&errors.join("\n"));
    }
}
