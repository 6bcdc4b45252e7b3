//! Tables in the layout of three well-known documents. A table shows either the values of a run, or the document's
//! own raw values with the changes computed again.
//!
//! Each table has the document's rows and columns, in the document's order, with English labels. All tables follow one
//! convention: a change is `(arm - baseline) / baseline` of unrounded values, its sign is always shown, and CPU changes
//! are in percentage points. The documents have only one run per arm. So the two decimals of their changes show only
//! that the arithmetic is right, not that the measurement is precise. Changes of a stored run have as many digits as
//! the run's noise floor supports.

mod documents;
mod figures;
mod layout;
#[cfg(test)]
mod tests;

pub use documents::{Document, Printed, document, page};
pub use figures::{ArmFigures, Figures};

use super::markdown;
use crate::record::Run;
use std::fmt;
use std::str::FromStr;

/// The layout of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// The Markdown report of the lab.
    #[default]
    Default,
    /// The layout of openEuler's co-location example: one row per deployment, latencies in seconds.
    Openeuler,
    /// The layout of a test of the Alinux kernel: summaries in Prometheus' text format, then the interference on P95.
    Alinux,
    /// The layout of the plugsched article: one row per response-time percentile (in milliseconds), then a row for CPU
    /// use; one column per arm.
    Plugsched,
}

impl Style {
    /// All styles with their names.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("default", Self::Default),
        ("openeuler", Self::Openeuler),
        ("alinux", Self::Alinux),
        ("plugsched", Self::Plugsched),
    ];

    /// The styles that imitate a document.
    pub const DOCUMENTS: [Self; 3] = [Self::Openeuler, Self::Alinux, Self::Plugsched];
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, style)| style == self).map_or("default", |(name, _)| name))
    }
}

impl FromStr for Style {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, style)| *style);
        found.ok_or_else(|| {
            format!("no style {name:?}; the choices are {}", Self::NAMES.map(|(name, _)| name).join(", "))
        })
    }
}

/// Formats a concluded run as a table in a document's layout.
#[must_use]
pub fn styled(run: &Run, style: Style) -> String {
    match document(style) {
        None => markdown(run),
        Some(document) => layout::table(style, &Figures::of_run(run, Some(document.lesson))),
    }
}
