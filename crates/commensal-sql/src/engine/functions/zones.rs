//! Time zones, and the digits of a time's fraction of a second.

use super::row::ArgumentKind::{Moment, Text, Whole};
use super::row::{CellValue, RowFunction};
use chrono::{DateTime, FixedOffset, LocalResult, NaiveDateTime, Offset, TimeZone, Timelike};
use datafusion::arrow::array::timezone::Tz;

/// Name of the function that cuts the fraction of a second of a date with time to so many digits.
pub const FRACTION: &str = "__fraction";

pub(super) const ROWS: &[RowFunction] = &[
    RowFunction::new("convert_tz", &[Moment, Text, Text], Moment, |of| {
        converted(of[0].moment(), of[1].text(), of[2].text()).map(CellValue::Moment)
    }),
    RowFunction::new(FRACTION, &[Moment, Whole], Moment, |of| {
        let (moment, digits) = (of[0].moment(), u32::try_from(of[1].whole()).unwrap_or(0).min(9));
        let unit = 10_u32.pow(9 - digits);
        moment.with_nanosecond(moment.nanosecond() / unit * unit).map(CellValue::Moment)
    }),
];

/// The last second that MySQL converts, 3001-01-18 23:59:59.
const LAST: i64 = 32_536_771_199;
/// Seconds of two days: no clock is put forward by more.
const TWO_DAYS: i64 = 172_800;

enum Zone {
    Fixed(FixedOffset),
    Named(Tz),
}

/// Reads `+5:30`, `SYSTEM` or the name of a zone.
fn zone(name: &str) -> Option<Zone> {
    if name.starts_with(['+', '-']) {
        return offset(name).map(Zone::Fixed);
    }
    if ["SYSTEM", "UTC"].iter().any(|utc| utc.eq_ignore_ascii_case(name)) {
        return FixedOffset::east_opt(0).map(Zone::Fixed);
    }
    name.parse().ok().map(Zone::Named)
}

/// Reads an offset from -13:59 to +14:00.
fn offset(text: &str) -> Option<FixedOffset> {
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let number = |digits: &str| {
        let is_number = matches!(digits.len(), 1 | 2) && digits.bytes().all(|digit| digit.is_ascii_digit());
        digits.parse::<i32>().ok().filter(|_| is_number)
    };
    let (hours, minutes) = (number(hours)?, number(minutes).filter(|minutes| *minutes < 60)?);
    let minutes = hours * 60 + minutes;
    let minutes = if text.starts_with('-') { -minutes } else { minutes };
    FixedOffset::east_opt(minutes * 60).filter(|_| (-13 * 60 - 59..=14 * 60).contains(&minutes))
}

/// `CONVERT_TZ`. A time that no `TIMESTAMP` has stays as it is.
fn converted(local: NaiveDateTime, from: &str, to: &str) -> Option<NaiveDateTime> {
    let (from, to) = (zone(from)?, zone(to)?);
    let utc = utc_of(local, &from)?;
    if !(1..=LAST).contains(&utc.and_utc().timestamp()) {
        return Some(local);
    }
    let offset = match to {
        Zone::Fixed(offset) => offset,
        Zone::Named(zone) => zone.offset_from_utc_datetime(&utc).fix(),
    };
    utc.checked_add_offset(offset)
}

fn utc_of(local: NaiveDateTime, zone: &Zone) -> Option<NaiveDateTime> {
    let offset = match zone {
        Zone::Fixed(offset) => *offset,
        Zone::Named(zone) => match zone.offset_from_local_datetime(&local) {
            // The first of two.
            LocalResult::Single(offset) | LocalResult::Ambiguous(offset, _) => offset.fix(),
            LocalResult::None => return beginning_of_gap(local, *zone),
        },
    };
    local.checked_sub_offset(offset)
}

/// Returns when the clocks are put forward past a time that does not exist.
fn beginning_of_gap(local: NaiveDateTime, zone: Tz) -> Option<NaiveDateTime> {
    let at = |seconds: i64| DateTime::from_timestamp(seconds, 0).map(|moment| moment.naive_utc());
    let offset = |seconds: i64| Some(zone.offset_from_utc_datetime(&at(seconds)?).fix());
    let middle = local.and_utc().timestamp();
    let (mut before, mut after) = (middle - TWO_DAYS, middle + TWO_DAYS);
    let old = offset(before)?;
    while after - before > 1 {
        let between = before + (after - before) / 2;
        if offset(between)? == old {
            before = between;
        } else {
            after = between;
        }
    }
    at(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_other_zones() {
        for (time, from, to, want) in [
            ("2024-01-01 12:00:00", "+00:00", "+05:30", Some("2024-01-01 17:30:00")),
            ("2024-01-01 12:00:00", "-1:30", "SYSTEM", Some("2024-01-01 13:30:00")),
            ("2024-07-01 12:00:00.5", "UTC", "Europe/Berlin", Some("2024-07-01 14:00:00.500")),
            ("2024-01-01 12:00:00", "America/New_York", "utc", Some("2024-01-01 17:00:00")),
            // Does not exist: the moment when the clocks are put forward.
            ("2024-03-31 02:30:00", "Europe/Berlin", "UTC", Some("2024-03-31 01:00:00")),
            // Exists twice.
            ("2024-10-27 02:30:00", "Europe/Berlin", "UTC", Some("2024-10-27 00:30:00")),
            ("1969-12-31 12:00:00", "UTC", "+01:00", Some("1969-12-31 12:00:00")),
            ("3001-01-19 00:00:00", "UTC", "+01:00", Some("3001-01-19 00:00:00")),
            ("2024-01-01 12:00:00", "+14:00", "-13:59", Some("2023-12-31 08:01:00")),
            ("2024-01-01 12:00:00", "+14:01", "UTC", None),
            ("2024-01-01 12:00:00", "UTC", "+1:60", None),
            ("2024-01-01 12:00:00", "UTC", "+0100", None),
            ("2024-01-01 12:00:00", "UTC", "Nowhere/Town", None),
            ("2024-01-01 12:00:00", "", "UTC", None),
        ] {
            let time = NaiveDateTime::parse_from_str(time, "%Y-%m-%d %H:%M:%S%.f").unwrap();
            let got = converted(time, from, to);
            let got = got.map(|moment| moment.format("%Y-%m-%d %H:%M:%S%.f").to_string());
            assert_eq!(got.as_deref(), want, "{time} {from} {to}");
        }
    }
}
