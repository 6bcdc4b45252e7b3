//! Grammar of statements about session variables, user properties, configuration and connections, and of hints in
//! queries.

use super::cursor::{Cursor, Hint};
use super::quotes::in_quotes;
use super::syntax::{Assignment, Kill, PassedOn, Properties, Statement, SyntaxError, Value};
use sqlparser::tokenizer::Token;

/// Parses a statement about sessions; returns `None` if the statement begins otherwise.
pub(super) fn statement(cursor: &mut Cursor) -> Result<Option<Statement>, SyntaxError> {
    let statement = if cursor.take(&["SET"]) {
        set(cursor)?
    } else if cursor.take(&["UNSET"]) {
        for scope in ["GLOBAL", "SESSION", "LOCAL"] {
            cursor.take(&[scope]);
        }
        cursor.expect("VARIABLE")?;
        let all = cursor.take(&["ALL"]);
        Statement::UnsetVariable(if all { None } else { Some(variable(cursor)?.1) })
    } else if cursor.take(&["KILL"]) {
        Statement::Kill(kill(cursor)?)
    } else if cursor.take(&["PREPARE"]) {
        let name = cursor.name("the name of a statement")?;
        cursor.expect("FROM")?;
        Statement::Prepare { name, text: value(cursor)? }
    } else if cursor.take(&["EXECUTE"]) {
        let name = cursor.name("the name of a statement")?;
        let values = match cursor.take(&["USING"]) {
            true => cursor.list(user_variable)?,
            false => Vec::new(),
        };
        Statement::Execute { name, values }
    } else if cursor.take(&["DEALLOCATE", "PREPARE"]) || cursor.take(&["DROP", "PREPARE"]) {
        Statement::Deallocate(cursor.name("the name of a statement")?)
    } else if cursor.take(&["DO"]) {
        let text = format!("SELECT {}", cursor.rest());
        Statement::Do(PassedOn { text, variables: hints(cursor)? })
    } else if cursor.take(&["FLUSH"]) {
        cursor.rest();
        Statement::Flush
    } else if cursor.take(&["START", "TRANSACTION", "WITH", "CONSISTENT", "SNAPSHOT"]) {
        cursor.rest();
        Statement::PassedOn(PassedOn { text: "START TRANSACTION".to_owned(), variables: Vec::new() })
    } else if explains_otherwise(cursor) {
        let text = format!("EXPLAIN {}", cursor.rest());
        Statement::PassedOn(PassedOn { text, variables: hints(cursor)? })
    } else if cursor.take(&["SHOW", "CREATE", "DATABASE"]) || cursor.take(&["SHOW", "CREATE", "SCHEMA"]) {
        cursor.take(&["IF", "NOT", "EXISTS"]);
        Statement::ShowCreateDatabase(cursor.name("the name of a database")?)
    } else if shows_count(cursor, "WARNINGS") {
        Statement::ShowCount("warning_count")
    } else if shows_count(cursor, "ERRORS") {
        Statement::ShowCount("error_count")
    } else if cursor.take(&["ADMIN"]) {
        admin(cursor)?
    } else if cursor.take(&["SHOW", "FULL", "PROCESSLIST"]) {
        Statement::ShowProcesslist { full: true }
    } else if cursor.take(&["SHOW", "PROCESSLIST"]) {
        Statement::ShowProcesslist { full: false }
    } else if cursor.take(&["SHOW", "WARNINGS"]) {
        Statement::ShowWarnings
    } else if cursor.take(&["SHOW", "PROPERTY"]) {
        let user = if cursor.take(&["FOR"]) { Some(cursor.name("the name of a user")?) } else { None };
        Statement::ShowProperty { user, like: cursor.like()? }
    } else if shows_variables(cursor) {
        let like = cursor.like()?;
        let condition = (like.is_none() && cursor.take(&["WHERE"])).then(|| cursor.rest());
        Statement::ShowVariables { like, condition }
    } else {
        return Ok(None);
    };
    Ok(Some(statement))
}

/// Parses the name of a user variable.
fn user_variable(cursor: &mut Cursor) -> Result<String, SyntaxError> {
    match cursor.peek() {
        // A name in quotes could contain anything.
        Some(Token::Word(word))
            if word.quote_style.is_none() && word.value.starts_with('@') && !word.value.starts_with("@@") =>
        {
            cursor.name("a user variable")
        }
        _ => Err(cursor.fail("a user variable")),
    }
}

/// Consumes `EXPLAIN EXTENDED` and `EXPLAIN FORMAT = …`: there is one form of plans.
fn explains_otherwise(cursor: &mut Cursor) -> bool {
    if cursor.take(&["EXPLAIN", "EXTENDED"]) {
        return true;
    }
    let comes = cursor.comes(&["EXPLAIN", "FORMAT"]) && cursor.token(2) == Some(&Token::Eq);
    if comes {
        (0..4).for_each(|_| drop(cursor.next()));
    }
    comes
}

/// Consumes `SHOW COUNT(*)` and this word.
fn shows_count(cursor: &mut Cursor, what: &str) -> bool {
    let signs = [Token::LParen, Token::Mul, Token::RParen];
    let comes = cursor.comes(&["SHOW", "COUNT"])
        && signs.iter().enumerate().all(|(at, sign)| cursor.token(2 + at) == Some(sign))
        && matches!(cursor.token(5), Some(Token::Word(word)) if word.value.eq_ignore_ascii_case(what));
    if comes {
        (0..6).for_each(|_| drop(cursor.next()));
    }
    comes
}

/// Consumes `SHOW [GLOBAL|SESSION] VARIABLES`.
fn shows_variables(cursor: &mut Cursor) -> bool {
    let spellings: [&[&str]; 4] = [
        &["SHOW", "VARIABLES"],
        &["SHOW", "GLOBAL", "VARIABLES"],
        &["SHOW", "SESSION", "VARIABLES"],
        &["SHOW", "LOCAL", "VARIABLES"],
    ];
    spellings.into_iter().any(|words| cursor.take(words))
}

fn set(cursor: &mut Cursor) -> Result<Statement, SyntaxError> {
    if cursor.take(&["PROPERTY"]) {
        let user = if cursor.take(&["FOR"]) { Some(super::access::user(cursor)?.name) } else { None };
        let mut properties = Properties::new();
        cursor.list(|cursor| cursor.pair(&mut properties))?;
        return Ok(Statement::SetProperty { user, properties });
    }
    for scope in ["SESSION", "GLOBAL", "LOCAL"] {
        if cursor.take(&[scope, "TRANSACTION"]) {
            let global = scope == "GLOBAL";
            return cursor.list(|cursor| characteristic(cursor, global)).map(Statement::Set);
        }
    }
    if cursor.take(&["TRANSACTION"]) {
        // For the next transaction only, and there are no transactions.
        cursor.list(|cursor| characteristic(cursor, false))?;
        return Ok(Statement::SetTransaction);
    }
    let lists = cursor.list(|cursor| match names(cursor)? {
        Some(assignments) => Ok(assignments),
        None => Ok(vec![assignment(cursor)?]),
    })?;
    Ok(Statement::Set(lists.into_iter().flatten().collect()))
}

/// Parses `NAMES charset [COLLATE collation]` and `CHARACTER SET charset`, which may stand in a list of assignments;
/// returns `None` if something else comes.
fn names(cursor: &mut Cursor) -> Result<Option<Vec<Assignment>>, SyntaxError> {
    let comes = cursor.take(&["NAMES"]) || cursor.take(&["CHARACTER", "SET"]) || cursor.take(&["CHARSET"]);
    if !comes {
        return Ok(None);
    }
    let assign = |name: &str, value: Value| Assignment { global: false, name: name.to_owned(), value };
    let mut assignments = vec![assign("names", word_value(cursor.name("a character set")?))];
    if cursor.take(&["COLLATE"]) {
        assignments.push(assign("collation_connection", word_value(cursor.name("a collation")?)));
    }
    Ok(Some(assignments))
}

/// Parses a characteristic of `SET TRANSACTION`, as an assignment to the variable that shows it.
fn characteristic(cursor: &mut Cursor, global: bool) -> Result<Assignment, SyntaxError> {
    let known: [(&[&str], &str, &str); 6] = [
        (&["ISOLATION", "LEVEL", "READ", "UNCOMMITTED"], "transaction_isolation", "READ-UNCOMMITTED"),
        (&["ISOLATION", "LEVEL", "READ", "COMMITTED"], "transaction_isolation", "READ-COMMITTED"),
        (&["ISOLATION", "LEVEL", "REPEATABLE", "READ"], "transaction_isolation", "REPEATABLE-READ"),
        (&["ISOLATION", "LEVEL", "SERIALIZABLE"], "transaction_isolation", "SERIALIZABLE"),
        (&["READ", "ONLY"], "transaction_read_only", "1"),
        (&["READ", "WRITE"], "transaction_read_only", "0"),
    ];
    let found = known.into_iter().find(|(words, ..)| cursor.take(words));
    let Some((_, name, value)) = found else { return Err(cursor.fail("a characteristic of a transaction")) };
    Ok(Assignment { global, name: name.to_owned(), value: Value::Text(value.to_owned()) })
}

/// Parses `[GLOBAL|SESSION] name = value`, where the name may start with `@@`.
fn assignment(cursor: &mut Cursor) -> Result<Assignment, SyntaxError> {
    let (global, name) = variable(cursor)?;
    if !cursor.take_sign(&Token::Assignment) {
        cursor.expect_sign(&Token::Eq)?;
    }
    let from = cursor.at();
    let value = value(cursor)?;
    let value = if name.starts_with('@') { user_value(cursor, from) } else { value };
    Ok(Assignment { global, name, value })
}

/// The value of a user's variable, which is written as a literal or computed. Its tokens begin with this one.
fn user_value(cursor: &Cursor, from: usize) -> Value {
    let tokens: Vec<&Token> = (from..cursor.at()).filter_map(|at| cursor.token(at)).collect();
    match &tokens[..] {
        [Token::SingleQuotedString(text) | Token::DoubleQuotedString(text)] => Value::Text(in_quotes(text)),
        [Token::Number(..)] | [Token::Minus, Token::Number(..)] => Value::Text(cursor.written(from)),
        _ => Value::Expression(cursor.written(from)),
    }
}

/// Parses the scope and the name of a variable.
fn variable(cursor: &mut Cursor) -> Result<(bool, String), SyntaxError> {
    let mut global = cursor.take(&["GLOBAL"]);
    if !global && !cursor.take(&["SESSION"]) {
        cursor.take(&["LOCAL"]);
    }
    let mut name = cursor.name("the name of a session variable")?.to_lowercase();
    if let Some(rest) = name.strip_prefix("@@") {
        let scope = rest.to_owned();
        let scoped =
            matches!(scope.as_str(), "global" | "session" | "local") && cursor.take_sign(&Token::Period);
        global |= scoped && scope == "global";
        name = if scoped { cursor.name("the name of a session variable")?.to_lowercase() } else { scope };
    }
    if name.is_empty() {
        return Err(cursor.fail("the name of a session variable"));
    }
    Ok((global, name))
}

/// Parses a value: a literal, or any other expression. An expression is kept as written, up to the next comma outside
/// of parentheses.
fn value(cursor: &mut Cursor) -> Result<Value, SyntaxError> {
    let (mut tokens, from) = (Vec::new(), cursor.at());
    let mut depth = 0usize;
    while let Some(token) = cursor.peek() {
        match token {
            Token::Comma if depth == 0 => break,
            Token::RParen if depth == 0 => break,
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        tokens.extend(cursor.next());
    }
    Ok(match &tokens[..] {
        [] => return Err(cursor.fail("a value")),
        [Token::Word(word)] if word.quote_style.is_none() => word_value(word.value.clone()),
        [Token::Word(word)] => Value::Text(word.value.clone()),
        [Token::SingleQuotedString(text) | Token::DoubleQuotedString(text)] => Value::Text(text.clone()),
        [Token::Number(number, _)] => Value::Text(number.clone()),
        [Token::Number(number, _), Token::Mod] => Value::Text(format!("{number}%")),
        [Token::Minus, Token::Number(number, _)] => Value::Text(format!("-{number}")),
        _ => Value::Expression(cursor.written(from)),
    })
}

fn word_value(word: String) -> Value {
    match word.to_uppercase().as_str() {
        "DEFAULT" => Value::Default,
        "NULL" => Value::Expression("NULL".to_owned()),
        _ if word.starts_with('@') => Value::Expression(word),
        _ => Value::Text(word),
    }
}

fn kill(cursor: &mut Cursor) -> Result<Kill, SyntaxError> {
    let of_query = cursor.take(&["QUERY"]);
    if !of_query {
        cursor.take(&["CONNECTION"]);
    }
    if let (true, Some(Token::SingleQuotedString(_) | Token::DoubleQuotedString(_))) =
        (of_query, cursor.peek())
    {
        return cursor.quoted("the id of a query").map(Kill::QueryId);
    }
    let id = match cursor.peek() {
        Some(Token::Number(number, _)) => number.parse().ok(),
        _ => None,
    };
    let Some(id) = id else {
        let expected = if of_query {
            "the id of a connection, or of a query in quotes"
        } else {
            "the id of a connection"
        };
        return Err(cursor.fail(expected));
    };
    cursor.next();
    Ok(if of_query { Kill::Query(id) } else { Kill::Connection(id) })
}

fn admin(cursor: &mut Cursor) -> Result<Statement, SyntaxError> {
    if cursor.take(&["SHOW", "FRONTEND", "CONFIG"]) {
        return Ok(Statement::AdminShowConfig { like: cursor.like()? });
    }
    let sets = cursor.take(&["SET", "FRONTEND", "CONFIG"])
        || cursor.take(&["SET", "ALL", "FRONTENDS", "CONFIG"])
        || cursor.take(&["SET", "FRONTEND", "ALL", "CONFIG"]);
    if !sets {
        return Err(cursor
            .fail("SET FRONTEND CONFIG or SHOW FRONTEND CONFIG (no other ADMIN statement is supported)"));
    }
    cursor.pairs().map(Statement::AdminSetConfig)
}

/// Returns the assignments of `SET_VAR` and `MAX_EXECUTION_TIME` hints directly after a `SELECT`. Other hints are ignored.
///
/// # Errors
/// [`SyntaxError`] if such a hint is malformed: a query that the hint assigns to another group must not run in the
/// session's group.
pub(super) fn hints(cursor: &Cursor) -> Result<Vec<Assignment>, SyntaxError> {
    let mut variables = Vec::new();
    for hint in cursor.hints() {
        let behind_select = hint.after.checked_sub(1).and_then(|index| cursor.token(index)).is_some_and(
            |token| matches!(token, Token::Word(word) if word.value.eq_ignore_ascii_case("SELECT")),
        );
        if behind_select {
            variables.extend(hint_variables(hint)?);
        }
    }
    Ok(variables)
}

fn hint_variables(hint: &Hint) -> Result<Vec<Assignment>, SyntaxError> {
    let placed = |error: SyntaxError| SyntaxError {
        line: error.line + hint.at.line - 1,
        column: if error.line == 1 { error.column + hint.at.column - 1 } else { error.column },
        problem: error.problem,
    };
    let mut cursor = Cursor::new(&hint.text).map_err(placed)?;
    let mut variables = Vec::new();
    while !cursor.at_end() {
        if cursor.take(&["SET_VAR"]) {
            variables.extend(cursor.parenthesised(assignment).map_err(placed)?);
        } else if cursor.take(&["MAX_EXECUTION_TIME"]) {
            let name = "max_execution_time";
            let limit = |cursor: &mut Cursor| {
                Ok(Assignment { global: false, name: name.to_owned(), value: value(cursor)? })
            };
            variables.extend(cursor.parenthesised(limit).map_err(placed)?);
        } else {
            cursor.next();
        }
    }
    Ok(variables)
}
