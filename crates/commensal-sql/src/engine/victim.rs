//! Who has to go when memory is short: of a group above its hard limit, and of the groups of a process that is short.
//!
//! Pure. A query that was told to end and still holds memory counts as memory that comes back ("pending free"): it is
//! asked for nothing again, and nobody else ends for what it brings. Without that two queries end where one is enough,
//! or none where one more was needed (Doris pull requests 20066 and 32641).

/// A query that holds less than this is spared as long as a larger one is there: it would bring next to nothing.
pub const SPARED_BYTES: usize = 32 << 20;

/// A query of a group, as far as memory is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Its number; a larger one began later.
    pub id: u64,
    /// Bytes that it has reserved.
    pub held: usize,
    /// Bytes that it may have for itself, as far as such a share is known.
    pub share: Option<usize>,
    /// It was told to end already.
    pub dying: bool,
}

impl Holder {
    /// How far above its share it is.
    fn excess(&self) -> usize {
        self.share.map_or(0, |share| self.held.saturating_sub(share))
    }
}

/// What comes back without anybody else's end.
#[must_use]
pub fn pending_free(holders: &[Holder]) -> usize {
    holders.iter().filter(|holder| holder.dying).fold(0, |sum, holder| sum.saturating_add(holder.held))
}

/// The queries that have to end so that `need` bytes come back, the first to be ended first. Empty when what is dying
/// already brings them.
///
/// Of those above their share, or of all when nobody is: the smallest one that alone brings what is missing; else the
/// largest, and the same again for the rest. Of equals the one that began last.
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

/// How `need` bytes are asked of groups in proportion to what each has above its share: as many numbers as `excess`, none
/// above its excess. Together they are `need`, or all there is.
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
        // What is left of a division goes to the next one, so that the parts add up.
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

    /// Held MiB of queries 1, 2, ...; a negative number is one that dies.
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

    // promise 55
    #[test]
    fn exactly_one_victim_when_one_is_enough() {
        // Every mix of six sizes for four queries, and every need that one alone can bring.
        let sizes = [0, 40, 100, 333, 700, 1500];
        for mix in 0..sizes.len().pow(4) {
            let held: Vec<i64> = (0..4).map(|at| sizes[mix / sizes.len().pow(at) % sizes.len()]).collect();
            let largest = held.iter().copied().max().unwrap() as usize;
            for need in [1, 39, 40, 99, 334, 1500].into_iter().filter(|need| *need <= largest) {
                assert_eq!(choose(&holders(&held, None), need * MIB).len(), 1, "{held:?} {need}");
            }
        }
    }

    // promise 55
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
