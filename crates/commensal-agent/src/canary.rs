//! A canary as plain data: the request, the measurements of its windows, and its part of a snapshot. A canary is an
//! experiment that removes isolation for short windows and measures how long online groups wait.
//! [`commensal_core::canary`] decides when windows begin and end, [`crate::agent`] runs them in its loop, and
//! [`commensal_core::windows`] computes the statistics.

use commensal_core::canary::{CanaryLimits, ERROR, Terms};
use commensal_core::windows::{Effect, Series, effects};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A canary ends if its client sends no keep-alive for this long.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The parameters of a canary: the body of `POST /v1/canary/start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// Length of the canary (ms); at most an hour.
    pub length_ms: u64,
    /// Length of a window (ms).
    pub window_ms: u64,
    /// Time at the start of each window that is not measured (ms).
    pub settle_ms: u64,
    /// Maximum share of the time without isolation (per cent); at most 50.
    pub off_pct: u32,
    /// Seed for the random order of the windows.
    pub seed: u64,
    /// Whether the canary runs to its planned end even if an effect is found earlier.
    pub whole: bool,
    /// Limit of an online group's wait for offline work (ms per second of its CPU time). A window beyond the limit is
    /// aborted.
    pub max_blamed_ms: u32,
    /// Limit of an online group's run delay, as a multiple of its run delay with isolation. A window beyond the limit
    /// is aborted.
    pub max_run_delay: u32,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            length_ms: 300_000,
            window_ms: 5_000,
            settle_ms: 1_000,
            off_pct: 50,
            seed: 1,
            whole: false,
            max_blamed_ms: 500,
            max_run_delay: 20,
        }
    }
}

impl Request {
    /// Parses the body of a request; an empty body means the defaults.
    ///
    /// # Errors
    /// Returns a message if the body is not a valid request.
    pub fn parse(body: &[u8]) -> Result<Request, String> {
        match body {
            [] => Ok(Request::default()),
            body => serde_json::from_slice(body)
                .map_err(|error| format!("the parameters of the canary are invalid: {error}")),
        }
    }

    /// The parameters that decide when isolation is on and off.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            length_ms: self.length_ms,
            window_ms: self.window_ms,
            settle_ms: self.settle_ms,
            off_pct: self.off_pct,
            seed: self.seed,
            whole: self.whole,
        }
    }

    /// The limits on harm to online groups.
    #[must_use]
    pub fn limits(&self) -> CanaryLimits {
        CanaryLimits { blamed_ms: self.max_blamed_ms, run_delay: self.max_run_delay }
    }
}

/// The running canary, as shown in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// Whether isolation should be off now.
    pub off: bool,
    /// Number of pairs of windows that have ended, and their planned number.
    pub pairs: [u64; 2],
    /// Number of aborted windows.
    pub aborted: u32,
    /// Time until the planned end of the canary (ms).
    pub left_ms: u64,
}

/// The report of a canary.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The parameters of the canary.
    pub request: Request,
    /// Planned number of pairs of windows.
    pub pairs: u64,
    /// Time of the start (RFC 3339).
    pub began: String,
    /// Why the canary ended; `None` while it runs.
    pub ended: Option<String>,
    /// How long the canary has run (s).
    pub seconds: f64,
    /// Time in which isolation should have been off (s).
    pub off_s: f64,
    /// One message per aborted or void window, with the reason.
    pub aborted: Vec<String>,
    /// Allowed error (one-sided) of a conclusion from this report: the part of the total error that the interim
    /// analyses have not used.
    pub level: Option<f64>,
    /// Why there is no probe, so that waits are not attributed; `None` with a probe.
    pub no_probe: Option<String>,
    /// Windows that were measured completely, in chronological order.
    pub windows: Vec<Window>,
}

/// A metric: its name with the unit, and a function that returns its value.
type Row = (&'static str, fn(&Figures) -> Option<f64>);

/// The metrics for which windows with and without isolation are compared.
const ROWS: [Row; 5] = [
    ("blamed wait, ms per CPU-s", |figures| figures.blamed_ms_per_cpu_s),
    ("run delay, ms/s", |figures| figures.run_delay_ms_per_s),
    ("CPU pressure, %", |figures| figures.pressure_pct[0]),
    ("memory pressure, %", |figures| figures.pressure_pct[1]),
    ("disk pressure, %", |figures| figures.pressure_pct[2]),
];

impl Report {
    /// The effect of removing isolation on each metric of each online group. Uses only pairs with both windows.
    #[must_use]
    pub fn effects(&self) -> Vec<Effect> {
        effects(&self.series(), self.level.unwrap_or(ERROR))
    }

    fn series(&self) -> Vec<Series> {
        let mut pairs: BTreeMap<u32, [Option<&Window>; 2]> = BTreeMap::new();
        for window in &self.windows {
            pairs.entry(window.pair).or_default()[usize::from(window.off)] = Some(window);
        }
        let names: BTreeSet<&String> = self.windows.iter().flat_map(|window| window.groups.keys()).collect();
        let one = |name: &String, (figure, of): Row| {
            let value = |window: Option<&Window>| window?.groups.get(name).and_then(of);
            let both = pairs.values().filter_map(|[on, off]| value(*on).zip(value(*off)));
            Series { subject: name.clone(), figure: figure.to_owned(), pairs: both.collect() }
        };
        names.into_iter().flat_map(|name| ROWS.map(|row| one(name, row))).collect()
    }
}

/// A measured window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// Number of the pair, counted from 0.
    pub pair: u32,
    /// Whether isolation was off in this window.
    pub off: bool,
    /// Start of the window, in seconds since the start of the canary.
    pub from_s: f64,
    /// Measured time (s).
    pub seconds: f64,
    /// Measurements of the online groups, by name.
    pub groups: BTreeMap<String, Figures>,
}

/// Measurements of an online group in a window; `None` where unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Wait for offline work per second of the group's CPU time (ms).
    pub blamed_ms_per_cpu_s: Option<f64>,
    /// Time that the group's threads waited for a CPU (ms per second).
    pub run_delay_ms_per_s: Option<f64>,
    /// Share of the time in which some task waited for CPU, memory or disks (per cent).
    pub pressure_pct: [Option<f64>; 3],
    /// CPUs used.
    pub cpus: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_a_request() {
        assert_eq!(Request::parse(b""), Ok(Request::default()));
        assert_eq!(Request::parse(b"{}"), Ok(Request::default()));
        assert_eq!(Request::default().terms().check(), Ok(()));
        let some = Request::parse(br#"{"seed": 9, "off_pct": 20}"#).unwrap();
        assert_eq!(some, Request { seed: 9, off_pct: 20, ..Request::default() });
        for bad in [&b"{\"sead\": 9}"[..], b"7", b"{\"seed\": -1}", b"{"] {
            assert!(
                Request::parse(bad).unwrap_err().starts_with("the parameters of the canary are invalid: ")
            );
        }
    }

    #[test]
    fn pairs_that_have_both_windows_are_compared() {
        let window = |pair: u32, off: bool, delay: Option<f64>| {
            let figures = Figures { run_delay_ms_per_s: delay, cpus: Some(1.0), ..Figures::default() };
            Window { pair, off, groups: [("web".to_owned(), figures)].into(), ..Window::default() }
        };
        let windows = vec![
            window(0, true, Some(9.0)),
            window(0, false, Some(2.0)),
            window(1, false, Some(3.0)),
            window(2, false, Some(4.0)),
            window(2, true, Some(5.0)),
            window(3, true, None),
            window(3, false, Some(1.0)),
        ];
        let effects = Report { windows, ..Report::default() }.effects();
        let pairs: Vec<usize> = effects.iter().map(|one| one.pairs).collect();
        assert_eq!(pairs, [0, 2, 0, 0, 0]);
        assert_eq!((effects[1].figure.as_str(), effects[1].difference), ("run delay, ms/s", Some(4.0)));
        assert_eq!((effects[1].with, effects[1].without), (Some(3.0), Some(7.0)));
        assert_eq!(Report::default().effects(), []);
    }
}
