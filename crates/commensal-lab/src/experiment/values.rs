//! Values of keys of an experiment, and why a file is refused.

use super::Rate;
use crate::record::Metric;
use commensal_core::toml_reader::ConfigError;
use commensal_core::units::{Millis, TimeSpan, UnitError};

/// The mistakes in a file and in those that it is based on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  "))]
pub struct FileError {
    /// Every mistake, file by file, in the order of the text.
    pub wrong: Vec<ConfigError>,
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    Ok(text.parse::<Millis>().map_err(|error| error.to_string())?.0 as f64 / 1e3)
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').ok_or("an amount such as \"5 %\" is needed")?;
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("a number above 0 is needed before the %".to_owned()),
    }
}

pub(super) fn metric(text: &str) -> Result<Metric, String> {
    let known = Metric::ALL.into_iter().find(|metric| metric.label().eq_ignore_ascii_case(text.trim()));
    let labels = Metric::ALL.map(Metric::label).join(", ");
    known.ok_or_else(|| format!("there is no such metric; there are {labels}"))
}

/// `20 ms` and `500 us`, in microseconds.
pub(super) fn latency(text: &str) -> Result<f64, String> {
    let TimeSpan(time) = text.parse().map_err(|error: UnitError| error.to_string())?;
    if time.is_zero() { Err("a time above 0 is needed".to_owned()) } else { Ok(time.as_nanos() as f64 / 1e3) }
}

/// A metric that is a latency percentile.
pub(super) fn percentile(text: &str) -> Result<Metric, String> {
    match metric(text)? {
        Metric::Qps => Err("a percentile is needed".to_owned()),
        percentile => Ok(percentile),
    }
}

/// A duration between these bounds, in seconds.
pub(super) fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    match seconds(text)? {
        time if (low..=high).contains(&time) => Ok(time),
        _ => Err(format!("not within {low} to {high} s")),
    }
}

/// A window length in whole seconds, since a block's series has one entry per second.
pub(super) fn window(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        time if (1.0..=3_600.0).contains(&time) && time.fract() == 0.0 => Ok(time),
        _ => Err("whole seconds from 1 to 3600 are needed".to_owned()),
    }
}

pub(super) fn share(text: &str) -> Result<(), String> {
    percent(text).map(drop)
}

pub(super) fn path(text: &str) -> Result<(), String> {
    if text.starts_with('/') { Ok(()) } else { Err("a path such as \"/\" is needed".to_owned()) }
}

pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1e6);
    let share = percent(text).ok().filter(|percent| *percent <= 100.0);
    number.map(Rate::PerSecond).or(share.map(|percent| Rate::OfKnee(percent / 100.0))).ok_or_else(|| {
        "requests per second up to 1000000, or up to \"100 %\" of what the service can do".to_owned()
    })
}
