//! The sched_ext scheduler of this state directory, asked at its socket (`docs/reference/sched-control.md`): whether it can
//! be used, what it does, and which orders of ours are in force.

use commensal_core::actual::{Capabilities, SCHED_EXT, SCHEDULER, Support};
use commensal_core::errno::Errno;
use commensal_core::group::Class;
use commensal_core::scheduler::{Mode, Order, Orders, Quota, SOCKET, Scheduler};
use commensal_host::{Host, HostError};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// It answers from memory, and nobody waits for one that does not.
const PATIENCE: Duration = Duration::from_millis(200);
/// Of the kernel: `enabled` while some scheduler is loaded.
const STATE: &str = "/sys/kernel/sched_ext/state";
/// Grows with each one that is loaded.
const LOADS: &str = "/sys/kernel/sched_ext/enable_seq";
/// The name of the one that is.
const NAME: &str = "/sys/kernel/sched_ext/root/ops";

/// A status, as far as a plan needs it.
#[derive(Deserialize)]
struct Status {
    ok: bool,
    mode: StatusMode,
    ejected: Option<String>,
    #[serde(default)]
    orders: BTreeMap<String, StatusOrders>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StatusMode {
    Starting,
    Running,
    Frozen,
    Ejected,
    GivenUp,
}

#[derive(Deserialize)]
struct StatusOrders {
    #[serde(default)]
    groups: Vec<StatusGroup>,
    #[serde(default)]
    hold_off_us: u64,
}

#[derive(Deserialize)]
struct StatusGroup {
    cgroup: String,
    class: StatusClass,
    #[serde(default)]
    expel: bool,
    #[serde(default)]
    weight: Option<u64>,
    #[serde(default)]
    limit: Option<StatusLimit>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StatusClass {
    Online,
    Offline,
}

#[derive(Deserialize)]
struct StatusLimit {
    quota_us: u64,
    period_us: u64,
}

/// What tells cheaply that a scheduler has come or gone: nobody is asked. Empty on a kernel that cannot have one.
#[must_use]
pub fn kernel(host: &dyn Host) -> String {
    [STATE, LOADS].map(|file| host.read_file(Path::new(file)).unwrap_or_default()).concat()
}

/// Puts into `caps` whether the scheduler can be used, where the kernel can have one at all.
pub fn capability(host: &dyn Host, state_dir: &Path, owner: &str, caps: &mut Capabilities) {
    if caps.feature_obstacle(SCHED_EXT).is_none() {
        let support = match look(host, state_dir, owner).obstacle {
            Some(because) => Support::No { because },
            None => Support::Yes,
        };
        caps.features.insert(SCHEDULER, support);
    }
}

/// Asks the scheduler of this state directory. `owner` is in whose name we order.
#[must_use]
pub fn look(host: &dyn Host, state_dir: &Path, owner: &str) -> Scheduler {
    let socket = state_dir.join(SOCKET);
    let orders = Orders { owner: owner.to_owned(), ..Orders::default() };
    let mut found = Scheduler { socket, orders, ..Scheduler::default() };
    let Ok(state) = host.read_file(Path::new(STATE)) else {
        found.obstacle = Some("this kernel cannot have one".to_owned());
        return found;
    };
    // With the empty line the other side closes as soon as it has answered.
    let answer = host.ask(&found.socket, "{\"do\":\"status\"}\n\n", PATIENCE);
    let status = match answer {
        Ok(answer) => parse(&answer),
        Err(error) => Err(unanswered(host, &error, state.trim())),
    };
    match status {
        Ok(status) => take(status, owner, &mut found),
        Err(because) => found.obstacle = Some(because),
    }
    found
}

fn parse(answer: &str) -> Result<Status, String> {
    let line = answer.lines().next().unwrap_or_default();
    let strange = "replace it with the scheduler of this version: `commensal sched load --replace`";
    match serde_json::from_str::<Status>(line) {
        Ok(status) if status.ok => Ok(status),
        Ok(_) => Err(format!("it does not tell its status; {strange}")),
        Err(error) => Err(format!("its status cannot be read ({error}); {strange}")),
    }
}

fn take(status: Status, owner: &str, found: &mut Scheduler) {
    let reason = status.ejected.unwrap_or_else(|| "no reason is known".to_owned());
    let (mode, obstacle) = match status.mode {
        StatusMode::Running => (Mode::Running, None),
        StatusMode::Frozen => (Mode::Frozen, None),
        StatusMode::Starting => (Mode::Starting, Some("it is being loaded".to_owned())),
        StatusMode::Ejected => {
            let because = format!("the kernel has taken it off ({reason}); it is loaded again by itself");
            (Mode::Ejected, Some(because))
        }
        StatusMode::GivenUp => {
            let because = format!(
                "the kernel has taken it off and it stays off ({reason}); `commensal sched unload`, then \
                 `commensal sched load`"
            );
            (Mode::GivenUp, Some(because))
        }
    };
    (found.mode, found.obstacle) = (Some(mode), obstacle);
    let Some((_, orders)) = status.orders.into_iter().find(|(name, _)| name == owner) else { return };
    found.orders.hold_off_us = orders.hold_off_us;
    found.orders.groups = orders.groups.into_iter().map(order).collect();
}

fn order(group: StatusGroup) -> (String, Order) {
    let class = match group.class {
        StatusClass::Online => Class::Online,
        StatusClass::Offline => Class::Offline,
    };
    let limit = group.limit.map(|one| Quota { quota_us: one.quota_us, period_us: one.period_us });
    let cgroup = group.cgroup.trim_end_matches('/').to_owned();
    (cgroup, Order { class, expel: group.expel, weight: group.weight, limit })
}

/// Why nobody answers, in words. `state` is the kernel's.
fn unanswered(host: &dyn Host, error: &HostError, state: &str) -> String {
    match error.errno {
        Errno::ENOENT | Errno::ECONNREFUSED if state == "disabled" => {
            "not loaded; `commensal sched load` loads it".to_owned()
        }
        Errno::ENOENT | Errno::ECONNREFUSED => {
            let name = host.read_file(Path::new(NAME)).unwrap_or_default();
            let name = if name.trim().is_empty() { "another one" } else { name.trim() };
            format!(
                "{name} has this machine (sched_ext is {state}), and the kernel takes one at a time: unload it, or give the \
                 --state-dir of whoever loaded it"
            )
        }
        Errno::EACCES | Errno::EPERM => "only root may ask it".to_owned(),
        Errno::ETIMEDOUT => {
            format!("it does not answer within {} ms; is its process stopped?", PATIENCE.as_millis())
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    const DIR: &str = "/state";

    fn found(state: Option<&str>, answer: Option<&str>) -> Scheduler {
        let fake = FakeHost::v2(2, 1 << 30);
        if let Some(state) = state {
            fake.set_file(STATE, &format!("{state}\n"));
        }
        fake.set_file(NAME, "rusty\n");
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
        check(None, None, "cannot have one");
        check(Some("disabled"), None, "not loaded; `commensal sched load`");
        check(Some("enabled"), None, "rusty has this machine");
        check(Some("enabled"), Some("hello"), "cannot be read");
        check(Some("enabled"), Some(""), "cannot be read");
        check(Some("enabled"), Some(r#"{"ok":true,"mode":"starting","ejected":null}"#), "being loaded");
        let ejected = r#"{"ok":true,"mode":"ejected","ejected":"runnable task stall"}"#;
        check(Some("disabled"), Some(ejected), "runnable task stall); it is loaded again");
        let given_up = r#"{"ok":true,"mode":"given-up","ejected":"sysrq"}"#;
        check(Some("disabled"), Some(given_up), "stays off (sysrq); `commensal sched unload`");
        check(Some("enabled"), Some(r#"{"ok":true,"mode":"dancing","ejected":null}"#), "cannot be read");
    }

    /// As the scheduler spells it; what a plan does not need is passed over.
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
