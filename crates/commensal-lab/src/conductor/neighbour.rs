//! A neighbour: a process outside the experiment that runs on the machine during a run. Calibrations use one to test
//! whether verdicts are also right on a busy machine.
//!
//! The neighbour runs in a separate cgroup next to the service, like a build in another session. The record counts the
//! neighbour's CPU use as `other`.

use crate::workload::steal::MAX_MS_PER_S;
use commensal_host::{SpawnSpec, Stderr, Stdout};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// How long a thread of the built-in neighbour computes before it sleeps (µs).
const STRETCH_US: f64 = 20_000.0;
/// Maximum number of CPUs that the built-in neighbour can use.
const MOST_CPUS: f64 = 64.0;

/// What the neighbour runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Neighbour {
    /// Threads that compute and sleep by turns, and together use this number of CPUs if the machine has them free.
    Busy(f64),
    /// A stand-in for a hypervisor that takes this time per second (ms) from CPUs that idle. The record counts that time as
    /// steal.
    Steal(u64),
    /// A shell command, which restarts whenever it exits.
    Command(String),
}

impl Neighbour {
    /// Returns how to start the neighbour; `program` is the path of this program.
    pub(super) fn process(&self, program: &Path) -> SpawnSpec {
        let mut spec = match self {
            Neighbour::Busy(cpus) => {
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
            Neighbour::Steal(ms_per_s) => SpawnSpec::new(program)
                .arg("workload")
                .arg("steal")
                .arg("--ms-per-s")
                .arg(ms_per_s.to_string()),
            // After a failure, the shell waits for a second before it restarts the command, so that a command that
            // fails immediately does not restart all the time.
            Neighbour::Command(line) => SpawnSpec::new("sh")
                .arg("-c")
                .arg(format!("while :; do\n{line}\n[ $? = 0 ] || sleep 1\ndone")),
        };
        (spec.stdout, spec.stderr) = (Stdout::Null, Stderr::Null);
        spec
    }
}

impl FromStr for Neighbour {
    type Err = String;

    fn from_str(text: &str) -> Result<Neighbour, String> {
        if let Some(ms) = text.strip_prefix("steal:") {
            return match ms.parse::<u64>() {
                Ok(ms) if (1..=MAX_MS_PER_S).contains(&ms) => Ok(Neighbour::Steal(ms)),
                _ => Err(format!("steal:{ms}: the time per second must be 1 to {MAX_MS_PER_S} ms")),
            };
        }
        let Some(cpus) = text.strip_prefix("busy:") else {
            let line = text.trim();
            return match line.is_empty() {
                true => Err("the value is empty: use busy:CPUS, such as busy:0.5, steal:MS, such as steal:30, or a command".to_owned()),
                false => Ok(Neighbour::Command(line.to_owned())),
            };
        };
        match cpus.parse::<f64>() {
            Ok(cpus) if cpus > 0.0 && cpus <= MOST_CPUS => Ok(Neighbour::Busy(cpus)),
            _ => Err(format!("busy:{cpus}: the number of CPUs must be above 0 and at most {MOST_CPUS}")),
        }
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Neighbour::Busy(cpus) => write!(f, "busy:{cpus}"),
            Neighbour::Steal(ms) => write!(f, "steal:{ms}"),
            Neighbour::Command(line) => f.write_str(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_neighbour_may_be() {
        let check = |text: &str, want: Neighbour| {
            let got: Neighbour = text.parse().unwrap();
            assert_eq!(got, want);
            assert_eq!(got.to_string().parse::<Neighbour>().unwrap(), want);
        };
        check("busy:0.5", Neighbour::Busy(0.5));
        check("busy:2", Neighbour::Busy(2.0));
        check("steal:30", Neighbour::Steal(30));
        check(" make -j2 ", Neighbour::Command("make -j2".to_owned()));
        check("busy", Neighbour::Command("busy".to_owned()));
        for wrong in [
            "",
            " ",
            "steal:",
            "steal:0",
            "steal:501",
            "steal:x",
            "busy:",
            "busy:0",
            "busy:-1",
            "busy:nan",
            "busy:65",
            "busy:x",
        ] {
            assert!(wrong.parse::<Neighbour>().is_err(), "{wrong:?}");
        }
    }
}
