//! Chooses the victims (the queries to cancel) when memory is short: in a group above its hard limit, or across groups
//! when the process is short of memory.
//!
//! The functions have no side effects. Memory that a cancelled query still holds counts as already being freed
//! ("pending free"): that query is not chosen again, and no other query is cancelled for the same bytes. Without this
//! rule, two queries could be cancelled where one is enough, or no further query although one more is needed (Doris
//! pull requests 20066 and 32641).

/// A query that holds less than this is not chosen as long as there is a larger query, because cancelling a small query
/// would free little.
pub const SPARED_BYTES: usize = 32 << 20;

/// A query of a group, with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Query number; later queries have larger numbers.
    pub id: u64,
    /// Bytes that the query has reserved.
    pub held: usize,
    /// The query's share of the group's memory in bytes, if known.
    pub share: Option<usize>,
    /// Whether the query was already cancelled.
    pub dying: bool,
}

impl Holder {
    /// Returns the bytes by which the query exceeds its share.
    fn excess(&self) -> usize {
        self.share.map_or(0, |share| self.held.saturating_sub(share))
    }
}

/// Returns the bytes that will be freed without cancelling another query.
#[must_use]
pub fn pending_free(holders: &[Holder]) -> usize {
    holders.iter().filter(|holder| holder.dying).fold(0, |sum, holder| sum.saturating_add(holder.held))
}

/// Returns the queries to cancel so that `need` bytes are freed, in order. The result is empty if cancelled queries
/// already free enough.
///
/// Candidates are the queries above their share, or all queries if no query is above its share. The smallest candidate
/// that alone frees the missing bytes is chosen. If no candidate frees enough, the largest candidate is chosen, and the
/// choice is repeated for the rest. Of equal candidates, the candidate that started last is chosen.
#[must_use]
pub fn choose(holders: &[Holder], need: usize) -> Vec<u64> {
    let mut missing = need.saturating_sub(pending_free(holders));
    let mut alive: Vec<&Holder> = holders.iter().filter(|holder| !holder.dying && holder.held > 0).collect();
    alive.sort_by_key(|holder| (holder.held, holder.id));
    let mut victims = Vec::new();
    while missing > 0 {
        let large = alive.iter().any(|holder| holder.held >= SPARED_BYTES);
        let spared = |holder: &Holder| large && holder.held < SPARED_BYTES;
        let greedy = alive.iter().any(|holder| !spared(holder) && holder.excess() > 0);
        let eligible = |holder: &Holder| !spared(holder) && (!greedy || holder.excess() > 0);
        let enough = |holder: &Holder| eligible(holder) && holder.held >= missing;
        let Some(smallest) = alive.iter().position(|holder| enough(holder)) else {
            let Some(largest) = alive.iter().rposition(|holder| eligible(holder)) else { break };
            let holder = alive.remove(largest);
            missing = missing.saturating_sub(holder.held);
            victims.push(holder.id);
            continue;
        };
        let held = alive[smallest].held;
        let youngest = alive.iter().rposition(|holder| enough(holder) && holder.held == held);
        victims.push(alive.remove(youngest.unwrap_or(smallest)).id);
        break;
    }
    victims
}

/// Splits `need` bytes among groups in proportion to the excess of each. The result has one number per group, which is
/// at most the group's excess. The sum is `need`, or the sum of all excesses if that is less.
#[must_use]
pub fn in_proportion(excess: &[usize], need: usize) -> Vec<usize> {
    let all: u128 = excess.iter().map(|bytes| *bytes as u128).sum();
    if all == 0 {
        return vec![0; excess.len()];
    }
    let need = (need as u128).min(all);
    let mut given = 0;
    let mut sum = 0;
    let part = |bytes: &usize| {
        // The remainder of each division is carried to the next part, so that the sum is exact.
        sum += *bytes as u128;
        let upto = need * sum / all;
        let part = upto - given;
        given = upto;
        usize::try_from(part).unwrap_or(usize::MAX)
    };
    excess.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Creates queries 1, 2, … that hold this many MiB; a negative number means a query that was already cancelled.
    fn holders(held: &[i64], share: Option<usize>) -> Vec<Holder> {
        let holder = |(at, mib): (usize, &i64)| Holder {
            id: at as u64 + 1,
            held: mib.unsigned_abs() as usize * MIB,
            share: share.map(|mib| mib * MIB),
            dying: *mib < 0,
        };
        held.iter().enumerate().map(holder).collect()
    }

    #[test]
    fn victims() {
        for (held, share, need, want, why) in [
            (&[500, 500, 500][..], None, 100, &[3][..], "one is enough; of equals the youngest"),
            (&[900, 300, 600], None, 400, &[3], "the smallest that alone is enough"),
            (&[900, 300, 600], None, 1000, &[1, 2], "the largest, then the smallest that brings the rest"),
            (&[900, 300, 600], None, 5000, &[1, 3, 2], "all of them are not enough"),
            (&[10, 20, 900], None, 5, &[3], "the small ones are spared"),
            (&[10, 20, 30], None, 25, &[3], "all are small"),
            (&[10, 20, 30], None, 40, &[3, 1], "all are small, and more is missing"),
            (&[-500, 500, 500], None, 400, &[], "one dies already and brings enough"),
            (&[-500, 500, 500], None, 600, &[3], "one dies already and brings too little"),
            (&[-500, -500], None, 2000, &[], "nobody is left"),
            (&[0, 0], None, 10, &[], "nobody holds anything"),
            (&[1600, 100], Some(850), 10, &[1], "who is above its share comes before who is within"),
            (&[800, 700, 100], Some(500), 750, &[1], "the smallest of those above that is enough"),
            (&[800, 700, 600], Some(650), 1400, &[1, 2], "those above are enough together"),
            (&[800, 700, 600], Some(650), 1600, &[1, 2, 3], "those above are not enough; then within"),
            (&[500], None, 0, &[], "nothing is missing"),
        ] {
            let got = choose(&holders(held, share), need * MIB);
            assert_eq!(got, want, "{why}");
        }
    }

    // promise 46
    #[test]
    fn exactly_one_victim_when_one_is_enough() {
        // Checks every combination of six sizes for four queries, and every need that a single query can satisfy.
        let sizes = [0, 40, 100, 333, 700, 1500];
        for mix in 0..sizes.len().pow(4) {
            let held: Vec<i64> = (0..4).map(|at| sizes[mix / sizes.len().pow(at) % sizes.len()]).collect();
            let largest = held.iter().copied().max().unwrap() as usize;
            for need in [1, 39, 40, 99, 334, 1500].into_iter().filter(|need| *need <= largest) {
                assert_eq!(choose(&holders(&held, None), need * MIB).len(), 1, "{held:?} {need}");
            }
        }
    }

    // promise 46
    #[test]
    fn the_soft_limit_asks_in_proportion() {
        for (excess, need, want) in [
            (&[300, 100][..], 200, &[150, 50][..]),
            (&[300, 100], 4_000, &[300, 100]),
            (&[0, 100], 10, &[0, 10]),
            (&[0, 0], 10, &[0, 0]),
            (&[1, 1, 1], 2, &[0, 1, 1]),
            (&[], 10, &[]),
            (&[usize::MAX, usize::MAX], 10, &[5, 5]),
        ] {
            assert_eq!(in_proportion(excess, need), want, "{excess:?} {need}");
        }
    }
}
