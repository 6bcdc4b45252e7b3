//! Small changes to a statement that bridge the differences between MySQL's dialect and DataFusion: `?`, `@@variables`,
//! `database()`, table functions with `"key" = "value"`, column names of the result, and case-insensitive names.

use super::dialect::Mysql;
use super::error::{Error, Problem};
use super::functions::clock_text;
use super::mysql_functions::text_of;
use super::{mysql_functions, operators, subqueries, values};
use crate::statement::in_quotes;
use datafusion::arrow::datatypes::{DataType as ArrowType, TimeUnit};
use datafusion::common::{ScalarValue, TableReference};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, DataType, ExactNumberInfo, Expr, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, GroupByExpr, GroupByWithModifier, Ident, LimitClause,
    ObjectName, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins, TimezoneInfo, UnaryOperator,
    Value, Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Location, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Schema that contains a statement's table functions while the statement is planned.
pub const FUNCTIONS: &str = "__function";

/// A table function of a statement.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// One of [`TABLE_FUNCTIONS`].
    pub name: String,
    /// Properties of the call, with keys as they are written. Values may be secrets.
    pub properties: BTreeMap<String, String>,
}

/// Names of the table functions.
const TABLE_FUNCTIONS: [&str; 3] = ["s3", "hdfs", "local"];

impl Call {
    /// Returns the value of the first of these properties that the call has, in any case of letters.
    #[must_use]
    pub fn get(&self, names: &[&str]) -> Option<&str> {
        let of = |name: &&str| self.properties.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        names.iter().find_map(of).map(|(_, value)| value.as_str())
    }
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

/// Changes the statement in place, and returns the extracted information. With values, these are in the place of the
/// placeholders first, so that the statement means what it means with literals.
pub fn rewrite(statement: &mut Statement, lookup: Lookup<'_>, values: &[ScalarValue]) -> Found {
    let statement = match statement {
        Statement::Statement(statement) => statement.as_mut(),
        Statement::Explain(explain) => return rewrite(&mut explain.statement, lookup, values),
        _ => return Found::default(),
    };
    if let ast::Statement::Query(query) = statement {
        name_columns(&mut query.body);
    }
    let placeholders = number_placeholders(statement);
    let mut literals = Literals { values, problem: None };
    if !values.is_empty() {
        let _: ControlFlow<()> = statement.visit(&mut literals);
    }
    let found = Found { calls: Vec::new(), placeholders, problem: literals.problem };
    let most_growth = most_growth(statement);
    let mut pass = Pass { found, lookup, grown: 0, most_growth };
    let _: ControlFlow<()> = statement.visit(&mut pass);
    pass.found
}

/// Numbers the placeholders in the order of the text, from 1: parts of an expression may be visited in another order.
/// Returns how many there are.
fn number_placeholders(statement: &mut ast::Statement) -> usize {
    let mut places = Vec::new();
    let _: ControlFlow<()> = statement.visit(&mut Placeholders(|name: &mut String, at| {
        if name == "?" {
            *name = format!("?{}", places.len());
            places.push((at, places.len()));
        }
    }));
    places.sort_unstable();
    let mut numbers = vec![0; places.len()];
    places.iter().enumerate().for_each(|(number, (_, visited))| numbers[*visited] = number + 1);
    let _: ControlFlow<()> = statement.visit(&mut Placeholders(|name: &mut String, _| {
        let number = name.strip_prefix('?').and_then(|visited| numbers.get(visited.parse::<usize>().ok()?));
        if let Some(number) = number {
            *name = format!("${number}");
        }
    }));
    places.len()
}

struct Placeholders<F>(F);

impl<F: FnMut(&mut String, Location)> VisitorMut for Placeholders<F> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &mut value.value
        {
            (self.0)(name, value.span.start);
        }
        ControlFlow::Continue(())
    }
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
    /// By how much all replacements together are larger than what they replace.
    grown: usize,
    /// How much that may be.
    most_growth: usize,
}

/// Parses the literal that is the value of a user's variable.
fn parsed(literal: &str) -> Option<Expr> {
    let mut parser = Parser::new(&Mysql).try_with_sql(literal).ok()?;
    let expr = parser.parse_expr().ok()?;
    (parser.peek_token() == Token::EOF).then_some(expr)
}

/// Writes a value as a literal, which [`parsed`] reads.
///
/// # Errors
/// There is no literal for a value of its type.
pub fn written(value: &ScalarValue) -> Result<String, Error> {
    Ok(match value {
        // sqlparser would write a backslash, which escapes what follows it, as it is.
        value if let Some(Some(text)) = value.try_as_str() => in_quotes(text),
        ScalarValue::UInt64(Some(number)) => format!("CAST({number} AS UNSIGNED)"),
        value => literal_of(value)?.to_string(),
    })
}

/// Whether a text is digits with a point in between.
fn is_decimal(value: &str) -> bool {
    let are_digits =
        |part: &str| (1..=18).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_digit());
    value.split_once('.').is_some_and(|(whole, fraction)| are_digits(whole) && are_digits(fraction))
}

/// Creates a literal: a number if the value is written as one, otherwise a string.
fn literal(value: &str) -> Expr {
    let value = match value.parse::<i64>().is_ok() || is_decimal(value) {
        true => Value::Number(value.to_owned(), false),
        false => Value::SingleQuotedString(value.to_owned()),
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
        })) => Some((text(left)?, text(right)?)),
        FunctionArg::Named { name, arg, .. } => Some((name.value.clone(), value(arg)?)),
        FunctionArg::ExprNamed { name, arg, .. } => Some((text(name)?, value(arg)?)),
        FunctionArg::Unnamed(_) => None,
    }
}

impl VisitorMut for Pass<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, args, alias, .. } = factor else { return ControlFlow::Continue(()) };
        let Some(arguments) = args.take() else { return ControlFlow::Continue(()) };
        let function = name.to_string().to_lowercase();
        if !TABLE_FUNCTIONS.contains(&function.as_str()) {
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
                *expr = value.and_then(|value| parsed(&value)).unwrap_or(Expr::Value(Value::Null.into()));
                self.grow(expr, size(expr));
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
            _ => None,
        };
        match replacement {
            Some((_, Some(value))) => {
                *expr = literal(&value);
                self.grow(expr, size(expr));
            }
            Some((name, None)) => {
                let problem = format!("Unknown system variable '{name}'");
                self.found.problem.get_or_insert(Error::Name(Problem::Variable, problem));
            }
            None => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        // Some replacements have an argument several times, so that nested ones double with each level.
        let before = may_grow(expr).then(|| size(expr));
        let is_long = matches!(expr, Expr::InList { list, .. }
            if list.len() > operators::MOST_JOINED && subqueries::has_others(list));
        if before.is_some() && (is_long || copied(expr) > LARGEST) {
            self.refuse_size(expr);
            return ControlFlow::Continue(());
        }
        subqueries::change(expr);
        if let Err(error) = mysql_functions::change(expr) {
            self.found.problem.get_or_insert(error);
        }
        if let Some(before) = before {
            self.grow(expr, size(expr).saturating_sub(before));
        }
        ControlFlow::Continue(())
    }
}

impl Pass<'_> {
    /// Counts what a replacement adds to the statement, and refuses it if that is too much.
    fn grow(&mut self, expr: &mut Expr, by: usize) {
        self.grown += by;
        if self.grown > self.most_growth {
            self.refuse_size(expr);
        }
    }

    fn refuse_size(&mut self, expr: &mut Expr) {
        let problem = "too many of these functions or subqueries are in each other".to_owned();
        self.found.problem.get_or_insert(Error::Unsupported(problem));
        *expr = Expr::Value(Value::Null.into());
    }
}

/// Size that replacements may add to any statement; what is larger takes seconds to plan.
const LARGEST: usize = 10_000;
/// How much more they may add to a larger statement, for each of its expressions.
const FACTOR: usize = 8;
/// What they may add to the largest statement.
const MOST_GROWTH: usize = 10 * LARGEST;
/// Bytes of a text that count as an expression.
const LETTERS: usize = 100;
/// Size of a subquery: it takes as long to plan as many expressions.
const SUBQUERY: usize = 50;

/// Whether the replacement of an expression may have a part of it more than once.
fn may_grow(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Function(_)
            | Expr::Substring { .. }
            | Expr::InList { .. }
            | Expr::AllOp { .. }
            | Expr::AnyOp { .. }
    )
}

/// The size of the copies that the replacement of an expression has of a part, if their number is that of its arguments.
fn copied(expr: &Expr) -> usize {
    match expr {
        Expr::InList { expr: value, list, .. } if subqueries::has_others(list) => {
            size(value.as_ref()).saturating_mul(list.len())
        }
        Expr::Function(function) => match (&function.args, function.name.to_string().to_lowercase().as_str())
        {
            (FunctionArguments::List(list), "interval") => {
                list.args.first().map_or(0, size).saturating_mul(list.args.len())
            }
            (FunctionArguments::List(list), "group_concat") => {
                let orders = list.clauses.iter().map(|clause| match clause {
                    FunctionArgumentClause::OrderBy(orders) => orders.len(),
                    _ => 0,
                });
                size(&list.args).saturating_mul(orders.sum())
            }
            _ => 0,
        },
        _ => 0,
    }
}

/// By how much replacements may enlarge a statement.
pub(super) fn most_growth(statement: &ast::Statement) -> usize {
    (LARGEST + FACTOR * size(statement)).min(MOST_GROWTH)
}

/// The number of expressions in a part of a statement, and the length of its texts.
pub(super) fn size(part: &(impl Visit + ?Sized)) -> usize {
    struct Size(usize);
    impl Visitor for Size {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            self.0 += 1 + text_of(expr).map_or(0, |text| text.len() / LETTERS);
            ControlFlow::Continue(())
        }
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.0 += SUBQUERY;
            ControlFlow::Continue(())
        }
    }
    let mut size = Size(0);
    let _: ControlFlow<()> = part.visit(&mut size);
    size.0
}

/// Puts values in the place of placeholders.
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
        // Some clients send all values as texts, or all numbers as floating point numbers.
        for expr in limits {
            if let Some(number) = self.value(expr).and_then(row_count) {
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

/// Returns the number of rows that a value is.
fn row_count(value: &ScalarValue) -> Option<String> {
    let text = match value {
        // Without a fraction, this is written without a point.
        ScalarValue::Float64(Some(number)) => number.to_string(),
        value => value.try_as_str().flatten()?.to_owned(),
    };
    text.parse::<u64>().is_ok().then_some(text)
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
        ScalarValue::Binary(Some(bytes))
        | ScalarValue::LargeBinary(Some(bytes))
        | ScalarValue::BinaryView(Some(bytes)) => {
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
        _ if values::is_clock(&kind) => {
            let micros = match kind {
                ArrowType::Duration(_) => value.cast_to(&ArrowType::Duration(TimeUnit::Microsecond))?,
                _ => value.cast_to(&ArrowType::Time64(TimeUnit::Microsecond))?,
            };
            let (ScalarValue::DurationMicrosecond(Some(micros))
            | ScalarValue::Time64Microsecond(Some(micros))) = micros
            else {
                return Err(without_literal(&kind));
            };
            cast(clock_text(micros), DataType::Time(Some(6), TimezoneInfo::None))
        }
        _ if matches!(kind, ArrowType::Timestamp(..)) => {
            let text = text()?;
            let digits = if text.contains('.') { 6 } else { 0 };
            cast(text, DataType::Datetime(Some(digits)))
        }
        _ => return Err(without_literal(&kind)),
    })
}

fn without_literal(kind: &ArrowType) -> Error {
    Error::Unsupported(format!("a value of type {kind} cannot be kept or passed"))
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
