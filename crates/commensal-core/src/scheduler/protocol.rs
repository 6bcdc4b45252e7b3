//! Messages on the scheduler's socket, one JSON object per line (`docs/reference/sched-control.md`): requests, answers
//! and the status. Orders are the same as in plans.

use super::{Mode, Orders};
use crate::group::Class;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Replaces all groups of this owner.
    Orders(Orders),
    /// Asks for the orders in force and the scheduler's state.
    Status,
    /// Gives every thread its original policy back, then unloads the scheduler.
    Unload,
    /// Unloads the scheduler and leaves threads as they are, because another process takes over at once.
    HandOver,
}

/// Serialises orders as on the socket: a list whose items contain their cgroup.
pub(super) mod list {
    use crate::scheduler::Order;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    #[derive(Serialize)]
    struct Sent<'a> {
        cgroup: &'a str,
        #[serde(flatten)]
        order: &'a Order,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Received {
        cgroup: String,
        #[serde(flatten)]
        order: Order,
    }

    pub fn serialize<S: Serializer>(groups: &BTreeMap<String, Order>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(groups.iter().map(|(cgroup, order)| Sent { cgroup, order }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Order>, D::Error> {
        let mut groups = BTreeMap::new();
        for Received { cgroup, order } in Vec::<Received>::deserialize(from)? {
            let cgroup = cgroup.trim_end_matches('/').to_owned();
            if groups.contains_key(&cgroup) {
                return Err(D::Error::custom(format_args!("cgroup {cgroup} is there twice")));
            }
            groups.insert(cgroup, order);
        }
        Ok(groups)
    }
}

/// The orders of all owners.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Standing(pub BTreeMap<String, Orders>);

impl Standing {
    /// The same, with these orders in place of those of the same owner.
    #[must_use]
    pub fn with(&self, orders: Orders) -> Standing {
        let mut all = self.0.clone();
        all.remove(&orders.owner);
        if !orders.groups.is_empty() || orders.hold_off_us > 0 {
            all.insert(orders.owner.clone(), orders);
        }
        Standing(all)
    }

    /// All groups merged; the longest hold-off counts.
    ///
    /// # Errors
    /// The groups that two owners want.
    pub fn together(&self) -> Result<Orders, String> {
        let mut together = Orders::default();
        let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
        let mut wrong = Vec::new();
        for (owner, orders) in &self.0 {
            together.hold_off_us = together.hold_off_us.max(orders.hold_off_us);
            for (cgroup, order) in &orders.groups {
                if let Some(first) = taken.insert(cgroup, owner) {
                    wrong.push(format!(
                        "{cgroup}: {first:?} and {owner:?} both have orders for it; leave it out of one of them"
                    ));
                }
                together.groups.insert(cgroup.clone(), order.clone());
            }
        }
        if wrong.is_empty() { Ok(together) } else { Err(wrong.join("; ")) }
    }
}

/// Range of `cpu.weight`.
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;
/// Range of `cpu.max`'s period, us.
const PERIODS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
/// Longest hold-off accepted: a longer one would waste half of the machine.
const MOST_HOLD_OFF_US: u64 = 1_000_000;

/// The answer to a request that worked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Always true.
    pub ok: bool,
    /// Generation of the orders that are in force now.
    pub generation: u64,
    /// Number of threads that the scheduler schedules.
    pub threads: usize,
    /// Groups that were not changed, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// The answer to a request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Always false.
    pub ok: bool,
    /// The error, and what to do about it.
    pub error: String,
}

impl Request {
    /// The text of a single request: after the empty line the other side closes the connection once it has answered.
    #[must_use]
    pub fn text(&self) -> String {
        crate::text::json(self).unwrap_or_default() + "\n\n"
    }

    /// Parses a line.
    ///
    /// # Errors
    /// Everything that is wrong with the line, in one text.
    pub fn parse(line: &str) -> Result<Request, String> {
        let request: Request =
            serde_json::from_str(line).map_err(|error| format!("not a request: {error}"))?;
        if let Request::Orders(orders) = &request {
            let wrong = orders.problems();
            if !wrong.is_empty() {
                return Err(wrong.join("; "));
            }
        }
        Ok(request)
    }
}

impl Orders {
    /// Everything that is wrong with the orders.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.hold_off_us > MOST_HOLD_OFF_US {
            wrong.push(format!("hold_off_us {} is more than {MOST_HOLD_OFF_US}", self.hold_off_us));
        }
        for (name, order) in &self.groups {
            if !name.starts_with('/') || name.split('/').any(|part| part == "..") {
                wrong.push(format!("cgroup {name:?} is not an absolute path"));
            }
            let offline = order.class == Class::Offline;
            if order.expel && offline {
                wrong.push(format!("{name}: an offline group expels nobody (expel is for online groups)"));
            }
            if !offline && (order.weight.is_some() || order.limit.is_some()) {
                wrong.push(format!(
                    "{name}: weight and limit are for offline groups; the kernel has those of online ones"
                ));
            }
            if let Some(weight) = order.weight.filter(|weight| !WEIGHTS.contains(weight)) {
                wrong.push(format!(
                    "{name}: weight {weight} is not between {} and {}",
                    WEIGHTS.start(),
                    WEIGHTS.end()
                ));
            }
            if let Some(limit) = order.limit {
                if !PERIODS.contains(&limit.period_us) {
                    let (least, most) = (PERIODS.start(), PERIODS.end());
                    wrong.push(format!(
                        "{name}: period_us {} is not between {least} and {most}",
                        limit.period_us
                    ));
                }
                if limit.quota_us < 1_000 {
                    wrong.push(format!("{name}: quota_us {} is less than 1000", limit.quota_us));
                }
            }
        }
        wrong
    }
}

/// Parses an answer as an object.
///
/// # Errors
/// When the request was refused, with the reason, or when the text is not an answer.
pub fn answer(text: &str) -> Result<Value, String> {
    // The other side closes after one line; nothing else follows.
    let line = text.lines().next().unwrap_or_default();
    let value: Value =
        serde_json::from_str(line).map_err(|error| format!("no answer of commensal-sched: {error}"))?;
    match value["ok"].as_bool() {
        Some(true) => Ok(value),
        _ => Err(format!(
            "the sched_ext scheduler refuses: {}",
            value["error"].as_str().unwrap_or("it does not say why")
        )),
    }
}

impl Status {
    /// Reads the status from an answer.
    ///
    /// # Errors
    /// As [`answer`], and when the status has another version.
    pub fn read(answer: Value) -> Result<Status, String> {
        serde_json::from_value(answer).map_err(|error| {
            format!(
                "its status cannot be read ({error}); replace it with the scheduler of this version: `commensal sched load \
                 --replace`"
            )
        })
    }
}

/// The scheduler's status. Another release may send more fields; missing ones are 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Always true.
    pub ok: bool,
    /// PID of the daemon.
    pub pid: u32,
    /// State of the scheduler.
    pub mode: Mode,
    /// Generation of the orders in force.
    pub generation: u64,
    /// Seconds since the scheduler was loaded.
    pub loaded_s: u64,
    /// Number of threads that the scheduler schedules.
    pub threads: usize,
    /// Real-time threads of offline groups, which the scheduler leaves alone.
    pub realtime: usize,
    /// Threads whose policy another program had changed and the daemon restored.
    pub drifted: u64,
    /// Time without a scheduler during a takeover from another daemon, ms.
    pub upgrade_gap_ms: Option<f64>,
    /// How often offline groups were frozen.
    pub freezes: u64,
    /// How often the scheduler was loaded again after an ejection.
    pub reloads: u64,
    /// Why the kernel last unloaded it.
    pub ejected: Option<String>,
    /// Current errors and refused orders.
    pub problems: Vec<String>,
    /// The orders, by owner.
    pub orders: Standing,
    /// Each offline group.
    pub groups: Vec<GroupStatus>,
    /// Sums over the machine since the scheduler was loaded.
    pub counters: Counters,
}

/// Status of an offline group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupStatus {
    /// Directory of its cgroup.
    pub cgroup: String,
    /// Whether the cgroup exists.
    pub found: bool,
    /// Threads in and below the cgroup.
    pub threads: usize,
    /// Cgroups in it that have separate weights.
    pub slots: usize,
    /// Its share of the offline CPU time, 0 to 1.
    pub share: f64,
    /// Whether `cpu.idle` holds it back when the scheduler is gone.
    pub fallback: bool,
    /// Sums over the group's slots.
    #[serde(flatten)]
    pub reading: SlotReading,
}

/// Number of classes of threads that a CPU can run: none, others, offline, online, expelling.
pub const CLASSES: usize = 5;

/// Sums over the machine since the scheduler was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Time of all CPUs by class: idle, other, offline, online, expelling; ns.
    pub ns: [u64; CLASSES],
    /// Idle time of CPUs on cores that run no expelling thread, ns.
    pub room_ns: u64,
    /// Time in which an expelling thread ran on a core, summed over cores, ns.
    pub expelling_ns: u64,
    /// … while an offline thread ran beside it, ns.
    pub overlap_ns: u64,
    /// The longest such overlap, ns.
    pub overlap_max_ns: u64,
    /// Offline threads asked to leave at once.
    pub kicks: u64,
    /// Times that an offline thread was kept off a core with an expelling thread.
    pub refusals: u64,
    /// CPUs woken because the expelling thread had left the core.
    pub resumes: u64,
    /// Offline threads that left because an expelling one came.
    pub evictions: u64,
    /// Total time that these evictions took, ns.
    pub evict_ns: u64,
    /// The longest eviction, ns.
    pub evict_max_ns: u64,
    /// Evictions that needed the timer tick, which is the backstop.
    pub by_ticks: u64,
    /// CPUs left idle so that an online thread that waited elsewhere is migrated there.
    pub vacated: u64,
    /// Threads that were being killed or frozen and were allowed to run.
    pub let_die: u64,
    /// Times that the kernel's deadline server offered a CPU that other threads wait for, and the scheduler refused it.
    pub declined: u64,
}

impl Counters {
    /// Share of the expelling time in which offline work ran on the same core; `None` when no thread expelled.
    #[must_use]
    pub fn overlap(&self) -> Option<f64> {
        (self.expelling_ns > 0).then(|| self.overlap_ns as f64 / self.expelling_ns as f64)
    }

    /// Mean time that offline threads took to leave, us; `None` when there was no eviction.
    #[must_use]
    pub fn evict_mean_us(&self) -> Option<f64> {
        (self.evictions > 0).then(|| self.evict_ns as f64 / 1e3 / self.evictions as f64)
    }

    /// Idle time that was open to offline work since `before`, in 1/1000 of all CPUs' time.
    #[must_use]
    pub fn room_permille(&self, before: &Counters) -> u64 {
        let all: u64 = self.ns.iter().sum::<u64>().saturating_sub(before.ns.iter().sum());
        (self.room_ns.saturating_sub(before.room_ns) * 1000).checked_div(all).unwrap_or(0)
    }
}

/// Counters of a slot: a group of threads with one weight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotReading {
    /// CPU time, ns.
    pub run_ns: u64,
    /// Longest current wait, ns; sampled every tenth of a second.
    pub oldest_ns: u64,
    /// Threads that wait, from the same sample.
    pub waited_max_ns: u64,
    /// Threads that wait; the same sample.
    pub queued: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Order;

    fn check(line: &str, expect: &str) {
        match Request::parse(line) {
            Ok(request) => panic!("{line} was taken as {request:?}, expected {expect:?}"),
            Err(error) => assert!(error.contains(expect), "{line}: {error}"),
        }
    }

    #[test]
    fn what_is_wrong_is_told_at_once() {
        let of = |group: &str| format!(r#"{{"do":"orders","groups":[{group}]}}"#);
        check("nonsense", "not a request");
        check(r#"{"do":"dance"}"#, "unknown variant `dance`");
        check(&of(r#"{"cgroup":"/a","class":"between"}"#), "unknown variant `between`");
        check(&of(r#"{"cgroup":"a","class":"online"}"#), "not an absolute path");
        check(&of(r#"{"cgroup":"/a/../b","class":"online"}"#), "not an absolute path");
        check(&of(r#"{"cgroup":"/a","class":"online"},{"cgroup":"/a/","class":"offline"}"#), "twice");
        check(&of(r#"{"cgroup":"/a","class":"offline","expel":true}"#), "expels nobody");
        check(&of(r#"{"cgroup":"/a","class":"online","weight":5}"#), "are for offline groups");
        check(&of(r#"{"cgroup":"/a","class":"offline","weight":0}"#), "not between 1 and 10000");
        check(
            &of(r#"{"cgroup":"/a","class":"offline","limit":{"quota_us":10,"period_us":5}}"#),
            "less than 1000",
        );
        check(&of(r#"{"cgroup":"/a","class":"offline","wieght":1}"#), "unknown field `wieght`");
    }

    // promise 66
    #[test]
    fn owners_do_not_take_each_others_orders_away() {
        let order = Order { class: Class::Offline, expel: false, weight: None, limit: None };
        let of = |owner: &str, cgroups: &[&str], hold_off_us: u64| {
            let groups = cgroups.iter().map(|cgroup| ((*cgroup).to_owned(), order.clone())).collect();
            Orders { owner: owner.to_owned(), groups, hold_off_us }
        };
        let both = Standing::default().with(of("a", &["/x", "/y"], 5)).with(of("b", &["/z"], 9));
        let names = |all: &Standing| -> Vec<String> { all.together().unwrap().groups.into_keys().collect() };
        assert_eq!(
            (names(&both), both.together().unwrap().hold_off_us),
            (vec!["/x".into(), "/y".into(), "/z".into()], 9)
        );
        let less = both.with(of("a", &["/w"], 0));
        assert_eq!(names(&less), ["/w", "/z"]);
        assert_eq!(names(&less.with(of("b", &[], 0))), ["/w"]);
        // A hold-off may be ordered without groups.
        assert_eq!(less.with(of("c", &[], 20)).together().unwrap().hold_off_us, 20);
        let error = both.with(of("c", &["/z"], 0)).together().unwrap_err();
        assert!(error.contains(r#""b" and "c" both"#), "{error}");
    }

    #[test]
    fn answers_are_told_apart() {
        assert!(answer("{\"ok\":true,\"generation\":1}\n").is_ok());
        let refused = |text: &str| answer(text).unwrap_err();
        assert_eq!(refused(r#"{"ok":false,"error":"no"}"#), "the sched_ext scheduler refuses: no");
        assert!(refused(r#"{"ok":false}"#).ends_with("refuses: it does not say why"));
        assert!(answer("hello").unwrap_err().contains("no answer") && answer("").is_err());
        let status = |text: &str| Status::read(answer(text)?);
        assert_eq!(status(r#"{"ok":true,"mode":"given-up","later":1}"#).unwrap().mode, Mode::GivenUp);
        assert!(status(r#"{"ok":true,"mode":"dancing"}"#).unwrap_err().contains("load --replace"));
    }

    #[test]
    fn a_status_comes_back_and_counts() {
        let mut status = Status { ok: true, mode: Mode::Running, threads: 4, ..Status::default() };
        let c = &mut status.counters;
        assert_eq!((c.overlap(), c.evict_mean_us()), (None, None));
        (c.expelling_ns, c.overlap_ns, c.evictions, c.evict_ns) = (1_000, 7, 10, 500_000);
        (c.ns, c.room_ns) = ([400, 0, 500, 0, 100], 50);
        assert_eq!((c.overlap(), c.evict_mean_us()), (Some(0.007), Some(50.0)));
        assert_eq!(c.room_permille(&Counters::default()), 50);
        status.groups.push(GroupStatus { cgroup: "/g".to_owned(), share: 0.25, ..GroupStatus::default() });
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    }

    /// The bytes of version 0.1.0: either side may be upgraded first.
    #[test]
    fn either_side_may_be_of_the_first_version() {
        let orders = concat!(
            r#"{"do":"orders","owner":"commensal","groups":[{"cgroup":"/sys/fs/cgroup/batch","class":"offline","weight":50,"#,
            r#""limit":{"quota_us":20000,"period_us":100000}},{"cgroup":"/sys/fs/cgroup/shop","class":"online","expel":true}],"#,
            r#""hold_off_us":5}"#
        );
        let hold_off = r#"{"do":"orders","owner":"commensal sched load","groups":[],"hold_off_us":40}"#;
        let nobody = r#"{"do":"orders","groups":[{"cgroup":"/x","class":"offline"}],"hold_off_us":0}"#;
        let plain = [r#"{"do":"status"}"#, r#"{"do":"unload"}"#, r#"{"do":"hand-over"}"#];
        for line in [orders, hold_off, nobody].into_iter().chain(plain) {
            assert_eq!(Request::parse(line).unwrap().text(), format!("{line}\n\n"));
        }
        let status = concat!(
            r#"{"ok":true,"pid":70,"mode":"running","generation":2,"loaded_s":5,"threads":4,"realtime":0,"drifted":0,"#,
            r#""upgrade_gap_ms":null,"freezes":0,"reloads":0,"ejected":null,"problems":[],"orders":{"":{"groups":"#,
            r#"[{"cgroup":"/x","class":"offline"}],"hold_off_us":0},"commensal":{"owner":"commensal","groups":"#,
            r#"[{"cgroup":"/sys/fs/cgroup/batch","class":"offline","weight":50,"limit":{"quota_us":20000,"period_us":100000}}],"#,
            r#""hold_off_us":5}},"groups":[{"cgroup":"/x","found":true,"threads":4,"slots":1,"share":0.25,"fallback":true,"#,
            r#""run_ns":9,"oldest_ns":0,"waited_max_ns":1,"queued":2}],"counters":{"ns":[1,2,3,4,5],"room_ns":1,"#,
            r#""expelling_ns":2,"overlap_ns":3,"overlap_max_ns":4,"kicks":5,"refusals":6,"resumes":7,"evictions":8,"evict_ns":9,"#,
            r#""evict_max_ns":10,"by_ticks":11,"vacated":12,"let_die":13,"declined":14}}"#
        );
        let read = Status::read(answer(status).unwrap()).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), status);
        assert_eq!((read.orders.0.len(), read.counters.declined), (2, 14));
        let done = r#"{"ok":true,"generation":3,"threads":2,"left":["one"]}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Done>(done).unwrap()).unwrap(), done);
        let refusal = Refusal { ok: false, error: "no".to_owned() };
        assert_eq!(serde_json::to_string(&refusal).unwrap(), r#"{"ok":false,"error":"no"}"#);
    }
}
