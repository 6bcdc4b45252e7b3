//! The charts of a run. A chart is either a part of a page, or a standalone SVG.
//!
//! If a chart has no data, a sentence replaces the chart; an empty axis is never drawn.

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
    /// Name of the chart, usable in file names.
    pub name: &'static str,
    /// The chart as SVG.
    pub svg: String,
    /// Why the chart contains a text instead of data; `None` if it has data.
    pub missing: Option<String>,
}

/// A kind of chart, with the function that draws it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// Name of the chart, usable in file names and anchors.
    pub name: &'static str,
    /// Heading of the chart.
    pub title: &'static str,
    draw: fn(&DecodedRun<'_>, f64) -> Result<Canvas, String>,
    caption: fn(&DecodedRun<'_>) -> String,
}

/// All kinds of charts, in the order of a page.
pub(super) const KINDS: [Kind; 5] = [
    Kind {
        name: "ratios",
        title: "Change from the baseline, round by round",
        draw: ratios::draw,
        caption: ratios_caption,
    },
    Kind { name: "spectrum", title: "Latency distribution", draw: spectrum::draw, caption: spectrum_caption },
    Kind {
        name: "timeline",
        title: "Throughput and tail latency over the run",
        draw: timeline::draw,
        caption: timeline_caption,
    },
    Kind { name: "cpu", title: "CPU use", draw: cpu::draw, caption: cpu_caption },
    Kind { name: "waits", title: "What the service waited for", draw: waits::draw, caption: waits_caption },
];

impl Kind {
    /// Returns the chart in a desktop and in a phone layout, as parts of a page, and the caption of the chart. The
    /// error is the reason why the chart cannot be drawn.
    pub(super) fn embedded(&self, seen: &DecodedRun<'_>) -> Result<(String, String, String), String> {
        let svg = |width, id: &str| {
            (self.draw)(seen, width).map(|canvas| canvas.embedded(&format!("{}-{id}", self.name), self.title))
        };
        Ok((svg(WIDE, "w")?, svg(NARROW, "n")?, (self.caption)(seen)))
    }
}

/// Renders all charts of a run as standalone files.
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
        "plus or minus the metric's threshold".to_owned()
    };
    format!(
        "Each dot is one round, the first round at the top: the change of the metric in this arm from the baseline of the \
         same round. The tinted bar is the 95 % interval, and the line in it is the estimate. The grey band is {theta}; \
         outside the band, the scale is logarithmic."
    )
}

fn spectrum_caption(seen: &DecodedRun<'_>) -> String {
    let sizes = seen.merged.iter().flatten().map(|histogram| histogram.len());
    let requests = sizes.fold(0, u64::saturating_add);
    format!(
        "Latency by percentile; the steps from 90 % to 99 % and from 99 % to 99.9 % are equally wide. Only this chart \
         combines all usable blocks of an arm ({} requests in total); all other values and the verdict are computed from \
         pairs of blocks. A curve ends where fewer than 10 requests are slower.",
        count(requests)
    )
}

fn timeline_caption(seen: &DecodedRun<'_>) -> String {
    let by_second = seen.run.blocks.iter().any(|block| block.series.len() > 1);
    let unit = if by_second { "One point per second" } else { "One mark per block" };
    let faint = if seen.run.blocks.iter().any(|block| !block.valid) {
        " Faint marks are invalid blocks, which count in no result."
    } else {
        ""
    };
    let tail = match seen.tail() {
        Some(crate::record::Metric::P99) | None => String::new(),
        Some(metric) => {
            let needed = count(crate::record::Metric::P99.requests_needed());
            format!(
                " {} is shown instead of P99, which needs {needed} requests per block and must be part of the plan.",
                metric.label()
            )
        }
    };
    format!("{unit}, in the order of measurement; blocks with offline work are shaded.{tail}{faint}")
}

fn cpu_caption(seen: &DecodedRun<'_>) -> String {
    format!(
        "Mean CPU use of each block, in the order of measurement; the colour of the strip below a bar shows the arm. The \
         machine has {} CPUs. Steal is CPU time that the hypervisor gave to other guests; it does not count as use.",
        seen.run.machine.threads
    )
}

fn waits_caption(_: &DecodedRun<'_>) -> String {
    "Time that online threads were ready to run but had no CPU, by what occupied the CPU meanwhile. The values are exact \
     sums over all valid blocks of an arm, not samples."
        .to_owned()
}

#[cfg(test)]
mod tests;
