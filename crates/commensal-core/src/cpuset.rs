//! Sets of CPUs or memory nodes in the kernel's list format (`0-3,8`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A set of CPU (or NUMA node) numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet(BTreeSet<u32>);

/// The largest number accepted: far above the `CONFIG_NR_CPUS` of any kernel (8192), so that a typo such as
/// `0-4294967295` is refused instead of using gigabytes of memory.
const MAX_CPU: u32 = 65_535;

/// The error of a string that is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a CPU list such as \"0-3,8\"")]
pub struct CpuSetError {
    /// The string.
    pub given: String,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// Number of CPUs in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: u32) {
        self.0.insert(cpu);
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether every CPU of `self` is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }

    /// The CPUs that are in at least one of the two sets.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// The CPUs that are in `self` but not in `other`.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;
    /// Parses the lists that the kernel prints and accepts: `0-3,8`, in any order, with repetitions. An empty string is
    /// the empty set. Strides (`0-10:2/4`), which the kernel never prints, are refused.
    fn from_str(text: &str) -> Result<CpuSet, CpuSetError> {
        let refused = || CpuSetError { given: text.to_owned() };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| refused())?;
            let last: u32 = last.trim().parse().map_err(|_| refused())?;
            if first > last || last > MAX_CPU {
                return Err(refused());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

impl fmt::Display for CpuSet {
    /// Writes the set as the kernel does: in ascending order, with `-` for runs of numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<u32> = self.iter().collect();
        let runs = cpus.chunk_by(|a, b| a + 1 == *b);
        for (index, run) in runs.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        let got = text.parse::<CpuSet>().map_or_else(|_| "refused".to_owned(), |set| set.to_string());
        assert_eq!(got, expect, "parsing {text:?}");
    }

    #[test]
    fn parses_and_prints_as_the_kernel_does() {
        check("1,0,1", "0-1");
        check("0-3,8,10-11\n", "0-3,8,10-11");
        check("", "");
        check("3-1", "refused");
        check("a", "refused");
        check("0-4294967295", "refused");
        check("-1", "refused");
    }

    #[test]
    fn set_operations() {
        let a: CpuSet = "0-3".parse().unwrap();
        let b: CpuSet = "2-5".parse().unwrap();
        assert_eq!(a.union(&b).to_string(), "0-5");
        assert_eq!(a.difference(&b).to_string(), "0-1");
        assert!(!a.is_subset(&b));
        assert!(CpuSet::new().is_subset(&a));
    }
}
