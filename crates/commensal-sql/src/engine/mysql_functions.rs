//! MySQL's functions in terms of DataFusion's: a table of templates, and the few functions whose replacement depends on
//! their arguments. A function that is in neither is DataFusion's, or does not exist.
//!
//! Where Doris differs from MySQL, Doris is followed.

mod json;
mod times;

use super::error::{Error, Problem};
use super::functions::{self, ArgumentKind, BETWEEN, DATE_FORMAT, PARTS, SECONDS};
use super::kernels::DECIMAL;
use super::operators;
use super::values::{
    CEIL, CLOCK, DATE, DATETIME, EITHER, FLOOR, NUMBER, RAW, SIGNED, SUBSTRING, TEXT, UNSIGNED, WHOLE,
};
use datafusion::arrow::datatypes::DECIMAL128_MAX_PRECISION;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, CeilFloorKind, CharacterLength, DataType, DateTimeField,
    DuplicateTreatment, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, Ident, ObjectName, Query, SetExpr, TableFactor, TimezoneInfo,
    UnaryOperator, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::LazyLock;
use times::{PRESENT, moved, moved_by, present, simple_unit_of, str_to_date, unit_of};

/// Name, number of arguments, replacement. `@1` is the first argument as a date with time, NULL if it is none.
const TABLE: [(&str, usize, &str); 57] = [
    // Conditions.
    ("if", 3, "CASE WHEN $1 THEN $2 ELSE $3 END"),
    ("isnull", 1, "$1 IS NULL"),
    ("ifnull", 2, "coalesce($1, $2)"),
    // Text. Lengths are in bytes, except for `char_length`.
    ("length", 1, "__length($1)"),
    ("octet_length", 1, "__length($1)"),
    ("locate", 2, "strpos($2, $1)"),
    ("instr", 2, "strpos($1, $2)"),
    ("strcmp", 2, "CASE WHEN $1 = $2 THEN 0 WHEN $1 < $2 THEN -1 WHEN $1 > $2 THEN 1 END"),
    // Numbers. Outside of their domain functions are NULL.
    ("ln", 1, "CASE WHEN $1 > 0 THEN ln($1) END"),
    ("log", 1, "CASE WHEN $1 > 0 THEN ln($1) END"),
    ("log", 2, "CASE WHEN $1 > 0 AND $1 <> 1 AND $2 > 0 THEN ln($2) / ln($1) END"),
    ("log2", 1, "CASE WHEN $1 > 0 THEN log2($1) END"),
    ("log10", 1, "CASE WHEN $1 > 0 THEN log10($1) END"),
    ("asin", 1, "CASE WHEN $1 BETWEEN -1 AND 1 THEN asin($1) END"),
    ("acos", 1, "CASE WHEN $1 BETWEEN -1 AND 1 THEN acos($1) END"),
    ("sqrt", 1, "CASE WHEN $1 >= 0 THEN sqrt($1) END"),
    ("mod", 2, "$1 % $2"),
    ("abs", 1, "abs(__number($1))"),
    ("ceiling", 1, "__ceil($1)"),
    ("atan", 2, "atan2($1, $2)"),
    ("regexp_replace", 3, "regexp_replace($1, $2, $3, 'g')"),
    ("round", 1, "__digits(__unsigned_zero(round($1)), 0)"),
    ("round", 2, "__unsigned_zero(round($1, $2))"),
    ("truncate", 2, "trunc($1, $2)"),
    ("substring_index", 3, "substring_index(__text($1), __text($2), $3)"),
    ("sign", 1, "signum($1)"),
    ("rand", 0, "random()"),
    ("sleep", 1, "sleep(CAST(__number($1) AS DOUBLE))"),
    // Dates.
    ("now", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("current_timestamp", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("localtime", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("localtimestamp", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("sysdate", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("utc_timestamp", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("curtime", 0, "__clock(CAST(now() AS TIMESTAMP(0)))"),
    ("current_time", 0, "__clock(CAST(now() AS TIMESTAMP(0)))"),
    ("utc_time", 0, "__clock(CAST(now() AS TIMESTAMP(0)))"),
    ("curdate", 0, "current_date()"),
    ("utc_date", 0, "current_date()"),
    ("date", 1, "CAST(@1 AS DATE)"),
    ("year", 1, "CAST(date_part('year', @1) AS INT)"),
    ("quarter", 1, "CAST(date_part('quarter', @1) AS INT)"),
    ("month", 1, "CAST(date_part('month', @1) AS INT)"),
    ("day", 1, "CAST(date_part('day', @1) AS INT)"),
    ("dayofmonth", 1, "CAST(date_part('day', @1) AS INT)"),
    ("dayofweek", 1, "CAST(date_part('dow', @1) AS INT) + 1"),
    ("weekday", 1, "(CAST(date_part('dow', @1) AS INT) + 6) % 7"),
    ("dayofyear", 1, "CAST(date_part('doy', @1) AS INT)"),
    ("weekofyear", 1, "CAST(date_part('week', @1) AS INT)"),
    ("monthname", 1, "to_char(@1, '%B')"),
    ("dayname", 1, "to_char(@1, '%A')"),
    ("to_days", 1, "CAST(CAST(@1 AS DATE) AS INT) + 719528"),
    ("datediff", 2, "CAST(CAST(@1 AS DATE) AS INT) - CAST(CAST(@2 AS DATE) AS INT)"),
    ("last_day", 1, "CAST(date_trunc('month', @1) + INTERVAL '1 month' - INTERVAL '1 day' AS DATE)"),
    ("makedate", 2, MAKEDATE),
    ("unix_timestamp", 0, "CAST(date_part('epoch', now()) AS BIGINT)"),
    ("unix_timestamp", 1, "CAST(date_part('epoch', @1) AS BIGINT)"),
];

/// `MAKEDATE(year, day)`.
const MAKEDATE: &str =
    "CASE WHEN $2 > 0 THEN CAST(CAST(CAST(make_date($1, 1, 1) AS INT) + $2 - 1 AS INT) AS DATE) END";

/// The parsed templates. A template that cannot be parsed fails the test of all templates.
static TEMPLATES: LazyLock<BTreeMap<(&str, usize), Expr>> = LazyLock::new(|| {
    TABLE.iter().filter_map(|(name, arity, text)| Some(((*name, *arity), template(text)?))).collect()
});

fn template(text: &str) -> Option<Expr> {
    let text = (1..=3).fold(text.to_owned(), |text, number| {
        text.replace(&format!("@{number}"), &format!("{DATETIME}(${number})"))
    });
    Parser::new(&GenericDialect {}).try_with_sql(&text).ok()?.parse_expr().ok()
}

/// Replaces the placeholders of a template by arguments, and each derived table without a FROM by other rows. What is put in
/// is not visited itself, since it is put in after the visit of what it replaces.
pub struct Fill<'a> {
    /// `$1` and so on.
    pub arguments: &'a [Expr],
    /// The rows of `(SELECT 1) AS q`; `None` leaves it.
    pub rows: Option<&'a Query>,
}

impl VisitorMut for Fill<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
            && let Some(number) = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok())
            && let Some(argument) = number.checked_sub(1).and_then(|at| self.arguments.get(at))
        {
            *expr = Expr::Nested(Box::new(argument.clone()));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let (Some(rows), TableFactor::Derived { subquery, .. }) = (self.rows, factor)
            && matches!(subquery.body.as_ref(), SetExpr::Select(select) if select.from.is_empty())
        {
            **subquery = rows.clone();
        }
        ControlFlow::Continue(())
    }
}

/// Fills a template.
fn filled(template: &Expr, arguments: &[Expr]) -> Expr {
    let mut expr = template.clone();
    let _: ControlFlow<()> = VisitMut::visit(&mut expr, &mut Fill { arguments, rows: None });
    operators::change(&mut expr);
    expr
}

/// Functions of DataFusion whose arguments are all texts.
const OF_TEXTS: [&str; 7] =
    ["concat_ws", "ltrim", "rtrim", "replace", "reverse", "char_length", "character_length"];

/// Functions whose arguments are all numbers. A text is the number at its beginning.
const OF_NUMBERS: [&str; 25] = [
    "sqrt", "exp", "ln", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "degrees", "radians", "pow", "power", "round", "truncate", "sign", "sum", "avg", "bit_and", "bit_or",
    "bit_xor",
];

/// Functions that are the same under another name, also as window functions and with DISTINCT.
const RENAMED: [(&str, &str); 3] = [("std", "stddev_pop"), ("stddev", "stddev_pop"), ("variance", "var_pop")];

/// Rewrites an expression to the form that DataFusion knows. Its operands have been rewritten before.
///
/// # Errors
/// DataFusion would give another result than MySQL.
pub fn change(expr: &mut Expr) -> Result<(), Error> {
    if json::change(expr) {
        return Ok(());
    }
    match expr {
        Expr::Function(function) => {
            if let Some(other) = function_of(function)? {
                *expr = other;
            }
        }
        Expr::Ceil { expr: value, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => {
            *expr = called(CEIL, value);
        }
        Expr::Floor { expr: value, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => {
            *expr = called(FLOOR, value);
        }
        Expr::Substring { expr: text, substring_from: Some(from), substring_for: length, .. } => {
            *expr = substring(text, from, length.as_deref());
        }
        Expr::RLike { negated, expr: text, pattern, .. } => {
            let template = if *negated { "NOT regexp_like($1, $2)" } else { "regexp_like($1, $2)" };
            *expr = filled_text(template, &[as_text(text), as_text(pattern)]);
        }
        Expr::Extract { field, expr: date, .. } => {
            let unit = unit_of(&field.to_string())?;
            let text = match unit.as_str() {
                "hour" | "minute" | "second" | "microsecond" => format!("{unit}({CLOCK}($1))"),
                _ => format!("{PARTS}('{unit}', @1)"),
            };
            *expr = filled_text(&text, std::slice::from_ref(date.as_ref()));
        }
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: value } if !is_number(value) => {
            // DataFusion's optimizer makes `-a | -b` of `-(a & b)`.
            *expr = filled_text("0 - __number($1)", std::slice::from_ref(value.as_ref()));
        }
        Expr::BinaryOp { left, op: op @ (BinaryOperator::Plus | BinaryOperator::Minus), right } => {
            let sign = if *op == BinaryOperator::Plus { 1 } else { -1 };
            let other = match (left.as_ref(), right.as_ref()) {
                (date, Expr::Interval(interval)) => moved_by(date, interval, sign)?,
                (Expr::Interval(interval), date) if sign > 0 => moved_by(date, interval, sign)?,
                _ => None,
            };
            if let Some(other) = other {
                *expr = other;
            }
        }
        Expr::Value(value) => {
            if let Some(other) = literal(&mut value.value) {
                *expr = other;
            }
        }
        Expr::Collate { expr: value, collation } => *expr = collated(value, &collation.to_string())?,
        Expr::Convert { expr: value, data_type: None, charset: Some(charset), .. }
            if charset.to_string().to_lowercase().starts_with("utf8") =>
        {
            *expr = as_text(value);
        }
        Expr::Like { expr: value, pattern, escape_char: escape, .. } => {
            **value = as_text(value);
            **pattern = as_text(pattern);
            if let (Expr::Value(pattern), Some(Value::SingleQuotedString(by))) =
                (pattern.as_mut(), escape.as_ref().map(|escape| &escape.value))
                && let Value::SingleQuotedString(text) = &mut pattern.value
            {
                *text = with_backslashes(text, by);
                *escape = None;
            }
        }
        Expr::TypedString(typed) if matches!(typed.data_type, DataType::Time(..)) => {
            *expr = called(CLOCK, &Expr::Value(typed.value.clone()));
        }
        Expr::Cast { kind: CastKind::Cast, expr: value, data_type, .. } => *expr = cast(value, data_type),
        Expr::Convert { expr: value, data_type: Some(kind), is_try: false, charset, .. } => {
            *expr = cast_with_set(value, kind, charset.as_ref())?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns a text in a collation. Whether MySQL has the collation is seen by the form of its name.
fn collated(value: &Expr, collation: &str) -> Result<Expr, Error> {
    let name = collation.trim_matches(['`', '\'', '"']).to_lowercase();
    let sets = ["utf8mb4_", "utf8mb3_", "utf8_", "latin1_", "ascii_"];
    let has_order = ["_ci", "_cs", "_bin"].iter().any(|order| name.ends_with(order));
    match has_order && sets.iter().any(|set| name.starts_with(set)) {
        // Texts are compared with case and without padding.
        true if name.ends_with("_bin") => Ok(as_text(value)),
        false if name != "binary" => {
            Err(Error::Name(Problem::Collation, format!("Unknown collation: '{name}'")))
        }
        _ => Err(Error::Unsupported(format!("the collation {name} is not supported: texts differ by case"))),
    }
}

/// Rewrites a literal, or returns its replacement.
fn literal(value: &mut Value) -> Option<Expr> {
    match value {
        // With an exponent, a number is a DOUBLE and not a DECIMAL.
        Value::Number(number, _) if number.contains(['e', 'E']) => {
            let text = Expr::Value(Value::SingleQuotedString(number.clone()).into());
            return Some(filled_text("CAST($1 AS DOUBLE)", &[text]));
        }
        Value::NationalStringLiteral(text) => *value = Value::SingleQuotedString(std::mem::take(text)),
        Value::SingleQuotedByteStringLiteral(bits) => {
            if let Some(hex) = hex_of_bits(bits) {
                *value = Value::HexStringLiteral(hex);
            }
        }
        _ => {}
    }
    None
}

/// Returns the hexadecimal digits of a number in bits.
fn hex_of_bits(bits: &str) -> Option<String> {
    let padded = format!("{bits:0>width$}", width = bits.len().div_ceil(8) * 8);
    let bytes = padded.as_bytes().chunks(8);
    bytes
        .map(|byte| Some(format!("{:02X}", u8::from_str_radix(str::from_utf8(byte).ok()?, 2).ok()?)))
        .collect()
}

/// Returns a conversion to a text in a character set, or to another type.
fn cast_with_set(value: &Expr, kind: &DataType, charset: Option<&ObjectName>) -> Result<Expr, Error> {
    let charset = charset.map(ToString::to_string);
    if let Some(charset) = charset.filter(|charset| !charset.to_lowercase().starts_with("utf8")) {
        let text = format!("a cast to the character set {charset} is not supported");
        return Err(Error::Unsupported(text));
    }
    Ok(cast(value, kind))
}

/// Returns a conversion with MySQL's result.
fn cast(value: &Expr, kind: &DataType) -> Expr {
    let plain = |expr: Expr, data_type: DataType| Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(expr),
        data_type,
        array: false,
        format: None,
    };
    match kind {
        DataType::Char(Some(CharacterLength::IntegerLength { length, .. })) => {
            let length = Expr::Value(Value::Number(length.to_string(), false).into());
            filled_text("left($1, $2)", &[as_text(value), length])
        }
        DataType::Double(_) | DataType::Float(_) => plain(called(NUMBER, value), kind.clone()),
        DataType::Char(None) | DataType::Varchar(None) => as_text(value),
        DataType::Binary(_) | DataType::Varbinary(_) | DataType::Blob(_) => {
            plain(as_text(value), DataType::Bytea)
        }
        DataType::Date => called(DATE, value),
        DataType::JSON => json::cast(value),
        DataType::Time(digits, _) if digits.unwrap_or(0) > 0 => called(CLOCK, value),
        DataType::Time(..) => called(SECONDS, &called(CLOCK, value)),
        DataType::Signed | DataType::SignedInteger => called(SIGNED, value),
        DataType::Unsigned | DataType::UnsignedInteger => called(UNSIGNED, value),
        DataType::Datetime(digits) => {
            let digits = if digits.unwrap_or(0) > 0 { 6 } else { 0 };
            plain(called(DATETIME, value), DataType::Timestamp(Some(digits), TimezoneInfo::None))
        }
        DataType::Decimal(digits) | DataType::Dec(digits) | DataType::Numeric(digits) => {
            let (precision, scale) = match digits {
                ExactNumberInfo::None => (10, 0),
                ExactNumberInfo::Precision(precision) => (*precision, 0),
                ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
            };
            match precision <= u64::from(DECIMAL128_MAX_PRECISION) {
                true => {
                    filled_text(&format!("{DECIMAL}($1, {precision}, {scale})"), std::slice::from_ref(value))
                }
                false => plain(value.clone(), kind.clone()),
            }
        }
        _ => plain(value.clone(), kind.clone()),
    }
}

/// Returns the replacement of a function; `None` if DataFusion has the function under the same name.
fn function_of(function: &Function) -> Result<Option<Expr>, Error> {
    let name = function.name.to_string().to_lowercase();
    if let Some((_, other)) = RENAMED.iter().find(|(mysqls, _)| *mysqls == name) {
        let name = ObjectName::from(vec![Ident::new(*other)]);
        return Ok(Some(Expr::Function(Function { name, ..function.clone() })));
    }
    let Some(mut arguments) = arguments(function) else { return Ok(None) };
    let mut function = Cow::Borrowed(function);
    if OF_NUMBERS.contains(&name.as_str()) {
        let number = |value: &Expr| if is_number(value) { value.clone() } else { called(NUMBER, value) };
        arguments = arguments.iter().map(number).collect();
        function = Cow::Owned(with_arguments(&function, number));
    }
    let function = function.as_ref();
    if name == "group_concat" {
        return Ok(string_agg(function, &arguments));
    }
    if let Some(call) = json::call(function, &name, &arguments) {
        return Ok(Some(call));
    }
    match (name.as_str(), arguments.as_slice()) {
        ("benchmark", _) => {
            let text = "benchmark is not supported: what is evaluated again and again cannot be interrupted";
            Err(Error::Unsupported(text.to_owned()))
        }
        ("get_lock" | "release_lock" | "release_all_locks" | "is_free_lock" | "is_used_lock", _) => {
            Err(Error::Unsupported(format!("{name} is not supported: this server has no locks by name")))
        }
        ("mid", [text, from, length]) => Ok(Some(substring(text, from, Some(length)))),
        ("str_to_date", [of, format]) => str_to_date(of, format).map(Some),
        ("timestampdiff", [Expr::Identifier(unit), from, to]) => Ok(Some(filled_text(
            &format!("{BETWEEN}('{}', @1, @2)", simple_unit_of(&unit.value)?),
            &[from.clone(), to.clone()],
        ))),
        ("timestampadd", [Expr::Identifier(unit), number, date]) => {
            Ok(Some(moved(date, number, &simple_unit_of(&unit.value)?, 1)))
        }
        (name, [digits]) if let Some((_, has_date)) = PRESENT.iter().find(|(one, _)| *one == name) => {
            present(name, digits, *has_date).map(Some)
        }
        ("count", [_, _, ..]) => Ok(count_distinct(function, &arguments)),
        ("round", [_, digits]) if is_whole(digits) => {
            Ok(Some(filled_text("__digits(__unsigned_zero(round($1, $2)), $2)", &arguments)))
        }
        ("truncate", [_, digits]) if is_whole(digits) => {
            Ok(Some(filled_text("__digits(trunc($1, $2), $2)", &arguments)))
        }
        ("date_format", [date, format]) => {
            let text = format!("{DATE_FORMAT}(@1, $2)");
            Ok(Some(filled_text(&text, &[date.clone(), as_text(format)])))
        }
        // The word NULL, for statements.
        ("quote", [text]) => Ok(Some(filled_text("coalesce(quote($1), 'NULL')", &[as_text(text)]))),
        ("elt", [number, texts @ ..]) => {
            let cases = texts.iter().enumerate().map(|(at, text)| (whole(at + 1), text.clone()));
            Ok(simple_case(number, cases, None))
        }
        ("interval", [value, limits @ ..]) => Ok(Some(interval(value, limits))),
        ("field", [text, texts @ ..]) => {
            let cases = texts.iter().enumerate().map(|(at, other)| (other.clone(), whole(at + 1)));
            Ok(simple_case(text, cases, Some(whole(0))))
        }
        ("date_add" | "adddate", [date, Expr::Interval(interval)]) => moved_by(date, interval, 1),
        ("date_sub" | "subdate", [date, Expr::Interval(interval)]) => moved_by(date, interval, -1),
        ("adddate", [date, days]) => Ok(Some(moved(date, days, "day", 1))),
        ("subdate", [date, days]) => Ok(Some(moved(date, days, "day", -1))),
        (name, _) if OF_TEXTS.contains(&name) => Ok(Some(Expr::Function(with_arguments(function, as_text)))),
        (name, arguments) => Ok(match functions::parameters(name, arguments.len()) {
            Some(kinds) => Some(native(function, arguments, &kinds)),
            None => match TEMPLATES.get(&(name, arguments.len())) {
                Some(template) => Some(filled(template, arguments)),
                None => OF_NUMBERS.contains(&name).then(|| Expr::Function(function.clone())),
            },
        }),
    }
}

/// Calls one of our own functions, with arguments of the kinds that it takes.
fn native(function: &Function, arguments: &[Expr], kinds: &[ArgumentKind]) -> Expr {
    let of_kind = |(argument, kind): (&Expr, &ArgumentKind)| match kind {
        ArgumentKind::Text => as_text(argument),
        ArgumentKind::Moment => called(DATETIME, argument),
        ArgumentKind::Clock => called(CLOCK, argument),
        ArgumentKind::Whole => called(WHOLE, argument),
        ArgumentKind::Double => called(NUMBER, argument),
        ArgumentKind::Either => called(EITHER, argument),
        ArgumentKind::Raw => as_raw(argument),
        _ => argument.clone(),
    };
    let mut values = arguments.iter().zip(kinds).map(of_kind);
    let mut function = function.clone();
    if let FunctionArguments::List(list) = &mut function.args {
        list.args.iter_mut().zip(&mut values).for_each(|(argument, value)| {
            *argument = FunctionArg::Unnamed(FunctionArgExpr::Expr(value));
        });
    }
    Expr::Function(function)
}

/// Returns the replacement of `count(DISTINCT a, b)`: rows with a NULL do not count.
fn count_distinct(function: &Function, arguments: &[Expr]) -> Option<Expr> {
    let FunctionArguments::List(list) = &function.args else { return None };
    list.duplicate_treatment.filter(|treatment| *treatment == DuplicateTreatment::Distinct)?;
    let (last, others) = arguments.split_last()?;
    // The lengths keep ('a', 'bc') apart from ('ab', 'c').
    let parts = others.iter().flat_map(|value| {
        let value = as_text(value);
        let length = filled_text("octet_length($1)", std::slice::from_ref(&value));
        [length, Expr::Value(Value::SingleQuotedString(":".to_owned()).into()), value]
    });
    let mut joined = filled_text("concat()", &[]);
    if let Expr::Function(Function { args: FunctionArguments::List(list), .. }) = &mut joined {
        let plain = |value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value));
        list.args = parts.chain([as_text(last)]).map(plain).collect();
    }
    let any = arguments.iter().map(|value| filled_text("$1 IS NULL", std::slice::from_ref(value)));
    let any = operators::joined(any.collect(), &BinaryOperator::Or)?;
    let value = filled_text("CASE WHEN $1 THEN NULL ELSE $2 END", &[any, joined]);
    let mut function = function.clone();
    let FunctionArguments::List(list) = &mut function.args else { return None };
    list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(value))];
    Some(Expr::Function(function))
}

fn is_number(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(value.value, Value::Number(..)))
}

/// Whether an expression is a literal without a sign or a fraction.
fn is_whole(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value)
        if matches!(&value.value, Value::Number(number, _) if number.bytes().all(|digit| digit.is_ascii_digit())))
}

fn whole(number: usize) -> Expr {
    Expr::Value(Value::Number(number.to_string(), false).into())
}

/// Returns the replacement of `interval(value, limits…)`: the number of limits that are not above the value, -1 if it is
/// NULL.
fn interval(value: &Expr, limits: &[Expr]) -> Expr {
    let none = filled_text("$1 IS NULL", std::slice::from_ref(value));
    let below = limits.iter().enumerate().map(|(at, limit)| CaseWhen {
        condition: filled_text("$1 < $2", &[value.clone(), limit.clone()]),
        result: whole(at),
    });
    let minus_one = filled_text("-1", &[]);
    let none = CaseWhen { condition: none, result: minus_one };
    Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: std::iter::once(none).chain(below).collect(),
        else_result: Some(Box::new(whole(limits.len()))),
    }
}

/// Builds `CASE operand WHEN … THEN … ELSE … END`.
fn simple_case(
    operand: &Expr,
    cases: impl Iterator<Item = (Expr, Expr)>,
    otherwise: Option<Expr>,
) -> Option<Expr> {
    let conditions: Vec<CaseWhen> = cases.map(|(condition, result)| CaseWhen { condition, result }).collect();
    (!conditions.is_empty()).then(|| Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: Some(Box::new(operand.clone())),
        conditions,
        else_result: otherwise.map(Box::new),
    })
}

/// Returns the replacement of `group_concat([DISTINCT] x [ORDER BY …] [SEPARATOR '…'])`.
fn string_agg(function: &Function, arguments: &[Expr]) -> Option<Expr> {
    let [value] = arguments else { return None };
    let name = ObjectName::from(vec![Ident::new("string_agg")]);
    let mut function = Function { name, ..function.clone() };
    let FunctionArguments::List(list) = &mut function.args else { return None };
    let mut separator = Value::SingleQuotedString(",".to_owned());
    let is_distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
    list.clauses.retain_mut(|clause| match clause {
        FunctionArgumentClause::Separator(value) => {
            separator.clone_from(&value.value);
            false
        }
        FunctionArgumentClause::OrderBy(order) => {
            for one in order {
                // The first argument by its position, or once more.
                let is_first =
                    matches!(&one.expr, Expr::Value(at) if at.value == Value::Number("1".to_owned(), false));
                if is_first || (is_distinct && one.expr == *value) {
                    one.expr = as_text(value);
                }
            }
            true
        }
        _ => true,
    });
    let plain = |expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
    list.args = vec![plain(as_text(value)), plain(Expr::Value(separator.into()))];
    Some(Expr::Function(function))
}

/// Calls a function with one argument.
pub fn called(name: &str, value: &Expr) -> Expr {
    filled_text(&format!("{name}($1)"), std::slice::from_ref(value))
}

/// Makes a value the text that MySQL makes of it.
fn as_text(value: &Expr) -> Expr {
    match value {
        Expr::Value(literal) if matches!(literal.value, Value::SingleQuotedString(_)) => value.clone(),
        value => called(TEXT, value),
    }
}

/// Leaves bytes as they are, and makes any other value a text.
fn as_raw(value: &Expr) -> Expr {
    match value {
        Expr::Value(literal) if matches!(literal.value, Value::SingleQuotedString(_)) => value.clone(),
        value => called(RAW, value),
    }
}

/// Changes the arguments of a function.
fn with_arguments(function: &Function, change: impl Fn(&Expr) -> Expr) -> Function {
    let mut function = function.clone();
    if let FunctionArguments::List(list) = &mut function.args {
        for argument in &mut list.args {
            if let FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) = argument {
                *value = change(value);
            }
        }
    }
    function
}

fn filled_text(text: &str, arguments: &[Expr]) -> Expr {
    // Only the test of templates can fail here.
    template(text).map_or(Expr::Value(Value::Null.into()), |template| filled(&template, arguments))
}

fn substring(text: &Expr, from: &Expr, length: Option<&Expr>) -> Expr {
    let template = if length.is_some() { "($1, $2, $3)" } else { "($1, $2)" };
    let arguments: Vec<Expr> = [Some(text), Some(from), length].into_iter().flatten().cloned().collect();
    filled_text(&format!("{SUBSTRING}{template}"), &arguments)
}

/// Rewrites a LIKE pattern whose escape character is not a backslash, so that it has backslashes.
fn with_backslashes(pattern: &str, escape: &str) -> String {
    let mut written = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if escape.starts_with(letter) => {
                written.push('\\');
                written.extend(letters.next());
            }
            '\\' => written.push_str("\\\\"),
            letter => written.push(letter),
        }
    }
    written
}

/// Returns the text of a literal.
pub fn text_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the arguments of a function, if all are unnamed expressions.
fn arguments(function: &Function) -> Option<Vec<Expr>> {
    let list = match &function.args {
        FunctionArguments::List(list) => list.args.as_slice(),
        FunctionArguments::None => &[],
        FunctionArguments::Subquery(_) => return None,
    };
    let plain = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.iter().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::super::dialect::Mysql;
    use super::*;

    #[test]
    fn every_template_can_be_parsed() {
        for (name, arity, text) in TABLE {
            let template = template(text).unwrap_or_else(|| panic!("{name}: {text}"));
            assert_eq!(TEMPLATES.get(&(name, arity)), Some(&template), "{name} is in the table once");
            let arguments: Vec<Expr> =
                (0..arity).map(|at| Expr::Identifier(Ident::new(format!("x{at}")))).collect();
            let text = filled(&template, &arguments).to_string();
            assert!(!text.contains('$'), "{name}: {text}");
            assert!(
                (0..arity).all(|at| text.contains(&format!("x{at}"))),
                "{name} drops an argument: {text}"
            );
        }
    }

    #[test]
    fn expressions() {
        for (mysqls, ours) in [
            ("IF(a = 1, 'x', b)", "CASE WHEN (a = 1) THEN ('x') ELSE (b) END"),
            ("IF(a, b)", "IF(a, b)"),
            ("LOCATE('b', x)", "strpos((x), ('b'))"),
            ("ucase(x)", "ucase(__text((x)))"),
            ("stddev(DISTINCT x)", "stddev_pop(DISTINCT x)"),
            ("CAST(x AS SIGNED INTEGER)", "__signed((x))"),
            ("CAST(x AS UNSIGNED)", "__unsigned((x))"),
            ("CONVERT(x, SIGNED)", "__signed((x))"),
            ("CAST(x AS CHAR CHARACTER SET utf8mb4)", "__text((x))"),
            ("CONVERT(x, CHAR(3) CHARACTER SET utf8mb4)", "left((__text((x))), (3))"),
            ("CAST(x AS DECIMAL(5, 1))", "__decimal((x), 5, 1)"),
            ("CAST(x AS CHAR)", "__text((x))"),
            ("sum(DISTINCT x)", "sum(DISTINCT __number((x)))"),
            ("CAST(x AS DATETIME)", "CAST(__datetime((x)) AS TIMESTAMP(0))"),
            ("CAST(x AS DATE)", "__date((x))"),
            ("SUBSTRING(x, 2)", "__substring((x), (2))"),
            ("SUBSTR(x FROM 2)", "__substring((x), (2))"),
            ("lower(x)", "lower(__text((x)))"),
            (
                "group_concat(DISTINCT x ORDER BY y SEPARATOR '; ')",
                "string_agg(DISTINCT __text((x)), '; ' ORDER BY y)",
            ),
            ("elt(n, a, b)", "CASE n WHEN 1 THEN a WHEN 2 THEN b END"),
            ("field(x, a, b)", "CASE x WHEN a THEN 1 WHEN b THEN 2 ELSE 0 END"),
            ("concat('a', b)", "concat('a', __raw((b)))"),
            ("date_format(x, '%Y')", "__date_format(__datetime((x)), ('%Y'))"),
        ] {
            let mut expr = Parser::new(&Mysql).try_with_sql(mysqls).unwrap().parse_expr().unwrap();
            change(&mut expr).unwrap();
            assert_eq!(
                expr.to_string().replace("(NULL)", "NULL"),
                ours.replace("(NULL)", "NULL"),
                "{mysqls}"
            );
        }
        for refused in ["str_to_date(x, '%D')", "str_to_date(x, y)", "CAST(x AS CHAR CHARACTER SET latin1)"] {
            let mut expr = Parser::new(&Mysql).try_with_sql(refused).unwrap().parse_expr().unwrap();
            assert!(matches!(change(&mut expr), Err(Error::Unsupported(_))), "{refused}");
        }
    }
}
