//! Conversions whose result depends on the type of a value, which is unknown until a statement is planned: functions
//! that the planner replaces as soon as it knows the type.

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::functions::expr_fn::to_char;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast, lit,
    try_cast,
};
use std::sync::Arc;

/// Name of the function that makes a truth value a number, and leaves other values as they are.
pub const NUMBER: &str = "__number";

/// Name of the function that makes a value the text that MySQL makes of it.
pub const TEXT: &str = "__text";

/// Name of the function that makes a value a date with time; NULL if it is none.
pub const DATETIME: &str = "__datetime";

/// Name of the function that makes a value a date.
pub const DATE: &str = "__date";

/// Name of the function that makes a value an integer.
pub const SIGNED: &str = "__signed";

/// Returns the functions.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let function = |name| {
        let signature = Signature::any(1, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(Conversion { name, signature }))
    };
    [NUMBER, TEXT, DATETIME, DATE, SIGNED].map(function).to_vec()
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
            [kind] if self.name == NUMBER || (self.name == TEXT && is_text(kind)) => Ok(kind.clone()),
            [_] if self.name == TEXT => Ok(DataType::Utf8),
            // DataFusion counts days or seconds since 1970; for MySQL the number 20240229 is a date.
            [kind] if self.name == SIGNED && kind.is_temporal() => {
                plan_err!("a date as a number is not supported: use date_format")
            }
            [kind] if self.name != SIGNED && (kind.is_numeric() || *kind == DataType::Boolean) => {
                plan_err!("a number as a date is not supported: write it as a text")
            }
            [_] => Ok(match self.name {
                SIGNED => DataType::Int64,
                DATE => DataType::Date32,
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
        Ok(ExprSimplifyResult::Simplified(match kind {
            DataType::Boolean if self.name == NUMBER => cast(value, DataType::Int64),
            kind if self.name == DATETIME => try_cast(value, self.return_type(&[kind])?),
            kind if self.name == DATE || self.name == SIGNED => cast(value, self.return_type(&[kind])?),
            ref kind if self.name == NUMBER || is_text(kind) => value,
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
