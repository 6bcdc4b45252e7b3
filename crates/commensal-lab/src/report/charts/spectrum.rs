//! Chart of latency by percentile, on HdrHistogram's axis, where 90 %, 99 %, 99.9 % and so on are equally far apart.
//!
//! Only this chart combines the requests of all valid blocks of an arm (way of running the service). Results and
//! verdicts are computed from pairs of blocks instead.

use super::canvas::Canvas;
use super::decoded::DecodedRun;
use super::scale::{Scale, axis_latency, extent, log_steps};
use crate::format::{latency, sentence_list};
use crate::record::{LatencyHistogram, percentile_us};

const HEIGHT: f64 = 270.0;
/// Number of points of a curve.
const POINTS: usize = 110;
/// Minimum number of requests beyond the last point of a curve.
const BEYOND: f64 = 10.0;

struct Curve<'a> {
    name: &'a str,
    colour: usize,
    /// Points of the curve: number of nines of the percentile (such as 2 for 99 %), and latency in microseconds.
    points: Vec<(f64, f64)>,
}

/// Draws one curve per arm.
pub fn draw(seen: &DecodedRun<'_>, width: f64) -> Result<Canvas, String> {
    let curves: Vec<Curve<'_>> = (seen.run.arms.iter().zip(&seen.merged))
        .filter_map(|(arm, merged)| {
            let points = points(merged.as_ref()?);
            let colour = seen.colour(&arm.name);
            (points.len() > 1).then_some(Curve { name: &arm.name, colour, points })
        })
        .collect();
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (Some((_, nines)), Some((lo, hi))) = (extent(all().map(|p| p.0)), extent(all().map(|p| p.1))) else {
        return Err("No usable block has enough latencies for a distribution.".into());
    };
    let mut canvas = Canvas::new(width);
    let narrow = canvas.is_narrow();
    let mut top = 14.0;
    if narrow {
        let key: Vec<(String, String)> =
            curves.iter().map(|curve| (format!("f{}", curve.colour), curve.name.to_owned())).collect();
        top = canvas.key(0.0, 0.0, &key) + 10.0;
    }
    let (left, right) = (54.0, if narrow { width - 8.0 } else { width - 130.0 });
    let foot = top + HEIGHT;
    let x = Scale::new((0.0, nines), (left, right));
    let (lo, hi) = (lo * 0.93, hi * 1.07);
    let y = Scale::new((lo.log10(), hi.log10()), (foot, top));
    for us in log_steps(lo, hi) {
        let at = y.at(us.log10());
        canvas.line("grid", (left, at), (right, at));
        canvas.text("s e", (left - 8.0, at + 4.0), &axis_latency(us));
    }
    share_axis(&mut canvas, &x, (left, right), foot);
    // The second baseline is drawn below all other curves, because it only shows how much two identical arms differ.
    let mut order: Vec<&Curve<'_>> = curves.iter().collect();
    order.sort_by_key(|curve| curve.colour != 1);
    for curve in order {
        let points: Vec<(f64, f64)> =
            curve.points.iter().map(|(n, us)| (x.at(*n), y.at(us.log10()))).collect();
        let thin = if curve.colour == 1 { " thin" } else { "" };
        canvas.curve(&format!("d curve{thin} l{}", curve.colour), &points);
    }
    points_said(&mut canvas, seen, &curves, (&x, &y), (left + 6.0, top + 12.0));
    if !narrow {
        names(&mut canvas, &curves, (&x, &y), right + 10.0);
    }
    canvas.height = foot + 38.0;
    describe(&mut canvas, seen, &curves);
    Ok(canvas)
}

/// Returns the points of a curve. The curve ends at the percentile above which [`BEYOND`] requests lie.
fn points(histogram: &LatencyHistogram) -> Vec<(f64, f64)> {
    let total = histogram.len() as f64;
    if total < BEYOND * 2.0 {
        return Vec::new();
    }
    let nines = (total / BEYOND).log10();
    let at = |i: usize| nines * i as f64 / POINTS as f64;
    let point = |i| Some((at(i), percentile_us(histogram, 1.0 - 10.0_f64.powf(-at(i)))?.max(1.0)));
    (0..=POINTS).filter_map(point).collect()
}

/// Percentiles at which each curve has a tooltip.
const SAID: [(&str, f64); 5] =
    [("50 %", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999), ("99.99 %", 0.9999)];

/// Draws the points with tooltips on the curves. The tooltips appear in a corner of the chart that the curves do not
/// reach.
fn points_said(
    canvas: &mut Canvas,
    seen: &DecodedRun<'_>,
    curves: &[Curve<'_>],
    (x, y): (&Scale, &Scale),
    place: (f64, f64),
) {
    for curve in curves {
        let arm = seen.run.arms.iter().position(|arm| arm.name == curve.name);
        let Some(merged) = arm.and_then(|at| seen.merged[at].as_ref()) else { continue };
        let last = curve.points.last().map_or(0.0, |(nines, _)| *nines);
        for (label, share) in SAID {
            let nines = -(1.0_f64 - share).log10();
            let Some(us) = percentile_us(merged, share).filter(|_| nines <= last) else { continue };
            let name = super::canvas::fitted(curve.name, 110.0);
            let said = format!("{name}: {label} within {}", latency(us));
            canvas.tip(&said, place, "", |canvas| {
                canvas.dot("hit", (x.at(nines), y.at(us.max(1.0).log10())), 6.0, None)
            });
        }
    }
}

fn share_axis(canvas: &mut Canvas, x: &Scale, (left, right): (f64, f64), foot: f64) {
    canvas.line("axis", (left, foot), (right, foot));
    let marks =
        [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
    let more = [(0.999_99, "99.999 %"), (0.999_999, "99.9999 %")];
    let mut last = f64::MIN;
    for (share, label) in marks.into_iter().chain(more) {
        let nines = -(1.0_f64 - share).log10();
        let at = x.at(nines);
        let half = label.chars().count() as f64 * 3.5;
        if !x.holds(nines) || at - half < last {
            continue;
        }
        last = at + half + 6.0;
        canvas.line("axis", (at, foot), (at, foot + 4.0));
        canvas.text("s m", (at.min(canvas.width() - half), foot + 17.0), label);
    }
    canvas.text(
        "s m",
        (f64::midpoint(left, right), foot + 34.0),
        "share of requests that were at least as fast",
    );
}

/// Draws the names at the ends of the curves, moved apart where they would overlap.
fn names(canvas: &mut Canvas, curves: &[Curve<'_>], (x, y): (&Scale, &Scale), at: f64) {
    let mut ends: Vec<(f64, &Curve<'_>)> = curves
        .iter()
        .filter_map(|curve| curve.points.last().map(|(_, us)| (y.at(us.log10()), curve)))
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut last = f64::MIN;
    for (end, curve) in ends {
        let down = end.max(last + 15.0);
        last = down;
        if let Some((nines, _)) = curve.points.last() {
            canvas.line(&format!("thin l{}", curve.colour), (x.at(*nines) + 1.0, end), (at - 3.0, down));
        }
        let name = super::canvas::fitted(curve.name, canvas.width() - at);
        canvas.text(&format!("b f{}", curve.colour), (at, down + 4.0), &name);
    }
}

fn describe(canvas: &mut Canvas, seen: &DecodedRun<'_>, curves: &[Curve<'_>]) {
    let names: Vec<&str> = curves.iter().map(|curve| curve.name).collect();
    canvas.describe(format!("Distributions of {}.", sentence_list(&names)));
    for (arm, merged) in seen.run.arms.iter().zip(&seen.merged) {
        let median = merged.as_ref().and_then(|histogram| percentile_us(histogram, 0.5));
        let tail = merged.as_ref().and_then(|histogram| percentile_us(histogram, 0.99));
        if let (Some(median), Some(tail)) = (median, tail) {
            let (median, tail) = (latency(median), latency(tail));
            canvas
                .describe(format!("{}: half of the requests within {median}, 99 % within {tail}.", arm.name));
        }
    }
}
