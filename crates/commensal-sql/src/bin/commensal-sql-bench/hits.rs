//! A synthetic table with ClickBench's schema: the 105 columns of its `hits`, with the same names and types, and values
//! with similar distributions. It contains no data of ClickBench.
//!
//! Every row depends only on the seed, its number and the total number of rows, so that rows can be generated in any
//! batches.
//!
//! ClickBench's own Parquet file stores times as seconds and texts as bytes without declaring that, so its engines
//! declare the types (`create.sql`). Here the file declares them: `DATE`, `TIMESTAMP` in milliseconds, and UTF-8.

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
