//! Reads the description of a fleet: servers with their VMs. Classifies each server by whether its VMs have CPU cores
//! of their own.
//!
//! ```toml
//! [[server]]
//! name = "db-1"
//! count = 2                  # number of servers like this one
//! cores = 48
//! threads = 96
//! reserve = 1
//! vms = [{ count = 4, vcpu = 16 }]
//! ```

use crate::error::DensityError;
use crate::scenario::{Classified, Scenario, Server, Vms, classify};
use serde::{Deserialize, Serialize};

/// A kind of server with its VMs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placed {
    /// A name for display.
    pub name: String,
    /// Number of servers like this one.
    #[serde(default = "one")]
    pub count: u32,
    /// Number of physical cores.
    pub cores: u32,
    /// Number of logical CPUs.
    pub threads: u32,
    /// Number of cores reserved for the host.
    #[serde(default)]
    pub reserve: f64,
    /// Number of physical cores of the smallest NUMA node; `None` when not known.
    #[serde(default)]
    pub node_cores: Option<u32>,
    /// VMs on each server.
    pub vms: Vec<Vms>,
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Vec<Placed>,
}

/// Parses the description of a fleet and classifies every server.
///
/// # Errors
/// Returns one error for each server that cannot exist, or the first syntax error of the file.
pub fn read(file: &str, text: &str) -> Result<Vec<(Placed, Classified)>, Vec<DensityError>> {
    let wrong = |what: String| DensityError::new(format!("{file}: {what}"));
    let parsed: File = toml::from_str(text).map_err(|error| vec![wrong(error.to_string())])?;
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for placed in parsed.server {
        match classify(&placed.server(), &placed.vms) {
            Ok(classified) => good.push((placed, classified)),
            Err(error) => bad.push(wrong(format!("server {:?}: {error}", placed.name))),
        }
    }
    if bad.is_empty() { Ok(good) } else { Err(bad) }
}

impl Placed {
    /// Returns the server's hardware without its VMs.
    #[must_use]
    pub fn server(&self) -> Server {
        let Placed { cores, threads, reserve, node_cores, .. } = *self;
        Server { cores, threads, reserve, node_cores, llc_cores: None }
    }
}

/// Formats the fleet as text: one line per kind of server, then the number of servers in each class.
#[must_use]
pub fn describe(fleet: &[(Placed, Classified)]) -> String {
    let width = fleet.iter().map(|(placed, _)| placed.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (placed, classified) in fleet {
        let headline = classified.headline(&placed.server());
        out.push_str(&format!("{:width$}  {:>4} x  {headline}\n", placed.name, placed.count));
        for note in &classified.notes {
            out.push_str(&format!("{:width$}          {note}\n", ""));
        }
    }
    let all = [Scenario::Ideal, Scenario::SharedCore, Scenario::Oversubscribed];
    let totals = all.map(|scenario| {
        let of = fleet.iter().filter(|(_, classified)| classified.scenario == scenario);
        let servers: u64 = of.map(|(placed, _)| u64::from(placed.count)).sum();
        format!("{servers} {scenario}")
    });
    out.push_str(&format!("servers: {}\n", totals.join(", ")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_classified_server_by_server() {
        let text = "[[server]]\nname = \"a\"\ncount = 8\ncores = 48\nthreads = 96\nvms = [{ count = 1, vcpu = 16 }]\n\
                    [[server]]\nname = \"dense\"\ncores = 48\nthreads = 96\nreserve = 1\nvms = [{ count = 8, vcpu = 16 }]\n";
        let fleet = read("fleet.toml", text).unwrap();
        assert_eq!(
            describe(&fleet),
            "a         8 x  ideal (16 vCPU, 48 cores, 96 threads)\n\
             dense     1 x  oversubscribed 1:1.33 (128 vCPU / 96 T)\n\
             servers: 8 ideal, 0 shared-core, 1 oversubscribed\n"
        );
    }

    #[test]
    fn all_impossible_servers_are_told_at_once() {
        let text = "[[server]]\nname = \"a\"\ncores = 0\nthreads = 0\nvms = [{ count = 1, vcpu = 1 }]\n\
                    [[server]]\nname = \"b\"\ncores = 4\nthreads = 8\nvms = [{ count = 1, vcpu = 0 }]\n";
        let errors = read("fleet.toml", text).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(
            errors[1].to_string().starts_with("fleet.toml: server \"b\": 1 VMs of 0 vCPU"),
            "{}",
            errors[1]
        );
        let unknown = "[[server]]\nname = \"a\"\ncore = 4\nthreads = 8\nvms = []\n";
        let errors = read("fleet.toml", unknown).unwrap_err();
        assert!(errors[0].to_string().contains("unknown field `core`"), "{}", errors[0]);
    }
}
