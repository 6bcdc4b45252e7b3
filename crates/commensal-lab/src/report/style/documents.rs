//! The raw values of three documents, the changes that the documents printed, and the correct changes. An arm is one of
//! the ways of running the service that a document compares.

use super::figures::{ArmFigures, Figures};
use super::{Style, layout};
use crate::record::{Metric, Role};
use std::fmt::Write as _;

/// A document that describes an experiment.
#[derive(Debug)]
pub struct Document {
    /// Source and subject.
    pub title: &'static str,
    /// Layout of its table.
    pub style: Style,
    /// The document's error in one sentence, which becomes the footnote of every table in this style.
    pub lesson: &'static str,
    /// Raw values of the arms.
    arms: &'static [Raw],
    /// The changes as printed in the document.
    pub printed: &'static [Printed],
    /// Footnotes of the corrected table.
    footnotes: &'static [&'static str],
}

/// One change that a document printed.
#[derive(Debug, Clone, Copy)]
pub struct Printed {
    /// The arm.
    pub arm: &'static str,
    /// The metric; `None` for CPU use.
    pub metric: Option<Metric>,
    /// The text as printed.
    pub text: &'static str,
    /// How the document computed the value.
    pub how: &'static str,
}

/// Raw values of one arm.
#[derive(Debug)]
struct Raw {
    name: &'static str,
    role: Role,
    /// Requests per second, and latencies in microseconds.
    values: &'static [(Metric, f64)],
    cpu_pct: Option<f64>,
    /// Sum of latencies in seconds, and number of requests.
    totals: Option<(f64, u64)>,
}

/// Returns the document for a style; `None` for the lab's own style.
#[must_use]
pub fn document(style: Style) -> Option<&'static Document> {
    DOCUMENTS.iter().find(|document| document.style == style)
}

impl Document {
    /// Returns the document's values, with recomputed changes.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let arms = self.arms.iter().map(|raw| ArmFigures {
            name: raw.name.to_owned(),
            what: String::new(),
            role: raw.role,
            values: raw.values.iter().copied().collect(),
            cpu_pct: raw.cpu_pct,
            sum_s: raw.totals.map(|(sum, _)| sum),
            count: raw.totals.map(|(_, count)| count),
            changes: Default::default(),
            cpu_change: None,
            failed: false,
        });
        Figures::of_numbers(arms.collect(), self.footnotes)
    }

    /// Formats the corrected table.
    #[must_use]
    pub fn corrected(&self) -> String {
        layout::table(self.style, &self.figures())
    }

    /// Returns the corrected value of a change that the document printed.
    #[must_use]
    pub fn right(&self, cell: &Printed) -> String {
        let figures = self.figures();
        let arm = figures.arms.iter().find(|arm| arm.name == cell.arm);
        let right = arm.and_then(|arm| match cell.metric {
            Some(metric) => arm.changes.get(&metric).cloned(),
            None => arm.cpu_change.clone(),
        });
        right.unwrap_or_default()
    }
}

/// Formats the page with all documents, which is stored as `docs/measurements/documents.md`.
#[must_use]
pub fn page() -> String {
    let mut text = PAGE_HEAD.to_owned();
    for document in &DOCUMENTS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n## {}\n", document.title);
        text.push_str("| arm | metric | printed | correct | error |\n| :-- | :-- | --: | --: | :-- |\n");
        for cell in document.printed {
            let metric = cell.metric.map_or("CPU", Metric::label);
            let right = document.right(cell);
            let _ =
                writeln!(text, "| {} | {metric} | {} | **{right}** | {} |", cell.arm, cell.text, cell.how);
        }
        let _ = write!(text, "\nCorrected table (`--style {}`):\n\n{}", document.style, document.corrected());
    }
    text
}

const PAGE_HEAD: &str = "\
# Three documents, recomputed

Three documents that are often quoted on the cost of co-location print changes that do not follow from their own raw
numbers. The code that prints the lab's tables computed the tables below from those raw numbers; the test
`cargo test -p commensal-lab style` checks every cell. `commensal lab report run.json --style openeuler` prints a run of
the lab in the same layout.
";

const fn cell(arm: &'static str, metric: Metric, text: &'static str, how: &'static str) -> Printed {
    Printed { arm, metric: Some(metric), text, how }
}

const ALONE: &str = "ClickHouse alone";
const STRESSED: &str = "ClickHouse + stress, no isolation";
const ISOLATED: &str = "ClickHouse + stress, isolated";

use Metric::{P50, P75, P90, P95, P99, Qps};

static DOCUMENTS: [Document; 3] = [
    Document {
        title: "openEuler: ClickHouse and stress, cpu.qos_level",
        style: Style::Openeuler,
        lesson: "This layout is from a document that mixed two denominators in one row and lost the sign of slower latencies.",
        arms: &[
            Raw {
                name: ALONE,
                role: Role::Baseline,
                values: &[
                    (Qps, 18.853_412_284_364_512),
                    (P50, 484_905.256),
                    (P90, 728_295.525),
                    (P95, 808_700.418),
                    (P99, 873_945.121),
                ],
                cpu_pct: None,
                totals: None,
            },
            Raw {
                name: STRESSED,
                role: Role::Contended,
                values: &[
                    (Qps, 9.424_028_693_636_205),
                    (P50, 840_476.774),
                    (P90, 1_430_316.688),
                    (P95, 1_457_534.764),
                    (P99, 1_555_646.855),
                ],
                cpu_pct: None,
                totals: None,
            },
            Raw {
                name: ISOLATED,
                role: Role::Isolated,
                values: &[
                    (Qps, 18.825_798_759_270_718),
                    (P50, 485_725.185),
                    (P90, 734_695.906),
                    (P95, 804_118.275),
                    (P99, 887_807.409),
                ],
                cpu_pct: None,
                totals: None,
            },
        ],
        printed: &[
            cell(STRESSED, Qps, "-50%", "right"),
            cell(STRESSED, P50, "-42%", "divided by the value of the arm; sign lost"),
            cell(STRESSED, P90, "-49%", "divided by the value of the arm; sign lost"),
            cell(STRESSED, P99, "-44%", "divided by the value of the arm; sign lost"),
            cell(ISOLATED, Qps, "-0.11%", "computed from values rounded to three decimals"),
            cell(ISOLATED, P50, "-0.21%", "sign lost; computed from values rounded to three decimals"),
            cell(
                ISOLATED,
                P90,
                "-0.96%",
                "sign lost; computed from values rounded to three decimals, divided by the baseline",
            ),
            cell(
                ISOLATED,
                P99,
                "-1.58%",
                "sign lost; computed from values rounded to three decimals, divided by the value of the arm",
            ),
        ],
        footnotes: &[
            "All six latency changes lost their sign, and four of them were divided by the value of the arm instead of the \
             baseline: \"QoS fell by about 50 %\" hides that P90 nearly doubled.",
            "QPS is ten times the printed values (1.885, 0.942, 1.883): with ten queries in flight, a rate of 1.885 per second \
             would mean 5.3 s per query. The load tool divided by the summed time of all queries.",
            "At P95, which the document measured but did not print, the isolated arm is faster than the baseline: the noise is \
             larger than the changes that the document prints to 0.01 %.",
        ],
    },
    Document {
        title: "Alinux: HTTP server and stress-ng, cpu.bvt_warp_ns",
        style: Style::Alinux,
        lesson: "This layout is from a document that used counters and quantiles of one process for both arms, and printed \
                 −0.04 % as 0.4 %.",
        arms: &[
            Raw {
                name: "colocated",
                role: Role::Isolated,
                values: &[(P50, 1557.837), (P90, 1566.839), (P95, 1574.852), (P99, 1671.29)],
                cpu_pct: None,
                totals: Some((7.139_152_625, 4560)),
            },
            Raw {
                name: "baseline",
                role: Role::Baseline,
                values: &[(P50, 1558.533), (P90, 1568.791), (P95, 1575.515), (P99, 1671.29)],
                cpu_pct: None,
                totals: Some((1.563_900_488, 1000)),
            },
        ],
        printed: &[cell(
            "colocated",
            P95,
            "0.4%",
            "ten times too large; sign lost: the co-located service is faster",
        )],
        footnotes: &[
            "P50 −0.0447 %, P90 −0.1244 %, P95 −0.0421 %, P99 0.0000 %: these changes are noise, not interference.",
            "The baseline's sum and count are differences of two scrapes of one process (8.703053113 − 7.139152625 and \
             5560 − 4560). The mean latency is 1.5639 ms in the baseline and 1.5656 ms co-located (+0.11 %); the document \
             does not explain 560 of the co-located requests.",
            "The quantiles of both arms come from one sliding window of ten minutes: their P99 values agree to nine digits.",
            "No arm has offline work without isolation, and CPU pinning and a quota were also on: the values do not show an \
             effect of cpu.bvt_warp_ns.",
        ],
    },
    Document {
        title: "plugsched: nginx and ffmpeg, bvt with noise clean",
        style: Style::Plugsched,
        lesson: "This layout is from a document that truncated its changes instead of rounding them, and gave no change for CPU use.",
        arms: &[
            Raw {
                name: "baseline",
                role: Role::Baseline,
                values: &[(P50, 223.0), (P75, 322.0), (P90, 444.0), (P99, 706.0)],
                cpu_pct: Some(25.15),
                totals: None,
            },
            Raw {
                name: "control",
                role: Role::Contended,
                values: &[(P50, 245.0), (P75, 387.0), (P90, 575.0), (P99, 1700.0)],
                cpu_pct: Some(71.7),
                totals: None,
            },
            Raw {
                name: "experiment",
                role: Role::Isolated,
                values: &[(P50, 224.0), (P75, 338.0), (P90, 504.0), (P99, 880.0)],
                cpu_pct: Some(49.15),
                totals: None,
            },
        ],
        printed: &[
            cell("control", P50, "+9.86%", "truncated instead of rounded"),
            cell("control", P75, "+20.18%", "truncated instead of rounded"),
            cell("control", P90, "+29.50", "correct, but the unit is missing"),
            cell("control", P99, "+140.79", "correct, but the unit is missing"),
            Printed {
                arm: "control",
                metric: None,
                text: "none",
                how: "only the value 71.7 % is given, not its change",
            },
            cell("experiment", P50, "+0.44%", "truncated instead of rounded"),
            cell("experiment", P75, "+4.96%", "truncated instead of rounded"),
            cell("experiment", P90, "+13.51%", "right"),
            cell("experiment", P99, "+24.64%", "truncated instead of rounded"),
            Printed {
                arm: "experiment",
                metric: None,
                text: "none",
                how: "only the value 49.15 % is given, not its change",
            },
        ],
        footnotes: &[
            "Five of eight changes were truncated after two decimals instead of rounded, two lack their unit, and CPU use has no change.",
            "The value 1.7 has one decimal, so the change of P99 without isolation lies between +133.7 % and +147.9 %.",
            "P90 and P99 with isolation are above the 5 % that the article calls acceptable.",
            "The article gives neither throughput nor offline work. If nginx used equal CPU time in all arms, ffmpeg kept 51.6 % of its CPU time.",
        ],
    },
];
