//! The experiments that this program contains: files of the directory `experiments/`, embedded at build time.

use super::{Experiment, FileError, parse};

/// The default experiment. Its service is an HTTP server, and its arms (conditions) are: the service alone, twice;
/// alone with the settings of isolation; next to SCHED_IDLE threads that keep every CPU busy; and next to threads that
/// burn CPU time, without and with isolation.
pub const QUICKSTART: &str = "quickstart";

/// Name and file content of each experiment.
pub const SHIPPED: &[(&str, &str)] = &[
    (QUICKSTART, include_str!("../../../../experiments/quickstart.toml")),
    ("clickhouse-vs-stress", include_str!("../../../../experiments/clickhouse-vs-stress.toml")),
    ("clickhouse-rate-vs-stress", include_str!("../../../../experiments/clickhouse-rate-vs-stress.toml")),
    ("http-vs-stress-ng", include_str!("../../../../experiments/http-vs-stress-ng.toml")),
    ("nginx-vs-ffmpeg", include_str!("../../../../experiments/nginx-vs-ffmpeg.toml")),
    ("nginx-wrk-vs-ffmpeg", include_str!("../../../../experiments/nginx-wrk-vs-ffmpeg.toml")),
    ("mechanisms-clickhouse", include_str!("../../../../experiments/mechanisms-clickhouse.toml")),
    ("mechanisms-nginx", include_str!("../../../../experiments/mechanisms-nginx.toml")),
    ("clickhouse-docker", include_str!("../../../../experiments/clickhouse-docker.toml")),
    ("postgres-vs-stress-ng", include_str!("../../../../experiments/postgres-vs-stress-ng.toml")),
    ("redis-vs-stress-ng", include_str!("../../../../experiments/redis-vs-stress-ng.toml")),
    ("sql-vs-stress-ng", include_str!("../../../../experiments/sql-vs-stress-ng.toml")),
    ("fio-vs-fio", include_str!("../../../../experiments/fio-vs-fio.toml")),
];

/// Returns the shipped experiment called `name`; `None` if there is no such experiment.
///
/// # Errors
/// If the embedded file is invalid, which tests rule out.
pub fn shipped(name: &str) -> Option<Result<Experiment, FileError>> {
    let (name, text) = SHIPPED.iter().find(|(known, _)| *known == name)?;
    Some(parse(name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 39
    #[test]
    fn every_one_can_be_read() {
        for (name, _) in SHIPPED {
            let experiment = shipped(name).unwrap().unwrap_or_else(|error| panic!("{error}"));
            assert!(!experiment.about.is_empty(), "{name} does not say what it is about");
            assert!(experiment.arms.len() >= 4, "{name}");
        }
        assert!(shipped("none").is_none());
    }
}
