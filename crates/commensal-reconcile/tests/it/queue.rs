//! The admission queue, on the fake host and on this machine: order, limits, holds, faults, crashes.

use crate::support::STATE;
use commensal_core::errno::Errno;
use commensal_core::group::{GroupName, Queue};
use commensal_core::units::Millis;
use commensal_host::fake::FakeHost;
use commensal_host::{Exit, Host, LinuxHost, SpawnSpec};
use commensal_reconcile::in_words;
use commensal_reconcile::queue::{
    self, Admission, Asked, Event, Inbox, Job, QueueError, QueueView, Request, Slot, Waits, admit,
};
use commensal_testkit::until;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// No step of a wait takes as long as this, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn etl() -> GroupName {
    GroupName::new("etl").unwrap()
}

/// So many at once, so many waiting, no time-out.
fn limits(max_concurrency: u32, max_size: u32) -> Queue {
    Queue { max_concurrency, max_size, timeout: None }
}

/// How one waits.
#[derive(Default)]
struct How<'a> {
    at_most: Option<Millis>,
    no_wait: bool,
    /// Called when it turns out to wait.
    told: Option<&'a mut dyn FnMut(&Waits)>,
}

/// Asks to begin in `etl`.
fn ask(
    host: &mut dyn Host,
    state: &Path,
    queue: Queue,
    inbox: &Inbox,
    how: How<'_>,
) -> Result<Admission, QueueError> {
    let job = Job { pid: std::process::id(), command: "test".to_owned(), ..Job::default() };
    let group = etl();
    let request =
        Request { state_dir: state, group: &group, queue, job, at_most: how.at_most, no_wait: how.no_wait };
    let mut ignore = |_: &Waits| {};
    let told = how.told.unwrap_or(&mut ignore);
    admit(host, &request, inbox, &mut Asked { told, limits: &mut || Some(queue) })
}

/// Asks to begin without waiting.
fn at_once(host: &mut dyn Host, state: &Path, queue: Queue) -> Result<Slot, QueueError> {
    match ask(host, state, queue, &Inbox::default(), How { no_wait: true, ..How::default() })? {
        Admission::Admitted(slot) => Ok(slot),
        Admission::Signalled(signal) => panic!("signal {signal}"),
    }
}

fn admitted(outcome: Result<Admission, QueueError>) -> Slot {
    match outcome {
        Ok(Admission::Admitted(slot)) => slot,
        other => panic!("{other:?}"),
    }
}

fn view(host: &mut dyn Host, state: &Path) -> QueueView {
    queue::read(host, state, &etl()).unwrap()
}

/// Names of the files that the queue of `etl` has now.
fn files(state: &Path) -> Vec<String> {
    let host = LinuxHost::default();
    let list = |part: &str| host.list(&state.join("queue/etl").join(part)).unwrap_or_default();
    list("waiting").into_iter().chain(list("running")).collect()
}

/// Sends a signal to one that waits.
fn signal(to: &Sender<Event>, signal: i32) {
    to.send(Event::Signal(signal)).unwrap();
}

/// One that waits in a thread, with a host of its own.
struct Waiter {
    /// Where to send it signals.
    events: Sender<Event>,
    told: Receiver<usize>,
    outcome: Receiver<Result<Admission, QueueError>>,
}

impl Waiter {
    fn start(
        mut host: impl Host + Send + 'static,
        state: PathBuf,
        queue: Queue,
        at_most: Option<Millis>,
    ) -> Waiter {
        let (tell, told) = mpsc::channel();
        let (end, outcome) = mpsc::channel();
        let inbox = Inbox::default();
        let events = inbox.sender();
        let wait = move || {
            let mut say = |waits: &Waits| tell.send(waits.place).unwrap();
            let how = How { at_most, told: Some(&mut say), ..How::default() };
            let _ = end.send(ask(&mut host, &state, queue, &inbox, how));
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(wait).unwrap();
        Waiter { events, told, outcome }
    }

    /// Its place in the line, once it waits.
    fn place(&self) -> usize {
        self.told.recv_timeout(PATIENCE).unwrap()
    }

    fn end(&self) -> Result<Admission, QueueError> {
        self.outcome.recv_timeout(PATIENCE).unwrap()
    }

    /// Nothing has become of it within a while.
    fn still_waits(&self) -> bool {
        self.outcome.recv_timeout(Duration::from_millis(100)).is_err()
    }
}

fn fake() -> FakeHost {
    FakeHost::v1(4, 1 << 30)
}

/// On a host that `make` gives anew for each process.
fn in_order<H: Host + Send + 'static>(make: impl Fn() -> H, state: &Path) {
    let mut host = make();
    let start = || Waiter::start(make(), state.to_owned(), limits(1, 9), None);
    let first = at_once(&mut host, state, limits(1, 9)).unwrap();
    let second = start();
    assert_eq!(second.place(), 1);
    let third = start();
    assert_eq!(third.place(), 2);
    let now = view(&mut host, state);
    assert_eq!((now.running.len(), now.waiting.len()), (1, 2), "{now:?}");
    assert_eq!((now.waiting[0].command.as_str(), now.waiting[0].started_ns), ("test", None));
    assert!(matches!(at_once(&mut host, state, limits(1, 9)), Err(QueueError::WouldWait { .. })));
    assert!(second.still_waits() && third.still_waits());
    first.leave(&mut host);
    let second = admitted(second.end());
    assert!(third.still_waits());
    // One that leaves the line is not waited for.
    let (fourth, fifth) = (start(), start());
    fourth.place();
    fifth.place();
    signal(&fourth.events, 15);
    assert!(matches!(fourth.end(), Ok(Admission::Signalled(15))));
    second.leave(&mut host);
    admitted(third.end()).leave(&mut host);
    admitted(fifth.end()).leave(&mut host);
    let now = view(&mut host, state);
    assert!(now.running.is_empty() && now.waiting.is_empty(), "{now:?}");
}

#[test]
fn first_come_first_served() {
    let fake = fake();
    in_order(|| fake.another(), Path::new(STATE));
    let state = tempfile::tempdir().unwrap();
    in_order(LinuxHost::default, state.path());
    assert_eq!(files(state.path()), [""; 0]);
}

#[test]
fn full_and_timed_out_are_different_errors() {
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    let queue = limits(1, 1);
    let slot = at_once(&mut host, state.path(), queue).unwrap();
    let start = |at_most| Waiter::start(LinuxHost::default(), state.path().to_owned(), queue, at_most);
    let waits = start(None);
    waits.place();
    let full = start(None).end().unwrap_err().to_string();
    assert_eq!(
        full,
        "group etl: the queue is full: 1 run and 1 of 1 wait; try again later, or raise queue.max-size"
    );
    signal(&waits.events, 2);
    assert!(matches!(waits.end(), Ok(Admission::Signalled(2))));
    let late = start(Some(Millis(50))).end().unwrap_err();
    assert!(matches!(late, QueueError::TimedOut { time: Millis(50), .. }), "{late:?}");
    assert!(late.to_string().contains("waited 50 ms in the queue"), "{late}");
    slot.leave(&mut host);
    assert_eq!(files(state.path()), [""; 0]);
}

/// The group's own time-out cannot be overridden upwards.
#[test]
fn the_shorter_timeout_counts() {
    let fake = fake();
    let mut host = fake.another();
    let _slot = at_once(&mut host, Path::new(STATE), limits(1, 9)).unwrap();
    let queue = Queue { timeout: Some(Millis(20)), ..limits(1, 9) };
    let waits = Waiter::start(fake.another(), STATE.into(), queue, Some(Millis(3_600_000)));
    waits.place();
    assert!(waits.still_waits(), "no time has passed on this machine");
    fake.advance(Duration::from_millis(20));
    let late = waits.end();
    assert!(matches!(late, Err(QueueError::TimedOut { time: Millis(20), .. })), "{late:?}");
}

// promise 17
#[test]
fn a_held_queue_admits_nobody_and_opens_by_itself() {
    let fake = fake();
    let mut host = fake.another();
    let state = Path::new(STATE);
    queue::hold(&mut host, state, &etl(), "memory at 91 %", 5 * SECOND).unwrap();
    let error = at_once(&mut host, state, limits(4, 9)).unwrap_err().to_string();
    assert!(error.contains("held closed (memory at 91 %)"), "{error}");
    let waits = Waiter::start(fake.another(), state.into(), limits(4, 9), None);
    waits.place();
    assert!(waits.still_waits());
    assert_eq!(view(&mut host, state).held.unwrap().reason, "memory at 91 %");
    // The agent is dead: its hold ends.
    fake.advance(5 * SECOND);
    admitted(waits.end());
    assert_eq!(view(&mut host, state).held, None);
    // Nobody closes it for longer than a minute at a time.
    queue::hold(&mut host, state, &etl(), "for ever", Duration::MAX).unwrap();
    fake.advance(61 * SECOND);
    at_once(&mut host, state, limits(4, 9)).unwrap().leave(&mut host);
    queue::hold(&mut host, state, &etl(), "again", SECOND).unwrap();
    queue::release(&mut host, state, &etl()).unwrap();
    queue::release(&mut host, state, &etl()).unwrap();
    at_once(&mut host, state, limits(4, 9)).unwrap().leave(&mut host);
    // What cannot be understood closes nothing.
    fake.set_file("/var/lib/commensal/queue/etl/held", "{\"reason\"");
    at_once(&mut host, state, limits(4, 9)).unwrap().leave(&mut host);
}

/// Also on the real machine, where the first in line hears of it.
#[test]
fn lifting_a_hold_wakes_the_first() {
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    queue::hold(&mut host, state.path(), &etl(), "memory", 60 * SECOND).unwrap();
    let waits = Waiter::start(LinuxHost::default(), state.path().into(), limits(1, 9), None);
    waits.place();
    assert!(waits.still_waits());
    queue::release(&mut host, state.path(), &etl()).unwrap();
    admitted(waits.end());
}

/// A command keeps its slot when commensal is killed, and frees it when it ends.
// promise 17
#[test]
fn a_command_holds_its_slot_without_us() {
    let fake = fake();
    let state = Path::new(STATE);
    let mut host = fake.another();
    let slot = at_once(&mut host, state, limits(1, 9)).unwrap();
    let mut spec = SpawnSpec::new("sleep");
    spec.locks = vec![slot.lock()];
    let child = host.spawn(&spec).unwrap();
    slot.runs(&mut host, child.process.pid);
    fake.crash_after(0);
    let mut after = fake.restart();
    assert_eq!(view(&mut after, state).running[0].pid, child.process.pid);
    assert!(matches!(at_once(&mut after, state, limits(1, 9)), Err(QueueError::WouldWait { .. })));
    fake.end(child.process.pid, Exit::Code(0));
    at_once(&mut after, state, limits(1, 9)).unwrap().leave(&mut after);
    assert_eq!(view(&mut after, state).running, []);
}

/// Once the command itself has ended the slot is free, also if what it left behind has the descriptor.
#[test]
fn what_a_command_leaves_running_has_no_slot() {
    let fake = fake();
    let state = Path::new(STATE);
    let mut host = fake.another();
    let slot = at_once(&mut host, state, limits(1, 9)).unwrap();
    let mut spec = SpawnSpec::new("daemon");
    spec.locks = vec![slot.lock()];
    host.spawn(&spec).unwrap();
    slot.leave(&mut host);
    at_once(&mut host, state, limits(1, 9)).unwrap();
}

/// Whichever write the disk refuses, the error says so and nothing is left that could stand in the way.
// promise 17
#[test]
fn a_disk_that_refuses_leaves_nothing() {
    let state = Path::new(STATE);
    let mut refusals = 0;
    for n in 1.. {
        let fake = fake();
        let mut host = fake.another();
        let running = at_once(&mut host, state, limits(1, 9)).unwrap();
        let waits = {
            fake.fail_write(n, Errno::ENOSPC);
            let waits = Waiter::start(fake.another(), state.into(), limits(1, 9), None);
            let _ = waits.told.recv_timeout(PATIENCE);
            // As one that died: its own writes must not meet the fault.
            drop(running);
            waits.end()
        };
        // A fault that nobody met is not for the rest of the test.
        fake.fail_write(u32::MAX, Errno::ENOSPC);
        let refused = match waits {
            Ok(Admission::Admitted(slot)) => {
                slot.leave(&mut host);
                false
            }
            Err(error @ QueueError::Files { .. }) => {
                let words = in_words(&error);
                assert!(
                    words.contains("cannot be used, so nothing was started") && words.contains("ENOSPC"),
                    "{words}"
                );
                true
            }
            other => panic!("fault {n}: {other:?}"),
        };
        refusals += usize::from(refused);
        let now = view(&mut host, state);
        assert!(now.running.is_empty() && now.waiting.is_empty(), "fault {n}: {now:?}");
        at_once(&mut host, state, limits(1, 9)).unwrap_or_else(|error| panic!("fault {n}: {error}"));
        if n > 8 {
            break;
        }
    }
    assert!(refusals >= 2, "the ticket and the slot: {refusals}");
}

#[test]
fn a_full_disk_is_told() {
    let fake = fake();
    let mut host = fake.another();
    fake.state_full(true);
    let error = at_once(&mut host, Path::new(STATE), limits(1, 9)).unwrap_err();
    let words = in_words(&error);
    assert!(words.contains("the admission queue in /var/lib/commensal/queue/etl cannot be used"), "{words}");
    fake.state_full(false);
    at_once(&mut host, Path::new(STATE), limits(1, 9)).unwrap();
}

/// Somebody who is stopped has the queue's lock: those who want it can still be told to go.
#[test]
fn a_signal_is_heard_while_the_lock_is_waited_for() {
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    host.state_dir(&state.path().join("queue")).unwrap();
    let path = state.path().join("queue/etl.lock");
    let lock = host.state_lock(&path).unwrap().unwrap();
    let start = || Waiter::start(LinuxHost::default(), state.path().into(), limits(1, 9), None);
    let (one, other) = (start(), start());
    assert!(one.still_waits() && other.still_waits());
    signal(&one.events, 1);
    assert!(matches!(one.end(), Ok(Admission::Signalled(1))));
    drop(lock);
    admitted(other.end());
}

/// And it is told, rather than waited for for ever.
#[test]
fn a_lock_that_is_never_let_go_is_told() {
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    host.state_dir(&state.path().join("queue")).unwrap();
    let _lock = host.state_lock(&state.path().join("queue/etl.lock")).unwrap().unwrap();
    let error = at_once(&mut LinuxHost::default(), state.path(), limits(1, 9)).unwrap_err().to_string();
    assert!(
        error.contains("has held the lock of the queue for 10 s") && error.contains("etl.lock"),
        "{error}"
    );
    assert_eq!(files(state.path()), [""; 0]);
}

/// Foreign files, a folder with a ticket's name, tickets of the dead and unreadable ones harm nobody.
#[test]
fn strange_files_are_passed_over() {
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    for part in ["waiting", "running"] {
        let folder = state.path().join("queue/etl").join(part);
        host.state_dir(&folder.join("00000000000000000001")).unwrap();
        for name in ["README", "00000000000000000002", "99999999999999999999", "7"] {
            std::fs::write(folder.join(name), "no job").unwrap();
        }
    }
    let slot = at_once(&mut host, state.path(), limits(1, 1)).unwrap();
    let waits = Waiter::start(LinuxHost::default(), state.path().into(), limits(1, 9), None);
    assert_eq!(waits.place(), 1);
    let now = view(&mut host, state.path());
    assert_eq!((now.running.len(), now.waiting.len()), (1, 1), "{now:?}");
    slot.leave(&mut host);
    admitted(waits.end()).leave(&mut host);
    let left = files(state.path());
    assert!(!left.contains(&"00000000000000000002".to_owned()), "the dead go: {left:?}");
    assert!(left.contains(&"README".to_owned()), "the others stay: {left:?}");
}

#[test]
fn a_folder_that_is_none_is_told() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join("queue"), "").unwrap();
    let error = at_once(&mut LinuxHost::default(), state.path(), limits(1, 9)).unwrap_err();
    let words = in_words(&error);
    assert!(words.contains("cannot be used, so nothing was started: create "), "{words}");
}

#[test]
fn one_whose_ticket_was_removed_is_told() {
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    let _slot = at_once(&mut host, state.path(), limits(1, 9)).unwrap();
    let start = || Waiter::start(LinuxHost::default(), state.path().into(), limits(1, 9), None);
    let (first, second) = (start(), start());
    first.place();
    second.place();
    // At once: who finds the slots removed and its ticket still there would begin.
    std::fs::rename(state.path().join("queue/etl"), state.path().join("gone")).unwrap();
    for one in [first, second] {
        let error = one.end().unwrap_err().to_string();
        assert!(
            error.contains("place in the queue was removed from") || error.contains("cannot be used"),
            "{error}"
        );
    }
}

/// How many of `started` begin before one that came earlier.
fn inversions(by_arrival: &[u64]) -> usize {
    by_arrival.windows(2).filter(|pair| pair[0] >= pair[1]).count()
}

/// So many arrive one after the other at a closed queue, some give up, the rest is admitted in the order of arrival, never
/// more than four at a time.
fn are_admitted_in_order(all: usize) {
    const AT_ONCE: usize = 4;
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    let queue = limits(AT_ONCE as u32, all as u32);
    let hold = |host: &mut LinuxHost| {
        queue::hold(host, state.path(), &etl(), "the test", 60 * SECOND).unwrap();
    };
    let mut waiters = Vec::with_capacity(all);
    for arrived in 0..all {
        if arrived % 10 == 0 {
            hold(&mut host);
        }
        let waiter = Waiter::start(LinuxHost::default(), state.path().into(), queue, None);
        let place = waiter.place();
        // A folder that others change while it is listed may miss a name; that nobody is lost shows at the end.
        assert!((arrived..=arrived + 1).contains(&place), "{place} after {arrived}");
        waiters.push(waiter);
    }
    let full = at_once_or_full(&mut host, state.path(), queue);
    assert!(matches!(full, QueueError::Full { .. }), "{full:?}");
    let gives_up = |index: usize| index % 37 == 5;
    for (_, waiter) in waiters.iter().enumerate().filter(|(index, _)| gives_up(*index)) {
        signal(&waiter.events, 15);
    }
    queue::release(&mut host, state.path(), &etl()).unwrap();
    let (mut started, mut running, mut most) = (Vec::new(), Vec::<Slot>::new(), 0);
    for (index, waiter) in waiters.iter().enumerate() {
        match waiter
            .outcome
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("{index} waits for ever"))
            .unwrap()
        {
            Admission::Signalled(15) if gives_up(index) => continue,
            Admission::Admitted(slot) if !gives_up(index) => {
                started.push(slot.started_ns());
                running.push(slot);
            }
            other => panic!("{index}: {other:?}"),
        }
        most = most.max(queue::load(&mut host, state.path(), &etl()).unwrap().running as usize);
        if running.len() == AT_ONCE {
            // The one in the middle ends: slots are free in no particular order.
            running.remove(AT_ONCE / 2).leave(&mut host);
        }
    }
    assert_eq!(started.len(), (0..all).filter(|index| !gives_up(*index)).count());
    assert_eq!(inversions(&started), 0, "somebody overtook");
    assert_eq!(most, AT_ONCE, "as many as may, and no more");
    running.into_iter().for_each(|slot| slot.leave(&mut host));
    assert_eq!(files(state.path()), [""; 0]);
}

// promise 17
#[test]
fn two_hundred_are_admitted_in_order() {
    are_admitted_in_order(200);
}

/// The error of one that finds no room.
fn at_once_or_full(host: &mut LinuxHost, state: &Path, queue: Queue) -> QueueError {
    ask(host, state, queue, &Inbox::default(), How::default()).unwrap_err()
}

/// Two hundred arrive at once and count each other while they run.
// promise 17
#[test]
fn a_crowd_never_exceeds_the_limit() {
    const ALL: usize = 200;
    const AT_ONCE: usize = 3;
    let state = tempfile::tempdir().unwrap();
    let [running, most, admitted_so_far] = [(); 3].map(|()| AtomicUsize::new(0));
    let one = || {
        let mut host = LinuxHost::default();
        let queue = limits(AT_ONCE as u32, u32::MAX);
        let slot = admitted(ask(&mut host, state.path(), queue, &Inbox::default(), How::default()));
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let times = (slot.arrived_ns(), slot.started_ns());
        admitted_so_far.fetch_add(1, Ordering::SeqCst);
        // Until others run beside it, or nobody is left to come.
        until("every slot is taken", || {
            running.load(Ordering::SeqCst) >= AT_ONCE || admitted_so_far.load(Ordering::SeqCst) == ALL
        });
        running.fetch_sub(1, Ordering::SeqCst);
        slot.leave(&mut host);
        times
    };
    let mut times: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ALL).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    times.sort_unstable();
    let started: Vec<u64> = times.iter().map(|(_, started)| *started).collect();
    assert_eq!((started.len(), inversions(&started)), (ALL, 0));
    assert_eq!(most.load(Ordering::SeqCst), AT_ONCE);
    assert_eq!(files(state.path()), [""; 0]);
}

/// What was for the wait is passed over after it, and signals are still heard.
#[test]
fn signals_of_the_command_are_kept() {
    let inbox = Inbox::default();
    let state = tempfile::tempdir().unwrap();
    let mut host = LinuxHost::default();
    let slot = admitted(ask(&mut host, state.path(), limits(1, 9), &inbox, How::default()));
    let events = inbox.sender();
    events.send(Event::Free(Ok(()))).unwrap();
    signal(&events, 10);
    assert_eq!(inbox.signal(), 10);
    slot.leave(&mut host);
}

mod measure {
    use super::*;

    // promise 17
    #[test]
    fn a_thousand_are_admitted_in_order() {
        are_admitted_in_order(1_000);
    }
}
