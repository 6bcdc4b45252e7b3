//! Tests the reliability of verdicts: simulated runs pass through the real analysis and verdict. The simulations are
//! reproducible, because their random numbers have fixed seeds. The module `calibrate` tests the same on a real
//! machine.
//!
//! The metric of each block (one arm, or way of running the service, in one round) has log-normal noise of 3 %. In some
//! tests, the metric is also worse by up to 65 % with a probability of 15 %. An error rate that should be at most 5 %
//! may reach 7 % in 2000 repetitions (4 standard errors).

use crate::analysis::conclude_from;
use crate::fixture::{bare_run, simulate};
use crate::record::Verdict;
use crate::record::{Metric, Run};
use crate::rng::Rng;

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
