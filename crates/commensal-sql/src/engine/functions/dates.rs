//! Functions of dates and times.

use super::row::ArgumentKind::{Clock, ClockOrMoment, Date, DateOrMoment, Double, Moment, Text, Whole};
use super::row::{CellValue, RowFunction, date_of};
use chrono::{Datelike, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike};
use datafusion::common::ScalarValue;
use std::fmt::Write;

/// Name of the function that adds to a date, or to a date with time, what leaves a date a date: `(date, number, unit, sign)`.
pub const MOVED_BY_DAYS: &str = "__moved_by_days";
/// The same for what makes a date a date with time.
pub const MOVED_BY_CLOCK: &str = "__moved_by_clock";
/// Name of the function that gives parts of a date as one number.
pub const PARTS: &str = "__parts";
/// Name of the function that gives the number of whole units between two dates.
pub const BETWEEN: &str = "__between";
/// Name of the function for `DATE_FORMAT`, which is another name of a function of DataFusion.
pub const DATE_FORMAT: &str = "__date_format";
/// Name of the function that makes the number 20240229 of a date.
pub const NUMBER_OF_DATE: &str = "__number_of_date";
/// The same with the time.
pub const NUMBER_OF_MOMENT: &str = "__number_of_moment";
/// Name of the function that reads a date with time from a number.
pub const MOMENT_OF_NUMBER: &str = "__moment_of_number";
/// Name of the function that makes the number 123456 of the time 12:34:56.
pub const NUMBER_OF_CLOCK: &str = "__number_of_clock";
/// Name of the function that makes a text of a time.
pub const TEXT_OF_CLOCK: &str = "__text_of_clock";
/// Name of the function that cuts the fraction of a second off a time.
pub const SECONDS: &str = "__seconds";
/// Name of the function that gives the time of a date with time.
pub const CLOCK_OF_MOMENT: &str = "__clock_of_moment";
/// Name of the function that reads a time from a text.
pub const CLOCK_OF_TEXT: &str = "__clock_of_text";
/// Name of the function for `STR_TO_DATE` with a format that has no time: `(text, format)`.
pub const DATE_OF_TEXT: &str = "__date_of_text";
/// The same with a format that has one.
pub const MOMENT_OF_TEXT: &str = "__moment_of_text";
/// The same with a format that has only a time.
pub const CLOCK_OF_FORMAT: &str = "__clock_of_format";
/// Name of the function that reads a time from a number.
pub const CLOCK_OF_NUMBER: &str = "__clock_of_number";

/// Name of the function that reads a date, with time or without, from a text.
pub const READ_MOMENT: &str = "__read_moment";

/// Units of time.
pub const SIMPLE_UNITS: [&str; 9] =
    ["microsecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"];

/// Units of several parts.
pub const COMPOUND_UNITS: [&str; 11] = [
    "second_microsecond",
    "minute_microsecond",
    "minute_second",
    "hour_microsecond",
    "hour_second",
    "hour_minute",
    "day_microsecond",
    "day_second",
    "day_minute",
    "day_hour",
    "year_month",
];

/// Days from year 0 to the first day of year 1, which chrono counts as day 1.
const DAYS_OF_YEAR_0: i64 = 365;
/// Microseconds of a second.
const SECOND: i64 = 1_000_000;
/// The longest time without a date, 838:59:59.
const LONGEST_TIME: i64 = (838 * 3600 + 59 * 60 + 59) * SECOND;

pub(super) const ROWS: &[RowFunction] = &[
    RowFunction::new(MOVED_BY_DAYS, &[DateOrMoment, Text, Text, Whole], DateOrMoment, moved),
    RowFunction::new(MOVED_BY_CLOCK, &[Moment, Text, Text, Whole], Moment, moved),
    RowFunction::new(PARTS, &[Text, Moment], Whole, |of| {
        parts(of[0].text(), of[1].moment()).map(CellValue::from)
    }),
    RowFunction::new(BETWEEN, &[Text, Moment, Moment], Whole, |of| {
        between(of[0].text(), of[1].moment(), of[2].moment()).map(CellValue::from)
    }),
    RowFunction::new(NUMBER_OF_DATE, &[Date], Whole, |of| {
        Some(number(of[0].moment()).div_euclid(1_000_000).into())
    }),
    RowFunction::new(NUMBER_OF_MOMENT, &[Moment], Whole, |of| Some(number(of[0].moment()).into())),
    RowFunction::new(MOMENT_OF_NUMBER, &[Whole], Moment, |of| {
        moment_of_number(of[0].whole()).map(CellValue::Moment)
    }),
    RowFunction::new(READ_MOMENT, &[Text], Moment, |of| read_moment(of[0].text()).map(CellValue::Moment)),
    RowFunction::new(DATE_FORMAT, &[Moment, Text], Text, |of| {
        Some(formatted(of[0].moment(), of[1].text()).into())
    }),
    RowFunction::new("from_unixtime", &[Whole], Moment, |of| {
        from_unixtime(of[0].whole()).map(CellValue::Moment)
    }),
    RowFunction::new("from_unixtime", &[Whole, Text], Text, |of| {
        Some(formatted(from_unixtime(of[0].whole())?, of[1].text()).into())
    }),
    RowFunction::new("week", &[Moment, Whole], Whole, |of| {
        Some(week(of[0].moment().date(), of[1].whole()).1.into())
    })
    .at_least(2),
    RowFunction::new("week", &[Moment], Whole, |of| Some(week(of[0].moment().date(), 0).1.into())),
    RowFunction::new("yearweek", &[Moment], Whole, |of| Some(yearweek(of[0].moment().date(), 0).into())),
    RowFunction::new("yearweek", &[Moment, Whole], Whole, |of| {
        Some(yearweek(of[0].moment().date(), of[1].whole()).into())
    }),
    RowFunction::new("to_seconds", &[Moment], Whole, |of| {
        let moment = of[0].moment();
        let days = i64::from(moment.date().num_days_from_ce()) + DAYS_OF_YEAR_0;
        Some((days * 86_400 + i64::from(moment.num_seconds_from_midnight())).into())
    }),
    RowFunction::new("from_days", &[Whole], Date, |of| {
        let date = NaiveDate::from_num_days_from_ce_opt(i32::try_from(of[0].whole() - DAYS_OF_YEAR_0).ok()?)?;
        is_date(date).then_some(CellValue::Date(date))
    }),
    RowFunction::new("addtime", &[ClockOrMoment, Clock], ClockOrMoment, |of| add_time(of, 1)),
    RowFunction::new("subtime", &[ClockOrMoment, Clock], ClockOrMoment, |of| add_time(of, -1)),
    RowFunction::new("timestamp", &[Moment], Moment, |of| Some(CellValue::Moment(of[0].moment()))),
    RowFunction::new("timestamp", &[Moment, Clock], Moment, |of| add_time(of, 1)),
    RowFunction::new("time", &[Clock], Clock, |of| Some(CellValue::Clock(of[0].clock()))),
    RowFunction::new("timediff", &[ClockOrMoment, ClockOrMoment], Clock, |of| {
        let micros = match (point(&of[0])?, point(&of[1])?) {
            (Point::Clock(one), Point::Clock(other)) => one.checked_sub(other)?,
            (Point::Moment(one), Point::Moment(other)) => (one - other).num_microseconds()?,
            _ => return None,
        };
        Some(CellValue::Clock(micros.clamp(-LONGEST_TIME, LONGEST_TIME)))
    }),
    RowFunction::new("sec_to_time", &[Double], Clock, |of| {
        let micros = (of[0].double() * SECOND as f64).round() as i64;
        Some(CellValue::Clock(micros.clamp(-LONGEST_TIME, LONGEST_TIME)))
    }),
    RowFunction::new("maketime", &[Whole, Whole, Double], Clock, |of| {
        let (hour, minute, second) = (of[0].whole(), of[1].whole(), of[2].double());
        if !(0..60).contains(&minute) || !(0.0..60.0).contains(&second) {
            return None;
        }
        let seconds = hour.saturating_abs().saturating_mul(3600).saturating_add(minute * 60);
        let micros = seconds.saturating_mul(SECOND).saturating_add((second * SECOND as f64).round() as i64);
        let micros = micros.min(LONGEST_TIME);
        Some(CellValue::Clock(if hour < 0 { -micros } else { micros }))
    }),
    RowFunction::new("time_to_sec", &[Clock], Whole, |of| Some((of[0].clock() / SECOND).into())),
    RowFunction::new("time_format", &[Clock, Text], Text, |of| {
        time_formatted(of[0].clock(), of[1].text()).map(CellValue::from)
    }),
    RowFunction::new("hour", &[Clock], Whole, |of| Some((of[0].clock().abs() / SECOND / 3600).into())),
    RowFunction::new("minute", &[Clock], Whole, |of| Some((of[0].clock().abs() / SECOND / 60 % 60).into())),
    RowFunction::new("second", &[Clock], Whole, |of| Some((of[0].clock().abs() / SECOND % 60).into())),
    RowFunction::new("microsecond", &[Clock], Whole, |of| Some((of[0].clock().abs() % SECOND).into())),
    RowFunction::new(NUMBER_OF_CLOCK, &[Clock], Whole, |of| {
        let seconds = of[0].clock() / SECOND;
        Some((seconds / 3600 * 10_000 + seconds / 60 % 60 * 100 + seconds % 60).into())
    }),
    RowFunction::new(TEXT_OF_CLOCK, &[Clock], Text, |of| Some(clock_text(of[0].clock()).into())),
    RowFunction::new(SECONDS, &[Clock], Clock, |of| Some(CellValue::Clock(of[0].clock() / SECOND * SECOND))),
    RowFunction::new(CLOCK_OF_MOMENT, &[Moment], Clock, |of| {
        Some(CellValue::Clock((of[0].moment().time() - NaiveTime::MIN).num_microseconds()?))
    }),
    RowFunction::new(CLOCK_OF_TEXT, &[Text], Clock, |of| clock_of_text(of[0].text()).map(CellValue::Clock)),
    RowFunction::new(CLOCK_OF_NUMBER, &[Whole], Clock, |of| {
        clock_of_number(of[0].whole()).map(CellValue::Clock)
    }),
    RowFunction::new(DATE_OF_TEXT, &[Text, Text], Date, |of| {
        read(of[0].text(), of[1].text()).map(|moment| CellValue::Date(moment.date()))
    }),
    RowFunction::new(CLOCK_OF_FORMAT, &[Text, Text], Clock, |of| {
        let moment = read(of[0].text(), of[1].text())?;
        Some(CellValue::Clock((moment.time() - NaiveTime::MIN).num_microseconds()?))
    }),
    RowFunction::new(MOMENT_OF_TEXT, &[Text, Text], Moment, |of| {
        read(of[0].text(), of[1].text()).map(CellValue::Moment)
    }),
    RowFunction::new("period_add", &[Whole, Whole], Whole, |of| {
        Some(period_of(months_of_period(of[0].whole()) + of[1].whole()).into())
    }),
    RowFunction::new("period_diff", &[Whole, Whole], Whole, |of| {
        Some((months_of_period(of[0].whole()) - months_of_period(of[1].whole())).into())
    }),
];

/// Whether MySQL has this date.
fn is_date(date: NaiveDate) -> bool {
    (1..=9999).contains(&date.year())
}

fn from_unixtime(seconds: i64) -> Option<NaiveDateTime> {
    Some(chrono::DateTime::from_timestamp(seconds, 0).filter(|_| seconds >= 0)?.naive_utc())
}

fn number(of: NaiveDateTime) -> i64 {
    let date = i64::from(of.year()) * 10_000 + i64::from(of.month()) * 100 + i64::from(of.day());
    let time = i64::from(of.hour()) * 10_000 + i64::from(of.minute()) * 100 + i64::from(of.second());
    date * 1_000_000 + time
}

/// Reads 240229, 20240229, 240229005950 and 20240229005950.
fn moment_of_number(number: i64) -> Option<NaiveDateTime> {
    let (date, time) =
        if number > 99_999_999 { (number / 1_000_000, number % 1_000_000) } else { (number, 0) };
    let (year, month, day) = (date / 10_000, date / 100 % 100, date % 100);
    let year = match year {
        0..70 => year + 2000,
        70..100 => year + 1900,
        year => year,
    };
    let two = |of: i64| u32::try_from(of).ok();
    let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, two(month)?, two(day)?)?;
    date.and_hms_opt(two(time / 10_000)?, two(time / 100 % 100)?, two(time % 100)?)
}

/// Reads a date as MySQL does: with any marks between its parts or none, with or without a time, and with a year of two or
/// four digits. What follows it is left out.
fn read_moment(text: &str) -> Option<NaiveDateTime> {
    let text = text.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let has_marks = text[digits..].starts_with(|mark: char| mark.is_ascii_punctuation() && mark != '.');
    let (whole, rest) = text.split_at(digits);
    let mut parts = [0; 6];
    let fraction = match digits {
        6 | 8 | 12 | 14 if !has_marks => {
            let year = if digits % 6 == 0 { 2 } else { 4 };
            let starts = std::iter::once(0).chain((year..digits).step_by(2));
            for (part, start) in parts.iter_mut().zip(starts) {
                *part = whole[start..if start == 0 { year } else { start + 2 }].parse().ok()?;
            }
            rest
        }
        1..=4 => {
            let mut left = text;
            for (at, part) in parts.iter_mut().enumerate() {
                let digits =
                    left.bytes().take_while(u8::is_ascii_digit).count().min(if at == 0 { 4 } else { 2 });
                *part = left[..digits].parse().ok()?;
                left = &left[digits..];
                let next = match at {
                    0 | 1 => left.trim_start_matches(|mark: char| mark.is_ascii_punctuation()),
                    2 => left.trim_start_matches(|mark: char| {
                        mark.is_ascii_punctuation() || mark == ' ' || mark == 'T'
                    }),
                    _ => left
                        .strip_prefix(|mark: char| mark.is_ascii_punctuation() && mark != '.')
                        .unwrap_or(left),
                };
                if at > 1
                    && (next.len() == left.len() || !next.starts_with(|digit: char| digit.is_ascii_digit()))
                {
                    break;
                }
                left = next;
            }
            left
        }
        _ => return None,
    };
    let [year, month, day, hour, minute, second] = parts;
    let two_digits = matches!(digits, 1 | 2 | 6 | 12);
    let year = match year {
        0..70 if two_digits => year + 2000,
        70..100 if two_digits => year + 1900,
        year => year,
    };
    let digits: String =
        fraction.strip_prefix('.').unwrap_or("").chars().take_while(char::is_ascii_digit).take(7).collect();
    let tenths: i64 = format!("{digits:0<7}").parse().ok()?;
    let date =
        NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day).filter(|date| is_date(*date))?;
    date.and_hms_opt(hour, minute, second)?.checked_add_signed(TimeDelta::microseconds((tenths + 5) / 10))
}

/// Returns the date that a literal is which is compared with a date; `None` if it is none, and for a text that DataFusion
/// reads itself.
#[must_use]
pub fn literal_moment(literal: &ScalarValue) -> Option<ScalarValue> {
    let moment = match literal {
        ScalarValue::Int64(Some(number)) => moment_of_number(*number)?,
        ScalarValue::Decimal128(Some(_), ..) => read_moment(&literal.to_string())?,
        literal => {
            let text = literal.try_as_str()??;
            let usual = text.get(..10).map(|day| NaiveDate::parse_from_str(day, "%Y-%m-%d"));
            if usual.is_some_and(|day| day.is_ok()) {
                return None;
            }
            read_moment(text)?
        }
    };
    let day = moment.date().signed_duration_since(NaiveDate::default()).num_days();
    Some(match moment.time() != NaiveTime::MIN {
        true => ScalarValue::TimestampMicrosecond(Some(moment.and_utc().timestamp_micros()), None),
        false => ScalarValue::Date32(i32::try_from(day).ok()),
    })
}

/// The weekday of a date, from the first day of the week.
fn weekday(date: NaiveDate, from_monday: bool) -> i64 {
    let weekday = date.weekday();
    i64::from(if from_monday { weekday.num_days_from_monday() } else { weekday.num_days_from_sunday() })
}

/// The first day of week 1 of a year, as a number of days. Week 1 begins with the first of these weekdays in the year, or is
/// the first week with four days in it.
fn first_week(year: i32, from_monday: bool, begins_in_year: bool) -> Option<i64> {
    let january = NaiveDate::from_ymd_opt(year, 1, 1)?;
    let (day, weekday) = (i64::from(january.num_days_from_ce()), weekday(january, from_monday));
    Some(match weekday {
        0 => day,
        1..=3 if !begins_in_year => day - weekday,
        _ => day + 7 - weekday,
    })
}

/// The year and number of the week of a date, by the modes of MySQL's manual, `WEEK()`.
fn week(date: NaiveDate, mode: i64) -> (i64, i64) {
    let mode = mode.rem_euclid(8);
    let (from_monday, has_zero) = (mode % 2 == 1, mode / 2 % 2 == 0);
    let begins_in_year = matches!(mode, 0 | 2 | 5 | 7);
    let (day, year) = (i64::from(date.num_days_from_ce()), date.year());
    let first = |year| first_week(year, from_monday, begins_in_year).unwrap_or(day);
    let (year, start) = match (first(year), first(year + 1)) {
        (start, _) if day < start && has_zero => return (i64::from(year), 0),
        (start, _) if day < start => (year - 1, first(year - 1)),
        (_, next) if day >= next && !has_zero => (year + 1, next),
        (start, _) => (year, start),
    };
    (i64::from(year), (day - start) / 7 + 1)
}

/// The year of the week and its number. There is no week 0.
fn yearweek(date: NaiveDate, mode: i64) -> i64 {
    let (year, week) = week(date, mode.rem_euclid(8) | 2);
    year * 100 + week
}

/// The simple units of a compound one.
fn units(unit: &str) -> Vec<String> {
    let order = ["day", "hour", "minute", "second", "microsecond"];
    let lower = unit.to_ascii_lowercase();
    let Some((from, to)) = lower.split_once('_') else { return vec![lower] };
    let at = |name: &str| order.iter().position(|one| *one == name);
    match (at(from), at(to)) {
        (Some(from), Some(to)) if from < to => {
            order[from..=to].iter().map(|unit| (*unit).to_owned()).collect()
        }
        _ => vec![from.to_owned(), to.to_owned()],
    }
}

/// Adds an interval: `(date, number, unit, sign)`.
fn moved(of: &[CellValue<'_>]) -> Option<CellValue<'static>> {
    let (number, unit, sign) = (of[1].text().trim(), of[2].text(), of[3].whole());
    let moment = match &of[0] {
        CellValue::Text(text) => read_moment(text)?,
        other => other.moment(),
    };
    let units = units(unit);
    let (sign, number) = match number.strip_prefix('-') {
        Some(number) => (-sign, number),
        None => (sign, number),
    };
    let fields: Vec<(i64, &str)> = if units.len() == 1 {
        let whole = number.parse::<f64>().ok()?;
        // Only seconds may have a fraction.
        match units[0] == "second" && whole.fract() != 0.0 {
            true => vec![((whole * 1e6).round() as i64, "microsecond")],
            false => vec![(whole.round() as i64, units[0].as_str())],
        }
    } else {
        let numbers: Vec<&str> =
            number.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
        // Fields that are left out are those of the largest units.
        let skipped = units.len().checked_sub(numbers.len())?;
        let fields = numbers.iter().zip(&units[skipped..]);
        fields.map(|(number, unit)| Some((number.parse().ok()?, unit.as_str()))).collect::<Option<_>>()?
    };
    // All months at once: two steps could cut the day twice.
    let (mut months, mut days, mut micros) = (0_i64, 0_i64, 0_i64);
    for (number, unit) in fields {
        let (total, size) = match unit {
            "microsecond" => (&mut micros, 1),
            "second" => (&mut micros, 1_000_000),
            "minute" => (&mut micros, 60_000_000),
            "hour" => (&mut micros, 3_600_000_000),
            "day" => (&mut days, 1),
            "week" => (&mut days, 7),
            "month" => (&mut months, 1),
            "quarter" => (&mut months, 3),
            "year" => (&mut months, 12),
            _ => return None,
        };
        *total = total.checked_add(number.checked_mul(size)?.checked_mul(sign)?)?;
    }
    let by_months = Months::new(u32::try_from(months.unsigned_abs()).ok()?);
    let moved = match months < 0 {
        true => moment.checked_sub_months(by_months)?,
        false => moment.checked_add_months(by_months)?,
    };
    let moved = moved.checked_add_signed(TimeDelta::try_days(days)?)?;
    let moved = moved.checked_add_signed(TimeDelta::microseconds(micros))?;
    is_date(moved.date()).then(|| match &of[0] {
        CellValue::Date(_) => CellValue::Date(moved.date()),
        CellValue::Text(text) if has_time(text) => moment_text(moved).into(),
        CellValue::Text(_) => moved.date().to_string().into(),
        _ => CellValue::Moment(moved),
    })
}

/// Whether the text of a date has a time.
fn has_time(text: &str) -> bool {
    let parts: Vec<&str> =
        text.split(|mark: char| !mark.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
    parts.len() > 3 || parts.first().is_some_and(|part| part.len() > 8)
}

/// A date with time as a text, with the fraction of a second if there is one.
fn moment_text(of: NaiveDateTime) -> String {
    let fraction = if of.nanosecond() == 0 { "" } else { "%.6f" };
    of.format(&format!("%Y-%m-%d %H:%M:%S{fraction}")).to_string()
}

/// The parts of `EXTRACT`, as one number.
fn parts(unit: &str, of: NaiveDateTime) -> Option<i64> {
    let part = |unit: &str| {
        Some(match unit {
            "microsecond" => i64::from(of.nanosecond() / 1000),
            "second" => i64::from(of.second()),
            "minute" => i64::from(of.minute()),
            "hour" => i64::from(of.hour()),
            "day" => i64::from(of.day()),
            "week" => week(of.date(), 0).1,
            "month" => i64::from(of.month()),
            "quarter" => i64::from(of.month0() / 3 + 1),
            "year" => i64::from(of.year()),
            _ => return None,
        })
    };
    let size = |unit: &str| if unit == "microsecond" { 1_000_000 } else { 100 };
    units(unit).iter().try_fold(0, |number, unit| Some(number * size(unit) + part(unit)?))
}

/// The number of whole units from one moment to another.
fn between(unit: &str, from: NaiveDateTime, to: NaiveDateTime) -> Option<i64> {
    let span = to - from;
    let months = || {
        let (one, other, sign) = if from <= to { (from, to, 1) } else { (to, from, -1) };
        let whole = |of: NaiveDateTime| i64::from(of.year()) * 12 + i64::from(of.month0());
        let rest = |of: NaiveDateTime| (of.day(), of.time());
        (whole(other) - whole(one) - i64::from(rest(other) < rest(one))) * sign
    };
    Some(match unit.to_ascii_lowercase().as_str() {
        "microsecond" => span.num_microseconds()?,
        "second" => span.num_seconds(),
        "minute" => span.num_minutes(),
        "hour" => span.num_hours(),
        "day" => span.num_days(),
        "week" => span.num_weeks(),
        "month" => months(),
        "quarter" => months() / 3,
        "year" => months() / 12,
        _ => return None,
    })
}

/// Microseconds as a time without a date, `[-]HH:MM:SS`, with the fraction of a second if there is one.
#[must_use]
pub fn clock_text(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let micros = micros.saturating_abs();
    let (seconds, fraction) = (micros / SECOND, micros % SECOND);
    let whole = format!("{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction == 0 { whole } else { format!("{whole}.{fraction:06}") }
}

/// The least number that is a date with time and no time.
const FIRST_MOMENT: u64 = 10_000_000_000;

/// Reads HHMMSS, also after a date.
fn clock_of_number(number: i64) -> Option<i64> {
    if number.unsigned_abs() >= FIRST_MOMENT {
        return (moment_of_number(number)?.time() - NaiveTime::MIN).num_microseconds();
    }
    let of = number.unsigned_abs();
    let seconds = of / 10_000 * 3600 + of / 100 % 100 * 60 + of % 100;
    let micros = i64::try_from(seconds).ok()?.checked_mul(SECOND)?.min(LONGEST_TIME);
    (of % 100 < 60 && of / 100 % 100 < 60).then_some(if number < 0 { -micros } else { micros })
}

/// Reads `[-][days ]H:MM[:SS[.fraction]]` and HHMMSS, also after a date.
fn clock_of_text(text: &str) -> Option<i64> {
    let text = text.trim();
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let (days, clock) = match text.split_once([' ', 'T']) {
        Some((date, clock)) if date.contains('-') => (0, clock),
        Some((days, clock)) => (whole_number(days)?, clock),
        None if moment_of_text(text).is_some() => (0, "0"),
        None => (0, text),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let parts: Option<Vec<i64>> = clock.split(':').map(whole_number).collect();
    let of_hours = |hours: i64| hours.min(LONGEST_TIME) * 3600;
    let seconds = match parts?.as_slice() {
        [hours, minutes, seconds] if *minutes < 60 && *seconds < 60 => {
            of_hours(*hours) + minutes * 60 + seconds
        }
        [hours, minutes] if *minutes < 60 => of_hours(*hours) + minutes * 60,
        [number] => clock_of_number(*number)? / SECOND,
        _ => return None,
    };
    let fraction: i64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    let micros =
        days.checked_mul(86_400)?.checked_add(seconds)?.checked_mul(SECOND)?.checked_add(fraction)?;
    Some(sign * micros.min(LONGEST_TIME))
}

/// Reads digits.
fn whole_number(digits: &str) -> Option<i64> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A time without a date, or with one.
enum Point {
    Clock(i64),
    Moment(NaiveDateTime),
}

fn point(of: &CellValue<'_>) -> Option<Point> {
    Some(match of {
        CellValue::Clock(micros) => Point::Clock(*micros),
        CellValue::Text(text) => match moment_of_text(text) {
            Some(moment) => Point::Moment(moment),
            None => Point::Clock(clock_of_text(text)?),
        },
        other => Point::Moment(other.moment()),
    })
}

fn moment_of_text(text: &str) -> Option<NaiveDateTime> {
    let text = text.trim();
    let moment = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f").ok();
    moment.or_else(|| Some(NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?.into()))
}

fn add_time(of: &[CellValue<'_>], sign: i64) -> Option<CellValue<'static>> {
    let by = sign * of[1].clock();
    let is_text = matches!(of[0], CellValue::Text(_));
    match point(&of[0])? {
        Point::Clock(micros) => {
            let micros = micros.checked_add(by)?.clamp(-LONGEST_TIME, LONGEST_TIME);
            Some(if is_text { clock_text(micros).into() } else { CellValue::Clock(micros) })
        }
        Point::Moment(moment) => {
            let moved = moment.checked_add_signed(TimeDelta::microseconds(by))?;
            is_date(moved.date())
                .then(|| if is_text { moment_text(moved).into() } else { CellValue::Moment(moved) })
        }
    }
}

/// Like [`formatted`], for a time of any number of hours.
fn time_formatted(micros: i64, format: &str) -> Option<String> {
    let sign = if micros < 0 { "-" } else { "" };
    let (seconds, fraction) = (micros.saturating_abs() / SECOND, micros.saturating_abs() % SECOND);
    let hours = seconds / 3600;
    let clock = date_of(0)?.and_hms_micro_opt(
        u32::try_from(hours % 24).ok()?,
        u32::try_from(seconds / 60 % 60).ok()?,
        u32::try_from(seconds % 60).ok()?,
        u32::try_from(fraction).ok()?,
    )?;
    let format = format.replace("%H", &format!("{sign}{hours:02}")).replace("%k", &format!("{sign}{hours}"));
    Some(formatted(clock, &format))
}

/// Months since year 0 of YYYYMM.
fn months_of_period(period: i64) -> i64 {
    let year = match period / 100 {
        year @ 0..70 => year + 2000,
        year @ 70..100 => year + 1900,
        year => year,
    };
    year * 12 + period % 100 - 1
}

fn period_of(months: i64) -> i64 {
    months.div_euclid(12) * 100 + months.rem_euclid(12) + 1
}

/// `DATE_FORMAT`, by the letters of MySQL's manual.
fn formatted(of: NaiveDateTime, format: &str) -> String {
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let Some(letter) = letters.next() else { break };
        let week = |mode| week(of.date(), mode);
        // Writing to a text cannot fail.
        let _ = match letter {
            'a' => write!(text, "{}", of.format("%a")),
            'b' => write!(text, "{}", of.format("%b")),
            'c' => write!(text, "{}", of.month()),
            'D' => write!(text, "{}{}", of.day(), suffix(of.day())),
            'd' => write!(text, "{:02}", of.day()),
            'e' => write!(text, "{}", of.day()),
            'f' => write!(text, "{:06}", of.nanosecond() / 1000),
            'H' => write!(text, "{:02}", of.hour()),
            'h' | 'I' => write!(text, "{:02}", of.hour12().1),
            'i' => write!(text, "{:02}", of.minute()),
            'j' => write!(text, "{:03}", of.ordinal()),
            'k' => write!(text, "{}", of.hour()),
            'l' => write!(text, "{}", of.hour12().1),
            'M' => write!(text, "{}", of.format("%B")),
            'm' => write!(text, "{:02}", of.month()),
            'p' => write!(text, "{}", of.format("%p")),
            'r' => write!(text, "{}", of.format("%I:%M:%S %p")),
            'S' | 's' => write!(text, "{:02}", of.second()),
            'T' => write!(text, "{}", of.format("%H:%M:%S")),
            'U' => write!(text, "{:02}", week(0).1),
            'u' => write!(text, "{:02}", week(1).1),
            'V' => write!(text, "{:02}", week(2).1),
            'v' => write!(text, "{:02}", week(3).1),
            'W' => write!(text, "{}", of.format("%A")),
            'w' => write!(text, "{}", of.weekday().num_days_from_sunday()),
            'X' => write!(text, "{:04}", week(2).0),
            'x' => write!(text, "{:04}", week(3).0),
            'Y' => write!(text, "{:04}", of.year()),
            'y' => write!(text, "{:02}", of.year().rem_euclid(100)),
            // MySQL leaves out the sign before letters without a meaning.
            other => write!(text, "{other}"),
        };
    }
    text
}

/// Whether a format of `STR_TO_DATE` has parts of a date and parts of a time; `None` if it has parts that are not
/// supported.
#[must_use]
pub fn read_parts(format: &str) -> Option<(bool, bool)> {
    let (mut has_date, mut has_time) = (false, false);
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            continue;
        }
        match letters.next()? {
            'Y' | 'y' | 'm' | 'c' | 'd' | 'e' | 'M' | 'b' | 'j' => has_date = true,
            'H' | 'k' | 'h' | 'I' | 'l' | 'i' | 's' | 'S' | 'f' | 'p' | 'T' | 'r' => has_time = true,
            'D' | 'U' | 'u' | 'V' | 'v' | 'X' | 'x' | 'w' | '#' | '.' | '@' => return None,
            _ => {}
        }
    }
    Some((has_date, has_time))
}

/// Takes at most so many digits from the beginning of a text.
fn digits(text: &mut &str, most: usize) -> Option<u32> {
    let count = text.bytes().take(most).take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(count);
    *text = rest;
    number.parse().ok()
}

/// Takes one of these names, or its first three letters, from the beginning of a text; its position from 1.
fn name(text: &mut &str, names: &[&str], is_short: bool) -> Option<u32> {
    let (at, length) = names.iter().enumerate().find_map(|(at, name)| {
        let length = if is_short { 3 } else { name.len() };
        let same = text.get(..length)?.eq_ignore_ascii_case(name.get(..length)?);
        same.then_some((at, length))
    })?;
    *text = text.get(length..)?;
    u32::try_from(at + 1).ok()
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// `STR_TO_DATE`: what is behind the format is left out.
fn read(text: &str, format: &str) -> Option<NaiveDateTime> {
    let (mut year, mut month, mut day, mut of_year) = (None, None, None, None);
    let [mut hour, mut minute, mut second, mut micros] = [0_u32; 4];
    let mut is_afternoon = None;
    let format = format.replace("%T", "%H:%i:%s").replace("%r", "%I:%i:%s %p");
    let (mut rest, mut letters) = (text, format.chars());
    while let Some(letter) = letters.next() {
        if letter.is_whitespace() {
            rest = rest.trim_start();
            continue;
        }
        if letter != '%' {
            rest = rest.strip_prefix(letter)?;
            continue;
        }
        let kind = letters.next()?;
        if kind != '%' {
            rest = rest.trim_start();
        }
        match kind {
            'Y' => year = Some(digits(&mut rest, 4)?),
            'y' => year = digits(&mut rest, 2).map(|year| if year < 70 { year + 2000 } else { year + 1900 }),
            'm' | 'c' => month = Some(digits(&mut rest, 2)?),
            'd' | 'e' => day = Some(digits(&mut rest, 2)?),
            'j' => of_year = Some(digits(&mut rest, 3)?),
            'M' => month = Some(name(&mut rest, &MONTHS, false)?),
            'b' => month = Some(name(&mut rest, &MONTHS, true)?),
            'W' => {
                name(&mut rest, &DAYS, false)?;
            }
            'a' => {
                name(&mut rest, &DAYS, true)?;
            }
            'H' | 'k' => hour = digits(&mut rest, 2)?,
            'h' | 'I' | 'l' => hour = digits(&mut rest, 2).filter(|hour| (1..=12).contains(hour))?,
            'i' => minute = digits(&mut rest, 2)?,
            's' | 'S' => second = digits(&mut rest, 2)?,
            'f' => {
                let before = rest.len();
                let number = digits(&mut rest, 6)?;
                micros = number * 10_u32.pow(u32::try_from(6 - (before - rest.len())).ok()?);
            }
            'p' => is_afternoon = Some(name(&mut rest, &["AM", "PM"], false)? == 2),
            letter => rest = rest.strip_prefix(letter)?,
        }
    }
    if let Some(is_afternoon) = is_afternoon {
        hour = hour % 12 + if is_afternoon { 12 } else { 0 };
    }
    let year = || i32::try_from(year?).ok();
    let date = match (of_year, read_parts(&format)?) {
        // A time without a date.
        (_, (false, _)) => date_of(0)?,
        (Some(day), _) => NaiveDate::from_yo_opt(year()?, day)?,
        (None, _) => NaiveDate::from_ymd_opt(year()?, month?, day?)?,
    };
    date.and_hms_micro_opt(hour, minute, second, micros)
}

/// The English suffix of a day: 1st, 2nd, 3rd, 4th.
fn suffix(day: u32) -> &'static str {
    match (day % 10, day / 10 % 10) {
        (_, 1) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    }
}
