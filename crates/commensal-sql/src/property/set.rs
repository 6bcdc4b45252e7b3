//! Parsers for property values, with Doris' messages for values out of range; `table` maps each property to its parser.

use super::values::{DEFAULT_COMPUTE_GROUP, Limit, MemoryLimit, Named, SlotPolicy, WHOLE};
use commensal_core::group::Class;
use commensal_core::units::{Bytes, BytesPerS, CpuAmount, Ppm};

/// Percentages are rounded to this many ppm (parts per million), a thousandth of a percent. So a conversion from the
/// memory base (the share of memory that percentages refer to) to the machine and back does not change them.
const GRAIN_PPM: u64 = 10;

/// Parses like Java's `Integer.parseInt`.
fn integer(text: &str) -> Option<i32> {
    text.parse().ok()
}

/// Parses a share of at most 100 %, with or without a percent sign.
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

pub(super) fn class(name: &str, value: &str) -> Result<Class, String> {
    match value.to_lowercase().as_str() {
        "online" => Ok(Class::Online),
        "offline" => Ok(Class::Offline),
        _ => Err(format!("The value of '{name}' must be online or offline.")),
    }
}

pub(super) fn cpu_share(name: &str, value: &str) -> Result<Option<u32>, String> {
    match integer(value) {
        Some(-1) => Ok(None),
        Some(share) if share > 0 => Ok(u32::try_from(share).ok()),
        _ => Err(format!("The allowed {name} value is -1 or a positive integer, but input value is {value}")),
    }
}

pub(super) fn cpu_hard_limit(name: &str, value: &str) -> Result<Option<Limit<CpuAmount>>, String> {
    let limit = |amount| Ok(Some(Limit { amount, named: Named::Old }));
    match (value, positive_share(value), cpus(value)) {
        ("-1", ..) => Ok(None),
        (_, Some(share), _) => limit(CpuAmount::OfMachine(share)),
        (_, _, Some(cpus)) => limit(cpus),
        _ => Err(format!(
            "The allowed {name} value is -1 or a positive integer between 1 and 100, but input value is {value}"
        )),
    }
}

pub(super) fn memory_limit(name: &str, value: &str) -> Result<Option<Limit<MemoryLimit>>, String> {
    let amount = match (value, size(value)) {
        ("-1", _) => None,
        (_, Some(size)) => Some(size),
        _ if !value.ends_with('%') => {
            return Err(format!("{name} {value} requires a percentage and ends with a '%'"));
        }
        _ => Some(MemoryLimit::OfBase(large_share(name, value)?)),
    };
    Ok(amount.map(|amount| Limit { amount, named: Named::Old }))
}

/// Parses a share, also a share above 100 %: for such a share, Doris reports not the number but the sum over all
/// groups.
fn large_share(name: &str, value: &str) -> Result<Ppm, String> {
    if let Some(share) = positive_share(value) {
        return Ok(share);
    }
    let number: f64 = value.trim_end_matches('%').parse().unwrap_or(f64::NAN);
    if number > 100.0 && number.is_finite() && number < 1e9 {
        // The number is precise enough, because the sum check refuses it.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 100 and 1e9")]
        return Ok(Ppm((number * 1e4) as u64));
    }
    Err(format!("{name} {value} requires a positive floating point number."))
}

pub(super) fn overcommit(name: &str, value: &str) -> Result<Option<bool>, String> {
    let overcommit = value.to_lowercase().parse();
    overcommit.map(Some).map_err(|_| format!("The value of '{name}' must be true or false."))
}

pub(super) fn min_percent(name: &str, value: &str) -> Result<Ppm, String> {
    share(value)
        .ok_or_else(|| format!("The allowed {name} value has to be in [0,100], but input value is {value}"))
}

fn beyond(name: &str, value: &str) -> String {
    format!("The allowed {name} value has to be in [1,100], but input value is {value}")
}

pub(super) fn max_cpu_percent(name: &str, value: &str) -> Result<Option<Limit<CpuAmount>>, String> {
    let amount = positive_share(value).map(CpuAmount::OfMachine).or_else(|| cpus(value));
    let amount = amount.ok_or_else(|| beyond(name, value))?;
    Ok(Some(Limit { amount, named: Named::New }).filter(|_| amount != CpuAmount::OfMachine(WHOLE)))
}

pub(super) fn max_memory_percent(name: &str, value: &str) -> Result<Option<Limit<MemoryLimit>>, String> {
    let amount = positive_share(value).map(MemoryLimit::OfBase).or_else(|| size(value));
    let amount = amount.ok_or_else(|| beyond(name, value))?;
    Ok(Some(Limit { amount, named: Named::New }).filter(|_| amount != MemoryLimit::OfBase(WHOLE)))
}

pub(super) fn write_buffer_ratio(name: &str, value: &str) -> Result<Option<u32>, String> {
    let ratio = integer(value.strip_suffix('%').unwrap_or(value)).and_then(|ratio| u32::try_from(ratio).ok());
    ratio.map(Some).ok_or_else(|| format!("{name} {value} requires a positive int number."))
}

pub(super) fn slot_policy(name: &str, value: &str) -> Result<SlotPolicy, String> {
    let policies = [SlotPolicy::None, SlotPolicy::Fixed, SlotPolicy::Dynamic];
    let found = policies.into_iter().find(|policy| policy.to_string() == value.to_lowercase());
    found.ok_or_else(|| format!("The value of '{name}' must be one of none, fixed, dynamic."))
}

pub(super) fn threads(name: &str, value: &str) -> Result<Option<u32>, String> {
    match integer(value) {
        Some(-1) => Ok(None),
        Some(number) if number > 0 => Ok(u32::try_from(number).ok()),
        _ => Err(format!("The allowed {name} value is -1 or a positive integer. but input value is {value}")),
    }
}

pub(super) fn queue(name: &str, value: &str) -> Result<u32, String> {
    integer(value).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
        format!(
            "The allowed {name} value is an integer greater than or equal to 0, but input value is {value}"
        )
    })
}

pub(super) fn watermark(name: &str, value: &str) -> Result<Option<u32>, String> {
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
    Ok(mark)
}

pub(super) fn rate(name: &str, value: &str) -> Result<Option<BytesPerS>, String> {
    let number = value.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
    let bytes = number.or_else(|| value.parse::<Bytes>().map(|size| size.0).ok());
    let limit = bytes.map(BytesPerS).or_else(|| value.parse().ok()).filter(|limit| limit.0 > 0);
    if limit.is_none() && value != "-1" {
        return Err(format!(
            "The allowed {name} value should be -1 or an positive integer, but input value is {value}"
        ));
    }
    Ok(limit)
}

pub(super) fn compute_group(name: &str, value: &str) -> Result<String, String> {
    let fits = |character: char| character.is_alphanumeric() || "_-.".contains(character);
    if value.chars().count() > 64 || !value.chars().all(fits) {
        return Err(format!(
            "The allowed {name} value is a name of at most 64 letters, digits, \"_\", \"-\" and \".\", but input value is \
             {value:?}"
        ));
    }
    Ok(if value.is_empty() { DEFAULT_COMPUTE_GROUP.to_owned() } else { value.to_lowercase() })
}
