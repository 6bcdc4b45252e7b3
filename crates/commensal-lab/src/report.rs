//! Reports of a run for people and for programs. Each report is computed from a stored run only.

mod answer;
mod charts;
mod csv;
pub mod curve;
mod diff;
mod history;
mod html;
mod junit;
mod markdown;
mod points;
mod profile;
mod since;
pub mod style;
mod summary;
mod sweep;
mod terminal;

/// Building blocks of pages and charts, for reports of other crates in the same style.
pub mod draw {
    pub use super::charts::{
        Canvas, NARROW, Scale, WIDE, escape, extent, log_steps, round_steps, trimmed, words,
    };
    pub use super::html::sheet;
}

pub use charts::{Chart, charts};
pub use csv::csv;
pub use diff::{Diff, DiffRow, Estimate, comparable, compare, diff};
pub use history::{history_html, history_text};
pub use html::html;
pub use junit::junit;
pub use markdown::markdown;
pub use profile::profile;
pub use style::{Style, styled};
pub use summary::{Summary, summarise};
pub use sweep::curves;
pub use terminal::terminal;
