//! Queries commensal's sched_ext scheduler with this state directory over its socket
//! (`docs/reference/sched-control.md`): whether it can be used, its state, and which of commensal's orders (the
//! configuration of cgroups) are in force. `commensal_reconcile::scheduler` sends the orders.

use crate::sched_ext::Kernel;
use commensal_core::actual::{Capabilities, SCHED_EXT, SCHEDULER, Support};
use commensal_core::errno::Errno;
use commensal_core::scheduler::protocol::{self, Request, Status};
use commensal_core::scheduler::{Mode, Orders, SOCKET, Scheduler};
use commensal_host::{Host, HostError};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Timeout of a query. The scheduler responds from memory, so a longer wait would only delay the plan.
const PATIENCE: Duration = Duration::from_millis(200);

/// Why a query had no usable response.
#[derive(Debug)]
pub enum Unanswered {
    /// No process listens on the socket, or the query timed out.
    Host(HostError),
    /// The scheduler refused the request, or its response is not valid; contains a message.
    Refused(String),
}

impl Unanswered {
    /// Whether no process listens: no scheduler with this state directory is loaded, or its process was killed.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        matches!(self, Unanswered::Host(error) if matches!(error.errno, Errno::ENOENT | Errno::ECONNREFUSED))
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            _ if self.is_nobody() => {
                f.write_str("no scheduler of commensal is loaded with this state directory")
            }
            Unanswered::Host(error) => error.fmt(f),
            Unanswered::Refused(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for Unanswered {}

/// Parses the response of the scheduler, as read from its socket, into its JSON object.
///
/// # Errors
/// Returns an error when the scheduler does not respond in time, refuses, or responds with an invalid message.
pub fn heard(answer: Result<String, HostError>) -> Result<Value, Unanswered> {
    protocol::answer(&answer.map_err(Unanswered::Host)?).map_err(Unanswered::Refused)
}

/// Returns the current status as received from the socket.
///
/// # Errors
/// Returns an error when the scheduler does not respond in time, refuses, or responds with an invalid message.
pub fn raw_status(host: &dyn Host, socket: &Path, patience: Duration) -> Result<Value, Unanswered> {
    heard(host.ask(socket, &Request::Status.text(), patience))
}

/// Returns the current status, parsed.
///
/// # Errors
/// Returns an error when the scheduler does not respond in time, refuses, or responds with an invalid message.
pub fn status(host: &dyn Host, socket: &Path, patience: Duration) -> Result<Status, Unanswered> {
    Status::read(raw_status(host, socket, patience)?).map_err(Unanswered::Refused)
}

/// Records in `caps` whether the scheduler can be used, if the kernel supports one at all.
pub fn capability(host: &dyn Host, state_dir: &Path, owner: &str, caps: &mut Capabilities) {
    if caps.feature_obstacle(SCHED_EXT).is_none() {
        let support = match look(host, state_dir, owner).obstacle {
            Some(because) => Support::No { because },
            None => Support::Yes,
        };
        caps.features.insert(SCHEDULER, support);
    }
}

/// Queries the scheduler of this state directory. `owner` is the owner of commensal's orders.
#[must_use]
pub fn look(host: &dyn Host, state_dir: &Path, owner: &str) -> Scheduler {
    let socket = state_dir.join(SOCKET);
    let orders = Orders { owner: owner.to_owned(), ..Orders::default() };
    let mut found = Scheduler { socket, orders, ..Scheduler::default() };
    let kernel = Kernel::read(host);
    if kernel.state.is_none() {
        found.obstacle = Some("this kernel cannot load a scheduler".to_owned());
        return found;
    }
    match status(host, &found.socket, PATIENCE) {
        Ok(status) => take(status, owner, &mut found),
        Err(error) => found.obstacle = Some(in_words(&error, &kernel)),
    }
    found
}

fn take(mut status: Status, owner: &str, found: &mut Scheduler) {
    let reason = status.ejected.unwrap_or_else(|| "no reason is known".to_owned());
    found.obstacle = match status.mode {
        Mode::Running | Mode::Frozen => None,
        Mode::Starting => Some("it is being loaded".to_owned()),
        Mode::Ejected => {
            Some(format!("the kernel has ejected it ({reason}); it is loaded again automatically"))
        }
        Mode::GivenUp => Some(format!(
            "the kernel has ejected it, and it is not loaded again ({reason}); `commensal sched unload`, then `commensal sched load`"
        )),
    };
    found.mode = Some(status.mode);
    found.orders = status.orders.0.remove(owner).unwrap_or_default();
    // Orders that a client sent without an owner have an empty owner.
    found.orders.owner = owner.to_owned();
}

/// Returns why the scheduler cannot be used, given that it did not respond.
fn in_words(error: &Unanswered, kernel: &Kernel) -> String {
    match error {
        _ if error.is_nobody() && !kernel.busy() => "not loaded; `commensal sched load` loads it".to_owned(),
        _ if error.is_nobody() => format!(
            "the kernel loads one scheduler at a time, and {}: unload it, or use the --state-dir of the program that loaded it",
            kernel.loaded()
        ),
        Unanswered::Host(error) if matches!(error.errno, Errno::EACCES | Errno::EPERM) => {
            "only root may query it".to_owned()
        }
        Unanswered::Host(error) if error.errno == Errno::ETIMEDOUT => {
            format!("it does not answer within {} ms; is its process stopped?", PATIENCE.as_millis())
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::group::Class;
    use commensal_core::scheduler::{Order, Quota};
    use commensal_host::fake::FakeHost;

    const DIR: &str = "/state";

    fn found(state: Option<&str>, answer: Option<&str>) -> Scheduler {
        let fake = FakeHost::v2(2, 1 << 30);
        if let Some(state) = state {
            fake.set_file("/sys/kernel/sched_ext/state", &format!("{state}\n"));
        }
        fake.set_file("/sys/kernel/sched_ext/root/ops", "rusty\n");
        if let Some(answer) = answer {
            fake.answer(format!("{DIR}/sched.sock"), "{\"do\":\"status\"}\n\n", answer);
        }
        look(&fake, Path::new(DIR), "me")
    }

    #[test]
    fn every_obstacle_is_told() {
        let check = |state: Option<&str>, answer: Option<&str>, words: &str| {
            let obstacle = found(state, answer).obstacle.unwrap();
            assert!(obstacle.contains(words), "{obstacle}");
        };
        check(None, None, "cannot load a scheduler");
        check(Some("disabled"), None, "not loaded; `commensal sched load`");
        check(Some("enabled"), None, "rusty is enabled: unload it");
        check(Some("enabled"), Some("hello"), "not a response of commensal-sched");
        check(Some("enabled"), Some(""), "not a response of commensal-sched");
        check(Some("enabled"), Some(r#"{"ok":true,"mode":"starting","ejected":null}"#), "being loaded");
        let ejected = r#"{"ok":true,"mode":"ejected","ejected":"runnable task stall"}"#;
        check(Some("disabled"), Some(ejected), "runnable task stall); it is loaded again");
        let given_up = r#"{"ok":true,"mode":"given-up","ejected":"sysrq"}"#;
        check(Some("disabled"), Some(given_up), "is not loaded again (sysrq); `commensal sched unload`");
        check(Some("enabled"), Some(r#"{"ok":true,"mode":"dancing","ejected":null}"#), "cannot be read");
    }

    #[test]
    fn an_answer_is_read_and_a_refusal_is_told() {
        let host = FakeHost::v2(2, 1 << 30);
        let socket = Path::new(DIR).join(SOCKET);
        let ask = |host: &FakeHost| status(host, &socket, PATIENCE);
        let nobody = ask(&host).unwrap_err();
        assert!(nobody.is_nobody() && nobody.to_string().contains("no scheduler of commensal"), "{nobody}");
        let check = |answer: &str, part: &str| {
            host.answer(&socket, "", answer);
            let error = ask(&host).unwrap_err();
            assert!(!error.is_nobody() && error.to_string().contains(part), "{error:?} lacks {part:?}");
        };
        check("{\"ok\":false,\"error\":\"on its way out\"}\n", "refuses: on its way out");
        check("HTTP/1.1 400\n", "not a response of commensal-sched");
        check("{\"ok\":true,\"pid\":\"seven\"}\n", "cannot be read");
        host.answer(&socket, "", "{\"ok\":true,\"pid\":7,\"mode\":\"running\",\"later\":1}\n");
        assert_eq!(ask(&host).unwrap().pid, 7);
    }

    /// The status is in the scheduler's format; fields that a plan does not need are ignored.
    #[test]
    fn a_status_with_orders() {
        let answer = r#"{"ok":true,"pid":7,"mode":"frozen","generation":2,"ejected":null,"problems":[],"orders":{"":{"groups":[{"cgroup":"/x","class":"offline","expel":false}],"hold_off_us":0},"me":{"owner":"me","groups":[{"cgroup":"/a/","class":"offline","expel":false,"weight":50,"limit":{"quota_us":20000,"period_us":100000}},{"cgroup":"/b","class":"online","expel":true}],"hold_off_us":5}},"groups":[],"counters":{}}"#;
        let found = found(Some("enabled"), Some(answer));
        assert_eq!((found.mode, found.obstacle.as_deref()), (Some(Mode::Frozen), None));
        assert_eq!((found.orders.owner.as_str(), found.orders.hold_off_us), ("me", 5));
        let limit = Some(Quota { quota_us: 20_000, period_us: 100_000 });
        let want = [
            ("/a".to_owned(), Order { class: Class::Offline, expel: false, weight: Some(50), limit }),
            ("/b".to_owned(), Order { class: Class::Online, expel: true, weight: None, limit: None }),
        ];
        assert_eq!(found.orders.groups, want.into());
    }
}
