//! Bytes delivered within short windows of time, to check whether a limit is kept.

/// Length of the short window.
const SHORT_NS: u64 = 100_000_000;
/// Number of short windows in a long one.
const IN_LONG: usize = 10;

/// Counts delivered bytes by time: the total, the bytes of the last second, and the maxima within 100 ms and within 1
/// s.
///
/// A short window starts at each full 100 ms of the clock. A long window is any ten consecutive short ones, including
/// the unfinished current one. Windows depend on elapsed time, not on how often methods are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    total: u64,
    /// Index of the current short window since the clock's start.
    number: u64,
    /// Bytes of the current short window and of the ten before it, newest first.
    recent: [u64; IN_LONG + 1],
    most_100ms: u64,
    most_1s: u64,
}

impl Windows {
    /// Counts `bytes` that were delivered at `now_ns`. A time earlier than a previous one counts as the latest time so
    /// far.
    pub fn record(&mut self, now_ns: u64, bytes: u64) {
        self.pass(now_ns);
        self.total = self.total.saturating_add(bytes);
        self.recent[0] = self.recent[0].saturating_add(bytes);
        self.most_100ms = self.most_100ms.max(self.recent[0]);
        self.most_1s = self.most_1s.max(sum(&self.recent[..IN_LONG]));
    }

    /// Returns all bytes so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the bytes delivered in the last ten complete short windows (1 s): the current rate.
    pub fn last_second(&mut self, now_ns: u64) -> u64 {
        self.pass(now_ns);
        sum(&self.recent[1..])
    }

    /// Returns the largest number of bytes delivered in one window of 100 ms.
    #[must_use]
    pub fn most_100ms(&self) -> u64 {
        self.most_100ms
    }

    /// Returns the largest number of bytes delivered in one window of 1 s.
    #[must_use]
    pub fn most_1s(&self) -> u64 {
        self.most_1s
    }

    fn pass(&mut self, now_ns: u64) {
        let number = now_ns / SHORT_NS;
        let passed = number.saturating_sub(self.number);
        self.number = self.number.max(number);
        let passed = usize::try_from(passed).unwrap_or(usize::MAX).min(self.recent.len());
        self.recent.rotate_right(passed);
        self.recent[..passed].fill(0);
    }
}

fn sum(windows: &[u64]) -> u64 {
    windows.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn maxima_are_of_elapsed_time() {
        let mut windows = Windows::default();
        for (ms, bytes) in [(0, 5), (99, 5), (100, 3), (950, 4), (1_049, 2), (1_900, 1)] {
            windows.record(ms * MS, bytes);
        }
        assert_eq!((windows.total(), windows.most_100ms()), (20, 10));
        // The window of 0 to 999 ms has 17; that of 100 to 1,049 ms has only 9.
        assert_eq!(windows.most_1s(), 17);
        assert_eq!(windows.last_second(2_000 * MS), 3);
        assert_eq!(windows.last_second(2_900 * MS), 1);
        assert_eq!(windows.last_second(3_000 * MS), 0);
        assert_eq!(windows.most_1s(), 17);
    }

    #[test]
    fn clocks_that_jump() {
        let mut windows = Windows::default();
        windows.record(u64::MAX, 7);
        windows.record(0, 7);
        assert_eq!((windows.most_100ms(), windows.last_second(u64::MAX)), (14, 0));
        windows.record(u64::MAX, u64::MAX);
        assert_eq!((windows.total(), windows.most_1s()), (u64::MAX, u64::MAX));
    }
}
