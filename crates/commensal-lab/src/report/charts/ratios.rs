//! The main chart. It has one dot per arm (way of running the service) and round, whose position is the metric's change
//! from the baseline of the same round. Each panel shows one gate (metric that determines the verdict).
//!
//! Changes of a few per cent and of several hundred per cent share one axis. So the axis is linear around zero and
//! logarithmic beyond the threshold: a position is the inverse hyperbolic sine of the change's log-ratio divided by the
//! threshold's log-ratio.

use super::canvas::{Canvas, fitted};
use super::decoded::DecodedRun;
use super::scale::{Scale, extent};
use crate::format::{brackets, change_pct, log_of_pct, pct_of_log, quantum, signed_pct};
use crate::record::{Arm, Comparison, Metric, Role};
use crate::verdict::against_baseline;

/// Height of the strip with the dots of one arm, in pixels.
const STRIP: f64 = 34.0;
/// Changes in per cent that may label the axis, in order of preference.
pub const TICKS: [f64; 25] = [
    0.0, 100.0, -50.0, 20.0, -20.0, 1000.0, -90.0, 10.0, -10.0, 50.0, 200.0, 500.0, -80.0, 5.0, -5.0, 2.0,
    -2.0, 1.0, -1.0, 10_000.0, -99.0, 2000.0, 5000.0, 0.5, -0.5,
];

/// One arm with one metric.
struct Row<'a> {
    arm: &'a Arm,
    /// Round and log-ratio of the metric. Positive means that the metric is larger, not that it is worse.
    rounds: Vec<(u32, f64)>,
    result: Option<&'a Comparison>,
}

/// Draws one panel per gate (metric that determines the verdict).
pub fn draw(seen: &DecodedRun<'_>, width: f64) -> Result<Canvas, String> {
    let baseline = seen.run.arms.iter().position(|arm| arm.role == Role::Baseline);
    let baseline = baseline.ok_or("The run has no baseline arm, so there is nothing to compare with.")?;
    let mut canvas = Canvas::new(width);
    for (i, metric) in seen.run.design.gates.iter().enumerate() {
        if seen.run.design.gates[..i].contains(metric) {
            continue;
        }
        let rows = rows(seen, baseline, *metric);
        if !rows.is_empty() {
            panel(&mut canvas, seen, *metric, &rows);
        }
    }
    if canvas.height == 0.0 {
        return Err(
            "No gate metric was measured in both arms of a round, so there are no pairs to show.".into()
        );
    }
    Ok(canvas)
}

fn rows<'a>(seen: &DecodedRun<'a>, baseline: usize, metric: Metric) -> Vec<Row<'a>> {
    let shown = |arm: &Arm| matches!(arm.role, Role::Baseline2 | Role::Contended | Role::Isolated);
    let row = |(index, arm): (usize, &'a Arm)| {
        let pair = |round| {
            let (a, b) =
                (seen.samples.get(index, round, metric)?, seen.samples.get(baseline, round, metric)?);
            Some((round, (a / b).ln()))
        };
        let rounds = seen.samples.rounds(index).filter_map(pair).collect();
        Row { arm, rounds, result: against_baseline(seen.run, &arm.name, metric) }
    };
    let all = seen.run.arms.iter().enumerate().filter(|(_, arm)| shown(arm)).map(row);
    all.filter(|row| !row.rounds.is_empty()).collect()
}

/// Converts a harm in per cent to the log-ratio of the metric; a harm to throughput is a decrease.
fn log_change(metric: Metric, harm_pct: f64) -> f64 {
    if metric.more_is_better() { -log_of_pct(harm_pct) } else { log_of_pct(harm_pct) }
}

/// The horizontal axis of a panel.
struct Axis {
    scale: Scale,
    unit: f64,
}

impl Axis {
    fn at(&self, log: f64) -> f64 {
        self.scale.at((log / self.unit).asinh())
    }

    fn holds(&self, log: f64) -> bool {
        self.scale.holds((log / self.unit).asinh())
    }
}

fn axis(rows: &[Row<'_>], theta: f64, (left, right): (f64, f64)) -> Axis {
    let unit = log_of_pct(theta);
    let dots = rows.iter().flat_map(|row| row.rounds.iter().map(|(_, log)| *log));
    // The band of changes within the threshold is always visible, with a margin.
    let (lo, hi) = extent(dots.chain([-unit * 1.6, unit * 1.6])).unwrap_or((-unit, unit));
    let (lo, hi) = ((lo / unit).asinh(), (hi / unit).asinh());
    let room = (hi - lo) * 0.03;
    Axis { scale: Scale::new((lo - room, hi + room), (left, right)), unit }
}

fn panel(canvas: &mut Canvas, seen: &DecodedRun<'_>, metric: Metric, rows: &[Row<'_>]) {
    let narrow = canvas.is_narrow();
    let theta = seen.run.design.threshold_of(metric);
    let (left, right) = if narrow { (2.0, canvas.width() - 2.0) } else { (150.0, canvas.width() - 176.0) };
    let axis = axis(rows, theta, (left, right));
    let top = if canvas.height > 0.0 { canvas.height + 22.0 } else { 0.0 };
    let step = STRIP + if narrow { 24.0 } else { 10.0 };
    let (first, foot) = (top + 26.0, top + 26.0 + rows.len() as f64 * step);
    let better =
        if metric.more_is_better() { "left of the band is worse" } else { "right of the band is worse" };
    canvas.text("h", (0.0, top + 13.0), metric.label());
    canvas.text("s", (if narrow { 48.0 } else { left }, top + 13.0), better);
    let ends = [-theta, theta].map(|pct| axis.at(log_change(metric, pct)));
    let (from, to) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
    canvas.rect("band", (from, first - 4.0), (to - from, foot - first + 4.0));
    ticks(canvas, &axis, metric, theta, (first - 4.0, foot));
    for (i, row) in rows.iter().enumerate() {
        let y = first + i as f64 * step + if narrow { 16.0 } else { 0.0 };
        strip(canvas, seen, metric, row, (&axis, y), (right, top + 13.0));
    }
    canvas.height = foot + 20.0;
}

/// Draws the vertical grid lines with their labels. Zero and the ends of the threshold's band come first, and suppress
/// other labels that are too close.
fn ticks(canvas: &mut Canvas, axis: &Axis, metric: Metric, theta: f64, (top, foot): (f64, f64)) {
    let ends = [theta, -theta].map(|pct| pct_of_log(log_change(metric, pct)));
    // For throughput, an end of the band may be at 4.76 %; a round value close to it then gets no label.
    let mut taken: Vec<f64> = Vec::new();
    for (i, pct) in TICKS[..1].iter().chain(&ends).chain(&TICKS[1..]).enumerate() {
        let log = log_of_pct(*pct);
        let x = axis.at(log);
        let room = if i < 3 { 30.0 } else { 50.0 };
        if !axis.holds(log) || taken.iter().any(|other| (other - x).abs() < room) {
            continue;
        }
        taken.push(x);
        canvas.line(if *pct == 0.0 { "axis" } else { "grid" }, (x, top), (x, foot));
        let step = if pct.abs() < 10.0 && pct.fract() != 0.0 { 0.1 } else { 1.0 };
        let label = signed_pct(*pct, step);
        let half = label.chars().count() as f64 * 3.6;
        let x = x.clamp(half, canvas.width() - half);
        canvas.text("s m", (x, foot + 14.0), &label);
    }
    canvas.line("axis", (axis.scale.at(f64::MIN), foot), (axis.scale.at(f64::MAX), foot));
}

fn strip(
    canvas: &mut Canvas,
    seen: &DecodedRun<'_>,
    metric: Metric,
    row: &Row<'_>,
    (axis, y): (&Axis, f64),
    said: (f64, f64),
) {
    let colour = seen.colour(&row.arm.name);
    let narrow = canvas.is_narrow();
    if let Some(result) = row.result {
        if let Some(ends) = result.ci95 {
            let ends = ends.map(|harm| axis.at(log_change(metric, harm)));
            let (from, to) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            canvas.rect(&format!("ci f{colour}"), (from, y), ((to - from).max(1.0), STRIP));
        }
        let x = axis.at(log_change(metric, result.harm_pct));
        canvas.line(&format!("est l{colour}"), (x, y), (x, y + STRIP));
    }
    let n = row.rounds.len();
    let r = if n <= 12 {
        3.2
    } else if n <= 24 {
        2.6
    } else {
        2.1
    };
    for (i, (round, log)) in row.rounds.iter().enumerate() {
        let down = (i as f64 + 0.5) / n as f64 * (STRIP - 2.0 * r) + r;
        let tip = format!("round {}: {}", round.saturating_add(1), signed_pct(pct_of_log(*log), 0.1));
        canvas.tip(&tip, said, "e", |canvas| {
            canvas.dot(&format!("d pt f{colour}"), (axis.at(*log), y + down), r, None);
        });
    }
    let (value, ends, sample) = figures(seen, metric, row);
    let name = &row.arm.name;
    // The second baseline only shows how much two identical arms differ.
    let twin = row.arm.role == Role::Baseline2;
    canvas.describe(format!("{} of {name}: {value} {ends}, {sample}.", metric.label()));
    if narrow {
        let said = format!("{value}  {ends}");
        let room = canvas.width() - said.chars().count() as f64 * 7.2 - 8.0;
        canvas.text(&format!("b f{colour}"), (0.0, y - 5.0), &fitted(name, room));
        canvas.text("e", (canvas.width(), y - 5.0), &said);
    } else {
        let x = canvas.width() - 164.0;
        let down = if twin { 15.0 } else { 21.0 };
        canvas.text(&format!("b f{colour}"), (0.0, y + down), &fitted(name, 142.0));
        if twin {
            canvas.text("s", (0.0, y + 30.0), "identical to baseline");
        }
        canvas.text("b", (x, y + 15.0), &value);
        canvas.text("s e", (canvas.width(), y + 15.0), &sample);
        canvas.text("s", (x, y + 30.0), &ends);
    }
}

/// Formats the estimate, the interval, and the number of rounds.
fn figures(seen: &DecodedRun<'_>, metric: Metric, row: &Row<'_>) -> (String, String, String) {
    let rounds = format!("{} rounds", row.rounds.len());
    let Some(result) = row.result else {
        return ("–".into(), String::new(), rounds);
    };
    let step = quantum(seen.run.noise_floor_pct.get(&metric).copied());
    let change = |harm| change_pct(metric, harm);
    let ends = result.ci95.map(|ends| brackets(ends.map(change), step));
    (
        signed_pct(change(result.harm_pct), step),
        ends.unwrap_or_else(|| "too few rounds for an interval".into()),
        rounds,
    )
}
