//! The tokens of one statement, and basic parsing steps for the grammars.

use super::quotes::in_backticks;
use super::syntax::{Properties, SyntaxError};
use sqlparser::dialect::MySqlDialect;
use sqlparser::tokenizer::{Location, Token, Tokenizer, Whitespace};
use std::ops::Range;

/// A comment `/*+…*/` and its position among the tokens.
pub(super) struct Hint {
    /// Number of tokens before the hint.
    pub after: usize,
    /// Text of the hint after the plus sign.
    pub text: String,
    /// Position at which the text begins.
    pub at: Location,
}

/// A token, its place, and its bytes of the text.
struct Piece {
    token: Token,
    at: Location,
    bytes: Range<usize>,
}

/// A position among the tokens of a statement.
pub(super) struct Cursor {
    text: String,
    tokens: Vec<Piece>,
    hints: Vec<Hint>,
    at: usize,
    end: Location,
}

impl Cursor {
    pub fn new(text: &str) -> Result<Cursor, SyntaxError> {
        let all = Tokenizer::new(&MySqlDialect {}, text).tokenize_with_location().map_err(|error| {
            let Location { line, column } = error.location;
            SyntaxError { line: line.max(1), column: column.max(1), problem: lower(&error.message) }
        })?;
        let end = all.last().map_or(Location { line: 1, column: 1 }, |token| token.span.end);
        let mut bytes = Bytes::new(text);
        let mut cursor = Cursor { text: text.to_owned(), tokens: Vec::new(), hints: Vec::new(), at: 0, end };
        for token in all {
            match token.token {
                Token::Whitespace(Whitespace::MultiLineComment(comment)) => {
                    if let Some(hint) = comment.strip_prefix('+') {
                        let Location { line, column } = token.span.start;
                        let at = Location { line, column: column + 3 };
                        cursor.hints.push(Hint { after: cursor.tokens.len(), text: hint.to_owned(), at });
                    }
                }
                Token::Whitespace(_) | Token::EOF => {}
                token_itself => {
                    let (at, end) = (token.span.start, token.span.end);
                    let bytes = bytes.of(at)..bytes.of(end);
                    cursor.tokens.push(Piece { token: token_itself, at, bytes });
                }
            }
        }
        Ok(cursor)
    }

    pub fn hints(&self) -> &[Hint] {
        &self.hints
    }

    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.tokens.iter().map(|piece| &piece.token)
    }

    pub fn token(&self, index: usize) -> Option<&Token> {
        self.tokens.get(index).map(|piece| &piece.token)
    }

    pub fn peek(&self) -> Option<&Token> {
        self.token(self.at)
    }

    pub fn at_end(&self) -> bool {
        self.peek().is_none()
    }

    /// Returns an error unless all tokens were consumed.
    pub fn end(&self) -> Result<(), SyntaxError> {
        if self.at_end() { Ok(()) } else { Err(self.fail("the end of the statement")) }
    }

    /// Returns an error which says that something else was expected at this position.
    pub fn fail(&self, expected: &str) -> SyntaxError {
        let (found, at) = match self.tokens.get(self.at) {
            Some(piece) => (shown(&piece.token), piece.at),
            None => ("the end of the statement".to_owned(), self.end),
        };
        let problem = if expected.starts_with("the property") {
            expected.to_owned()
        } else {
            format!("expected {expected}, found {found}")
        };
        SyntaxError { line: at.line.max(1), column: at.column.max(1), problem }
    }

    fn is_word(&self, index: usize, word: &str) -> bool {
        matches!(self.token(index), Some(Token::Word(found))
            if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
    }

    /// Whether the next tokens are these words; consumes nothing.
    pub fn comes(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(offset, word)| self.is_word(self.at + offset, word))
    }

    /// Consumes these words if they are next. Returns whether they were next.
    pub fn take(&mut self, words: &[&str]) -> bool {
        let comes = self.comes(words);
        if comes {
            self.at += words.len();
        }
        comes
    }

    /// Consumes the next word, or returns an error if the next word is not `word`.
    pub fn expect(&mut self, word: &str) -> Result<(), SyntaxError> {
        if self.take(&[word]) { Ok(()) } else { Err(self.fail(word)) }
    }

    /// Consumes this sign if it is next. Returns whether it was next.
    pub fn take_sign(&mut self, sign: &Token) -> bool {
        let comes = self.peek() == Some(sign);
        self.at += usize::from(comes);
        comes
    }

    /// Consumes the next sign, or returns an error if the next sign is not `sign`.
    pub fn expect_sign(&mut self, sign: &Token) -> Result<(), SyntaxError> {
        if self.take_sign(sign) { Ok(()) } else { Err(self.fail(&format!("\"{sign}\""))) }
    }

    /// Consumes the next token of any kind.
    pub fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += usize::from(token.is_some());
        token
    }

    /// Parses a string in single or double quotes.
    pub fn quoted(&mut self, what: &str) -> Result<String, SyntaxError> {
        let text = match self.peek() {
            Some(Token::SingleQuotedString(text) | Token::DoubleQuotedString(text)) => text.clone(),
            _ => return Err(self.fail(what)),
        };
        self.at += 1;
        Ok(text)
    }

    /// Parses a name: plain, in backticks or quoted.
    pub fn name(&mut self, what: &str) -> Result<String, SyntaxError> {
        if let Some(Token::Word(word)) = self.peek() {
            let name = word.value.clone();
            self.at += 1;
            return Ok(name);
        }
        self.quoted(what)
    }

    /// Parses a value: a name, or a number with an optional sign and percent sign.
    pub fn value(&mut self, what: &str) -> Result<String, SyntaxError> {
        let before = self.at;
        let minus = self.take_sign(&Token::Minus);
        let Some(Token::Number(number, _)) = self.peek() else {
            self.at = before;
            return self.name(what);
        };
        let number = number.clone();
        self.at += 1;
        let percent = if self.take_sign(&Token::Mod) { "%" } else { "" };
        Ok(format!("{}{number}{percent}", if minus { "-" } else { "" }))
    }

    /// Parses items separated by commas.
    pub fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<Vec<T>, SyntaxError> {
        let mut items = vec![item(self)?];
        while self.take_sign(&Token::Comma) {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Parses a list of items in parentheses, which may be empty.
    pub fn parenthesised<T>(
        &mut self,
        item: impl FnMut(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<Vec<T>, SyntaxError> {
        self.expect_sign(&Token::LParen)?;
        if self.take_sign(&Token::RParen) {
            return Ok(Vec::new());
        }
        let items = self.list(item)?;
        if self.take_sign(&Token::RParen) { Ok(items) } else { Err(self.fail("\",\" or \")\"")) }
    }

    /// Parses `PROPERTIES(key = value, …)`. If the statement has none, returns no properties.
    pub fn properties(&mut self) -> Result<Properties, SyntaxError> {
        if self.take(&["PROPERTIES"]) { self.pairs() } else { Ok(Properties::new()) }
    }

    /// Parses `(key = value, …)`.
    pub fn pairs(&mut self) -> Result<Properties, SyntaxError> {
        let mut properties = Properties::new();
        self.parenthesised(|cursor| cursor.pair(&mut properties))?;
        Ok(properties)
    }

    /// Parses `key = value`; a duplicate key is an error.
    pub fn pair(&mut self, properties: &mut Properties) -> Result<(), SyntaxError> {
        let before = self.at;
        let key = self.name("a property")?.to_lowercase();
        if properties.contains_key(&key) {
            self.at = before;
            return Err(self.fail(&format!("the property {key:?} occurs twice")));
        }
        self.expect_sign(&Token::Eq)?;
        let value = self.value("a value")?;
        properties.insert(key, value);
        Ok(())
    }

    /// Parses `LIKE 'pattern'`. Returns `None` if the statement has no `LIKE`.
    pub fn like(&mut self) -> Result<Option<String>, SyntaxError> {
        if self.take(&["LIKE"]) { self.quoted("a pattern in quotes").map(Some) } else { Ok(None) }
    }
}

impl Cursor {
    /// Consumes all tokens that are left, and returns them as they are written.
    pub fn rest(&mut self) -> String {
        let from = self.at;
        self.at = self.tokens.len();
        self.written(from)
    }

    /// Returns the text of the tokens from this one to the last one that was consumed.
    pub fn written(&self, from: usize) -> String {
        let tokens = self.tokens.get(from..self.at).unwrap_or_default();
        match (tokens.first(), tokens.last()) {
            (Some(first), Some(last)) => self.text[first.bytes.start..last.bytes.end].to_owned(),
            _ => String::new(),
        }
    }

    /// The number of the next token.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Like [`Cursor::rest`], with other names in place of columns: words in backticks, and those that are no NULL and no
    /// function.
    pub fn rest_with<'a>(&mut self, name: impl Fn(&str) -> Option<&'a str>) -> String {
        let mut written = String::new();
        let mut end = self.tokens.get(self.at).map_or(self.text.len(), |piece| piece.bytes.start);
        for (at, Piece { token, bytes, .. }) in self.tokens.iter().enumerate().skip(self.at) {
            written.push_str(&self.text[end..bytes.start]);
            let is_call = matches!(self.token(at + 1), Some(Token::LParen));
            let other = match token {
                Token::Word(word) if word.quote_style.is_some() => name(&word.value),
                Token::Word(word) if !is_call && !word.value.eq_ignore_ascii_case("null") => {
                    name(&word.value)
                }
                _ => None,
            };
            match other {
                Some(name) => written.push_str(&in_backticks(name)),
                None => written.push_str(&self.text[bytes.clone()]),
            }
            end = bytes.end;
        }
        self.at = self.tokens.len();
        written
    }
}

/// Finds the bytes of places that come one after the other. Lines and columns count from 1, columns in characters.
#[derive(Debug)]
pub struct Bytes<'a> {
    text: &'a str,
    line: u64,
    column: u64,
    at: usize,
}

impl<'a> Bytes<'a> {
    /// Begins at the beginning of a text.
    #[must_use]
    pub fn new(text: &'a str) -> Bytes<'a> {
        Bytes { text, line: 1, column: 1, at: 0 }
    }

    /// Returns the byte of the text at a place.
    pub fn of(&mut self, place: Location) -> usize {
        for letter in self.text[self.at..].chars() {
            if (self.line, self.column) >= (place.line, place.column) {
                break;
            }
            self.at += letter.len_utf8();
            (self.line, self.column) =
                if letter == '\n' { (self.line + 1, 1) } else { (self.line, self.column + 1) };
        }
        self.at
    }
}

/// Formats a token for a message, without the content of quotes.
fn shown(token: &Token) -> String {
    match token {
        Token::Word(word) if word.quote_style.is_none() => {
            format!("{:?}", word.value.chars().take(40).collect::<String>())
        }
        Token::Word(_) => "a name in backticks".to_owned(),
        Token::Number(..) => "a number".to_owned(),
        Token::Char(character) => format!("{character:?}"),
        token => {
            let text = token.to_string();
            let sign = text.len() <= 3 && !text.contains(['\'', '"', '$']);
            if sign { format!("\"{text}\"") } else { "a text in quotes".to_owned() }
        }
    }
}

/// Converts the first letter of the tokenizer's message to lower case, as in other messages.
fn lower(message: &str) -> String {
    let mut characters = message.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}
