//! Grammar of statements about users, roles, passwords and privileges.

use super::cursor::Cursor;
use super::syntax::{Grant, Granted, Grantee, Secret, Statement, SyntaxError, UserChange, UserName};
use sqlparser::tokenizer::Token;

/// Parses a statement about users, roles or privileges; returns `None` if the statement begins otherwise.
pub(super) fn statement(cursor: &mut Cursor) -> Result<Option<Statement>, SyntaxError> {
    let statement = if cursor.take(&["GRANT"]) {
        grant(cursor, false)?
    } else if cursor.take(&["REVOKE"]) {
        grant(cursor, true)?
    } else if cursor.take(&["CREATE", "USER"]) {
        user_change(cursor, true)?
    } else if cursor.take(&["ALTER", "USER"]) {
        user_change(cursor, false)?
    } else if cursor.take(&["DROP", "USER"]) {
        let if_exists = cursor.take(&["IF", "EXISTS"]);
        Statement::DropUser { user: user(cursor)?, if_exists }
    } else if cursor.take(&["CREATE", "ROLE"]) {
        let if_not_exists = cursor.take(&["IF", "NOT", "EXISTS"]);
        Statement::CreateRole { name: cursor.name("the name of a role")?, if_not_exists }
    } else if cursor.take(&["DROP", "ROLE"]) {
        let if_exists = cursor.take(&["IF", "EXISTS"]);
        Statement::DropRole { name: cursor.name("the name of a role")?, if_exists }
    } else if cursor.take(&["SET", "PASSWORD"]) {
        let user = if cursor.take(&["FOR"]) { Some(user(cursor)?) } else { None };
        cursor.expect_sign(&Token::Eq)?;
        Statement::SetPassword { user, password: new_password(cursor)? }
    } else if cursor.take(&["SHOW", "GRANTS"]) {
        let user = match cursor.take(&["FOR"]) {
            true if cursor.take(&["CURRENT_USER"]) => {
                cursor.take_sign(&Token::LParen);
                cursor.take_sign(&Token::RParen);
                None
            }
            true => Some(user(cursor)?),
            false => None,
        };
        Statement::ShowGrants { all: false, user }
    } else if cursor.take(&["SHOW", "ALL", "GRANTS"]) {
        Statement::ShowGrants { all: true, user: None }
    } else {
        return Ok(None);
    };
    Ok(Some(statement))
}

/// Parses a user: `'u'@'%'`, `u@localhost` or `u`.
pub(super) fn user(cursor: &mut Cursor) -> Result<UserName, SyntaxError> {
    let plain = matches!(cursor.peek(), Some(Token::Word(word)) if word.quote_style.is_none());
    let name = cursor.name("the name of a user")?;
    if let Some((name, host)) = name.split_once('@').filter(|_| plain) {
        // The tokenizer treats an `@` as part of a plain word.
        let host = if host.is_empty() { host_name(cursor)? } else { host.to_owned() };
        return Ok(UserName { name: name.to_owned(), host });
    }
    if cursor.take_sign(&Token::AtSign) {
        return Ok(UserName { name, host: host_name(cursor)? });
    }
    let host = match cursor.peek() {
        Some(Token::Word(word)) if word.quote_style.is_none() => {
            word.value.strip_prefix('@').map(str::to_owned)
        }
        _ => None,
    };
    if host.is_some() {
        cursor.next();
    }
    Ok(UserName { name, host: host.unwrap_or_else(|| "%".to_owned()) })
}

/// Parses the host after the `@`: a name, a quoted pattern, or Doris' `['domain']`.
fn host_name(cursor: &mut Cursor) -> Result<String, SyntaxError> {
    if cursor.take_sign(&Token::LBracket) {
        return Err(cursor.fail("a host name or pattern (domains in brackets are not supported)"));
    }
    cursor.name("a host name or pattern in quotes")
}

/// Parses the text after `IDENTIFIED BY`: the password, or `PASSWORD` and a hash.
fn identified_by(cursor: &mut Cursor) -> Result<Secret, SyntaxError> {
    if cursor.take(&["PASSWORD"]) {
        return cursor.quoted("the password's hash in quotes").map(Secret::Hash);
    }
    cursor.quoted("a password in quotes").map(Secret::Plain)
}

/// Parses the text after `SET PASSWORD =`: `PASSWORD('…')`, or a hash.
fn new_password(cursor: &mut Cursor) -> Result<Secret, SyntaxError> {
    if !cursor.take(&["PASSWORD"]) {
        return cursor.quoted("PASSWORD('…') or a password's hash in quotes").map(Secret::Hash);
    }
    cursor.expect_sign(&Token::LParen)?;
    let password = cursor.quoted("a password in quotes")?;
    cursor.expect_sign(&Token::RParen)?;
    Ok(Secret::Plain(password))
}

fn user_change(cursor: &mut Cursor, create: bool) -> Result<Statement, SyntaxError> {
    let lenient = if create { cursor.take(&["IF", "NOT", "EXISTS"]) } else { cursor.take(&["IF", "EXISTS"]) };
    let user = user(cursor)?;
    let mut change = UserChange { user, create, lenient, password: None, role: None, tls: None };
    if cursor.take(&["IDENTIFIED", "BY"]) {
        change.password = Some(identified_by(cursor)?);
    }
    if cursor.take(&["DEFAULT", "ROLE"]) {
        change.role = Some(cursor.name("the name of a role")?);
    }
    if cursor.take(&["REQUIRE", "SSL"]) {
        change.tls = Some(true);
    } else if cursor.take(&["REQUIRE", "NONE"]) {
        change.tls = Some(false);
    }
    if !create && change.password.is_none() && change.role.is_none() && change.tls.is_none() {
        return Err(cursor.fail("IDENTIFIED BY, DEFAULT ROLE, REQUIRE SSL or REQUIRE NONE"));
    }
    Ok(Statement::User(change))
}

fn grant(cursor: &mut Cursor, revoke: bool) -> Result<Statement, SyntaxError> {
    let quoted_role =
        matches!(cursor.peek(), Some(Token::SingleQuotedString(_) | Token::DoubleQuotedString(_)));
    let names = cursor.list(|cursor| cursor.name("a privilege or a role"))?;
    let preposition = if revoke { "FROM" } else { "TO" };
    let what = if cursor.take(&["ON"]) {
        let privileges = names.iter().map(|name| name.to_uppercase()).collect();
        object(cursor, privileges)?
    } else if quoted_role || cursor.comes(&[preposition]) {
        Granted::Roles(names)
    } else {
        return Err(cursor.fail(&format!("ON or {preposition}")));
    };
    cursor.expect(preposition)?;
    let grantee = if cursor.take(&["ROLE"]) {
        Grantee::Role(cursor.name("the name of a role")?)
    } else {
        Grantee::User(user(cursor)?)
    };
    Ok(Statement::Grant(Grant { revoke, what, grantee }))
}

/// Parses the object of privileges: a workload group, or `catalog.database.table`, of which parts may be `*`.
fn object(cursor: &mut Cursor, privileges: Vec<String>) -> Result<Granted, SyntaxError> {
    if cursor.take(&["WORKLOAD", "GROUP"]) {
        if privileges != ["USAGE_PRIV"] {
            return Err(cursor.fail("USAGE_PRIV as the only privilege on a workload group"));
        }
        return cursor.name("the name of a workload group, or '%'").map(Granted::Group);
    }
    let mut parts = Vec::new();
    loop {
        let part =
            if cursor.take_sign(&Token::Mul) { "*".to_owned() } else { cursor.name("a table, or *.*.*")? };
        parts.push(part);
        if parts.len() == 3 || !cursor.take_sign(&Token::Period) {
            break;
        }
    }
    let mut object = ["*", "*", "*"].map(str::to_owned);
    // `db.table` has no catalog; a single name is a database.
    let first = if parts.len() == 1 { 1 } else { 3 - parts.len() };
    for (place, part) in object.iter_mut().skip(first).zip(parts) {
        *place = part;
    }
    Ok(Granted::Objects { privileges, object })
}
