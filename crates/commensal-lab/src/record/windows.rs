//! The plan of a run with short windows: their lengths, the number of rounds, and when the run is analysed.

use super::{Arm, Design, ERROR, MAX_ROUNDS, Role};
use commensal_core::windows::{Turns, sequential, stretch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Plan for short windows: the offline work runs during the whole run, and the run freezes and thaws it to switch arms.
/// All windows of one arm in one round together form that arm's block of the round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Windows {
    /// Length of the measured part of a window, in seconds.
    pub window_s: f64,
    /// Time after each switch that is discarded, in seconds.
    pub guard_s: f64,
    /// Time before the next switch in which due requests are not counted, in seconds: these requests may not finish
    /// before the switch.
    #[serde(default)]
    pub tail_s: f64,
    /// Number of windows of each arm in a round.
    pub per_round: u32,
    /// Length of the measured part of the single window of a contended arm, in seconds. Without isolation, harm takes a
    /// second or two to become steady.
    pub contended_s: f64,
    /// Contended arms are measured in one of this many rounds.
    pub contended_every: u32,
}

impl Windows {
    /// Duration of a switch in addition to the guard time, in seconds: the time to write to the kernel and to read
    /// counters.
    const SWITCH_S: f64 = 0.006;

    /// Maximum length to which a low request rate can extend a window, in seconds.
    const LONGEST_S: f64 = 5.0;

    /// Returns the number of windows of an arm in a round. Contended arms have few windows, because harm without
    /// isolation is large enough to be measured with few.
    #[must_use]
    pub fn turns(&self, role: Role) -> Turns {
        match role {
            Role::Contended => Turns { times: 1, every: self.contended_every },
            _ => Turns { times: self.per_round, every: 1 },
        }
    }

    /// Lengthens the windows so that all windows of an arm in one round together contain `requests` requests, and so
    /// does the single window of a contended arm. Arrivals are random, so about one block in several thousand contains
    /// fewer requests.
    #[must_use]
    pub fn for_load(self, rate_per_s: Option<f64>, requests: u64) -> Windows {
        const ERRORS: f64 = 3.5;
        let Some(rate) = rate_per_s else { return self };
        let takes_s = (requests as f64 + ERRORS * (requests as f64).sqrt()) / rate;
        // The length is rounded up to whole milliseconds for readability.
        let each_s = (takes_s / f64::from(self.per_round.max(1)) * 1e3).ceil() / 1e3;
        let takes_s = (takes_s * 1e3).ceil() / 1e3;
        let window_s = each_s.max(self.window_s).min(Self::LONGEST_S.max(self.window_s));
        let longest_s = self.contended_s.max(2.0 * Self::LONGEST_S);
        let contended_s = takes_s.min(longest_s).max(self.contended_s).max(window_s);
        Windows { window_s, contended_s, ..self }
    }

    /// Returns the length of a block of an arm with this role, with its switches, in seconds.
    #[must_use]
    pub fn block_s(&self, role: Role) -> f64 {
        let around = self.guard_s + self.tail_s + Self::SWITCH_S;
        let length = if role == Role::Contended { self.contended_s } else { self.window_s };
        f64::from(self.turns(role).times) * (length + around)
    }

    /// Returns the average time that an arm with this role takes in a round, in seconds.
    #[must_use]
    pub fn arm_s(&self, role: Role) -> f64 {
        self.block_s(role) / f64::from(self.turns(role).every.max(1))
    }
}

/// The time of a run that measures only what is still open after an interim analysis.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Allotted {
    /// Time that the run should take, in seconds.
    pub budget_s: f64,
    /// Time that it may take if every open question is likely to be decided then, or a harm to be proven, in seconds.
    pub longest_s: f64,
}

/// Factor by which a run may exceed its budget if that is likely to decide.
const LONGER: f64 = 1.5;

/// Minimum number of rounds of a run with short windows, because the confidence interval of a median needs six rounds.
pub const LEAST_ROUNDS: u32 = 6;

impl Design {
    /// Returns the average length of a round of windows with these arms, in seconds.
    #[must_use]
    pub fn round_s(&self, windows: Windows, arms: &[Arm]) -> f64 {
        arms.iter().map(|arm| windows.arm_s(arm.role)).sum()
    }

    /// Returns the minimum duration in seconds of a run with these windows.
    #[must_use]
    pub fn least_s(&self, windows: Windows, arms: &[Arm]) -> f64 {
        f64::from(LEAST_ROUNDS) * self.round_s(windows, arms)
    }

    /// Plans a run that should take `seconds`, and may take half as long again where that decides. Up to the first interim
    /// analysis, every round measures every arm; afterwards, only the arms that an open question compares.
    pub fn by_windows(&mut self, windows: Windows, arms: &[Arm], seconds: f64) {
        let allotted = Allotted { budget_s: seconds, longest_s: LONGER * seconds };
        self.plan(windows, arms, (allotted, reduced_s(windows, arms)));
        self.allotted = Some(allotted);
    }

    /// Plans as many rounds as fit in `seconds`, each with every arm.
    pub fn by_full_rounds(&mut self, windows: Windows, arms: &[Arm], seconds: f64) {
        let all = Allotted { budget_s: seconds, longest_s: seconds };
        self.plan(windows, arms, (all, self.round_s(windows, arms)));
        self.allotted = None;
    }

    /// Plans the rounds again with other windows, in the way in which they were planned before.
    pub fn with_windows(&mut self, windows: Windows, arms: &[Arm], seconds: f64) {
        let single = self.looks.is_empty();
        match self.allotted {
            Some(_) => self.by_windows(windows, arms, seconds),
            None => self.by_full_rounds(windows, arms, seconds),
        }
        if single {
            self.without_looks();
        }
    }

    /// Plans as many rounds as fit in the time if a round takes `reduced_s` after the first interim analysis.
    fn plan(&mut self, mut windows: Windows, arms: &[Arm], (time, reduced_s): (Allotted, f64)) {
        /// Number of contended windows that a run should have: they need six for a confidence interval, and take part
        /// only until the first interim analysis.
        const ENOUGH: u32 = 9;
        let first = |windows: Windows, rounds: u32| looks(windows, rounds).first().copied().unwrap_or(0);
        let fit = |windows: Windows| {
            let costs = (self.round_s(windows, arms), reduced_s);
            let time_s = (time.budget_s, time.longest_s);
            stretch::rounds_within(time_s, costs, MAX_ROUNDS as u32, |rounds| looks(windows, rounds))
        };
        if first(windows, fit(windows)) / windows.contended_every.max(1) < ENOUGH {
            windows.contended_every = 1;
        }
        self.rounds = fit(windows).max(LEAST_ROUNDS);
        self.looks = looks(windows, self.rounds);
        self.levels = sequential::levels(ERROR, &self.looks);
        self.windows = Some(windows);
    }

    /// Returns the budget in seconds with which [`Self::by_windows`] plans this many rounds of these windows.
    #[must_use]
    pub fn budget_for(&self, rounds: u32, windows: Windows, arms: &[Arm]) -> f64 {
        let at = looks(windows, rounds);
        let first = at.first().copied().unwrap_or(0);
        let takes_s = |rounds: u32| {
            f64::from(first) * self.round_s(windows, arms)
                + f64::from(rounds - first) * reduced_s(windows, arms)
        };
        stretch::within_budget(&at).map_or(0.0, takes_s).max(takes_s(rounds) / LONGER)
    }

    /// Replaces the interim analyses by a single analysis at the end.
    pub fn without_looks(&mut self) {
        self.looks.clear();
        self.levels.clear();
        self.allotted = None;
    }

    /// Returns the number of rounds before and after the first interim analysis in a run of windows that is not decided before
    /// its budget is spent. After that analysis, everything but the isolated arms and the service alone counts as decided.
    #[must_use]
    pub fn rounds_in_budget(&self, windows: Windows, arms: &[Arm]) -> (u32, u32) {
        let (Some(allotted), Some(first)) = (self.allotted, self.looks.first()) else {
            return (self.rounds, 0);
        };
        let left_s = allotted.budget_s - f64::from(*first) * self.round_s(windows, arms);
        let later = (left_s / reduced_s(windows, arms)).floor().max(0.0) as u32;
        (*first, later.min(self.rounds - first))
    }

    /// Returns the arms that a run measures after its first interim analysis, as far as its plan tells.
    #[must_use]
    pub fn later_arms(&self, arms: &[Arm]) -> Vec<usize> {
        (0..arms.len()).filter(|arm| self.allotted.is_none() || is_reduced(arms, &arms[*arm])).collect()
    }

    /// Returns how long a run takes that is not decided before its budget is spent, in seconds.
    #[must_use]
    pub fn windows_s(&self, windows: Windows, arms: &[Arm]) -> f64 {
        let full_s = self.round_s(windows, arms);
        match (self.allotted, self.looks.first()) {
            (Some(allotted), Some(first)) => allotted.budget_s.max(f64::from(*first) * full_s),
            _ => f64::from(self.rounds) * full_s,
        }
    }
}

/// Returns the numbers of rounds after which a run of this many rounds is analysed.
fn looks(windows: Windows, rounds: u32) -> Vec<u32> {
    // A run that ends at an interim analysis must also report the harm without isolation. The confidence interval of that
    // harm needs six rounds with contended windows.
    let earliest = (LEAST_ROUNDS - 1) * windows.contended_every.max(1) + 1;
    sequential::fifths(ERROR, rounds, earliest)
}

/// Whether an arm is measured while everything else is decided: isolated arms, and those with which they are compared.
fn is_reduced(arms: &[Arm], arm: &Arm) -> bool {
    let has = |role| arms.iter().any(|other| other.role == role);
    match arm.role {
        _ if !has(Role::Isolated) => true,
        Role::Isolated | Role::Warm | Role::PolicyOnly => true,
        Role::Baseline => !has(Role::PolicyOnly),
        Role::Baseline2 | Role::Contended | Role::OfflineAlone => false,
    }
}

/// Returns the length of a round with the arms that are measured while everything else is decided, in seconds.
fn reduced_s(windows: Windows, arms: &[Arm]) -> f64 {
    arms.iter().filter(|arm| is_reduced(arms, arm)).map(|arm| windows.arm_s(arm.role)).sum()
}
