//! Statements from a grammar, answered by a real MariaDB and by us. The same seed gives the same statements.
//!
//! `COMMENSAL_SEED` and `COMMENSAL_STATEMENTS` choose others; `COMMENSAL_SHOW` prints every statement that is refused or
//! answered otherwise, and `COMMENSAL_SQL` the two answers to one statement.

use super::grammar::{Generator, ROWS, Statement};
use super::mariadb::{Mariadb, fetched};
use crate::server::client::{Answer, Client};
use crate::server::fixture::Fixture;
use std::collections::BTreeMap;

/// Where answers differ from MariaDB's on purpose, or by a limit that the guide states: a template, and the sentence of the
/// guide.
const RULES: [(&str, &str); 31] = [
    ("round($1, 1)", DIGITS),
    ("round($1, $2)", DIGITS),
    ("truncate($1, 1)", DIGITS),
    ("round($1)", DIGITS),
    ("($1, $2) = ($3, 1)", "of rows with a NULL"),
    ("$1 DIV $2", "MariaDB cuts a quotient of `DIV`"),
    ("$1 / $2", "2.5, a DOUBLE"),
    ("unix_timestamp($1)", LATE),
    ("from_unixtime($1, '%H:%i')", LATE),
    ("convert_tz($1, '+00:00', '-03:30')", LATE),
    ("convert_tz($1, '+02:00', '+00:00')", LATE),
    ("subdate(concat($1, ''), $2)", "MariaDB writes `.000000` unless the text is a literal"),
    ("char(65, 66)", "counted in characters"),
    ("id | $1", SIGNED),
    ("$1 ^ $2", SIGNED),
    ("convert($1, date)", NO_DATE),
    ("convert($1, datetime)", NO_DATE),
    ("convert($1, time)", NO_DATE),
    ("str_to_date($1, '%Y-%m-%d')", NO_DATE),
    ("cast($1 as signed integer)", "`CAST(1.5 AS SIGNED)`"),
    ("format($1, $2)", "`ROUND(2.5e0)`"),
    ("format($1, 0)", "`ROUND(2.5e0)`"),
    ("bit_and($1)", SIGNED),
    ("bit_or($1)", SIGNED),
    ("bit_xor($1)", SIGNED),
    ("regexp_substr($1, '[a-c]+')", "`REGEXP_SUBSTR` without a match"),
    ("replace($1, $2, $3)", "a NULL argument makes `REPLACE` NULL"),
    ("week($1, $2)", "`WEEK(date, NULL)` is NULL"),
    ("locate($1, $2, $3)", "an empty part is found at every position"),
    ("from_base64(to_base64($1))", "counted in characters"),
    ("unhex(hex($1))", "counted in characters"),
];
const DIGITS: &str = "a rounded decimal as a text";
const LATE: &str = "`UNIX_TIMESTAMP`, `FROM_UNIXTIME` and `CONVERT_TZ` go on after 2038";
const NO_DATE: &str = "a text that is not a date is NULL";
const SIGNED: &str = "64 bits with a sign";

/// How the two answers to a statement compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Same,
    /// MariaDB refuses it, such as a result that is out of range.
    RefusedThere,
    /// It differs, and has a template for which the guide says so.
    ByRule,
    RefusedHere,
    Different,
}

/// Whether two values are equal: as texts, or as numbers, of which a quotient has more digits here than in MariaDB.
fn is_same(theirs: Option<&str>, ours: Option<&str>) -> bool {
    let (Some(one), Some(other)) = (theirs, ours) else { return theirs == ours };
    let (Ok(a), Ok(b)) = (one.parse::<f64>(), other.parse::<f64>()) else { return theirs == ours };
    // A hexadecimal text may look like a number beyond all limits.
    theirs == ours || (a - b).abs() <= 1e-4_f64.max(a.abs() * 1e-9)
}

fn compared(statement: &Statement, theirs: &Answer, ours: &Answer) -> Outcome {
    let (want, got) = match (theirs, ours) {
        (Answer::Rows(_, want), Answer::Rows(_, got)) => (want, got),
        (Answer::Rows(..), _) => return Outcome::RefusedHere,
        _ => return Outcome::RefusedThere,
    };
    // Without an order, rows are sorted, with equal numbers written alike.
    let alike = |cell: &Option<String>| {
        let number = cell.as_deref().and_then(|text| text.parse::<f64>().ok());
        number.map(|number| format!("{:.6e}", number + 0.0)).or_else(|| cell.clone())
    };
    let sorted = |rows: &Vec<Vec<Option<String>>>| {
        let mut rows = rows.clone();
        if !statement.is_ordered {
            rows.sort_by_cached_key(|row| row.iter().map(alike).collect::<Vec<_>>());
        }
        rows
    };
    let (want, got) = (sorted(want), sorted(got));
    let same = want.len() == got.len()
        && want.iter().zip(&got).all(|(want, got)| {
            want.len() == got.len()
                && want.iter().zip(got).all(|(want, got)| is_same(want.as_deref(), got.as_deref()))
        });
    let has_rule = || RULES.iter().any(|(template, _)| statement.features.contains(template));
    match same {
        true => Outcome::Same,
        false if has_rule() => Outcome::ByRule,
        false => Outcome::Different,
    }
}

fn fill(mariadb: &mut Client) {
    mariadb.all(&[
        "set names utf8mb4 collate utf8mb4_nopad_bin",
        "set time_zone = '+00:00'",
        "create database d character set utf8mb4 collate utf8mb4_nopad_bin",
        "use d",
        "create table t (id bigint not null, i int, b bigint, f double, c decimal(10, 2), s varchar(64), w varchar(64), \
         d date, dt datetime, p boolean)",
    ]);
    for row in ROWS {
        mariadb.all(&[&format!("insert into t values ({row})")]);
    }
}

// promise 51
#[test]
fn statements_have_mariadbs_answers() {
    let mariadb = match fetched().and_then(|root| Mariadb::start(&root)) {
        Ok(mariadb) => mariadb,
        Err(why) => return println!("skipped: statements_have_mariadbs_answers: {}", why.trim()),
    };
    let number =
        |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seed, count) = (number("COMMENSAL_SEED", 1), number("COMMENSAL_STATEMENTS", 20_000));
    let show = std::env::var_os("COMMENSAL_SHOW").is_some();
    let fixture = Fixture::with(Default::default(), |options| options.writable = true);
    std::fs::create_dir(fixture.data().join("d")).unwrap();
    let mut ours = fixture.root();
    super::grammar::write(&fixture.data().join("d/t.parquet"));
    let mut theirs = Client::login(mariadb.address, "root", "", "").unwrap();
    fill(&mut theirs);
    ours.all(&["use d"]);
    if let Ok(sql) = std::env::var("COMMENSAL_SQL") {
        println!("one {sql}\n  there {:?}\n  here  {:?}", theirs.query(&sql), ours.query(&sql));
        return;
    }
    let mut generator = Generator::new(seed);
    let mut totals: BTreeMap<Outcome, u64> = BTreeMap::new();
    let mut by_feature: BTreeMap<&str, BTreeMap<Outcome, u64>> = BTreeMap::new();
    for turn in 0..count {
        let statement = generator.statement(turn);
        let want = theirs.query(&statement.sql);
        let got = match &statement.prepared {
            Some((sql, parameters)) => ours.prepared(sql, parameters),
            None => ours.query(&statement.sql),
        };
        let outcome = compared(&statement, &want, &got);
        *totals.entry(outcome).or_default() += 1;
        for feature in &statement.features {
            *by_feature.entry(feature).or_default().entry(outcome).or_default() += 1;
        }
        if show && outcome >= Outcome::RefusedHere {
            println!(
                "{outcome:?} {:?}\n  {}{}\n  there {want:?}\n  here  {got:?}",
                statement.features,
                if statement.prepared.is_some() { "(prepared) " } else { "" },
                statement.sql
            );
        }
    }
    println!("seed {seed}: {totals:?}");
    for (feature, outcomes) in &by_feature {
        if outcomes.keys().any(|outcome| *outcome >= Outcome::RefusedHere) {
            println!("{feature:60} {outcomes:?}");
        }
    }
    let of = |outcome| totals.get(&outcome).copied().unwrap_or(0);
    assert_eq!(of(Outcome::Different), 0, "statements have other answers than MariaDB's");
    assert!(of(Outcome::RefusedHere) * 20 <= count, "more than 5 % are refused");
}

#[test]
fn the_guide_has_each_rule() {
    let guide = include_str!("../../../../../docs/guide/sql.md");
    for (template, sentence) in RULES {
        assert!(guide.contains(sentence), "{template}: {sentence}");
    }
}
