//! HAVING in a query without groups, which MySQL allows as a second WHERE that knows the aliases. MySQL's JDBC driver asks
//! for the tables of a database so.

use super::error::Error;
use super::rewrite::{most_growth, size};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Expr, Function, GroupByExpr, Query, Select, SelectItem, Value, Visit, VisitMut,
    Visitor, VisitorMut,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Functions that make one value of many rows.
const AGGREGATES: [&str; 22] = [
    "any_value",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "count",
    "group_concat",
    "json_arrayagg",
    "json_objectagg",
    "max",
    "median",
    "min",
    "std",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
    "approx_distinct",
];

/// Functions whose value is another one with each call.
const VARYING: [&str; 4] = ["rand", "random", "sleep", "uuid"];

/// Moves such conditions to WHERE.
///
/// # Errors
/// The expressions that the aliases stand for would make the statement too large.
pub fn to_where(parsed: &mut Statement) -> Result<(), Error> {
    let statement = match parsed {
        Statement::Statement(statement) => statement.as_mut(),
        Statement::Explain(explain) => return to_where(&mut explain.statement),
        _ => return Ok(()),
    };
    let mut selects = Selects { left: most_growth(statement) };
    match VisitMut::visit(statement, &mut selects) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => {
            Err(Error::Unsupported("the aliases in HAVING stand for too large expressions".to_owned()))
        }
    }
}

struct Selects {
    /// By how much aliases may still enlarge the statement.
    left: usize,
}

impl VisitorMut for Selects {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let has_groups = !matches!(&select.group_by, GroupByExpr::Expressions(keys, modifiers)
            if keys.is_empty() && modifiers.is_empty());
        if select.having.is_none()
            || has_groups
            || has_aggregate(&select.projection)
            || has_aggregate(&select.having)
        {
            return ControlFlow::Continue(());
        }
        let mut of = BTreeMap::new();
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { expr, alias } = item {
                let copy = || may_be_copied(expr).then(|| expr.clone());
                of.entry(alias.value.to_lowercase()).or_insert_with(copy);
            }
        }
        if stays(&select.having, &of) {
            return ControlFlow::Continue(());
        }
        let Some(mut condition) = select.having.take() else { return ControlFlow::Continue(()) };
        VisitMut::visit(&mut condition, &mut Aliases { of, queries: 0, left: &mut self.left })?;
        let nested = |expr: Expr| Expr::Nested(Box::new(expr));
        // Two parentheses tell `conditions` that it was moved.
        let moved = nested(nested(condition));
        select.selection = Some(match select.selection.take() {
            Some(before) => {
                let left = Box::new(nested(before));
                Expr::BinaryOp { left, op: BinaryOperator::And, right: Box::new(moved) }
            }
            None => moved,
        });
        ControlFlow::Continue(())
    }
}

/// Returns the condition of WHERE, and the one that was moved there, for messages.
#[must_use]
pub fn conditions(select: &Select) -> (Option<&Expr>, Option<&Expr>) {
    let is_moved = |expr: &Expr| matches!(expr, Expr::Nested(inner) if matches!(**inner, Expr::Nested(_)));
    match &select.selection {
        Some(expr) if is_moved(expr) => (None, Some(expr)),
        Some(Expr::BinaryOp { left, op: BinaryOperator::And, right }) if is_moved(right) => {
            (Some(left.as_ref()), Some(right.as_ref()))
        }
        other => (other.as_ref(), None),
    }
}

/// Whether an expression may be in a statement more than once. A copy of a subquery would run again, a copy of a placeholder
/// would need a value of its own, and a copy of `rand()` would be another number.
fn may_be_copied(expr: &Expr) -> bool {
    struct Once;
    impl Visitor for Once {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Value(value) if matches!(value.value, Value::Placeholder(_)) => ControlFlow::Break(()),
                Expr::Function(function) if is_any(function, &VARYING) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    Visit::visit(expr, &mut Once).is_continue()
}

/// Whether a condition must stay in HAVING, because it names what must not be copied.
fn stays(condition: &impl Visit, of: &BTreeMap<String, Option<Expr>>) -> bool {
    let found = ast::visit_expressions(condition, |expr| match expr {
        Expr::Identifier(name) if matches!(of.get(&name.value.to_lowercase()), Some(None)) => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

fn is_any(function: &Function, names: &[&str]) -> bool {
    names.contains(&function.name.to_string().to_lowercase().as_str())
}

fn has_aggregate(part: &impl Visit) -> bool {
    let found = ast::visit_expressions(part, |expr| match expr {
        Expr::Function(function) if is_any(function, &AGGREGATES) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Replaces aliases by their expressions, into which it does not look again. Names in subqueries stay, because they may be
/// those of the subqueries' tables.
struct Aliases<'a> {
    /// The expression of each alias; `None` if it must not be copied.
    of: BTreeMap<String, Option<Expr>>,
    /// Number of subqueries around the present expression.
    queries: usize,
    left: &'a mut usize,
}

impl VisitorMut for Aliases<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.queries == 0
            && let Expr::Identifier(name) = expr
            && let Some(Some(of)) = self.of.get(&name.value.to_lowercase())
        {
            let Some(left) = self.left.checked_sub(size(of)) else { return ControlFlow::Break(()) };
            *self.left = left;
            *expr = Expr::Nested(Box::new(of.clone()));
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::to_where;
    use datafusion::sql::parser::DFParser;
    use datafusion::sql::sqlparser::dialect::MySqlDialect;

    #[test]
    fn conditions_move() {
        for (sql, want) in [
            ("SELECT a + 1 AS a FROM t HAVING a > 2", "SELECT a + 1 AS a FROM t WHERE (((a + 1) > 2))"),
            ("SELECT a FROM t WHERE b OR c HAVING a", "SELECT a FROM t WHERE (b OR c) AND ((a))"),
            ("SELECT count(*) AS n FROM t HAVING n > 2", "SELECT count(*) AS n FROM t HAVING n > 2"),
            ("SELECT a FROM t GROUP BY a HAVING a > 2", "SELECT a FROM t GROUP BY a HAVING a > 2"),
            ("EXPLAIN SELECT a FROM t HAVING a", "EXPLAIN SELECT a FROM t WHERE ((a))"),
            ("SELECT ? AS n FROM t HAVING n > 2", "SELECT ? AS n FROM t HAVING n > 2"),
            (
                "SELECT 1 AS a FROM t HAVING EXISTS (SELECT 1 FROM u WHERE a = 1)",
                "SELECT 1 AS a FROM t WHERE ((EXISTS (SELECT 1 FROM u WHERE a = 1)))",
            ),
        ] {
            let mut parsed = DFParser::parse_sql_with_dialect(sql, &MySqlDialect {}).unwrap();
            let mut parsed = parsed.pop_front().unwrap();
            to_where(&mut parsed).unwrap();
            assert_eq!(parsed.to_string(), want);
        }
    }

    #[test]
    fn statements_do_not_grow_without_bounds() {
        let all = |name: &str| format!("coalesce({})", vec![name; 2_000].join(", "));
        let sql = format!("SELECT {} AS n FROM t HAVING {} > 2", all("a"), all("n"));
        let mut parsed = DFParser::parse_sql_with_dialect(&sql, &MySqlDialect {}).unwrap();
        let mut parsed = parsed.pop_front().unwrap();
        assert!(to_where(&mut parsed).unwrap_err().to_string().contains("too large"));
    }
}
