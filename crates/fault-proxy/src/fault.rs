//! What can be done to a request, and how each fault is written.
//!
//! The point of every fault is one pair of answers: did the emulator apply the request, and what did
//! the client see? [`Fault`]'s table says both, and the tests hold the proxy to it.

use std::fmt;

use crate::rule::Chance;

/// The longest delay, so that a slip of the unit (`20s` for `20ms`) is the worst that can be written
/// and no request is parked for the rest of a run.
pub(crate) const DELAY_MS_MAX: u32 = 600_000;

/// One way to break a request.
///
/// | Fault | Applied by the emulator | The client sees |
/// |---|---|---|
/// | `throttle` | no | 400 with the service's throttling error |
/// | `server_error` | no | 500 or 503 |
/// | `server_error_applied` | yes | 500 or 503 |
/// | `hang` | no | nothing, until it leaves |
/// | `hang_applied` | yes | nothing, until it leaves |
/// | `lose_reply` | yes | the connection closes |
/// | `reset` | no | the connection is reset (TCP RST) |
/// | `delay_request` | yes, late | the reply, late |
/// | `delay_reply` | yes, at once | the reply, late |
/// | `partial` | the records that were not drawn | 200 with an `ErrorCode` in each drawn record's place |
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Refused with the service's own throttling error.
    Throttle(ThrottleCode),
    /// Refused with a server's error.
    ServerError(ServerStatus),
    /// Applied, then answered with a server's error.
    ServerErrorApplied(ServerStatus),
    /// Never forwarded, never answered.
    Hang,
    /// Applied, never answered.
    HangApplied,
    /// Applied, then the connection is closed.
    LoseReply,
    /// The connection is reset before anything is forwarded.
    Reset,
    /// Forwarded after this many milliseconds.
    DelayRequest {
        /// How long the request is held back.
        ms: u32,
    },
    /// Forwarded at once, answered after this many milliseconds.
    DelayReply {
        /// How long the reply is held back.
        ms: u32,
    },
    /// PutRecords only: records are drawn one by one and refused in their place.
    Partial {
        /// The chance of each record to be refused.
        share: Chance,
        /// Draw one more record if none was drawn.
        at_least_one: bool,
    },
}

/// The error code of a throttled request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThrottleCode {
    /// What tables and shards answer when they are over their capacity.
    #[default]
    ProvisionedThroughputExceededException,
    /// What control plane calls answer.
    LimitExceededException,
    /// What DynamoDB answers when the account is over its limit.
    RequestLimitExceeded,
    /// What the services' front doors answer.
    ThrottlingException,
}

/// The status of an invented server's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerStatus {
    /// 500.
    #[default]
    Internal,
    /// 503.
    Unavailable,
}

impl ThrottleCode {
    pub(crate) const ALL: [Self; 4] = [
        Self::ProvisionedThroughputExceededException,
        Self::LimitExceededException,
        Self::RequestLimitExceeded,
        Self::ThrottlingException,
    ];

    /// The code as it stands in `__type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProvisionedThroughputExceededException => "ProvisionedThroughputExceededException",
            Self::LimitExceededException => "LimitExceededException",
            Self::RequestLimitExceeded => "RequestLimitExceeded",
            Self::ThrottlingException => "ThrottlingException",
        }
    }
}

impl ServerStatus {
    /// The HTTP status.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        match self {
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }
}

// === The written form ===

/// Each fault's name, its written form and what it does: the source of `--help` and of error messages.
pub(crate) const FORMS: [(&str, &str, &str); 10] = [
    ("throttle", "throttle[(CODE)]", "not applied; 400 with the service's throttling error"),
    ("server_error", "server_error[(500|503)]", "not applied; the status given, 500 by default"),
    ("server_error_applied", "server_error_applied[(500|503)]", "applied, then answered as server_error"),
    ("hang", "hang", "not applied, never answered"),
    ("hang_applied", "hang_applied", "applied, never answered"),
    ("lose_reply", "lose_reply", "applied, then the connection is closed"),
    ("reset", "reset", "not applied; the connection is reset"),
    ("delay_request", "delay_request(20ms)", "applied and answered late; `delay` for short"),
    ("delay_reply", "delay_reply(2s)", "applied at once, answered late"),
    ("partial", "partial(SHARE[, at_least_one])", "PutRecords only: that share of the records fails"),
];

/// A shorter name for the fault that most scripts mean by it.
const DELAY_ALIAS: &str = "delay";

/// What is wrong with a fault's text, and what would be right.
pub(crate) struct BadFault {
    pub(crate) part: String,
    pub(crate) problem: String,
    pub(crate) valid: String,
}

impl Fault {
    /// The fault's name, without its arguments.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Throttle(_) => "throttle",
            Self::ServerError(_) => "server_error",
            Self::ServerErrorApplied(_) => "server_error_applied",
            Self::Hang => "hang",
            Self::HangApplied => "hang_applied",
            Self::LoseReply => "lose_reply",
            Self::Reset => "reset",
            Self::DelayRequest { .. } => "delay_request",
            Self::DelayReply { .. } => "delay_reply",
            Self::Partial { .. } => "partial",
        }
    }

    /// Reads a fault out of its name and what stood in parentheses, if anything did.
    pub(crate) fn from_parts(name: &str, arguments: Option<&str>) -> Result<Self, BadFault> {
        match name {
            "throttle" => Ok(Self::Throttle(throttle_code(arguments)?)),
            "server_error" => Ok(Self::ServerError(server_status(name, arguments)?)),
            "server_error_applied" => Ok(Self::ServerErrorApplied(server_status(name, arguments)?)),
            "hang" => bare(Self::Hang, arguments),
            "hang_applied" => bare(Self::HangApplied, arguments),
            "lose_reply" => bare(Self::LoseReply, arguments),
            "reset" => bare(Self::Reset, arguments),
            "delay_request" | DELAY_ALIAS => Ok(Self::DelayRequest { ms: delay_ms(name, arguments)? }),
            "delay_reply" => Ok(Self::DelayReply { ms: delay_ms(name, arguments)? }),
            "partial" => partial(arguments),
            _ => Err(unknown(name)),
        }
    }
}

/// The written form, which reads back as the same fault.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Throttle(code) if *code != ThrottleCode::default() => write!(f, "({})", code.as_str()),
            Self::ServerError(status) | Self::ServerErrorApplied(status)
                if *status != ServerStatus::default() =>
            {
                write!(f, "({})", status.as_u16())
            }
            Self::DelayRequest { ms } | Self::DelayReply { ms } => write!(f, "({ms}ms)"),
            Self::Partial { share, at_least_one: false } => write!(f, "({share})"),
            Self::Partial { share, at_least_one: true } => write!(f, "({share}, at_least_one)"),
            _ => Ok(()),
        }
    }
}

fn unknown(name: &str) -> BadFault {
    let names = FORMS.iter().map(|(name, ..)| *name).chain([DELAY_ALIAS]);
    let forms: Vec<_> = FORMS.iter().map(|(_, form, _)| *form).collect();
    BadFault {
        part: "fault".to_owned(),
        problem: format!("`{name}` is not known{}", nearest(name, names)),
        valid: forms.join(", "),
    }
}

fn bare(fault: Fault, arguments: Option<&str>) -> Result<Fault, BadFault> {
    match arguments {
        None => Ok(fault),
        Some(arguments) => Err(bad_argument(fault.name(), arguments, "is one too many")),
    }
}

fn throttle_code(arguments: Option<&str>) -> Result<ThrottleCode, BadFault> {
    let Some(code) = arguments else { return Ok(ThrottleCode::default()) };
    ThrottleCode::ALL.into_iter().find(|known| known.as_str() == code).ok_or_else(|| {
        let codes = ThrottleCode::ALL.map(ThrottleCode::as_str);
        BadFault {
            part: "argument of throttle".to_owned(),
            problem: format!("`{code}` is not a throttling code{}", nearest(code, codes.into_iter())),
            valid: codes.map(|code| format!("throttle({code})")).join(", "),
        }
    })
}

fn server_status(name: &str, arguments: Option<&str>) -> Result<ServerStatus, BadFault> {
    match arguments {
        None | Some("500") => Ok(ServerStatus::Internal),
        Some("503") => Ok(ServerStatus::Unavailable),
        Some(other) => Err(bad_argument(name, other, "is neither 500 nor 503")),
    }
}

fn delay_ms(name: &str, arguments: Option<&str>) -> Result<u32, BadFault> {
    let text = arguments.unwrap_or_default();
    let (number, scale) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or_default(), 1000),
    };
    // Digits alone: `parse` would take a sign as well.
    let digits = number.chars().all(|digit| digit.is_ascii_digit());
    let ms = number.parse::<u32>().ok().and_then(|number| number.checked_mul(scale));
    match ms.filter(|_| digits) {
        Some(ms) if ms <= DELAY_MS_MAX => Ok(ms),
        Some(_) => Err(bad_argument(name, text, "is more than 600s")),
        None => Err(bad_argument(name, text, "is not a whole number of ms or s")),
    }
}

fn partial(arguments: Option<&str>) -> Result<Fault, BadFault> {
    let text = arguments.unwrap_or_default();
    let (share, at_least_one) = match text.split_once(',') {
        None => (text, false),
        Some((share, flag)) if flag.trim() == "at_least_one" => (share.trim(), true),
        Some((_, flag)) => return Err(bad_argument("partial", flag.trim(), "is not `at_least_one`")),
    };
    let share =
        Chance::read(share).ok_or_else(|| bad_argument("partial", share, "is not a decimal from 0 to 1"))?;
    Ok(Fault::Partial { share, at_least_one })
}

fn bad_argument(name: &str, argument: &str, problem: &str) -> BadFault {
    let canonical = if name == DELAY_ALIAS { "delay_request" } else { name };
    let form = FORMS.iter().find(|(known, ..)| *known == canonical).map_or("", |(_, form, _)| form);
    let problem =
        if argument.is_empty() { "is missing".to_owned() } else { format!("`{argument}` {problem}") };
    BadFault { part: format!("argument of {name}"), problem, valid: form.to_owned() }
}

/// `, did you mean …?` if some known word is near enough to be meant.
fn nearest(word: &str, known: impl Iterator<Item = &'static str>) -> String {
    // 0.75 lets a dropped or swapped letter through and keeps unrelated names out.
    known
        .map(|name| (strsim::jaro_winkler(&word.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|one, two| one.0.total_cmp(&two.0))
        .map_or_else(String::new, |(_, name)| format!(", did you mean `{name}`?"))
}
