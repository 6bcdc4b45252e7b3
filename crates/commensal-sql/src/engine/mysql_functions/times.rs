//! Functions of dates and times whose replacement depends on their arguments: intervals, and the present time.

use super::super::error::{Error, Problem};
use super::super::functions::{
    CLOCK_OF_FORMAT, COMPOUND_UNITS, DATE_OF_TEXT, FRACTION, MOMENT_OF_TEXT, MOVED_BY_CLOCK, MOVED_BY_DAYS,
    SIMPLE_UNITS, read_parts,
};
use super::super::values::CLOCK;
use super::{as_text, filled_text, text_of};
use datafusion::sql::sqlparser::ast::{Expr, Interval, Value};

/// Functions of the present time that take a number of digits of the fraction of a second, and whether they have a date.
pub(super) const PRESENT: [(&str, bool); 9] = [
    ("now", true),
    ("current_timestamp", true),
    ("localtime", true),
    ("localtimestamp", true),
    ("sysdate", true),
    ("utc_timestamp", true),
    ("curtime", false),
    ("current_time", false),
    ("utc_time", false),
];

/// Returns the present time with a fraction of a second.
pub(super) fn present(name: &str, digits: &Expr, has_date: bool) -> Result<Expr, Error> {
    let number = match digits {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.parse::<u32>().ok(),
            _ => None,
        },
        _ => None,
    };
    let moment = match number {
        Some(number @ (0 | 3 | 6)) => format!("CAST(now() AS TIMESTAMP({number}))"),
        Some(number @ 1..3) => {
            format!("CAST({FRACTION}(CAST(now() AS TIMESTAMP(6)), {number}) AS TIMESTAMP(3))")
        }
        Some(number @ 4..6) => format!("{FRACTION}(CAST(now() AS TIMESTAMP(6)), {number})"),
        Some(number) => {
            let text = format!("Too-big precision {number} specified for '{name}'. Maximum is 6.");
            return Err(Error::Name(Problem::Precision, text));
        }
        None => return Err(Error::Syntax(format!("{name} takes a number of digits, not {digits}"))),
    };
    Ok(filled_text(&if has_date { moment } else { format!("{CLOCK}({moment})") }, &[]))
}

/// Returns the replacement of `STR_TO_DATE`, whose type depends on the format.
pub(super) fn str_to_date(of: &Expr, format: &Expr) -> Result<Expr, Error> {
    // A statement without its values only tells its columns.
    if matches!(format, Expr::Value(value) if matches!(value.value, Value::Placeholder(_))) {
        return Ok(filled_text(&format!("{MOMENT_OF_TEXT}($1, $2)"), &[as_text(of), format.clone()]));
    }
    let Some(literal) = text_of(format) else {
        return Err(Error::Unsupported("str_to_date needs its format as a literal".to_owned()));
    };
    let function = match read_parts(literal) {
        Some((true, false)) => DATE_OF_TEXT,
        Some((true, true)) => MOMENT_OF_TEXT,
        Some((false, true)) => CLOCK_OF_FORMAT,
        _ => return Err(Error::Unsupported(format!("{literal} is not supported in str_to_date"))),
    };
    Ok(filled_text(&format!("{function}($1, $2)"), &[as_text(of), format.clone()]))
}

/// Returns a unit of time in lower case, without the prefix that ODBC gives it.
pub(super) fn unit_of(name: &str) -> Result<String, Error> {
    let lower = name.to_ascii_lowercase();
    let unit = lower.strip_prefix("sql_tsi_").unwrap_or(&lower);
    match SIMPLE_UNITS.contains(&unit) || COMPOUND_UNITS.contains(&unit) {
        true => Ok(unit.to_owned()),
        false => Err(Error::Syntax(format!("{name} is not a unit of time"))),
    }
}

pub(super) fn simple_unit_of(name: &str) -> Result<String, Error> {
    let unit = unit_of(name)?;
    if COMPOUND_UNITS.contains(&unit.as_str()) {
        return Err(Error::Syntax(format!("{name} is a compound unit, which has no place here")));
    }
    Ok(unit)
}

/// Adds an interval to a date, or subtracts it.
pub(super) fn moved_by(date: &Expr, interval: &Interval, sign: i32) -> Result<Option<Expr>, Error> {
    let Some(unit) = &interval.leading_field else { return Ok(None) };
    Ok(Some(moved(date, &interval.value, &unit_of(&unit.to_string())?, sign)))
}

/// Adds a number of units to a date. A date stays one if the units are whole days.
pub(super) fn moved(date: &Expr, number: &Expr, unit: &str, sign: i32) -> Expr {
    let days = ["day", "week", "month", "quarter", "year", "year_month"].contains(&unit);
    let text = text_of(date);
    let date_as = match text {
        Some(text) if days && !text.contains(':') => "__date($1)",
        None if days => "$1",
        _ => "@1",
    };
    let name = if days { MOVED_BY_DAYS } else { MOVED_BY_CLOCK };
    filled_text(&format!("{name}({date_as}, $2, '{unit}', {sign})"), &[date.clone(), as_text(number)])
}
