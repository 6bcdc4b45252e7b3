//! The report as a single HTML file, which contains no scripts and loads nothing from the network.
//!
//! The first screen shows the result. The rest of the page shows the measurements on which the result is based. An arm
//! is one of the ways of running the service that the run compares.

mod blocks;
mod glossary;
mod machine;
mod style;
#[cfg(test)]
mod tests;

use super::charts::{DecodedRun, KINDS, escape};
use super::summary::{Summary, summarise};
use super::sweep::curves;
use crate::record::Run;
use crate::record::Verdict;
use std::fmt::Write as _;
pub use style::sheet;

/// Renders the report as an HTML page.
pub fn html(run: &Run) -> String {
    let seen = DecodedRun::of(run);
    let summary = summarise(run);
    let mut body = first_screen(run, &summary);
    for (at, (title, curve)) in curves(run).into_iter().enumerate() {
        let title = escape(&capitalised(run, &title));
        let _ = write!(
            body,
            "<h2 id=\"curve{at}\">{title}</h2>\n{}{}",
            curve.figure(&format!("curve{at}")),
            curve.html_table()
        );
    }
    for kind in KINDS {
        let _ = writeln!(body, "<h2 id=\"{}\">{}</h2>", kind.name, kind.title);
        match kind.embedded(&seen) {
            Ok((wide, narrow, caption)) => {
                let _ = writeln!(
                    body,
                    "<figure><figcaption class=\"caption\">{}</figcaption>\n<div class=\"wide\">{wide}</div>\n\
                     <div class=\"narrow\">{narrow}</div></figure>",
                    escape(&caption)
                );
            }
            Err(why) => {
                let _ = writeln!(body, "<p class=\"absent\">{}</p>", escape(&why));
            }
        }
    }
    body.push_str(&machine::environment(run));
    body.push_str(&in_words(run));
    body.push_str(&blocks::raw(&seen));
    let mut body = glossary::linked(&body);
    let _ = writeln!(
        body,
        "<footer>commensal {}, schema {}. Every value is computed from the blocks in the record.</footer>",
        escape(&run.tool.version),
        escape(&run.schema)
    );
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\">\n<title>{}: {}</title>\n<style>\n{}\n</style></head>\n<body>\n{body}</body>\n</html>\n",
        escape(summary.word),
        escape(&run.experiment),
        sheet()
    )
}

/// Renders verdict, table and facts.
fn first_screen(run: &Run, summary: &Summary) -> String {
    let class = run.verdict.map_or("NONE", Verdict::label);
    // The headline is the result, two spaces, and the measured values in brackets.
    let (claim, evidence) = summary.headline.split_once("  ").unwrap_or((&summary.headline, ""));
    let evidence = evidence.trim_start_matches('(').trim_end_matches(')');
    let mut out = format!(
        "<header><p class=\"kicker\">{} · {} · {}</p>\n<h1 class=\"{class}\">{}</h1>\n<p class=\"headline\">{}</p>\n",
        escape(&run.experiment),
        escape(&run.started),
        escape(&run.machine.cpu),
        escape(summary.word),
        // A line break must not separate a number from its percent sign.
        escape(&capitalised(run, claim)).replace(" %", "\u{a0}%")
    );
    if !evidence.is_empty() {
        let _ = writeln!(out, "<p class=\"evidence\">{}</p>", escape(evidence));
    }
    // If there is no result, the page starts with the reason.
    if !summary.anyway.is_empty() {
        out.push_str(&items(run, "words", summary.anyway.iter()));
    } else if run.verdict == Some(Verdict::Inconclusive) {
        out.push_str(&items(run, "words", run.reasons.iter().take(3)));
    }
    out.push_str("</header>\n");
    out.push_str(&result(summary));
    out.push_str(&items(run, "facts", summary.facts.iter()));
    out
}

fn result(summary: &Summary) -> String {
    let mut rows = vec![summary.titles.clone()];
    rows[0][0] = "arm".to_owned();
    rows.extend(summary.rows.iter().cloned());
    let mut out = table("result", &rows);
    out.push_str(
        "<p class=\"caption\">The row of the baseline has absolute values, which are medians over its blocks. The other rows \
         have changes from the baseline, (arm − baseline) / baseline, paired by round; a positive change of a latency is \
         worse. CPU is the busy share of the machine, and its change is in percentage points. Charts show their values \
         when you point at a mark.</p>\n",
    );
    out
}

/// Maximum number of columns that fit on a desktop page.
const FITS: usize = 10;

/// Renders a table. The first row contains the titles. On a phone, each row is displayed as a card, with each value
/// next to its column title. The ARIA roles are explicit, because browsers drop a table's implicit roles when CSS
/// changes its `display`.
pub(super) fn table(label: &str, rows: &[Vec<String>]) -> String {
    let Some((titles, rows)) = rows.split_first() else { return String::new() };
    // On a phone no table is wider than the screen.
    let hint = "<p class=\"hint desk\">The table is wider than the page; scroll it sideways.</p>";
    let hint = if titles.len() > FITS { hint } else { "" };
    let mut out = format!(
        "{hint}<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table class=\"main{}\" role=\"table\">\n\
         <thead role=\"rowgroup\"><tr role=\"row\">",
        escape(label),
        if titles.len() >= FITS { " many" } else { "" }
    );
    for title in titles {
        let _ = write!(out, "<th scope=\"col\" role=\"columnheader\">{}</th>", escape(title));
    }
    out.push_str("</tr></thead>\n<tbody role=\"rowgroup\">\n");
    for row in rows {
        out.push_str("<tr role=\"row\">");
        for (i, (cell, title)) in row.iter().zip(titles).enumerate() {
            let (cell, title) = (escape(cell), escape(title));
            let _ = if i == 0 {
                write!(out, "<th scope=\"row\" role=\"rowheader\">{cell}</th>")
            } else {
                write!(out, "<td role=\"cell\" data-th=\"{title}\"><span>{cell}</span></td>")
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Renders the notes of the run.
fn in_words(run: &Run) -> String {
    let mut out = String::from("<h2 id=\"words\">Reasons and notes</h2>\n");
    // The analysis copies the recorder's caveats into its notes; this page shows them once.
    let notes: Vec<&String> = run.notes.iter().filter(|note| !run.caveats.contains(note)).collect();
    for (title, said) in [
        ("Why this verdict", run.reasons.iter().collect()),
        ("Limitations of this recording", run.caveats.iter().collect()),
        ("Notes", notes),
    ] {
        if !said.is_empty() {
            let _ = writeln!(out, "<h3>{title}</h3>");
            out.push_str(&items(run, "words", said.into_iter()));
        }
    }
    let corrected = run.blocks.iter().flat_map(|block| {
        block
            .notes
            .iter()
            .map(move |note| format!("round {}, {}: {note}", block.round.saturating_add(1), block.arm))
    });
    let corrected: Vec<String> = corrected.collect();
    if !corrected.is_empty() {
        let more = corrected.len().saturating_sub(MOST_CORRECTIONS);
        out.push_str("<h3>Corrected values</h3>\n");
        out.push_str(&items(run, "words", corrected.iter().take(MOST_CORRECTIONS)));
        if more > 0 {
            let _ = writeln!(out, "<p>and {more} more in the record.</p>");
        }
    }
    if run.reasons.is_empty() && run.caveats.is_empty() && run.notes.is_empty() {
        out.push_str("<p>There are no reasons and no notes.</p>\n");
    }
    out
}

/// Maximum number of block notes on a page.
const MOST_CORRECTIONS: usize = 20;

fn items<'a>(run: &Run, class: &str, said: impl Iterator<Item = &'a String>) -> String {
    let mut out = format!("<ul class=\"{class}\">\n");
    for one in said {
        let _ = writeln!(out, "<li>{}</li>", escape(&capitalised(run, one)));
    }
    out.push_str("</ul>\n");
    out
}

/// Capitalises the first letter of a sentence, unless it begins with the name of an arm.
fn capitalised(run: &Run, text: &str) -> String {
    if run.arms.iter().any(|arm| text.starts_with(&arm.name)) {
        return text.to_owned();
    }
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
