//! Grammar of statements about workload groups and workload policies.

use super::cursor::Cursor;
use super::syntax::{ActionText, ConditionText, GroupRef, NewPolicy, Statement, SyntaxError};
use sqlparser::tokenizer::Token;

type Grammar = fn(&mut Cursor) -> Result<Statement, SyntaxError>;

/// Parses a statement about groups or policies; returns `None` if the statement begins otherwise.
pub(super) fn statement(cursor: &mut Cursor) -> Result<Option<Statement>, SyntaxError> {
    let verbs: [(&str, Grammar); 4] = [("CREATE", create), ("ALTER", alter), ("DROP", drop), ("SHOW", show)];
    for (verb, grammar) in verbs {
        if cursor.take(&[verb, "WORKLOAD"]) {
            return grammar(cursor).map(Some);
        }
    }
    Ok(None)
}

/// Whether the statement is about a group; otherwise it must be about a policy.
fn about_a_group(cursor: &mut Cursor) -> Result<bool, SyntaxError> {
    if cursor.take(&["GROUP"]) {
        return Ok(true);
    }
    if cursor.take(&["POLICY"]) || cursor.take(&["SCHEDULE", "POLICY"]) {
        return Ok(false);
    }
    Err(cursor.fail("GROUP or POLICY"))
}

fn create(cursor: &mut Cursor) -> Result<Statement, SyntaxError> {
    let of_group = about_a_group(cursor)?;
    let if_not_exists = cursor.take(&["IF", "NOT", "EXISTS"]);
    if of_group {
        let group = group(cursor)?;
        let properties = cursor.properties()?;
        return Ok(Statement::CreateGroup { group, if_not_exists, properties });
    }
    let name = cursor.name("the name of a workload policy")?;
    let conditions = if cursor.take(&["CONDITIONS"]) { cursor.parenthesised(condition)? } else { Vec::new() };
    let actions = if cursor.take(&["ACTIONS"]) { cursor.parenthesised(action)? } else { Vec::new() };
    let properties = cursor.properties()?;
    Ok(Statement::CreatePolicy(NewPolicy { name, if_not_exists, conditions, actions, properties }))
}

fn alter(cursor: &mut Cursor) -> Result<Statement, SyntaxError> {
    if about_a_group(cursor)? {
        let group = group(cursor)?;
        return Ok(Statement::AlterGroup { group, properties: cursor.properties()? });
    }
    let name = cursor.name("the name of a workload policy")?;
    if cursor.comes(&["CONDITIONS"]) || cursor.comes(&["ACTIONS"]) {
        return Err(cursor.fail(
            "PROPERTIES, because the conditions and actions of a workload policy cannot be altered (drop and create it)",
        ));
    }
    cursor.expect("PROPERTIES")?;
    Ok(Statement::AlterPolicy { name, properties: cursor.pairs()? })
}

fn drop(cursor: &mut Cursor) -> Result<Statement, SyntaxError> {
    let of_group = about_a_group(cursor)?;
    let if_exists = cursor.take(&["IF", "EXISTS"]);
    if of_group {
        return Ok(Statement::DropGroup { group: group(cursor)?, if_exists });
    }
    Ok(Statement::DropPolicy { name: cursor.name("the name of a workload policy")?, if_exists })
}

fn show(cursor: &mut Cursor) -> Result<Statement, SyntaxError> {
    if cursor.take(&["GROUPS"]) {
        return Ok(Statement::ShowGroups { like: cursor.like()? });
    }
    if cursor.take(&["POLICY"]) || cursor.take(&["SCHEDULE", "POLICY"]) {
        return Ok(Statement::ShowPolicies);
    }
    Err(cursor.fail("GROUPS or POLICY"))
}

fn group(cursor: &mut Cursor) -> Result<GroupRef, SyntaxError> {
    let name = cursor.name("the name of a workload group")?;
    let compute_group =
        if cursor.take(&["FOR"]) { Some(cursor.name("the name of a compute group")?) } else { None };
    Ok(GroupRef { name, compute_group })
}

fn condition(cursor: &mut Cursor) -> Result<ConditionText, SyntaxError> {
    let metric = cursor.name("a metric")?.to_lowercase();
    let operators =
        [(Token::Gt, ">"), (Token::GtEq, ">="), (Token::Lt, "<"), (Token::LtEq, "<="), (Token::Eq, "=")];
    let found = operators.into_iter().find(|(sign, _)| cursor.take_sign(sign));
    let (_, operator) = found.ok_or_else(|| cursor.fail("one of >, >=, <, <=, ="))?;
    Ok(ConditionText { metric, operator, value: cursor.value("a value")? })
}

fn action(cursor: &mut Cursor) -> Result<ActionText, SyntaxError> {
    let action = cursor.name("an action")?.to_lowercase();
    let ends = matches!(cursor.peek(), Some(Token::Comma | Token::RParen) | None);
    let argument = if ends { None } else { Some(cursor.value("the action's argument")?) };
    Ok(ActionText { action, argument })
}
