//! Makes a query yield its thread every few milliseconds, so that the server can charge, delay and cancel the query.
//!
//! DataFusion's operators request batches from one another until they have a result, all within one poll of their task.
//! One poll can take seconds if a join produces many rows of which few pass a filter. So every join and every source
//! gets a node on top that yields the thread if the poll has lasted [`SLICE`](super::cpu::SLICE).
//!
//! A nested loop join without matches produces no batches, so it may compute for minutes without yielding (measured;
//! apache/datafusion issue 19358). DataFusion evaluates the join's condition for every batch. So the server charges,
//! delays and cancels the query in that condition.

use super::cpu;
use super::query::Query;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::Stream;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A join condition that delays its query while the query's group has used more CPU time than its limit allows (is in
/// debt), and fails if the query was cancelled.
#[derive(Debug)]
struct Checkpoint {
    condition: Arc<dyn PhysicalExpr>,
    query: Arc<Query>,
}

impl PartialEq for Checkpoint {
    fn eq(&self, other: &Self) -> bool {
        self.query.identity.number == other.query.identity.number && self.condition.eq(&other.condition)
    }
}

impl Eq for Checkpoint {}

impl Hash for Checkpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
        self.query.identity.number.hash(state);
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt(f)
    }
}

impl PhysicalExpr for Checkpoint {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        cpu::pace_in_place(&self.query);
        match self.query.ended() {
            Some(why) => Err(DataFusionError::External(Box::new(why))),
            None => self.condition.evaluate(batch),
        }
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.condition.return_field(schema)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let condition = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.condition));
        Ok(Arc::new(Checkpoint { condition, query: Arc::clone(&self.query) }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt_sql(f)
    }
}

/// A node that passes batches on, and yields between them if the poll has lasted long enough.
#[derive(Debug)]
struct Pace {
    input: Arc<dyn ExecutionPlan>,
    query: Arc<Query>,
}

impl DisplayAs for Pace {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pace")
    }
}

impl ExecutionPlan for Pace {
    fn name(&self) -> &str {
        "Pace"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.input));
        Ok(Arc::new(Pace { input, query: Arc::clone(&self.query) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        Ok(Box::pin(Paced { input, query: Arc::clone(&self.query) }))
    }
}

struct Paced {
    input: SendableRecordBatchStream,
    query: Arc<Query>,
}

impl Stream for Paced {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(why) = self.query.ended() {
            return Poll::Ready(Some(Err(DataFusionError::External(Box::new(why)))));
        }
        if cpu::is_due() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.input.as_mut().poll_next(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.input.size_hint()
    }
}

impl RecordBatchStream for Paced {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

/// Adds the pacing nodes to a plan.
///
/// # Errors
/// A node cannot be rebuilt: a bug in this program.
pub fn paced(plan: Arc<dyn ExecutionPlan>, query: &Arc<Query>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        // A node with one child needs no pacing node: its rows arrive no faster than the child's, and a node further
        // down is paced.
        if node.children().len() == 1 {
            return Ok(Transformed::no(node));
        }
        let input = with_checkpoint(node, query)?;
        Ok(Transformed::yes(Arc::new(Pace { input, query: Arc::clone(query) }) as Arc<dyn ExecutionPlan>))
    })
    .data()
}

/// Adds a checkpoint to the condition of a nested loop join; returns any other node unchanged.
fn with_checkpoint(node: Arc<dyn ExecutionPlan>, query: &Arc<Query>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() else { return Ok(node) };
    let Some(filter) = join.filter() else { return Ok(node) };
    let condition = Arc::clone(filter.expression());
    let filter = JoinFilter::new(
        Arc::new(Checkpoint { condition, query: Arc::clone(query) }),
        filter.column_indices().to_vec(),
        Arc::clone(filter.schema()),
    );
    let projection = join.projection().as_ref().map(|columns| columns.to_vec());
    let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
    let join = NestedLoopJoinExec::try_new(left, right, Some(filter), join.join_type(), projection)?;
    Ok(Arc::new(join))
}
