//! Waits for conditions, so that tests need no sleeps of a fixed length.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Time after which an operation counts as stuck. No operation takes that long on a machine with idle CPUs. The value
/// is so large because an emulated machine is a hundred times slower while a compiler runs next to it.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks of a condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until the condition is true.
///
/// # Panics
/// Panics if the condition is not true within [`PATIENCE`]; `what` describes the condition.
#[track_caller]
pub fn until(what: impl Display, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// Waits until the condition is true, with a timeout other than [`PATIENCE`].
///
/// # Panics
/// Panics if the condition is not true within `time`; `what` describes the condition.
#[track_caller]
pub fn within(time: Duration, what: impl Display, holds: impl FnMut() -> bool) {
    within_every(PAUSE, time, what, holds);
}

/// Waits until the condition is true, with `pause` between checks. For conditions that are expensive to check, or that
/// the check disturbs.
///
/// # Panics
/// Panics if the condition is not true within [`PATIENCE`]; `what` describes the condition.
#[track_caller]
pub fn until_every(pause: Duration, what: impl Display, holds: impl FnMut() -> bool) {
    within_every(pause, PATIENCE, what, holds);
}

/// Like [`until_every`], with a timeout other than [`PATIENCE`].
///
/// # Panics
/// Panics if the condition is not true within `time`; `what` describes the condition.
#[track_caller]
pub fn within_every(pause: Duration, time: Duration, what: impl Display, holds: impl FnMut() -> bool) {
    assert!(checked(pause, time, holds), "not within {} s: {what}", time.as_secs_f64());
}

/// Waits until `value` stays the same for `time`, and returns it.
///
/// # Panics
/// Panics if the value still changes after [`PATIENCE`]; `what` describes the value.
#[track_caller]
pub fn until_still<T: PartialEq>(time: Duration, what: impl Display, mut value: impl FnMut() -> T) -> T {
    let (mut last, mut since) = (value(), Instant::now());
    until_every((time / 10).max(PAUSE), format_args!("it stays the same: {what}"), || {
        let now = value();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() >= time
    });
    last
}

/// Waits until the condition is true, and returns whether it became true within `time`: for callers that continue
/// either way, such as cleanup.
pub fn holds_within(time: Duration, holds: impl FnMut() -> bool) -> bool {
    checked(PAUSE, time, holds)
}

fn checked(pause: Duration, time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !holds() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(pause);
    }
    true
}

/// Checks repeatedly that the condition stays true for `time`, for tests that something does not happen.
///
/// # Panics
/// Panics as soon as the condition is false, with the message `wrong`.
#[track_caller]
pub fn throughout(time: Duration, wrong: impl Display, mut holds: impl FnMut() -> bool) {
    assert!(!holds_within(time, || !holds()), "{wrong}");
}

/// Returns a text that is computed only when it is printed, for details in the message of a failed wait.
pub fn told(text: impl Fn() -> String) -> impl Display {
    Told(text)
}

struct Told<F>(F);

impl<F: Fn() -> String> Display for Told<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&(self.0)())
    }
}

/// Waits until `value` returns a value, and returns it.
///
/// # Panics
/// Panics if there is no value within [`PATIENCE`]; `what` describes the value.
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
    fn what_comes_to_rest_is_returned() {
        let mut looks = 0;
        let rested = until_still(Duration::from_millis(30), "a number", || {
            looks += 1;
            looks.min(4)
        });
        assert_eq!(rested, 4);
    }

    #[test]
    #[should_panic(expected = "not within 0.02 s: the moon")]
    fn what_does_not_come_is_named() {
        within(Duration::from_millis(20), told(|| "the moon".to_owned()), || false);
    }

    #[test]
    fn what_may_fail_answers() {
        assert!(holds_within(Duration::ZERO, || true));
        assert!(!holds_within(Duration::from_millis(20), || false));
        throughout(Duration::from_millis(20), "never", || true);
    }

    #[test]
    #[should_panic(expected = "it has moved")]
    fn what_changes_is_seen() {
        let mut looks = 0;
        throughout(PATIENCE, "it has moved", || {
            looks += 1;
            looks < 3
        });
    }
}
