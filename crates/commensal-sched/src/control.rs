//! The control socket: one JSON object per line, one response per request. A `status` request gets the status that the
//! daemon published last, so it never waits for slow requests. The daemon handles all other requests, one at a time.
//! `docs/reference/sched-control.md` is the reference.

use commensal_core::scheduler::protocol::{Done, Refusal, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum total length of the requests on one connection, in bytes: enough for some ten thousand groups.
const MOST_BYTES: u64 = 4 << 20;
/// Idle timeout of a connection.
const SILENCE: Duration = Duration::from_secs(60);
/// Pause after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(20);

/// The last published status, as JSON. Any thread can read it at any time.
pub type Published = Arc<Mutex<String>>;

/// A request to the daemon.
#[derive(Debug)]
pub struct Call {
    /// The request.
    pub request: Request,
    /// Channel for the response.
    pub answer: Sender<Result<Done, String>>,
}

/// Serves the socket on separate threads until the process exits. Returns the channel on which the daemon receives its
/// requests.
#[must_use]
pub fn serve(listener: UnixListener, published: &Published) -> Receiver<Call> {
    let (calls, daemon) = channel();
    let published = Arc::clone(published);
    std::thread::spawn(move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let (calls, published) = (calls.clone(), Arc::clone(&published));
                    std::thread::spawn(move || converse(&stream, &calls, &published));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    });
    daemon
}

/// Responds line by line until the client closes the connection or sends an empty line.
fn converse(stream: &UnixStream, calls: &Sender<Call>, published: &Published) {
    let _ = stream.set_read_timeout(Some(SILENCE));
    let mut lines = BufReader::new(stream.take(MOST_BYTES)).lines();
    while let Some(Ok(line)) = lines.next() {
        // An empty line means that the client sends no more requests.
        if line.is_empty() {
            return;
        }
        let answer = answer(&line, calls, published);
        let mut out = stream;
        if writeln!(out, "{answer}").is_err() {
            return;
        }
    }
}

fn answer(line: &str, calls: &Sender<Call>, published: &Published) -> String {
    let request = match Request::parse(line) {
        Ok(Request::Status) => return published.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        Ok(request) => request,
        Err(error) => return refusal(error),
    };
    let (answer, answered) = channel();
    if calls.send(Call { request, answer }).is_err() {
        return refusal("the scheduler is exiting".to_owned());
    }
    match answered.recv() {
        Ok(Ok(done)) => commensal_core::text::json(&done).unwrap_or_default(),
        Ok(Err(error)) => refusal(error),
        Err(_) => refusal("the scheduler exited before it responded".to_owned()),
    }
}

fn refusal(error: String) -> String {
    commensal_core::text::json(&Refusal { ok: false, error }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_does_not_wait_for_the_daemon() {
        let (calls, daemon) = channel();
        let published: Published = Arc::new(Mutex::new(r#"{"ok":true}"#.to_owned()));
        // Nothing receives the calls, yet a status request gets a response.
        assert_eq!(answer(r#"{"do":"status"}"#, &calls, &published), r#"{"ok":true}"#);
        assert!(answer("{", &calls, &published).contains("not a request"));
        let asked = std::thread::spawn({
            let (calls, published) = (calls.clone(), Arc::clone(&published));
            move || answer(r#"{"do":"unload"}"#, &calls, &published)
        });
        let call = daemon.recv().unwrap();
        assert_eq!(call.request, Request::Unload);
        call.answer.send(Ok(Done { ok: true, generation: 3, threads: 2, left: Vec::new() })).unwrap();
        assert_eq!(asked.join().unwrap(), r#"{"ok":true,"generation":3,"threads":2}"#);
        drop(daemon);
        assert!(answer(r#"{"do":"unload"}"#, &calls, &published).contains("is exiting"));
    }
}
