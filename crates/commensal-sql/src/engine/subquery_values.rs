//! `EXISTS` and `IN (SELECT …)` as values: DataFusion has them as conditions only, where NULL counts as false. Anywhere else
//! they become counts of rows, which are values, and subqueries of an aggregation or a window get a projection beneath.

use super::single::single;
use super::values;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Distinct, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Projection,
    Subquery, lit, not, when,
};
use datafusion::optimizer::AnalyzerRule;
use std::sync::Arc;

/// Replaces subqueries that DataFusion cannot plan where they are.
#[derive(Debug)]
pub struct SubqueryValues;

impl AnalyzerRule for SubqueryValues {
    fn name(&self) -> &str {
        "subquery_values"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let mut pass = Pass { number: 0, copied: 0 };
        Ok(plan.transform_up_with_subqueries(|plan| pass.change(plan))?.data)
    }
}

struct Pass {
    /// Number of names that were made.
    number: usize,
    /// Number of nodes in all copies of subqueries.
    copied: usize,
}

/// Nodes in all copies of the subqueries of a statement: more take too long to plan.
const MOST_COPIES: usize = 1_000;

/// The number of nodes of a plan and its subqueries.
fn nodes(plan: &LogicalPlan) -> Result<usize> {
    let mut count = 0;
    plan.apply_with_subqueries(|_| {
        count += 1;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(count)
}

/// Whether an expression has a subquery of its own, at any depth.
fn has_subquery(expr: &Expr) -> Result<bool> {
    expr.exists(|expr| Ok(matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_))))
}

impl Pass {
    fn change(&mut self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let mut has = false;
        plan.apply_expressions(|expr| {
            has |= has_subquery(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !has {
            return Ok(Transformed::no(plan));
        }
        let schema = merge_schema(&plan.inputs());
        let (preserver, is_filter) = (NamePreserver::new(&plan), matches!(plan, LogicalPlan::Filter(_)));
        let plan = plan.map_expressions(|expr| {
            let name = preserver.save(&expr);
            let expr = match is_filter {
                true => self.condition(expr, &schema, true)?,
                false => self.value(expr, &schema)?,
            };
            Ok(Transformed::yes(name.restore(expr)))
        })?;
        Ok(Transformed::yes(self.lowered(plan.data.recompute_schema()?)?))
    }

    /// Changes a condition, whose NULL counts as false, and whose parts that are joined by AND or OR are conditions too. A
    /// NULL of `NOT IN` counts as false beside AND only.
    fn condition(&mut self, expr: Expr, schema: &DFSchema, is_conjunct: bool) -> Result<Expr> {
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
                let is_conjunct = is_conjunct && op == Operator::And;
                let left = self.condition(*left, schema, is_conjunct)?;
                let right = self.condition(*right, schema, is_conjunct)?;
                Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
            }
            Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_) | Expr::Exists(_)) => match *inner {
                Expr::InSubquery(found) => {
                    let negated = !found.negated;
                    self.condition(Expr::InSubquery(InSubquery { negated, ..found }), schema, is_conjunct)?
                }
                Expr::Exists(found) => Expr::Exists(Exists { negated: !found.negated, ..found }),
                other => not(other),
            },
            Expr::Exists(_) => expr,
            // A constant has no join.
            Expr::InSubquery(found)
                if (is_conjunct || !found.negated)
                    && (!found.expr.column_refs().is_empty() || has_subquery(&found.expr)?) =>
            {
                let value = self.value(*found.expr, schema)?;
                let (value, subquery) = comparable(value, found.subquery, schema)?;
                Expr::InSubquery(InSubquery::new(Box::new(value), subquery, found.negated))
            }
            other => self.value(other, schema)?,
        })
    }

    /// Replaces each `EXISTS` and `IN (SELECT …)` of an expression.
    fn value(&mut self, expr: Expr, schema: &DFSchema) -> Result<Expr> {
        let replaced = expr.transform_up(|expr| {
            Ok(match expr {
                Expr::Exists(Exists { subquery, negated }) => {
                    let rows =
                        counted(any_row(&subquery.subquery)?, lit(1_i64), &subquery.outer_ref_columns)?;
                    Transformed::yes(if negated { rows.eq(lit(0_i64)) } else { rows.gt(lit(0_i64)) })
                }
                Expr::InSubquery(found) => Transformed::yes(self.is_in(found, schema)?),
                Expr::ScalarSubquery(found) => only_value(found)?,
                other => Transformed::no(other),
            })
        })?;
        Ok(replaced.data)
    }

    /// Whether a value is in the rows: NULL if it is not, and it or one of them is NULL.
    fn is_in(&mut self, found: InSubquery, schema: &DFSchema) -> Result<Expr> {
        let (value, subquery) = comparable(*found.expr, found.subquery, schema)?;
        if has_subquery(&value)? {
            return not_impl_err!("a subquery IN a subquery is supported in conditions only");
        }
        let Some(column) = subquery.subquery.schema().columns().into_iter().next() else {
            return plan_err!("Operand should contain 1 column(s)");
        };
        // Its rows are read up to four times, and a subquery in it has been copied before.
        self.copied += 4 * nodes(&subquery.subquery)?;
        if self.copied > MOST_COPIES {
            return not_impl_err!("too many subqueries with IN are in each other");
        }
        let plain = subquery.subquery.as_ref().clone();
        // A subquery with columns from outside has other tables, or the same ones by other names.
        let (rows, one) = match subquery.outer_ref_columns.is_empty() {
            true => {
                let alias = self.name("__in");
                let value = Expr::Column(column).alias("value");
                let rows =
                    LogicalPlanBuilder::from(plain).project([value])?.alias(alias.as_str())?.build()?;
                (rows, Expr::Column(Column::new(Some(alias), "value")))
            }
            false if value.column_refs().contains(&column) => {
                return not_impl_err!("the same column inside and outside of a subquery is not supported");
            }
            false => (plain, Expr::Column(column)),
        };
        let outer = subquery.outer_ref_columns;
        let mut with_value = outer.clone();
        let inner = outer_references(value.clone(), schema, &mut with_value)?;
        let equal = LogicalPlanBuilder::from(rows.clone()).filter(one.clone().eq(inner))?.build()?;
        let equal = counted(equal, lit(1_i64), &with_value)?.gt(lit(0_i64));
        let value_may_be_null = value.nullable(schema)?;
        let rows_may_be_null = one.nullable(rows.schema())?;
        let is_in = if value_may_be_null || rows_may_be_null {
            let null = lit(ScalarValue::Boolean(None));
            let all = || counted(rows.clone(), lit(1_i64), &outer);
            let nulls = all()?.gt(counted(rows.clone(), one, &outer)?);
            when(equal, lit(true))
                .when(all()?.eq(lit(0_i64)), lit(false))
                .when(value.is_null().or(nulls), null)
                .otherwise(lit(false))?
        } else {
            equal
        };
        Ok(if found.negated { not(is_in) } else { is_in })
    }

    fn name(&mut self, start: &str) -> String {
        self.number += 1;
        format!("{start}_{}", self.number)
    }

    /// Moves subqueries of an aggregation, a window or an order into a projection of its input.
    fn lowered(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let (LogicalPlan::Aggregate(_) | LogicalPlan::Window(_) | LogicalPlan::Sort(_)) = &plan else {
            return Ok(plan);
        };
        let mut moved = Vec::new();
        let preserver = NamePreserver::new(&plan);
        let plan = plan.map_expressions(|expr| {
            let name = preserver.save(&expr);
            let expr = expr.transform_down(|expr| {
                let Expr::ScalarSubquery(_) = &expr else { return Ok(Transformed::no(expr)) };
                let name = self.name("__subquery");
                moved.push(expr.alias(name.as_str()));
                let column = Expr::Column(Column::new_unqualified(name));
                Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
            })?;
            Ok(Transformed::yes(name.restore(expr.data)))
        })?;
        let plan = plan.data;
        if moved.is_empty() {
            return Ok(plan);
        }
        let [input] = plan.inputs()[..] else { return Ok(plan) };
        let columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
        let output: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
        let input = Projection::try_new([columns, moved].concat(), Arc::new(input.clone()))?;
        let is_aggregate = matches!(plan, LogicalPlan::Aggregate(_));
        let plan = plan.with_new_exprs(plan.expressions(), vec![LogicalPlan::Projection(input)])?;
        if is_aggregate {
            return Ok(plan);
        }
        LogicalPlanBuilder::from(plan).project(output)?.build()
    }
}

/// Makes an aggregation of a subquery with columns from outside, if it is none.
fn only_value(found: Subquery) -> Result<Transformed<Expr>> {
    fn is_aggregation(plan: &LogicalPlan) -> bool {
        match plan {
            LogicalPlan::Projection(one) => is_aggregation(&one.input),
            LogicalPlan::SubqueryAlias(one) => is_aggregation(&one.input),
            LogicalPlan::Filter(one) => matches!(one.input.as_ref(), LogicalPlan::Aggregate(_)),
            plan => matches!(plan, LogicalPlan::Aggregate(_)),
        }
    }
    let plan = &found.subquery;
    let columns = plan.schema().columns();
    let [column] = columns.as_slice() else { return Ok(Transformed::no(Expr::ScalarSubquery(found))) };
    if found.outer_ref_columns.is_empty()
        || is_aggregation(plan)
        || plan.max_rows().is_some_and(|rows| rows <= 1)
    {
        return Ok(Transformed::no(Expr::ScalarSubquery(found)));
    }
    let (none, one): ([Expr; 0], Expr) = ([], single(Expr::Column(column.clone())));
    let plan = LogicalPlanBuilder::from(plan.as_ref().clone()).aggregate(none, [one])?.build()?;
    Ok(Transformed::yes(Expr::ScalarSubquery(Subquery { subquery: Arc::new(plan), ..found })))
}

/// Makes a value and the rows of a subquery comparable: a text beside numbers is a number.
fn comparable(value: Expr, subquery: Subquery, schema: &DFSchema) -> Result<(Expr, Subquery)> {
    let kind = value.get_type(schema)?;
    let Some((column, field)) =
        subquery.subquery.schema().columns().into_iter().zip(subquery.subquery.schema().fields()).next()
    else {
        return Ok((value, subquery));
    };
    let rows = field.data_type().clone();
    let is_number = |kind: &DataType| kind.is_numeric() || *kind == DataType::Boolean;
    if values::is_text(&kind) && is_number(&rows) {
        return Ok((values::number(value, &kind), subquery));
    }
    if is_number(&kind) && values::is_text(&rows) {
        let number = values::number(Expr::Column(column), &rows).alias("value");
        let plan = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).project([number])?.build()?;
        return Ok((value, Subquery { subquery: Arc::new(plan), ..subquery }));
    }
    Ok((value, subquery))
}

/// A subquery that counts rows with a value.
fn counted(rows: LogicalPlan, value: Expr, outer: &[Expr]) -> Result<Expr> {
    let none: [Expr; 0] = [];
    let plan = LogicalPlanBuilder::from(rows).aggregate(none, [count(value)])?.build()?;
    Ok(Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns: outer.to_vec(),
        spans: Default::default(),
    }))
}

/// The rows of a subquery of which only the number matters: not their columns, and not their order.
fn any_row(plan: &LogicalPlan) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Projection(one) => any_row(&one.input),
        LogicalPlan::Sort(one) if one.fetch.is_none() => any_row(&one.input),
        LogicalPlan::Distinct(Distinct::All(input)) => any_row(input),
        LogicalPlan::Limit(one) if one.skip.is_none() => match one.fetch.as_deref() {
            Some(Expr::Literal(ScalarValue::Int64(Some(1..)), _)) => any_row(&one.input),
            _ => Ok(plan.clone()),
        },
        _ => Ok(plan.clone()),
    }
}

/// Makes columns those of the query around a subquery.
fn outer_references(expr: Expr, schema: &DFSchema, all: &mut Vec<Expr>) -> Result<Expr> {
    let expr = expr.transform_up(|expr| match expr {
        Expr::Column(column) => {
            let field = Arc::clone(schema.field_from_column(&column)?);
            let outer = Expr::OuterReferenceColumn(field, column);
            if !all.contains(&outer) {
                all.push(outer.clone());
            }
            Ok(Transformed::yes(outer))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(expr.data)
}
