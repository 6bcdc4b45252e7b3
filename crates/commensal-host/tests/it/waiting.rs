//! A wait ends when the waker is used, a source becomes ready, or the time has elapsed.

use commensal_host::{FolderEvent, For, GroupWatch, Source, Waker};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Much longer than any operation here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);
/// Longer than any test may take.
const NEVER: Duration = Duration::from_secs(3_600);

/// Starts a wait without sources, in a thread; it tells when it has ended.
fn waiting(waker: &Waker) -> Receiver<()> {
    let waker = waker.clone();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        assert!(waker.wait(&[], NEVER).unwrap().is_empty());
        tell.send(()).unwrap();
    });
    told
}

#[test]
fn a_waker_ends_this_wait_or_the_next_one() {
    let waker = Waker::new().unwrap();
    // If the waker was used before, even several times, only the next wait ends immediately.
    for rung in [0, 1, 2, 1_000, 1_000_000] {
        (0..rung).for_each(|_| waker.wake());
        if rung > 0 {
            assert_eq!(waiting(&waker).recv_timeout(LONG), Ok(()), "rung {rung} times");
        }
        let told = waiting(&waker);
        assert_eq!(told.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout), "rung {rung} times");
        // In the middle of the wait, most likely; before it is as right.
        waker.wake();
        assert_eq!(told.recv_timeout(LONG), Ok(()), "rung {rung} times");
    }
    // Without a wake, the time ends it.
    assert!(waker.wait(&[], SHORT).unwrap().is_empty());
    // Wakes in the way of a signal handler.
    let mut pipe = waker.for_signals().unwrap();
    pipe.write_all(b"x").unwrap();
    assert_eq!(waiting(&waker).recv_timeout(LONG), Ok(()));
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

mod measure {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wait_that_nobody_ends_lasts_its_time() {
        let waker = Waker::new().unwrap();
        for rung in [0, 1, 2, 1_000, 1_000_000] {
            (0..rung).for_each(|_| waker.wake());
            if rung > 0 {
                assert!(waker.wait(&[], LONG).unwrap().is_empty());
            }
            let began = Instant::now();
            assert!(waker.wait(&[], SHORT).unwrap().is_empty());
            assert!(began.elapsed() >= SHORT, "rung {rung} times");
        }
    }
}
