//! Options of the soak and the chaos soak, and functions that both use. A lull is a time without events, in which
//! resources are sampled.

use crate::stage::Used;
use commensal_core::units::{TimeSpan, UnitError};
use std::path::PathBuf;
use std::time::Duration;

/// Minimum number of lulls from which growth is computed.
const FEWEST_LULLS: usize = 4;
/// Maximum growth in file descriptors of an agent from the second to the last lull. A leak of one descriptor per change
/// would add up to some hundred.
const MORE_FDS: f64 = 8.0;
/// Maximum growth in memory, in KiB, of an agent from the second to the last lull. A leak of 1 KiB per change would add
/// up to some hundred.
const MORE_KIB: f64 = 2_048.0;
/// Options of a soak.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Duration.
    #[arg(long = "for", value_name = "TIME", default_value = "20m", value_parser = span)]
    pub(super) time: Duration,
    /// Seed of the random events.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// File for the record: a line of JSON per sample; with --chaos a single line.
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Run the chaos soak instead: storms alternate with calm periods. In a storm, system calls fail, agent and guard are
    /// killed or stopped, the disk is full, and other programs write; the invariants must hold all the time.
    #[arg(long)]
    pub(super) chaos: bool,
    /// With --chaos, use the build of the tests instead of an optimised one.
    #[arg(long, requires = "chaos")]
    pub(super) quick: bool,
}
impl Args {
    pub(super) fn words(&self) -> Vec<String> {
        let (time, seed) = (format!("{} ms", self.time.as_millis()), self.seed.to_string());
        // A duration such as `1m 30s` must be one argument.
        let mut words: Vec<String> = ["soak", "--for", &time, "--seed", &seed].map(str::to_owned).into();
        if let Some(path) = &self.record {
            words.extend(["--record".to_owned(), path.display().to_string()]);
        }
        words.extend(self.chaos.then(|| "--chaos".to_owned()));
        words.extend(self.quick.then(|| "--quick".to_owned()));
        words
    }
}
fn span(text: &str) -> Result<Duration, UnitError> {
    text.parse::<TimeSpan>().map(|span| span.0)
}
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
/// Finds the resources that the last agent and its guard used more of from lull to lull, and adds messages to `wrong`.
/// A lull consists of the time in minutes, the agent's resources and the guard's.
pub(super) fn growth(lulls: &[(f64, Used, Option<Used>)], wrong: &mut Vec<String>) {
    let count = lulls.len();
    // The first lull belongs to the warm-up.
    let lulls = lulls.get(1..).unwrap_or_default();
    if lulls.len() < FEWEST_LULLS - 1 {
        println!("growth: not measured: {count} lulls, and {FEWEST_LULLS} are needed");
        return;
    }
    type Figure = fn(&Used) -> f64;
    let figures: [(&str, Figure, f64); 3] = [
        ("KiB of memory", |one| one.rss_kib as f64, MORE_KIB),
        ("descriptors", |one| one.fds as f64, MORE_FDS),
        ("threads", |one| one.threads as f64, 0.0),
    ];
    for (name, figure, most) in figures {
        for who in ["agent", "guard"] {
            let of = |(at, agent, guard): &(f64, Used, Option<Used>)| {
                let used = if who == "agent" { Some(*agent) } else { *guard };
                used.map(|used| (*at, figure(&used)))
            };
            let points: Vec<(f64, f64)> = lulls.iter().filter_map(of).collect();
            let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
            let per_minute = slope(&points);
            let more = last.1 - first.1;
            println!(
                "growth of {name}, {who}: {per_minute:+.2} per minute over {:.0} minutes, {} to {}",
                last.0 - first.0,
                first.1,
                last.1
            );
            if more > most {
                wrong.push(format!("the {who} holds {more} {name} more in the last lull"));
            }
        }
    }
}
/// Slope of a least-squares line.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if square > 0.0 { both / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope_and_a_point_has_none() {
        assert!((slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) - 2.0).abs() < 1e-9);
        assert!(slope(&[(3.0, 7.0)]).abs() < 1e-9);
        assert!(slope(&[]).abs() < 1e-9);
    }

    #[test]
    fn last_lines_are_the_last() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }
}
