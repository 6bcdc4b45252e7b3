//! The harm at each value of a sweep: the data, a table in every format, and an HTML page. A sweep is a run with one
//! arm for each value of a limit, or for each intensity of the offline work. A gate is a metric that determines the
//! verdict.
//!
//! The caller fills a `Curve`; this module reads nothing from the machine. The chart is in `charts::curve`.

use super::charts::{Canvas, NARROW, WIDE, curve_chart, escape, trimmed, words};
use super::html::sheet;
use super::markdown::escape as markdown_escape;
use super::points::{Curve, CurveGate, CurvePoint};
use crate::format::plain;
use crate::record::{Metric, Verdict};
use commensal_core::text::{Align, columns, markdown_table};
use std::collections::BTreeSet;
use std::fmt::Write as _;

impl Curve {
    /// Returns the gates of all points, each once, in the order in which they are printed.
    pub fn metrics(&self) -> Vec<Metric> {
        let used: BTreeSet<Metric> =
            self.points.iter().flat_map(|point| point.gates.iter().map(|gate| gate.metric)).collect();
        used.into_iter().collect()
    }

    /// Returns the points in ascending order of their values.
    pub fn sorted(&self) -> Vec<&CurvePoint> {
        let mut points: Vec<&CurvePoint> = self.points.iter().collect();
        points.sort_by(|a, b| a.at.total_cmp(&b.at));
        points
    }

    /// Returns the threshold of a gate in per cent.
    pub fn threshold_pct(&self, metric: Metric) -> Option<f64> {
        self.thresholds_pct.iter().find(|(of, _)| *of == metric).map(|(_, theta)| *theta)
    }

    /// Formats the title of the axis, such as `cpu.max, %`.
    pub(super) fn axis_title(&self) -> String {
        if self.unit.is_empty() { self.what.clone() } else { format!("{}, {}", self.what, self.unit) }
    }

    /// Returns the rows of the table; the first row is the header.
    pub fn table(&self) -> Vec<Vec<String>> {
        let metrics = self.metrics();
        let kept = self.points.iter().any(|point| point.offline_kept_pct.is_some());
        let mut titles = vec![self.what.clone(), "verdict".to_owned()];
        titles.extend(metrics.iter().map(|metric| match self.threshold_pct(*metric) {
            Some(theta) => format!("{} (bound {} %)", metric.label(), trimmed(theta)),
            None => metric.label().to_owned(),
        }));
        titles.extend(kept.then(|| "offline work".to_owned()));
        let mut rows = vec![titles];
        for point in self.sorted() {
            let verdict = point.verdict.map_or("–", Verdict::label);
            let mut row = vec![point.label.clone(), verdict.to_owned()];
            let cell = |metric: &Metric| point.gate(*metric).map_or("–".to_owned(), CurveGate::words);
            row.extend(metrics.iter().map(cell));
            let share =
                || point.offline_kept_pct.map_or("–".to_owned(), |pct| format!("{} %", plain(pct, 1.0)));
            row.extend(kept.then(share));
            rows.push(row);
        }
        rows
    }

    /// Formats the table for a terminal.
    pub fn terminal(&self) -> String {
        columns(&self.table(), Align::Figures)
    }

    /// Formats the table as Markdown.
    pub fn markdown(&self) -> String {
        markdown_table(&self.table(), 2, markdown_escape)
    }

    /// Formats CSV with one row per value and gate; missing values are empty.
    pub fn csv(&self) -> String {
        let mut out =
            "what,unit,at,label,verdict,metric,threshold_pct,harm_pct,ci95_low_pct,ci95_high_pct,offline_kept_pct\n"
                .to_owned();
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for point in self.sorted() {
            for gate in &point.gates {
                let cells = [
                    super::csv::quoted(&self.what),
                    super::csv::quoted(&self.unit),
                    point.at.to_string(),
                    super::csv::quoted(&point.label),
                    point.verdict.map_or("", Verdict::label).to_owned(),
                    gate.metric.label().to_lowercase(),
                    number(self.threshold_pct(gate.metric)),
                    gate.harm_pct.to_string(),
                    number(gate.ci95.map(|[lo, _]| lo)),
                    number(gate.ci95.map(|[_, hi]| hi)),
                    number(point.offline_kept_pct),
                ];
                let _ = writeln!(out, "{}", cells.join(","));
            }
        }
        out
    }

    fn title(&self) -> String {
        format!("Harm over {}", self.what)
    }

    /// Renders the chart as a standalone file; `from` is the name of the run. If there is nothing to draw, the file
    /// contains a text instead.
    pub fn svg(&self, from: &str) -> String {
        curve_chart(self, WIDE).unwrap_or_else(|why| words(&why)).alone(&self.title(), from)
    }

    /// Renders the chart with its caption in a desktop and a phone layout, as part of a page. `id` must be unique on
    /// the page.
    pub fn figure(&self, id: &str) -> String {
        let draw = |width, which: &str| -> Result<String, String> {
            let canvas: Canvas = curve_chart(self, width)?;
            Ok(canvas.embedded(&format!("{id}-{which}"), &self.title()))
        };
        match (draw(WIDE, "w"), draw(NARROW, "n")) {
            (Ok(wide), Ok(narrow)) => format!(
                "<p class=\"caption\">One line for each gate. Vertical bars are 95 % intervals; the dashed line is the \
                 threshold, beyond which the scale is logarithmic. Values above zero mean worse, also for \
                 throughput.</p>\n<figure><div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div></figure>\n"
            ),
            (Err(why), _) | (_, Err(why)) => format!("<p class=\"absent\">{}</p>\n", escape(&why)),
        }
    }

    /// Renders the table as part of a page; on a phone its rows are displayed as cards.
    pub fn html_table(&self) -> String {
        super::html::table("curve", &self.table())
    }

    /// Renders a complete page; `from` is the name of the run.
    pub fn html(&self, from: &str) -> String {
        let title = escape(&self.title());
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{}\n</style>\n</head>\n<body>\n<p class=\"kicker\">{}</p>\n<h1>{title}</h1>\n{}{}</body>\n</html>\n",
            sheet(),
            escape(from),
            self.figure("curve"),
            self.html_table(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sweep of a limit in which a higher limit causes more harm and allows more offline work.
    fn curve() -> Curve {
        let point = |at: f64, p90: f64, verdict, kept| CurvePoint {
            at,
            label: format!("{at} %"),
            verdict: Some(verdict),
            gates: vec![
                CurveGate { metric: Metric::P90, harm_pct: p90, ci95: Some([p90 - 3.0, p90 + 3.0]) },
                CurveGate { metric: Metric::Qps, harm_pct: p90 / 10.0, ci95: None },
            ],
            offline_kept_pct: kept,
        };
        Curve {
            what: "cpu.max".into(),
            unit: "%".into(),
            thresholds_pct: vec![(Metric::P90, 5.0), (Metric::Qps, 5.0)],
            points: vec![
                point(80.0, 120.0, Verdict::Fail, Some(81.4)),
                point(20.0, 1.0, Verdict::Pass, Some(19.0)),
                point(50.0, 6.0, Verdict::Inconclusive, None),
            ],
        }
    }

    #[test]
    fn the_table_has_every_point_and_gate() {
        let text = curve().terminal();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[0]), "cpu.max verdict QPS (bound 5 %) P90 (bound 5 %) offline work");
        assert_eq!(words(lines[1]), "20 % PASS −0.1 % +1.0 % [−2.0, +4.0] 19 %");
        assert_eq!(words(lines[2]), "50 % INCONCLUSIVE −0.6 % +6.0 % [+3.0, +9.0] –");
        assert_eq!(words(lines[3]), "80 % FAIL −10.7 % +120.0 % [+117.0, +123.0] 81 %");
        assert_eq!(curve().markdown().lines().count(), 5);
        let csv = curve().csv();
        let columns = csv.lines().next().unwrap().split(',').count();
        assert_eq!(csv.lines().count(), 7);
        assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
        assert!(csv.contains("cpu.max,%,80,80 %,FAIL,p90,5,120,117,123,81.4"), "{csv}");
    }

    #[test]
    fn the_page_holds_the_table_and_both_pictures() {
        let text = curve().html("quickstart & others");
        assert!(
            text.contains("<div class=\"narrow\"><svg") && text.contains("quickstart &amp; others"),
            "{text}"
        );
        for row in curve().table() {
            for cell in row {
                assert!(text.contains(&escape(&cell)), "{cell}");
            }
        }
        assert_eq!(text.matches("class=\"d pt").count(), 2 * (6 + 2), "gates and work kept, twice");
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        let nothing = Curve { points: Vec::new(), ..curve() };
        assert!(nothing.html("x").contains("class=\"absent\""));
        assert!(nothing.svg("x").contains("at any value of cpu.max"));
        let mut wild = curve();
        wild.points[0].at = f64::NAN;
        wild.points[1].gates[0].harm_pct = f64::INFINITY;
        wild.points[2].gates[0].ci95 = Some([f64::NEG_INFINITY, f64::NAN]);
        wild.what = "</title><script>".into();
        for text in [wild.html("<script>"), wild.svg("<script>")] {
            assert!(!text.contains("NaN") && !text.contains("<script"), "{text}");
        }
    }

    #[test]
    fn a_point_is_what_the_run_says() {
        let run = crate::fixture::concluded(12, [0.0, 0.5, 0.2], 0.01);
        let point = CurvePoint::of(&run, "isolated", 30.0, "30 %");
        assert_eq!(point.verdict, Some(Verdict::Fail));
        assert_eq!(point.gates.len(), run.design.gates.len());
        let harm = run.comparison("isolated", "baseline", Metric::P90).unwrap().harm_pct;
        assert_eq!(point.gate(Metric::P90).unwrap().harm_pct, harm);
        let contended = CurvePoint::of(&run, "contended", 30.0, "30 %");
        assert!(contended.verdict.is_none() && contended.gate(Metric::P90).unwrap().harm_pct > 30.0);
    }
}
