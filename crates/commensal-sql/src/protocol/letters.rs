//! Character sets of a connection: converts statements from the client's set, and results to it. MySQL's `latin1` is
//! Windows-1252; UTF-8 and its subsets need no conversion.

use std::borrow::Cow;

/// The characters of the bytes 0x80 to 0x9f; bytes that Windows-1252 does not assign keep their numbers.
const UPPER: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// The word before quoted bytes that are no text.
const INTRODUCER: &str = "_binary";

/// A character set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Letters {
    /// UTF-8, of one to four bytes.
    #[default]
    Utf8,
    /// Windows-1252.
    Latin1,
}

impl Letters {
    /// Returns the character set of this name; UTF-8 for names that need no conversion.
    #[must_use]
    pub fn named(name: Option<String>) -> Letters {
        match name {
            Some(name) if name.eq_ignore_ascii_case("latin1") => Letters::Latin1,
            _ => Letters::Utf8,
        }
    }

    /// Returns the number of the set's default collation.
    #[must_use]
    pub fn collation(self) -> u16 {
        match self {
            Letters::Utf8 => 45,
            Letters::Latin1 => 8,
        }
    }

    /// Returns the number of bytes of the longest character.
    #[must_use]
    pub fn longest(self) -> u32 {
        match self {
            Letters::Utf8 => 4,
            Letters::Latin1 => 1,
        }
    }

    /// Converts text to this set; characters that it does not have become question marks.
    #[must_use]
    pub fn encode(self, text: &str) -> Cow<'_, [u8]> {
        if self == Letters::Utf8 || text.is_ascii() {
            return Cow::Borrowed(text.as_bytes());
        }
        let byte = |letter: char| match u32::from(letter) {
            code @ (0..=0x7f | 0xa0..=0xff) => code as u8,
            _ => UPPER.iter().position(|upper| *upper == letter).map_or(b'?', |at| 0x80 + at as u8),
        };
        Cow::Owned(text.chars().map(byte).collect())
    }

    /// Converts a statement from this set. Quoted bytes that are no text, such as those of `_binary'…'`, become a
    /// hexadecimal literal.
    ///
    /// # Errors
    /// The position of the first byte outside of quotes that is not in the set.
    pub fn statement(self, bytes: &[u8]) -> Result<Cow<'_, str>, usize> {
        let is_plain = bytes.is_ascii() || (self == Letters::Utf8 && std::str::from_utf8(bytes).is_ok());
        if is_plain {
            return std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| error.valid_up_to());
        }
        let mut text = String::new();
        let mut rest = bytes;
        while let Some(quote) = rest.iter().position(|byte| matches!(byte, b'\'' | b'"' | b'`')) {
            let (before, quoted) = rest.split_at(quote);
            let done = bytes.len() - rest.len();
            text.push_str(&self.decode(before).map_err(|at| done + at)?);
            rest = quoted;
            // The parser reports a quote that has no end.
            let Some(end) = end_of_quoted(quoted) else { break };
            let (quoted, after) = quoted.split_at(end);
            let is_binary = ends_with_introducer(&text);
            match self.decode(quoted) {
                Ok(decoded) if !is_binary || quoted.is_ascii() => text.push_str(&decoded),
                Err(at) if quoted.first() == Some(&b'`') => return Err(done + quote + at),
                _ => {
                    if is_binary {
                        text.truncate(text.trim_end().len() - INTRODUCER.len());
                    }
                    text.push_str(" x'");
                    text.extend(unquoted(quoted).iter().map(|byte| format!("{byte:02x}")));
                    text.push('\'');
                }
            }
            rest = after;
        }
        let done = bytes.len() - rest.len();
        text.push_str(&self.decode(rest).map_err(|at| done + at)?);
        Ok(Cow::Owned(text))
    }

    /// Converts text from this set.
    ///
    /// # Errors
    /// The position of the first byte that is not in the set.
    pub fn decode(self, bytes: &[u8]) -> Result<Cow<'_, str>, usize> {
        match self {
            Letters::Utf8 => {
                std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| error.valid_up_to())
            }
            Letters::Latin1 => {
                let letter = |byte: &u8| match byte {
                    0x80..=0x9f => UPPER[usize::from(byte - 0x80)],
                    byte => char::from(*byte),
                };
                Ok(Cow::Owned(bytes.iter().map(letter).collect()))
            }
        }
    }
}

/// Whether the last word of a text introduces bytes.
fn ends_with_introducer(text: &str) -> bool {
    let bytes = text.trim_end().as_bytes();
    let start = bytes.len().checked_sub(INTRODUCER.len());
    start.is_some_and(|start| bytes[start..].eq_ignore_ascii_case(INTRODUCER.as_bytes()))
}

/// Returns the length of the quoted piece at the start of the text, including its quotes; `None` if it has no end.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let quote = text.first().copied().unwrap_or_default();
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' if quote != b'`' => at += 1,
            byte if *byte == quote && text.get(at + 1) == Some(&quote) => at += 1,
            byte if *byte == quote => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the bytes between the quotes, without escapes.
fn unquoted(text: &[u8]) -> Vec<u8> {
    let quote = text.first().copied().unwrap_or_default();
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    let mut bytes = Vec::new();
    let mut all = inner.iter();
    while let Some(byte) = all.next() {
        bytes.push(match byte {
            b'\\' => match all.next() {
                Some(b'0') => 0,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'b') => 8,
                Some(b'Z') => 26,
                Some(other) => *other,
                None => b'\\',
            },
            byte if *byte == quote => {
                all.next();
                quote
            }
            byte => *byte,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements() {
        let utf8 = |bytes: &[u8]| Letters::Utf8.statement(bytes).map(Cow::into_owned);
        for (bytes, want) in [
            (&b"select 'a'"[..], Ok("select 'a'")),
            ("select 'ä'".as_bytes(), Ok("select 'ä'")),
            (b"select _binary'\xff\\0\\'a''b'", Ok("select  x'ff0027612762'")),
            (b"select '\xc3\xa4', '\xff', 1", Ok("select 'ä',  x'ff', 1")),
            (b"select \xff, '\xff'", Err(7)),
            (b"select `\xff`", Err(8)),
            (b"select '\xff", Err(8)),
        ] {
            assert_eq!(utf8(bytes), want.map(str::to_owned));
        }
        let latin1 = Letters::Latin1.statement(b"select '\xe4\x80', _binary '\xe4', _binary 'a'").unwrap();
        assert_eq!(latin1, "select 'ä€',  x'e4', _binary 'a'");
    }

    #[test]
    fn every_byte_of_latin1_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let text = Letters::Latin1.decode(&all).unwrap();
        assert_eq!(*Letters::Latin1.encode(&text), all[..]);
        assert_eq!(*Letters::Latin1.encode("日€"), b"?\x80"[..]);
    }
}
