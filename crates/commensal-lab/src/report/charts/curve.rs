//! Chart of a sweep, which is a run with one arm for each value of a setting. The upper panel shows the harm at each
//! value: a line for each gate (metric that determines the verdict), with intervals and threshold. The lower panel
//! shows the share of the offline work that was kept.

use super::canvas::{Canvas, text_width};
use super::ratios::TICKS;
use super::scale::{Scale, extent};
use crate::format::{log_of_pct, signed_pct};
use crate::record::{Metric, Verdict};
use crate::report::points::{Curve, CurvePoint};

/// Height of the upper panel (harm), in pixels.
const HARM: f64 = 250.0;
/// Height of the lower panel (offline work that was kept), in pixels.
const KEPT: f64 = 74.0;
/// The axis for the values is logarithmic if the ratio of the largest to the smallest value exceeds this.
const WIDE_RANGE: f64 = 40.0;

/// The axis for harm: linear around zero, logarithmic beyond the threshold.
struct Harm {
    scale: Scale,
    unit: f64,
}

impl Harm {
    fn of(curve: &Curve, points: &[&CurvePoint], (foot, top): (f64, f64)) -> Self {
        let thetas = || curve.thresholds_pct.iter().map(|(_, theta)| *theta);
        let least = thetas().filter(|theta| *theta > 0.0).fold(f64::INFINITY, f64::min);
        let unit = log_of_pct(if least.is_finite() { least } else { 5.0 });
        let gates = points.iter().flat_map(|point| &point.gates);
        let values = gates.flat_map(|gate| gate.ci95.into_iter().flatten().chain([gate.harm_pct]));
        let all =
            values.chain(thetas()).filter(|pct| pct.is_finite()).map(|pct| (log_of_pct(pct) / unit).asinh());
        // Zero and the threshold are always visible.
        let (lo, hi) = extent(all.chain([-0.9, 0.9])).unwrap_or((-1.0, 1.0));
        let room = (hi - lo) * 0.04;
        Self { scale: Scale::new((lo - room, hi + room), (foot, top)), unit }
    }

    fn at(&self, pct: f64) -> f64 {
        self.scale.at((log_of_pct(pct) / self.unit).asinh())
    }

    fn holds(&self, pct: f64) -> bool {
        self.scale.holds((log_of_pct(pct) / self.unit).asinh())
    }
}

/// Draws the chart, or returns why it cannot be drawn.
pub fn draw(curve: &Curve, width: f64) -> Result<Canvas, String> {
    let points: Vec<&CurvePoint> = curve.sorted().into_iter().filter(|point| point.at.is_finite()).collect();
    let measured = |point: &&CurvePoint| point.gates.iter().any(|gate| gate.harm_pct.is_finite());
    if !points.iter().any(measured) {
        return Err(format!("No gate was measured at any value of {}, so there is no curve.", curve.what));
    }
    let mut canvas = Canvas::new(width);
    let metrics = curve.metrics();
    let key: Vec<(String, String)> = metrics
        .iter()
        .enumerate()
        .map(|(i, metric)| (format!("f{}", colour(i)), metric.label().to_owned()))
        .collect();
    let key_foot = canvas.key(0.0, 0.0, &key);
    // Reserve space for tooltips between the legend and the chart.
    let (said, top) = ((0.0, key_foot + 10.0), key_foot + 22.0);
    let (left, right) = (54.0, width - 14.0);
    let foot = top + HARM;
    let x = across(&points, (left + 24.0, right - 24.0));
    let harm = Harm::of(curve, &points, (foot, top));
    harm_axis(&mut canvas, &harm, (left, right), (top, foot));
    thresholds(&mut canvas, curve, &metrics, &harm, (left, right));
    for (i, metric) in metrics.iter().enumerate() {
        // Intervals of different gates at the same value are drawn next to each other, so that they do not overlap.
        let aside = (i as f64 - (metrics.len() as f64 - 1.0) / 2.0) * 5.0;
        line(&mut canvas, curve, &points, (*metric, colour(i)), &|point| x(point) + aside, (&harm, said));
    }
    let foot = verdicts(&mut canvas, &points, &x, foot);
    let foot = kept(&mut canvas, curve, &points, &x, (left, right), foot);
    labels(&mut canvas, &points, &x, foot);
    canvas.text("s m", (f64::midpoint(left, right), foot + 36.0), &curve.axis_title());
    canvas.height = foot + 42.0;
    for point in &points {
        let gates: Vec<String> =
            point.gates.iter().map(|gate| format!("{} {}", gate.metric.label(), gate.words())).collect();
        let verdict = point.verdict.map_or("no verdict", Verdict::label);
        canvas.describe(format!("{} {}: {verdict}, {}.", curve.what, point.label, gates.join(", ")));
    }
    Ok(canvas)
}

/// Returns the colour of the gate with this index.
fn colour(nth: usize) -> usize {
    [3, 2, 4, 5, 6, 7, 0][nth % 7]
}

/// Maps points to horizontal positions, on a linear axis or on a logarithmic one if the values are far apart.
fn across(points: &[&CurvePoint], (left, right): (f64, f64)) -> impl Fn(&CurvePoint) -> f64 + use<> {
    let (lo, hi) = extent(points.iter().map(|point| point.at)).unwrap_or((0.0, 1.0));
    let by_log = lo > 0.0 && hi / lo > WIDE_RANGE;
    let place = move |at: f64| if by_log { at.ln() } else { at };
    let scale = Scale::new((place(lo), place(hi)), (left, right));
    move |point: &CurvePoint| scale.at(place(point.at))
}

fn harm_axis(canvas: &mut Canvas, harm: &Harm, (left, right): (f64, f64), (top, foot): (f64, f64)) {
    let mut taken: Vec<f64> = Vec::new();
    for pct in TICKS {
        let y = harm.at(pct);
        if !harm.holds(pct) || taken.iter().any(|other| (other - y).abs() < 20.0) {
            continue;
        }
        taken.push(y);
        canvas.line(if pct == 0.0 { "axis" } else { "grid" }, (left, y), (right, y));
        canvas.text(
            "s e",
            (left - 6.0, y + 4.0),
            &signed_pct(pct, if pct.fract() == 0.0 { 1.0 } else { 0.1 }),
        );
    }
    canvas.line("axis", (left, top), (left, foot));
}

/// Draws a dashed line for each threshold, labelled with its gates if thresholds differ.
fn thresholds(
    canvas: &mut Canvas,
    curve: &Curve,
    metrics: &[Metric],
    harm: &Harm,
    (left, right): (f64, f64),
) {
    let mut drawn: Vec<f64> = Vec::new();
    for metric in metrics {
        let Some(theta) = curve.threshold_pct(*metric).filter(|theta| harm.holds(*theta)) else { continue };
        if drawn.contains(&theta) {
            continue;
        }
        drawn.push(theta);
        let of: Vec<&str> = (metrics.iter())
            .filter(|other| curve.threshold_pct(**other) == Some(theta))
            .map(|other| other.label())
            .collect();
        let y = harm.at(theta);
        canvas.line("theta", (left, y), (right, y));
        let said = format!("bound {} %", super::trimmed(theta));
        let said = if of.len() == metrics.len() { said } else { format!("{said}, {}", of.join(", ")) };
        canvas.text("s", (left + 4.0, y - 4.0), &said);
    }
}

fn line(
    canvas: &mut Canvas,
    curve: &Curve,
    points: &[&CurvePoint],
    (metric, colour): (Metric, usize),
    x: &dyn Fn(&CurvePoint) -> f64,
    (harm, said): (&Harm, (f64, f64)),
) {
    let gates: Vec<_> = (points.iter())
        .filter_map(|point| Some((*point, point.gate(metric)?)))
        .filter(|(_, gate)| gate.harm_pct.is_finite())
        .collect();
    let joined: Vec<(f64, f64)> =
        gates.iter().map(|(point, gate)| (x(point), harm.at(gate.harm_pct))).collect();
    if joined.len() > 1 {
        canvas.curve(&format!("curve thin l{colour}"), &joined);
    }
    for (point, gate) in gates {
        let at = x(point);
        if let Some([lo, hi]) = gate.ci95.filter(|[lo, hi]| lo.is_finite() && hi.is_finite()) {
            canvas.line(&format!("est l{colour}"), (at, harm.at(lo)), (at, harm.at(hi)));
        }
        let verdict = point.verdict.map(|verdict| format!(", {}", verdict.label())).unwrap_or_default();
        let tip = format!("{} {}: {} {}{verdict}", curve.what, point.label, metric.label(), gate.words());
        canvas.tip(&tip, said, "", |canvas| {
            canvas.dot(&format!("d pt f{colour}"), (at, harm.at(gate.harm_pct)), 4.2, None);
        });
    }
}

/// Draws the verdict on each value below the value's marks, if there is space.
fn verdicts(canvas: &mut Canvas, points: &[&CurvePoint], x: &dyn Fn(&CurvePoint) -> f64, foot: f64) -> f64 {
    let mut last = f64::MIN;
    for point in points {
        let Some(word) = point.verdict.map(Verdict::label) else { continue };
        let half = text_width(word) / 2.0;
        let at = x(point).min(canvas.width() - half);
        if at - half > last {
            canvas.text("s m", (at, foot + 16.0), word);
            last = at + half;
        }
    }
    if last > f64::MIN { foot + 24.0 } else { foot + 6.0 }
}

/// Draws the share of the offline work that is kept at each value.
fn kept(
    canvas: &mut Canvas,
    curve: &Curve,
    points: &[&CurvePoint],
    x: &dyn Fn(&CurvePoint) -> f64,
    (left, right): (f64, f64),
    above: f64,
) -> f64 {
    let kept: Vec<(&CurvePoint, f64)> = (points.iter())
        .filter_map(|point| Some((*point, point.offline_kept_pct?)))
        .filter(|(_, pct)| pct.is_finite())
        .collect();
    if kept.is_empty() {
        return above;
    }
    let (top, foot) = (above + 30.0, above + 30.0 + KEPT);
    canvas.text("h", (0.0, above + 16.0), "offline work kept");
    let most = kept.iter().map(|(_, pct)| *pct).fold(100.0, f64::max);
    let y = Scale::new((0.0, most), (foot, top));
    for pct in [0.0, 50.0, 100.0] {
        canvas.line(if pct == 0.0 { "axis" } else { "grid" }, (left, y.at(pct)), (right, y.at(pct)));
        canvas.text("s e", (left - 6.0, y.at(pct) + 4.0), &format!("{pct:.0} %"));
    }
    let joined: Vec<(f64, f64)> = kept.iter().map(|(point, pct)| (x(point), y.at(*pct))).collect();
    if joined.len() > 1 {
        canvas.curve("curve thin l0", &joined);
    }
    for (point, pct) in kept {
        let tip = format!("{} {}: {pct:.0} % of the offline work", curve.what, point.label);
        canvas.tip(&tip, (right, above + 16.0), "e", |canvas| {
            canvas.dot("d pt f0", (x(point), y.at(pct)), 4.2, None)
        });
    }
    foot
}

/// Draws the labels of the axis. A label that does not fit is omitted, because the table contains it.
fn labels(canvas: &mut Canvas, points: &[&CurvePoint], x: &dyn Fn(&CurvePoint) -> f64, foot: f64) {
    let mut last = f64::MIN;
    for point in points {
        let half = text_width(&point.label) / 2.0;
        let at = x(point).min(canvas.width() - half);
        if at - half > last {
            canvas.line("axis", (x(point), foot), (x(point), foot + 4.0));
            canvas.text("s m", (at, foot + 18.0), &point.label);
            last = at + half;
        }
    }
}
