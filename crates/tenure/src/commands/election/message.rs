//! What `tenure elect` and its guard tell each other: short lines over a socket.

use std::fmt;
use std::str::FromStr;

use tenure_clock::Monotonic;

/// To the guard. That the socket closes is an order, too: [`Order::Kill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The term was renewed until then. CLOCK_BOOTTIME is one for all processes of a machine, so a line
    /// that is read late stretches nothing.
    Until(Monotonic),
    /// Ask the command to end, and kill it after the grace.
    Stop,
    /// Kill it.
    Kill,
}

/// From the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The command's process, which leads a group of its own.
    Begun(i32),
    /// No renewal came in time: the command is asked to end.
    Late,
    /// The command and all that it started are gone; its exit status, as a shell would tell it.
    Ended(u8),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(deadline) => write!(f, "until {}", deadline.as_nanos()),
            Self::Stop => f.write_str("stop"),
            Self::Kill => f.write_str("kill"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun(process) => write!(f, "begun {process}"),
            Self::Late => f.write_str("late"),
            Self::Ended(status) => write!(f, "ended {status}"),
        }
    }
}

impl FromStr for Order {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        Ok(match line.split_once(' ') {
            Some(("until", nanos)) => Self::Until(Monotonic::from_nanos(nanos.parse()?)),
            None if line == "stop" => Self::Stop,
            None if line == "kill" => Self::Kill,
            _ => anyhow::bail!("not an order: {line:?}"),
        })
    }
}

impl FromStr for Report {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        Ok(match line.split_once(' ') {
            Some(("begun", process)) => Self::Begun(process.parse()?),
            Some(("ended", status)) => Self::Ended(status.parse()?),
            None if line == "late" => Self::Late,
            _ => anyhow::bail!("not a report: {line:?}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for order in [Order::Until(Monotonic::from_nanos(17)), Order::Stop, Order::Kill] {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        for report in [Report::Begun(17), Report::Late, Report::Ended(255)] {
            assert_eq!(report.to_string().parse::<Report>().unwrap(), report);
        }
        assert!("until".parse::<Order>().is_err() && "ended 256".parse::<Report>().is_err());
    }
}
