//! The value of a correlated subquery that has at most one row for each row around it: DataFusion plans such a subquery only if it
//! is an aggregation, so it becomes one.

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Expr, Signature, Volatility};
use std::sync::Arc;

/// Aggregates the values of a group to the only one; NULL without a value, and an error with more than one.
#[must_use]
pub fn single(value: Expr) -> Expr {
    let signature = Signature::any(1, Volatility::Immutable);
    AggregateUDF::new_from_impl(Single { signature }).call(vec![value])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Single {
    signature: Signature,
}

impl AggregateUDFImpl for Single {
    fn name(&self) -> &str {
        "__single"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        types.first().cloned().map_or_else(|| internal_err!("__single takes one argument"), Ok)
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let value = ScalarValue::try_from(arguments.return_field.data_type())?;
        Ok(Box::new(One { value, count: 0 }))
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let value = Field::new("value", arguments.return_field.data_type().clone(), true);
        Ok(vec![Arc::new(value), Arc::new(Field::new("count", DataType::Int64, false))])
    }
}

#[derive(Debug)]
struct One {
    value: ScalarValue,
    count: i64,
}

impl One {
    fn take(&mut self, values: &ArrayRef, at: usize, count: i64) -> Result<()> {
        self.count += count;
        if count > 0 {
            self.value = ScalarValue::try_from_array(values, at)?;
        }
        Ok(())
    }
}

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [values] = values else { return internal_err!("__single takes one argument") };
        match values.len() {
            0 => Ok(()),
            length => self.take(values, 0, i64::try_from(length).unwrap_or(i64::MAX)),
        }
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, counts] = states else { return internal_err!("__single has two states") };
        let counts = counts.as_primitive::<Int64Type>();
        (0..values.len()).try_for_each(|at| self.take(values, at, counts.value(at)))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.value.clone(), ScalarValue::Int64(Some(self.count))])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.count {
            0 | 1 => Ok(self.value.clone()),
            _ => exec_err!("Scalar subquery returned more than one row"),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size()
    }
}
