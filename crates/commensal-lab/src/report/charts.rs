//! The charts of a run: in a page, or each alone as SVG.
//!
//! A chart without data shows a sentence instead. An empty axis is never drawn.

mod canvas;
mod cpu;
mod curve;
mod decoded;
mod order;
mod ratios;
mod scale;
mod spectrum;
mod timeline;
mod waits;

pub(super) use canvas::{COLOURS, STYLE};
pub use canvas::{Canvas, NARROW, WIDE, escape, words};
pub(super) use curve::draw as curve_chart;
pub(super) use decoded::DecodedRun;
pub use scale::{Scale, extent, log_steps, round_steps, trimmed};

use crate::format::{count, plain};
use crate::record::Run;

/// A standalone chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// Its name, usable in file names.
    pub name: &'static str,
    /// The SVG.
    pub svg: String,
    /// Why it shows a text instead of data, if so.
    pub missing: Option<String>,
}

/// Name of a chart, and how it is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// Its name, usable in file names and anchors.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    draw: fn(&DecodedRun<'_>, f64) -> Result<Canvas, String>,
    caption: fn(&DecodedRun<'_>) -> String,
}

/// All charts, in the order of a page.
pub(super) const KINDS: [Kind; 5] = [
    Kind {
        name: "ratios",
        title: "Every round against its own baseline",
        draw: ratios::draw,
        caption: ratios_caption,
    },
    Kind {
        name: "spectrum",
        title: "The whole distribution",
        draw: spectrum::draw,
        caption: spectrum_caption,
    },
    Kind { name: "timeline", title: "Over the run", draw: timeline::draw, caption: timeline_caption },
    Kind { name: "cpu", title: "Who used the CPUs", draw: cpu::draw, caption: cpu_caption },
    Kind { name: "waits", title: "Who made the service wait", draw: waits::draw, caption: waits_caption },
];

impl Kind {
    /// The chart in a desktop and a phone layout as parts of a page, with its caption; or why there is none.
    pub(super) fn embedded(&self, seen: &DecodedRun<'_>) -> Result<(String, String, String), String> {
        let svg = |width, id: &str| {
            (self.draw)(seen, width).map(|canvas| canvas.embedded(&format!("{}-{id}", self.name), self.title))
        };
        Ok((svg(WIDE, "w")?, svg(NARROW, "n")?, (self.caption)(seen)))
    }
}

/// Every chart of a run, alone.
pub fn charts(run: &Run) -> Vec<Chart> {
    let seen = DecodedRun::of(run);
    let from =
        format!("{}, {}, {}, kernel {}", run.experiment, run.started, run.machine.cpu, run.machine.kernel);
    let one = |kind: &Kind| {
        let (canvas, missing) = match (kind.draw)(&seen, WIDE) {
            Ok(canvas) => (canvas, None),
            Err(why) => (words(&why), Some(why)),
        };
        Chart { name: kind.name, svg: canvas.alone(kind.title, &from), missing }
    };
    KINDS.iter().map(one).collect()
}

fn ratios_caption(seen: &DecodedRun<'_>) -> String {
    let mut thetas: Vec<String> =
        seen.run.design.gates.iter().map(|gate| plain(seen.run.design.threshold_of(*gate), 0.01)).collect();
    thetas.dedup();
    let theta = if thetas.len() == 1 {
        format!("±{} %", thetas[0].trim_end_matches('0').trim_end_matches('.'))
    } else {
        "the metric's threshold, either way".to_owned()
    };
    format!(
        "Each dot is one round (from top to bottom in time): the metric in this arm over the metric in the baseline of the \
         same round. The tinted bar is the 95 % interval, the line in it the estimate; the grey band is {theta}. The scale \
         is logarithmic beyond the band."
    )
}

fn spectrum_caption(seen: &DecodedRun<'_>) -> String {
    let sizes = seen.merged.iter().flatten().map(|histogram| histogram.len());
    let requests = sizes.fold(0, u64::saturating_add);
    format!(
        "Latency by share of requests; each tenth of the remaining requests has the same width. All usable blocks of an arm \
         are taken together ({} requests in all), for this picture only: every figure and the verdict come from pairs of \
         blocks. Curves end where fewer than 10 requests lie beyond.",
        count(requests)
    )
}

fn timeline_caption(seen: &DecodedRun<'_>) -> String {
    let by_second = seen.run.blocks.iter().any(|block| block.series.len() > 1);
    let unit = if by_second { "Second by second within each block" } else { "One mark per block" };
    let faint = if seen.run.blocks.iter().any(|block| !block.valid) {
        " Faint marks are invalid blocks; they were left out of every figure."
    } else {
        ""
    };
    let tail = match seen.tail() {
        Some(crate::record::Metric::P99) | None => String::new(),
        Some(metric) => {
            let needed = count(crate::record::Metric::P99.requests_needed());
            format!(
                " {} stands in for P99, which needs {needed} requests per block and room in the plan.",
                metric.label()
            )
        }
    };
    format!(
        "{unit}, in the order of measurement; shaded where offline work ran beside the service.{tail}{faint}"
    )
}

fn cpu_caption(seen: &DecodedRun<'_>) -> String {
    format!(
        "Mean CPU use of each block, in the order of measurement; the strip below names the arm. The machine has {} CPUs. \
         Steal is time that the hypervisor gave to others: it is not use.",
        seen.run.machine.threads
    )
}

fn waits_caption(_: &DecodedRun<'_>) -> String {
    "Time that online threads were ready but had no CPU, divided by who had it meanwhile. The scheduler's own bookkeeping, \
     not a sample; all valid blocks of an arm together."
        .to_owned()
}

#[cfg(test)]
mod tests;
