//! Conversions whose result depends on the type of a value, which is unknown until a statement is planned: functions
//! that the planner replaces as soon as it knows the type.

pub use super::functions::{is_bytes, is_text};

use super::functions::{
    self, CLOCK_OF_MOMENT, CLOCK_OF_NUMBER, CLOCK_OF_TEXT, DOUBLE_OF_TEXT, MOMENT_OF_NUMBER, NUMBER_OF_CLOCK,
    NUMBER_OF_DATE, NUMBER_OF_MOMENT, READ_MOMENT, TEXT_OF_CLOCK, TEXT_OF_DOUBLE, WHOLE_OF_TEXT,
};
use super::kernels::{is_extreme, to_unsigned};
use datafusion::arrow::compute::cast as cast_array;
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::functions::expr_fn::to_char;
use datafusion::functions::math::expr_fn::{ceil, floor, round};
use datafusion::functions::unicode::substr;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast, lit, try_cast,
};
use std::sync::Arc;

/// Name of the function that makes a truth value a number, and leaves other values as they are.
pub const NUMBER: &str = "__number";

/// Name of the function that makes a value the text that MySQL makes of it.
pub const TEXT: &str = "__text";

/// Name of the function that leaves a number and bytes as they are, and makes any other value a text.
pub const EITHER: &str = "__either";

/// Name of the function that leaves bytes as they are, and makes any other value a text.
pub const RAW: &str = "__raw";

/// Name of the function that gives the number of bytes of a value.
const LENGTH: &str = "__length";

/// Name of the function that gives a part of a value.
pub const SUBSTRING: &str = "__substring";

/// Name of the function that makes a value a date with time; NULL if it is none.
pub const DATETIME: &str = "__datetime";

/// Name of the function that makes a value a date.
pub const DATE: &str = "__date";

/// Name of the function that makes a value a time without a date; NULL if it is none.
pub const CLOCK: &str = "__clock";

/// Name of the function that makes a value an integer.
pub const SIGNED: &str = "__signed";

/// Name of the function that makes a value an integer without a sign.
pub const UNSIGNED: &str = "__unsigned";

/// Name of the function that makes a value a whole number for a parameter: a fraction is rounded.
pub const WHOLE: &str = "__whole";

/// Name of the function that rounds up; a decimal becomes an integer.
pub const CEIL: &str = "__ceil";

/// Name of the function that rounds down.
pub const FLOOR: &str = "__floor";

/// Name of the function that makes a zero without a sign of a floating point zero: with one it would be sorted below zero.
const UNSIGNED_ZERO: &str = "__unsigned_zero";

/// Name of the function that gives a decimal as many digits as it was rounded to.
const DIGITS: &str = "__digits";

/// Name of MySQL's function that gives the character set of a value.
const CHARSET: &str = "charset";

/// Name of MySQL's function that gives the collation of a value.
const COLLATION: &str = "collation";

/// Names of the functions with one argument that [`Conversion`] is.
const CONVERSIONS: [&str; 15] = [
    NUMBER,
    TEXT,
    EITHER,
    RAW,
    DATETIME,
    DATE,
    CLOCK,
    SIGNED,
    UNSIGNED,
    WHOLE,
    CEIL,
    FLOOR,
    UNSIGNED_ZERO,
    CHARSET,
    COLLATION,
];

/// Returns the functions.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let mut all: Vec<_> = CONVERSIONS.map(conversion).map(Arc::new).into();
    let signature = Signature::any(2, Volatility::Immutable);
    all.push(Arc::new(ScalarUDF::new_from_impl(Digits { signature })));
    all.push(Arc::new(ScalarUDF::new_from_impl(Length::new())));
    let signature = Signature::variadic_any(Volatility::Immutable);
    all.push(Arc::new(ScalarUDF::new_from_impl(Substring { signature })));
    all
}

/// Returns the function of this name.
#[must_use]
pub fn conversion(name: &'static str) -> ScalarUDF {
    ScalarUDF::new_from_impl(Conversion { name, signature: Signature::any(1, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Conversion {
    name: &'static str,
    signature: Signature,
}

/// Whether values of a type are dates, with time or without, or times.
#[must_use]
pub fn is_temporal(kind: &DataType) -> bool {
    matches!(kind, DataType::Date32 | DataType::Timestamp(..)) || is_clock(kind)
}

/// Whether values of a type are times without a date.
#[must_use]
pub fn is_clock(kind: &DataType) -> bool {
    matches!(kind, DataType::Duration(_) | DataType::Time32(_) | DataType::Time64(_))
}

/// Returns the type of [`number`].
fn number_type(kind: &DataType) -> DataType {
    match kind {
        DataType::Null | DataType::Boolean => DataType::Int64,
        kind if is_temporal(kind) => DataType::Int64,
        // The opposite of the least number of 32 bits has 33.
        kind if kind.is_integer() && *kind != DataType::UInt64 => DataType::Int64,
        kind if is_text(kind) => DataType::Float64,
        kind => kind.clone(),
    }
}

/// Makes a value a number: a truth value 0 or 1, a text the number at its beginning, a date YYYYMMDD.
#[must_use]
pub fn number(value: Expr, kind: &DataType) -> Expr {
    let call = |name, value, kind| functions::function(name).call(vec![cast(value, kind)]);
    match kind {
        DataType::Date32 => call(NUMBER_OF_DATE, value, DataType::Date32),
        DataType::Timestamp(..) => {
            call(NUMBER_OF_MOMENT, value, DataType::Timestamp(TimeUnit::Microsecond, None))
        }
        kind if is_clock(kind) => call(NUMBER_OF_CLOCK, clock(value, kind), functions::CLOCK),
        kind if is_text(kind) => match value {
            // The greatest number of texts, not the number in the greatest text.
            Expr::ScalarFunction(mut function) if is_extreme(&function.func) => {
                let number = |value| conversion(NUMBER).call(vec![value]);
                function.args = function.args.into_iter().map(number).collect();
                Expr::ScalarFunction(function)
            }
            value => match literal_number(&value) {
                Some(number) => number,
                None => call(DOUBLE_OF_TEXT, value, DataType::Utf8),
            },
        },
        kind if number_type(kind) != *kind => cast(value, number_type(kind)),
        _ => value,
    }
}

/// Makes a value an integer without a sign.
fn unsigned(value: Expr, kind: &DataType) -> Expr {
    match kind {
        kind if is_text(kind) => to_unsigned(cast(value, DataType::Utf8)),
        kind if is_temporal(kind) => to_unsigned(cast(number(value, kind), DataType::Int64)),
        kind if kind.is_signed_integer() => to_unsigned(cast(value, DataType::Int64)),
        _ => cast(value, DataType::UInt64),
    }
}

/// Rounds a number to a whole one.
fn whole(value: Expr, kind: &DataType) -> Expr {
    let value = if kind.is_integer() { value } else { round(vec![value]) };
    cast(value, DataType::Int64)
}

/// Makes a value a time without a date; NULL if it is none.
#[must_use]
pub fn clock(value: Expr, kind: &DataType) -> Expr {
    let call = |name, value, kind| functions::function(name).call(vec![cast(value, kind)]);
    match kind {
        DataType::Duration(_) | DataType::Null => cast(value, functions::CLOCK),
        DataType::Time32(_) | DataType::Time64(_) => {
            let micros = cast(cast(value, DataType::Time64(TimeUnit::Microsecond)), DataType::Int64);
            cast(micros, functions::CLOCK)
        }
        DataType::Date32 | DataType::Timestamp(..) => {
            call(CLOCK_OF_MOMENT, value, DataType::Timestamp(TimeUnit::Microsecond, None))
        }
        kind if is_text(kind) => call(CLOCK_OF_TEXT, value, DataType::Utf8),
        _ => call(CLOCK_OF_NUMBER, value, DataType::Int64),
    }
}

/// Makes a value a date, with time or without; NULL if it is none.
#[must_use]
pub fn moment(value: Expr, kind: &DataType, result: &DataType) -> Expr {
    match kind.is_numeric() {
        true => {
            let moment = functions::function(MOMENT_OF_NUMBER).call(vec![cast(value, DataType::Int64)]);
            cast(moment, result.clone())
        }
        false if is_text(kind) => {
            let moment = functions::function(READ_MOMENT).call(vec![cast(value, DataType::Utf8)]);
            cast(moment, result.clone())
        }
        false => try_cast(value, result.clone()),
    }
}

/// Returns the number that a literal text is, whole if it is written so.
fn literal_number(value: &Expr) -> Option<Expr> {
    match value {
        Expr::Literal(value, _) => value.try_as_str()??.parse::<i64>().ok().map(lit),
        _ => None,
    }
}

/// Takes the sign off a floating point zero.
#[must_use]
pub fn unsigned_zero(value: Expr, kind: &DataType) -> Expr {
    match kind {
        kind if kind.is_floating() => {
            let value = functions::function(functions::DOUBLE_WITH_UNSIGNED_ZERO)
                .call(vec![cast(value, DataType::Float64)]);
            cast(value, kind.clone())
        }
        _ => value,
    }
}

/// Rounds a number up or down.
fn rounded(value: Expr, kind: &DataType, name: &str) -> Expr {
    let round = |value| if name == CEIL { ceil(value) } else { floor(value) };
    match kind {
        DataType::Decimal128(precision, scale) => {
            // One digit more than before, as 9.9 becomes 10.
            let wide = DataType::Decimal128((precision + 1).min(DECIMAL128_MAX_PRECISION), *scale);
            cast(round(cast(value, wide)), DataType::Int64)
        }
        kind if kind.is_floating() || is_text(kind) => {
            unsigned_zero(round(cast(number(value, kind), DataType::Float64)), &DataType::Float64)
        }
        kind => cast(number(value, kind), DataType::Int64),
    }
}

impl ScalarUDFImpl for Conversion {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [kind] if self.name == NUMBER => Ok(number_type(kind)),
            [_] if [CHARSET, COLLATION].contains(&self.name) => Ok(DataType::Utf8),
            [kind] if self.name == UNSIGNED_ZERO => Ok(kind.clone()),
            [kind] if [CEIL, FLOOR].contains(&self.name) => Ok(match number_type(kind) {
                DataType::Float32 | DataType::Float64 => DataType::Float64,
                _ => DataType::Int64,
            }),
            [kind] if self.name == EITHER && kind.is_numeric() => Ok(DataType::Int64),
            [kind] if [EITHER, RAW].contains(&self.name) && is_bytes(kind) => Ok(DataType::Binary),
            [kind] if [TEXT, EITHER, RAW].contains(&self.name) && is_text(kind) => Ok(kind.clone()),
            [_] if [TEXT, EITHER, RAW].contains(&self.name) => Ok(DataType::Utf8),
            [_] => Ok(match self.name {
                SIGNED | WHOLE => DataType::Int64,
                UNSIGNED => DataType::UInt64,
                DATE => DataType::Date32,
                CLOCK => functions::CLOCK,
                _ => DataType::Timestamp(TimeUnit::Microsecond, None),
            }),
            _ => plan_err!("{} takes one argument", self.name),
        }
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Ok([value]) = <[Expr; 1]>::try_from(arguments) else {
            return plan_err!("{} takes one argument", self.name);
        };
        let kind = context.get_data_type(&value)?;
        let result = self.return_type(std::slice::from_ref(&kind))?;
        Ok(ExprSimplifyResult::Simplified(match kind {
            // What is no text is bytes, also a number.
            kind if self.name == CHARSET => lit(if is_text(&kind) { "utf8mb4" } else { "binary" }),
            kind if self.name == COLLATION => {
                lit(if is_text(&kind) { "utf8mb4_general_ci" } else { "binary" })
            }
            kind if self.name == NUMBER && is_text(&kind) => cast(number(value, &kind), result),
            kind if self.name == NUMBER => number(value, &kind),
            kind if self.name == UNSIGNED_ZERO => unsigned_zero(value, &kind),
            kind if [CEIL, FLOOR].contains(&self.name) => rounded(value, &kind, self.name),
            kind if is_bytes(&kind) && [EITHER, RAW].contains(&self.name) => cast(value, result),
            kind if self.name == UNSIGNED => unsigned(value, &kind),
            kind if self.name == CLOCK => clock(value, &kind),
            kind if is_clock(&kind) && [DATE, DATETIME].contains(&self.name) => {
                return not_impl_err!("a time without a date is not a date");
            }
            kind if is_temporal(&kind) && self.name == SIGNED => number(value, &kind),
            kind if kind.is_numeric() && [WHOLE, EITHER].contains(&self.name) => whole(value, &kind),
            kind if is_temporal(&kind) && self.name == WHOLE => number(value, &kind),
            kind if is_text(&kind) && [SIGNED, WHOLE].contains(&self.name) => {
                functions::function(WHOLE_OF_TEXT).call(vec![cast(value, DataType::Utf8)])
            }
            kind if self.name == DATETIME || ((kind.is_numeric() || is_text(&kind)) && self.name == DATE) => {
                moment(value, &kind, &result)
            }
            _ if [DATE, SIGNED, WHOLE].contains(&self.name) => cast(value, result),
            ref kind if is_text(kind) => value,
            DataType::Boolean => cast(cast(value, DataType::Int64), DataType::Utf8),
            kind if kind.is_floating() => {
                functions::function(TEXT_OF_DOUBLE).call(vec![cast(value, DataType::Float64)])
            }
            kind if is_clock(&kind) => functions::function(TEXT_OF_CLOCK).call(vec![clock(value, &kind)]),
            // A fraction of a second only if there is one.
            DataType::Timestamp(..) => cast(to_char(value, lit("%Y-%m-%d %H:%M:%S%.f")), DataType::Utf8),
            _ => cast(value, DataType::Utf8),
        }))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // A condition of SHOW is not optimized before it is evaluated; its columns are texts and numbers already.
        let keeps = [NUMBER, TEXT, EITHER, RAW].contains(&self.name);
        match <[ColumnarValue; 1]>::try_from(arguments.args) {
            Ok([value]) if keeps && value.data_type() == *arguments.return_field.data_type() => Ok(value),
            _ => internal_err!("{} is replaced when its statement is planned", self.name),
        }
    }
}

/// Gives a decimal as many digits as it was rounded to: `(value, digits)`, with a literal.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Digits {
    signature: Signature,
}

/// Returns the type of a decimal that was rounded to this many digits.
fn with_digits(kind: &DataType, digits: Option<&ScalarValue>) -> DataType {
    match (kind, digits) {
        (DataType::Decimal128(precision, scale), Some(ScalarValue::Int64(Some(digits)))) => {
            let digits = i8::try_from(*digits).unwrap_or(*scale).clamp(0, *scale);
            DataType::Decimal128(*precision, digits)
        }
        (kind, _) => kind.clone(),
    }
}

impl ScalarUDFImpl for Digits {
    fn name(&self) -> &str {
        DIGITS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        types.first().cloned().map_or_else(|| plan_err!("{DIGITS} takes two arguments"), Ok)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let ([value, _], [_, digits]) = (arguments.arg_fields, arguments.scalar_arguments) else {
            return plan_err!("{DIGITS} takes two arguments");
        };
        let kind = with_digits(value.data_type(), *digits);
        Ok(Arc::new(Field::new(DIGITS, kind, value.is_nullable())))
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Ok([value, Expr::Literal(digits, _)]) = <[Expr; 2]>::try_from(arguments) else {
            return plan_err!("{DIGITS} takes a literal");
        };
        let kind = with_digits(&context.get_data_type(&value)?, Some(&digits));
        Ok(ExprSimplifyResult::Simplified(cast(value, kind)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{DIGITS} is replaced when its statement is planned")
    }
}

/// Returns a part of a value that is bytes or a text.
fn part(value: Expr, bounds: Vec<Expr>, result: DataType) -> Expr {
    let bounds = bounds.into_iter().map(|bound| conversion(WHOLE).call(vec![bound]));
    cast(functions::function(functions::PART).call([value].into_iter().chain(bounds).collect()), result)
}

/// `SUBSTRING`: a part of a text in characters, or of bytes: `(value, from)` or `(value, from, length)`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Substring {
    signature: Signature,
}

impl ScalarUDFImpl for Substring {
    fn name(&self) -> &str {
        SUBSTRING
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match types.first() {
            Some(kind) if is_bytes(kind) => DataType::Binary,
            Some(kind) if is_text(kind) => kind.clone(),
            _ => DataType::Utf8,
        })
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let mut arguments = arguments.into_iter();
        let Some(value) = arguments.next() else {
            return plan_err!("{SUBSTRING} takes two or three arguments");
        };
        let bounds: Vec<Expr> = arguments.collect();
        let kind = context.get_data_type(&value)?;
        let result = self.return_type(std::slice::from_ref(&kind))?;
        if is_bytes(&kind) {
            return Ok(ExprSimplifyResult::Simplified(part(cast(value, DataType::Binary), bounds, result)));
        }
        let text = if is_text(&kind) { value } else { conversion(TEXT).call(vec![value]) };
        let is_at_least = |bound: &Expr, least| matches!(bound, Expr::Literal(ScalarValue::Int64(Some(bound)), _) if *bound >= least);
        // DataFusion's function is faster, but counts from before the beginning, and fails for a negative length.
        let is_plain = match bounds.as_slice() {
            [from] => is_at_least(from, 1),
            [from, length] => is_at_least(from, 1) && is_at_least(length, 0),
            _ => false,
        };
        Ok(ExprSimplifyResult::Simplified(match is_plain {
            true => substr().call([text].into_iter().chain(bounds).collect()),
            false => part(cast(text, DataType::Utf8), bounds, result),
        }))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // A condition of SHOW is not optimized before it is evaluated. Other values need their conversion first.
        let is_ready = arguments.args.iter().enumerate().all(|(at, one)| match one.data_type() {
            DataType::Utf8 | DataType::Binary => at == 0,
            DataType::Int64 => at > 0,
            _ => false,
        });
        if !is_ready {
            return internal_err!("{SUBSTRING} is replaced when its statement is planned");
        }
        functions::function(functions::PART).invoke_with_args(arguments)
    }
}

/// `LENGTH`: the number of bytes of a text, or of bytes.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    signature: Signature,
}

impl Length {
    fn new() -> Length {
        Length { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Length {
    fn name(&self) -> &str {
        LENGTH
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int32)
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Ok([value]) = <[Expr; 1]>::try_from(arguments) else {
            return plan_err!("{LENGTH} takes one argument");
        };
        let kind = context.get_data_type(&value)?;
        if is_text(&kind) || is_bytes(&kind) {
            return Ok(ExprSimplifyResult::Original(vec![value]));
        }
        let text = conversion(TEXT).call(vec![value]);
        Ok(ExprSimplifyResult::Simplified(ScalarUDF::new_from_impl(Length::new()).call(vec![text])))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = arguments.args.as_slice() else { return internal_err!("{LENGTH} takes one argument") };
        let is_scalar = matches!(value, ColumnarValue::Scalar(_));
        let array = value.to_array(if is_scalar { 1 } else { arguments.number_rows })?;
        let lengths = cast_array(&length(&array)?, &DataType::Int32)?;
        match is_scalar {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&lengths, 0)?)),
            false => Ok(ColumnarValue::Array(lengths)),
        }
    }
}
