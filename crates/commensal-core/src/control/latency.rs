//! Controller that caps the CPUs of offline work, based on how long online threads wait for a CPU compared with
//! `target-wakeup-p99`.
//!
//! ```text
//! severity = max(preemption_p99 / target, blamed / bound)        with the probe
//! severity = max(run_delay / (2 * bound), pressure / 5 %)        without it, relative to online work's own waits
//! cap      = half of the current use if severity > 1; grows slowly if severity < 0.7; otherwise stays
//! ```
//!
//! `preemption_p99` is the 99th percentile of the preemption delay: the time from the wake-up of an online thread on a
//! CPU that runs offline work until that work has left the CPU. `blamed` is the blamed wait, and `bound` its bound.
//! Without the probe, only waits that exceed the waits that online work causes itself count.
//!
//! The severity is the largest ratio of a measured wait to its bound. The bound of the blamed wait is 50 ms per
//! CPU-second for targets up to 100 us, and grows with the target up to 100 ms. The reason: on Linux 6.18 protected
//! groups stayed below 40 ms under every background load tested, while unprotected groups were above 118 ms.
//!
//! With the probe's counters the controller is called every 30 ms and reacts to a rise of the severity at the next
//! call. [`super::frame`] and [`super::suppress`] take the result as their `cap`.

use super::explain::Explanation;
use super::own::Own;
use super::regulator::{Move, Params, RELAPSE_MS, Range, Regulator};
use super::{Clock, sound};

/// Bound of the blamed wait at a target of 100 us (ms per online CPU-second).
pub const BLAMED_MS: f64 = 50.0;
/// Upper limit of the bound of the blamed wait, for any target (ms per CPU-second). Every unprotected group that was
/// measured had a longer blamed wait.
pub const BLAMED_MOST_MS: f64 = 100.0;
/// The target (us) for which [`BLAMED_MS`] was measured.
pub const TARGET_US: f64 = 100.0;
/// Minimum number of delays from which a 99th percentile is computed.
pub const FEWEST_DELAYS: u64 = 100;
/// Bound of the total wait as a multiple of the bound of the blamed wait. The bound is higher because the total wait
/// includes the waits that online work causes itself: 2 to 50 ms per CPU-second without offline work.
pub const TOTAL_OVER_BLAMED: f64 = 2.0;
/// CPU pressure (in per cent of the time) that is allowed for an online group; rubik also acts at 5 %.
pub const PRESSURE_PCT: f64 = 5.0;
/// Severity above which the cap falls; 1 is the bound.
pub const CUT_ABOVE: f64 = 1.0;
/// Severity above which the cap falls to the floor immediately, because halving would take several reaction times.
pub const FLOOR_ABOVE: f64 = 4.0;
/// Severity below which the cap rises. Between this and [`CUT_ABOVE`] the cap stays (hysteresis), because measurements
/// of single ticks differ by a third.
pub const EASE_BELOW: f64 = 0.7;
/// Share of the current use that remains after a cut: additive increase with multiplicative decrease converges to the
/// bound (Chiu and Jain 1989).
pub const CUT: f64 = 0.5;
/// Minimum time (ms) between two cuts: more than three fast ticks of 30 ms, so that the measurements reflect the first
/// cut.
pub const CUT_SPACING_MS: u64 = 100;
/// Growth rate of the cap relative to that of the frame, which is the inner control loop: two loops of the same speed
/// would oscillate.
pub const GROWTH_OVER_FRAME: f64 = 0.5;
/// The harmful level is the offline CPU use at which growth harmed online work. After a relapse, growth stops at this
/// share of the harmful level.
pub const CAUTION: f64 = 0.9;
/// Time (ms) for which a harmful level limits growth: twice the longest hold. After each such time the level rises: the
/// first time by the factor 1 / [`CAUTION`], then in steps that double each time. So the cap approaches a real bound
/// slowly, and a level that was harmful only by accident is forgotten within minutes.
pub const CAUTION_MS: u64 = 60_000;
/// Minimum CPU use of online work in the computation, in CPUs. Lower use counts as this value, so that a single wait of
/// a mostly idle service does not matter.
pub const LEAST_CPUS: f64 = 0.01;

/// Measurements of the probe since the last call, over all online groups.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ProbeWaits {
    /// Wait blamed on offline work (ms per second of time); 0 if no online thread waited.
    pub blamed_ms_per_s: Option<f64>,
    /// 99th percentile of the preemption delay (us).
    pub preemption_p99_us: Option<f64>,
    /// Number of delays from which the percentile was computed.
    pub preemptions: u64,
}

/// Inputs of [`Latency::step`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyInput {
    /// `target-wakeup-p99` (us).
    pub target_us: f64,
    /// Whether this machine can provide any of the measurements below. If not, the controller sets no cap and states
    /// this in the explanation.
    pub measurable: bool,
    /// Measurements of the probe; `None` if the probe does not run or delivered none.
    pub probe: Option<ProbeWaits>,
    /// CPU use of online groups since the last call, in CPUs.
    pub online_cpus: Option<f64>,
    /// Run delay of online groups (ms per second of time).
    pub run_delay_ms_per_s: Option<f64>,
    /// Share of the time (per cent) in which some task of an online group waited for a CPU, for the group that waited
    /// most.
    pub pressure_pct: Option<f64>,
    /// CPU use of offline groups since the last call, in CPUs.
    pub offline_cpus: Option<f64>,
    /// Number of CPUs that offline work may use when no controller limits it.
    pub cpus: f64,
    /// Number of logical CPUs per physical core.
    pub core: f64,
    /// The floor of the cap, which offline work always keeps, in CPUs.
    pub floor: f64,
}

/// The decision about the cap on offline work.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyDecision {
    /// The cap in CPUs; `None` if the controller sets no cap.
    pub cap: Option<f64>,
    /// Measured wait relative to the bound (1 at the bound); `None` if nothing was measured.
    pub severity: Option<f64>,
    /// How this step changed the cap.
    pub moved: Move,
    /// The explanation.
    pub why: Explanation,
}

/// The controller of the cap.
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

/// The harmful level: the offline CPU use at which growth harmed online work.
#[derive(Debug, Clone, Copy)]
struct Hurt {
    level: f64,
    left_ms: u64,
    /// Factor by which the level is raised when `left_ms` has passed.
    raise: f64,
}

impl Hurt {
    fn new(level: f64) -> Hurt {
        Hurt { level, left_ms: CAUTION_MS, raise: 1.0 / CAUTION }
    }

    /// Advances the time; returns `None` once the level is so high that it does not limit offline work any more.
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

/// The formula of a cap that stays the same.
const KEEP: &str = "goal = cap_before";

struct Severity {
    value: f64,
    by: &'static str,
    formula: String,
    /// Whether the severity is from the probe, which attributes waits.
    from_probe: bool,
}

impl Latency {
    /// Creates the controller. If this agent replaces another agent, the controller starts from the cap in force,
    /// otherwise from the floor.
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

    /// Decides the cap. While all measurements are missing, the cap first stays as it is, and after
    /// [`super::MISSING_HOLD_MS`] it falls to the floor.
    pub fn step(&mut self, now_ms: u64, input: &LatencyInput) -> LatencyDecision {
        let passed_ms = self.clock.step(now_ms);
        if !input.measurable {
            let rule =
                "no cap: neither the probe nor run delay nor pressure of online groups is available here";
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
        let severity = seen.as_ref().map(|seen| match seen.from_probe {
            true => seen.value,
            false => self.own.step(passed_ms, seen.value, at_floor),
        });
        let target = severity.map(|severity| self.target(severity, value, used, at_floor, input));
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

    /// The target of the cap, and its formula.
    fn target(
        &mut self,
        severity: f64,
        value: f64,
        used: f64,
        at_floor: bool,
        input: &LatencyInput,
    ) -> (f64, &'static str) {
        if severity > CUT_ABOVE {
            if self.since_cut_ms < CUT_SPACING_MS {
                return (value, KEEP);
            }
            // If offline work used no more than its floor, growth of the cap was not the cause.
            if self.since_growth_ms.take().is_some_and(|ms| ms <= RELAPSE_MS) && !at_floor {
                // A single burst while the cap is small must not keep the cap small.
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
        // A harmful level limits growth only; it does not lower a cap that does no harm now.
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
            (_, Move::Steady) if self.hurt.is_some() => {
                format!("{words} below the CPU use that harmed online work a short time ago")
            }
            _ => words,
        };
        let probe = input.probe.unwrap_or_default();
        let formula = seen.map_or_else(String::new, |seen| match self.own.known() {
            Some(_) if !seen.from_probe => format!("severity = {} / max(1, 1.5 * own)", seen.formula),
            _ => format!("severity = {}", seen.formula),
        });
        Explanation::new(rule, formula)
            .with("target", input.target_us, "us")
            .with("bound", bound_ms(input.target_us), "ms/CPU-s")
            .maybe("preemption_p99", sound(probe.preemption_p99_us), "us")
            .maybe("preemptions", input.probe.map(|_| count(probe.preemptions)), "")
            .maybe("blamed", per_cpu_s(probe.blamed_ms_per_s, input.online_cpus), "ms/CPU-s")
            .maybe("run_delay", per_cpu_s(input.run_delay_ms_per_s, input.online_cpus), "ms/CPU-s")
            .maybe("pressure", sound(input.pressure_pct), "%")
            .maybe("own", self.own.known(), "")
            .maybe("severity", severity, "")
            .maybe("hurt", self.hurt.map(|hurt| hurt.level), "CPUs")
    }
}

/// Bound of the blamed wait for a target (ms per CPU-second).
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

/// The severity: the largest ratio of a measurement to its bound. The probe's measurements count if there are any;
/// otherwise run delay and CPU pressure count, which do not say who caused the wait.
fn severity(input: &LatencyInput) -> Option<Severity> {
    let bound = bound_ms(input.target_us);
    let probe = input.probe.unwrap_or_default();
    let p99 = sound(probe.preemption_p99_us).filter(|_| probe.preemptions >= FEWEST_DELAYS);
    let direct = [
        (p99.map(|us| us / input.target_us), "the preemption delay", "preemption_p99 / target"),
        (
            per_cpu_s(probe.blamed_ms_per_s, input.online_cpus).map(|ms| ms / bound),
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
    let worst = |figures: [(Option<f64>, &'static str, &'static str); 2], from_probe| {
        let known =
            || figures.iter().filter_map(|(value, by, formula)| value.map(|value| (value, *by, *formula)));
        let (value, by, _) = known().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let formulas: Vec<&str> = known().map(|(.., formula)| formula).collect();
        let formula = match formulas.as_slice() {
            [one] => (*one).to_owned(),
            all => format!("max({})", all.join(", ")),
        };
        Some(Severity { value, by, formula, from_probe })
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
            probe: Some(ProbeWaits { blamed_ms_per_s, ..ProbeWaits::default() }),
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
        let waits = |us, preemptions| ProbeWaits {
            blamed_ms_per_s: Some(10.0),
            preemption_p99_us: Some(us),
            preemptions,
        };
        let of = |probe| {
            let decision =
                Latency::new(Some(8.0)).step(0, &LatencyInput { probe: Some(probe), ..input(None) });
            decision.severity.unwrap()
        };
        assert_eq!(of(waits(300.0, 100)), 3.0);
        assert_eq!(of(waits(300.0, 99)), 0.2);
        assert_eq!(of(waits(5.0, 1_000)), 0.2);
        assert_eq!([20.0, 100.0, 150.0, 5_000.0].map(bound_ms), [50.0, 50.0, 75.0, 100.0]);
    }

    #[test]
    fn without_the_probe_run_delay_and_pressure_are_used() {
        let indirect = |run_delay_ms_per_s, pressure_pct| {
            let input = LatencyInput { probe: None, run_delay_ms_per_s, pressure_pct, ..input(None) };
            Latency::new(Some(8.0)).step(0, &input).severity
        };
        assert_eq!(indirect(Some(200.0), None), Some(2.0));
        assert_eq!(indirect(Some(50.0), Some(15.0)), Some(3.0));
        assert_eq!(indirect(None, None), None);
    }

    #[test]
    fn what_online_work_does_to_itself_does_not_choke_offline_work() {
        let mut latency = Latency::new(Some(8.0));
        let own = LatencyInput { probe: None, run_delay_ms_per_s: Some(250.0), ..input(None) };
        let mut caps = Vec::new();
        for second in 0..60 {
            caps.push(cap(&mut latency, second * 1_000, &own));
        }
        assert!(caps.contains(&0.4), "first it has to be found out");
        assert_eq!(*caps.last().unwrap(), 8.0);
    }

    #[test]
    fn a_wait_while_offline_work_does_nothing_hurts_no_level() {
        let mut latency = Latency::new(Some(1.0));
        let idle = |blamed| LatencyInput { offline_cpus: Some(0.0), ..input(Some(blamed)) };
        for second in 0..4 {
            cap(&mut latency, second * 1_000, &idle(1.0));
        }
        assert_eq!(cap(&mut latency, 4_000, &idle(60.0)), 0.4);
        for second in 5..40 {
            cap(&mut latency, second * 1_000, &idle(1.0));
        }
        assert_eq!(cap(&mut latency, 40_000, &idle(1.0)), 8.0);
    }

    #[test]
    fn missing_is_held_then_the_floor_and_unmeasurable_is_no_cap() {
        let mut latency = Latency::new(Some(8.0));
        let missing = LatencyInput { probe: None, ..input(None) };
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
