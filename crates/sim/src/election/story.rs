//! Writes and answers in a few words, for the record of a run.

use std::fmt;

use tenure_election::{Answer, Attempt, Lock, Nonce};

use crate::scenario::name;

/// A write in a few words.
pub(super) struct Brief<'a>(pub(super) &'a Attempt);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Attempt::Acquire(acquire) => {
                let owner = acquire.owner.as_str().chars().next().unwrap_or('?');
                write!(f, "claim of {owner}, epoch {}, rvn {}", acquire.epoch, Short(acquire.rvn))?;
                match &acquire.over {
                    Some(over) => write!(
                        f,
                        ", over {}",
                        over.rvn.map_or_else(|| "a foreign row".to_owned(), |rvn| Short(rvn).to_string())
                    ),
                    None => f.write_str(", over no row"),
                }
            }
            Attempt::Renew(renew) => {
                write!(
                    f,
                    "renewal of epoch {}, rvn {} to {}",
                    renew.epoch,
                    Short(renew.current),
                    Short(renew.fresh)
                )
            }
            Attempt::Release(release) => {
                write!(
                    f,
                    "release of epoch {}, rvn {} to {}",
                    release.epoch,
                    Short(release.current),
                    Short(release.fresh)
                )?;
                release.reserved_for.as_ref().map_or(Ok(()), |name| write!(f, ", for {name}"))
            }
        }
    }
}

/// The part of a nonce by which this world tells it from others: node and step.
struct Short(Nonce);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, step) = ((self.0.0 >> 112) as u64, (self.0.0 >> 64) as u64 & 0xffff_ffff_ffff);
        match node {
            0 => write!(f, "?"),
            node => write!(f, "{}{step}", name(usize::try_from(node - 1).unwrap_or(0))),
        }
    }
}

/// An answer in a few words.
pub(super) struct Told<'a>(pub(super) &'a Answer);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |lock: &Option<Lock>| match lock {
            Some(lock) => {
                let owner = lock.owner.as_str().chars().next().unwrap_or('?');
                let epoch = lock.epoch.map_or(0, |epoch| epoch.0);
                let rvn = lock.rvn.map_or_else(|| "?".to_owned(), |rvn| Short(rvn).to_string());
                format!("{owner} epoch {epoch} ttl {} rvn {rvn}", lock.ttl)
            }
            None => "no row".to_owned(),
        };
        match self.0 {
            Answer::Rows(rows) => match &rows.lock {
                Some(_) => f.write_str(&row(&rows.lock)),
                None => write!(f, "no row, fence {:?}", rows.fence.map(|mark| mark.epoch.0)),
            },
            Answer::Applied { .. } => f.write_str("applied"),
            Answer::RefusedByLock(lock) => write!(f, "refused: {}", row(lock)),
            Answer::RefusedByFence(mark) => write!(f, "refused: fence {:?}", mark.map(|mark| mark.epoch.0)),
            Answer::Unknown => f.write_str("unknown"),
            Answer::Failed => f.write_str("failed"),
            Answer::Foreign(what) => write!(f, "foreign: {what}"),
        }
    }
}
