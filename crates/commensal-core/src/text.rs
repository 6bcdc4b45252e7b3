//! Text for users: safe display of names, columns and tables; and the line and column of a position in a file.
//!
//! A name may contain any character, including characters that move a terminal's cursor, change the direction of the
//! surrounding text or are invisible. commensal never prints such a character as it is: [`visible`] escapes them in a
//! name, [`printable`] in a whole message, and [`json`] in JSON.

use crate::spelling;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

/// Whether a character is hidden, that is, must not be printed as it is: control characters (C0, DEL, C1), direction
/// marks, characters without width or glyph, line separators, and characters that encode a byte ([`spelling`]).
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

/// Appends the escape sequence of a hidden character.
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

/// Escapes all hidden characters, line breaks included, in a name, path or value from outside commensal. A byte that is
/// not UTF-8 becomes `\xff`, a line break `\n`, any other hidden character `\u{202e}`.
#[must_use]
pub fn visible(name: &str) -> Cow<'_, str> {
    shown_if(name, is_hidden)
}

/// A path for display, with hidden characters escaped.
#[must_use]
pub fn path(path: &Path) -> String {
    visible(&spelling::of_path(path)).into_owned()
}

/// Escapes all hidden characters except line breaks in a message that is about to be printed.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    shown_if(text, |one| is_hidden(one) && one != '\n')
}

/// Quotes a word for a POSIX shell, if it needs quotes.
#[must_use]
pub fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", visible(word).replace('\'', "'\\''")),
    }
}

/// A basic string of TOML. Every hidden character is escaped, not only those that TOML forbids.
#[must_use]
pub fn toml(text: &str) -> String {
    let mut quoted = String::from("\"");
    for one in text.chars() {
        let _ = match one {
            '"' | '\\' => write!(quoted, "\\{one}"),
            one if is_hidden(one) => write!(quoted, "\\U{:08X}", u32::from(one)),
            one => write!(quoted, "{one}"),
        };
    }
    quoted + "\""
}

/// Formats a number of things: `1 CPU`, `2 CPUs`. `noun` is the singular of a noun whose plural ends in `s`.
#[must_use]
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Serialises a value as JSON on one line; hidden characters are written as `\u202e`.
///
/// # Errors
/// Returns an error if the value contains a map whose keys are not strings.
pub fn json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string(value).map(escaped)
}

/// Serialises a value as indented JSON; hidden characters are written as `\u202e`.
///
/// # Errors
/// Returns an error if the value contains a map whose keys are not strings.
pub fn json_pretty(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(escaped)
}

/// Escapes hidden characters. In JSON they occur only inside strings: the rest of JSON is ASCII, and its only hidden
/// characters are line breaks.
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
    /// All cells are left-aligned.
    Left,
    /// The first column is left-aligned; the others, which contain numbers, are right-aligned.
    Figures,
}

/// Formats the cells in columns, one line per row: each column is as wide as its widest cell, with two spaces between
/// columns. Rows may differ in length.
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

/// Formats the cells as a Markdown table whose header is the first row. The first `left` columns are left-aligned; the
/// others, which contain numbers, are right-aligned. `escape` escapes the text of a cell.
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

/// Formats a time for a sentence: in seconds if it is below one and a half minutes, otherwise in minutes.
#[must_use]
pub fn rough_time(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// The line and the column (in characters) of a byte offset in `text`, both counted from 1. An `offset` that is not a
/// character boundary of `text` counts as its end.
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
    fn one_thing_and_many() {
        assert_eq!([0u64, 1, 2].map(|number| count(number, "CPU")), ["0 CPUs", "1 CPU", "2 CPUs"]);
    }

    /// A shell reads the quoted word as the word.
    #[test]
    fn words_for_a_shell() {
        for (word, want) in [
            ("/var/lib/commensal", "/var/lib/commensal"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(id)", "'$(id)'"),
            ("it's", "'it'\\''s'"),
        ] {
            assert_eq!(shell(word), want);
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
        // Offsets inside of é, and beyond the end.
        check(2, (2, 3));
        check(99, (2, 3));
    }
}
