//! Functions of dates and times. A time without a date is a text, `[-]HH:MM:SS`.

use super::row::ArgumentKind::{Date, DateOrMoment, Moment, Text, Whole};
use super::row::{CellValue, RowFunction, date_of};
use chrono::{Datelike, Months, NaiveDate, NaiveDateTime, TimeDelta, Timelike};
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
/// The longest time without a date, 838:59:59, in seconds.
const LONGEST_TIME: i64 = 838 * 3600 + 59 * 60 + 59;

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
    RowFunction::new("addtime", &[Moment, Text], Moment, |of| add_time(of, 1)),
    RowFunction::new("subtime", &[Moment, Text], Moment, |of| add_time(of, -1)),
    RowFunction::new("timestamp", &[Moment], Moment, |of| Some(CellValue::Moment(of[0].moment()))),
    RowFunction::new("timestamp", &[Moment, Text], Moment, |of| add_time(of, 1)),
    RowFunction::new("time", &[Moment], Text, |of| {
        Some(time_text(i64::from(of[0].moment().num_seconds_from_midnight())).into())
    }),
    RowFunction::new("timediff", &[Moment, Moment], Text, |of| {
        Some(time_text((of[0].moment() - of[1].moment()).num_seconds()).into())
    }),
    RowFunction::new("sec_to_time", &[Whole], Text, |of| Some(time_text(of[0].whole()).into())),
    RowFunction::new("maketime", &[Whole, Whole, Whole], Text, |of| {
        let [hour, minute, second] = [0, 1, 2].map(|at| of[at].whole());
        let fits = (0..60).contains(&minute) && (0..60).contains(&second);
        let seconds = hour.saturating_abs().saturating_mul(3600).saturating_add(minute * 60 + second);
        fits.then(|| time_text(if hour < 0 { -seconds } else { seconds }).into())
    }),
    RowFunction::new("time_to_sec", &[Text], Whole, |of| seconds_of_time(of[0].text()).map(CellValue::from)),
    RowFunction::new("time_format", &[Text, Text], Text, |of| {
        time_formatted(of[0].text(), of[1].text()).map(CellValue::from)
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
    let (moment, number, unit, sign) = (of[0].moment(), of[1].text().trim(), of[2].text(), of[3].whole());
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
    is_date(moved.date()).then_some(match of[0] {
        CellValue::Date(_) => CellValue::Date(moved.date()),
        _ => CellValue::Moment(moved),
    })
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

/// A number of seconds as a time without a date.
fn time_text(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let seconds = seconds.saturating_abs().min(LONGEST_TIME);
    format!("{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The seconds of `[-][days ]H:MM[:SS[.fraction]]`, also after a date.
fn seconds_of_time(text: &str) -> Option<i64> {
    let text = text.trim();
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let (days, clock) = match text.split_once(' ') {
        Some((date, clock)) if date.contains('-') => (0, clock),
        Some((days, clock)) => (days.parse::<i64>().ok()?, clock),
        None => (0, text),
    };
    let clock = clock.split('.').next()?;
    let parts: Option<Vec<i64>> = clock.split(':').map(|part| part.parse().ok()).collect();
    let seconds = match parts?.as_slice() {
        [hours, minutes, seconds] if *minutes < 60 && *seconds < 60 => hours * 3600 + minutes * 60 + seconds,
        [hours, minutes] if *minutes < 60 => hours * 3600 + minutes * 60,
        // HHMMSS without colons.
        [number] => number / 10_000 * 3600 + number / 100 % 100 * 60 + number % 100,
        _ => return None,
    };
    Some(sign * (days * 86_400 + seconds))
}

fn add_time(of: &[CellValue<'_>], sign: i64) -> Option<CellValue<'static>> {
    let moved =
        of[0].moment().checked_add_signed(TimeDelta::seconds(sign * seconds_of_time(of[1].text())?))?;
    is_date(moved.date()).then_some(CellValue::Moment(moved))
}

/// Like [`formatted`], for a time of any number of hours.
fn time_formatted(time: &str, format: &str) -> Option<String> {
    let seconds = seconds_of_time(time)?;
    let sign = if seconds < 0 { "-" } else { "" };
    let seconds = seconds.saturating_abs();
    let hours = seconds / 3600;
    let clock = date_of(0)?.and_hms_opt(
        u32::try_from(hours % 24).ok()?,
        u32::try_from(seconds / 60 % 60).ok()?,
        u32::try_from(seconds % 60).ok()?,
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
