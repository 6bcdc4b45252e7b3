//! A cap on offline CPUs, computed from how long online threads wait for a CPU compared with `target-wakeup-p99`.
//!
//! ```text
//! severity = max(preemption_p99 / target, blamed / bound)        with the probe
//! severity = max(run_delay / (2 * bound), pressure / 5 %)        without, less what is the online side's own
//! cap      = half of what is used above 1; up slowly below 0.7; as it is in between
//! ```
//!
//! The largest of the figures counts. The bound of blamed wait is 50 ms per CPU-second at a target of 100 us, and grows
//! with the target up to 100 ms: on Linux 6.18 protected groups stayed below 40 under every background load,
//! unprotected ones were above 118.
//!
//! Called every 30 ms with the probe's counters, it answers a rise at the next call. The cap goes into [`super::frame`]
//! or [`super::suppress`] as their `cap`.

use super::explain::Explanation;
use super::own::Own;
use super::regulator::{Move, Params, RELAPSE_MS, Range, Regulator};
use super::{Clock, sound};

/// Blamed wait that is allowed at a target of 100 us, ms per online CPU-second.
pub const BLAMED_MS: f64 = 50.0;
/// Upper limit of the bound for any target, ms per CPU-second: below what every unprotected group showed.
pub const BLAMED_MOST_MS: f64 = 100.0;
/// The target for which [`BLAMED_MS`] was measured, us.
pub const TARGET_US: f64 = 100.0;
/// Minimum number of delays for a 99th percentile.
pub const FEWEST_DELAYS: u64 = 100;
/// Ratio of the bound of total wait to that of blamed wait: alone, the online side waited 2 to 50 ms per CPU-second.
pub const TOTAL_OVER_BLAMED: f64 = 2.0;
/// CPU pressure of an online group that is allowed, per cent of the time (rubik acts at 5 % too).
pub const PRESSURE_PCT: f64 = 5.0;
/// Above this severity the cap falls: the bound itself.
pub const CUT_ABOVE: f64 = 1.0;
/// Above this severity the cap falls to the floor at once: halving would take several reaction times.
pub const FLOOR_ABOVE: f64 = 4.0;
/// Below this severity the cap rises. In between is the dead zone: figures of one tick differ by a third.
pub const EASE_BELOW: f64 = 0.7;
/// Share of the current use that remains after a cut: additive increase with halving converges to the bound from both
/// sides (Chiu and Jain 1989).
pub const CUT: f64 = 0.5;
/// Minimum time between two cuts, ms: two fast ticks, so that the figures already reflect the first cut.
pub const CUT_SPACING_MS: u64 = 100;
/// Growth rate relative to the frame's, which is the inner loop: two loops of the same speed would oscillate.
pub const GROWTH_OVER_FRAME: f64 = 0.5;
/// After a relapse, growth stops at this share of the harmful level …
pub const CAUTION: f64 = 0.9;
/// … for this long, ms: twice the longest hold. Then the harmful level is raised by the share that was left out, then
/// by twice that share and so on, so that a real bound is probed gently and an accident is forgotten in some minutes.
pub const CAUTION_MS: u64 = 60_000;
/// Online use below this counts as this, CPUs: a single wait of a mostly idle service does not matter.
pub const LEAST_CPUS: f64 = 0.01;

/// What the probe measured since the last call, over all online groups.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Judged {
    /// Wait blamed on offline work, ms per second of time; 0 when no online thread waited.
    pub blamed_ms_per_s: Option<f64>,
    /// 99th percentile of the preemption delay, us.
    pub preemption_p99_us: Option<f64>,
    /// Number of delays behind the percentile.
    pub preemptions: u64,
}

/// Inputs of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyInput {
    /// `target-wakeup-p99`, us.
    pub target_us: f64,
    /// Whether this machine has any of the figures below at all. If not there is no cap, and the decision says so.
    pub measurable: bool,
    /// Measured by the probe; `None` where it does not run or gave no value.
    pub judged: Option<Judged>,
    /// CPUs that online groups used since the last call.
    pub online_cpus: Option<f64>,
    /// Run delay of online groups, ms per second of time.
    pub run_delay_ms_per_s: Option<f64>,
    /// Share of the time in which some task of an online group waited for a CPU, per cent; of the group that waited most.
    pub pressure_pct: Option<f64>,
    /// CPUs that offline groups used since the last call.
    pub offline_cpus: Option<f64>,
    /// CPUs that offline work may use at all.
    pub cpus: f64,
    /// Logical CPUs of a physical core.
    pub core: f64,
    /// The least that offline work keeps, CPUs.
    pub floor: f64,
}

/// A cap on the offline side.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyDecision {
    /// The cap in CPUs; `None` when there is none.
    pub cap: Option<f64>,
    /// Measured wait relative to the bound (1 at the bound); `None` when nothing was measured.
    pub severity: Option<f64>,
    /// What the regulator did.
    pub moved: Move,
    /// Why.
    pub why: Explanation,
}

/// The controller.
#[derive(Debug, Clone)]
pub struct Latency {
    clock: Clock,
    regulator: Option<Regulator>,
    start: f64,
    own: Own,
    since_cut_ms: u64,
    since_growth_ms: Option<u64>,
    hurt: Option<Hurt>,
}

/// The level of offline CPU use at which growth hurt online work.
#[derive(Debug, Clone, Copy)]
struct Hurt {
    level: f64,
    left_ms: u64,
    /// Factor by which the level is raised when the time is over.
    raise: f64,
}

impl Hurt {
    fn new(level: f64) -> Hurt {
        Hurt { level, left_ms: CAUTION_MS, raise: 1.0 / CAUTION }
    }

    /// Lets time pass; `None` when the level is forgotten, because offline work may use every CPU again.
    fn pass(self, passed_ms: u64, cpus: f64) -> Option<Hurt> {
        let left_ms = self.left_ms.saturating_sub(passed_ms);
        if left_ms > 0 {
            return Some(Hurt { left_ms, ..self });
        }
        let level = self.level * self.raise;
        let raise = 1.0 + 2.0 * (self.raise - 1.0);
        (level * CAUTION < cpus).then_some(Hurt { level, left_ms: CAUTION_MS, raise })
    }
}

/// A cap that stays.
const KEEP: &str = "goal = cap_before";

struct Severity {
    value: f64,
    by: &'static str,
    formula: String,
    /// From the probe, which knows whom to blame.
    judged: bool,
}

impl Latency {
    /// Starts from the cap in force, when it takes over from another agent; from the floor without one.
    #[must_use]
    pub fn new(in_force: Option<f64>) -> Latency {
        Latency {
            clock: Clock::default(),
            regulator: None,
            start: in_force.unwrap_or(0.0),
            own: Own::default(),
            since_cut_ms: CUT_SPACING_MS,
            since_growth_ms: None,
            hurt: None,
        }
    }

    /// Decides. When every figure is missing the cap stays as it is, then falls to the floor.
    pub fn step(&mut self, now_ms: u64, input: &LatencyInput) -> LatencyDecision {
        let passed_ms = self.clock.step(now_ms);
        if !input.measurable {
            let rule =
                "no cap: neither the probe nor run delay nor pressure of online groups can be had here";
            let why = Explanation::new(rule, "");
            return LatencyDecision { cap: None, severity: None, moved: Move::Steady, why };
        }
        self.since_cut_ms = self.since_cut_ms.saturating_add(passed_ms);
        self.since_growth_ms = self.since_growth_ms.map(|ms| ms.saturating_add(passed_ms));
        self.hurt = self.hurt.and_then(|hurt| hurt.pass(passed_ms, input.cpus));
        let mut params = Params::cpus(input.cpus, input.core);
        params.growth_per_s *= GROWTH_OVER_FRAME;
        let start = self.start;
        let mut regulator = self.regulator.take().unwrap_or_else(|| Regulator::new(params, start));
        regulator.retune(params);
        let value = regulator.value();
        let used = sound(input.offline_cpus).map_or(value, |used| used.min(value));
        let at_floor = used <= input.floor + params.dead_zone;
        let seen = severity(input);
        let severity = seen.as_ref().map(|seen| match seen.judged {
            true => seen.value,
            false => self.own.step(passed_ms, seen.value, at_floor),
        });
        let target = severity.map(|severity| self.target(severity, value, used, input));
        let (target, goal) = target.unzip();
        let moved = regulator.step(now_ms, target, Range { floor: input.floor, ceiling: input.cpus });
        match moved {
            Move::Shrunk { .. } => self.since_cut_ms = 0,
            Move::Grew => self.since_growth_ms = Some(0),
            _ => {}
        }
        let cap = regulator.value();
        let why = self.explain(input, seen.as_ref(), severity, moved);
        let why = goal.map_or(why.clone(), |goal| why.then(goal));
        let why = regulator
            .explain(moved, why, ("goal", "cap"), "CPUs")
            .maybe("cap_before", (goal == Some(KEEP)).then_some(value), "CPUs")
            .with("used", used, "CPUs")
            .with("cpus", input.cpus, "CPUs")
            .with("cap", cap, "CPUs");
        self.regulator = Some(regulator);
        LatencyDecision { cap: Some(cap), severity, moved, why }
    }

    /// Where the cap should go, and how that is said.
    fn target(&mut self, severity: f64, value: f64, used: f64, input: &LatencyInput) -> (f64, &'static str) {
        if severity > CUT_ABOVE {
            if self.since_cut_ms < CUT_SPACING_MS {
                return (value, KEEP);
            }
            if self.since_growth_ms.take().is_some_and(|ms| ms <= RELAPSE_MS) {
                // One burst while the cap is small must not keep it small.
                let least = self.hurt.map_or(0.0, |hurt| hurt.level * CAUTION);
                self.hurt = Some(Hurt::new(used.max(least)));
            }
            return match severity > FLOOR_ABOVE {
                true => (input.floor, "goal = floor"),
                false => (used * CUT, "goal = used * 0.5"),
            };
        }
        if severity >= EASE_BELOW {
            return (value, KEEP);
        }
        // What hurt is no reason to take away what does not.
        match self.hurt {
            Some(hurt) if hurt.level * CAUTION < value => (value, KEEP),
            Some(hurt) => (hurt.level * CAUTION, "goal = hurt * 0.9"),
            None => (input.cpus, "goal = cpus"),
        }
    }

    fn explain(
        &self,
        input: &LatencyInput,
        seen: Option<&Severity>,
        severity: Option<f64>,
        moved: Move,
    ) -> Explanation {
        let words = moved.words("the cap");
        let rule = match (seen, moved) {
            (Some(seen), Move::Shrunk { .. }) => format!("{words}, because of {}", seen.by),
            (_, Move::Steady) if self.hurt.is_some() => format!("{words} below what hurt a short time ago"),
            _ => words,
        };
        let judged = input.judged.unwrap_or_default();
        let formula = seen.map_or_else(String::new, |seen| match self.own.known().filter(|_| !seen.judged) {
            Some(_) => format!("severity = {} / max(1, 1.5 * own)", seen.formula),
            None => format!("severity = {}", seen.formula),
        });
        Explanation::new(rule, formula)
            .with("target", input.target_us, "us")
            .with("bound", bound_ms(input.target_us), "ms/CPU-s")
            .maybe("preemption_p99", sound(judged.preemption_p99_us), "us")
            .maybe("preemptions", input.judged.map(|_| count(judged.preemptions)), "")
            .maybe("blamed", per_cpu_s(judged.blamed_ms_per_s, input.online_cpus), "ms/CPU-s")
            .maybe("run_delay", per_cpu_s(input.run_delay_ms_per_s, input.online_cpus), "ms/CPU-s")
            .maybe("pressure", sound(input.pressure_pct), "%")
            .maybe("own", self.own.known(), "")
            .maybe("severity", severity, "")
            .maybe("hurt", self.hurt.map(|hurt| hurt.level), "CPUs")
    }
}

/// Blamed wait that is allowed for a target, ms per CPU-second.
#[must_use]
pub fn bound_ms(target_us: f64) -> f64 {
    (BLAMED_MS * target_us / TARGET_US).clamp(BLAMED_MS, BLAMED_MOST_MS)
}

fn per_cpu_s(ms_per_s: Option<f64>, cpus: Option<f64>) -> Option<f64> {
    Some(sound(ms_per_s)? / sound(cpus)?.max(LEAST_CPUS))
}

fn count(number: u64) -> f64 {
    number as f64
}

/// The largest figure: the probe's if it gave any, otherwise those that do not attribute waits.
fn severity(input: &LatencyInput) -> Option<Severity> {
    let bound = bound_ms(input.target_us);
    let judged = input.judged.unwrap_or_default();
    let p99 = sound(judged.preemption_p99_us).filter(|_| judged.preemptions >= FEWEST_DELAYS);
    let direct = [
        (p99.map(|us| us / input.target_us), "the preemption delay", "preemption_p99 / target"),
        (
            per_cpu_s(judged.blamed_ms_per_s, input.online_cpus).map(|ms| ms / bound),
            "wait blamed on offline work",
            "blamed / bound",
        ),
    ];
    let delay = per_cpu_s(input.run_delay_ms_per_s, input.online_cpus);
    let indirect = [
        (
            delay.map(|ms| ms / (TOTAL_OVER_BLAMED * bound)),
            "the run delay of online groups",
            "run_delay / (2 * bound)",
        ),
        (
            sound(input.pressure_pct).map(|pct| pct / PRESSURE_PCT),
            "the CPU pressure of online groups",
            "pressure / 5 %",
        ),
    ];
    let worst = |figures: [(Option<f64>, &'static str, &'static str); 2], judged| {
        let known =
            || figures.iter().filter_map(|(value, by, formula)| value.map(|value| (value, *by, *formula)));
        let (value, by, _) = known().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let formulas: Vec<&str> = known().map(|(.., formula)| formula).collect();
        let formula = match formulas.as_slice() {
            [one] => (*one).to_owned(),
            all => format!("max({})", all.join(", ")),
        };
        Some(Severity { value, by, formula, judged })
    };
    worst(direct, true).or_else(|| worst(indirect, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(blamed_ms_per_s: Option<f64>) -> LatencyInput {
        LatencyInput {
            target_us: 100.0,
            measurable: true,
            judged: Some(Judged { blamed_ms_per_s, ..Judged::default() }),
            online_cpus: Some(1.0),
            run_delay_ms_per_s: None,
            pressure_pct: None,
            offline_cpus: None,
            cpus: 8.0,
            core: 1.0,
            floor: 0.4,
        }
    }

    fn cap(latency: &mut Latency, now: u64, input: &LatencyInput) -> f64 {
        latency.step(now, input).cap.unwrap()
    }

    #[test]
    fn halves_what_is_used_holds_in_the_dead_zone_and_rises_slowly() {
        let mut latency = Latency::new(Some(8.0));
        assert_eq!(cap(&mut latency, 0, &input(Some(45.0))), 8.0);
        let busy = LatencyInput { offline_cpus: Some(3.0), ..input(Some(60.0)) };
        assert_eq!(cap(&mut latency, 50, &busy), 1.5, "half of what is used, not of what is allowed");
        assert_eq!(cap(&mut latency, 100, &busy), 1.5, "the figures are older than the cut");
        assert_eq!(cap(&mut latency, 150, &busy), 0.75);
        assert_eq!(cap(&mut latency, 300, &input(Some(500.0))), 0.4, "straight to the floor");
        let mut now = 300;
        let mut risen = None;
        while risen.is_none() {
            now += 50;
            risen = Some(cap(&mut latency, now, &input(Some(1.0)))).filter(|cap| *cap > 0.4);
        }
        assert_eq!(now, 300 + 5_000);
        let before = cap(&mut latency, now, &input(Some(1.0)));
        let after = cap(&mut latency, now + 1_000, &input(Some(1.0)));
        assert!((after - before - 0.5).abs() < 1e-9, "half a core a second: {before} to {after}");
    }

    #[test]
    fn the_dominant_figure_wins_and_a_percentile_needs_enough_delays() {
        let judged = |us, preemptions| Judged {
            blamed_ms_per_s: Some(10.0),
            preemption_p99_us: Some(us),
            preemptions,
        };
        let of = |judged| {
            let decision =
                Latency::new(Some(8.0)).step(0, &LatencyInput { judged: Some(judged), ..input(None) });
            decision.severity.unwrap()
        };
        assert_eq!(of(judged(300.0, 100)), 3.0);
        assert_eq!(of(judged(300.0, 99)), 0.2);
        assert_eq!(of(judged(5.0, 1_000)), 0.2);
        assert_eq!([20.0, 100.0, 150.0, 5_000.0].map(bound_ms), [50.0, 50.0, 75.0, 100.0]);
    }

    #[test]
    fn without_the_probe_run_delay_and_pressure_are_used() {
        let indirect = |run_delay_ms_per_s, pressure_pct| {
            let input = LatencyInput { judged: None, run_delay_ms_per_s, pressure_pct, ..input(None) };
            Latency::new(Some(8.0)).step(0, &input).severity
        };
        assert_eq!(indirect(Some(200.0), None), Some(2.0));
        assert_eq!(indirect(Some(50.0), Some(15.0)), Some(3.0));
        assert_eq!(indirect(None, None), None);
    }

    #[test]
    fn what_online_work_does_to_itself_does_not_choke_offline_work() {
        let mut latency = Latency::new(Some(8.0));
        let own = LatencyInput { judged: None, run_delay_ms_per_s: Some(250.0), ..input(None) };
        let mut caps = Vec::new();
        for second in 0..60 {
            caps.push(cap(&mut latency, second * 1_000, &own));
        }
        assert!(caps.contains(&0.4), "first it has to be found out");
        assert_eq!(*caps.last().unwrap(), 8.0);
    }

    #[test]
    fn missing_is_held_then_the_floor_and_unmeasurable_is_no_cap() {
        let mut latency = Latency::new(Some(8.0));
        let missing = LatencyInput { judged: None, ..input(None) };
        let caps: Vec<f64> = (0..7).map(|second| cap(&mut latency, second * 1_000, &missing)).collect();
        assert_eq!(caps, [8.0, 8.0, 8.0, 8.0, 8.0, 0.4, 0.4]);
        let decision = latency.step(9_000, &LatencyInput { measurable: false, ..missing });
        assert_eq!(decision.cap, None);
        assert!(decision.why.rule.contains("no cap"), "{}", decision.why);
        // Without online CPU use a wait per CPU-second cannot be computed.
        assert_eq!(
            latency.step(9_000, &LatencyInput { online_cpus: None, ..input(Some(90.0)) }).severity,
            None
        );
    }
}
