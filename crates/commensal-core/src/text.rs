//! Formats text in columns, and finds positions in texts.

/// How cells are aligned in their columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// All cells to the left.
    Left,
    /// The first column to the left, figures to the right.
    Figures,
}

/// Formats the cells in columns as wide as their widest cell, two spaces between, one line per row. Rows may differ in
/// length.
pub fn columns<R: AsRef<[String]>>(rows: &[R], align: Align) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        let row = row.as_ref();
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        let cell = |(column, (cell, &width)): (usize, (&String, &usize))| match align {
            Align::Figures if column > 0 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        };
        let cells: Vec<String> = row.as_ref().iter().zip(&widths).enumerate().map(cell).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Formats the cells as a Markdown table with the first row as its head; the given number of columns is left-aligned,
/// the others (figures) right-aligned. `escape` escapes a cell's text.
pub fn markdown_table<R: AsRef<[String]>>(
    rows: &[R],
    left: usize,
    escape: impl Fn(&str) -> String,
) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let row = row.as_ref();
        out.push_str(&line(row.iter().map(|cell| escape(cell)).collect()));
        if index == 0 {
            let side = |column| if column < left { ":--" } else { "--:" };
            out.push_str(&line((0..row.len()).map(|column| side(column).to_owned()).collect()));
        }
    }
    out
}

/// Line and column, in characters and from 1, of a byte offset in `text`; of the end when `offset` is not a character
/// boundary in it.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_in_columns() {
        let rows =
            [vec!["µs".to_owned(), "P50".to_owned(), "P90".to_owned()], vec!["baseline".into(), "7".into()]];
        assert_eq!(columns(&rows, Align::Figures), "µs        P50  P90\nbaseline    7\n");
        assert_eq!(columns(&rows, Align::Left), "µs        P50  P90\nbaseline  7\n");
        assert_eq!(columns::<Vec<String>>(&[], Align::Left), "");
    }

    #[test]
    fn a_markdown_table_has_one_head() {
        let rows = [["arm", "µs"], ["a|b", "7"]].map(|row| row.map(str::to_owned));
        let text = markdown_table(&rows, 1, |cell| cell.replace('|', "\\|"));
        assert_eq!(text, "| arm | µs |\n| :-- | --: |\n| a\\|b | 7 |\n");
    }

    #[test]
    fn places_count_characters_from_one() {
        let check = |offset, want| assert_eq!(line_and_column("né\n\tx", offset), want, "{offset}");
        check(0, (1, 1));
        check(3, (1, 3));
        check(4, (2, 1));
        check(5, (2, 2));
        // Inside of é, and beyond the end.
        check(2, (2, 3));
        check(99, (2, 3));
    }
}
