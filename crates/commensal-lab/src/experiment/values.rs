//! Parsers for the values in an experiment file, and the error for an invalid file.

use super::Rate;
use crate::record::Metric;
use commensal_core::toml_reader::ConfigError;
use commensal_core::units::{Millis, TimeSpan, UnitError};

/// The mistakes in an experiment file and in the files that it is based on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  "))]
pub struct FileError {
    /// All mistakes, sorted by file and then by position in the text.
    pub wrong: Vec<ConfigError>,
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    Ok(text.parse::<Millis>().map_err(|error| error.to_string())?.0 as f64 / 1e3)
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').ok_or("give a percentage, such as \"5 %\"")?;
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("the number before the % must be above 0".to_owned()),
    }
}

pub(super) fn metric(text: &str) -> Result<Metric, String> {
    let known = Metric::ALL.into_iter().find(|metric| metric.label().eq_ignore_ascii_case(text.trim()));
    let labels = Metric::ALL.map(Metric::label).join(", ");
    known.ok_or_else(|| format!("unknown metric; the choices are {labels}"))
}

/// Parses a latency such as `20 ms` or `500 us`; returns microseconds.
pub(super) fn latency(text: &str) -> Result<f64, String> {
    let TimeSpan(time) = text.parse().map_err(|error: UnitError| error.to_string())?;
    if time.is_zero() { Err("the time must be above 0".to_owned()) } else { Ok(time.as_nanos() as f64 / 1e3) }
}

/// Parses the name of a latency percentile.
pub(super) fn percentile(text: &str) -> Result<Metric, String> {
    match metric(text)? {
        Metric::Qps => Err("give a percentile, such as P99".to_owned()),
        percentile => Ok(percentile),
    }
}

/// Parses a duration; returns seconds, or an error if the duration is not within `low` to `high` seconds.
pub(super) fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    match seconds(text)? {
        time if (low..=high).contains(&time) => Ok(time),
        _ => Err(format!("must be {low} s to {high} s")),
    }
}

/// Parses the window length of a service level objective. The length is in whole seconds, because a block's time series
/// has one entry per second.
pub(super) fn window(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        time if (1.0..=3_600.0).contains(&time) && time.fract() == 0.0 => Ok(time),
        _ => Err("give whole seconds, 1 to 3600".to_owned()),
    }
}

pub(super) fn share(text: &str) -> Result<(), String> {
    percent(text).map(drop)
}

pub(super) fn path(text: &str) -> Result<(), String> {
    if text.starts_with('/') {
        Ok(())
    } else {
        Err("give a path that starts with /, such as \"/\"".to_owned())
    }
}

pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1e6);
    let share = percent(text).ok().filter(|percent| *percent <= 100.0);
    number.map(Rate::PerSecond).or(share.map(|percent| Rate::OfKnee(percent / 100.0))).ok_or_else(|| {
        "give a rate of at most 1000000 requests per second, or a share of the rate that the service sustains, at most \"100 %\""
            .to_owned()
    })
}
