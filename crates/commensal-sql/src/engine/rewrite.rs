//! Small changes to a statement that bridge the differences between MySQL's dialect and DataFusion: `?`, `@@variables`,
//! `database()`, table functions with `"key" = "value"`, column names of the result, and case-insensitive names.

use super::error::{Error, Problem};
use super::{mysql_functions, operators, subqueries, values};
use datafusion::arrow::datatypes::DataType as ArrowType;
use datafusion::common::{ScalarValue, TableReference};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, DataType, ExactNumberInfo, Expr, FunctionArg, FunctionArgExpr,
    FunctionArguments, GroupByExpr, GroupByWithModifier, Ident, LimitClause, ObjectName, Query, Select,
    SelectItem, SetExpr, TableFactor, TableWithJoins, TimezoneInfo, UnaryOperator, Value, Visit, VisitMut,
    Visitor, VisitorMut,
};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::ops::ControlFlow;

/// Schema that contains a statement's table functions while the statement is planned.
pub const FUNCTIONS: &str = "__function";

/// A table function of a statement.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// `s3` or `local`.
    pub name: String,
    /// Properties of the call, with keys in lower case. Values may be secrets.
    pub properties: BTreeMap<String, String>,
}

/// Omits the values, because they may be secrets.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({:?})", self.name, self.properties.keys())
    }
}

/// Information that the rewrite has extracted from a statement.
#[derive(Debug, Default)]
pub struct Found {
    /// Table functions; function number `n` was replaced by the table `n` of the schema [`FUNCTIONS`].
    pub calls: Vec<Call>,
    /// Number of `?` placeholders.
    pub placeholders: usize,
    /// The first part that is not supported, if any.
    pub problem: Option<Error>,
}

/// Returns the value of a name of the session such as `@@x` or `database()`; `None` if the name is unknown.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Changes the statement in place, and returns the extracted information.
pub fn rewrite(statement: &mut Statement, lookup: Lookup<'_>) -> Found {
    let mut pass = Pass { found: Found::default(), lookup };
    match statement {
        Statement::Statement(statement) => {
            if let ast::Statement::Query(query) = statement.as_mut() {
                name_columns(&mut query.body);
            }
            let _: ControlFlow<()> = statement.visit(&mut pass);
        }
        Statement::Explain(explain) => return rewrite(&mut explain.statement, lookup),
        _ => {}
    }
    pass.found
}

/// Separates the name of a column from a number that makes it unique: DataFusion does not allow two columns of one name.
const REPEATED: char = '\0';

/// Names each column of the result like the text of its expression, as MySQL does.
fn name_columns(body: &mut SetExpr) {
    let select = match body {
        SetExpr::Select(select) => select,
        SetExpr::Query(query) => return name_columns(&mut query.body),
        SetExpr::SetOperation { left, right, .. } => {
            name_columns(left);
            return name_columns(right);
        }
        _ => return,
    };
    let mut seen = BTreeSet::new();
    let has_wildcard = select
        .projection
        .iter()
        .any(|item| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)));
    for (number, item) in select.projection.iter_mut().enumerate() {
        let (expr, name) = match item {
            SelectItem::UnnamedExpr(expr) => (expr.clone(), None),
            SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), Some(alias.value.clone())),
            _ => continue,
        };
        let plain = name.is_none() && is_column(&expr);
        let name = name.unwrap_or_else(|| match &expr {
            Expr::Identifier(name) => name.value.clone(),
            expr => expr.to_string(),
        });
        // A column beside `*` is there twice, mostly.
        if !seen.insert(name.to_lowercase()) || (has_wildcard && plain) {
            let alias =
                Ident::with_quote('`', format!("{}{REPEATED}{number}", last_part(&expr).unwrap_or(&name)));
            *item = SelectItem::ExprWithAlias { expr, alias };
        } else if !plain {
            let alias = Ident::with_quote('`', name);
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
    }
}

/// Returns the column's name of a name with a table, such as `t.a`.
fn last_part(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::CompoundIdentifier(parts) => parts.last().map(|part| part.value.as_str()),
        _ => None,
    }
}

/// Returns the name of a result's column for the client.
#[must_use]
pub fn column_name(name: &str) -> &str {
    name.split(REPEATED).next().unwrap_or(name)
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Identifier(name) => !name.value.starts_with('@'),
        Expr::CompoundIdentifier(parts) => !parts.first().is_some_and(|part| part.value.starts_with("@@")),
        _ => false,
    }
}

/// Whether this is the table `dual`, which MySQL accepts in statements that read no table.
fn is_dual(table: &TableWithJoins) -> bool {
    match &table.relation {
        TableFactor::Table { name, alias: None, args: None, .. } => {
            table.joins.is_empty() && name.to_string().eq_ignore_ascii_case("dual")
        }
        _ => false,
    }
}

struct Pass<'a> {
    found: Found,
    lookup: Lookup<'a>,
}

/// Creates a literal: a number if the value is an integer, otherwise a string.
fn literal(value: &str) -> Expr {
    let value = match value.parse::<i64>() {
        Ok(_) => Value::Number(value.to_owned(), false),
        Err(_) => Value::SingleQuotedString(value.to_owned()),
    };
    Expr::Value(value.into())
}

/// Returns the text of a literal or of a name.
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

/// Parses `"key" = "value"`.
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
                    self.found.problem.get_or_insert(Error::Rule(problem));
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

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if matches!(select.from.as_slice(), [only] if is_dual(only)) {
            select.from.clear();
        }
        if let GroupByExpr::Expressions(keys, modifiers) = &mut select.group_by
            && *modifiers == [GroupByWithModifier::Rollup]
        {
            modifiers.clear();
            *keys = vec![Expr::Rollup(std::mem::take(keys).into_iter().map(|key| vec![key]).collect())];
        }
        let conditions = select.selection.iter_mut().chain(&mut select.having);
        conditions.for_each(operators::condition);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        operators::change(expr);
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
            // A variable of the user that was not set is NULL.
            Expr::Identifier(name) if name.value.starts_with('@') && name.quote_style.is_none() => {
                let value = (self.lookup)(&name.value.to_lowercase());
                *expr = value.map_or(Expr::Value(Value::Null.into()), |value| literal(&value));
                None
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
                self.found.problem.get_or_insert(Error::Name(Problem::Variable, problem));
            }
            None => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let before = discriminant(expr);
        subqueries::change(expr);
        if let Err(error) = mysql_functions::change(expr) {
            self.found.problem.get_or_insert(error);
        }
        // Some replacements have an argument several times, so that nested ones double with each level.
        if discriminant(expr) != before && is_too_large(expr) {
            let problem = "too many of these functions or subqueries are in each other".to_owned();
            self.found.problem.get_or_insert(Error::Unsupported(problem));
            *expr = Expr::Value(Value::Null.into());
        }
        ControlFlow::Continue(())
    }
}

/// Size of a replacement from which it is refused; larger ones take seconds to plan.
const LARGEST: usize = 10_000;
/// Size of a subquery: it takes as long to plan as many expressions.
const SUBQUERY: usize = 50;

fn is_too_large(expr: &Expr) -> bool {
    struct Size(usize);
    impl Size {
        fn add(&mut self, size: usize) -> ControlFlow<()> {
            self.0 += size;
            if self.0 > LARGEST { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    impl Visitor for Size {
        type Break = ();
        fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
            self.add(1)
        }
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.add(SUBQUERY)
        }
    }
    Visit::visit(expr, &mut Size(0)).is_break()
}

/// Puts values in the place of the placeholders of a rewritten statement, so that it means what it means with literals.
///
/// # Errors
/// There is no value for a placeholder, or no literal for a value.
pub fn fill(statement: &mut Statement, values: &[ScalarValue]) -> Result<(), Error> {
    let statement = match statement {
        Statement::Statement(statement) => statement,
        Statement::Explain(explain) => return fill(&mut explain.statement, values),
        _ => return Ok(()),
    };
    let mut literals = Literals { values, problem: None };
    let _: ControlFlow<()> = statement.visit(&mut literals);
    literals.problem.map_or(Ok(()), Err)
}

struct Literals<'a> {
    values: &'a [ScalarValue],
    problem: Option<Error>,
}

impl<'a> Literals<'a> {
    fn value(&self, expr: &Expr) -> Option<&'a ScalarValue> {
        let Expr::Value(value) = expr else { return None };
        let Value::Placeholder(name) = &value.value else { return None };
        let number: usize = name.strip_prefix('$')?.parse().ok()?;
        self.values.get(number.checked_sub(1)?)
    }
}

impl VisitorMut for Literals<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let limits: Vec<&mut Expr> = match &mut query.limit_clause {
            Some(LimitClause::LimitOffset { limit, offset, .. }) => {
                limit.iter_mut().chain(offset.as_mut().map(|offset| &mut offset.value)).collect()
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => vec![offset, limit],
            None => Vec::new(),
        };
        // Some clients send all values as texts.
        for expr in limits {
            let text = self.value(expr).and_then(|value| value.try_as_str().flatten()).map(str::to_owned);
            if let Some(number) = text.filter(|text| text.parse::<u64>().is_ok()) {
                *expr = Expr::Value(Value::Number(number, false).into());
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some(value) = self.value(expr) {
            match literal_of(value) {
                Ok(literal) => *expr = literal,
                Err(error) => self.problem = Some(error),
            }
        }
        ControlFlow::Continue(())
    }
}

/// Returns the literal of a value.
fn literal_of(value: &ScalarValue) -> Result<Expr, Error> {
    let text = || value.cast_to(&ArrowType::Utf8).map(|text| text.to_string()).map_err(Error::from);
    let quoted = |text: String| Expr::Value(Value::SingleQuotedString(text).into());
    let cast = |text: String, data_type: DataType| Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(quoted(text)),
        data_type,
        array: false,
        format: None,
    };
    let kind = value.data_type();
    Ok(match value {
        value if value.is_null() => Expr::Value(Value::Null.into()),
        ScalarValue::Boolean(Some(value)) => {
            Expr::Value(Value::Number(u8::from(*value).to_string(), false).into())
        }
        ScalarValue::Binary(Some(bytes)) => {
            let hex = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
            Expr::Value(Value::HexStringLiteral(hex).into())
        }
        _ if kind.is_floating() => cast(text()?, DataType::Double(ExactNumberInfo::None)),
        _ if kind.is_numeric() => {
            let text = text()?;
            let number = |text: &str| Expr::Value(Value::Number(text.to_owned(), false).into());
            match text.strip_prefix('-') {
                Some(digits) => Expr::Nested(Box::new(Expr::UnaryOp {
                    op: UnaryOperator::Minus,
                    expr: Box::new(number(digits)),
                })),
                None => number(&text),
            }
        }
        _ if values::is_text(&kind) => quoted(text()?),
        _ if kind == ArrowType::Date32 => cast(text()?, DataType::Date),
        _ if values::is_clock(&kind) => mysql_functions::called(values::CLOCK, &quoted(text()?)),
        _ => cast(text()?, DataType::Timestamp(None, TimezoneInfo::None)),
    })
}

/// Limits the number of rows of a query that has no limit of its own.
pub fn limit(statement: &mut Statement, rows: u64) {
    let Statement::Statement(statement) = statement else { return };
    if let ast::Statement::Query(query) = statement.as_mut()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
    {
        let limit = Some(Expr::Value(Value::Number(rows.to_string(), false).into()));
        query.limit_clause = Some(LimitClause::LimitOffset { limit, offset: None, limit_by: Vec::new() });
    }
}

/// Whether a statement may bypass the queue, because it only reads system tables.
#[must_use]
pub fn bypasses(tables: &[TableReference], database: &str) -> bool {
    tables.iter().all(|table| is_system(table, database))
}

fn is_system(table: &TableReference, database: &str) -> bool {
    table.schema().unwrap_or(database).eq_ignore_ascii_case(super::data::INFORMATION_SCHEMA)
}

/// Whether a statement may run in a worker process. It must read tables, but no system tables, because only the server
/// has these.
#[must_use]
pub fn may_leave(tables: &[TableReference], database: &str) -> bool {
    !tables.is_empty() && !tables.iter().any(|table| is_system(table, database))
}
