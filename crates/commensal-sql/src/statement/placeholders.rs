//! The placeholders of statements that the query engine does not parse, such as SET: values or names take their places in
//! the text.

use super::split::{skip_comment, skip_line, skip_quoted, starts_comment};

/// Returns the positions of the placeholders (`?`) in a statement, in bytes.
#[must_use]
pub fn placeholders(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' | '"' | '`' => skip_quoted(&mut characters, character),
            '#' => skip_line(&mut characters),
            '-' if starts_comment(&text[at..]) => skip_line(&mut characters),
            '/' if text[at..].starts_with("/*") => skip_comment(&mut characters),
            '?' => found.push(at),
            _ => {}
        }
    }
    found
}

/// Writes these texts into the places of the placeholders.
#[must_use]
pub fn filled(text: &str, with: &[String]) -> String {
    let mut filled = String::new();
    let mut done = 0;
    for (at, with) in placeholders(text).into_iter().zip(with) {
        filled.push_str(&text[done..at]);
        filled.push_str(with);
        done = at + 1;
    }
    filled.push_str(&text[done..]);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_take_the_places_of_placeholders() {
        let values = ["4", "'it''s'", "NULL"].map(str::to_owned);
        for (text, want) in [
            ("set @a = ?, @b = ?, @c = ?", "set @a = 4, @b = 'it''s', @c = NULL"),
            ("set @a = '?', @b = ? -- ?", "set @a = '?', @b = 4 -- ?"),
            ("show tables", "show tables"),
        ] {
            assert_eq!(filled(text, &values), want);
        }
    }
}
