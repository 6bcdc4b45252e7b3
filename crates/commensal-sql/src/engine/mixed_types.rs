//! Expressions whose operands are of several kinds, as MySQL has them: a choice between texts, numbers and dates is a text,
//! and a text beside numbers in a list or between limits is a number.

use super::values::{self, NUMBER, TEXT, is_clock, is_temporal, is_text};
use super::{kernels, operators};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, not_impl_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::{AggregateFunction, Between, Case, InList, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, cast, lit, when};
use datafusion::optimizer::AnalyzerRule;

/// Makes operands be of one kind before DataFusion does it in its own way.
#[derive(Debug)]
pub struct MixedTypes;

impl AnalyzerRule for MixedTypes {
    fn name(&self) -> &str {
        "mixed_types"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let changed = plan.transform_up_with_subqueries(|plan| {
            let (schema, preserver) = (merge_schema(&plan.inputs()), NamePreserver::new(&plan));
            let plan = plan.map_expressions(|expr| {
                let name = preserver.save(&expr);
                let expr = expr.transform_up(|expr| changed(expr, &schema))?;
                Ok(expr.update_data(|expr| name.restore(expr)))
            })?;
            // Also where only an input has other types than before.
            plan.map_data(LogicalPlan::recompute_schema)
        })?;
        Ok(changed.data)
    }
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Text,
    Number,
    Temporal,
}

/// Returns the class of an expression; `None` for NULL, and for other types.
fn class(expr: &Expr, schema: &DFSchema) -> Option<Class> {
    Some(match expr.get_type(schema).ok()? {
        kind if is_text(&kind) => Class::Text,
        kind if kind.is_numeric() || kind == DataType::Boolean => Class::Number,
        kind if is_temporal(&kind) => Class::Temporal,
        _ => return None,
    })
}

/// Whether expressions are of several classes.
fn are_mixed<'a>(exprs: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
    let mut classes = exprs.into_iter().filter_map(|expr| class(expr, schema));
    classes.next().is_some_and(|first| classes.any(|class| class != first))
}

/// Whether truth values are among numbers.
fn are_truth_and_numbers<'a>(exprs: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
    let kinds: Vec<DataType> = exprs.into_iter().filter_map(|expr| expr.get_type(schema).ok()).collect();
    kinds.contains(&DataType::Boolean)
        && kinds.iter().any(DataType::is_numeric)
        && kinds.iter().all(|kind| kind.is_numeric() || matches!(kind, DataType::Boolean | DataType::Null))
}

fn text(expr: Expr) -> Expr {
    values::conversion(TEXT).call(vec![expr])
}

/// Makes a text a number.
fn number(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let kind = expr.get_type(schema)?;
    Ok(if is_text(&kind) { values::number(expr, &kind) } else { expr })
}

/// Whether texts are compared with numbers only.
fn is_text_beside_numbers<'a>(exprs: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
    let classes: Vec<Class> = exprs.into_iter().filter_map(|expr| class(expr, schema)).collect();
    classes.contains(&Class::Text) && classes.contains(&Class::Number) && !classes.contains(&Class::Temporal)
}

/// Whether times without a date are among texts, or of several types.
fn are_clocks_of_several_types<'a>(exprs: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
    let kinds: Vec<DataType> = exprs.into_iter().filter_map(|expr| expr.get_type(schema).ok()).collect();
    let all_may_be = kinds.iter().all(|kind| is_clock(kind) || is_text(kind) || kind.is_null());
    let mut others = kinds.iter().filter(|kind| !kind.is_null());
    let first = others.next();
    all_may_be && kinds.iter().any(is_clock) && others.any(|kind| Some(kind) != first)
}

/// Makes a value a time without a date.
fn clock(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let kind = expr.get_type(schema)?;
    Ok(values::clock(expr, &kind))
}

/// The type in which integers of 64 bits are added up.
const LONG: DataType = DataType::Decimal128(20, 0);

/// Whether a sum of these integers may not fit into 64 bits, however few rows there are.
fn is_long(value: &Expr, schema: &DFSchema) -> bool {
    let is_64_bits = |kind| matches!(kind, DataType::Int64 | DataType::UInt64);
    value.get_type(schema).is_ok_and(is_64_bits) && !is_small(value, schema)
}

/// Whether all values fit into 34 bits or so, of which any number of rows that can be read has a sum of 64 bits.
fn is_small(value: &Expr, schema: &DFSchema) -> bool {
    match value {
        Expr::Literal(ScalarValue::Int64(number), _) => {
            number.is_none_or(|number| i32::try_from(number).is_ok())
        }
        Expr::Alias(alias) => is_small(&alias.expr, schema),
        Expr::Cast(cast) => is_small(&cast.expr, schema),
        Expr::ScalarFunction(function) if [NUMBER, "coalesce"].contains(&function.func.name()) => {
            function.args.iter().all(|value| is_small(value, schema))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus | Operator::Minus, right }) => {
            is_small(left, schema) && is_small(right, schema)
        }
        Expr::Case(case) => {
            let results = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
            results.chain(case.else_expr.as_deref()).all(|value| is_small(value, schema))
        }
        value => value.get_type(schema).is_ok_and(|kind| {
            kind == DataType::Boolean
                || (kind.is_integer() && !matches!(kind, DataType::Int64 | DataType::UInt64))
        }),
    }
}

/// Returns the operand of a widening cast, or else the expression itself, and its type.
fn origin<'a>(expr: &'a Expr, schema: &DFSchema) -> Option<(&'a Expr, DataType)> {
    let inner = match expr {
        Expr::Cast(cast) => cast.expr.as_ref(),
        other => other,
    };
    let (narrow, wide) = (inner.get_type(schema).ok()?, expr.get_type(schema).ok()?);
    Some(if narrow.is_integer() && wide == DataType::Int64 { (inner, narrow) } else { (expr, wide) })
}

/// Whether a calculation with integers needs a check of its result.
fn may_overflow(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> bool {
    match (op, origin(left, schema), origin(right, schema)) {
        (Operator::Plus | Operator::Minus | Operator::Multiply, Some((left, one)), Some((right, other))) => {
            operators::may_overflow((left, &one), (right, &other))
        }
        _ => false,
    }
}

fn changed(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        // A placeholder had no type when its operator was planned.
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if may_overflow(&left, op, &right, schema) => {
            Transformed::yes(kernels::checked(*left, op, *right))
        }
        Expr::Case(case) => {
            let results = || case.when_then_expr.iter().map(|(_, then)| then.as_ref());
            let results_are_mixed = are_mixed(results().chain(case.else_expr.as_deref()), schema);
            let operand_is_mixed = case.expr.as_ref().is_some_and(|operand| {
                let values = case.when_then_expr.iter().map(|(value, _)| value.as_ref());
                is_text_beside_numbers(std::iter::once(operand.as_ref()).chain(values), schema)
            });
            let are_numbers = are_truth_and_numbers(results().chain(case.else_expr.as_deref()), schema);
            let are_clocks = are_clocks_of_several_types(results().chain(case.else_expr.as_deref()), schema);
            if !results_are_mixed && !operand_is_mixed && !are_numbers && !are_clocks {
                return Ok(Transformed::no(Expr::Case(case)));
            }
            let result = |expr: Box<Expr>| -> Result<Box<Expr>> {
                Ok(match (results_are_mixed, are_numbers) {
                    (true, _) => Box::new(text(*expr)),
                    (false, true) => Box::new(values::conversion(NUMBER).call(vec![*expr])),
                    (false, false) if are_clocks => Box::new(clock(*expr, schema)?),
                    (false, false) => expr,
                })
            };
            let compared = |expr: Box<Expr>| -> Result<Box<Expr>> {
                Ok(if operand_is_mixed { Box::new(number(*expr, schema)?) } else { expr })
            };
            let Case { expr, when_then_expr, else_expr } = case;
            let whens = when_then_expr.into_iter().map(|(value, then)| Ok((compared(value)?, result(then)?)));
            let whens = whens.collect::<Result<_>>()?;
            let operand = expr.map(compared).transpose()?;
            Transformed::yes(Expr::Case(Case::new(operand, whens, else_expr.map(result).transpose()?)))
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if func.name() == "coalesce" && are_mixed(&args, schema) =>
        {
            let args = args.into_iter().map(text).collect();
            Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args }))
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if func.name() == "coalesce" && are_truth_and_numbers(&args, schema) =>
        {
            let args = args.into_iter().map(|value| values::conversion(NUMBER).call(vec![value])).collect();
            Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args }))
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if func.name() == "nullif" && args.len() == 2 && is_text_beside_numbers(&args, schema) =>
        {
            let equal = number(args[0].clone(), schema)?.eq(number(args[1].clone(), schema)?);
            let value = args.into_iter().next().unwrap_or(lit(0));
            Transformed::yes(when(equal.is_true(), lit(ScalarValue::Null)).otherwise(value)?)
        }
        Expr::InList(InList { expr, list, negated })
            if is_text_beside_numbers(std::iter::once(expr.as_ref()).chain(&list), schema) =>
        {
            // Each pair is compared by its own kinds, so two texts must not become numbers.
            let value = class(&expr, schema);
            if value == Some(Class::Text) && list.iter().any(|one| class(one, schema) == Some(Class::Text)) {
                return not_impl_err!("a text in a list of texts and numbers is not supported");
            }
            let list = list.into_iter().map(|one| number(one, schema)).collect::<Result<_>>()?;
            let expr = Box::new(number(*expr, schema)?);
            Transformed::yes(Expr::InList(InList { expr, list, negated }))
        }
        Expr::Between(Between { expr, negated, low, high })
            if is_text_beside_numbers([expr.as_ref(), low.as_ref(), high.as_ref()], schema) =>
        {
            let number = |expr: Box<Expr>| -> Result<Box<Expr>> { Ok(Box::new(number(*expr, schema)?)) };
            let (expr, low, high) = (number(expr)?, number(low)?, number(high)?);
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        other => return of_clocks(other, schema),
    })
}

/// Compares times without a date as such, also with texts.
fn of_clocks(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::InList(InList { expr, list, negated })
            if are_clocks_of_several_types(std::iter::once(expr.as_ref()).chain(&list), schema) =>
        {
            let list = list.into_iter().map(|one| clock(one, schema)).collect::<Result<_>>()?;
            Transformed::yes(Expr::InList(InList { expr: Box::new(clock(*expr, schema)?), list, negated }))
        }
        Expr::Between(Between { expr, negated, low, high })
            if are_clocks_of_several_types([expr.as_ref(), low.as_ref(), high.as_ref()], schema) =>
        {
            let clock = |expr: Box<Expr>| -> Result<Box<Expr>> { Ok(Box::new(clock(*expr, schema)?)) };
            let (expr, low, high) = (clock(expr)?, clock(low)?, clock(high)?);
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list, negated }) if has_other_dates(&expr, &list, schema) => {
            let kind = expr.get_type(schema)?;
            let list = list.into_iter().map(|one| dated(one, &kind, schema)).collect::<Result<_>>()?;
            Transformed::yes(Expr::InList(InList { expr, list, negated }))
        }
        Expr::Between(Between { expr, negated, low, high })
            if has_other_dates(&expr, [low.as_ref(), high.as_ref()], schema) =>
        {
            let kind = expr.get_type(schema)?;
            let (low, high) = (Box::new(dated(*low, &kind, schema)?), Box::new(dated(*high, &kind, schema)?));
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        other => return aggregated(other, schema),
    })
}

/// Whether a literal that is compared with a date becomes one.
fn has_other_dates<'a>(expr: &Expr, values: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
    let changes = |value: &Expr, kind: &DataType| {
        let is_literal = matches!(value, Expr::Literal(..));
        is_literal && operators::dated(value.clone(), DataType::Null, kind).0 != *value
    };
    expr.get_type(schema).is_ok_and(|kind| values.into_iter().any(|value| changes(value, &kind)))
}

/// Makes a literal a date that is compared with one.
fn dated(value: Expr, kind: &DataType, schema: &DFSchema) -> Result<Expr> {
    let own = value.get_type(schema)?;
    Ok(operators::dated(value, own, kind).0)
}

/// Adds up integers of 64 bits as decimals.
fn aggregated(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::AggregateFunction(AggregateFunction { func, mut params })
            if func.name() == "sum" && params.args.iter().any(|value| is_long(value, schema)) =>
        {
            params.args = params.args.into_iter().map(|value| cast(value, LONG)).collect();
            Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        Expr::WindowFunction(mut window)
            if window.fun.name() == "sum"
                && window.params.args.iter().any(|value| is_long(value, schema)) =>
        {
            let args = std::mem::take(&mut window.params.args);
            window.params.args = args.into_iter().map(|value| cast(value, LONG)).collect();
            Transformed::yes(Expr::WindowFunction(window))
        }
        Expr::AggregateFunction(AggregateFunction { func, params })
            if func.name() == "string_agg" && params.distinct && !params.order_by.is_empty() =>
        {
            if let Some(Expr::ScalarFunction(ScalarFunction { func: text, args })) = params.args.first()
                && text.name() == TEXT
                && args.first().and_then(|value| class(value, schema)) == Some(Class::Number)
            {
                return not_impl_err!("the order of different numbers in GROUP_CONCAT is not supported");
            }
            Transformed::no(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        other => Transformed::no(other),
    })
}
