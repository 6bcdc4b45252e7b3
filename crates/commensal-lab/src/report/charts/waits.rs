//! Chart of the waits of online threads for a CPU in each arm (way of running the service), by what occupied the CPU
//! meanwhile. The wait probe measured these waits.

use super::canvas::{Canvas, fitted, text_width};
use super::decoded::DecodedRun;
use super::scale::{Scale, round_steps, trimmed};
use crate::format::three_digits;
use crate::record::{Arm, WaitByKind};

const BAR: f64 = 24.0;

/// Colour, name, and value of a kind of CPU occupant.
type Kind = (&'static str, &'static str, fn(&WaitByKind) -> f64);

/// Kinds of CPU occupants, from the left of a bar to its right.
const KINDS: [Kind; 6] = [
    ("offline", "offline work", |wait| wait.offline),
    ("online", "online work itself", |wait| wait.peers),
    ("other", "other programs", |wait| wait.other),
    ("kernel", "kernel threads", |wait| wait.kernel),
    ("interrupts", "interrupts", |wait| wait.interrupts),
    ("nobody", "no task (the CPU woke up)", |wait| wait.nobody),
];

struct Bar<'a> {
    arm: &'a Arm,
    /// Waiting time by kind of occupant, in milliseconds per second of online CPU time.
    ms: [f64; 6],
    blocks: usize,
}

impl Bar<'_> {
    fn sum(&self) -> f64 {
        self.ms.iter().sum()
    }
}

/// Draws one bar per arm.
pub fn draw(seen: &DecodedRun<'_>, width: f64) -> Result<Canvas, String> {
    let bars: Vec<Bar<'_>> = seen.run.arms.iter().filter_map(|arm| bar(seen, arm)).collect();
    let most = bars.iter().map(Bar::sum).fold(0.0, f64::max);
    if bars.is_empty() {
        return Err(
            "No block has measurements of the wait probe, so it is unknown what the service waited for. \
             The probe needs root and a kernel with BTF, and --no-blame disables it."
                .into(),
        );
    }
    if most <= 0.0 {
        return Err("The probe saw no online thread wait for a CPU in any block.".into());
    }
    let mut canvas = Canvas::new(width);
    let narrow = canvas.is_narrow();
    let shown: Vec<usize> =
        (0..KINDS.len()).filter(|kind| bars.iter().any(|bar| bar.ms[*kind] > 0.0)).collect();
    let key: Vec<(String, String)> =
        shown.iter().map(|kind| (KINDS[*kind].0.to_owned(), KINDS[*kind].1.to_owned())).collect();
    let key_foot = canvas.key(0.0, 0.0, &key);
    // Reserve space below the legend for the tooltips of the bars' parts.
    let (said, top) = ((width, key_foot + 10.0), key_foot + 22.0);
    let (left, right) = if narrow { (0.0, width - 66.0) } else { (150.0, width - 110.0) };
    let x = Scale::new((0.0, most), (left, right));
    let step = BAR + if narrow { 26.0 } else { 12.0 };
    let foot = top + bars.len() as f64 * step;
    for mark in round_steps(most, if narrow { 3.0 } else { 6.0 }) {
        canvas.line(if mark == 0.0 { "axis" } else { "grid" }, (x.at(mark), top), (x.at(mark), foot));
        let label = trimmed(mark);
        canvas.text("s m", (x.at(mark).max(text_width(&label) / 2.0), foot + 15.0), &label);
    }
    for (i, bar) in bars.iter().enumerate() {
        let y = top + i as f64 * step + if narrow { 20.0 } else { 6.0 };
        draw_bar(&mut canvas, seen, bar, (&x, y), said);
    }
    canvas.text("s", (left, foot + 33.0), "ms of wait per second of online CPU time");
    canvas.height = foot + 40.0;
    Ok(canvas)
}

fn bar<'a>(seen: &DecodedRun<'a>, arm: &'a Arm) -> Option<Bar<'a>> {
    let blocks: Vec<_> =
        seen.run.blocks_of(&arm.name).filter(|block| block.valid).filter_map(|block| block.blame).collect();
    let run_s: f64 = blocks.iter().map(|blame| blame.run_s).sum();
    if run_s.is_nan() || run_s <= 0.0 {
        return None;
    }
    let per_second = |of: fn(&WaitByKind) -> f64| {
        let wait: f64 = blocks.iter().map(|blame| of(&blame.wait_s).max(0.0)).sum();
        wait / run_s * 1e3
    };
    Some(Bar { arm, ms: KINDS.map(|(_, _, of)| per_second(of)), blocks: blocks.len() })
}

fn draw_bar(
    canvas: &mut Canvas,
    seen: &DecodedRun<'_>,
    bar: &Bar<'_>,
    (x, y): (&Scale, f64),
    said: (f64, f64),
) {
    let mut from = 0.0;
    let name = format!("b f{}", seen.colour(&bar.arm.name));
    if canvas.is_narrow() {
        canvas.text(&name, (0.0, y - 5.0), &fitted(&bar.arm.name, canvas.width()));
    } else {
        canvas.text(&name, (0.0, y + 16.0), &fitted(&bar.arm.name, 142.0));
    }
    for ((class, words, _), ms) in KINDS.iter().zip(bar.ms) {
        let (start, end) = (x.at(from), x.at(from + ms));
        from += ms;
        if ms <= 0.0 {
            continue;
        }
        // The minimum width makes it possible to select even a thin part on a phone.
        let end = end.max(start + 0.3);
        let tip = format!("{}: {class} {} ms per CPU-second", fitted(&bar.arm.name, 150.0), three_digits(ms));
        canvas.tip(&tip, said, "e", |canvas| {
            canvas.rect(&format!("d gap {class}"), (start, y), (end - start, BAR));
        });
        if end - start > text_width(words) + 8.0 {
            let ink = if matches!(*class, "offline" | "other" | "nobody") { "in" } else { "inw" };
            canvas.text(ink, (start + 6.0, y + 16.0), words);
        }
    }
    canvas.text("b", (x.at(from) + 7.0, y + 16.0), &three_digits(bar.sum()));
    let each: Vec<String> = (KINDS.iter().zip(bar.ms))
        .filter(|(_, ms)| *ms > 0.0)
        .map(|((_, name, _), ms)| format!("{name} {}", three_digits(ms)))
        .collect();
    canvas.describe(format!(
        "{}: {} ms of wait per CPU-second in {} blocks, by what occupied the CPU: {}.",
        bar.arm.name,
        three_digits(bar.sum()),
        bar.blocks,
        each.join(", ")
    ));
}
