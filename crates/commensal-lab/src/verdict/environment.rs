//! Checks the conditions under which arms can be judged at all: the service works when it runs alone, the isolation
//! policy is in force, the load generator keeps its schedule, and two identical arms give equal results. An arm is one
//! of the ways of running the online service that a run compares; a gate is a metric that determines the verdict.

use super::arm::rounds_for_bound;
use super::compared::{against_baseline, disturbed, has_bound, proven_harmful};
use super::health;
use crate::analysis::lateness::{Culprit, late};
use crate::format::{brackets, change_pct, quantum, sentence_list, signed_pct};
use crate::record::{Block, Comparison, LatenessRule, Metric, Role, Run, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Share of invalid blocks above which a run is INVALID.
const INVALID_BLOCK_SHARE: f64 = 0.2;

/// Returns a reason for each control file that did not have the value of the policy. Any such file makes the run
/// INVALID.
pub(super) fn not_in_force(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    for arm in &run.arms {
        let applied = arm.policy.iter().flat_map(|policy| &policy.applied);
        for knob in applied.filter(|knob| !knob.holds()) {
            let (file, path, want) = (&knob.file, &knob.path, knob.want.trim());
            reasons.push(match &knob.read {
                Some(read) => format!(
                    "arm {}: {file} of {path} should hold {want:?} but reads {:?}, so the policy was not in force",
                    arm.name,
                    read.trim()
                ),
                None => format!(
                    "arm {}: {file} of {path} should hold {want:?} and could not be read back",
                    arm.name
                ),
            });
        }
    }
    reasons
}

/// Returns a reason if too many blocks are invalid; it names the most frequent cause.
pub(super) fn too_many_invalid_blocks(run: &Run) -> Option<String> {
    let invalid: Vec<_> = run.blocks.iter().filter(|block| !block.valid).collect();
    if invalid.len() as f64 <= INVALID_BLOCK_SHARE * run.blocks.len() as f64 {
        return None;
    }
    // The same reason contains different numbers in each block, so the count ignores numbers.
    let mut reasons: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    for block in &invalid {
        let reason = block.invalid_reason.as_deref().unwrap_or("no reason recorded");
        let kind = reason.chars().filter(|c| !(c.is_ascii_digit() || *c == '.')).collect();
        reasons.entry(kind).or_insert((0, reason)).0 += 1;
    }
    let commonest = reasons.into_values().max_by_key(|(count, _)| *count).map_or("", |(_, reason)| reason);
    Some(format!(
        "{} of {} blocks are invalid, more than 20 %; the most frequent reason: {commonest}",
        invalid.len(),
        run.blocks.len()
    ))
}

/// Returns a reason for each gate that no baseline can judge because the load generator was late: neither the service alone
/// on CPUs that may idle nor the service alone on CPUs that never idle has enough blocks that count.
pub(super) fn no_baseline(run: &Run, gates: &[Metric]) -> Vec<String> {
    let mut reasons = Vec::new();
    for arm in run.arms.iter().filter(|arm| arm.role == Role::Isolated) {
        for gate in gates {
            if has_bound(against_baseline(run, &arm.name, *gate))
                || has_bound(against_warm(run, &arm.name, *gate))
            {
                continue;
            }
            let alone = [run.reference(), run.arm_with(Role::Warm)];
            let (mut of, mut all): (Vec<&Block>, usize) = (Vec::new(), 0);
            for one in alone.into_iter().flatten().chain([arm]) {
                let (late, count) = late(run, &one.name, *gate);
                of.extend(late);
                all += count;
            }
            // Few rounds, or blocks with too few requests, are no fault of the generator.
            if of.len() as f64 > INVALID_BLOCK_SHARE * all as f64 {
                let culprit = Culprit::of(&of, f64::from(run.machine.threads));
                reasons.push(format!(
                    "the load generator was late at {} in {} of {all} blocks of arm {} and of the service alone: {}; {}",
                    gate.label(),
                    of.len(),
                    arm.name,
                    culprit.cause(),
                    culprit.way_out()
                ));
            }
        }
    }
    reasons
}

/// Returns the comparison of an arm with the service alone on CPUs that never idle.
fn against_warm<'a>(run: &'a Run, arm: &str, metric: Metric) -> Option<&'a Comparison> {
    run.comparison(arm, &run.arm_with(Role::Warm)?.name, metric)
}

/// A difference between identical arms with a p-value below this makes the run INVALID. The error rate is divided among
/// all gates (the metrics that determine the verdict).
const SIGNIFICANT: f64 = 0.01;

/// Checks whether the measurement is sound, by comparing the two identical arms. The measurement is unsound if the arms
/// differ significantly on a gate and the difference may exceed half of the threshold. A large difference that may be
/// due to chance does not make it unsound, because the bounds of the isolated arm are then equally wide.
pub(super) fn identical(run: &Run, gates: &[Metric]) -> (Verdict, Vec<String>) {
    let twin = run.arm_with(Role::Baseline2);
    let Some(twin) = twin.filter(|_| run.arm_with(Role::Baseline).is_some()) else {
        let reason = "the run has no second baseline, so it cannot be checked whether two identical arms give equal results";
        return (Verdict::Inconclusive, vec![reason.to_owned()]);
    };
    let (mut unequal, mut unknown) = (Vec::new(), Vec::new());
    let each = SIGNIFICANT / gates.len().max(1) as f64;
    // Two arms on CPUs that may idle say nothing about a gate that is judged on CPUs that never idle.
    let warm = |gate: Metric| {
        let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
        let mut all = isolated.map(|arm| (has_bound(against_warm(run, &arm.name, gate)), &arm.name));
        let cold = |arm: &str| has_bound(against_baseline(run, arm, gate));
        // Without an isolated arm, no gate is judged on CPUs that never idle.
        let has_isolated = run.arm_with(Role::Isolated).is_some();
        let by_warm = all.all(|(warm, arm)| warm && (disturbed(run).is_some() || !cold(arm)));
        gate.quantile().is_some() && has_isolated && by_warm
    };
    for gate in gates.iter().copied().filter(|gate| !warm(*gate)) {
        let half = run.design.threshold_of(gate) / 2.0;
        let result = against_baseline(run, &twin.name, gate);
        match result.and_then(|result| Some((result, result.one_sided?))) {
            Some((result, bounds)) => {
                let within = bounds[0] > -half && bounds[1] < half;
                // With few rounds, no difference can reach this significance. So a difference that is proven to exceed
                // the whole threshold always counts.
                let gross = bounds[0] > 2.0 * half || bounds[1] < -2.0 * half;
                if gross || (result.p_equal.is_some_and(|p| p < each) && !within) {
                    unequal.push(inequality(run, result, bounds));
                }
            }
            None => unknown.push(format!(
                "the two identical arms cannot be compared on {}: there are {} usable rounds; a confidence bound needs {}",
                gate.label(),
                result.map_or(0, |result| result.rounds),
                rounds_for_bound(run)
            )),
        }
    }
    if !unequal.is_empty() {
        return (Verdict::Invalid, unequal);
    }
    if !unknown.is_empty() {
        return (Verdict::Inconclusive, unknown);
    }
    (Verdict::Pass, Vec::new())
}

/// Formats the reason for a gate on which the identical arms differ.
fn inequality(run: &Run, result: &Comparison, bounds: [f64; 2]) -> String {
    let step = quantum(run.noise_floor_pct.get(&result.metric).copied());
    let change = |harm| change_pct(result.metric, harm);
    format!(
        "the two identical arms differ significantly on {}, by {} {}: something other than the offline work changes between \
         blocks; look for programs that start and stop on this machine, and measure again",
        result.metric.label(),
        signed_pct(change(result.harm_pct), step),
        brackets(bounds.map(change), step)
    )
}

/// Returns a note if the run does not prove that offline work harms the service without isolation.
pub(super) fn about_contention(run: &Run, gates: &[Metric]) -> Option<String> {
    let Some(contended) = run.arm_with(Role::Contended) else {
        return Some("the run has no contended arm, so it cannot show what isolation improves".to_owned());
    };
    let results: Vec<&Comparison> =
        gates.iter().filter_map(|&gate| against_baseline(run, &contended.name, gate)).collect();
    let harmless =
        |r: &&Comparison| r.one_sided.is_some_and(|[_, hi]| hi < run.design.threshold_of(r.metric));
    if !results.is_empty() && results.iter().all(harmless) {
        return Some("even without isolation, offline work harms the service by less than the thresholds: isolation has nothing to \
             remove".to_owned());
    }
    if results.iter().any(|result| proven_harmful(result, &run.design)) {
        return None;
    }
    Some(
        "the run does not prove that offline work harms the service without isolation, so it cannot show what isolation \
         improves"
            .to_owned(),
    )
}

/// Returns notes that do not depend on the verdict.
pub(super) fn notes(run: &Run) -> Vec<String> {
    let mut notes = run.caveats.clone();
    notes.extend(run.limited.iter().cloned());
    if run.design.lateness == LatenessRule::WholeBlock && run.design.offered_per_s.is_some() {
        notes.push(
            "this record is judged by the rule under which it was made: a block is invalid if the load generator was late at \
             its P99 (`lab report --by-new-rules` judges each percentile by itself)"
                .to_owned(),
        );
    }
    for arm in &run.arms {
        if let Some((driver, why)) = arm.policy.as_ref().and_then(|p| Some((&p.driver, p.weak.as_ref()?))) {
            notes.push(format!("arm {}: mechanism {driver} gives only weak protection: {why}", arm.name));
        }
    }
    notes.extend(health::without_isolation(run));
    let rounds: BTreeSet<u32> = run.blocks.iter().map(|block| block.round).collect();
    let looked = run.design.looks.contains(&run.rounds_begun());
    let deaths = run.blocks.iter().filter(|block| block.online_crashed).count();
    let short = rounds.len() < run.design.rounds as usize && !looked;
    if short && deaths > 0 {
        let (done, planned) = (rounds.len(), run.design.rounds);
        notes.push(format!(
            "the service crashed in {deaths} blocks, and the run ended after {done} of {planned} rounds"
        ));
    } else if short {
        notes.push(format!(
            "only {} of {} planned rounds were run; if a run is stopped because its results look good, more than 5 % of verdicts are \
             wrong",
            rounds.len(),
            run.design.rounds
        ));
    }
    let invalid = run.blocks.iter().filter(|block| !block.valid).count();
    if invalid > 0 {
        notes.push(format!("{invalid} of {} blocks are invalid and do not count", run.blocks.len()));
    }
    notes.extend(left_out(run));
    notes
}

/// Returns a note for each interim analysis after which arms were no longer measured.
fn left_out(run: &Run) -> Vec<String> {
    let begun = run.rounds_begun();
    let mut after: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    if run.design.allotted.is_some() {
        for arm in &run.arms {
            let measured = run.measured_rounds(&[&arm.name]);
            let look = run.design.looks.iter().find(|look| measured <= **look && **look < begun);
            if let Some(look) = look {
                after.entry(*look).or_default().push(&arm.name);
            }
        }
    }
    let said = |(look, arms): (u32, Vec<&str>)| {
        let verb = if arms.len() == 1 { "was" } else { "were" };
        format!(
            "{} {verb} measured in the first {look} of {begun} rounds only: nothing that was open then depends on them",
            sentence_list(&arms)
        )
    };
    after.into_iter().map(said).collect()
}
