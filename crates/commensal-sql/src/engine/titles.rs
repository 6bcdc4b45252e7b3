//! The titles of a result's columns. MySQL shows an expression without an alias as the statement writes it, which the
//! parsed statement has lost: it is read from the text.

use crate::statement::Bytes;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{self, Expr, Ident, SelectItem, SetExpr};
use datafusion::sql::sqlparser::dialect::MySqlDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use std::ops::Range;

/// Words between SELECT and the first column.
const MODIFIERS: [&str; 11] = [
    "ALL",
    "DISTINCT",
    "DISTINCTROW",
    "HIGH_PRIORITY",
    "STRAIGHT_JOIN",
    "SQL_SMALL_RESULT",
    "SQL_BIG_RESULT",
    "SQL_BUFFER_RESULT",
    "SQL_CACHE",
    "SQL_NO_CACHE",
    "SQL_CALC_FOUND_ROWS",
];

/// Words that end the list of columns.
const ENDS: [&str; 13] = [
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "WINDOW",
    "ORDER",
    "LIMIT",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "INTO",
    "FOR",
    "LOCK",
];

/// Number of characters of a title, as in MySQL.
const LONGEST: usize = 256;

/// A token, and its bytes of the text.
struct Piece {
    token: Token,
    bytes: Range<usize>,
}

/// Gives each expression of the result an alias with its text.
pub fn keep(parsed: &mut Statement, text: &str) {
    let Statement::Statement(statement) = parsed else { return };
    let ast::Statement::Query(query) = statement.as_mut() else { return };
    let mut body = query.body.as_mut();
    let items = loop {
        body = match body {
            SetExpr::Select(select) => break &mut select.projection,
            SetExpr::Query(query) => query.body.as_mut(),
            SetExpr::SetOperation { left, .. } => left.as_mut(),
            _ => return,
        };
    };
    let Some(written) = titles(text).filter(|written| written.len() == items.len()) else { return };
    for (item, title) in items.iter_mut().zip(written) {
        if let SelectItem::UnnamedExpr(expr) = item
            && !matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
            && !title.is_empty()
        {
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('`', title) };
        }
    }
}

/// Returns the texts of the columns of the first SELECT that is in no parentheses of its own.
fn titles(text: &str) -> Option<Vec<String>> {
    let tokens = Tokenizer::new(&MySqlDialect {}, text).tokenize_with_location().ok()?;
    let mut places = Bytes::new(text);
    let mut pieces = Vec::new();
    for token in tokens {
        if !matches!(token.token, Token::Whitespace(_) | Token::EOF) {
            let start = places.of(token.span.start);
            pieces.push(Piece { token: token.token, bytes: start..places.of(token.span.end) });
        }
    }
    columns(text, &pieces)
}

/// Returns the texts of the columns between these tokens.
fn columns(text: &str, tokens: &[Piece]) -> Option<Vec<String>> {
    let outer = tokens.iter().take_while(|token| token.token == Token::LParen).count();
    let mut depth = 0_usize;
    let mut start = None;
    let mut columns = Vec::new();
    let mut column: Vec<&Piece> = Vec::new();
    for token in tokens {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == outer && start.is_some() => break,
            Token::RParen => depth = depth.checked_sub(1)?,
            Token::SemiColon => break,
            Token::Comma if depth == outer && start.is_some() => {
                columns.push(title(text, &std::mem::take(&mut column))?);
                continue;
            }
            Token::Word(word) if depth == outer && word.quote_style.is_none() => {
                let word = word.value.to_uppercase();
                match start {
                    None if word == "SELECT" => {
                        start = Some(());
                        continue;
                    }
                    None => {}
                    Some(()) if column.is_empty() && MODIFIERS.contains(&word.as_str()) => continue,
                    Some(()) if ENDS.contains(&word.as_str()) => break,
                    Some(()) => {}
                }
            }
            _ => {}
        }
        if start.is_some() {
            column.push(token);
        }
    }
    columns.push(title(text, &column)?);
    Some(columns)
}

/// Returns the title of a column: its text, but the content of a quoted text.
fn title(text: &str, tokens: &[&Piece]) -> Option<String> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    let is_set = |token: &Token| matches!(token, Token::Word(word) if word.value.starts_with('_'));
    let title: &str = match (&last.token, tokens.len()) {
        (Token::SingleQuotedString(content) | Token::DoubleQuotedString(content), 1) => content,
        (Token::NationalStringLiteral(content), 1) => content,
        (Token::SingleQuotedString(content), 2) if is_set(&first.token) => content,
        (Token::Word(word), 1) if ["TRUE", "FALSE", "NULL"].contains(&word.value.to_uppercase().as_str()) => {
            return Some(word.value.to_uppercase());
        }
        _ => text.get(first.bytes.start..last.bytes.end)?,
    };
    let end = title.char_indices().nth(LONGEST).map_or(title.len(), |(end, _)| end);
    title.get(..end).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::titles;

    #[test]
    fn titles_are_as_written() {
        for (text, want) in [
            ("select concat('a',1), 1+2 , 'x'", Some(vec!["concat('a',1)", "1+2", "x"])),
            ("SELECT SQL_NO_CACHE COUNT( * ) FROM t", Some(vec!["COUNT( * )"])),
            ("with q as (select 1, 2) select max(a) from q", Some(vec!["max(a)"])),
            ("(select 1 + 1) union (select 2)", Some(vec!["1 + 1"])),
            ("select 'ä',\n  -- one\n  true, _utf8'b'", Some(vec!["ä", "TRUE", "b"])),
            (
                "select a in (select 1, 2 from t), extract(year from d) limit 1",
                Some(vec!["a in (select 1, 2 from t)", "extract(year from d)"]),
            ),
            ("show tables", None),
            ("select", None),
        ] {
            assert_eq!(
                titles(text).as_deref(),
                want.map(|want| want.iter().map(ToString::to_string).collect::<Vec<_>>()).as_deref(),
                "{text}"
            );
        }
    }
}
