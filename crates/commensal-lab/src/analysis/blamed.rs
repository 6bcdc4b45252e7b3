//! For each wait of an online thread for a CPU, the wait probe records the task that occupied the CPU meanwhile. This
//! module evaluates these waits. The results concern scheduling, not latency, so they are usable even where latency is
//! noisy. An arm is one of the ways of running the service that a run compares, such as with or without isolation.

use super::samples::online_failed;
use crate::record::Verdict;
use crate::record::{ArmBlame, BlameBounds, Blamed, Role, Run};
use crate::stats::{Interval, SignedRank, Tail, median};
use commensal_blame::verdict::FEWEST_DELAYS;

/// Maximum share of context switches that the kernel did not report to the probe, in records that do not have the length
/// of what was hidden.
const MOST_MISSED: f64 = 0.005;
/// Delays below this value (µs) are treated as equal.
const LEAST_US: f64 = 0.1;

impl Default for BlameBounds {
    /// The default limits of `commensal blame`.
    fn default() -> BlameBounds {
        let bounds = commensal_blame::Bounds::default();
        BlameBounds { wait_ms_per_cpu_s: bounds.blame_ms, preemption_p99_us: bounds.preempt_us }
    }
}

/// Returns the results for every arm with offline work for which the wait probe has measurements. An arm is one of the
/// ways of running the service that a run compares.
pub fn blamed(run: &Run) -> Vec<ArmBlame> {
    let arms = run.arms.iter().filter(|arm| matches!(arm.role, Role::Contended | Role::Isolated));
    arms.filter_map(|arm| of_arm(run, &arm.name)).collect()
}

fn of_arm(run: &Run, arm: &str) -> Option<ArmBlame> {
    let seen = evidence(run, arm);
    let bounds = run.design.blame.unwrap_or_default();
    let offline: Vec<f64> =
        seen.iter().filter_map(|(_, one)| per_cpu_second(one, one.wait_s.offline)).collect();
    // What was hidden may have been offline work that was not seen, or may have been blamed on offline work that had left.
    let with_hidden = |part: f64| {
        let each = seen
            .iter()
            .filter_map(|(_, one)| per_cpu_second(one, (one.wait_s.offline + part * hidden(one)).max(0.0)));
        SignedRank::new(&each.collect::<Vec<f64>>())
    };
    let ranks = SignedRank::new(&offline)?;
    let (least, most) = (with_hidden(-1.0)?, with_hidden(1.0)?);
    let role = run.arms.iter().find(|one| one.name == arm)?.role;
    let alone = if role == Role::Isolated { run.reference() } else { run.arm_with(Role::Baseline) };
    let baseline = alone.map(|base| evidence(run, &base.name)).unwrap_or_default();
    // What was hidden may belong to either arm, so the bounds are those of the two extremes.
    let difference = |(of, beside): (f64, f64)| {
        let each = seen.iter().filter_map(|(round, one)| {
            let (_, alone) = baseline.iter().find(|(other, _)| other == round)?;
            let wait = |one: &Blamed, part: f64| per_cpu_second(one, one.wait_s.sum() + part * hidden(one));
            Some(wait(one, of)? - wait(alone, beside)?)
        });
        SignedRank::new(&each.collect::<Vec<f64>>())
    };
    let differences = difference((0.0, 0.0));
    let (lower, upper) = (difference((0.0, 1.0)), difference((1.0, 0.0)));
    let p99s: Vec<f64> = seen.iter().filter_map(|(_, one)| one.preemption.p99_us).collect();
    // On a logarithmic scale, a round with a burst of delays has no more weight than any other round.
    let logs: Vec<f64> = p99s.iter().map(|us| us.max(LEAST_US).ln()).collect();
    let preemption = SignedRank::new(&logs);
    let at = |arms: &[&str]| Tail::OneSided(run.design.level_of(role, run.measured_rounds(arms)));
    let tail = at(&[arm]);
    let of_both = alone.map_or(tail, |alone| at(&[arm, &alone.name]));
    let ends = |ranks: &SignedRank, tail| ranks.interval(tail).map(|Interval { lo, hi }| [lo, hi]);
    let mut result = ArmBlame {
        arm: arm.to_owned(),
        rounds: u32::try_from(seen.len()).unwrap_or(u32::MAX),
        offline_ms_per_cpu_s: ranks.estimate(),
        ci95: ends(&ranks, Tail::TwoSided95),
        one_sided: outer(ends(&least, tail), ends(&most, tail)),
        preemption_p99_us: median(&p99s),
        preemption_p99_one_sided: preemption
            .as_ref()
            .and_then(|ranks| ends(ranks, tail))
            .map(|ends| ends.map(f64::exp)),
        preemptions: seen.iter().fold(0, |sum, (_, one)| sum.saturating_add(one.preemption.count)),
        total_difference_ms_per_cpu_s: differences.as_ref().map(SignedRank::estimate),
        total_difference_ci95: differences.as_ref().and_then(|ranks| ends(ranks, Tail::TwoSided95)),
        total_difference_one_sided: outer(
            lower.as_ref().and_then(|ranks| ends(ranks, of_both)),
            upper.as_ref().and_then(|ranks| ends(ranks, of_both)),
        ),
        verdict: Verdict::Inconclusive,
        reasons: Vec::new(),
    };
    (result.verdict, result.reasons) = judge(&result, bounds);
    Some(result)
}

/// Returns the lower end of one interval and the upper end of another.
fn outer(lower: Option<[f64; 2]>, upper: Option<[f64; 2]>) -> Option<[f64; 2]> {
    lower.zip(upper).map(|([lo, _], [_, hi])| [lo, hi])
}

/// Returns the part of the waits that was hidden from the probe, in seconds.
fn hidden(one: &Blamed) -> f64 {
    one.hidden_s.unwrap_or(0.0)
}

/// Returns the usable probe measurements of an arm, by round. The validity rules for latency do not apply, because the
/// waits are exact even if the load generator is late.
///
/// What was hidden from the probe enters the bounds by its length. Records without that length are judged by the share of
/// context switches that the probe missed: in a block, and in the arm as a whole if its blocks consist of short windows,
/// which have few context switches.
fn evidence<'a>(run: &'a Run, arm: &'a str) -> Vec<(u32, &'a Blamed)> {
    let blocks = run.blocks_of(arm).filter(|block| !online_failed(block));
    let seen: Vec<(u32, &Blamed)> =
        blocks.filter_map(|block| Some((block.round, block.blame.as_ref()?))).collect();
    let unknown = |one: &Blamed| if one.hidden_s.is_none() { one.missed_share } else { 0.0 };
    if run.design.windows.is_none() {
        return seen.into_iter().filter(|(_, one)| unknown(one) <= MOST_MISSED).collect();
    }
    let missed: f64 = seen.iter().map(|(_, one)| unknown(one)).sum();
    if missed > MOST_MISSED * seen.len() as f64 { Vec::new() } else { seen }
}

/// Returns the wait in milliseconds per second of CPU time; `None` if no CPU time was used.
fn per_cpu_second(of: &Blamed, wait_s: f64) -> Option<f64> {
    (of.run_s > 0.0).then(|| wait_s / of.run_s * 1e3)
}

fn judge(arm: &ArmBlame, bounds: BlameBounds) -> (Verdict, Vec<String>) {
    let (most, longest) = (bounds.wait_ms_per_cpu_s, bounds.preemption_p99_us);
    let (mut proven, mut open) = (Vec::new(), Vec::new());
    let name = &arm.arm;
    match arm.one_sided {
        None => open.push(format!(
            "arm {name}: {} rounds are too few for a bound on the wait blamed on offline work; 5 are needed",
            arm.rounds
        )),
        Some([lo, _]) if lo > most => proven.push(format!(
            "arm {name}: offline work makes online work wait {:.1} ms per CPU-second; the limit is {most} ms",
            arm.offline_ms_per_cpu_s
        )),
        Some([_, hi]) if hi > most => open.push(format!(
            "arm {name}: the wait blamed on offline work is neither proven below {most} ms per CPU-second nor proven above"
        )),
        Some(_) => {}
    }
    let mut few = Vec::new();
    match (arm.preemption_p99_us, arm.preemption_p99_one_sided) {
        // If the wait blamed on offline work is below its limit, the verdict does not need a preemption delay: online
        // and offline threads then hardly shared a CPU.
        _ if arm.preemptions < FEWEST_DELAYS => few.push(format!(
            "arm {name}: a P99 of the preemption delay needs {FEWEST_DELAYS} wake-ups on CPUs that run offline work; there were {}",
            arm.preemptions
        )),
        (Some(p99), Some([lo, _])) if lo > longest => proven.push(format!(
            "arm {name}: offline work keeps a CPU for {p99:.0} µs (P99) after online work is woken there; the limit is {longest} µs"
        )),
        (Some(p99), Some([lo, hi])) if hi > longest => open.push(format!(
            "arm {name}: offline work keeps a CPU for {p99:.0} µs (P99) [{lo:.0}, {hi:.0}] after online work is woken there: \
             neither proven below {longest} µs nor proven above"
        )),
        (Some(_), Some(_)) => {}
        (p99, _) => open.push(format!(
            "arm {name}: {} rounds are too few for a bound on the preemption delay; 5 are needed",
            if p99.is_some() { arm.rounds } else { 0 }
        )),
    }
    match arm.total_difference_one_sided {
        // A low wait blamed on offline work does not prove that offline work did no harm. Even offline work that gets
        // no CPU time can make other work occupy the CPU longer; only the total wait shows this harm.
        Some([lo, _]) if lo > most => proven.push(format!(
            "arm {name}: online work waits {:.1} ms per CPU-second longer than alone, counting waits of any cause; the limit is {most} ms",
            arm.total_difference_ms_per_cpu_s.unwrap_or(lo)
        )),
        Some([_, hi]) if hi > most => open.push(format!(
            "arm {name}: it is not proven that online work waits at most {most} ms per CPU-second longer than alone, counting \
             waits of any cause"
        )),
        Some(_) => {}
        None => open.push(format!("arm {name}: too few rounds to compare the waits of any cause with the baseline")),
    }
    match (proven.is_empty(), open.is_empty()) {
        (false, _) => (Verdict::Fail, proven),
        (true, false) => (Verdict::Inconclusive, open),
        (true, true) => (Verdict::Pass, few),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::record::{Delays, WaitByKind};

    fn run_with(isolated: impl Fn(u32) -> (f64, f64, f64, u64)) -> Run {
        let mut run = fixture::small_run();
        for block in &mut run.blocks {
            let (offline, other, p99, count) = match block.arm.as_str() {
                "contended" => (400.0 + f64::from(block.round), 10.0, 3_800.0, 900),
                "isolated" => isolated(block.round),
                _ => (0.0, 20.0 + f64::from(block.round), 0.0, 0),
            };
            // The online threads use two seconds of CPU time.
            let wait_s = WaitByKind { offline: offline * 2e-3, other: other * 2e-3, ..WaitByKind::default() };
            let preemption = Delays { count, p50_us: None, p99_us: (count > 0).then_some(p99) };
            block.blame = Some(Blamed { run_s: 2.0, wait_s, preemption, ..Blamed::default() });
        }
        run
    }

    fn isolated(run: &Run) -> ArmBlame {
        blamed(run).pop().expect("the isolated arm")
    }

    // promise 36
    #[test]
    fn protected_and_not() {
        let run = run_with(|round| (8.0 + f64::from(round), 25.0, 14.0, 900));
        let all = blamed(&run);
        assert_eq!(all.iter().map(|one| one.arm.as_str()).collect::<Vec<_>>(), ["contended", "isolated"]);
        assert_eq!(all[0].verdict, Verdict::Fail, "{:?}", all[0]);
        assert!((all[1].offline_ms_per_cpu_s - 10.5).abs() < 1e-9, "{:?}", all[1]);
        assert_eq!((all[1].verdict, all[1].preemptions), (Verdict::Pass, 5_400));
        assert!(
            all[1].total_difference_ms_per_cpu_s.is_some_and(|ms| (ms - 13.0).abs() < 1.0),
            "{:?}",
            all[1]
        );
    }

    // promise 36
    #[test]
    fn each_way_to_fail_or_stay_open() {
        let said = |run: &Run| {
            let one = isolated(run);
            (one.verdict, one.reasons.join("\n"))
        };
        let (verdict, why) = said(&run_with(|_| (60.0, 0.0, 14.0, 900)));
        assert!(verdict == Verdict::Fail && why.contains("makes online work wait 60.0 ms"), "{why}");
        let (verdict, why) = said(&run_with(|_| (8.0, 0.0, 1_900.0, 900)));
        assert!(verdict == Verdict::Fail && why.contains("for 1900 µs (P99)"), "{why}");
        // Indirect harm: offline work got no CPU time, but other programs delayed online work.
        let (verdict, why) = said(&run_with(|_| (0.0, 900.0, 14.0, 900)));
        assert!(verdict == Verdict::Fail && why.contains("longer than alone"), "{why}");
        let (verdict, why) = said(&run_with(|_| (8.0, 0.0, 14.0, 3)));
        assert!(verdict == Verdict::Pass && why.contains("needs 100 wake-ups"), "{why}");
        let (verdict, why) = said(&run_with(|round| (f64::from(round) * 20.0, 0.0, 14.0, 900)));
        assert!(verdict == Verdict::Inconclusive && why.contains("neither proven below"), "{why}");
        let mut hidden = run_with(|_| (8.0, 0.0, 14.0, 900));
        for block in hidden.blocks.iter_mut().skip(4) {
            block.blame.as_mut().unwrap().missed_share = 0.02;
        }
        let (verdict, why) = said(&hidden);
        assert!(verdict == Verdict::Inconclusive && why.contains("rounds are too few"), "{why}");
        // A large share of few switches, of a known and short length, costs nothing; a long one widens the bounds.
        for (hidden_s, expected) in [(0.001, Verdict::Pass), (1.0, Verdict::Inconclusive)] {
            for block in &mut hidden.blocks {
                block.blame.as_mut().unwrap().hidden_s = Some(hidden_s);
            }
            let (verdict, why) = said(&hidden);
            assert_eq!(verdict, expected, "{hidden_s} s: {why}");
        }
        // What is over the limit even without the hidden part stays proven; what is not, is undecided. The online threads use
        // two seconds of CPU time, so a second hidden is 500 ms per CPU-second.
        for (offline, expected) in [(900.0, Verdict::Fail), (400.0, Verdict::Inconclusive)] {
            let mut guilty = run_with(|_| (offline, 0.0, 14.0, 900));
            for block in guilty.blocks.iter_mut().filter(|block| block.arm == "isolated") {
                block.blame.as_mut().unwrap().hidden_s = Some(1.0);
            }
            let mut one = isolated(&guilty);
            // Only the wait blamed on offline work is looked at here.
            one.total_difference_one_sided = Some([0.0, 0.0]);
            assert_eq!(
                judge(&one, BlameBounds { wait_ms_per_cpu_s: 100.0, preemption_p99_us: 100.0 }).0,
                expected
            );
        }
    }

    /// Cases of the preemption P99 by round: the verdict is decided only if the rounds are significantly above or below
    /// the limit of 100 µs.
    #[test]
    fn a_median_alone_decides_nothing() {
        let verdict =
            |p99s: [f64; 6]| isolated(&run_with(|round| (8.0, 0.0, p99s[round as usize], 900))).verdict;
        for (p99s, expect) in [
            ([20.0, 30.0, 25.0, 40.0, 22.0, 31.0], Verdict::Pass),
            ([220.0, 300.0, 250.0, 400.0, 220.0, 310.0], Verdict::Fail),
            // The values of half of the rounds, or of two rounds of six, are above the limit.
            ([20.0, 220.0, 25.0, 400.0, 22.0, 310.0], Verdict::Inconclusive),
            ([20.0, 30.0, 25.0, 240.0, 220.0, 31.0], Verdict::Inconclusive),
            // Even one burst prevents a decision on six rounds.
            ([20.0, 30.0, 25.0, 9_000.0, 22.0, 31.0], Verdict::Inconclusive),
        ] {
            assert_eq!(verdict(p99s), expect, "{p99s:?}");
        }
    }

    // promise 36
    #[test]
    fn without_the_probe_there_is_nothing() {
        assert_eq!(blamed(&fixture::small_run()), []);
    }
}
