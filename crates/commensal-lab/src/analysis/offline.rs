//! Measures how much offline work was done under isolation. Without this measurement, isolation that simply stops the
//! offline work would appear to be perfect. An arm is one of the ways of running the service that a run compares; a
//! block is the measurement of one arm in one round.

use super::samples::online_failed;
use crate::record::{Arm, Block, OfflineKept, Role, Run};
use crate::stats::{SignedRank, Tail, emu_pct, median, work_kept_pct};

/// Returns the offline statistics of each isolated arm; an arm is one of the ways of running the service that a run
/// compares. A value that the machine or the run cannot provide is `None`.
pub fn offline_kept(run: &Run) -> Vec<OfflineKept> {
    let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
    isolated.map(|arm| of_arm(run, arm)).collect()
}

fn of_arm(run: &Run, of: &Arm) -> OfflineKept {
    let arm = of.name.as_str();
    let mut kept = OfflineKept { arm: arm.to_owned(), ..OfflineKept::default() };
    if let Some(contended) = run.contended_for(of) {
        // Ratios are used instead of log-ratios, because the offline work of a block can be zero.
        let ratios: Vec<f64> = usable(run, arm)
            .filter_map(|block| {
                let other = usable(run, &contended.name).find(|other| other.round == block.round)?;
                work_kept_pct(block.work.offline?, other.work.offline?)
            })
            .collect();
        if let Some(ranks) = SignedRank::new(&ratios) {
            kept.kept_vs_contended_pct = Some(ranks.estimate());
            kept.kept_vs_contended_ci95 = ranks.interval(Tail::TwoSided95).map(|i| [i.lo, i.hi]);
        }
    }
    let work =
        |name: &str| median(&usable(run, name).filter_map(|block| block.work.offline).collect::<Vec<f64>>());
    let alone = run.arm_with(Role::OfflineAlone).and_then(|alone| work(&alone.name));
    kept.kept_vs_alone_pct = work(arm).zip(alone).and_then(|(work, alone)| work_kept_pct(work, alone));
    let left: Vec<f64> = usable(run, arm).filter_map(|block| cpu_left_used_pct(run, block)).collect();
    kept.cpu_left_used_pct = median(&left);
    let achieved: Vec<f64> = usable(run, arm).filter_map(|block| block.load.achieved_per_s).collect();
    let online = median(&achieved).zip(run.design.knee_per_s.filter(|knee| *knee > 0.0));
    kept.emu_pct = online
        .zip(kept.kept_vs_alone_pct)
        .map(|((achieved, knee), kept)| emu_pct(achieved / knee, kept / 100.0))
        .filter(|pct| pct.is_finite());
    kept
}

/// Returns the valid blocks of an arm in which the service did not fail.
fn usable<'a>(run: &'a Run, arm: &'a str) -> impl Iterator<Item = &'a Block> {
    run.blocks_of(arm).filter(|block| block.valid && !online_failed(block))
}

/// Returns the CPU use of offline work in a block, in per cent of the CPU time that the online side, other programs and
/// the hypervisor leave.
fn cpu_left_used_pct(run: &Run, block: &Block) -> Option<f64> {
    let cpu = block.cpu;
    let left = f64::from(run.machine.threads) - cpu.online? - cpu.other? - cpu.steal?;
    work_kept_pct(cpu.offline?, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn work_is_compared_round_by_round() {
        let run = fixture::small_run();
        let kept = offline_kept(&run);
        assert_eq!(kept.len(), 1);
        assert!((kept[0].kept_vs_contended_pct.unwrap() - 81.0).abs() < 0.5, "{kept:?}");
        assert!(kept[0].kept_vs_contended_ci95.is_some());
        assert_eq!(kept[0].kept_vs_alone_pct, None);
        assert_eq!(kept[0].emu_pct, None);
        // Offline work uses 1.4 CPUs, of the 2 - 0.3 - 0.05 - 0.0 CPUs that are left.
        assert!((kept[0].cpu_left_used_pct.unwrap() - 1.4 / 1.65 * 100.0).abs() < 1e-9, "{kept:?}");
    }

    #[test]
    fn missing_figures_stay_missing() {
        let mut run = fixture::small_run();
        for block in &mut run.blocks {
            block.work.offline = None;
            block.cpu.steal = None;
        }
        assert_eq!(offline_kept(&run), [OfflineKept { arm: "isolated".into(), ..OfflineKept::default() }]);
    }

    #[test]
    fn work_that_stops_is_kept_at_zero_and_emu_needs_the_knee() {
        let mut run = fixture::small_run();
        run.design.knee_per_s = Some(800.0);
        run.arms.push(Arm { name: "alone".into(), role: Role::OfflineAlone, policy: None, offline: None });
        let mut alone = run.blocks[0].clone();
        alone.arm = "alone".into();
        alone.load.achieved_per_s = None;
        alone.work.offline = Some(2_000.0);
        run.blocks.push(alone);
        for block in run.blocks.iter_mut().filter(|b| b.arm == "isolated") {
            block.work.offline = Some(0.0);
        }
        let kept = &offline_kept(&run)[0];
        assert_eq!(kept.kept_vs_contended_pct, Some(0.0));
        assert_eq!(kept.kept_vs_alone_pct, Some(0.0));
        let emu = kept.emu_pct.unwrap();
        assert!((emu - 50.0).abs() < 3.0, "{emu}");
    }
}
