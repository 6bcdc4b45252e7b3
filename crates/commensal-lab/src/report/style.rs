//! Tables in the layout of three well-known documents, with our own figures, and with their figures corrected.
//!
//! Rows, columns and their order are those of the document; the labels are English. One convention holds in all of
//! them: a change is `(arm - baseline) / baseline` of unrounded values, its sign is always shown, and CPU changes are
//! percentage points. Documents give one run per arm, so their changes have two decimals by arithmetic alone; those of
//! a stored run have the digits that its noise floor supports.

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
    /// openEuler's example of co-location: one row per deployment, seconds.
    Openeuler,
    /// A test of the Alinux kernel: summaries in Prometheus' text format, then the interference of P95.
    Alinux,
    /// The plugsched article: one row per percentile of response time, milliseconds, and CPU use.
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

    /// The styles that follow a document.
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
            format!("no style {name:?}; there is {}", Self::NAMES.map(|(name, _)| name).join(", "))
        })
    }
}

/// A concluded run as a table in a document's layout.
#[must_use]
pub fn styled(run: &Run, style: Style) -> String {
    match document(style) {
        None => markdown(run),
        Some(document) => layout::table(style, &Figures::of_run(run, Some(document.lesson))),
    }
}
