//! Tables whose files are in folders that are named by the values of columns, such as `city=Ulm`.

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::listing::ListingTable;
use datafusion::error::Result;
use datafusion::logical_expr::{
    BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType, and, in_list,
};
use datafusion::physical_plan::ExecutionPlan;
use std::sync::Arc;

/// A table in partitions. Programs encode letters in the names of its folders, each by rules of its own: the folder of
/// `10:30` may be `hour=10%3A30`. For a condition `hour = '10:30'`, DataFusion would list a folder of one spelling alone,
/// and miss the rows in the others.
#[derive(Debug)]
pub struct Partitioned(pub ListingTable);

#[async_trait]
impl TableProvider for Partitioned {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        self.0.table_type()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let filters: Vec<Expr> = filters.iter().map(in_any_spelling).collect();
        self.0.scan(state, projection, &filters, limit).await
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.0.supports_filters_pushdown(filters)
    }
}

/// Replaces equality with a value that may be encoded by a list of that value. DataFusion compares a list with the
/// decoded values of all folders.
fn in_any_spelling(filter: &Expr) -> Expr {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else { return filter.clone() };
    match (left.as_ref(), op, right.as_ref()) {
        (left, Operator::And, right) => and(in_any_spelling(left), in_any_spelling(right)),
        (column @ Expr::Column(_), Operator::Eq, value @ Expr::Literal(..))
        | (value @ Expr::Literal(..), Operator::Eq, column @ Expr::Column(_))
            if !has_one_spelling(value) =>
        {
            in_list(column.clone(), vec![value.clone()], false)
        }
        _ => filter.clone(),
    }
}

/// Whether nobody encodes any letter of a value.
fn has_one_spelling(value: &Expr) -> bool {
    let Expr::Literal(value, _) = value else { return false };
    value.to_string().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{col, lit};

    #[test]
    fn values_that_may_be_encoded_are_looked_for_everywhere() {
        let plain = col("city").eq(lit("Ulm"));
        assert_eq!(in_any_spelling(&plain), plain);
        let listed = |value: &str| in_list(col("hour"), vec![lit(value)], false);
        for value in ["10:30", "a b", "a~b", "50%", "Köln"] {
            assert_eq!(in_any_spelling(&col("hour").eq(lit(value))), listed(value), "{value}");
            assert_eq!(in_any_spelling(&lit(value).eq(col("hour"))), listed(value), "{value}");
        }
        let both = and(plain.clone(), col("hour").eq(lit("10:30")));
        assert_eq!(in_any_spelling(&both), and(plain, listed("10:30")));
        let less = col("hour").lt(lit("10:30"));
        assert_eq!(in_any_spelling(&less), less);
    }
}
