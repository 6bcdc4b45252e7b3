//! Waiting for a condition: what a test does instead of sleeping for as long as it usually takes.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as stuck. Nobody waits for it on a machine with CPUs to spare; an emulated
/// machine beside a compiler is a hundred times as slow.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Poll interval of conditions.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until the condition holds.
///
/// # Panics
/// When the condition does not hold within [`PATIENCE`]; `what` names it.
#[track_caller]
pub fn until(what: impl Display, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// Waits until the condition holds, with a timeout other than [`PATIENCE`].
///
/// # Panics
/// When the condition does not hold within `time`; `what` names it.
#[track_caller]
pub fn within(time: Duration, what: impl Display, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", time.as_secs_f64());
        std::thread::sleep(PAUSE);
    }
}

/// Waits until there is a value, and returns it.
///
/// # Panics
/// When there is no value within [`PATIENCE`]; `what` names it.
#[track_caller]
pub fn until_some<T>(what: impl Display, mut value: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until(what, || {
        found = value();
        found.is_some()
    });
    found.expect("it has just been found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_again_until_it_holds() {
        let mut looks = 0;
        until("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        let mut left = vec![None, Some(7)].into_iter();
        assert_eq!(until_some("a value", || left.next().flatten()), 7);
    }

    #[test]
    #[should_panic(expected = "not within 0.02 s: the moon")]
    fn what_does_not_come_is_named() {
        within(Duration::from_millis(20), "the moon", || false);
    }
}
