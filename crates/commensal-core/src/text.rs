//! Texts that people read, and places in texts that they wrote: names of others as something that can be seen, columns, tables.
//!
//! A name may have any characters, also those that move a terminal's cursor, turn the direction of the text around them or are
//! not drawn. None of them is ever printed: [`visible`] is what a name looks like in a text, [`printable`] the same for a text
//! of ours that is about to be printed, and [`json`] a JSON text without them.

use crate::spelling;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

/// Whether a character is never printed as it is: controls (C0, DEL, C1), marks of direction, characters without a width or a
/// glyph, ends of lines, and those that stand for a byte ([`spelling`]).
#[must_use]
pub fn is_hidden(one: char) -> bool {
    match one {
        ' '..='~' => false,
        one if one.is_control() => true,
        '\u{ad}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        one => spelling::byte(one).is_some(),
    }
}

/// A hidden character as people write it.
fn push_hidden(out: &mut String, one: char) {
    let _ = match (one, spelling::byte(one)) {
        (_, Some(byte)) => write!(out, "\\x{byte:02x}"),
        ('\n', _) => write!(out, "\\n"),
        ('\r', _) => write!(out, "\\r"),
        ('\t', _) => write!(out, "\\t"),
        _ => write!(out, "\\u{{{:x}}}", u32::from(one)),
    };
}

fn shown_if(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        if hidden(one) { push_hidden(&mut out, one) } else { out.push(one) }
    }
    Cow::Owned(out)
}

/// A name, path or value of somebody else in a text for people: one line, in which everything can be seen. A byte that is no
/// UTF-8 is `\xff`, a line break `\n`, any other hidden character `\u{202e}`.
#[must_use]
pub fn visible(name: &str) -> Cow<'_, str> {
    shown_if(name, is_hidden)
}

/// A path in a text for people.
#[must_use]
pub fn path(path: &Path) -> String {
    visible(&spelling::of_path(path)).into_owned()
}

/// A whole text for people, with its lines, such as is about to be printed.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    shown_if(text, |one| is_hidden(one) && one != '\n')
}

/// A value as JSON in one line, which has no hidden characters but as `\u202e`.
///
/// # Errors
/// When the value has maps whose keys are no texts.
pub fn json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string(value).map(escaped)
}

/// The same in indented lines.
///
/// # Errors
/// When the value has maps whose keys are no texts.
pub fn json_pretty(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(escaped)
}

/// Outside its texts JSON has only ASCII, and of the hidden characters only line breaks.
fn escaped(json: String) -> String {
    let hidden = |one| is_hidden(one) && one != '\n';
    if !json.contains(hidden) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 32);
    for one in json.chars() {
        if hidden(one) {
            for unit in one.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(one);
        }
    }
    out
}

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
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        let check = |name: &str, want: &str| assert_eq!(visible(name), want);
        check("/batch/etl 1", "/batch/etl 1");
        check("größe\u{301}", "größe\u{301}");
        check("a\u{10ffff}\u{10ff80}", "a\\xff\\x80");
        check("a\nb\r\tc\u{1b}[2J", "a\\nb\\r\\tc\\u{1b}[2J");
        check("\u{85}\u{9b}\u{7f}\u{0}", "\\u{85}\\u{9b}\\u{7f}\\u{0}");
        check("\u{202e}\u{feff}\u{200b}\u{61c}\u{2028}", "\\u{202e}\\u{feff}\\u{200b}\\u{61c}\\u{2028}");
        check("system-x\\x2dy.slice", "system-x\\x2dy.slice");
        assert_eq!(printable("a\n\tb\r\u{1b}"), "a\n\\tb\\r\\u{1b}");
    }

    proptest! {
        #[test]
        fn json_hides_nothing_and_loses_nothing(name in any::<String>(), odd in "[\u{0}-\u{9f}\u{200b}-\u{206f}\u{feff}\u{10ff80}-\u{10ffff}]{0,20}") {
            let name = name + &odd;
            for text in [json(&name).unwrap(), json_pretty(&[&name]).unwrap().replace('\n', "")] {
                prop_assert!(!text.contains(is_hidden), "{}", text);
                let read: serde_json::Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(read.as_str().or(read[0].as_str()), Some(name.as_str()));
            }
            prop_assert!(!visible(&name).contains(is_hidden));
        }
    }

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
