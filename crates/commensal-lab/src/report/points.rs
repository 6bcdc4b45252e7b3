//! A sweep and its results: the figures of a curve.

use crate::format::{change_pct, signed_pct};
use crate::record::{Metric, Role, Run, Verdict};
use crate::verdict::{against_baseline, against_strictest};
use serde::{Deserialize, Serialize};

/// A sweep and its results.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Curve {
    /// Name of the swept value, such as `cpu.max`.
    pub what: String,
    /// The unit of its values, such as `%`; empty for a plain number.
    pub unit: String,
    /// Threshold of each gate: harm up to this size, per cent, still counts as no harm.
    pub thresholds_pct: Vec<(Metric, f64)>,
    /// The values; in any order.
    pub points: Vec<CurvePoint>,
}

/// Result at one value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Position on the axis.
    pub at: f64,
    /// Label of the value, such as `20 %`.
    pub label: String,
    /// The verdict; `None` if there is none.
    pub verdict: Option<Verdict>,
    /// The gates that were measured.
    pub gates: Vec<CurveGate>,
    /// Offline work in this arm over that in the contended arm, per cent.
    pub offline_kept_pct: Option<f64>,
}

/// One gate at one value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurveGate {
    /// The gate.
    pub metric: Metric,
    /// The harm, per cent: positive is worse, for throughput as well.
    pub harm_pct: f64,
    /// Its two-sided 95 % interval, per cent.
    pub ci95: Option<[f64; 2]>,
}

impl CurvePoint {
    /// The point for one arm of a concluded run. An isolated arm uses the comparison on which its verdict is based.
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

    /// The figures of one gate.
    pub fn gate(&self, metric: Metric) -> Option<&CurveGate> {
        self.gates.iter().find(|gate| gate.metric == metric)
    }
}

impl CurveGate {
    /// `+2.1 % [−0.3, +4.5]`, as change of the metric itself.
    pub(super) fn words(&self) -> String {
        let change = |harm| change_pct(self.metric, harm);
        let ends = self.ci95.map(|ends| format!(" {}", crate::format::brackets(ends.map(change), 0.1)));
        format!("{}{}", signed_pct(change(self.harm_pct), 0.1), ends.unwrap_or_default())
    }
}
