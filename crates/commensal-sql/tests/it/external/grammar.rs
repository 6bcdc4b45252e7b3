//! Statements over one typed table with NULLs and edges: expressions from a table of templates, and forms around them.

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use datafusion::parquet::arrow::ArrowWriter;
use std::path::Path;
use std::sync::Arc;

/// The rows as MariaDB's INSERT takes them: id, i, b, f, c, s, w, d, dt, p.
pub(super) const ROWS: [&str; 12] = [
    "1, 0, 0, 0, 0.00, '', 'blue', '2024-02-29', '2024-02-29 00:59:50', true",
    "2, 1, 1, 1.5, 1.25, 'abc', 'green', '1999-12-31', '1999-12-31 23:59:59', false",
    "3, -1, -1, -2.25, -3.50, 'ABC', 'blue', '2020-01-01', '2020-01-01 00:00:00', null",
    "4, 7, 4000000000, 10000000000, 10.10, 'äöü', null, '1970-01-01', '1970-01-01 12:00:00', true",
    "5, 2147483647, -4000000000, 0.001, 99999999.99, 'a%b_c', 'red', '2024-12-31', '2024-12-31 18:30:15', true",
    "6, -2147483648, 9007199254740993, null, null, null, 'red', null, null, false",
    "7, null, null, 3, 0.05, ' pad ', 'green', '2023-03-15', '2023-03-15 06:07:08', null",
    "8, 42, 17, -0.5, -0.05, '12', '', '2000-02-29', null, false",
    "9, 3, 3, 100.125, 2.50, 'hello world', 'blue', null, '2021-06-30 10:20:30', true",
    "10, null, -7, null, 1000.00, '-3.5', null, '2021-06-30', '2022-10-10 10:10:10', null",
    "11, -5, null, 2, 12345.67, 'a,b,c', 'red', '2022-10-10', '1985-07-04 01:02:03', true",
    "12, 100, 100, 7.75, null, 'Zoë', 'green', '1985-07-04', '2038-01-19 03:14:07', false",
];

/// Writes the same rows as a Parquet file.
pub(super) fn write(file: &Path) {
    let rows: Vec<Vec<String>> = ROWS.iter().map(|row| values(row)).collect();
    let of = |at: usize| rows.iter().map(move |row| Some(row[at].as_str()).filter(|text| *text != "null"));
    let number = |at| of(at).map(|text| text.map(|text| text.parse::<i64>().unwrap()));
    let time = |at| {
        of(at).map(|text| {
            let text = text?;
            let (date, clock) = text.split_once(' ').unwrap_or((text, "00:00:00"));
            let date: Vec<i64> = date.split('-').map(|part| part.parse().unwrap()).collect();
            let clock: Vec<i64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
            // Days since 1970 of a date of the Gregorian calendar (Howard Hinnant, days_from_civil).
            let (year, month) = (date[0] - i64::from(date[1] <= 2), (date[1] + 9) % 12);
            let (era, day) = (year.div_euclid(400), (153 * month + 2) / 5 + date[2] - 1);
            let of_era = year.rem_euclid(400);
            let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day - 719_468;
            Some((days, clock[0] * 3600 + clock[1] * 60 + clock[2]))
        })
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter(number(0)))),
        (
            "i",
            Arc::new(Int32Array::from_iter(number(1).map(|one| one.map(|one| i32::try_from(one).unwrap())))),
        ),
        ("b", Arc::new(Int64Array::from_iter(number(2)))),
        (
            "f",
            Arc::new(Float64Array::from_iter(
                of(3).map(|text| text.map(|text| text.parse::<f64>().unwrap())),
            )),
        ),
        (
            "c",
            Arc::new(
                Decimal128Array::from_iter(
                    of(4).map(|text| text.map(|text| text.replace('.', "").parse::<i128>().unwrap())),
                )
                .with_precision_and_scale(10, 2)
                .unwrap(),
            ),
        ),
        ("s", Arc::new(StringArray::from_iter(of(5)))),
        ("w", Arc::new(StringArray::from_iter(of(6)))),
        (
            "d",
            Arc::new(Date32Array::from_iter(time(7).map(|one| one.map(|one| i32::try_from(one.0).unwrap())))),
        ),
        (
            "dt",
            Arc::new(TimestampMicrosecondArray::from_iter(
                time(8).map(|one| one.map(|(days, seconds)| (days * 86_400 + seconds) * 1_000_000)),
            )),
        ),
        ("p", Arc::new(BooleanArray::from_iter(of(9).map(|text| text.map(|text| text == "true"))))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, name != "id")),
    )
    .unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(file).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// The values of a row, without their quotes. A text has no `, ` in it.
fn values(row: &str) -> Vec<String> {
    row.split(", ").map(|value| value.trim_matches('\'').to_owned()).collect()
}

/// Kinds of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A number of at most a few digits, for lengths, positions and units.
    Small,
    Int,
    Double,
    Decimal,
    Text,
    Date,
    Time,
    /// A time without a date.
    Clock,
    Truth,
}
use Kind::{Clock, Date, Decimal, Double, Int, Small, Text, Time, Truth};

const LEAVES: [(Kind, &[&str]); 9] = [
    (Clock, &["time(dt)", "maketime(1, 2, 3)"]),
    (Small, &["0", "1", "2", "3", "-1", "5", "-2", "null", "id"]),
    (Int, &["i", "b", "id", "0", "1", "-1", "7", "255", "null", "i", "b"]),
    (Double, &["f", "f", "2.5e0", "-0.5e0", "1e3", "0e0"]),
    (Decimal, &["c", "c", "1.5", "0.1", "-2.25", "100.00"]),
    (Text, &["s", "s", "w", "'abc'", "''", "'a'", "'12'", "null", "'äx'", "'b c'"]),
    (Date, &["d", "d", "date '2024-03-31'", "date '2000-01-01'"]),
    (Time, &["dt", "dt", "timestamp '2024-03-31 12:34:56'"]),
    (Truth, &["p", "true", "false", "null"]),
];

/// A kind of expression, its text, and the kinds of its parts `$1` to `$4`.
const TEMPLATES: &[(Kind, &str, &[Kind])] = &[
    // Numbers.
    (Int, "$1 + $2", &[Int, Int]),
    (Int, "$1 - $2", &[Int, Int]),
    (Int, "$1 * $2", &[Int, Small]),
    (Int, "$1 DIV $2", &[Int, Int]),
    (Int, "$1 % $2", &[Int, Int]),
    (Int, "$1 mod $2", &[Int, Int]),
    (Int, "-$1", &[Int]),
    (Int, "mod($1, $2)", &[Int, Int]),
    (Int, "abs($1)", &[Int]),
    (Int, "sign($1)", &[Int]),
    (Int, "$1 & 255", &[Int]),
    (Int, "id | $1", &[Small]),
    (Int, "id << 2", &[]),
    (Int, "greatest($1, $2)", &[Int, Int]),
    (Int, "least($1, $2)", &[Int, Int]),
    (Int, "coalesce($1, $2)", &[Int, Int]),
    (Int, "ifnull($1, $2)", &[Int, Int]),
    (Int, "nullif($1, $2)", &[Int, Int]),
    (Int, "if($1, $2, $3)", &[Truth, Int, Int]),
    (Int, "case when $1 then $2 else $3 end", &[Truth, Int, Int]),
    (Int, "case $1 when $2 then $3 end", &[Int, Int, Int]),
    (Int, "floor($1)", &[Double]),
    (Int, "ceil($1)", &[Double]),
    (Int, "ceiling($1)", &[Decimal]),
    (Int, "floor($1)", &[Decimal]),
    (Int, "sign($1)", &[Decimal]),
    (Int, "cast($1 as signed)", &[Text]),
    (Int, "cast($1 as signed)", &[Truth]),
    (Int, "$1 + $2", &[Truth, Int]),
    (Int, "length($1)", &[Text]),
    (Int, "char_length($1)", &[Text]),
    (Int, "character_length($1)", &[Text]),
    (Int, "octet_length($1)", &[Text]),
    (Int, "bit_length($1)", &[Text]),
    (Int, "ascii($1)", &[Text]),
    (Int, "ord($1)", &[Text]),
    (Int, "instr($1, $2)", &[Text, Text]),
    (Int, "locate($1, $2)", &[Text, Text]),
    (Int, "locate($1, $2, $3)", &[Text, Text, Small]),
    (Int, "position($1 in $2)", &[Text, Text]),
    (Int, "strcmp($1, $2)", &[Text, Text]),
    (Int, "field($1, $2, $3)", &[Text, Text, Text]),
    (Int, "find_in_set($1, $2)", &[Text, Text]),
    (Int, "crc32($1)", &[Text]),
    (Int, "interval($1, 1, 5, 100)", &[Int]),
    (Int, "bit_count($1)", &[Int]),
    (Int, "year($1)", &[Date]),
    (Int, "month($1)", &[Time]),
    (Int, "day($1)", &[Date]),
    (Int, "dayofmonth($1)", &[Time]),
    (Int, "dayofweek($1)", &[Date]),
    (Int, "weekday($1)", &[Date]),
    (Int, "dayofyear($1)", &[Date]),
    (Int, "quarter($1)", &[Date]),
    (Int, "week($1)", &[Date]),
    (Int, "week($1, $2)", &[Date, Small]),
    (Int, "week($1, 3)", &[Date]),
    (Int, "weekofyear($1)", &[Date]),
    (Int, "yearweek($1)", &[Date]),
    (Int, "hour($1)", &[Time]),
    (Int, "minute($1)", &[Time]),
    (Int, "second($1)", &[Time]),
    (Int, "microsecond($1)", &[Time]),
    (Int, "to_days($1)", &[Date]),
    (Int, "to_seconds($1)", &[Time]),
    (Int, "datediff($1, $2)", &[Date, Date]),
    (Int, "datediff($1, $2)", &[Time, Date]),
    (Int, "timestampdiff(month, $1, $2)", &[Date, Date]),
    (Int, "timestampdiff(day, $1, $2)", &[Time, Time]),
    (Int, "timestampdiff(hour, $1, $2)", &[Time, Time]),
    (Int, "timestampdiff(year, $1, $2)", &[Date, Time]),
    (Int, "timestampdiff(week, $1, $2)", &[Date, Date]),
    (Int, "timestampdiff(quarter, $1, $2)", &[Date, Date]),
    (Int, "extract(year from $1)", &[Date]),
    (Int, "extract(month from $1)", &[Time]),
    (Int, "extract(hour from $1)", &[Time]),
    (Int, "extract(year_month from $1)", &[Date]),
    (Int, "extract(day_hour from $1)", &[Time]),
    (Int, "unix_timestamp($1)", &[Time]),
    (Int, "period_add(202401, $1)", &[Small]),
    (Int, "period_diff(202403, 202311)", &[]),
    (Int, "time_to_sec($1)", &[Clock]),
    (Int, "(select max(i) from t where id = $1)", &[Small]),
    (Int, "(select count(*) from t x where x.w = t.w)", &[]),
    (Double, "$1 + $2", &[Double, Double]),
    (Double, "$1 - $2", &[Double, Int]),
    (Double, "$1 * $2", &[Double, Small]),
    (Double, "$1 / $2", &[Double, Double]),
    (Double, "$1 / $2", &[Int, Int]),
    (Double, "$1 / $2", &[Int, Double]),
    (Double, "$1 % $2", &[Double, Double]),
    (Double, "-$1", &[Double]),
    (Double, "abs($1)", &[Double]),
    (Double, "sqrt($1)", &[Double]),
    (Double, "sqrt($1)", &[Int]),
    (Double, "exp($1)", &[Small]),
    (Double, "ln($1)", &[Double]),
    (Double, "log($1)", &[Int]),
    (Double, "log($1, $2)", &[Small, Double]),
    (Double, "log2($1)", &[Double]),
    (Double, "log10($1)", &[Double]),
    (Double, "pow($1, $2)", &[Double, Small]),
    (Double, "power($1, 2)", &[Small]),
    (Double, "sin($1)", &[Double]),
    (Double, "cos($1)", &[Double]),
    (Double, "tan($1)", &[Small]),
    (Double, "cot($1)", &[Double]),
    (Double, "asin($1)", &[Double]),
    (Double, "acos($1)", &[Double]),
    (Double, "atan($1)", &[Double]),
    (Double, "atan2($1, $2)", &[Double, Double]),
    (Double, "atan($1, $2)", &[Double, Double]),
    (Double, "degrees($1)", &[Double]),
    (Double, "radians($1)", &[Double]),
    (Double, "pi()", &[]),
    (Double, "coalesce($1, $2)", &[Double, Double]),
    (Double, "greatest($1, $2)", &[Double, Int]),
    (Double, "least($1, $2)", &[Double, Double]),
    (Double, "if($1, $2, $3)", &[Truth, Double, Int]),
    (Double, "truncate($1, $2)", &[Double, Small]),
    (Double, "$1 + 0", &[Text]),
    (Double, "cast($1 as double)", &[Text]),
    (Double, "cast($1 as double)", &[Int]),
    (Decimal, "$1 + $2", &[Decimal, Decimal]),
    (Decimal, "$1 - $2", &[Decimal, Int]),
    (Decimal, "$1 * $2", &[Decimal, Decimal]),
    (Decimal, "$1 / $2", &[Decimal, Decimal]),
    (Decimal, "$1 / $2", &[Decimal, Small]),
    (Decimal, "$1 % $2", &[Decimal, Decimal]),
    (Decimal, "$1 DIV $2", &[Decimal, Decimal]),
    (Decimal, "-$1", &[Decimal]),
    (Decimal, "abs($1)", &[Decimal]),
    (Decimal, "round($1)", &[Decimal]),
    (Decimal, "round($1, 1)", &[Decimal]),
    (Decimal, "round($1, $2)", &[Decimal, Small]),
    (Decimal, "truncate($1, 1)", &[Decimal]),
    (Decimal, "greatest($1, $2)", &[Decimal, Decimal]),
    (Decimal, "coalesce($1, $2)", &[Decimal, Decimal]),
    (Decimal, "ifnull($1, 0)", &[Decimal]),
    (Decimal, "if($1, $2, $3)", &[Truth, Decimal, Int]),
    (Decimal, "cast($1 as decimal(12, 3))", &[Int]),
    (Decimal, "cast($1 as decimal(12, 1))", &[Decimal]),
    (Decimal, "cast($1 as decimal(20, 2))", &[Double]),
    (Decimal, "cast('12.345' as decimal(10, 2))", &[]),
    // Texts.
    (Text, "concat($1, $2)", &[Text, Text]),
    (Text, "concat($1, $2)", &[Text, Int]),
    (Text, "concat($1, $2)", &[Text, Date]),
    (Text, "concat($1, $2)", &[Time, Text]),
    (Text, "concat($1, $2)", &[Decimal, Text]),
    (Text, "concat($1, $2)", &[Truth, Text]),
    (Text, "concat_ws(',', $1, $2, $3)", &[Text, Int, Text]),
    (Text, "concat_ws($1, $2, $3)", &[Text, Text, Text]),
    (Text, "upper($1)", &[Text]),
    (Text, "lower($1)", &[Text]),
    (Text, "ucase($1)", &[Text]),
    (Text, "lcase($1)", &[Text]),
    (Text, "substring($1, $2)", &[Text, Small]),
    (Text, "substring($1, $2, $3)", &[Text, Small, Small]),
    (Text, "substr($1 from $2 for $3)", &[Text, Small, Small]),
    (Text, "mid($1, $2, $3)", &[Text, Small, Small]),
    (Text, "left($1, $2)", &[Text, Small]),
    (Text, "right($1, $2)", &[Text, Small]),
    (Text, "trim($1)", &[Text]),
    (Text, "ltrim($1)", &[Text]),
    (Text, "rtrim($1)", &[Text]),
    (Text, "trim(both 'a' from $1)", &[Text]),
    (Text, "trim(leading 'a' from $1)", &[Text]),
    (Text, "trim(trailing 'c' from $1)", &[Text]),
    (Text, "replace($1, $2, $3)", &[Text, Text, Text]),
    (Text, "reverse($1)", &[Text]),
    (Text, "repeat($1, $2)", &[Text, Small]),
    (Text, "space($1)", &[Small]),
    (Text, "lpad($1, $2, $3)", &[Text, Small, Text]),
    (Text, "rpad($1, $2, 'xy')", &[Text, Small]),
    (Text, "substring_index($1, $2, $3)", &[Text, Text, Small]),
    (Text, "insert($1, $2, $3, $4)", &[Text, Small, Small, Text]),
    (Text, "elt($1, $2, $3)", &[Small, Text, Text]),
    (Text, "hex($1)", &[Text]),
    (Text, "hex($1)", &[Int]),
    (Text, "unhex(hex($1))", &[Text]),
    (Text, "bin($1)", &[Int]),
    (Text, "oct($1)", &[Int]),
    (Text, "conv($1, 10, 16)", &[Int]),
    (Text, "conv('ff', 16, 10)", &[]),
    (Text, "md5($1)", &[Text]),
    (Text, "sha1($1)", &[Text]),
    (Text, "sha($1)", &[Text]),
    (Text, "sha2($1, 256)", &[Text]),
    (Text, "to_base64($1)", &[Text]),
    (Text, "from_base64(to_base64($1))", &[Text]),
    (Text, "quote($1)", &[Text]),
    (Text, "soundex($1)", &[Text]),
    (Text, "char(65, 66)", &[]),
    (Text, "format($1, 2)", &[Decimal]),
    (Text, "format($1, 0)", &[Int]),
    (Text, "coalesce($1, $2)", &[Text, Text]),
    (Text, "ifnull($1, $2)", &[Text, Text]),
    (Text, "nullif($1, $2)", &[Text, Text]),
    (Text, "if($1, $2, $3)", &[Truth, Text, Text]),
    (Text, "case when $1 then $2 else $3 end", &[Truth, Text, Text]),
    (Text, "greatest($1, $2)", &[Text, Text]),
    (Text, "least($1, $2)", &[Text, Text]),
    (Text, "cast($1 as char)", &[Int]),
    (Text, "cast($1 as char)", &[Time]),
    (Text, "cast($1 as char)", &[Date]),
    (Text, "cast($1 as char)", &[Decimal]),
    (Text, "cast($1 as char(2))", &[Text]),
    (Text, "regexp_replace($1, 'a', 'x')", &[Text]),
    (Text, "regexp_substr($1, '[a-c]+')", &[Text]),
    (Text, "date_format($1, '%Y-%m-%d %H:%i:%s')", &[Time]),
    (Text, "date_format($1, '%y/%c/%e %k %l %p %W %M %a %b %j')", &[Time]),
    (Text, "date_format($1, '%D %U %u %V %v %X %x %w %f %h %I %r %T %%')", &[Time]),
    (Text, "time_format($1, '%H-%i')", &[Clock]),
    (Text, "dayname($1)", &[Date]),
    (Text, "monthname($1)", &[Date]),
    (Clock, "sec_to_time($1)", &[Small]),
    (Text, "cast($1 as char)", &[Clock]),
    (Clock, "time($1)", &[Time]),
    (Clock, "timediff($1, $2)", &[Time, Time]),
    (Text, "from_unixtime($1)", &[Small]),
    (Text, "from_unixtime(86400, '%Y %j')", &[]),
    // Dates.
    (Date, "date($1)", &[Time]),
    (Date, "cast($1 as date)", &[Time]),
    (Date, "cast('2024-05-06' as date)", &[]),
    (Date, "last_day($1)", &[Date]),
    (Date, "makedate(2024, $1)", &[Small]),
    (Date, "from_days(738000 + $1)", &[Small]),
    (Date, "$1 + interval $2 day", &[Date, Small]),
    (Date, "$1 - interval $2 month", &[Date, Small]),
    (Date, "date_add($1, interval $2 day)", &[Date, Small]),
    (Date, "date_add($1, interval 1 month)", &[Date]),
    (Date, "date_add($1, interval $2 year)", &[Date, Small]),
    (Date, "date_add($1, interval 2 week)", &[Date]),
    (Date, "date_add($1, interval 1 quarter)", &[Date]),
    (Date, "date_sub($1, interval $2 day)", &[Date, Small]),
    (Date, "adddate($1, $2)", &[Date, Small]),
    (Date, "subdate($1, 31)", &[Date]),
    (Date, "str_to_date('05.06.2024', '%d.%m.%Y')", &[]),
    (Date, "coalesce($1, $2)", &[Date, Date]),
    (Date, "greatest($1, $2)", &[Date, Date]),
    (Date, "if($1, $2, $3)", &[Truth, Date, Date]),
    (Time, "date_add($1, interval $2 hour)", &[Time, Small]),
    (Time, "date_add($1, interval 90 minute)", &[Time]),
    (Time, "date_add($1, interval $2 second)", &[Date, Small]),
    (Time, "date_add($1, interval '1:30' hour_minute)", &[Time]),
    (Time, "date_add($1, interval '1 2' day_hour)", &[Time]),
    (Time, "date_add($1, interval '1-2' year_month)", &[Time]),
    (Time, "$1 + interval 1 day", &[Time]),
    (Time, "timestampadd(minute, $1, $2)", &[Small, Time]),
    (Time, "timestamp($1)", &[Date]),
    (Time, "cast($1 as datetime)", &[Date]),
    (Time, "addtime($1, '01:00:00')", &[Time]),
    (Time, "subtime($1, '00:00:30')", &[Time]),
    (Time, "coalesce($1, $2)", &[Time, Time]),
    // Truth values.
    (Truth, "$1 = $2", &[Int, Int]),
    (Truth, "$1 <> $2", &[Int, Double]),
    (Truth, "$1 < $2", &[Int, Decimal]),
    (Truth, "$1 >= $2", &[Double, Double]),
    (Truth, "$1 = $2", &[Decimal, Decimal]),
    (Truth, "$1 <=> $2", &[Int, Int]),
    (Truth, "$1 <=> $2", &[Text, Text]),
    (Truth, "$1 = $2", &[Text, Text]),
    (Truth, "$1 < $2", &[Text, Text]),
    (Truth, "$1 > $2", &[Date, Date]),
    (Truth, "$1 <= $2", &[Date, Time]),
    (Truth, "$1 = '2024-02-29'", &[Date]),
    (Truth, "$1 > '2021'", &[Text]),
    (Truth, "$1 = '7'", &[Int]),
    (Truth, "$1 and $2", &[Truth, Truth]),
    (Truth, "$1 or $2", &[Truth, Truth]),
    (Truth, "$1 xor $2", &[Truth, Truth]),
    (Truth, "$1 && $2", &[Truth, Int]),
    (Truth, "$1 || $2", &[Truth, Int]),
    (Truth, "not $1", &[Truth]),
    (Truth, "not $1", &[Int]),
    (Truth, "!$1", &[Truth]),
    (Truth, "$1 is null", &[Int]),
    (Truth, "$1 is not null", &[Text]),
    (Truth, "$1 is true", &[Truth]),
    (Truth, "$1 is not false", &[Truth]),
    (Truth, "$1 is unknown", &[Truth]),
    (Truth, "isnull($1)", &[Text]),
    (Truth, "$1 between $2 and $3", &[Int, Int, Int]),
    (Truth, "$1 not between $2 and $3", &[Text, Text, Text]),
    (Truth, "$1 between $2 and $3", &[Date, Date, Date]),
    (Truth, "$1 in ($2, $3)", &[Int, Int, Int]),
    (Truth, "$1 not in ($2, $3)", &[Int, Int, Int]),
    (Truth, "$1 in ($2, 'blue')", &[Text, Text]),
    (Truth, "$1 in (select i from t where id < 4)", &[Int]),
    (Truth, "$1 not in (select w from t where w is not null)", &[Text]),
    (Truth, "exists (select 1 from t x where x.i = t.id)", &[]),
    (Truth, "$1 like 'a%'", &[Text]),
    (Truth, "$1 like $2", &[Text, Text]),
    (Truth, "$1 not like '%b_'", &[Text]),
    (Truth, "$1 like 'a|%%' escape '|'", &[Text]),
    (Truth, "$1 regexp '^[a-c]+$'", &[Text]),
    (Truth, "$1 not rlike 'o'", &[Text]),
    (Truth, "$1 > all (select id from t where id < 3)", &[Int]),
    (Truth, "$1 = any (select i from t where i is not null)", &[Int]),
    (Truth, "($1, $2) = ($3, 1)", &[Int, Int, Int]),
];

/// Aggregate functions over a kind.
const AGGREGATES: &[(&str, Kind)] = &[
    ("count(*)", Int),
    ("count($1)", Int),
    ("count(distinct $1)", Text),
    ("count(distinct $1, $1)", Int),
    ("sum($1)", Int),
    ("sum($1)", Double),
    ("sum($1)", Decimal),
    ("sum(distinct $1)", Int),
    ("sum($1)", Truth),
    ("avg($1)", Int),
    ("avg($1)", Double),
    ("avg($1)", Decimal),
    ("min($1)", Int),
    ("max($1)", Text),
    ("min($1)", Date),
    ("max($1)", Time),
    ("min($1)", Decimal),
    ("stddev($1)", Double),
    ("std($1)", Int),
    ("stddev_samp($1)", Double),
    ("var_pop($1)", Double),
    ("variance($1)", Int),
    ("var_samp($1)", Double),
    ("bit_and($1)", Small),
    ("bit_or($1)", Small),
    ("bit_xor($1)", Small),
    ("group_concat($1 order by id)", Text),
    ("group_concat(distinct $1 order by 1 separator '-')", Text),
    ("group_concat($1 order by id desc separator '')", Int),
];

/// Window functions.
const WINDOWS: &[(&str, Kind)] = &[
    ("row_number() over (order by id)", Int),
    ("rank() over (order by w)", Int),
    ("dense_rank() over (order by w desc)", Int),
    ("ntile(3) over (order by id)", Int),
    ("lag($1) over (order by id)", Int),
    ("lead($1, 2) over (order by id)", Text),
    ("first_value($1) over (partition by w order by id)", Int),
    ("last_value($1) over (order by id)", Text),
    ("sum($1) over (partition by w order by id)", Int),
    ("avg($1) over (order by id rows between 1 preceding and 1 following)", Double),
    ("count(*) over (partition by w)", Int),
    ("max($1) over (order by id rows between unbounded preceding and current row)", Decimal),
    ("percent_rank() over (order by w)", Int),
    ("cume_dist() over (order by w)", Int),
    ("nth_value($1, 2) over (order by id)", Int),
];

/// A statement, and the templates that are in it.
#[derive(Debug, Default)]
pub(super) struct Statement {
    pub sql: String,
    pub features: Vec<&'static str>,
    pub is_ordered: bool,
}

/// Makes statements.
#[derive(Debug)]
pub(super) struct Generator {
    state: u64,
    features: Vec<&'static str>,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Generator {
        Generator { state: seed, features: Vec::new() }
    }

    /// A number below `end` (SplitMix64).
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn leaf(&mut self, kind: Kind) -> String {
        let (_, leaves) = LEAVES.iter().find(|(one, _)| *one == kind).unwrap();
        self.of(leaves).to_owned()
    }

    fn expression(&mut self, kind: Kind, depth: usize) -> String {
        // Small numbers stay small.
        if depth == 0 || kind == Small || self.below(8) == 0 {
            return self.leaf(kind);
        }
        let all: Vec<_> = TEMPLATES.iter().filter(|(one, ..)| *one == kind).collect();
        let (_, text, parts) = *self.of(&all);
        self.filled(text, parts, depth - 1)
    }

    fn filled(&mut self, text: &'static str, parts: &[Kind], depth: usize) -> String {
        self.features.push(text);
        let mut filled = text.to_owned();
        for (at, part) in parts.iter().enumerate() {
            let part = self.expression(*part, depth);
            let part = match part.contains(' ') && !part.starts_with('\'') {
                true => format!("({part})"),
                false => part,
            };
            filled = filled.replace(&format!("${}", at + 1), &part);
        }
        filled
    }

    fn any(&mut self, depth: usize) -> String {
        let kind = self.of(&[Int, Double, Decimal, Text, Date, Time, Clock, Truth]);
        self.expression(kind, depth)
    }

    /// The statement of this turn. The first ones have each template alone, many times over.
    pub(super) fn statement(&mut self, turn: u64) -> Statement {
        self.features.clear();
        let turn = usize::try_from(turn).unwrap();
        let (sql, is_ordered) = if turn < TEMPLATES.len() * 10 {
            let (_, text, parts) = TEMPLATES[turn % TEMPLATES.len()];
            (format!("select id, {} as x from t order by id", self.filled(text, parts, 0)), true)
        } else {
            self.form()
        };
        Statement { sql, features: std::mem::take(&mut self.features), is_ordered }
    }

    fn form(&mut self) -> (String, bool) {
        match self.below(14) {
            0..4 => {
                (format!("select id, {} as x, {} as y from t order by id", self.any(3), self.any(2)), true)
            }
            4 => (format!("select id from t where {} order by id", self.expression(Truth, 3)), true),
            5 => {
                let (key, aggregate) = (self.of(&["w", "p", "i % 3", "year(d)"]), self.aggregate());
                (format!("select {key} as k, {aggregate} as x from t group by {key} order by k"), true)
            }
            6 => (
                format!("select {} as x from t where {}", self.aggregate(), self.expression(Truth, 2)),
                false,
            ),
            7 => {
                let (aggregate, least) = (self.aggregate(), self.below(4));
                (format!("select w, {aggregate} as x from t group by w having count(*) > {least}"), false)
            }
            8 => {
                let (text, kind) = self.of(WINDOWS);
                let window = self.filled(text, &[kind], 1);
                (format!("select id, {window} as x from t order by id"), true)
            }
            9 => (format!("select distinct {} as x from t", self.any(2)), false),
            10 => {
                let join = self.of(&["join", "left join", "right join"]);
                let (on, x) = (self.of(&["a.i = b.id", "a.w = b.w", "a.id = b.b and b.p"]), self.any(0));
                let x = if x.chars().all(|c| c.is_ascii_lowercase()) && x != "null" {
                    format!("b.{x}")
                } else {
                    x
                };
                (format!("select a.id, b.id as other, {x} as x from t a {join} t b on {on}"), false)
            }
            11 => {
                let kind = self.of(&[Int, Text, Date]);
                let (one, other, all) =
                    (self.expression(kind, 2), self.expression(kind, 1), self.of(&["union", "union all"]));
                (format!("select {one} as x from t {all} select {other} from t"), false)
            }
            12 => {
                let (x, way, count) = (self.any(2), self.of(&["", " desc"]), self.below(6));
                (format!("select id, {x} as x from t order by x{way}, id limit {count}, 5"), true)
            }
            _ => {
                let (x, condition) = (self.expression(Int, 2), self.expression(Truth, 1));
                (
                    format!(
                        "with c as (select id, w, {x} as x from t where {condition}) select w, sum(x), count(x) from c group by w"
                    ),
                    false,
                )
            }
        }
    }

    fn aggregate(&mut self) -> String {
        let (text, kind) = self.of(AGGREGATES);
        self.filled(text, &[kind], 1)
    }
}
