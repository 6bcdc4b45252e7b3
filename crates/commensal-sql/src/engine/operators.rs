//! MySQL's operators, by the types of their operands: truth values are numbers and numbers are truth values, integers
//! are divided exactly, a division by zero is NULL.
//!
//! Where Doris differs from MySQL, Doris is followed: `/` of integers is a DOUBLE, and bits are signed.

use super::functions::{CLOCK, literal_moment};
use super::kernels;
use super::values::{self, is_clock, is_temporal, is_text};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue, not_impl_err};
use datafusion::functions::core::expr_fn::nullif;
use datafusion::functions::math::expr_fn::{round, trunc};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, binary_expr, cast, lit, not, when};
use datafusion::sql::sqlparser::ast::{self, BinaryOperator, UnaryOperator, Value};

/// Plans binary operators.
#[derive(Debug)]
pub struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let (Ok(one), Ok(other)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
            return Ok(PlannerResult::Original(expr));
        };
        let RawBinaryExpr { op, left, right } = expr;
        let ((left, one), (right, other)) = match is_comparison(&op) {
            true => (dated(left, one.clone(), &other), dated(right, other, &one)),
            false => ((left, one), (right, other)),
        };
        let as_number = [becomes_number(&op, &one, &other), becomes_number(&op, &other, &one)];
        if as_number.contains(&true) {
            let left = if as_number[0] { values::number(left, &one) } else { left };
            let right = if as_number[1] { values::number(right, &other) } else { right };
            // Planned once more, by the types that the operands have now.
            return self.plan_binary_op(RawBinaryExpr { op, left, right }, schema);
        }
        let as_clock = [becomes_clock(&one, &other), becomes_clock(&other, &one)];
        if as_clock.contains(&true) {
            let left = if as_clock[0] { values::clock(left, &one) } else { left };
            let right = if as_clock[1] { values::clock(right, &other) } else { right };
            return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
        }
        planned(op, (left, one), (right, other))
    }
}

/// Plans an operator whose operands are of kinds that go together.
fn planned(
    op: BinaryOperator,
    (left, one): (Expr, DataType),
    (right, other): (Expr, DataType),
) -> Result<PlannerResult<RawBinaryExpr>> {
    use BinaryOperator::{
        And, BitwiseAnd, BitwiseOr, BitwiseXor, Divide, Eq, Gt, GtEq, Lt, LtEq, Minus, Modulo, Multiply,
        MyIntegerDivide, NotEq, Or, PGBitwiseShiftLeft, PGBitwiseShiftRight, Plus, Spaceship, Xor,
    };
    let planned = match op {
        And => truth(left, &one)?.and(truth(right, &other)?),
        Or => truth(left, &one)?.or(truth(right, &other)?),
        Xor => match right {
            Expr::Literal(ScalarValue::Boolean(Some(turns)), _) => {
                let left = truth(left, &one)?;
                if turns { not(left) } else { left }
            }
            right => truth(left, &one)?.not_eq(truth(right, &other)?),
        },
        Eq | NotEq if is_truth_against_number(&one, &right).is_some() => {
            let is = is_truth_against_number(&one, &right) == Some(op == Eq);
            if is { left } else { not(left) }
        }
        Divide if is_whole(&one) && is_whole(&other) => {
            let double = |expr| cast(expr, DataType::Float64);
            binary_expr(double(left), Operator::Divide, unless_zero(double(right), &DataType::Float64)?)
        }
        Divide if is_number(&one) && is_number(&other) => {
            let (left, _) = number(left, &one);
            let (right, kind) = number(right, &other);
            binary_expr(precise(left, &one), Operator::Divide, unless_zero(right, &kind)?)
        }
        Modulo if is_number(&one) && is_number(&other) => {
            let (left, _) = number(left, &one);
            let (right, kind) = number(right, &other);
            binary_expr(left, Operator::Modulo, unless_zero(right, &kind)?)
        }
        MyIntegerDivide if one.is_null() || other.is_null() => lit(ScalarValue::Int64(None)),
        MyIntegerDivide if is_number(&one) && is_number(&other) => {
            whole_quotient((left, &one), (right, &other))?
        }
        Plus | Minus | Multiply if is_signed(&one) && is_signed(&other) => {
            return Ok(of_integers(op, (left, &one), (right, &other)));
        }
        Plus | Minus | Multiply if is_whole(&one) && is_whole(&other) => {
            without_sign(left, operator(&op), right, &other)
        }
        BitwiseAnd | BitwiseOr | BitwiseXor if is_number(&one) && is_number(&other) => {
            let (left, right) = (bits(left, &one), bits(right, &other));
            return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
        }
        PGBitwiseShiftLeft if is_number(&one) => {
            shifted(bits(left, &one), Operator::BitwiseShiftLeft, right, &other)?
        }
        PGBitwiseShiftRight if is_number(&one) => {
            shifted(bits(left, &one), Operator::BitwiseShiftRight, right, &other)?
        }
        // DataFusion would make them decimals, for which a double may be too large.
        op if is_comparison(&op)
            && ((one.is_floating() && is_decimal(&other)) || (is_decimal(&one) && other.is_floating())) =>
        {
            let (left, right) = (double(left, &one), double(right, &other));
            return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
        }
        Plus | Minus | Multiply | Eq | NotEq | Lt | LtEq | Gt | GtEq | Spaceship
            if one != other
                && (is_number(&one) || one.is_null())
                && (is_number(&other) || other.is_null()) =>
        {
            let (left, right) = (number(left, &one).0, number(right, &other).0);
            return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
        }
        op => return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right })),
    };
    Ok(PlannerResult::Planned(planned))
}

/// Whether an operand becomes a number: a text or a date in a calculation, and a text that is compared with a number.
fn becomes_number(op: &BinaryOperator, kind: &DataType, other: &DataType) -> bool {
    use BinaryOperator::{Divide, Minus, Modulo, Multiply, MyIntegerDivide, Plus};
    match op {
        Plus | Minus | Multiply | Divide | Modulo | MyIntegerDivide => {
            is_text(kind) || (is_temporal(kind) && !matches!(other, DataType::Interval(_)))
        }
        op if is_comparison(op) => (is_text(kind) || is_temporal(kind)) && is_number(other),
        _ => false,
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq, Spaceship};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | Spaceship)
}

/// Makes a literal a date that is compared with one, and returns its type as well: DataFusion takes a number for one of
/// days, and reads texts in one spelling only.
pub fn dated(value: Expr, kind: DataType, other: &DataType) -> (Expr, DataType) {
    let is_date = is_temporal(other) && !is_clock(other);
    match &value {
        Expr::Literal(literal, _) if is_date => match literal_moment(literal) {
            Some(date) => (lit(date.clone()), date.data_type()),
            None => (value, kind),
        },
        _ => (value, kind),
    }
}

/// Plans `+`, `-` or `*` on integers.
fn of_integers(
    op: BinaryOperator,
    (left, one): (Expr, &DataType),
    (right, other): (Expr, &DataType),
) -> PlannerResult<RawBinaryExpr> {
    if may_overflow((&left, one), (&right, other)) {
        return PlannerResult::Planned(kernels::checked(left, operator(&op), right));
    }
    let wide = |expr| cast(expr, DataType::Int64);
    PlannerResult::Original(RawBinaryExpr { op, left: wide(left), right: wide(right) })
}

/// Plans `+`, `-` or `*` on integers of which one has no sign. The opposite of such a number has one.
fn without_sign(left: Expr, op: Operator, right: Expr, other: &DataType) -> Expr {
    if op == Operator::Minus && left == lit(0_i64) && *other == DataType::UInt64 {
        let right = cast(cast(right, DataType::Decimal128(20, 0)), DataType::Int64);
        return kernels::checked(left, op, right);
    }
    kernels::checked_unsigned(left, op, right)
}

/// The operator `+`, `-` or `*` of a plan.
fn operator(op: &BinaryOperator) -> Operator {
    match op {
        BinaryOperator::Plus => Operator::Plus,
        BinaryOperator::Minus => Operator::Minus,
        _ => Operator::Multiply,
    }
}

/// Whether an operand of a comparison becomes a time without a date: a text beside one, and a time of day beside either.
fn becomes_clock(kind: &DataType, other: &DataType) -> bool {
    let is_of_day = is_clock(kind) && *kind != CLOCK;
    let is_another = is_text(other) || (is_clock(other) && kind != other);
    (is_text(kind) && is_clock(other)) || (is_of_day && is_another)
}

/// Divides and leaves out the fraction.
fn whole_quotient((left, one): (Expr, &DataType), (right, other): (Expr, &DataType)) -> Result<Expr> {
    let (left, _) = number(left, one);
    let (right, kind) = number(right, other);
    if is_whole(one) && is_whole(other) {
        return Ok(binary_expr(left, Operator::Divide, unless_zero(right, &kind)?));
    }
    if !one.is_floating() && !other.is_floating() {
        // Decimals are exact, their quotients are not.
        let right = unless_zero(right, &kind)?;
        let rest = binary_expr(left.clone(), Operator::Modulo, right.clone());
        let whole = binary_expr(left, Operator::Minus, rest);
        return Ok(cast(binary_expr(whole, Operator::Divide, right), DataType::Int64));
    }
    let double = |expr| cast(expr, DataType::Float64);
    let divisor = unless_zero(double(right), &DataType::Float64)?;
    Ok(cast(trunc(vec![binary_expr(double(left), Operator::Divide, divisor)]), DataType::Int64))
}

/// Returns the truth value of an expression: of a number, whether it is not zero.
fn truth(expr: Expr, kind: &DataType) -> Result<Expr> {
    match kind {
        DataType::Boolean | DataType::Null => Ok(expr),
        kind if kind.is_numeric() => Ok(expr.not_eq(lit(ScalarValue::new_zero(kind)?))),
        kind if is_text(kind) => Ok(cast(values::number(expr, kind), DataType::Float64).not_eq(lit(0.0))),
        kind => not_impl_err!("the truth value of {kind} is not supported: compare it with a value"),
    }
}

/// Returns whether a comparison with `=` of a truth value and this literal is the truth value itself (`x = 1`) or its
/// opposite (`x = 0`).
fn is_truth_against_number(kind: &DataType, literal: &Expr) -> Option<bool> {
    match literal {
        Expr::Literal(ScalarValue::Int64(Some(number @ 0..=1)), _) if *kind == DataType::Boolean => {
            Some(*number == 1)
        }
        _ => None,
    }
}

/// Converts a truth value to a number. Returns the new type as well.
fn number(expr: Expr, kind: &DataType) -> (Expr, DataType) {
    match kind {
        DataType::Boolean => (cast(expr, DataType::Int64), DataType::Int64),
        kind => (expr, kind.clone()),
    }
}

/// Gives a decimal that is divided more digits, since the quotient has only four more than it.
fn precise(expr: Expr, kind: &DataType) -> Expr {
    match kind {
        DataType::Decimal128(precision, scale) if *precision <= 25 => {
            cast(expr, DataType::Decimal128(precision + MORE_DIGITS, scale + MORE_DIGITS as i8))
        }
        _ => expr,
    }
}

/// Digits that a decimal gets before it is divided.
const MORE_DIGITS: u8 = 5;

/// Converts a number to an integer; fractions are rounded.
fn bits(expr: Expr, kind: &DataType) -> Expr {
    match kind {
        kind if kind.is_integer() => expr,
        DataType::Boolean => cast(expr, DataType::Int64),
        _ => cast(round(vec![expr]), DataType::Int64),
    }
}

/// Shifts a number. Nothing is left of it after a shift by a negative number, or by more than 63.
fn shifted(left: Expr, op: Operator, count: Expr, kind: &DataType) -> Result<Expr> {
    if kind.is_null() {
        return Ok(lit(ScalarValue::Int64(None)));
    }
    if !is_whole(kind) {
        return not_impl_err!("a shift by {kind} is not supported: cast it to an integer");
    }
    let count = number(count, kind).0;
    let empty = count.clone().not_between(lit(0_i64), lit(63_i64)).and(left.clone().is_not_null());
    when(empty, lit(0_i64)).otherwise(binary_expr(left, op, count))
}

/// Returns the divisor, or NULL instead of zero.
fn unless_zero(divisor: Expr, kind: &DataType) -> Result<Expr> {
    let zero = ScalarValue::new_zero(kind)?;
    Ok(match &divisor {
        Expr::Literal(value, _) if *value != zero => divisor,
        // A zero may have a sign, and is then not equal to zero.
        _ if kind.is_floating() => nullif(values::unsigned_zero(divisor, kind), lit(zero)),
        _ => nullif(divisor, lit(zero)),
    })
}

fn is_number(kind: &DataType) -> bool {
    kind.is_numeric() || *kind == DataType::Boolean
}

fn is_decimal(kind: &DataType) -> bool {
    matches!(kind, DataType::Decimal128(..) | DataType::Decimal256(..))
}

/// Makes a number a double.
fn double(value: Expr, kind: &DataType) -> Expr {
    if *kind == DataType::Float64 { value } else { cast(value, DataType::Float64) }
}

fn is_whole(kind: &DataType) -> bool {
    kind.is_integer() || *kind == DataType::Boolean
}

/// Whether a result of `+`, `-` or `*` on integers may not fit into 64 bits.
pub fn may_overflow((left, one): (&Expr, &DataType), (right, other): (&Expr, &DataType)) -> bool {
    is_signed(one) && is_signed(other) && !(is_narrow(left, one) && is_narrow(right, other))
}

/// Whether all values are 64 bits with a sign.
fn is_signed(kind: &DataType) -> bool {
    is_whole(kind) && *kind != DataType::UInt64
}

/// Whether all results of `+`, `-` and `*` on such values fit into 64 bits.
fn is_narrow(value: &Expr, kind: &DataType) -> bool {
    match value {
        Expr::Literal(ScalarValue::Int64(Some(number)), _) => i32::try_from(*number).is_ok(),
        _ => is_signed(kind) && !matches!(kind, DataType::Int64 | DataType::UInt32),
    }
}

/// Rewrites operators that depend on the truth value of a number to those that [`Operators`] plans: `NOT x` is
/// `x XOR TRUE`. `~x` becomes `x ^ -1`.
pub fn change(expr: &mut ast::Expr) {
    match expr {
        ast::Expr::UnaryOp { op: UnaryOperator::Not, expr: operand } if !is_truth(operand) => {
            *expr = with_boolean(operand, true);
        }
        ast::Expr::BinaryOp { left, op: op @ (BinaryOperator::Eq | BinaryOperator::NotEq), right } => {
            if let (ast::Expr::Tuple(one), ast::Expr::Tuple(other)) = (left.as_ref(), right.as_ref())
                && one.len() == other.len()
            {
                let equal = one.iter().zip(other);
                let equal = equal.map(|(one, other)| binary(one, BinaryOperator::Eq, other.clone()));
                let all = joined(equal.collect(), &BinaryOperator::And);
                let is_equal = *op == BinaryOperator::Eq;
                if let Some(all) = all {
                    *expr = if is_equal { all } else { with_boolean(&all, true) };
                }
            }
        }
        ast::Expr::UnaryOp { op: UnaryOperator::BitwiseNot, expr: operand } => {
            let ones = ast::Expr::Value(Value::Number("-1".to_owned(), false).into());
            *expr = binary(operand, BinaryOperator::BitwiseXor, ones);
        }
        ast::Expr::IsTrue(operand)
        | ast::Expr::IsNotTrue(operand)
        | ast::Expr::IsFalse(operand)
        | ast::Expr::IsNotFalse(operand) => condition(operand),
        // DataFusion takes the value of IS UNKNOWN for one that may be NULL.
        ast::Expr::IsUnknown(operand) => *expr = ast::Expr::IsNull(Box::new(truth_of(operand))),
        ast::Expr::IsNotUnknown(operand) => *expr = ast::Expr::IsNotNull(Box::new(truth_of(operand))),
        ast::Expr::Case { operand: None, conditions, .. } => {
            conditions.iter_mut().for_each(|when| condition(&mut when.condition));
        }
        _ => {}
    }
}

/// Expressions that may be joined by an operator. DataFusion makes a tree of them that is as deep, and walks through it.
pub const MOST_JOINED: usize = 400;

/// Joins expressions by an operator; `None` if there are too many.
pub fn joined(mut all: Vec<ast::Expr>, op: &BinaryOperator) -> Option<ast::Expr> {
    if all.len() > MOST_JOINED {
        return None;
    }
    if all.len() < 2 {
        return all.pop();
    }
    let right = all.split_off(all.len() / 2);
    let (left, right) = (joined(all, op)?, joined(right, op)?);
    let binary = ast::Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) };
    Some(ast::Expr::Nested(Box::new(binary)))
}

fn truth_of(expr: &ast::Expr) -> ast::Expr {
    let mut truth = ast::Expr::Nested(Box::new(expr.clone()));
    condition(&mut truth);
    truth
}

/// Rewrites a condition, which may be a number: `WHERE x` is `WHERE x XOR FALSE`.
pub fn condition(expr: &mut ast::Expr) {
    if !is_truth(expr) {
        *expr = with_boolean(expr, false);
    }
}

fn with_boolean(left: &ast::Expr, value: bool) -> ast::Expr {
    binary(left, BinaryOperator::Xor, ast::Expr::Value(Value::Boolean(value).into()))
}

fn binary(left: &ast::Expr, op: BinaryOperator, right: ast::Expr) -> ast::Expr {
    let left = Box::new(ast::Expr::Nested(Box::new(left.clone())));
    ast::Expr::Nested(Box::new(ast::Expr::BinaryOp { left, op, right: Box::new(right) }))
}

/// Whether an expression is a truth value whatever its operands are.
pub fn is_truth(expr: &ast::Expr) -> bool {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or, Spaceship, Xor};
    match expr {
        ast::Expr::Nested(inner) => is_truth(inner),
        ast::Expr::BinaryOp { op, .. } => {
            matches!(op, And | Or | Xor | Eq | NotEq | Lt | LtEq | Gt | GtEq | Spaceship)
        }
        ast::Expr::UnaryOp { op, .. } => *op == UnaryOperator::Not,
        ast::Expr::Value(value) => matches!(value.value, Value::Boolean(_) | Value::Null),
        ast::Expr::IsNull(_)
        | ast::Expr::IsNotNull(_)
        | ast::Expr::IsTrue(_)
        | ast::Expr::IsNotTrue(_)
        | ast::Expr::IsFalse(_)
        | ast::Expr::IsNotFalse(_)
        | ast::Expr::IsUnknown(_)
        | ast::Expr::IsNotUnknown(_)
        | ast::Expr::Like { .. }
        | ast::Expr::ILike { .. }
        | ast::Expr::RLike { .. }
        | ast::Expr::InList { .. }
        | ast::Expr::InSubquery { .. }
        | ast::Expr::Between { .. }
        | ast::Expr::Exists { .. } => true,
        _ => false,
    }
}
