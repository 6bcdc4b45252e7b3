//! Makes a value a part of a JSON document, by its type: replaced by other functions when its statement is planned.

use super::functions::{LONG_CLOCK, NUMBER_OF_DOUBLE, QUOTE, function, json_function};
use super::values::{clock, is_clock, is_text};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, not_impl_err, plan_err};
use datafusion::functions::expr_fn::to_char;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast, lit,
};
use std::sync::Arc;

/// Name of the function that makes a value a JSON document.
pub const JSON: &str = "__json";
/// The same for a truth value, which is `true` or `false` and no number.
pub const JSON_OF_TRUTH: &str = "__json_of_truth";

/// Returns the functions for DataFusion.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let signature = || Signature::any(1, Volatility::Immutable);
    let function = |name| ScalarUDF::new_from_impl(ToJson { name, signature: signature() });
    [JSON, JSON_OF_TRUTH].map(function).map(Arc::new).into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToJson {
    name: &'static str,
    signature: Signature,
}

fn converted(value: Expr, kind: &DataType, is_truth: bool) -> Result<Expr> {
    let quoted = |text: Expr| json_function(QUOTE).call(vec![cast(text, DataType::Utf8)]);
    Ok(match kind {
        kind if is_text(kind) => quoted(value),
        DataType::Boolean if is_truth => cast(value, DataType::Utf8),
        DataType::Boolean => cast(cast(value, DataType::Int64), DataType::Utf8),
        kind if kind.is_floating() => function(NUMBER_OF_DOUBLE).call(vec![cast(value, DataType::Float64)]),
        kind if kind.is_numeric() || kind.is_null() => cast(value, DataType::Utf8),
        DataType::Date32 => quoted(value),
        DataType::Timestamp(..) => quoted(to_char(value, lit("%Y-%m-%d %H:%M:%S%.6f"))),
        kind if is_clock(kind) => quoted(function(LONG_CLOCK).call(vec![clock(value, kind)])),
        other => return not_impl_err!("JSON of {other} is not supported"),
    })
}

impl ScalarUDFImpl for ToJson {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Ok([value]) = <[Expr; 1]>::try_from(arguments) else {
            return plan_err!("{} takes one argument", self.name);
        };
        let kind = context.get_data_type(&value)?;
        Ok(ExprSimplifyResult::Simplified(converted(value, &kind, self.name == JSON_OF_TRUTH)?))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} is replaced when its statement is planned", self.name)
    }
}
