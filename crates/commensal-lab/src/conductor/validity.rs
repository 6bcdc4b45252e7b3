//! Decides which blocks are valid. A block measures one arm (one condition of the run) once. The rules are fixed before
//! the run and use only recorded data, so that they treat an interrupted run that was continued like any other run.

use super::batch::ENDED;
use super::block::UNSCHEDULED;
use super::windows::TOO_LONG;
use crate::loadgen::{LATE, LoadBaseline, LoadEvidence, NOT_KEPT_UP, invalid_reasons};
use crate::record::{Arm, Block, LatenessRule, Role, Run};

/// Minimum CPU use of the offline work, as a share of its CPU use when it runs alone. Below this share, a block of the
/// contended arm (offline work without isolation) is invalid.
const CONTENTION_MIN: f64 = 0.25;
/// Like [`CONTENTION_MIN`], for a load tool with a closed loop, whose service and clients take all the CPU that they
/// can get.
const CONTENTION_MIN_CLOSED: f64 = 0.05;

/// Decides for each block of a round whether the block is valid, by comparison with a block of the service alone
/// in that round.
pub(crate) fn judge_round(run: &mut Run, round: u32) {
    let threads = f64::from(run.machine.threads.max(1));
    let baseline = run.alone_in(round).map(|block| LoadBaseline::of(&LoadEvidence::of_block(block, 0)));
    let (arms, windows) = (run.arms.clone(), run.design.windows);
    let by_percentile = run.design.lateness == LatenessRule::ByPercentile;
    for block in run.blocks.iter_mut().filter(|block| block.round == round) {
        let Some(arm) = arms.iter().find(|arm| arm.name == block.arm) else { continue };
        let windows = windows.map_or(0, |windows| windows.turns(arm.role).times);
        let reasons = reasons(block, arm, (baseline, windows, by_percentile), threads);
        block.valid = reasons.is_empty();
        block.invalid_reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    }
}

/// Decides again about the blocks of an older record that are invalid because the load generator was late, by the rule of
/// new runs. Everything else stays as the run decided it, since a published record may lack what those rules need.
pub fn by_new_rules(run: &mut Run) {
    run.design.lateness = LatenessRule::ByPercentile;
    let arms = run.arms.clone();
    let threads = f64::from(run.machine.threads.max(1));
    for block in run.blocks.iter_mut().filter(|block| !block.valid) {
        let late = block.invalid_reason.as_deref().is_some_and(|why| why.starts_with(LATE));
        let Some(arm) = arms.iter().find(|arm| late && arm.name == block.arm) else { continue };
        // Compared with itself, since the run has already compared the block with its baseline.
        let others = reasons(block, arm, (None, 0, true), threads);
        let others: Vec<String> = others.into_iter().filter(|why| !why.starts_with(NOT_KEPT_UP)).collect();
        block.valid = others.is_empty();
        block.invalid_reason = (!others.is_empty()).then(|| others.join("; "));
    }
}

fn reasons(
    block: &Block,
    arm: &Arm,
    (baseline, windows, by_percentile): (Option<LoadBaseline>, u32, bool),
    threads: f64,
) -> Vec<String> {
    let beside = matches!(arm.role, Role::Contended | Role::Isolated | Role::OfflineAlone);
    let mut reasons = Vec::new();
    if arm.role != Role::OfflineAlone {
        let evidence = LoadEvidence::of_block(block, windows);
        let evidence = if by_percentile { evidence.without_lateness() } else { evidence };
        let baseline = baseline.unwrap_or_else(|| LoadBaseline::of(&evidence));
        reasons.extend(invalid_reasons(&evidence, &baseline, beside));
    }
    if matches!(arm.role, Role::Contended | Role::OfflineAlone) {
        let expected = block.work.expected_cpus.map(|cpus| cpus.min(threads));
        if let (Some(used), Some(expected)) = (block.cpu.offline, expected)
            && used
                < expected * if block.concurrency.is_some() { CONTENTION_MIN_CLOSED } else { CONTENTION_MIN }
        {
            reasons.push(format!(
                "the offline work used only {used:.2} of the {expected:.2} CPUs that it would use alone: too little contention"
            ));
        }
    }
    let fatal = |note: &&String| [ENDED, UNSCHEDULED, TOO_LONG].iter().any(|fatal| note.starts_with(fatal));
    reasons.extend(block.notes.iter().filter(fatal).cloned());
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::record::Verdict;
    use commensal_core::errno::Errno;

    fn check(change: impl Fn(&mut Block), arm: &str, want: &str) {
        let mut run = fixture::small_run();
        run.blocks.iter_mut().filter(|block| block.arm == arm && block.round == 0).for_each(&change);
        judge_round(&mut run, 0);
        let block = run.blocks.iter().find(|block| block.arm == arm && block.round == 0).unwrap();
        let said = block.invalid_reason.clone().unwrap_or_default();
        assert_eq!(block.valid, want.is_empty(), "{arm}: {said}");
        assert!(said.contains(want), "{arm}: {said} lacks {want}");
        let others = run.blocks.iter().filter(|block| block.arm != arm);
        assert!(others.into_iter().all(|block| block.valid));
    }

    #[test]
    fn each_rule() {
        check(|_| (), "contended", "");
        check(
            |block| block.notes = vec![format!("{UNSCHEDULED}: scx_lost ended with status 1")],
            "isolated",
            "scx_lost ended with status 1",
        );
        // A report shows the CPU use of other programs, but this use does not make a block invalid.
        check(|block| block.cpu.other = Some(1.6), "isolated", "");
        let idle = |block: &mut Block| {
            block.work.expected_cpus = Some(2.0);
            block.cpu.offline = Some(0.1);
        };
        check(idle, "contended", "too little contention");
        check(idle, "isolated", "");
        let closed = |block: &mut Block| {
            idle(block);
            (block.load.offered_per_s, block.lateness_us, block.concurrency) = (None, None, Some(10));
        };
        check(closed, "contended", "");
        check(
            |block| (closed(block), block.cpu.offline = Some(0.09)).0,
            "contended",
            "too little contention",
        );
        check(|block| block.notes.push(format!("{ENDED} with status 3")), "isolated", "with status 3");
        check(|block| block.load.achieved_per_s = Some(300.0), "baseline2", "did not keep up");
        check(|block| block.load.achieved_per_s = Some(300.0), "contended", "");
        let limited = |block: &mut Block| {
            block.socket_errors.add(Errno::EADDRNOTAVAIL);
            block.load.achieved_per_s = Some(300.0);
        };
        for arm in ["baseline2", "contended", "isolated"] {
            check(limited, arm, "the load generator ran out of local ports (EADDRNOTAVAIL, once)");
        }
        check(
            |block| block.lateness_us = Some(crate::record::Lateness { p50: 9.0, p99: 900.0 }),
            "contended",
            "was late",
        );
    }

    /// Slow requests that are in flight at the ends of short windows do not count as a service that cannot keep up.
    // promise 38
    #[test]
    fn a_short_window_may_miss_some() {
        let check = |missing: u64, service_us: u64, valid: bool| {
            let mut run = fixture::small_run();
            let windows = crate::experiment::Short::default().windows;
            run.design.windows = Some(crate::record::Windows { per_round: 5, ..windows });
            let mut service = crate::record::new_histogram().unwrap();
            service.saturating_record(service_us);
            let block = run.blocks.iter_mut().find(|block| block.arm == "baseline2").unwrap();
            let round = block.round;
            (block.load.offered_per_s, block.load.offered_requests) = (Some(93.0), 200);
            block.load.achieved_per_s = Some(93.0 * (200 - missing) as f64 / 200.0);
            block.histograms.service = crate::record::encode_histogram(&service).ok();
            judge_round(&mut run, round);
            let block =
                run.blocks.iter().find(|block| block.arm == "baseline2" && block.round == round).unwrap();
            assert_eq!(block.valid, valid, "{missing} of 200: {:?}", block.invalid_reason);
        };
        check(1, 100, true);
        check(3, 100, false);
        // On average, 0.47 requests are in flight at either end of each of five windows: 8.6 missing requests are four
        // standard errors.
        check(8, 5_000, true);
        check(9, 5_000, false);
        check(40, 5_000, false);
        // The service is overloaded: ten connections are always busy.
        check(10, 125_000, true);
        check(11, 125_000, false);
    }

    #[test]
    fn tools_have_no_schedule_to_be_late_for() {
        let tool = |block: &mut Block| {
            (block.load.offered_per_s, block.lateness_us, block.concurrency) = (None, None, Some(8));
        };
        check(tool, "baseline2", "");
        check(|block| (tool(block), block.load.errors = 100).0, "baseline2", "errors");
        check(|block| (tool(block), block.load.offered_requests = 0).0, "baseline2", "no request");
    }

    /// What a hypervisor does to CPUs that idle costs no verdict, hides no harm, and names its culprit. The same record under
    /// the rule of earlier versions is INVALID, and says by which rule.
    // promises 36, 38
    #[test]
    fn a_hypervisor_costs_no_verdict_and_hides_no_harm() {
        let judged = |harm: f64| {
            let mut run = fixture::beside_a_hypervisor(harm);
            (0..12).for_each(|round| judge_round(&mut run, round));
            crate::analysis::conclude(&mut run);
            run
        };
        for (harm, expected) in [(0.0, Verdict::Pass), (0.09, Verdict::Fail), (0.3, Verdict::Fail)] {
            let run = judged(harm);
            assert_eq!(run.verdict, Some(expected), "{harm}: {:?}", run.reasons);
            let text = crate::report::terminal(&run, false);
            for part in [
                "than alone on CPUs that never idle",
                "the hypervisor took 0.04 CPUs from it, and 0.00 from CPUs",
            ] {
                assert!(text.contains(part), "{harm}: {part} in {text}");
            }
        }
        let mut old = judged(0.0);
        old.design.lateness = LatenessRule::WholeBlock;
        (0..12).for_each(|round| judge_round(&mut old, round));
        crate::analysis::conclude(&mut old);
        assert_eq!(old.verdict, Some(Verdict::Invalid));
        assert!(crate::report::terminal(&old, false).contains("--by-new-rules"));
        by_new_rules(&mut old);
        crate::analysis::conclude(&mut old);
        assert_eq!(old.verdict, Some(Verdict::Pass), "{:?}", old.reasons);
    }

    /// A generator that lacks CPU time is late at the median as well: then no baseline counts.
    // promise 36
    #[test]
    fn a_generator_that_is_late_at_the_median_makes_the_run_invalid() {
        let judged = |busy: f64, steal: f64| {
            let mut run = fixture::beside_a_hypervisor(0.0);
            let mut late = crate::record::new_histogram().unwrap();
            late.record_n(900, 2_000).unwrap();
            for block in &mut run.blocks {
                block.histograms.lateness = crate::record::encode_histogram(&late).ok();
                (block.cpu.other, block.cpu.steal) = (Some(busy), Some(steal));
            }
            (0..12).for_each(|round| judge_round(&mut run, round));
            crate::analysis::conclude(&mut run);
            assert_eq!(run.verdict, Some(Verdict::Invalid));
            crate::report::terminal(&run, false)
        };
        for (busy, steal, cause, way_out) in [
            (1.7, 0.0, "of this machine's CPU time was in use", "CPUs of their own"),
            (0.05, 0.2, "the hypervisor woke idle virtual CPUs late", "kvm.halt_poll_ns"),
            (0.05, 0.0, "the generator itself was too slow", "--load"),
        ] {
            let text = judged(busy, steal);
            assert!(text.contains("the load generator was late at P50"), "{text}");
            assert!(text.contains(cause) && text.contains(way_out), "{cause}: {text}");
        }
    }
}
