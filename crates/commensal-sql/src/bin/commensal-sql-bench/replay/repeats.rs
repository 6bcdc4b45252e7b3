//! Combines several replays into one set of tables, with the median, minimum and maximum of each cell.

use super::figures::Figure;
use std::fmt::Write;

/// Formats the tables as Markdown, from the values of each repeat.
#[must_use]
pub fn medians(repeats: &[Vec<Figure>]) -> String {
    let mut out = String::new();
    let all = || repeats.iter().flatten();
    for table in distinct(all().map(|figure| figure.table)) {
        let of = |figure: &&Figure| figure.table == table;
        let columns = distinct(all().filter(of).map(|figure| figure.column));
        let _ = write!(out, "\n## {table}\n\n| |");
        for column in &columns {
            let _ = write!(out, " {column} |");
        }
        let _ = write!(out, "\n|---|{}", "---|".repeat(columns.len()));
        for row in distinct(all().filter(of).map(|figure| figure.row.as_str())) {
            let _ = write!(out, "\n| {row} |");
            for column in &columns {
                let cell = all().filter(of).filter(|one| one.row == row && one.column == *column);
                let _ = write!(out, " {} |", cell_text(cell.map(|figure| figure.value).collect()));
            }
        }
        out.push('\n');
    }
    out
}

/// Returns the distinct values, in the order of their first occurrence.
fn distinct<'t>(all: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut seen: Vec<&str> = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

fn cell_text(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else { return "-".to_owned() };
    let text = |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let middle = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
    if least == most {
        text(middle)
    } else {
        format!("{} ({} to {})", text(middle), text(*least), text(*most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_put_together() {
        let figure = |row: &str, column, value| Figure { table: "T", row: row.to_owned(), column, value };
        let repeats: Vec<Vec<Figure>> = [2.0, 1.0, 3.0]
            .map(|value| vec![figure("with", "MiB", value), figure("without", "s", 0.5)])
            .into();
        assert_eq!(
            medians(&repeats),
            "\n## T\n\n| | MiB | s |\n|---|---|---|\n| with | 2 (1 to 3) | - |\n| without | - | 0.50 |\n"
        );
        // With an even number of repeats, the median is between two values.
        assert!(medians(&repeats[..2]).contains("| with | 1.50 (1 to 2) | - |"));
    }
}
