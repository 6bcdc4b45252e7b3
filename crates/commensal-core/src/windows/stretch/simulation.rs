//! Simulates whole runs with a seed: all analyses, the settings that are left out after them, and the end. Measures how
//! often the answers are false, and how often the bounds hold, for harms at and around the thresholds, on a quiet machine
//! and beside other work.
//!
//! An error rate that is truly at most 5 % may be observed as up to 9 % in 300 repetitions (three standard errors).

use super::super::{Answer, Looks, Paired, sequential};
use super::{Forecast, Next, Outlook, Question, Time, next};
use crate::rng::Rng;
use crate::stats::Interval;

const REPETITIONS: u32 = 300;
const ERROR: f64 = 0.05;
/// Two identical settings and a contended one, which no question needs after the first analysis; the service alone on CPUs
/// that may idle and on CPUs that never idle; the isolated setting.
const SETTINGS: usize = 6;
const COLD: usize = 3;
const WARM: usize = 4;
const ISOLATED: usize = 5;
/// Time of each setting in a round, in seconds.
const COST_S: [f64; SETTINGS] = [1.26, 1.26, 2.0, 1.26, 1.26, 1.26];
const BUDGET_S: f64 = 170.0;
const LONGEST_S: f64 = 255.0;
/// Thresholds of the two gates: a median and a P90.
const THRESHOLDS: [f64; 2] = [1.05, 1.10];

/// The machine and the service.
#[derive(Debug, Clone, Copy)]
struct Nature {
    /// Latency of the isolated setting relative to the service alone on CPUs that never idle.
    harm: [f64; 2],
    /// Standard deviation of a block's value on the log scale.
    noise: [f64; 2],
    /// Share of the blocks that a burst of other work makes slower by up to 65 %.
    bursts: f64,
    /// Whether the noise of a round is between half and twice as large, as beside work that comes and goes.
    changes: bool,
    /// By how much CPUs that may idle slow down the service alone.
    idle: f64,
}

const QUIET: Nature =
    Nature { harm: [1.0; 2], noise: [0.015, 0.04], bursts: 0.0, changes: false, idle: 1.15 };
/// About the noise of quickstarts beside 0.2 to 0.4 CPUs of other work.
const BESIDE: Nature = Nature { noise: [0.03, 0.12], changes: true, ..QUIET };

/// Results, in per cent of the repetitions.
#[derive(Debug, Default)]
struct Rates {
    pass: f64,
    fail: f64,
    /// Answers within the budget.
    in_budget: f64,
    /// The interval of a gate against the stricter baseline does not contain the simulated harm, for the worse gate.
    missed: f64,
    /// The upper bound of a gate that has passed is below the simulated harm.
    over: f64,
    /// Mean length in seconds (not a percentage).
    seconds: f64,
}

/// A question of the simulated run: a gate and the setting with which the isolated one is compared.
struct Asked {
    gate: usize,
    alone: usize,
    /// The statistics at the last analysis that had new pairs, with its level.
    last: Option<(Paired, f64)>,
    /// The two-sided interval then, which spends half as much on each side.
    interval: Option<Interval>,
}

/// When a run is analysed, at which levels, and whether it leaves out settings.
struct Plan {
    at: Vec<u32>,
    levels: Vec<f64>,
    leaves_out: bool,
    /// Average time of each setting in a round, in seconds.
    cost_s: [f64; SETTINGS],
}

/// Plans a run as the lab does.
fn plan() -> Plan {
    let looks = |rounds: u32| sequential::fifths(ERROR, rounds, 6);
    let reduced: f64 = COST_S[COLD..].iter().sum();
    let rounds = super::rounds_within((BUDGET_S, LONGEST_S), (COST_S.iter().sum(), reduced), 2_000, looks);
    let at = looks(rounds);
    Plan { levels: sequential::levels(ERROR, &at), at, leaves_out: true, cost_s: COST_S }
}

/// Plans a run as earlier versions did: every setting in every round, the contended one in every second, and as many rounds as
/// fit into the budget.
fn earlier_plan() -> Plan {
    let mut cost_s = COST_S;
    cost_s[2] /= 2.0;
    let rounds = (BUDGET_S / cost_s.iter().sum::<f64>()).floor() as u32;
    let looks = Looks::plan(ERROR, rounds);
    let levels = looks.at().iter().map(|look| looks.level(*look)).collect();
    Plan { at: looks.at().to_vec(), levels, leaves_out: false, cost_s }
}

/// The log-ratios of a question over all rounds in which both of its settings were measured.
fn logs(rounds: &[[Option<[f64; 2]>; SETTINGS]], gate: usize, alone: usize) -> Vec<f64> {
    rounds.iter().filter_map(|round| Some(round[ISOLATED]?[gate] - round[alone]?[gate])).collect()
}

/// Measures a round of these settings.
fn measure(rng: &mut Rng, nature: Nature, settings: &[usize]) -> [Option<[f64; 2]>; SETTINGS] {
    let drift = 0.1 * rng.normal();
    let scale = if nature.changes { 2.0_f64.powf(2.0 * rng.unit_f64() - 1.0) } else { 1.0 };
    let mut round = [None; SETTINGS];
    for (setting, place) in round.iter_mut().enumerate() {
        let burst = if rng.unit_f64() < nature.bursts { 0.5 * rng.unit_f64() } else { 0.0 };
        let value = std::array::from_fn(|gate| {
            let of_setting = match setting {
                ISOLATED => nature.harm[gate].ln(),
                COLD => nature.idle.ln(),
                _ => 0.0,
            };
            drift + of_setting + burst + scale * nature.noise[gate] * rng.normal()
        });
        *place = settings.contains(&setting).then_some(value);
    }
    round
}

struct Outcome {
    pass: bool,
    fail: bool,
    seconds: f64,
    asked: Vec<Asked>,
}

fn run(rng: &mut Rng, nature: Nature, plan: &Plan) -> Outcome {
    let Plan { at, levels, cost_s, .. } = plan;
    let mut settings: Vec<usize> = (0..SETTINGS).collect();
    let (mut rounds, mut time) =
        (Vec::new(), Time { spent_s: 0.0, budget_s: BUDGET_S, longest_s: LONGEST_S });
    let gates = [(0, COLD), (0, WARM), (1, COLD), (1, WARM)];
    let mut asked: Vec<Asked> =
        gates.map(|(gate, alone)| Asked { gate, alone, last: None, interval: None }).into();
    let mut outcome = (false, false);
    for (index, (look, level)) in at.iter().zip(levels).enumerate() {
        while rounds.len() < *look as usize {
            rounds.push(measure(rng, nature, &settings));
            time.spent_s += settings.iter().map(|setting| cost_s[*setting]).sum::<f64>();
        }
        let mut open = Vec::new();
        for one in asked.iter_mut().filter(|one| settings.contains(&one.alone)) {
            let threshold = THRESHOLDS[one.gate].ln();
            let logs = logs(&rounds, one.gate, one.alone);
            let paired = Paired::new(&logs, threshold, *level).unwrap();
            one.interval = Paired::new(&logs, threshold, level / 2.0).unwrap().bounds;
            // Half of the error for each of the two gates.
            outcome.1 |= paired.p_beyond <= level / 2.0;
            one.last = Some((paired, *level));
        }
        for one in &asked {
            let Some((paired, level)) = &one.last else { continue };
            if paired.answer != Answer::Within {
                let Some(ends) = paired.bounds else { continue };
                let (estimate, bounds) = (paired.estimate, [ends.lo, ends.hi]);
                let times = f64::from(at[at.len() - 1]) / f64::from(*look);
                let last = levels[levels.len() - 1];
                let forecast = Forecast { estimate, bounds, level: *level };
                let outlook = match forecast.answer(THRESHOLDS[one.gate].ln(), times, (last, last / 2.0)) {
                    Answer::Within => Outlook::Question,
                    Answer::Beyond => Outlook::Run,
                    Answer::Open => Outlook::Nothing,
                };
                open.push(Question { settings: vec![one.alone, ISOLATED], outlook });
            }
        }
        outcome.0 = open.is_empty();
        let left = at.get(index + 1).map_or(0, |later| later - look);
        match next(&open, (left, cost_s), time) {
            Next::Measure(some) if !outcome.1 && plan.leaves_out => settings = some,
            Next::Measure(_) if !outcome.1 => {}
            _ => break,
        }
    }
    Outcome { pass: outcome.0 && !outcome.1, fail: outcome.1, seconds: time.spent_s, asked }
}

fn rates(nature: Nature, plan: &Plan) -> Rates {
    let (mut rng, mut sums, mut missed) = (Rng::new(50), Rates::default(), [0.0; 2]);
    let each = 100.0 / f64::from(REPETITIONS);
    for _ in 0..REPETITIONS {
        let outcome = run(&mut rng, nature, plan);
        let add = |sum: &mut f64, happened: bool| *sum += if happened { each } else { 0.0 };
        add(&mut sums.pass, outcome.pass);
        add(&mut sums.fail, outcome.fail);
        add(&mut sums.in_budget, (outcome.pass || outcome.fail) && outcome.seconds <= BUDGET_S + 1.0);
        for one in outcome.asked.iter().filter(|one| one.alone == WARM) {
            let (harm, bounds) =
                (nature.harm[one.gate].ln(), one.last.as_ref().and_then(|(last, _)| last.bounds));
            let misses = |ends: &Interval| ends.lo > harm || ends.hi < harm;
            add(&mut missed[one.gate], one.interval.as_ref().is_some_and(misses));
            add(&mut sums.over, outcome.pass && bounds.is_some_and(|ends| ends.hi < harm));
        }
        sums.seconds += outcome.seconds / f64::from(REPETITIONS);
    }
    sums.missed = missed[0].max(missed[1]);
    println!("{nature:?}: {sums:.1?}");
    sums
}

/// The natures of the tests: quiet, beside other work, beside other work in bursts, and on CPUs that wake up at once, where
/// both baselines are equally strict.
fn natures() -> [Nature; 4] {
    [QUIET, BESIDE, Nature { bursts: 0.15, ..BESIDE }, Nature { idle: 1.0, ..BESIDE }]
}

// promise 35
#[test]
fn a_harm_at_the_threshold_seldom_passes_and_seldom_fails() {
    let plan = plan();
    for nature in natures() {
        for harm in [[1.05, 1.0], [1.0, 1.10], [1.05, 1.10]] {
            let got = rates(Nature { harm, ..nature }, &plan);
            assert!(got.pass <= 9.0 && got.fail <= 9.0 && got.over <= 9.0, "{harm:?}: {got:?}");
            assert!(got.missed <= 7.0, "{harm:?}: {got:?}");
        }
    }
}

// promise 35
#[test]
fn a_harm_that_counts_never_gets_a_false_answer() {
    let plan = plan();
    // The calibration counts answers about harms of up to two thirds of the thresholds, and from one and a half times one.
    for nature in natures() {
        for harm in [[1.0, 1.0], [1.033, 1.0], [1.033, 1.066]] {
            let got = rates(Nature { harm, ..nature }, &plan);
            assert!(got.fail <= 2.0 && got.missed <= 7.0 && got.over <= 9.0, "{harm:?}: {got:?}");
        }
        for harm in [[1.075, 1.0], [1.0, 1.15], [1.075, 1.15], [1.3, 1.3]] {
            let got = rates(Nature { harm, ..nature }, &plan);
            assert!(got.pass <= 2.0 && got.missed <= 7.0, "{harm:?}: {got:?}");
        }
    }
}

// promise 35
#[test]
fn time_goes_where_it_decides() {
    let (plan, earlier) = (plan(), earlier_plan());
    let quiet = rates(QUIET, &plan);
    assert!(quiet.pass >= 99.0 && quiet.in_budget >= 99.0 && quiet.seconds < 110.0, "{quiet:?}");
    let (before, now) = (rates(BESIDE, &earlier), rates(BESIDE, &plan));
    assert!(now.in_budget >= before.pass + 10.0 && now.pass >= before.pass + 20.0, "{before:?} {now:?}");
    let harmed = Nature { harm: [1.0, 1.3], ..BESIDE };
    let (before, now) = (rates(harmed, &earlier), rates(harmed, &plan));
    assert!(now.fail >= before.fail && now.fail >= 90.0, "{before:?} {now:?}");
}
