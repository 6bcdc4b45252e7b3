//! Arenadata's article on the density of VMs ("document 003") as a recorded ladder: a series of measurements with more
//! and more sessions. It has the times that the article prints, but not the article's conclusions.

use crate::record::Ladder;

/// The article's table, in JSON.
pub const ARENADATA: &str = include_str!("../../../fixtures/density/arenadata.json");

/// Returns the article's table.
///
/// # Panics
/// Never: the file is part of the program, and a test parses it.
#[must_use]
pub fn arenadata() -> Ladder {
    match Ladder::from_json(ARENADATA) {
        Ok(ladder) => ladder,
        Err(error) => unreachable!("the built-in ladder: {error}"),
    }
}
