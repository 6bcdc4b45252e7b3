//! Conversions whose result depends on the type of a value, which is unknown until a statement is planned: functions
//! that the planner replaces as soon as it knows the type.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::functions::expr_fn::to_char;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast, lit,
};
use std::sync::Arc;

/// Name of the function that makes a truth value a number, and leaves other values as they are.
pub const NUMBER: &str = "__number";

/// Name of the function that makes a value the text that MySQL makes of it.
pub const TEXT: &str = "__text";

/// Returns the functions.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let function = |name| {
        let signature = Signature::any(1, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(Conversion { name, signature }))
    };
    vec![function(NUMBER), function(TEXT)]
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Conversion {
    name: &'static str,
    signature: Signature,
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
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
            [DataType::Boolean] if self.name == NUMBER => Ok(DataType::Int64),
            [kind] if self.name == NUMBER || is_text(kind) => Ok(kind.clone()),
            [_] => Ok(DataType::Utf8),
            _ => plan_err!("{} takes one argument", self.name),
        }
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Ok([value]) = <[Expr; 1]>::try_from(arguments) else {
            return plan_err!("{} takes one argument", self.name);
        };
        let kind = context.get_data_type(&value)?;
        Ok(ExprSimplifyResult::Simplified(match kind {
            DataType::Boolean if self.name == NUMBER => cast(value, DataType::Int64),
            _ if self.name == NUMBER || is_text(&kind) => value,
            DataType::Boolean => cast(cast(value, DataType::Int64), DataType::Utf8),
            // A fraction of a second only if there is one.
            DataType::Timestamp(..) => cast(to_char(value, lit("%Y-%m-%d %H:%M:%S%.f")), DataType::Utf8),
            _ => cast(value, DataType::Utf8),
        }))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} is replaced when its statement is planned", self.name)
    }
}
