//! A wait ends when the waker is used, a source becomes ready, or the time has elapsed.

use commensal_host::{FolderEvent, For, GroupWatch, Source, Waker};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Much longer than any operation here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

/// How long a wait without sources takes.
fn alone(waker: &Waker, patience: Duration) -> Duration {
    let began = Instant::now();
    assert!(waker.wait(&[], patience).unwrap().is_empty());
    began.elapsed()
}

#[test]
fn a_waker_ends_this_wait_or_the_next_one() {
    let waker = Waker::new().unwrap();
    assert!(alone(&waker, SHORT) >= SHORT);
    // If the waker was used before, even several times, only the next wait ends immediately.
    for rung in [1, 2, 1_000, 1_000_000] {
        (0..rung).for_each(|_| waker.wake());
        assert!(alone(&waker, LONG) < LONG, "rung {rung} times");
        assert!(alone(&waker, SHORT) >= SHORT, "rung {rung} times");
    }
    // Wakes from another thread, and in the way of a signal handler.
    let (other, mut pipe) = (waker.clone(), waker.for_signals().unwrap());
    let threads = std::thread::spawn(move || {
        // In the middle of the wait, most likely; before it is as right.
        std::thread::sleep(SHORT);
        other.wake();
    });
    assert!(alone(&waker, LONG) < LONG);
    threads.join().unwrap();
    pipe.write_all(b"x").unwrap();
    assert!(alone(&waker, LONG) < LONG);
}

#[test]
fn sources_end_a_wait_and_are_told_apart() {
    let waker = Waker::new().unwrap();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let watches = [GroupWatch::new().unwrap(), GroupWatch::new().unwrap()];
    for (watch, folder) in watches.iter().zip(&folders) {
        watch.add(folder.path(), For::Files).unwrap();
    }
    let wait = |patience: Duration| {
        let sources: Vec<_> = watches.iter().map(|watch| Source::readable(watch.as_fd())).collect();
        waker.wait(&sources, patience).unwrap()
    };
    assert_eq!(wait(SHORT), [false, false]);
    std::fs::write(folders[1].path().join("x"), "1").unwrap();
    assert_eq!(wait(LONG), [false, true]);
    // The event stays pending until it is read.
    assert_eq!(wait(LONG), [false, true]);
    let seen = watches[1].seen().unwrap();
    assert!(
        seen.iter().any(|one| matches!(one, FolderEvent::Touched(_, Some(name)) if name == "x")),
        "{seen:?}"
    );
    assert_eq!(wait(SHORT), [false, false]);
    // A change of permissions is reported, too, and both events together.
    let path = folders[1].path().join("x");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(folders[0].path().join("y"), "1").unwrap();
    assert_eq!(wait(LONG), [true, true]);
}

/// Data from the other side of a connection is not its end.
#[test]
fn the_end_of_a_connection_ends_a_wait() {
    let waker = Waker::new().unwrap();
    let (own, mut other) = UnixStream::pair().unwrap();
    let wait = |patience: Duration| waker.wait(&[Source::closed(own.as_fd())], patience).unwrap();
    assert_eq!(wait(SHORT), [false]);
    other.write_all(b".").unwrap();
    assert_eq!(wait(SHORT), [false]);
    drop(other);
    assert_eq!(wait(LONG), [true]);
}
