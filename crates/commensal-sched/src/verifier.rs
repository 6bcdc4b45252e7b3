//! Compares the verifier's statistics with a baseline. If a BPF program has grown much, another kernel is more likely
//! to refuse it. No function here has side effects.

use crate::loader::Verified;
use std::collections::BTreeMap;

/// Growth above which a program is reported, in per cent. Kernels and compilers cause differences of a few per cent.
const GROWTH_PERCENT: u64 = 50;

/// Lists the programs that have grown or are not in the baseline. The baseline has lines `PROGRAM INSTRUCTIONS STATES`;
/// `#` begins a comment.
#[must_use]
pub fn compare(baseline: &str, found: &[Verified]) -> Vec<String> {
    let lines = baseline.lines().filter(|line| !line.starts_with('#'));
    let known: BTreeMap<&str, u64> = lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?.parse().ok()?))
        })
        .collect();
    let mut worse = Vec::new();
    for one in found {
        match known.get(one.name.as_str()) {
            None => worse.push(format!("{} is not in the baseline", one.name)),
            Some(before) if one.instructions * 100 > before * (100 + GROWTH_PERCENT) => worse.push(format!(
                "{}: the verifier checked {} instructions, {before} in the baseline",
                one.name, one.instructions
            )),
            Some(_) => {}
        }
    }
    let gone = known.keys().filter(|name| !found.iter().any(|one| one.name == **name));
    worse.extend(gone.map(|name| format!("{name} is in the baseline but was not loaded")));
    worse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_and_strangers_are_told() {
        let one = |name: &str, instructions| Verified { name: name.to_owned(), instructions, states: 1 };
        let baseline = "# kernel 7.2\na 100 5\nb 100 5\nc 100 5\n";
        assert_eq!(compare(baseline, &[one("a", 150), one("b", 100), one("c", 1)]), Vec::<String>::new());
        let worse = compare(baseline, &[one("a", 151), one("b", 100), one("d", 1)]);
        assert_eq!(worse.len(), 3, "{worse:?}");
        assert!(worse[0].contains("151") && worse[1].contains("d is not") && worse[2].contains("c is in"));
    }
}
