//! The result of a run in one sentence: how much slower the online service is with isolation of the offline work, how
//! much slower without, and for what the service waited. An arm is one of the ways of running the service that the run
//! compares; a gate is a metric that determines the verdict.

use crate::analysis::lateness::{Culprit, late};
use crate::format::{change_pct, latency, signed_pct};
use crate::loadgen::{LATE, NOT_KEPT_UP};
use crate::record::Verdict;
use crate::record::{Arm, Block, Comparison, Metric, OverObjective, Role, Run};
use crate::stats::median;
use crate::verdict::{against_baseline, against_strictest, beside_gates, disturbed};

/// Formats the text after the verdict on the first line of a report; `None` if the run judged no isolated arm. With
/// several isolated arms, the text says how many pass, and describes the arm that determined the verdict.
pub fn answer(run: &Run) -> Option<String> {
    let verdict = run.verdict?;
    let arm = decisive(run, verdict)?;
    let with = match verdict {
        Verdict::Pass => held(run, arm)?,
        Verdict::Fail => failed(run, arm)?,
        Verdict::Inconclusive => open(run, arm)?,
        Verdict::Invalid | Verdict::Broken => return None,
    };
    let each = counted(run).map(|each| format!("{each}; ")).unwrap_or_default();
    let (cold, left) = (left_out(run).unwrap_or_default(), undecided(run, arm));
    let limited: String = run.limited.iter().map(|limit| format!("; {limit}")).collect();
    Some(format!("{each}{with}{cold}{}{left}{limited}", without(run).unwrap_or_default()))
}

/// Formats which baseline is left out, and why; `None` if both count.
fn left_out(run: &Run) -> Option<String> {
    let disturbed = disturbed(run)?;
    Some(format!(
        " (the service alone on CPUs that may idle does not count: the hypervisor took {:.2} CPUs from it, and {:.2} from CPUs that \
         never idle)",
        disturbed.cold_cpus, disturbed.warm_cpus
    ))
}

/// Formats what nobody asked for and the run did not decide; empty if there is nothing.
fn undecided(run: &Run, arm: &Arm) -> String {
    let open = |part: &crate::verdict::Part| part.verdict == Verdict::Inconclusive && !part.asked;
    let about = format!("arm {}: ", arm.name);
    let open =
        beside_gates(run, arm).into_iter().filter(open).filter_map(|part| part.reasons.into_iter().next());
    open.map(|why| format!("; not decided: {}", why.strip_prefix(&about).unwrap_or(&why))).collect()
}

fn isolated(run: &Run) -> impl Iterator<Item = &Arm> {
    run.arms.iter().filter(|arm| arm.role == Role::Isolated)
}

/// Returns the isolated arm that determines the run's verdict. If several arms have that verdict, returns the arm that
/// is closest to a threshold, or farthest beyond a threshold.
fn decisive(run: &Run, verdict: Verdict) -> Option<&Arm> {
    let room = |arm: &Arm| {
        let each = bounds(run, arm).into_iter();
        each.map(|(result, [lo, hi])| {
            let bound = if verdict == Verdict::Fail { lo } else { hi };
            bound / run.design.threshold_of(result.metric)
        })
        .fold(f64::NEG_INFINITY, f64::max)
    };
    let its = |arm: &&Arm| run.arm_verdicts.get(&arm.name).is_none_or(|own| *own == verdict);
    // Of arms at equal distance, the first one is used.
    isolated(run).filter(its).reduce(|best, arm| if room(arm) > room(best) { arm } else { best })
}

/// Formats how many isolated arms pass: `2 of 3 isolated arms pass (cpu.idle, cpuset); undecided: weight`; `None` for a
/// single arm.
fn counted(run: &Run) -> Option<String> {
    let of = |verdict| -> Vec<&str> {
        let its = |arm: &&Arm| run.arm_verdicts.get(&arm.name) == Some(&verdict);
        isolated(run).filter(its).map(mechanism).collect()
    };
    let (hold, open, fail) = (of(Verdict::Pass), of(Verdict::Inconclusive), of(Verdict::Fail));
    let all = hold.len() + open.len() + fail.len();
    let mut said = match hold.len() {
        0 => format!("none of {all} isolated arms passes"),
        1 => format!("1 of {all} isolated arms passes ({})", hold[0]),
        many => format!("{many} of {all} isolated arms pass ({})", hold.join(", ")),
    };
    for (names, how) in [(open, "undecided"), (fail, "too much harm")] {
        if !names.is_empty() {
            said += &format!("; {how}: {}", names.join(", "));
        }
    }
    (all > 1).then_some(said)
}

/// Returns the name of the isolation mechanism, which is part of an arm's name.
fn mechanism(arm: &Arm) -> &str {
    arm.name.strip_prefix("isolated:").unwrap_or(&arm.name)
}

/// Formats `with isolation`, or `with` and the mechanism's name if there are several isolated arms.
fn with(run: &Run, arm: &Arm) -> String {
    let several = isolated(run).nth(1).is_some();
    let how = arm.name.strip_prefix("isolated:").filter(|_| several).unwrap_or("isolation");
    format!("with {how}")
}

/// Returns the first reason of an arm's verdict.
fn why<'r>(run: &'r Run, arm: &Arm) -> Option<&'r str> {
    let about = format!("arm {}: ", arm.name);
    run.reasons
        .iter()
        .find_map(|reason| reason.strip_prefix(&about))
        .or(run.reasons.first().map(String::as_str))
}

fn name(metric: Metric) -> String {
    if metric == Metric::P50 { "median".to_owned() } else { metric.label().to_owned() }
}

/// Returns the word for harm: `slower` for latency, `worse` for any other metric.
fn worse(metric: Metric) -> &'static str {
    if metric.quantile().is_some() { "slower" } else { "worse" }
}

/// Formats a percentage with two significant digits, without a percent sign.
fn pct(value: f64) -> String {
    if value.abs() < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Returns the latency gates with the bounds on which the verdict is based, in the order of the design. If no latency
/// gate has bounds, as in a closed loop whose blocks have too few requests, returns the throughput gate.
fn bounds<'a>(run: &'a Run, arm: &Arm) -> Vec<(&'a Comparison, [f64; 2])> {
    let bounded = |gate: &Metric| {
        let result = against_strictest(run, &arm.name, *gate)?;
        Some((result, result.one_sided?))
    };
    let (throughput, latency): (Vec<_>, Vec<_>) =
        run.design.gates.iter().filter_map(bounded).partition(|(result, _)| result.metric == Metric::Qps);
    if latency.is_empty() { throughput } else { latency }
}

/// Converts harm to the percentage that is printed: the loss of throughput, or the increase of any other metric.
fn shown(metric: Metric, harm_pct: f64) -> f64 {
    if metric.more_is_better() { -change_pct(metric, harm_pct) } else { harm_pct }
}

/// Formats `your service's median is at most 2.1 % slower than alone (bound 5 %)`, with all gates.
fn at_most(run: &Run, arm: &Arm, results: &[(&Comparison, [f64; 2])]) -> String {
    let vs = if disturbed(run).is_some() { "alone on CPUs that never idle" } else { "alone" };
    let each: Vec<String> = results
        .iter()
        .map(|(result, [_, hi])| {
            let theta = run.design.threshold_of(result.metric);
            let how = match hi {
                hi if *hi <= 0.0 => format!("not {}", worse(result.metric)),
                hi => format!("at most {} % {}", pct(*hi), worse(result.metric)),
            };
            format!("{} is {how} than {vs} (bound {theta} %)", name(result.metric))
        })
        .collect();
    format!("{} your service's {}", with(run, arm), each.join(", its "))
}

/// Returns whether the comparison is with the service alone on CPUs that never idle (the warm arm).
fn is_warm(run: &Run, result: &Comparison) -> bool {
    run.arm_with(Role::Warm).is_some_and(|warm| warm.name == result.vs)
}

/// Returns a description of the arm with which the service is compared.
fn alone(run: &Run, result: &Comparison) -> &'static str {
    if is_warm(run, result) { "alone on CPUs that never idle" } else { "alone" }
}

/// Formats ` (against alone on CPUs that never idle)` if the comparison is with the warm arm; otherwise empty.
fn warm(run: &Run, result: &Comparison) -> &'static str {
    if is_warm(run, result) { " (against alone on CPUs that never idle)" } else { "" }
}

/// Formats ` (against alone on CPUs that may idle: −6.8 %)` if the comparison is with the warm arm; otherwise empty.
fn as_it_is(run: &Run, result: &Comparison) -> String {
    let cold = against_baseline(run, &result.arm, result.metric).filter(|_| is_warm(run, result));
    let change = cold.map(|cold| change_pct(cold.metric, cold.harm_pct));
    change
        .map(|change| format!(" (against alone on CPUs that may idle: {})", signed_pct(change, 0.1)))
        .unwrap_or_default()
}

fn held(run: &Run, arm: &Arm) -> Option<String> {
    let results = bounds(run, arm);
    let tail = run.over_objective.iter().find(|tail| tail.arm == arm.name).and_then(|one| tail(run, one));
    (!results.is_empty()).then(|| format!("{}{}", at_most(run, arm, &results), tail.unwrap_or_default()))
}

/// Formats the share of requests above the latency objective. Returns `None` unless the user defined an objective, or
/// the share is significantly higher than for the service alone.
fn tail(run: &Run, tail: &OverObjective) -> Option<String> {
    let [lo, _] = tail.one_sided?;
    let but = if lo > 0.0 { "but " } else { "" };
    (lo > 0.0 || run.design.slo.is_some()).then(|| {
        format!(
            "; {but}{:.2} % of its requests take longer than {} ({:.2} % when it runs alone)",
            tail.arm_pct,
            latency(tail.objective_us),
            tail.alone_pct
        )
    })
}

fn failed(run: &Run, arm: &Arm) -> Option<String> {
    let results = bounds(run, arm);
    let beyond = |(result, [lo, _]): &&(&Comparison, [f64; 2])| *lo >= run.design.threshold_of(result.metric);
    let worst = results.iter().filter(beyond).max_by(|a, b| a.1[0].total_cmp(&b.1[0]));
    if let Some((result, [lo, _])) = worst {
        let theta = run.design.threshold_of(result.metric);
        return Some(format!(
            "{} your service's {} is at least {} % {} than {}; {theta} % is allowed{}",
            with(run, arm),
            name(result.metric),
            pct(*lo),
            worse(result.metric),
            alone(run, result),
            as_it_is(run, result)
        ));
    }
    // No latency gate has failed, so another criterion has; the reasons name this criterion.
    let why = why(run, arm)?;
    let holds = |(result, [_, hi]): &&(&Comparison, [f64; 2])| *hi < run.design.threshold_of(result.metric);
    let held: Vec<_> = results.iter().filter(holds).copied().collect();
    Some(if held.is_empty() {
        format!("{}: {why}", with(run, arm))
    } else {
        format!("{}; but {why}", at_most(run, arm, &held))
    })
}

/// Formats the bound that the run reached, and how many more measurements would decide.
fn open(run: &Run, arm: &Arm) -> Option<String> {
    let results = bounds(run, arm);
    let undecided =
        |(result, [_, hi]): &&(&Comparison, [f64; 2])| *hi >= run.design.threshold_of(result.metric);
    let Some((result, [_, hi])) = results.iter().filter(undecided).max_by(|a, b| {
        let room = |one: &&(&Comparison, [f64; 2])| one.1[1] / run.design.threshold_of(one.0.metric);
        room(a).total_cmp(&room(b))
    }) else {
        let why = why(run, arm)?;
        return (!results.is_empty()).then(|| format!("{}; undecided: {why}", at_most(run, arm, &results)));
    };
    let theta = run.design.threshold_of(result.metric);
    let (metric, decided) =
        (name(result.metric), results.iter().filter(|one| !undecided(one)).copied().collect::<Vec<_>>());
    let first = if decided.is_empty() {
        format!(
            "{} harm to your service's {metric} is below {} %{}",
            with(run, arm),
            pct(*hi),
            warm(run, result)
        )
    } else {
        let decided = at_most(run, arm, &decided);
        format!("{decided}; harm to its {metric} is below {} %{}", pct(*hi), warm(run, result))
    };
    let takes = minutes(run, result, theta)
        .map_or(format!("at this noise, no practical run decides at {theta} %"), |text| {
            format!("deciding at {theta} % takes about {text}")
        });
    Some(format!("{first}; {takes}"))
}

/// Estimates the duration of a run that would decide, from the duration of this run.
fn minutes(run: &Run, result: &Comparison, theta: f64) -> Option<String> {
    let rounds = crate::verdict::rounds_to_decide(result, theta, run.design.gates.len())?;
    let end = run.blocks.iter().filter_map(|block| block.at_s).fold(0.0, f64::max);
    let each = end / f64::from(run.rounds_begun().max(1));
    let minutes = (f64::from(rounds) * each / 60.0).ceil();
    (minutes > 0.0).then(|| format!("{minutes:.0} minutes"))
}

/// Formats `; without it P90 is 110 % [101, 119] worse`, for the gate with the largest proven harm.
fn without(run: &Run) -> Option<String> {
    let contended = run.arm_with(Role::Contended)?;
    let harms = run.design.gates.iter().filter_map(|gate| against_baseline(run, &contended.name, *gate));
    let (throughput, latency): (Vec<_>, Vec<_>) = harms
        .filter_map(|result| Some((result, result.ci95?)))
        .partition(|(result, _)| result.metric == Metric::Qps);
    let bounded = if latency.is_empty() { throughput } else { latency };
    if bounded.is_empty() {
        return Some("; too few rounds to bound the harm without isolation".to_owned());
    }
    let proven = bounded.iter().filter(|(_, [lo, _])| *lo > 0.0);
    Some(match proven.max_by(|a, b| a.0.harm_pct.total_cmp(&b.0.harm_pct)) {
        Some((result, [lo, hi])) => format!(
            "; without it {} is {} % [{}, {}] worse",
            name(result.metric),
            pct(shown(result.metric, result.harm_pct)),
            pct(shown(result.metric, *lo)),
            pct(shown(result.metric, *hi))
        ),
        None => not_proven(run, &bounded),
    })
}

/// Formats what is not proven of the harm without isolation: the interval of the gate with the largest upper bound, or that
/// there is none above the threshold. What the probe blames on offline work is proven, whatever the latency shows.
fn not_proven(run: &Run, bounded: &[(&Comparison, [f64; 2])]) -> String {
    let over = |one: &&(&Comparison, [f64; 2])| one.1[1] / run.design.threshold_of(one.0.metric);
    let Some((result, [lo, hi])) = bounded.iter().max_by(|a, b| over(a).total_cmp(&over(b))) else {
        return String::new();
    };
    let theta = run.design.threshold_of(result.metric);
    let harm = if *hi < theta {
        format!("; without it no gate is harmed by more than {} % either", pct(hi.max(0.0)))
    } else {
        format!(
            "; harm without it is not proven ({} [{}, {}] %)",
            name(result.metric),
            pct(shown(result.metric, *lo)),
            pct(shown(result.metric, *hi))
        )
    };
    let blamed =
        run.blame.iter().find(|blame| run.arm_with(Role::Contended).is_some_and(|arm| arm.name == blame.arm));
    let blamed = blamed.filter(|blame| blame.verdict == Verdict::Fail);
    let blamed = blamed.map(|blame| {
        format!(
            ", but the service waits {} ms per CPU-second for offline work",
            pct(blame.offline_ms_per_cpu_s)
        )
    });
    harm + &blamed.unwrap_or_default()
}

/// Formats `waits of the service, ms per CPU-second: for offline work 682 without isolation, 9 with it; for the load
/// generator, other programs and the kernel 4`. The numbers are waits of online threads per second of online CPU time.
pub fn waits(run: &Run) -> Option<String> {
    let per_cpu_second = |role: Role, of: fn(&crate::record::WaitByKind) -> f64| {
        let arm = run.arm_with(role)?;
        let seen = run.blocks_of(&arm.name).filter_map(|block| block.blame.as_ref());
        let each: Vec<f64> =
            seen.filter(|seen| seen.run_s > 0.0).map(|seen| of(&seen.wait_s) / seen.run_s * 1e3).collect();
        median(&each)
    };
    let offline = |role| per_cpu_second(role, |wait| wait.offline);
    let with = offline(Role::Isolated)?;
    let others = per_cpu_second(Role::Isolated, |wait| wait.other + wait.kernel + wait.interrupts)?;
    let without =
        offline(Role::Contended).map(|ms| format!("{} without isolation, ", pct(ms))).unwrap_or_default();
    Some(format!(
        "waits of the service, ms per CPU-second: for offline work {without}{} with it; for the load generator, other programs and the kernel {}",
        pct(with),
        pct(others)
    ))
}

/// Formats the steal time of each arm in CPUs; `None` if there was no steal. Steal time matters because it affects the
/// far tail of latency.
pub fn stolen(run: &Run) -> Option<String> {
    let each: Vec<(&str, f64)> = run
        .arms
        .iter()
        .filter_map(|arm| {
            let seen: Vec<f64> = run.blocks_of(&arm.name).filter_map(|block| block.cpu.steal).collect();
            Some((arm.name.as_str(), crate::stats::mean(&seen)?))
        })
        .collect();
    let said: Vec<String> = each.iter().map(|(arm, mean)| format!("{arm} {mean:.2}")).collect();
    each.iter().any(|(_, mean)| *mean >= 0.005).then(|| format!("steal time, CPUs: {}", said.join(", ")))
}

/// Formats the CPU use of programs that are not part of the experiment. This use is only reported; it makes no block
/// invalid.
pub fn foreign(run: &Run) -> Option<String> {
    let used: Vec<f64> = run.blocks.iter().filter_map(|block| block.cpu.outside()).collect();
    let steal: Vec<f64> = run.blocks.iter().filter_map(|block| block.cpu.steal).collect();
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let stolen = crate::stats::mean(&steal)
        .map(|mean| format!("; steal time was {mean:.2} CPUs (at most {:.2})", most(&steal)))
        .unwrap_or_default();
    crate::stats::mean(&used).map(|mean| {
        format!(
            "programs outside the experiment used {mean:.2} CPUs (at most {:.2} in a block){stolen}",
            most(&used)
        )
    })
}

/// Formats what an INVALID or BROKEN run measured nevertheless, what was wrong, and what to do about the cause. Empty
/// for any other verdict.
pub fn anyway(run: &Run) -> Vec<String> {
    let Some(Verdict::Invalid | Verdict::Broken) = run.verdict else { return Vec::new() };
    let mut lines = Vec::new();
    let each: Vec<String> = isolated(run).filter_map(|arm| reached(run, arm)).take(3).collect();
    if !each.is_empty() {
        let harm = without(run).filter(|harm| harm.contains("worse")).unwrap_or_default();
        lines.push(format!("measured nevertheless, but not a valid result: {}{harm}", each.join("; ")));
    }
    lines.extend(run.reasons.first().map(|why| format!("what was wrong: {why}")));
    lines.push(format!("what to do: {}", way_out(run)));
    lines
}

/// Formats the bounds that the measurements of an arm reached: `harm to your service's median is below 4.2 %, to its
/// P90 below 9.1 %`.
fn reached(run: &Run, arm: &Arm) -> Option<String> {
    let each: Vec<String> = bounds(run, arm)
        .iter()
        .map(|(result, [_, hi])| format!("{} below {} %", name(result.metric), pct(hi.max(0.0))))
        .collect();
    let several = isolated(run).nth(1).is_some();
    let of = if several { format!("arm {}: ", arm.name) } else { String::new() };
    (!each.is_empty()).then(|| format!("{of}harm to your service's {}", each.join(", to its ")))
}

/// Returns advice on the cause of INVALID or BROKEN. This function checks the causes in the same order as the verdict
/// does.
fn way_out(run: &Run) -> &'static str {
    let all_hold = run
        .arms
        .iter()
        .flat_map(|arm| &arm.policy)
        .all(|policy| policy.applied.iter().all(|knob| knob.holds()));
    let alone = |arm: &&Arm| matches!(arm.role, Role::Baseline | Role::Baseline2 | Role::PolicyOnly);
    let fails = |arm: &Arm| {
        let (asked, failed) = run.blocks_of(&arm.name).fold((0.0, 0.0), |(asked, failed), block| {
            (asked + block.load.offered_requests as f64, failed + block.load.failed() as f64)
        });
        crate::verdict::service_failed(run, arm) || failed > asked * 0.01
    };
    let fails_alone = run.arms.iter().filter(alone).any(fails);
    let bad: Vec<_> = run.blocks.iter().filter(|block| !block.valid).collect();
    let begins =
        |block: &Block, with: &str| block.invalid_reason.as_deref().is_some_and(|why| why.starts_with(with));
    let by_block: Vec<&Block> = bad.iter().copied().filter(|block| begins(block, LATE)).collect();
    let slow: Vec<&Block> = bad.iter().copied().filter(|block| begins(block, NOT_KEPT_UP)).collect();
    let gates = run.design.gates.iter();
    let by_gate: Vec<&Block> =
        gates.flat_map(|gate| run.arms.iter().flat_map(|arm| late(run, &arm.name, *gate).0)).collect();
    let threads = f64::from(run.machine.threads);
    if !all_hold {
        "find the program that also writes these files (`commensal doctor` lists such managers), stop it, and run again"
    } else if fails_alone {
        "repair the service or lower its load (--load): it fails even without offline work"
    } else if run.verdict == Some(Verdict::Broken) {
        "read the service's log for the cause; its command line is at the end of the HTML report"
    } else if bad.len() * 5 > run.blocks.len() && by_block.len() * 2 > bad.len() {
        Culprit::of(&by_block, threads).way_out()
    } else if by_gate.len() * 5 > run.blocks.len() {
        Culprit::of(&by_gate, threads).way_out()
    } else if bad.len() * 5 > run.blocks.len() && slow.len() * 2 > bad.len() {
        match Culprit::of(&slow, threads) {
            // The generator sent its requests in time.
            Culprit::Generator => {
                "lower the load (--load), or give the service more CPU time: it did not keep up even alone"
            }
            culprit => culprit.way_out(),
        }
    } else if bad.len() * 5 > run.blocks.len() {
        "remove the most frequent cause of invalid blocks, and run again; `commensal lab doctor` checks this machine"
    } else {
        "stop programs that start and exit on this machine by themselves, or make the run longer (--for, --rounds)"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude;
    use crate::fixture;

    /// With several isolated arms, the sentence says how many pass, and then describes the arm that determined the
    /// verdict.
    // promise 40
    #[test]
    fn several_arms_have_one_sentence() {
        let said = |harms: [f64; 2]| {
            let run = fixture::two_isolated(harms);
            (run.verdict.unwrap(), answer(&run).unwrap())
        };
        let (verdict, text) = said([0.0, 0.0]);
        assert_eq!(verdict, Verdict::Pass);
        assert!(text.starts_with("2 of 2 isolated arms pass (isolated, quota=80%); with "), "{text}");
        assert!(text.contains("; without it "), "{text}");
        let (verdict, text) = said([0.0, 0.3]);
        assert_eq!(verdict, Verdict::Fail);
        assert!(
            text.starts_with(
                "1 of 2 isolated arms passes (isolated); too much harm: quota=80%; with quota=80% your service's "
            ),
            "{text}"
        );
        assert!(text.contains("slower than alone; 5 % is allowed"), "{text}");
        let (verdict, text) = said([0.3, 0.6]);
        assert_eq!(verdict, Verdict::Fail);
        assert!(
            text.starts_with(
                "none of 2 isolated arms passes; too much harm: isolated, quota=80%; with quota=80% "
            ),
            "{text}"
        );
        let (verdict, text) = said([0.048, 0.0]);
        assert_eq!(verdict, Verdict::Inconclusive);
        assert!(
            text.starts_with("1 of 2 isolated arms passes (quota=80%); undecided: isolated; with isolation "),
            "{text}"
        );
    }

    /// A service that is slower than on CPUs that never idle may still be faster than on CPUs that may idle.
    // promise 40
    #[test]
    fn the_sentence_says_which_baseline() {
        let mut run = fixture::concluded(12, [0.0, 0.5, -0.07], 0.005);
        run.arms.push(Arm { name: "warm".into(), role: Role::Warm, policy: None, offline: None });
        let of = |result: &&Comparison| {
            result.arm == "isolated" && result.vs == "baseline" && result.metric == Metric::P50
        };
        let cold = run.results.iter().find(of).cloned().unwrap();
        let mut check = |bounds, verdict, want: &str| {
            run.results.retain(|result| result.vs != "warm");
            run.results.push(Comparison { vs: "warm".into(), one_sided: Some(bounds), ..cold.clone() });
            run.verdict = Some(verdict);
            run.arm_verdicts.insert("isolated".into(), verdict);
            let text = answer(&run).unwrap();
            assert!(text.starts_with(want), "{text}");
        };
        check(
            [20.0, 30.0],
            Verdict::Fail,
            "with isolation your service's median is at least 20 % slower than alone on CPUs that never idle; 5 % is \
             allowed (against alone on CPUs that may idle: −7.",
        );
        check(
            [-1.0, 8.0],
            Verdict::Inconclusive,
            "with isolation your service's P90 is not slower than alone (bound 5 %); harm to its median is below 8.0 % \
             (against alone on CPUs that never idle); ",
        );
    }

    /// For every cause of INVALID, the text says what was measured, what was wrong, and what to do about the cause.
    // promise 36
    #[test]
    fn an_invalid_run_still_answers() {
        let check = |change: fn(&mut Run), wrong: &str, help: &str| {
            let mut run = fixture::small_run();
            change(&mut run);
            conclude(&mut run);
            assert!(matches!(run.verdict, Some(Verdict::Invalid | Verdict::Broken)), "{:?}", run.reasons);
            let lines = anyway(&run);
            let text = lines.join("\n");
            assert_eq!(lines.len(), 3, "{text}");
            assert!(
                lines[0].starts_with(
                    "measured nevertheless, but not a valid result: harm to your service's median below"
                ),
                "{text}"
            );
            assert!(lines[1].contains(wrong) && lines[2].contains(help), "{text}");
        };
        let slower = |run: &mut Run| {
            for block in run.blocks.iter_mut().filter(|block| block.arm == "baseline2") {
                block.load.achieved_per_s = block.load.achieved_per_s.map(|per_s| per_s * 0.7);
            }
        };
        check(slower, "the two identical arms differ significantly on QPS", "start and exit");
        check(
            |run| run.arms[3].policy.as_mut().unwrap().applied[0].read = Some("0".into()),
            "cpu.idle of /commensal/offline",
            "also writes these files",
        );
        check(
            |run| {
                run.blocks
                    .iter_mut()
                    .filter(|block| block.arm.starts_with("baseline"))
                    .for_each(|block| block.load.errors = 900)
            },
            "without any offline work",
            "--load",
        );
        // What blocks lack, and how the CPU time was used in them: by the service, by all else, by the hypervisor.
        let stop = "stop other programs, or give the service";
        for (lacking, [online, other, steal], help) in [
            (LATE, [0.3, 0.1, 0.0], "its own schedule"),
            (LATE, [0.25, 1.5, 0.0], stop),
            (LATE, [0.3, 0.1, 0.03], "kvm.halt_poll_ns"),
            (NOT_KEPT_UP, [0.3, 0.1, 0.0], "it did not keep up even alone"),
            (NOT_KEPT_UP, [0.25, 1.5, 0.0], stop),
            (NOT_KEPT_UP, [0.3, 0.1, 0.03], "kvm.halt_poll_ns"),
        ] {
            let mut run = fixture::small_run();
            for block in run.blocks.iter_mut().take(8) {
                (block.valid, block.invalid_reason) = (false, Some(lacking.into()));
                let cpu = &mut block.cpu;
                (cpu.online, cpu.offline, cpu.other, cpu.steal) =
                    (Some(online), None, Some(other), Some(steal));
            }
            conclude(&mut run);
            let lines = anyway(&run);
            assert!(lines.last().unwrap().contains(help), "{lacking} {online} {other} {steal}: {lines:?}");
        }
        let mut good = fixture::small_run();
        conclude(&mut good);
        assert!(anyway(&good).is_empty());
    }
}
