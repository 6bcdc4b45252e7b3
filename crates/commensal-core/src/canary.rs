//! The canary: an experiment that switches the isolation of offline (batch) work off in short windows, to measure how
//! much isolation helps online (latency-critical) work. This module decides when isolation is on and off, and when the
//! canary ends. [`crate::windows`] computes the order of the windows and the statistics; the caller takes the
//! measurements.
//!
//! ```text
//! on   ▔▔▔▔▔▔▔▔▔▔▔▔|        |▔▔▔▔▔▔▔▔|▔▔▔▔▔▔▔▔|        |▔▔▔▔
//! off              |▁▁▁▁▁▁▁▁|        |        |▁▁▁▁▁▁▁▁|
//!       rest       |--- a pair ------|---- a pair -----|rest
//! ```
//!
//! **Invariants.** Two windows, one with isolation and one without, form a pair. Both windows of a pair have the same
//! length. Their order is random, but of every four pairs two begin with isolation on and two with isolation off. The
//! time without isolation never exceeds its share of the elapsed time: a pair begins only after a pause (the rest) that
//! is long enough for this. If a window ends late, the following rest is longer. A pair is void if one of its windows
//! exceeded the limits ([`CanaryLimits`]). When a canary ends, isolation is on.

use crate::windows::{Looks, firsts};

/// Maximum length of a canary (ms).
pub const LONGEST_MS: u64 = 3_600_000;
/// Minimum length of a window (ms): a shorter window measures the effect of the switching rather than the effect of
/// isolation.
pub const SHORTEST_WINDOW_MS: u64 = 500;
/// Maximum share (per cent) of the time in which isolation may be off.
pub const MOST_OFF_PCT: u32 = 50;
/// Minimum number of pairs: with fewer than six pairs no two-sided 95 % interval exists (signed ranks: 2 / 2^6 < 0.05).
pub const FEWEST_PAIRS: u64 = 6;
/// Maximum number of pairs: more pairs make the report longer but not the result better.
pub const MOST_PAIRS: u64 = 600;
/// Number of aborted windows after which the canary ends.
pub const MOST_ABORTED: u32 = 3;
/// One-sided probability of a wrong conclusion, over all metrics of a canary and all checks before its end (interim
/// analyses).
pub const ERROR: f64 = 0.025;
/// Length (ms) of the sliding span over which the agent measures harm. At the beginning of a window the span is shorter
/// than this. The agent evaluates harm once the span is at least [`HARM_FROM_MS`] long.
pub const HARM_OVER_MS: u64 = 500;
/// Minimum length (ms) of the span over which the agent measures harm; see [`HARM_OVER_MS`].
pub const HARM_FROM_MS: u64 = 150;
/// Minimum CPU use of online work in the computation of harm, in CPUs. If online work used less, the computation
/// assumes this value; otherwise a single wait of a mostly idle service would count as harm.
const LEAST_CPUS: f64 = 0.05;
/// Run delay (ms per second) up to which a window never counts as harmful, even if the run delay with isolation was
/// much shorter.
pub const DELAY_FLOOR_MS: f64 = 200.0;

/// Whether isolation is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Isolation is in force.
    On,
    /// Isolation is removed: neither the class nor the controllers restrain offline work.
    Off,
}

impl Side {
    /// The side's name, as shown to users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Side::On => "on",
            Side::Off => "off",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::On => Side::Off,
            Side::Off => Side::On,
        }
    }
}

/// The parameters of a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Length of the canary (ms).
    pub length_ms: u64,
    /// Length of a window (ms).
    pub window_ms: u64,
    /// Length (ms) of the part at the beginning of each window in which caches fill and queues empty. Measurements do
    /// not count there.
    pub settle_ms: u64,
    /// Maximum share (per cent) of the time in which isolation may be off.
    pub off_pct: u32,
    /// Seed of the order of the windows.
    pub seed: u64,
    /// Whether the canary continues to its planned end even if the result is clear earlier.
    pub whole: bool,
}

impl Terms {
    /// Number of pairs that fit into the canary if no window ends late. Pair `k`, counted from 0, begins as soon as
    /// `k + 1` windows without isolation are within the allowed share of the elapsed time.
    #[must_use]
    pub fn pairs(&self) -> u64 {
        let rest = self.length_ms.saturating_sub(self.window_ms);
        rest * u64::from(self.off_pct) / (self.window_ms.max(1) * 100)
    }

    /// Length (ms) of a canary with this many pairs of windows.
    #[must_use]
    pub fn length_for(&self, pairs: u64) -> u64 {
        pairs * self.window_ms * 100 / u64::from(self.off_pct.max(1)) + self.window_ms
    }

    /// Checks whether a canary with these parameters is possible.
    ///
    /// # Errors
    /// Returns a sentence that states which parameter is invalid and which values are valid.
    pub fn check(&self) -> Result<(), String> {
        let seconds = |ms: u64| ms as f64 / 1e3;
        if self.length_ms > LONGEST_MS {
            return Err(
                "a canary lasts at most 1 h, because isolation is off for part of that time".to_owned()
            );
        }
        if self.window_ms < SHORTEST_WINDOW_MS {
            return Err(format!("a window must last at least {SHORTEST_WINDOW_MS} ms"));
        }
        if self.settle_ms > self.window_ms / 2 {
            return Err(format!(
                "settle is {} s, which is more than half of a window ({} s): settle less, or take longer windows",
                seconds(self.settle_ms),
                seconds(self.window_ms)
            ));
        }
        if !(1..=MOST_OFF_PCT).contains(&self.off_pct) {
            return Err(format!("isolation can be off for 1 to {MOST_OFF_PCT} % of the time"));
        }
        let pairs = self.pairs();
        if pairs < FEWEST_PAIRS {
            return Err(format!(
                "in {} s fit only {pairs} pairs of windows of {} s, but an interval needs {FEWEST_PAIRS}: take at least \
                 {} s, or shorter windows",
                seconds(self.length_ms),
                seconds(self.window_ms),
                seconds(self.length_for(FEWEST_PAIRS)).ceil()
            ));
        }
        if pairs > MOST_PAIRS {
            return Err(format!(
                "{pairs} pairs of windows are more than {MOST_PAIRS}: take longer windows, or less time"
            ));
        }
        Ok(())
    }

    /// The plan of the interim analyses, which check after certain numbers of pairs whether the result is clear.
    #[must_use]
    pub fn looks(&self) -> Looks {
        let pairs = u32::try_from(self.pairs()).unwrap_or(u32::MAX);
        if self.whole { Looks::new(ERROR, vec![pairs]) } else { Looks::plan(ERROR, pairs) }
    }

    /// For each pair, the side of its first window.
    fn order(&self) -> Vec<Side> {
        let firsts = firsts(self.seed, u32::try_from(self.pairs()).unwrap_or(u32::MAX));
        firsts.into_iter().map(|first| [Side::On, Side::Off][first]).collect()
    }
}

/// Why a canary ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The planned time has passed.
    Complete,
    /// The result is clear.
    Decided,
    /// Too few pairs remain to reach a significant result.
    Hopeless,
    /// Too many windows were aborted while isolation was off, or because isolation could not be switched.
    Harm,
    /// A user stopped the canary.
    Stopped,
    /// The client that started the canary has disconnected.
    ClientGone,
    /// No guard is running, so no process would restore isolation if the agent died.
    Unguarded,
    /// The groups files were reloaded.
    Reloaded,
    /// The agent is paused and must not write.
    Paused,
    /// The agent exits, or another agent replaces it.
    Leaving,
}

impl End {
    /// The reason, as readable text.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            End::Complete => "its planned time had passed",
            End::Decided => "the result was clear",
            End::Hopeless => "the remaining windows were too few for a result",
            End::Harm => "three windows had to be aborted",
            End::Stopped => "a user stopped it",
            End::ClientGone => "the client that had started it disconnected",
            End::Unguarded => "the guard had exited",
            End::Reloaded => "the groups changed",
            End::Paused => "the agent was paused",
            End::Leaving => "the agent exited",
        }
    }
}

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Number of the pair, from 0.
    pub pair: u32,
    /// Whether isolation is on or off in the window.
    pub side: Side,
    /// When the window began (ms).
    pub from_ms: u64,
}

/// A transition that [`Canary::step`] reports; it reports each transition once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The window begins: the caller must put the window's side in force now.
    Begins(Window),
    /// The settling time is over: measurements count from this time on.
    Settled(Window),
    /// The window ended normally.
    Ends(Window),
    /// The canary has ended, for this reason.
    Over(End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Rest,
    /// The first window of the pair has ended; the second window is the one with isolation as in `side`.
    Between {
        side: Side,
    },
    Window {
        window: Window,
        second: bool,
        settled: bool,
    },
    Over,
}

/// A running canary. All times are milliseconds of the same monotonic clock.
#[derive(Debug, Clone)]
pub struct Canary {
    terms: Terms,
    order: Vec<Side>,
    began_ms: u64,
    stage: Stage,
    pair: usize,
    off_ms: u64,
    aborted: u32,
    /// Number of void pairs before the current one, and whether the current pair is void.
    void: usize,
    is_void: bool,
}

impl Canary {
    /// Starts a canary. It begins with a rest, a pause in which isolation is on.
    ///
    /// # Errors
    /// Returns the error of [`Terms::check`].
    pub fn new(terms: Terms, now_ms: u64) -> Result<Canary, String> {
        terms.check()?;
        let order = terms.order();
        Ok(Canary {
            terms,
            order,
            began_ms: now_ms,
            stage: Stage::Rest,
            pair: 0,
            off_ms: 0,
            aborted: 0,
            void: 0,
            is_void: false,
        })
    }

    /// Whether isolation must be on or off now.
    #[must_use]
    pub fn side(&self) -> Side {
        match self.stage {
            Stage::Window { window, .. } => window.side,
            Stage::Rest | Stage::Between { .. } | Stage::Over => Side::On,
        }
    }

    /// The current window; `None` between windows and after the end.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        match self.stage {
            Stage::Window { window, .. } => Some(window),
            Stage::Rest | Stage::Between { .. } | Stage::Over => None,
        }
    }

    /// Number of pairs that have ended, void or not.
    #[must_use]
    pub fn pairs_over(&self) -> u32 {
        u32::try_from(self.pair).unwrap_or(u32::MAX)
    }

    /// Number of aborted windows.
    #[must_use]
    pub fn aborted(&self) -> u32 {
        self.aborted
    }

    /// Total time without isolation so far (ms).
    #[must_use]
    pub fn off_ms(&self, now_ms: u64) -> u64 {
        let open = match self.stage {
            Stage::Window { window, .. } if window.side == Side::Off => now_ms.saturating_sub(window.from_ms),
            _ => 0,
        };
        self.off_ms + open
    }

    /// Time (ms) at which [`Canary::step`] reports the next change; `u64::MAX` once the canary has ended.
    #[must_use]
    pub fn due_ms(&self) -> u64 {
        match self.stage {
            Stage::Rest => self.next_pair_ms().unwrap_or(0),
            Stage::Between { .. } => 0,
            Stage::Window { window, settled: false, .. } => window.from_ms + self.terms.settle_ms,
            Stage::Window { window, .. } => window.from_ms + self.terms.window_ms,
            Stage::Over => u64::MAX,
        }
    }

    /// Time at which the next pair may begin; `None` after the last pair. It is the earliest time that satisfies
    /// `(off + window) <= share * (elapsed + window)`. So the time without isolation stays within its share even if
    /// isolation is off in the first window of the pair.
    fn next_pair_ms(&self) -> Option<u64> {
        (self.pair < self.order.len()).then_some(())?;
        let needed = ((self.off_ms + self.terms.window_ms) * 100).div_ceil(u64::from(self.terms.off_pct));
        Some(self.began_ms + needed.saturating_sub(self.terms.window_ms))
    }

    fn has_room(&self, from_ms: u64) -> bool {
        from_ms + 2 * self.terms.window_ms <= self.began_ms + self.terms.length_ms
    }

    /// Returns the next change that is due by `now_ms`. Call it again until it returns `None`.
    pub fn step(&mut self, now_ms: u64) -> Option<Change> {
        match self.stage {
            Stage::Over => None,
            Stage::Rest => {
                if ((self.order.len() - self.void) as u64) < FEWEST_PAIRS {
                    self.stage = Stage::Over;
                    return Some(Change::Over(End::Hopeless));
                }
                let Some(at) = self.next_pair_ms().filter(|at| self.has_room(now_ms.max(*at))) else {
                    self.stage = Stage::Over;
                    return Some(Change::Over(End::Complete));
                };
                (now_ms >= at).then(|| self.open(now_ms, self.order[self.pair], false))
            }
            Stage::Between { side } => Some(self.open(now_ms, side, true)),
            Stage::Window { window, second, settled: false }
                if now_ms >= window.from_ms + self.terms.settle_ms =>
            {
                self.stage = Stage::Window { window, second, settled: true };
                Some(Change::Settled(window))
            }
            Stage::Window { window, second, settled: true }
                if now_ms >= window.from_ms + self.terms.window_ms =>
            {
                self.off_ms = self.off_ms(now_ms);
                if second {
                    self.rest();
                } else {
                    self.stage = Stage::Between { side: window.side.other() };
                }
                Some(Change::Ends(window))
            }
            Stage::Window { .. } => None,
        }
    }

    fn open(&mut self, now_ms: u64, side: Side, second: bool) -> Change {
        let pair = u32::try_from(self.pair).unwrap_or(u32::MAX);
        let window = Window { pair, side, from_ms: now_ms };
        self.stage = Stage::Window { window, second, settled: false };
        Change::Begins(window)
    }

    fn rest(&mut self) {
        (self.pair, self.stage, self.is_void) = (self.pair + 1, Stage::Rest, false);
    }

    /// Marks the pair of the current or last window as void.
    pub fn void(&mut self) {
        self.void += usize::from(!std::mem::replace(&mut self.is_void, true));
    }

    /// Aborts the current window and makes its pair void. `harm` states whether isolation was off or could not be
    /// switched. If `harm` is true, the abort counts, and the third counted abort ends the canary. If `harm` is false,
    /// isolation was on; the abort does not count.
    pub fn abort(&mut self, now_ms: u64, harm: bool) -> Option<Change> {
        let Stage::Window { .. } = self.stage else { return None };
        self.off_ms = self.off_ms(now_ms);
        self.void();
        self.rest();
        self.aborted += u32::from(harm);
        if self.aborted < MOST_ABORTED {
            return None;
        }
        self.stage = Stage::Over;
        Some(Change::Over(End::Harm))
    }

    /// Ends the canary early.
    pub fn end(&mut self, now_ms: u64) {
        self.off_ms = self.off_ms(now_ms);
        self.stage = Stage::Over;
    }
}

/// Limits of the harm to an online group in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryLimits {
    /// Wait for which the probe blames offline work, in ms per CPU-second of the group.
    pub blamed_ms: u32,
    /// Run delay, as a multiple of the group's run delay with isolation.
    pub run_delay: u32,
}

impl CanaryLimits {
    /// Computes the blamed wait of a group in ms per CPU-second; `None` if the wait is within the limit. In `span_s`
    /// seconds the group waited `blamed_ms` because of offline work, and used `run_s` seconds of CPU time.
    #[must_use]
    pub fn blamed(&self, blamed_ms: f64, run_s: f64, span_s: f64) -> Option<f64> {
        let per_cpu_s = blamed_ms / run_s.max(LEAST_CPUS * span_s);
        (per_cpu_s > f64::from(self.blamed_ms)).then_some(per_cpu_s)
    }

    /// The highest allowed run delay (ms per second) for a group whose run delay with isolation is `on_ms`.
    #[must_use]
    pub fn most_delay(&self, on_ms: f64) -> f64 {
        (on_ms * f64::from(self.run_delay)).max(DELAY_FLOOR_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERMS: Terms =
        Terms { length_ms: 300_000, window_ms: 5_000, settle_ms: 1_000, off_pct: 50, seed: 7, whole: false };

    /// Runs a canary with a clock that advances by `step`; returns every change with its time.
    fn run(
        terms: Terms,
        mut step: impl FnMut() -> u64,
        abort: impl Fn(u32) -> bool,
    ) -> (Canary, Vec<(u64, Change)>) {
        let mut canary = Canary::new(terms, 1_000).unwrap();
        let (mut now, mut seen) = (1_000, Vec::new());
        loop {
            while let Some(change) = canary.step(now) {
                seen.push((now, change));
                if let Change::Over(_) = change {
                    return (canary, seen);
                }
            }
            if let Some(window) = canary.window().filter(|one| one.side == Side::Off && abort(one.pair)) {
                assert_eq!(canary.window(), Some(window));
                if let Some(over) = canary.abort(now + 1, true) {
                    seen.push((now + 1, over));
                    return (canary, seen);
                }
                assert_eq!(canary.side(), Side::On);
            }
            // Steps that are on time, a little late, or far too late.
            now = canary.due_ms().max(now + 1) + step();
        }
    }

    fn windows(seen: &[(u64, Change)]) -> Vec<Window> {
        let ended = |(_, change): &(u64, Change)| match change {
            Change::Ends(window) => Some(*window),
            _ => None,
        };
        seen.iter().filter_map(ended).collect()
    }

    #[test]
    fn five_minutes_without_haste() {
        let (canary, seen) = run(TERMS, || 0, |_| false);
        assert_eq!(TERMS.pairs(), 29);
        let windows = windows(&seen);
        assert_eq!(windows.len(), 58);
        assert_eq!(windows[0].from_ms, 6_000, "a rest of one window comes first");
        for pair in windows.chunks(2) {
            assert!(pair[0].pair == pair[1].pair && pair[0].side != pair[1].side, "{pair:?}");
        }
        assert_eq!(seen.last().unwrap().1, Change::Over(End::Complete));
        assert_eq!((canary.side(), canary.off_ms(u64::MAX), canary.due_ms()), (Side::On, 145_000, u64::MAX));
    }

    #[test]
    fn what_cannot_be() {
        let check = |change: fn(&mut Terms), words: &str| {
            let mut terms = TERMS;
            change(&mut terms);
            let error = terms.check().unwrap_err();
            assert!(error.contains(words), "{error}");
            assert!(Canary::new(terms, 0).is_err());
        };
        check(|terms| terms.length_ms = LONGEST_MS + 1, "at most 1 h");
        check(|terms| terms.window_ms = 499, "at least 500 ms");
        check(|terms| terms.settle_ms = 2_501, "more than half");
        check(|terms| terms.off_pct = 51, "1 to 50 %");
        check(|terms| terms.off_pct = 0, "1 to 50 %");
        check(
            |terms| terms.length_ms = 60_000,
            "only 5 pairs of windows of 5 s, but an interval needs 6: take at least 65 s",
        );
        check(
            |terms| (terms.length_ms, terms.window_ms, terms.settle_ms) = (LONGEST_MS, 500, 100),
            "longer windows",
        );
        assert_eq!(Terms { length_ms: 65_000, ..TERMS }.check(), Ok(()));
    }

    // promise 29
    #[test]
    fn the_third_window_that_is_broken_off_is_the_end() {
        let (canary, seen) = run(TERMS, || 0, |pair| [2, 5, 6, 9].contains(&pair));
        assert_eq!((canary.aborted(), seen.last().unwrap().1), (3, Change::Over(End::Harm)));
        assert_eq!((canary.side(), canary.window()), (Side::On, None));
        assert!(
            windows(&seen)
                .iter()
                .all(|window| window.pair < 6 && ![2, 5].contains(&window.pair) || window.side == Side::On)
        );
    }

    #[test]
    fn what_no_pairs_can_show_is_not_gone_on_with() {
        // The canary has 29 pairs: after 24 void pairs five remain.
        let mut canary = Canary::new(TERMS, 0).unwrap();
        let (mut now, mut over) = (0, None);
        while over.is_none() {
            now = canary.due_ms().max(now);
            match canary.step(now) {
                Some(Change::Over(end)) => over = Some(end),
                Some(Change::Settled(window))
                    if window.side == Side::On && canary.pairs_over().is_multiple_of(2) =>
                {
                    // Exceeding a limit while isolation is on is not a reason to stop, but the pair is still void.
                    assert_eq!(canary.abort(now, false), None);
                }
                // A pair counts once even if it is marked as void twice.
                Some(Change::Settled(_) | Change::Ends(_)) => canary.void(),
                _ => {}
            }
        }
        assert_eq!((over, canary.pairs_over(), canary.aborted()), (Some(End::Hopeless), 24, 0));
        assert_eq!(canary.side(), Side::On);
    }

    #[test]
    fn an_end_before_its_time_leaves_isolation_on() {
        let mut canary = Canary::new(TERMS, 0).unwrap();
        let mut now = 0;
        while canary.side() == Side::On {
            now = canary.due_ms();
            canary.step(now);
        }
        canary.end(now + 10);
        assert_eq!(
            (canary.side(), canary.step(now + 20), canary.abort(now + 20, true)),
            (Side::On, None, None)
        );
        assert_eq!(canary.off_ms(u64::MAX), 10);
    }

    #[test]
    fn harm() {
        let limits = CanaryLimits { blamed_ms: 500, run_delay: 20 };
        assert_eq!(limits.blamed(100.0, 0.25, 0.5), None);
        assert_eq!(limits.blamed(150.0, 0.25, 0.5), Some(600.0));
        assert_eq!(limits.blamed(3.0, 0.001, 0.5), None, "one wait of a service that sleeps");
        assert_eq!(limits.blamed(40.0, 0.0, 0.5), Some(1_600.0));
        assert_eq!((limits.most_delay(1.0), limits.most_delay(50.0)), (DELAY_FLOOR_MS, 1_000.0));
    }

    proptest! {
        /// However late the calls are and whichever windows the test aborts: the time without isolation is within its
        /// share at every call that is not late, windows form whole pairs, and isolation is on at the end.
        // promise 29
        #[test]
        fn the_share_holds_and_every_end_leaves_isolation_on(
            window_ms in 500u64..20_000, off_pct in 1u32..=50, pairs in 6u64..30, seed in any::<u64>(),
            lates in prop::collection::vec(prop_oneof![4 => Just(0u64), 2 => 0u64..60, 1 => 0u64..5_000], 400),
            broken in prop::collection::btree_set(0u32..30, 0..4),
        ) {
            let length_ms = (pairs * window_ms * 100).div_ceil(u64::from(off_pct)) + window_ms;
            let terms = Terms { length_ms, window_ms, settle_ms: window_ms / 5, off_pct, seed, whole: false };
            prop_assume!(terms.check().is_ok());
            let mut late = lates.iter().copied().cycle();
            let mut canary = Canary::new(terms, 0).unwrap();
            let (mut now, mut off_from, mut off, mut overrun) = (0u64, None, 0u64, 0u64);
            let mut over = false;
            for _ in 0..5_000 {
                let before = canary.side();
                let mut end = None;
                while let Some(change) = canary.step(now) {
                    if let Change::Over(_) = change { over = true; }
                    if let Change::Ends(window) = change { end = Some(window); }
                }
                if let Some(window) = end {
                    overrun = overrun.max(now - window.from_ms - window_ms);
                }
                if !over && canary.window().is_some_and(|window| window.side == Side::Off && broken.contains(&window.pair)) {
                    over |= canary.abort(now, true).is_some();
                }
                match (before, canary.side()) {
                    (Side::On, Side::Off) => off_from = Some(now),
                    (Side::Off, Side::On) => if let Some(from) = off_from.take() { off += now - from },
                    _ => {}
                }
                let so_far = off + off_from.map_or(0, |from| now - from);
                prop_assert!(so_far * 100 <= u64::from(off_pct) * now + 100 * overrun, "{so_far} of {now}, {overrun} late");
                prop_assert_eq!(canary.off_ms(now), so_far);
                if over { break; }
                now = canary.due_ms().max(now) + late.next().unwrap();
            }
            prop_assert!(over, "it ends");
            prop_assert_eq!(canary.side(), Side::On);
            prop_assert!(now <= length_ms + 10_000 + overrun);
        }
    }
}
