//! Chart of throughput and tail latency during the run. There is one value per second if the record has a series,
//! otherwise one value per block (the measurement of one arm in one round).

use super::canvas::Canvas;
use super::decoded::DecodedRun;
use super::order::{Order, arms_key};
use super::scale::{Scale, axis_latency, extent, log_steps, round_steps, trimmed};
use crate::format::{latency, three_digits};
use crate::record::{Block, Metric, Tick};
use crate::stats::median;

/// Minimum width of a block's mark, in pixels.
const LEAST: f64 = 2.4;
/// Maximum number of points of all curves in a panel. From longer series, points are omitted at regular intervals.
const MOST_POINTS: usize = 3_000;

/// A metric over time.
struct Panel {
    name: String,
    /// One value per block.
    blocks: Vec<Option<f64>>,
    /// Function that returns the metric's value for one second.
    tick: fn(&Tick) -> Option<f64>,
    logarithmic: bool,
    height: f64,
}

/// Draws the panels that have values.
pub fn draw(seen: &DecodedRun<'_>, width: f64) -> Result<Canvas, String> {
    let panels: Vec<Panel> = [throughput(seen), tail(seen)].into_iter().flatten().collect();
    if panels.is_empty() {
        return Err("No block has a throughput or a latency, so there is nothing to show over time.".into());
    }
    let mut canvas = Canvas::new(width);
    let (left, right) = (54.0, width - 4.0);
    let order = Order::of(seen.run, (left, right));
    let mut key = arms_key(seen);
    if seen.run.blocks.iter().any(|block| seen.has_offline(block)) {
        key.push(("shade".into(), "with offline work".into()));
    }
    canvas.height = canvas.key(0.0, 0.0, &key) + 6.0;
    for panel in panels {
        let top = canvas.height + 24.0;
        canvas.text("b", (0.0, top - 10.0), &panel.name);
        self::panel(&mut canvas, seen, (&order, &panel), (left, right), top);
        order.axis(&mut canvas, seen.run, (left, right), top + panel.height);
        canvas.height = top + panel.height + 24.0;
    }
    Ok(canvas)
}

fn throughput(seen: &DecodedRun<'_>) -> Option<Panel> {
    let blocks: Vec<Option<f64>> =
        seen.run.blocks.iter().map(|block| block.load.achieved_per_s.filter(|qps| qps.is_finite())).collect();
    blocks.iter().any(Option::is_some).then_some(Panel {
        name: "requests answered per second".into(),
        blocks,
        tick: |tick| tick.qps,
        logarithmic: false,
        height: 84.0,
    })
}

fn tail(seen: &DecodedRun<'_>) -> Option<Panel> {
    let metric = seen.tail()?;
    let blocks = seen.latency_us.iter().map(|values| values.get(&metric).copied()).collect();
    // For single seconds, the record has only P50 and P99.
    let tick: fn(&Tick) -> Option<f64> = match metric {
        Metric::P99 => |tick| tick.p99_us,
        Metric::P50 => |tick| tick.p50_us,
        _ => |_| None,
    };
    let name = format!("{} latency", metric.label());
    Some(Panel { name, blocks, tick, logarithmic: true, height: 160.0 })
}

fn usable(panel: &Panel, tick: &Tick) -> Option<f64> {
    (panel.tick)(tick).filter(|value| value.is_finite() && (!panel.logarithmic || *value > 0.0))
}

fn panel(
    canvas: &mut Canvas,
    seen: &DecodedRun<'_>,
    (order, panel): (&Order, &Panel),
    (left, right): (f64, f64),
    top: f64,
) {
    let foot = top + panel.height;
    let ticks = seen.run.blocks.iter().flat_map(|block| block.series.iter());
    let values = panel.blocks.iter().copied().flatten().chain(ticks.filter_map(|tick| usable(panel, tick)));
    let Some((lo, hi)) = extent(values) else { return };
    order.shade(canvas, seen, (top, foot));
    let (y, marks) = if panel.logarithmic {
        let (lo, hi) = (lo * 0.85, hi * 1.15);
        (Scale::new((lo.log10(), hi.log10()), (foot, top)), log_steps(lo, hi))
    } else {
        (Scale::new((0.0, hi * 1.08), (foot, top)), round_steps(hi * 1.08, 3.0))
    };
    let at = |value: f64| y.at(if panel.logarithmic { value.log10() } else { value });
    for mark in marks {
        let label = if panel.logarithmic { axis_latency(mark) } else { trimmed(mark) };
        canvas.line("grid", (left, at(mark)), (right, at(mark)));
        canvas.text("s e", (left - 8.0, at(mark) + 4.0), &label);
    }
    let points: usize = seen.run.blocks.iter().map(|block| block.series.len()).sum();
    let every = points.div_ceil(MOST_POINTS).max(1);
    for (i, block) in seen.run.blocks.iter().enumerate() {
        let (colour, faint) = (seen.colour(&block.arm), if block.valid { "" } else { " inv" });
        let curve = curve(order, panel, block, (i, every), &at);
        let said = match panel.blocks[i] {
            Some(value) if panel.logarithmic => format!("{}: {}", seen.place(block), latency(value)),
            Some(value) => format!("{}: {}/s", seen.place(block), three_digits(value)),
            None => seen.place(block),
        };
        let place = (canvas.width(), top - 10.0);
        if curve.len() > 1 {
            canvas.tip(&said, place, "e", |canvas| {
                canvas.curve(&format!("d curve thin l{colour}{faint}"), &curve)
            });
        } else if let Some(value) = panel.blocks[i] {
            let (from, to) = order.spans[i];
            let size = ((to - from).max(LEAST), 3.0);
            canvas.tip(&said, place, "e", |canvas| {
                canvas.rect(&format!("d f{colour}{faint}"), (from, at(value) - 1.5), size);
            });
        }
    }
    describe(canvas, seen, panel);
}

/// Returns the points of a curve over one block, one per second.
fn curve(
    order: &Order,
    panel: &Panel,
    block: &Block,
    (index, every): (usize, usize),
    at: &impl Fn(f64) -> f64,
) -> Vec<(f64, f64)> {
    let ticks = block.series.iter().step_by(every);
    ticks
        .filter_map(|tick| Some((order.within(index, block.measure_s, tick.t_s), at(usable(panel, tick)?))))
        .collect()
}

fn describe(canvas: &mut Canvas, seen: &DecodedRun<'_>, panel: &Panel) {
    for arm in &seen.run.arms {
        let values: Vec<f64> = (seen.run.blocks.iter().zip(&panel.blocks))
            .filter(|(block, _)| block.arm == arm.name && block.valid)
            .filter_map(|(_, value)| *value)
            .collect();
        if let Some(middle) = median(&values) {
            let middle = if panel.logarithmic { latency(middle) } else { three_digits(middle) };
            canvas.describe(format!("{}, {}: median over blocks {middle}.", panel.name, arm.name));
        }
    }
}
