//! The text report for a terminal.

use super::answer::waits;
use super::summary::summarise;
use super::sweep::curves;
use crate::record::Run;
use crate::record::Verdict;
use commensal_core::text::{Align, columns, printable};
use std::fmt::Write as _;

/// Formats the report for a terminal; `colour` requests ANSI colour for the verdict.
pub fn terminal(run: &Run, colour: bool) -> String {
    let summary = summarise(run);
    let paint = match run.verdict {
        _ if !colour => None,
        Some(Verdict::Pass) => Some("1;32"),
        Some(Verdict::Fail | Verdict::Broken) => Some("1;31"),
        Some(Verdict::Inconclusive | Verdict::Invalid) => Some("1;33"),
        None => None,
    };
    let mut out = format!("{}  {}\n", summary.word, summary.headline);
    for line in &summary.anyway {
        let _ = writeln!(out, "{}{line}", " ".repeat(summary.word.len() + 2));
    }
    // In a sweep (one arm for each value of a setting), each value has its own verdict, which is printed below.
    if let Some(waits) = waits(run).filter(|_| run.design.sweep.is_none()) {
        let _ = writeln!(out, "{}{waits}", " ".repeat(summary.word.len() + 2));
    }
    let mut table = vec![summary.titles];
    table.extend(summary.rows);
    out.push_str(&columns(&table, Align::Figures));
    for (title, curve) in curves(run) {
        let _ = write!(out, "{title}\n{}", curve.terminal());
    }
    for fact in summary.facts {
        out.push_str(&fact);
        out.push('\n');
    }
    if !summary.notes.is_empty() {
        out.push_str("notes\n");
    }
    for note in summary.notes {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  {note}");
    }
    if let Some(table) = super::since::table(run) {
        out.push_str(&columns(&table, Align::Figures));
    }
    let out = printable(&out);
    match (paint, out.strip_prefix(summary.word)) {
        (Some(code), Some(rest)) => format!("\x1b[{code}m{}\x1b[0m{rest}", summary.word),
        _ => out.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude;
    use crate::fixture;

    fn report(change: impl Fn(&mut Run)) -> String {
        let mut run = fixture::small_run();
        change(&mut run);
        conclude(&mut run);
        terminal(&run, false)
    }

    #[test]
    fn the_first_screen() {
        let text = report(|_| {});
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("PASS  with isolation your service's median is at most 1."), "{text}");
        assert!(lines[0].contains(" than alone (bound 5 %), its P90 is at most 1."), "{text}");
        assert!(lines[0].contains("; without it P90 is 50 % ["), "{text}");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["QPS", "P50", "P90", "P95", "P99", "CPU", "offline", "work"]);
        assert!(lines[2].starts_with("baseline ") && lines[2].contains(" µs") && lines[2].contains("17.5 %"));
        assert!(lines[3].starts_with("contended ") && lines[3].ends_with("100 %"), "{text}");
        assert!(lines[3].contains("+75.0 pp"), "{text}");
        assert!(lines[4].starts_with("isolated ") && lines[4].ends_with("81 %"), "{text}");
        assert!(lines[5].starts_with("noise floor, from two identical arms: QPS "), "{text}");
        assert!(
            lines[7].starts_with("isolation removes 9") && lines[7].contains("of the P90 harm"),
            "{text}"
        );
        assert_eq!(
            lines[8],
            "isolation keeps 81 % [81, 81] of the offline work and uses 85 % of the CPU time that online work leaves"
        );
        assert!(text.contains("P99 is not printed: the largest block has 1 000 requests"), "{text}");
        let width = |line: &str| line.chars().count();
        assert!(lines[1..5].iter().all(|line| width(line) == width(lines[1])), "{text}");
    }

    #[test]
    fn a_stored_run_gives_the_same_text() {
        let mut run = fixture::small_run();
        conclude(&mut run);
        let again = Run::from_json(run.to_json().unwrap().as_bytes()).unwrap();
        assert_eq!(terminal(&again, false), terminal(&run, false));
    }

    #[test]
    fn colour_is_only_there_when_asked_for() {
        let mut run = fixture::small_run();
        assert!(terminal(&run, true).starts_with("NO VERDICT"));
        conclude(&mut run);
        assert!(terminal(&run, true).starts_with("\x1b[1;32mPASS\x1b[0m  "));
        assert!(!terminal(&run, false).contains('\x1b'));
    }

    #[test]
    fn a_crashed_arm_shows_crosses() {
        let text = report(|run| {
            run.blocks.iter_mut().filter(|b| b.arm == "isolated").for_each(|b| b.online_crashed = true);
        });
        assert!(text.starts_with("BROKEN  the online service failed under isolation"), "{text}");
        let row = text.lines().find(|line| line.starts_with("isolated")).unwrap();
        assert_eq!(row.matches(" x").count(), 5, "{text}");
    }

    #[test]
    fn an_invalid_run_claims_nothing() {
        let text = report(|run| {
            for block in run.blocks.iter_mut().filter(|b| b.arm == "baseline2") {
                block.load.achieved_per_s = block.load.achieved_per_s.map(|qps| qps * 0.7);
            }
        });
        assert!(text.starts_with("INVALID  the measurement is invalid"), "{text}");
        assert!(!text.contains("removes") && !text.contains("keeps"), "{text}");
        assert!(text.contains("the two identical arms differ significantly on QPS, by −30.0"), "{text}");
    }

    #[test]
    fn missing_figures_are_dashes_and_never_zero() {
        let text = report(|run| {
            for block in &mut run.blocks {
                block.cpu = Default::default();
                block.work = Default::default();
            }
        });
        let row = text.lines().find(|line| line.starts_with("isolated")).unwrap();
        assert!(row.ends_with("–") && row.matches('–').count() == 4, "{text}");
        assert!(text.contains("offline work kept is unknown"), "{text}");
    }
}
