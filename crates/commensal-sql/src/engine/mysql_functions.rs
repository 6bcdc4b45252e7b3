//! MySQL's functions in terms of DataFusion's: a table of templates, and the few functions whose replacement depends on
//! their arguments. A function that is in neither is DataFusion's, or does not exist.
//!
//! Where Doris differs from MySQL, Doris is followed.

use super::error::Error;
use super::operators;
use super::values::{DATE, DATETIME, NUMBER, SIGNED, TEXT};
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, DataType, DateTimeField, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentClause, FunctionArguments, Ident, ObjectName, TimezoneInfo, Value,
    VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::LazyLock;

/// Name, number of arguments, replacement. `@1` is the first argument as a date with time, NULL if it is none.
const TABLE: [(&str, usize, &str); 56] = [
    // Conditions.
    ("if", 3, "CASE WHEN $1 THEN $2 ELSE $3 END"),
    ("isnull", 1, "$1 IS NULL"),
    // Text. Lengths are in bytes, except for `char_length`.
    ("length", 1, "octet_length($1)"),
    ("ucase", 1, "upper($1)"),
    ("lcase", 1, "lower($1)"),
    ("locate", 2, "strpos($2, $1)"),
    ("instr", 2, "strpos($1, $2)"),
    ("left", 2, "left($1, CASE WHEN $2 < 0 THEN 0 ELSE $2 END)"),
    ("right", 2, "right($1, CASE WHEN $2 < 0 THEN 0 ELSE $2 END)"),
    ("mid", 3, SUBSTRING_FOR),
    ("space", 1, "repeat(' ', $1)"),
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
    ("truncate", 2, "trunc($1, $2)"),
    ("ceiling", 1, "ceil($1)"),
    ("sign", 1, "signum($1)"),
    ("rand", 0, "random()"),
    // Dates.
    ("now", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("current_timestamp", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("localtime", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("localtimestamp", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("sysdate", 0, "CAST(now() AS TIMESTAMP(0))"),
    ("utc_timestamp", 0, "CAST(now() AS TIMESTAMP(0))"),
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
    // From the first Sunday of the year.
    ("week", 1, "CAST(floor((date_part('doy', @1) + 6 - date_part('dow', @1)) / 7.0) AS INT)"),
    ("weekofyear", 1, "CAST(date_part('week', @1) AS INT)"),
    ("hour", 1, "CAST(date_part('hour', @1) AS INT)"),
    ("minute", 1, "CAST(date_part('minute', @1) AS INT)"),
    ("second", 1, "CAST(date_part('second', @1) AS INT)"),
    ("microsecond", 1, "CAST(date_part('microsecond', @1) AS INT) % 1000000"),
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

/// `SUBSTRING(text, from)`: from the end if `from` is negative, and nothing from 0.
const SUBSTRING: &str = "CASE WHEN $2 > 0 THEN substr($1, $2) \
                         WHEN $2 < 0 AND -$2 <= character_length($1) THEN right($1, -$2) \
                         WHEN $1 IS NOT NULL AND $2 IS NOT NULL THEN '' END";

/// `SUBSTRING(text, from, length)`.
const SUBSTRING_FOR: &str = "left(CASE WHEN $2 > 0 THEN substr($1, $2) \
                             WHEN $2 < 0 AND -$2 <= character_length($1) THEN right($1, -$2) \
                             WHEN $1 IS NOT NULL AND $2 IS NOT NULL THEN '' END, \
                             CASE WHEN $3 < 0 THEN 0 ELSE $3 END)";

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

/// Replaces the placeholders of a template by arguments.
fn filled(template: &Expr, arguments: &[Expr]) -> Expr {
    struct Fill<'a>(&'a [Expr]);
    impl VisitorMut for Fill<'_> {
        type Break = ();
        // Arguments are put in after the visit of what they replace, so they are not visited themselves.
        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            if let Expr::Value(value) = expr
                && let Value::Placeholder(name) = &value.value
                && let Some(number) = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok())
                && let Some(argument) = number.checked_sub(1).and_then(|at| self.0.get(at))
            {
                *expr = Expr::Nested(Box::new(argument.clone()));
            }
            ControlFlow::Continue(())
        }
    }
    let mut expr = template.clone();
    let _: ControlFlow<()> = VisitMut::visit(&mut expr, &mut Fill(arguments));
    operators::change(&mut expr);
    expr
}

/// Functions that are the same under another name, also as window functions and with DISTINCT.
const RENAMED: [(&str, &str); 3] = [("std", "stddev_pop"), ("stddev", "stddev_pop"), ("variance", "var_pop")];

/// Rewrites an expression to the form that DataFusion knows. Its operands have been rewritten before.
///
/// # Errors
/// DataFusion would give another result than MySQL.
pub fn change(expr: &mut Expr) -> Result<(), Error> {
    match expr {
        Expr::Function(function) => {
            if let Some(other) = function_of(function)? {
                *expr = other;
            }
        }
        Expr::Substring { expr: text, substring_from: Some(from), substring_for: length, .. } => {
            *expr = substring(text, from, length.as_deref());
        }
        Expr::RLike { negated, expr: text, pattern, .. } => {
            let template = if *negated { "NOT regexp_like($1, $2)" } else { "regexp_like($1, $2)" };
            *expr = filled_text(template, &[text.as_ref().clone(), pattern.as_ref().clone()]);
        }
        Expr::Cast { kind: CastKind::Cast, expr: value, data_type, .. } => match data_type {
            DataType::Char(None) | DataType::Varchar(None) => *expr = as_text(value),
            DataType::Date => *expr = called(DATE, value),
            DataType::Signed | DataType::SignedInteger => *expr = called(SIGNED, value),
            DataType::Datetime(_) => {
                **value = called(DATETIME, value);
                number(data_type);
            }
            data_type => number(data_type),
        },
        Expr::Convert { expr: value, data_type: Some(kind), is_try: false, charset: None, .. } => {
            let mut data_type = kind.clone();
            number(&mut data_type);
            let value = value.clone();
            *expr = Expr::Cast { kind: CastKind::Cast, expr: value, data_type, array: false, format: None };
        }
        _ => {}
    }
    Ok(())
}

/// Replaces a type that only MySQL's CAST accepts with the column type that has the same values.
fn number(kind: &mut DataType) {
    match kind {
        DataType::Signed | DataType::SignedInteger => *kind = DataType::BigInt(None),
        DataType::Unsigned | DataType::UnsignedInteger => *kind = DataType::BigIntUnsigned(None),
        DataType::Datetime(digits) => {
            let digits = if digits.unwrap_or(0) > 0 { 6 } else { 0 };
            *kind = DataType::Timestamp(Some(digits), TimezoneInfo::None);
        }
        _ => {}
    }
}

/// Returns the replacement of a function; `None` if DataFusion has the function under the same name.
fn function_of(function: &Function) -> Result<Option<Expr>, Error> {
    let name = function.name.to_string().to_lowercase();
    if let Some((_, other)) = RENAMED.iter().find(|(mysqls, _)| *mysqls == name) {
        let name = ObjectName::from(vec![Ident::new(*other)]);
        return Ok(Some(Expr::Function(Function { name, ..function.clone() })));
    }
    let Some(arguments) = arguments(function) else { return Ok(None) };
    if name == "group_concat" {
        return Ok(string_agg(function, &arguments));
    }
    match (name.as_str(), arguments.as_slice()) {
        ("concat", _) => {
            let texts = with_arguments(function, as_text);
            Ok(null_if_any(&texts, &arguments).or(Some(Expr::Function(texts))))
        }
        ("greatest" | "least", _) => Ok(null_if_any(function, &arguments)),
        // Of truth values, too.
        ("sum" | "avg", [_]) => {
            Ok(Some(Expr::Function(with_arguments(function, |value| called(NUMBER, value)))))
        }
        ("hour" | "minute" | "second", [Expr::Value(value)]) if is_time(&value.value) => {
            let part = format!("CAST(date_part('{name}', TRY_CAST($1 AS TIME)) AS INT)");
            Ok(Some(filled_text(&part, &arguments)))
        }
        ("date_format", [date, format]) => {
            let format = pattern(&name, format)?;
            Ok(Some(filled_text("to_char(@1, $2)", &[date.clone(), format])))
        }
        ("from_unixtime", [seconds, format]) => {
            let format = pattern(&name, format)?;
            Ok(Some(filled_text(
                "to_char(from_unixtime(CAST($1 AS BIGINT)), $2)",
                &[seconds.clone(), format],
            )))
        }
        ("str_to_date", [text, format]) => {
            let format = pattern(&name, format)?;
            let has_time = ["%H", "%-H", "%I", "%-I", "%M", "%S", "%6f"];
            let has_time = has_time.iter().any(|part| format.to_string().contains(part));
            let template = if has_time { "to_timestamp($1, $2)" } else { "to_date($1, $2)" };
            Ok(Some(filled_text(template, &[text.clone(), format])))
        }
        ("timestampdiff", [Expr::Identifier(unit), from, to]) => {
            let Some(seconds) = seconds_of(&unit.value) else {
                return Err(Error::Unsupported(format!("timestampdiff in {} is not supported", unit.value)));
            };
            let span = "date_part('epoch', @2) - date_part('epoch', @1)";
            let text = format!("CAST(trunc(({span}) / {seconds}.0) AS BIGINT)");
            Ok(Some(filled_text(&text, &[from.clone(), to.clone()])))
        }
        ("elt", [number, texts @ ..]) => {
            let cases = texts.iter().enumerate().map(|(at, text)| (whole(at + 1), text.clone()));
            Ok(simple_case(number, cases, None))
        }
        ("field", [text, texts @ ..]) => {
            let cases = texts.iter().enumerate().map(|(at, other)| (other.clone(), whole(at + 1)));
            Ok(simple_case(text, cases, Some(whole(0))))
        }
        ("date_add" | "adddate", [date, interval @ Expr::Interval(_)]) => {
            Ok(Some(moved(date, interval, "+")))
        }
        ("date_sub" | "subdate", [date, interval @ Expr::Interval(_)]) => {
            Ok(Some(moved(date, interval, "-")))
        }
        (name, arguments) => {
            Ok(TEMPLATES.get(&(name, arguments.len())).map(|template| filled(template, arguments)))
        }
    }
}

/// Returns the length of a unit of `timestampdiff`; `None` if it varies.
fn seconds_of(unit: &str) -> Option<u32> {
    match unit.to_ascii_uppercase().as_str() {
        "SECOND" => Some(1),
        "MINUTE" => Some(60),
        "HOUR" => Some(3_600),
        "DAY" => Some(86_400),
        "WEEK" => Some(7 * 86_400),
        _ => None,
    }
}

fn whole(number: usize) -> Expr {
    Expr::Value(Value::Number(number.to_string(), false).into())
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
    list.clauses.retain(|clause| match clause {
        FunctionArgumentClause::Separator(value) => {
            separator.clone_from(&value.value);
            false
        }
        _ => true,
    });
    let plain = |expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
    list.args = vec![plain(as_text(value)), plain(Expr::Value(separator.into()))];
    Some(Expr::Function(function))
}

/// Calls a function with one argument.
fn called(name: &str, value: &Expr) -> Expr {
    filled_text(&format!("{name}($1)"), std::slice::from_ref(value))
}

/// Makes a value the text that MySQL makes of it.
fn as_text(value: &Expr) -> Expr {
    match value {
        Expr::Value(literal) if matches!(literal.value, Value::SingleQuotedString(_)) => value.clone(),
        value => called(TEXT, value),
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

/// Whether a literal is a time without a date.
fn is_time(value: &Value) -> bool {
    matches!(value, Value::SingleQuotedString(text) | Value::DoubleQuotedString(text)
        if text.contains(':') && !text.contains('-'))
}

fn filled_text(text: &str, arguments: &[Expr]) -> Expr {
    // Only the test of templates can fail here.
    template(text).map_or(Expr::Value(Value::Null.into()), |template| filled(&template, arguments))
}

/// Makes a function NULL if one of its arguments is NULL.
fn null_if_any(function: &Function, arguments: &[Expr]) -> Option<Expr> {
    let mut may_be_null = arguments
        .iter()
        .filter(|argument| !matches!(argument, Expr::Value(value) if value.value != Value::Null));
    let first = may_be_null.next()?.clone();
    let is_null = |expr: Expr| Expr::IsNull(Box::new(Expr::Nested(Box::new(expr))));
    let any = may_be_null.fold(is_null(first), |any, next| Expr::BinaryOp {
        left: Box::new(any),
        op: BinaryOperator::Or,
        right: Box::new(is_null(next.clone())),
    });
    let whole = Expr::Function(function.clone());
    Some(filled_text("CASE WHEN $1 THEN NULL ELSE $2 END", &[any, whole]))
}

fn substring(text: &Expr, from: &Expr, length: Option<&Expr>) -> Expr {
    let positive = matches!(from, Expr::Value(value)
        if matches!(&value.value, Value::Number(number, _) if number.parse::<u64>().is_ok_and(|from| from > 0)));
    let template = match (positive, length) {
        (true, None) => "substr($1, $2)",
        (true, Some(_)) => "substr($1, $2, CASE WHEN $3 < 0 THEN 0 ELSE $3 END)",
        (false, None) => SUBSTRING,
        (false, Some(_)) => SUBSTRING_FOR,
    };
    let arguments: Vec<Expr> = [Some(text), Some(from), length].into_iter().flatten().cloned().collect();
    filled_text(template, &arguments)
}

/// Adds an interval to a date or subtracts it. A date stays one if the interval consists of whole days.
fn moved(date: &Expr, interval: &Expr, sign: &str) -> Expr {
    let days = match interval {
        Expr::Interval(interval) => matches!(
            interval.leading_field,
            Some(
                DateTimeField::Day
                    | DateTimeField::Week(_)
                    | DateTimeField::Month
                    | DateTimeField::Quarter
                    | DateTimeField::Year
            )
        ),
        _ => false,
    };
    let text = match date {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let date_as = match text {
        Some(text) if days && !text.contains(':') => "TRY_CAST($1 AS DATE)",
        None if days => "$1",
        _ => "@1",
    };
    filled_text(&format!("{date_as} {sign} $2"), &[date.clone(), interval.clone()])
}

/// Translates the format of `date_format` for DataFusion's `to_char`.
fn pattern(function: &str, format: &Expr) -> Result<Expr, Error> {
    let text = match format {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let Some(text) = text else {
        return Err(Error::Unsupported(format!("{function} needs its format as a literal")));
    };
    let mut pattern = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            pattern.push(letter);
            continue;
        }
        match letters.next() {
            Some('%') | None => pattern.push_str("%%"),
            Some(letter) => match FORMAT.iter().find(|(mysqls, _)| *mysqls == letter) {
                Some((_, other)) => pattern.push_str(other),
                None if "DUuVvXx".contains(letter) => {
                    return Err(Error::Unsupported(format!("%{letter} is not supported in {function}")));
                }
                // MySQL leaves out the sign before letters without a meaning.
                None => pattern.push(letter),
            },
        }
    }
    Ok(Expr::Value(Value::SingleQuotedString(pattern).into()))
}

/// Letters of MySQL's date formats, and what they are in DataFusion's.
const FORMAT: [(char, &str); 24] = [
    ('a', "%a"),
    ('b', "%b"),
    ('c', "%-m"),
    ('d', "%d"),
    ('e', "%-d"),
    ('f', "%6f"),
    ('H', "%H"),
    ('h', "%I"),
    ('I', "%I"),
    ('i', "%M"),
    ('j', "%j"),
    ('k', "%-H"),
    ('l', "%-I"),
    ('M', "%B"),
    ('m', "%m"),
    ('p', "%p"),
    ('r', "%I:%M:%S %p"),
    ('S', "%S"),
    ('s', "%S"),
    ('T', "%H:%M:%S"),
    ('W', "%A"),
    ('w', "%w"),
    ('Y', "%Y"),
    ('y', "%y"),
];

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
        for text in [SUBSTRING, SUBSTRING_FOR] {
            assert!(template(text).is_some(), "{text}");
        }
    }

    #[test]
    fn expressions() {
        for (mysqls, ours) in [
            ("IF(a = 1, 'x', b)", "CASE WHEN (a = 1) THEN ('x') ELSE (b) END"),
            ("IF(a, b)", "IF(a, b)"),
            ("LOCATE('b', x)", "strpos((x), ('b'))"),
            ("ucase(x)", "upper((x))"),
            ("stddev(DISTINCT x)", "stddev_pop(DISTINCT x)"),
            ("CAST(x AS SIGNED INTEGER)", "__signed((x))"),
            ("CAST(x AS UNSIGNED)", "CAST(x AS BIGINT UNSIGNED)"),
            ("CONVERT(x, SIGNED)", "CAST(x AS BIGINT)"),
            ("CAST(x AS CHAR)", "__text((x))"),
            ("sum(DISTINCT x)", "sum(DISTINCT __number((x)))"),
            ("CAST(x AS DATETIME)", "CAST(__datetime((x)) AS TIMESTAMP(0))"),
            ("CAST(x AS DATE)", "__date((x))"),
            ("SUBSTRING(x, 2)", "SUBSTR((x), (2))"),
            ("SUBSTR(x FROM 2)", "SUBSTR((x), (2))"),
            ("lower(x)", "lower(x)"),
            (
                "group_concat(DISTINCT x ORDER BY y SEPARATOR '; ')",
                "string_agg(DISTINCT __text((x)), '; ' ORDER BY y)",
            ),
            ("elt(n, a, b)", "CASE n WHEN 1 THEN a WHEN 2 THEN b END"),
            ("field(x, a, b)", "CASE x WHEN a THEN 1 WHEN b THEN 2 ELSE 0 END"),
            ("concat('a', 'b')", "concat('a', 'b')"),
            ("concat('a', b)", "CASE WHEN ((b) IS NULL) THEN (NULL) ELSE (concat('a', __text((b)))) END"),
            ("date_format(x, '%Y-%c %i %% %q')", "to_char(__datetime((x)), ('%Y-%-m %M %% q'))"),
        ] {
            let mut expr = Parser::new(&Mysql).try_with_sql(mysqls).unwrap().parse_expr().unwrap();
            change(&mut expr).unwrap();
            assert_eq!(
                expr.to_string().replace("(NULL)", "NULL"),
                ours.replace("(NULL)", "NULL"),
                "{mysqls}"
            );
        }
        for refused in [
            "date_format(x, '%D')",
            "date_format(x, y)",
            "from_unixtime(x, '%x')",
            "timestampdiff(month, a, b)",
        ] {
            let mut expr = Parser::new(&Mysql).try_with_sql(refused).unwrap().parse_expr().unwrap();
            assert!(matches!(change(&mut expr), Err(Error::Unsupported(_))), "{refused}");
        }
    }
}
