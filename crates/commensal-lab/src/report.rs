//! What people read, rendered from a stored run alone.

mod csv;
mod markdown;
mod summary;
mod terminal;

pub use csv::csv;
pub use markdown::markdown;
pub use summary::{Summary, summarise};
pub use terminal::terminal;
