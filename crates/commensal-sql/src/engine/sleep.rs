//! `SLEEP(seconds)`, which waits on a timer: it holds no thread, and KILL and time limits end it at once, because they end the
//! task that waits.

use super::cpu;
use super::query::Query;
use async_trait::async_trait;
use datafusion::arrow::array::{AsArray, Int64Array};
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the function, whose argument is a number of seconds as a double.
pub const SLEEP: &str = "sleep";

/// Seconds that a call waits at most, for all rows of a batch: a year.
const LONGEST: f64 = 31_536_000.0;

/// Returns the function for DataFusion.
#[must_use]
pub fn function() -> Arc<ScalarUDF> {
    let signature = Signature::exact(vec![DataType::Float64], Volatility::Volatile);
    Arc::new(AsyncScalarUDF::new(Arc::new(Sleep { signature })).into_scalar_udf())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Sleep {
    signature: Signature,
}

impl ScalarUDFImpl for Sleep {
    fn name(&self) -> &str {
        SLEEP
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{SLEEP} waits")
    }
}

#[async_trait]
impl AsyncScalarUDFImpl for Sleep {
    /// Waits for the rows of a batch one after the other.
    async fn invoke_async_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let count = arguments.number_rows;
        let Some(seconds) = arguments.args.first() else { return internal_err!("{SLEEP} takes seconds") };
        let seconds = seconds.to_array(count)?;
        // As in MySQL, nothing is waited for NULL and for less than nothing.
        let all = seconds.as_primitive::<Float64Type>().iter().flatten().filter(|seconds| *seconds > 0.0);
        let time = Duration::from_secs_f64(all.sum::<f64>().min(LONGEST));
        wait(time).await?;
        // One array for all rows: of a scalar, DataFusion would make one row.
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from(vec![0; count]))))
    }
}

/// Counts the wait of a query, also if it ends early.
struct Sleeping {
    query: Arc<Query>,
    since: Instant,
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.query.usage.add_slept(self.since.elapsed());
    }
}

async fn wait(time: Duration) -> Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    let Some(query) = cpu::current() else { return internal_err!("{SLEEP} waits in a query") };
    let group = query.group();
    let sleeping = Sleeping { query, since: Instant::now() };
    let pause = {
        // As all timers of queries, on a runtime to which no group's limits apply.
        let _entered = group.timer.enter();
        tokio::time::sleep(time)
    };
    pause.await;
    drop(sleeping);
    Ok(())
}
