//! What ends a wait: the waker, a source, the time.

use commensal_host::{FolderEvent, For, GroupWatch, Sources, Waker, Woken};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

fn alone(waker: &Waker, patience: Duration) -> (Woken, Duration) {
    let began = Instant::now();
    let woken = waker.wait(&Sources::default(), patience).unwrap();
    (woken, began.elapsed())
}

#[test]
fn a_waker_ends_this_wait_or_the_next_one() {
    let waker = Waker::new().unwrap();
    let (woken, took) = alone(&waker, SHORT);
    assert!(woken == Woken::default() && took >= SHORT, "{took:?}");
    // Rung before: the next wait ends at once, and only that one, however often it was.
    for rung in [1, 2, 1_000, 1_000_000] {
        (0..rung).for_each(|_| waker.wake());
        assert!(alone(&waker, LONG).1 < LONG, "rung {rung} times");
        assert!(alone(&waker, SHORT).1 >= SHORT, "rung {rung} times");
    }
    // By another thread, and as a handler of a signal does it.
    let (other, mut pipe) = (waker.clone(), waker.for_signals().unwrap());
    let threads = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        other.wake();
    });
    assert!(alone(&waker, LONG).1 < LONG);
    threads.join().unwrap();
    std::io::Write::write_all(&mut pipe, b"x").unwrap();
    assert!(alone(&waker, LONG).1 < LONG);
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
        let readable = watches.iter().map(AsFd::as_fd).collect();
        waker.wait(&Sources { readable, ..Sources::default() }, patience).unwrap().readable
    };
    assert_eq!(wait(SHORT), [false, false]);
    std::fs::write(folders[1].path().join("x"), "1").unwrap();
    assert_eq!(wait(LONG), [false, true]);
    // It lasts until it is read.
    assert_eq!(wait(LONG), [false, true]);
    let seen = watches[1].seen().unwrap();
    assert!(
        seen.iter().any(|one| matches!(one, FolderEvent::Touched(_, Some(name)) if name == "x")),
        "{seen:?}"
    );
    assert_eq!(wait(SHORT), [false, false]);
    // Permissions as well, and both at once.
    let path = folders[1].path().join("x");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(folders[0].path().join("y"), "1").unwrap();
    assert_eq!(wait(LONG), [true, true]);
}
