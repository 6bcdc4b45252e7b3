//! What is asked over the socket: groups with their class, and what becomes of them. One JSON object per line.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A line of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// From now on these groups of this owner and no others.
    Orders(Orders),
    /// What is in force and what it does.
    Status,
    /// Every thread gets its own policy back, then the scheduler goes.
    Unload,
    /// The scheduler goes and threads stay as they are, because another process takes over at once.
    HandOver,
}

/// All that one owner wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// Who orders: the orders of others stay as they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The groups.
    pub groups: Vec<Group>,
    /// For how long a thread of a core stays free after an expelling one has left, us.
    #[serde(default)]
    pub hold_off_us: u64,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Absolute path of its directory in the hierarchy of the CPU controller.
    pub cgroup: String,
    /// What it is. A word that this program does not know is an error of the whole request.
    pub class: Class,
    /// Online: offline work leaves the other threads of a core that it runs on.
    #[serde(default)]
    pub expel: bool,
    /// Offline: share against other offline groups, as `cpu.weight`; without one the group's own file says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Offline: hard limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

/// Of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Its threads stay with the kernel's own scheduler.
    Online,
    /// Its threads run when nobody else wants the CPU.
    Offline,
}

/// CPU time per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// us.
    pub quota_us: u64,
    /// us.
    #[serde(default = "default_period")]
    pub period_us: u64,
}

fn default_period() -> u64 {
    100_000
}

/// What everybody wants, by owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Standing(pub BTreeMap<String, Orders>);

impl Standing {
    /// The same with these orders in place of those that their owner had.
    #[must_use]
    pub fn with(&self, orders: Orders) -> Standing {
        let mut all = self.0.clone();
        all.remove(&orders.owner);
        if !orders.groups.is_empty() || orders.hold_off_us > 0 {
            all.insert(orders.owner.clone(), orders);
        }
        Standing(all)
    }

    /// All groups; the longest hold-off counts.
    ///
    /// # Errors
    /// Groups that two owners want.
    pub fn together(&self) -> Result<Orders, String> {
        let mut together = Orders::default();
        let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
        let mut wrong = Vec::new();
        for (owner, orders) in &self.0 {
            together.hold_off_us = together.hold_off_us.max(orders.hold_off_us);
            for group in &orders.groups {
                match taken.insert(group.cgroup.trim_end_matches('/'), owner) {
                    Some(first) if first != owner => wrong.push(format!(
                        "{}: {first:?} and {owner:?} both have orders for it; leave it out of one of them",
                        group.cgroup
                    )),
                    _ => together.groups.push(group.clone()),
                }
            }
        }
        if wrong.is_empty() { Ok(together) } else { Err(wrong.join("; ")) }
    }
}

/// Range of `cpu.weight`.
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;
/// Range of `cpu.max`'s period, us.
const PERIODS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
/// More than that is no hold-off but a loss of half the machine.
const MOST_HOLD_OFF_US: u64 = 1_000_000;

/// The answer to a request that worked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// True.
    pub ok: bool,
    /// Number of the orders that are in force now.
    pub generation: u64,
    /// Threads that are under the scheduler.
    pub threads: usize,
    /// What was left as it is, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// The answer to one that did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// False.
    pub ok: bool,
    /// Why, and the way out.
    pub error: String,
}

impl Request {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, all in one.
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
    /// Everything that is wrong with them.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        if self.hold_off_us > MOST_HOLD_OFF_US {
            wrong.push(format!("hold_off_us {} is more than {MOST_HOLD_OFF_US}", self.hold_off_us));
        }
        for group in &self.groups {
            let name = &group.cgroup;
            if !name.starts_with('/') || name.split('/').any(|part| part == "..") {
                wrong.push(format!("cgroup {name:?} is not an absolute path"));
            }
            if !seen.insert(name.trim_end_matches('/')) {
                wrong.push(format!("cgroup {name} is there twice"));
            }
            let offline = group.class == Class::Offline;
            if group.expel && offline {
                wrong.push(format!("{name}: an offline group expels nobody (expel is for online groups)"));
            }
            if !offline && (group.weight.is_some() || group.limit.is_some()) {
                wrong.push(format!(
                    "{name}: weight and limit are for offline groups; the kernel has those of online ones"
                ));
            }
            if let Some(weight) = group.weight.filter(|weight| !WEIGHTS.contains(weight)) {
                wrong.push(format!(
                    "{name}: weight {weight} is not between {} and {}",
                    WEIGHTS.start(),
                    WEIGHTS.end()
                ));
            }
            if let Some(limit) = group.limit {
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn owners_do_not_take_each_others_orders_away() {
        let of = |owner: &str, cgroups: &[&str], hold_off_us: u64| {
            let group = |cgroup: &&str| Group {
                cgroup: (*cgroup).to_owned(),
                class: Class::Offline,
                expel: false,
                weight: None,
                limit: None,
            };
            Orders { owner: owner.to_owned(), groups: cgroups.iter().map(group).collect(), hold_off_us }
        };
        let both = Standing::default().with(of("a", &["/x", "/y"], 5)).with(of("b", &["/z"], 9));
        let names = |all: &Standing| -> Vec<String> {
            all.together().unwrap().groups.into_iter().map(|group| group.cgroup).collect()
        };
        assert_eq!(
            (names(&both), both.together().unwrap().hold_off_us),
            (vec!["/x".into(), "/y".into(), "/z".into()], 9)
        );
        let less = both.with(of("a", &["/w"], 0));
        assert_eq!(names(&less), ["/w", "/z"]);
        assert_eq!(names(&less.with(of("b", &[], 0))), ["/w"]);
        // A hold-off may be ordered by itself.
        assert_eq!(less.with(of("c", &[], 20)).together().unwrap().hold_off_us, 20);
        let error = both.with(of("c", &["/z/"], 0)).together().unwrap_err();
        assert!(error.contains(r#""b" and "c" both"#), "{error}");
    }

    #[test]
    fn a_request_comes_back_as_it_was_sent() {
        let line = r#"{"do":"orders","groups":[{"cgroup":"/sys/fs/cgroup/batch","class":"offline","expel":false,"weight":50,"limit":{"quota_us":20000,"period_us":100000}}],"hold_off_us":0}"#;
        let request = Request::parse(line).unwrap();
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        assert_eq!(Request::parse(r#"{"do":"hand-over"}"#).unwrap(), Request::HandOver);
    }
}
