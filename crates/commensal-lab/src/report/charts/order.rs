//! The horizontal axis of two charts: positions of blocks in the order of measurement. A block is the measurement of
//! one arm (way of running the service) in one round.

use super::canvas::Canvas;
use super::decoded::DecodedRun;
use super::scale::{Scale, round_steps, trimmed};
use crate::record::{Block, Run};

/// Horizontal extent of each block, and the labels of the axis.
pub struct Order {
    /// Start and end of each block, in pixels.
    pub spans: Vec<(f64, f64)>,
    scale: Scale,
    /// Whether the axis shows time; otherwise it shows the numbers of blocks.
    timed: bool,
    most: f64,
}

impl Order {
    /// Distributes the blocks between two positions, which are in pixels.
    pub fn of(run: &Run, (left, right): (f64, f64)) -> Self {
        let ends: Option<Vec<(f64, f64)>> = run.blocks.iter().map(span).collect();
        // If a block consists of short windows, its windows alternate with those of other arms during the whole round,
        // so the block has no single position in time.
        let in_turn = |ends: &Vec<(f64, f64)>| ends.windows(2).all(|pair| pair[0].0 <= pair[1].0);
        let ends = ends.filter(|ends| run.design.windows.is_none() && in_turn(ends));
        let timed = ends.is_some();
        let counted = || (0..run.blocks.len()).map(|i| (i as f64 + 0.06, i as f64 + 0.94)).collect();
        let ends = ends.unwrap_or_else(counted);
        let most =
            if timed { ends.iter().map(|span| span.1).fold(0.0, f64::max) } else { run.blocks.len() as f64 };
        let scale = Scale::new((0.0, most), (left, right));
        let spans = ends.iter().map(|(from, to)| (scale.at(*from), scale.at(*to))).collect();
        Self { spans, scale, timed, most }
    }

    /// Returns the position, in pixels, of the time `t_s` within a block.
    pub fn within(&self, block: usize, measure_s: f64, t_s: f64) -> f64 {
        let (from, to) = self.spans[block];
        let share = if measure_s > 0.0 { (t_s / measure_s).clamp(0.0, 1.0) } else { 0.0 };
        from + share * (to - from)
    }

    /// Draws the axis below a panel.
    pub fn axis(&self, canvas: &mut Canvas, run: &Run, (left, right): (f64, f64), foot: f64) {
        canvas.line("axis", (left, foot), (right, foot));
        let about = if canvas.is_narrow() { 4.0 } else { 9.0 };
        if self.timed {
            let (unit, name) = if self.most > 300.0 { (60.0, "min") } else { (1.0, "s") };
            for value in round_steps(self.most / unit, about) {
                self.mark(canvas, value * unit, &format!("{} {name}", trimmed(value)), foot);
            }
            return;
        }
        // The label of a round is at the start of the round's first block.
        let rounds =
            run.blocks.iter().map(|block| block.round).max().map_or(1.0, |round| f64::from(round) + 1.0);
        let step = round_steps(rounds, about).get(1).copied().unwrap_or(1.0).max(1.0) as u32;
        let mut last = None;
        for (i, block) in run.blocks.iter().enumerate() {
            if last != Some(block.round)
                && (block.round == 0 || block.round.saturating_add(1).is_multiple_of(step))
            {
                let label = if block.round == 0 {
                    "round 1".to_owned()
                } else {
                    block.round.saturating_add(1).to_string()
                };
                // A label appears only if there is space between it and the label of the first round.
                if block.round == 0 || self.scale.at(i as f64) - self.scale.at(0.0) > 56.0 {
                    self.mark(canvas, i as f64, &label, foot);
                }
            }
            last = Some(block.round);
        }
    }

    fn mark(&self, canvas: &mut Canvas, value: f64, label: &str, foot: f64) {
        let x = self.scale.at(value);
        canvas.line("axis", (x, foot), (x, foot + 4.0));
        let half = label.chars().count() as f64 * 3.6;
        // A label at the left end is left-aligned.
        let middle = x.min(canvas.width() - half);
        canvas.text("s m", (middle, foot + 17.0), label);
    }

    /// Shades the blocks with offline work.
    pub fn shade(&self, canvas: &mut Canvas, seen: &DecodedRun<'_>, (top, foot): (f64, f64)) {
        let mut open: Option<(f64, f64)> = None;
        for (block, (from, to)) in seen.run.blocks.iter().zip(&self.spans) {
            if seen.has_offline(block) {
                open = Some((open.map_or(*from, |(start, _)| start), *to));
            } else if let Some((start, end)) = open.take() {
                canvas.rect("shade", (start, top), (end - start, foot - top));
            }
        }
        if let Some((start, end)) = open {
            canvas.rect("shade", (start, top), (end - start, foot - top));
        }
    }
}

fn span(block: &Block) -> Option<(f64, f64)> {
    let at = block.at_s.filter(|at| at.is_finite() && *at >= 0.0)?;
    Some((at, at + block.measure_s.max(0.0)))
}

/// Returns the arms that have blocks, with their colours.
pub fn arms_key(seen: &DecodedRun<'_>) -> Vec<(String, String)> {
    let arms = seen.run.arms.iter().filter(|arm| seen.run.blocks_of(&arm.name).next().is_some());
    arms.map(|arm| (format!("f{}", seen.colour(&arm.name)), arm.name.clone())).collect()
}
