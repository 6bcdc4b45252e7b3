//! Asks the scheduler's process over its socket (`docs/reference/sched-control.md`).

use super::status::Status;
use anyhow::{Context as _, anyhow};
use commensal_core::errno::Errno;
use commensal_host::Host;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Name of the socket in the state directory.
const SOCKET: &str = "sched.sock";
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
pub fn ask(host: &dyn Host, state: &Path, request: &Value) -> Result<Value, Asked> {
    let socket = state.join(SOCKET);
    // With the empty line the other side closes as soon as it has answered.
    let answer = match host.ask(&socket, &format!("{request}\n\n"), PATIENCE) {
        Ok(answer) => answer,
        Err(error) if error.errno == Errno::ENOENT || error.errno == Errno::ECONNREFUSED => {
            return Err(Asked::Nobody);
        }
        Err(error) => return Err(Asked::Trouble(error.into())),
    };
    read(answer.lines().next().unwrap_or_default())
        .with_context(|| format!("what answers at {}", socket.display()))
        .map_err(Asked::Trouble)
}

fn read(line: &str) -> anyhow::Result<Value> {
    let value: Value = serde_json::from_str(line).context("it is no answer of commensal-sched")?;
    match value["ok"].as_bool() {
        Some(true) => Ok(value),
        _ => Err(anyhow!("{}", value["error"].as_str().unwrap_or("refused without a reason"))),
    }
}

/// What it does now, as it came.
pub fn raw_status(host: &dyn Host, state: &Path) -> Result<Value, Asked> {
    ask(host, state, &json!({ "do": "status" }))
}

/// The same, read.
pub fn status(host: &dyn Host, state: &Path) -> Result<Status, Asked> {
    let value = raw_status(host, state)?;
    let read = serde_json::from_value(value).context("a status of another version of commensal-sched");
    read.map_err(Asked::Trouble)
}

/// The request to go.
pub fn unload() -> Value {
    json!({ "do": "unload" })
}

/// The hold-off of all orders: the longest of any owner counts.
pub fn hold_off(host: &dyn Host, state: &Path, hold_off_us: u64) -> Result<(), Asked> {
    let orders = json!({ "do": "orders", "owner": OWNER, "hold_off_us": hold_off_us, "groups": [] });
    ask(host, state, &orders).map(drop)
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
        check("HTTP/1.1 400\n", "it is no answer of commensal-sched");
        check("{\"ok\":true,\"pid\":\"seven\"}\n", "of another version");
        host.answer("/state/sched.sock", "", "{\"ok\":true,\"pid\":7,\"mode\":\"running\",\"later\":1}\n");
        assert_eq!(status(&host, state).unwrap().pid, 7);
    }
}
