//! A way out of nested loops: a join without matches compares for minutes without ever giving its thread back (measured;
//! apache/datafusion issue 19358), so that nobody can cancel it. Its condition is asked for every batch, and says no more
//! once the query is to end.

use super::query::Query;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A condition that fails once its query is to end.
#[derive(Debug)]
struct Checkpoint {
    condition: Arc<dyn PhysicalExpr>,
    query: Arc<Query>,
}

impl PartialEq for Checkpoint {
    fn eq(&self, other: &Self) -> bool {
        self.query.number == other.query.number && self.condition.eq(&other.condition)
    }
}

impl Eq for Checkpoint {}

impl Hash for Checkpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
        self.query.number.hash(state);
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt(f)
    }
}

impl PhysicalExpr for Checkpoint {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
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

/// The plan with a checkpoint in the condition of every nested loop.
///
/// # Errors
/// A join cannot be made anew: a mistake in this program.
pub fn with_checkpoints(plan: Arc<dyn ExecutionPlan>, query: &Arc<Query>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() else { return Ok(Transformed::no(node)) };
        let Some(filter) = join.filter() else { return Ok(Transformed::no(node)) };
        let condition = Arc::clone(filter.expression());
        let filter = JoinFilter::new(
            Arc::new(Checkpoint { condition, query: Arc::clone(query) }),
            filter.column_indices().to_vec(),
            Arc::clone(filter.schema()),
        );
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
        let join = NestedLoopJoinExec::try_new(left, right, Some(filter), join.join_type(), projection)?;
        Ok(Transformed::yes(Arc::new(join) as Arc<dyn ExecutionPlan>))
    })
    .data()
}
