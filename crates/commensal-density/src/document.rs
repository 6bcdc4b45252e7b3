//! Document 003 as a recorded ladder: the times that Arenadata's article prints, without its conclusions.

use crate::record::Ladder;

/// The article's table as JSON.
pub const ARENADATA: &str = include_str!("../../../fixtures/density/arenadata.json");

/// The article's table.
///
/// # Panics
/// Never: a test reads it.
#[must_use]
pub fn arenadata() -> Ladder {
    match Ladder::from_json(ARENADATA) {
        Ok(ladder) => ladder,
        Err(error) => unreachable!("the built-in ladder: {error}"),
    }
}
