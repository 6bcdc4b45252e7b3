//! Flattens the weights of nested groups: computes the share of the offline CPU time that each cgroup with threads
//! gets. No function here has side effects.
//!
//! A cgroup's share is its parent's share times its weight, divided by the sum of the weights of all siblings that
//! contain threads. Threads in the parent itself count as one child of weight 100, as in the kernel.

/// A cgroup, with the properties that its share depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Inode of the cgroup's directory.
    pub id: u64,
    /// The cgroup's `cpu.weight`, or the weight configured for the group.
    pub weight: u64,
    /// Whether the cgroup itself (not only its children) has threads.
    pub busy: bool,
    /// Child cgroups.
    pub children: Vec<Node>,
}

/// Weight of the threads in a cgroup itself, relative to its child cgroups.
const OWN: u64 = 100;
/// The sum of all shares; large enough that small shares are not rounded to 0.
pub const WHOLE: u64 = 1_000_000;

/// Returns the ID and the share of each cgroup with threads; the shares are fractions of [`WHOLE`].
#[must_use]
pub fn flatten(tops: &[Node]) -> Vec<(u64, u64)> {
    let mut shares = Vec::new();
    divide(tops, WHOLE, 0, &mut shares);
    shares
}

fn divide(nodes: &[Node], whole: u64, own: u64, shares: &mut Vec<(u64, u64)>) {
    let active = || nodes.iter().filter(|node| alive(node));
    let sum: u64 = active().map(|node| node.weight.max(1)).sum::<u64>() + own;
    for node in active() {
        let share = (u128::from(whole) * u128::from(node.weight.max(1)) / u128::from(sum.max(1))) as u64;
        let below = node.children.iter().any(alive);
        if node.busy {
            let all: u64 =
                node.children.iter().filter(|child| alive(child)).map(|child| child.weight.max(1)).sum();
            let mine = if below {
                u128::from(share) * u128::from(OWN) / u128::from(all + OWN)
            } else {
                share.into()
            };
            shares.push((node.id, (mine as u64).max(1)));
        }
        divide(&node.children, share, if node.busy { OWN } else { 0 }, shares);
    }
}

fn alive(node: &Node) -> bool {
    node.busy || node.children.iter().any(alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(id: u64, weight: u64) -> Node {
        Node { id, weight, busy: true, children: Vec::new() }
    }

    fn check(tops: &[Node], expect: &[(u64, u64)]) {
        assert_eq!(flatten(tops), expect);
    }

    #[test]
    fn shares_multiply_down_the_tree() {
        check(&[leaf(1, 300), leaf(2, 100)], &[(1, 750_000), (2, 250_000)]);
        // A group without threads gets nothing.
        check(&[leaf(1, 100), Node { busy: false, ..leaf(2, 900) }], &[(1, 1_000_000)]);
        let nested = Node { id: 1, weight: 100, busy: false, children: vec![leaf(3, 200), leaf(4, 600)] };
        check(&[nested.clone(), leaf(2, 100)], &[(3, 125_000), (4, 375_000), (2, 500_000)]);
        // The group's own threads compete with its children.
        check(
            &[Node { busy: true, ..nested }, leaf(2, 100)],
            &[(1, 55_555), (3, 111_111), (4, 333_333), (2, 500_000)],
        );
        check(&[], &[]);
    }
}
