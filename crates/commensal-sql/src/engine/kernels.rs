//! MySQL's functions of numbers that are computed column by column: arithmetic that fails beyond 64 bits, casts to
//! decimals, and the greatest and least of several values.

use super::functions::{self, decimal_of_text};
use super::values::{self, is_clock, is_temporal, is_text};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, UInt64Array};
use datafusion::arrow::compute::kernels::{cmp, numeric, zip};
use datafusion::arrow::compute::{self, cast as cast_array};
use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Float64Type, Int64Type, TimeUnit,
    UInt64Type,
};
use datafusion::arrow::error::ArrowError;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast,
};
use datafusion::physical_expr_common::datum;
use std::sync::Arc;

/// Name of the function that makes a value a decimal: `(value, precision, scale)`, with literals.
pub const DECIMAL: &str = "__decimal";

/// Returns the functions for DataFusion.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let extremes = [true, false].map(|is_greatest| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::new_from_impl(Extreme { is_greatest, signature })
    });
    let signature = Signature::user_defined(Volatility::Immutable);
    extremes.into_iter().chain([ScalarUDF::new_from_impl(ToDecimal { signature })]).map(Arc::new).collect()
}

/// Adds, subtracts or multiplies two integers; a result beyond 64 bits is an error.
#[must_use]
pub fn checked(left: Expr, op: Operator, right: Expr) -> Expr {
    checked_as(DataType::Int64, left, op, right)
}

/// The same for integers of which one has no sign: a result that is negative or beyond 64 bits is an error.
#[must_use]
pub fn checked_unsigned(left: Expr, op: Operator, right: Expr) -> Expr {
    checked_as(UNSIGNED, left, op, right)
}

/// The type in which integers without a sign are calculated.
const UNSIGNED: DataType = DataType::Decimal128(20, 0);

fn checked_as(kind: DataType, left: Expr, op: Operator, right: Expr) -> Expr {
    let signature = Signature::exact(vec![kind.clone(); 2], Volatility::Immutable);
    let function = ScalarUDF::new_from_impl(Checked { op, signature });
    function.call(vec![cast(left, kind.clone()), cast(right, kind)])
}

fn out_of_range(value: &str) -> DataFusionError {
    DataFusionError::from(ArrowError::ArithmeticOverflow(format!(
        "Overflow happened on: BIGINT UNSIGNED {value}"
    )))
}

/// Makes integers without a sign of the results of a calculation.
fn without_sign(results: ColumnarValue) -> Result<ColumnarValue> {
    let are_scalar = matches!(results, ColumnarValue::Scalar(_));
    let array = results.to_array(1)?;
    let numbers = array.as_primitive::<Decimal128Type>().try_unary::<_, UInt64Type, _>(|value| {
        u64::try_from(value).map_err(|_| out_of_range(&value.to_string()))
    })?;
    Ok(match are_scalar {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&numbers, 0)?),
        false => ColumnarValue::Array(Arc::new(numbers)),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    op: Operator,
    signature: Signature,
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.op {
            Operator::Plus => "__plus",
            Operator::Minus => "__minus",
            _ => "__times",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(if types.contains(&UNSIGNED) { DataType::UInt64 } else { DataType::Int64 })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = arguments.args.as_slice() else { return internal_err!("two arguments") };
        let result = match self.op {
            Operator::Plus => datum::apply(left, right, numeric::add),
            Operator::Minus => datum::apply(left, right, numeric::sub),
            _ => datum::apply(left, right, numeric::mul),
        };
        match arguments.return_field.data_type() {
            DataType::UInt64 => without_sign(result.map_err(|error| match error.find_root() {
                DataFusionError::ArrowError(inner, _)
                    if let ArrowError::ArithmeticOverflow(text) = inner.as_ref() =>
                {
                    out_of_range(text.trim_start_matches("Overflow happened on: "))
                }
                _ => error,
            })?),
            _ => result,
        }
    }
}

/// Makes an integer with a sign, or a text, an integer without a sign. What is negative counts down from 2^64, as in MySQL.
#[must_use]
pub fn to_unsigned(value: Expr) -> Expr {
    let signature = Signature::uniform(1, vec![DataType::Int64, DataType::Utf8], Volatility::Immutable);
    ScalarUDF::new_from_impl(ToUnsigned { signature }).call(vec![value])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToUnsigned {
    signature: Signature,
}

/// Returns the number at the beginning of a text.
fn unsigned_of_text(text: &str) -> u64 {
    let text = text.trim_start();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = digits.bytes().take_while(u8::is_ascii_digit);
    let number =
        digits.fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    if text.starts_with('-') { number.wrapping_neg() } else { number }
}

impl ScalarUDFImpl for ToUnsigned {
    fn name(&self) -> &str {
        "__to_unsigned"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = arguments.args.as_slice() else { return internal_err!("one argument") };
        let is_scalar = matches!(value, ColumnarValue::Scalar(_));
        let array = value.to_array(if is_scalar { 1 } else { arguments.number_rows })?;
        let numbers: UInt64Array = match array.data_type() {
            DataType::Int64 => array.as_primitive::<Int64Type>().unary(i64::cast_unsigned),
            DataType::Utf8 => {
                array.as_string::<i32>().iter().map(|text| text.map(unsigned_of_text)).collect()
            }
            other => return internal_err!("an unsigned number of {other}"),
        };
        Ok(match is_scalar {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&numbers, 0)?),
            false => ColumnarValue::Array(Arc::new(numbers)),
        })
    }
}

/// `CAST(… AS DECIMAL(precision, scale))`: rounds half away from zero, and makes what is beyond the greatest decimal the
/// greatest. DataFusion would compare its own cast as if it did not round.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ToDecimal {
    signature: Signature,
}

fn precision_and_scale(literals: [Option<&ScalarValue>; 2]) -> Result<(u8, i8)> {
    match literals {
        [Some(ScalarValue::Int64(Some(precision))), Some(ScalarValue::Int64(Some(scale)))] => {
            let precision = u8::try_from(*precision).unwrap_or(0);
            let scale = i8::try_from(*scale).unwrap_or(i8::MAX);
            match (1..=DECIMAL128_MAX_PRECISION).contains(&precision) && scale.unsigned_abs() <= precision {
                true => Ok((precision, scale)),
                false => {
                    plan_err!("there is no decimal with {precision} digits, {scale} of them after the point")
                }
            }
        }
        _ => plan_err!("{DECIMAL} takes literals"),
    }
}

/// Divides and rounds half away from zero.
fn rounded(value: i128, divisor: i128) -> i128 {
    let (quotient, rest) = (value / divisor, value % divisor);
    quotient + if rest.abs() >= divisor - rest.abs() { value.signum() } else { 0 }
}

impl ScalarUDFImpl for ToDecimal {
    fn name(&self) -> &str {
        DECIMAL
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [value, ..] = types else { return plan_err!("{DECIMAL} takes three arguments") };
        let value = match value {
            kind if is_text(kind) => DataType::Utf8,
            kind if kind.is_floating() => DataType::Float64,
            DataType::Decimal128(..) => value.clone(),
            kind if is_temporal(kind) => value.clone(),
            DataType::UInt64 => DataType::Decimal128(20, 0),
            DataType::Decimal256(..) => DataType::Utf8,
            _ => DataType::Int64,
        };
        Ok(vec![value, DataType::Int64, DataType::Int64])
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {DECIMAL} depends on its literals")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [_, precision, scale] = arguments.scalar_arguments else {
            return plan_err!("{DECIMAL} takes three arguments");
        };
        let (precision, scale) = precision_and_scale([*precision, *scale])?;
        Ok(Arc::new(Field::new(DECIMAL, DataType::Decimal128(precision, scale), true)))
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Some(kind) = arguments.first().map(|value| context.get_data_type(value)).transpose()? else {
            return Ok(ExprSimplifyResult::Original(arguments));
        };
        if !is_temporal(&kind) {
            return Ok(ExprSimplifyResult::Original(arguments));
        }
        let mut arguments = arguments;
        arguments[0] = values::number(arguments[0].clone(), &kind);
        let signature = Signature::user_defined(Volatility::Immutable);
        let function = ScalarUDF::new_from_impl(ToDecimal { signature });
        Ok(ExprSimplifyResult::Simplified(function.call(arguments)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let DataType::Decimal128(precision, scale) = *arguments.return_field.data_type() else {
            return internal_err!("{DECIMAL} makes decimals");
        };
        let most = 10_i128.pow(u32::from(precision)) - 1;
        let of_digits = |value: i128, digits: i8| {
            let by = 10_i128.checked_pow(u32::from((scale - digits).unsigned_abs())).unwrap_or(i128::MAX);
            let value = if digits > scale { rounded(value, by) } else { value.saturating_mul(by) };
            value.clamp(-most, most)
        };
        let of_text = |text: &str| decimal_of_text(text, scale.unsigned_abs()).clamp(-most, most);
        // A batch may have no rows, and a scalar has one all the same.
        let count = if let ColumnarValue::Scalar(_) = arguments.args[0] { 1 } else { arguments.number_rows };
        let array = arguments.args[0].to_array(count)?;
        let decimals: Decimal128Array = match array.data_type() {
            DataType::Decimal128(_, digits) => {
                let digits = *digits;
                array.as_primitive::<Decimal128Type>().unary(|value| of_digits(value, digits))
            }
            DataType::Int64 => {
                array.as_primitive::<Int64Type>().unary(|value| of_digits(i128::from(value), 0))
            }
            DataType::Float64 => {
                array.as_primitive::<Float64Type>().unary(|value: f64| of_text(&value.to_string()))
            }
            DataType::Utf8 => array.as_string::<i32>().iter().map(|text| text.map(of_text)).collect(),
            other => return exec_err!("a decimal of {other} is not supported"),
        };
        let decimals: ArrayRef = Arc::new(decimals.with_precision_and_scale(precision, scale)?);
        match arguments.args[0] {
            ColumnarValue::Scalar(_) => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&decimals, 0)?)),
            ColumnarValue::Array(_) => Ok(ColumnarValue::Array(decimals)),
        }
    }
}

/// `GREATEST` and `LEAST`: NULL if an argument is. Texts beside numbers are numbers, and beside dates they are dates.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    is_greatest: bool,
    signature: Signature,
}

/// Whether this function compares its arguments, as texts if all are.
#[must_use]
pub fn is_extreme(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<Extreme>().is_some()
}

/// The type that all arguments become.
fn common_type(types: &[DataType]) -> Result<DataType> {
    let types: Vec<DataType> = types
        .iter()
        .filter(|kind| !kind.is_null())
        .map(|kind| match kind {
            DataType::Boolean => DataType::Int64,
            kind if is_text(kind) => DataType::Utf8,
            kind if kind.is_integer() && *kind != DataType::UInt64 => DataType::Int64,
            kind => kind.clone(),
        })
        .collect();
    let any = |is: &dyn Fn(&DataType) -> bool| types.iter().any(is);
    Ok(match types.as_slice() {
        [] => DataType::Int64,
        _ if any(&|kind| matches!(kind, DataType::Timestamp(..))) => {
            DataType::Timestamp(TimeUnit::Microsecond, None)
        }
        _ if any(&|kind| *kind == DataType::Date32) => DataType::Date32,
        _ if any(&is_clock) => functions::CLOCK,
        all if all.iter().all(is_text) => DataType::Utf8,
        all if any(&is_text) || all.iter().any(DataType::is_floating) => DataType::Float64,
        all => match type_union_resolution(all) {
            Some(kind) => kind,
            None => return plan_err!("GREATEST and LEAST of {all:?} are not supported"),
        },
    })
}

/// Makes an argument a value of the common type.
fn converted(value: Expr, kind: &DataType, common: &DataType) -> Expr {
    let value = match common {
        common if is_clock(common) => return values::clock(value, kind),
        common if is_temporal(common) => return values::moment(value, kind, common),
        DataType::Float64 if is_text(kind) => values::number(value, kind),
        _ if *kind == DataType::Boolean => cast(value, DataType::Int64),
        _ => value,
    };
    if kind == common { value } else { cast(value, common.clone()) }
}

impl ScalarUDFImpl for Extreme {
    fn name(&self) -> &str {
        if self.is_greatest { "greatest" } else { "least" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [] | [_] => {
                plan_err!("Incorrect parameter count in the call to native function '{}'", self.name())
            }
            types => Ok(types.to_vec()),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        common_type(types)
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let kinds: Vec<DataType> =
            arguments.iter().map(|value| context.get_data_type(value)).collect::<Result<_>>()?;
        let common = common_type(&kinds)?;
        if kinds.iter().all(|kind| *kind == common) {
            return Ok(ExprSimplifyResult::Original(arguments));
        }
        let arguments = arguments.into_iter().zip(&kinds);
        let arguments = arguments.map(|(value, kind)| converted(value, kind, &common)).collect();
        let signature = Signature::user_defined(Volatility::Immutable);
        let function = ScalarUDF::new_from_impl(Extreme { is_greatest: self.is_greatest, signature });
        Ok(ExprSimplifyResult::Simplified(function.call(arguments)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_scalars = arguments.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let count = if are_scalars { 1 } else { arguments.number_rows };
        let kind = arguments.return_field.data_type();
        let mut arrays = arguments
            .args
            .iter()
            .map(|one| -> Result<ArrayRef> { Ok(cast_array(&one.to_array(count)?, kind)?) });
        let Some(first) = arrays.next() else { return internal_err!("no arguments") };
        let mut chosen = first?;
        for next in arrays {
            let next = next?;
            let is_next = match self.is_greatest {
                true => cmp::gt(&next, &chosen)?,
                false => cmp::lt(&next, &chosen)?,
            };
            // A NULL stays, and another one takes its place.
            let is_next = match is_next.null_count() {
                0 => is_next,
                _ => compute::or(&compute::prep_null_mask_filter(&is_next), &compute::is_null(&next)?)?,
            };
            chosen = zip::zip(&is_next, &next, &chosen)?;
        }
        match are_scalars {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&chosen, 0)?)),
            false => Ok(ColumnarValue::Array(chosen)),
        }
    }
}
