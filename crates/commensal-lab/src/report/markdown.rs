//! The report for a pull request or a CI job summary, in Markdown: at most 40 lines. An arm is one of the ways of
//! running the service that the run compares.

use super::summary::summarise;
use super::sweep::curves;
use crate::record::Run;
use commensal_core::text::{markdown_table, printable};

/// Maximum number of lines of the report.
const MAX_LINES: usize = 40;

/// Formats the report as Markdown.
pub fn markdown(run: &Run) -> String {
    let summary = summarise(run);
    let mut lines = vec![format!("**{}** {}", summary.word, escape(&summary.headline)), String::new()];
    for line in &summary.anyway {
        lines.extend([escape(line), String::new()]);
    }
    // Limit the rows, because a run may compare many arms, and the facts and the machine must still fit.
    let mut table = vec![summary.titles];
    table.extend(summary.rows.into_iter().take(MAX_LINES / 4));
    lines.extend(markdown_table(&table, 1, escape).lines().map(str::to_owned));
    lines.push(String::new());
    // The last curve shows the harm with isolation, which is the subject of the verdict.
    if let Some((_, curve)) = curves(run).pop() {
        lines.extend(curve.markdown().lines().map(str::to_owned));
        lines.push(String::new());
    }
    let place = format!(
        "{} on {}, {} CPUs, kernel {}, seed {}, {}",
        run.experiment, run.machine.cpu, run.machine.threads, run.machine.kernel, run.seed, run.started
    );
    let mut items: Vec<String> = summary.facts;
    items.extend(summary.notes);
    let room = MAX_LINES.saturating_sub(lines.len() + 3);
    let more = items.len().saturating_sub(room);
    lines.extend(items.iter().take(room).map(|item| format!("- {}", escape(item))));
    if more > 0 {
        lines.push(format!("- and {more} more in the stored run"));
    }
    lines.push(String::new());
    lines.push(format!("<sub>{}</sub>", escape(&place)));
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// Escapes a name that the user chose, so that the name stays in one table cell and contains no markup.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in printable(&text.replace(['\n', '\r', '\t'], " ")).chars() {
        match c {
            '|' | '*' | '`' | '[' | ']' | '_' | '\\' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude;
    use crate::fixture;

    #[test]
    fn it_has_the_verdict_the_table_and_the_place() {
        let mut run = fixture::small_run();
        conclude(&mut run);
        let text = markdown(&run);
        assert!(text.starts_with("**PASS** with isolation your service's median is at most"), "{text}");
        assert!(text.contains("| :-- | --: |"), "{text}");
        assert!(text.contains("| contended | −33"), "{text}");
        assert!(text.contains("kernel 6.18.0, seed 42"), "{text}");
    }

    #[test]
    fn it_stays_within_forty_lines() {
        let mut run = fixture::small_run();
        conclude(&mut run);
        assert!(markdown(&run).lines().count() <= 40);
        run.notes = (0..100).map(|i| format!("note {i}")).collect();
        let text = markdown(&run);
        assert!(text.lines().count() <= 40, "{}", text.lines().count());
        assert!(text.contains("more in the stored run"));
        let isolated = run.arms[3].clone();
        run.arms.extend((0..60).map(|i| crate::record::Arm { name: format!("i{i}"), ..isolated.clone() }));
        assert!(markdown(&run).lines().count() <= 40);
    }

    #[test]
    fn foreign_text_cannot_break_the_table() {
        assert_eq!(escape("a|b\nc<d"), "a\\|b c&lt;d");
    }
}
