//! The results of a sweep, which is a run with one arm (way of running the service) for each value of a setting.

use crate::format::{change_pct, signed_pct};
use crate::record::{Metric, Role, Run, Verdict};
use crate::verdict::{against_baseline, against_strictest};
use serde::{Deserialize, Serialize};

/// A sweep with its results.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Curve {
    /// Name of the setting, such as `cpu.max`.
    pub what: String,
    /// Unit of the values, such as `%`; empty for a plain number.
    pub unit: String,
    /// Threshold of each gate (metric that determines the verdict) in per cent. A harm up to this size still counts as
    /// no harm.
    pub thresholds_pct: Vec<(Metric, f64)>,
    /// Results at the values, in any order.
    pub points: Vec<CurvePoint>,
}

/// The result at one value of the setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The value, as a position on the axis.
    pub at: f64,
    /// Label of the value, such as `20 %`.
    pub label: String,
    /// The verdict on this value; `None` if the run has no verdict on this value.
    pub verdict: Option<Verdict>,
    /// The results of the gates at this value.
    pub gates: Vec<CurveGate>,
    /// Offline work in this arm, in per cent of the offline work in the arm without isolation.
    pub offline_kept_pct: Option<f64>,
}

/// Result of one gate at one value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurveGate {
    /// The gate's metric.
    pub metric: Metric,
    /// The harm in per cent. Positive means worse, also for throughput.
    pub harm_pct: f64,
    /// Two-sided 95 % interval of the harm in per cent.
    pub ci95: Option<[f64; 2]>,
}

impl CurvePoint {
    /// Creates the point for one arm of a concluded run. For an isolated arm, uses the comparison on which the verdict
    /// is based.
    pub fn of(run: &Run, arm: &str, at: f64, label: &str) -> Self {
        let role = run.arms.iter().find(|other| other.name == arm).map(|other| other.role);
        let isolated = role == Some(Role::Isolated);
        let compared = if isolated { against_strictest } else { against_baseline };
        let gate = |metric: &Metric| {
            let result = compared(run, arm, *metric)?;
            Some(CurveGate { metric: *metric, harm_pct: result.harm_pct, ci95: result.ci95 })
        };
        let only = run.arms.iter().filter(|other| other.role == Role::Isolated).count() == 1;
        let of_run = run.verdict.filter(|verdict| only || *verdict == Verdict::Invalid);
        let kept = run.offline.iter().find(|kept| kept.arm == arm);
        Self {
            at,
            label: label.to_owned(),
            verdict: run.arm_verdicts.get(arm).copied().or(of_run).filter(|_| isolated),
            gates: run.design.gates.iter().filter_map(gate).collect(),
            offline_kept_pct: kept.and_then(|kept| kept.kept_vs_contended_pct),
        }
    }

    /// Returns the result of one gate.
    pub fn gate(&self, metric: Metric) -> Option<&CurveGate> {
        self.gates.iter().find(|gate| gate.metric == metric)
    }
}

impl CurveGate {
    /// Formats the change of the metric itself, such as `+2.1 % [−0.3, +4.5]`.
    pub(super) fn words(&self) -> String {
        let change = |harm| change_pct(self.metric, harm);
        let ends = self.ci95.map(|ends| format!(" {}", crate::format::brackets(ends.map(change), 0.1)));
        format!("{}{}", signed_pct(change(self.harm_pct), 0.1), ends.unwrap_or_default())
    }
}
