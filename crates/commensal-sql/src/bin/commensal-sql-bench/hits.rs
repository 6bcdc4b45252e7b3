//! A made-up table with ClickBench's schema: the 105 columns of its `hits`, with the same names and types, and values
//! whose shares are alike. Nothing of ClickBench's data is in it.
//!
//! Every row depends on the seed, its number and the number of all rows only, so that rows can be made in any batches.
//!
//! ClickBench's own Parquet file keeps times as seconds and texts as bytes without saying so, and its engines declare
//! them (`create.sql`). Here the file says it: `DATE`, `TIMESTAMP` in milliseconds, and UTF-8.

mod columns;
mod draw;
mod row;
#[cfg(test)]
mod tests;
mod write;

pub use columns::{batch, schema};
pub use row::Maker;
pub use write::{RowOrder, RowsFormat, write};

/// Columns of the table.
pub const COLUMNS: usize = 105;
