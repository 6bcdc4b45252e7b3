//! MySQL's functions: the values in these tables are MariaDB's answers.

use crate::server::client::Answer;
use crate::server::fixture::Fixture;

#[test]
fn functions_have_mysqls_values() {
    let fixture = Fixture::new();
    fixture.csv("w.csv", "i,z,n,f,s,u,d,dt\n7,0,,2.5,abc,ä😀x,2024-02-29,2024-02-29 00:59:50\n");
    let mut client = fixture.root();
    for (sql, want) in VALUES {
        let answer = client.query(&format!("select {sql} from w"));
        assert_eq!(answer.rows(), [[want]], "{sql}");
    }
}

/// Expressions over one row, and their values.
const VALUES: [(&str, &str); 249] = [
    ("locate('b', s, 3)", "0"),
    ("current_user", "root@%"),
    ("current_user()", "root@%"),
    ("cast(i as char character set utf8mb4)", "7"),
    ("convert(s, char(2) character set utf8mb4)", "ab"),
    ("length(cast(u as char charset utf8mb4))", "7"),
    ("now(6) >= now()", "1"),
    ("microsecond(now(0))", "0"),
    ("microsecond(now(2)) % 10000", "0"),
    ("microsecond(sysdate(5)) % 10", "0"),
    ("current_timestamp(3) >= utc_timestamp", "1"),
    ("utc_date = curdate()", "1"),
    ("curtime(3) >= curtime()", "1"),
    ("convert_tz('2024-02-29 12:00:00', '+00:00', '+05:30')", "2024-02-29 17:30:00"),
    ("convert_tz(dt, '+01:00', 'SYSTEM')", "2024-02-28 23:59:50"),
    ("convert_tz(dt, 'UTC', 'Nowhere')", "NULL"),
    ("convert_tz('no date', '+00:00', '+01:00')", "NULL"),
    ("adddate('2024-1-01', 1)", "2024-01-02"),
    ("adddate('2024-1-01', interval 1 month)", "2024-02-01"),
    ("adddate(concat('2024-1-0', z + 1), 1)", "2024-01-02"),
    ("adddate(concat('2024-1-01 1:', i), interval 1 day)", "2024-01-02 01:07:00"),
    ("subdate(concat(s, 1), 1)", "NULL"),
    ("adddate(20240229, 1)", "2024-03-01"),
    ("length(x'00ff61')", "3"),
    ("octet_length(unhex('00ff'))", "2"),
    ("length(i + 10)", "2"),
    ("length(n)", "NULL"),
    ("hex(x'00ff')", "00FF"),
    ("hex(unhex('ff00'))", "FF00"),
    ("md5(x'ff')", "00594fd4f42ba43fc1ca0427a0576295"),
    ("to_base64(x'fffe')", "//4="),
    ("bit_length(x'fffe') + ascii(x'ff') + ord(x'fffe')", "526"),
    ("hour(20240101101112)", "10"),
    ("cast('20240229' as date)", "2024-02-29"),
    ("cast('2024/2/9' as date)", "2024-02-09"),
    ("cast('24-02-29' as date)", "2024-02-29"),
    ("cast('70-02-28' as date)", "1970-02-28"),
    ("cast('240229' as date)", "2024-02-29"),
    ("cast('20240229101112' as datetime)", "2024-02-29 10:11:12"),
    ("cast('2024-02-29T10:11' as datetime)", "2024-02-29 10:11:00"),
    ("cast('2024-02-30' as date)", "NULL"),
    ("cast('2024-02-29x' as date)", "2024-02-29"),
    ("year('1999.12.31')", "1999"),
    ("datediff('2024-3-1', '2024/2/28')", "2"),
    ("adddate('2024/2/28', 1)", "2024-02-29"),
    ("hour('20240101101112')", "10"),
    ("hour(240101101112)", "10"),
    ("hour(101112)", "10"),
    ("time('12:-5:00')", "NULL"),
    ("time('10:11:12.5')", "10:11:12.500000"),
    ("addtime('2024-01-01 00:00:00.5', '1')", "2024-01-01 00:00:01.500000"),
    ("addtime('2024-01-01 00:00:00', '1')", "2024-01-01 00:00:01"),
    ("cast(18446744073709551615 as unsigned) - 1", "18446744073709551614"),
    ("cast(5 as unsigned) + -4", "1"),
    ("cast(-1 as unsigned)", "18446744073709551615"),
    ("cast(i - 8 as unsigned)", "18446744073709551615"),
    ("cast('-1' as unsigned)", "18446744073709551615"),
    ("cast('12x' as unsigned)", "12"),
    ("cast(d as unsigned)", "20240229"),
    ("-cast(5 as unsigned)", "-5"),
    ("cast('2024-02-29/10:11:12' as datetime)", "2024-02-29 10:11:12"),
    ("cast('2024-02-29 10:11:12.9999996' as datetime)", "2024-02-29 10:11:13"),
    ("(i, s, d, n) = (7, 'abc', d, n)", "NULL"),
    ("cast(4294967296 as unsigned) * 4294967295", "18446744069414584320"),
    ("sum(cast(18446744073709551615 as unsigned))", "18446744073709551615"),
    ("export_set(5, 'Y', 'N', ',', 4)", "Y,N,Y,N"),
    ("length(export_set(-1, repeat('x', 1000000), '', '', 64))", "NULL"),
    ("lpad(s, 5, 'xy')", "xyabc"),
    ("lpad(s, -1, 'x')", "NULL"),
    ("rpad(s, 5, '')", "NULL"),
    ("repeat(s, 999999999)", "NULL"),
    ("insert(s, 2, 1, 'XY')", "aXYc"),
    ("hex(s)", "616263"),
    ("hex(i)", "7"),
    ("hex(-1)", "FFFFFFFFFFFFFFFF"),
    ("bin(i)", "111"),
    ("oct(-1)", "1777777777777777777777"),
    ("conv('ff', 16, -10)", "255"),
    ("conv(-1, 10, 16)", "FFFFFFFFFFFFFFFF"),
    ("conv(-17, 10, -18)", "-H"),
    ("md5(s)", "900150983cd24fb0d6963f7d28e17f72"),
    ("sha1(s)", "a9993e364706816aba3e25717850c26c9cd0d89d"),
    ("sha2(s, 224)", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
    ("crc32(s)", "891568578"),
    ("to_base64(s)", "YWJj"),
    ("soundex('Quadratically')", "Q36324"),
    ("ord('ä')", "50084"),
    ("ascii('ä')", "195"),
    ("bit_count(i)", "3"),
    ("format(1234567.895, 2)", "1,234,567.90"),
    ("format(-0.4, 0)", "0"),
    ("interval(i, 1, 5, 10)", "2"),
    ("find_in_set('b', 'a,b,c')", "2"),
    ("regexp_substr(s, '[b-z]+')", "bc"),
    ("regexp_replace('aXbX', 'X', '-')", "a-b-"),
    ("week(d, 3)", "9"),
    ("yearweek(d)", "202408"),
    ("to_seconds(dt)", "63876387590"),
    ("from_days(739310)", "2024-02-29"),
    ("extract(day_minute from dt)", "290059"),
    ("timestampdiff(month, '2024-01-31', d)", "0"),
    ("timestampdiff(quarter, d, '2025-01-01')", "3"),
    ("timestampadd(month, 1, '2024-01-31')", "2024-02-29"),
    ("adddate(d, 1)", "2024-03-01"),
    ("date_add(d, interval i day)", "2024-03-07"),
    ("date_add(dt, interval '1:30' minute_second)", "2024-02-29 01:01:20"),
    ("d + interval 1 year", "2025-02-28"),
    ("addtime(dt, '01:00:10')", "2024-02-29 02:00:00"),
    ("timediff(dt, '2024-02-28 00:00:00')", "24:59:50"),
    ("sec_to_time(-3661)", "-01:01:01"),
    ("maketime(1, 2, 3)", "01:02:03"),
    ("time_to_sec('01:00:01')", "3601"),
    ("time_format('25:01:02', '%H %k %i')", "25 25 01"),
    ("period_add(202411, 3)", "202502"),
    ("period_diff(202502, 202411)", "3"),
    ("date_format(dt, '%D %U %u %V %v %X %x %p')", "29th 08 09 08 09 2024 2024 AM"),
    ("0.1 + 0.2 = 0.3", "1"),
    ("1.10", "1.10"),
    ("concat(1e3, '')", "1000"),
    ("round(2.345, 2)", "2.35"),
    ("truncate(-1.999, 1)", "-1.9"),
    ("ceil(-0.5)", "0"),
    ("floor(2.5e0)", "2"),
    ("-(i * 100 & 255)", "-188"),
    ("ceil(2.5e0)", "3"),
    ("floor(ln(7))", "1"),
    ("floor(-f)", "-3"),
    ("round(2.567e0, 1)", "2.6"),
    ("round(-0.4e0) = 0", "1"),
    ("7.5 DIV 0.1", "75"),
    ("s like 'a|%' escape '|'", "0"),
    ("week(d)", "8"),
    ("week('2024-01-06')", "0"),
    ("week('2023-12-31')", "53"),
    ("str_to_date('2024-01-02', '%Y-%m-%d')", "2024-01-02"),
    ("str_to_date('02.01.2024 03:04:05', '%d.%m.%Y %H:%i:%s')", "2024-01-02 03:04:05"),
    ("timestampdiff(day, '2024-01-01', '2024-03-01')", "60"),
    ("timestampdiff(hour, '2024-01-01 10:30:00', '2024-01-01 08:00:00')", "-2"),
    ("timestampdiff(second, d, dt)", "3590"),
    ("elt(2, 'a', 'b')", "b"),
    ("elt(3, 'a', 'b')", "NULL"),
    ("elt(n, 'a')", "NULL"),
    ("field('b', 'a', 'b')", "2"),
    ("field(s, 'x')", "0"),
    ("field(n, 'x')", "0"),
    ("isnull(n)", "1"),
    ("length(u)", "7"),
    ("char_length(u)", "3"),
    ("locate('b', s)", "2"),
    ("instr(s, 'c')", "3"),
    ("left(s, 2)", "ab"),
    ("left(s, -1)", ""),
    ("left(s, n)", "NULL"),
    ("right(s, 2)", "bc"),
    ("right(s, -1)", ""),
    ("mid(s, 2, 1)", "b"),
    ("mid(s, -2, 1)", "b"),
    ("substring(s, 2)", "bc"),
    ("substring(123, 2, 1)", "2"),
    ("charset(s)", "utf8mb4"),
    ("charset(x'41')", "binary"),
    ("collation(concat(s, 1))", "utf8mb4_general_ci"),
    ("collation(i)", "binary"),
    ("substring(s, 1, i)", "abc"),
    ("hex(concat(x'ff00', s))", "FF00616263"),
    ("hex(concat(unhex('ff'), 7))", "FF37"),
    ("hex(substring(x'ff00fe', 2, 1))", "00"),
    ("hex(substr(x'ff00fe', -2))", "00FE"),
    ("length(substring(x'c3a4', 2))", "1"),
    ("substring(s, -2)", "bc"),
    ("substring(s, 0)", ""),
    ("substring(s, -9)", ""),
    ("substring(s, i)", ""),
    ("substring(s, n)", "NULL"),
    ("substring(s, -2, 1)", "b"),
    ("substring(s, 2, -1)", ""),
    ("substr(s, 2, 2)", "bc"),
    ("substring(s from 2 for 1)", "b"),
    ("concat(s, n)", "NULL"),
    ("concat(s, 'x', i)", "abcx7"),
    ("concat('a', 'b')", "ab"),
    ("greatest(i, n)", "NULL"),
    ("greatest(i, 9, z)", "9"),
    ("greatest(1, null)", "NULL"),
    ("least(i, 1, z)", "0"),
    ("least(1, n)", "NULL"),
    ("strcmp(s, 'abd')", "-1"),
    ("space(2)", "  "),
    ("ln(z)", "NULL"),
    ("ln(-1)", "NULL"),
    ("ln(1)", "0"),
    ("log(1)", "0"),
    ("log(-1)", "NULL"),
    ("log(2, 8)", "3"),
    ("log2(8)", "3"),
    ("log2(z)", "NULL"),
    ("log10(100)", "2"),
    ("log10(-1)", "NULL"),
    ("asin(2)", "NULL"),
    ("acos(-2)", "NULL"),
    ("sqrt(-1)", "NULL"),
    ("sqrt(4)", "2"),
    ("mod(i, 4)", "3"),
    ("mod(i, z)", "NULL"),
    ("truncate(1.999, 1)", "1.9"),
    ("ceiling(f)", "3"),
    ("sign(-3)", "-1"),
    ("year(d)", "2024"),
    ("year('2024-05-06')", "2024"),
    ("quarter(d)", "1"),
    ("month(d)", "2"),
    ("day(d)", "29"),
    ("dayofmonth(d)", "29"),
    ("dayofweek(d)", "5"),
    ("weekday(d)", "3"),
    ("dayofyear(d)", "60"),
    ("weekofyear(d)", "9"),
    ("hour(dt)", "0"),
    ("minute(dt)", "59"),
    ("second(dt)", "50"),
    ("hour('10:11:12')", "10"),
    ("second('10:11:12')", "12"),
    ("monthname(d)", "February"),
    ("dayname(d)", "Thursday"),
    ("to_days(d)", "739310"),
    ("date(dt)", "2024-02-29"),
    ("date('2024-05-06 10:11:12')", "2024-05-06"),
    ("datediff(d, '2024-02-01')", "28"),
    ("last_day(d)", "2024-02-29"),
    ("makedate(2024, 60)", "2024-02-29"),
    ("makedate(2024, 0)", "NULL"),
    ("unix_timestamp('2024-01-01 00:00:01')", "1704067201"),
    ("from_unixtime(0, '%Y/%m/%d %H:%i')", "1970/01/01 00:00"),
    ("date_format(d, '%Y-%m-%d')", "2024-02-29"),
    (
        "date_format(dt, '%W %M %c %e %h %i %p %y %j %k %l %%')",
        "Thursday February 2 29 12 59 AM 24 060 0 12 %",
    ),
    ("date_format(dt, '%a %b %S %s %w %T %r')", "Thu Feb 50 50 4 00:59:50 12:59:50 AM"),
    ("year('no date')", "NULL"),
    ("date_add(d, interval 1 day)", "2024-03-01"),
    ("date_add(d, interval 1 month)", "2024-03-29"),
    ("date_add(d, interval 1 hour)", "2024-02-29 01:00:00"),
    ("date_sub(dt, interval 1 day)", "2024-02-28 00:59:50"),
    ("date_sub(dt, interval 90 minute)", "2024-02-28 23:29:50"),
    ("date_add('2024-02-29', interval 1 year)", "2025-02-28"),
    ("cast('2024-01-02 03:04:05' as datetime)", "2024-01-02 03:04:05"),
    ("s regexp '^a'", "1"),
    ("s not regexp 'b'", "0"),
    ("i is true", "1"),
    ("z is not true", "1"),
    ("n is unknown", "1"),
];

#[test]
fn null_is_less_than_all_values_and_deviations_are_of_the_population() {
    let fixture = Fixture::new();
    fixture.csv("x.csv", "a,b\n1,1\n3,1\n,1\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("select a from x order by a", vec!["NULL", "1", "3"]),
        ("select a from x order by a desc", vec!["3", "1", "NULL"]),
        ("select a from x order by a limit 1", vec!["NULL"]),
        ("select row_number() over (order by a) from x order by a", vec!["1", "2", "3"]),
        ("select a from x union all select 2 order by 1", vec!["NULL", "1", "2", "3"]),
        ("select stddev(a) from x", vec!["1"]),
        ("select std(distinct a) from x", vec!["1"]),
        ("select variance(a) from x", vec!["1"]),
        ("select stddev(a) over (partition by b) from x limit 1", vec!["1"]),
        ("select 1 from dual", vec!["1"]),
    ] {
        let rows = client.query(sql).rows();
        assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), want, "{sql}");
    }
}

/// A number is a date by its digits, and a date is a number. (In DataFusion a date is a number of days since 1970.)
#[test]
fn dates_are_numbers_by_their_digits() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "i,d,dt\n20240102,2024-02-29,2024-02-29 00:59:50\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("cast(i as date)", "2024-01-02"),
        ("cast(20240102 as date)", "2024-01-02"),
        ("cast(i as datetime)", "2024-01-02 00:00:00"),
        ("cast(20240102030405 as datetime)", "2024-01-02 03:04:05"),
        ("cast(991231 as date)", "1999-12-31"),
        ("cast(20241332 as date)", "NULL"),
        ("year(i)", "2024"),
        ("date(i)", "2024-01-02"),
        ("date_format(i, '%Y')", "2024"),
        ("datediff(i, d)", "-58"),
        ("cast(d as signed)", "20240229"),
        ("cast(dt as signed)", "20240229005950"),
        ("d + 0", "20240229"),
        ("d = 20240229", "1"),
        ("d > 20240101", "1"),
        ("d < 240301", "1"),
        ("20240301 > d", "1"),
        ("d = 20240229.5 - 0.5", "1"),
        ("d < i", "0"),
        ("dt > 20240229", "1"),
        ("dt = 20240229005950", "1"),
        ("dt = 20240229005950.000", "1"),
        ("dt < '2024-3-1'", "1"),
        ("d = '2024/2/29'", "1"),
        ("d = '20240229'", "1"),
        ("d >= '2024-02-29'", "1"),
        ("d in (20240101, 20240229)", "1"),
        ("d between 20240101 and 20241231", "1"),
        ("dt not between '2024-3-1' and 20241231", "1"),
        ("d = 20241399", "0"),
        ("1e300 > 0.1", "1"),
        ("-0.5e0 = -0.5", "1"),
        ("cast('2024-01-02' as date)", "2024-01-02"),
        ("cast(dt as date)", "2024-02-29"),
        ("cast(i as signed)", "20240102"),
        ("cast('12' as signed)", "12"),
        ("cast('-3.9x' as signed)", "-3"),
        ("cast('x' as signed)", "0"),
        ("cast('99999999999999999999' as signed)", "9223372036854775807"),
        ("cast('1e3x' as double)", "1000"),
        ("'3.5x' + 0", "3.5"),
        ("' 7' * '2'", "14"),
        ("cast(true as signed)", "1"),
        ("cast(null as date)", "NULL"),
        ("year(null)", "NULL"),
    ] {
        assert_eq!(client.query(&format!("select {sql} from t")).cell(), want, "{sql}");
    }
}

/// Replacements that copy an argument would grow beyond all bounds; few levels are answered, many are refused at once.
#[test]
fn nested_calls_are_answered_or_refused() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,s\n1,abc\n");
    let mut client = fixture.root();
    let nested = |levels: usize, one: &str, inner: &str| {
        (0..levels).fold(inner.to_owned(), |inner, _| one.replace('$', &inner))
    };
    let all = "select id from t where id <= all ($)";
    for (one, inner, answered) in [
        ("substring($, id)", "s", 20),
        ("concat($, 'x')", "s", 20),
        ("left($, 9)", "s", 20),
        ("greatest($, id)", "id", 20),
        ("if($ > 0, id, 2)", "id", 20),
        ("($ in (id, 9))", "id", 6),
    ] {
        let answer = client.query(&format!("select {} from t", nested(answered, one, inner)));
        assert!(matches!(answer, Answer::Rows(..)), "{one}: {answer:?}");
    }
    for sql in
        [format!("select {} from t", nested(20, "($ in (id, 9))", "id")), nested(10, all, "select id from t")]
    {
        let answer = client.query(&sql);
        assert!(matches!(answer, Answer::Err(1235, _)), "{answer:?}");
    }
    assert_eq!(client.query(&nested(2, all, "select id from t")).cell(), "1");
}

/// A subquery is a value wherever a value may be, and NULL if it is not known.
#[test]
fn subqueries_are_values() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,i,s\n1,0,a\n2,1,b\n3,,7\n4,7,\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("select i in (select i from t where id < 3) from t order by id", "1 1 NULL 0"),
        ("select i in (select i from t) from t order by id", "1 1 NULL 1"),
        ("select 9 in (select i from t)", "NULL"),
        ("select 9 in (select i from t where i is not null)", "0"),
        ("select null in (select i from t where id > 9)", "0"),
        ("select i not in (select i from t where id < 3) from t order by id", "0 0 NULL 1"),
        ("select i in (select s from t) from t order by id", "1 NULL NULL 1"),
        ("select s in (select id + 6 from t) from t order by id", "0 0 1 NULL"),
        ("select id from t where (i in (select i from t where id < 3)) is null", "3"),
        ("select id from t where id = 1 or i not in (select i from t where id < 3) order by id", "1 4"),
        ("select id from t where not (id = 1 or i in (select i from t where id < 3))", "4"),
        ("select exists (select 1 from t x where x.i = t.id) from t order by id", "1 0 0 0"),
        ("select not exists (select 1 from t x where x.i = t.id limit 1) from t order by id", "0 1 1 1"),
        ("select exists (select id from t where id > 9), 1 + exists (select 1)", "0"),
        ("select sum(exists (select 1 from t x where x.i = t.id)) from t", "1"),
        ("select sum(i in (select id from t)) from t", "1"),
        ("select max((select count(*) from t x where x.id < t.id)) from t", "NULL"),
        ("select count(*) from t group by exists (select 1 from t x where x.i = t.id) order by 1", "1 3"),
        ("select id from t order by i in (select i from t where id < 3) desc, id", "1 2 4 3"),
        ("select rank() over (order by i in (select i from t where id = 1)) from t order by id", "4 2 1 2"),
        (
            "select case when i in (select i from t where id = 1) then 'x' else 'y' end from t order by id",
            "x y y y",
        ),
    ] {
        let answer = client.query(sql);
        if let Answer::Err(1235, _) = answer {
            // A comparison other than `=` with the row outside.
            assert!(sql.contains("x.id < t.id"), "{sql}: {answer:?}");
            continue;
        }
        let rows = answer.rows();
        let first: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(first.join(" "), want, "{sql}");
    }
}

/// What is beyond the range of its type is an error, and not the rest of it.
#[test]
fn numbers_beyond_their_range() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "b,i\n9223372036854775807,1\n");
    let mut client = fixture.root();
    for sql in ["b + i", "b + 1", "b * 2", "-b - 2", "b - -1", "-(-b - 1)", "abs(-b - 1)", "(-b - 1) div -1"]
    {
        let answer = client.query(&format!("select {sql} from t"));
        let Answer::Err(1690, text) = &answer else { panic!("{sql}: {answer:?}") };
        assert!(text.starts_with("BIGINT value is out of range in '"), "{sql}: {text}");
    }
    for (sql, want) in [
        ("b - 1", "9223372036854775806"),
        ("i + 1 * 2", "3"),
        ("(select sum(x.b) from (select b from t union all select b from t) x)", "18446744073709551614"),
        ("sum(b - i)", "9223372036854775806"),
        ("max(b) over () - i", "9223372036854775806"),
        ("cast(12345.67 as decimal(4, 1))", "999.9"),
        ("cast(-12345.67 as decimal(4, 1))", "-999.9"),
        ("cast('12.345' as decimal(10, 2))", "12.35"),
        ("cast('x' as decimal(10, 2))", "0.00"),
        ("cast(' -1.5e3x' as decimal(10, 2))", "-1500.00"),
        ("cast('9e99' as decimal(3, 1))", "99.9"),
        ("cast(1.005e0 as decimal(10, 2))", "1.01"),
        ("cast(date '2024-02-29' as decimal(20, 1))", "20240229.0"),
        ("cast(1e30 as decimal(10, 2))", "99999999.99"),
        ("cast('-0.001' as decimal(3, 2))", "0.00"),
        ("cast(true as decimal(3, 1))", "1.0"),
        ("cast(2.5e0 as decimal)", "3"),
        // An optimizer must not compare with the number before it is rounded.
        ("sum(cast(0.05 * i as decimal(12, 1)) = 0.1)", "1"),
    ] {
        assert_eq!(client.query(&format!("select {sql} from t")).cell(), want, "{sql}");
    }
}

/// Times without a date are longer than a day, or negative, and are compared as times.
#[test]
fn times_without_a_date() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "dt,s\n2024-02-29 00:59:50,10:11:12\n");
    let mut client = fixture.root();
    for (sql, want) in [
        ("cast(dt as time)", "00:59:50"),
        ("time '-25:30:00'", "-25:30:00"),
        ("time('10:11:12.5')", "10:11:12.500000"),
        ("timediff('2024-01-01', dt)", "-838:59:59"),
        ("timediff(dt, '2024-02-28 12:00:00')", "12:59:50"),
        ("timediff(time '01:00:00', time(dt))", "00:00:10"),
        ("timediff('10:00:00', '12:30:00')", "-02:30:00"),
        ("timediff(dt, time(dt))", "NULL"),
        ("sec_to_time(-100000)", "-27:46:40"),
        ("maketime(-1, 2, 3)", "-01:02:03"),
        ("maketime(1, 60, 0)", "NULL"),
        ("addtime(time(dt), '100:00:00')", "100:59:50"),
        ("addtime(dt, time '24:00:00')", "2024-03-01 00:59:50"),
        ("timestamp('2024-01-01', '25:00:00')", "2024-01-02 01:00:00"),
        ("hour(time '-100:10:05')", "100"),
        ("minute(s) + second(s)", "23"),
        ("hour(dt)", "0"),
        ("extract(minute from dt)", "59"),
        ("time_to_sec(time(dt))", "3590"),
        ("time_format(sec_to_time(360000), '%H:%i')", "100:00"),
        ("time(dt) + 0", "5950"),
        ("time(dt) < '01:00:00'", "1"),
        ("time(dt) = 5950", "1"),
        ("sec_to_time(360000) > sec_to_time(7200)", "1"),
        ("max(time(dt))", "00:59:50"),
        ("greatest(time(dt), time '00:30:00')", "00:59:50"),
        ("concat(time(dt), '!')", "00:59:50!"),
        ("coalesce(null, time(dt))", "00:59:50"),
        ("cast(time(dt) as signed)", "5950"),
        ("curtime() >= '00:00:00'", "1"),
    ] {
        let answer = client.query(&format!("select {sql} from t"));
        assert_eq!(answer.rows(), [[want]], "{sql}");
    }
    // A column of times of day.
    for (sql, want) in [
        ("x = '10:11:12'", "1"),
        ("x = time '10:11:12'", "1"),
        ("'9:00' < x", "1"),
        ("x >= '10:11:13'", "0"),
        ("x = 101112", "1"),
        ("x between '10:00:00' and time '11:00:00'", "1"),
        ("x not in ('10:11:12', time '01:00:00')", "0"),
        ("x <=> null", "0"),
        ("if(x > '09:00', x, time '01:00:00')", "10:11:12"),
    ] {
        let day = "select arrow_cast('10:11:12', 'Time64(Microsecond)') as x from t";
        assert_eq!(client.query(&format!("select {sql} from ({day}) q")).cell(), want, "{sql}");
    }
    let (id, _) = client.prepare("select time '-25:30:00', sec_to_time(360000)").unwrap().unwrap();
    assert_eq!(client.execute(id, &[]).unwrap().unwrap(), 1);
}

/// DataFusion's own answers to these are wrong.
#[test]
fn comparisons_with_rows_and_lists() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,i\n1,0\n2,1\n3,\n4,7\n");
    let mut client = fixture.root();
    for (condition, want) in [
        ("id > all (select id from t where id < 3)", vec!["3", "4"]),
        ("id > all (select id from t where id > 9)", vec!["1", "2", "3", "4"]),
        ("id > all (select i from t)", vec![]),
        ("id <= any (select id from t where id < 3)", vec!["1", "2"]),
        ("i = any (select i from t where i is not null)", vec!["1", "2", "4"]),
        ("i <> all (select i from t where i > 0)", vec!["1"]),
        ("0 not in (5, i)", vec!["2", "4"]),
        ("0 in (i, 9)", vec!["1"]),
        ("null not in (select id from t)", vec![]),
        ("null not in (select id from t where id > 9)", vec!["1", "2", "3", "4"]),
        ("1 in (9, (select count(*) from t x where x.i = t.i))", vec!["1", "2", "4"]),
    ] {
        let rows = client.query(&format!("select id from t where {condition} order by id")).rows();
        assert_eq!(rows.concat(), want, "{condition}");
    }
}

/// Truth values are numbers, and dates are texts, as MySQL writes them.
#[test]
fn values_are_converted_as_in_mysql() {
    let fixture = Fixture::new();
    fixture.csv(
        "t.csv",
        "i,b,d,dt\n1,true,2024-02-29,2024-02-29 00:59:50\n3,false,2020-12-31,1999-12-31 23:59:59.5\n,,,\n",
    );
    let mut client = fixture.root();
    for (sql, want) in [
        ("select sum(b) from t", vec!["1"]),
        ("select avg(b) from t", vec!["0.5"]),
        ("select sum(i > 1) from t", vec!["1"]),
        ("select sum(distinct i) from t", vec!["4"]),
        ("select group_concat(i order by i) from t", vec!["1,3"]),
        ("select group_concat(i order by i desc separator '; ') from t", vec!["3; 1"]),
        ("select group_concat(d order by d separator ' ') from t", vec!["2020-12-31 2024-02-29"]),
        ("select sum(i) over (order by i) from t order by i", vec!["NULL", "1", "4"]),
        ("select sum(i) as s from t group by b having sum(i) > 1 order by sum(i)", vec!["3"]),
        ("select concat('x', b) from t order by i", vec!["NULL", "x1", "x0"]),
        ("select concat(i, d) from t order by i", vec!["NULL", "12024-02-29", "32020-12-31"]),
        (
            "select concat(dt, '!') from t order by i",
            vec!["NULL", "2024-02-29 00:59:50!", "1999-12-31 23:59:59.500!"],
        ),
        ("select cast(b as char) from t order by i", vec!["NULL", "1", "0"]),
        ("select cast(d as char) from t order by i limit 2", vec!["NULL", "2024-02-29"]),
        ("select cast(i as char) from t group by i, cast(i as char) order by i", vec!["NULL", "1", "3"]),
        ("select concat(1, 'a', null)", vec!["NULL"]),
        ("select concat(1, 2.5, 'a')", vec!["12.5a"]),
    ] {
        let rows = client.query(sql).rows();
        assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), want, "{sql}");
    }
}

/// Some replacements have a part of what they replace several times. Statements that would grow beyond measure are refused at
/// once, by number 1235, and cost neither memory nor minutes.
#[test]
fn what_would_grow_beyond_measure_is_refused() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "id,s\n1,a\n");
    let mut client = fixture.root();
    let nested = |of: usize, from: &str, with: &dyn Fn(String) -> String| {
        (0..of).fold(from.to_owned(), |inner, _| with(inner))
    };
    let many = |of: usize, one: &str| vec![one; of].join(", ");
    let long = format!("concat({})", many(3_000, "s"));
    for (kind, expression) in [
        ("strcmp", nested(22, "id", &|inner| format!("strcmp({inner}, 1)"))),
        (
            "count",
            format!(
                "count(distinct {}, id)",
                nested(22, "s", &|inner| format!("concat(strcmp({inner}, s), s)"))
            ),
        ),
        ("group_concat", format!("group_concat({long} order by {})", many(3_000, "1"))),
        ("interval", format!("interval(length({long}), {})", many(3_000, "id"))),
        ("list", format!("{long} in ({})", many(3_000, "s"))),
        ("long list", format!("id in ({})", many(401, "id"))),
        ("long text", format!("'{}' in ({})", "x".repeat(1_000_000), many(100, "id"))),
        ("budget", format!("concat({})", many(4_000, "strcmp(concat(s, s, s, s, s, s, s, s), 'x')"))),
        ("in", nested(9, "1", &|inner| format!("(1 in (select id from t where id = {inner}))"))),
    ] {
        let answer = client.query(&format!("select {expression} from t"));
        assert!(matches!(&answer, Answer::Err(1235, _)), "{kind}: {answer:?}");
    }
    for (kind, sql) in [
        ("sum", format!("select 1{}", " + 1".repeat(100_000))),
        ("or", format!("select 1{}", " or 1".repeat(100_000))),
        ("union", format!("select 1{}", " union select 1".repeat(10_000))),
        ("not", format!("select {}1", "not ".repeat(100_000))),
        ("minus", format!("select {}1", "- ".repeat(100_000))),
    ] {
        let answer = client.query(&sql);
        assert!(matches!(&answer, Answer::Err(1064, _)), "{kind}: {answer:?}");
    }
    // What is long and does not grow is no such statement.
    for expression in [
        format!("id in ({})", many(20_000, "7")),
        format!("id in ({})", many(400, "id")),
        format!("length(concat({}))", many(5_000, "s")),
        format!("id{}", " + 1".repeat(60)),
        format!("1.5e0{}", " + id".repeat(199)),
        format!("id = 1{}", " or id = 1".repeat(390)),
        format!("({}) = ({})", many(400, "id"), many(400, "1")),
        format!("count(distinct {})", many(400, "id")),
    ] {
        assert_eq!(client.query(&format!("select {expression} from t")).rows().len(), 1);
    }
}

/// A value of a prepared statement means what it means as a literal.
#[test]
fn values_of_prepared_statements_are_literals() {
    use crate::server::client::Parameter::{self, Double, Null, Whole};
    let text = |value: &str| Parameter::Text(value.to_owned());
    let fixture = Fixture::new();
    fixture.csv("t.csv", "i,s,d,f\n7,xabcx,2024-02-29,2.345\n");
    let mut client = fixture.root();
    for (sql, values, literals) in [
        ("str_to_date(s, ?)", vec![text("%Y")], vec!["'%Y'"]),
        ("str_to_date('02.01.2024', ?)", vec![text("%d.%m.%Y")], vec!["'%d.%m.%Y'"]),
        ("round(f, ?)", vec![Whole(1)], vec!["1"]),
        ("truncate(f, ?)", vec![Whole(2)], vec!["2"]),
        ("round(?, ?)", vec![Double(2.345), Whole(2)], vec!["2.345e0", "2"]),
        ("? + interval 1 day", vec![text("2024-02-28")], vec!["'2024-02-28'"]),
        ("d + interval ? day", vec![Whole(1)], vec!["1"]),
        ("date_add(?, interval ? month)", vec![text("2024-01-31"), Whole(1)], vec!["'2024-01-31'", "1"]),
        ("trim(? from ?)", vec![text("x"), text("xax")], vec!["'x'", "'xax'"]),
        ("substring(?, ?, ?)", vec![text("abcdef"), Whole(2), Whole(3)], vec!["'abcdef'", "2", "3"]),
        ("(i, ?) = (?, s)", vec![text("xabcx"), Whole(7)], vec!["'xabcx'", "7"]),
        ("? in (i, ?)", vec![Whole(7), Null], vec!["7", "null"]),
        ("case ? when i then ? else ? end", vec![Whole(7), text("a"), text("b")], vec!["7", "'a'", "'b'"]),
        ("field(?, ?, s)", vec![text("xabcx"), text("y")], vec!["'xabcx'", "'y'"]),
        ("concat(?, s)", vec![text("it's \\ ")], vec!["'it''s \\\\ '"]),
        ("if(?, i, ?)", vec![Whole(0), Whole(-3)], vec!["0", "-3"]),
        ("date_format(d, ?)", vec![text("%d.%m.")], vec!["'%d.%m.'"]),
        ("cast(? as decimal(10, 3))", vec![text("2.5")], vec!["'2.5'"]),
        ("? between ? and i", vec![Whole(3), Whole(2)], vec!["3", "2"]),
        ("locate(?, s, ?)", vec![text("x"), Whole(2)], vec!["'x'", "2"]),
    ] {
        let mut literal = sql.to_owned();
        literals.iter().for_each(|value| literal = literal.replacen('?', value, 1));
        let of = |expression: &str| format!("select concat({expression}) from t");
        let want = client.query(&of(&literal)).rows();
        assert_eq!(client.prepared(&of(sql), &values).rows(), want, "{sql}");
    }
    let values = [Parameter::Bytes(vec![0, 0xff]), text("a")];
    let bytes = client.prepared("select concat(length(?), hex(?))", &values);
    assert_eq!(bytes.rows(), [["261"]]);
    let rows =
        client.prepared("select i from t where s = ? limit ?, ?", &[text("xabcx"), Whole(0), text("5")]);
    assert_eq!(rows.rows(), [["7"]]);
    for (limit, offset, want) in [(1.0, 0.0, 1), (5.0, 1.0, 0)] {
        let rows = client.prepared("select i from t limit ? offset ?", &[Double(limit), Double(offset)]);
        assert_eq!(rows.rows().len(), want, "{limit} {offset}");
    }
    assert!(matches!(client.prepared("select i from t limit ?", &[Double(1.5)]), Answer::Err(..)));
}
