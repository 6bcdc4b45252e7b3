//! Chart of the CPU use in each block: by online work, by offline work, by everything else, and steal. A block is the
//! measurement of one arm (way of running the service) in one round.

use super::canvas::Canvas;
use super::decoded::DecodedRun;
use super::order::{Order, arms_key};
use super::scale::{Scale, round_steps, trimmed};
use crate::record::{Block, CpuUse};
use crate::stats::median;

const HEIGHT: f64 = 150.0;

/// Colour, name, and value of a kind of CPU use.
type Kind = (&'static str, &'static str, fn(&CpuUse) -> Option<f64>);

/// Kinds of CPU use, from the bottom of a bar to its top.
const KINDS: [Kind; 4] = [
    ("online", "online", |cpu| cpu.online),
    ("offline", "offline", |cpu| cpu.offline),
    ("other", "everything else", |cpu| cpu.other),
    ("steal", "steal (taken by the hypervisor)", |cpu| cpu.steal),
];

/// Draws one bar per block.
pub fn draw(seen: &DecodedRun<'_>, width: f64) -> Result<Canvas, String> {
    let total = |block: &Block| -> f64 { KINDS.iter().filter_map(|(_, _, of)| known(of(&block.cpu))).sum() };
    let highest = seen.run.blocks.iter().map(total).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Err("No block has a CPU use: on this machine, the run could not read CPU accounting.".into());
    }
    let mut canvas = Canvas::new(width);
    let (left, right) = (54.0, width - 4.0);
    let has = |of: &fn(&CpuUse) -> Option<f64>| seen.run.blocks.iter().any(|block| of(&block.cpu).is_some());
    let shown: Vec<_> = KINDS.iter().filter(|(_, _, of)| has(of)).collect();
    let key: Vec<(String, String)> =
        shown.iter().map(|(class, name, _)| ((*class).to_owned(), (*name).to_owned())).collect();
    // Reserve space below the legend for the tooltips of blocks.
    let key_foot = canvas.key(0.0, 0.0, &key);
    let said = (right, key_foot + 10.0);
    let top = key_foot + if canvas.is_narrow() { 34.0 } else { 20.0 };
    let foot = top + HEIGHT;
    let machine = f64::from(seen.run.machine.threads);
    let most = highest.max(machine) * 1.04;
    let y = Scale::new((0.0, most), (foot, top));
    for mark in round_steps(most, 4.0) {
        canvas.line("grid", (left, y.at(mark)), (right, y.at(mark)));
        let unit = if mark == 0.0 { "" } else { " CPU" };
        canvas.text("s e", (left - 8.0, y.at(mark) + 4.0), &format!("{}{unit}", trimmed(mark)));
    }
    let order = Order::of(seen.run, (left, right));
    for (block, (from, to)) in seen.run.blocks.iter().zip(&order.spans) {
        let (mut below, faint) = (0.0, if block.valid { "" } else { " inv" });
        canvas.tip(&words(seen, block, canvas.is_narrow()), said, "e", |canvas| {
            for (class, _, of) in &shown {
                let cpus = known(of(&block.cpu)).unwrap_or_default();
                let (base, tip) = (y.at(below), y.at(below + cpus));
                below += cpus;
                if base - tip >= 0.2 {
                    canvas.rect(
                        &format!("d {class}{faint}"),
                        (*from, tip),
                        ((to - from).max(1.0), base - tip),
                    );
                }
            }
        });
        let arm = format!("f{}", seen.colour(&block.arm));
        canvas.rect(&arm, (*from, foot + 3.0), ((to - from).max(1.0), 5.0));
    }
    if machine > 0.0 {
        canvas.line("axis", (left, y.at(machine)), (right, y.at(machine)));
    }
    order.axis(&mut canvas, seen.run, (left, right), foot + 10.0);
    canvas.height = canvas.key(left, foot + 38.0, &arms_key(seen));
    describe(&mut canvas, seen);
    Ok(canvas)
}

/// Formats `round 3, isolated: online 0.81, offline 1.02, other 0.10, steal 0.00 CPUs`, in two lines if the chart is
/// narrow.
fn words(seen: &DecodedRun<'_>, block: &Block, narrow: bool) -> String {
    let each: Vec<String> = (KINDS.iter())
        .filter_map(|(class, _, of)| {
            Some(format!("{class} {:.2}", of(&block.cpu).filter(|cpus| cpus.is_finite())?))
        })
        .collect();
    let between = if narrow { "\n" } else { " " };
    format!("{}:{between}{} CPUs", seen.place(block), each.join(", "))
}

fn known(cpus: Option<f64>) -> Option<f64> {
    cpus.filter(|cpus| cpus.is_finite() && *cpus > 0.0)
}

fn describe(canvas: &mut Canvas, seen: &DecodedRun<'_>) {
    for arm in &seen.run.arms {
        let mut said = Vec::new();
        for (_, name, of) in KINDS {
            let values = seen.run.blocks_of(&arm.name).filter_map(|block| of(&block.cpu));
            let values: Vec<f64> = values.filter(|cpus| cpus.is_finite()).collect();
            said.extend(median(&values).map(|cpus| format!("{name} {cpus:.2}")));
        }
        if !said.is_empty() {
            canvas.describe(format!("{}: {} CPUs (medians over blocks).", arm.name, said.join(", ")));
        }
    }
}
