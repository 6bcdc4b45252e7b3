//! A synthetic table for ClickBench's queries: the 105 columns of ClickBench's table `hits` with the same names and
//! types, and values with similar distributions. It contains no data of ClickBench.
//!
//! A row depends only on the seed, its number and the total number of rows, so rows can be generated in batches of any
//! size.
//!
//! ClickBench's own Parquet file stores times as integers and strings as bytes without declaring their types, so each
//! engine under test declares them (`create.sql`). The file written here declares the types itself: `DATE`, `TIMESTAMP`
//! in milliseconds, and UTF-8.

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
