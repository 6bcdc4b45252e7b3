//! Dates and times of day, as strings and in the protocol's encoding. The calendar is the proleptic Gregorian one, as
//! in Arrow and MySQL. The arithmetic is Howard Hinnant's `days_from_civil` and its inverse.

/// Microseconds per day.
pub const MICROS: i64 = 86_400_000_000;

/// Days from 1 March of the year 0 to 1 January 1970.
const EPOCH: i64 = 719_468;
/// Days of 400 years.
const ERA: i64 = 146_097;

/// Returns year, month and day of a day number (days since 1 January 1970).
fn civil(day: i64) -> (i64, u8, u8) {
    let day = day + EPOCH;
    let (era, of_era) = (day.div_euclid(ERA), day.rem_euclid(ERA));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // The year is counted from March, so that the leap day is its last day.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month as u8, day as u8)
}

/// Returns the day number (days since 1 January 1970); `None` for a date that does not exist.
#[must_use]
pub fn day(year: u16, month: u8, day: u8) -> Option<i32> {
    let of_month = i64::from(day);
    let (from_march, of_january) = if month > 2 { (month - 3, 0) } else { (month.checked_add(9)?, 1) };
    let counted = i64::from(year) - of_january;
    let (era, of_era) = (counted.div_euclid(400), counted.rem_euclid(400));
    let of_year = (153 * i64::from(from_march) + 2) / 5 + of_month - 1;
    let days = era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH;
    (civil(days) == (i64::from(year), month, day)).then(|| i32::try_from(days).ok()).flatten()
}

/// Formats a day number as `2024-02-29`.
#[must_use]
pub fn date(day: i64) -> String {
    let (year, month, day) = civil(day);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Formats microseconds as `12:34:56.789`, with `digits` digits for the fraction of a second.
#[must_use]
pub fn time(micros: i64, digits: u8) -> String {
    let [hour, minute, second] = clock(micros);
    let whole = format!("{hour:02}:{minute:02}:{second:02}");
    let digits = usize::from(digits);
    if digits == 0 {
        return whole;
    }
    let below = format!("{:06}", micros.rem_euclid(1_000_000));
    format!("{whole}.{}", &below[..digits.min(6)])
}

/// Formats microseconds since 1970 as `2024-02-29 12:34:56`, followed by `digits` digits of the fraction of a second
/// unless that is zero.
#[must_use]
pub fn moment(micros: i64, digits: u8) -> String {
    let digits = if micros.rem_euclid(1_000_000) == 0 { 0 } else { digits };
    format!("{} {}", date(micros.div_euclid(MICROS)), time(micros.rem_euclid(MICROS), digits))
}

fn clock(micros: i64) -> [u8; 3] {
    let seconds = micros.rem_euclid(MICROS) / 1_000_000;
    [seconds / 3_600, seconds / 60 % 60, seconds % 60].map(|part| part as u8)
}

/// Encodes year, month and day; all zeros for years that the protocol cannot encode.
#[must_use]
pub fn date_bytes(day: i64) -> [u8; 4] {
    let (year, month, day) = civil(day);
    match u16::try_from(year) {
        Ok(year) => [year.to_le_bytes()[0], year.to_le_bytes()[1], month, day],
        Err(_) => [0; 4],
    }
}

/// Encodes hour, minute, second and microseconds.
#[must_use]
pub fn time_bytes(micros: i64) -> [u8; 7] {
    let [hour, minute, second] = clock(micros);
    let [a, b, c, d, ..] = micros.rem_euclid(1_000_000).to_le_bytes();
    [hour, minute, second, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_there_and_back() {
        for (text, number) in [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-02-29", 11_016),
            ("2024-02-29", 19_782),
            ("2100-03-01", 47_541),
            ("0001-01-01", -719_162),
            ("9999-12-31", 2_932_896),
        ] {
            assert_eq!(date(number), text);
            let part = |from: usize, to: usize| text[from..to].parse::<u16>().unwrap();
            let back = day(part(0, 4), part(5, 7) as u8, part(8, 10) as u8);
            assert_eq!(back.map(i64::from), Some(number), "{text}");
        }
        for (year, month, of_month) in
            [(2023, 2, 29), (1900, 2, 29), (2024, 0, 1), (2024, 13, 1), (2024, 4, 0)]
        {
            assert_eq!(day(year, month, of_month), None, "{year} {month} {of_month}");
        }
        assert_eq!(day(2024, 255, 255), None);
    }

    #[test]
    fn times() {
        assert_eq!(moment(-1, 6), "1969-12-31 23:59:59.999999");
        assert_eq!(moment(1_500_000, 3), "1970-01-01 00:00:01.500");
        assert_eq!(moment(1_000_000, 6), "1970-01-01 00:00:01");
        assert_eq!(time(45_296_789_000, 3), "12:34:56.789");
        assert_eq!(time_bytes(45_296_000_001), [12, 34, 56, 1, 0, 0, 0]);
        assert_eq!(date_bytes(19_782), [0xe8, 7, 2, 29]);
        assert_eq!(date_bytes(-1_000_000), [0; 4]);
    }
}
