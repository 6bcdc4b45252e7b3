//! The curves of a sweep, which is a run with one arm (way of running the service) for each value of a setting.

use super::points::{Curve, CurvePoint};
use crate::record::{Run, SweepPoint};

/// Returns the curves of harm over the values of the sweep, each with its title. The curve without isolation is first,
/// if the sweep has such arms; the curve with isolation follows.
pub fn curves(run: &Run) -> Vec<(String, Curve)> {
    let Some(sweep) = &run.design.sweep else { return Vec::new() };
    let thresholds_pct =
        run.design.gates.iter().map(|gate| (*gate, run.design.threshold_of(*gate))).collect();
    let empty =
        Curve { what: sweep.what.clone(), unit: sweep.unit.clone(), thresholds_pct, points: Vec::new() };
    let of = |arm: fn(&SweepPoint) -> Option<&String>| {
        let there = |name: &&String| run.arms.iter().any(|arm| arm.name == **name);
        let point = |point: &SweepPoint| {
            arm(point).filter(there).map(|name| CurvePoint::of(run, name, point.at, &point.label))
        };
        sweep.points.iter().filter_map(point).collect::<Vec<CurvePoint>>()
    };
    let with = of(|point| point.isolated.as_ref());
    let without = of(|point| point.contended.as_ref());
    let title = |how: &str| format!("harm over {}{how}", sweep.what);
    let mut curves = Vec::new();
    // A single point for the service alone makes no curve.
    if without.iter().any(|point| point.at > 0.0) {
        curves.push((title(" without isolation"), Curve { points: without, ..empty.clone() }));
    }
    if !with.is_empty() {
        let how = if curves.is_empty() { "" } else { " with isolation" };
        curves.push((title(how), Curve { points: with, ..empty }));
    }
    curves
}

/// Returns the value of the setting in an arm.
pub fn value(run: &Run, arm: &str) -> Option<f64> {
    let is = |name: &Option<String>| name.as_deref() == Some(arm);
    let sweep = run.design.sweep.as_ref()?;
    let point =
        sweep.points.iter().find(|point| is(&point.isolated) || (is(&point.contended) && point.at > 0.0));
    point.map(|point| point.at)
}
