//! A report of a recorded ladder (a series of measurements with more and more sessions): one HTML page with charts in
//! the style of the lab's reports. The page contains no scripts and loads nothing from the network.

mod charts;

use crate::record::Ladder;
use crate::table::{Table, print, table};
use charts::{Kind, kinds};
use commensal_lab::report::draw::{NARROW, WIDE, escape, sheet};
use std::fmt::Write as _;

/// Renders the report as an HTML page.
#[must_use]
pub fn html(ladder: &Ladder) -> String {
    let table = table(ladder);
    let mut body = first_screen(ladder, &table);
    for kind in kinds(ladder) {
        let _ = writeln!(body, "<h2 id=\"{}\">{}</h2>", kind.name, escape(&kind.title));
        match drawn(&kind, ladder, &table) {
            Ok((wide, narrow)) => {
                let _ = writeln!(
                    body,
                    "<figure><figcaption class=\"caption\">{}</figcaption>\n<div class=\"wide\">{wide}</div>\n\
                     <div class=\"narrow\">{narrow}</div></figure>",
                    escape(kind.caption)
                );
            }
            Err(why) => {
                let _ = writeln!(body, "<p class=\"absent\">{}</p>", escape(&why));
            }
        }
    }
    let remarks: Vec<String> =
        print::remarks(&table).into_iter().chain(ladder.notes.iter().cloned()).collect();
    if !remarks.is_empty() {
        body.push_str("<h2 id=\"words\">Notes</h2>\n<ul class=\"words\">\n");
        remarks.iter().for_each(|line| body.push_str(&format!("<li>{}</li>\n", escape(line))));
        body.push_str("</ul>\n");
    }
    body.push_str(&machine(ladder));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\">\n<title>density: {}</title>\n<style>\n{}\n</style></head>\n<body>\n{body}</body>\n</html>\n",
        escape(&ladder.name),
        sheet()
    )
}

fn drawn(kind: &Kind, ladder: &Ladder, table: &Table) -> Result<(String, String), String> {
    let svg = |width, part: &str| {
        (kind.draw)(ladder, table, width)
            .map(|canvas| canvas.embedded(&format!("{}-{part}", kind.name), &kind.title))
    };
    Ok((svg(WIDE, "w")?, svg(NARROW, "n")?))
}

/// A standalone chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// Name of the chart, usable in file names.
    pub name: String,
    /// The chart as SVG, or the reason why it cannot be drawn.
    pub svg: Result<String, String>,
}

/// Renders all charts as standalone files.
#[must_use]
pub fn charts(ladder: &Ladder) -> Vec<Chart> {
    let table = table(ladder);
    let from = [
        Some(ladder.name.clone()),
        ladder.started.clone(),
        ladder.machine.as_ref().map(|one| one.cpu.clone()),
    ];
    let from = from.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let one = |kind: Kind| Chart {
        svg: (kind.draw)(ladder, &table, WIDE).map(|canvas| canvas.alone(&kind.title, &from)),
        name: kind.name,
    };
    kinds(ladder).into_iter().map(one).collect()
}

fn first_screen(ladder: &Ladder, table: &Table) -> String {
    let kicker = [
        Some("density".to_owned()),
        ladder.started.clone(),
        ladder.machine.as_ref().map(|one| one.cpu.clone()),
    ];
    let kicker = kicker.into_iter().flatten().collect::<Vec<_>>().join(" · ");
    let mut out = format!(
        "<header><p class=\"kicker\">{}</p>\n<h1>{}</h1>\n<p class=\"headline\">{}</p>\n</header>\n",
        escape(&kicker),
        escape(&ladder.name),
        escape(&headline(table))
    );
    out.push_str(&grid("times and changes", &print::document_lines(table)));
    out.push_str(
        "<p class=\"caption\">Times are means of the attempts that completed. A change is time / time of the first \
         placement − 1; positive means slower. The second line of medians counts a failed rung (x) as infinite.</p>\n",
    );
    out.push_str(&grid("work per server", &print::capacity_lines(table)));
    out
}

/// Formats the cost (time) and the benefit (work per server) of each placement in one sentence. A placement is a number
/// of VMs on a number of servers.
fn headline(table: &Table) -> String {
    let of = |index: usize| {
        let median = table.medians.first()?.all.get(index)?.as_ref()?.0;
        let name = table.placements.get(index + 1)?;
        let times = table.capacity.iter().find(|one| one.placement == *name)?.times_first?;
        let costs = match median {
            crate::table::Change::Pct(pct) => format!("changes the median time by {pct:+.0} %"),
            crate::table::Change::Failed => "fails at the median rung".to_owned(),
        };
        Some(format!("{name} {costs}, and a server does {times:.1} times the work"))
    };
    let parts: Vec<String> = (0..table.placements.len().saturating_sub(1)).filter_map(of).collect();
    if parts.is_empty() {
        "There is no second placement to compare with the first".to_owned()
    } else {
        format!("{}.", parts.join("; "))
    }
}

/// Formats a table; the first element of `lines` is the header.
fn grid(label: &str, lines: &[Vec<String>]) -> String {
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table class=\"main\">\n",
        escape(label)
    );
    for (index, line) in lines.iter().enumerate() {
        let cell = |(column, text): (usize, &String)| match (index, column) {
            (0, _) => format!("<th scope=\"col\">{}</th>", escape(text)),
            (_, 0) => format!("<th scope=\"row\">{}</th>", escape(text)),
            _ => format!("<td>{}</td>", escape(text)),
        };
        let cells: String = line.iter().enumerate().map(cell).collect();
        let (open, close) = match index {
            0 => ("<thead>", "</thead>\n<tbody>"),
            _ => ("", ""),
        };
        out.push_str(&format!("{open}<tr>{cells}</tr>{close}\n"));
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn machine(ladder: &Ladder) -> String {
    let mut out = String::from("<h2 id=\"machine\">Machine and method</h2>\n<ul class=\"words\">\n");
    let mut line = |text: String| out.push_str(&format!("<li>{}</li>\n", escape(&text)));
    if let Some(machine) = &ladder.machine {
        line(format!(
            "{}, {} cores, {} threads, kernel {}",
            machine.cpu, machine.cores, machine.threads, machine.kernel
        ));
    }
    for placement in &ladder.placements {
        let server = &placement.server;
        let demand = placement.per_server() * ladder.vcpu;
        line(format!(
            "{}: {} VMs of {} vCPU per server, {} servers of {} cores and {} threads: {}{}",
            placement.name,
            placement.per_server(),
            ladder.vcpu,
            placement.servers,
            server.cores,
            server.threads,
            server.scenario(f64::from(demand)),
            if placement.pinned { ", pinned" } else { "" }
        ));
    }
    line(format!("{} repeats in random order, seed {}", ladder.repeats, ladder.seed));
    out.push_str("</ul>\n");
    if let Some(source) = &ladder.source {
        out.push_str(&format!(
            "<details><summary>The experiment</summary><pre>{}</pre></details>\n",
            escape(source)
        ));
    }
    out.push_str("<footer>Every value is computed from the attempts in the record.</footer>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::arenadata;
    use crate::record::{Attempt, Tick};

    #[test]
    fn the_documents_page_has_its_table_its_charts_and_says_what_is_missing() {
        let page = html(&arenadata());
        for want in [
            "1:52:42",
            "x = infinite",
            "S3 changes the median time by +170 %",
            "a server does 3.0 times the work",
        ] {
            assert!(page.contains(want), "{want}");
        }
        // Without values for each second, each of the six charts of CPU use and steal shows a note.
        assert_eq!(page.matches("has no values per second").count(), 6);
        assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("https://"));
        assert!(page.len() < 300_000, "{}", page.len());
    }

    #[test]
    fn use_and_steal_are_drawn_where_they_were_recorded() {
        let mut ladder = arenadata();
        let tick =
            |second: u32| Tick { t_s: f64::from(second), usage_pct: Some(60.0), steal_pct: Some(20.0) };
        let attempt =
            Attempt { seconds: Some(9.0), series: (1..=9).map(tick).collect(), ..Attempt::default() };
        let rung =
            ladder.rungs.iter_mut().find(|rung| rung.test == "Full" && rung.placement == "S2").unwrap();
        (rung.published, rung.attempts) = (None, vec![attempt]);
        let drawn: Vec<String> =
            charts(&ladder).into_iter().filter(|one| one.svg.is_ok()).map(|one| one.name).collect();
        assert_eq!(drawn, ["ladder-lite", "ladder-full", "cost", "use-s2-full"]);
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        let mut ladder = arenadata();
        ladder.name = "</title><script>".to_owned();
        ladder.placements[0].name = "<b>".to_owned();
        ladder
            .rungs
            .iter_mut()
            .filter(|rung| rung.placement == "S1")
            .for_each(|rung| rung.placement = "<b>".to_owned());
        let page = html(&ladder);
        assert!(!page.contains("<script>") && !page.contains("<b>"));
    }
}
