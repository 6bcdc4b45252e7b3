//! Pressure stall information of the machine and of v2 groups.

use commensal_core::observe::{Pressure, Pressures};
use commensal_host::{Dir, Host};
use std::path::Path;

/// Reads the pressure of the whole machine; all `None` if PSI is off.
#[must_use]
pub fn machine(host: &dyn Host) -> Pressures {
    let read = |name: &str| parse(&host.read_file(Path::new(&format!("/proc/pressure/{name}"))).ok()?);
    Pressures { cpu: read("cpu"), memory: read("memory"), io: read("io") }
}

/// Reads the pressure of a v2 group.
#[must_use]
pub fn group(host: &mut dyn Host, dir: Dir) -> Pressures {
    let mut read = |file: &str| parse(&host.read(dir, file).ok()?);
    Pressures { cpu: read("cpu.pressure"), memory: read("memory.pressure"), io: read("io.pressure") }
}

/// Parses `some avg10=… avg60=… avg300=… total=N` and, if there is one, the `full` line.
fn parse(text: &str) -> Option<Pressure> {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().find_map(|field| field.strip_prefix("total=")?.parse().ok())
    };
    Some(Pressure { some_us: total("some ")?, full_us: total("full ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_or_one() {
        let text = "some avg10=0.00 avg60=0.02 avg300=0.27 total=2659613\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), Some(Pressure { some_us: 2_659_613, full_us: Some(7) }));
        assert_eq!(parse("some avg10=0 total=5"), Some(Pressure { some_us: 5, full_us: None }));
        assert_eq!(parse(""), None);
    }
}
