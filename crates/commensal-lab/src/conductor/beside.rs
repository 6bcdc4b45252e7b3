//! A neighbour that is not part of a run: the run's results should hold beside it, too.
//!
//! It is in a separate cgroup beside the service, like a build in another session, and is counted as foreign.

use commensal_host::{SpawnSpec, Stderr, Stdout};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// How long a built-in neighbour computes at a time, us.
const STRETCH_US: f64 = 20_000.0;
/// Maximum number of CPUs of a built-in neighbour.
const MOST_CPUS: f64 = 64.0;

/// The neighbour.
#[derive(Debug, Clone, PartialEq)]
pub enum Beside {
    /// Threads that compute and sleep, and use this number of CPUs if available.
    Busy(f64),
    /// A shell command; it is restarted whenever it ends.
    Command(String),
}

impl Beside {
    /// The process of it; `program` is this program.
    pub(super) fn process(&self, program: &Path) -> SpawnSpec {
        let mut spec = match self {
            Beside::Busy(cpus) => {
                let threads = cpus.ceil().max(1.0);
                let share = cpus / threads;
                let sleep_us = STRETCH_US * (1.0 - share) / share;
                SpawnSpec::new(program)
                    .arg("workload")
                    .arg("pulse")
                    .arg("--threads")
                    .arg(threads.to_string())
                    .arg("--work-us")
                    .arg(STRETCH_US.to_string())
                    .arg("--period-us")
                    .arg(format!("{sleep_us:.0}"))
            }
            // A command that fails at once would make the shell restart it constantly.
            Beside::Command(line) => SpawnSpec::new("sh")
                .arg("-c")
                .arg(format!("while :; do\n{line}\n[ $? = 0 ] || sleep 1\ndone")),
        };
        (spec.stdout, spec.stderr) = (Stdout::Null, Stderr::Null);
        spec
    }
}

impl FromStr for Beside {
    type Err = String;

    fn from_str(text: &str) -> Result<Beside, String> {
        let Some(cpus) = text.strip_prefix("busy:") else {
            let line = text.trim();
            return match line.is_empty() {
                true => Err("it is empty: use busy:CPUS, such as busy:0.5, or a command".to_owned()),
                false => Ok(Beside::Command(line.to_owned())),
            };
        };
        match cpus.parse::<f64>() {
            Ok(cpus) if cpus > 0.0 && cpus <= MOST_CPUS => Ok(Beside::Busy(cpus)),
            _ => Err(format!("busy:{cpus}: it is not a number of CPUs above 0 and up to {MOST_CPUS}")),
        }
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Beside::Busy(cpus) => write!(f, "busy:{cpus}"),
            Beside::Command(line) => f.write_str(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_neighbour_may_be() {
        let check = |text: &str, want: Beside| {
            let got: Beside = text.parse().unwrap();
            assert_eq!(got, want);
            assert_eq!(got.to_string().parse::<Beside>().unwrap(), want);
        };
        check("busy:0.5", Beside::Busy(0.5));
        check("busy:2", Beside::Busy(2.0));
        check(" make -j2 ", Beside::Command("make -j2".to_owned()));
        check("busy", Beside::Command("busy".to_owned()));
        for wrong in ["", " ", "busy:", "busy:0", "busy:-1", "busy:nan", "busy:65", "busy:x"] {
            assert!(wrong.parse::<Beside>().is_err(), "{wrong:?}");
        }
    }
}
