//! Parser for Apache Doris' statements about workload groups, policies, users and session variables.
//!
//! The grammar follows Doris' `DorisParser.g4` (4.x) and also accepts the spelling of 2.1. Keywords are
//! case-insensitive; names may be plain, in backticks or quoted. Every other statement is returned unparsed as
//! [`PassedOn`]. No input causes a panic, and no message repeats quoted text, because that may be a password.

mod access;
mod chains;
mod cursor;
mod groups;
mod placeholders;
mod quotes;
mod redact;
mod session;
mod shows;
mod split;
mod syntax;

use cursor::Cursor;

pub(crate) use cursor::Bytes;
pub use placeholders::{filled, placeholders};
pub use quotes::{in_backticks, in_quotes};
pub use redact::redacted;
pub use split::{split, with_quoted_names};
pub use syntax::{
    ActionText, Assignment, ConditionText, Grant, Granted, Grantee, GroupRef, Kill, NewPolicy, PassedOn,
    Properties, Secret, Statement, SyntaxError, UserChange, UserName, Value,
};

/// Parses one statement; it may end with a semicolon.
///
/// # Errors
/// [`SyntaxError`] with the position, if a statement that is parsed here is malformed, if a quote or comment is not
/// closed, or if there is more than one statement ([`split`] separates them).
pub fn parse(text: &str) -> Result<Statement, SyntaxError> {
    let parts = split(text);
    let Some(first) = parts.first() else { return Ok(Statement::Empty) };
    if let Some(second) = parts.get(1) {
        let (line, column) = split::position(text, second);
        return Err(SyntaxError { line, column, problem: "expected the end of the statement".to_owned() });
    }
    let (line, column) = split::position(text, first);
    one(first).map_err(|error| SyntaxError {
        line: error.line + line - 1,
        column: if error.line == 1 { error.column + column - 1 } else { error.column },
        problem: error.problem,
    })
}

fn one(text: &str) -> Result<Statement, SyntaxError> {
    let text = &*split::with_executed_comments(text);
    let mut cursor = Cursor::new(text)?;
    if cursor.at_end() {
        return Ok(Statement::Empty);
    }
    if chains::depth(cursor.tokens()) > chains::DEEPEST {
        let problem = format!("operators, joins and parentheses are more than {} deep", chains::DEEPEST);
        return Err(SyntaxError { line: 1, column: 1, problem });
    }
    for grammar in [groups::statement, access::statement, session::statement, shows::statement] {
        if let Some(statement) = grammar(&mut cursor)? {
            cursor.end()?;
            return Ok(statement);
        }
    }
    let variables = session::hints(&cursor)?;
    // Nothing changes what is read.
    let lock = " lock in share mode";
    let end = text.len().saturating_sub(lock.len());
    let text = match text.get(end..) {
        Some(last) if last.eq_ignore_ascii_case(lock) => &text[..end],
        _ => text,
    };
    Ok(Statement::PassedOn(PassedOn { text: text.to_owned(), variables }))
}
