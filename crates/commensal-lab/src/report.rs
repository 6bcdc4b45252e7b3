//! What people read, rendered from a stored run alone.

mod csv;
mod markdown;
pub mod style;
mod summary;
mod terminal;

pub use csv::csv;
pub use markdown::markdown;
pub use style::{Style, styled};
pub use summary::{Summary, summarise};
pub use terminal::terminal;
