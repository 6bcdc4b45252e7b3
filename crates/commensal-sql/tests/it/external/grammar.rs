//! Statements over one typed table with NULLs and edges: expressions from a table of templates, and forms around them.

mod templates;

use crate::server::client::Parameter;
use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use datafusion::parquet::arrow::ArrowWriter;
use std::path::Path;
use std::sync::Arc;
use templates::Kind::{self, Clock, Date, Decimal, Double, Int, Small, Text, Time, Truth};
use templates::{AGGREGATES, LEAVES, TEMPLATES, WINDOWS};

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

/// A statement, and the templates that are in it.
#[derive(Debug, Default)]
pub(super) struct Statement {
    pub sql: String,
    /// The same with placeholders, and their values.
    pub prepared: Option<(String, Vec<Parameter>)>,
    pub features: Vec<&'static str>,
    pub is_ordered: bool,
}

/// Makes statements.
#[derive(Debug)]
pub(super) struct Generator {
    state: u64,
    features: Vec<&'static str>,
    /// Whether literals are marked, to become placeholders.
    marks: bool,
}

/// Stands around a literal that becomes a placeholder.
const MARK: char = '\u{1}';

/// The value of a literal, unless it has a type of its own.
fn parameter(literal: &str) -> Option<Parameter> {
    if literal == "null" {
        return Some(Parameter::Null);
    }
    if let Some(text) = literal.strip_prefix('\'') {
        return Some(Parameter::Text(text.trim_end_matches('\'').to_owned()));
    }
    if let Ok(whole) = literal.parse() {
        return Some(Parameter::Whole(whole));
    }
    let double = literal.parse().ok()?;
    let is_double = literal.contains('e');
    Some(if is_double { Parameter::Double(double) } else { Parameter::Decimal(literal.to_owned()) })
}

/// Separates a statement with marks: with its literals, and with placeholders in their place.
fn separated(marked: &str) -> (String, Vec<Parameter>) {
    let (mut text, mut parameters) = (String::new(), Vec::new());
    for (at, part) in marked.split(MARK).enumerate() {
        if at % 2 == 0 {
            text.push_str(part);
        } else {
            text.push('?');
            parameters.extend(parameter(part));
        }
    }
    (text, parameters)
}

impl Generator {
    pub(super) fn new(seed: u64) -> Generator {
        Generator { state: seed, features: Vec::new(), marks: false }
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
        let leaf = self.of(leaves);
        match self.marks && parameter(leaf).is_some() {
            true => format!("{MARK}{leaf}{MARK}"),
            false => leaf.to_owned(),
        }
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
        let prepared = sql.contains(MARK).then(|| separated(&sql));
        let (sql, features) = (sql.replace(MARK, ""), std::mem::take(&mut self.features));
        Statement { sql, prepared, features, is_ordered }
    }

    fn form(&mut self) -> (String, bool) {
        match self.below(26) {
            24.. => {
                self.marks = true;
                let (x, condition) = (self.any(2), self.expression(Truth, 2));
                self.marks = false;
                (format!("select id, {x} as x from t where {condition} order by id"), true)
            }
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
            13 => {
                let (x, condition) = (self.expression(Int, 2), self.expression(Truth, 1));
                (
                    format!(
                        "with c as (select id, w, {x} as x from t where {condition}) select w, sum(x), count(x) from c group by w"
                    ),
                    false,
                )
            }
            14..18 => self.grouped(),
            _ => self.combined(),
        }
    }

    /// Groups, in all the ways to name them.
    fn grouped(&mut self) -> (String, bool) {
        let (key, aggregate) = (self.of(&["w", "p", "i % 3", "year(d)", "left(s, 1)"]), self.aggregate());
        match self.below(7) {
            0 => (format!("select w, p, {aggregate} as x from t group by w, p with rollup"), false),
            1 => (format!("select {key} as k, {aggregate} as x from t group by k with rollup"), false),
            2 => (
                format!(
                    "select {key} as k, {aggregate} as x from t group by k having x is not null order by k desc"
                ),
                true,
            ),
            3 => (format!("select {key} as k, {aggregate} as x from t group by 1 order by 1"), true),
            4 => (format!("select {aggregate} as x from t where false"), true),
            5 => {
                let x = self.expression(Text, 2);
                (
                    format!("select x, count(*) as n from (select {x} as x from t) q group by x order by x"),
                    true,
                )
            }
            _ => {
                let (condition, x) = (self.expression(Truth, 2), self.expression(Int, 1));
                (
                    format!(
                        "select w, sum(case when {condition} then {x} end) as x, {aggregate} as y from t group by w"
                    ),
                    false,
                )
            }
        }
    }

    /// Joins, set operations, orders and limits.
    fn combined(&mut self) -> (String, bool) {
        match self.below(10) {
            0 => {
                let (x, count, from) = (self.any(2), self.below(6), self.below(8));
                (format!("select id, {x} as x from t order by {x}, id limit {count} offset {from}"), true)
            }
            1 => {
                let (x, way) = (self.any(1), self.of(&["", " desc"]));
                (format!("select id from t order by id % 3{way}, {x}, id"), true)
            }
            2 => {
                let (kind, op) = (self.of(&[Int, Text, Date]), self.of(&["except", "intersect", "union"]));
                let (one, other) = (self.expression(kind, 1), self.expression(kind, 1));
                (format!("select {one} as x from t {op} select {other} from t order by x"), true)
            }
            3 => {
                let (one, other, count) = (self.expression(Int, 1), self.expression(Int, 1), self.below(5));
                (
                    format!(
                        "(select id, {one} as x from t order by id limit {count}) union all (select id, {other} from t where id > 9)"
                    ),
                    false,
                )
            }
            4 => {
                let join = self.of(&["join", "left join", "right join"]);
                (format!("select a.id, b.id as other, w from t a {join} t b using (w)"), false)
            }
            5 => {
                let condition =
                    self.of(&["t.p or x.p", "t.i < x.id", "t.w <=> x.w", "t.s like concat(x.s, '%')"]);
                (
                    format!(
                        "select count(*) as n, sum(x.id) as s from t cross join t x where x.id > 6 and ({condition})"
                    ),
                    false,
                )
            }
            6 => {
                let on = self.of(&["a.i = b.id", "a.w = b.w", "a.d = b.d"]);
                (
                    format!(
                        "select a.id, b.id as b, c.id as c from t a left join t b on {on} join t c on c.id = a.id + 1"
                    ),
                    false,
                )
            }
            7 => {
                let (op, aggregate) =
                    (self.of(&[">", "<=", "="]), self.of(&["avg(b.i)", "min(b.b)", "max(b.id)"]));
                (
                    format!(
                        "select id from t a where i {op} (select {aggregate} from t b where b.w = a.w) order by id"
                    ),
                    true,
                )
            }
            8 => (format!("select distinct {} as x from t order by x limit 4", self.any(2)), true),
            _ => {
                let (last, x) = (self.below(12) + 1, self.of(&["v * 2", "v % 3", "concat('v', v)", "v / 2"]));
                (
                    format!(
                        "with recursive n as (select 1 as v union all select v + 1 from n where v < {last}) select v, {x} as x from n order by v"
                    ),
                    true,
                )
            }
        }
    }

    fn aggregate(&mut self) -> String {
        let (text, kind) = self.of(AGGREGATES);
        self.filled(text, &[kind], 1)
    }
}
