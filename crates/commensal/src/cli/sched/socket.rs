//! Asks the scheduler's process over its socket (`docs/reference/sched-control.md`).

use anyhow::anyhow;
use commensal_core::errno::Errno;
use commensal_core::scheduler::SOCKET;
use commensal_core::scheduler::protocol::{self, OrdersOfOwner, Request, Status};
use commensal_host::Host;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// An answer may take as long as orders for ten thousand threads.
const PATIENCE: Duration = Duration::from_secs(120);
/// The owner of the hold-off of the command line, who orders no group.
const OWNER: &str = "commensal sched load";

/// Why there is no answer.
#[derive(Debug)]
pub enum Asked {
    /// Nobody listens.
    Nobody,
    /// It does, and refuses, or is silent, or is somebody else's.
    Trouble(anyhow::Error),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asked::Nobody => f.write_str("no scheduler of commensal is loaded with this state directory"),
            Asked::Trouble(error) => write!(f, "{error:#}"),
        }
    }
}

/// One request, one answer.
pub fn ask(host: &dyn Host, state: &Path, request: &Request) -> Result<Value, Asked> {
    let socket = state.join(SOCKET);
    let answer = match host.ask(&socket, &request.text(), PATIENCE) {
        Ok(answer) => answer,
        Err(error) if error.errno == Errno::ENOENT || error.errno == Errno::ECONNREFUSED => {
            return Err(Asked::Nobody);
        }
        Err(error) => return Err(Asked::Trouble(error.into())),
    };
    protocol::answer(&answer).map_err(|error| {
        Asked::Trouble(anyhow!("{error}").context(format!("what answers at {}", socket.display())))
    })
}

/// What it does now, as it came.
pub fn raw_status(host: &dyn Host, state: &Path) -> Result<Value, Asked> {
    ask(host, state, &Request::Status)
}

/// The same, read.
pub fn status(host: &dyn Host, state: &Path) -> Result<Status, Asked> {
    Status::read(raw_status(host, state)?).map_err(|error| Asked::Trouble(anyhow!("{error}")))
}

/// The hold-off of all orders: the longest of any owner counts.
pub fn hold_off(host: &dyn Host, state: &Path, hold_off_us: u64) -> Result<(), Asked> {
    let orders = OrdersOfOwner { owner: OWNER.to_owned(), hold_off_us, groups: Vec::new() };
    ask(host, state, &Request::Orders(orders)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    #[test]
    fn an_answer_is_read_and_a_refusal_is_told() {
        let host = FakeHost::v2(2, 1 << 30);
        let state = Path::new("/state");
        assert!(matches!(raw_status(&host, state), Err(Asked::Nobody)));
        let check = |answer: &str, part: &str| {
            host.answer("/state/sched.sock", "", answer);
            let error = status(&host, state).unwrap_err().to_string();
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        };
        check("{\"ok\":false,\"error\":\"on its way out\"}\n", "on its way out");
        check("HTTP/1.1 400\n", "no answer of commensal-sched");
        check("{\"ok\":true,\"pid\":\"seven\"}\n", "cannot be read");
        host.answer("/state/sched.sock", "", "{\"ok\":true,\"pid\":7,\"mode\":\"running\",\"later\":1}\n");
        assert_eq!(status(&host, state).unwrap().pid, 7);
    }
}
