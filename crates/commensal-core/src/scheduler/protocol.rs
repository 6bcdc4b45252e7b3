//! Messages on the socket of commensal's sched_ext scheduler, one JSON object per line
//! (`docs/reference/sched-control.md`): requests, responses and the status. Orders (the configuration of cgroups) have
//! the same types as in plans.

use super::{Mode, Orders};
use crate::group::Class;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Replaces all orders of the owner that the message names.
    Orders(Orders),
    /// Requests the scheduler's status, which includes the orders in force.
    Status,
    /// Restores the original scheduling policy of every thread, then unloads the scheduler.
    Unload,
    /// Unloads the scheduler without changing the threads' policies, because another process replaces it immediately.
    HandOver,
}

/// Serialises orders in the form used on the socket: a list whose items contain their cgroup.
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
                return Err(D::Error::custom(format_args!("cgroup {cgroup} occurs twice")));
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
    /// Returns the orders of all owners after `orders` has replaced the orders of its owner.
    #[must_use]
    pub fn with(&self, orders: Orders) -> Standing {
        let mut all = self.0.clone();
        all.remove(&orders.owner);
        if !orders.groups.is_empty() || orders.hold_off_us > 0 {
            all.insert(orders.owner.clone(), orders);
        }
        Standing(all)
    }

    /// Merges the orders of all owners. If they have different hold-offs (times for which offline threads stay off a
    /// core), the longest applies.
    ///
    /// # Errors
    /// Returns the cgroups for which two owners have orders.
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

/// Valid values of `cpu.weight`.
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;
/// Valid periods of `cpu.max` (us).
const PERIODS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
/// Maximum hold-off (us): a longer hold-off would keep half of the machine's CPUs idle.
const MOST_HOLD_OFF_US: u64 = 1_000_000;

/// The response to a request that succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Always true.
    pub ok: bool,
    /// Generation number of the orders in force. It rises by 1 each time the daemon puts new orders in force.
    pub generation: u64,
    /// Number of threads that the scheduler schedules.
    pub threads: usize,
    /// Groups that the scheduler could not change, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// The response to a request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Always false.
    pub ok: bool,
    /// The error, and how to resolve it.
    pub error: String,
}

impl Request {
    /// The message for a connection with a single request: the empty line makes the other side close the connection
    /// after its response.
    #[must_use]
    pub fn text(&self) -> String {
        crate::text::json(self).unwrap_or_default() + "\n\n"
    }

    /// Parses a request from one line of the socket.
    ///
    /// # Errors
    /// Returns all errors of the line, in one string.
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
    /// All errors in the orders; empty if they are valid.
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
                wrong.push(format!("{name}: expel is for online groups only"));
            }
            if !offline && (order.weight.is_some() || order.limit.is_some()) {
                wrong.push(format!(
                    "{name}: weight and limit are for offline groups; the kernel applies those of online ones"
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

/// Parses the scheduler's response as a JSON object.
///
/// # Errors
/// Returns the reason if the request was refused, and an error if the text is not a response.
pub fn answer(text: &str) -> Result<Value, String> {
    // A response is a single line.
    let line = text.lines().next().unwrap_or_default();
    let value: Value =
        serde_json::from_str(line).map_err(|error| format!("not a response of commensal-sched: {error}"))?;
    match value["ok"].as_bool() {
        Some(true) => Ok(value),
        _ => Err(format!(
            "the sched_ext scheduler refuses: {}",
            value["error"].as_str().unwrap_or("it does not say why")
        )),
    }
}

impl Status {
    /// Converts a response to a status.
    ///
    /// # Errors
    /// Returns an error if the response does not have the form of this version's status.
    pub fn read(answer: Value) -> Result<Status, String> {
        serde_json::from_value(answer).map_err(|error| {
            format!(
                "its status cannot be read ({error}); replace it with the scheduler of this version: `commensal sched load \
                 --replace`"
            )
        })
    }
}

/// The scheduler's status. The parser ignores unknown fields, which another release may send; a missing field has its
/// default value (0 for numbers).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Always true: the request succeeded.
    pub ok: bool,
    /// PID of the daemon.
    pub pid: u32,
    /// The state of the scheduler.
    pub mode: Mode,
    /// Generation of the orders in force.
    pub generation: u64,
    /// Seconds since the scheduler was loaded.
    pub loaded_s: u64,
    /// Number of threads that the scheduler schedules.
    pub threads: usize,
    /// Number of real-time threads of offline groups, which the scheduler does not schedule.
    pub realtime: usize,
    /// Number of threads whose scheduling policy another program changed and the daemon restored.
    pub drifted: u64,
    /// How long (ms) no scheduler was loaded while this daemon replaced another daemon; `None` if it replaced no
    /// daemon.
    pub upgrade_gap_ms: Option<f64>,
    /// How often offline groups were frozen.
    pub freezes: u64,
    /// How often the scheduler was loaded again after an ejection.
    pub reloads: u64,
    /// The reason of the last ejection by the kernel; `None` if the kernel has not ejected the scheduler.
    pub ejected: Option<String>,
    /// Current errors and refused orders.
    pub problems: Vec<String>,
    /// The orders, by owner.
    pub orders: Standing,
    /// Status of each offline group.
    pub groups: Vec<GroupStatus>,
    /// Counters of the whole machine since the scheduler was loaded.
    pub counters: Counters,
}

/// Status of an offline group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupStatus {
    /// Directory of the group's cgroup.
    pub cgroup: String,
    /// Whether the cgroup exists.
    pub found: bool,
    /// Number of threads in and below the cgroup.
    pub threads: usize,
    /// Number of the group's slots. A slot is a set of offline threads that share one weight: the cgroup itself, and
    /// each cgroup below it that has a weight of its own.
    pub slots: usize,
    /// The group's share of offline CPU time, 0 to 1.
    pub share: f64,
    /// Whether `cpu.idle` makes the group yield while the scheduler is not loaded.
    pub fallback: bool,
    /// Counters of the group's slots: sums of `run_ns` and `queued`, maxima of the waits.
    #[serde(flatten)]
    pub reading: SlotReading,
}

/// Number of classes by which CPU time is counted: idle, other, offline, online, expelling.
pub const CLASSES: usize = 5;

/// Counters of the whole machine since the scheduler was loaded. An *expelling* thread is a thread of an online group
/// with `expel`; offline threads must not run on the same core at the same time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Time of all CPUs (ns) by class: idle, other, offline, online, expelling.
    pub ns: [u64; CLASSES],
    /// Idle time of CPUs while no thread of a group with `expel = true` ran on their core (ns).
    pub room_ns: u64,
    /// Time in which an expelling thread ran on a core, summed over cores (ns).
    pub expelling_ns: u64,
    /// Time in which an expelling thread and an offline thread ran on the same core (overlap), summed over cores (ns).
    pub overlap_ns: u64,
    /// The longest uninterrupted overlap of an expelling and an offline thread on a core (ns).
    pub overlap_max_ns: u64,
    /// Number of kicks: requests to an offline thread to leave its CPU because an expelling thread runs on the core.
    pub kicks: u64,
    /// How often an offline thread was not started because an expelling thread ran on the core.
    pub refusals: u64,
    /// How often a CPU was woken to run offline threads again after an expelling thread had left its core.
    pub resumes: u64,
    /// Number of evictions: offline threads that left their CPU because an expelling thread ran on the core.
    pub evictions: u64,
    /// Total duration of all evictions (ns).
    pub evict_ns: u64,
    /// Duration of the longest eviction (ns).
    pub evict_max_ns: u64,
    /// Number of evictions that took effect only at the timer tick. The timer tick is the fallback if a kick has no
    /// effect.
    pub by_ticks: u64,
    /// How often the scheduler took a CPU from offline work and left it idle, so that the kernel's load balancer moves
    /// a waiting online thread there.
    pub vacated: u64,
    /// How often the scheduler let an offline thread run in spite of the rules, because the thread was being killed or
    /// frozen.
    pub let_die: u64,
    /// How often the scheduler ran no offline thread on a CPU that the kernel's deadline server offered, because online
    /// threads waited for that CPU.
    pub declined: u64,
}

impl Counters {
    /// Share of the expelling time in which offline work ran on the same core; `None` if no expelling thread ran.
    #[must_use]
    pub fn overlap(&self) -> Option<f64> {
        (self.expelling_ns > 0).then(|| self.overlap_ns as f64 / self.expelling_ns as f64)
    }

    /// Mean duration of an eviction (us); `None` if no eviction took place.
    #[must_use]
    pub fn evict_mean_us(&self) -> Option<f64> {
        (self.evictions > 0).then(|| self.evict_ns as f64 / 1e3 / self.evictions as f64)
    }

    /// Idle time since `before` that offline work could have used, in per mille of the time of all CPUs.
    #[must_use]
    pub fn room_permille(&self, before: &Counters) -> u64 {
        let all: u64 = self.ns.iter().sum::<u64>().saturating_sub(before.ns.iter().sum());
        (self.room_ns.saturating_sub(before.room_ns) * 1000).checked_div(all).unwrap_or(0)
    }
}

/// Counters of a slot, which is a set of offline threads that share one weight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotReading {
    /// CPU time that the slot's threads have used (ns).
    pub run_ns: u64,
    /// Longest time (ns) for which a thread that is waiting now has waited, according to the last sample. The scheduler
    /// takes a sample every tenth of a second.
    pub oldest_ns: u64,
    /// Longest completed wait since the scheduler was loaded (ns).
    pub waited_max_ns: u64,
    /// Number of waiting threads, according to the last sample.
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
        check(&of(r#"{"cgroup":"/a","class":"offline","expel":true}"#), "expel is for online groups only");
        check(&of(r#"{"cgroup":"/a","class":"online","weight":5}"#), "are for offline groups");
        check(&of(r#"{"cgroup":"/a","class":"offline","weight":0}"#), "not between 1 and 10000");
        check(
            &of(r#"{"cgroup":"/a","class":"offline","limit":{"quota_us":10,"period_us":5}}"#),
            "less than 1000",
        );
        check(&of(r#"{"cgroup":"/a","class":"offline","wieght":1}"#), "unknown field `wieght`");
    }

    // promise 55
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
        // Orders may contain a hold-off but no groups.
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
        assert!(answer("hello").unwrap_err().contains("not a response") && answer("").is_err());
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

    /// Messages of version 0.1.0, which must stay readable because either side may be upgraded first.
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
