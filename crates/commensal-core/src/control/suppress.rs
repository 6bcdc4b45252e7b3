//! CPU suppress: the controller that limits offline work to the headroom (see [`super::frame`]) by a quota, where whole
//! cores would waste too much.
//!
//! A quota limits CPU use but does not protect wake-ups. Measured on Linux 6.18 with a quota of 20 % of a CPU, the
//! blamed wait was 128 to 267 ms per online CPU-second; with `cpu.idle`, it was 8 to 12 ms. So a quota is used only for
//! groups that already yield by their class. For these groups the quota leaves idle CPUs and warm caches to online
//! work.

use super::explain::Explanation;
use super::frame::{self, Use, headroom};
use super::regulator::{Move, Params, Range, Regulator};
use super::sound;
use crate::config::Headroom;
use crate::units::MicroCpus;

/// Maximum share of the headroom that may be wasted by rounding to whole cores. If more would be wasted, a quota is
/// used instead of a frame. On average rounding wastes half a core, so a frame is used from 7 cores without SMT and
/// from 8 cores with SMT.
pub const MOST_LOST: f64 = 0.10;
/// The floor of the quota as a share of the machine; sideloader also uses 5 %.
pub const FLOOR_SHARE: f64 = 0.05;
/// The minimum floor of the quota, in CPUs: the kernel's smallest quota of 1 ms (`min_cfs_quota_period`,
/// kernel/sched/core.c) in the shortest period that is used, 10 ms.
pub const FLOOR_CPUS: f64 = 0.1;

/// The mechanism that keeps offline work within its headroom, with the reason.
#[derive(Debug, Clone, PartialEq)]
pub enum Actuator {
    /// Offline work is confined to whole cores by [`super::frame`].
    Frame(Explanation),
    /// Offline work is limited to a quota by [`Suppress`].
    Quota(Explanation),
}

/// Chooses the mechanism. The inputs do not change while the machine runs: the share of the CPUs that may be busy
/// (`theta`), the number of CPUs that offline work may use when no controller limits it (`cpus`), the number of CPUs
/// per physical core (`core`), and whether offline work yields by its class (`yields`).
#[must_use]
pub fn actuator(theta: f64, cpus: f64, core: f64, yields: bool) -> Actuator {
    let lost = core / 2.0 / (theta * cpus).max(f64::MIN_POSITIVE);
    let why = |rule: &str| {
        Explanation::new(rule, "lost = per_core / 2 / (theta * cpus)")
            .with("per_core", core, "CPUs")
            .with("theta", theta, "")
            .with("cpus", cpus, "CPUs")
            .with("lost", lost, "")
    };
    if !yields {
        let rule = "whole cores, although some headroom is lost: offline work does not yield by its class here, and a quota does not protect wake-ups";
        return Actuator::Frame(why(if lost > MOST_LOST { rule } else { "whole cores" }));
    }
    if lost > MOST_LOST {
        return Actuator::Quota(why("a quota: whole cores would waste more than a tenth of the headroom"));
    }
    Actuator::Frame(why("whole cores: they waste at most a tenth of the headroom"))
}

/// Whether offline work is limited to whole cores (a frame) instead of by a quota. Takes the `[agent] headroom` setting
/// and the inputs of [`actuator`].
#[must_use]
pub fn is_frame(headroom: Headroom, theta: f64, (cpus, core): (f64, f64), yields: bool) -> bool {
    match headroom {
        Headroom::Frame => true,
        Headroom::Quota | Headroom::Off => false,
        Headroom::Target | Headroom::Auto => {
            matches!(actuator(theta, cpus, core, yields), Actuator::Frame(_))
        }
    }
}

/// Inputs of [`Suppress::step`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuppressInput {
    /// Share of the CPUs that may be busy.
    pub theta: f64,
    /// Number of CPUs that offline work may use when no controller limits it.
    pub cpus: f64,
    /// Number of logical CPUs per physical core.
    pub core: f64,
    /// Whether every offline group yields by its class (`cpu.idle`, a vendor's knob, the smallest weight).
    pub yields: bool,
    /// CPU use since the last tick.
    pub used: Use,
    /// The latency controller's cap, in CPUs; `None` when that controller sets no cap.
    pub cap: Option<f64>,
}

/// The decision about the quota of all offline work.
#[derive(Debug, Clone, PartialEq)]
pub struct SuppressDecision {
    /// The quota; `None` if no quota must be set.
    pub quota: Option<MicroCpus>,
    /// How this step changed the quota.
    pub moved: Move,
    /// The explanation.
    pub why: Explanation,
}

/// The controller of the quota.
#[derive(Debug, Clone)]
pub struct Suppress {
    regulator: Option<Regulator>,
    start: f64,
}

impl Suppress {
    /// Creates the controller. If this agent replaces another agent, the controller starts from the quota in force,
    /// otherwise from the floor.
    #[must_use]
    pub fn new(in_force: Option<MicroCpus>) -> Suppress {
        let start = in_force.map_or(0.0, |quota| quota.0 as f64 / 1e6);
        Suppress { regulator: None, start }
    }

    /// Decides the quota. While `busy` or `offline` is missing, the quota first stays as it is, and after
    /// [`super::MISSING_HOLD_MS`] it falls to its floor. If some offline group does not yield, there is no quota, and
    /// the next quota starts from the floor.
    pub fn step(&mut self, now_ms: u64, input: &SuppressInput) -> SuppressDecision {
        if !input.yields {
            *self = Suppress::new(None);
            let rule = "no quota: some offline group does not yield by its class, and a quota alone lets it hold a CPU \
                        for as long as the quota lasts while online work waits";
            return SuppressDecision { quota: None, moved: Move::Steady, why: Explanation::new(rule, "") };
        }
        let params = Params::cpus(input.cpus, input.core);
        let floor = floor(input.cpus);
        let regulator = self.regulator.get_or_insert_with(|| Regulator::new(params, self.start));
        regulator.retune(params);
        let mut headroom = headroom(input.theta, input.cpus, input.used);
        if let (Some(headroom), Some(cap)) = (&mut headroom, sound(input.cap)) {
            *headroom = headroom.min(cap);
        }
        let moved = regulator.step(now_ms, headroom, Range { floor, ceiling: input.cpus });
        let allowed = regulator.value();
        let sizes = (input.theta, input.cpus);
        let why = frame::explain(moved.words("the quota"), sizes, input.used, (input.cap, false), headroom);
        let why =
            regulator.explain(moved, why, ("headroom", "allowed"), "CPUs").with("allowed", allowed, "CPUs");
        SuppressDecision { quota: Some(micro(allowed)), moved, why }
    }
}

/// The floor of the quota on `cpus` CPUs, which offline work always keeps.
#[must_use]
pub fn floor(cpus: f64) -> f64 {
    (FLOOR_SHARE * cpus).max(FLOOR_CPUS).min(cpus)
}

/// Converts an amount of CPUs, rounded down: a limit must not exceed the allowed amount.
fn micro(cpus: f64) -> MicroCpus {
    MicroCpus((cpus * 1e6 + 1e-3).max(0.0) as u64)
}

/// One of the cgroups among which a quota is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The cgroup's weight, by which CPU time is divided when all cgroups want more.
    pub weight: f64,
    /// CPU use of the cgroup, in CPUs; `None` (not measured) counts as a demand for everything.
    pub used: Option<f64>,
}

/// Divides `total` CPUs by weight among offline cgroups that have no common parent. The demand of a cgroup is its use
/// plus a fifth for growth, but at least an equal part of a tenth of the total. If the share of a cgroup exceeds its
/// demand, the other cgroups get the excess. The sum of the results is at most `total`.
#[must_use]
pub fn divide(total: f64, parts: &[Part]) -> Vec<f64> {
    if parts.is_empty() {
        return Vec::new();
    }
    let count = cpus(parts.len());
    let least = total * 0.1 / count;
    let want: Vec<f64> = parts
        .iter()
        .map(|part| sound(part.used).map_or(total, |used| (used * 1.2).max(least).min(total)))
        .collect();
    let weight = |index: usize| parts[index].weight.max(f64::MIN_POSITIVE);
    let (mut given, mut left) = (vec![0.0; parts.len()], total);
    let mut open: Vec<usize> = (0..parts.len()).collect();
    // Cgroups whose demand is within their share get their demand; repeated until there is no such cgroup.
    while !open.is_empty() {
        let weights: f64 = open.iter().map(|index| weight(*index)).sum();
        let content = |index: &usize| want[*index] <= left * weight(*index) / weights;
        let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|index| content(index));
        if full.is_empty() {
            for index in rest {
                given[index] = left * weight(index) / weights;
            }
            return given;
        }
        for index in full {
            given[index] = want[index];
            left -= want[index];
        }
        open = rest;
    }
    // All demands are met, so the rest is divided by weight: an idle group must be able to start immediately.
    let weights: f64 = (0..parts.len()).map(weight).sum();
    given.iter().enumerate().map(|(index, given)| given + left.max(0.0) * weight(index) / weights).collect()
}

fn cpus(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(others: Option<f64>) -> SuppressInput {
        let used = Use { busy: others.map(|others| others + 0.5), offline: Some(0.5), ..Use::default() };
        SuppressInput { theta: 0.8, cpus: 4.0, core: 1.0, yields: true, used, cap: None }
    }

    fn quotas(suppress: &mut Suppress, now: &mut u64, others: &[Option<f64>]) -> Vec<u64> {
        let mut quotas = Vec::new();
        for others in others {
            *now += 1_000;
            quotas.push(suppress.step(*now, &input(*others)).quota.unwrap().0 / 1_000);
        }
        quotas
    }

    #[test]
    fn the_same_equation_as_a_quota() {
        let (mut suppress, mut now) = (Suppress::new(Some(MicroCpus(2_000_000))), 0);
        assert_eq!(quotas(&mut suppress, &mut now, &[Some(1.0); 3]), [2_000, 2_200, 2_200]);
        assert_eq!(quotas(&mut suppress, &mut now, &[Some(2.5), Some(4.0)]), [700, 200]);
        let capped = SuppressInput { cap: Some(0.15), ..input(Some(0.0)) };
        assert_eq!(suppress.step(now, &capped).quota, Some(MicroCpus(200_000)), "the floor beats the cap");
    }

    // promise 22
    #[test]
    fn without_a_class_there_is_no_quota() {
        let mut suppress = Suppress::new(Some(MicroCpus(2_000_000)));
        let decision = suppress.step(0, &SuppressInput { yields: false, ..input(Some(0.0)) });
        assert_eq!(decision.quota, None);
        assert!(decision.why.rule.contains("does not yield"), "{}", decision.why);
    }

    #[test]
    fn missing_use_is_held_and_then_the_floor() {
        let (mut suppress, mut now) = (Suppress::new(Some(MicroCpus(2_000_000))), 0);
        let got = quotas(&mut suppress, &mut now, &[Some(1.0), None, None, None, None, None]);
        assert_eq!(got, [2_000, 2_000, 2_000, 2_000, 2_000, 200]);
    }

    #[test]
    fn small_machines_get_a_quota_and_large_ones_whole_cores() {
        let is_quota =
            |theta, cpus, core, yields| matches!(actuator(theta, cpus, core, yields), Actuator::Quota(_));
        assert!(is_quota(0.8, 6.0, 1.0, true) && !is_quota(0.8, 7.0, 1.0, true));
        assert!(is_quota(0.65, 14.0, 2.0, true) && !is_quota(0.65, 16.0, 2.0, true));
        assert!(!is_quota(0.8, 2.0, 1.0, false), "a quota without a class protects nothing");
    }

    #[test]
    fn a_quota_is_divided_by_weight_and_use() {
        let part = |weight, used| Part { weight, used };
        let check = |total, parts: &[Part], expect: &[f64]| {
            let got: Vec<f64> =
                divide(total, parts).iter().map(|cpus| (cpus * 100.0).round() / 100.0).collect();
            assert_eq!(got, expect);
        };
        check(4.0, &[part(1.0, Some(9.0)), part(3.0, None)], &[1.0, 3.0]);
        check(4.0, &[part(1.0, Some(0.5)), part(1.0, Some(9.0))], &[0.6, 3.4]);
        check(4.0, &[part(1.0, Some(0.0)), part(1.0, Some(0.0))], &[2.0, 2.0]);
        check(4.0, &[], &[]);
    }
}
