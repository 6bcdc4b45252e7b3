//! One property after the other: its name, its range, and Doris' text for what is outside of it.

use super::{GroupProperties, Limit, MemoryLimit, Named, PropertyError, SlotPolicy, WHOLE};
use crate::statement::Properties;
use commensal_core::group::Class;
use commensal_core::units::{Bytes, BytesPerS, CpuAmount, Ppm};

type Setter = fn(&mut GroupProperties, &str, &str) -> Result<(), String>;
/// Percents are kept to a thousandth of one, so that they survive the conversion from the memory base to the machine.
const GRAIN_PPM: u64 = 10;

/// Every property, in the order in which Doris judges them.
const PROPERTIES: [(&str, Setter); 26] = [
    ("class", class),
    ("cpu_share", cpu_share),
    ("cpu_hard_limit", cpu_hard_limit),
    ("memory_limit", memory_limit),
    ("enable_memory_overcommit", overcommit),
    ("min_cpu_percent", min_percent),
    ("max_cpu_percent", max_cpu_percent),
    ("max_memory_percent", max_memory_percent),
    ("min_memory_percent", min_percent),
    ("write_buffer_ratio", write_buffer_ratio),
    ("slot_memory_policy", slot_policy),
    ("scan_thread_num", threads),
    ("max_remote_scan_thread_num", threads),
    ("min_remote_scan_thread_num", threads),
    ("max_concurrency", queue),
    ("max_queue_size", queue),
    ("queue_timeout", queue),
    ("spill_threshold_low_watermark", watermark),
    ("spill_threshold_high_watermark", watermark),
    ("memory_low_watermark", watermark),
    ("memory_high_watermark", watermark),
    ("read_bytes_per_second", rate),
    ("remote_read_bytes_per_second", rate),
    ("tag", compute_group),
    ("compute_group", compute_group),
    ("enable_cpu_hard_limit", cluster_wide),
];
/// Two names of one thing.
const TWINS: [(&str, &str); 5] = [
    ("cpu_hard_limit", "max_cpu_percent"),
    ("memory_limit", "max_memory_percent"),
    ("tag", "compute_group"),
    ("spill_threshold_low_watermark", "memory_low_watermark"),
    ("spill_threshold_high_watermark", "memory_high_watermark"),
];

/// Sets all that is given.
pub(super) fn all(properties: &mut GroupProperties, given: &Properties) -> Result<(), PropertyError> {
    if let Some(name) = given.keys().find(|name| PROPERTIES.iter().all(|(known, _)| known != name)) {
        return Err(PropertyError(unknown(name, given)));
    }
    for (old, new) in TWINS {
        if given.contains_key(old) && given.contains_key(new) {
            let text = format!("{old} and {new} are two names of the same property, write only one of them");
            return Err(PropertyError(text));
        }
    }
    for (name, set) in PROPERTIES {
        if let Some(value) = given.get(name) {
            set(properties, name, value.trim()).map_err(PropertyError)?;
        }
    }
    if given.keys().any(|name| name.starts_with("spill_threshold")) {
        // Who speaks 2.1 means its defaults.
        properties.low_watermark.get_or_insert(50);
        properties.high_watermark.get_or_insert(80);
    }
    Ok(())
}

fn unknown(name: &str, given: &Properties) -> String {
    let is_new = |name: &String| name.ends_with("_percent");
    let deprecated = if given.keys().any(is_new) { ", maybe it is deprecated" } else { "" };
    let near = PROPERTIES.iter().map(|(known, _)| (strsim::damerau_levenshtein(name, known), *known)).min();
    let hint = near.filter(|(distance, _)| *distance <= 3);
    let hint = hint.map(|(_, known)| format!(" Did you mean {known}?")).unwrap_or_default();
    format!("Property {name} is not supported{deprecated}.{hint}")
}

/// As Java's `Integer.parseInt`.
fn integer(text: &str) -> Option<i32> {
    text.parse().ok()
}

/// A share with or without a percent sign, at most the whole.
fn share(text: &str) -> Option<Ppm> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = format!("{number} %").parse::<Ppm>().ok().filter(|_| plain)?;
    let rounded = (share.0 + GRAIN_PPM / 2) / GRAIN_PPM * GRAIN_PPM;
    let some = number.bytes().any(|byte| (b'1'..=b'9').contains(&byte));
    (share <= WHOLE).then_some(Ppm(if some { rounded.max(GRAIN_PPM) } else { 0 }))
}

fn positive_share(text: &str) -> Option<Ppm> {
    share(text).filter(|share| share.0 > 0)
}

fn cpus(text: &str) -> Option<CpuAmount> {
    text.parse().ok().filter(|amount| matches!(amount, CpuAmount::Cpus(_)))
}

fn size(text: &str) -> Option<MemoryLimit> {
    text.parse::<Bytes>().ok().filter(|size| size.0 > 0).map(MemoryLimit::Size)
}

fn class(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    properties.class = match value.to_lowercase().as_str() {
        "online" => Class::Online,
        "offline" => Class::Offline,
        _ => return Err(format!("The value of '{name}' must be online or offline.")),
    };
    Ok(())
}

fn cpu_share(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    properties.cpu_share = match integer(value) {
        Some(-1) => None,
        Some(share) if share > 0 => u32::try_from(share).ok(),
        _ => {
            return Err(format!(
                "The allowed {name} value is -1 or a positive integer, but input value is {value}"
            ));
        }
    };
    Ok(())
}

fn cpu_hard_limit(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let limit = |amount| Limit { amount, named: Named::Old };
    properties.max_cpu = match (value, positive_share(value), cpus(value)) {
        ("-1", ..) => None,
        (_, Some(share), _) => Some(limit(CpuAmount::OfMachine(share))),
        (_, _, Some(cpus)) => Some(limit(cpus)),
        _ => {
            return Err(format!(
                "The allowed {name} value is -1 or a positive integer between 1 and 100, but input value is {value}"
            ));
        }
    };
    Ok(())
}

fn memory_limit(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let amount = match (value, size(value)) {
        ("-1", _) => None,
        (_, Some(size)) => Some(size),
        _ if !value.ends_with('%') => {
            return Err(format!("{name} {value} requires a percentage and ends with a '%'"));
        }
        _ => Some(MemoryLimit::OfBase(large_share(name, value)?)),
    };
    properties.max_memory = amount.map(|amount| Limit { amount, named: Named::Old });
    Ok(())
}

/// More than the whole is for Doris not a matter of the number but of the sum over all groups.
fn large_share(name: &str, value: &str) -> Result<Ppm, String> {
    if let Some(share) = positive_share(value) {
        return Ok(share);
    }
    let number: f64 = value.trim_end_matches('%').parse().unwrap_or(f64::NAN);
    if number > 100.0 && number.is_finite() && number < 1e9 {
        // Exact enough for a number that is refused a moment later.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 100 and 1e9")]
        return Ok(Ppm((number * 1e4) as u64));
    }
    Err(format!("{name} {value} requires a positive floating point number."))
}

fn overcommit(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let overcommit = value.to_lowercase().parse();
    properties.overcommit =
        Some(overcommit.map_err(|_| format!("The value of '{name}' must be true or false."))?);
    Ok(())
}

fn min_percent(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let share = share(value).ok_or_else(|| {
        format!("The allowed {name} value has to be in [0,100], but input value is {value}")
    })?;
    let place = if name == "min_cpu_percent" { &mut properties.min_cpu } else { &mut properties.min_memory };
    *place = share;
    Ok(())
}

fn beyond(name: &str, value: &str) -> String {
    format!("The allowed {name} value has to be in [1,100], but input value is {value}")
}

fn max_cpu_percent(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let amount = positive_share(value).map(CpuAmount::OfMachine).or_else(|| cpus(value));
    let amount = amount.ok_or_else(|| beyond(name, value))?;
    properties.max_cpu =
        Some(Limit { amount, named: Named::New }).filter(|_| amount != CpuAmount::OfMachine(WHOLE));
    Ok(())
}

fn max_memory_percent(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let amount = positive_share(value).map(MemoryLimit::OfBase).or_else(|| size(value));
    let amount = amount.ok_or_else(|| beyond(name, value))?;
    properties.max_memory =
        Some(Limit { amount, named: Named::New }).filter(|_| amount != MemoryLimit::OfBase(WHOLE));
    Ok(())
}

fn write_buffer_ratio(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let ratio = integer(value.strip_suffix('%').unwrap_or(value)).and_then(|ratio| u32::try_from(ratio).ok());
    let ratio = ratio.ok_or_else(|| format!("{name} {value} requires a positive int number."))?;
    properties.write_buffer_ratio = Some(ratio);
    Ok(())
}

fn slot_policy(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let policies = [SlotPolicy::None, SlotPolicy::Fixed, SlotPolicy::Dynamic];
    let found = policies.into_iter().find(|policy| policy.to_string() == value.to_lowercase());
    properties.slot_memory_policy =
        found.ok_or_else(|| format!("The value of '{name}' must be one of none, fixed, dynamic."))?;
    Ok(())
}

fn threads(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let number = match integer(value) {
        Some(-1) => None,
        Some(number) if number > 0 => u32::try_from(number).ok(),
        _ => {
            return Err(format!(
                "The allowed {name} value is -1 or a positive integer. but input value is {value}"
            ));
        }
    };
    let place = match name {
        "scan_thread_num" => &mut properties.scan_thread_num,
        "max_remote_scan_thread_num" => &mut properties.max_remote_scan_thread_num,
        _ => &mut properties.min_remote_scan_thread_num,
    };
    *place = number;
    Ok(())
}

fn queue(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let number = integer(value).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
        format!(
            "The allowed {name} value is an integer greater than or equal to 0, but input value is {value}"
        )
    })?;
    let place = match name {
        "max_concurrency" => &mut properties.max_concurrency,
        "max_queue_size" => &mut properties.max_queue_size,
        _ => &mut properties.queue_timeout_ms,
    };
    *place = number;
    Ok(())
}

fn watermark(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let shown = value.strip_suffix('%').unwrap_or(value);
    let old = name.starts_with("spill");
    let mark =
        integer(shown).and_then(|mark| u32::try_from(mark).ok()).filter(|mark| (1..=100).contains(mark));
    if mark.is_none() && !(old && shown == "-1") {
        return Err(if old {
            format!("{name} must be a positive integer(1 ~ 100) or -1. but input value is {shown}")
        } else {
            format!(
                "The allowed {name} value is an integer value between 1 and 100, but input value is {shown}"
            )
        });
    }
    let low = name.ends_with("low_watermark");
    *(if low { &mut properties.low_watermark } else { &mut properties.high_watermark }) = mark;
    Ok(())
}

fn rate(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let with_unit = || {
        let per_s = value.parse::<BytesPerS>().map(|rate| rate.0).ok();
        per_s.or_else(|| value.parse::<Bytes>().map(|size| size.0).ok())
    };
    let number = value.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
    let limit = number.or_else(with_unit).filter(|limit| *limit > 0);
    if limit.is_none() && value != "-1" {
        return Err(format!(
            "The allowed {name} value should be -1 or an positive integer, but input value is {value}"
        ));
    }
    let remote = name.starts_with("remote");
    *(if remote {
        &mut properties.remote_read_bytes_per_second
    } else {
        &mut properties.read_bytes_per_second
    }) = limit;
    Ok(())
}

fn compute_group(properties: &mut GroupProperties, name: &str, value: &str) -> Result<(), String> {
    let fits = |character: char| character.is_alphanumeric() || "_-.".contains(character);
    if value.chars().count() > 64 || !value.chars().all(fits) {
        return Err(format!(
            "The allowed {name} value is a name of at most 64 letters, digits, \"_\", \"-\" and \".\", but input value is \
             {value:?}"
        ));
    }
    let old = name == "tag";
    properties.compute_group_named = if old && !value.is_empty() { Named::Old } else { Named::New };
    properties.compute_group =
        if value.is_empty() { super::DEFAULT_COMPUTE_GROUP.to_owned() } else { value.to_lowercase() };
    Ok(())
}

fn cluster_wide(_: &mut GroupProperties, name: &str, _: &str) -> Result<(), String> {
    Err(format!("{name} is no property of a group: write ADMIN SET FRONTEND CONFIG (\"{name}\" = \"true\")"))
}
