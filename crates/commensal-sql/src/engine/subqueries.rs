//! Comparisons with subqueries and lists, in a form that DataFusion answers right: it loses NULLs in `x > ALL (…)` and
//! `x = ANY (…)`, and finds no row for `0 NOT IN (1, column)`.

use super::mysql_functions::Fill;
use super::operators;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Query, UnaryOperator, Visit, VisitMut, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use std::ops::ControlFlow;

/// `$1 op ALL (rows)`: true without rows, false if a row decides, NULL if a NULL may.
const ALL: &str = "CASE WHEN (SELECT count(*) FROM (SELECT 1) AS q(c)) = 0 THEN TRUE \
                   WHEN NOT ($1 < (SELECT bound(c) FROM (SELECT 1) AS q(c))) THEN FALSE \
                   WHEN (SELECT count(*) - count(c) FROM (SELECT 1) AS q(c)) > 0 THEN NULL \
                   ELSE $1 < (SELECT bound(c) FROM (SELECT 1) AS q(c)) END";

/// `$1 op ANY (rows)`: false without rows, true if a row decides, NULL if a NULL may.
const ANY: &str = "CASE WHEN (SELECT count(*) FROM (SELECT 1) AS q(c)) = 0 THEN FALSE \
                   WHEN $1 < (SELECT bound(c) FROM (SELECT 1) AS q(c)) THEN TRUE \
                   WHEN (SELECT count(*) - count(c) FROM (SELECT 1) AS q(c)) > 0 THEN NULL \
                   ELSE $1 < (SELECT bound(c) FROM (SELECT 1) AS q(c)) END";

/// Rewrites a comparison with a subquery.
pub fn change(expr: &mut Expr) {
    let other = match expr {
        Expr::AllOp { left, compare_op, right } => compared(left, compare_op, right, true),
        Expr::AnyOp { left, compare_op, right, .. } => compared(left, compare_op, right, false),
        Expr::InList { expr: value, list, negated } if has_others(list) => {
            let equal = list.iter().map(|one| binary(value, BinaryOperator::Eq, one));
            let any = operators::joined(equal.collect(), &BinaryOperator::Or);
            let not = |any| Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(any) };
            any.map(|any| if *negated { not(any) } else { any })
        }
        _ => None,
    };
    if let Some(other) = other {
        *expr = other;
    }
}

fn binary(left: &Expr, op: BinaryOperator, right: &Expr) -> Expr {
    let nested = |expr: &Expr| Box::new(Expr::Nested(Box::new(expr.clone())));
    Expr::Nested(Box::new(Expr::BinaryOp { left: nested(left), op, right: nested(right) }))
}

/// Returns the replacement of a comparison with all rows of a subquery, or with any of them.
fn compared(left: &Expr, op: &BinaryOperator, right: &Expr, all: bool) -> Option<Expr> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    let Expr::Subquery(subquery) = right else { return None };
    match (op, all) {
        (Eq, false) | (NotEq, true) => {
            let (expr, subquery) = (Box::new(left.clone()), subquery.clone());
            Some(Expr::InSubquery { expr, subquery, negated: all })
        }
        (Gt | GtEq | Lt | LtEq, _) => {
            // Above all is above the greatest, below any is below the greatest.
            let greatest = matches!(op, Gt | GtEq) == all;
            let template = if all { ALL } else { ANY };
            filled(template, left, subquery, op, greatest)
        }
        _ => None,
    }
}

/// Fills a template with a value, a subquery for its rows, an operator, and the function that gives the row to compare with.
fn filled(
    template: &str,
    value: &Expr,
    subquery: &Query,
    op: &BinaryOperator,
    greatest: bool,
) -> Option<Expr> {
    let bound = if greatest { "max(c)" } else { "min(c)" };
    let text = template.replace("bound(c)", bound).replace("$1 <", &format!("$1 {op}"));
    // Only the test of templates can fail here.
    let mut expr = Parser::new(&GenericDialect {}).try_with_sql(&text).ok()?.parse_expr().ok()?;
    let arguments = std::slice::from_ref(value);
    let _: ControlFlow<()> = VisitMut::visit(&mut expr, &mut Fill { arguments, rows: Some(subquery) });
    Some(Expr::Nested(Box::new(expr)))
}

/// Whether a list has other parts than constants.
pub fn has_others(list: &[Expr]) -> bool {
    list.iter().any(|one| !is_constant(one))
}

/// Whether an expression has no columns.
fn is_constant(expr: &Expr) -> bool {
    struct Columns;
    impl Visitor for Columns {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Subquery(_) => {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    Visit::visit(expr, &mut Columns).is_continue()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::dialect::Mysql;

    #[test]
    fn comparisons_with_subqueries() {
        for (sql, parts) in [
            (
                "a > ALL (SELECT b FROM t)",
                vec!["(SELECT max(c) FROM (SELECT b FROM t) AS q (c))", "THEN true", "(a) >"],
            ),
            ("a <= ALL (SELECT b FROM t)", vec!["min(c)", "(a) <="]),
            ("a < ANY (SELECT b FROM t)", vec!["max(c)", "THEN false WHEN (a) <"]),
            ("a >= SOME (SELECT b FROM t)", vec!["min(c)"]),
            ("a = ANY (SELECT b FROM t)", vec!["a IN (SELECT b FROM t)"]),
            ("a <> ALL (SELECT b FROM t)", vec!["a NOT IN (SELECT b FROM t)"]),
            ("a IN (1, (SELECT b FROM t))", vec!["((a) = (1)) OR ((a) = ((SELECT b FROM t)))"]),
            ("a NOT IN (1, (SELECT b FROM t))", vec!["NOT (("]),
            ("a IN (1, 2)", vec!["a IN (1, 2)"]),
            ("1 IN (2, a)", vec!["((1) = (2)) OR ((1) = (a))"]),
            ("a NOT IN (SELECT b FROM t)", vec!["a NOT IN (SELECT b FROM t)"]),
        ] {
            let mut expr = Parser::new(&Mysql).try_with_sql(sql).unwrap().parse_expr().unwrap();
            change(&mut expr);
            let text = expr.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{sql}: {text}");
        }
    }
}
