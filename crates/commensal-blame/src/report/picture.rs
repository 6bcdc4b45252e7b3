//! A report as a picture in the style of a flame graph. Each waiting target has a bar whose width is its wait. Above
//! the bar are boxes for the activities that held the CPU during the wait, by kind, and above these boxes those of the
//! cgroups, from outer to inner ones. All boxes have the same scale, so they add up and can be compared. The picture is
//! one file without scripts or external resources.

use super::text::{ms, time, us};
use super::{Delay, Report, Row};
use commensal_core::text::printable;
use std::fmt::Write as _;

/// Width of the picture, in SVG units like all lengths below.
const WIDTH: f64 = 1000.0;
const ROW: f64 = 22.0;
/// Height of the space above a bar that holds the name of the target.
const HEAD: f64 = 26.0;
/// Estimated width of a character in a label.
const CHARACTER: f64 = 6.7;
/// Minimum width of a box. Narrower boxes are left out, which leaves a gap above their parents.
const NARROWEST: f64 = 0.3;

/// A box of the picture, with the boxes above it as its children.
#[derive(Debug, Default, PartialEq)]
struct Node {
    name: String,
    kind: &'static str,
    ms: f64,
    children: Vec<Node>,
}

impl Node {
    fn depth(&self) -> usize {
        1 + self.children.iter().map(Node::depth).max().unwrap_or(0)
    }

    /// Returns the child with this name and kind; creates it if there is none.
    fn child(&mut self, name: &str, kind: &'static str) -> &mut Node {
        let at = self.children.iter().position(|child| child.name == name && child.kind == kind);
        let at = at.unwrap_or_else(|| {
            self.children.push(Node { name: name.to_owned(), kind, ..Node::default() });
            self.children.len() - 1
        });
        &mut self.children[at]
    }

    fn sort(&mut self) {
        self.children.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.name.cmp(&b.name)));
        self.children.iter_mut().for_each(Node::sort);
    }
}

fn tree(name: &str, wait_ms: f64, culprits: &[Row]) -> Node {
    let mut waiter = Node { name: name.to_owned(), kind: "waiter", ms: wait_ms, children: Vec::new() };
    for row in culprits {
        let mut at = waiter.child(in_words(row.kind), row.kind);
        at.ms += row.ms;
        // A row that is not a cgroup needs no box above its kind, unless there are cgroups next to it.
        let parts: Vec<&str> = match row.name.strip_prefix('/') {
            Some(path) => path.split('/').filter(|part| !part.is_empty()).collect(),
            None => vec![row.name.as_str()],
        };
        for part in parts {
            if part != at.name {
                at = at.child(part, row.kind);
                at.ms += row.ms;
            }
        }
        for part in &row.commands {
            at.child(&part.label(), row.kind).ms += part.ms;
        }
    }
    waiter.sort();
    waiter
}

fn in_words(kind: &'static str) -> &'static str {
    match kind {
        "other" => "other work",
        "peers" => "its own peers",
        "offline" => "offline work",
        "kernel" => "kernel threads",
        "nobody" => "nobody (idle wake-up, throttling)",
        "real-time" => "real-time tasks",
        other => other,
    }
}

const STYLE: &str = "\
text{font:12px ui-monospace,monospace;fill:#1b1b1b}.name{font-weight:600;fill:currentColor}rect{stroke:#fff;stroke-width:.6}\
.waiter{fill:#c9d4de}.offline{fill:#e4633c}.other{fill:#edb54a}.peers{fill:#6aa5d8}.kernel{fill:#a58bd0}.nobody{fill:#c8c8c2}\
.interrupts{fill:#62b8a4}.real-time{fill:#d98cb3}";

impl Report {
    /// Draws the picture as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let trees: Vec<Node> =
            self.by_subject.iter().map(|one| tree(&one.name, one.wait_ms, &one.culprits)).collect();
        let widest = trees.iter().map(|tree| tree.ms).fold(0.0, f64::max);
        let height: f64 = trees.iter().map(|tree| HEAD + ROW * tree.depth() as f64 + 8.0).sum();
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"who held the CPU while each service waited\">\n<style>{STYLE}</style>\n"
        );
        let mut top = 0.0;
        for (tree, of) in trees.iter().zip(&self.by_subject) {
            let run = time(of.run_s * 1e3);
            let label = format!("{}: waited {} for a CPU and ran {run}", tree.name, time(tree.ms));
            let _ =
                writeln!(out, "<text class=\"name\" x=\"2\" y=\"{}\">{}</text>", top + 17.0, escape(&label));
            top += HEAD + ROW * tree.depth() as f64;
            if tree.ms > 0.0 {
                draw(&mut out, tree, tree.ms, (0.0, top - ROW), WIDTH / widest);
            }
            top += 8.0;
        }
        out.push_str("</svg>\n");
        out
    }

    /// Formats the report with the picture as one HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        let title = format!("Who made {} wait?", self.subjects.join(", "));
        let mut body = format!("<h1>{}</h1>\n", escape(&title));
        let headline = match (self.wait_ms_per_cpu_s, self.by_others_ms_per_cpu_s) {
            (Some(all), Some(others)) => {
                format!(
                    "<b>{}</b> of wait per CPU-second, of which <b>{}</b> caused by others",
                    ms(all),
                    ms(others)
                )
            }
            _ => "The service had no CPU time.".to_owned(),
        };
        let _ = writeln!(body, "<p class=\"headline\">{headline}</p>");
        let _ = writeln!(
            body,
            "<p>{} on a CPU and {} waiting for one in {:.1} s; {} waits.</p>",
            time(self.run_s * 1e3),
            time(self.wait_ms),
            self.seconds,
            self.waits
        );
        if let Some(verdict) = &self.verdict {
            let because: String = verdict.because.iter().map(|why| format!("; {}", escape(why))).collect();
            let against = escape(&self.against.join(", "));
            let class = verdict.result.replace(' ', "-");
            let _ = writeln!(body, "<p class=\"{class}\">{against}: <b>{}</b>{because}</p>", verdict.result);
        }
        let _ = writeln!(body, "<figure>{}</figure>", self.svg());
        body.push_str("<table><tr><th>who held the CPU meanwhile<th>ms per CPU-second<th>share</tr>\n");
        for row in &self.culprits {
            let value = row.ms_per_cpu_s.map_or_else(String::new, |value| format!("{value:.2}"));
            let share = row.share * 100.0;
            let _ = writeln!(body, "<tr><td>{}<td>{value}<td>{share:.1} %</tr>", escape(&row.label()));
            for part in &row.commands {
                let value = part.ms_per_cpu_s.map_or_else(String::new, |value| format!("{value:.2}"));
                let (name, share) = (escape(&part.label()), part.share * 100.0);
                let _ = writeln!(body, "<tr class=\"part\"><td>{name}<td>{value}<td>{share:.1} %</tr>");
            }
        }
        body.push_str("</table>\n<table><tr><th>delay<th>times<th>P50<th>P90<th>P99</tr>\n");
        body.push_str(&delay("wake-up to running", &self.wake));
        if !self.against.is_empty() {
            body.push_str(&delay("offline work off the CPU", &self.preemption));
        }
        if self.overlap_ms > 0.0 {
            body.push_str(&delay("offline work off an SMT sibling", &self.eviction));
        }
        body.push_str("</table>\n");
        let evidence = &self.evidence;
        let _ = writeln!(
            body,
            "<p class=\"small\">The probe saw {} context switches; the kernel did not report {} of {} switches during waits. The \
             values are exact, not samples: every wait is divided among the tasks that had the CPU meanwhile. They prove \
             that a task made others wait. They do not prove that a task did no harm: even a task without CPU time can make \
             others hold the CPU longer.</p>",
            evidence.switches, evidence.relevant_missed, evidence.relevant
        );
        format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\n<style>{PAGE}</style>\n<body>\n{body}</body></html>\n",
            escape(&title)
        )
    }
}

const PAGE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}.headline{font-size:1.2rem}figure{margin:1.5rem 0;overflow-x:auto}figure svg{min-width:40rem}table{border-collapse:collapse;margin:1rem 0}\
th,td{text-align:right;padding:.15rem .8rem;border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left;padding-left:0}\
td{font-variant-numeric:tabular-nums}.part{font-size:.85rem;opacity:.8}.part td:first-child{padding-left:1.2rem}.over-budget{color:#c0392b}.within-budget{color:#2e8b57}.small{font-size:.85rem;opacity:.8}";

fn delay(name: &str, of: &Delay) -> String {
    let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), us);
    let (p50, p90, p99) = (cell(of.p50_us), cell(of.p90_us), cell(of.p99_us));
    format!("<tr><td>{name}<td>{}<td>{p50}<td>{p90}<td>{p99}</tr>\n", of.count)
}

fn draw(out: &mut String, node: &Node, whole_ms: f64, (x, y): (f64, f64), scale: f64) {
    let width = node.ms * scale;
    if width < NARROWEST {
        return;
    }
    let tip = format!("{}: {} ({:.1} %)", node.name, time(node.ms), node.ms / whole_ms * 100.0);
    let _ = write!(
        out,
        "<g><title>{}</title><rect class=\"{}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{ROW}\"/>",
        escape(&tip),
        node.kind
    );
    let fits = ((width - 6.0) / CHARACTER) as usize;
    if fits >= 3 {
        let cut: String = match node.name.chars().count() > fits {
            true => node.name.chars().take(fits - 1).chain(['…']).collect(),
            false => node.name.clone(),
        };
        let _ = write!(out, "<text x=\"{:.2}\" y=\"{:.2}\">{}</text>", x + 3.0, y + 15.0, escape(&cut));
    }
    out.push_str("</g>\n");
    let mut at = x;
    for child in &node.children {
        draw(out, child, whole_ms, (at, y - ROW), scale);
        at += child.ms * scale;
    }
}

/// Escapes text for HTML and XML, both content and attributes. Names of cgroups and experiments are untrusted.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML 1.0 cannot represent these characters.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, kind: &'static str, ms: f64) -> Row {
        Row { name: name.to_owned(), kind, ms, ms_per_cpu_s: None, share: 0.0, commands: Vec::new() }
    }

    #[test]
    fn groups_lie_upon_their_parents() {
        let rows = [
            row("/batch/etl", "offline", 30.0),
            row("/batch/ml", "offline", 10.0),
            row("/batch", "offline", 2.0),
            row("kernel threads", "kernel", 3.0),
        ];
        let tree = tree("web", 45.0, &rows);
        let kinds: Vec<(&str, f64)> = tree.children.iter().map(|one| (one.name.as_str(), one.ms)).collect();
        assert_eq!(kinds, [("offline work", 42.0), ("kernel threads", 3.0)]);
        let batch = &tree.children[0].children[0];
        assert_eq!((batch.name.as_str(), batch.ms, batch.children.len()), ("batch", 42.0, 2));
        assert_eq!((batch.children[0].name.as_str(), batch.children[0].ms), ("etl", 30.0));
        assert_eq!(tree.depth(), 4);
        assert!(tree.children[1].children.is_empty(), "its kind says it all");
    }

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(escape("a<b>&\"\u{1}"), "a&lt;b&gt;&amp;&quot;\\u{1}");
        let mut out = String::new();
        draw(&mut out, &tree("</text><script>", 5.0, &[row("/x", "other", 5.0)]), 5.0, (0.0, 0.0), 200.0);
        assert!(!out.contains("<script>"), "{out}");
    }
}
