//! Determines whether the online service fails, and whether isolation causes the failures.
//!
//! A service that sometimes crashes by itself crashes in a random arm (one of the compared ways of running the
//! service), which may be the isolated arm. The check therefore counts the blocks in which the service failed; a block
//! is the measurement of one arm in one round. Isolation counts as the cause only if blocks of the isolated arm fail
//! significantly more often than blocks without offline work. The test is Fisher's exact test, one-sided; it is exact
//! because the order of the arms is random.

use crate::analysis::online_failed;
use crate::record::Verdict;
use crate::record::{Arm, Block, Role, Run};

/// Share of failed requests above which a service counts as failing.
const ERROR_SHARE: f64 = 0.01;

/// Failures of the online service in all blocks, valid or not.
#[derive(Debug, Default)]
struct Health {
    blocks: usize,
    /// Number of blocks in which the service died or answered no request.
    crashed: usize,
    /// Number of blocks in which the service died, answered no request, or failed more than 1 % of the requests.
    failed: usize,
    died: bool,
    error_share: f64,
}

impl Health {
    fn of<'a>(blocks: impl Iterator<Item = &'a Block>) -> Self {
        let (mut health, mut requests, mut errors) = (Self::default(), 0.0, 0.0);
        for block in blocks {
            let (its, wrong) = (block.load.offered_requests as f64, block.load.failed() as f64);
            let crashed = online_failed(block);
            health.blocks += 1;
            health.crashed += usize::from(crashed);
            health.failed += usize::from(crashed || (its > 0.0 && wrong / its > ERROR_SHARE));
            health.died |= block.online_crashed;
            requests += its;
            errors += wrong;
        }
        health.error_share = if requests > 0.0 { errors / requests } else { 0.0 };
        health
    }

    fn of_arm(run: &Run, arm: &str) -> Self {
        Self::of(run.blocks_of(arm))
    }

    /// Adds up the failures of all arms without offline work.
    fn alone(run: &Run) -> Self {
        let alone = |block: &&Block| run.arms.iter().any(|arm| arm.name == block.arm && is_alone(arm));
        Self::of(run.blocks.iter().filter(alone))
    }

    fn is_well(&self) -> bool {
        self.crashed == 0 && self.error_share <= ERROR_SHARE
    }

    fn what(&self) -> &'static str {
        if self.died { "crashed" } else { "answered no request" }
    }

    /// Describes the failures; `None` if there are none.
    fn complaint(&self, arm: &str) -> Option<String> {
        if self.crashed > 0 {
            let (crashed, blocks) = (self.crashed, self.blocks);
            let what = self.what();
            return Some(format!("the online service {what} in {crashed} of {blocks} blocks of arm {arm}"));
        }
        (self.error_share > ERROR_SHARE).then(|| {
            let pct = self.error_share * 100.0;
            format!("in arm {arm}, {pct:.1} % of the requests failed or timed out; at most 1 % is allowed")
        })
    }
}

fn is_alone(arm: &Arm) -> bool {
    matches!(arm.role, Role::Baseline | Role::Baseline2 | Role::PolicyOnly | Role::Warm)
}

/// Conclusion from the failures of the service in one isolated arm.
struct Told {
    verdict: Verdict,
    reason: String,
}

/// Returns BROKEN if isolation is proven to make the service fail, and INCONCLUSIVE if the failures do not decide the
/// question; `None` for an arm without failures.
fn told(run: &Run, arm: &Arm) -> Option<Told> {
    let (its, alone) = (Health::of_arm(run, &arm.name), Health::alone(run));
    let complaint = its.complaint(&arm.name)?;
    let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated).count().max(1);
    let most = run.design.level(run.rounds_begun()) / isolated as f64;
    let p = fisher([its.failed, its.blocks], [alone.failed, alone.blocks]);
    let beside = match alone.failed {
        0 => format!("and in none of {} blocks without offline work", alone.blocks),
        failed => format!("and in {failed} of {} blocks without offline work", alone.blocks),
    };
    Some(if p <= most {
        Told { verdict: Verdict::Broken, reason: format!("{complaint}, {beside} (p = {p:.2e})") }
    } else {
        let reason = format!(
            "{complaint}, {beside}: too few failures to tell whether isolation causes them (p = {p:.2}; p <= {most:.3} is \
             needed); run more rounds"
        );
        Told { verdict: Verdict::Inconclusive, reason }
    })
}

/// Returns whether the measurements of an arm are meaningless, because isolation makes the service fail, or because the
/// service crashed in every block.
pub(crate) fn service_failed(run: &Run, arm: &Arm) -> bool {
    let health = Health::of_arm(run, &arm.name);
    let broken = || told(run, arm).is_some_and(|told| told.verdict == Verdict::Broken);
    (health.blocks > 0 && health.crashed == health.blocks) || (arm.role == Role::Isolated && broken())
}

/// Returns a reason for each isolated arm in which isolation makes the service fail.
pub(super) fn broken_arms(run: &Run) -> Vec<String> {
    let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
    let broken = isolated.filter_map(|arm| told(run, arm)).filter(|told| told.verdict == Verdict::Broken);
    broken.map(|told| told.reason).collect()
}

/// Returns a reason if the failures in an isolated arm are too rare to attribute them to isolation.
pub(super) fn too_rare(run: &Run, arm: &Arm) -> Option<String> {
    told(run, arm).filter(|told| told.verdict == Verdict::Inconclusive).map(|told| told.reason)
}

/// Returns a reason for each arm without offline work in which the service failed. Such a failure shows that the
/// service fails by itself.
pub(super) fn fails_by_itself(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    for arm in run.arms.iter().filter(|arm| is_alone(arm)) {
        let health = Health::of_arm(run, &arm.name);
        if health.crashed > 0 {
            let (name, what, crashed, blocks) = (&arm.name, health.what(), health.crashed, health.blocks);
            reasons.push(format!(
                "the online service {what} without any offline work (arm {name}, {crashed} of {blocks} blocks): repair the \
                 service first"
            ));
        } else if let Some(complaint) = health.complaint(&arm.name) {
            reasons.push(format!("{complaint}, without any offline work: repair the service first"));
        }
    }
    reasons
}

/// Returns notes on failures without isolation, which are reported but do not affect the verdict.
pub(super) fn without_isolation(run: &Run) -> Vec<String> {
    let contended = run.arms.iter().filter(|arm| arm.role == Role::Contended);
    contended
        .map(|arm| (arm, Health::of_arm(run, &arm.name)))
        .filter(|(_, health)| !health.is_well())
        .filter_map(|(arm, health)| health.complaint(&arm.name))
        .collect()
}

/// Fisher's exact test, one-sided. Under the assumption that failures are independent of the arm, returns the
/// probability that at least as many failures as observed are in the first group of blocks. Each argument is (failures,
/// blocks) of one group.
fn fisher(of: [usize; 2], beside: [usize; 2]) -> f64 {
    let (failures, blocks) = (of[0] + beside[0], of[1] + beside[1]);
    let ln_choose =
        |n: usize, k: usize| -> f64 { (0..k).map(|i| ((n - i) as f64).ln() - ((i + 1) as f64).ln()).sum() };
    let whole = ln_choose(blocks, failures);
    let chance = |here: usize| {
        let there = failures - here;
        if there > beside[1] {
            return 0.0;
        }
        (ln_choose(of[1], here) + ln_choose(beside[1], there) - whole).exp()
    };
    (of[0]..=failures.min(of[1])).map(chance).sum::<f64>().min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::bare_run;
    use crate::rng::Rng;

    #[test]
    fn fisher_is_the_textbooks() {
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "got {got}, want {want}");
        // Fisher's tea-tasting experiment, with 4 of 4 and 3 of 4 correct answers.
        close(fisher([4, 4], [0, 4]), 1.0 / 70.0);
        close(fisher([3, 4], [1, 4]), 17.0 / 70.0);
        close(fisher([1, 12], [0, 24]), 12.0 / 36.0);
        close(fisher([0, 12], [3, 24]), 1.0);
        close(fisher([12, 12], [24, 24]), 1.0);
        close(fisher([3, 3], [0, 0]), 1.0);
    }

    /// Simulates a run of `rounds` rounds. In each block of an arm, the online service fails with probability
    /// `chance(arm)`: with request errors if `errors`, otherwise by crashing. Returns the verdict that the failures
    /// alone determine; `None` if they determine none.
    fn verdict(rng: &mut Rng, rounds: u32, chance: impl Fn(&str) -> f64, errors: bool) -> Option<Verdict> {
        let mut run = bare_run(rounds);
        for block in &mut run.blocks {
            if rng.unit_f64() < chance(&block.arm) {
                (block.online_crashed, block.load.errors) = (!errors, 900);
            }
        }
        if !broken_arms(&run).is_empty() {
            return Some(Verdict::Broken);
        }
        if !fails_by_itself(&run).is_empty() {
            return Some(Verdict::Invalid);
        }
        too_rare(&run, &run.arms[3]).map(|_| Verdict::Inconclusive)
    }

    /// Crashes that are independent of the arm lead to BROKEN in at most 5 % of runs. Crashes that isolation causes
    /// lead to BROKEN in at least 95 %. The same holds for request errors.
    // promise 36
    #[test]
    fn only_isolation_breaks() {
        const RUNS: u32 = 400;
        let mut rng = Rng::new(5);
        for errors in [false, true] {
            for rounds in [6, 12, 40] {
                for of_27 in 1..=4 {
                    let p = f64::from(of_27) / 27.0;
                    let broken = (0..RUNS)
                        .filter(|_| verdict(&mut rng, rounds, |_| p, errors) == Some(Verdict::Broken))
                        .count();
                    assert!(
                        broken as f64 <= 0.05 * f64::from(RUNS),
                        "p = {of_27}/27, {rounds} rounds: {broken}"
                    );
                }
            }
            for (rounds, p) in [(6, 0.9), (12, 0.5), (40, 0.2)] {
                let isolated = |arm: &str| if arm == "isolated" { p } else { 0.0 };
                let broken = (0..RUNS)
                    .filter(|_| verdict(&mut rng, rounds, isolated, errors) == Some(Verdict::Broken))
                    .count();
                assert!(broken as f64 >= 0.95 * f64::from(RUNS), "p = {p}, {rounds} rounds: {broken}");
            }
        }
    }

    #[test]
    fn each_way_to_fail() {
        let always = |arms: &'static [&str]| move |arm: &str| if arms.contains(&arm) { 1.0 } else { 0.0 };
        let said = |arms: &'static [&str]| verdict(&mut Rng::new(1), 12, always(arms), false);
        assert_eq!(said(&[]), None);
        assert_eq!(said(&["contended"]), None);
        assert_eq!(said(&["isolated"]), Some(Verdict::Broken));
        assert_eq!(said(&["contended", "isolated"]), Some(Verdict::Broken));
        assert_eq!(said(&["baseline"]), Some(Verdict::Invalid));
        // The service crashes after each start.
        assert_eq!(said(&["baseline", "baseline2", "contended", "isolated"]), Some(Verdict::Invalid));
    }
}
