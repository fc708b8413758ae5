//! Who reads which shard: the decision of one reader, from the rows it sees. Pure.
//!
//! Nobody hands out shards. Each reader looks at the rows now and then and makes at most one move:
//! it takes a shard that nobody works on, or gives one back if another reader has too few.
//! Every move is a conditional write, so two that want the same shard end up as one owner.
//!
//! Whether somebody still works is judged by a counter that must move, watched on one's own
//! monotonic clock: nobody's wall clock matters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::Monotonic;
use tenure_stream::{Shard, ShardId};

use super::rows::ShardRow;

/// A counter that stood still for so long belongs to somebody who has gone.
///
/// Five renewals fit in it, so that one slow commit costs nobody a shard.
pub(super) const TAKEOVER: Duration = Duration::from_secs(2);

/// When each counter was last seen to move.
#[derive(Debug, Default)]
pub(super) struct Watch(BTreeMap<String, (u64, Monotonic)>);

impl Watch {
    /// How long the counter has stood at this value, as far as this reader saw.
    pub(super) fn unmoved(&mut self, name: &str, counter: u64, now: Monotonic) -> Duration {
        let (seen, since) = self.0.entry(name.to_owned()).or_insert((counter, now));
        if *seen != counter {
            (*seen, *since) = (counter, now);
        }
        now.since(*since)
    }
}

/// What one reader sees.
pub(super) struct View<'a> {
    pub me: &'a str,
    /// Readers whose heartbeat moves, this one included.
    pub live: &'a BTreeSet<String>,
    /// The shards of the stream, closed ones included.
    pub shards: &'a [Shard],
    pub rows: &'a BTreeMap<ShardId, ShardRow>,
    /// Shards whose version has stood still too long.
    pub stale: &'a BTreeSet<ShardId>,
    /// What this reader believes to hold.
    pub held: &'a BTreeSet<ShardId>,
}

/// What to do about the division.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Move {
    Take(ShardId),
    Release(ShardId),
}

/// At most one move, so that readers that start together do not all take everything.
pub(super) fn next_move(view: &View<'_>) -> Option<Move> {
    let readable: Vec<&ShardId> =
        view.shards.iter().filter(|shard| is_readable(view, shard)).map(|s| &s.id).collect();
    let readers = view.live.len().max(1);
    let (fewest, most) = (readable.len() / readers, readable.len().div_ceil(readers));
    if view.held.len() < most {
        let free: Vec<_> = readable.iter().filter(|shard| is_free(view, shard)).collect();
        // Readers begin at different places, so that they seldom want the same shard.
        let rank = view.live.iter().position(|reader| reader == view.me).unwrap_or(0);
        if !free.is_empty() {
            return Some(Move::Take((**free[rank % free.len()]).clone()));
        }
    }
    let starved = |reader: &String| {
        let owns = readable.iter().filter(|shard| owner(view, shard) == Some(reader.as_str())).count();
        reader != view.me && owns < fewest
    };
    if view.held.len() > fewest && view.live.iter().any(starved) {
        return view.held.iter().next_back().cloned().map(Move::Release);
    }
    None
}

/// Not read to its end, and everything before it is.
fn is_readable(view: &View<'_>, shard: &Shard) -> bool {
    let ended = |id: &ShardId| view.rows.get(id).is_some_and(|row| row.ended);
    // A parent that is listed no more went away after its last record did.
    let finished = |id: &ShardId| ended(id) || !view.shards.iter().any(|shard| shard.id == *id);
    !ended(&shard.id) && shard.parents().all(finished)
}

fn owner<'a>(view: &'a View<'_>, shard: &ShardId) -> Option<&'a str> {
    view.rows.get(shard).and_then(|row| row.owner.as_deref())
}

fn is_free(view: &View<'_>, shard: &ShardId) -> bool {
    let Some(row) = view.rows.get(shard) else { return false };
    let unclaimed = row.owner.as_deref().is_none_or(|owner| owner == view.me);
    !view.held.contains(shard) && (unclaimed || view.stale.contains(shard))
}

#[cfg(test)]
mod tests {
    use tenure_stream::{HashRange, SequenceNumber};

    use super::*;

    /// One world per line: `shards; me; live readers; expected`. A shard is `number[<parent]=owner`, with
    /// `-` for nobody, `!` after a stale owner and `end` for one read to its end.
    fn check(worlds: &str) {
        for world in worlds.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let [shards, me, live, expected] =
                world.split(';').map(str::trim).collect::<Vec<_>>().try_into().unwrap();
            let (mut listed, mut rows) = (Vec::new(), BTreeMap::new());
            let (mut stale, mut held) = (BTreeSet::new(), BTreeSet::new());
            for text in shards.split_whitespace() {
                let (name, owner) = text.split_once('=').unwrap();
                let (number, parent) = name.split_once('<').map_or((name, None), |(n, p)| (n, Some(p)));
                let id = |number: &str| ShardId::numbered(number.parse().unwrap());
                let mut row = ShardRow::fresh(id(number));
                match owner {
                    "-" => {}
                    "end" => row.ended = true,
                    owner => row.owner = Some(owner.trim_end_matches('!').to_owned()),
                }
                if owner.ends_with('!') {
                    stale.insert(id(number));
                }
                if owner == me {
                    held.insert(id(number));
                }
                rows.insert(id(number), row);
                listed.push(Shard {
                    id: id(number),
                    parent: parent.map(id),
                    adjacent_parent: None,
                    hash_range: HashRange::ALL,
                    first_sequence: SequenceNumber::from(1),
                    last_sequence: None,
                });
            }
            let live = live.split_whitespace().map(str::to_owned).collect();
            let view = View { me, live: &live, shards: &listed, rows: &rows, stale: &stale, held: &held };
            let shown = match next_move(&view) {
                None => "stay".to_owned(),
                Some(Move::Take(id)) => format!("take {}", id.number().unwrap()),
                Some(Move::Release(id)) => format!("release {}", id.number().unwrap()),
            };
            assert_eq!(shown, expected, "{world}");
        }
    }

    #[test]
    fn readers_divide_the_shards() {
        check(
            "
            0=- 1=- 2=- 3=-   ; a ; a b c ; take 0
            0=- 1=- 2=- 3=-   ; b ; a b c ; take 1
            0=a 1=b 2=c 3=-   ; c ; a b c ; take 3
            0=a 1=b 2=c 3=c   ; a ; a b c ; stay
            0=a 1=a 2=b 3=b   ; a ; a b c ; release 1
            0=a 1=a 2=b 3=b   ; c ; a b c ; stay
            0=a 1=b 2=c 3=c   ; c ; a b c ; stay
            ",
        );
    }

    #[test]
    fn a_silent_readers_shards_are_taken_by_the_others() {
        check(
            "
            0=a 1=b! 2=c 3=b! ; a ; a c   ; take 1
            0=a 1=b  2=c 3=b  ; a ; a c   ; stay
            0=a 1=a  2=c 3=c  ; c ; a b c ; release 3
            ",
        );
    }

    #[test]
    fn children_wait_for_their_parents() {
        check(
            "
            0=a   1<0=- 2<0=- ; b ; a b   ; stay
            0=end 1<0=- 2<0=- ; b ; a b   ; take 2
            1<0=- 2<0=-       ; a ; a b   ; take 1
            ",
        );
    }

    #[test]
    fn a_counter_is_stale_by_ones_own_clock() {
        let at = |millis: u64| Monotonic::from_nanos(millis * 1_000_000);
        let mut watch = Watch::default();
        assert_eq!(watch.unmoved("s", 7, at(100)), Duration::ZERO);
        assert_eq!(watch.unmoved("s", 7, at(900)), Duration::from_millis(800));
        assert_eq!(watch.unmoved("s", 8, at(950)), Duration::ZERO);
        assert_eq!(watch.unmoved("s", 8, at(3000)), Duration::from_millis(2050));
    }
}
