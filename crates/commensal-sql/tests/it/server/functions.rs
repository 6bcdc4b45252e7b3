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
const VALUES: [(&str, &str); 107] = [
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

/// Numbers are dates in MySQL, but days or seconds since 1970 in DataFusion.
#[test]
fn dates_and_numbers_are_not_mixed_up() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "i,d,dt\n20240102,2024-02-29,2024-02-29 00:59:50\n");
    let mut client = fixture.root();
    for sql in [
        "cast(i as date)",
        "cast(20240102 as date)",
        "cast(i as datetime)",
        "year(i)",
        "year(20240102)",
        "date(i)",
        "date_format(i, '%Y')",
        "datediff(i, d)",
        "cast(d as signed)",
        "cast(dt as signed)",
    ] {
        let answer = client.query(&format!("select {sql} from t"));
        assert!(matches!(answer, Answer::Err(..)), "{sql}: {answer:?}");
    }
    for (sql, want) in [
        ("cast('2024-01-02' as date)", "2024-01-02"),
        ("cast(dt as date)", "2024-02-29"),
        ("cast(i as signed)", "20240102"),
        ("cast('12' as signed)", "12"),
        ("cast(true as signed)", "1"),
        ("cast(null as date)", "NULL"),
        ("year(null)", "NULL"),
    ] {
        assert_eq!(client.query(&format!("select {sql} from t")).cell(), want, "{sql}");
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
