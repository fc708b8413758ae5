//! One line of a script: which requests, which fault, how often.
//!
//! Rules are typed by hand on a command line, so each has a short written form, and an error in it
//! names the part that is wrong and shows what would be right:
//!
//! ```text
//!   KIND=FAULT[(ARGUMENT)][+SKIP][#TIMES][@CHANCE]
//!
//!   PutItem=throttle                 every PutItem is throttled
//!   UpdateItem=lose_reply#1          the first one's reply is lost
//!   GetItem=server_error(503)+2#3    two pass, then three get a 503
//!   PutRecords=partial(0.3)@0.5      half of the calls lose 30 % of their records
//!   *=delay(20ms)@0.1                one request in ten is late
//! ```

use std::fmt;
use std::str::FromStr;

use crate::fault::{BadFault, Fault};
use crate::kind::Kind;

/// The written form of a rule, for help and errors.
pub(crate) const FORM: &str = "KIND=FAULT[(ARGUMENT)][+SKIP][#TIMES][@CHANCE]";

/// Which requests get which fault, and how often.
///
/// Its text ([`Rule::from_str`]) and its rendering agree: `rule.to_string().parse() == Ok(rule)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The requests it is about.
    pub on: On,
    /// What is done to them.
    pub fault: Fault,
    /// The chance of each matching request to be hit, once `skip` have passed.
    pub chance: Chance,
    /// How many matching requests pass first.
    pub skip: u32,
    /// How many requests are hit at most; `None` for no end.
    pub times: Option<u32>,
}

impl Rule {
    /// Hits every request that matches.
    #[must_use]
    pub const fn always(on: On, fault: Fault) -> Self {
        Self { on, fault, chance: Chance::ALWAYS, skip: 0, times: None }
    }
}

/// The requests a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// Every request, those that name no operation too. Written `*`.
    Any,
    /// The requests of one operation.
    Kind(Kind),
}

impl On {
    /// Whether a request of `kind` is meant.
    #[must_use]
    pub fn matches(&self, kind: Option<&Kind>) -> bool {
        match self {
            Self::Any => true,
            Self::Kind(wanted) => Some(wanted) == kind,
        }
    }
}

/// A probability, from 0 (never) to 1 (always).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chance(f64);

impl Chance {
    /// It happens each time.
    pub const ALWAYS: Self = Self(1.0);

    /// The chance `probability`, or `None` if that is not from 0 to 1.
    #[must_use]
    pub fn new(probability: f64) -> Option<Self> {
        // Adding zero turns −0 into 0, which would otherwise render as `-0`.
        (0.0..=1.0).contains(&probability).then_some(Self(probability + 0.0))
    }

    /// The probability, from 0 to 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Reads plain decimals: no sign, no exponent, neither of which a reader would expect here.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let decimal = text.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
        text.parse().ok().filter(|_| decimal).and_then(Self::new)
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::ALWAYS
    }
}

/// A rule's text that cannot be read: which part, why, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule `{text}`: {part} {problem}\n  valid: {valid}")]
pub struct RuleError {
    text: String,
    part: String,
    problem: String,
    valid: String,
}

// === The written form ===

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (on, rest) = text
            .split_once('=')
            .ok_or_else(|| error(text, "form", "has no `=` between kind and fault", FORM))?;
        let on = read_on(text, on.trim())?;
        let (fault, suffixes) = split_fault(text, rest.trim())?;
        let fault = read_fault(text, fault)?;
        let mut rule = Self::always(on, fault);
        rule.check_fault_fits(text)?;
        rule.read_suffixes(text, suffixes)?;
        Ok(rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.on, self.fault)?;
        if self.skip > 0 {
            write!(f, "+{}", self.skip)?;
        }
        if let Some(times) = self.times {
            write!(f, "#{times}")?;
        }
        if self.chance != Chance::ALWAYS {
            write!(f, "@{}", self.chance)?;
        }
        Ok(())
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Kind(kind) => kind.fmt(f),
        }
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Rule {
    /// Refuses a rule that could never fire, which a script's author would take for a passing test.
    pub(crate) fn check_fault_fits(&self, text: &str) -> Result<(), RuleError> {
        match (&self.fault, &self.on) {
            (Fault::Partial { .. }, On::Kind(kind)) if kind.is_put_records() => Ok(()),
            (Fault::Partial { .. }, on) => {
                let problem = format!("`{on}` has no records that could fail one by one");
                Err(error(text, "kind", problem, "PutRecords=partial(0.3)"))
            }
            _ => Ok(()),
        }
    }

    /// Reads `+SKIP`, `#TIMES` and `@CHANCE`, in any order, each at most once.
    fn read_suffixes(&mut self, text: &str, mut suffixes: &str) -> Result<(), RuleError> {
        let mut seen = String::new();
        while let Some(mark) = suffixes.chars().next() {
            if !"+#@".contains(mark) {
                let problem = format!("`{suffixes}` follows the fault");
                return Err(error(text, "ending", problem, "+SKIP, #TIMES, @CHANCE"));
            }
            let rest = &suffixes[1..];
            let (value, after) = rest.split_at(rest.find(['+', '#', '@']).unwrap_or(rest.len()));
            let value = value.trim();
            match mark {
                '+' => self.skip = read_count(text, "skip", "+2", value)?,
                '#' => self.times = Some(read_count(text, "times", "#1", value)?),
                _ => {
                    self.chance = Chance::read(value).ok_or_else(|| {
                        let problem = format!("`{value}` is not a decimal from 0 to 1");
                        error(text, "chance", problem, "@0.25")
                    })?;
                }
            }
            if seen.contains(mark) {
                return Err(error(text, "ending", format!("`{mark}` is given twice"), FORM));
            }
            seen.push(mark);
            suffixes = after;
        }
        Ok(())
    }
}

/// Reads `*` or the name of an operation.
pub(crate) fn read_on(text: &str, on: &str) -> Result<On, RuleError> {
    if on == "*" {
        return Ok(On::Any);
    }
    Kind::new(on).map(On::Kind).ok_or_else(|| {
        let problem = if on.is_empty() {
            "is missing".to_owned()
        } else {
            format!("`{on}` is not an operation's name")
        };
        error(text, "kind", problem, "an operation such as PutItem, or * for any")
    })
}

/// Reads a fault with its argument, and nothing behind it.
pub(crate) fn read_fault(text: &str, fault: &str) -> Result<Fault, RuleError> {
    let (name, arguments) = match fault.split_once('(') {
        None => (fault, None),
        Some((name, rest)) => {
            let inside = rest
                .strip_suffix(')')
                .ok_or_else(|| error(text, "argument", format!("`({rest}` does not end in `)`"), FORM))?;
            (name, Some(inside.trim()))
        }
    };
    Fault::from_parts(name.trim(), arguments).map_err(|BadFault { part, problem, valid }| RuleError {
        text: text.to_owned(),
        part,
        problem,
        valid,
    })
}

/// Splits `FAULT(ARGUMENT)+SKIP…` behind the argument, or behind the name where there is none.
fn split_fault<'a>(text: &str, rest: &'a str) -> Result<(&'a str, &'a str), RuleError> {
    let end =
        match rest.find(['(', '+', '#', '@']) {
            Some(open) if rest[open..].starts_with('(') => rest[open..]
                .find(')')
                .map(|close| open + close + 1)
                .ok_or_else(|| error(text, "argument", format!("`{}` is not closed", &rest[open..]), FORM))?,
            Some(mark) => mark,
            None => rest.len(),
        };
    let (fault, suffixes) = rest.split_at(end);
    Ok((fault.trim(), suffixes.trim_start()))
}

fn read_count(text: &str, part: &str, example: &str, value: &str) -> Result<u32, RuleError> {
    value
        .parse()
        .map_err(|_| error(text, part, format!("`{value}` is not a number from 0 to {}", u32::MAX), example))
}

fn error(text: &str, part: &str, problem: impl Into<String>, valid: &str) -> RuleError {
    RuleError {
        text: text.to_owned(),
        part: part.to_owned(),
        problem: problem.into(),
        valid: valid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;
    use crate::fault::{DELAY_MS_MAX, ServerStatus, ThrottleCode};
    use crate::script::Script;

    fn refused(texts: &[&str], expected: &Expect) {
        let errors: Vec<_> =
            texts.iter().map(|text| text.parse::<Rule>().expect_err(text).to_string()).collect();
        expected.assert_eq(&errors.join("\n"));
    }

    fn same(text: &str, canonical: &str) {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), canonical);
    }

    #[test]
    fn short_and_untidy_forms_are_read() {
        same("PutItem=throttle", "PutItem=throttle");
        same(" PutItem = throttle(ProvisionedThroughputExceededException) ", "PutItem=throttle");
        same("*=delay(2s)@0.1", "*=delay_request(2000ms)@0.1");
        same("GetItem=server_error(500)@1#3+2", "GetItem=server_error+2#3");
        same("PutRecords=partial(.5,at_least_one)+0", "PutRecords=partial(0.5, at_least_one)");
    }

    #[test]
    fn errors_name_the_part_and_the_valid_forms() {
        refused(
            &["PutItem", "=hang", "Put Item=hang", "*=partial(0.5)"],
            &expect![[r#"
            rule `PutItem`: form has no `=` between kind and fault
              valid: KIND=FAULT[(ARGUMENT)][+SKIP][#TIMES][@CHANCE]
            rule `=hang`: kind is missing
              valid: an operation such as PutItem, or * for any
            rule `Put Item=hang`: kind `Put Item` is not an operation's name
              valid: an operation such as PutItem, or * for any
            rule `*=partial(0.5)`: kind `*` has no records that could fail one by one
              valid: PutRecords=partial(0.3)"#]],
        );
        refused(
            &["PutItem=throtle", "PutItem=explode"],
            &expect![[r#"
            rule `PutItem=throtle`: fault `throtle` is not known, did you mean `throttle`?
              valid: throttle[(CODE)], server_error[(500|503)], server_error_applied[(500|503)], hang, hang_applied, lose_reply, reset, delay_request(20ms), delay_reply(2s), partial(SHARE[, at_least_one])
            rule `PutItem=explode`: fault `explode` is not known
              valid: throttle[(CODE)], server_error[(500|503)], server_error_applied[(500|503)], hang, hang_applied, lose_reply, reset, delay_request(20ms), delay_reply(2s), partial(SHARE[, at_least_one])"#]],
        );
        refused(
            &[
                "PutItem=throttle(LimitExceeded)",
                "PutItem=server_error(404)",
                "PutItem=hang(3)",
                "PutItem=delay",
                "PutItem=delay_reply(20)",
                "PutItem=delay(700s)",
                "PutItem=delay(20ms",
                "PutRecords=partial(1.5)",
                "PutRecords=partial(0.5, all)",
            ],
            &expect![[r#"
                rule `PutItem=throttle(LimitExceeded)`: argument of throttle `LimitExceeded` is not a throttling code, did you mean `LimitExceededException`?
                  valid: throttle(ProvisionedThroughputExceededException), throttle(LimitExceededException), throttle(RequestLimitExceeded), throttle(ThrottlingException)
                rule `PutItem=server_error(404)`: argument of server_error `404` is neither 500 nor 503
                  valid: server_error[(500|503)]
                rule `PutItem=hang(3)`: argument of hang `3` is one too many
                  valid: hang
                rule `PutItem=delay`: argument of delay is missing
                  valid: delay_request(20ms)
                rule `PutItem=delay_reply(20)`: argument of delay_reply `20` is not a whole number of ms or s
                  valid: delay_reply(2s)
                rule `PutItem=delay(700s)`: argument of delay `700s` is more than 600s
                  valid: delay_request(20ms)
                rule `PutItem=delay(20ms`: argument `(20ms` is not closed
                  valid: KIND=FAULT[(ARGUMENT)][+SKIP][#TIMES][@CHANCE]
                rule `PutRecords=partial(1.5)`: argument of partial `1.5` is not a decimal from 0 to 1
                  valid: partial(SHARE[, at_least_one])
                rule `PutRecords=partial(0.5, all)`: argument of partial `all` is not `at_least_one`
                  valid: partial(SHARE[, at_least_one])"#]],
        );
        refused(
            &[
                "PutItem=throttle@2",
                "PutItem=throttle@1e-3",
                "PutItem=throttle#x",
                "PutItem=throttle+1+2",
                "PutItem=delay(20ms)x",
            ],
            &expect![[r#"
                rule `PutItem=throttle@2`: chance `2` is not a decimal from 0 to 1
                  valid: @0.25
                rule `PutItem=throttle@1e-3`: chance `1e-3` is not a decimal from 0 to 1
                  valid: @0.25
                rule `PutItem=throttle#x`: times `x` is not a number from 0 to 4294967295
                  valid: #1
                rule `PutItem=throttle+1+2`: ending `+` is given twice
                  valid: KIND=FAULT[(ARGUMENT)][+SKIP][#TIMES][@CHANCE]
                rule `PutItem=delay(20ms)x`: ending `x` follows the fault
                  valid: +SKIP, #TIMES, @CHANCE"#]],
        );
    }

    /// Any chance there is.
    fn chance() -> BoxedStrategy<Chance> {
        prop_oneof![Just(0.0), Just(1.0), Just(f64::MIN_POSITIVE), 0.0..=1.0]
            .prop_map(|probability| Chance::new(probability).unwrap())
            .boxed()
    }

    /// Chances as people write them. JSON numbers of more digits are read with an error in the last.
    fn short_chance() -> BoxedStrategy<Chance> {
        (0..=1000u16).prop_map(|thousandths| Chance::new(f64::from(thousandths) / 1000.0).unwrap()).boxed()
    }

    fn fault() -> impl Strategy<Value = Fault> {
        let status = || prop_oneof![Just(ServerStatus::Internal), Just(ServerStatus::Unavailable)];
        prop_oneof![
            proptest::sample::select(&ThrottleCode::ALL[..]).prop_map(Fault::Throttle),
            status().prop_map(Fault::ServerError),
            status().prop_map(Fault::ServerErrorApplied),
            Just(Fault::Hang),
            Just(Fault::HangApplied),
            Just(Fault::LoseReply),
            Just(Fault::Reset),
            (0..=DELAY_MS_MAX).prop_map(|ms| Fault::DelayRequest { ms }),
            (0..=DELAY_MS_MAX).prop_map(|ms| Fault::DelayReply { ms }),
            (chance(), any::<bool>())
                .prop_map(|(share, at_least_one)| Fault::Partial { share, at_least_one }),
        ]
    }

    fn rule(chance: BoxedStrategy<Chance>) -> impl Strategy<Value = Rule> {
        let on = prop_oneof![Just("*".to_owned()), "[A-Za-z][A-Za-z0-9]{0,40}"];
        (on, fault(), chance, any::<u32>(), any::<Option<u32>>()).prop_map(
            |(on, fault, chance, skip, times)| {
                let partial = matches!(fault, Fault::Partial { .. });
                let on = read_on("", if partial { "PutRecords" } else { &on }).unwrap();
                Rule { on, fault, chance, skip, times }
            },
        )
    }

    proptest! {
        #[test]
        fn a_rendered_rule_reads_back(rule in rule(chance())) {
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }

        #[test]
        fn a_script_in_json_reads_back(seed: u64, rules in proptest::collection::vec(rule(short_chance()), 0..4)) {
            let script = Script::new(seed, rules);
            let read = Script::from_json(script.to_json().to_string().as_bytes()).unwrap();
            prop_assert_eq!(read.seed(), script.seed());
            prop_assert_eq!(read.rules(), script.rules());
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[A-Za-z*=(),.+#@0-9 é]{0,40}") {
            let _ = text.parse::<Rule>();
        }
    }
}
