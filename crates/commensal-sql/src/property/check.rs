//! Rules between properties: within one group, and across the groups of a compute group (Doris' set of backends). "ppm"
//! is parts per million.

use super::table::GroupProperties;
use super::values::{DEFAULT_COMPUTE_GROUP, MemoryLimit, Named, PropertyError, WHOLE, percent};
use crate::statement::Properties;
use commensal_core::units::{CpuAmount, Ppm};

/// Checks the rules within one group.
pub(super) fn one(properties: &GroupProperties, given: &Properties) -> Result<(), PropertyError> {
    let cpu = properties.max_cpu.and_then(|limit| match limit.amount {
        CpuAmount::OfMachine(share) => Some((share, limit.named)),
        CpuAmount::Cpus(_) => None,
    });
    minimum("cpu", properties.min_cpu, cpu)?;
    let memory = properties.max_memory.and_then(|limit| match limit.amount {
        MemoryLimit::OfBase(share) => Some((share, limit.named)),
        MemoryLimit::Size(_) => None,
    });
    minimum("memory", properties.min_memory, memory)?;
    let (max, min) = (properties.max_remote_scan_thread_num, properties.min_remote_scan_thread_num);
    if max.is_some() != min.is_some() {
        return refuse(
            "max_remote_scan_thread_num and min_remote_scan_thread_num must be specified simultaneously",
        );
    }
    if max < min {
        return refuse("max_remote_scan_thread_num must bigger or equal min_remote_scan_thread_num");
    }
    watermarks(properties, given)
}

fn refuse<T>(text: impl Into<String>) -> Result<T, PropertyError> {
    Err(PropertyError(text.into()))
}

/// Checks `min_*_percent` against the maximum. If the statement gave the maximum under its new name, the message is
/// that of Doris' group class, otherwise that of Doris' group manager.
fn minimum(what: &str, min: Ppm, max: Option<(Ppm, Named)>) -> Result<(), PropertyError> {
    let Some((max, named)) = max.filter(|(max, _)| *max < min) else { return Ok(()) };
    let (min, max) = (percent(min), percent(max));
    match named {
        Named::New => refuse(format!(
            "max_{what}_percent's value {} has to be great or equal than min_{what}_percent {}",
            max.trim_end_matches('%'),
            min.trim_end_matches('%'),
        )),
        Named::Old => refuse(format!(
            "min_{what}_percent is {min}, it should be less or equal than max_{what}_percent {max}"
        )),
    }
}

/// Checks the watermarks. Equal watermarks are allowed, although Doris' message demands different ones.
fn watermarks(properties: &GroupProperties, given: &Properties) -> Result<(), PropertyError> {
    let old = given.keys().any(|name| name.starts_with("spill_threshold"));
    let prefix = if old { "spill_threshold" } else { "memory" };
    let (low, high) = properties.watermarks();
    if low > high {
        return refuse(format!(
            "{prefix}_high_watermark({high}) should bigger than {prefix}_low_watermark({low})"
        ));
    }
    Ok(())
}

/// Returns the CPU hard limit of a group (ppm), if the statement gave it as `cpu_hard_limit` and as a share; otherwise
/// 0.
fn old_cpu(properties: &GroupProperties) -> u64 {
    match properties.max_cpu {
        Some(limit) if limit.named == Named::Old => match limit.amount {
            CpuAmount::OfMachine(share) => share.0,
            CpuAmount::Cpus(_) => 0,
        },
        _ => 0,
    }
}

/// Returns the memory limit of a group (ppm), if the statement gave it as `memory_limit` and as a share; otherwise 0.
fn old_memory(properties: &GroupProperties) -> u64 {
    match properties.max_memory {
        Some(limit) if limit.named == Named::Old => match limit.amount {
            MemoryLimit::OfBase(share) => share.0,
            MemoryLimit::Size(_) => 0,
        },
        _ => 0,
    }
}

/// Checks the rules across a compute group: `new` together with the other groups. Limits given under old names must not
/// add up to more than 100 %, as in Doris up to 3.x. Limits given under new names may exceed 100 % in total, but the
/// sums of `min_*_percent` may not. Memory sizes and numbers of CPUs are not included in the sums.
///
/// # Errors
/// [`PropertyError`] with Doris' message.
pub fn sums<'g>(
    new: &GroupProperties,
    others: impl Iterator<Item = &'g GroupProperties> + Clone,
) -> Result<(), PropertyError> {
    let together = others.filter(|other| other.compute_group == new.compute_group);
    let sum = |part: fn(&GroupProperties) -> u64| -> u64 {
        together.clone().map(part).fold(part(new), u64::saturating_add)
    };
    let (group, tagged) = (&new.compute_group, new.compute_group_named == Named::Old);
    // The group that adds to the sum is refused.
    let memory = sum(old_memory);
    if memory > WHOLE.0 && old_memory(new) > 0 {
        return refuse(if tagged {
            format!(
                "The sum of all workload group memory_limit within tag {group} cannot be greater than 100.0%."
            )
        } else {
            format!(
                "The sum of all workload group memory_limit within compute group {group} can not be greater than \
                 100.0%. current sum val:{}",
                with_decimal(memory)
            )
        });
    }
    let cpu = sum(old_cpu);
    if cpu > WHOLE.0 && old_cpu(new) > 0 {
        return refuse(if tagged {
            format!(
                "sum of all workload group cpu_hard_limit within tag {group} can not be greater than 100% "
            )
        } else {
            format!(
                "The sum of all workload group cpu_hard_limit within compute group {group} can not be greater than \
                 100%. current sum val:{}",
                percent(Ppm(cpu)).trim_end_matches('%')
            )
        });
    }
    if sum(|group| group.min_cpu.0) > WHOLE.0 {
        return refuse(format!("Sum of min_cpu_percent in {group} should be less than 100%"));
    }
    if sum(|group| group.min_memory.0) > WHOLE.0 {
        return refuse(format!("Sum of min_memory_percent in {group} should be less than 100%"));
    }
    Ok(())
}

/// Formats a number like Java's floating point numbers: always with a decimal, even `.0`.
fn with_decimal(ppm: u64) -> String {
    let text = percent(Ppm(ppm));
    let text = text.trim_end_matches('%');
    if text.contains('.') { text.to_owned() } else { format!("{text}.0") }
}

/// Returns a warning if the CPU hard limits of a compute group leave no CPU time for work that the server does outside
/// of groups (document 002, advice on CPU hard limits).
#[must_use]
pub fn hard_limits_fill<'g>(
    new: &GroupProperties,
    others: impl Iterator<Item = &'g GroupProperties>,
) -> Option<String> {
    let share = |group: &GroupProperties| match group.max_cpu.map(|limit| limit.amount) {
        Some(CpuAmount::OfMachine(share)) => share.0,
        _ => 0,
    };
    let own = share(new);
    let together = others.filter(|other| other.compute_group == new.compute_group);
    let sum = together.map(share).fold(own, u64::saturating_add);
    let group = if new.compute_group == DEFAULT_COMPUTE_GROUP { "" } else { new.compute_group.as_str() };
    let within = if group.is_empty() { String::new() } else { format!(" of compute group {group}") };
    (own > 0 && sum >= WHOLE.0).then(|| {
        format!(
            "the CPU hard limits{within} add up to {}: nothing is left for the server's own work, which makes short \
             queries wait; leave some per cent free",
            percent(Ppm(sum))
        )
    })
}
