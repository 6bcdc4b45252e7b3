//! Tests the reliability of verdicts: simulated runs pass through the real analysis and verdict. The simulations are
//! reproducible, because their random numbers have fixed seeds. The module `calibrate` tests the same on a real
//! machine.
//!
//! The metric of each block (one arm, or way of running the service, in one round) has log-normal noise of 3 %. In some
//! tests, the metric is also worse by up to 65 % with a probability of 15 %. An error rate that should be at most 5 %
//! may reach 7 % in 2000 repetitions (4 standard errors).

use crate::analysis::stretch::{after, rest};
use crate::analysis::{conclude, conclude_from};
use crate::experiment::{Overrides, QUICKSTART, shipped};
use crate::fixture::{bare_run, simulate};
use crate::record::{Block, LoadFigures, Metric, Role, Run, Verdict};
use crate::rng::Rng;
use commensal_core::windows::stretch::Next;

const REPETITIONS: u32 = 2_000;
const SD: f64 = 0.03;

/// Share of the repetitions with each outcome (per cent).
#[derive(Debug, Default)]
struct Rates {
    /// The two-sided confidence interval of the isolated arm excludes zero.
    alarm: f64,
    /// The confidence interval excludes the true harm.
    miss: f64,
    /// The upper confidence bound is below the threshold. The check that identical arms give equal results (A/A gate)
    /// is ignored.
    under: f64,
    pass: f64,
    fail: f64,
    invalid: f64,
}

fn rates(rounds: u32, harm: f64, bursts: f64, gates: &[Metric]) -> Rates {
    let mut run: Run = bare_run(rounds);
    run.design.gates = gates.to_vec();
    let mut rng = Rng::new(2_024);
    let mut sums = Rates::default();
    let each = 100.0 / f64::from(REPETITIONS);
    for _ in 0..REPETITIONS {
        let samples = simulate(&mut rng, rounds, [0.0, 0.5, harm], (SD, bursts), gates);
        conclude_from(&mut run, &samples, Vec::new());
        let result = run.comparison("isolated", "baseline", gates[0]).unwrap();
        let [lo, hi] = result.ci95.unwrap();
        let add = |sum: &mut f64, happened: bool| *sum += if happened { each } else { 0.0 };
        add(&mut sums.alarm, lo > 0.0 || hi < 0.0);
        add(&mut sums.miss, lo > harm * 100.0 || hi < harm * 100.0);
        add(&mut sums.under, result.one_sided.unwrap()[1] < 5.0);
        add(&mut sums.pass, run.verdict == Some(Verdict::Pass));
        add(&mut sums.fail, run.verdict == Some(Verdict::Fail));
        add(&mut sums.invalid, run.verdict == Some(Verdict::Invalid));
    }
    sums
}

// promise 35
#[test]
fn false_alarms_are_as_rare_as_promised() {
    for (rounds, bursts) in [(8, 0.0), (12, 0.0), (12, 0.15)] {
        let got = rates(rounds, 0.0, bursts, &[Metric::P90]);
        assert!(got.alarm <= 7.0, "K = {rounds}, bursts {bursts}: {got:?}");
        assert!(got.alarm >= 1.5, "too wide: K = {rounds}, bursts {bursts}: {got:?}");
        assert_eq!(got.fail, 0.0, "{got:?}");
    }
}

// promise 35
#[test]
fn a_harm_at_the_threshold_rarely_passes() {
    for (rounds, bursts) in [(8, 0.0), (12, 0.0), (12, 0.15)] {
        let got = rates(rounds, 0.05, bursts, &[Metric::P90]);
        assert!(got.under <= 7.0, "K = {rounds}, bursts {bursts}: {got:?}");
        assert!(got.pass <= 7.0, "K = {rounds}, bursts {bursts}: {got:?}");
        assert!(got.fail <= 7.0, "K = {rounds}, bursts {bursts}: {got:?}");
        assert!(got.miss <= 7.0, "K = {rounds}, bursts {bursts}: {got:?}");
    }
}

#[test]
fn several_gates_do_not_inflate_the_errors() {
    let gates = [Metric::P90, Metric::P50, Metric::Qps];
    let got = rates(12, 0.05, 0.0, &gates);
    assert!(got.pass <= 7.0 && got.fail <= 7.0, "{got:?}");
}

#[test]
fn a_clear_harm_fails_and_no_harm_passes() {
    let harmed = rates(12, 0.10, 0.0, &[Metric::P90]);
    assert!(harmed.fail > 80.0, "{harmed:?}");
    assert_eq!(harmed.pass, 0.0, "{harmed:?}");
    let harmless = rates(12, 0.0, 0.0, &[Metric::P90]);
    assert!(harmless.pass > 80.0, "{harmless:?}");
    // The A/A gate compares two identical arms. However quiet the machine is, it rejects about as many runs as its
    // error rate allows.
    assert!(harmless.invalid < 12.0, "{harmless:?}");
}

#[test]
fn the_interval_of_the_harm_removed_covers_the_truth() {
    let mut run: Run = bare_run(12);
    run.design.gates = vec![Metric::P90];
    let mut rng = Rng::new(77);
    let (mut missed, mut claimed) = (0_u32, 0_u32);
    for _ in 0..REPETITIONS {
        // With isolation, a harm of 5 % remains of 50 %, so isolation removes 90 % of the harm.
        let samples = simulate(&mut rng, 12, [0.0, 0.5, 0.05], (SD, 0.0), &run.design.gates);
        conclude_from(&mut run, &samples, Vec::new());
        for [lo, hi] in run.attribution.iter().filter_map(|a| a.ci95) {
            claimed += 1;
            missed += u32::from(lo > 90.0 || hi < 90.0);
        }
    }
    assert_eq!(claimed, REPETITIONS);
    assert!(f64::from(missed) <= 0.07 * f64::from(claimed), "{missed} of {claimed}");
}

/// Simulates a whole quickstart, with its interim analyses: the latency of the isolated arm is worse by these harms at the
/// median and at P90, on blocks with this log-normal noise. CPUs that may idle make the service slower by 15 %.
fn quickstart(rng: &mut Rng, harm: [f64; 2], noise: [f64; 2]) -> Run {
    slow_quickstart(rng, harm, noise, 1.0).0
}

/// Simulates a quickstart on a machine where a round takes this many times as long as planned. The second value is how long the
/// run was said to take and how long it had taken, in seconds, at the beginning of each round.
fn slow_quickstart(
    rng: &mut Rng,
    [p50, p90]: [f64; 2],
    noise: [f64; 2],
    slowness: f64,
) -> (Run, Vec<[f64; 2]>) {
    let mut experiment = shipped(QUICKSTART).unwrap().unwrap();
    Overrides::default().apply(&mut experiment).unwrap();
    let mut run = Run { design: experiment.design, arms: experiment.arms, ..bare_run(1) };
    run.blocks.clear();
    let mut measured: Vec<usize> = (0..run.arms.len()).collect();
    let windows = run.design.windows.unwrap();
    let (mut at_s, mut told) = (0.0, Vec::new());
    for round in 0..run.design.rounds {
        told.push([at_s + rest(&run, (round, &measured), windows).0, at_s]);
        let drift = 0.1 * rng.normal();
        for arm in &measured {
            let arm = &run.arms[*arm];
            let harm = match arm.role {
                Role::Isolated => [p50, p90],
                Role::Contended => [0.3, 1.0],
                Role::Warm => [0.0; 2],
                _ => [0.15; 2],
            };
            let mut us = |gate: usize| {
                let log = drift + (1.0_f64 + harm[gate]).ln() + noise[gate] * rng.normal();
                200.0 * (1.0 + gate as f64) * log.exp()
            };
            let percentiles_us = [(Metric::P50, us(0)), (Metric::P90, us(1))].into();
            let load = LoadFigures {
                achieved_per_s: Some(2_100.0 * (0.002 * rng.normal()).exp()),
                offered_requests: 2_100,
                ..LoadFigures::default()
            };
            let (role, arm, begun_s) = (arm.role, arm.name.clone(), Some(at_s));
            if !round.is_multiple_of(windows.turns(role).every) {
                continue;
            }
            at_s += windows.block_s(role) * slowness;
            let block =
                Block { round, arm, valid: true, load, percentiles_us, at_s: begun_s, ..Block::default() };
            run.blocks.push(block);
        }
        match after(&run, round + 1) {
            Some(Next::End) => break,
            Some(Next::Measure(arms)) => measured = arms,
            None => {}
        }
    }
    conclude(&mut run);
    told.push([at_s; 2]);
    (run, told)
}

/// A run keeps its time by the clock, however slow the machine is, and says how long it takes.
#[test]
fn a_slow_run_takes_no_longer_than_its_budget_allows() {
    for slowness in [1.0, 1.1, 1.3, 1.6, 3.0] {
        for (seed, noise) in (0..8).flat_map(|seed| [(seed, [0.015, 0.04]), (seed, [0.03, 0.12])]) {
            let (run, told) = slow_quickstart(&mut Rng::new(seed), [0.0, 0.0], noise, slowness);
            let took_s = told.last().unwrap()[1];
            let (allotted, first) = (run.design.allotted.unwrap(), f64::from(run.design.looks[0]));
            // The first analysis takes place after this time in any case.
            let first_s = slowness * first * run.design.round_s(run.design.windows.unwrap(), &run.arms);
            let longest_s = allotted.longest_s.max(first_s * 1.02);
            assert!(took_s <= longest_s, "x{slowness}: {took_s:.0} of {longest_s:.0} s");
            for [told_s, at_s] in told {
                assert!(
                    at_s <= told_s && told_s <= longest_s,
                    "x{slowness}: {told_s:.0} s, told at {at_s:.0} s"
                );
            }
        }
    }
}

/// Arms that no open question compares cost no more time, and the record says so. The record alone leads to the same
/// verdict, and to the same arms when the run is continued.
// promise 35
#[test]
fn a_noisy_quickstart_measures_what_is_open() {
    let mut rng = Rng::new(3);
    let mut runs = (0..20).map(|_| quickstart(&mut rng, [0.0, 0.0], [0.03, 0.12]));
    let late = |run: &Run| run.verdict == Some(Verdict::Pass) && run.rounds_begun() > run.design.looks[0];
    let run = runs.find(late).expect("half of the runs are open at their first analysis");
    let first = run.design.looks[0];
    assert!(run.design.looks.contains(&run.rounds_begun()));
    for arm in &run.arms {
        let longer = matches!(arm.role, Role::Isolated | Role::Warm);
        let rounds = if longer { run.rounds_begun() } else { first };
        assert_eq!(run.measured_rounds(&[&arm.name]), rounds, "{}", arm.name);
    }
    let notes = run.notes.join("\n");
    let said = format!(
        "baseline, baseline2, policy-only and contended were measured in the first {first} of {} rounds only",
        run.rounds_begun()
    );
    assert!(notes.contains(&said), "{notes}");
    let mut again = Run::from_json(run.to_json().unwrap().as_bytes()).unwrap();
    conclude(&mut again);
    assert_eq!(again, run);
    // What came later does not change what was decided after the first analysis.
    let mut then = run.clone();
    then.blocks.retain(|block| block.round < first);
    assert_eq!(after(&then, first), after(&run, first));
    assert!(matches!(after(&run, first), Some(Next::Measure(arms)) if arms.len() == 2));
    // The level of a comparison is that of the last analysis for which both arms were measured.
    let level = |vs: &str| run.comparison("isolated", vs, Metric::P90).and_then(|result| result.level);
    assert_eq!(level("policy-only"), Some(run.design.level(first)));
    assert_eq!(level("warm"), Some(run.design.level(run.rounds_begun())));
}

// promise 35
#[test]
fn whole_runs_keep_their_error() {
    const RUNS: u32 = 50;
    let quiet = [0.015, 0.04];
    for (noise, harm) in [
        (quiet, [0.0, 0.0]),
        ([0.03, 0.12], [0.0, 0.0]),
        ([0.03, 0.12], [0.05, 0.10]),
        ([0.03, 0.12], [0.0, 0.15]),
    ] {
        let (mut rng, mut pass, mut fail, mut missed, mut of) = (Rng::new(7), 0, 0, 0, 0);
        for _ in 0..RUNS {
            let run = quickstart(&mut rng, harm, noise);
            pass += u32::from(run.verdict == Some(Verdict::Pass));
            fail += u32::from(run.verdict == Some(Verdict::Fail));
            for (gate, harm) in [Metric::P50, Metric::P90].into_iter().zip(harm) {
                let ci95 = run.comparison("isolated", "warm", gate).and_then(|result| result.ci95);
                let Some([lo, hi]) = ci95 else { continue };
                (missed, of) = (missed + u32::from(lo > harm * 100.0 || hi < harm * 100.0), of + 1);
            }
        }
        println!("{noise:?} {harm:?}: {pass} pass, {fail} fail of {RUNS}; {missed} of {of} intervals miss");
        let within = harm[0] * 1.5 <= 0.051 && harm[1] * 1.5 <= 0.101;
        let beyond = harm[0] >= 0.074 || harm[1] >= 0.149;
        // At most 2 % of the answers that count are false, and about 5 % at the threshold; three standard errors more.
        let most = |counts: bool| if counts { RUNS * 2 / 100 } else { RUNS * 14 / 100 };
        if !within {
            assert!(pass <= most(beyond), "{harm:?}: {pass} of {RUNS} pass");
        }
        if !beyond {
            assert!(fail <= most(within), "{harm:?}: {fail} of {RUNS} fail");
        }
        assert!(missed * 100 <= of * 7, "{missed} of {of} intervals miss {harm:?}");
    }
}
