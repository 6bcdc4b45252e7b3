//! Admission: who begins when, on the fake host and on this machine; and `commensal run` and `commensal queue` as programs.

mod line;
mod program;
mod storm;

use commensal_core::group::{GroupName, Queue};
use commensal_core::units::Millis;
use commensal_host::{Host, LinuxHost};
use commensal_reconcile::queue::{
    self, Admission, Asked, Event, Inbox, Job, QueueError, QueueView, Request, Slot, Waits, admit,
};
use std::path::Path;
use std::sync::mpsc::Sender;

/// A group's name.
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

/// Names of the files that a queue has now.
fn files(state: &Path) -> Vec<String> {
    let host = LinuxHost::default();
    let list = |part: &str| host.list(&state.join("queue/etl").join(part)).unwrap_or_default();
    list("waiting").into_iter().chain(list("running")).collect()
}

/// Sends a signal to one that waits.
fn signal(to: &Sender<Event>, signal: i32) {
    to.send(Event::Signal(signal)).unwrap();
}
