//! Charts of a ladder (a series of measurements with more and more sessions): time over the number of sessions, cost of
//! density over its benefit, and CPU use and steal over time. A placement is a number of VMs on a number of servers.

use crate::record::Ladder;
use crate::table::{Change, Table, print};
use commensal_lab::report::draw::{Canvas, Scale, extent, log_steps, round_steps, trimmed};

/// A kind of chart.
pub(super) struct Kind {
    /// Name of the chart, usable in file names and anchors.
    pub name: String,
    /// Heading of the chart.
    pub title: String,
    /// What the chart shows, and how to read it.
    pub caption: &'static str,
    /// Draws the chart at a given width, or returns why it cannot be drawn.
    pub draw: Draw,
}

/// A function that draws a chart of a ladder and its table, at a given width in pixels.
type Draw = Box<dyn Fn(&Ladder, &Table, f64) -> Result<Canvas, String>>;

/// Height of a panel in pixels.
const HEIGHT: f64 = 260.0;
/// Colours of curves, in this order, so that adjacent curves are distinguishable.
const COLOURS: [u8; 6] = [0, 3, 2, 4, 5, 6];

fn colour(index: usize) -> u8 {
    COLOURS[index % COLOURS.len()]
}

/// Converts a text to a file name: ASCII letters become lower case, digits stay, and every other character becomes a
/// dash.
fn slug(text: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(letter).collect()
}

/// Returns all charts of a ladder, in the order of the page.
pub(super) fn kinds(ladder: &Ladder) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for test in &ladder.tests {
        let name = test.name.clone();
        kinds.push(Kind {
            name: format!("ladder-{}", slug(&name)),
            title: format!("{name}: time by number of sessions"),
            caption: "Mean time of the completed attempts; both scales are logarithmic. An x marks a rung at which no attempt completed.",
            draw: Box::new(move |_, table, width| steps(table, &name, width)),
        });
    }
    kinds.push(Kind {
        name: "cost".to_owned(),
        title: "Cost and benefit of density".to_owned(),
        caption: "Median change of the run time from the first placement (a failed rung counts as \
                  infinite), against the work that one server does on its plateau.",
        draw: Box::new(|_, table, width| cost(table, width)),
    });
    for placement in &ladder.placements {
        for test in &ladder.tests {
            let (placement, test) = (placement.name.clone(), test.name.clone());
            kinds.push(Kind {
                name: format!("use-{}-{}", slug(&placement), slug(&test)),
                title: format!("{placement}, {test}: CPU use and steal"),
                caption: "Per cent of the VMs' vCPU time, with one value per second. Each vertical line marks the start of a rung; the number is its number of sessions.",
                draw: Box::new(move |ladder, _, width| series(ladder, &test, &placement, width)),
            });
        }
    }
    kinds
}

/// Axes of a panel.
struct Axes {
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    foot: f64,
}

fn steps(table: &Table, test: &str, width: f64) -> Result<Canvas, String> {
    let rows: Vec<_> = table.rows.iter().filter(|row| row.test == test).collect();
    let times = rows.iter().flat_map(|row| row.cells.iter().filter_map(|cell| cell.mean_s));
    let (least, most) = extent(times).ok_or_else(|| format!("No rung of {test} completed."))?;
    let steps = extent(rows.iter().map(|row| f64::from(row.concurrency))).unwrap_or((1.0, 1.0));
    let mut canvas = Canvas::new(width);
    let key: Vec<(String, String)> = (table.placements.iter().enumerate())
        .map(|(index, name)| (format!("f{}", colour(index)), name.clone()))
        .collect();
    let top = canvas.key(0.0, 0.0, &key) + 16.0;
    let (lo, hi) = (least * 0.85, most * 1.3);
    let axes = Axes {
        x: Scale::new((steps.0.ln(), steps.1.ln()), (70.0, width - 12.0)),
        y: Scale::new((lo.ln(), hi.ln()), (top + HEIGHT, top)),
        left: 70.0,
        right: width - 12.0,
        top,
        foot: top + HEIGHT,
    };
    for mark in log_steps(lo, hi) {
        canvas.line("grid", (axes.left, axes.y.at(mark.ln())), (axes.right, axes.y.at(mark.ln())));
        canvas.text("s e", (axes.left - 8.0, axes.y.at(mark.ln()) + 4.0), &print::time(mark));
    }
    for row in &rows {
        let at = (axes.x.at(f64::from(row.concurrency).ln()), axes.foot + 18.0);
        canvas.text("s m", at, &row.concurrency.to_string());
    }
    canvas.line("axis", (axes.left, axes.foot), (axes.right, axes.foot));
    canvas.text("s e", (axes.right, axes.foot + 36.0), "sessions");
    for (index, name) in table.placements.iter().enumerate() {
        let point = |seconds: f64, step: u32| (axes.x.at(f64::from(step).ln()), axes.y.at(seconds.ln()));
        let done = rows.iter().filter_map(|row| Some(point(row.cells[index].mean_s?, row.concurrency)));
        let points: Vec<(f64, f64)> = done.collect();
        if points.len() > 1 {
            canvas.curve(&format!("d curve l{}", colour(index)), &points);
        }
        for row in &rows {
            let cell = &row.cells[index];
            let x = axes.x.at(f64::from(row.concurrency).ln());
            if let Some(mean) = cell.mean_s {
                let tip = format!("{name}, {} sessions: {}", row.concurrency, print::time(mean));
                canvas.dot(&format!("d f{}", colour(index)), (x, axes.y.at(mean.ln())), 3.2, Some(&tip));
            } else if cell.failed() {
                canvas.text("b m", (x, axes.top + 12.0 + 14.0 * index as f64), &format!("x {name}"));
            }
        }
        let failed = rows.iter().filter(|row| row.cells[index].failed()).count();
        canvas.describe(format!("{name}: {} rungs completed, {failed} failed.", points.len()));
    }
    canvas.height = axes.foot + 44.0;
    Ok(canvas)
}

fn cost(table: &Table, width: f64) -> Result<Canvas, String> {
    // The chart has one point per test and placement.
    let mut points = Vec::new();
    let several = table.medians.len() > 1;
    for medians in table.medians.iter().filter(|medians| medians.test.is_some() || !several) {
        for (index, name) in table.placements.iter().enumerate() {
            let of_test =
                |one: &&crate::table::Capacity| medians.test.as_ref().is_none_or(|test| *test == one.test);
            let capacity = table.capacity.iter().filter(of_test).find(|one| one.placement == *name);
            let Some(times) = capacity.and_then(|one| one.times_first) else { continue };
            let harm = match index.checked_sub(1).map(|later| medians.all.get(later).copied().flatten()) {
                None => Some(0.0),
                Some(Some((Change::Pct(pct), _))) => Some(pct),
                Some(_) => None,
            };
            points.push((index, format!("{name} {}", medians.test.clone().unwrap_or_default()), times, harm));
        }
    }
    let finite: Vec<f64> = points.iter().filter_map(|(.., harm)| *harm).collect();
    if points.len() < 2 || finite.is_empty() {
        return Err("Fewer than two placements did any work, so there is nothing to compare.".to_owned());
    }
    let most_x = points.iter().map(|(_, _, times, _)| *times).fold(1.0, f64::max) * 1.2;
    let (low, high) = extent(finite.into_iter()).unwrap_or((0.0, 1.0));
    let (low, high) = (low.min(0.0), (high * 1.15).max(10.0));
    let mut canvas = Canvas::new(width);
    let (left, right, top, foot) = (58.0, width - 12.0, 16.0, 16.0 + HEIGHT);
    let x = Scale::new((0.0, most_x), (left, right));
    let y = Scale::new((low, high), (foot, top));
    for mark in round_steps(high, 5.0) {
        canvas.line("grid", (left, y.at(mark)), (right, y.at(mark)));
        canvas.text("s e", (left - 8.0, y.at(mark) + 4.0), &format!("{} %", trimmed(mark)));
    }
    for mark in round_steps(most_x, 5.0) {
        canvas.text("s m", (x.at(mark), foot + 18.0), &format!("x{}", trimmed(mark)));
    }
    canvas.line("axis", (left, foot), (right, foot));
    canvas.text("s e", (right, foot + 36.0), "work per server, relative to the first placement");
    for (index, name, times, harm) in points {
        let (at, said) = match harm {
            Some(pct) => ((x.at(times), y.at(pct)), format!("{name}: {pct:+.0} %, x{times:.1}")),
            None => ((x.at(times), top), format!("{name}: fails at the median rung, x{times:.1}")),
        };
        canvas.dot(&format!("d f{}", colour(index)), at, 5.0, Some(&said));
        let end = if at.0 > width * 0.7 { "s e" } else { "s" };
        let beside = if at.0 > width * 0.7 { -9.0 } else { 9.0 };
        canvas.text(end, (at.0 + beside, at.1 - 7.0), &name);
        canvas.describe(format!("{said}."));
    }
    canvas.height = foot + 44.0;
    Ok(canvas)
}

fn series(ladder: &Ladder, test: &str, placement: &str, width: f64) -> Result<Canvas, String> {
    let (mut usage, mut steal, mut begins) = (Vec::new(), Vec::new(), Vec::new());
    let mut now = 0.0;
    for concurrency in ladder.concurrencies(test) {
        let rung = ladder.rung(test, concurrency, placement);
        let attempt = rung.and_then(|rung| rung.attempts.iter().find(|attempt| !attempt.series.is_empty()));
        let Some(attempt) = attempt else { continue };
        begins.push((now, concurrency));
        for tick in &attempt.series {
            usage.extend(tick.usage_pct.map(|pct| (now + tick.t_s, pct)));
            steal.extend(tick.steal_pct.map(|pct| (now + tick.t_s, pct)));
        }
        now += attempt.series.last().map_or(0.0, |tick| tick.t_s);
    }
    if begins.is_empty() {
        return Err(format!("The record has no values per second for {test} in {placement}."));
    }
    let mut canvas = Canvas::new(width);
    let key = [("f3", "CPU use"), ("f2", "steal")].map(|(class, name)| (class.to_owned(), name.to_owned()));
    let top = canvas.key(0.0, 0.0, &key) + 22.0;
    let (left, right, foot) = (48.0, width - 8.0, top + 170.0);
    let x = Scale::new((0.0, now), (left, right));
    let y = Scale::new((0.0, 105.0), (foot, top));
    for mark in [0.0, 25.0, 50.0, 75.0, 100.0] {
        canvas.line("grid", (left, y.at(mark)), (right, y.at(mark)));
        canvas.text("s e", (left - 8.0, y.at(mark) + 4.0), &format!("{mark:.0} %"));
    }
    for (from, concurrency) in begins {
        canvas.line("axis", (x.at(from), top), (x.at(from), foot));
        canvas.text("s", (x.at(from) + 3.0, top - 5.0), &concurrency.to_string());
    }
    for mark in round_steps(now, 6.0) {
        canvas.text("s m", (x.at(mark), foot + 18.0), &format!("{} s", trimmed(mark)));
    }
    for (points, class, name) in [(usage, 3, "CPU use"), (steal, 2, "steal")] {
        let most = extent(points.iter().map(|(_, pct)| *pct)).map(|(_, most)| most);
        let points: Vec<(f64, f64)> = points.into_iter().map(|(at, pct)| (x.at(at), y.at(pct))).collect();
        canvas.curve(&format!("d curve thin l{class}"), &points);
        if let Some(most) = most {
            canvas.describe(format!("{name}: up to {most:.0} %."));
        }
    }
    canvas.height = foot + 28.0;
    Ok(canvas)
}
