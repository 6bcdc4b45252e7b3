//! The line protocol between the conductor, which runs a measurement, and the programs in the cells. A cell is a VM, or
//! a cgroup that stands for a VM.
//!
//! ```text
//! program                                conductor
//! port 40123      (its UDP port)      ─►
//! ready                               ─►
//!                                     ◄─ go 40123 40124 …   (the ports of all cells, including its own)
//! warn NAME COUNT                     ─►
//! result KEY DIGEST                   ─►
//! fail MESSAGE    (a unit failed)     ─►
//! steal SECONDS   (counted by guests) ─►
//! done SECONDS                        ─►
//!                                     ◄─ end of input: the program may exit
//! ```
//! After its own work, a program continues to respond to other cells until its input ends, because their work may still
//! be in progress. The serial line of a VM has no end of input, so the conductor sends a last line (`end`) instead.

/// A line that a program printed.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// The program's UDP port.
    Port(u16),
    /// The program is ready to start work.
    Ready,
    /// Name of a warning, and how often it occurred.
    Warn(String, u64),
    /// Key and digest of the result of a unit of work.
    Result(String, String),
    /// Steal time of all vCPUs between `go` and `done`, as the guest's kernel counts it, in seconds.
    Steal(f64),
    /// A unit of work failed; the message says why.
    Fail(String),
    /// All sessions have finished, this many seconds after `go`.
    Done(f64),
    /// Any other line, which is kept as evidence.
    Other(String),
}

/// Parses a line that a program printed.
#[must_use]
pub fn line(text: &str) -> Said {
    let text = text.trim_end();
    let other = || Said::Other(text.to_owned());
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "ready" if rest.is_empty() => Said::Ready,
        "port" => rest.parse().map_or_else(|_| other(), Said::Port),
        "done" => seconds(rest).map_or_else(other, Said::Done),
        "steal" => seconds(rest).map_or_else(other, Said::Steal),
        "fail" if !rest.is_empty() => Said::Fail(rest.to_owned()),
        "warn" => match rest.split_once(' ').map(|(name, count)| (name, count.parse())) {
            Some((name, Ok(count))) => Said::Warn(name.to_owned(), count),
            _ => other(),
        },
        "result" => match rest.split_once(' ') {
            Some((key, digest)) => Said::Result(key.to_owned(), digest.to_owned()),
            None => other(),
        },
        _ => other(),
    }
}

fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().filter(|seconds: &f64| seconds.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_noise_is_kept() {
        let check = |text: &str, want: Said| assert_eq!(line(text), want);
        check("ready\n", Said::Ready);
        check("port 4711", Said::Port(4711));
        check("warn net 3", Said::Warn("net".to_owned(), 3));
        check("result q01 abc", Said::Result("q01".to_owned(), "abc".to_owned()));
        check("fail q14: out of memory", Said::Fail("q14: out of memory".to_owned()));
        check("done 12.5", Said::Done(12.5));
        // On a serial line, lines end with CR LF.
        check("steal 0.07\r\n", Said::Steal(0.07));
        for noise in ["done x", "done NaN", "port 70000", "warn net", "ready to go", "fail", ""] {
            check(noise, Said::Other(noise.to_owned()));
        }
    }
}
