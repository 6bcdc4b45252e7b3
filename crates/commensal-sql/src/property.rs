//! Properties of a workload group. Apache Doris has had two sets of names for them. This module validates both sets,
//! and converts them to one internal form.
//!
//! The internal form uses the names of Doris 4.0 (`min_cpu_percent`, `max_cpu_percent`, `min_memory_percent`,
//! `max_memory_percent`). The older names mean the same and are accepted everywhere: `cpu_hard_limit` is
//! `max_cpu_percent`, `memory_limit` is `max_memory_percent`, `tag` is `compute_group`, `spill_threshold_*_watermark`
//! is `memory_*_watermark`. `cpu_share` is a separate property. `enable_memory_overcommit` specifies whether the memory
//! limit is soft; by default a limit written as `memory_limit` is soft, and one written as `max_memory_percent` is
//! hard.
//!
//! **Error messages** are those of the Doris version whose name was used: 4.0 for the new names and for names that both
//! versions have; 3.x for `cpu_share`, `cpu_hard_limit` and the sums of CPU and memory limits; 2.1 for `memory_limit`,
//! `enable_memory_overcommit`, `spill_threshold_*`, and the sums over groups that have a `tag`.
//!
//! **Extensions**: percentages may have fractions (kept to a thousandth of a percent), memory limits may be sizes
//! (`'1690MB'`), CPU limits may be numbers of CPUs (`'2.5 cores'`), rates may have units (`'100 MiB/s'`), and `class`
//! is `online` or `offline`. The default class is online. An online group runs inside the server and shares locks with
//! all other groups there, so its limits are enforced cooperatively, never by the kernel. An offline group runs in a
//! process of its own, so that the kernel can enforce its CPU limit, and its memory limit if the process itself does not
//! keep to it.

mod check;
mod set;
pub mod spec;
mod table;
mod values;

use crate::statement::Properties;

pub use check::{hard_limits_fill, sums};
pub use table::{
    Cell, EnforcedBy, GroupProperties, OnlySql, PropertyRow, ROWS, Shown, columns, not_enforced, shown,
};
pub use values::{
    DEFAULT_COMPUTE_GROUP, Limit, MEMORY_BASE, MemoryLimit, Named, PropertyError, SlotPolicy, SqlQueue,
    UNLIMITED, WHOLE, cpu_text, exact, percent,
};

impl GroupProperties {
    /// Builds the properties of a new group.
    ///
    /// # Errors
    /// [`PropertyError`] for the first property that is unknown or out of its range, or when two contradict each other.
    pub fn new(given: &Properties) -> Result<GroupProperties, PropertyError> {
        GroupProperties::default().altered(given)
    }

    /// Returns these properties with some of them changed, and validates the result as a whole. If a property has two
    /// names, a value given under one name replaces the value given under the other name.
    ///
    /// # Errors
    /// The errors of [`GroupProperties::new`].
    pub fn altered(&self, given: &Properties) -> Result<GroupProperties, PropertyError> {
        let mut new = self.clone();
        set(&mut new, given)?;
        check::one(&new, given)?;
        Ok(new)
    }
}

/// A setting of the whole cluster, not of a group. Older scripts set it as a property of a group.
const OF_THE_CLUSTER: &str = "enable_cpu_hard_limit";

fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name).chain([OF_THE_CLUSTER])
}

/// Parses and sets all given properties.
fn set(properties: &mut GroupProperties, given: &Properties) -> Result<(), PropertyError> {
    if let Some(name) = given.keys().find(|name| names().all(|known| known != *name)) {
        return Err(PropertyError(unknown(name, given)));
    }
    for (old, new) in ROWS.iter().filter_map(|row| Some((row.name, row.twin?))) {
        if given.contains_key(old) && given.contains_key(new) {
            let text = format!("{old} and {new} are two names of the same property, write only one of them");
            return Err(PropertyError(text));
        }
    }
    for row in ROWS {
        if let Some(value) = given.get(row.name) {
            (row.set)(properties, row.name, value.trim()).map_err(PropertyError)?;
        }
    }
    if given.contains_key(OF_THE_CLUSTER) {
        return Err(PropertyError(format!(
            "{OF_THE_CLUSTER} is not a property of a group: write ADMIN SET FRONTEND CONFIG (\"{OF_THE_CLUSTER}\" = \
             \"true\")"
        )));
    }
    let tag = given.get("tag").map(|tag| tag.trim());
    if tag.is_some() || given.contains_key("compute_group") {
        let old = tag.is_some_and(|tag| !tag.is_empty());
        properties.compute_group_named = if old { Named::Old } else { Named::New };
    }
    if given.keys().any(|name| name.starts_with("spill_threshold")) {
        // A group that uses the names of Doris 2.1 gets the defaults of 2.1.
        properties.memory_low_watermark.get_or_insert(50);
        properties.memory_high_watermark.get_or_insert(80);
    }
    Ok(())
}

fn unknown(name: &str, given: &Properties) -> String {
    let is_new = |name: &String| name.ends_with("_percent");
    let deprecated = if given.keys().any(is_new) { ", maybe it is deprecated" } else { "" };
    let near = names().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    let hint = near.filter(|(distance, _)| *distance <= 3);
    let hint = hint.map(|(_, known)| format!(" Did you mean {known}?")).unwrap_or_default();
    format!("Property {name} is not supported{deprecated}.{hint}")
}

#[cfg(test)]
mod tests;
