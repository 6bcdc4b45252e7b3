//! The settings in force: the result of the last round (one pass of plan and apply), and whether the next round is due.

use crate::controllers::Wants;
use crate::view;
use commensal_core::actual::Capabilities;
use commensal_core::control::weights::WeightInput;
use commensal_core::group::GroupName;
use commensal_host::Host;
use commensal_reconcile::{Planned, Round, siblings};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum interval between rounds that are not triggered by a change.
const ROUND_EVERY: Duration = Duration::from_secs(10);
/// Interval between rounds without a trigger, as a multiple of the last round's duration. The result is limited to the
/// range from [`ROUND_EVERY`] to [`ROUND_AT_LEAST`].
const ROUND_SHARE: u32 = 5_000;
/// Maximum interval between rounds.
const ROUND_AT_LEAST: Duration = Duration::from_secs(300);
/// Minimum interval between two returns of freed memory to the kernel.
const TRIM_EVERY: Duration = Duration::from_secs(60);
/// Interval between surveys of the machine's hardware and mounts, which notice hot-plugged CPUs and newly mounted
/// controllers.
const SURVEY_EVERY: Duration = Duration::from_secs(60);
/// Interval between surveys that test mechanisms in scratch groups, once two such surveys had the same results. A change on
/// which the results depend, such as a new mount, causes a test earlier.
const TEST_EVERY: Duration = Duration::from_secs(600);
/// Interval before the next survey, if the kernel refused something in the last one for a reason that may be temporary;
/// doubled each time.
const SURVEY_AGAIN: Duration = Duration::from_secs(5);

/// Whether the desired settings are in force, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// Something has changed, or the last round was incomplete.
    #[default]
    Unsettled,
    /// Members have changed. The next round is followed by another one, because new members appear in one hierarchy
    /// after another.
    OnceMore,
    /// The last round was complete.
    Settled,
    /// The user paused the agent: it writes nothing.
    Paused,
}

/// The work that is due in a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing is due in this tick.
    No,
    /// Apply new decisions of the controllers. Nothing else has changed.
    Decided,
    /// Put the groups in force on cgroups that have come and gone. Nothing else has changed but the controllers' decisions.
    News,
    /// Make a complete round.
    Whole,
}

/// The settings in force: the plan of the last round, its outcome, and whether another round is due.
pub(super) struct Actuation {
    pub phase: Phase,
    /// Result of the last round, with the plan that is in force.
    pub last: Option<Round>,
    /// Facts derived from the plan of the last round.
    pub facts: PlanFacts,
    pub outcome: RoundOutcome,
    pub surveys: Surveys,
    trimming: Trimming,
    /// When the agent first found that another process holds the machine lock; `None` if the agent could take the lock
    /// last time.
    pub locked_out: Option<Instant>,
    /// Number of the configuration, and decisions of the controllers, when the loop last checked whether a round is
    /// due.
    checked: Option<(u64, Wants)>,
}

/// Facts derived from a plan that every tick needs.
#[derive(Default)]
pub(super) struct PlanFacts {
    /// Whether the class of every offline group is enforced on all its members.
    pub yields: bool,
    /// The parts of the groups' snapshots that change only with a round.
    pub fixed: view::Fixed,
    /// Siblings of online groups and their weights; empty if `[agent] weights` is `false`.
    pub beside: BTreeMap<GroupName, WeightInput>,
}

impl PlanFacts {
    /// Derives the facts. `weights` is the setting `[agent] weights`.
    pub fn of(host: &mut dyn Host, planned: &Planned, weights: bool) -> PlanFacts {
        let beside = if weights { siblings::of(host, planned) } else { BTreeMap::new() };
        let yields = planned.plan.yields(&planned.desired);
        PlanFacts { yields, fixed: view::fixed(planned), beside }
    }
}

/// When the last round was made, and what it left to do.
#[derive(Default)]
pub(super) struct RoundOutcome {
    /// When the last round ended; `None` before the first one.
    at: Option<Instant>,
    took: Duration,
    pub problems: Vec<String>,
    /// When a refused step may be retried (ms on the loop's clock); `None` if other work is left as well.
    again_ms: Option<u64>,
}

impl RoundOutcome {
    /// Time since the last round; `None` before the first one.
    pub fn ago(&self) -> Option<Duration> {
        self.at.map(|at| at.elapsed())
    }

    /// Whether the last round was so long ago that another one is due without a trigger.
    fn is_old(&self) -> bool {
        let every = (self.took * ROUND_SHARE).clamp(ROUND_EVERY, ROUND_AT_LEAST);
        self.at.is_none_or(|at| at.elapsed() >= every)
    }
}

/// When the machine was last surveyed (hardware, mounts, kernel features), and whether the result can be trusted.
pub(super) struct Surveys {
    at: Instant,
    /// When a survey last tested mechanisms in scratch groups.
    tested_at: Instant,
    /// Whether the last two tests had the same results.
    confirmed: bool,
    /// Number of consecutive surveys in which the kernel refused something for a reason that may be temporary.
    doubts: u32,
}

impl Surveys {
    /// The machine has just been surveyed, at the agent's start.
    fn first() -> Surveys {
        let now = Instant::now();
        Surveys { at: now, tested_at: now, confirmed: false, doubts: 0 }
    }

    /// Records a survey without tests that began at `at`.
    pub fn refreshed(&mut self, at: Instant) {
        self.at = at;
    }

    /// Records a survey with tests that began at `at`, with the results of the previous tests and of these.
    pub fn tested(&mut self, at: Instant, before: &Capabilities, now: &Capabilities) {
        (self.at, self.tested_at, self.confirmed) = (at, at, before == now);
        self.doubts = if now.doubtful { self.doubts.saturating_add(1) } else { 0 };
    }

    /// Whether a `doubtful` survey may be repeated: its back-off has expired.
    pub fn may_pass(&self, doubtful: bool) -> bool {
        let pause = SURVEY_AGAIN.saturating_mul(1 << self.doubts.min(10)).min(ROUND_AT_LEAST);
        doubtful && self.at.elapsed() >= pause
    }

    /// Whether it is time for the next survey.
    pub fn are_due(&self, doubtful: bool) -> bool {
        self.at.elapsed() >= SURVEY_EVERY || self.may_pass(doubtful)
    }

    /// Whether the next survey must test mechanisms. One test is not trusted for long: a call may have failed by chance.
    pub fn tests_are_due(&self, doubtful: bool) -> bool {
        doubtful || !self.confirmed || self.tested_at.elapsed() >= TEST_EVERY
    }
}

/// Returns freed memory to the kernel. A round allocates much more memory than it keeps.
#[derive(Default)]
struct Trimming {
    /// When memory was last returned.
    at: Option<Instant>,
    /// Whether there was a round after memory was last returned.
    rounds: bool,
}

impl Trimming {
    fn trim(&mut self) {
        if self.rounds && self.at.is_none_or(|at| at.elapsed() >= TRIM_EVERY) {
            (self.rounds, self.at) = (false, Some(Instant::now()));
            commensal_host::trim_memory();
        }
    }
}

impl Actuation {
    /// Creates the state at the agent's start: nothing is in force, and the machine has just been surveyed.
    pub fn new() -> Actuation {
        Actuation {
            phase: Phase::default(),
            last: None,
            facts: PlanFacts::default(),
            outcome: RoundOutcome::default(),
            surveys: Surveys::first(),
            trimming: Trimming::default(),
            locked_out: None,
            checked: None,
        }
    }

    /// The plan of the last round.
    pub fn planned(&self) -> Option<&Planned> {
        self.last.as_ref().map(|round| &round.planned)
    }

    /// Requests another round after the next one: new members may appear during that one.
    pub fn ask_once_more(&mut self) {
        if self.phase != Phase::Paused {
            self.phase = Phase::OnceMore;
        }
    }

    /// Requests a round. If the agent is paused, it stays paused.
    pub fn unsettle(&mut self) {
        self.outcome.again_ms = None;
        if self.phase == Phase::Settled {
            self.phase = Phase::Unsettled;
        }
    }

    /// Whether the last round left only refused steps to retry, and their back-off has not expired.
    pub fn waits(&self, now_ms: u64) -> bool {
        self.phase == Phase::Unsettled && self.outcome.again_ms.is_some_and(|again| now_ms < again)
    }

    /// Whether a round is due because the last one was incomplete or was long ago.
    pub fn needs_round(&self, now_ms: u64) -> bool {
        (self.phase != Phase::Settled && !self.waits(now_ms)) || self.outcome.is_old()
    }

    /// The work that is due because the groups or the controllers' decisions have changed since the last call.
    /// `generation` is the number of the configuration in force.
    pub fn due_to_changes(&mut self, generation: u64, wants: &Wants) -> Due {
        let due = match &self.checked {
            Some((before, decided)) if *before == generation => match decided == wants {
                true => return Due::No,
                false => Due::Decided,
            },
            _ => Due::Whole,
        };
        self.checked = Some((generation, wants.clone()));
        due
    }

    /// Stores the results of a round that ended at `at` and took `took`.
    pub fn rounded(&mut self, mut round: Round, facts: PlanFacts, (at, took): (Instant, Duration)) {
        // After a round that created or moved something, another round must read the result.
        let done = round.problems.is_empty() && round.current;
        self.phase = match self.phase {
            Phase::Paused => Phase::Paused,
            Phase::Unsettled | Phase::Settled if done => Phase::Settled,
            _ => Phase::Unsettled,
        };
        let problems = std::mem::take(&mut round.problems);
        self.outcome = RoundOutcome { at: Some(at), took, problems, again_ms: round.again_ms };
        (self.last, self.facts) = (Some(round), facts);
        self.trimming.rounds = true;
    }

    /// Stores the results of a round that only continued the last one.
    pub fn continued(&mut self, mut round: Round, facts: PlanFacts) {
        if round.problems.is_empty() {
            self.phase = Phase::Settled;
        }
        self.outcome.problems = std::mem::take(&mut round.problems);
        (self.last, self.facts) = (Some(round), facts);
        self.trimming.rounds = true;
    }

    /// Returns freed memory to the kernel once the settings are in force.
    pub fn trim(&mut self) {
        if self.phase == Phase::Settled {
            self.trimming.trim();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_are_tested_rarely_only_after_two_equal_results() {
        let (calm, now) = (Capabilities::default(), Instant::now());
        let other = Capabilities { cgroup_obstacle: Some("none".to_owned()), ..Capabilities::default() };
        let doubtful = Capabilities { doubtful: true, ..Capabilities::default() };
        let mut surveys = Surveys::first();
        assert!(surveys.tests_are_due(false));
        for (before, result, due) in
            [(&calm, &calm, false), (&calm, &other, true), (&other, &other, false), (&calm, &doubtful, true)]
        {
            surveys.tested(now, before, result);
            surveys.refreshed(now);
            assert_eq!(surveys.tests_are_due(result.doubtful), due, "{result:?}");
        }
        surveys.tested(now, &calm, &calm);
        surveys.tested_at = now.checked_sub(TEST_EVERY).unwrap();
        assert!(surveys.tests_are_due(false));
    }
}
