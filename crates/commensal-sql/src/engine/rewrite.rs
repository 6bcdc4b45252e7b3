//! Small changes to a statement that bridge MySQL's dialect and DataFusion: `?`, `@@variables`, `database()`, table
//! functions with `"key" = "value"`, column names of the result, case-insensitive names.

use super::mysql_functions;
use datafusion::common::TableReference;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, Query,
    SelectItem, SetExpr, TableFactor, Value, VisitMut, VisitorMut,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Schema that contains the table functions of a statement while it is planned.
pub const FUNCTIONS: &str = "__function";

/// A table function of a statement.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// `s3` or `local`.
    pub name: String,
    /// Its properties, keys in lower case. Values may be secrets.
    pub properties: BTreeMap<String, String>,
}

/// Omits the values, which may be secrets.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({:?})", self.name, self.properties.keys())
    }
}

/// Findings of the rewrite of a statement.
#[derive(Debug, Default)]
pub struct Found {
    /// Table functions; function `n` was replaced by the table `n` of [`FUNCTIONS`].
    pub calls: Vec<Call>,
    /// Number of `?` placeholders.
    pub placeholders: usize,
    /// What is not supported, if anything.
    pub problem: Option<String>,
}

/// Resolves a name of the session such as `@@x` or `database()`; `None` when it is unknown.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Changes the statement in place.
pub fn rewrite(statement: &mut Statement, lookup: Lookup<'_>) -> Found {
    let mut pass = Pass { found: Found::default(), lookup };
    match statement {
        Statement::Statement(statement) => {
            if let ast::Statement::Query(query) = statement.as_mut() {
                name_columns(query);
            }
            let _: ControlFlow<()> = statement.visit(&mut pass);
        }
        Statement::Explain(explain) => return rewrite(&mut explain.statement, lookup),
        _ => {}
    }
    pass.found
}

/// Names the columns of the result as they are written, like MySQL.
fn name_columns(query: &mut Query) {
    let SetExpr::Select(select) = query.body.as_mut() else { return };
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) = item
            && !is_column(expr)
        {
            let alias = Ident::with_quote('`', expr.to_string());
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
        }
    }
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Identifier(name) => !name.value.starts_with("@@"),
        Expr::CompoundIdentifier(parts) => !parts.first().is_some_and(|part| part.value.starts_with("@@")),
        _ => false,
    }
}

struct Pass<'a> {
    found: Found,
    lookup: Lookup<'a>,
}

/// A literal of a value: a number if it looks like one.
fn literal(value: &str) -> Expr {
    let value = match value.parse::<i64>() {
        Ok(_) => Value::Number(value.to_owned(), false),
        Err(_) => Value::SingleQuotedString(value.to_owned()),
    };
    Expr::Value(value.into())
}

/// The text of a literal or a plain word.
fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(name.value.clone()),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) | Value::Number(text, _) => {
                Some(text.clone())
            }
            Value::Boolean(value) => Some(value.to_string()),
            _ => None,
        },
        Expr::CompoundIdentifier(parts) => {
            Some(parts.iter().map(|part| part.value.as_str()).collect::<Vec<_>>().join("."))
        }
        _ => None,
    }
}

/// `"key" = "value"`.
fn property(argument: &FunctionArg) -> Option<(String, String)> {
    let value = |arg: &FunctionArgExpr| match arg {
        FunctionArgExpr::Expr(expr) => text(expr),
        _ => None,
    };
    match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp {
            left,
            op: BinaryOperator::Eq,
            right,
        })) => Some((text(left)?.to_lowercase(), text(right)?)),
        FunctionArg::Named { name, arg, .. } => Some((name.value.to_lowercase(), value(arg)?)),
        FunctionArg::ExprNamed { name, arg, .. } => Some((text(name)?.to_lowercase(), value(arg)?)),
        FunctionArg::Unnamed(_) => None,
    }
}

impl VisitorMut for Pass<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, args, alias, .. } = factor else { return ControlFlow::Continue(()) };
        let Some(arguments) = args.take() else { return ControlFlow::Continue(()) };
        let function = name.to_string().to_lowercase();
        if !["s3", "local"].contains(&function.as_str()) {
            *args = Some(arguments);
            return ControlFlow::Continue(());
        }
        let mut properties = BTreeMap::new();
        for argument in &arguments.args {
            match property(argument) {
                Some((key, value)) => {
                    properties.insert(key, value);
                }
                None => {
                    let problem = format!("{function}(...) takes pairs of \"key\" = \"value\"");
                    self.found.problem.get_or_insert(problem);
                }
            }
        }
        let number = self.found.calls.len().to_string();
        *name = ObjectName::from(vec![Ident::new(FUNCTIONS), Ident::with_quote('`', number)]);
        if alias.is_none() {
            *alias = None;
        }
        self.found.calls.push(Call { name: function, properties });
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        mysql_functions::change(expr);
        let replacement = match expr {
            Expr::Identifier(name) if name.value.starts_with("@@") => {
                let name = name.value.trim_start_matches("@@").to_lowercase();
                Some((name.clone(), (self.lookup)(&format!("@@{name}"))))
            }
            Expr::CompoundIdentifier(parts)
                if parts.first().is_some_and(|part| part.value.starts_with("@@")) =>
            {
                let name = parts.last().map(|part| part.value.to_lowercase()).unwrap_or_default();
                Some((name.clone(), (self.lookup)(&format!("@@{name}"))))
            }
            Expr::Function(function) => {
                let none = match &function.args {
                    FunctionArguments::None => true,
                    FunctionArguments::List(list) => list.args.is_empty(),
                    FunctionArguments::Subquery(_) => false,
                };
                let name = function.name.to_string().to_lowercase();
                let value = none.then(|| (self.lookup)(&format!("{name}()"))).flatten();
                if let Some(value) = value {
                    *expr = literal(&value);
                }
                return ControlFlow::Continue(());
            }
            Expr::Value(value) => {
                if let Value::Placeholder(placeholder) = &mut value.value
                    && placeholder == "?"
                {
                    self.found.placeholders += 1;
                    *placeholder = format!("${}", self.found.placeholders);
                }
                None
            }
            _ => None,
        };
        match replacement {
            Some((_, Some(value))) => *expr = literal(&value),
            Some((name, None)) => {
                let problem = format!("Unknown system variable '{name}'");
                self.found.problem.get_or_insert(problem);
            }
            None => {}
        }
        ControlFlow::Continue(())
    }
}

/// Corrects the case of column names, where a name differs from exactly one column in case only.
pub fn fix_case(statement: &mut Statement, columns: &[String]) {
    struct Case<'a>(&'a [String]);
    impl Case<'_> {
        fn fix(&self, name: &mut Ident) {
            if self.0.contains(&name.value) {
                return;
            }
            let mut same = self.0.iter().filter(|column| column.eq_ignore_ascii_case(&name.value));
            if let (Some(column), None) = (same.next(), same.next()) {
                name.value.clone_from(column);
                name.quote_style = Some('`');
            }
        }
    }
    impl VisitorMut for Case<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            match expr {
                Expr::Identifier(name) => self.fix(name),
                Expr::CompoundIdentifier(parts) => {
                    if let Some(name) = parts.last_mut() {
                        self.fix(name);
                    }
                }
                _ => {}
            }
            ControlFlow::Continue(())
        }
    }
    match statement {
        Statement::Statement(statement) => {
            let _: ControlFlow<()> = statement.visit(&mut Case(columns));
        }
        Statement::Explain(explain) => fix_case(&mut explain.statement, columns),
        _ => {}
    }
}

/// Whether a statement may skip the queue: it only reads system tables.
#[must_use]
pub fn bypasses(tables: &[TableReference], database: &str) -> bool {
    tables.iter().all(|table| is_system(table, database))
}

fn is_system(table: &TableReference, database: &str) -> bool {
    table.schema().unwrap_or(database).eq_ignore_ascii_case(super::data::INFORMATION_SCHEMA)
}

/// Whether a statement may run in a worker process: it reads tables, but no system tables, which only the server has.
#[must_use]
pub fn may_leave(tables: &[TableReference], database: &str) -> bool {
    !tables.is_empty() && !tables.iter().any(|table| is_system(table, database))
}

/// A statement as others may see it, with values of keys and passwords hidden.
#[must_use]
pub fn without_secrets(sql: &str) -> String {
    const WORDS: [&str; 5] = ["secret", "access_key", "password", "token", "identified"];
    let lower = sql.to_ascii_lowercase();
    if !WORDS.iter().any(|word| lower.contains(word)) {
        return sql.to_owned();
    }
    let mut shown = String::with_capacity(sql.len());
    let mut rest = sql;
    // Hides every quoted text after such a word, up to the next comma or bracket.
    let mut hide = false;
    while let Some(at) = rest.find(['\'', '"', ',', '(', ')', ';']) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        hide |= WORDS.iter().any(|word| before.to_ascii_lowercase().contains(word));
        let mark = from.as_bytes().first().copied().unwrap_or(b' ') as char;
        if !['\'', '"'].contains(&mark) {
            hide &= !matches!(mark, ',' | ';' | ')');
            shown.push(mark);
            rest = from.get(1..).unwrap_or_default();
            continue;
        }
        let inner = from.get(1..).unwrap_or_default();
        let end = closing(inner, mark);
        let quoted = inner.get(..end).unwrap_or(inner);
        if hide {
            shown.push_str(&format!("{mark}***{mark}"));
        } else {
            shown.push_str(&format!("{mark}{quoted}{mark}"));
            hide = WORDS.iter().any(|word| quoted.to_ascii_lowercase().contains(word));
        }
        rest = inner.get(end + 1..).unwrap_or_default();
    }
    shown.push_str(rest);
    shown
}

/// The end of a quoted text.
fn closing(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        if !escaped && letter == mark {
            return at;
        }
        escaped = !escaped && letter == '\\';
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden() {
        for (sql, want) in [
            ("select 'a'", "select 'a'"),
            (
                r#"select * from s3("URI" = "https://b/k", "s3.access_key"= "ak", "s3.secret_key" = "sk", "format" = "csv")"#,
                r#"select * from s3("URI" = "https://b/k", "s3.access_key"= "***", "s3.secret_key" = "***", "format" = "csv")"#,
            ),
            ("create user u identified by 'x,y'", "create user u identified by '***'"),
            ("set password = password('x')", "set password = password('***')"),
            (r#"s3("secret_key" = "a\"b", 'q' = 'r')"#, r#"s3("secret_key" = "***", 'q' = 'r')"#),
            ("select 'password", "select 'password'"),
        ] {
            assert_eq!(without_secrets(sql), want);
        }
    }
}
