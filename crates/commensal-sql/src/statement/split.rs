//! Splits SQL text at its semicolons, following MySQL's rules for quotes and comments.

use super::quotes::in_backticks;
use commensal_core::text::line_and_column;
use std::borrow::Cow;
use std::iter::Peekable;
use std::str::CharIndices;

/// Splits `text` into statements, without semicolons and surrounding whitespace. Empty statements are dropped. A
/// comment line that begins with `//` before a statement is dropped, too: MySQL does not allow such lines, but
/// documents use them.
#[must_use]
pub fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' | '"' | '`' => skip_quoted(&mut characters, character),
            '#' => skip_line(&mut characters),
            '-' if starts_comment(&text[at..]) => skip_line(&mut characters),
            '/' if text[at..].starts_with("/*") => skip_comment(&mut characters),
            '/' if text[at..].starts_with("//") && text[start..at].trim().is_empty() => {
                skip_line(&mut characters);
                start = characters.peek().map_or(text.len(), |(next, _)| *next);
            }
            ';' => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns the text with spaces in place of the marks of comments that MySQL executes: `/*!40101` and their `*/`. Comments for
/// versions after ours stay comments.
pub(super) fn with_executed_comments(text: &str) -> Cow<'_, str> {
    if !text.contains("/*!") {
        return Cow::Borrowed(text);
    }
    let mut plain = text.as_bytes().to_owned();
    let mut characters = text.char_indices().peekable();
    let mut is_inside = false;
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' | '"' | '`' => skip_quoted(&mut characters, character),
            '#' => skip_line(&mut characters),
            '-' if starts_comment(&text[at..]) => skip_line(&mut characters),
            '/' if text[at..].starts_with("/*!") && !is_inside => {
                let version = text[at + 3..].bytes().take_while(u8::is_ascii_digit).take(6).count();
                if text[at + 3..at + 3 + version].parse::<u32>().is_ok_and(|version| version > VERSION) {
                    // The parser executes all of them.
                    plain[at + 2] = b' ';
                    skip_comment(&mut characters);
                    continue;
                }
                plain[at..at + 3 + version].fill(b' ');
                is_inside = true;
                characters.next();
                characters.next();
            }
            '/' if text[at..].starts_with("/*") => skip_comment(&mut characters),
            '*' if is_inside && text[at..].starts_with("*/") => {
                plain[at..at + 2].fill(b' ');
                is_inside = false;
                characters.next();
            }
            _ => {}
        }
    }
    String::from_utf8(plain).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Returns the text with names in backticks in place of those in double quotes, as `ANSI_QUOTES` means them.
#[must_use]
pub fn with_quoted_names(text: &str) -> Cow<'_, str> {
    if !text.contains('"') {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len());
    let mut characters = text.char_indices().peekable();
    let mut kept = 0;
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' | '`' => skip_quoted(&mut characters, character),
            '#' => skip_line(&mut characters),
            '-' if starts_comment(&text[at..]) => skip_line(&mut characters),
            '/' if text[at..].starts_with("/*") && !text[at..].starts_with("/*!") => {
                skip_comment(&mut characters);
            }
            '"' => {
                written.push_str(&text[kept..at]);
                let mut name = String::new();
                let mut end = None;
                // A backslash has no meaning in a name, and two quotes are one.
                while let Some((at, character)) = characters.next() {
                    if character == '"' && characters.next_if(|(_, next)| *next == '"').is_none() {
                        end = Some(at + 1);
                        break;
                    }
                    name.push(character);
                }
                // A name without an end is an error, which the parser reports.
                let Some(end) = end else { return Cow::Borrowed(text) };
                written.push_str(&in_backticks(&name));
                kept = end;
            }
            _ => {}
        }
    }
    written.push_str(&text[kept..]);
    Cow::Owned(written)
}

/// The version of MySQL whose comments are executed: 8.0.33.
const VERSION: u32 = 80_033;

/// Returns the line and column (both from 1) at which `part`, a slice of `text`, begins.
pub(super) fn position(text: &str, part: &str) -> (u64, u64) {
    let offset = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let (line, column) = line_and_column(text, offset);
    (line as u64, column as u64)
}

/// Whether a comment starts at the beginning of the text. Two dashes start a comment only if whitespace or the end of
/// the text follows.
pub(super) fn starts_comment(text: &str) -> bool {
    text.strip_prefix("--").is_some_and(|rest| rest.chars().next().is_none_or(char::is_whitespace))
}

pub(super) fn skip_quoted(characters: &mut Peekable<CharIndices<'_>>, quote: char) {
    while let Some((_, character)) = characters.next() {
        if character == quote {
            return; // A doubled quote begins the next quoted piece.
        }
        if character == '\\' && quote != '`' {
            characters.next();
        }
    }
}

pub(super) fn skip_line(characters: &mut Peekable<CharIndices<'_>>) {
    for (_, character) in characters.by_ref() {
        if character == '\n' {
            return;
        }
    }
}

pub(super) fn skip_comment(characters: &mut Peekable<CharIndices<'_>>) {
    characters.next();
    let mut star = false;
    for (_, character) in characters.by_ref() {
        if star && character == '/' {
            return;
        }
        star = character == '*';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semicolons_in_quotes_and_comments_do_not_count() {
        for (text, want) in [
            ("", vec![]),
            (" ;; ", vec![]),
            ("a;b", vec!["a", "b"]),
            ("select ';' ; b", vec!["select ';'", "b"]),
            ("select 'it''s;' ;b;", vec!["select 'it''s;'", "b"]),
            (r"select 'a\';b' ; c", vec![r"select 'a\';b'", "c"]),
            (r"select `a\`; c", vec![r"select `a\`", "c"]),
            ("a /* ; */ ; b", vec!["a /* ; */", "b"]),
            ("a -- ;\n; b", vec!["a -- ;", "b"]),
            ("a --;b", vec!["a --", "b"]),
            ("a # ;\n ; b", vec!["a # ;", "b"]),
            (
                "// what follows; reads\nset a = 1;\n// then\nselect 8 // 2",
                vec!["set a = 1", "select 8 // 2"],
            ),
            ("select 'open; b", vec!["select 'open; b"]),
            ("select /* open; b", vec!["select /* open; b"]),
        ] {
            assert_eq!(split(text), want, "{text}");
        }
    }

    #[test]
    fn comments_are_executed() {
        for (text, want) in [
            ("set /*!40101 a = */ 1", "set ········ a = ·· 1"),
            ("/*! select */ 1 /* ! */", "··· select ·· 1 /* ! */"),
            ("select '/*!1 */' /*!99999 x */ /*!080033 y*/", "select '/*!1 */' /*·99999 x */ ········· y··"),
            ("select 'ä' /*!50000 + 1*/", "select 'ä' ········ + 1··"),
            ("select /*!50000 1", "select ········ 1"),
            ("select 1", "select 1"),
        ] {
            assert_eq!(with_executed_comments(text), want.replace('·', " "));
        }
    }

    #[test]
    fn names_in_double_quotes() {
        for (text, want) in [
            ("select \"id\", 'a\"b' from \"t\"", "select `id`, 'a\"b' from `t`"),
            (r#"select "a""b", "c`d", "e\f""#, r#"select `a"b`, `c``d`, `e\f`"#),
            ("select `a\"b` -- \"x\"\n, \"ä\"", "select `a\"b` -- \"x\"\n, `ä`"),
            ("select 1 /* \"x\" */ # \"y\"", "select 1 /* \"x\" */ # \"y\""),
            ("select 1", "select 1"),
        ] {
            assert_eq!(with_quoted_names(text), want);
        }
    }

    #[test]
    fn positions_are_of_the_whole_text() {
        let text = "a;\n  b";
        assert_eq!(position(text, split(text)[1]), (2, 3));
    }
}
