//! The origins of a result's columns: the table and the column that each was read from, which clients show, and by which
//! drivers put columns of the same name into different tables.

use super::rewrite::FUNCTIONS;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Column, TableReference};
use datafusion::logical_expr::{Distinct, Expr, JoinType, LogicalPlan};
use std::collections::HashMap;
use std::sync::Arc;

/// Keys of a field's metadata: database, table, its name in the statement, and column.
pub const DATABASE: &str = "origin.database";
pub const TABLE: &str = "origin.table";
pub const ALIAS: &str = "origin.alias";
pub const COLUMN: &str = "origin.column";

/// The column of a table.
struct Origin {
    table: TableReference,
    alias: Option<String>,
    column: String,
}

/// Returns the columns of a plan's result, with their origins as metadata.
#[must_use]
pub fn columns(plan: &LogicalPlan, schema: &Schema, database: &str) -> SchemaRef {
    let fields = schema.fields().iter().enumerate().map(|(at, field)| {
        let Some(Origin { table, alias, column }) = origin(plan, at) else { return Arc::clone(field) };
        let name = table.table().to_owned();
        let known = HashMap::from([
            (DATABASE.to_owned(), table.schema().unwrap_or(database).to_owned()),
            (ALIAS.to_owned(), alias.unwrap_or_else(|| name.clone())),
            (TABLE.to_owned(), name),
            (COLUMN.to_owned(), column),
        ]);
        Arc::new(field.as_ref().clone().with_metadata(known))
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Returns the origin of a column of a plan; `None` if it is calculated.
fn origin(plan: &LogicalPlan, at: usize) -> Option<Origin> {
    let through = |input: &LogicalPlan, expr: &Expr| match expr {
        Expr::Column(column) => origin(input, index(input, column)?),
        _ => None,
    };
    match plan {
        LogicalPlan::Projection(projection) => {
            through(&projection.input, &projection.expr.get(at)?.clone().unalias())
        }
        LogicalPlan::Aggregate(aggregate) => through(&aggregate.input, aggregate.group_expr.get(at)?),
        LogicalPlan::SubqueryAlias(named) => {
            let alias = Some(named.alias.table().to_owned());
            origin(&named.input, at).map(|origin| Origin { alias, ..origin })
        }
        // The names of table functions are of the server alone.
        LogicalPlan::TableScan(scan) if scan.table_name.schema() == Some(FUNCTIONS) => None,
        LogicalPlan::TableScan(scan) => Some(Origin {
            table: scan.table_name.clone(),
            alias: None,
            column: scan.projected_schema.fields().get(at)?.name().clone(),
        }),
        LogicalPlan::Join(join) => {
            let left = join.left.schema().fields().len();
            match (join.join_type, at.checked_sub(left)) {
                (JoinType::RightSemi | JoinType::RightAnti, _) => origin(&join.right, at),
                (JoinType::LeftMark | JoinType::RightMark, _) => None,
                (_, Some(at)) => origin(&join.right, at),
                (_, None) => origin(&join.left, at),
            }
        }
        LogicalPlan::Window(window) => {
            (at < window.input.schema().fields().len()).then(|| origin(&window.input, at)).flatten()
        }
        LogicalPlan::Filter(filter) => origin(&filter.input, at),
        LogicalPlan::Sort(sort) => origin(&sort.input, at),
        LogicalPlan::Limit(limit) => origin(&limit.input, at),
        LogicalPlan::Distinct(Distinct::All(input)) => origin(input, at),
        _ => None,
    }
}

/// Returns the position of a column in the result of a plan.
fn index(plan: &LogicalPlan, column: &Column) -> Option<usize> {
    plan.schema().maybe_index_of_column(column)
}
