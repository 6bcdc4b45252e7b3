//! Waits for conditions on tokio's clock. On a paused clock no time passes in them: the other tasks only run as far as they
//! can.

use std::time::{Duration, Instant};

/// Time after which an operation counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// Lets the other tasks run until the condition is true.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() >= deadline {
            panic!("not within {PATIENCE:?}: {what}");
        }
        tokio::task::yield_now().await;
    }
}

/// Lets the other tasks run for `time`, during which the condition must stay true: for what must not happen.
pub async fn throughout(time: Duration, wrong: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        assert!(holds(), "{wrong}");
        tokio::task::yield_now().await;
    }
}
