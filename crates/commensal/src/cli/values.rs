//! Parsers of option values, and the errors for invalid ones.

use anyhow::Context as _;
use commensal_core::units::{TimeSpan, UnitError};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use commensal_lab::experiment::objective;

/// Parses a rate in requests per second: above 0, at most 1000000.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(rate),
        _ => Err("a rate is a number of requests per second, above 0 and at most 1000000".to_owned()),
    }
}

/// Parses a span of time.
pub fn span(text: &str) -> Result<Duration, UnitError> {
    text.parse::<TimeSpan>().map(|span| span.0)
}

/// Parses a span of time within these bounds; `what` is the error message for other values.
pub fn span_within(text: &str, bounds: RangeInclusive<Duration>, what: &str) -> Result<Duration, String> {
    let time = span(text).map_err(|error| error.to_string())?;
    if bounds.contains(&time) { Ok(time) } else { Err(what.to_owned()) }
}

/// Parses a span of time above 0.
pub fn time(text: &str) -> Result<Duration, String> {
    span_within(text, Duration::from_nanos(1)..=Duration::MAX, "it must be above 0, such as 10s")
}

/// Parses a window length: 1 s to 1 day, in whole seconds.
pub fn whole_seconds(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    if time.subsec_nanos() != 0 || time > Duration::from_secs(86_400) {
        return Err("a window is a whole number of seconds, from 1s to a day".to_owned());
    }
    Ok(time)
}

/// Checks a host name for ssh.
pub fn ssh_host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with('-') || !text.chars().all(|c| c.is_ascii_graphic()) {
        return Err("not a host that ssh accepts, such as user@host or a Host of ~/.ssh/config".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a limit: a non-negative finite number.
pub fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        Ok(_) => Err("it must be a finite number, 0 or more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the absolute path.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is not a path", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_lab::record::Metric;

    #[test]
    fn values_that_no_run_can_honour() {
        for text in ["0", "-1", "nan", "inf", "1e7", "", "fast", "1e-400"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(rate("2.5"), Ok(2.5));
        for text in ["0s", "0", "", "-1s", "10"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["500ms", "1500ms", "2days"] {
            assert!(whole_seconds(text).is_err(), "{text}");
        }
        for text in ["", "p99", "p98=5ms", "qps=5ms", "p99=0s", "p99=5", "=5ms"] {
            assert!(objective(text).is_err(), "{text}");
        }
        assert_eq!(objective("P99.9=250us"), Ok((Metric::P999, 250.0)));
    }

    #[test]
    fn hosts_that_ssh_takes() {
        for bad in ["", "-oProxyCommand=x", "a b", "h\n"] {
            assert!(ssh_host(bad).is_err(), "{bad:?}");
        }
        assert!(ssh_host("user@host.example").is_ok() && ssh_host("ssh://user@host:2222").is_ok());
    }
}
