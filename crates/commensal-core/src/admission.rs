//! Admission control: decides which of the jobs that wait for a group may start. Jobs start in the order of their
//! arrival; no job overtakes another.
//!
//! This module only decides; the queue's files and locks are in `commensal-reconcile`'s `queue`. Times are nanoseconds
//! since boot (`CLOCK_BOOTTIME`), a clock that all processes share and that no process can set.

use crate::group::{GroupSpec, OnExceed, Queue};
use crate::units::Millis;
use std::fmt;
use std::time::Duration;

/// Maximum duration of a hold. A running agent renews its holds; if the agent dies, its holds end after at most this
/// time. The limit also ends a hold that is left over from an earlier boot, because the clock restarts at 0.
pub const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// A job's position in the queue: jobs with lower numbers arrived earlier. No number is used twice within a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

impl Number {
    /// Returns the number of a job that arrives at `now_ns` while the numbers in `taken` are in use. The number is the
    /// time of arrival, so it is above the numbers of jobs that have left the queue. If the clock has stopped or
    /// restarted, the number is one above the highest number in `taken`.
    pub fn next(taken: impl IntoIterator<Item = Number>, now_ns: u64) -> Number {
        let highest = taken.into_iter().max();
        Number(highest.map_or(now_ns, |highest| now_ns.max(highest.0.saturating_add(1))))
    }

    /// Parses the number from a file name; `None` if the file is not a ticket, which is the file of one queued job.
    #[must_use]
    pub fn parse(name: &str) -> Option<Number> {
        let ours = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
        name.parse().ok().filter(|_| ours).map(Number)
    }
}

/// The number as a file name: twenty digits, so that names sort in numeric order.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}", self.0)
    }
}

/// A hold, which closes a queue: no job starts, no matter how many jobs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The reason, as readable text.
    pub reason: String,
    /// When the hold began (ns).
    pub since_ns: u64,
    /// When the hold ends unless its owner renews it (ns).
    pub until_ns: u64,
}

impl Hold {
    /// Creates a hold that begins at `now_ns` and lasts for `time`, but at most [`LONGEST_HOLD`].
    #[must_use]
    pub fn new(reason: &str, now_ns: u64, time: Duration) -> Hold {
        let time = u64::try_from(time.min(LONGEST_HOLD).as_nanos()).unwrap_or(u64::MAX);
        Hold { reason: reason.to_owned(), since_ns: now_ns, until_ns: now_ns.saturating_add(time) }
    }

    /// Time left until the hold ends; `None` if the hold has expired, or if its times are impossible on the clock of
    /// this boot.
    #[must_use]
    pub fn left(&self, now_ns: u64) -> Option<Duration> {
        let possible = Duration::from_nanos(self.until_ns.saturating_sub(now_ns)) <= LONGEST_HOLD
            && self.since_ns <= now_ns;
        let left = self.until_ns.checked_sub(now_ns).filter(|left| *left > 0);
        left.filter(|_| possible).map(Duration::from_nanos)
    }
}

/// The current load of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// Number of running jobs.
    pub running: u32,
    /// Number of waiting jobs.
    pub waiting: u32,
    /// The reason of the hold; `None` if the queue is open.
    pub held: Option<String>,
}

/// The decision about a job that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The job starts immediately.
    Begin,
    /// The job waits behind the jobs that arrived earlier.
    Wait,
    /// The queue is full and refuses the job.
    Full,
}

/// Decides whether a job that arrives now starts, waits or is refused. If a slot is free and no job waits, the job
/// starts even if `max_size` is 0.
#[must_use]
pub fn arrive(queue: &Queue, load: &Load) -> Arrival {
    if load.waiting == 0 && turn(queue, load) {
        Arrival::Begin
    } else if load.waiting < queue.max_size {
        Arrival::Wait
    } else {
        Arrival::Full
    }
}

/// Whether the first job in the queue may start.
#[must_use]
pub fn turn(queue: &Queue, load: &Load) -> bool {
    load.held.is_none() && load.running < queue.max_concurrency
}

/// The longest time that a job may wait: the shorter of the group's timeout and the requested timeout; `None` if
/// neither is set.
#[must_use]
pub fn longest_wait(queue: &Queue, asked: Option<Millis>) -> Option<Millis> {
    queue.timeout.into_iter().chain(asked).min()
}

impl GroupSpec {
    /// The group's queue. A group without the `queue` key but with `memory.on-exceed = "queue"` has a queue without
    /// limits, which only a hold closes. Any other group without the key has no queue (`None`), and its jobs start
    /// immediately.
    #[must_use]
    pub fn admission(&self) -> Option<Queue> {
        let unbounded = Queue { max_concurrency: u32::MAX, max_size: u32::MAX, timeout: None };
        let by_memory = self.on_exceed == Some(OnExceed::Queue);
        self.queue.or(by_memory.then_some(unbounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Class, GroupName};

    const QUEUE: Queue = Queue { max_concurrency: 2, max_size: 3, timeout: Some(Millis(600_000)) };

    #[test]
    fn arrivals() {
        let held = || Some("memory".to_owned());
        for (running, waiting, held, want) in [
            (0, 0, None, Arrival::Begin),
            (1, 0, None, Arrival::Begin),
            (2, 0, None, Arrival::Wait),
            (2, 2, None, Arrival::Wait),
            (2, 3, None, Arrival::Full),
            // A slot is free, but the job must wait, because another job is waiting and no job overtakes.
            (1, 1, None, Arrival::Wait),
            (1, 3, None, Arrival::Full),
            (0, 0, held(), Arrival::Wait),
            (0, 3, held(), Arrival::Full),
            // Another process lowered the limits while jobs were running and waiting.
            (9, 9, None, Arrival::Full),
        ] {
            let load = Load { running, waiting, held };
            assert_eq!(arrive(&QUEUE, &load), want, "{load:?}");
        }
        let none = Queue { max_size: 0, ..QUEUE };
        assert_eq!(arrive(&none, &Load { running: 1, ..Load::default() }), Arrival::Begin);
        assert_eq!(arrive(&none, &Load { running: 2, ..Load::default() }), Arrival::Full);
    }

    #[test]
    fn numbers_never_go_back() {
        let next = |taken: &[u64], now| Number::next(taken.iter().copied().map(Number), now).0;
        assert_eq!(next(&[], 50), 50);
        assert_eq!(next(&[40, 30], 50), 50);
        assert_eq!(next(&[50], 50), 51);
        // Tickets of an earlier boot may have larger numbers.
        assert_eq!(next(&[9_000], 50), 9_001);
        assert_eq!(next(&[u64::MAX], 50), u64::MAX);
        assert_eq!(Number::parse(&Number(7).to_string()), Some(Number(7)));
        assert!(Number(9).to_string() < Number(10).to_string());
        for other in
            ["held", "7", "+0000000000000000007", "00000000000000000007.tmp", "99999999999999999999", ""]
        {
            assert_eq!(Number::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_hold_ends_by_itself() {
        let second = 1_000_000_000;
        let hold = Hold::new("memory", 100 * second, Duration::from_secs(5));
        assert_eq!(hold.left(101 * second), Some(Duration::from_secs(4)));
        assert_eq!(hold.left(105 * second), None);
        // A time on the clock of another boot.
        assert_eq!(hold.left(3 * second), None);
        let long = Hold::new("memory", 100 * second, Duration::MAX);
        assert_eq!(long.left(100 * second), Some(LONGEST_HOLD));
        assert_eq!(long.left(161 * second), None);
        // A user has edited the hold's file by hand.
        assert_eq!(Hold { until_ns: u64::MAX, ..hold }.left(101 * second), None);
    }

    #[test]
    fn the_shorter_wait_counts() {
        let at_most = |asked| longest_wait(&QUEUE, asked).map(|time| time.0);
        assert_eq!(at_most(None), Some(600_000));
        assert_eq!(at_most(Some(Millis(1_000))), Some(1_000));
        assert_eq!(at_most(Some(Millis(700_000))), Some(600_000));
        assert_eq!(longest_wait(&Queue { timeout: None, ..QUEUE }, None), None);
    }

    #[test]
    fn who_has_a_queue() {
        let mut spec = GroupSpec::new(GroupName::new("etl").unwrap(), Class::Offline);
        assert_eq!(spec.admission(), None);
        spec.on_exceed = Some(OnExceed::Queue);
        assert_eq!(spec.admission().unwrap().max_concurrency, u32::MAX);
        spec.queue = Some(QUEUE);
        assert_eq!(spec.admission(), Some(QUEUE));
    }
}
