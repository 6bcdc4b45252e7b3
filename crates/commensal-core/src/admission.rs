//! Admission: which of the jobs that wait for a group may start. First come, first served; no job overtakes another.
//!
//! Pure: the files and locks behind it are in `commensal-reconcile`'s `queue`. Times are nanoseconds since boot
//! (`CLOCK_BOOTTIME`), a clock that all processes share and that cannot be set.

use crate::group::{GroupSpec, OnExceed, Queue};
use crate::units::Millis;
use std::fmt;
use std::time::Duration;

/// A hold lasts at most this long, so that a dead agent does not keep a queue closed; a live agent renews its holds.
/// This also limits a hold that is left from an earlier boot, whose clock started again at 0.
pub const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// A job's position in the queue: lower numbers came first. No number is used twice in one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

impl Number {
    /// The number of a job that arrives at `now_ns` while the numbers in `taken` are in use. The clock keeps it above
    /// the numbers of jobs that have left; `taken` does so when the clock has stopped or restarted.
    pub fn next(taken: impl IntoIterator<Item = Number>, now_ns: u64) -> Number {
        let highest = taken.into_iter().max();
        Number(highest.map_or(now_ns, |highest| now_ns.max(highest.0.saturating_add(1))))
    }

    /// Parses the number from a file name; `None` for a file that is not a queue ticket.
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

/// A closed queue: no job is admitted, whatever is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Why, in words.
    pub reason: String,
    /// When it began.
    pub since_ns: u64,
    /// When it ends, unless it is renewed.
    pub until_ns: u64,
}

impl Hold {
    /// A hold from `now_ns` on, for `time`, or for [`LONGEST_HOLD`] if that is shorter.
    #[must_use]
    pub fn new(reason: &str, now_ns: u64, time: Duration) -> Hold {
        let time = u64::try_from(time.min(LONGEST_HOLD).as_nanos()).unwrap_or(u64::MAX);
        Hold { reason: reason.to_owned(), since_ns: now_ns, until_ns: now_ns.saturating_add(time) }
    }

    /// Time left until the hold ends; `None` when it has expired or is not possible on this boot's clock.
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
    /// Jobs that run.
    pub running: u32,
    /// Jobs that wait.
    pub waiting: u32,
    /// Why no job is admitted, if the queue is held closed.
    pub held: Option<String>,
}

/// What happens to a job that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The job starts at once.
    Begin,
    /// The job waits behind the others.
    Wait,
    /// The job is refused: the queue is full.
    Full,
}

/// Decides what happens to a job that arrives now. A job that need not wait is admitted whatever the queue's size.
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

/// The longest time that a job waits: the group's timeout, or the requested one if that is shorter.
#[must_use]
pub fn longest_wait(queue: &Queue, asked: Option<Millis>) -> Option<Millis> {
    queue.timeout.into_iter().chain(asked).min()
}

impl GroupSpec {
    /// The group's queue. A group with `memory.on-exceed = "queue"` has a queue without limits, which only a hold
    /// closes; any other group without the `queue` key has none, and its jobs start at once.
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
            // A slot is free, but another job is ahead: no job overtakes.
            (1, 1, None, Arrival::Wait),
            (1, 3, None, Arrival::Full),
            (0, 0, held(), Arrival::Wait),
            (0, 3, held(), Arrival::Full),
            // The limits were lowered meanwhile.
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
        // The clock of another boot.
        assert_eq!(hold.left(3 * second), None);
        let long = Hold::new("memory", 100 * second, Duration::MAX);
        assert_eq!(long.left(100 * second), Some(LONGEST_HOLD));
        assert_eq!(long.left(161 * second), None);
        // A file that was edited by hand.
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
